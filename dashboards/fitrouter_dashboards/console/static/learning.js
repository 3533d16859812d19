// How learning is: lags, labels, the audit of the logged probabilities, drift and flattery.

import { h, card, note, empty, name, count, ratio, percent, duration } from "./dom.js";
import { bar, calibration } from "./charts.js";
import { personal } from "./gains.js";
import { api } from "./main.js";

const HEADS = { population: "everybody’s taste", declared: "declared wishes", narrow: "own ratings, cautiously", length: "own ratings on length", form: "own ratings on length and lists", recent: "own recent ratings", medium: "own ratings", wide: "own ratings, boldly" };

export const view = {
  every: 5000,
  read: () => api.get("learning"),
  draw(data, { tools }) {
    tools.replaceChildren(h("span", { class: "quiet" }, "labels of the last 7 days, the rest of now"));
    const { labels, status } = data;
    const fault = Object.entries(data.faults);
    const fact = (title, value) => [h("dt", null, title), h("dd", null, value)];
    return [
      fault.length ? h("ul", { class: "alarms" }, fault.map(([part, why]) => h("li", { class: "bad" }, h("strong", null, part), h("span", null, why)))) : null,
      h("div", { class: "trio" },
        card("Lags", {}, status ? h("dl", { class: "facts one" }, fact("Learner", `${count(status.lag.learner_events)} events behind`),
          fact("Scorer", `${count(status.lag.scorer_answers)} answers wait, the oldest for ${duration(1000 * status.lag.scorer_seconds)}`),
          fact("Warehouse", `${count(status.lag.warehouse_events)} events behind, the oldest by ${duration(1000 * status.lag.warehouse_seconds)}`),
          fact("Left out of learning", `${count(status.quarantined)} quarantined, ${count(status.skipped)} unreadable`), fact("Events so far", count(status.seq))) : note("Known in a second.")),
        card("Labels", {}, h("p", { class: "value small", "data-figure": "labels" }, percent(labels.decisions ? labels.rated / labels.decisions : NaN)),
          note(`of ${count(labels.decisions)} decisions have feedback (${count(labels.rated)}).`),
          h("dl", { class: "facts one" }, fact("Asked", `${count(labels.asked)} (${percent(labels.decisions ? labels.asked / labels.decisions : NaN)})`),
            fact("Of them answered", `${count(labels.answered)} (${percent(labels.asked ? labels.answered / labels.asked : NaN)})`), fact("Learnt from so far", status ? count(status.labels) : "–"))),
        card("Audit of the probabilities", {}, h("p", { class: "value small" }, ratio(data.evidence)),
          note(`Evidence that models are not drawn with the probabilities in the log: about 1 if they are, an alarm from ${count(data.alarm)}.`),
          h("p", { class: data.evidence >= data.alarm ? "error" : "good" }, data.evidence >= data.alarm ? "The draws do not fit. Do not trust replays until this is explained." : "The draws fit their logged probabilities."))),
      h("div", { class: "pair even" },
        card("Drift and flattery", {}, note("How far a model’s ratings have moved from those predicted; at 100 % it is an alarm."),
          status ? h("ul", { class: "chances" }, Object.entries(status.drift).map(([model, sums]) => h("li", null, h("div", { class: "row-head" }, name(model, 60), data.flattered[model] ? h("span", { class: "tag bad" }, "flattered by its scores") : null),
            bar(sums, percent(sums), sums >= 0.8 ? "c6" : "c7"), data.flattered[model] ? h("p", { class: "about" }, name(data.flattered[model], 200)) : null))) : null,
          Object.entries(data.reward_models ?? {}).map(([id, m]) => h("p", { class: m.error ? "error" : "about" }, "Reward model ", name(id, 60), `: ${count(m.answers)} answers, ${count(m.missing)} without its features`, m.error ? `; ${m.error}` : ""))),
        data.calibration.length ? card("Are the predictions right?", {}, note("Answers by their predicted rating, and what people then gave, with its 95 % interval; last 30 days. On the diagonal they agree."),
          calibration({ label: "Calibration of predicted ratings", points: data.calibration, show: (v) => ratio(v, 1) }))
          : card("Are the predictions right?", {}, empty("Not known yet.", "It is shown once scored answers are rated."))),
      h("div", { class: "pair even" }, personal(data.personalisation),
      status ? card("What predicts", {}, note("Weights for a person without ratings, by how well each has predicted so far."),
        h("ul", { class: "chances heads" }, Object.entries(status.mixture).map(([head, weight]) => h("li", null, h("div", { class: "row-head" }, HEADS[head] ?? head.replaceAll("_", " ")), bar(weight, percent(weight)))))) : null)].filter(Boolean);
  },
};
