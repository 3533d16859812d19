"""Protocol of a dialect, and values that dialects share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import msgspec

from fitrouter.errors import InvalidRequest
from fitrouter.providers import decode_json
from fitrouter.types import Message
from fitrouter_integrations.client import Reply
from fitrouter_integrations.gateway.asgi._stream import Events
from fitrouter_integrations.gateway.asgi._wire import dump
from fitrouter_integrations.gateway.parsing._values import shown

INPUT = "input"
"""The argument that holds the text of a custom tool's call."""
MAX_BLOCKS = 20_000
"""Content blocks or items of one request."""


MAX_DROPPED = 16


class Dialect(Protocol):
    """An API that is translated into chat completions and back."""

    choices: int
    """Most choices of an answer."""
    dropped: list[str]
    """What `chat_body` left out: it runs at a vendor, and other models do without it."""

    def chat_body(self, body: dict[str, Any]) -> dict[str, Any]:
        """Translate a request into the body of an equivalent chat completions request.

        Raises:
            InvalidRequest: it is malformed, or has no counterpart in chat completions.
        """
        ...

    def answer(self, reply: Reply, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a complete answer to the request `body`."""
        ...

    def events(self, body: dict[str, Any]) -> Events:
        """Return a formatter of the streamed answer to the request `body`."""
        ...


def named_event(name: str, value: Mapping[str, Any]) -> bytes:
    """Encode a server-sent event with a name, which is also its `type`."""
    return b"event: " + name.encode() + b"\ndata: " + dump({"type": name, **value}) + b"\n\n"


def each(value: object, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Enumerate a value that must be an array of objects, as (index, object).

    Raises:
        InvalidRequest: it is not, or too long.
    """
    if not isinstance(value, list) or any(not isinstance(item, dict) for item in value):
        raise InvalidRequest(f"{where}: got {shown(value)}; give an array of objects")
    if len(value) > MAX_BLOCKS:
        raise InvalidRequest(f"{where}: {len(value)} were given, at most {MAX_BLOCKS} are allowed")
    return iter(enumerate(value))


def text_of(value: object, where: str) -> str:
    """Check that a value is a string, of any length, and return it.

    Raises:
        InvalidRequest: it is not.
    """
    if not isinstance(value, str):
        raise InvalidRequest(f"{where}: got {shown(value)}; give a string")
    return value


def unsupported(value: object, where: str, allowed: str) -> InvalidRequest:
    """Return the error for something that chat completions cannot express."""
    return InvalidRequest(f"{where}: {shown(value)} is not supported; allowed are {allowed}")


def drop(dropped: list[str], where: str, kind: object) -> None:
    """Note that something was left out; of many, the first `MAX_DROPPED` are named."""
    if len(dropped) < MAX_DROPPED:
        dropped.append(f"{where}: {kind if isinstance(kind, str) else shown(kind)}"[:100])


def simple(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]] | None:
    """Simplify a message's content: a lone plain text as a string; None if there is nothing."""
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        text: str = parts[0]["text"]
        return text
    return parts or None


def calls_of(delta: Message) -> list[dict[str, Any]]:
    """Return the function calls, or pieces of them, in a message or delta of a model."""
    calls, old = delta.get("tool_calls"), delta.get("function_call")
    found = calls if isinstance(calls, list) else [{"index": 0, "function": old}] if old else []
    return [call for call in found if isinstance(call, dict) and isinstance(call.get("function"), dict)]


def text_in(delta: Message) -> str:
    """Return the text in a message or delta of a model, also of one whose content has parts of other kinds."""
    content = delta.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def reasoning_of(delta: Message) -> str:
    """Return the reasoning that a model shows, under either name that servers give it."""
    found = delta.get("reasoning_content") or delta.get("reasoning")
    return found if isinstance(found, str) else ""


def function_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a tool; a custom one, which takes text, is offered as a function with one string."""
    function = {"name": tool["name"]}
    if tool["type"] == "custom":
        form = tool.get("format")
        syntax = form.get("definition") if isinstance(form, dict) else None
        own = text_of(tool.get("description") or "", f"tools.{tool['name']}.description")
        said = filter(None, (own, syntax and f"Its input follows this grammar:\n{syntax}"))
        schema = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}
        return {"type": "function", "function": {**function, "description": "\n\n".join(said), "parameters": schema}}
    for name in ("description", "parameters", "strict"):
        if tool.get(name) is not None:
            function[name] = tool[name]
    return {"type": "function", "function": function}


def custom_input(arguments: str) -> str:
    """Return the text of a custom tool's call from its arguments; as they are, if a model gave no such object."""
    try:
        found = decode_json(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments
    text = found.get(INPUT) if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments
