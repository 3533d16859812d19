// Ask auto, or two models at once, and say which answer is better: without their names, in an order that is drawn.

import { h, card, note, empty, name, count, cost, duration, choice } from "./dom.js";
import { api, say } from "./main.js";
import { W } from "./words.js";

const AUTO = "fitrouter/auto", KEY = "fitrouter person", KEYS = ["1", "2", "0"];
/** What was typed, the answers to it, and what was chosen; they outlive a redraw. */
const at = { prompt: "", model: AUTO, beside: "", busy: false, asked: null, error: "", person: stored() };
/** Pair, by its decisions → {order, choice, models}. */
const judged = new Map();
let press = null;

function stored() {
  try {
    return localStorage.getItem(KEY) ?? "";
  } catch {
    return "";  // a browser that keeps nothing
  }
}

export const view = {
  every: 600000,
  read: (params, { session }) => (session.people ? api.get("pairs", { user: at.person || undefined }) : {}),
  key: (event) => KEYS.includes(event.key) && press !== null && (press(Number(event.key)), true),
  draw(data, { session, again, redraw }) {
    press = null;
    const own = at.asked?.answers.length === 2 && session.people ? blind(at.asked, redraw) : null;
    const waiting = session.people ? compare(data, again, redraw, own && idOf(at.asked)) : null;
    return [box(session, again, redraw), own ?? answers(), waiting].filter(Boolean);
  },
};

function box(session, again, redraw) {
  const w = W.try, models = Object.keys(session.models ?? {});
  const text = h("textarea", { id: "try-prompt", "data-key": "try-prompt", rows: 4, maxlength: 12000, required: true, value: at.prompt, oninput: () => { at.prompt = text.value; } });
  const person = h("input", { id: "try-person", "data-key": "try-person", maxlength: 200, value: at.person, placeholder: W.people.hint, "aria-describedby": "try-whose", oninput: () => { at.person = person.value.trim(); }, onchange: () => {
    try {
      localStorage.setItem(KEY, at.person);
    } catch { /* a browser that keeps nothing */ }
    again();
  } });
  const send = async (event) => {
    event.preventDefault();
    if (at.busy) return;
    Object.assign(at, { busy: true, error: "", asked: null });
    redraw();
    try {
      const asked = [...new Set([at.model, at.beside].filter(Boolean))], prompt = at.prompt;
      const found = await Promise.allSettled(asked.map((model) => api.post("try", { model, user: at.person || undefined, messages: [{ role: "user", content: prompt }] })));
      const answers = found.flatMap(({ value: one }) => (one ? [{ decision_id: one.fitrouter.decision_id, answer: one.choices[0].message.content ?? w.tools, model: one.model }] : []));
      at.asked = answers.length ? { prompt, answers } : null;
      at.error = found.flatMap(({ reason }, i) => (reason ? [`${asked[i]}: ${reason.message}`] : [])).join("\n");
    } catch (error) {
      at.error = error.message;
    }
    at.busy = false;
    redraw();
  };
  return card(w.title, {}, h("form", { class: "try", onsubmit: send }, h("label", { for: "try-prompt" }, w.prompt), text,
    h("div", { class: "filters" }, choice(w.model, [[AUTO, w.auto], ...models.map((m) => [m, m])], at.model, (model) => { at.model = model; }, "try-model"),
      choice(w.beside, [["", w.alone], ...[AUTO, ...models].map((m) => [m, m === AUTO ? w.auto : m])], at.beside, (model) => { at.beside = model; }, "try-beside"),
      h("div", { class: "field" }, h("label", { for: "try-person" }, W.people.person), person)),
    h("p", { class: "acts" }, h("button", { class: "primary", "data-key": "try-send", disabled: at.busy }, at.busy ? w.sending : w.send), h("span", { class: "about", id: "try-whose" }, w.costs)),
    h("p", { class: "error", role: "alert" }, at.error)));
}

const why = (one) => h("a", { href: `#/decisions/${encodeURIComponent(one.decision_id)}` }, W.try.why);
const said = (title, text, head) => h("div", { class: "said" }, h("div", { class: "head" }, h("h3", { class: "first" }, title), head), h("div", { class: "scroll text", tabindex: "0", role: "region", "aria-label": title, dir: "auto" }, text));

function answers() {
  if (!at.asked) return null;
  return card(W.try.answer, {}, h("div", { class: "snippets" }, at.asked.answers.map((one) => said(one.model.slice(0, 60), one.answer, why(one)))));
}

const sorted = (pair) => [...pair.answers].sort((a, b) => (a.decision_id < b.decision_id ? -1 : 1));
const idOf = (pair) => sorted(pair).map((one) => one.decision_id).join(" ");

/** Two answers to one question, in the order that was drawn; their models show once there is a choice. */
function blind(pair, redraw, { next, title = W.try.which, keys = true } = {}) {
  const w = W.try, id = idOf(pair), answers = sorted(pair);
  if (!judged.has(id)) judged.set(id, { order: crypto.getRandomValues(new Uint8Array(1))[0] % 2 ? [1, 0] : [0, 1] });
  const mine = judged.get(id), [first, second] = mine.order.map((i) => answers[i]);
  const choose = async (value) => {
    if (mine.busy || mine.choice === value) return;
    mine.busy = true;
    try {
      mine.models = (await api.post("choice", { first: first.decision_id, second: second.decision_id, choice: value })).models;
      mine.choice = value;
      say(w.chosen);
    } catch (error) {
      say(error.message, true);
    }
    mine.busy = false;
    redraw();
  };
  if (keys && mine.choice === undefined) press = choose;
  return card(title, { class: "blind" }, h("p", { class: "prompt", dir: "auto" }, name(pair.prompt, 400)),
    h("div", { class: "snippets" }, [first, second].map((one, i) => said(mine.models ? `${w.nth(i + 1)}: ${mine.models[i].slice(0, 60)}` : w.nth(i + 1), one.answer, mine.models ? why(one) : null))),
    h("p", { class: "acts" }, w.choices.map(([value, words]) => h("button", { type: "button", "data-key": `choice-${value}-${id}`, "aria-pressed": String(mine.choice === value), onclick: () => choose(value) }, words)),
      mine.choice !== undefined && next ? h("button", { type: "button", class: "primary", "data-key": `next-${id}`, onclick: next }, w.next) : null),
    note(mine.choice === undefined ? (keys ? w.keys : "") : w.counts));
}

function compare(data, again, redraw, other) {
  const w = W.try, left = data.pairs.filter((pair) => idOf(pair) !== other && !judged.get(idOf(pair))?.done);
  const why = !data.kept ? [w.unkept, w.keep] : !at.person ? [w.whose, w.name] : data.unread?.content ? null : !left.length ? [w.nothing, w.ask] : null;
  if (why) return card(w.waiting, {}, empty(...why));
  if (!left.length) return null;
  const next = () => {
    judged.get(idOf(left[0])).done = true;
    if (left.length > 1) redraw();
    else again();
  };
  return blind(left[0], redraw, { next, title: w.left(count(left.length)), keys: !other || judged.get(other).choice !== undefined });
}
