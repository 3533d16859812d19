// The models: prices, availability, traffic and ratings of a week; pause one, send all traffic to one, add and remove one.

import { h, card, note, name, count, ratio, usd, duration, percent, interval, when } from "./dom.js";
import { bar, hue } from "./charts.js";
import { ask, panel } from "./effect.js";
import { api, href, say } from "./main.js";
import { W } from "./words.js";

export const view = {
  every: 5000,
  read: () => api.get("models"),
  draw(data, { tools, again }) {
    const total = data.models.reduce((sum, m) => sum + (m.figures.requests ?? 0), 0);
    tools.replaceChildren(h("span", { class: "quiet" }, W.models.span));
    const w = W.models, paused = (m) => data.paused.includes(m.name), short = (m) => m.name.slice(0, 60);
    const set = (key, settings, button, done, about) => () => ask(key, { change: { action: "set", settings }, about, button, done, again });
    const pause = (m) => (paused(m) ? set(`pause-${m.name}`, { paused: data.paused.filter((n) => n !== m.name).join(",") }, w.call(short(m)), w.called(short(m)), w.calling)
      : set(`pause-${m.name}`, { paused: [...data.paused, m.name].join(",") }, w.pause(short(m)), w.paused(short(m)), w.pauses));
    const removing = (m) => h("button", { type: "button", "data-key": `remove-${m.name}`, onclick: () => ask(`remove-${m.name}`, { act: () => api.remove(`models/${encodeURIComponent(m.name)}`), about: w.removing, button: w.remove(short(m)), done: w.removed(short(m)), again }) }, w.removal);
    return [data.force ? h("div", null, h("ul", { class: "alarms" }, h("li", { class: "warn" }, h("strong", null, w.all), h("span", null, w.goes, name(data.force), w.none),
      data.admin ? h("button", { type: "button", "data-key": "free", onclick: set("free", { force: "" }, w.draw, w.drawn, w.drawing) }, w.drawAgain) : null)), panel("free")) : null,
    h("div", { class: "models" }, data.models.map((m) => {
      const f = m.figures, reward = f.reward;
      return card(m.name.slice(0, 80), { aside: h("span", { class: m.out || m.unanswered ? "tag bad" : paused(m) ? "tag warn" : "tag ok" }, m.out ? w.out : paused(m) ? w.isPaused : m.unanswered ? w.silent : w.ready) },
        m.out ? h("p", { class: "error" }, name(m.out, 200)) : null,
        h("p", { class: "about" }, w.share), bar(total ? (f.requests ?? 0) / total : 0, w.requests(percent(total ? (f.requests ?? 0) / total : 0), count(f.requests ?? 0)), hue(m.arm)),
        h("dl", { class: "facts two" },
          h("dt", null, w.rating), h("dd", null, reward ? `${ratio(reward.mean, 3)}` : w.unrated, reward ? h("span", { class: "about" }, ` (${reward.low === null ? "" : `${interval(reward.low, reward.high)}, `}${w.rated(count(reward.ratings), reward.ratings)})`) : ""),
          h("dt", null, w.answers), h("dd", null, m.unanswered ? [w.unanswered(count(m.unanswered.calls)), when(m.unanswered.since)] : w.calls(percent(m.availability))),
          h("dt", null, w.price), h("dd", null, m.input_usd_per_million === null ? w.unpriced : w.prices(usd(m.input_usd_per_million), usd(m.output_usd_per_million))),
          h("dt", null, w.each), h("dd", null, f.requests ? (f.cost.each === null ? w.unpriced : usd(f.cost.each)) : "–"),
          h("dt", null, w.latency), h("dd", null, duration(f.p50_ms)),
          h("dt", null, w.context), h("dd", null, m.context_window ? w.tokens(count(m.context_window)) : w.unstated),
          h("dt", null, w.provider), h("dd", null, name(m.provider, 40), " · ", name(m.target, 60)),
          m.revision || m.variant ? [h("dt", null, w.version), h("dd", null, name([m.variant, m.revision].filter(Boolean).join(" · "), 60))] : null,
          m.added ? [h("dt", null, w.added), h("dd", null, when(m.added), w.running)] : null,
          h("dt", null, w.drift), h("dd", null, m.drift === null ? "–" : w.alarm(percent(m.drift)))),
        h("p", { class: "acts" }, h("a", { href: href("decisions", { model: m.arm }) }, w.decisions),
          data.admin ? h("button", { type: "button", "data-key": `pause-${m.name}`, onclick: pause(m) }, paused(m) ? w.callAgain : w.pausing) : null,
          data.admin && data.force !== m.name ? h("button", { type: "button", "data-key": `force-${m.name}`, onclick: set(`force-${m.name}`, { force: m.name }, w.force(short(m)), w.forced(short(m))) }, w.forcing) : null,
          data.admin && m.added ? removing(m) : null), panel(`pause-${m.name}`), panel(`force-${m.name}`), m.added ? panel(`remove-${m.name}`) : null);
    })), data.models.some((m) => m.input_usd_per_million === null) ? note(data.unpriced_rule) : null, data.unused?.length ? card(w.unused, {}, h("ul", { class: "plain-list" }, data.unused.map((m) => h("li", null, h("strong", null, name(m.name, 80)), ": ", h("span", { class: "error" }, name(m.fault, 400)), h("p", { class: "acts" }, removing(m)), panel(`remove-${m.name}`))))) : null,
    data.admin ? addition(data, again) : note(w.admins)].filter(Boolean);
  },
};

