/** What fits: layouts and settings of the job in the plan view, each proven by a plan, as they are found. */

import { ask, pause, send } from "./api.js";
import { byId, fill, html } from "./dom.js";
import { currentJob } from "./plan_form.js";
import { clearProblem, showProblem } from "./problem.js";
import { scatter } from "./scatter.js";
import { sortableTable } from "./sortable_table.js";
import { changeText, size } from "./units.js";

const LOOK_SECONDS = 1;
const OVER = ["done", "stopped", "failed", "refused"];
const FIELDS = { gpus: "search-gpus", axes: "search-axes", objective: "search-objective", seconds: "search-seconds", top: "search-top" };
let running = null;

/** Shows the view, as it was left; `replan(request)` plans a candidate. */
export function open(where, replan) {
  if (where.firstChild) return;
  const field = (id, label, control, kind = null) => {
    control.id = id;
    return html("p", { class: kind }, html("label", { for: id }, label), control);
  };
  const objectives = [["cost", "lowest cost"], ["memory", "least memory"], ["headroom", "most headroom"]];
  const form = html("form", { class: "card", id: "search-form", novalidate: true },
    html("p", {}, "It varies how the job of the ", html("a", { href: "#plan" }, "plan view"),
      " is laid out over its GPUs, and settings that leave the training as it is. What is shown was planned."),
    html("div", { class: "fields" },
      field("search-gpus", "GPUs, if not the job's", html("input", { placeholder: "8, 2x8, 8xH100", autocomplete: "off" })),
      field("search-objective", "Best is", html("select", {}, objectives.map(([value, name]) => html("option", { value }, name)))),
      field("search-top", "How many", html("input", { type: "number", min: 1, value: 10 })),
      field("search-seconds", "Seconds", html("input", { type: "number", min: 1, value: 60 })),
      field("search-axes", "Only, or also", html("input", { placeholder: "tp=1..8 recompute=none,full", spellcheck: "false", autocomplete: "off" }), "wide")),
    html("p", { class: "actions" }, html("button", { type: "submit", class: "main" }, "Search"),
      html("button", { type: "button", id: "stop-search", hidden: true, onclick: stop }, "Stop")),
    html("div", { id: "search-problem" }), html("div", { id: "search-progress", role: "status" }));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    search(replan);
  });
  fill(where, form, html("div", { id: "search-result" }));
}

async function search(replan) {
  const problem = byId("search-problem");
  clearProblem(problem);
  running?.controller.abort();
  running = { controller: new AbortController(), id: "" };
  const mine = running;
  const { signal } = mine.controller;
  byId("stop-search").hidden = false;
  fill(byId("search-result"));
  tell("Reading the job.");
  try {
    const { job } = await currentJob();
    let found = await send("v1/searches", { ...asked(), job }, { signal });
    mine.id = found.search_id;
    for (;;) {
      show(found, job, replan);
      if (OVER.includes(found.state)) break;
      await pause(LOOK_SECONDS, signal);
      found = (await ask("GET", `v1/searches/${mine.id}`, { signal })).said;
    }
    if (found.problem) showProblem(problem, { message: "", said: found.problem }, { fields: fieldsOfForm() });
  } catch (fault) {
    tell("");
    if (fault.name !== "AbortError") showProblem(problem, fault, { fields: fieldsOfForm() });
  } finally {
    if (running === mine) byId("stop-search").hidden = true;
  }
}

/** It keeps what it found; the next look says that it is stopped. */
async function stop() {
  if (running?.id) await ask("DELETE", `v1/searches/${running.id}`).catch((fault) => showProblem(byId("search-problem"), fault));
  else running?.controller.abort();
}

/** What the form says, as POST /v1/searches takes it. */
function asked() {
  const text = (id) => byId(id).value.trim();
  const found = { objective: text("search-objective"), top: Number(text("search-top")), seconds: Number(text("search-seconds")) };
  if (text("search-gpus")) found.gpus = text("search-gpus");
  if (text("search-axes")) found.axes = text("search-axes").split(/\s+/);
  return found;
}

