"""Answers in OpenAI's format, as servers really send them, made uniform before anything reads them.

Servers deviate in known ways: arguments of tool calls as objects (llama.cpp, TGI), parallel calls of one stream under
one index, one id or none (Gemini, Ollama), `stop` as the reason of an answer with calls (Ollama, vLLM), or before them,
content as a list of thinking and text parts (Mistral). What does not deviate is passed on as it is.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

import msgspec

from fitrouter.errors import ProviderUnavailable
from fitrouter.types import FINISH_REASONS, Message

_REASONS = {
    **dict.fromkeys(("complete", "completed", "done", "end", "end_of_text", "pause_turn"), "stop"),
    **dict.fromkeys(("end_turn", "eos", "eos_token", "finished", "stop_sequence", "stop_token"), "stop"),
    **dict.fromkeys(("max_length", "max_output_tokens", "max_tokens"), "length"),
    **dict.fromkeys(("model_length", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(("refusal", "safety", "blocklist", "content_filtered", "sensitive", "spii"), "content_filter"),
    **dict.fromkeys(("guardrail_intervened", "prohibited_content", "recitation"), "content_filter"),
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
}
"""Other servers' finish reasons, in lower case → OpenAI's."""
_ENDS_WITH_CALLS = frozenset({"function_call", "other", "stop", "tool_calls"})
_THINKING = frozenset({"reasoning", "thinking"})
_TEXT = frozenset({"output_text", "text"})
_LONGEST_NAME = 256
_MOST_CALLS = 256
"""Tool calls of one choice; a whole answer's further ones are left out, with a note, a stream's are an error."""


class UniformChoice:
    """One choice of an answer: rewrites its message, or its deltas in order, and its finish reason."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[object, _Call] = {}
        """The last call of each."""
        self._told = set[object]()
        self._held: Message | None = None
        """The first piece of a call until its arguments come: its name may come in several pieces."""
        self._old: UniformChoice | None = None
        """Of a `function_call`, as calls were before there were several."""
        self.left_out = frozenset[str]()
        """Fields of a message of which a part is not passed on."""
        self._over = self._ended = False
        """Whether a stream has told an end already, and whether `stop`: calls that come later change that."""

    def message(self, message: Message) -> Message:
        """Return a complete message with string arguments, text as a string, and an id for each call."""
        message = _with_text(message, whole=True)
        self._old = UniformChoice() if message.get("function_call") else None
        if not (calls := _called(message)):
            return message
        self.left_out = frozenset({"tool_calls"} if len(calls) > _MOST_CALLS else ())
        found, taken = list[Message](), set[object]()
        for call in calls[:_MOST_CALLS]:
            found.append(_identified(_with_arguments(call, first=True), taken))
            taken.add(found[-1]["id"])
        self._calls += [_Call(None)]
        return {**message, "tool_calls": found}

    def delta(self, delta: Message, *, ends: bool = False) -> Message:
        """Return a delta whose calls have indexes that tell them apart; the first piece of each has its id and name.

        Args:
            delta: as sent.
            ends: nothing is held back, as a finish reason comes with it.
        """
        delta, self._over = self._with_old(_with_text(delta), ends=ends), self._over or ends
        pieces = [told for piece in _called(delta) for told in self._whole_name(self._piece(piece))]
        if self._over and self._held is not None:
            pieces, self._held = [*pieces, self._held], None
        if not pieces:
            return {name: value for name, value in delta.items() if name != "tool_calls"}
        return {**delta, "tool_calls": pieces}

    def reason(self, reason: str | None) -> str | None:
        """Return OpenAI's name of a finish reason: `tool_calls` for an answer with calls that was not cut off."""
        if reason is None:
            late, self._ended = self._ended and bool(self._calls), self._ended and not self._calls
            return "tool_calls" if late else None
        reason = _REASONS.get(reason.lower(), reason.lower())
        reason = reason if reason in FINISH_REASONS else "other"
        self._ended = reason == "stop" and not self._calls
        if self._old is not None and not self._calls and reason in _ENDS_WITH_CALLS:
            return "function_call"
        return "tool_calls" if self._calls and reason in _ENDS_WITH_CALLS else reason

    def _with_old(self, delta: Message, *, ends: bool) -> Message:
        """Return a delta whose `function_call` is told as one of several would be: its name as a whole."""
        given = delta.get("function_call")
        given = given if isinstance(given, dict) else None
        if self._old is None and not given:
            return delta
        self._old = self._old or UniformChoice()
        told = self._old.delta({"tool_calls": [{"index": 0, "function": given}]} if given else {}, ends=ends)
        delta = {name: value for name, value in delta.items() if name != "function_call"}
        functions = [piece["function"] for piece in told.get("tool_calls", ())]
        texts = "".join(function.get("arguments") or "" for function in functions)
        return delta | ({"function_call": {**functions[0], "arguments": texts}} if functions else {})

    def _piece(self, piece: Message) -> Message:
        piece = _with_arguments(piece)
        function = piece.get("function")
        function = function if isinstance(function, dict) else {}
        index, given = piece.get("index"), piece.get("id") or None
        id_ = given if isinstance(given, str | int | float | None) else str(given)
        call = self._known(index, id_, function)
        if call is None:
            if len(self._calls) == _MOST_CALLS:
                raise ProviderUnavailable(f"the stream has more than {_MOST_CALLS} tool calls")
            call = _Call(index, id_, function.get("name") or "", len(self._calls))
            piece = _identified(_with_arguments(piece, first=True), self._told)
            self._told.add(piece["id"])
            self._calls.append(call)
            self._by_id[id_] = call
            if isinstance(index, int):
                self._by_index[index] = call
        else:  # clients append what is repeated
            piece = {name: value for name, value in piece.items() if name not in ("id", "type")}
            if function.get("name") and call.name == function["name"]:
                piece["function"] = {name: value for name, value in function.items() if name != "name"}
        call.read(function.get("arguments"))
        return {**piece, "index": call.place}

    def _whole_name(self, piece: Message) -> list[Message]:
        """Return what can be told when a piece has come: a call's name as a whole, which goes before its arguments."""
        function, held, self._held = piece.get("function"), self._held, None
        told = [] if held is None else [held]
        if not isinstance(function, dict):
            return [*told, piece]
        if held is not None and held["index"] == piece["index"]:
            name = (held["function"].get("name") or "") + (function.get("name") or "")
            self._calls[held["index"]].name = name
            piece, told = {**held, **piece, "function": {**held["function"], **function, "name": name}}, []
        function = piece["function"]
        if "id" not in piece or function.get("arguments") or len(function.get("name") or "") > _LONGEST_NAME:
            return [*told, piece]
        self._held = piece
        return told

    def _known(self, index: object, id_: object, function: Message) -> _Call | None:
        """Return the call that a piece continues; None if it begins one."""
        if not self._calls:
            return None
        last = self._by_index.get(index) if isinstance(index, int) else self._calls[-1]
        if id_:
            found = self._by_id.get(id_)
            if found is not None and function.get("name") and function.get("arguments"):  # maybe another of that id
                other = isinstance(index, int) and index != found.index
                return None if other or found.whole else found
            if found is None and last is not None and last.id is None and not function.get("name"):
                return last
            return found
        if last is None or not isinstance(index, int):
            return None if function.get("name") else self._calls[-1] if not isinstance(index, int) else None
        # A call under a known index, named anew after whole arguments, is another one.
        return None if function.get("name") and last.whole else last


