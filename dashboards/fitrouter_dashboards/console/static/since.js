// What happened since one last looked: three sentences, each with a link.

import { h, card, note, count, ratio, signed, usd, money, percent, when, interval } from "./dom.js";
import { href } from "./main.js";
import { W } from "./words.js";

const KEY = "fitrouter looked", PAUSE = 900, DAY = 86400;

/** When one looked before this visit, which ends after a quarter of an hour without a look; a day ago, `first`, at first. */
export function start(now) {
  let kept = {};
  try {
    kept = JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch { /* not kept here, or not ours */ }
  if (!(kept.last <= now)) kept = { before: now - DAY, first: true };
  else if (now - kept.last > PAUSE) kept = { before: kept.last };
  const first = kept.first === true || !Number.isFinite(kept.before), since = Number.isFinite(kept.before) ? kept.before : now - DAY;
  try {
    localStorage.setItem(KEY, JSON.stringify({ before: since, last: now, first }));
  } catch { /* a browser that keeps nothing */ }
  return { since, first };
}

export function looked(more, session, first) {
  const w = W.since, title = first ? w.first : w.title;
  if (!more?.looked) return card(title, {}, more?.unread ? h("p", { class: "error", role: "alert" }, more.unread) : note(W.reading));
  const found = more.looked;
  const item = (id, text, where, words) => h("li", { "data-sentence": id }, h("span", null, text), " ", h("a", { href: where, "data-key": `since-${id}` }, words));
  return card(title, { aside: first ? null : h("span", { class: "about" }, when(found.since)) }, h("ul", { class: "sentences" },
    item("happier", happier(found), href("people"), w.people), item("cost", cost(found, more.against), href("money"), w.money),
    item("changed", changed(found, session), href(session.admin && found.changes.length ? "policy" : "decisions"), session.admin && found.changes.length ? w.policy : w.decisions)));
}

function happier({ ratings, change, roles }) {
  const w = W.since, now = ratings.since;
  if (!now) return w.unrated;
  const ends = interval(now.low, now.high);
  const said = w.rated(ratio(now.mean), ends, count(now.ratings), now.ratings);
  const trend = !change ? w.few : change.low > 0 ? w.up(signed(change.mean, 2)) : change.high < 0 ? w.down(signed(change.mean, 2)) : w.same(signed(change.low, 2), signed(change.high, 2));
  return said + trend + (roles.length ? w.role(roles[0].role.slice(0, 60), signed(roles[0].mean, 2)) : "");
}

function cost({ traffic }, against) {
  const w = W.since, { since: now, before } = traffic;
  if (!now) return w.quiet;
  const each = now.cost.each !== null && before?.cost.each ? now.cost.each / before.cost.each - 1 : null;
  const share = against?.default?.saved?.[2][1];
  return w.cost(count(now.requests), now.cost.usd === null ? "" : money(now.cost), now.requests) + w.answered(now.answered === now.requests ? null : count(now.requests - now.answered))
    + (each === null ? "." : Math.abs(each) < 0.01 ? w.alike : w.dearer(percent(Math.abs(each)), each > 0)) + (Number.isFinite(share) && now.cost.usd !== null ? w.saved(percent(Math.abs(share)), share >= 0, against.default.model.slice(0, 60)) : "");
}

function changed({ changes, models }, session) {
  const w = W.since;
  if (changes.length) return w.changes(changes.map((c) => [c.action, c.name.slice(0, 40), settings(c.settings)].filter(Boolean).join(" ")).reverse());
  const sum = (of) => Object.values(of).reduce((a, b) => a + b, 0), total = sum(models.since), then = sum(models.before);
  if (!total || !then) return w.unchanged(session.admin);
  const names = [...new Set([...Object.keys(models.since), ...Object.keys(models.before)])];
  const moved = names.map((model) => [model, (models.since[model] ?? 0) / total, (models.before[model] ?? 0) / then]);
  const [model, share, before] = moved.reduce((a, b) => (Math.abs(b[1] - b[2]) > Math.abs(a[1] - a[2]) ? b : a));
  return w.unchanged(session.admin) + (Math.abs(share - before) < 0.01 ? w.steady : w.moved(model.slice(0, 60), percent(share), percent(before)));
}

function settings(text) {
  try {
    return Object.entries(JSON.parse(text)).map(([key, value]) => `${key} ${String(value).slice(0, 60)}`).join(", ");
  } catch {
    return "";
  }
}
