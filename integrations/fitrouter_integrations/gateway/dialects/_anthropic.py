"""Anthropic's Messages API, translated into chat completions and back.

Requests: https://docs.anthropic.com/en/api/messages; streams: https://docs.anthropic.com/en/api/messages-streaming.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from fitrouter.context.features import estimate_tokens
from fitrouter.errors import InvalidRequest
from fitrouter.providers import decode_json
from fitrouter.types import Chunk, Message, Usage
from fitrouter_integrations.client import About, Reply
from fitrouter_integrations.gateway.asgi._wire import Problem, about_json, told_json
from fitrouter_integrations.gateway.dialects._base import (
    calls_of,
    drop,
    each,
    named_event,
    reasoning_of,
    simple,
    text_in,
    text_of,
    unsupported,
)
from fitrouter_integrations.gateway.parsing._messages import arguments_of
from fitrouter_integrations.gateway.parsing._values import optional, shown

_STOP = {"length": "max_tokens", "tool_calls": "tool_use", "function_call": "tool_use", "content_filter": "refusal"}
_REFUSED = ("container", "mcp_servers")
_SERVER_BLOCKS = frozenset(
    {
        *("server_tool_use", "mcp_tool_use", "mcp_tool_result", "container_upload", "fallback"),
        *("web_search_tool_result", "web_fetch_tool_result", "tool_search_tool_result"),
        *("code_execution_tool_result", "bash_code_execution_tool_result", "text_editor_code_execution_tool_result"),
    }
)
"""Content blocks of tools that ran at Anthropic: the text beside them says what came of them."""
_IGNORED = frozenset({"betas", "cache_control", "context_management", "diagnostics", "inference_geo", "speed"})
"""Fields about how Anthropic serves a request, without influence on what is asked."""
_TRANSLATED = frozenset(
    {
        *_REFUSED,
        "messages",
        "system",
        "stop_sequences",
        "tools",
        "tool_choice",
        "output_config",
        "output_format",
        "metadata",
        "service_tier",
    }
)
_SESSION = re.compile(r"(.+)_session_([0-9a-f-]{36})")
"""A `user_id` of Claude Code: its installation and account, and the session."""


class Messages:
    """Dialect of POST /v1/messages."""

    choices = 1

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def chat_body(self, body: dict[str, Any]) -> dict[str, Any]:
        """Translate a request into the body of a chat completions request; what runs at Anthropic is left out.

        Raises:
            InvalidRequest: it is malformed, or has no counterpart in chat completions.
        """
        for name in _REFUSED:
            if body.get(name):
                raise InvalidRequest(f"{name}: not supported; tools that run at Anthropic cannot be routed")
        chat = {name: value for name, value in body.items() if name not in _TRANSLATED | _IGNORED}
        chat["messages"] = [*_system(body.get("system")), *messages_of(body.get("messages"), self.dropped)]
        chat["stop"] = optional(body, "stop_sequences", list, "an array of strings") or None
        chat["service_tier"] = {"standard_only": "default"}.get(str(body.get("service_tier")))
        return chat | _tools(body, self.dropped) | _output(body) | _metadata(body)

    def answer(self, reply: Reply, body: dict[str, Any]) -> dict[str, Any]:
        """Return a complete answer as a `message`."""
        blocks = list(_blocks(reply.message, _wants_thinking(body)))
        reason = "content_filter" if reply.message.get("refusal") else reply.finish_reason
        return {
            **_head(reply.about),
            "content": blocks,
            "stop_reason": _STOP.get(reason, "end_turn"),
            "usage": _usage(reply.usage),
            "fitrouter": told_json(reply.about),
        }

    def events(self, body: dict[str, Any]) -> MessageEvents:
        """Return a formatter of the streamed answer."""
        return MessageEvents(_wants_thinking(body), input_tokens(body))


def input_tokens(body: Mapping[str, Any]) -> int:
    """Estimate the tokens of a request's system prompt, messages and tools; what is malformed does not count."""
    given = body.get("messages")
    messages = [message for message in given if isinstance(message, dict)] if isinstance(given, list) else []
    system = {"role": "system", "content": body.get("system")}
    tools = {"tools": body["tools"]} if isinstance(body.get("tools"), list) else {}
    return estimate_tokens([system, *messages], tools)


