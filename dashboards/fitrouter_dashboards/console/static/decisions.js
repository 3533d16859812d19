// The log, newest first, by filters; and one decision: why this model.

import { h, card, note, empty, name, count, ratio, signed, usd, cost, tokens, duration, percent, when, moment, choice } from "./dom.js";
import { bar, hue } from "./charts.js";
import { api, href, say } from "./main.js";
import { snippets } from "./begin.js";
import { W } from "./words.js";

const MODES = ["online", "uniform", "shadow", "sticky", "pinned", "forced"];
const STATUSES = ["ok", "failed", "partial", "refused", "rejected", "cancelled", "lost", "declined"];

export const view = {
  every: 15000,
  async read(params, state) {
    const data = await api.get("decisions", asked(params));
    follow(data, params, state);
    return data;
  },
  draw(data, { tools, params, set, session }) {
    const w = W.decisions, all = (names) => [["", w.all], ...names.map((n) => [n, n])];
    const roles = data.roles.map((role) => [role, role || w.norole]), to = (key) => (value) => set({ [key]: value || undefined, before: undefined });
    const filters = h("form", { class: "filters", role: "search", "aria-label": w.filters, onsubmit: (event) => event.preventDefault() },
      choice(w.first, w.orders, params.first ?? "", to("first"), "f-first"),
      choice(w.role, [["*", w.all], ...roles], params.role ?? "*", (role) => set({ role: role === "*" ? undefined : role, before: undefined }), "f-role"),
      choice(w.model, all(data.models), params.model ?? "", to("model"), "f-model"),
      choice(w.mode, all(MODES), params.mode ?? "", to("mode"), "f-mode"),
      choice(w.outcome, all(STATUSES), params.status ?? "", to("status"), "f-status"),
      choice(w.rating, w.rated, params.rated ?? "", to("rated"), "f-rated"),
      h("label", { class: "field" }, h("span", null, w.id), h("input", { type: "search", "data-key": "f-id", value: params.id ?? "", size: 14, maxlength: 64,
        onchange: (event) => to("id")(event.target.value.trim()) })));
    tools.replaceChildren(h("span", { class: "quiet live" }, params.before ? w.earlier : params.first ? w.worst : w.live));
    const filtered = ["role", "model", "mode", "status", "rated", "id", "run"].some((key) => params[key] !== undefined);
    if (!data.decisions.length) return [filters, card(w.none, {}, filtered
      ? [empty(w.nofit, w.widen), h("a", { href: "#/decisions" }, w.remove)]
      : empty(w.nothing, w.soon), filtered ? null : snippets())];
    return [filters, h("section", { class: "card", "aria-label": w.title }, params.first ? h("p", { class: "note" }, w.gap(data.default)) : null, table(data.decisions, session, data), h("div", { class: "pages" },
      params.before ? h("a", { href: href("decisions", { ...params, before: undefined }), "data-key": "first" }, w.newest) : h("span"),
      data.next ? h("a", { href: href("decisions", { ...params, before: data.next }), "data-key": "next" }, w.more) : h("span", { class: "quiet" }, params.first ? w.latest : w.begin)))];
  },
};

const asked = (params) => ({ ...params, prompts: "1" });
let feed = null, again = null;
const end = () => { feed?.close(); feed = null; };
document.addEventListener("visibilitychange", () => {  // a browser has few connections for all its pages
  if (document.visibilityState === "hidden") end();
  else again?.();
});

