/** Draws bytes by category over the allocator's events, stacked, and says who holds them: in the page of the service, and
 * in that of `planner plan --timeline`, which planner/report/html_pages.py writes with this file in it. */

import { fill, html, svg, swatch, table } from "./dom.js";
import { GIB, moment, size, words } from "./units.js";

const PAD = { left: 58, right: 12, top: 10, bottom: 38 };
const HEIGHT = 340;

/** A chart in `node`. `look(index)` points at a moment; `looked(index)` is told of it, `textAt` says it in words. */
class TimelineChart {
  constructor(found, looked, textAt) {
    Object.assign(this, { found, looked, textAt, index: 0 });
    this.picture = svg("svg", { "aria-hidden": "true" });
    this.node = html("div", { class: "chart", tabindex: 0, role: "slider", "aria-label": "Moment of the memory over time",
      "aria-valuemin": 0, "aria-valuemax": Math.max(found.at.length - 1, 0), "aria-valuenow": 0 }, this.picture);
    this.node.addEventListener("pointermove", (event) => this.point(event));
    this.node.addEventListener("pointerdown", (event) => this.point(event));
    this.node.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  /** Points at the moment of this place in the series. */
  look(index) {
    if (!this.found.at.length) return;
    this.index = Math.min(Math.max(index, 0), this.found.at.length - 1);
    this.node.setAttribute("aria-valuenow", this.index);
    this.node.setAttribute("aria-valuetext", this.textAt(this.index));
    this.placeCursor();
    this.looked(this.index);
  }

  key(event) {
    const last = this.found.at.length - 1;
    const to = { ArrowRight: this.index + 1, ArrowUp: this.index + 1, ArrowLeft: this.index - 1, ArrowDown: this.index - 1,
      PageUp: this.index + 25, PageDown: this.index - 25, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.look(to);
  }

  point(event) {
    const box = this.picture.getBoundingClientRect();
    const share = (event.clientX - box.left - PAD.left) / (box.width - PAD.left - PAD.right);
    if (share < 0 || share > 1) return;
    this.look(this.momentAt(share));
  }

  /** The latest moment of the series that is not right of this place. */
  momentAt(place) {
    let [low, high] = [0, this.found.places.length];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.found.places[middle] <= place) low = middle; else high = middle;
    }
    return low;
  }

  /** The place between which and the next a moment is drawn, in the middle. */
  middleOf(index) {
    const { places } = this.found;
    return (places[index] + (places[index + 1] ?? 1)) / 2;
  }

  draw() {
    const { found } = this;
    const width = this.node.clientWidth;
    if (!width) return;
    const limit = found.capacity_bytes - found.outside_bytes;
    const highest = Math.max(...found.reserved_bytes, 1);
    // A capacity far above everything would flatten the picture: then the legend names it, and it is not drawn.
    const near = limit > 0 && limit < highest * 3;
    const top = Math.max(highest, near ? limit : 0) * 1.06;
    this.x = (place) => PAD.left + place * (width - PAD.left - PAD.right);
    this.y = (bytes) => HEIGHT - PAD.bottom - (bytes / top) * (HEIGHT - PAD.top - PAD.bottom);
    this.picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.cursor = svg("line", { class: "cursor", y1: PAD.top, y2: HEIGHT - PAD.bottom });
    this.picture.replaceChildren(
      ...this.phases(), ...this.grid(top, width), ...this.layers(),
      svg("path", { class: "reserved", d: this.line(found.reserved_bytes) }),
      ...(near ? [svg("line", { class: "capacity", x1: PAD.left, x2: width - PAD.right, y1: this.y(limit), y2: this.y(limit) })] : []),
      this.cursor, ...(found.at.length ? this.peak(width) : []));
    this.placeCursor();
  }

  placeCursor() {
    if (!this.cursor) return;
    const at = this.x(this.middleOf(this.index));
    this.cursor.setAttribute("x1", at);
    this.cursor.setAttribute("x2", at);
  }

