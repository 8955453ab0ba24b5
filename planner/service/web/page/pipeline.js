/** The pipeline of a plan: what each of its ranks takes, how much it holds at once, and in which order it works. */

import { html, svg, table } from "./dom.js";
import { mostHeld, ordersOf, timesOf } from "./pipeline_order.js";
import { size } from "./units.js";

const MOST_ACTIONS = 3000;
const [WIDTH, ROW, PAD] = [1000, 22, 56];

/** The section; nothing for a job without a pipeline. */
export function pipelineView(plan) {
  const pp = plan.job?.parallel.pp;
  if (!pp || pp.degree < 2) return null;
  const batches = plan.job.train.gradient_accumulation_steps;
  const orders = ordersOf(pp.schedule, pp.degree, batches);
  return html("section", { class: "card", "aria-labelledby": "pipeline" },
    html("h3", { id: "pipeline" }, `Pipeline: ${pp.degree} ranks deep, ${pp.schedule}, ${batches} micro-batches`),
    orders ? drawn(orders) : html("p", { class: "quiet" }, `In which order ${pp.schedule} works is not drawn.`),
    stages(plan, pp, orders));
}

/** The fullest rank class at each place of the pipeline. */
function stages(plan, pp, orders) {
  const rows = Array.from({ length: pp.degree }, (_, place) => {
    const here = plan.rank_classes.filter((each) => each.coordinates.pp === place);
    const fullest = here.reduce((a, b) => (b.headroom_bytes < a.headroom_bytes ? b : a));
    return [`${place}`, here.map((each) => each.ranks).join(", "), orders ? `${mostHeld(orders[place])}` : "",
      size(fullest.at_peak.activation), size(fullest.at_peak.parameter), size(fullest.peak.device_bytes),
      html("b", { class: fullest.verdict }, fullest.verdict)];
  });
  return table("What each place of the pipeline takes",
    [["place"], ["ranks"], ["micro-batches held", "number"], ["activations at the peak", "number"],
      ["parameters", "number"], ["on the device", "number"], ["verdict"]], rows);
}

function drawn(orders) {
  const count = orders.reduce((sum, each) => sum + each.length, 0);
  if (count > MOST_ACTIONS) return html("p", { class: "quiet" }, `Its ${count} actions are too many to be drawn.`);
  const { actions, end } = timesOf(orders);
  const busy = actions.reduce((sum, each) => sum + each.end - each.begin, 0);
  const idle = `${(100 * (1 - busy / (end * orders.length))).toFixed(1)} %`;
  const x = (time) => PAD + (time / end) * (WIDTH - PAD);
  const boxes = actions.map(({ rank, action, batch, begin, end: until }) => {
    const wide = x(until) - x(begin);
    return svg("g", {},
      svg("rect", { class: action === "F" ? "forward" : "backward", x: x(begin), y: rank * ROW + 1, width: Math.max(wide - 0.7, 0.5), height: ROW - 2 },
        svg("title", {}, `${action === "F" ? "forward" : "backward"} of micro-batch ${batch}`)),
      wide > 16 && svg("text", { class: "on", x: x(begin) + wide / 2, y: rank * ROW + 15, "text-anchor": "middle" }, `${batch}`));
  });
  const names = orders.map((_, rank) => svg("text", { x: 0, y: rank * ROW + 15 }, `place ${rank}`));
  return html("div", {},
    html("p", { class: "legend" },
      html("span", {}, svg("svg", { class: "swatch", viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { class: "forward", width: 10, height: 10 })), "forward"),
      html("span", {}, svg("svg", { class: "swatch", viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { class: "backward", width: 10, height: 10 })), "backward"),
      html("span", {}, `idle: ${idle}, if a backward takes twice as long as a forward and nothing else takes time`)),
    html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Order of the pipeline" },
      svg("svg", { class: "order", viewBox: `0 0 ${WIDTH} ${orders.length * ROW}`, role: "img",
        "aria-label": `Forwards and backwards of ${orders.length} ranks over time; ${idle} idle` }, names, boxes)));
}
