// A person's own page: who it is, and its three parts. Text becomes text nodes, never HTML.

import { card, count, empty, h, name, note, percent, usd } from "/console/static/dom.js";
import { T } from "./text.js";

const main = document.getElementById("main"), nav = document.getElementById("nav"), who = document.getElementById("who");
const PARTS = { quiz, report, profile };
let session = {}, press = null;

/** The token of a link leaves the address at once, so that no history and no copied address keeps it. */
let token = location.hash.length > 20 && !location.hash.startsWith("#/") ? location.hash.slice(1) : "";
/** What somebody shares stays under its address until it ends. */
const isShared = location.pathname.endsWith("/shared");
if (token && !isShared) history.replaceState(null, "", location.pathname);

async function ask(path, method = "GET", body = undefined) {
  const headers = { "x-fitrouter-csrf": session.csrf ?? "", ...(body === undefined ? {} : { "content-type": "application/json" }) };
  let answer;
  try {
    answer = await fetch("/me/api/" + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin", cache: "no-store", referrerPolicy: "no-referrer" });
  } catch {
    throw new Error(T.unreachable);
  }
  try {
    const found = await answer.json();
    if (answer.ok) return found;
    throw new Error(found.error?.message ?? T.unreadable(answer.status, ""));
  } catch (error) {
    const message = error instanceof SyntaxError ? T.unreadable(answer.status, error.message) : error.message;
    throw Object.assign(new Error(message), { status: answer.status });
  }
}

function say(text, bad = false) {
  const toast = document.getElementById("said");
  toast.textContent = text;
  toast.className = "toast shown" + (bad ? " bad" : "");
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { toast.className = "toast"; }, 6000);
}

/** Take a text away if it is still shown. */
say.end = (text) => {
  const toast = document.getElementById("said");
  if (toast.textContent === text) toast.className = "toast";
};

function show(...parts) {
  const body = h("div", { class: "body" }, parts);
  if (!body.querySelector("h1")) body.prepend(h("h1", null, session.user ? T.title[part()] : T.yours));
  main.replaceChildren(body);
}

const button = (text, onclick, props = {}) => h("button", { type: "button", ...props, onclick }, text);

/** Do what a button asks for, and say so where it takes a while; an error is said, and nothing else changes. */
const doing = (work) => async (event) => {
  event?.preventDefault();
  const held = event?.currentTarget, slow = setTimeout(() => say(T.working), 300);
  if (held) held.disabled = true;
  try {
    await work();
    say.end(T.working);
  } catch (error) {
    if (error.status === 401 && session.user) await begin();
    else say(error.message, true);
  }
  clearTimeout(slow);
  if (held) held.disabled = false;
};

async function begin() {
  if (isShared) return shared();
  session = await ask("session").catch((error) => ({ failed: error.message }));
  nav.replaceChildren();
  who.replaceChildren();
  press = null;
  if (session.failed) return show(card(session.failed, {}, button(T.again, begin, { class: "primary" })));
  if (token) return show(card(T.open, {}, h("div", { class: "start" }, h("p", null, T.opened), button(T.open, doing(redeem), { class: "primary", id: "open" }))));
  if (!session.user) return show(closed());
  who.replaceChildren(h("span", { class: "who" }, name(session.user), button(T.leave, doing(leave))));
  await draw();
}

async function redeem() {
  const given = token;
  token = "";
  await ask("redeem", "POST", { token: given }).finally(begin);
}

async function leave() {
  await ask("logout", "POST", {});
  await begin();
}

function closed() {
  const user = h("input", { id: "user", maxlength: 200, required: !session.keys, autocomplete: "off" });
  const key = session.keys ? h("input", { id: "key", type: "password", required: true, autocomplete: "off" }) : null;
  const said = h("p", { class: "error", role: "alert" });
  const enter = doing(async () => {
    said.textContent = await ask("login", "POST", { user: user.value, key: key?.value ?? "" }).then(() => "", (error) => error.message);
    if (!said.textContent) await begin();
  });
  return card(T.closed, {}, h("div", { class: "start" }, session.keys ? h("p", null, T.closedWhy) : null,
    h("form", { class: "start", onsubmit: enter }, h("label", { class: "field" }, h("span", null, session.keys ? T.nobody : T.name), user),
      key ? h("label", { class: "field" }, h("span", null, T.key), key) : null, said, h("button", { class: "primary" }, T.enter))));
}

const part = () => (location.hash.slice(2) in PARTS ? location.hash.slice(2) : "quiz");

async function draw() {
  press = null;
  main.replaceChildren(h("p", { class: "loading" }, T.reading));
  nav.replaceChildren(...Object.keys(PARTS).map((each) => h("a", { href: `#/${each}`, "aria-current": each === part() ? "page" : null }, T.title[each])));
  document.title = T.page(T.title[part()]);
  try {
    await PARTS[part()]();
  } catch (error) {
    if (error.status === 401) return begin();
    show(card(error.message, {}, button(T.again, draw, { class: "primary" })));
  }
  main.focus();
}

