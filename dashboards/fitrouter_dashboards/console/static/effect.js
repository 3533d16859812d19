// What the log says that a change would do, shown before the change can be applied.

import { h, name, count, ratio, signed, usd, money, duration, interval, stamp } from "./dom.js";
import { api, say } from "./main.js";
import { W } from "./words.js";

const METRICS = [
  ["fit", (v) => ratio(v, 3), (v) => signed(v, 3)],
  ["cost", usd, (v) => (v < 0 ? "−" : "+") + usd(Math.abs(v))],
  ["latency", (v) => duration(1000 * v), (v) => (v < 0 ? "−" : "+") + duration(1000 * Math.abs(v))],
];
/** Key of a control → what its panel shows; outlives a redraw. */
const shown = new Map();

const SETTLES_MS = 250;
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
/** Ends when the estimate before has ended: the gateway makes one at a time. */
let last = Promise.resolve();

/** Ask the log, after the estimate before, unless the control was moved again, or left, until then. */
function asked(change, isWanted) {
  last = last.then(async () => {
    while (isWanted()) {
      await pause(SETTLES_MS);
      if (!isWanted()) break;
      try {
        return await api.post("estimate", change);
      } catch (error) {
        if (error.status !== 429) return { error: error.message };
        await pause(4 * SETTLES_MS);  // another page asks; it is soon our turn
      }
    }
    return null;
  });
  return last;
}

/** Say what a change does, in the words of `about` or by the log, and offer to apply it: nothing happens at the first click. */
export async function ask(key, { change, about, act = () => api.post("policy", change), button, done, again }) {
  const mine = { again, about };
  shown.set(key, mine);
  fill(key);
  mine.found = about ? {} : await asked(change, () => shown.get(key) === mine && find(key));
  if (shown.get(key) !== mine) return;
  if (!mine.found) return shown.delete(key);
  mine.apply = async () => {
    try {
      await act();
      shown.delete(key);
      say(done);
      fill(key);
      await mine.again();
    } catch (error) {
      say(error.message, true);
    }
  };
  mine.button = button;
  fill(key, !document.activeElement?.matches("input[type=range]"));  // a slider goes on being moved by keys
}

/** The place where a control's estimate appears. */
export function panel(key) {
  const place = h("div", { class: "effect", "data-panel": key, "aria-live": "polite" });
  draw(place, key);
  return place;
}

const find = (key) => document.querySelector(`[data-panel="${CSS.escape(key)}"]`);

function fill(key, focus = false) {
  const place = find(key);
  if (!place) return;
  draw(place, key);
  if (focus) place.querySelector("button")?.focus({ preventScroll: true });
}

function draw(place, key) {
  const mine = shown.get(key);
  place.replaceChildren(...(mine === undefined ? [] : mine.found === undefined ? [h("p", { class: "about" }, W.effect.asking)] : [mine.about ? h("p", { class: "about" }, mine.about) : estimate(mine.found), h("p", { class: "acts" },
    h("button", { type: "button", class: "primary", "data-key": `apply-${key}`, onclick: mine.apply }, mine.button),
    h("button", { type: "button", "data-key": `leave-${key}`, onclick: () => { shown.delete(key); fill(key); } }, W.effect.leave))]));
}

/** A change of a budget: what the last periods have cost, and what a request may cost then. */
function budget({ before, after, periods, error }) {
  const w = W.effect, limit = after.usd_per_period, over = limit === null ? [] : periods.filter((p) => p.usd > limit);
  const price = (b) => (b.request_usd === null ? w.none : w.price(signed((0.01 * b.price) / b.request_usd, 3)));
  const row = (title, now, then) => h("tr", null, h("th", { scope: "row" }, title), h("td", { class: "num quiet" }, now), h("td", { class: "num" }, h("strong", null, then)));
  return h("div", { class: "estimate" }, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": w.title }, h("table", null,
    h("thead", null, h("tr", null, h("th", { scope: "col" }, w.budget), h("th", { scope: "col", class: "num" }, w.now), h("th", { scope: "col", class: "num" }, w.then))),
    h("tbody", null, row(w.limit(span(after.period_s)), usd(before.usd_per_period), usd(limit)), row(w.each, usd(before.request_usd), usd(after.request_usd)),
      row(w.cent, price(before), price(after))))),
    h("p", { class: "about" }, error ? [w.silent, name(error, 200)] : periods.length ? [w.spent, periods.map((p, i) => [i ? ", " : "", h("span", { class: limit !== null && p.usd > limit ? "bad" : null }, money(p)), w.on(stamp(p.ts, after.period_s))]), ". ",
      limit === null ? "" : w.over(over.length, periods.length)] : w.quiet),
    h("p", { class: "about" }, w.follows, after.hard ? w.hard : w.soft,
      before.usd_per_period === null && limit !== null ? w.begins : ""));
}

const span = (seconds) => (seconds === 86400 ? W.effect.day : seconds % 86400 === 0 ? W.effect.days(seconds / 86400) : duration(1000 * seconds));

function estimate(found) {
  if (found.budget) return budget(found.budget);
  const w = W.effect;
  const faults = found.error ? [] : Object.values(found.metrics).filter((m) => m.error);
  if (faults.length === METRICS.length) return estimate(faults[0]);
  if (found.error) return h("p", { class: "about" }, w.silent, name(found.error, 400));
  const rows = METRICS.map(([id, show, apart]) => {
    const m = found.metrics[id], title = w.metrics[id];
    if (m.error !== undefined || m.value === null) return h("tr", null, h("th", { scope: "row" }, title), h("td", { colspan: 2 }, h("span", { class: "quiet" }, m.error ? name(m.error, 200) : w.unknown)));
    const sign = m.low > 0 ? 1 : m.high < 0 ? -1 : 0, better = id === "fit" ? sign : -sign;
    return h("tr", null, h("th", { scope: "row" }, title), h("td", { class: "num quiet" }, show(m.now)),
      h("td", { class: "num" }, h("strong", { class: better > 0 ? "good" : better < 0 ? "bad" : null }, apart(m.value)), h("span", { class: "quiet" }, ` (${interval(m.low, m.high, apart)})`)));
  });
  const one = Object.values(found.metrics).find((m) => m.units), fit = found.metrics.fit;
  return h("div", { class: "estimate" }, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": w.title }, h("table", null,
    h("thead", null, h("tr", null, h("th", { scope: "col" }, w.mean), h("th", { scope: "col", class: "num" }, w.now), h("th", { scope: "col", class: "num" }, w.change))), h("tbody", null, rows))),
    one ? h("p", { class: "about" }, w.replay(count(one.units), count(one.ess), fit.labelled === undefined ? null : count(fit.labelled)), found.metrics.cost.unpriced ? w.assumed(count(found.metrics.cost.unpriced)) : "") : null);
}
