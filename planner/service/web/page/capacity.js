/** What jobs ask for, are predicted to take and took, by team, queue and GPU; and what they would be on other GPUs. */

import { read } from "./api.js";
import { byId, fill, html, section } from "./dom.js";
import { gpuOptions } from "./plan_form.js";
import { clearProblem, showProblem } from "./problem.js";
import { sortableTable } from "./sortable_table.js";
import { counted, decimals, size } from "./units.js";

/** Shows the view, with what there is now. */
export async function open(where) {
  const problem = html("div", { id: "capacity-problem" });
  const body = html("div", {}, html("p", { role: "status" }, "Reading."));
  fill(where, problem, body);
  try {
    const [found, gpus] = await Promise.all([read("v1/capacity"), read("v1/gpus")]);
    fill(body, byTeam(found), sharedGpus(found.shared || []), otherGpus(gpus.gpus, problem));
  } catch (fault) {
    fill(body);
    showProblem(problem, fault);
  }
}

const verdict = (row) => html("b", { class: row.verdict }, row.verdict);
const number = (name, value, text) => ({ name, kind: "number", value, cell: text && ((row) => text(value(row))) });
const known = (text) => (value) => (value === null ? "" : text(value));

function byTeam({ rows, totals }) {
  const columns = [
    { name: "team", value: (row) => row.team },
    { name: "queue", value: (row) => row.queue },
    { name: "GPU", value: (row) => row.gpu },
    number("jobs", (row) => row.jobs),
    number("GPUs", (row) => row.gpus),
    number("asked for", (row) => row.requested_bytes, size),
    number("predicted", (row) => row.predicted_bytes, size),
    number("headroom", (row) => row.headroom_bytes, size),
    { name: "measured (of GPUs)", kind: "number", value: (row) => row.measured_bytes,
      cell: (row) => (row.measured_gpus ? `${size(row.measured_bytes)} (${row.measured_gpus} of ${row.gpus})` : "") },
    number("GPU hours", (row) => row.gpu_seconds / 3600, (hours) => decimals(hours, 1)),
    { name: "wrong verdicts", kind: "number", value: (row) => row.wrong_verdicts, cell: (row) => (row.judged ? `${row.wrong_verdicts} of ${row.judged}` : "") },
    number("out of memory", (row) => row.ran_out_gpu + row.ran_out_host),
  ];
  const { headroom_bytes: left } = totals;
  const sum = `${counted(totals.jobs, "open job")} on ${counted(totals.gpus, "GPU")}: ${size(totals.requested_bytes)} asked for, ${size(totals.predicted_bytes)} predicted to be taken: ${size(Math.abs(left))} ${left < 0 ? "are missing" : "are not needed"}.`;
  return section("By team", sum, sortableTable("Jobs by team, queue and GPU", columns, rows,
    { empty: "No job is bound to a plan: hooks and the callback bind them (PUT /v1/jobs)." }));
}

function sharedGpus(rows) {
  if (!rows.length) return null;
  const columns = [
    { name: "verdict", value: (row) => row.verdict, cell: verdict },
    { name: "GPU", value: (row) => row.gpu },
    { name: "uuid", value: (row) => row.gpu_uuid },
    { name: "jobs", value: (row) => row.jobs.join(" + ") },
    number("predicted", (row) => row.predicted_bytes, size),
    number("at most (95 %)", (row) => row.highest_bytes, size),
    number("it has", (row) => row.total_bytes || null, known(size)),
  ];
  return section("Shared GPUs", "GPUs that several open jobs name as theirs, summed over their processes.",
    sortableTable("GPUs with more than one job, the fullest first", columns, rows));
}

function otherGpus(gpus, problem) {
  const gpu = html("select", { id: "capacity-gpu" }, gpuOptions(gpus, gpus[0].name));
  const form = html("form", { id: "capacity-form" },
    html("div", { class: "fields" },
      html("p", {}, html("label", { for: gpu.id }, "Type of GPU"), gpu)),
    html("p", { class: "actions" }, html("button", { type: "submit", class: "main" }, "Show")));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    clearProblem(problem);
    try {
      fill(byId("capacity-elsewhere"), elsewhere(await read(`v1/capacity?on=${encodeURIComponent(gpu.value)}`)));
    } catch (fault) {
      fill(byId("capacity-elsewhere"));
      showProblem(problem, fault, { fields: { "query.on": gpu } });
    }
  });
  return section("On other GPUs", "The open jobs on another type of GPU. Reckoned from stored plans; planning a job for that GPU says it exactly.",
    form, html("div", { id: "capacity-elsewhere", role: "status" }));
}

function elsewhere({ on: [kind], left_out: leftOut }) {
  const { fits, tight, exceeds } = kind.jobs;
  const columns = [
    { name: "verdict", value: (row) => row.verdict, cell: verdict },
    { name: "job", value: (row) => `${row.system}/${row.job_id}` },
    { name: "name", value: (row) => row.name },
    { name: "planned for", value: (row) => row.planned_gpu },
    number("ranks", (row) => row.ranks),
    number("at least", (row) => row.least_bytes, size),
    number("at most (95 %)", (row) => row.highest_bytes, size),
  ];
  return [
    html("p", {}, `Open jobs on ${kind.gpu} (${size(kind.total_bytes)}): ${fits} fit, ${tight} fit tightly, ${exceeds} do not.`),
    leftOut > 0 && html("p", {}, `${counted(leftOut, "more job")} were not looked at.`),
    sortableTable("The jobs there, those that need most first", columns, kind.listed, { empty: "No job is open." }),
  ];
}