/** What is new or has changed comes by itself, into the newest page; elsewhere, and without it, the page is read again. */
function follow(data, params, state) {
  end();
  again = state.again;
  state.leave = () => { end(); again = null; };
  state.soon = undefined;
  if (params.before || params.first || !window.EventSource) return;
  const rows = new Map(data.decisions.map((d) => [d.decision_id, d])), most = Math.max(data.decisions.length, 50);
  const { first: _, before: __, ...filters } = asked(params);
  const mine = new EventSource("/console/api/feed?" + new URLSearchParams({ ...filters, after: data.position, floor: data.decisions.at(-1)?.seq ?? 0 }));
  feed = mine;
  state.soon = 600000;
  const late = () => setTimeout(() => { if (mine === feed) state.again(); }, 15000);
  mine.onmessage = (event) => {
    if (mine !== feed) return mine.close();
    for (const row of JSON.parse(event.data)) rows.set(row.decision_id, row);
    data = { ...data, decisions: [...rows.values()].sort((a, b) => b.seq - a.seq).slice(0, most) };
    state.show(data);
  };
  let lost;
  mine.onopen = () => { lost = clearTimeout(lost); state.late(""); };
  mine.onerror = () => {
    if (mine.readyState === EventSource.CLOSED) return late();
    // It connects anew by itself, as at the end of each feed.
    lost ??= setTimeout(() => { if (mine === feed && mine.readyState !== EventSource.OPEN) state.late(W.unreachable); }, 5000);
  };
  mine.addEventListener("unread", (event) => { mine.close(); state.late(JSON.parse(event.data)); late(); });
}

export function table(rows, session, data) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": W.decisions.title }, h("table", { class: "decisions" },
    h("thead", null, h("tr", null, W.decisions.columns.map((title, i) =>
      h("th", { scope: "col", class: [4, 5, 6, 7, 8].includes(i) ? "num" : null }, title)))),
    h("tbody", null, rows.map((d) => row(d, session, data)))));
}

export const person = (d, session) => h("a", { href: href("people", { user: d.user, tenant: session.admin ? d.tenant : undefined }) }, d.name ? name(d.name, 24) : h("code", null, d.user.slice(0, 12)));

function row(d, session, data) {
  const answered = d.served_by ?? d.chosen;
  const fallback = d.served_by && d.served_by !== d.chosen;
  const explored = d.likeliest && d.likeliest !== d.chosen, w = W.decisions;
  return h("tr", null,
    h("td", { class: "at" }, h("a", { href: `#/decisions/${encodeURIComponent(d.decision_id)}`, "data-key": d.decision_id }, when(d.ts))),
    h("td", { class: "person" }, d.user ? person(d, session) : h("span", { class: "quiet" }, w.nobody)),
    h("td", { class: "role" }, d.role ? name(d.role, 40) : h("span", { class: "quiet" }, w.roleless), d.prompt ? h("p", { class: "prompt", dir: "auto" }, name(d.prompt, 90)) : null),
    h("td", { class: "model" }, h("span", { class: "swatch " + hue(answered), "aria-hidden": "true" }), name(answered, 40),
      fallback ? h("span", { class: "tag" }, w.fallback(d.chosen.slice(0, 24))) : null, explored ? h("span", { class: "tag", title: w.likeliest(d.likeliest) }, w.explored) : null,
      d.mode !== "online" ? h("span", { class: "tag" }, d.mode) : null),
    h("td", { class: "num", "data-label": w.labels.probability }, percent(d.propensity), fallback ? h("div", { class: "quiet" }, w.of(d.chosen.slice(0, 16))) : null),
    h("td", { class: "num rated", "data-label": w.labels.rated }, d.votes ? [d.gap < 0 ? h("span", { class: "tag bad gap", title: w.gap(data?.default) }, signed(d.gap, 2)) : null, mark(d.rating), d.votes > 1 ? h("span", { class: "quiet", title: w.votes(d.votes) }, ` ×${d.votes}`) : null] : h("span", { class: "quiet" }, d.asked ? w.asked : "–")),
    h("td", { class: "num", "data-label": w.labels.predicted }, d.score === null ? h("span", { class: "quiet" }, "–") : [ratio(d.score), h("span", { class: "quiet" }, ` ± ${ratio(d.score_sd)}`)]),
    h("td", { class: "num cost" }, cost(d)),
    h("td", { class: "num took" }, duration(d.latency_ms)),
    h("td", { class: "status" }, d.status === "ok" ? w.ok : h("span", { class: d.status ? "tag bad" : "tag" }, d.status ?? w.running)));
}

const mark = (y) => h("span", { class: y >= 0.5 ? "good" : "bad" }, ratio(y));

