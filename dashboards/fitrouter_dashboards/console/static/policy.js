// The policy in force, its candidates and versions, and the controls that change it.

import { h, card, note, empty, name, count, percent, ratio, signed, interval, usd, when } from "./dom.js";
import { personal } from "./gains.js";
import { ask, panel } from "./effect.js";
import { api } from "./main.js";
import { W } from "./words.js";

/** Setting → its lowest and highest value. */
const CONTROLS = { share: [0, 1], cost_weight: [0, null], latency_weight: [0, null], floor: [0, 1] };
const listed = (settings) => Object.entries(settings).map(([key, value]) => `${key} ${typeof value === "string" ? `“${value}”` : value}`).join(", ") || W.policy.none;

export const view = {
  every: 5000,
  read: () => api.get("policy"),
  draw(data, { tools, again }) {
    tools.replaceChildren(h("span", { class: "quiet" }, data.admin ? "" : W.policy.admins));
    const act = (key, change, button, done) => () => ask(key, { change, button, done, again });
    return [h("div", { class: "pair even" }, data.admin ? h("div", { class: "stack" }, live(data, act), changes(data)) : live(data, act), data.admin ? controls(data, act) : personal(data.outlook.personalisation)),
      candidates(data, act)];
  },
};

/** A candidate's algorithm with its parameters. */
const algorithm = ({ algorithm: named, ...parameters }) => [named, Object.keys(parameters).length ? listed(parameters) : null].filter(Boolean).join(", ");
/** What the policy is called that no run-time change replaced. */
const policyName = (version) => version.replace(/^configuration(?= \+|$)/, W.policy.configured);

function live(data, act) {
  const before = data.versions.at(-2), w = W.policy;
  return card(w.live, {}, h("p", { class: "value small", "data-figure": "live" }, name(policyName(data.live), 60)),
    h("dl", { class: "facts two" }, h("dt", null, w.algorithm), h("dd", null, data.algorithm), h("dt", null, w.changed), h("dd", null, name(listed(data.settings), 200)),
      Object.entries(data.budgets).map(([tenant, b]) => [h("dt", null, w.budgetOf, name(tenant, 40)), h("dd", { "data-budget": tenant }, usd(b.usd_per_period), w.spent(percent(b.spent_usd / b.usd_per_period)), b.changed ? h("span", { class: "quiet" }, w.ofBudget) : "")]), data.unpriced.length ? [h("dt", null, w.unpriced), h("dd", null, name(data.unpriced.join(", "), 200), ". ", data.unpriced_rule)] : null, h("dt", null, w.checksum), h("dd", null, h("code", null, data.config_hash)), h("dt", null, w.versions), h("dd", null, data.versions.slice(-6).map((v, i) => [i ? " → " : "", name(policyName(v), 40)]))),
    data.admin ? h("p", { class: "acts" }, h("button", { type: "button", "data-key": "restore", disabled: before === undefined, onclick: act("restore", { action: "restore" }, w.restoreIt, w.restored) },
      before === undefined ? w.nothing : w.restore), before === undefined ? null : h("span", { class: "about" }, " ", name(policyName(before), 40))) : null, panel("restore"));
}

/** Setting → what was typed, which outlives a redraw. */
const typed = new Map();

function controls(data, act) {
  const w = W.policy;
  return card(w.change, {}, note(w.about),
    h("div", { class: "controls" }, Object.entries(CONTROLS).map(([key, [low, high]]) => {
      const [title, help] = w.controls[key];
      const field = h("input", { type: "number", id: `set-${key}`, "data-key": `set-${key}`, min: low, max: high, step: "any", required: true, value: typed.get(key) ?? data.settings[key] ?? data.configured[key] ?? "",
        "aria-describedby": `help-${key}`, oninput: () => typed.set(key, field.value) });
      return h("form", { class: "control", onsubmit: (event) => {
        event.preventDefault();
        const given = Number(field.value);
        typed.delete(key);
        act(key, { action: "set", settings: { [key]: given } }, w.apply(given), w.applied(title, given))();
      } }, h("label", { for: `set-${key}` }, title), h("span", { class: "with" }, field, h("button", null, w.estimate)), h("p", { class: "about", id: `help-${key}` }, help));
    }), budget(data, act)), [...Object.keys(CONTROLS), "budget"].map(panel));
}

