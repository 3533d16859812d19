// What somebody who begins may copy: a request with this installation's address, for curl and for Python.

import { h } from "./dom.js";
import { say } from "./main.js";
import { W } from "./words.js";

export function snippets() {
  const base = new URL("v1", location.href.split("#")[0].replace(/console\/?$/, "")).href, w = W.begin;
  const key = sessionStorage.getItem("fitrouter keys") ? "YOUR_KEY" : "";
  const body = { model: "fitrouter/auto", user: "ann", messages: [{ role: "user", content: w.question }] };
  const curl = `curl ${base}/chat/completions -H 'content-type: application/json'${key ? ` -H 'authorization: Bearer ${key}'` : ""} \\\n  -d '${JSON.stringify(body)}'`;
  const python = `from openai import OpenAI\n\nclient = OpenAI(base_url="${base}", api_key="${key || "unused"}")\nanswer = client.chat.completions.create(\n    model="fitrouter/auto",\n    user="ann",\n    messages=[{"role": "user", "content": "${w.question}"}],\n)\nprint(answer.model, answer.choices[0].message.content)`;
  const block = (title, text) => h("div", { class: "snippet" }, h("div", { class: "head" }, h("h3", { class: "first" }, title),
    h("button", { type: "button", "data-key": `copy-${title}`, onclick: () => copy(text) }, w.copy)), h("pre", { tabindex: "0", role: "region", "aria-label": title }, h("code", null, text)));
  return h("div", { class: "snippets" }, block("curl", curl), block("Python", python));
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say(W.begin.copied);
  } catch (error) {
    say(W.begin.uncopied(error.message), true);
  }
}
