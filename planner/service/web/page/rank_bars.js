/** Ranks against capacity: a row for each rank class, its peak taken apart, a line where the capacity ends. */

import { html, svg, swatch } from "./dom.js";
import { ranksText, size, STACKED, words } from "./units.js";

const MOST = 16;
const [WIDTH, HEIGHT] = [400, 22];

/** The list of a plan's rank classes; `choose(index)` is called for the one that is looked at. */
export function rankBars(plan, choose) {
  const whole = Math.max(...plan.rank_classes.map((each) => Math.max(each.capacity_bytes, each.peak.device_bytes)));
  const rows = plan.rank_classes.map((each, index) => row(each, index, whole, choose));
  const list = html("ul", { class: "ranks" }, rows.slice(0, MOST));
  const more = rows.length > MOST && html("button", { type: "button", onclick: (event) => {
    list.append(...rows.slice(MOST));
    event.target.remove();
  } }, `Show the other ${rows.length - MOST} rank classes`);
  return html("div", {}, legend(plan), list, more);
}

/** Marks the class that is looked at. */
export function markChosen(list, index) {
  list.querySelectorAll(".ranks button").forEach((each) =>
    each.setAttribute("aria-pressed", String(Number(each.dataset.index) === index)));
}

function row(each, index, whole, choose) {
  const { peak } = each;
  const over = each.headroom_bytes < 0;
  return html("li", {},
    html("button", { type: "button", class: "rank", "data-index": index, "aria-pressed": String(index === 0),
      onclick: () => choose(index) }, ranksText(each.ranks)),
    bar(each, whole),
    html("span", { class: "figures" },
      `${size(peak.device_bytes)} of ${size(each.capacity_bytes)}, `,
      html("b", { class: each.verdict }, over ? `${size(-each.headroom_bytes)} over capacity` : `${size(each.headroom_bytes)} free`)));
}

function bar(each, whole) {
  const parts = partsOf(each);
  const label = `${ranksText(each.ranks)} at the peak: ` +
    parts.map(([name, , bytes]) => `${words(name)} ${size(bytes)}`).join(", ") + `; capacity ${size(each.capacity_bytes)}`;
  const scale = (bytes) => (bytes / whole) * WIDTH;
  let left = 0;
  const drawn = parts.map(([name, fill, bytes]) => {
    const made = svg("rect", { x: left, y: 3, width: Math.max(scale(bytes), 0), height: HEIGHT - 6, fill },
      svg("title", {}, `${words(name)}: ${size(bytes)}`));
    left += scale(bytes);
    return made;
  });
  const [low, high] = each.peak.interval_bytes.map(scale);
  const end = scale(each.capacity_bytes);
  return svg("svg", { class: "bar", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("rect", { class: "room", x: 0, y: 3, width: end, height: HEIGHT - 6 }), drawn,
    svg("path", { class: "interval", d: `M${low} ${HEIGHT - 1.5}H${Math.min(high, WIDTH)}` }),
    svg("path", { class: "capacity", d: `M${end} 0V${HEIGHT}` }));
}

function partsOf(each) {
  const held = STACKED.filter((name) => each.at_peak[name]).map((name) => [name, `var(--${name})`, each.at_peak[name]]);
  const outside = Object.values(each.outside_allocator).reduce((sum, bytes) => sum + bytes, 0);
  return [...held, ["cached by the allocator", "var(--cached)", each.peak.reserved_bytes - each.peak.allocated_bytes],
    ["outside the allocator", "var(--outside)", outside]].filter(([, , bytes]) => bytes > 0);
}

function legend(plan) {
  const named = STACKED.filter((name) => plan.rank_classes.some((each) => each.at_peak[name]));
  return html("p", { class: "legend" },
    [...named, "cached", "outside"].map((name) => html("span", {}, swatch(name), words(name))),
    html("span", {}, html("i", { class: "mark capacity" }), "capacity"),
    html("span", {}, html("i", { class: "mark interval" }), plan.calibrated ? "95 % interval" : "interval, uncalibrated"));
}
