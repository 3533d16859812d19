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
    tools.replaceChildren(h("span", { class: "quiet" }, "figures of the last 7 days"));
    const w = W.models, paused = (m) => data.paused.includes(m.name), short = (m) => m.name.slice(0, 60);
    const set = (key, settings, button, done, about) => () => ask(key, { change: { action: "set", settings }, about, button, done, again });
    const pause = (m) => (paused(m) ? set(`pause-${m.name}`, { paused: data.paused.filter((n) => n !== m.name).join(",") }, w.call(short(m)), w.called(short(m)), w.calling)
      : set(`pause-${m.name}`, { paused: [...data.paused, m.name].join(",") }, w.pause(short(m)), w.paused(short(m))));
    const removing = (m) => h("button", { type: "button", "data-key": `remove-${m.name}`, onclick: () => ask(`remove-${m.name}`, { act: () => api.remove(`models/${encodeURIComponent(m.name)}`), about: w.removing, button: w.remove(short(m)), done: w.removed(short(m)), again }) }, w.removal);
    return [data.force ? h("div", null, h("ul", { class: "alarms" }, h("li", { class: "warn" }, h("strong", null, "All traffic"), h("span", null, "goes to ", name(data.force), "; nothing is drawn, and replay can use none of it."),
      data.admin ? h("button", { type: "button", "data-key": "free", onclick: set("free", { force: "" }, w.draw, w.drawn, w.drawing) }, w.drawAgain) : null)), panel("free")) : null,
    h("div", { class: "models" }, data.models.map((m) => {
      const f = m.figures, reward = f.reward;
      return card(m.name.slice(0, 80), { aside: h("span", { class: m.out ? "tag bad" : paused(m) ? "tag warn" : "tag ok" }, m.out ? "not called" : paused(m) ? "paused" : "can be called") },
        m.out ? h("p", { class: "error" }, name(m.out, 200)) : null,
        h("p", { class: "about" }, "Share of traffic"), bar(total ? (f.requests ?? 0) / total : 0, `${percent(total ? (f.requests ?? 0) / total : 0)}, ${count(f.requests ?? 0)} requests`, hue(m.arm)),
        h("dl", { class: "facts two" },
          h("dt", null, "Mean rating, 0 to 1"), h("dd", null, reward ? `${ratio(reward.mean, 3)}` : "not rated", reward ? h("span", { class: "about" }, ` (${reward.low === null ? "" : `${interval(reward.low, reward.high)}, `}${count(reward.ratings)} rated answer${reward.ratings === 1 ? "" : "s"})`) : ""),
          h("dt", null, "Expected to answer"), h("dd", null, `${percent(m.availability)} of calls`),
          h("dt", null, "Price per million tokens"), h("dd", null, m.input_usd_per_million === null ? `not known. ${data.unpriced_rule}` : `${usd(m.input_usd_per_million)} in, ${usd(m.output_usd_per_million)} out`),
          h("dt", null, "Cost per request"), h("dd", null, f.requests ? (f.cost.each === null ? "not known" : usd(f.cost.each)) : "–"),
          h("dt", null, "Latency, median"), h("dd", null, duration(f.p50_ms)),
          h("dt", null, "Context"), h("dd", null, m.context_window ? `${count(m.context_window)} tokens` : "not stated"),
          h("dt", null, "Provider"), h("dd", null, name(m.provider, 40), " · ", name(m.target, 60)),
          m.revision || m.variant ? [h("dt", null, "Version"), h("dd", null, name([m.variant, m.revision].filter(Boolean).join(" · "), 60))] : null,
          m.added ? [h("dt", null, "Added"), h("dd", null, when(m.added), ", while running")] : null,
          h("dt", null, "Drift of its ratings"), h("dd", null, m.drift === null ? "–" : `${percent(m.drift)} of the way to an alarm`)),
        h("p", { class: "acts" }, h("a", { href: href("decisions", { model: m.arm }) }, "Its decisions"),
          data.admin ? h("button", { type: "button", "data-key": `pause-${m.name}`, onclick: pause(m) }, paused(m) ? w.callAgain : w.pausing) : null,
          data.admin && data.force !== m.name ? h("button", { type: "button", "data-key": `force-${m.name}`, onclick: set(`force-${m.name}`, { force: m.name }, w.force(short(m)), w.forced(short(m))) }, w.forcing) : null,
          data.admin && m.added ? removing(m) : null), panel(`pause-${m.name}`), panel(`force-${m.name}`), m.added ? panel(`remove-${m.name}`) : null);
    })), data.unused?.length ? card("Added, but not in use", {}, h("ul", { class: "plain-list" }, data.unused.map((m) => h("li", null, h("strong", null, name(m.name, 80)), ": ", h("span", { class: "error" }, name(m.fault, 400)), h("p", { class: "acts" }, removing(m)), panel(`remove-${m.name}`))))) : null,
    data.admin ? addition(data, again) : note("Models are added by an administrator; a new one gets a raised share of exploration at first.")].filter(Boolean);
  },
};

const OWN = "\u0000own";
const NUMBERS = ["input", "output", "context_window"];
const FIELDS = [["name", "Name in requests", "such as mistral-small"], ["target", "Provider’s name for it", "if another"], ["revision", "Revision", "if it has one"],
  ["input", "USD per million tokens in", "not known"], ["output", "USD per million tokens out", "not known"], ["context_window", "Context, in tokens", "128000"]];
/** What was typed, and the answer to it; they outlive a redraw. */
const adding = { given: {}, error: "", busy: false };

/** A model to add; it is in use at once, in every worker and after a restart. */
function addition(data, again) {
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
    field("base_url", "Base URL", "up to and including /v1", { type: "url", maxlength: 2000 }),
    h("div", { class: "control" }, h("label", { for: "add-api_key_env" }, "Variable with its key"), chosen("api_key_env", [["", "no key"], ...data.additions.key_envs.map((each) => [each, each])])));
  const provider = chosen("provider", [...data.providers.map((each) => [each, each]), [OWN, "A server of its own …"]], () => { server.hidden = !own(); });
  const submit = async (event) => {
    event.preventDefault();
    if (adding.busy) return;
    adding.busy = true;
    try {
      const found = await api.post("models", body(adding.given));
      if (found.error) throw new Error(found.error);
      say(found.fault ? `${found.name.slice(0, 60)} was added, but cannot be used here: ${found.fault}` : `${found.name.slice(0, 60)} is in use.`, Boolean(found.fault));
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
  return card("Add a model", {}, note("It is in use at once, in every worker and after a restart, with a raised share of exploration at first. Keys stay in the environment of the gateway: only the name of a variable is given",
    data.additions.key_envs.length ? "." : "; the setting server.additions.key_envs allows some.", data.additions.private_addresses ? "" : " A server of its own needs a public address."),
    h("form", { onsubmit: submit }, h("div", { class: "controls wide" }, h("div", { class: "control" }, h("label", { for: "add-provider" }, "Provider"), provider),
      FIELDS.map(([key, title, hint]) => field(key, title, hint, NUMBERS.includes(key) ? { type: "number", min: 0, step: key === "context_window" ? 1 : "any" } : { maxlength: 200, required: key === "name" }))),
      server, fault, h("p", { class: "acts" }, h("button", { class: "primary", "data-key": "add-model" }, "Add the model"))));
}

/** The body of the request: what was typed, without what was left empty. */
function body(typed) {
  const given = Object.fromEntries(Object.entries(typed).filter(([, value]) => value !== "").map(([key, value]) => [key, NUMBERS.includes(key) ? Number(value) : value]));
  const { input, output, base_url, api_key_env, provider, ...model } = given;
  const prices = Object.fromEntries(Object.entries({ input, output }).filter(([, value]) => value !== undefined));
  return { ...model, ...(Object.keys(prices).length ? { prices } : {}), provider: provider === OWN ? { kind: "openai_compatible", base_url: base_url ?? "", ...(api_key_env ? { api_key_env } : {}) } : provider };
}
