"""Conversion of a router's answers, in OpenAI's format, to LangChain's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.messages.tool import ToolCall, ToolCallChunk, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from fitrouter.types import Chunk, Message, Usage
from fitrouter_integrations.client import About, Reply
from fitrouter_integrations.langchain._history import CALLS, OURS

_OURS = {"model_provider": OURS}
_KNOWN = frozenset(("content", "role", "tool_calls"))
"""Message fields that LangChain's classes have."""
_CALL = frozenset(("function", "id", "index", "type"))
"""Tool call fields that LangChain's classes have."""
_GROWS = ("summary", "text", "thinking")
"""Fields of a thinking block that arrive in pieces."""


def tool_choice_of(choice: object) -> object:
    """Convert LangChain's tool choice to OpenAI's format.

    >>> tool_choice_of("any"), tool_choice_of("search")
    ('required', {'type': 'function', 'function': {'name': 'search'}})
    """
    if choice is True or choice == "any":
        return "required"
    if isinstance(choice, str) and choice not in {"auto", "none", "required"}:
        return {"type": "function", "function": {"name": choice}}
    return choice


def result_of(reply: Reply) -> ChatResult:
    """Convert a complete answer."""
    ended = {"finish_reason": reply.finish_reason, "cost_usd": reply.about.cost_usd}
    message, meta = reply.message, _OURS | metadata_of(reply.about) | ended
    calls, invalid = _tool_calls(message.get("tool_calls") or [])
    extras = Extras()
    extras.add(message)
    said = AIMessage(
        content=message.get("content") or "",
        tool_calls=calls,
        invalid_tool_calls=invalid,
        additional_kwargs=_texts(message) | extras.found(),
        response_metadata=meta,
        usage_metadata=_usage(reply.usage),
        id=reply.about.decision_id,
    )
    generation = ChatGeneration(message=said, generation_info={"finish_reason": reply.finish_reason})
    return ChatResult(generations=[generation], llm_output=meta)


class Pieces:
    """Converts the chunks of a streamed answer to LangChain's: the first carries the decision, the last its cost.

    Args:
        stream: its `about` describes the decision.
    """

    def __init__(self, stream: Any) -> None:
        self._stream, self._extras, self._first = stream, Extras(), True

    def add(self, chunk: Chunk) -> ChatGenerationChunk:
        """Convert a streamed chunk to LangChain's."""
        delta, about = chunk.delta, self._stream.about
        self._extras.add(delta)
        meta: dict[str, Any] = _OURS | metadata_of(about) if self._first else {}
        self._first = False
        if chunk.finish_reason:
            meta["finish_reason"] = chunk.finish_reason
        said = AIMessageChunk(
            content=delta.get("content") or "",
            additional_kwargs=_texts(delta),
            tool_call_chunks=[_call_chunk(call) for call in delta.get("tool_calls") or []],
            response_metadata=meta,
            usage_metadata=None if chunk.usage is None else _usage(chunk.usage),
            id=about.decision_id,
        )
        info = {"finish_reason": chunk.finish_reason} if chunk.finish_reason else None
        return ChatGenerationChunk(message=said, generation_info=info)

    def end(self) -> ChatGenerationChunk:
        """Return the last chunk, with the cost and the collected extra fields."""
        said = AIMessageChunk(
            content="",
            additional_kwargs=self._extras.found(),
            response_metadata={"cost_usd": self._stream.about.cost_usd},
            id=self._stream.about.decision_id,
            chunk_position="last",
        )
        return ChatGenerationChunk(message=said)


