/** A table whose columns sort it, by a button in each head. */

import { html } from "./dom.js";

/**
 * `columns`: `{name, value(row), cell(row)?, kind?}`; a value is a number, a text or null, which sorts last.
 * `empty` is said where there are no rows. `sorted` is `[column, direction]` at first.
 */
export function sortableTable(caption, columns, rows, { empty = "", sorted = null } = {}) {
  const body = html("tbody", {});
  const heads = columns.map((column, at) => html("th", { scope: "col", class: column.kind },
    html("button", { type: "button", class: "sort", onclick: () => sortBy(at) }, column.name)));
  let [by, direction] = sorted || [null, 1];

  function sortBy(at) {
    [by, direction] = [at, by === at ? -direction : 1];
    show();
  }

  function show() {
    const ordered = by === null ? [...rows] : [...rows].sort((a, b) => direction * compare(columns[by].value(a), columns[by].value(b), direction));
    body.replaceChildren(...ordered.map((row) => html("tr", {}, columns.map((column, at) =>
      html(at ? "td" : "th", { class: column.kind, scope: at ? null : "row" }, column.cell ? column.cell(row) : String(column.value(row) ?? ""))))));
    heads.forEach((head, at) => {
      if (at === by) head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
  }

  show();
  if (!rows.length) return html("p", { class: "quiet" }, empty);
  return html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    html("table", { class: "sortable" }, html("caption", {}, caption), html("thead", {}, html("tr", {}, heads)), body));
}

/** What is not known stands last, whichever way is sorted. */
function compare(a, b, direction) {
  const [left, right] = [a ?? null, b ?? null];
  if (left === null || right === null) return ((left === null) - (right === null)) * direction;
  return typeof left === "number" ? left - right : String(left).localeCompare(String(right));
}