const OWN = "\u0000own";
const NUMBERS = ["input", "output", "context_window"];
/** What was typed, and the answer to it; they outlive a redraw. */
const adding = { given: {}, error: "", busy: false };

/** A model to add; it is in use at once, in every worker and after a restart. */
function addition(data, again) {
  const w = W.models;
  const own = () => adding.given.provider === OWN;
  const fault = h("p", { class: "error", role: "alert", "data-panel": "add" }, adding.error);
  const field = (key, title, hint, props) => h("div", { class: "control" }, h("label", { for: `add-${key}` }, title),
    h("input", { id: `add-${key}`, "data-key": `add-${key}`, value: adding.given[key] ?? "", placeholder: hint, oninput: (event) => { adding.given[key] = event.target.value; }, ...props }));
  const chosen = (key, options, onchange) => {
    const select = h("select", { id: `add-${key}`, "data-key": `add-${key}`, onchange: () => { adding.given[key] = select.value; onchange?.(); } },
      options.map(([id, text]) => h("option", { value: id, selected: id === adding.given[key] }, text.slice(0, 60))));
    return select;
  };
  if (adding.given.provider === undefined) adding.given.provider = data.providers[0] ?? OWN;
  const server = h("div", { class: "controls wide", hidden: !own() },
    field("base_url", ...w.url, { type: "url", maxlength: 2000 }),
    h("div", { class: "control" }, h("label", { for: "add-api_key_env" }, w.variable), chosen("api_key_env", [["", w.nokey], ...data.additions.key_envs.map((each) => [each, each])])));
  const provider = chosen("provider", [...data.providers.map((each) => [each, each]), [OWN, w.own]], () => { server.hidden = !own(); });
  const submit = async (event) => {
    event.preventDefault();
    if (adding.busy) return;
    adding.busy = true;
    try {
      const found = await api.post("models", body(adding.given));
      if (found.error) throw new Error(found.error);
      say(found.fault ? w.faulty(found.name.slice(0, 60), found.fault) : w.inUse(found.name.slice(0, 60)), Boolean(found.fault));
      Object.assign(adding, { given: { provider: adding.given.provider }, error: "" });
      await again();
    } catch (error) {
      adding.error = error.message;
      const place = document.querySelector('[data-panel="add"]');
      if (place) place.textContent = adding.error;
    } finally {
      adding.busy = false;
    }
  };
  return card(w.add, {}, note(w.adding, data.additions.key_envs.length ? "." : w.envs, data.additions.private_addresses ? "" : w.public),
    h("form", { onsubmit: submit }, h("div", { class: "controls wide" }, h("div", { class: "control" }, h("label", { for: "add-provider" }, w.provider), provider),
      w.fields.map(([key, title, hint]) => field(key, title, hint, NUMBERS.includes(key) ? { type: "number", min: 0, step: key === "context_window" ? 1 : "any" } : { maxlength: 200, required: key === "name" }))),
      server, fault, h("p", { class: "acts" }, h("button", { class: "primary", "data-key": "add-model" }, w.addIt))));
}

/** The body of the request: what was typed, without what was left empty. */
function body(typed) {
  const given = Object.fromEntries(Object.entries(typed).filter(([, value]) => value !== "").map(([key, value]) => [key, NUMBERS.includes(key) ? Number(value) : value]));
  const { input, output, base_url, api_key_env, provider, ...model } = given;
  const prices = Object.fromEntries(Object.entries({ input, output }).filter(([, value]) => value !== undefined));
  return { ...model, ...(Object.keys(prices).length ? { prices } : {}), provider: provider === OWN ? { kind: "openai_compatible", base_url: base_url ?? "", ...(api_key_env ? { api_key_env } : {}) } : provider };
}
