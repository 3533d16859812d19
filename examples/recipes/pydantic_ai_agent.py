"""pydantic-ai on a gateway: an agent with a tool and typed output.

FITROUTER=http://127.0.0.1:8484 python examples/recipes/pydantic_ai_agent.py
"""

from __future__ import annotations

import os

from openai import OpenAI
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

GATEWAY = os.environ["FITROUTER"]
KEY = os.environ.get("FITROUTER_API_KEY", "unused")
provider = OpenAIProvider(base_url=f"{GATEWAY}/v1", api_key=KEY)
model = OpenAIChatModel("fitrouter/auto", provider=provider)
who = {"extra_body": {"user": "ann", "metadata": {"role": "tax analyst"}}}


class Sum(BaseModel):
    """A typed answer."""

    value: int
    note: str


agent = Agent(model, model_settings=who)
told = agent.run_sync("How are dividends taxed?")
print("whole:", told.output)

with_tool = Agent(model, model_settings=who)


@with_tool.tool_plain
def dividend_rate(country: str) -> str:
    """The rate at which dividends are taxed."""
    return f"26 percent in {country}"


print("tool:", with_tool.run_sync("How are dividends taxed?").output)
print("typed:", Agent(model, output_type=Sum, model_settings=who).run_sync("Add 1 and 2").output)

# What the first answer was worth: an answer's id holds the decision's.
vote = {"decision_id": told.response.provider_response_id.removeprefix("chatcmpl-"), "kind": "thumb", "value": "up"}
gateway = OpenAI(base_url=provider.base_url, api_key=KEY)
print("feedback:", gateway.post("/feedback", body=vote, cast_to=object)["object"])
