// A role or a person: how the models fit, what was said, done and declared, and what would be chosen now.

import { h, card, note, empty, name, count, ratio, signed, usd, duration, percent, choice } from "./dom.js";
import { sankey, span, hue, learnColours } from "./charts.js";
import { api, href } from "./main.js";

const KINDS = { thumb: "thumbs", rating: "ratings", pair: "comparisons", accept: "accepted unchanged", copy: "copied in part", edit: "edited", dwell: "reading time", regenerate: "asked for another answer" };
const words = (text) => text.replaceAll("_", " ");

export const people = {
  title: "People and roles",
  every: 10000,
  async read(params, state) {
    if (params.role === undefined && params.user === undefined) {
      const first = await api.get("people"), shown = first.roles[0] ?? first.persons[0];
      return shown ? api.get("people", { tenant: state.session.admin ? shown.tenant : undefined, role: shown.role, user: shown.user }) : first;
    }
    return api.get("people", { tenant: params.tenant, role: params.role, user: params.user });
  },
  draw(data, { tools, session }) {
    tools.replaceChildren(h("span", { class: "quiet" }, data.shown?.user ? `as the router knows this person now` : ""));
    const shown = data.shown, several = new Set(data.roles.map((r) => r.tenant)).size > 1;
    const go = (params) => { location.hash = href("people", params); };
    const options = data.roles.map((r, i) => [String(i), several ? `${r.role} (${r.tenant})` : r.role]);
    const at = data.roles.findIndex((r) => !shown?.user && r.role === shown?.role && r.tenant === shown?.tenant);
    const whom = data.persons.findIndex((p) => p.user === shown?.user && p.tenant === shown?.tenant);
    const field = h("input", { type: "search", "data-key": "person", value: shown?.user ?? "", maxlength: 512, size: 22, placeholder: "name in your application" });
    const filters = h("form", { class: "filters", role: "search", "aria-label": "Whom to show", onsubmit: (event) => {
      event.preventDefault();
      if (field.value.trim()) go({ user: field.value.trim(), tenant: session.admin ? shown?.tenant : undefined });
    } }, choice("Role", at < 0 ? [["", shown?.role || "choose one"], ...options] : options, at < 0 ? "" : String(at), (i) => { if (i !== "") go({ role: data.roles[i].role, tenant: session.admin ? data.roles[i].tenant : undefined }); }, "f-people-role"),
    data.persons.length ? choice("Person", [["", "choose one"], ...data.persons.map((p, i) => [String(i), `${p.user.slice(0, 40)}: ${count(p.requests)} requests, ${count(p.votes)} votes`])], whom < 0 ? "" : String(whom),
      (i) => { if (i !== "") go({ user: data.persons[i].user, tenant: session.admin ? data.persons[i].tenant : undefined }); }, "f-people-person") : null,
    data.people ? h("label", { class: "field" }, h("span", null, "or a person"), h("span", { class: "with" }, field, h("button", null, "Show"))) : null);
    if (!shown) return [filters, card("Nobody yet", {}, empty("No request has named a role or a user.", "Name one in the request’s ", h("code", null, "metadata.role"), data.people ? ", or show a person by name." : "."))];
    if (data.report) learnColours(data.report.board.models.map((m) => m.model));
    return [filters, h("div", { class: "pair" }, fit(data), lived(data)), h("div", { class: "pair" }, again(data), told(data)), data.people ? lowest(data, session) : null].filter(Boolean);
  },
};

function fit(data) {
  const title = "How well each model fits";
  if (!data.report) return card(title, {}, empty("Not known yet.", data.missing ?? "It is estimated once people rate answers."));
  const { board, models } = data.report, whom = board.user ? "this person" : "this role";
  const dims = [...new Set(models.flatMap((m) => Object.keys(m.dimensions)))].filter((d) => d !== "overall");
  const of = new Map(models.map((m) => [m.model, m]));
  const usage = (m) => (m?.usage ? `${m.usage.cost_usd === null ? "price not known" : usd(m.usage.cost_usd)} · ${duration(1000 * m.usage.latency_s)}` : "");
  return card(title, { class: "wide" },
    note(`Expected rating by ${whom}, 0 to 1, with its 80 % interval; the tick is everybody’s.`),
    h("ul", { class: "chances fits" }, board.models.map((m) => h("li", null, h("div", { class: "row-head split" }, h("span", null, h("span", { class: "swatch " + hue(m.model), "aria-hidden": "true" }), name(m.model, 40), " ", h("strong", null, ratio(m.rating))),
      h("span", { class: "about" }, `${percent(m.best)} sure that it is the best`, usage(of.get(m.model)) ? ` · ${usage(of.get(m.model))}` : "")),
    span({ low: m.low, mid: m.rating, high: m.high, mark: m.population, cls: hue(m.model), label: `${m.model}: ${ratio(m.rating)}, between ${ratio(m.low)} and ${ratio(m.high)}; everybody ${ratio(m.population)}` })))),
    h("div", { class: "words" }, board.sentences.map((s) => h("p", null, h("bdi", null, s)))),
    dims.length ? [h("h3", null, "By dimension"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Fit by dimension" }, h("table", { class: "parts" },
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "Model"), ["overall", ...dims].map((d) => h("th", { scope: "col", class: "num" }, name(words(d), 24))))),
      h("tbody", null, board.models.map((m) => h("tr", null, h("th", { scope: "row" }, name(m.model, 30)), ["overall", ...dims].map((d) => cell(of.get(m.model)?.dimensions[d])))))))
      , note("Green: above everybody’s expected rating, red: below it. ± is one standard deviation.")] : null);
}

