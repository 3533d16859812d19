// Keeps the key and asks the gateway, for the two pages of this extension alone. Pages of the web cannot call it, and what
// was marked is sent once and not kept.

import { MOST, addressOf, permissionFor } from "./gateway.js";
import { T } from "./words.js";

const PATIENCE_MS = 30000, LARGEST = 1 << 20, WORDS = 1000;
const DOES = new Map([
  [chrome.runtime.getURL("popup.html"), new Map([["score", score], ["mark", mark]])],
  [chrome.runtime.getURL("options.html"), new Map([["settings", settings], ["save", save], ["test", test], ["forget", forget]])],
]);

// Without this, a renderer that an extension has run a script in could read the key.
chrome.storage.local.setAccessLevel({ accessLevel: "TRUSTED_CONTEXTS" });

chrome.runtime.onInstalled.addListener(() => chrome.contextMenus.create({ id: "score", title: T.menu, contexts: ["selection"] }));
chrome.contextMenus.onClicked.addListener(() => chrome.action.openPopup());

chrome.runtime.onMessage.addListener((message, sender, reply) => {
  const does = sender.id === chrome.runtime.id ? DOES.get(sender.url)?.get(message?.kind) : undefined;
  if (!does) return false;
  does(message).then(reply, (error) => reply({ error: error.message }));
  return true;
});

// --- what the popup asks for ---

/** A text as the gateway takes it: well-formed, and not longer than that. */
const bounded = (text, most) => String(text).slice(0, most).toWellFormed();

const words = (text) => String(text ?? "").slice(0, WORDS);

async function score({ text }) {
  const found = await ask("POST", "/v1/score", { items: [{ answers: [bounded(text, MOST.scored)] }] });
  const scored = found.items?.[0]?.answers?.[0], { mean, low, high, population } = scored?.dimensions?.overall ?? {};
  if (![mean, low, high, population].every(Number.isFinite) || ![scored.reasons, scored.faults].every(Array.isArray)) throw new Error(T.nonsense(found.url));
  return { user: words(found.user), mean, low, high, population, reasons: scored.reasons.slice(0, 3).map((each) => words(each?.words)), faults: scored.faults.slice(0, 9).map(words) };
}

/** Mark a text as a good or bad example in the person's profile; null takes the mark back. */
async function mark({ text, good }) {
  const found = await ask("PUT", "/v1/profile", { examples: [{ good, text: bounded(text, MOST.example) }] });
  if (found.object !== "fitrouter.profile") throw new Error(T.nonsense(found.url));
  return {};
}

// --- what the settings ask for ---

async function settings() {
  const { url = "", user = "", key = "" } = await chrome.storage.local.get(["url", "user", "key"]);
  return { url, user, hasKey: key !== "" };
}

/** Keep the settings. The key of one gateway is never sent to another. */
async function save(given) {
  const url = addressOf(given.url), key = given.key.trim(), was = await chrome.storage.local.get(["url", "key"]);
  if (!/^[\x21-\x7e]*$/.test(key)) throw new Error(T.badKey);
  const kept = was.url && new URL(was.url).origin === new URL(url).origin ? was.key : "";
  await chrome.storage.local.set({ url, key: key || kept, user: given.user.trim() });
  await giveBack(permissionFor(url).origins);
  return { said: was.key && !key && !kept ? T.otherKey : T.saved };
}

async function test() {
  return { said: T.works((await score({ text: T.sample })).user) };
}

async function forget() {
  await chrome.storage.local.clear();
  await giveBack([]);
  return { said: T.forgotten };
}

/** Give back the permission to reach whatever is no longer the gateway. */
async function giveBack(kept) {
  const { origins } = await chrome.permissions.getAll(), old = origins.filter((origin) => !kept.includes(origin));
  if (old.length) await chrome.permissions.remove({ origins: old });
}

// --- the gateway ---

async function ask(method, path, body) {
  const { url, key, user } = await chrome.storage.local.get(["url", "key", "user"]);
  if (!url) throw new Error(T.unset);
  if (!(await chrome.permissions.contains(permissionFor(url)))) throw new Error(T.ungranted(new URL(url).origin));
  const headers = { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
  let answer, text;
  try {
    answer = await fetch(url + path, {
      method, headers, body: JSON.stringify(user ? { ...body, user } : body), signal: AbortSignal.timeout(PATIENCE_MS),
      redirect: "manual", credentials: "omit", cache: "no-store", referrerPolicy: "no-referrer",
    });
    text = await read(answer);
  } catch (error) {
    throw new Error(error.name === "TimeoutError" ? T.slow(url) : T.unreachable(url));
  }
  if (answer.type === "opaqueredirect") throw new Error(T.moved(url));
  const found = parsed(text);
  if (!found) throw new Error(T.nonsense(url));
  if (answer.ok) return { ...found, url };
  const { code, message } = found.error ?? {};
  throw new Error(Object.hasOwn(T.codes, code) ? T.codes[code] : typeof message === "string" ? T.says(words(message)) : T.nonsense(url));
}

/** A body, up to what a gateway's answer can be: one without an end would fill the memory. */
async function read(answer) {
  let text = "";
  for await (const part of answer.body?.pipeThrough(new TextDecoderStream()) ?? []) {
    text += part;
    if (text.length > LARGEST) return "";
  }
  return text;
}

/** An object out of JSON; null if it is none. */
function parsed(text) {
  try {
    const found = JSON.parse(text);
    return typeof found === "object" && !Array.isArray(found) ? found : null;
  } catch {
    return null;
  }
}
