"""OpenAI's Responses API, translated into chat completions and back. Nothing is stored: each request has its history.

Requests: https://platform.openai.com/docs/api-reference/responses; streams: …/responses-streaming.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from fitrouter.errors import InvalidRequest
from fitrouter.types import Chunk, Message, Usage
from fitrouter_integrations.client import About, Reply
from fitrouter_integrations.gateway.asgi._wire import Problem, about_json, told_json
from fitrouter_integrations.gateway.dialects._base import (
    INPUT,
    calls_of,
    custom_input,
    drop,
    each,
    function_of,
    named_event,
    reasoning_of,
    simple,
    text_in,
    text_of,
    unsupported,
)
from fitrouter_integrations.gateway.parsing._messages import arguments_of
from fitrouter_integrations.gateway.parsing._values import optional, shown

_HISTORY = "nothing is stored here; send the whole conversation in 'input'"
_REFUSED = {
    "previous_response_id": _HISTORY,
    "conversation": _HISTORY,
    "prompt": "no prompts are stored here; send the text in 'instructions' and 'input'",
    "background": "requests are answered while the client waits; leave it out, or stream",
    "moderation": "not supported; call a moderation model of its provider",
}
"""Field → why it is refused, and what to do."""
_IGNORED = frozenset({"client_metadata", "context_management", "include", "max_tool_calls", "prompt_cache_options"}) | {
    *("store", "stream_options", "truncation")
}
"""Fields about what is kept and shown, without influence on what is asked."""
_TRANSLATED = frozenset(
    {"input", "instructions", "tools", "tool_choice", "text", "reasoning", "max_output_tokens", *_REFUSED, *_IGNORED}
)
_CALLS = frozenset({"apply_patch_call", "custom_tool_call", "function_call", "local_shell_call", "shell_call"})
"""Calls that the client runs, of functions and of OpenAI's own tools."""
_OUTPUTS = frozenset(f"{kind}_output" for kind in _CALLS)
_MOST_LETTERS = 64
_NO_LETTER = re.compile(r"[^a-zA-Z0-9_-]")
"""What a function's name has at most, and what it has not."""
_LOGPROBS = "message.output_text.logprobs"
_ECHOED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "user": None,
}
"""Field of a request that its response repeats → default."""


class Responses:
    """Dialect of POST /v1/responses."""

    choices = 1

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def chat_body(self, body: dict[str, Any]) -> dict[str, Any]:
        """Translate a request into the body of a chat completions request; what runs at OpenAI is left out.

        Raises:
            InvalidRequest: it is malformed, or has no counterpart in chat completions.
        """
        for name, reason in _REFUSED.items():
            if body.get(name):
                raise InvalidRequest(f"{name}: {reason}")
        chat = {name: value for name, value in body.items() if name not in _TRANSLATED}
        instructions = optional(body, "instructions", str, "a string")
        chat["messages"] = [{"role": "system", "content": instructions}] if instructions else []
        names = _Names(body)
        chat["messages"] += _messages(body.get("input"), names, self.dropped)
        limit = optional(body, "max_output_tokens", int, "a whole number")
        if limit is not None:
            chat["max_tokens"] = limit
        reasoning = optional(body, "reasoning", dict, "an object") or {}
        chat["reasoning_effort"] = reasoning.get("effort")
        if _LOGPROBS in (optional(body, "include", list, "an array of strings") or []) or body.get("top_logprobs"):
            chat["logprobs"] = True
        return chat | _tools(body, names, self.dropped) | _text(body)

    def answer(self, reply: Reply, body: dict[str, Any]) -> dict[str, Any]:
        """Return a complete answer as a `response`."""
        whole = ResponseEvents(body)
        whole.chunk(reply.about, Chunk(delta=reply.message, finish_reason=reply.finish_reason, logprobs=reply.logprobs))
        return whole.response(reply.about, reply.usage)

    def events(self, body: dict[str, Any]) -> ResponseEvents:
        """Return a formatter of the streamed response."""
        return ResponseEvents(body)


