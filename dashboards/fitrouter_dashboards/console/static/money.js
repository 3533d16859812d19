// What was spent: tokens in the parts that are charged apart, and money, by model, role, day or person; what a change would do.

import { h, card, note, empty, name, count, ratio, usd, sum, lacks, date, switcher } from "./dom.js";
import { bar, hue } from "./charts.js";
import { ask, panel } from "./effect.js";
import { api, href } from "./main.js";
import { snippets } from "./begin.js";
import { W } from "./words.js";

const PARTS = ["fresh", "cached", "written", "output", "reasoning"];

export const view = {
  every: 10000,
  read: (params) => api.get("money", { window: params.window, by: params.by }),
  draw(data, { tools, set, again, session }) {
    const w = W.money;
    tools.replaceChildren(switcher(w.span, w.spans, data.window, (window) => set({ window })));
    const groups = h("div", null, switcher(w.by, w.groups.filter(([id]) => id !== "person" || data.people), data.by, (by) => set({ by })));
    if (!data.all) return [groups, card(w.none, {}, empty(w.nothing, w.longer), snippets())];
    return [h("div", { class: "figures" }, total(w.spent, "spent", sum(data.all.cost), [data.all.cost.each === null ? "" : w.each(usd(data.all.cost.each), data.all.cost.unpriced), lacks(data.all.cost)].filter(Boolean).join("; ")),
      total(w.input, "input", count(data.all.fresh + data.all.cached + data.all.written), w.inputs(...["fresh", "cached", "written"].map((part) => count(data.all[part])))),
      total(w.output, "output", count(data.all.output + data.all.reasoning), w.outputs(count(data.all.output), count(data.all.reasoning))),
      total(w.unknown, "unknown", count(data.all.cost.unpriced), data.unpriced.length ? [w.unpriced, name(data.unpriced.join(", "), 120), ". ", data.rule] : data.all.cost.unpriced ? w.once : w.priced)),
    groups, table(data, session), data.admin ? whatif(data, again) : null].filter(Boolean);
  },
};

const total = (title, id, value, about) => card(title, { class: "figure" }, h("p", { class: "value small", "data-figure": id }, value), h("p", { class: "about" }, about));

function label(data, row, session) {
  const w = W.money;
  if (data.by === "day") return date(row.key);
  if (data.by === "model") return row.key ? [h("span", { class: "swatch " + hue(row.key), "aria-hidden": "true" }), h("a", { href: href("decisions", { model: row.key }) }, name(row.key, 40))] : w.nomodel;
  if (data.by === "role") return row.key ? h("a", { href: href("people", { role: row.key }) }, name(row.key, 40)) : w.norole;
  return row.key ? h("a", { href: href("people", { user: row.user ?? row.key }) }, row.user ? name(row.user, 40) : h("code", null, row.key.slice(0, 12))) : w.nobody;
}

function table(data, session) {
  const w = W.money, most = Math.max(...data.rows.map((r) => r.cost.usd ?? 0), 1e-12);
  return h("section", { class: "card", "aria-label": w.title }, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": w.title }, h("table", { class: "persons money" },
    h("thead", null, h("tr", null, [w.group[data.by], ...w.columns].map((title, i) => h("th", { scope: "col", class: i && i < 7 ? "num" : null }, title)))),
    h("tbody", null, data.rows.map((row) => h("tr", null, h("th", { scope: "row" }, label(data, row, session)), h("td", { class: "num", "data-label": w.columns[0] }, count(row.requests)),
      PARTS.map((part, i) => h("td", { class: row[part] ? "num" : "num zero", "data-label": w.columns[i + 1] }, row[part] ? count(row[part]) : h("span", { class: "quiet" }, "0"))),
      h("td", { class: "spent" }, bar((row.cost.usd ?? 0) / most, sum(row.cost), data.by === "model" ? hue(row.key) : "c1"))))),
  )), data.more ? note(w.most) : null);
}

/** What replay says of another price weight, floor or highest effort, by sliders. */
function whatif({ live, efforts }, again) {
  const w = W.money, plain = (value) => ratio(value, 2);
  const sliders = [["cost_weight", live.cost_weight, Math.max(2, 2 * live.cost_weight), 0.05, plain], ["floor", live.floor, 0.3, 0.01, plain],
    ...(efforts ? [["effort", efforts.now, efforts.levels.length - 1, 1, (at) => w.efforts[efforts.levels[at]] ?? efforts.levels[at]]] : [])];
  return card(w.whatif, {}, note(w.about, efforts ? w.pauses : ""), h("div", { class: "controls" }, sliders.map(([key, now, most, step, words]) => {
    const shown = h("output", { for: `slide-${key}` }, words(now)), given = () => words(Number(slider.value));
    const slider = h("input", { type: "range", id: `slide-${key}`, "data-key": `slide-${key}`, min: 0, max: most, step, value: now, "aria-valuetext": words(now),
      oninput: () => { shown.textContent = given(); slider.setAttribute("aria-valuetext", given()); },
      onchange: () => ask(key, { change: { action: "set", settings: key === "effort" ? { paused: efforts.paused[slider.value] } : { [key]: Number(slider.value) } }, button: w.apply(given()), done: w.applied(w.sliders[key], given()), again }) });
    return h("div", { class: "control" }, h("label", { for: `slide-${key}` }, w.sliders[key], " ", shown), slider);
  })), sliders.map(([key]) => panel(key)));
}
