/** Starts the page: which view the address names, and the token. */

import { read } from "./api.js";
import { byId, fill } from "./dom.js";
import { planSpec, setUp, showSpec } from "./plan_form.js";
import { showPlan } from "./plan_view.js";
import { specOf } from "./planning.js";
import { clearProblem, showProblem } from "./problem.js";
import { setUpToken } from "./token.js";

const VIEWS = ["plan", "search", "history", "capacity", "snapshot"];
const OPENED = {
  capacity: async () => (await import("./capacity.js")).open(byId("capacity-body")),
  history: async () => (await import("./history.js")).open(byId("history-body")),
  snapshot: async () => (await import("./snapshot.js")).open(byId("snapshot-body")),
  search: async () => (await import("./search.js")).open(byId("search-body"), replan),
};

/** Plans a changed job: what POST /v1/specs takes. What is wrong with the change is shown at `problem`. */
async function replan(request, problem = byId("plan-problem"), fields = {}) {
  clearProblem(problem);
  try {
    const spec = await specOf(request);
    showSpec(spec.spec);
    await planSpec(show);
  } catch (fault) {
    if (!showProblem(problem, fault, { fields })) problem.scrollIntoView({ block: "center" });
  }
}

function show(plan, notes) {
  history.replaceState(null, "", `#plans/${plan.plan_id}`);
  shownPlan = plan.plan_id;
  showPlan(plan, notes, replan);
}

let shownPlan = "";

async function route() {
  const [name, id] = location.hash.slice(1).split("/");
  const view = name === "plans" ? "plan" : VIEWS.includes(name) ? name : "plan";
  for (const each of VIEWS) byId(`${each}-view`).hidden = each !== view;
  for (const link of document.querySelectorAll("nav a")) {
    link.toggleAttribute("aria-current", link.getAttribute("href") === `#${view}`);
    if (link.hasAttribute("aria-current")) link.setAttribute("aria-current", "page");
  }
  document.title = `planner · ${view}`;
  await OPENED[view]?.();
  if (name === "plans" && id !== shownPlan) await openPlan(id);
}

/** A plan that is stored. Its job is shown as its bundle: a spec of it would have to be asked for, with a token. */
async function openPlan(id) {
  clearProblem(byId("plan-problem"));
  byId("plan-result").classList.add("of-before");
  try {
    const found = await read(`v1/plans/${encodeURIComponent(id)}`);
    shownPlan = id;
    showPlan(found, [], replan);
    if (found.job) showSpec(JSON.stringify(found.job, null, 2));
  } catch (fault) {
    shownPlan = "";
    fill(byId("plan-result"));
    showProblem(byId("plan-problem"), fault);
  }
}

setUp(show);
setUpToken();
addEventListener("hashchange", route);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says which view is open
  byId("main").focus();
});
route();
