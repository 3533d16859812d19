// The settings: where the gateway is, with which key, and for whom. The stored key never comes back to this page.

import { addressOf, permissionFor } from "./gateway.js";
import { T } from "./words.js";

const at = (id) => document.getElementById(id);

async function ask(message) {
  const found = await chrome.runtime.sendMessage(message);
  if (found.error) throw new Error(found.error);
  return found;
}

/** Do what a button asks for, and say how it went. */
const doing = (work) => async (event) => {
  event.preventDefault();
  tell(T.working, "quiet");
  try {
    const { said } = await work();
    await fill();
    tell(said, "good");
  } catch (error) {
    tell(error.message, "bad");
  }
};

function tell(text, kind) {
  at("said").className = kind;
  at("said").textContent = text;
}

async function fill() {
  const { url, user, hasKey } = await ask({ kind: "settings" });
  Object.assign(at("url"), { value: url });
  Object.assign(at("user"), { value: user });
  Object.assign(at("key"), { value: "" });
  at("about-key").textContent = hasKey ? T.stored : T.unstored;
}

/** The browser asks for the permission first, while the click still counts. */
async function save() {
  const url = addressOf(at("url").value);
  if (!(await chrome.permissions.request(permissionFor(url)))) throw new Error(T.refused);
  return ask({ kind: "save", url, key: at("key").value, user: at("user").value });
}

at("form").onsubmit = doing(save);
at("test").onclick = doing(() => ask({ kind: "test" }));
at("forget").onclick = doing(() => ask({ kind: "forget" }));
await fill();
