/** Has jobs planned: the same request is sent again until its plan is there, as the interface has it. */

import { ask, pause, send } from "./api.js";

const WAIT_SECONDS = 2;

/** The spec of a few words; see POST /v1/specs. */
export const specOf = (request, signal) => send("v1/specs", request, { signal });

/**
 * The plan of a spec (YAML) or a bundle (JSON). `progress` is told the seconds so far and what is known meanwhile.
 * Throws Problem for what cannot be planned, AbortError when the signal says so.
 */
export async function plan(text, { progress = () => {}, signal } = {}) {
  const type = text.trimStart().startsWith("{") ? "application/json" : "application/yaml";
  const began = performance.now();
  const seconds = () => (performance.now() - began) / 1000;
  let said = null;
  const ticking = setInterval(() => progress(seconds(), said), 250);
  try {
    for (;;) {
      const headers = { Prefer: `respond-async, wait=${WAIT_SECONDS}` };
      const answer = await patiently(() => ask("POST", "v1/plans", { body: text, type, headers, signal }), signal);
      if (answer.status !== 202) return answer.said;
      said = answer.said;
      progress(seconds(), said);
      await pause(0.3, signal);
    }
  } finally {
    clearInterval(ticking);
  }
}

/** Comes again where the service is busy or starts, as it says. */
async function patiently(request, signal) {
  for (let times = 0; ; times += 1) {
    try {
      return await request();
    } catch (fault) {
      if (![429, 503].includes(fault.status) || times === 4) throw fault;
      await pause(fault.retryAfter || 2, signal);
    }
  }
}
