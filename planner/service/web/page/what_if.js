/** What if: values of the planned job that can be changed, and planned again beside what they were. */

import { read } from "./api.js";
import { html } from "./dom.js";
import { gpuOptions } from "./plan_form.js";
import { size } from "./units.js";

let before = null;

/** The section with the controls; `replan(request)` plans what is changed. */
export function whatIf(plan, replan) {
  if (!plan.job) return null;
  const controls = controlsOf(plan.job);
  const form = html("form", { class: "fields", id: "what-if-form" },
    controls.map(({ key, label, control }) => {
      control.id = `what-if-${key.replaceAll(".", "-")}`;
      return html("p", {}, html("label", { for: control.id }, label), control);
    }),
    html("p", { class: "actions" }, html("button", { type: "submit", class: "main" }, "Plan again")));
  const problem = html("div", { id: "what-if-problem" });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const changed = controls.filter(({ control, was }) => valueOf(control) !== was);
    const set = Object.fromEntries(changed.map(({ key, control }) => [key, typed(control)]));
    before = { plan, said: changed.map(({ label, was, control }) => `${label}: ${was} to ${valueOf(control)}`).join(", ") };
    const fields = Object.fromEntries(controls.map(({ key, control }) => [key, control]));
    replan({ job: plan.job, set }, problem, fields);
  });
  return html("section", { class: "card", "aria-labelledby": "what-if" },
    html("h3", { id: "what-if" }, "What if"), difference(plan), form, problem);
}

function difference(plan) {
  if (!before || before.plan.plan_id === plan.plan_id || !before.said) return null;
  const highest = (each) => Math.max(...each.rank_classes.map((one) => one.peak.device_bytes));
  const [was, now] = [highest(before.plan), highest(plan)];
  const change = now === was ? "the same" : `${size(Math.abs(now - was))} ${now < was ? "less" : "more"}`;
  const text = `${before.said}: ${size(now)} at most in place of ${size(was)}, ${change}; ${plan.verdict} (it was: ${before.plan.verdict}).`;
  before = null;
  return html("p", { class: "difference", role: "status" }, text);
}

function controlsOf(job) {
  const { train, parallel, cluster, allocator } = job;
  const found = [
    number("train.micro_batch_size", "Micro-batch, sequences", train.micro_batch_size),
    train.sequence_length ? number("train.sequence_length", "Sequence length, tokens", train.sequence_length) : null,
    number("train.gradient_accumulation_steps", "Micro-batches of an iteration", train.gradient_accumulation_steps),
    choice("train.recompute.mode", "Recomputation", train.recompute.mode, ["none", "selective", "full"]),
    choice("train.precision", "Precision", train.precision, ["none", "bf16_autocast", "fp16_autocast", "fsdp_mixed"]),
    choice("train.optimizer.name", "Optimizer", train.optimizer.name, ["AdamW", "Adam", "SGD", "Adafactor"]),
    number("parallel.dp_replicate.degree", "Replicas (dp_replicate)", parallel.dp_replicate.degree),
    number("parallel.dp_shard.degree", "Shards (dp_shard)", parallel.dp_shard.degree),
    number("parallel.tp.degree", "Tensor parallel", parallel.tp.degree),
    number("cluster.nodes", "Nodes", cluster.nodes),
    number("cluster.gpus_per_node", "GPUs of a node", cluster.gpus_per_node),
    gpu(cluster.gpu.name),
    choice("allocator.conf", "PYTORCH_ALLOC_CONF", allocator.conf, ["", "expandable_segments:True"]),
  ];
  return found.filter(Boolean).map((each) => ({ ...each, was: valueOf(each.control) }));
}

const number = (key, label, value) => ({ key, label, control: html("input", { type: "number", min: 1, value }) });

/** The values that are usual, and the job's own where it is none of them; what is not a text cannot be chosen here. */
function choice(key, label, value, usual) {
  if (typeof value !== "string") return null;
  const values = usual.includes(value) ? usual : [value, ...usual];
  const options = values.map((each) => html("option", { value: each, selected: each === value }, each || "default"));
  return { key, label, control: html("select", {}, options) };
}

function gpu(name) {
  if (!name) return null;
  const control = html("select", {}, html("option", { value: name, selected: true }, name));
  read("v1/gpus").then((found) => {
    const chosen = control.value;
    control.replaceChildren(...gpuOptions(found.gpus, chosen));
  }).catch(() => {}); // then it stays the one that it is
  return { key: "cluster.gpu", label: "Type of GPU", control };
}

const valueOf = (control) => control.value.trim();
const typed = (control) => (control.type === "number" && control.value !== "" ? Number(control.value) : control.value);
