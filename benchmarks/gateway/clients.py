"""Matrix of other clients against the gateway: whole answers, streams and tool calls. Prints JSON; 1 if one fails.

    python -m benchmarks.gateway.clients

Each client is the published package, pointed at a gateway by its base URL and nothing else, over a model that echoes
its prompt, or calls the tool `weather`. A client that is not installed is named as such; `make bench-clients` installs
the Python ones into an environment of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from tests.kits.gateway import Echo, make_router, serving

from fitrouter.types import AUTO

PROMPT, CITY = "Hello there", "Oslo"
FUNCTION = {
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": CITY})}}


def openai(url: str, kind: str) -> str:
    """The SDK of OpenAI."""
    OpenAI: Any = import_module("openai").OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    asked: dict[str, Any] = {"model": AUTO, "messages": [{"role": "user", "content": PROMPT}]}
    if kind == "stream":
        return "".join(
            each.choices[0].delta.content or ""
            for each in client.chat.completions.create(**asked, stream=True)
            if each.choices
        )
    message = (
        client.chat.completions.create(**asked, **({"tools": [TOOL]} if kind == "tools" else {})).choices[0].message
    )
    return str(message.tool_calls[0].function.arguments if message.tool_calls else message.content)


def anthropic(url: str, kind: str) -> str:
    """The SDK of Anthropic."""
    Anthropic: Any = import_module("anthropic").Anthropic

    client = Anthropic(base_url=url, api_key="none")
    asked: dict[str, Any] = {"model": AUTO, "max_tokens": 100, "messages": [{"role": "user", "content": PROMPT}]}
    if kind == "stream":
        with client.messages.stream(**asked) as stream:
            return "".join(stream.text_stream)
    schema = {"name": "weather", "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]}
    block = client.messages.create(**asked, **({"tools": [schema]} if kind == "tools" else {})).content[-1]
    return json.dumps(block.input) if block.type == "tool_use" else str(block.text)


def _langchain(model: Any, kind: str) -> str:
    if kind == "stream":
        return "".join(each.text for each in model.stream(PROMPT))
    if kind == "tools":
        return json.dumps(model.bind_tools([TOOL]).invoke(PROMPT).tool_calls[0]["args"])
    return str(model.invoke(PROMPT).text)


def langchain_openai(url: str, kind: str) -> str:
    """LangChain's adapter of OpenAI."""
    ChatOpenAI: Any = import_module("langchain_openai").ChatOpenAI

    return _langchain(ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=AUTO), kind)


def langchain_anthropic(url: str, kind: str) -> str:
    """LangChain's adapter of Anthropic."""
    ChatAnthropic: Any = import_module("langchain_anthropic").ChatAnthropic

    return _langchain(ChatAnthropic(base_url=url, api_key="none", model=AUTO, max_tokens=100), kind)


def litellm(url: str, kind: str) -> str:
    """LiteLLM's SDK."""
    completion: Any = import_module("litellm").completion

    asked: dict[str, Any] = {"model": f"openai/{AUTO}", "api_base": f"{url}/v1", "api_key": "none"}
    asked |= {"messages": [{"role": "user", "content": PROMPT}]}
    if kind == "stream":
        return "".join(each.choices[0].delta.content or "" for each in completion(**asked, stream=True))
    message = completion(**asked, **({"tools": [TOOL]} if kind == "tools" else {})).choices[0].message
    return str(message.tool_calls[0].function.arguments if message.tool_calls else message.content)


def pydantic_ai(url: str, kind: str) -> str:
    """Agents of Pydantic AI; with tools, their structured output."""
    BaseModel: Any = import_module("pydantic").BaseModel
    Agent: Any = import_module("pydantic_ai").Agent
    ToolOutput: Any = import_module("pydantic_ai").ToolOutput
    OpenAIChatModel: Any = import_module("pydantic_ai.models.openai").OpenAIChatModel
    OpenAIProvider: Any = import_module("pydantic_ai.providers.openai").OpenAIProvider

    model = OpenAIChatModel(AUTO, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    if kind == "tools":
        city: Any = type("City", (BaseModel,), {"__annotations__": {"city": str}})
        return str(Agent(model, output_type=ToolOutput(city, name="weather")).run_sync(PROMPT).output.city)
    if kind == "stream":

        async def streamed() -> str:
            async with Agent(model).run_stream(PROMPT) as found:
                return str(await found.get_output())

        return asyncio.run(streamed())
    return str(Agent(model).run_sync(PROMPT).output)


CLIENTS: dict[str, Callable[[str, str], str]] = {
    "openai": openai,
    "anthropic": anthropic,
    "langchain-openai": langchain_openai,
    "langchain-anthropic": langchain_anthropic,
    "litellm": litellm,
    "pydantic-ai-slim": pydantic_ai,
}
KINDS = {"whole": PROMPT, "stream": PROMPT, "tools": CITY}


def tried(client: Callable[[str, str], str], urls: dict[str, str], kind: str) -> str:
    """Ask by one client: passed, not installed, or what failed."""
    try:
        found = client(urls[kind], kind)
    except ModuleNotFoundError as error:
        return f"not installed: {error.name}"
    except Exception as error:  # noqa: BLE001 - any client, any error
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "passed" if KINDS[kind] in found else f"got {found[:100]!r}"


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    calling = Echo({"role": "assistant", "content": None, "tool_calls": [CALL]})
    with tempfile.TemporaryDirectory() as said, tempfile.TemporaryDirectory() as called:
        routers = make_router(Path(said)), make_router(Path(called), {"echo": calling})
        with serving(routers[0]) as plain, serving(routers[1]) as tools:
            urls = {"whole": plain, "stream": plain, "tools": tools}
            rows = {name: {kind: tried(client, urls, kind) for kind in KINDS} for name, client in CLIENTS.items()}
    versions = {each.metadata["Name"]: each.version for each in metadata.distributions()}
    print(json.dumps({name: {"version": versions.get(name), **row} for name, row in rows.items()}, indent=1))
    if any(told != "passed" and not told.startswith("not installed") for row in rows.values() for told in row.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