class _Names:
    """What the tools of a request are called upstream, where no two may have one name and there are no namespaces.

    Args:
        body: the request.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.of: dict[str, tuple[str, str]] = {}
        """Name upstream → namespace, which may be empty, and name."""
        self._sent: dict[tuple[str, str], str] = {}
        self.custom: set[str] = set()
        """Names upstream of tools that take text."""
        for tool, _, outer in sorted(offered(body), key=lambda one: bool(one[2])):
            space = str(outer.get("name") or "")
            if not isinstance(name := tool.get("name"), str) or (space, name) in self._sent:
                continue
            sent = self.sent(space, name)
            self.of[sent], self._sent[space, name] = (space, name), sent
            if tool.get("type") == "custom":
                self.custom.add(sent)

    def sent(self, space: object, name: str) -> str:
        """Return the name of a tool upstream: with its namespace, in 64 letters that every vendor takes."""
        if not space or not isinstance(space, str):
            return name
        if (known := self._sent.get((space, name))) is not None:
            return known
        whole = _NO_LETTER.sub("_", f"{space.rstrip('_')}__{name}")
        if len(whole) <= _MOST_LETTERS and whole not in self.of:
            return whole
        mark = hashlib.sha256(f"{space}\0{name}".encode("utf-8", "replace")).hexdigest()[:8]
        return f"{whole[: _MOST_LETTERS - 9]}_{mark}"

    def named(self, tool: Mapping[str, Any], where: str) -> set[str]:
        """Return the names upstream that a choice means: of a tool, in any namespace if it has none, or all of one."""
        name, space = text_of(tool.get("name"), f"{where}.name"), tool.get("namespace")
        if tool.get("type") == "namespace":
            return {sent for sent, (of, _) in self.of.items() if of == name}
        if space or name in self.of:
            return {self.sent(space, name)}
        return {sent for sent, (_, own) in self.of.items() if own == name} or {name}


# --- requests ------------------------------------------------------------------------------------------------------


def _messages(given: object, names: _Names, dropped: list[str]) -> list[Message]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise InvalidRequest("input: give a string, or an array with at least one item")
    messages: list[Message] = []
    pictures: list[dict[str, Any]] = []
    for i, item in each(given, "input"):
        where, kind = f"input[{i}]", item.get("type") or "message"
        if pictures and not (isinstance(kind, str) and kind in _OUTPUTS):  # what tools said stays together
            messages.append({"role": "user", "content": pictures})
            pictures = []
        match kind:
            case "message":
                messages.append(_message(item, where))
            case str(kind) if kind in _CALLS:
                _turn(messages).setdefault("tool_calls", []).append(_call(item, names, where))
            case str(kind) if kind in _OUTPUTS:
                message, others = _output(item, where)
                messages.append(message)
                pictures += others
            case "reasoning" if item.get("encrypted_content"):
                drop(dropped, where, "encrypted reasoning")
            case "reasoning" | "additional_tools":  # no place in chat completions for the one; the other has tools
                pass
            case "item_reference":
                raise InvalidRequest(f"{where}: {_HISTORY}")
            case str(kind) if "role" not in item and (messages or len(given) > 1):
                drop(dropped, where, kind)  # ran at OpenAI, or is the client's own: messages say what came of it
            case _:
                allowed = f"message, reasoning, {', '.join(sorted(_CALLS))}, their outputs"
                raise unsupported(kind, f"{where}.type", allowed)
    return messages + ([{"role": "user", "content": pictures}] if pictures else [])


def _turn(messages: list[Message]) -> Message:
    """Return the last message if it is the assistant's, to which a call belongs; else append a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _message(item: Mapping[str, Any], where: str) -> Message:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        raise InvalidRequest(f"{where}.role: got {shown(role)}; allowed are user, assistant, system, developer")
    if content is None or isinstance(content, str):
        return {"role": role, "content": content or ""}
    return {"role": role, "content": simple([_part(part, at) for part, at in _parts(content, where)]) or ""}


def _parts(content: object, where: str) -> Iterator[tuple[dict[str, Any], str]]:
    return ((part, f"{where}.content[{j}]") for j, part in each(content, f"{where}.content"))