// --- quiz ---

async function quiz() {
  const found = await ask("profile"), w = T.quiz;
  const rows = Object.entries(w.wants).map(([key, [less, more]]) => h("fieldset", { class: "want" }, h("legend", null, w.want(less, more)),
    [[-1, less], [0, w.any], [1, more]].map(([value, text]) => h("label", { class: "choice" }, h("input", { type: "radio", name: key, value, checked: value === Math.sign(found.declared[key] ?? 0) }), text))));
  const form = h("form", { class: "start", onsubmit: doing(async () => {
    await wanted(found, new FormData(form));
    await begun();
  }) }, h("p", null, w.about), h("h2", null, w.before), note(w.beforeWhy), rows, h("button", { class: "primary", id: "start" }, w.start));
  show(card(w.head, {}, form));
}

/** Declare what was chosen before the quiz, beside all that was declared earlier. */
async function wanted(found, chosen) {
  const values = Object.fromEntries(Object.entries(found.declared).filter(([, value]) => value));
  const changed = Object.keys(T.quiz.wants).filter((key) => Number(chosen.get(key)) !== Math.sign(values[key] ?? 0));
  for (const key of changed) values[key] = Number(chosen.get(key));
  if (changed.length) await ask("profile", "PUT", { statements: [...found.topics], values });
}

/** Begin a quiz; why there is none stays on the page. */
async function begun() {
  const found = await ask("quiz", "POST", {}).catch((error) => { if (error.status === 401) throw error; return { failed: error.message }; });
  if (!found.failed) return step(found);
  show(card(T.quiz.head, {}, h("div", { class: "start" }, h("p", { class: "error", role: "alert" }, found.failed), button(T.again, doing(begun), { class: "primary" }))));
}

function step(progress) {
  press = null;
  if (!progress.question) return result(progress);
  const { number, of, prompt, first, second } = progress.question, w = T.quiz;
  const choose = (choice) => doing(async () => step(await ask(`quiz/${encodeURIComponent(progress.id)}`, "POST", { question: number, choice })));
  const keys = { 1: "first", 2: "second", 0: "same", n: "bad", s: "skip", ...(number > 1 ? { u: "undo" } : {}) };
  let busy = false;
  press = (key) => {
    if (!(key in keys) || busy) return;
    busy = true;
    choose(keys[key])().finally(() => { busy = false; });
  };
  const answer = (title, text, n, choice) => h("section", { class: "answer", "aria-label": title }, h("div", { class: "text", dir: "auto", tabindex: "0", role: "group", "aria-label": w.text(n) }, text),
    button(w.prefer(n), choose(choice), { class: "primary", "data-choice": choice }));
  show(h("section", { "aria-label": w.head }, h("div", { class: "head" }, h("h1", null, w.head), h("span", { class: "about" }, w.number(number, of))),
    h("div", { class: "progress", role: "progressbar", "aria-label": w.number(number, of), "aria-valuemin": "0", "aria-valuemax": of, "aria-valuenow": number - 1 }, h("span", { css: { "--share": (number - 1) / of } })),
    h("p", { class: "question", dir: "auto" }, prompt),
    h("div", { class: "answers" }, answer(w.first, first, 1, "first"), answer(w.second, second, 2, "second")),
    h("div", { class: "other" }, [["same", w.same], ["bad", w.bad], ["skip", w.skip], ...(number > 1 ? [["undo", w.undo]] : []), ["stop", w.stop]].map(([choice, text]) => button(text, choose(choice), { "data-choice": choice })),
      h("span", { class: "about" }, w.keys))));
}

/** An interval and its middle, on a scale from 0 to 1. */
function range(at, low, high) {
  const inside = (value) => Math.min(Math.max(value, 0), 1);
  return h("div", { class: "range", role: "img", "aria-label": T.range(percent(at), percent(inside(low)), percent(inside(high))) },
    h("span", { class: "span", css: { "--low": inside(low), "--high": inside(high) } }), h("span", { class: "dot", css: { "--at": inside(at) } }));
}

const rank = (rows) => h("ol", { class: "rank" }, rows.map(([model, about, bar]) => h("li", null, h("div", { class: "head" }, h("strong", null, name(model)), h("span", { class: "about" }, about)), bar)));

