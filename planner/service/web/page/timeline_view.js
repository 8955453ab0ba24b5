/** Memory of a rank class over time, fetched when it is looked at: a chart and who holds what at a moment. */

import { pause, Problem, read } from "./api.js";
import { fill, html, swatch } from "./dom.js";
import { peakOf, TimelineChart } from "./timeline_chart.js";
import { moment, size, words } from "./units.js";

const TRIES = 5; // a trace is stored soon after its plan was told

/** The section of a plan's rank class. */
export function timelineView(plan, rankClass) {
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

/** The chart of a timeline, its legend, and below it what is held at the moment that is pointed at. */
export function chartOf(found, heading = "h4") {
  const held = html("div", { class: "held" });
  const chart = new TimelineChart(found, (index) => fill(held, heldAt(found, index)), (index) => textAt(found, index));
  queueMicrotask(() => chart.look(peakOf(found)));
  return [
    html(heading, {}, "Memory over time"),
    html("p", { class: "quiet" }, "Point at a moment, or move through them with the arrow keys. Time runs in events of the allocator; short phases, and the highest moment of each, are drawn wider."),
    chart.node, legend(found), held];
}

function legend(found) {
  const limit = Math.max(found.capacity_bytes - found.outside_bytes, 0);
  return html("p", { class: "legend" },
    Object.keys(found.allocated_bytes).map((name) => html("span", {}, swatch(name), words(name))),
    html("span", {}, html("i", { class: "mark rule" }), "reserved"),
    found.capacity_bytes > 0 && html("span", {}, html("i", { class: "mark capacity" }), `capacity less outside, ${size(limit)}`));
}

/** The phase of a moment; of a recorded snapshot, which has none, its event. */
function momentAt(found, index) {
  const phase = found.phases.find((each) => found.at[index] < each.last) || found.phases.at(-1);
  return phase ? moment(phase.phase, phase.iteration) : `event ${found.at[index].toLocaleString("en")}`;
}

const allocatedAt = (found, index) => Object.values(found.allocated_bytes).reduce((sum, sizes) => sum + sizes[index], 0);

/** A moment in words, for who does not see it. */
function textAt(found, index) {
  const [first] = found.held[index];
  const holder = first ? `; most in ${holderText(found.who[first[0]])}` : "";
  return `${momentAt(found, index)}: allocated ${size(allocatedAt(found, index))}, reserved ${size(found.reserved_bytes[index])}${holder}`;
}

const holderText = (who) => `${words(who.category)} ${who.module || who.op || ""}`.trim();

function heldAt(found, index) {
  const reserved = found.reserved_bytes[index];
  const rows = found.held[index].map(([holder, bytes, count]) => {
    const who = found.who[holder];
    return html("tr", {},
      html("td", { class: "number" }, size(bytes)),
      html("td", {}, found.phases.length > 0 && swatch(who.category), found.phases.length > 0 && words(who.category)),
      html("td", { class: "code" }, [who.module, who.op].filter(Boolean).join(" · ")),
      html("td", {}, `${count > 1 ? `${count} of ` : ""}${who.shape.join(" × ")} ${who.dtype}`));
  });
  return [
    html("p", {}, html("b", {}, momentAt(found, index)),
      `: allocated ${size(allocatedAt(found, index))}, reserved ${size(reserved)}`,
      found.outside_bytes > 0 && `, on the device ${size(reserved + found.outside_bytes)}`),
    html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Largest holders at this moment" },
      html("table", {}, html("caption", {}, "Largest holders at this moment"),
        html("thead", {}, html("tr", {}, ["bytes", "category", "module and operator", "blocks"].map((name) => html("th", { scope: "col" }, name)))),
        html("tbody", {}, rows)))];
}
