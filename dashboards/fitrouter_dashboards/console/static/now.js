// What happens now: alarms, what happened since one last looked, what routing gains, four figures over time, traffic.

import { h, card, empty, name, note, count, ratio, usd, money, tokens, duration, percent, interval, switcher } from "./dom.js";
import { overTime, sankey } from "./charts.js";
import { snippets } from "./begin.js";
import { alone, personal } from "./gains.js";
import { looked, start } from "./since.js";
import { api, href } from "./main.js";
import { W } from "./words.js";

const SPANS = [["auto", "Auto"], ["1h", "1 hour"], ["24h", "24 hours"], ["7d", "7 days"], ["30d", "30 days"], ["all", "All"]];
const SPOKEN = { "1h": "the last hour", "24h": "the last 24 hours", "7d": "the last 7 days", "30d": "the last 30 days", all: "all of the log" };

export const view = {
  every: 3000,
  async read(params, state) {
    const data = await api.get("now", { window: params.window });
    if (!data.ever) return data;
    const asked = state.asked ??= { from: data.from, since: start(data.to) };
    if (params.window !== state.window || data.from - asked.from > 60) Object.assign(asked, { from: data.from });
    state.window = params.window;
    const more = api.get("gains", asked).then((found) => { state.more = found; }, (error) => { state.more = { unread: error.message }; });
    if (!state.more) more.then(() => state.again());  // the first figures do not wait for it
    else await more;
    return { ...data, more: state.more ?? null };
  },
  draw(data, { tools, params, set, session }) {
    tools.replaceChildren(h("span", { class: "quiet" }, `Showing ${SPOKEN[data.window]}`), switcher("Time span", SPANS, params.window ?? "auto", (window) => set({ window })));
    if (!data.ever) return [alarmList(data.alarms), card(W.begin.title, {}, empty(W.begin.none, W.begin.send), snippets())];
    return [alarmList(data.alarms), h("div", { class: "pair" }, looked(data.more, session), alone(data.more && data.more.against)), figures(data), h("div", { class: "pair" }, traffic(data), personal(data.personalisation))];
  },
};

function alarmList(alarms) {
  if (!alarms.length) return h("p", { class: "calm" }, h("span", { class: "mark", "aria-hidden": "true" }, "✓"), "All is well: no alarm.");
  return h("ul", { class: "alarms", "aria-label": "Alarms" }, alarms.map((alarm) =>
    h("li", { class: alarm.level }, h("strong", null, alarm.level === "bad" ? "Alarm" : "Look at this"), h("span", null, alarm.text), h("a", { href: href(alarm.view, alarm.params) }, W.show))));
}

function figures(data) {
  const { totals, series } = data, axis = { from: data.from, step: data.step_s, points: data.points };
  const of = (key) => new Map(series.filter((s) => s[key] !== null).map((s) => [s.point, s[key]]));
  const filled = (key) => new Map(Array.from({ length: data.points }, (_, i) => [i, series.find((s) => s.point === i)?.[key] ?? (series.some((s) => s.point === i) ? null : 0)]).filter(([, value]) => value !== null));
  const reward = totals.reward;
  const ended = ["failed", "refused", "rejected", "cancelled", "unknown"].filter((key) => totals[key]).map((key) => [", ", key === "failed" ? h("a", { class: "bad", href: href("decisions", { status: key }) }, `${count(totals[key])} ${key}`) : `${count(totals[key])} ${key}`]);
  const figure = (id, title, value, about, chart) => card(title, { class: "figure" },
    h("p", { class: "value", "data-figure": id }, value), h("p", { class: "about" }, about), chart);
  return h("div", { class: "figures" },
    figure("requests", "Requests", count(totals.requests),
      ended.length || totals.fallbacks ? [`${count(totals.answered)} answered`, ended, totals.fallbacks ? `, ${count(totals.fallbacks)} by fallback` : ""] : "all answered by the chosen model",
      overTime({ label: "Requests", ...axis, show: count, lines: [{ name: "requests", values: filled("requests"), class: "k0", area: true }] })),
    figure("reward", "Mean rating, 0 to 1", reward ? ratio(reward.mean, 3) : "–",
      reward ? [interval(reward.low, reward.high, (v) => ratio(v, 3)) ? `95 % interval ${interval(reward.low, reward.high, (v) => ratio(v, 3))}; ` : reward.people > 1 ? "too few people for an interval; " : "one person; ", `${count(reward.ratings)} rated answers by ${count(reward.people)} people, the latest thumb or rating of each`]
        : "nobody has rated an answer in this time",
      overTime({ label: "Mean rating", from: data.from, step: data.rating_step_s, points: Math.ceil((data.points * data.step_s) / data.rating_step_s), show: (v) => ratio(v), top: 1, band: new Map(data.ratings.map((r) => [r.point, [r.low, r.high]])),
        lines: [{ name: "mean", values: new Map(data.ratings.map((r) => [r.point, r.mean])), class: "k2" }] })),
    figure("cost", "Cost", money(totals.cost),
      [totals.cost.each === null ? "" : `${usd(totals.cost.each)} per request${totals.cost.unpriced ? " with a known price" : ""}`,
        totals.estimated ? `${count(totals.estimated)} estimated` : "", `tokens: ${tokens(totals)}`].filter(Boolean).join("; "),
      overTime({ label: "Cost", ...axis, show: usd, lines: [{ name: "cost", values: filled("cost_usd"), class: "k1", area: true }] })),
    figure("latency", "Latency, median", duration(totals.p50_ms), `95 % of answers within ${duration(totals.p95_ms)}`,
      overTime({ label: "Latency", ...axis, show: duration, lines: [{ name: "median", values: of("p50_ms"), class: "k4" }, { name: "95 %", values: of("p95_ms"), class: "k4 thin" }] })));
}

function traffic(data) {
  const flows = data.flows.map((f) => ({ from: f.role, to: f.model, n: f.requests }));
  const order = (key) => {
    const sums = new Map();
    for (const flow of flows) sums.set(flow[key], (sums.get(flow[key]) ?? 0) + flow.n);
    return [...sums.keys()].sort((a, b) => (a === null) - (b === null) || sums.get(b) - sums.get(a));
  };
  const roles = order("from"), models = order("to");
  const leftName = (role) => (role === null ? "other roles" : role || "no role");
  const rightName = (model) => (model === null ? "other models" : model || "no answer");
  const total = flows.reduce((sum, flow) => sum + flow.n, 0);
  return card("Traffic from roles to models", { class: "wide" },
    total ? sankey({ label: "Traffic from roles to models", flows, left: roles, right: models, leftName, rightName,
      onpick: (kind, picked) => { location.hash = href("decisions", kind === "model" && picked === "" ? { status: "failed" } : { [kind]: picked }); } })
      : empty("No traffic in this time.", "Choose a longer time span."),
    h("details", null, h("summary", null, "The same as a table"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Traffic as a table" }, h("table", null,
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "Role"), models.map((m) => h("th", { scope: "col", class: "num" }, name(rightName(m), 30))))),
      h("tbody", null, roles.map((role) => h("tr", null, h("th", { scope: "row" }, name(leftName(role), 40)),
        models.map((m) => h("td", { class: "num" }, count(flows.find((f) => f.from === role && f.to === m)?.n ?? 0))))))))));
}
