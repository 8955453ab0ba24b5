/** Asks the service. Addresses are relative to the page, which may lie behind a prefix. */

import { askForToken, token } from "./token.js";
import { capital } from "./units.js";

/** A refusal in the service's three parts: what arrived, what is allowed, what to change; with its place. */
export class Problem extends Error {
  constructor(status, said, retryAfter = 0) {
    super(said.problem || said.detail || said.title || `the service answered ${status}`);
    this.status = status;
    this.said = said;
    this.retryAfter = retryAfter;
  }
}

/**
 * The status, headers and JSON of an answer; throws Problem for any other than 2xx. What is refused for want of a token
 * is sent again with the one that is given.
 */
export async function ask(method, path, options = {}) {
  const { body, type, headers = {}, signal } = options;
  const sent = { ...headers };
  if (body !== undefined) sent["Content-Type"] = type || "application/json";
  if (token.get() && method !== "GET") sent.Authorization = `Bearer ${token.get()}`;
  const content = body === undefined || type ? body : JSON.stringify(body);
  let answer;
  try {
    answer = await fetch(path, { method, headers: sent, body: content, signal });
  } catch (fault) {
    if (fault.name === "AbortError") throw fault;
    throw new Problem(0, { problem: "the service does not answer", remedy: "look whether it runs, and try again" });
  }
  const said = await answer.json().catch(() => ({}));
  if (answer.ok) return { status: answer.status, headers: answer.headers, said };
  const problem = new Problem(answer.status, said, Number(answer.headers.get("Retry-After")) || 0);
  if (answer.status === 401 && await askForToken(capital(problem.message))) return ask(method, path, options);
  throw problem;
}

export const read = async (path, options) => (await ask("GET", path, options)).said;
export const send = async (path, body, options) => (await ask("POST", path, { body, ...options })).said;

/** Waits; rejects when the signal says so. */
export function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    });
  });
}