def _part(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            return {"type": "text", "text": text_of(part.get("text"), f"{where}.text")}
        case "refusal":
            return {"type": "text", "text": text_of(part.get("refusal"), f"{where}.refusal")}
        case "input_image":
            if part.get("file_id"):
                raise unsupported("file_id", where, "image_url")
            detail = {"detail": part["detail"]} if part.get("detail") else {}
            url = part.get("image_url")
            url = url.get("url") if isinstance(url, dict) else url  # as in chat completions
            return {"type": "image_url", "image_url": {"url": text_of(url, where), **detail}}
        case "input_file":
            if part.get("file_id"):
                raise unsupported("file_id", where, "file_data and file_url")
            names = ("filename", "file_data", "file_url")
            file = {name: text_of(part[name], f"{where}.{name}") for name in names if part.get(name)}
            return {"type": "file", "file": file}
        case "input_audio":
            return {"type": "input_audio", "input_audio": part.get("input_audio")}
        case kind:
            raise unsupported(kind, f"{where}.type", "input_text, input_image, input_file, input_audio, output_text")


def _call(item: Mapping[str, Any], names: _Names, where: str) -> dict[str, Any]:
    """Translate a call of a function, of a custom tool, whose text becomes an argument, or of a tool of OpenAI's."""
    match item["type"]:
        case "custom_tool_call":
            name, arguments = item.get("name"), json.dumps({INPUT: text_of(item.get("input"), f"{where}.input")})
        case "function_call":
            name, arguments = item.get("name"), arguments_of(item.get("arguments"), where)
        case kind:
            name, arguments = kind.removesuffix("_call"), json.dumps(item.get("action", item.get("operation")))
    sent = names.sent(item.get("namespace"), text_of(name, f"{where}.name"))
    function = {"name": sent, "arguments": arguments}
    return {"id": text_of(item.get("call_id"), f"{where}.call_id"), "type": "function", "function": function}


def _output(item: Mapping[str, Any], where: str) -> tuple[Message, list[dict[str, Any]]]:
    """Translate a tool's output; returns its message, and its pictures, which a tool message cannot hold."""
    output, call_id = item.get("output"), text_of(item.get("call_id") or item.get("id"), f"{where}.call_id")
    if not isinstance(output, list) or any(isinstance(part, dict) and "type" not in part for part in output):
        output = item.get("status", "") if output is None else output
        text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
        return {"role": "tool", "tool_call_id": call_id, "content": text}, []
    parts = [_part(part, f"{where}.output[{j}]") for j, part in each(output, f"{where}.output")]
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    return {"role": "tool", "tool_call_id": call_id, "content": text}, [p for p in parts if p["type"] != "text"]


def _tools(body: Mapping[str, Any], names: _Names, dropped: list[str]) -> dict[str, Any]:
    tools: dict[str, dict[str, Any]] = {}
    of: dict[str, Any] = {}
    """Name upstream → what is said of its namespace."""
    for tool, where, outer in offered(body):
        if tool.get("type") in ("function", "custom"):
            sent = names.sent(outer.get("name"), text_of(tool.get("name"), f"{where}.name"))
            if tools.setdefault(sent, made := function_of({**tool, "name": sent})) is made:
                of[sent] = outer.get("description")
        else:
            drop(dropped, where, tool.get("type"))
    found: dict[str, Any] = {"tools": [*tools.values()]} if tools else {}
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        match choice.get("type"):
            case "function" | "custom":
                name = min(names.named(choice, "tool_choice"))
                found["tool_choice"] = {"type": "function", "function": {"name": name}}
            case "allowed_tools":
                given = each(choice.get("tools"), where := "tool_choice.tools")
                named = {name for i, tool in given if tool.get("name") for name in names.named(tool, f"{where}[{i}]")}
                found["tools"] = [tool for name, tool in tools.items() if name in named]
                if found["tools"]:
                    found["tool_choice"] = "required" if choice.get("mode") == "required" else "auto"
                else:
                    drop(dropped, "tool_choice", "allowed_tools")
            case kind:  # of a tool that is left out
                drop(dropped, "tool_choice", kind)
    elif choice is not None:
        if choice not in ("auto", "none", "required"):
            raise unsupported(choice, "tool_choice", "auto, none, required, function, custom, allowed_tools")
        if tools or choice != "required":
            found["tool_choice"] = choice
    told = set[str]()
    for function in (tool["function"] for tool in found.get("tools", ())):
        if isinstance(said := of[function["name"]], str) and said and said not in told:  # once: it may be long
            told.add(said)
            own = text_of(function.get("description") or "", f"tools.{function['name']}.description")
            function["description"] = "\n\n".join(filter(None, (said, own)))
    return found


def offered(body: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str, Mapping[str, Any]]]:
    """Enumerate the tools of a request, where they stand (`tools`, `additional_tools`), and their namespace or {}."""
    given = body.get("input")
    later = [item.get("tools") for item in given if _adds_tools(item)] if isinstance(given, list) else []
    for place, tools in (("tools", body.get("tools")), *(("additional_tools", one) for one in later)):
        for i, tool in each(tools or [], place):
            if tool.get("type") == "namespace":
                for j, inner in each(tool.get("tools") or [], f"{place}[{i}].tools"):
                    yield inner, f"{place}[{i}].tools[{j}]", tool
            else:
                yield tool, f"{place}[{i}]", {}


def _adds_tools(item: object) -> bool:
    return isinstance(item, dict) and item.get("type") in ("additional_tools", "tool_search_output")


