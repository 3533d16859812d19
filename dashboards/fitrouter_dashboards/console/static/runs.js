// Runs of agents: how they ended, what they took, and who was stuck.

import { h, card, note, empty, name, count, money, percent, when, moment, duration } from "./dom.js";
import { hue } from "./charts.js";
import { person, table } from "./decisions.js";
import { api, href } from "./main.js";
import { W } from "./words.js";

export const view = {
  every: 10000,
  read: () => api.get("runs"),
  draw(data, { session }) {
    const w = W.runs;
    if (!data.runs.length) return card(w.none, {}, empty(w.nothing, w.how), h("div", { class: "snippets" }, h("div", { class: "snippet" }, h("pre", { tabindex: "0", role: "region", "aria-label": w.how }, h("code", null, snippet())))));
    const told = data.runs.filter((run) => run.outcome), good = told.filter((run) => run.outcome.y >= 0.5).length;
    return [h("p", { class: "about" }, told.length ? w.share(count(good), count(told.length), count(data.runs.length)) : w.silentAll(count(data.runs.length))),
      h("section", { class: "card", "aria-label": w.title }, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": w.title }, h("table", { class: "persons runs" },
        h("thead", null, h("tr", null, w.columns.map((title, i) => h("th", { scope: "col", class: [3, 6].includes(i) ? "num" : null }, title)))),
        h("tbody", null, data.runs.map((run) => row(run, session)))))), note(w.latest)];
  },
};

function row(run, session) {
  const w = W.runs;
  return h("tr", null,
    h("th", { scope: "row" }, h("a", { href: `#/runs/${encodeURIComponent(run.run)}`, "data-key": run.run }, when(run.began))),
    h("td", { "data-label": w.columns[1] }, run.user ? person(run, session) : h("span", { class: "quiet" }, w.nobody)),
    h("td", { "data-label": w.columns[2] }, run.outcome ? outcome(run.outcome) : h("span", { class: "quiet" }, w.silent)),
    h("td", { class: "num", "data-label": w.columns[3] }, steps(run)),
    h("td", { "data-label": w.columns[4] }, run.roles.length ? name(run.roles.join(", "), 60) : h("span", { class: "quiet" }, w.norole)),
    h("td", { "data-label": w.columns[5] }, models(run)),
    h("td", { class: "num", "data-label": w.columns[6] }, money(run.cost), h("div", { class: "quiet" }, took(run))));
}

const steps = (run) => [count(run.steps), run.stuck ? [" ", h("span", { class: "tag bad" }, W.runs.stuck(run.stuck))] : null, run.failed ? [" ", h("span", { class: "tag bad" }, W.runs.failed(run.failed))] : null];
const models = (run) => run.models.map((model) => h("span", { class: "model" }, h("span", { class: "swatch " + hue(model), "aria-hidden": "true" }), name(model, 30), " "));
const took = (run) => duration(1000 * (run.active - run.began));

/** One run: how it ended, and its steps in their order. */
export function one(id) {
  return {
    title: W.runs.one,
    every: 5000,
    async read() {
      const [{ runs }, steps] = await Promise.all([api.get("runs", { run: id }), api.get("decisions", { run: id, prompts: "1" })]);
      return { ...steps, run: runs[0] ?? null };
    },
    draw({ run, decisions, next, ...data }, { tools, session }) {
      const w = W.runs, fact = (title, ...value) => [h("dt", null, title), h("dd", null, ...value)];
      tools.replaceChildren(h("a", { href: "#/runs" }, w.back));
      if (!run) return card(w.one, {}, empty(w.unknown, w.perhaps));
      return [card(w.ended, {}, h("dl", { class: "facts first" },
        fact(w.id, h("code", null, run.run)), fact(w.columns[0], moment(run.began)), fact(w.columns[1], run.user ? person(run, session) : w.nobody),
        fact(w.columns[2], run.outcome ? outcome(run.outcome) : w.silent), fact(w.columns[3], steps(run)), fact(w.columns[5], models(run)),
        fact(w.cost, money(run.cost)), fact(w.time, took(run)))),
      h("section", { class: "card", "aria-label": w.steps }, table([...decisions].reverse(), session, data),
        next ? h("div", { class: "pages" }, h("span", { class: "quiet" }, w.more), h("a", { href: href("decisions", { run: run.run }) }, w.rest)) : null)];
    },
  };
}

function outcome(told) {
  const w = W.runs, good = told.y >= 0.5;
  const text = told.kind === "success" ? (good ? w.success : w.failure) : percent(told.y);
  return [h("span", { class: good ? "strong good" : "strong bad" }, text), h("span", { class: "quiet" }, w.by[told.source] ?? `, ${told.source}`)];
}

function snippet() {
  const base = new URL("v1", location.href.split("#")[0].replace(/console\/?$/, "")).href;
  return `curl ${base}/chat/completions -H 'content-type: application/json' -H 'x-fitrouter-run: ticket-7' \\\n  -d '{"model": "fitrouter/auto", "messages": [{"role": "user", "content": "${W.begin.question}"}]}'\ncurl ${base}/runs/ticket-7/outcome -H 'content-type: application/json' -d '{"value": true}'`;
}
