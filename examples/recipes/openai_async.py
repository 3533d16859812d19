"""The OpenAI SDK's async client: a streamed tool call, typed output, and the decision in the headers.

FITROUTER=http://127.0.0.1:8484 python examples/recipes/openai_async.py
"""

from __future__ import annotations

import asyncio
import os

from openai import AsyncOpenAI, pydantic_function_tool
from pydantic import BaseModel

GATEWAY = os.environ["FITROUTER"]
client = AsyncOpenAI(
    base_url=f"{GATEWAY}/v1",
    api_key=os.environ.get("FITROUTER_API_KEY", "unused"),
    default_headers={"X-Fitrouter-User": "ann", "X-Fitrouter-Role": "tax analyst"},
)


class Rate(BaseModel):
    """Of a tax."""

    country: str
    percent: int


async def main() -> None:
    """Ask."""
    question = [{"role": "user", "content": "How are dividends taxed?"}]

    # A streamed tool call, put together by the SDK.
    tools = [pydantic_function_tool(Rate, name="tax_rate")]
    async with client.chat.completions.stream(model="fitrouter/auto", messages=question, tools=tools) as stream:
        asked = await stream.get_final_completion()
    call = asked.choices[0].message.tool_calls[0].function
    print("tool:", call.name, "|", call.parsed_arguments.percent)

    # Typed output.
    typed = await client.chat.completions.parse(model="fitrouter/auto", messages=question, response_format=Rate)
    print("typed:", typed.choices[0].message.parsed)

    # The headers say what was decided; the answer is what it always is.
    raw = await client.chat.completions.with_raw_response.create(model="fitrouter/auto", messages=question)
    print("raw:", raw.parse().choices[0].message.content, "|", raw.headers["x-fitrouter-model"])

    vote = {"decision_id": raw.headers["x-fitrouter-decision"], "kind": "rating", "value": 4, "scale": [1, 5]}
    print("feedback:", (await client.post("/feedback", body=vote, cast_to=object))["object"])


asyncio.run(main())