function result(progress) {
  const found = progress.result, w = T.quiz, mean = found.models.reduce((sum, model) => sum + model.fit, 0) / found.models.length;
  show(card(w.done, {}, progress.sentences.map((text) => h("p", null, text)), found.ended in w.ended ? note(w.ended[found.ended]) : null, h("p", { class: "acts" }, h("a", { class: "button primary", href: "#/report" }, w.report),
    button(w.once, doing(async () => step(await ask("quiz", "POST", { again: true })))))),
  card(w.models, {}, rank(found.models.map((model) => [model.model, `${w.fit(percent(model.fit))}, ${w.best(percent(model.best))}`, range(model.fit, mean + model.low, mean + model.high)]))));
}

// --- report ---

async function report() {
  const found = await ask("report"), w = T.report, board = found.board;
  if (!board.labels) return show(card(w.head, {}, empty(w.none, h("a", { href: "#/quiz" }, T.quiz.start))));
  const [first] = board.models, same = board.first === board.population_first;
  const said = same ? w.same(first.model, percent(first.best)) : board.claimed ? w.claimed(first.model, board.population_first, percent(board.beats)) : w.may(first.model, board.population_first, percent(board.beats));
  show(card(w.head, { aside: button(w.print, () => print(), { class: "print" }) }, h("p", null, said), note(w.labels(count(board.labels))), board.unranked.length ? note(w.unranked(board.unranked.join(", "))) : null),
    ranking(board, w), list(w.tastes, liked(found.likes)), list(w.worth, gained(found.worth)), list(w.change, found.change), await sharing());
}

const list = (title, lines) => (lines.length ? card(title, {}, h("ul", { class: "list" }, lines.map((line) => h("li", null, line)))) : null);
const liked = (likes) => likes.map((like) => T.report.like(like.words, percent(like.sure)));
const gained = (worth) => (worth ? [T.report.gain(percent(worth.satisfaction), percent(worth.low), percent(worth.high), worth.usd_per_1000 === null ? null : usd(worth.usd_per_1000))] : []);

function ranking(board, w) {
  const mean = board.models.reduce((sum, one) => sum + one.rating, 0) / board.models.length;
  // What is common to all models cancels in an interval of the lead over their mean.
  const ends = (one) => (one.lead_low === null ? [one.low, one.high] : [mean + one.lead_low, mean + one.lead_high]);
  return card(T.report.match, {}, rank(board.models.map((one) => [one.model, w.rating(percent(one.rating), percent(one.best)) + (T.report.basis[one.basis] ?? ""), range(one.rating, ...ends(one))])), note(w.means));
}

// --- what is shared of it ---

async function sharing() {
  const w = T.share, { shares } = await ask("shares"), day = (at) => new Date(1000 * at).toLocaleDateString();
  const boxes = Object.entries(w.sections).map(([value, text]) => h("label", { class: "choice" }, h("input", { type: "checkbox", value }), text));
  const days = h("select", { id: "days" }, [1, 7, 30, 90].map((n) => h("option", { value: n, selected: n === 7 }, w.days(n))));
  const domain = h("select", { id: "domain" }, h("option", { value: "" }, w.any), session.domains.map((one) => h("option", { value: one }, one)));
  const limit = (id, least, step) => h("input", { id, type: "number", min: least, step });
  const price = limit("price", 0, "any"), context = limit("context", 1, 1);
  const field = (text, input) => h("label", { class: "field" }, h("span", null, text), input);
  const made = h("div", { id: "made", role: "status" });
  const share = doing(async () => {
    const sections = boxes.map((box) => box.querySelector("input")).filter((box) => box.checked).map((box) => box.value);
    if (!sections.length) return say(w.none, true);
    const { url } = await ask("shares", "POST", { sections, days: Number(days.value), domain: domain.value || null, max_price: price.value ? Number(price.value) : null, min_context: context.value ? Number(context.value) : null });
    made.replaceChildren(h("p", null, w.made), h("p", null, h("a", { href: url }, url)));
  });
  const end = (id) => doing(async () => {
    await ask(`shares/${id}`, "DELETE");
    await draw();
  });
  return card(w.head, {}, h("form", { class: "share", onsubmit: share }, h("p", null, w.about), h("fieldset", null, h("legend", null, w.what), boxes),
    h("fieldset", null, h("legend", null, w.only), field(w.domain, domain), field(w.price, price), field(w.context, context)),
    field(w.until, days), h("p", { class: "acts" }, h("button", { class: "primary" }, w.go))), made,
  shares.length ? h("ul", { class: "list" }, shares.map((one) => h("li", null, w.one(one.sections.map((part) => w.sections[part]).join(", "), day(one.expires)), " ", button(w.end, end(one.id), { class: "small" })))) : null);
}