/** One decision. */
export function one(id) {
  return {
    title: W.decision.title,
    every: 3000,
    read: () => api.get(`decisions/${encodeURIComponent(id)}`),
    draw(data, { tools, again, session: who }) {
      const models = data.explanation.models ?? [];
      tools.replaceChildren(h("a", { href: "#/decisions" }, W.decision.back));
      return [
        h("div", { class: "pair" }, summary(data, who), h("div", { class: "stack" }, thumbs(data, again), votes(data))),
        data.unread.content ? card(W.decision.content, {}, note(data.unread.content)) : texts(data.content),
        h("div", { class: "pair even" }, chances(data), parts(data, models)),
        excluded(data), session(data, who)].filter(Boolean);
    },
  };
}

function summary(data, session) {
  const w = W.decision, f = w.facts, execution = data.execution, sentences = data.explanation.sentences ?? [data.why];
  const fact = (title, ...value) => [h("dt", null, title), h("dd", null, ...value)];
  return card(w.words, { class: "wide" },
    h("div", { class: "words" }, sentences.map((sentence) => h("p", null, h("bdi", { dir: "ltr" }, sentence)))), note(w.before),
    h("dl", { class: "facts" },
      fact(f.id, h("code", null, data.decision_id)), fact(f.time, moment(data.ts)),
      fact(f.role, data.role ? name(data.role) : w.none), data.task ? fact(f.task, name(data.task)) : null,
      fact(f.person, data.user ? person(data, session) : w.unknown), fact(f.mode, data.mode),
      execution ? [fact(f.model, execution.served_by ? name(execution.served_by) : w.nobody), fact(f.outcome, execution.status),
        fact(f.cost, cost(execution)), fact(f.latency, duration(execution.latency_ms)),
        fact(f.tokens, tokens(execution) + (execution.estimated ? w.estimated : "")), fact(f.overhead, duration(execution.overhead_ms))] : fact(f.outcome, w.running),
      data.score?.status === "ok" ? fact(f.score, `${ratio(data.score.mean)} ± ${ratio(data.score.sd)}`) : null),
    execution && execution.attempts.length > 1 ? h("ol", { class: "attempts" }, execution.attempts.map((a) =>
      h("li", null, name(a.model), w.attempt(a.error ?? w.answered, duration(a.ms)), a.cost_usd == null ? null : `, ${cost(a)}`))) : null);
}

/** The prompt and the answer, where they are kept: text, never markup. */
function texts(content) {
  const w = W.decision;
  if (!content) return card(w.content, {}, note(w.unkept));
  const said = (title, text) => text ? h("div", { class: "said" }, h("h3", null, title), h("div", { class: "scroll text", tabindex: "0", role: "region", "aria-label": title, dir: "auto" }, text)) : null;
  return card(w.content, {}, said(w.prompt, content.prompt), said(w.answer, content.answer), said(w.calls, content.tool_calls),
    content.left_out ? note(w.leftOut(count(content.left_out))) : null);
}

function thumbs(data, again) {
  const mine = data.feedback.filter((vote) => vote.kind === "thumb" && vote.dimension === "overall").at(-1);
  const give = (value) => async () => {
    try {
      await api.post("feedback", { decision_id: data.decision_id, value });
      say(W.decision.thumbs[value][2]);
      await again();
    } catch (error) {
      say(error.message, true);
    }
  };
  const icon = (up) => h("svg:svg", { class: "icon", viewBox: "0 0 24 24", width: 20, height: 20, "aria-hidden": "true", ...(up ? {} : { transform: "rotate(180)" }) },
    h("svg:path", { d: "M2 10h4v11H2zM8 10l4.5-8c1.7 0 2.7 1.3 2.4 3L14 9h6.2c1.4 0 2.3 1.3 1.9 2.6l-2.4 7.6c-.3 1-1.2 1.8-2.3 1.8H8z" }));
  const thumb = (value, [words, told] = W.decision.thumbs[value]) => h("button", { type: "button", class: "thumb", "data-key": `thumb-${value}`, "aria-label": told,
    "aria-pressed": String(mine !== undefined && (mine.value >= 0.5) === (value === "up")), onclick: give(value) }, icon(value === "up"), words);
  return card(W.decision.good, {}, h("div", { class: "thumbs" }, thumb("up"), thumb("down")),
    note(W.decision.counts));
}

