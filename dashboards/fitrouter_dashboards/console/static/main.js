// The frame: who is logged in, which view is open, and when it is read again.

import { setColours } from "./charts.js";
import { h, name } from "./dom.js";
import { W } from "./words.js";

/** Each view is a module of its name, loaded when it is first opened. */
export const VIEWS = Object.entries(W.views);
const loaded = new Map();
let tries = 0;

async function load(view) {
  if (!loaded.has(view)) {
    try {
      loaded.set(view, await import(`./${view}.js${tries ? `?${tries}` : ""}`));
    } catch {
      tries++;  // a browser may keep what has failed
      throw Object.assign(new Error(W.unreachable), { status: 0 });
    }
  }
  return loaded.get(view);
}
const main = document.getElementById("main"), nav = document.getElementById("nav"), who = document.getElementById("who");
let session = { csrf: "" };
let open = 0;
/** Ends what the view before goes on doing. */
let leaveView = null;
/** What the view does with a key, before that opens another view; true if it was for the view. */
let pressed = null;

/** Ask the gateway; an error has the text of its answer. */
async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch("/console/api/" + path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch {
    throw Object.assign(new Error(W.unreachable), { status: 0 });
  }
  let body = {};
  try {
    body = await answer.json();
  } catch {
    if (answer.ok) throw Object.assign(new Error(W.frame.unreadable), { status: 0 });
  }
  if (!answer.ok) throw Object.assign(new Error(body.error?.message ?? W.frame.answered(answer.status)), { status: answer.status, body });
  return body;
}

export const api = {
  get: (path, query) => ask(query ? `${path}?${new URLSearchParams(Object.entries(query).filter(([, v]) => v !== null && v !== undefined))}` : path),
  post: (path, body) => ask(path, { method: "POST", headers: { "content-type": "application/json", "x-fitrouter-csrf": session.csrf }, body: JSON.stringify(body) }),
  remove: (path) => ask(path, { method: "DELETE", headers: { "x-fitrouter-csrf": session.csrf } }),
};

/** Say something for a moment. */
export function say(text, bad = false) {
  const toast = document.getElementById("said");
  toast.textContent = text;
  toast.className = "toast shown" + (bad ? " bad" : "");
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { toast.className = "toast"; }, bad ? 8000 : 4000);
}