class Extras:
    """Collects message fields that LangChain's classes lack: thinking, signatures, citations.

    Chunks of them are collected and sent at the end, since LangChain would merge them wrongly.
    """

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._ids: dict[Any, str] = {}
        self._calls: dict[str, dict[str, Any]] = {}

    def add(self, delta: Message) -> None:
        """Add the fields of a delta, or of a whole message."""
        for name, value in delta.items():
            if name in _KNOWN or isinstance(value, str):
                continue
            if isinstance(value, list):
                kept = self._fields.setdefault(name, [])
                for block in value:
                    _join(kept, block)
            elif isinstance(value, dict):
                self._fields[name] = {**self._fields.get(name, {}), **value}
        calls: list[dict[str, Any]] = delta.get("tool_calls") or []
        for i, call in enumerate(calls):
            index = call.get("index", i)
            self._ids.setdefault(index, call.get("id") or "")
            if more := {name: value for name, value in call.items() if name not in _CALL and value}:
                self._calls.setdefault(self._ids[index], {}).update(more)

    def found(self) -> dict[str, Any]:
        """Return the collected fields, for `additional_kwargs`."""
        fields = {name: value for name, value in self._fields.items() if value}
        return fields | ({CALLS: self._calls} if self._calls else {})


def _join(kept: list[Any], block: Any) -> None:
    """Append a block to a list, or extend the last one with it; a block with a signature is complete."""
    last = kept[-1] if kept else None
    if not isinstance(last, dict) or not isinstance(block, dict) or last.get("signature"):
        kept.append(block)
        return
    growing = [name for name in _GROWS if isinstance(last.get(name), str)]
    if not growing or (last.get("type"), last.get("index")) != (block.get("type"), block.get("index")):
        kept.append(block)
        return
    grown = {name: last[name] + (block.get(name) or "") for name in growing}
    kept[-1] = last | {name: value for name, value in block.items() if value is not None} | grown


def _texts(delta: Message) -> dict[str, Any]:
    """Return text fields besides the content, such as a refusal or reasoning."""
    return {name: value for name, value in delta.items() if name not in _KNOWN and isinstance(value, str) and value}


def metadata_of(about: About) -> dict[str, Any]:
    """Return the decision as fields of a message's `response_metadata`."""
    found = {name: value for name, value in msgspec.to_builtins(about).items() if value is not None}
    del found["chosen"]
    return {"model_name": found.pop("model"), **found}


def _usage(usage: Usage) -> UsageMetadata:
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    found = UsageMetadata(input_tokens=prompt, output_tokens=completion, total_tokens=prompt + completion)
    read = {"cache_read": usage.cached_tokens, "cache_creation": usage.written_tokens}
    read["audio"] = usage.audio_prompt_tokens
    if any(read.values()):
        found["input_token_details"] = cast("InputTokenDetails", {name: n for name, n in read.items() if n})
    made = {"reasoning": usage.reasoning_tokens, "audio": usage.audio_completion_tokens}
    if any(made.values()):
        found["output_token_details"] = cast("OutputTokenDetails", {name: n for name, n in made.items() if n})
    return found


def _tool_calls(calls: list[Mapping[str, Any]]) -> tuple[list[ToolCall], list[InvalidToolCall]]:
    """Split tool calls into those with valid arguments and the others, in LangChain's form."""
    good: list[ToolCall] = []
    bad: list[InvalidToolCall] = []
    for call in calls:
        name, text, number = call["function"]["name"], call["function"].get("arguments") or "{}", call.get("id")
        arguments, error = _object(text)
        if error:
            bad.append({"name": name, "args": text, "id": number, "error": error, "type": "invalid_tool_call"})
        else:
            good.append({"name": name, "args": arguments, "id": number, "type": "tool_call"})
    return good, bad


def _object(text: str) -> tuple[dict[str, Any], str]:
    try:
        found = json.loads(text)
    except ValueError as error:
        return {}, str(error)
    return (found, "") if isinstance(found, dict) else ({}, f"{type(found).__name__} is not an object")


def _call_chunk(call: Mapping[str, Any]) -> ToolCallChunk:
    function = call.get("function") or {}
    return tool_call_chunk(
        name=function.get("name"), args=function.get("arguments"), id=call.get("id"), index=call.get("index")
    )
