"""What the content spool keeps of an answer until it is scored: prompt, message, and the schemas of its tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from fitrouter.types import Message


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as it was given."""

    prompt: str
    """The text that was read of the request."""
    message: Message
    """The assistant message in the OpenAI format."""
    tools: tuple[dict[str, Any], ...] | None = None
    """Definitions of the tools that the message calls; None where they are not known."""


def pack_content(prompt: str, message: Message, tools: Sequence[dict[str, Any]] | None = None) -> str:
    """The content as JSON in ASCII, ready to be encrypted. Any text survives, lone surrogates too.

    Of the `tools` that the request offered only those that the message calls are kept: their schemas are what its
    arguments are checked against, and the rest can be long.

    >>> pack_content("Hi", {"role": "assistant", "content": "Hello"})
    '{"prompt":"Hi","message":{"role":"assistant","content":"Hello"}}'
    """
    document: dict[str, Any] = {"prompt": prompt, "message": message}
    if tools is not None and (called := _called(message)):
        document["tools"] = [tool for tool in tools if _name(tool) in called]
    return json.dumps(document, separators=(",", ":"), default=repr)


def unpack_content(text: str) -> Content:
    """What `pack_content` packed.

    Raises:
        ValueError: the text is something else.
    """
    try:
        return msgspec.convert(json.loads(text), Content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a content is a JSON object with 'prompt' and 'message': {error}") from None


def _called(message: Message) -> set[str]:
    calls = message.get("tool_calls")
    return {_name(call) for call in calls} if isinstance(calls, list) else set()


def _name(item: object) -> str:
    """The function's name in a tool call or in a tool's definition."""
    function = item.get("function") if isinstance(item, dict) else None
    return str(function.get("name", "")) if isinstance(function, dict) else ""
