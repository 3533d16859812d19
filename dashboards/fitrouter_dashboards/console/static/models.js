// The models: prices, availability, traffic and ratings of a week; all traffic to one of them, and back.

import { h, card, note, name, count, ratio, usd, duration, percent, interval } from "./dom.js";
import { bar, hue, learnColours } from "./charts.js";
import { ask, panel } from "./effect.js";
import { api, href, say } from "./main.js";

export const models = {
  every: 5000,
  read: () => api.get("models"),
  draw(data, { tools, again }) {
    learnColours(data.models.map((m) => m.arm));
    const total = data.models.reduce((sum, m) => sum + (m.figures.requests ?? 0), 0);
    tools.replaceChildren(h("span", { class: "quiet" }, "figures of the last 7 days"));
    const set = (settings, done) => async () => {
      try {
        await api.post("policy", { action: "set", settings });
        say(done);
        await again();
      } catch (error) {
        say(error.message, true);
      }
    };
    const paused = (m) => data.paused.includes(m.name);
    const pause = (m) => set({ paused: (paused(m) ? data.paused.filter((n) => n !== m.name) : [...data.paused, m.name]).join(",") }, `${m.name.slice(0, 60)} is ${paused(m) ? "called again" : "not called any more"}.`);
    const force = (key, model, button, done) => () => ask(key, { change: { action: "set", settings: { force: model } }, button, done, again });
    return [data.force ? h("ul", { class: "alarms" }, h("li", { class: "warn" }, h("strong", null, "All traffic"), h("span", null, "goes to ", name(data.force), "; nothing is drawn, and replay can use none of it."),
      data.admin ? h("button", { type: "button", "data-key": "free", onclick: set({ force: "" }, "Models are drawn again.") }, "Draw again") : null)) : null,
    h("div", { class: "models" }, data.models.map((m) => {
      const f = m.figures, reward = f.reward;
      return card(m.name.slice(0, 80), { aside: h("span", { class: m.out ? "tag bad" : paused(m) ? "tag warn" : "tag ok" }, m.out ? "not called" : paused(m) ? "paused" : "can be called") },
        m.out ? h("p", { class: "error" }, name(m.out, 200)) : null,
        h("p", { class: "about" }, "Share of traffic"), bar(total ? (f.requests ?? 0) / total : 0, `${percent(total ? (f.requests ?? 0) / total : 0)}, ${count(f.requests ?? 0)} requests`, hue(m.arm)),
        h("dl", { class: "facts two" },
          h("dt", null, "Mean rating, 0 to 1"), h("dd", null, reward ? `${ratio(reward.mean, 3)}` : "not rated", reward && reward.low !== null ? h("span", { class: "about" }, ` (${interval(reward.low, reward.high)}, ${count(reward.ratings)} ratings)`) : ""),
          h("dt", null, "Answers a call"), h("dd", null, percent(m.availability)),
          h("dt", null, "Price per million tokens"), h("dd", null, m.input_usd_per_million === null ? "unknown: its cost is not weighed" : `${usd(m.input_usd_per_million)} in, ${usd(m.output_usd_per_million)} out`),
          h("dt", null, "Cost per request"), h("dd", null, f.requests ? usd(f.cost_usd / f.requests) : "–"),
          h("dt", null, "Latency, median"), h("dd", null, duration(f.p50_ms)),
          h("dt", null, "Context"), h("dd", null, m.context_window ? `${count(m.context_window)} tokens` : "not stated"),
          h("dt", null, "Provider"), h("dd", null, name(m.provider, 40), " · ", name(m.target, 60)),
          m.revision || m.variant ? [h("dt", null, "Version"), h("dd", null, name([m.variant, m.revision].filter(Boolean).join(" · "), 60))] : null,
          h("dt", null, "Drift"), h("dd", null, m.drift === null ? "–" : `${percent(m.drift)} of the alarm`)),
        h("p", { class: "acts" }, h("a", { href: href("decisions", { model: m.arm }) }, "Its decisions"),
          data.admin ? h("button", { type: "button", "data-key": `pause-${m.name}`, onclick: pause(m) }, paused(m) ? "Call it again" : "Pause") : null,
          data.admin && data.force !== m.name ? h("button", { type: "button", "data-key": `force-${m.name}`, onclick: force(`force-${m.name}`, m.name, `Send all to ${m.name.slice(0, 40)}`, `All traffic goes to ${m.name.slice(0, 60)}.`) }, "Send all traffic here …") : null), panel(`force-${m.name}`));
    })), data.admin ? addition(data.providers) : note("Models are added in the configuration file; a new one gets a raised share of exploration at first.")].filter(Boolean);
  },
};

const FIELDS = [["name", "Name in requests"], ["target", "Provider’s name for it, if another"], ["revision", "Revision"], ["input", "USD per million tokens in"], ["output", "USD per million tokens out"]];
/** What was typed, and the answer to it; they outlive a redraw. */
const adding = { given: {}, found: null };

/** A model to add: the gateway checks it, and writes the block for the configuration file. */
function addition(providers) {
  const answer = h("div", { class: "effect", "data-panel": "add", "aria-live": "polite" }), said = () => answer.replaceChildren(...(adding.found ? [written(adding.found)] : []));
  const input = (key, props) => h("input", { id: `add-${key}`, "data-key": `add-${key}`, value: adding.given[key] ?? "", oninput: (event) => { adding.given[key] = event.target.value; }, ...props });
  const provider = h("select", { id: "add-provider", "data-key": "add-provider", onchange: () => { adding.given.provider = provider.value; } }, providers.map((p) => h("option", { value: p, selected: p === adding.given.provider }, p.slice(0, 60))));
  said();
  return card("Add a model", {}, note("The gateway checks what is given, and writes the block for fitrouter.yaml. Add it there and restart: the model is then drawn with a raised share of exploration at first. Keys and addresses are those of its provider."),
    h("form", { onsubmit: async (event) => {
      event.preventDefault();
      const given = Object.fromEntries(Object.entries({ ...adding.given, provider: provider.value }).filter(([, value]) => value !== "").map(([key, value]) => [key, ["input", "output"].includes(key) ? Number(value) : value]));
      try {
        adding.found = await api.post("models", given);
      } catch (error) {
        adding.found = { errors: { model: error.message } };
      }
      const place = document.querySelector('[data-panel="add"]');
      place?.replaceChildren(written(adding.found));
    } }, h("div", { class: "controls wide" }, h("div", { class: "control" }, h("label", { for: "add-provider" }, "Provider"), provider),
      FIELDS.map(([key, title]) => h("div", { class: "control" }, h("label", { for: `add-${key}` }, title), input(key, ["input", "output"].includes(key) ? { type: "number", min: 0, step: "any" } : { maxlength: 200, required: key === "name" })))),
      h("p", { class: "acts" }, h("button", { "data-key": "add-check" }, "Check and write the block"))), answer);
}

const written = (found) => found.block ? h("pre", { class: "text", tabindex: "0", "data-figure": "block" }, found.block)
  : h("ul", { class: "plain-list" }, Object.entries(found.errors).map(([field, text]) => h("li", { class: "error" }, name(field, 40), ": ", name(text, 400))));