def _text(body: dict[str, Any]) -> dict[str, Any]:
    """Translate `text`: the format and verbosity of the answer."""
    text = optional(body, "text", dict, "an object") or {}
    found: dict[str, Any] = {"verbosity": text.get("verbosity")}
    form = optional(text, "format", dict, "an object") or {}
    match form.get("type") or "text":
        case "text":
            pass
        case "json_object":
            found["response_format"] = {"type": "json_object"}
        case "json_schema":
            schema = {name: value for name, value in form.items() if name != "type"}
            found["response_format"] = {"type": "json_schema", "json_schema": schema}
        case kind:
            raise unsupported(kind, "text.format.type", "text, json_object, json_schema")
    return found


# --- answers -------------------------------------------------------------------------------------------------------


class _Item:
    """An item of the output while it is written: a message (text or refusal), reasoning, or a function call."""

    def __init__(self, kind: str, index: int, about: About, call: Mapping[str, Any], names: _Names) -> None:
        prefix = {"function": "fc", "custom": "ctc", "reasoning": "rs"}.get(kind, "msg")
        self.kind, self.index, self.id = kind, index, f"{prefix}_{about.decision_id}_{index}"
        self.pieces: list[str] = []
        self.logprobs: list[Any] = []
        self.annotations: list[Any] = []
        self.status = "in_progress"
        function = call.get("function") or {}
        sent, self.call_id = str(function.get("name") or ""), str(call.get("id") or self.id)
        space, self.name = names.of.get(sent, ("", sent))
        self.space = {"namespace": space} if space else {}

    def part(self) -> dict[str, Any]:
        """Return the content part, as far as it is written."""
        text = "".join(self.pieces)
        if self.kind == "refusal":
            return {"type": "refusal", "refusal": text}
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": self.annotations, "logprobs": self.logprobs}

    def json(self) -> dict[str, Any]:
        """Return the item, as far as it is written."""
        head = {"id": self.id, "status": self.status}
        content = [self.part()] if self.pieces else []
        if self.kind == "function":
            call = {"call_id": self.call_id, "name": self.name, "arguments": "".join(self.pieces), **self.space}
            return {**head, "type": "function_call", **call}
        if self.kind == "custom":
            text = custom_input("".join(self.pieces))
            call = {"call_id": self.call_id, "name": self.name, "input": text, **self.space}
            return {**head, "type": "custom_tool_call", **call}
        if self.kind == "reasoning":
            return {**head, "type": "reasoning", "summary": [], "content": content}
        return {**head, "type": "message", "role": "assistant", "content": content}


_EVENTS = {
    "text": ("response.output_text", "text"),
    "refusal": ("response.refusal", "refusal"),
    "reasoning": ("response.reasoning_text", "text"),
    "function": ("response.function_call_arguments", "arguments"),
    "custom": ("response.custom_tool_call_input", "input"),
}
"""Kind of item → prefix of its events, and the field of its whole text."""


