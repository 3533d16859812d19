"""Parsing of request bodies and headers into requests, feedback, profiles and policy changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fitrouter.errors import InvalidRequest
from fitrouter.types import AUTO, FeedbackKind, Identity, Request
from fitrouter_integrations._identity import FIELDS, first_said
from fitrouter_integrations.client import Vote
from fitrouter_integrations.gateway._messages import messages_of
from fitrouter_integrations.gateway._transport import forbid_transport
from fitrouter_integrations.gateway._values import check_fields, number, optional, shown, string

MAX_STATEMENT = 1000
_VOTE = ("decision_id", "kind", "value", "scale", "dimension", "other", "user")
_HEADER = "x-fitrouter-"
"""Prefix of identity headers."""
_OURS = frozenset({"model", "messages", "stream", "stream_options", "user", "metadata", "n"})
"""Fields that are not sent to providers, which get no identities."""


def chat_request(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> Request:
    """The request in a body of POST /v1/chat/completions.

    Args:
        body: parsed JSON.
        headers: lower-case name → value.
        tenant: of the caller's key.

    Raises:
        ForbiddenField: the body sets transport.
        InvalidRequest: names the field and the reason.
    """
    forbid_transport(body)
    model = string(body.get("model", AUTO), "model")
    stream = optional(body, "stream", bool, "true or false") or False
    options = optional(body, "stream_options", dict, "an object") or {}
    if options and not stream:
        raise InvalidRequest("stream_options: only allowed with 'stream': true")
    if body.get("n") not in (None, 1):
        raise InvalidRequest(f"n: got {body['n']!r}; allowed is 1, since one decision gives one answer")
    _check_params(body)
    return Request(
        messages=messages_of(body.get("messages")),
        model=model,
        params={name: value for name, value in body.items() if name not in _OURS and value is not None},
        identity=_identity(body, headers, tenant),
        stream=stream,
    )


def wants_usage(body: dict[str, Any]) -> bool:
    """Whether a stream should end with a usage chunk."""
    return bool((body.get("stream_options") or {}).get("include_usage"))


def vote(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> Vote:
    """The vote in a body of POST /v1/feedback.

    Raises:
        InvalidRequest: names the field and the reason.
    """
    check_fields(body, _VOTE)
    decision_id = string(body.get("decision_id"), "decision_id")
    kind = body.get("kind")
    if not isinstance(kind, str) or kind not in list(FeedbackKind):
        raise InvalidRequest(f"kind: got {shown(kind)}; allowed are {', '.join(FeedbackKind)}")
    if kind != "rating" and "scale" in body:
        raise InvalidRequest(f"scale: only a rating has a scale, not a {kind}; leave it out")
    scale = _scale(body.get("scale", (0, 1)))
    value = _thumb(body.get("value")) if kind == "thumb" else number(body.get("value"), "value")
    who = _identity({"user": body.get("user")}, headers, tenant)
    return Vote(
        decision_id=decision_id,
        kind=FeedbackKind(kind),
        value=value,
        scale=scale,
        dimension=string(body.get("dimension", "overall"), "dimension"),
        other=None if body.get("other") is None else string(body.get("other"), "other"),
        user=who.user,
        tenant=tenant,
    )


def profile(
    body: dict[str, Any], headers: Mapping[str, bytes], tenant: str
) -> tuple[dict[str, float], list[str], Identity]:
    """The values and statements in a body of PUT /v1/profile, and the identity that they belong to.

    Raises:
        InvalidRequest: names the field and the reason.
    """
    check_fields(body, ("values", "statements", "user", "role"))
    values = optional(body, "values", dict, "an object of dimension → −1 … 1") or {}
    statements = optional(body, "statements", list, "an array of strings") or []
    who = {"user": body.get("user"), "metadata": {"role": body.get("role")}}
    return (
        {string(name, "values"): number(value, f"values.{name}") for name, value in values.items()},
        [_statement(text, f"statements[{i}]") for i, text in enumerate(statements)],
        _identity(who, headers, tenant),
    )


def policy_change(body: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
    """(action, settings, candidate) of a body of POST /v1/policy.

    Raises:
        InvalidRequest: names the field and the reason.
    """
    takes = {"set": "settings", "promote": "name", "restore": None}
    action = body.get("action")
    if not isinstance(action, str) or action not in takes:
        raise InvalidRequest(f"action: got {shown(action)}; allowed are {', '.join(takes)}")
    unknown = sorted(set(body) - {"action", takes[action]})
    if unknown:
        raise InvalidRequest(f"{unknown[0]}: unknown field for the action {action!r}")
    settings = optional(body, "settings", dict, "an object of setting → value") or {}
    name = optional(body, "name", str, "the name of a candidate") or ""
    return action, settings, name


# --- parameters ---------------------------------------------------------------------------------------------------


def _check_params(body: dict[str, Any]) -> None:
    """Check the parameters that the router reads, and the types of common ones."""
    for name in ("max_tokens", "max_completion_tokens"):
        limit = optional(body, name, int, "a whole number")
        if limit is not None and not 1 <= limit <= 2**31:
            raise InvalidRequest(f"{name}: got {limit}; allowed are 1 to {2**31}")
    for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty"):
        if body.get(name) is not None:
            number(body[name], name)
    for name in ("tools", "functions"):
        items = optional(body, name, list, "an array of objects") or []
        if any(not isinstance(item, dict) for item in items):
            raise InvalidRequest(f"{name}: give an array of objects")
    optional(body, "response_format", dict, "an object")


# --- identity ------------------------------------------------------------------------------------------------------


def _identity(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> Identity:
    """The identity: each field from its header, else from `metadata`, else (the user) from `user`.

    The tenant is always that of the key.
    """
    channels: list[tuple[str, object]] = [
        ("", {"tenant": tenant}),
        (_HEADER, {name: _header(headers, _HEADER + name) for name in FIELDS}),
        ("metadata.", optional(body, "metadata", dict, "an object")),
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


def _statement(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_STATEMENT:
        raise InvalidRequest(f"{where}: got {shown(value)}; give a string of 1 to {MAX_STATEMENT} characters")
    return value


def _thumb(value: object) -> float:
    if value in ("up", 1):  # True is 1
        return 1.0
    if value in ("down", 0):
        return 0.0
    raise InvalidRequest(f"value: got {shown(value)}; a thumb is 'up' or 'down'")


def _scale(value: object) -> tuple[float, float]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise InvalidRequest(f"scale: got {shown(value)}; give [lowest, highest]")
    return number(value[0], "scale[0]"), number(value[1], "scale[1]")
