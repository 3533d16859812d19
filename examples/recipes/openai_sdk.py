"""The OpenAI SDK: whole, streamed, with a tool, and what the answer was worth.

FITROUTER=http://127.0.0.1:8484 python examples/recipes/openai_sdk.py
"""

from __future__ import annotations

import json
import os

from openai import OpenAI

GATEWAY = os.environ["FITROUTER"]
client = OpenAI(base_url=f"{GATEWAY}/v1", api_key=os.environ.get("FITROUTER_API_KEY", "unused"))
# Who asks, and in what role. Headers do the same for all requests: X-Fitrouter-User, -Role, -Task, -Session.
who = {"user": "ann", "metadata": {"role": "tax analyst"}}

# Whole. The body says under `fitrouter` what was decided.
question = [{"role": "user", "content": "How are dividends taxed?"}]
answer = client.chat.completions.create(model="fitrouter/auto", messages=question, **who)
about = answer.model_extra["fitrouter"]
print("whole:", answer.choices[0].message.content, "|", about["model"], about["propensity"])

# Streamed. The first chunk says it.
stream = client.chat.completions.create(model="fitrouter/auto", messages=question, stream=True, **who)
text = ""
for chunk in stream:
    streamed = (chunk.model_extra or {}).get("fitrouter") or {}
    if "decision_id" in streamed:
        about = streamed
    text += chunk.choices[0].delta.content or "" if chunk.choices else ""
print("streamed:", text, "|", about["model"])

# A tool: the turn stays on its model until the tool has answered.
rate = {"name": "dividend_rate", "parameters": {"type": "object", "properties": {"country": {"type": "string"}}}}
tools = [{"type": "function", "function": rate}]
asked = client.chat.completions.create(model="fitrouter/auto", messages=question, tools=tools, **who)
call = asked.choices[0].message.tool_calls[0]
told = [
    *question,
    asked.choices[0].message.model_dump(exclude_none=True),
    {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"percent": 26})},
]
answer = client.chat.completions.create(model="fitrouter/auto", messages=told, tools=tools, **who)
print("tool:", call.function.name, "|", answer.choices[0].message.content)
assert answer.model_extra["fitrouter"]["model"] == asked.model_extra["fitrouter"]["model"]

# What it was worth: a thumb, stars, an edit …
vote = {"decision_id": answer.model_extra["fitrouter"]["decision_id"], "kind": "thumb", "value": "up"}
print("feedback:", client.post("/feedback", body=vote, cast_to=object)["object"])
