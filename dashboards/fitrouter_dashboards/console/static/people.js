// Who is least satisfied; of a role or a person how the models fit, what was said, done and declared, what would lead now.

import { h, card, note, empty, name, count, ratio, signed, usd, duration, percent, choice, interval } from "./dom.js";
import { sankey, span, hue } from "./charts.js";
import { api, href } from "./main.js";
import { W } from "./words.js";

const words = (text) => text.replaceAll("_", " ");

export const view = {
  title: W.people.title,
  every: 10000,
  async read(params, state) {
    if (params.role !== undefined || params.user !== undefined) return api.get("people", { tenant: params.tenant, role: params.role, user: params.user });
    const found = await api.get("people", { order: params.order, skip: params.skip }), first = found.roles[0];
    state.soon = found.listed?.some((p) => p.waits) ? 1500 : undefined;
    if (found.listed || !first) return found;
    return api.get("people", { tenant: state.session.admin ? first.tenant : undefined, role: first.role });  // a key that may not see people
  },
  draw(data, { tools, session, params, set }) {
    const shown = data.shown, several = new Set(data.roles.map((r) => r.tenant)).size > 1;
    tools.replaceChildren(shown && data.people ? h("a", { href: "#/people" }, W.people.back) : h("span", { class: "quiet" }, shown ? "" : W.people.span));
    const go = (where) => { location.hash = href("people", where); };
    const options = data.roles.map((r, i) => [String(i), several ? `${r.role} (${r.tenant})` : r.role]);
    const at = data.roles.findIndex((r) => shown && !shown.user && r.role === shown.role && r.tenant === shown.tenant);
    const field = h("input", { type: "search", "data-key": "person", value: shown?.user ?? "", maxlength: 512, size: 22, placeholder: W.people.hint });
    const filters = h("form", { class: "filters", role: "search", "aria-label": W.people.whom, onsubmit: (event) => {
      event.preventDefault();
      if (field.value.trim()) go({ user: field.value.trim(), tenant: session.admin ? shown?.tenant : undefined });
    } }, data.listed ? choice(W.people.first, W.people.orders, params.order ?? "", (order) => set({ order: order || undefined, skip: undefined }), "f-order") : null,
    choice(W.people.role, at < 0 ? [["", shown?.role || W.people.choose], ...options] : options, at < 0 ? "" : String(at), (i) => { if (i !== "") go({ role: data.roles[i].role, tenant: session.admin ? data.roles[i].tenant : undefined }); }, "f-people-role"),
    data.people ? h("label", { class: "field" }, h("span", null, W.people.person), h("span", { class: "with" }, field, h("button", null, W.show))) : null);
    if (data.listed) return [filters, list(data, params, session)];
    if (!shown) return [filters, card(W.people.nobody, {}, empty(W.people.unnamed, data.people ? W.people.name : W.people.nameRole))];
    return [filters, h("div", { class: "pair" }, fit(data), lived(data)), h("div", { class: "pair" }, again(data), told(data))];
  },
};

