"""Answers in OpenAI's format, as servers really send them, made uniform before anything reads them.

Servers deviate in known ways: arguments of tool calls as objects (llama.cpp, TGI), parallel calls of one stream under
one index or under none (Gemini, Ollama), `stop` as the reason of an answer with calls (Ollama, vLLM), content as a list
of thinking and text parts (Mistral). What does not deviate is passed on as it is.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

import msgspec

from fitrouter.types import FINISH_REASONS, Message

_REASONS = {
    **dict.fromkeys(("complete", "done", "pause_turn"), "stop"),
    "end_turn": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "max_length": "length",
    "max_tokens": "length",
    **dict.fromkeys(("model_length", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(("refusal", "safety", "blocklist", "content_filtered", "sensitive", "spii"), "content_filter"),
    **dict.fromkeys(("guardrail_intervened", "prohibited_content", "recitation"), "content_filter"),
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
}
"""Other servers' finish reasons, in lower case → OpenAI's."""
_ENDS_WITH_CALLS = frozenset({"function_call", "stop", "tool_calls"})
_THINKING = frozenset({"reasoning", "thinking"})
_TEXT = frozenset({"output_text", "text"})
_MOST_CALLS = 256
"""Tool calls of one choice that are told apart; further pieces belong to the last one."""


class UniformChoice:
    """One choice of an answer: rewrites its message, or its deltas in order, and its finish reason."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def message(self, message: Message) -> Message:
        """Return a complete message with string arguments, text as a string, and an id for each call."""
        message = _with_text(message)
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or not calls:
            return message
        self._calls += [_Call(None) for _ in calls[:1]]
        return {
            **message,
            "tool_calls": [_identified(_with_arguments(call)) for call in calls if isinstance(call, dict)],
        }

    def delta(self, delta: Message) -> Message:
        """Return a delta whose calls have indexes that tell them apart; the first piece of each has its id."""
        delta = _with_text(delta)
        pieces = delta.get("tool_calls")
        if not isinstance(pieces, list) or not pieces:
            return delta
        return {**delta, "tool_calls": [self._piece(piece) for piece in pieces if isinstance(piece, dict)]}

    def reason(self, reason: str | None) -> str | None:
        """Return OpenAI's name of a finish reason: `tool_calls` for an answer with calls that was not cut off."""
        if reason is None:
            return None
        reason = _REASONS.get(reason.lower(), reason.lower())
        reason = reason if reason in FINISH_REASONS else "other"
        return "tool_calls" if self._calls and reason in _ENDS_WITH_CALLS else reason

    def _piece(self, piece: Message) -> Message:
        piece = _with_arguments(piece)
        function = piece.get("function")
        function = function if isinstance(function, dict) else {}
        call = self._known(piece.get("index"), piece.get("id"), function)
        if call is None:
            call = _Call(piece.get("index"), piece.get("id") or None, function.get("name") or "")
            self._calls.append(call)
            piece = _identified(piece)
        else:  # clients append what is repeated
            piece = {name: value for name, value in piece.items() if name not in ("id", "type")}
            if function.get("name") and call.name == function["name"]:
                piece["function"] = {name: value for name, value in function.items() if name != "name"}
        call.read(function.get("arguments"))
        return {**piece, "index": self._calls.index(call)}

    def _known(self, index: object, id_: object, function: Message) -> _Call | None:
        """Return the call that a piece continues; None if it begins one."""
        if not self._calls:
            return None
        if len(self._calls) >= _MOST_CALLS:
            return self._calls[-1]
        same = [call for call in self._calls if call.index == index] if isinstance(index, int) else self._calls
        last = same[-1] if same else None
        if id_:
            found = next((call for call in self._calls if call.id == id_), None)
            if found is None and last is not None and last.id is None and not function.get("name"):
                return last
            return found
        if last is None or not isinstance(index, int):
            return None if function.get("name") else self._calls[-1] if not isinstance(index, int) else None
        # A call under a known index, named anew after whole arguments, is another one.
        return None if function.get("name") and last.whole else last


class _Call:
    """A call that has begun: its index and id as the server sent them."""

    def __init__(self, index: object, id_: object = None, name: object = "") -> None:
        self.index, self.id, self.name = index, id_, name
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


def _with_arguments(call: Message) -> Message:
    """Return a call whose arguments are a string."""
    function = call.get("function")
    if not isinstance(function, dict) or isinstance(arguments := function.get("arguments"), str):
        return call
    if arguments is None:
        return {**call, "function": {**function, "arguments": ""}} if "name" in function else call
    return {**call, "function": {**function, "arguments": msgspec.json.encode(arguments).decode()}}


def _identified(call: Message) -> Message:
    """Return a call with an id, to which its result can refer, and a type."""
    if isinstance(call.get("id"), str) and call["id"] and "type" in call:
        return call
    return {"type": "function", **call, "id": call.get("id") or f"call_{secrets.token_hex(12)}"}


def _with_text(message: Message) -> Message:
    """Return a message whose content is a string, if it is a list of texts and thinking only."""
    parts = message.get("content")
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        return message
    if any(part.get("type") not in _TEXT | _THINKING for part in parts):
        return message
    thought = "".join(_texts(part for part in parts if part["type"] in _THINKING))
    found = {**message, "content": "".join(_texts(part for part in parts if part["type"] in _TEXT))}
    return {**found, "reasoning_content": thought} if thought and not message.get("reasoning_content") else found


def _texts(parts: Iterable[dict[str, Any]]) -> Iterable[str]:
    """The texts of parts; thinking holds parts of its own, or a text."""
    for part in parts:
        given = part.get(part["type"], part.get("text"))
        for piece in given if isinstance(given, list) else [given]:
            text = piece.get("text") if isinstance(piece, dict) else piece
            if isinstance(text, str):
                yield text
