/** The form of a job: picked in a few words, or a spec; both are planned as the spec that stands in the text. */

import { read } from "./api.js";
import { byId, html } from "./dom.js";
import { plan, specOf } from "./planning.js";
import { clearProblem, showProblem } from "./problem.js";
import { size } from "./units.js";

const FIELDS = {
  "the model": "model", "model.hf_config": "model", "--gpus": "count", "--gpu": "gpu", "--seq": "seq",
  "--batch": "batch", "--accumulate": "accumulate", "--lora": "adapter-rank", "--qlora": "adapter-rank",
  "--dora": "adapter-rank", "--fsdp": "share", "--ddp": "share", "--zero": "share", "--tp": "tp", "--pp": "pp",
  "--cp": "cp", "--ep": "ep", "--precision": "precision", "--optimizer": "optimizer", "--recompute": "recompute",
  "--offload": "offload", "words.batch": "batch", "words.accumulate": "accumulate",
};
const USUAL_GPU = "H100-SXM-80GB";
let waiting = null;

/** Sets the form up; `show(plan, notes)` is called with every plan. */
export function setUp(show) {
  byId("plan-form").addEventListener("submit", (event) => {
    event.preventDefault();
    submit(show);
  });
  byId("stop-plan").addEventListener("click", () => waiting?.abort());
  byId("adapter").addEventListener("change", () => { byId("adapter-rank").disabled = !byId("adapter").value; });
  for (const each of document.getElementsByName("source")) each.addEventListener("change", showSource);
  fillLists();
}

/** The spec that is shown from now on, with what it stands for. */
export function showSpec(text) {
  byId("spec").value = text;
  document.querySelector('input[name="source"][value="spec"]').checked = true;
  showSource();
}

/** Plans the spec in the text, as its button does. */
export const planSpec = (show) => submit(show);

/** The spec of what is picked or pasted, as a search needs it. */
export async function currentJob() {
  if (isPasted()) return specOf({ spec: byId("spec").value });
  return specOf(picked());
}

const isPasted = () => document.querySelector('input[name="source"]:checked').value === "spec";

function showSource() {
  byId("picked").hidden = isPasted();
  byId("pasted").hidden = !isPasted();
}

async function fillLists() {
  const [models, gpus] = await Promise.all([read("v1/models"), read("v1/gpus")]);
  const named = models.models.flatMap((each) => [each.name, ...each.also]);
  byId("models").replaceChildren(...named.map((name) => html("option", { value: name })));
  byId("gpu").replaceChildren(...gpuOptions(gpus.gpus, USUAL_GPU));
}

/** Options of a list of GPUs. */
export const gpuOptions = (gpus, chosen) => gpus.map((each) =>
  html("option", { value: each.name, selected: each.name === chosen }, `${each.name} (${size(each.total_bytes)})`));

/** What is picked, as POST /v1/specs takes it. */
export function picked() {
  const text = (id) => byId(id).value.trim();
  const number = (id) => (text(id) === "" ? null : Number(text(id)));
  const degree = (id) => (number(id) > 1 ? String(number(id)) : null);
  const words = {
    gpus: `${text("count")}x${text("gpu")}`, seq: text("seq"), batch: number("batch"),
    accumulate: number("accumulate") > 1 ? number("accumulate") : null, precision: text("precision"),
    optimizer: text("optimizer"), recompute: text("recompute"), offload: byId("offload").checked,
    tp: degree("tp"), pp: degree("pp"), cp: degree("cp"), ep: degree("ep"),
  };
  const share = text("share");
  if (share.startsWith("zero")) words.zero = Number(share.slice(4));
  else if (number("count") > 1) words[share] = "rest";
  const adapter = text("adapter");
  if (adapter) words[adapter] = `r=${text("adapter-rank")}`;
  return { model: text("model"), words };
}

async function submit(show) {
  const problem = byId("plan-problem");
  clearProblem(problem);
  waiting?.abort();
  waiting = new AbortController();
  byId("plan-result").classList.add("of-before");
  const { signal } = waiting;
  tellProgress(0, null);
  try {
    const spec = isPasted() ? null : await specOf(picked(), signal);
    if (spec) byId("spec").value = spec.spec;
    const found = await plan(byId("spec").value, { progress: tellProgress, signal });
    show(found, spec ? [...spec.taken.map((each) => `taken: ${each}`), ...spec.notes] : []);
  } catch (fault) {
    if (fault.name !== "AbortError") showProblem(problem, fault, { fields: fieldsOfForm(), text: byId("spec") });
  } finally {
    if (waiting.signal === signal) tellProgress(null);
  }
}

const fieldsOfForm = () => Object.fromEntries(Object.entries(FIELDS).map(([place, id]) => [place, byId(id)]));

/** `seconds` null: it is over. What is done is said aloud once; the clock is for the eye. */
function tellProgress(seconds, pending) {
  const shown = byId("plan-progress");
  byId("stop-plan").hidden = seconds === null;
  byId("plan-form").setAttribute("aria-busy", String(seconds !== null));
  shown.hidden = seconds === null;
  if (seconds === null) return;
  if (!shown.firstChild) {
    shown.append(html("progress", { "aria-label": "Planning" }), html("span", { class: "said" }),
      html("span", { class: "clock", "aria-hidden": "true" }));
  }
  const [, said, clock] = shown.children;
  const line = pending ? "Planning: tracing the training step of each rank class." : "Planning.";
  if (said.textContent !== line) said.textContent = line;
  clock.textContent = ` ${seconds.toFixed(0)} s`;
}
