/** Figures and names as people read them; as planner/report/style.py writes them. */

export const GIB = 2 ** 30;
const MIB = 2 ** 20;

/** Bytes: GiB, a smaller unit only where GiB would show nothing, and TiB of sums. */
export function size(bytes) {
  const absolute = Math.abs(bytes);
  if (absolute >= 1024 * GIB) return `${(bytes / GIB / 1024).toFixed(2)} TiB`;
  if (bytes === 0 || absolute >= GIB / 100) return `${(bytes / GIB).toFixed(2)} GiB`;
  return absolute < MIB ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / MIB).toFixed(1)} MiB`;
}

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
export const words = (name) => name.replaceAll("_", " ");

/** A phase with its iteration. */
export const moment = (phase, iteration) => words(phase) + (iteration ? ` of iteration ${iteration}` : "");

/** As planner/report/plan_text.py writes them. */
export function duration(seconds) {
  if (seconds >= 10) return `${decimals(seconds, 1)} s`;
  return seconds >= 1 ? `${seconds.toFixed(2)} s` : `${(1000 * seconds).toFixed(0)} ms`;
}

/** `12,345.6`. */
export const decimals = (value, digits = 0) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

/** `1 job`, `2 jobs`. */
export const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

/** `rank 0`, `ranks 0-7`. */
export const ranksText = (ranks) => `${/[-,]/.test(ranks) ? "ranks" : "rank"} ${ranks}`;

/** A moment of the service, in the reader's own time. */
export const localTime = (text) => text ? new Date(text).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }) : "";

/** `a.b: 1, c: true`. */
export const changeText = (change) => Object.entries(change)
  .map(([key, value]) => `${key}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");

/** Of the categories that are stacked in a chart, from the bottom up: planner/report/style.py. */
export const STACKED = ["parameter", "optimizer_state", "bucket", "gradient", "input", "activation", "workspace",
  "communication", "other", "temporary"];
