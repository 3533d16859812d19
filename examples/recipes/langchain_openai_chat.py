"""LangChain's ChatOpenAI on a gateway; `ChatFitrouter` does more (identity from every channel, the decision's data).

FITROUTER=http://127.0.0.1:8484 python examples/recipes/langchain_openai_chat.py
"""

from __future__ import annotations

import os

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import OpenAI

GATEWAY = os.environ["FITROUTER"]
KEY = os.environ.get("FITROUTER_API_KEY", "unused")
llm = ChatOpenAI(
    model="fitrouter/auto",
    base_url=f"{GATEWAY}/v1",
    api_key=KEY,
    use_responses_api=False,
    include_response_headers=True,  # the decision's id is in a header
    extra_body={"user": "ann", "metadata": {"role": "tax analyst"}},
)


@tool
def dividend_rate(country: str) -> str:
    """The rate at which dividends are taxed."""
    return f"26 percent in {country}"


# Whole and streamed.
answer = llm.invoke("How are dividends taxed?")
headers = answer.response_metadata["headers"]
print("whole:", answer.text, "|", headers["x-fitrouter-model"])
print("streamed:", "".join(chunk.text for chunk in llm.stream("How are dividends taxed?")))

# A tool.
call = llm.bind_tools([dividend_rate]).invoke("How are dividends taxed?").tool_calls[0]
print("tool:", call["name"], "|", dividend_rate.invoke(call["args"]))

# What the first answer was worth.
vote = {"decision_id": headers["x-fitrouter-decision"], "kind": "rating", "value": 4, "scale": [1, 5]}
gateway = OpenAI(base_url=f"{GATEWAY}/v1", api_key=KEY)
print("feedback:", gateway.post("/feedback", body=vote, cast_to=object)["object"])
