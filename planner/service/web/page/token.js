/** The token that writing needs where the operator has set one, and the dialog that asks for it. */

import { byId } from "./dom.js";

const KEPT = "planner.token";
let asking = null;

export const token = {
  get: () => sessionStorage.getItem(KEPT) || "",
  set: (value) => (value ? sessionStorage.setItem(KEPT, value) : sessionStorage.removeItem(KEPT)),
};

/** Makes the dialog of the page work, and its button. */
export function setUpToken() {
  const dialog = byId("token-dialog");
  byId("open-token").addEventListener("click", () => show(""));
  dialog.addEventListener("close", () => {
    if (dialog.returnValue === "use") token.set(byId("token").value.trim());
  });
}

/** Asks for a token and says why. Resolves to whether one was given; requests that are refused meanwhile share it. */
export function askForToken(why) {
  asking ??= new Promise((resolve) => {
    show(why);
    byId("token-dialog").addEventListener("close", () => {
      asking = null;
      resolve(byId("token-dialog").returnValue === "use" && token.get() !== "");
    }, { once: true });
  });
  return asking;
}

function show(why) {
  const dialog = byId("token-dialog");
  byId("token-refusal").textContent = why;
  byId("token").value = token.get();
  dialog.returnValue = "";
  if (!dialog.open) dialog.showModal();
}