function budget(data, act) {
  const tenant = h("input", { id: "set-budget-tenant", "data-key": "set-budget-tenant", maxlength: 200, required: true, list: "budget-tenants", value: typed.get("tenant") ?? Object.keys(data.budgets)[0] ?? "default", oninput: () => typed.set("tenant", tenant.value) });
  const field = h("input", { type: "number", id: "set-budget", "data-key": "set-budget", min: 0, step: "any", placeholder: W.policy.placeholder, value: typed.get("budget") ?? data.budgets[tenant.value]?.usd_per_period ?? "", "aria-describedby": "help-budget", oninput: () => typed.set("budget", field.value) });
  return h("form", { class: "control", onsubmit: (event) => {
    event.preventDefault();
    const usd_per_period = field.value === "" ? null : Number(field.value), who = tenant.value.slice(0, 40);
    typed.delete("tenant");
    typed.delete("budget");
    act("budget", { action: "budget", tenant: tenant.value, usd_per_period }, usd_per_period === null ? W.policy.take : W.policy.apply(usd(usd_per_period)), usd_per_period === null ? W.policy.taken(who) : W.policy.limited(who, usd(usd_per_period)))();
  } }, h("label", { for: "set-budget-tenant" }, W.policy.tenant), tenant, h("datalist", { id: "budget-tenants" }, Object.keys(data.budgets).map((t) => h("option", { value: t }))),
    h("label", { for: "set-budget" }, W.policy.dollars), h("span", { class: "with" }, field, h("button", null, W.policy.estimate)), h("p", { class: "about", id: "help-budget" }, W.policy.empty));
}

function candidates(data, act) {
  const names = Object.keys(data.candidates), runs = data.replays ?? [], w = W.policy;
  return card(w.candidates, {}, names.length ? note(w.candidate) : null, names.length ? [h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": w.candidates }, h("table", null,
    h("thead", null, h("tr", null, w.columns.map((t) => h("th", { scope: "col" }, t)))),
    h("tbody", null, names.map((id) => {
      const run = runs.find((r) => r.candidate === id);
      return h("tr", null, h("th", { scope: "row" }, name(id, 40)), h("td", null, name(algorithm(data.candidates[id]), 120)),
        h("td", null, run ? verdict(run) : h("span", { class: "quiet" }, w.unknown)),
        h("td", null, data.admin ? h("button", { type: "button", "data-key": `promote-${id}`, onclick: act("promote", { action: "promote", name: id }, w.promote(id.slice(0, 40)), w.promoted(id.slice(0, 60))) }, w.promoting) : null));
    })))), panel("promote")] : empty(w.nobody, w.name));
}

const verdict = (run) => [W.policy.found(W.policy.metrics[run.metric] ?? run.metric, signed(run.estimate), run.low === null ? "" : interval(run.low, run.high, (v) => signed(v)), count(run.n), ratio(run.ess, 0)), run.verdict ? h("span", { class: "tag" }, run.verdict) : "", " ", h("span", { class: "quiet" }, when(run.ts))];

function changes(data) {
  return card(W.policy.changes, {}, data.changes.length ? h("ul", { class: "plain-list" }, data.changes.map((c) => h("li", null, when(c.ts), " ", h("strong", null, c.action), " ",
    c.name ? name(c.name, 60) : "", c.settings && c.settings !== "{}" ? [" ", name(c.settings, 160)] : ""))) : empty(W.policy.unchanged, W.policy.first));
}