function chances(data) {
  const w = W.decision, rows = [...data.eligible].filter((row) => row.probability !== null).sort((a, b) => b.probability - a.probability);
  if (!rows.length) return card(w.probabilities, {}, empty(w.undrawn, w.given(data.mode)));
  return card(w.probabilities, {}, h("ul", { class: "chances" }, rows.map((row) =>
    h("li", { class: row.model === data.chosen ? "chosen" : null }, h("div", { class: "row-head" }, name(row.model, 50), row.model === data.chosen ? h("span", { class: "tag" }, w.drawn) : null),
      bar(row.probability, percent(row.probability), hue(row.model)),
      h("p", { class: "about" }, [w.predicted(ratio(row.fit_mean), ratio(row.fit_sd)), row.unpriced ? w.weighed(row.cost_usd && usd(row.cost_usd)) : usd(row.cost_usd), duration(1000 * row.latency_s),
        w.answers(percent(row.availability))].filter((part) => !part.includes("–")).join(" · "),
        row.twin_probability !== null && row.twin_probability !== undefined ? w.twin(percent(row.twin_probability)) : "")))));
}

function parts(data, models) {
  const w = W.decision, told = models.filter((m) => m.terms?.length).sort((a, b) => b.utility - a.utility);
  if (!told.length) return card(w.parts, {}, empty(w.noparts, data.explanation.missing || w.unweighed));
  const names = [...new Set(told.flatMap((m) => m.terms.map((t) => t.name)))];
  const value = (m, term) => m.terms.find((t) => t.name === term)?.value;
  const mean = (term) => told.reduce((sum, m) => sum + (value(m, term) ?? 0), 0) / told.length;
  const most = Math.max(...names.flatMap((term) => told.map((m) => Math.abs((value(m, term) ?? mean(term)) - mean(term)))), 0.01);
  return card(w.parts, {}, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": w.parts }, h("table", { class: "parts" },
    h("thead", null, h("tr", null, h("th", { scope: "col" }, w.part), told.map((m) => h("th", { scope: "col", class: "num" }, name(m.arm, 18))))),
    h("tbody", null, names.map((term) => h("tr", null, h("th", { scope: "row" }, w.terms[term] ?? term), told.map((m) => {
      const given = value(m, term), apart = (given ?? mean(term)) - mean(term);
      return h("td", { class: "num " + (apart > 0 ? "plus" : "minus"), css: { "--weight": `${Math.round((45 * Math.abs(apart)) / most)}%` } }, signed(given));
    })))),
    h("tfoot", null, h("tr", null, h("th", { scope: "row" }, w.utility), told.map((m) => h("td", { class: "num" }, ratio(m.utility, 3)))))),
  ), note(w.colours));
}

function excluded(data) {
  if (!data.excluded.length) return null;
  return card(W.decision.excluded, {}, h("ul", { class: "plain-list" }, data.excluded.map((e) => h("li", null, name(e.model), ": ", name(e.reason, 300)))));
}

function votes(data) {
  const w = W.decision, given = [...data.feedback, ...data.remarks];
  return card(w.feedback, {}, given.length ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": w.feedback }, h("table", null,
    h("thead", null, h("tr", null, w.columns.map((t, i) => h("th", { scope: "col", class: i === 3 ? "num" : null }, t)))),
    h("tbody", null, given.map((vote) => h("tr", null, h("td", null, when(vote.ts)), h("td", null, vote.kind), h("td", null, name(vote.dimension ?? Object.keys(vote.moved ?? {}).join(", "), 60)),
      h("td", { class: "num" }, vote.value === undefined ? "–" : w.vote(ratio(vote.value), ratio(vote.scale[0], 0), ratio(vote.scale[1], 0))),
      h("td", null, vote.asked === undefined ? "" : vote.asked ? w.yes : w.no)))))) : note(w.unrated));
}

function session(data, who) {
  const others = data.session.filter((d) => d.decision_id !== data.decision_id);
  return others.length ? card(W.decision.session, {}, table(others, who, data)) : null;
}
