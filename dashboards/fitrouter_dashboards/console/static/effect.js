// What the log says that a change would do, shown before the change can be applied.

import { h, name, count, ratio, signed, usd, money, duration, interval, stamp } from "./dom.js";
import { api, say } from "./main.js";

const METRICS = [
  ["fit", "Rating, 0 to 1", (v) => ratio(v, 3), (v) => signed(v, 3)],
  ["cost", "Cost of a request", usd, (v) => (v < 0 ? "−" : "+") + usd(Math.abs(v))],
  ["latency", "Latency", (v) => duration(1000 * v), (v) => (v < 0 ? "−" : "+") + duration(1000 * Math.abs(v))],
];
/** Key of a control → what its panel shows; outlives a redraw. */
const shown = new Map();

/** Say what a change does, in the words of `about` or by the log, and offer to apply it: nothing happens at the first click. */
export async function ask(key, { change, about, act = () => api.post("policy", change), button, done, again }) {
  const mine = { again, about };
  shown.set(key, mine);
  fill(key);
  try {
    mine.found = about ? {} : await api.post("estimate", change);
  } catch (error) {
    mine.found = { error: error.message };
  }
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
  if (shown.get(key) === mine) fill(key, true);
}

/** The place where a control's estimate appears. */
export function panel(key) {
  const place = h("div", { class: "effect", "data-panel": key, "aria-live": "polite" });
  draw(place, key);
  return place;
}

function fill(key, focus = false) {
  const place = document.querySelector(`[data-panel="${CSS.escape(key)}"]`);
  if (!place) return;
  draw(place, key);
  if (focus) place.querySelector("button")?.focus({ preventScroll: true });
}

function draw(place, key) {
  const mine = shown.get(key);
  place.replaceChildren(...(mine === undefined ? [] : mine.found === undefined ? [h("p", { class: "about" }, "Asking the log …")] : [mine.about ? h("p", { class: "about" }, mine.about) : estimate(mine.found), h("p", { class: "acts" },
    h("button", { type: "button", class: "primary", "data-key": `apply-${key}`, onclick: mine.apply }, mine.button),
    h("button", { type: "button", "data-key": `leave-${key}`, onclick: () => { shown.delete(key); fill(key); } }, "Leave it"))]));
}

/** A change of a budget: what the last periods have cost, and what a request may cost then. */
function budget({ before, after, periods, error }) {
  const limit = after.usd_per_period, over = limit === null ? [] : periods.filter((p) => p.usd > limit);
  const price = (b) => (b.request_usd === null ? "none" : `${signed((0.01 * b.price) / b.request_usd, 3)} of rating`);
  const row = (title, now, then) => h("tr", null, h("th", { scope: "row" }, title), h("td", { class: "num quiet" }, now), h("td", { class: "num" }, h("strong", null, then)));
  return h("div", { class: "estimate" }, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Estimate of the change" }, h("table", null,
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "Budget"), h("th", { scope: "col", class: "num" }, "Now"), h("th", { scope: "col", class: "num" }, "Then"))),
    h("tbody", null, row(`Limit of ${span(after.period_s)}`, usd(before.usd_per_period), usd(limit)), row("A request may cost, on average", usd(before.request_usd), usd(after.request_usd)),
      row("Price of a cent, besides the cost weight", price(before), price(after))))),
    h("p", { class: "about" }, error ? ["The log cannot say: ", name(error, 200)] : periods.length ? [`Spent so far and before: `, periods.map((p, i) => [i ? ", " : "", h("span", { class: limit !== null && p.usd > limit ? "bad" : null }, money(p)), ` on ${stamp(p.ts, after.period_s)}`]), `. `,
      limit === null ? "" : over.length ? `${over.length} of these ${periods.length} cost more than the limit.` : "None of these cost more than the limit."] : "This tenant has spent nothing lately."),
    h("p", { class: "about" }, "The price of a cent starts there and follows the spending. ", after.hard ? "A request that the rest of the period does not cover is refused." : "Nothing is refused: the budget only steers.",
      before.usd_per_period === null && limit !== null ? " Counting begins with the change." : ""));
}

const span = (seconds) => (seconds === 86400 ? "a day" : seconds % 86400 === 0 ? `${seconds / 86400} days` : duration(1000 * seconds));

function estimate(found) {
  if (found.budget) return budget(found.budget);
  const faults = found.error ? [] : Object.values(found.metrics).filter((m) => m.error);
  if (faults.length === METRICS.length) return estimate(faults[0]);
  if (found.error) return h("p", { class: "about" }, "The log cannot say: ", name(found.error, 400));
  const rows = METRICS.map(([id, title, show, apart]) => {
    const m = found.metrics[id];
    if (m.error !== undefined || m.value === null) return h("tr", null, h("th", { scope: "row" }, title), h("td", { colspan: 2 }, h("span", { class: "quiet" }, m.error ? name(m.error, 200) : "not known")));
    const sign = m.low > 0 ? 1 : m.high < 0 ? -1 : 0, better = id === "fit" ? sign : -sign;
    return h("tr", null, h("th", { scope: "row" }, title), h("td", { class: "num quiet" }, show(m.now)),
      h("td", { class: "num" }, h("strong", { class: better > 0 ? "good" : better < 0 ? "bad" : null }, apart(m.value)), h("span", { class: "quiet" }, ` (${interval(m.low, m.high, apart)})`)));
  });
  const one = Object.values(found.metrics).find((m) => m.units), fit = found.metrics.fit;
  return h("div", { class: "estimate" }, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Estimate of the change" }, h("table", null,
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "Mean"), h("th", { scope: "col", class: "num" }, "Now"), h("th", { scope: "col", class: "num" }, "Change, 95 %"))), h("tbody", null, rows))),
    one ? h("p", { class: "about" }, `Replay of ${count(one.units)} sessions of the last 7 days, which say as much as ${count(one.ess)} with the change in force`, fit.labelled !== undefined ? `; ${count(fit.labelled)} with a rating that was asked for` : "", ".") : null);
}