class _Call:
    """A call that has begun: its index and id as the server sent them."""

    def __init__(self, index: object, id_: object = None, name: object = "", place: int = 0) -> None:
        self.index, self.id, self.name, self.place = index, id_, name, place
        self._depth, self._quoted, self._escaped = 0, False, False
        self.whole = False
        """Whether its arguments are a complete JSON object."""

    def read(self, arguments: object) -> None:
        """Follow the braces of a piece of the arguments."""
        for character in arguments if isinstance(arguments, str) else "":
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped, self._quoted = character == "\\", character != '"'
            elif character == '"':
                self._quoted = True
            elif character in "{}":
                self._depth += 1 if character == "{" else -1
                self.whole = self._depth == 0


def _called(message: Message) -> list[Message]:
    """The calls of a message or delta; one that is not in a list is a call, too."""
    return [call for call in _listed(message.get("tool_calls")) if call and isinstance(call, dict)]


def _with_arguments(call: Message, *, first: bool = False) -> Message:
    """Return a call whose arguments are a string; `first` where a text of JSON may be encoded twice."""
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    arguments = function.get("arguments", function.get("parameters"))  # Llama's own word
    if first and isinstance(arguments, str) and arguments.startswith('"{'):
        with suppress(msgspec.DecodeError):
            arguments = msgspec.json.decode(arguments, type=str)
    elif arguments is None and "name" not in function:
        return call
    elif arguments is not None and not isinstance(arguments, str):
        arguments = msgspec.json.encode(arguments).decode()
    name = function.get("name")
    named = {} if isinstance(name, str | None) else {"name": str(name)}
    return {**call, "function": {**function, **named, "arguments": arguments or ""}}


def _identified(call: Message, taken: Collection[object]) -> Message:
    """Return a call with a type and an id of its own, to which its result can refer."""
    given = call.get("id")
    told = given if isinstance(given, str) else str(given) if isinstance(given, int) else ""
    told = told if told and told not in taken else f"call_{secrets.token_hex(12)}"
    return {**call, "type": call.get("type") or "function", "id": told}


def _with_text(message: Message, *, whole: bool = False) -> Message:
    """Return a message whose content is a string; a complete one with parts of other kinds, such as pictures, stays."""
    if "function_call" in message:  # as calls were before there were several
        message = {**message, "function_call": _with_arguments({"function": message["function_call"]})["function"]}
    given = message.get("content")
    if not isinstance(given, list | dict):
        return message
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in _listed(given)]
    parts = [
        part if isinstance(part.get("type"), str) else {**part, "type": "text"}
        for part in parts
        if isinstance(part, dict)
    ]
    if whole and any(part["type"] not in _TEXT | _THINKING for part in parts):
        return message
    thought = "".join(_texts(part for part in parts if part["type"] in _THINKING))
    found = {**message, "content": "".join(_texts(part for part in parts if part["type"] in _TEXT))}
    return {**found, "reasoning_content": thought} if thought and not message.get("reasoning_content") else found


def _texts(parts: Iterable[dict[str, Any]]) -> Iterable[str]:
    """The texts of parts; thinking holds parts of its own, or a text, and a text may be an object."""
    for part in parts:
        for piece in _listed(part.get(part["type"]) or part.get("text")):
            text = piece.get("text", piece.get("value")) if isinstance(piece, dict) else piece
            if isinstance(text, str):
                yield text


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
