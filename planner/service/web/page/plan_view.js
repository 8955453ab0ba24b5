/** A plan: its verdict, ranks against capacity, memory over time, phases, holders, advice, and what else it could be. */

import { pause, Problem, read } from "./api.js";
import { byId, fill, html, table } from "./dom.js";
import { markChosen, rankBars } from "./rank_bars.js";
import { chartOf, holdersTable } from "./timeline.js";
import { capital, changeText, counted, decimals, duration, moment, ranksText, size, words } from "./units.js";
import { whatIf } from "./what_if.js";
import { pipelineView } from "./pipeline.js";

const TRIES = 5; // a trace is stored soon after its plan was told
const VERDICTS = { fits: "Fits", tight: "Fits narrowly", exceeds: "Does not fit" };

/** Shows the plan in place of the one before; `replan(request)` plans a changed job (see POST /v1/specs). */
export function showPlan(plan, notes, replan) {
  const where = byId("plan-result");
  const chosen = html("div", {});
  const ranks = rankBars(plan, (index) => choose(index));
  const choose = (index) => {
    markChosen(ranks, index);
    fill(chosen, classView(plan, index));
  };
  const heading = html("h2", { tabindex: -1, id: "verdict" },
    html("span", { class: `verdict ${plan.verdict}` }, VERDICTS[plan.verdict]), " ",
    html("span", { class: "name" }, (plan.job || plan).metadata?.name || "unnamed job"));
  fill(where,
    html("section", { class: "card", "aria-labelledby": "verdict" }, heading,
      html("p", { class: "sentence" }, sentenceOf(plan)), stepTime(plan), notesOf([...notes, ...(plan.notes ?? [])]),
      html("h3", {}, "Ranks against capacity"), ranks),
    adviceView(plan, replan),
    html("section", { class: "card", "aria-label": "One rank class" }, chosen),
    pipelineView(plan),
    whatIf(plan, replan),
    about(plan));
  where.classList.remove("of-before");
  choose(worstIndex(plan));
  heading.focus({ preventScroll: true });
  where.scrollIntoView({ block: "start" });
}

/** The class that decides: the one with the least headroom. */
export function worstIndex(plan) {
  const rooms = plan.rank_classes.map((each) => each.headroom_bytes);
  return rooms.indexOf(Math.min(...rooms));
}

/** What decides, as planner/report/verdict_text.py says it. */
function sentenceOf(plan) {
  const worst = plan.rank_classes[worstIndex(plan)];
  const [low, high] = worst.peak.interval_bytes;
  const times = worst.cache_releases;
  const releases = times && plan.verdict !== "exceeds" ? ` It fits only after ${times} cache release${times > 1 ? "s" : ""}.` : "";
  const known = plan.calibrated ? "95 % interval" : "uncalibrated interval";
  return `${capital(needsOf(worst))}. The peak is in ${moment(worst.peak.phase, worst.peak.iteration)}; ${known} ${size(low)} to ${size(high)}.${releases}${poolSentence(plan.pool)}${hostSentence(plan.host)}`;
}

function needsOf(worst) {
  const who = ranksText(worst.ranks), s = who.startsWith("ranks") ? "" : "s", room = size(worst.capacity_bytes);
  const { growth, peak } = worst;
  if (worst.verdict !== "exceeds" || peak.device_bytes > worst.capacity_bytes) return `${who} need${s} ${size(peak.device_bytes)}, ${room} available`;
  if (growth) return `each step keeps ${size(growth.bytes_per_step)} on ${who}, and the memory is full in step ${growth.full_in_step}`;
  return `${who} run${s} out of ${room} because free memory is fragmented`;
}

/** Of the slowest class; planner/report/plan_text.py says it so. */
function stepTime(plan) {
  const steps = plan.rank_classes.flatMap((each) => each.step ?? []);
  if (!steps.length) return null;
  const step = steps.reduce((a, b) => (b.seconds > a.seconds ? b : a));
  const [low, high] = step.interval_seconds.map(duration);
  const rate = step.tokens_per_second ? `: ${decimals(step.tokens_per_second)} tokens a second on each GPU` : "";
  const parts = [["kernels", step.computing_seconds], ["collectives", step.communicating_seconds], ["launches", step.launching_seconds]]
    .filter(([, seconds]) => seconds).map(([name, seconds]) => `${name} ${duration(seconds)}`).join(", ");
  return html("p", { class: "step-time" }, `A step takes about ${duration(step.seconds)} (${low} to ${high})${rate} (${parts}).`);
}

