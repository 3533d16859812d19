// What happens now: alarms, what happened since one last looked, what routing gains, four figures over time, traffic.

import { h, card, empty, name, note, count, ratio, usd, sum, lacks, tokens, duration, percent, interval, switcher } from "./dom.js";
import { overTime, sankey } from "./charts.js";
import { snippets } from "./begin.js";
import { alone, personal } from "./gains.js";
import { looked, start } from "./since.js";
import { api, href } from "./main.js";
import { W } from "./words.js";

export const view = {
  every: 3000,
  async read(params, state) {
    let data;
    try {
      data = state.figures = await api.get("now", { window: params.window });
    } catch (error) {
      if (!error.body?.alarms) throw error;
      const { alarms } = error.body;
      return state.figures ? { ...state.figures, more: state.more ?? null, first: state.visit?.first, alarms, late: error.message } : { alarms, unread: { figures: error.message } };
    }
    if (!data.ever) return data;
    const { since, first } = state.visit ??= start(data.to), asked = state.asked ??= { from: data.from, since };
    if (params.window !== state.window || data.from - asked.from > 60) Object.assign(asked, { from: data.from });
    state.window = params.window;
    const more = api.get("gains", asked).then((found) => { state.more = found; }, (error) => { state.more = { unread: error.message }; });
    if (!state.more) more.then(() => state.again());  // the first figures do not wait for it
    else await more;
    return { ...data, more: state.more ?? null, first };
  },
  draw(data, { tools, params, set, session }) {
    if (!data.window) return alarmList(data) ?? [];
    tools.replaceChildren(h("span", { class: "quiet" }, W.now.showing[data.window]), switcher(W.now.span, W.now.spans, params.window ?? "auto", (window) => set({ window })));
    if (!data.ever) return [alarmList(data), card(W.begin.title, {}, empty(W.begin.none, W.begin.send), snippets())];
    return [alarmList(data), h("div", { class: "pair" }, looked(data.more, session, data.first), alone(data.more && data.more.against)), figures(data), h("div", { class: "pair" }, traffic(data), personal(data.personalisation))].filter(Boolean);
  },
};

function alarmList({ alarms, late, unread }) {
  if (!alarms.length) return late || unread?.figures ? null : h("p", { class: "calm" }, h("span", { class: "mark", "aria-hidden": "true" }, "✓"), W.now.calm);
  return h("ul", { class: "alarms", "aria-label": W.now.alarms }, alarms.map((alarm) =>
    h("li", { class: alarm.level }, h("strong", null, W.now.levels[alarm.level]), h("span", null, alarm.text), h("a", { href: href(alarm.view, alarm.params) }, W.show))));
}

function figures(data) {
  const w = W.now, { totals, series } = data, axis = { from: data.from, step: data.step_s, points: data.points };
  const of = (key) => new Map(series.filter((s) => s[key] !== null).map((s) => [s.point, s[key]]));
  const filled = (key) => new Map(Array.from({ length: data.points }, (_, i) => [i, series.find((s) => s.point === i)?.[key] ?? (series.some((s) => s.point === i) ? null : 0)]).filter(([, value]) => value !== null));
  const reward = totals.reward;
  const ended = Object.entries(w.ended).filter(([key]) => totals[key]).map(([key, words]) => [", ", key === "failed" ? h("a", { class: "bad", href: href("decisions", { status: key }) }, `${count(totals[key])} ${words}`) : `${count(totals[key])} ${words}`]);
  const figure = (id, title, value, about, chart) => card(title, { class: "figure" },
    h("p", { class: "value", "data-figure": id }, value), h("p", { class: "about" }, about), chart);
  return h("div", { class: "figures" },
    figure("requests", w.requests, count(totals.requests),
      ended.length || totals.fallbacks ? [w.answered(count(totals.answered)), ended, totals.fallbacks ? w.fallback(count(totals.fallbacks)) : ""] : w.all,
      overTime({ label: w.requests, ...axis, show: count, lines: [{ name: w.drawn, values: filled("requests"), class: "k0", area: true }] })),
    figure("reward", w.rating, reward ? ratio(reward.mean, 3) : "–",
      reward ? [interval(reward.low, reward.high, (v) => ratio(v, 3)) ? w.ends(interval(reward.low, reward.high, (v) => ratio(v, 3))) : reward.people + reward.anonymous > 1 ? w.few : w.one, w.rated(count(reward.ratings), reward.people, reward.anonymous)]
        : w.unrated,
      overTime({ label: w.mean, from: data.from, step: data.rating_step_s, points: Math.ceil((data.points * data.step_s) / data.rating_step_s), show: (v) => ratio(v), top: 1, band: new Map(data.ratings.map((r) => [r.point, [r.low, r.high]])),
        lines: [{ name: w.means, values: new Map(data.ratings.map((r) => [r.point, r.mean])), class: "k2" }] })),
    figure("cost", w.cost, sum(totals.cost),
      [lacks(totals.cost), totals.cost.each === null ? "" : w.each(usd(totals.cost.each), totals.cost.unpriced),
        totals.estimated ? w.estimated(count(totals.estimated)) : "", w.tokens(tokens(totals))].filter(Boolean).join("; "),
      overTime({ label: w.cost, ...axis, show: usd, lines: [{ name: w.costs, values: filled("cost_usd"), class: "k1", area: true }] })),
    figure("latency", w.latency, duration(totals.p50_ms), w.within(duration(totals.p95_ms)),
      overTime({ label: w.latencies, ...axis, show: duration, lines: [{ name: w.median, values: of("p50_ms"), class: "k4" }, { name: w.most, values: of("p95_ms"), class: "k4 thin" }] })));
}

function traffic(data) {
  const w = W.now, flows = data.flows.map((f) => ({ from: f.role, to: f.model, n: f.requests }));
  const order = (key) => {
    const sums = new Map();
    for (const flow of flows) sums.set(flow[key], (sums.get(flow[key]) ?? 0) + flow.n);
    return [...sums.keys()].sort((a, b) => (a === null) - (b === null) || sums.get(b) - sums.get(a));
  };
  const roles = order("from"), models = order("to");
  const leftName = (role) => (role === null ? w.noroles : role || w.norole);
  const rightName = (model) => (model === null ? w.nomodels : model || w.nomodel);
  const total = flows.reduce((sum, flow) => sum + flow.n, 0);
  return card(w.traffic, { class: "wide" },
    total ? sankey({ label: w.traffic, flows, left: roles, right: models, leftName, rightName,
      onpick: (kind, picked) => { location.hash = href("decisions", kind === "model" && picked === "" ? { status: "failed" } : { [kind]: picked }); } })
      : empty(w.quiet, w.longer),
    h("details", null, h("summary", null, w.same), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": w.table }, h("table", null,
      h("thead", null, h("tr", null, h("th", { scope: "col" }, w.role), models.map((m) => h("th", { scope: "col", class: "num" }, name(rightName(m), 30))))),
      h("tbody", null, roles.map((role) => h("tr", null, h("th", { scope: "row" }, name(leftName(role), 40)),
        models.map((m) => h("td", { class: "num" }, count(flows.find((f) => f.from === role && f.to === m)?.n ?? 0))))))))));
}
