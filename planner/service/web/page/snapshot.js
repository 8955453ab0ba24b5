/** A recorded memory snapshot, dropped or chosen: who held what, what the allocator decided, what other settings take. */

import { send } from "./api.js";
import { byId, fill, html } from "./dom.js";
import { clearProblem, showProblem } from "./problem.js";
import { chartOf } from "./timeline.js";
import { size } from "./units.js";

const CONFS = ["expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:4"];
const PACKED = [[0x1f, 0x8b], [0xfd, 0x37]]; // gzip, xz

/** Shows the view, as it was left. */
export function open(where) {
  if (where.firstChild) return;
  const file = html("input", { id: "snapshot-file", type: "file", accept: ".pickle,.pkl,.gz,.xz" });
  const conf = html("input", { id: "snapshot-conf", list: "snapshot-confs", spellcheck: "false", autocomplete: "off",
    value: CONFS[0] });
  const form = html("form", { class: "card drop", id: "snapshot-form" },
    html("p", { id: "snapshot-help" }, "What torch.cuda.memory._dump_snapshot wrote, also as .gz or .xz. Drop the file here, or choose it. It is read by this service and not kept."),
    html("div", { class: "fields" },
      html("p", { class: "wide" }, html("label", { for: "snapshot-file" }, "Snapshot"), file),
      html("p", { class: "wide" }, html("label", { for: "snapshot-conf" }, "And with this PYTORCH_ALLOC_CONF"), conf,
        html("datalist", { id: "snapshot-confs" }, CONFS.map((value) => html("option", { value }))))),
    html("p", { class: "actions" }, html("button", { type: "submit", class: "main" }, "Explain")),
    html("div", { id: "snapshot-problem" }), html("p", { id: "snapshot-status", role: "status" }));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    explain(file.files[0]);
  });
  form.addEventListener("dragover", (event) => {
    event.preventDefault();
    form.classList.add("over");
  });
  form.addEventListener("dragleave", () => form.classList.remove("over"));
  form.addEventListener("drop", (event) => {
    event.preventDefault();
    form.classList.remove("over");
    file.files = event.dataTransfer.files;
    explain(file.files[0]);
  });
  fill(where, form, html("div", { id: "snapshot-result" }));
}

async function explain(file) {
  const problem = byId("snapshot-problem");
  clearProblem(problem);
  fill(byId("snapshot-result"));
  if (!file) {
    showProblem(problem, { said: { problem: "no file is chosen", allowed: "a snapshot of CUDA memory", remedy: "choose or drop one", place: "file" } },
      { fields: { file: byId("snapshot-file") } });
    return;
  }
  byId("snapshot-status").textContent = `Reading ${file.name}.`;
  try {
    const conf = byId("snapshot-conf").value.trim();
    const path = `v1/replays${conf ? `?conf=${encodeURIComponent(conf)}` : ""}`;
    const found = await send(path, await packed(file), { type: "application/octet-stream" });
    fill(byId("snapshot-result"), found.devices.map((device) => deviceView(device, found.conf)));
    byId("snapshot-status").textContent = `${file.name} is explained below.`;
  } catch (fault) {
    byId("snapshot-status").textContent = "";
    showProblem(problem, fault, { fields: { conf: byId("snapshot-conf"), "the body": byId("snapshot-file") } });
  }
}

/** Compressed here, for the service takes bodies up to a limit, and snapshots shrink to a fifth or less. */
async function packed(file) {
  const [first, second] = new Uint8Array(await file.slice(0, 2).arrayBuffer());
  if (PACKED.some(([a, b]) => a === first && b === second) || !file.size) return file;
  return new Response(file.stream().pipeThrough(new CompressionStream("gzip"))).blob();
}

function deviceView(device, conf) {
  const { timeline } = device;
  const failed = device.out_of_memory.map((each) => html("li", { class: "exceeds" },
    `It ran out of memory: ${size(each.requested_bytes)} were asked for` + (each.free_bytes === null ? "." : `, and the device had ${size(each.free_bytes)} left.`)));
  return html("section", { class: "card", "aria-label": `Device ${device.device}` },
    html("h2", {}, `Device ${device.device}`),
    html("p", {}, `At most ${size(device.peak_allocated_bytes)} were allocated and ${size(device.peak_reserved_bytes)} reserved in ${device.events.toLocaleString("en")} events`,
      conf && ` under ${conf}`, "."),
    html("ul", {}, failed, whatIf(device), html("li", {}, decisions(device))),
    chartOf(timeline, "h3"));
}

function whatIf(device) {
  const other = device.what_if;
  if (!other) return null;
  const saved = device.peak_reserved_bytes - other.peak_reserved_bytes;
  const change = saved === 0 ? "the same" : `${size(Math.abs(saved))} ${saved > 0 ? "less" : "more"}`;
  const about = other.exact ? "" : " This is an estimate: in which order its first blocks were made is not recorded.";
  return html("li", {}, `With ${other.conf || "the default settings"} it would have reserved ${size(other.peak_reserved_bytes)}: ${change}.${about}`);
}

function decisions(device) {
  const { addresses, segments, first_difference: first } = device;
  const same = `planner's allocator makes ${addresses.matched} of ${addresses.total} addresses and ${segments.matched} of ${segments.total} segment decisions as the GPU's did`;
  return first ? `${same}; the first difference is at event ${first.event}: recorded ${first.recorded}, replayed ${first.replayed}.` : `${same}.`;
}