/** People with what they rate, what they have, and what they would have with the default model. */
function list({ listed, raters, unhappy, next, default: standard }, params, session) {
  const w = W.people;
  if (!listed.length) return card(w.nobody, {}, empty(params.order ? w.unnamed : w.unrated, w.name), params.order ? null : h("p", { class: "acts" }, h("a", { href: href("people", { order: "requests" }) }, w.all)));
  const expected = (p, key) => (p.waits ? h("span", { class: "quiet" }, w.estimating) : p[key] ? [ratio(p[key].mean), h("span", { class: "quiet" }, ` (${interval(p[key].low, p[key].high)})`)] : h("span", { class: "quiet" }, "–"));
  return h("section", { class: "card", "aria-label": w.title }, raters === null ? null : note(w.summary(unhappy, raters)),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": w.title }, h("table", { class: "persons" },
      h("thead", null, h("tr", null, w.columns(standard?.slice(0, 30)).map((title, i) => h("th", { scope: "col", class: [2, 3, 4, 6, 7].includes(i) ? "num" : null }, title)))),
      h("tbody", null, listed.map((p) => h("tr", null,
        h("th", { scope: "row" }, h("a", { href: href("people", { user: p.user ?? p.subject, tenant: session.admin ? p.tenant : undefined }), "data-key": p.subject }, p.user ? name(p.user, 40) : h("code", null, p.subject.slice(0, 12))),
          p.rating?.high < 0.5 ? h("span", { class: "tag bad" }, w.unhappy) : null),
        h("td", null, p.role ? name(p.role, 40) : h("span", { class: "quiet" }, w.norole)),
        h("td", { class: "num", "data-label": w.labels[0] }, count(p.requests)), h("td", { class: "num", "data-label": w.labels[1] }, count(p.rating?.ratings ?? 0)),
        h("td", { class: "num", "data-label": w.labels[2] }, p.rating ? [h("strong", { class: p.rating.high < 0.5 ? "bad" : null }, ratio(p.rating.mean)), h("span", { class: "quiet" }, ` (${interval(p.rating.low, p.rating.high)})`)] : "–"),
        h("td", null, p.model ? [h("span", { class: "swatch " + hue(p.model), "aria-hidden": "true" }), name(p.model, 40)] : "–"),
        h("td", { class: "num", "data-label": w.labels[3] }, expected(p, "with_model")), h("td", { class: "num", "data-label": w.labels[4] }, expected(p, "with_default"))))))),
    h("p", { class: "note" }, w.legend),
    h("div", { class: "pages" }, Number(params.skip) > 0 ? h("a", { href: href("people", { ...params, skip: undefined }), "data-key": "first" }, w.start) : h("span"),
      next ? h("a", { href: href("people", { ...params, skip: next }), "data-key": "next" }, w.next) : h("span")));
}

function fit(data) {
  const w = W.people;
  if (!data.report) return card(w.fit, {}, empty(W.unknown, data.missing ?? w.unfit));
  const { board, models } = data.report;
  const dims = [...new Set(models.flatMap((m) => Object.keys(m.dimensions)))].filter((d) => d !== "overall");
  const of = new Map(models.map((m) => [m.model, m]));
  const usage = (m) => (m?.usage ? `${m.usage.cost_usd === null ? W.units.unpriced : usd(m.usage.cost_usd)} · ${duration(1000 * m.usage.latency_s)}` : "");
  return card(w.fit, { class: "wide" },
    note(w.expected(board.user)),
    h("ul", { class: "chances fits" }, board.models.map((m) => h("li", null, h("div", { class: "row-head split" }, h("span", null, h("span", { class: "swatch " + hue(m.model), "aria-hidden": "true" }), name(m.model, 40), " ", h("strong", null, ratio(m.rating))),
      h("span", { class: "about" }, w.best(percent(m.best)), w.basis[m.basis] ?? "", usage(of.get(m.model)) ? ` · ${usage(of.get(m.model))}` : "")),
    span({ low: m.low, mid: m.rating, high: m.high, mark: m.population, cls: hue(m.model), label: `${W.between(m.model, ratio(m.rating), ratio(m.low), ratio(m.high))}; ${w.everybody(ratio(m.population))}` })))),
    h("div", { class: "words" }, board.sentences.map((s) => h("p", null, h("bdi", { dir: "ltr" }, s)))),
    dims.length ? [h("h3", null, w.by), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": w.dimensions }, h("table", { class: "parts" },
      h("thead", null, h("tr", null, h("th", { scope: "col" }, w.model), ["overall", ...dims].map((d) => h("th", { scope: "col", class: "num" }, name(words(d), 24))))),
      h("tbody", null, board.models.map((m) => h("tr", null, h("th", { scope: "row" }, name(m.model, 30)), ["overall", ...dims].map((d) => cell(of.get(m.model)?.dimensions[d])))))))
      , note(w.colours)] : null);
}

function cell(d) {
  if (!d) return h("td", { class: "num quiet" }, "–");
  const apart = d.mean - d.population;
  return h("td", { class: "num " + (apart > 0 ? "plus" : "minus"), title: W.people.everybody(ratio(d.population)), css: { "--weight": `${Math.round(Math.min(45, 300 * Math.abs(apart)))}%` } },
    ratio(d.mean), h("span", { class: "quiet" }, ` ± ${ratio(d.sd)}`));
}

