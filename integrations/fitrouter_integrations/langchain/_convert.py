"""Between LangChain's messages and the OpenAI format that a router speaks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, InvalidToolCall, convert_to_openai_messages
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import ToolCall, ToolCallChunk, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from fitrouter.types import Chunk, Message, Usage
from fitrouter_integrations.client import About, Reply

__all__ = ["chunk_of", "end_of", "messages_of", "metadata_of", "result_of", "tool_choice_of"]

_OURS = {"model_provider": "fitrouter"}


def messages_of(messages: list[BaseMessage]) -> tuple[Message, ...]:
    """Messages as a router takes them."""
    found = convert_to_openai_messages(messages)
    return tuple(found) if isinstance(found, list) else (found,)


def tool_choice_of(choice: object) -> object:
    """LangChain's words for which tool is to be called, in OpenAI's.

    >>> tool_choice_of("any"), tool_choice_of("search")
    ('required', {'type': 'function', 'function': {'name': 'search'}})
    """
    if choice is True or choice == "any":
        return "required"
    if isinstance(choice, str) and choice not in {"auto", "none", "required"}:
        return {"type": "function", "function": {"name": choice}}
    return choice


def result_of(reply: Reply) -> ChatResult:
    """A whole answer."""
    message, meta = reply.message, _OURS | metadata_of(reply.about) | {"finish_reason": reply.finish_reason}
    calls, invalid = _tool_calls(message.get("tool_calls") or [])
    said = AIMessage(
        content=message.get("content") or "",
        tool_calls=calls,
        invalid_tool_calls=invalid,
        additional_kwargs={"refusal": message["refusal"]} if message.get("refusal") else {},
        response_metadata=meta,
        usage_metadata=_usage(reply.usage),
        id=reply.about.decision_id,
    )
    generation = ChatGeneration(message=said, generation_info={"finish_reason": reply.finish_reason})
    return ChatResult(generations=[generation], llm_output=meta)


def chunk_of(chunk: Chunk, about: About, *, first: bool) -> ChatGenerationChunk:
    """A piece of an answer. What was decided goes with the first."""
    delta = chunk.delta
    meta: dict[str, Any] = _OURS | metadata_of(about) if first else {}
    if chunk.finish_reason:
        meta["finish_reason"] = chunk.finish_reason
    said = AIMessageChunk(
        content=delta.get("content") or "",
        tool_call_chunks=[_call_chunk(call) for call in delta.get("tool_calls") or []],
        response_metadata=meta,
        usage_metadata=None if chunk.usage is None else _usage(chunk.usage),
        id=about.decision_id,
    )
    info = {"finish_reason": chunk.finish_reason} if chunk.finish_reason else None
    return ChatGenerationChunk(message=said, generation_info=info)


def end_of(about: About) -> ChatGenerationChunk:
    """The end of a stream, which says what it cost."""
    said = AIMessageChunk(content="", response_metadata={"cost_usd": about.cost_usd}, id=about.decision_id)
    return ChatGenerationChunk(message=said)


def metadata_of(about: About) -> dict[str, Any]:
    """What a message says of its decision."""
    found: dict[str, Any] = {
        "model_name": about.model,
        "decision_id": about.decision_id,
        "propensity": about.propensity,
        "mode": about.mode,
        "logged": about.logged,
        "asked": about.asked,
    }
    return found if about.cost_usd is None else found | {"cost_usd": about.cost_usd}


def _usage(usage: Usage) -> UsageMetadata:
    asked, said = usage.prompt_tokens, usage.completion_tokens
    return UsageMetadata(input_tokens=asked, output_tokens=said, total_tokens=asked + said)


def _tool_calls(calls: list[Mapping[str, Any]]) -> tuple[list[ToolCall], list[InvalidToolCall]]:
    """The calls whose arguments are JSON objects, and the others."""
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
    return (found, "") if isinstance(found, dict) else ({}, f"{type(found).__name__} is no object")


def _call_chunk(call: Mapping[str, Any]) -> ToolCallChunk:
    function = call.get("function") or {}
    return tool_call_chunk(
        name=function.get("name"), args=function.get("arguments"), id=call.get("id"), index=call.get("index")
    )
