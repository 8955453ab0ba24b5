/** What was planned and what ran: plans, jobs with predicted beside measured, validations. */

import { read } from "./api.js";
import { fill, html, section } from "./dom.js";
import { clearProblem, showProblem } from "./problem.js";
import { scatter } from "./scatter.js";
import { sortableTable } from "./sortable_table.js";
import { localTime, size } from "./units.js";

const MOST = 200;

/** Shows the view, with what there is now. */
export async function open(where) {
  const problem = html("div", { id: "history-problem" });
  const body = html("div", {}, html("p", { role: "status" }, "Reading."));
  fill(where, problem, body);
  clearProblem(problem);
  try {
    const [plans, jobs, validations] = await Promise.all([
      read(`v1/plans?limit=${MOST}`), read(`v1/jobs?limit=${MOST}`), read(`v1/validations?limit=${MOST}`)]);
    fill(body, jobsView(jobs.jobs), validationsView(validations.validations), plansView(plans.plans));
  } catch (fault) {
    fill(body);
    showProblem(problem, fault);
  }
}

const verdict = (row) => html("b", { class: row.verdict }, row.verdict);
const planLink = (row) => html("a", { href: `#plans/${row.plan_id}` }, row.name || row.plan_id);
const error = (row) => row.measured_bytes && row.predicted_bytes ? (100 * (row.predicted_bytes - row.measured_bytes)) / row.measured_bytes : null;
const percent = (value) => (value === null ? "" : `${value > 0 ? "+" : ""}${value.toFixed(2)} %`);
const bytes = (value) => (value === null || value === undefined ? "" : size(value));

function jobsView(jobs) {
  const columns = [
    { name: "job", value: (row) => `${row.system}/${row.job_id}` },
    { name: "plan", value: (row) => row.name, cell: planLink },
    { name: "team", value: (row) => row.team },
    { name: "GPUs", value: (row) => row.gpu, cell: (row) => `${row.ranks} × ${row.gpu}` },
    { name: "plan said", value: (row) => row.verdict, cell: verdict },
    { name: "ended", value: (row) => row.outcome || (row.ended_at ? "ended" : "open"), cell: ended },
    { name: "predicted", kind: "number", value: (row) => row.predicted_bytes, cell: (row) => bytes(row.predicted_bytes) },
    { name: "measured", kind: "number", value: (row) => row.measured_bytes, cell: (row) => bytes(row.measured_bytes) },
    { name: "error", kind: "number", value: error, cell: (row) => percent(error(row)) },
    { name: "told", value: (row) => row.updated_at, cell: (row) => localTime(row.updated_at) },
  ];
  return section("Jobs", "Device bytes of the rank that took the most: as its plan said, and as it was measured.",
    pictureOf(jobs.filter((row) => error(row) !== null)),
    sortableTable("Jobs, those reported last first", columns, jobs, { empty: "No job was reported yet: hooks and the callback report them (PUT /v1/jobs)." }));
}

const ended = (row) => {
  if (!row.outcome) return row.ended_at ? "ended" : "open";
  return [row.outcome, row.cause].filter(Boolean).map((each) => each.replaceAll("_", " ")).join(": ");
};

/** Predicted against measured: what was predicted to the byte lies on the line. */
function pictureOf(jobs) {
  if (!jobs.length) return null;
  const points = jobs.map((row) => ({ x: row.measured_bytes, y: row.predicted_bytes, kind: row.verdict,
    title: `${row.system}/${row.job_id}: predicted ${size(row.predicted_bytes)}, measured ${size(row.measured_bytes)}` }));
  const axes = { x: { name: "measured", text: size }, y: { name: "predicted", text: size } };
  return scatter(`Predicted against measured device bytes of ${jobs.length} jobs; the table below has the figures`, points, axes, { diagonal: true });
}

function validationsView(rows) {
  const columns = [
    { name: "validation", value: (row) => row.validation_id },
    { name: "state", value: (row) => row.state },
    { name: "GPU", value: (row) => row.gpu },
    { name: "torch", value: (row) => row.torch },
    { name: "error", kind: "number", value: (row) => row.error_percent ?? null, cell: (row) => percent(row.error_percent ?? null) },
    { name: "plan", value: (row) => row.plan_id, cell: (row) => html("a", { href: `#plans/${row.plan_id}` }, row.plan_id) },
    { name: "asked", value: (row) => row.asked_at, cell: (row) => localTime(row.asked_at) },
  ];
  return section("Validations", "Steps that were run for real beside their plans.",
    sortableTable("Validations, newest first", columns, rows, { empty: "None was asked for yet (POST /v1/validations)." }));
}

function plansView(plans) {
  const columns = [
    { name: "plan", value: (row) => row.name, cell: planLink },
    { name: "verdict", value: (row) => row.verdict, cell: verdict },
    { name: "team", value: (row) => row.team },
    { name: "queue", value: (row) => row.queue },
    { name: "GPUs", value: (row) => row.gpu, cell: (row) => `${row.ranks} × ${row.gpu}` },
    { name: "fullest GPU", kind: "number", value: (row) => row.fullest_bytes, cell: (row) => size(row.fullest_bytes) },
    { name: "it has", kind: "number", value: (row) => row.capacity_bytes, cell: (row) => size(row.capacity_bytes) },
    { name: "calibrated", value: (row) => (row.calibrated ? "yes" : "no") },
    { name: "stored", value: (row) => row.stored_at, cell: (row) => localTime(row.stored_at) },
  ];
  return section("Plans", "Device bytes of the rank that takes the most, and what its GPU has.",
    sortableTable("Plans, newest first", columns, plans, { empty: "No plan is stored yet." }));
}
