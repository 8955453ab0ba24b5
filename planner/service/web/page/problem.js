/** Shows refusals: in three parts, at the field or the line that they are about. */

import { html } from "./dom.js";
import { capital } from "./units.js";

/** Shows the problem in this place, which is read out; marks the field it is about. Returns that field. */
export function showProblem(where, fault, { fields = {}, text = null } = {}) {
  const said = fault.said || { problem: fault.message };
  const field = fieldOf(said.place || "", fields, text);
  const id = `${where.id}-text`;
  const part = (name, value) => (value ? [html("dt", {}, name), html("dd", {}, value)] : []);
  where.replaceChildren(html("div", { class: "problem", role: "alert", id },
    html("p", {}, html("b", {}, capital(said.problem || fault.message))),
    html("dl", {},
      part("Where", placeText(said.place)), part("Allowed", said.allowed), part("To change", said.remedy)),
    said.traceback && html("pre", {}, said.traceback)));
  if (field) {
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-describedby", id);
    openAround(field);
    field.focus();
  }
  return field;
}

/** Takes the problem away, and the mark from its field. */
export function clearProblem(where) {
  const id = `${where.id}-text`;
  for (const field of document.querySelectorAll(`[aria-describedby="${id}"]`)) {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-describedby");
  }
  where.replaceChildren();
}

const placeText = (place) => (place || "").replace(/^the body:(\d+):(\d+)$/, "line $1, column $2 of the spec");

function fieldOf(place, fields, text) {
  const line = /:(\d+):(\d+)$/.exec(place);
  if (line && text && !text.closest("[hidden]")) {
    selectLine(text, Number(line[1]), Number(line[2]));
    return text;
  }
  const known = Object.keys(fields).find((key) => place === key || place.split(" ").includes(key));
  return known && !fields[known].closest("[hidden]") ? fields[known] : null;
}

function selectLine(text, line, column) {
  const lines = text.value.split("\n");
  const before = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
  const end = before + (lines[line - 1] || "").length;
  text.setSelectionRange(Math.min(before + column - 1, end), end);
}

function openAround(field) {
  for (let each = field.parentElement; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
}