  /** A mark at the peak, its bytes beside it. */
  peak(width) {
    const { peak } = this.found;
    const at = this.x(this.middleOf(peakOf(this.found)));
    const high = this.y(peak.allocated_bytes);
    const left = at > width / 2;
    return [svg("circle", { class: "peak", cx: at, cy: high, r: 4 }),
      svg("text", { class: "peak-bytes", x: at + (left ? -9 : 9), y: Math.max(high - 6, PAD.top + 11), "text-anchor": left ? "end" : "start" },
        `peak ${size(peak.allocated_bytes)}`)];
  }

  phases() {
    const inner = HEIGHT - PAD.top - PAD.bottom;
    let iteration = 0;
    return this.found.phases.flatMap((each, index) => {
      const left = this.x(each.left);
      const wide = this.x(each.right) - left;
      const made = index % 2 ? [svg("rect", { class: "band", x: left, y: PAD.top, width: Math.max(wide, 0), height: inner })] : [];
      const name = words(each.phase);
      if (wide > name.length * 6.6) {
        made.push(svg("text", { x: left + wide / 2, y: HEIGHT - PAD.bottom + 15, "text-anchor": "middle" }, name));
      }
      if (each.iteration > iteration) {
        iteration = each.iteration;
        made.push(svg("line", { class: "grid", x1: left, x2: left, y1: PAD.top, y2: HEIGHT - 6 }),
          svg("text", { x: left + 4, y: HEIGHT - 7 }, `iteration ${iteration}`));
      }
      return made;
    });
  }

  grid(top, width) {
    const unit = top < GIB ? 2 ** 20 : GIB;
    const by = stepOf(top / unit) * unit;
    const made = [];
    for (let bytes = 0; bytes <= top; bytes += by) {
      const text = `${+(bytes / unit).toPrecision(3)} ${unit === GIB ? "GiB" : "MiB"}`;
      made.push(svg("line", { class: "grid", x1: PAD.left, x2: width - PAD.right, y1: this.y(bytes), y2: this.y(bytes) }),
        svg("text", { x: PAD.left - 6, y: this.y(bytes) + 4, "text-anchor": "end" }, text));
    }
    return made;
  }

  /** The areas of the categories, each upon the ones before. */
  layers() {
    const base = this.found.at.map(() => 0);
    return Object.entries(this.found.allocated_bytes).map(([category, sizes]) => {
      const below = [...base];
      sizes.forEach((bytes, index) => { base[index] += bytes; });
      const back = this.steps(below).reverse().map(([x, y]) => `L${x} ${y}`).join("");
      return svg("path", { d: `${this.line(base)}${back}Z`, fill: `var(--${category})` });
    });
  }

  line(sizes) {
    return this.steps(sizes).map(([x, y], index) => `${index ? "L" : "M"}${x} ${y}`).join("");
  }

  /** Each size holds from its event to the next. */
  steps(sizes) {
    const { places } = this.found;
    return sizes.flatMap((bytes, index) => {
      const y = this.y(bytes).toFixed(1);
      return [[this.x(places[index]).toFixed(1), y], [this.x(places[index + 1] ?? 1).toFixed(1), y]];
    });
  }
}

/** The moment of the series in which most is allocated. */
function peakOf(found) {
  const index = found.at.findIndex((event) => event >= found.peak.event);
  return index < 0 ? found.at.length - 1 : index;
}

/** A round number that fits some four times. */
function stepOf(top) {
  const rough = top / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
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

/** The largest holders at the allocated peak, as a plan's rank class has them. */
export function holdersTable(holders) {
  const rows = holders.map((holder) => [
    html("span", {}, swatch(holder.category), words(holder.category)), size(holder.bytes), holder.module, holder.op,
    holder.shape.join(" × ") + (holder.count > 1 ? ` (${holder.count})` : ""), holder.dtype]);
  return table("Largest holders at the allocated peak",
    [["category"], ["bytes", "number"], ["module", "code"], ["operator", "code"], ["shape"], ["dtype"]], rows);
}
