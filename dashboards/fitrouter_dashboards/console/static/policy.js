// The policy in force, its candidates and versions, and the controls that change it.

import { h, card, note, empty, name, count, percent, ratio, signed, interval, usd, when } from "./dom.js";
import { personal } from "./gains.js";
import { ask, panel } from "./effect.js";
import { api } from "./main.js";

const CONTROLS = [
  ["share", "Routed share of traffic", "0 is shadow mode: the default model answers, decisions are only logged", 0, 1],
  ["cost_weight", "Cost weight", "rating given up to save one cost unit", 0, null],
  ["latency_weight", "Latency weight", "rating given up to save one latency unit", 0, null],
  ["floor", "Floor", "share of traffic spread over all models", 0, 1],
];
const listed = (settings) => Object.entries(settings).map(([key, value]) => `${key} ${typeof value === "string" ? `“${value}”` : value}`).join(", ") || "none";

export const view = {
  every: 5000,
  read: () => api.get("policy"),
  draw(data, { tools, again }) {
    tools.replaceChildren(h("span", { class: "quiet" }, data.admin ? "" : "an administrator’s key may change it"));
    const act = (key, change, button, done) => () => ask(key, { change, button, done, again });
    return [h("div", { class: "pair even" }, data.admin ? h("div", { class: "stack" }, live(data, act), changes(data)) : live(data, act), data.admin ? controls(data, act) : personal(data.outlook.personalisation)),
      candidates(data, act)];
  },
};

/** A candidate's algorithm with its parameters. */
const algorithm = ({ algorithm: named, ...parameters }) => [named, Object.keys(parameters).length ? listed(parameters) : null].filter(Boolean).join(", ");
/** What the policy is called that no run-time change replaced. */
const policyName = (version) => version.replace(/^configuration(?= \+|$)/, "as configured");

function live(data, act) {
  const before = data.versions.at(-2);
  return card("In force", {}, h("p", { class: "value small", "data-figure": "live" }, name(policyName(data.live), 60)),
    h("dl", { class: "facts two" }, h("dt", null, "Algorithm"), h("dd", null, data.algorithm), h("dt", null, "Changed while running"), h("dd", null, name(listed(data.settings), 200)),
      Object.entries(data.budgets).map(([tenant, b]) => [h("dt", null, "Budget of ", name(tenant, 40)), h("dd", { "data-budget": tenant }, usd(b.usd_per_period), `, ${percent(b.spent_usd / b.usd_per_period)} of it spent`, b.changed ? h("span", { class: "quiet" }, " (changed while running)") : "")]), data.unpriced.length ? [h("dt", null, "Without a price"), h("dd", null, name(data.unpriced.join(", "), 200), ". ", data.unpriced_rule)] : null, h("dt", null, "Checksum of all settings"), h("dd", null, h("code", null, data.config_hash)), h("dt", null, "Versions"), h("dd", null, data.versions.slice(-6).map((v, i) => [i ? " → " : "", name(policyName(v), 40)]))),
    data.admin ? h("p", { class: "acts" }, h("button", { type: "button", "data-key": "restore", disabled: before === undefined, onclick: act("restore", { action: "restore" }, "Restore it", "The version before is in force again.") },
      before === undefined ? "Nothing to restore" : "Restore the version before …"), before === undefined ? null : h("span", { class: "about" }, " ", name(policyName(before), 40))) : null, panel("restore"));
}

/** Setting → what was typed, which outlives a redraw. */
const typed = new Map();

function controls(data, act) {
  return card("Change", {}, note("What the log says appears before a change can be applied. Then it is in force within a second, is logged, and can be restored."),
    h("div", { class: "controls" }, CONTROLS.map(([key, title, help, low, high]) => {
      const field = h("input", { type: "number", id: `set-${key}`, "data-key": `set-${key}`, min: low, max: high, step: "any", required: true, value: typed.get(key) ?? data.settings[key] ?? data.configured[key] ?? "",
        "aria-describedby": `help-${key}`, oninput: () => typed.set(key, field.value) });
      return h("form", { class: "control", onsubmit: (event) => {
        event.preventDefault();
        const given = Number(field.value);
        typed.delete(key);
        act(key, { action: "set", settings: { [key]: given } }, `Apply ${given}`, `${title}: ${given} is in force.`)();
      } }, h("label", { for: `set-${key}` }, title), h("span", { class: "with" }, field, h("button", null, "Estimate …")), h("p", { class: "about", id: `help-${key}` }, help));
    }), budget(data, act)), [...CONTROLS.map(([key]) => key), "budget"].map(panel));
}