async function shared() {
  const w = T.share, found = await ask("shared", "POST", { token }).catch((error) => ({ failed: error.message }));
  if (found.failed) return show(h("h1", null, w.title("")), card(found.failed, {}));
  const title = w.title(found.name ?? "", found.role);
  document.title = T.page(title);
  show(h("h1", null, title), note(w.ends(new Date(1000 * found.expires).toLocaleDateString(), found.role)), found.filters ? note(w.filters(found.filters)) : null, found.ranking ? restricted(found.ranking) : null,
    found.ranking ? ranking(found.ranking, w) : null,
    list(w.sections.tastes, found.tastes ? liked(found.tastes) : []), list(w.sections.worth, found.worth ? gained(found.worth) : []));
}

/** Which models a ranking leaves out and why, and of how many prompts it is. */
function restricted(board) {
  const w = T.share, left = Object.entries(board.left_out).map(([model, why]) => [name(model), w.left(why)]);
  return [board.searched ? note(w.of(count(board.tasks || board.prompts), count(board.searched))) : null, list(w.others, left)];
}

// --- profile ---

async function profile() {
  const found = await ask("profile"), w = T.profile;
  const text = h("textarea", { id: "statements", rows: 5, maxlength: 8000, value: [...found.topics].join("\n") });
  const values = Object.fromEntries(Object.entries(found.declared).filter(([, value]) => value));
  const forget = (key) => doing(async () => {
    delete values[key];
    await ask("profile", "PUT", { statements: [...found.topics], values });
    await profile();
  });
  const save = doing(async () => {
    const statements = text.value.split("\n").map((line) => line.trim()).filter(Boolean);
    const said = await ask("profile", "PUT", { statements });
    const kept = { ...values, ...said.declared };  // earlier values stay, unless what was written now moves them
    if (Object.keys(kept).length > Object.keys(said.declared).length) await ask("profile", "PUT", { statements, values: kept });
    await profile();
    const moved = Object.entries(said.moved).map(([line, values]) => `${line}: ${Object.entries(values).map(words).join("; ")}`);
    document.getElementById("heard").replaceChildren(...[[w.moved, moved], [w.topics, said.topics], [w.unclear, said.not_understood.map((line) => (said.reasons[line] ? `${line} (${said.reasons[line]})` : line))]]
      .filter(([, lines]) => lines.length).map(([title, lines]) => h("div", null, h("h3", null, title), h("ul", { class: "list" }, lines.map((line) => h("li", null, line))))));
    say(w.saved);
  });
  const listed = (title, rows) => card(title, {}, rows.length ? h("ul", { class: "list" }, rows.map((row) => h("li", null, row))) : note(w.nothing));
  const learnt = Object.entries(found.learnt).filter(([, one]) => Math.abs(one.mean) > one.sd).sort(([, a], [, b]) => Math.abs(b.mean) - Math.abs(a.mean)).map(([key, one]) => w.likes(words([key, one.mean])));
  const given = (kinds) => Object.entries(kinds).map(([kind, each]) => `${kind}: ${count(each.number)}`);
  show(card(w.head, {}, h("form", { class: "try", onsubmit: save }, h("label", { for: "statements" }, w.about), text, h("p", { class: "acts" }, h("button", { class: "primary" }, w.save))), h("div", { id: "heard", role: "status" })),
    listed(w.values, Object.entries(values).map((each) => [w.wants(words(each)), " ", button(w.forget, forget(each[0]), { class: "small", "aria-label": `${w.forget}: ${words(each)}` })])),
    listed(w.learnt, learnt),
    listed(w.said, given(found.said)),
    listed(w.did, given(found.did)),
    h("p", { class: "acts" }, button(w.export, doing(() => download(found))), button(w.erase, () => erase(), { class: "danger", id: "erase" })));
}

/** A feature of answers and its sign, in words. */
const words = ([key, value]) => (session.features[key] ? session.features[key][value > 0 ? 0 : 1] : `${key} ${value > 0 ? "+" : "−"}`);

function download(found) {
  const link = h("a", { href: URL.createObjectURL(new Blob([JSON.stringify(found, null, 2)], { type: "application/json" })), download: "fitrouter-profile.json" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function erase() {
  const w = T.profile, typed = h("input", { id: "confirm", maxlength: 200, autocomplete: "off" });
  const go = doing(async () => {
    if (typed.value.trim() !== session.user) return say(w.confirm, true);
    await ask("profile", "DELETE");
    session = {};
    nav.replaceChildren();
    who.replaceChildren();
    show(card(w.erased, {}));
  });
  show(card(w.erase, {}, h("form", { class: "start", onsubmit: go }, h("label", { class: "field" }, h("span", null, w.confirm), typed),
    h("p", { class: "acts" }, h("button", { class: "danger" }, w.erase), button(w.cancel, doing(profile))))));
  typed.focus();
}

addEventListener("hashchange", () => { if (session.user) draw(); });
addEventListener("keydown", (event) => {
  if (press && !event.ctrlKey && !event.metaKey && !event.altKey && !/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) press(event.key);
});
begin();
