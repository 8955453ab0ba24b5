/** Starts the page: which view the address names, and the token. */

import { read, token } from "./api.js";
import { byId } from "./dom.js";
import { planSpec, setUp, showSpec } from "./plan_form.js";
import { showPlan } from "./plan_view.js";
import { specOf } from "./planning.js";
import { clearProblem, showProblem } from "./problem.js";

const VIEWS = ["plan", "search", "history", "snapshot"];
const OPENED = {
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

/** A plan that was made before, or the job of a link. */
async function openPlan(id) {
  clearProblem(byId("plan-problem"));
  try {
    const found = await read(`v1/plans/${encodeURIComponent(id)}`);
    shownPlan = id;
    showPlan(found, [], replan);
    if (found.job) showSpec((await specOf({ job: found.job })).spec);
  } catch (fault) {
    showProblem(byId("plan-problem"), fault);
  }
}

function setUpToken() {
  const dialog = byId("token-dialog");
  byId("open-token").addEventListener("click", () => {
    byId("token").value = token.get();
    if (!dialog.open) dialog.showModal();
  });
  dialog.addEventListener("close", () => token.set(byId("token").value.trim()));
}

setUp(show);
setUpToken();
addEventListener("hashchange", route);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says which view is open
  byId("main").focus();
});
route();