function lowest(data, session) {
  return card("Least satisfied people", {}, note("Mean rating below 0.5, of at least three answers rated in the last 7 days; the lowest first."),
    data.lowest.length ? h("ul", { class: "plain-list" }, data.lowest.map((p) => h("li", null, h("a", { href: href("people", { user: p.subject, tenant: session.admin ? p.tenant : undefined }) }, h("code", null, p.subject.slice(0, 12))),
      ` ${ratio(p.mean)}`, h("span", { class: "about" }, ` of ${count(p.ratings)} rated answers`)))) : note("Nobody."));
}

function cell(d) {
  if (!d) return h("td", { class: "num quiet" }, "–");
  const apart = d.mean - d.population;
  return h("td", { class: "num " + (apart > 0 ? "plus" : "minus"), title: `everybody ${ratio(d.population)}`, css: { "--weight": `${Math.round(Math.min(45, 300 * Math.abs(apart)))}%` } },
    ratio(d.mean), h("span", { class: "quiet" }, ` ± ${ratio(d.sd)}`));
}

function again(data) {
  const title = "Chosen in the last week, and what would lead now";
  const flows = data.again.map((f) => ({ from: f.chosen, to: f.now, n: f.requests }));
  const total = flows.reduce((sum, f) => sum + f.n, 0);
  if (!total) return card(title, {}, empty("Nothing to compare.", "No choice of the last 7 days has its predictions in the log."));
  const order = (key) => [...new Set(flows.map((f) => f[key]))].sort((a, b) => sum(flows, key, b) - sum(flows, key, a));
  learnColours(order("to"));
  const same = flows.filter((f) => f.from === f.to).reduce((n, f) => n + f.n, 0);
  return card(title, { class: "wide" },
    note(`Of the latest ${count(total)} prompts, ${count(same)} (${percent(same / total)}) went to the model that the estimates of now put first. Exploration and the day’s prices account for some of the rest.`),
    sankey({ label: title, flows, left: order("from"), right: order("to"), leftName: (m) => m, rightName: (m) => m, onpick: (_, model) => { location.hash = href("decisions", { model }); } }));
}

const sum = (flows, key, value) => flows.filter((f) => f[key] === value).reduce((n, f) => n + f.n, 0);

function lived(data) {
  const { board, likes, worth, change } = data.report ?? {};
  return card(data.shown.user ? "This person" : "This role", {},
    h("dl", { class: "facts one first" }, h("dt", null, data.shown.user ? "Person" : "Role"), h("dd", null, name(data.shown.user ?? data.shown.role, 60)),
      data.shown.subject ? [h("dt", null, "In the log"), h("dd", null, h("code", null, data.shown.subject.slice(0, 12)))] : null,
      h("dt", null, "Requests of the last 7 days"), h("dd", null, count(data.requests)),
      board ? [h("dt", null, "Ratings that count"), h("dd", null, count(board.labels), board.people === null ? "" : ` by ${count(board.people)} people`)] : null,
      worth ? [h("dt", null, "Own first model over everybody’s"), h("dd", null, `${signed(worth.satisfaction)} rating (${signed(worth.low)} to ${signed(worth.high)})`)] : null),
    likes?.length ? [h("h3", null, "Likes a model that"), h("ul", { class: "plain-list" }, likes.map((l) => h("li", null, name(l.words, 120), h("span", { class: "about" }, ` ${percent(l.sure)} sure`))))] : null,
    change?.length ? [h("h3", null, "What would change the order"), change.map((s) => h("p", { class: "about" }, h("bdi", null, s)))] : null);
}

function told(data) {
  const votes = (list) => h("ul", { class: "plain-list" }, list.map((v) => h("li", null, `${count(v.votes)} ${KINDS[v.kind] ?? v.kind}`, v.dimension === "overall" ? "" : [" of ", name(words(v.dimension), 40)],
    h("span", { class: "about" }, v.mean === null ? "" : `, mean ${ratio(v.mean)} of 0 to 1`))));
  const asks = (n, v) => h("li", null, v > 0 ? "more " : "less ", name(words(n), 40), h("span", { class: "about" }, ` (${signed(v, 2)})`));
  const values = Object.entries(data.declared.values);
  return card("Said, done and declared", {},
    h("h3", { class: "first" }, "Said"), data.said.length || data.comments.length ? [votes(data.said), data.comments.length ? h("ul", { class: "plain-list" }, data.comments.map((c) => h("li", null, `${count(c.comments)} comments ask for ${c.moved > 0 ? "more" : "less"} `, name(words(c.dimension), 40)))) : null] : note("No ratings and no comments."),
    h("h3", null, "Done"), data.done.length ? votes(data.done) : note("No answer was edited, copied, accepted or asked for again, as far as the application tells."),
    h("h3", null, "Declared"), values.length || data.declared.topics.length ? h("ul", { class: "plain-list" }, values.map(([n, v]) => asks(n, v)), data.declared.topics.map((t) => h("li", null, name(t, 200))))
      : note(data.shown.user ? "No preferences." : "Preferences are of people: show one."));
}
