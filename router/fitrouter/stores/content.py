"""Contents in the spool, where they wait for the scorer: prompt, message and tool schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from fitrouter.types import Message


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to be scored."""

    prompt: str
    """The last user message."""
    message: Message
    """The assistant message in the OpenAI format."""
    tools: tuple[dict[str, Any], ...] | None = None
    """Definitions of the tools that the message calls; None if unknown."""


def pack_content(prompt: str, message: Message, tools: Sequence[dict[str, Any]] | None = None) -> str:
    """Encode a content as ASCII JSON. Every string survives, lone surrogates included.

    Of the request's `tools` only those that the message calls are kept: the scorer validates the arguments against
    their schemas, and the others can be long.

    >>> pack_content("Hi", {"role": "assistant", "content": "Hello"})
    '{"prompt":"Hi","message":{"role":"assistant","content":"Hello"}}'
    """
    document: dict[str, Any] = {"prompt": prompt, "message": message}
    if tools is not None and (called := _called(message)):
        document["tools"] = [tool for tool in tools if _name(tool) in called]
    return json.dumps(document, separators=(",", ":"), default=repr)


def unpack_content(text: str) -> Content:
    """Decode the output of `pack_content`.

    Raises:
        ValueError: the text is not a packed content.
    """
    try:
        return msgspec.convert(json.loads(text), Content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a packed content, a JSON object with 'prompt' and 'message': {error}") from None


def _called(message: Message) -> set[str]:
    calls = message.get("tool_calls")
    return {_name(call) for call in calls} if isinstance(calls, list) else set()


def _name(item: object) -> str:
    """The function's name in a tool call or in a tool's definition."""
    function = item.get("function") if isinstance(item, dict) else None
    return str(function.get("name", "")) if isinstance(function, dict) else ""
