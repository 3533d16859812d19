"""Scripted models for tests of agent frameworks: they call tools and follow schemas."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.kits.gateway import make_router

from fitrouter.router import Router
from fitrouter.types import Call, Chunk, Completion, Message, ModelCard, Prices, Usage

NAMES = ("alpha", "beta", "gamma")
_numbers = itertools.count()


class Agent:
    """Calls the first tool after a person's words, and answers what the tool said; fills in schemas with examples.

    Args:
        words: example of a text field, by its name.
    """

    def __init__(self, words: Mapping[str, str] | None = None) -> None:
        self.calls: list[Call] = []
        self.number = 3
        """Example of an integer."""
        self.words = {"location": "San Francisco", **(words or {})}

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        self.calls.append(call)
        message, reason = self._answer(call)
        usage = Usage(prompt_tokens=len(json.dumps(call.messages)) // 4, completion_tokens=11)
        if call.stream:
            return self._pieces(message, reason, usage)
        return Completion(message=message, finish_reason=reason, usage=usage)

    async def aclose(self) -> None:
        """Nothing is open."""

    def _answer(self, call: Call) -> tuple[Message, str]:
        params, last = call.params, call.messages[-1]
        if (tool := self._tool(params, last)) is not None:
            arguments = self._example(tool["function"].get("parameters", {}), said=json.dumps(call.messages))
            called = {
                "id": f"call_{next(_numbers)}",
                "type": "function",
                "function": {
                    "name": tool["function"]["name"],
                    "arguments": json.dumps(arguments, ensure_ascii=False),
                },
            }
            return {"role": "assistant", "content": None, "tool_calls": [called]}, "tool_calls"
        wanted = params.get("response_format") or {}
        if wanted.get("type") == "json_schema":
            text = json.dumps(self._example(wanted["json_schema"]["schema"]))
        elif wanted.get("type") == "json_object":
            text = json.dumps({"setup": "Why?", "punchline": "Because."})
        else:
            text = f"{call.target} heard {_text(last.get('content'))}"
        for stop in _listed(params.get("stop")):
            text = text.split(stop)[0]
        return {"role": "assistant", "content": text}, "stop"

    def _tool(self, params: Mapping[str, Any], last: Message) -> dict[str, Any] | None:
        tools, choice = params.get("tools") or [], params.get("tool_choice")
        if not tools or choice == "none":
            return None
        if isinstance(choice, dict):
            return next(tool for tool in tools if tool["function"]["name"] == choice["function"]["name"])
        return tools[0] if choice == "required" or last["role"] == "user" else None

    def _example(self, schema: Mapping[str, Any], name: str = "", defs: Any = None, said: str = "") -> Any:
        defs = defs or schema.get("$defs") or schema.get("definitions") or {}
        if "$ref" in schema:
            return self._example(defs[schema["$ref"].split("/")[-1]], name, defs, said)
        for one in ("enum", "anyOf", "oneOf", "allOf"):
            if one in schema:
                first = schema[one][0]
                return first if one == "enum" else self._example(first, name, defs, said)
        kind = schema.get("type", "object")
        kind = kind[0] if isinstance(kind, list) else kind
        if kind == "object":
            return {key: self._example(each, key, defs, said) for key, each in schema.get("properties", {}).items()}
        if kind == "array":
            return [self._example(schema.get("items", {"type": "string"}), name, defs, said)]
        if kind == "string" and name == "customer_name":  # LangChain's test of unicode
            spoken = json.loads(f'"{said}"') if "\\u" in said and not said.startswith("[") else said
            return "こんにちは株式会社" if "\\u3053\\u3093" in said or "こんにちは" in spoken else "你好啊集团"
        values: dict[str, Any] = {"integer": self.number, "number": 3.0, "boolean": True, "null": None}
        return values.get(kind, self.words.get(name, "hello"))

    async def _pieces(self, message: Message, reason: str, usage: Usage) -> AsyncIterator[Chunk]:
        if calls := message.get("tool_calls"):
            for i, call in enumerate(calls):
                function = call["function"]
                head = {**call, "index": i, "function": {"name": function["name"], "arguments": ""}}
                yield Chunk(delta={"role": "assistant", "content": None, "tool_calls": [head]})
                half = len(function["arguments"]) // 2
                for part in (function["arguments"][:half], function["arguments"][half:]):
                    yield Chunk(delta={"tool_calls": [{"index": i, "function": {"arguments": part}}]})
        else:
            text = message["content"]
            third = max(1, len(text) // 3)
            for piece in (text[:third], text[third : 2 * third], text[2 * third :]):
                yield Chunk(delta={"content": piece})
        yield Chunk(finish_reason=reason)
        yield Chunk(usage=usage)


def agent_router(folder: Path, agent: Any = None, names: Sequence[str] = NAMES, **more: Any) -> Router:
    """A router over models with all capabilities that agents need."""
    cards = [
        ModelCard(name=name, provider="agent", target=name, prices=Prices(input=1.0, output=2.0), parameters=None)
        for name in names
    ]
    return make_router(folder, {"agent": agent or Agent()}, models=cards, **more)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content or ""


def _listed(stop: Any) -> list[str]:
    return [stop] if isinstance(stop, str) else list(stop or [])
