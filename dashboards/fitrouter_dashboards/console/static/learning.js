// How learning is: lags, labels, the audit of the logged probabilities, drift and flattery.

import { h, card, note, empty, name, count, ratio, percent, duration } from "./dom.js";
import { bar, calibration } from "./charts.js";
import { personal } from "./gains.js";
import { api } from "./main.js";
import { W } from "./words.js";

export const view = {
  every: 5000,
  read: () => api.get("learning"),
  draw(data, { tools }) {
    tools.replaceChildren(h("span", { class: "quiet" }, W.learning.span));
    const { labels, status } = data, w = W.learning;
    const fault = Object.entries(data.faults);
    const fact = (title, value) => [h("dt", null, title), h("dd", null, value)];
    return [
      fault.length ? h("ul", { class: "alarms" }, fault.map(([part, why]) => h("li", { class: "bad" }, h("strong", null, part), h("span", null, why)))) : null,
      h("div", { class: "trio" },
        card(w.lags, {}, status ? h("dl", { class: "facts one" }, fact(w.learner, w.behind(count(status.lag.learner_events))),
          fact(w.scorer, w.waits(count(status.lag.scorer_answers), duration(1000 * status.lag.scorer_seconds))),
          fact(w.warehouse, w.late(count(status.lag.warehouse_events), duration(1000 * status.lag.warehouse_seconds))),
          fact(w.leftOut, w.excluded(count(status.quarantined), count(status.skipped))), fact(w.events, count(status.seq))) : note(w.soon)),
        card(w.labels, {}, h("p", { class: "value small", "data-figure": "labels" }, percent(labels.decisions ? labels.rated / labels.decisions : NaN)),
          note(w.rated(count(labels.decisions), count(labels.rated))),
          h("dl", { class: "facts one" }, fact(w.asked, `${count(labels.asked)} (${percent(labels.decisions ? labels.asked / labels.decisions : NaN)})`),
            fact(w.answered, `${count(labels.answered)} (${percent(labels.asked ? labels.answered / labels.asked : NaN)})`), fact(w.learnt, status ? count(status.labels) : "–"))),
        card(w.audit, {}, h("p", { class: "value small" }, ratio(data.evidence)),
          note(w.evidence(count(data.alarm))),
          h("p", { class: data.evidence >= data.alarm ? "error" : "good" }, data.evidence >= data.alarm ? w.unfit : w.fit))),
      h("div", { class: "pair even" },
        card(w.drift, {}, note(w.moved),
          status ? h("ul", { class: "chances" }, Object.entries(status.drift).map(([model, sums]) => h("li", null, h("div", { class: "row-head" }, name(model, 60), data.flattered[model] ? h("span", { class: "tag bad" }, w.flattered) : null),
            bar(sums, percent(sums), sums >= 0.8 ? "c6" : "c7"), data.flattered[model] ? h("p", { class: "about" }, name(data.flattered[model], 200)) : null))) : null,
          Object.entries(data.reward_models ?? {}).map(([id, m]) => h("p", { class: m.error ? "error" : "about" }, w.reward, name(id, 60), w.seen(count(m.answers), count(m.missing)), m.error ? `; ${m.error}` : ""))),
        data.calibration.length ? card(w.right, {}, note(w.diagonal),
          calibration({ label: w.calibration, points: data.calibration, show: (v) => ratio(v, 1) }))
          : card(w.right, {}, empty(W.unknown, w.unscored))),
      h("div", { class: "pair even" }, personal(data.personalisation),
      status ? card(w.predicts, {}, note(w.weights),
        h("ul", { class: "chances heads" }, Object.entries(status.mixture).map(([head, weight]) => h("li", null, h("div", { class: "row-head" }, w.heads[head] ?? head.replaceAll("_", " ")), bar(weight, percent(weight)))))) : null)].filter(Boolean);
  },
};