# --- requests ------------------------------------------------------------------------------------------------------


def _system(system: object) -> list[Message]:
    if system is None or system == "":
        return []
    content = system if isinstance(system, str) else [_text(b, f"system[{i}]") for i, b in each(system, "system")]
    return [{"role": "system", "content": content}] if content else []


def messages_of(given: object, dropped: list[str]) -> Iterator[Message]:
    """Yield Anthropic's messages in the format of chat completions; what is left out is added to `dropped`."""
    if not isinstance(given, list) or not given:
        raise InvalidRequest("messages: give an array with at least one message")
    for i, message in each(given, "messages"):
        where, role, content = f"messages[{i}]", message.get("role"), message.get("content")
        if role not in ("user", "assistant", "system"):
            raise InvalidRequest(f"{where}.role: got {shown(role)}; allowed are user, assistant, system")
        if isinstance(content, str):
            yield {"role": role, "content": content}
        elif role == "assistant":
            if (said := _assistant(content, f"{where}.content", dropped)) is not None:
                yield said
        else:
            yield from _user(role, content, f"{where}.content", dropped)


def _assistant(content: object, where: str, dropped: list[str]) -> Message | None:
    """Translate a model's message; None if there is nothing in it but what ran at Anthropic."""
    texts: list[dict[str, Any]] = []
    calls, thinking = [], []
    for j, block in each(content, where):
        match block.get("type"):
            case "text":
                texts.append(_text(block, f"{where}[{j}]"))
            case "compaction":  # what came before, in short
                texts.append(_text({"type": "text", "text": block.get("content") or ""}, f"{where}[{j}]"))
            case "tool_use":
                calls.append(_call(block, f"{where}[{j}]"))
            case "thinking" | "redacted_thinking":
                thinking += (
                    [block] if block.get("signature") or block["type"] != "thinking" else []
                )  # else not Claude's
            case str(kind) if kind in _SERVER_BLOCKS:
                drop(dropped, f"{where}[{j}]", kind)
            case kind:
                allowed = "text, tool_use, thinking, redacted_thinking"
                raise unsupported(kind, f"{where}[{j}].type", allowed)
    if not (texts or calls or thinking):
        return None
    message: Message = {"role": "assistant", "content": simple(texts)}
    if calls:
        message["tool_calls"] = calls
    if thinking:
        message["thinking_blocks"] = thinking  # as litellm names them, which passes them on
    return message


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    given = block.get("input")
    if isinstance(given, str):  # as streams have it
        given = _arguments(given)
    arguments = arguments_of(given, where)
    function = {"name": text_of(block.get("name"), f"{where}.name"), "arguments": arguments}
    return {"id": text_of(block.get("id"), f"{where}.id"), "type": "function", "function": function}


def _user(role: str, content: object, where: str, dropped: list[str]) -> Iterator[Message]:
    """Translate a user's message; tool results become messages of their own, before the text beside them."""
    parts: list[dict[str, Any]] = []
    results: list[Message] = []
    for j, block in each(content, where):
        if block.get("type") == "tool_result":
            result, pictures = _result(block, f"{where}[{j}]")
            results.append(result)
            parts += pictures
        elif isinstance(kind := block.get("type"), str) and kind in _SERVER_BLOCKS:
            drop(dropped, f"{where}[{j}]", kind)
        else:
            parts += _parts(block, f"{where}[{j}]")
    yield from results
    if parts or not results:
        yield {"role": role, "content": simple(parts) or ""}


def _result(block: Mapping[str, Any], where: str) -> tuple[Message, list[dict[str, Any]]]:
    """Translate a tool's result; returns its message, and its pictures, which a tool message cannot hold."""
    content = block.get("content")
    given = [] if content is None else content
    parts = (
        [{"type": "text", "text": given}]
        if isinstance(given, str)
        else [part for k, one in each(given, f"{where}.content") for part in _parts(one, f"{where}.content[{k}]")]
    )
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    if block.get("is_error") is True:
        text = f"Error: {text}"
    call_id = text_of(block.get("tool_use_id"), f"{where}.tool_use_id")
    return {"role": "tool", "tool_call_id": call_id, "content": text}, [p for p in parts if p["type"] != "text"]