function budget(data, act) {
  const tenant = h("input", { id: "set-budget-tenant", "data-key": "set-budget-tenant", maxlength: 200, required: true, list: "budget-tenants", value: typed.get("tenant") ?? Object.keys(data.budgets)[0] ?? "default", oninput: () => typed.set("tenant", tenant.value) });
  const field = h("input", { type: "number", id: "set-budget", "data-key": "set-budget", min: 0, step: "any", placeholder: "configured", value: typed.get("budget") ?? data.budgets[tenant.value]?.usd_per_period ?? "", "aria-describedby": "help-budget", oninput: () => typed.set("budget", field.value) });
  return h("form", { class: "control", onsubmit: (event) => {
    event.preventDefault();
    const usd_per_period = field.value === "" ? null : Number(field.value), who = tenant.value.slice(0, 40);
    typed.delete("tenant");
    typed.delete("budget");
    act("budget", { action: "budget", tenant: tenant.value, usd_per_period }, usd_per_period === null ? "Take the configured one" : `Apply ${usd(usd_per_period)}`, usd_per_period === null ? `The configured budget of ${who} is in force.` : `The budget of ${who} is ${usd(usd_per_period)}.`)();
  } }, h("label", { for: "set-budget-tenant" }, "Budget of the tenant"), tenant, h("datalist", { id: "budget-tenants" }, Object.keys(data.budgets).map((t) => h("option", { value: t }))),
    h("label", { for: "set-budget" }, "US dollars per period"), h("span", { class: "with" }, field, h("button", null, "Estimate …")), h("p", { class: "about", id: "help-budget" }, "empty takes the configuration’s; “Restore” leaves budgets as they are"));
}

function candidates(data, act) {
  const names = Object.keys(data.candidates), runs = data.replays ?? [];
  return card("Candidates", {}, names.length ? [h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Candidates" }, h("table", null,
    h("thead", null, h("tr", null, ["Name", "Settings", "What the log says", ""].map((t) => h("th", { scope: "col" }, t)))),
    h("tbody", null, names.map((id) => {
      const run = runs.find((r) => r.candidate === id);
      return h("tr", null, h("th", { scope: "row" }, name(id, 40)), h("td", null, name(algorithm(data.candidates[id]), 120)),
        h("td", null, run ? verdict(run) : h("span", { class: "quiet" }, "no replay is noted; “Promote …” asks the log first")),
        h("td", null, data.admin ? h("button", { type: "button", "data-key": `promote-${id}`, onclick: act("promote", { action: "promote", name: id }, `Promote ${id.slice(0, 40)}`, `${id.slice(0, 60)} is in force.`) }, "Promote …") : null));
    })))), panel("promote")] : empty("No candidates.", "Name some under ", h("code", null, "policy.candidates"), " in the configuration; their probabilities are logged beside each decision."));
}

const verdict = (run) => [`${run.metric} by ${run.estimator}: ${signed(run.estimate)} `, run.low === null ? "" : `(${interval(run.low, run.high, (v) => signed(v))}) `,
  `from ${count(run.n)} decisions that say as much as ${ratio(run.ess, 0)} of its own`, run.verdict ? h("span", { class: "tag" }, run.verdict) : "", " ", h("span", { class: "quiet" }, when(run.ts))];

function changes(data) {
  return card("Changes", {}, data.changes.length ? h("ul", { class: "plain-list" }, data.changes.map((c) => h("li", null, when(c.ts), " ", h("strong", null, c.action), " ",
    c.name ? name(c.name, 60) : "", c.settings && c.settings !== "{}" ? [" ", name(c.settings, 160)] : ""))) : empty("No changes.", "The configuration has been in force from the start."));
}
