/** Makes elements. Text is always text: nothing that arrives is read as markup. */

const SVG = "http://www.w3.org/2000/svg";

/** An element of HTML with attributes (a function is a listener: `onclick`), then children, texts or nothing. */
export function html(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...given(children));
  return made;
}

const given = (children) => children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false);

/** What an element holds from now on; nothing may be among it. */
export const fill = (where, ...children) => where.replaceChildren(...given(children));

export const byId = (id) => document.getElementById(id);

/** A table: heads are `[text, "number"?]`, rows are arrays of cells (texts or nodes). */
export function table(caption, heads, rows) {
  const cells = (row) => row.map((cell, at) => html(at ? "td" : "th", {
    class: heads[at][1], scope: at ? null : "row" }, cell));
  return html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    html("table", {},
      html("caption", {}, caption),
      html("thead", {}, html("tr", {}, heads.map(([name, kind]) => html("th", { class: kind, scope: "col" }, name)))),
      html("tbody", {}, rows.map((row) => html("tr", {}, cells(row))))));
}

/** A card of a view: its name, what it has, and that. */
export const section = (name, text, ...content) => html("section", { class: "card", "aria-label": name },
  html("h2", {}, name), html("p", { class: "quiet" }, text), content);

/** A coloured square of a category; the name stands beside it. */
export function swatch(category) {
  return svg("svg", { class: "swatch", viewBox: "0 0 10 10", "aria-hidden": "true" },
    svg("rect", { width: 10, height: 10, rx: 2, fill: `var(--${category})` }));
}
