/** Asks the service. Addresses are relative to the page, which may lie behind a prefix. */

const TOKEN = "planner.token";

/** A refusal in the service's three parts: what arrived, what is allowed, what to change; with its place. */
export class Problem extends Error {
  constructor(status, said, retryAfter = 0) {
    super(said.problem || said.detail || said.title || `the service answered ${status}`);
    this.status = status;
    this.said = said;
    this.retryAfter = retryAfter;
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN) || "",
  set: (value) => (value ? sessionStorage.setItem(TOKEN, value) : sessionStorage.removeItem(TOKEN)),
};

/** The status, headers and JSON of an answer; throws Problem for any other than 2xx. */
export async function ask(method, path, { body, type, headers = {}, signal } = {}) {
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
  if (!answer.ok) throw new Problem(answer.status, said, Number(answer.headers.get("Retry-After")) || 0);
  return { status: answer.status, headers: answer.headers, said };
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
