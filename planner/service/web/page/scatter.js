/** A picture of two figures of many things; the table beside it has the same figures. */

import { svg } from "./dom.js";

const [WIDTH, HEIGHT] = [420, 280];
const PAD = { left: 12, right: 12, top: 22, bottom: 26 };

/**
 * `points`: `{x, y, kind, title}`. `x` and `y` of `axes` are `{name, text(value), from}`; `diagonal` draws where both
 * are equal, `limit` a line at this x.
 */
export function scatter(label, points, axes, { diagonal = false, limit = null } = {}) {
  const highest = (name) => Math.max(...points.map((each) => each[name]), name === "x" && limit ? limit : 0);
  const tops = diagonal ? { x: Math.max(highest("x"), highest("y")), y: Math.max(highest("x"), highest("y")) } : { x: highest("x"), y: highest("y") };
  const place = (name, value, first, last) => {
    const from = axes[name].from ?? 0;
    return first + ((value - from) / Math.max(tops[name] * 1.06 - from, 1e-9)) * (last - first);
  };
  const x = (value) => place("x", value, PAD.left, WIDTH - PAD.right);
  const y = (value) => place("y", value, HEIGHT - PAD.bottom, PAD.top);
  const drawn = points.map((each) => svg("circle", { class: `point ${each.kind}`, cx: x(each.x), cy: y(each.y), r: 4.5 }, svg("title", {}, each.title)));
  return svg("svg", { class: "scatter", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    svg("rect", { class: "frame", x: PAD.left, y: PAD.top, width: WIDTH - PAD.left - PAD.right, height: HEIGHT - PAD.top - PAD.bottom }),
    diagonal && svg("line", { class: "grid", x1: x(0), y1: y(0), x2: x(tops.x), y2: y(tops.y) }),
    limit !== null && svg("line", { class: "capacity", x1: x(limit), x2: x(limit), y1: PAD.top, y2: HEIGHT - PAD.bottom }),
    drawn,
    svg("text", { x: PAD.left, y: 14 }, `${axes.y.name}, to ${axes.y.text(tops.y)}`),
    svg("text", { x: WIDTH - PAD.right, y: HEIGHT - 8, "text-anchor": "end" }, `${axes.x.name}, ${axes.x.text(axes.x.from ?? 0)} to ${axes.x.text(tops.x)}`));
}