def _parts(block: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Translate a content block into parts of a chat message."""
    match block.get("type"):
        case "text":
            return [_text(block, where)]
        case "image":
            return [{"type": "image_url", "image_url": {"url": _url(block.get("source"), f"{where}.source")}}]
        case "document":
            return _document(block, where)
        case "search_result":
            texts = [_text(b, f"{where}.content[{k}]")["text"] for k, b in each(block.get("content"), where)]
            return [{"type": "text", "text": "\n".join([str(block.get("title")), str(block.get("source")), *texts])}]
        case "tool_reference":  # what a search for tools found
            return [{"type": "text", "text": f"tool: {block.get('tool_name')}"}]
        case kind:
            raise unsupported(kind, f"{where}.type", "text, image, document, search_result, tool_result")


def _document(block: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    source = block.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    if isinstance(source, dict) and kind == "text":
        return [{"type": "text", "text": text_of(source.get("data"), f"{where}.source.data")}]
    if isinstance(source, dict) and kind == "content":
        content = source.get("content")
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        places = each(content, f"{where}.source.content")
        parts = [part for k, one in places for part in _parts(one, f"{where}.source.content[{k}]")]
        texts = [part["text"] for part in parts if part["type"] == "text"]
        return [{"type": "text", "text": "\n".join(texts)}, *(part for part in parts if part["type"] != "text")]
    if kind not in ("base64", "url"):
        raise unsupported(kind, f"{where}.source.type", "base64, url, text and content")
    name = block.get("title") if isinstance(block.get("title"), str) else "document.pdf"
    field = "file_url" if kind == "url" else "file_data"  # servers that read files by URL know this field
    return [{"type": "file", "file": {"filename": name, field: _url(source, f"{where}.source")}}]


def _url(source: object, where: str) -> str:
    """Return the URL of a picture or file, which may be a data URL."""
    kind = source.get("type") if isinstance(source, dict) else None
    if isinstance(source, dict) and kind == "url":
        return text_of(source.get("url"), f"{where}.url")
    if isinstance(source, dict) and kind == "base64":
        media = text_of(source.get("media_type"), f"{where}.media_type")
        return f"data:{media};base64,{text_of(source.get('data'), f'{where}.data')}"
    raise unsupported(kind, f"{where}.type", "base64 and url")


def _text(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Translate a text block into a text part; cache hints stay."""
    if block.get("type") != "text":
        raise unsupported(block.get("type"), f"{where}.type", "text")
    part = {"type": "text", "text": text_of(block.get("text"), f"{where}.text")}
    return part | ({"cache_control": block["cache_control"]} if block.get("cache_control") else {})


def _tools(body: Mapping[str, Any], dropped: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if body.get("tools") is not None:
        tools = []
        for i, tool in each(body["tools"], "tools"):
            if tool.get("type") in (None, "custom"):
                tools.append(_tool(tool, f"tools[{i}]"))
            else:
                drop(dropped, f"tools[{i}]", tool.get("type"))
        found["tools"] = tools
    choice = body.get("tool_choice")
    if choice is None or (not found.get("tools") and choice != {"type": "none"} and body.get("tools")):
        return found
    kind = choice.get("type") if isinstance(choice, dict) else choice
    words = {"auto": "auto", "any": "required", "none": "none"}
    if not isinstance(choice, dict) or not isinstance(kind, str) or (kind not in words and kind != "tool"):
        raise unsupported(kind, "tool_choice.type", "auto, any, tool, none")
    if kind == "tool":
        function = {"name": text_of(choice.get("name"), "tool_choice.name")}
        if not body.get("tools"):
            raise InvalidRequest("tool_choice: got a tool, but there are no tools; give both or neither")
        left_out = (tool for tool in body["tools"] if tool.get("type") not in (None, "custom"))
        if any(tool.get("name") == function["name"] for tool in left_out):
            drop(dropped, "tool_choice", function["name"])  # of a tool that is left out
            return found
        found["tool_choice"] = {"type": "function", "function": function}
    else:
        found["tool_choice"] = words[kind]
    if choice.get("disable_parallel_tool_use") is True:
        found["parallel_tool_calls"] = False
    return found


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{where}.input_schema: got {shown(schema)}; give an object")
    function = {"name": text_of(tool.get("name"), f"{where}.name"), "parameters": schema}
    function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    hint = {"cache_control": tool["cache_control"]} if tool.get("cache_control") else {}
    return {"type": "function", "function": function, **hint}


def _output(body: dict[str, Any]) -> dict[str, Any]:
    """Translate `output_config`: the format of the answer, for which there was a field, and the reasoning effort."""
    wanted = optional(body, "output_config", dict, "an object") or {}
    found: dict[str, Any] = {"reasoning_effort": wanted.get("effort")}
    form = wanted.get("format") or body.get("output_format")
    if form is not None:
        if not isinstance(form, dict) or form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
            raise unsupported(form, "output_config.format", "json_schema with a schema")
        schema = {"name": "answer", "schema": form["schema"], "strict": True}
        found["response_format"] = {"type": "json_schema", "json_schema": schema}
    return found


def _metadata(body: dict[str, Any]) -> dict[str, Any]:
    metadata = optional(body, "metadata", dict, "an object")
    if metadata is None:
        return {}
    user = metadata.get("user_id")
    if isinstance(user, str) and (parts := _SESSION.fullmatch(user)):
        metadata = {"session": parts[2], **metadata, "user_id": parts[1]}
    return {"metadata": metadata}


def _wants_thinking(body: Mapping[str, Any]) -> bool:
    thinking = body.get("thinking")
    return isinstance(thinking, dict) and thinking.get("type") != "disabled"


# --- answers -------------------------------------------------------------------------------------------------------


def _head(about: About) -> dict[str, Any]:
    return {
        "id": f"msg_{about.decision_id}",
        "type": "message",
        "role": "assistant",
        "model": about.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _blocks(message: Message, thinking: bool) -> Iterator[dict[str, Any]]:
    """Yield the content blocks of an answer."""
    if thinking:
        signed = message.get("thinking_blocks")
        reasoning = reasoning_of(message)
        if isinstance(signed, list) and signed:
            yield from (block for block in signed if isinstance(block, dict))
        elif reasoning:
            yield {"type": "thinking", "thinking": reasoning, "signature": ""}
    cited = _citations(message.get("annotations"))
    for text in (text_in(message), message.get("refusal")):
        if isinstance(text, str) and text:
            yield {"type": "text", "text": text, **({"citations": cited} if cited else {})}
    for i, call in enumerate(calls_of(message)):
        function = call["function"]
        given = _arguments(function.get("arguments"))
        name = str(function.get("name") or "")
        yield {"type": "tool_use", "id": str(call.get("id") or f"toolu_{i}"), "name": name, "input": given}


def _citations(annotations: object) -> list[dict[str, Any]]:
    """Return the pages that the annotations of a chat message cite, as Anthropic tells them."""
    given = annotations if isinstance(annotations, list) else []
    pages = [each["url_citation"] for each in given if isinstance(each, dict) and "url_citation" in each]
    more = {"type": "web_search_result_location", "cited_text": "", "encrypted_index": ""}
    return [{**more, "url": page.get("url"), "title": page.get("title")} for page in pages if isinstance(page, dict)]


def _arguments(text: object) -> dict[str, Any]:
    """Parse the arguments of a tool call; what is not a JSON object goes into the field `arguments`."""
    try:
        found = decode_json(text) if isinstance(text, str) and text else {}
    except (msgspec.DecodeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"arguments": text}


def _usage(usage: Usage) -> dict[str, Any]:
    long, written = usage.written_1h_tokens, usage.written_tokens
    lifetimes = {"ephemeral_5m_input_tokens": written - long, "ephemeral_1h_input_tokens": long}
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens - written,
        "cache_creation_input_tokens": written,
        **({"cache_creation": lifetimes} if written else {}),
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


# --- streams -------------------------------------------------------------------------------------------------------

_Key: TypeAlias = str | int
"""A block: text, thinking, or the index of a tool call."""


class MessageEvents:
    """Formats a streamed answer as events of a message, whose content blocks come one after the other.

    Pieces of several tool calls may alternate in chat completions: those beside the open call wait for its end.

    Args:
        thinking: show the model's reasoning.
        input_tokens: estimate, for clients that read it at the start.
    """

    def __init__(self, thinking: bool, input_tokens: int = 0) -> None:
        self._thinking, self._input_tokens = thinking, input_tokens
        self._started = False
        self._open: _Key | None = None
        self._index = -1
        self._reason = "stop"
        self._waiting: dict[_Key, list[tuple[dict[str, Any], str]]] = {}
        """Block → its call and text, in pieces."""

    def chunk(self, about: About, chunk: Chunk) -> bytes:
        """Return the events of a chunk."""
        found = [] if self._started else [self._start(about)]
        self._started = True
        delta = chunk.delta
        if self._thinking:
            found += self._piece("thinking", {}, reasoning_of(delta))
            found += self._signatures(delta.get("thinking_blocks"))
        found += self._piece("text", {}, text_in(delta))
        for page in _citations(delta.get("annotations")) if self._open == "text" else ():
            found.append(self._delta({"type": "citations_delta", "citation": page}))
        if delta.get("refusal"):
            self._reason = "content_filter"
            found += self._piece("text", {}, delta["refusal"])
        for place, call in enumerate(calls_of(delta)):
            index = call.get("index")
            arguments = call["function"].get("arguments")
            key = index if isinstance(index, int) else place
            found += self._piece(key, call, arguments if isinstance(arguments, str) else "")
        if chunk.finish_reason is not None and self._reason != "content_filter":
            self._reason = chunk.finish_reason
        return b"".join(found)

    def end(self, about: About, usage: Usage) -> bytes:
        """Return the events at the end of the last block and of the message."""
        found = [] if self._started else [self._start(about)]
        found += self._close()
        waiting, self._waiting = self._waiting, {}
        for key, pieces in waiting.items():
            for call, text in pieces:
                found += self._piece(key, call, text)
            found += self._close()
        delta = {"stop_reason": _STOP.get(self._reason, "end_turn"), "stop_sequence": None}
        found.append(
            named_event("message_delta", {"delta": delta, "usage": _usage(usage), "fitrouter": told_json(about)})
        )
        return b"".join([*found, named_event("message_stop", {})])

    def error(self, problem: Problem) -> bytes:
        """Return an error event."""
        return named_event("error", problem.anthropic())

    def _start(self, about: About) -> bytes:
        return named_event(
            "message_start",
            {
                "message": {
                    **_head(about),
                    "usage": _usage(Usage(prompt_tokens=self._input_tokens)),
                    "fitrouter": about_json(about),
                }
            },
        )

    def _piece(self, key: _Key, call: Mapping[str, Any], text: object) -> list[bytes]:
        """Return the events for one piece of text, thinking or tool input."""
        if not isinstance(text, str) or (not text and not isinstance(key, int)):
            return []
        if isinstance(self._open, int) and key != self._open:
            self._waiting.setdefault(key, []).append((dict(call), text))
            return []
        found = [] if key == self._open else [*self._close(), self._begin(key, call)]
        if text:
            kind, field = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}.get(
                str(key), ("input_json_delta", "partial_json")
            )
            found.append(self._delta({"type": kind, field: text}))
        return found

    def _begin(self, key: _Key, call: Mapping[str, Any]) -> bytes:
        self._open, self._index = key, self._index + 1
        block: dict[str, Any]
        if isinstance(key, int):
            name, call_id = call["function"].get("name"), call.get("id")
            block = {"type": "tool_use", "id": str(call_id or f"toolu_{key}"), "name": str(name or ""), "input": {}}
        else:
            block = {"type": key, key: ""} | ({"signature": ""} if key == "thinking" else {})
        return named_event("content_block_start", {"index": self._index, "content_block": block})

    def _signatures(self, blocks: object) -> list[bytes]:
        """Return the events for signatures of thinking, and for encrypted thinking."""
        found: list[bytes] = []
        for block in blocks if isinstance(blocks, list) else ():
            kind = block.get("type") if isinstance(block, dict) else None
            if kind == "redacted_thinking":
                found += self._close()
                self._index += 1
                found.append(named_event("content_block_start", {"index": self._index, "content_block": block}))
                found.append(named_event("content_block_stop", {"index": self._index}))
            elif kind == "thinking" and self._open == "thinking" and (signature := block.get("signature")):
                found.append(self._delta({"type": "signature_delta", "signature": str(signature)}))
        return found

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        return named_event("content_block_delta", {"index": self._index, "delta": delta})

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        self._open = None
        return [named_event("content_block_stop", {"index": self._index})]