/** Where device and host share one memory. */
const poolSentence = (pool) => pool
  ? ` Device and host share ${size(pool.capacity_bytes)}: at once they hold ${size(pool.device_bytes)} and at least ${size(pool.host_bytes)}.` : "";

/** The main memory of the fullest node at least, where the job says what there is. */
function hostSentence(host) {
  if (!host?.verdict) return "";
  const node = host.nodes.reduce((a, b) => (b.peak.bytes > a.peak.bytes ? b : a));
  return ` On the host a node (${node.nodes}) needs at least ${size(node.peak.bytes)} of main memory, ${size(host.capacity_bytes)} available.`;
}

const notesOf = (notes) => notes.length > 0 && html("ul", { class: "notes" }, notes.map((each) => html("li", {}, each)));

function classView(plan, index) {
  const each = plan.rank_classes[index];
  const coordinates = Object.entries(each.coordinates).filter(([axis]) => (plan.job?.parallel[axis]?.degree ?? 1) > 1);
  const place = coordinates.map(([axis, at]) => `${axis} ${at}`).join(", ");
  return [html("h3", {}, `${capital(ranksText(each.ranks))}${place ? ` (${place})` : ""}`), timelineView(plan, each), phases(each), holders(each)];
}

/** Memory of a rank class over time, fetched when it is looked at. */
function timelineView(plan, rankClass) {
  const where = html("div", { class: "timeline" }, html("p", { class: "quiet", role: "status" }, "Drawing memory over time."));
  fetchTimeline(plan.plan_id, rankClass.representative)
    .then((found) => fill(where, chartOf(found)))
    .catch((fault) => where.replaceChildren(html("p", { class: "quiet" },
      `Memory over time is not shown: ${fault.message}. ${fault.said?.remedy || ""}`)));
  return where;
}

async function fetchTimeline(planId, rank) {
  for (let times = 1; ; times += 1) {
    try {
      return await read(`v1/plans/${planId}/timeline?rank=${rank}`);
    } catch (fault) {
      if (!(fault instanceof Problem) || fault.status !== 404 || times === TRIES) throw fault;
      await pause(times / 2);
    }
  }
}

function phases(each) {
  const rows = each.phases.map((phase) => [
    moment(phase.phase, phase.iteration), size(phase.peak_allocated_bytes), size(phase.peak_reserved_bytes),
    size(phase.end_allocated_bytes)]);
  return table("Phases", [["phase"], ["allocated", "number"], ["reserved", "number"], ["at its end", "number"]], rows);
}

function holders(each) {
  return html("details", {}, html("summary", {}, "Who holds the peak"), holdersTable(each.holders.slice(0, 25)));
}

function adviceView(plan, replan) {
  if (!plan.advice?.length) return adviceTried(plan);
  const items = plan.advice.map((each) => html("li", {},
    html("code", {}, changeText(each.change)), ` ${size(each.device_bytes)}, `,
    html("b", { class: each.verdict }, each.verdict), " ",
    html("button", { type: "button", class: "quiet", "aria-label": `Plan with ${changeText(each.change)}`,
      onclick: () => replan({ job: plan.job, set: each.change }) }, "Plan it")));
  return html("section", { class: "card", "aria-labelledby": "advice" },
    html("h3", { id: "advice" }, `Changes that ${plan.verdict === "exceeds" ? "make it fit" : "avoid freeing the cache"}, each verified by a plan`),
    html("ul", { class: "advice" }, items));
}

function adviceTried(plan) {
  const tried = plan.advice_tried;
  if (!tried || plan.verdict !== "exceeds") return null;
  const closest = Object.keys(tried.closest_change).length
    ? ` Closest: ${changeText(tried.closest_change)}, which lacks ${size(tried.closest_lacks_bytes)}.` : "";
  const left = tried.not_planned?.length ? ` The time was over, and not planned are: ${tried.not_planned.join("; ")}.` : "";
  const found = left ? "No change that was planned makes it fit" : "No change was found that makes it fit";
  return html("p", { class: "card" }, `${found}: ${counted(tried.planned, "change")} planned, ${tried.by_bound} excluded by their lower bound.${left}${closest}`);
}

function about(plan) {
  const rests = Object.entries(plan.provenance).map(([name, value]) => `${words(name)} ${value}`).join(" · ");
  return html("p", { class: "about" },
    html("a", { href: `#plans/${plan.plan_id}` }, plan.plan_id), " · ",
    html("a", { href: `v1/plans/${plan.plan_id}` }, "JSON"), ` · ${rests} · planned in ${plan.seconds.total} s`,
    plan.another_torch ? ` · ${plan.another_torch.sentence}` : null);
}
