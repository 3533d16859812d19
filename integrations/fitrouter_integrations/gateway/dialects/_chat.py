"""OpenAI's chat completions: the dialect that the others are translated into."""

from __future__ import annotations

import json
from collections.abc import Collection
from itertools import chain
from typing import Any

import msgspec

from fitrouter.types import Chunk, Usage
from fitrouter_integrations.client import About, Reply
from fitrouter_integrations.gateway.asgi._wire import (
    DONE,
    Problem,
    about_json,
    chunk_json,
    completion_json,
    event,
    usage_json,
)
from fitrouter_integrations.gateway.dialects._base import INPUT, calls_of, custom_input, function_of, text_of
from fitrouter_integrations.gateway.parsing._requests import MAX_CHOICES, wants_usage


class ChatCompletions:
    """Dialect of POST /v1/chat/completions."""

    choices = MAX_CHOICES

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def chat_body(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body with functions of one string for custom tools, their calls, and a choice of one.

        One with the input of a response instead of messages is translated as such.
        """
        if body.get("messages") is None and isinstance(body.get("input"), str | list):  # as Cursor sends them
            from fitrouter_integrations.gateway.dialects._responses import Responses

            asked = Responses()
            body, self.dropped = asked.chat_body(body), asked.dropped
        if any(map(_has_blocks, messages := body["messages"] if isinstance(body.get("messages"), list) else [])):
            from fitrouter_integrations.gateway.dialects._anthropic import messages_of

            told = (messages_of([each], self.dropped) if _has_blocks(each) else [each] for each in messages)
            body = {**body, "messages": [*chain.from_iterable(told)]}
        return {name: _function(value, name) if name in _WITHIN else value for name, value in body.items()}

    def answer(self, reply: Reply, body: dict[str, Any]) -> dict[str, Any]:
        """Return a complete answer as a `chat.completion`."""
        found, told = completion_json(reply), self.events(body)
        for i, choice in enumerate(found["choices"]):
            choice["message"] = told.uncut(Chunk(delta=choice["message"], finish_reason="stop", index=i)).delta
        return found

    def events(self, body: dict[str, Any]) -> ChatEvents:
        """Return a formatter of the streamed answer: chunks, and `[DONE]`."""
        tools = body["tools"] if isinstance(body.get("tools"), list) else []
        custom = [_custom(tool) or tool for tool in tools if _custom(tool) or tool.get("type") == "custom"]
        return ChatEvents(wants_usage(body), {str(tool.get("name")) for tool in custom})


_WITHIN = {
    "messages": ("tool_calls", "tool_calls"),
    "tool_choice": ("allowed_tools", "allowed_tools"),
    "allowed_tools": ("tools", "tool of a choice"),
    "tools": ("", ""),
}
"""Field → the field within it that holds custom tools, and what its values are."""


def _custom(value: object) -> dict[str, Any]:
    """What a tool, a call or a choice says of a custom tool; empty for others."""
    found = value.get("custom") if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _has_blocks(message: object) -> bool:
    """Whether a message has calls, or results of them, as Anthropic's have: Cursor sends these to any model."""
    content = message.get("content") if isinstance(message, dict) else None
    kinds = [part.get("type") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return "tool_use" in kinds or "tool_result" in kinds


def _nested(value: dict[str, Any], where: str) -> Any:
    """Return a tool of Anthropic's or of a response, or a choice of theirs, as chat completions have it; else as is."""
    kind, name = value.get("type"), value.get("name")
    if where == "tools" and isinstance(name, str) and ("input_schema" in value or kind == "function"):
        parameters = value.get("parameters", value.get("input_schema"))
        return function_of({**value, "type": "function", "parameters": parameters})
    if where == "tool_choice" and kind in ("any", "auto", "none", "required"):
        return "required" if kind == "any" else kind
    if where == "tool_choice" and isinstance(name, str) and kind in ("function", "tool"):
        return {"type": "function", "function": {"name": name}}
    return value


def _function(value: Any, where: str) -> Any:
    """Return what stands for a custom tool, its call or a choice of it, also within a message; others as they are."""
    if isinstance(value, list):
        return [_function(each, where) if isinstance(each, dict) else each for each in value]
    name, inside = _WITHIN.get(where, ("", ""))
    if name and isinstance(value, dict) and isinstance(value.get(name), list | dict):
        return {**value, name: _function(value[name], inside)}
    if where == "messages" or not (custom := _custom(value)):
        return _nested(value, where) if isinstance(value, dict) and "function" not in value else value
    function = {"name": text_of(custom.get("name"), f"{where}.custom.name")}
    if where == "tools":
        form = custom.get("format")
        grammar = form.get("grammar") if isinstance(form, dict) else None
        return function_of({**custom, "type": "custom", "format": grammar})
    more = {"arguments": json.dumps({INPUT: custom.get("input")})} if where == "tool_calls" else {}
    kept = {name: each for name, each in value.items() if name != "custom"}
    return {**kept, "type": "function", "function": {**function, **more}}


class ChatEvents:
    """Formats a streamed answer as `chat.completion.chunk` events.

    Args:
        usage: end with a usage chunk.
        custom: names of tools that take text.
    """

    def __init__(self, usage: bool, custom: Collection[object] = ()) -> None:
        self._usage, self._opened, self._custom = usage, set[int](), custom
        self._held: dict[tuple[int, int], tuple[dict[str, Any], list[str]]] = {}
        """Choice and place → a call of such a tool, and its arguments in pieces."""

    def chunk(self, about: About, chunk: Chunk) -> bytes:
        """Return the event of a chunk; the first of each choice has the role, the very first also the decision."""
        chunk = self.uncut(chunk)
        opening = b""
        if chunk.index not in self._opened and (chunk.delta or chunk.finish_reason or not self._opened):
            opens = "role" in chunk.delta
            first = chunk if opens else Chunk(delta={"role": "assistant", "content": ""}, index=chunk.index)
            decided = {} if self._opened else {"fitrouter": about_json(about)}
            self._opened.add(chunk.index)
            opening = event({**chunk_json(about, first, self._usage), **decided})
            if opens:
                return opening
        # Others only count tokens.
        if chunk.delta or chunk.finish_reason is not None or chunk.logprobs or chunk.further:
            return opening + event(chunk_json(about, chunk, self._usage))
        return opening

    def uncut(self, chunk: Chunk) -> Chunk:
        """Return a chunk without pieces of calls of custom tools; these are told as a whole when the choice ends."""
        if not self._custom:
            return chunk
        calls: list[dict[str, Any]] = []
        for i, call in enumerate(calls_of({"tool_calls": chunk.delta.get("tool_calls")})):
            function, index = call["function"], call.get("index")
            place = (chunk.index, index if isinstance(index, int) else i)
            if place in self._held or function.get("name") in self._custom:
                self._held.setdefault(place, (call, []))[1].append(str(function.get("arguments") or ""))
            else:
                calls.append(call)
        for place in [place for place in self._held if place[0] == chunk.index] if chunk.finish_reason else ():
            call, texts = self._held.pop(place)
            custom = {"name": call["function"]["name"], "input": custom_input("".join(texts))}
            calls.append(
                {**{name: call[name] for name in call if name != "function"}, "type": "custom", "custom": custom}
            )
        delta = {name: value for name, value in chunk.delta.items() if name != "tool_calls"}
        return msgspec.structs.replace(chunk, delta={**delta, **({"tool_calls": calls} if calls else {})})

    def end(self, about: About, usage: Usage) -> bytes:
        """Return the usage chunk if it was asked for, and `[DONE]`."""
        return (event(usage_json(about, usage)) if self._usage else b"") + DONE

    def error(self, problem: Problem) -> bytes:
        """Return an error event, without `[DONE]`."""
        return event({"error": {"message": problem.message, "type": "api_error", "code": problem.code, "param": None}})
