// The popup: reads what is marked in the tab that was clicked on, and shows its score. Texts become text, never HTML.

import { MOST } from "./gateway.js";
import { T } from "./words.js";

const at = (id) => document.getElementById(id);

/** What is marked in a page. It runs there, in a world of its own, and nothing of the extension goes along. */
function selected(most) {
  const text = String(getSelection());
  return { text: text.slice(0, most), length: text.length };
}

async function ask(message) {
  const found = await chrome.runtime.sendMessage(message);
  if (found.error) throw new Error(found.error);
  return found;
}

async function marked() {
  const [tab] = await chrome.tabs.query({ active: true, currentWindow: true });
  let found;
  try {
    [found] = await chrome.scripting.executeScript({ target: { tabId: tab.id }, func: selected, args: [MOST.scored] });
  } catch {
    throw new Error(T.closed);
  }
  if (!found?.result?.text.trim()) throw new Error(T.unmarked);
  return found.result;
}

function show(score, { text, length }) {
  const inside = (share) => Math.min(Math.max(share, 0), 1), { low, high, user } = score;
  for (const [name, share] of Object.entries({ low, high, at: score.mean, all: score.population })) at("range").style.setProperty(`--${name}`, inside(share));
  at("rating").textContent = T.rating(score.mean);
  at("whose").textContent = T.whose(user);
  at("interval").textContent = T.interval(low, high, user ? score.population : null);
  at("range").setAttribute("aria-label", `${T.rating(score.mean)}, ${at("interval").textContent}`);
  at("range").classList.toggle("own", user !== "");
  const reasons = score.faults.length ? [T.faults(score.faults.join(", "))] : score.reasons;
  at("reasons").replaceChildren(...(reasons.length ? reasons : [T.unreasoned]).map((reason) => Object.assign(document.createElement("li"), { textContent: reason })));
  at("cut").textContent = length > MOST.scored ? T.cut(MOST.scored, length) : "";
  at("text").textContent = text.slice(0, 600) + (length > 600 ? " …" : "");
  at("told").textContent = user ? "" : T.nobody;
  for (const [id, good] of [["good", true], ["bad", false]]) {
    at(id).disabled = !user;
    at(id).onclick = () => mark(text, user, good, at(id));
  }
  at("result").hidden = false;
}

async function mark(text, user, good, button) {
  const back = button.getAttribute("aria-pressed") === "true";
  at("told").className = "quiet";
  at("told").textContent = T.working;
  try {
    await ask({ kind: "mark", text, good: back ? null : good });
    for (const id of ["good", "bad"]) at(id).setAttribute("aria-pressed", String(at(id) === button && !back));
    at("told").textContent = back ? T.unmark(user) : T.marked(user, good) + (text.length > MOST.example ? T.markedPart(MOST.example) : "");
  } catch (error) {
    at("told").className = "bad";
    at("told").textContent = error.message;
  }
}

at("settings").onclick = () => chrome.runtime.openOptionsPage();
try {
  at("said").textContent = T.reading;
  const found = await marked();
  at("said").textContent = T.asking;
  show(await ask({ kind: "score", text: found.text }), found);
  at("said").textContent = "";
} catch (error) {
  at("said").className = "bad";
  at("said").textContent = error.message;
}
