"""From a body and headers to a `Request`: who asks, what is asked, and nothing about transport."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fitrouter.errors import InvalidRequest
from fitrouter.types import AUTO, FeedbackKind, Identity, Message, Request
from fitrouter_integrations._identity import FIELDS, LONGEST, first_said, name_of
from fitrouter_integrations.gateway._transport import forbid_transport

__all__ = ["MAX_MESSAGES", "Verdict", "chat_request", "policy_change", "profile", "verdict", "wants_usage"]

MAX_STATEMENT = 1000
MAX_MESSAGES = 2048
_HEADER = "x-fitrouter-"
"""What headers that say who asks begin with."""
_OURS = frozenset({"model", "messages", "stream", "stream_options", "user", "metadata", "n"})
"""Fields that go no further: providers get no identities."""

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A body of POST /v1/feedback."""

    decision_id: str
    kind: FeedbackKind
    value: float
    scale: tuple[float, float] = (0.0, 1.0)
    dimension: str = "overall"
    other: str | None = None


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A body of PUT /v1/profile: what a user says of themselves."""

    values: dict[str, float] = {}
    statements: tuple[str, ...] = ()


def chat_request(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> Request:
    """The request in a body of POST /v1/chat/completions.

    Args:
        body: parsed JSON.
        headers: lower-case names.
        tenant: whom the key stands for.

    Raises:
        ForbiddenField: the body names transport.
        InvalidRequest: with the place and the reason.
    """
    forbid_transport(body)
    model = _string(body.get("model", AUTO), "model")
    stream = _optional(body, "stream", bool, "true or false") or False
    options = _optional(body, "stream_options", dict, "an object") or {}
    if options and not stream:
        raise InvalidRequest("stream_options: only allowed with 'stream': true")
    if body.get("n") not in (None, 1):
        raise InvalidRequest(f"n: given {body['n']!r}, allowed is 1: one decision gives one answer")
    _check_params(body)
    return Request(
        messages=_messages(body.get("messages")),
        model=model,
        params={name: value for name, value in body.items() if name not in _OURS and value is not None},
        identity=_identity(body, headers, tenant),
        stream=stream,
    )


def wants_usage(body: dict[str, Any]) -> bool:
    """Whether a stream is to end with a chunk of usage."""
    return bool((body.get("stream_options") or {}).get("include_usage"))


def verdict(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> tuple[Verdict, Identity]:
    """The verdict in a body of POST /v1/feedback, and who speaks.

    Raises:
        InvalidRequest: with the place and the reason.
    """
    unknown = sorted(set(body) - {*Verdict.__struct_fields__, "user"})
    if unknown:
        allowed = ", ".join((*Verdict.__struct_fields__, "user"))
        raise InvalidRequest(f"{unknown[0]}: there is no such field; allowed are {allowed}")
    decision_id = _string(body.get("decision_id"), "decision_id")
    kind = body.get("kind")
    if not isinstance(kind, str) or kind not in list(FeedbackKind):
        raise InvalidRequest(f"kind: given {_shown(kind)}, allowed are {', '.join(FeedbackKind)}")
    if kind != "rating" and "scale" in body:
        raise InvalidRequest(f"scale: a {kind} has none; leave it out")
    scale = _scale(body.get("scale", (0, 1)))
    value = _thumb(body.get("value")) if kind == "thumb" else _number(body.get("value"), "value")
    found = Verdict(
        decision_id=decision_id,
        kind=FeedbackKind(kind),
        value=value,
        scale=scale,
        dimension=_string(body.get("dimension", "overall"), "dimension"),
        other=None if body.get("other") is None else _string(body.get("other"), "other"),
    )
    return found, _identity({"user": body.get("user")}, headers, tenant)


def profile(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> tuple[Profile, Identity]:
    """What is declared in a body of PUT /v1/profile, and whose profile it is.

    Raises:
        InvalidRequest: with the place and the reason.
    """
    allowed = (*Profile.__struct_fields__, "user", "role")
    unknown = sorted(set(body) - set(allowed))
    if unknown:
        raise InvalidRequest(f"{unknown[0]}: there is no such field; allowed are {', '.join(allowed)}")
    values = _optional(body, "values", dict, "an object of dimension → −1 … 1") or {}
    statements = _optional(body, "statements", list, "an array of strings") or []
    found = Profile(
        values={_string(name, "values"): _number(value, f"values.{name}") for name, value in values.items()},
        statements=tuple(_statement(text, f"statements[{i}]") for i, text in enumerate(statements)),
    )
    who = {"user": body.get("user"), "metadata": {"role": body.get("role")}}
    return found, _identity(who, headers, tenant)


def policy_change(body: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
    """(action, settings, candidate) of a body of POST /v1/policy.

    Raises:
        InvalidRequest: with the place and the reason.
    """
    takes = {"set": "settings", "promote": "name", "restore": None}
    action = body.get("action")
    if not isinstance(action, str) or action not in takes:
        raise InvalidRequest(f"action: given is {_shown(action)}; allowed are {', '.join(takes)}")
    unknown = sorted(set(body) - {"action", takes[action]})
    if unknown:
        raise InvalidRequest(f"{unknown[0]}: there is no such field with the action {action!r}")
    settings = _optional(body, "settings", dict, "an object of setting → value") or {}
    name = _optional(body, "name", str, "the name of a candidate") or ""
    return action, settings, name


# --- messages and parameters ---------------------------------------------------------------------------------------


def _messages(given: object) -> tuple[Message, ...]:
    if not isinstance(given, list) or not given:
        raise InvalidRequest("messages: give an array with at least one message")
    if len(given) > MAX_MESSAGES:
        raise InvalidRequest(f"messages: given are {len(given)}, allowed are {MAX_MESSAGES}")
    for i, message in enumerate(given):
        _check_message(message, f"messages[{i}]")
    return tuple(given)


def _check_message(message: object, where: str) -> None:
    if not isinstance(message, dict):
        raise InvalidRequest(f"{where}: given is {_shown(message)}; a message is an object with 'role' and 'content'")
    role = message.get("role")
    if role not in _ROLES:
        raise InvalidRequest(f"{where}.role: given is {_shown(role)}; allowed are {', '.join(_ROLES)}")
    calls = message.get("tool_calls")
    content = message.get("content")
    if content is None:
        if role != "assistant":
            raise InvalidRequest(f"{where}.content: is missing; give a string or an array of parts")
    elif isinstance(content, list):
        for j, part in enumerate(content):
            _check_part(part, f"{where}.content[{j}]")
    elif not isinstance(content, str):
        raise InvalidRequest(f"{where}.content: given is {_shown(content)}; give a string or an array of parts")
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise InvalidRequest(f"{where}.tool_call_id: is missing; a tool's answer names the call it answers")
    if calls is not None:
        _check_calls(calls, f"{where}.tool_calls")


def _check_part(part: object, where: str) -> None:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise InvalidRequest(f"{where}: given is {_shown(part)}; a part is an object with 'type'")
    if part["type"] == "text" and not isinstance(part.get("text"), str):
        raise InvalidRequest(f"{where}.text: given is {_shown(part.get('text'))}; give a string")


def _check_calls(calls: object, where: str) -> None:
    if not isinstance(calls, list):
        raise InvalidRequest(f"{where}: given is {_shown(calls)}; give an array")
    for j, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        custom = call.get("custom") if isinstance(call, dict) else None
        if not isinstance(function, dict) and not isinstance(custom, dict):
            raise InvalidRequest(f"{where}[{j}]: given is {_shown(call)}; a call has an 'id' and a 'function'")
        if isinstance(function, dict) and not (
            isinstance(function.get("name"), str) and isinstance(function.get("arguments", ""), str)
        ):
            raise InvalidRequest(f"{where}[{j}].function: give 'name' and 'arguments' as strings")


def _check_params(body: dict[str, Any]) -> None:
    """The parameters that the router itself reads, and the types of the common ones."""
    for name in ("max_tokens", "max_completion_tokens"):
        limit = _optional(body, name, int, "a whole number")
        if limit is not None and not 1 <= limit <= 2**31:
            raise InvalidRequest(f"{name}: given is {limit}, allowed are 1 to {2**31}")
    for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty"):
        if body.get(name) is not None:
            _number(body[name], name)
    for name in ("tools", "functions"):
        items = _optional(body, name, list, "an array of objects") or []
        if any(not isinstance(item, dict) for item in items):
            raise InvalidRequest(f"{name}: give an array of objects")
    _optional(body, "response_format", dict, "an object")


def _optional(body: dict[str, Any], name: str, kind: type, allowed: str) -> Any:
    value = body.get(name)
    if value is None or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
        return value
    raise InvalidRequest(f"{name}: given is {_shown(value)}; allowed is {allowed}")


# --- identity ------------------------------------------------------------------------------------------------------


def _identity(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> Identity:
    """Each field on its own: from the header, else from `metadata`, else (the user) from `user`.

    The tenant is the key's, whatever is said.
    """
    channels: list[tuple[str, object]] = [
        ("", {"tenant": tenant}),
        (_HEADER, {name: _header(headers, _HEADER + name) for name in FIELDS}),
        ("metadata.", _optional(body, "metadata", dict, "an object")),
        ("", {"user": body.get("user")}),
    ]
    return Identity(**first_said(channels) | {"tenant": tenant})


def _header(headers: Mapping[str, bytes], name: str) -> str | None:
    raw = headers.get(name)
    if raw is None:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name}: the header is not UTF-8") from None


# --- values --------------------------------------------------------------------------------------------------------


def _string(value: object, where: str) -> str:
    name = name_of(value, where) if isinstance(value, str) else None
    if name is None:
        raise InvalidRequest(f"{where}: given is {_shown(value)}; give a string of 1 to {LONGEST} characters")
    return name


def _statement(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_STATEMENT:
        raise InvalidRequest(f"{where}: given is {_shown(value)}; give a string of 1 to {MAX_STATEMENT} characters")
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequest(f"{where}: given is {_shown(value)}; give a number")
    return float(value)


def _thumb(value: object) -> float:
    if value in ("up", 1):  # True is 1
        return 1.0
    if value in ("down", 0):
        return 0.0
    raise InvalidRequest(f"value: given is {_shown(value)}; a thumb is 'up' or 'down'")


def _scale(value: object) -> tuple[float, float]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise InvalidRequest(f"scale: given is {_shown(value)}; give [lowest, highest]")
    return _number(value[0], "scale[0]"), _number(value[1], "scale[1]")


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:60] + "…"
