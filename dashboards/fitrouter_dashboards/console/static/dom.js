// Elements, numbers and times. Text becomes a text node, never HTML.

import { LOCALES, W } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";

/** An element: h("p", {class: "note", onclick: f, css: {"--share": 0.4}}, "text", child, [children]). */
export function h(tag, props, ...children) {
  const svg = tag.startsWith("svg:");
  const element = svg ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "css") for (const [key, given] of Object.entries(value)) element.style.setProperty(key, given);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  add(element, children);
  return element;
}

/** What is written from right to left within a sentence: isolated, it does not reverse the numbers beside it. */
const LEFTWARD = /[\p{sc=Hebrew}\p{sc=Arabic}\p{sc=Syriac}\p{sc=Thaana}](?:[\p{sc=Hebrew}\p{sc=Arabic}\p{sc=Syriac}\p{sc=Thaana}\p{M}\s'’-]*[\p{sc=Hebrew}\p{sc=Arabic}\p{sc=Syriac}\p{sc=Thaana}\p{M}])?/gu;

function add(element, children) {
  const own = element.dir === "auto" || (element.localName === "bdi" && !element.dir);  // has its own direction
  for (const child of children) {
    if (Array.isArray(child)) add(element, child);
    else if (child !== null && child !== undefined && child !== false)
      element.append(child instanceof Node ? child : document.createTextNode(own ? String(child) : String(child).replace(LEFTWARD, "\u2068$&\u2069")));
  }
}

/** Text from outside: shortened, with the whole in its title, and its own direction of writing. */
export function name(text, most = 80) {
  const given = String(text);
  const short = given.length > most ? given.slice(0, most) + "…" : given;
  return h("bdi", { class: "name", title: given.length > 24 ? given.slice(0, 1000) : null }, short);
}

const decimals = new Map();
function number(value, digits) {
  if (!decimals.has(digits))
    decimals.set(digits, new Intl.NumberFormat(LOCALES.numbers, { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  return decimals.get(digits).format(value);
}

const none = "–";
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export const count = (value) => (known(value) ? number(value, 0) : none);
export const ratio = (value, digits = 2) => (known(value) ? number(value, digits) : none);
export const signed = (value, digits = 3) => (known(value) ? (value > 0 ? "+" : value < 0 ? "−" : "") + number(Math.abs(value), digits) : none);
export const percent = (value) => {
  if (!known(value)) return none;
  const share = 100 * value;
  if (share > 0 && share < 0.1) return "< 0.1%";
  return number(share, share < 10 && share > 0 ? 1 : 0) + "%";
};
export const usd = (value) => {
  if (!known(value)) return none;
  const size = Math.abs(value);
  return "$" + number(value, size === 0 || size >= 100 ? 0 : size >= 0.1 ? 2 : size >= 0.001 ? 4 : 6).replace(/(\.\d\d\d*?)0+$/, "$1");
};
/** A sum of money, {usd, unpriced} of `fitrouter.stores.figures.Money`, and what it lacks; both in words. */
export const sum = (cost) => (!cost?.unpriced ? usd(cost?.usd) : known(cost.usd) ? W.units.least(usd(cost.usd)) : W.units.unknown);
export const lacks = (cost) => (cost?.unpriced ? W.units.left(count(cost.unpriced), cost.unpriced) : "");
export const money = (cost) => [sum(cost), lacks(cost)].filter(Boolean).join(", ");
/** The cost of one answer: {cost_usd, unpriced}. */
export const cost = (one) => (one?.unpriced ? W.units.unpriced : usd(one?.cost_usd));
/** Tokens in words, with those that were cached, written to a cache, or hidden reasoning. */
export const tokens = (of) => {
  const parts = Object.entries(W.units.parts).filter(([part]) => of[`${part}_tokens`]).map(([part, words]) => [count(of[`${part}_tokens`]), words]);
  return W.units.tokens(count(of.prompt_tokens), count(of.completion_tokens), parts);
};
export const duration = (ms) => {
  if (!known(ms)) return none;
  const [size, digits, unit] = ms < 1000 ? [1, ms > 0 && ms < 10 ? 1 : 0, "ms"] : ms < 120000 ? [1000, 1, "s"] : ms < 7200000 ? [60000, 0, "min"] : [3600000, 0, "h"];
  return `${number(ms / size, digits)} ${W.units[unit]}`;
};
export const interval = (low, high, show = ratio) => (known(low) && known(high) ? W.units.to(show(low), show(high)) : null);

const long = new Intl.DateTimeFormat(LOCALES.times, { dateStyle: "medium", timeStyle: "medium" });
const clock = new Intl.DateTimeFormat(LOCALES.times, { hour: "2-digit", minute: "2-digit" });
const exact = new Intl.DateTimeFormat(LOCALES.times, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat(LOCALES.times, { day: "numeric", month: "short" });
const at = (seconds) => new Date(1000 * seconds);

export const moment = (seconds) => long.format(at(seconds));
export const hour = (seconds) => clock.format(at(seconds));
export const date = (seconds) => day.format(at(seconds));
export const tick = (seconds, span) => (span > 2 * 86400 ? date(seconds) : span > 600 ? hour(seconds) : exact.format(at(seconds)));
export const stamp = (seconds, step) => (step >= 86400 ? date(seconds) : `${date(seconds)}, ${hour(seconds)}`);

/** A time as people say it: the clock today, the day before that; all of it in the title. */
export function when(seconds) {
  const today = new Date().toDateString() === at(seconds).toDateString();
  return h("time", { datetime: at(seconds).toISOString(), title: moment(seconds) },
    today ? exact.format(at(seconds)) : `${date(seconds)}, ${hour(seconds)}`);
}

export function card(title, props, ...children) {
  return h("section", { class: "card " + (props?.class ?? ""), "aria-label": title },
    h("div", { class: "head" }, h("h2", null, title), props?.aside), ...children);
}

export const note = (...children) => h("p", { class: "note" }, ...children);

export const empty = (title, ...children) => h("div", { class: "empty" }, h("p", { class: "strong" }, title), h("p", null, ...children));

export function choice(label, options, value, onchange, key) {
  const select = h("select", { "data-key": key, onchange: (event) => onchange(event.target.value) },
    options.map(([id, text]) => h("option", { value: id, selected: id === value }, text.length > 60 ? text.slice(0, 60) + "…" : text)));
  select.value = value;
  return h("label", { class: "field" }, h("span", null, label), select);
}

export function switcher(label, options, value, onchange) {
  return h("div", { class: "switcher", role: "group", "aria-label": label },
    options.map(([id, text]) => h("button", { type: "button", "aria-pressed": String(id === value), "data-key": "w-" + id,
      onclick: () => onchange(id) }, text)));
}