/** The address of the page: view, rest of its path, parameters. */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...rest] = path.split("/");
  return { view: view || "now", rest: rest.map(decodeURIComponent), params: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

export function href(view, params = {}) {
  const given = Object.entries(params).filter(([, v]) => v !== null && v !== undefined);
  return `#/${view}` + (given.length ? "?" + new URLSearchParams(given) : "");
}

function frame(current) {
  nav.replaceChildren(...VIEWS.map(([id, title]) => h("a", { href: `#/${id}`, "aria-current": id === current ? "page" : null }, title)));
  nav.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  who.replaceChildren(session.keys
    ? h("div", { class: "who" }, h("span", null, session.tenant === null ? W.frame.admin : name(session.tenant, 24)),
        h("button", { type: "button", class: "plain", onclick: leave }, W.frame.out))
    : h("span", { class: "quiet" }, W.frame.local));
}

async function leave() {
  try {
    await api.post("logout", {});
  } catch (error) {
    say(W.frame.unleft(error.message), true);
  }
  start();
}

function login(problem) {
  document.title = W.frame.title(W.frame.login);
  nav.replaceChildren();
  who.replaceChildren();
  const field = h("input", { id: "key", type: "password", autocomplete: "current-password", required: true, "aria-describedby": "key-help" });
  const said = h("p", { class: "error", role: "alert" }, problem ?? "");
  const form = h("form", { class: "card login", onsubmit: async (event) => {
    event.preventDefault();
    said.textContent = "";
    try {
      await api.post("login", { key: field.value });
      await start();
    } catch (error) {
      said.textContent = error.message;
      field.select();
    }
  } }, h("h1", null, W.frame.login), h("label", { for: "key" }, W.frame.key), field,
    h("p", { id: "key-help", class: "note" }, W.frame.about),
    said, h("button", { class: "primary" }, W.frame.login));
  main.replaceChildren(form);
  field.focus();
}

async function start() {
  open++;
  leaveView?.();
  try {
    session = await api.get("session");
  } catch (error) {
    main.replaceChildren(failed(error, start));
    setTimeout(start, 5000);
    return;
  }
  setColours(session.models ?? {});
  sessionStorage.setItem("fitrouter keys", session.keys ? "1" : "");
  if (session.login) login();
  else show();
}

function failed(error, again) {
  return h("div", { class: "card empty", role: "alert" }, h("p", { class: "strong" }, W.frame.failed), h("p", null, error.message),
    h("button", { type: "button", onclick: again }, W.frame.again));
}

/** What an answer says that it could not read, by part. */
const unread = (data) => Object.entries(data.unread ?? {}).map(([part, why]) => h("p", { class: "error", role: "alert" }, `${part}: ${why}`));

/** Open the view of the address, and read it again while the page is seen. */
async function show() {
  const mine = ++open, { view, rest, params } = place();
  const [id, title] = VIEWS.find(([known]) => known === view) ?? [view, W.frame.nowhere];
  frame(id);
  if (title === W.frame.nowhere) {
    leaveView?.();
    document.title = W.frame.title(title);
    return main.replaceChildren(h("div", { class: "card empty", role: "alert" }, h("h1", { class: "strong" }, title), h("a", { href: "#/now" }, W.frame.home)));
  }
  document.title = W.frame.title(title);
  const heading = h("h1", { tabindex: "-1" }, title), tools = h("div", { class: "tools" }), stale = h("p", { class: "stale", role: "status" });
  const body = h("div", { class: "body", "aria-busy": "true" }, h("div", { class: "loading" }, W.reading));
  main.replaceChildren(h("div", { class: "top" }, heading, tools), stale, body);
  if (show.before !== undefined && show.before !== id + rest) heading.focus({ preventScroll: true });
  if (show.before !== id + rest) window.scrollTo(0, 0);
  show.before = id + rest;
  let shown, text = "", state = { tools, params, session, set: (more) => { location.hash = href([id, ...rest.map(encodeURIComponent)].join("/"), { ...params, ...more }); }, again: () => read(true), show: (data) => draw(data), late: (why) => { stale.textContent = why && W.stale(why); } };
  leaveView?.();
  pressed = null;
  leaveView = () => state.leave?.();
  let last;
  state.redraw = () => { text = ""; if (last) draw(last, true); };
  function draw(data, now = false) {
    if (mine !== open) return;
    last = data;
    stale.textContent = data.late ? W.stale(data.late) : "";
    const fresh = JSON.stringify(data, (key, value) => (key === "to" || key === "position" ? undefined : value));
    const busy = body.contains(document.activeElement) && document.activeElement.matches("input, select, textarea");
    if (fresh === text || (!now && busy && text)) return;
    const focus = document.activeElement?.dataset?.key, opened = [...body.querySelectorAll("details[open] > summary")].map((each) => each.textContent);
    body.replaceChildren(...unread(data), ...[shown.draw(data, state)].flat());
    for (const each of body.querySelectorAll("details")) each.open ||= opened.includes(each.firstElementChild.textContent);
    text = fresh;
    body.removeAttribute("aria-busy");
    if (focus) body.querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
  }
  async function read(now = false) {
    if (mine !== open) return;
    try {
      if (!shown) {
        const module = await load(id);
        shown = rest[0] && module.one ? module.one(rest[0]) : module.view;
        pressed = shown.key ?? null;
        heading.textContent = shown.title ?? title;
      }
      const data = await shown.read(params, state);
      if (mine === open) draw(data, now);
      else state.leave?.();
    } catch (error) {
      if (mine !== open) return;
      if (error.status === 401) return start();
      if (text && error.status !== 404) stale.textContent = W.stale(error.message);
      else body.replaceChildren(failed(error, () => read(true)));
      if (error.status === undefined) console.error(error);
    }
  }
  await read(true);
  while (mine === open) {
    await new Promise((done) => setTimeout(done, state.soon ?? shown?.every ?? 5000));
    if (document.visibilityState === "visible") await read();
  }
}

addEventListener("hashchange", () => { if (!session.login) show(); });
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey || pressed?.(event)) return;
  const view = VIEWS[Number(event.key) - 1];
  if (view) location.hash = `#/${view[0]}`;
});
main.addEventListener("click", (event) => {  // a row opens what its first column names
  const to = event.target.closest("tbody tr")?.querySelector("a[data-key]");
  if (to && !event.target.closest("a, button, input, summary") && !String(getSelection())) to.click();
});
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
start();