class ResponseEvents:
    """Formats a streamed response. Items may overlap: a function call is open until the end.

    Args:
        body: the request.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        given = {name: body.get(name) for name in _ECHOED}
        self._echo = {name: _ECHOED[name] if value is None else value for name, value in given.items()}
        self._names = _Names(body)
        self._number = 0
        self._items: list[_Item] = []
        self._text: _Item | None = None
        """The open message or reasoning."""
        self._calls: dict[int, _Item] = {}
        self._reason = ""

    def chunk(self, about: About, chunk: Chunk) -> bytes:
        """Return the events of a chunk."""
        found = [] if self._number else self._start(about)
        delta, content = chunk.delta, (chunk.logprobs or {}).get("content")
        found += self._piece(about, "reasoning", reasoning_of(delta), [])
        found += self._piece(about, "text", text_in(delta), content if isinstance(content, list) else [])
        if self._text is not None and self._text.kind == "text":
            self._text.annotations += _annotations(delta.get("annotations"))
        found += self._piece(about, "refusal", delta.get("refusal"), [])
        for place, call in enumerate(calls_of(delta)):
            index = call.get("index")
            found += self._call(about, index if isinstance(index, int) else place, call)
        self._reason = chunk.finish_reason or self._reason
        return b"".join(found)

    def end(self, about: About, usage: Usage) -> bytes:
        """Return the events at the ends of the open items and of the response."""
        found = [] if self._number else self._start(about)
        for item in self._items:
            found += self._close(item)
        response = self.response(about, usage)
        return b"".join([*found, self._event(f"response.{response['status']}", {"response": response})])

    def error(self, problem: Problem) -> bytes:
        """Return an error event; clients read its `error` as in any other stream of OpenAI."""
        error = {"message": problem.message, "type": "api_error", "code": problem.code, "param": None}
        return self._event("error", {"code": problem.code, "message": problem.message, "param": None, "error": error})

    def response(self, about: About, usage: Usage) -> dict[str, Any]:
        """Return the whole response."""
        cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(self._reason)
        for item in self._items:
            item.status = "completed"
        if cut and self._items:
            self._items[-1].status = "incomplete"
        return {
            **self._head(about, "incomplete" if cut else "completed"),
            "incomplete_details": {"reason": cut} if cut else None,
            "output": [item.json() for item in self._items],
            "usage": _usage(usage),
            "fitrouter": told_json(about),
        }

    def _head(self, about: About, status: str) -> dict[str, Any]:
        return {
            "id": f"resp_{about.decision_id}",
            "object": "response",
            "created_at": (UUID(about.decision_id).int >> 80) // 1000,  # a UUIDv7 begins with its time
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": about.model,
            "output": [],
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            "usage": None,
            **self._echo,
        }

    def _start(self, about: About) -> list[bytes]:
        response = {**self._head(about, "in_progress"), "fitrouter": about_json(about)}
        return [self._event(f"response.{name}", {"response": response}) for name in ("created", "in_progress")]

    def _piece(self, about: About, kind: str, text: object, logprobs: list[Any]) -> list[bytes]:
        """Return the events of a piece of text, refusal or reasoning."""
        if not isinstance(text, str) or not text:
            return []
        found, item = [], self._text
        if item is None or item.kind != kind:
            found = [] if item is None else self._close(item)
            self._text = item = self._add(kind, about, {})
            found.append(self._item_event("response.output_item.added", item, {"item": item.json()}))
            part = {"content_index": 0, "part": item.part()}
            found.append(self._item_event("response.content_part.added", item, part))
        item.pieces.append(text)
        item.logprobs += logprobs
        more = {"logprobs": logprobs} if kind == "text" else {}
        name = f"{_EVENTS[kind][0]}.delta"
        return [*found, self._item_event(name, item, {"content_index": 0, "delta": text, **more})]

    def _call(self, about: About, index: int, call: Mapping[str, Any]) -> list[bytes]:
        """Return the events of a piece of a function call."""
        found: list[bytes] = []
        if (item := self._calls.get(index)) is None:
            if self._text is not None:
                found, self._text = self._close(self._text), None
            kind = "custom" if call["function"].get("name") in self._names.custom else "function"
            item = self._calls[index] = self._add(kind, about, call)
            found.append(self._item_event("response.output_item.added", item, {"item": item.json()}))
        text = call["function"].get("arguments")
        if isinstance(text, str) and text:
            item.pieces.append(text)
            if item.kind == "function":  # a custom tool's text is known when its arguments are complete
                found.append(self._item_event("response.function_call_arguments.delta", item, {"delta": text}))
        return found

    def _add(self, kind: str, about: About, call: Mapping[str, Any]) -> _Item:
        self._items.append(_Item(kind, len(self._items), about, call, self._names))
        return self._items[-1]

    def _close(self, item: _Item) -> list[bytes]:
        """Return the events that end an item; none if it has already ended."""
        if item.status != "in_progress":
            return []
        item.status = "completed"
        name, field = _EVENTS[item.kind]
        whole: dict[str, Any] = {field: "".join(item.pieces)}
        if item.kind == "function":
            done = [self._item_event(f"{name}.done", item, {**whole, "name": item.name})]
        elif item.kind == "custom":
            text = custom_input("".join(item.pieces))
            done = [
                self._item_event(f"{name}.{end}", item, {key: text})
                for end, key in (("delta", "delta"), ("done", field))
            ]
        else:
            whole |= {"logprobs": item.logprobs} if item.kind == "text" else {}
            done = [
                self._item_event(f"{name}.done", item, {"content_index": 0, **whole}),
                self._item_event("response.content_part.done", item, {"content_index": 0, "part": item.part()}),
            ]
        return [*done, self._item_event("response.output_item.done", item, {"item": item.json()})]

    def _item_event(self, name: str, item: _Item, value: Mapping[str, Any]) -> bytes:
        of = {"output_index": item.index} | ({} if "item" in value else {"item_id": item.id})
        return self._event(name, {**of, **value})

    def _event(self, name: str, value: Mapping[str, Any]) -> bytes:
        self._number += 1
        return named_event(name, {"sequence_number": self._number - 1, **value})


def _annotations(given: object) -> list[Any]:
    """Return the annotations of a chat message, such as cited pages, as those of a text here: without envelopes."""
    found = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    inner = [(each, each.get(str(each.get("type")))) for each in found]
    return [{"type": each["type"], **more} if isinstance(more, dict) else each for each, more in inner]


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.written_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