const fieldsOfForm = () => Object.fromEntries(Object.entries(FIELDS).flatMap(([place, id]) =>
  [[place, byId(id)], [`--${place}`, byId(id)]]));

function tell(text) {
  const where = byId("search-progress");
  if (where.textContent !== text) where.textContent = text;
}

function show(found, job, replan) {
  const { progress, space } = found;
  const over = OVER.includes(found.state);
  const done = `${progress.looked_at.toLocaleString("en")} of ${progress.to_look_at.toLocaleString("en")} candidates looked at, ${progress.planned} planned, ${found.candidates.length} shown`;
  const why = found.stopped ? ` (${found.stopped})` : "";
  tell(over ? `The search is ${found.state}${why}: ${done}.` : `${progress.doing || "Searching"}: ${done}.`);
  fill(byId("search-result"), found.candidates.length || over ? resultOf(found, space, job, replan) : null);
}

function resultOf(found, space, job, replan) {
  const rows = found.candidates;
  const planIt = (row) => html("button", { type: "button", class: "quiet", "aria-label": `Plan with ${changeText(row.change) || "the job as it is"}`,
    onclick: () => {
      location.hash = "#plan";
      replan({ job, set: row.change });
    } }, "Plan it");
  const columns = [
    { name: "what is different", value: (row) => changeText(row.change), cell: (row) => html("code", {}, changeText(row.change) || "the job as it is") },
    { name: "verdict", value: (row) => row.verdict, cell: (row) => html("b", { class: row.verdict }, row.verdict) },
    { name: "on the device", kind: "number", value: (row) => row.device_bytes, cell: (row) => size(row.device_bytes) },
    { name: "free", kind: "number", value: (row) => row.headroom_bytes, cell: (row) => size(row.headroom_bytes) },
    { name: "tokens/s per GPU", kind: "number", value: (row) => row.tokens_per_second, cell: (row) => row.tokens_per_second?.toLocaleString("en", { maximumFractionDigits: 0 }) ?? "" },
    { name: "GPU hours per 10⁹ tokens", kind: "number", value: (row) => row.gpu_hours_per_billion_tokens, cell: (row) => row.gpu_hours_per_billion_tokens?.toLocaleString("en") ?? "" },
    { name: "relative cost", kind: "number", value: (row) => row.relative_cost, cell: (row) => row.relative_cost?.toFixed(3) ?? "" },
    { name: "then", value: () => null, cell: planIt },
  ];
  const counts = Object.entries(space.broken_rules).map(([rule, count]) => `${count.toLocaleString("en")}: ${rule}`);
  return html("section", { class: "card", "aria-label": "Candidates" },
    pictureOf(rows),
    sortableTable("Candidates that fit", columns, rows, { empty: closestText(found.closest) }),
    html("details", {}, html("summary", {}, "What was left out"),
      html("ul", {}, html("li", {}, `${space.exceed_by_bound.toLocaleString("en")} exceed by their lower bound, ${space.left_out_as_larger} as larger than one that exceeds, ${space.refused} cannot be planned, ${space.undecided} undecided`),
        counts.map((each) => html("li", {}, each)))));
}

const closestText = (closest) => closest
  ? `Nothing is known to fit. Closest: ${changeText(closest.change)}, which lacks ${size(-closest.headroom_bytes)}.`
  : "Nothing is known to fit.";

function pictureOf(rows) {
  const known = rows.filter((row) => row.relative_cost !== null);
  if (!known.length) return null;
  const points = known.map((row) => ({ x: row.device_bytes, y: row.relative_cost, kind: row.verdict,
    title: `${changeText(row.change) || "the job as it is"}: ${size(row.device_bytes)}, relative cost ${row.relative_cost.toFixed(3)}` }));
  const axes = { x: { name: "on the device", text: size }, y: { name: "relative cost", text: (value) => value.toFixed(2), from: 0.9 } };
  return scatter(`Memory against relative cost of ${known.length} candidates; the table below has the figures`, points, axes,
    { limit: Math.max(...known.map((row) => row.capacity_bytes)) });
}