function again(data) {
  const w = W.people, flows = data.again.map((f) => ({ from: f.served, to: f.now, n: f.requests, fallback: f.fallback }));
  const total = sum(flows);
  if (!total) return card(w.again, {}, empty(w.unlike, w.unpredicted));
  const order = (key) => [...new Set(flows.map((f) => f[key]))].sort((a, b) => sum(flows, key, b) - sum(flows, key, a));
  const same = sum(flows.filter((f) => f.from === f.to)), fallbacks = sum(flows.filter((f) => f.fallback));
  return card(w.again, { class: "wide" },
    note(w.same(count(total), count(same), percent(same / total)), fallbacks ? w.fallbacks(count(fallbacks)) : ""),
    sankey({ label: w.again, flows, left: order("from"), right: order("to"), leftName: (m) => m, rightName: (m) => m, onpick: (_, model) => { location.hash = href("decisions", { model }); } }));
}

const sum = (flows, key, value) => flows.filter((f) => !key || f[key] === value).reduce((n, f) => n + f.n, 0);

function lived(data) {
  const w = W.people, { board, likes, worth, change } = data.report ?? {};
  return card(data.shown.user ? w.thisPerson : w.thisRole, {},
    h("dl", { class: "facts one first" }, h("dt", null, data.shown.user ? w.person : w.role), h("dd", null, name(data.shown.user ?? data.shown.role, 60)),
      data.shown.subject ? [h("dt", null, w.log), h("dd", null, h("code", null, data.shown.subject.slice(0, 12)))] : null,
      data.rating ? [h("dt", null, w.rating), h("dd", { "data-figure": "rating" }, w.rated(ratio(data.rating.mean), interval(data.rating.low, data.rating.high), data.rating))] : null,
      h("dt", null, w.requests), h("dd", null, count(data.requests)),
      board ? [h("dt", null, w.count), h("dd", null, count(board.labels), board.people === null ? "" : w.counted(count(board.people)))] : null,
      worth ? [h("dt", null, w.worth), h("dd", null, w.gain(signed(worth.satisfaction), signed(worth.low), signed(worth.high)))] : null),
    likes?.length ? [h("h3", null, w.likes), h("ul", { class: "plain-list" }, likes.map((l) => h("li", null, name(l.words, 120), h("span", { class: "about" }, w.sure(percent(l.sure))))))] : null,
    change?.length ? [h("h3", null, w.change), change.map((s) => h("p", { class: "about" }, h("bdi", { dir: "ltr" }, s)))] : null);
}

function told(data) {
  const w = W.people, votes = (list) => h("ul", { class: "plain-list" }, list.map((v) => h("li", null, `${count(v.votes)} ${w.kinds(v.votes)[v.kind] ?? v.kind}`, v.dimension === "overall" ? "" : [w.of, name(words(v.dimension), 40)],
    h("span", { class: "about" }, v.mean === null ? "" : w.mean(ratio(v.mean))))));
  const asks = (n, v) => h("li", null, w.wish(v > 0), name(words(n), 40), h("span", { class: "about" }, ` (${signed(v, 2)})`));
  const values = Object.entries(data.declared.values);
  return card(w.told, {},
    h("h3", { class: "first" }, w.said), data.said.length || data.comments.length ? [votes(data.said), data.comments.length ? h("ul", { class: "plain-list" }, data.comments.map((c) => h("li", null, w.comments(count(c.comments), c.moved > 0), name(words(c.dimension), 40)))) : null] : note(w.unsaid),
    h("h3", null, w.done), data.done.length ? votes(data.done) : note(w.undone),
    h("h3", null, w.declared), values.length || data.declared.topics.length ? h("ul", { class: "plain-list" }, values.map(([n, v]) => asks(n, v)), data.declared.topics.map((t) => h("li", null, name(t, 200), h("span", { class: "about" }, w.topic))))
      : note(data.shown.user ? w.undeclared : w.personal));
}
