// What routing gains: over one model alone, and over a router that does not know the person.

import { h, card, note, empty, name, count, ratio, signed, usd, percent, interval } from "./dom.js";
import { whisker } from "./charts.js";
import { W } from "./words.js";

/** A comparison with the default model and the best single one: {default, best} of `quality.against`. */
export function alone(found) {
  const { default: standard, best } = found ?? {}, w = W.alone;
  const same = standard && best && standard.model === best.model;
  const shown = [standard && [standard, same ? w.both : w.standard], best && !same && [best, w.best]].filter(Boolean);
  const gains = shown.map(([one]) => one.rating.gain).filter(Boolean);
  const most = Math.max(0.05, ...gains.flatMap(([low, , high]) => [Math.abs(low ?? 0), Math.abs(high ?? 0)]));
  return card(w.title, { class: "alone" }, found === null ? note(W.reading) : !shown.length ? empty(W.unknown, w.none)
    : h("ul", { class: "gains" }, shown.map(([one, which]) => {
      const { gain, alone: mean, ratings, own, more } = one.rating;
      return h("li", { "data-against": which },
        h("div", { class: "gain-head" }, h("span", null, h("strong", null, name(one.model, 40)), h("span", { class: "about" }, ` ${which}`)), h("span", { class: "num" }, gain ? signed(gain[1], 2) : "")),
        gain && gain[0] !== null ? whisker({ low: gain[0], mid: gain[1], high: gain[2], most, label: W.between(w.label(one.model), signed(gain[1], 2), signed(gain[0], 2), signed(gain[2], 2)) }) : null,
        h("p", { class: "about" }, gain ? w.rating(gain, mean, ratings, more) : w.few(own, more)),
        h("p", { class: "about" }, money(one)));
    }), h("li", { class: "about" }, best ? w.about : w.nobest)));
}

function money({ model, saved }) {
  if (!saved) return W.alone.nomoney(model);
  const [, [, each], [low, share, high], unpriced, requests] = saved;
  return W.alone.money({ usd: usd(Math.abs(each * requests)), less: each >= 0, share: percent(Math.abs(share)), low, high, requests: count(requests), unpriced });
}

export function personal(found) {
  const w = W.personal, rows = Object.entries(found).sort(([a], [b]) => (a !== "") - (b !== "") || a.localeCompare(b)).slice(0, 12);
  if (!rows.length) return card(w.title, {}, empty(W.unknown, w.none));
  const most = Math.max(0.05, ...rows.map(([, r]) => Math.min(1, Math.max(Math.abs(r.low), Math.abs(r.high)))));
  return card(w.title, {},
    note(w.about),
    h("ul", { class: "gains" }, rows.map(([role, report]) => h("li", null,
      h("div", { class: "gain-head" }, role ? name(role, 40) : h("strong", null, w.everybody), h("span", { class: "num" }, report.low > 0 || report.high < 0 ? signed(report.gain) : w.unclear)),
      whisker({ low: report.low, mid: report.gain, high: report.high, most, label: W.between(role || w.everybody, signed(report.gain), signed(report.low), signed(report.high)) }),
      h("p", { class: "about" }, w.gain(interval(report.low, report.high, (v) => signed(v, 2)), count(report.labels), report.low > 0 ? 1 : report.high < 0 ? -1 : 0), report.off ? w.off : "")))));
}
