"""LangChain messages in the OpenAI format of a router's requests.

Thinking blocks are sent back within the current turn: between its tool calls some models require them, and only their
maker can read them. Earlier turns are sent without, so that any model can take over.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, convert_to_openai_messages

from fitrouter.errors import InvalidRequest
from fitrouter.types import Message

OURS = "fitrouter"
"""`model_provider` of the router's answers."""
CALLS = "tool_call_extras"
"""Key for fields of tool calls that LangChain's class lacks: id of the call → the fields."""

_BACK = ("provider_specific_fields", "reasoning_content", "reasoning_details", "reasoning_items", "thinking_blocks")
"""Fields that are sent back to a model within its turn."""
_SIGNED = {"thinking": "signature", "redacted_thinking": "data"}
"""Type of a thinking block → the field that its maker verifies."""
_KEPT_ELSEWHERE = frozenset(
    (
        "invalid_tool_call",
        "reasoning",
        "server_tool_call",
        "server_tool_call_chunk",
        "server_tool_result",
        "tool_call_chunk",
    )
)
"""Block types that belong elsewhere in a message, or that only their maker understands."""


def messages_of(messages: Sequence[BaseMessage]) -> tuple[Message, ...]:
    """Convert messages to the OpenAI format.

    Raises:
        InvalidRequest: there are none, or one cannot be converted.
    """
    if not messages:
        raise InvalidRequest("messages: got none; give at least one")
    turn = max((i for i, message in enumerate(messages) if message.type == "human"), default=-1)
    answered = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    plain = [_plain(message, within=i > turn) for i, message in enumerate(messages)]
    found: list[Message] = []
    for i, (message, converted) in enumerate(zip(messages, _converted(plain), strict=True)):
        if isinstance(message, AIMessage) and converted:
            _add_dropped(converted[0], message, answered, within=i > turn)
        found += converted
    return tuple(found)


def _converted(messages: list[BaseMessage]) -> list[list[Message]]:
    """Convert each message to one or more OpenAI messages; in one call, which is faster, if each becomes one."""
    with suppress(ValueError):
        whole = convert_to_openai_messages(messages)
        if len(whole) == len(messages):
            return [[message] for message in whole]
    found = []
    for i, message in enumerate(messages):
        try:
            found.append(convert_to_openai_messages([message]))
        except ValueError as error:
            raise InvalidRequest(f"messages[{i}]: {error}") from None
    return found


def _plain(message: BaseMessage, *, within: bool) -> BaseMessage:
    """Return the message without blocks that cannot be converted."""
    if isinstance(message.content, str):
        return message
    blocks = [kept for block in message.content for kept in _block(block, within=within)]
    return message.model_copy(update={"content": blocks})


def _block(block: Any, *, within: bool) -> Iterator[Any]:
    """Yield a content block (of LangChain's or a provider's form) as one that can be converted; nothing if none can."""
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind in _SIGNED:
        if within and block.get(_SIGNED[kind]):
            yield block
    elif kind == "tool_call":
        yield {"type": "tool_use", "id": block.get("id"), "name": block.get("name"), "input": block.get("args") or {}}
    elif kind == "text-plain" and block.get("text"):
        yield {"type": "text", "text": block["text"]}
    elif kind == "file" and "file" not in block:
        known = block.get("extras") or block.get("metadata") or {}
        name = known.get("filename") or f"document{mimetypes.guess_extension(block.get('mime_type') or '') or ''}"
        yield {"filename": name, **block}
    elif kind == "video":
        data = f"data:{block.get('mime_type', 'video/mp4')};base64,{block.get('base64')}"
        yield {"type": "video_url", "video_url": {"url": block.get("url") or data}}
    elif kind == "non_standard":
        yield block.get("value")
    elif kind not in _KEPT_ELSEWHERE:
        yield block


def _add_dropped(converted: Message, message: AIMessage, answered: Collection[str], *, within: bool) -> None:
    """Add the fields that LangChain's conversion drops."""
    for bad in message.invalid_tool_calls:
        if bad["id"] in answered:  # providers refuse a tool message without its call
            function = {"name": bad["name"] or "", "arguments": bad["args"] or ""}
            converted.setdefault("tool_calls", []).append({"type": "function", "id": bad["id"], "function": function})
    if within and message.response_metadata.get("model_provider") == OURS:
        kept = message.additional_kwargs
        converted.update({name: kept[name] for name in _BACK if kept.get(name)})
        for call in converted.get("tool_calls") or ():
            call.update((kept.get(CALLS) or {}).get(call["id"]) or {})
