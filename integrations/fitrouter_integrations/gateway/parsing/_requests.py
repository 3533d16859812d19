"""Parsing of request bodies and headers into requests, feedback and policy changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from fitrouter.errors import InvalidRequest
from fitrouter.identity import decision_id_of
from fitrouter.state.budgets import check_limit
from fitrouter.types import AUTO, FeedbackKind, Identity, Request
from fitrouter_integrations._identity import FIELDS, TIER, first_said
from fitrouter_integrations.client import Comment, RunVote, Vote
from fitrouter_integrations.gateway.parsing._messages import messages_of
from fitrouter_integrations.gateway.parsing._transport import forbid_transport
from fitrouter_integrations.gateway.parsing._typed import BY_DIMENSION, Body, Name, OfUser, Statement, Taste, typed
from fitrouter_integrations.gateway.parsing._values import number, optional, shown, string

MAX_CHOICES = 128
MAX_INPUTS = 2048
_HEADER = "x-fitrouter-"
"""Prefix of identity headers."""
PLAN, PLAN_BY = f"{_HEADER}plan", f"{_HEADER}chosen-by"
"""Headers that name the plan to be run, and say `person` where a person preferred its alternative."""
_OURS = frozenset({"model", "messages", "stream", "stream_options", "user", "metadata", "n"})
"""Fields that are not sent to providers, which get no identities."""
_AS_N = ("best_of", "candidate_count", "num_completions", "num_generations", "num_return_sequences")
"""What other servers call `n`, or draw as many for."""
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")
_USES_OF = {"tools": ("tool_choice", "parallel_tool_calls"), "functions": ("function_call",)}


Scale: TypeAlias = Annotated[tuple[float, float], Meta(title="[lowest, highest], such as [1, 5]")]


def chat_request(
    body: dict[str, Any], headers: Mapping[str, bytes], tenant: str, most_choices: int = 1, *, look: bool = False
) -> Request:
    """Parse a body of POST /v1/chat/completions into a request.

    Args:
        body: parsed JSON.
        headers: lower-case name → value.
        tenant: of the caller's key.
        most_choices: highest `n`.
        look: whether it is for a plan to be looked at. The trace is no run then, nor where a plan is run: two traces.

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
    n = optional(body, "n", int, "a whole number")
    n = 1 if n is None else n
    if not 1 <= n <= most_choices:
        raise InvalidRequest(f"n: got {n}; allowed is {'1' if most_choices == 1 else f'1 to {most_choices}'}")
    _check_params(body)
    metadata, plan = optional(body, "metadata", dict, "an object"), _header(headers, PLAN) or ""
    return Request(
        messages=messages_of(body.get("messages")),
        model=model,
        params=_params(body),
        identity=identity(headers, tenant, body.get("user"), metadata, traced=not (look or plan)),
        stream=stream,
        n=n,
        implicit=str((metadata or {}).get("implicit", True)).lower() != "false",
        tier=first_said(_channels(headers, metadata, TIER), TIER).get("tier", ""),
        plan=plan,
        person=_header(headers, PLAN_BY) == "person",
    )


def embeddings_request(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> Request:
    """Parse a body of POST /v1/embeddings into a request.

    Raises:
        ForbiddenField: the body sets transport.
        InvalidRequest: names the field and the reason.
    """
    forbid_transport(body)
    given = body.get("input")
    if not _is_input(given):
        raise InvalidRequest(
            f"input: got {shown(given)}; give a text, an array of tokens, or an array of 1 to {MAX_INPUTS} of either"
        )
    optional(body, "dimensions", int, "a whole number")
    optional(body, "encoding_format", str, "'float' or 'base64'")
    metadata = optional(body, "metadata", dict, "an object")
    return Request(
        messages=(),
        model=string(body.get("model"), "model"),
        params={name: value for name, value in body.items() if name not in _OURS and value is not None},
        identity=identity(headers, tenant, body.get("user"), metadata),
    )


def _is_input(given: object) -> bool:
    """Whether a value is a text, tokens, or a list of texts or tokens."""
    if isinstance(given, str):
        return bool(given)
    if not isinstance(given, list) or not given:
        return False
    if _are_tokens(given):
        return True
    return len(given) <= MAX_INPUTS and (
        all(isinstance(one, str) and one for one in given)
        or all(isinstance(one, list) and bool(one) and _are_tokens(one) for one in given)
    )


def _are_tokens(given: list[Any]) -> bool:
    return all(type(one) is int and 0 <= one < 2**31 for one in given)


def wants_usage(body: dict[str, Any]) -> bool:
    """Whether a stream should end with a usage chunk."""
    return bool((body.get("stream_options") or {}).get("include_usage"))


_VOTE = {"kind", "value", "scale", "default_scale", "other", "dimension"}
"""Fields of a vote; without any a comment stands alone."""


class FeedbackBody(OfUser, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A vote or a comment on an answer, or both."""

    user: str | int | None = None
    """must be the user who got the answer; or as x-fitrouter-user"""
    decision_id: Name
    kind: FeedbackKind | None = None
    """of a vote; left out if there is only a comment, or for the value up or down"""
    value: Any = None
    """thumb: up, down, true, false, 1, 0; rating: a number on the scale, or up or down; pair: 1 better than `other`,
    0.5 tie, 0 worse; accept, copy, regenerate: 1 or 0; edit: share of the text that was changed; dwell: seconds"""
    scale: Scale | None = None
    """of a rating: lowest and highest value, such as [1, 5]; without it the configured `feedback.scale`, else
    `default_scale`"""
    default_scale: Scale | None = None
    """[0, 1] if left out"""
    dimension: Name = "overall"
    other: Name | None = None
    """decision id of the other answer of a pair"""
    token: str | None = None
    """`fitrouter.token` of the answer, instead of `user`"""
    other_token: str | None = None
    """that of the other answer of a pair"""
    comment: Statement | None = None
    """what to change, such as 'too long, and stop the bullet points'; replaces an earlier comment on the answer; the
    text is kept only where `content` keeps texts"""
    understood: Annotated[dict[str, Taste], Meta(title=BY_DIMENSION)] | None = None
    """instead of a comment, a correction: dimension → −1 (less) … 1 (more); empty withdraws"""


def feedback(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> tuple[Vote | None, Comment | None]:
    """Parse the vote and the comment in a body of POST /v1/feedback: at least one of them.

    Raises:
        InvalidRequest: names the field and the reason.
    """
    given = typed(body, FeedbackBody)
    about: dict[str, Any] = {
        "decision_id": decision_id_of(given.decision_id),
        "user": identity(headers, tenant, given.user).user,
        "tenant": tenant,
        "token": given.token,
    }
    said = None
    if given.comment is not None and given.understood is not None:
        raise InvalidRequest("understood: give either a comment or what is to be understood of it, not both")
    if given.comment is not None or given.understood is not None:
        said = Comment(text=given.comment, understood=given.understood, **about)
    if said is not None and not _VOTE & body.keys():
        return None, said
    kind, value = given.kind, given.value
    if value in ("up", "down") and kind in (None, FeedbackKind.RATING):
        kind = FeedbackKind.THUMB
    elif kind is None:
        raise InvalidRequest(f'kind: missing; allowed are {", ".join(FeedbackKind)}, or "value": "up" without a kind')
    elif kind is not FeedbackKind.RATING and not given.scale is given.default_scale is None:
        raise InvalidRequest(f"scale: only a rating has a scale, not a {kind}; leave it out")
    rating = kind is FeedbackKind.RATING
    vote = Vote(
        kind=kind,
        value=_thumb(value) if kind is FeedbackKind.THUMB else number(value, "value"),
        scale=given.scale if rating else None,
        default_scale=given.default_scale if rating else None,
        dimension=given.dimension,
        other=None if given.other is None else decision_id_of(given.other),
        other_token=given.other_token,
        **about,
    )
    return vote, said


class RunOutcomeBody(OfUser, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a run of an agent ended."""

    user: str | int | None = None
    """must be the user of the run's requests, if they had one; or as x-fitrouter-user"""
    value: bool | float
    """success: true or false; rating: on the scale; number: one beyond the scale counts as its end"""
    kind: Literal["success", "rating", "number"] = "success"
    scale: Annotated[tuple[float, float], Meta(title="[worst, best], such as [1, 5]")] | None = None
    """of a rating or number: its worst and its best value, such as [50000, 0] tokens; if left out
    `feedback.scale` for a rating, else [0, 1]"""
    source: Literal["person", "check", "adapter"] = "check"
    """who says so; a person counts more than a program, and that more than an adapter"""
    key: Name | None = None
    """key without `trusted` that began the run, if another one reports"""


def run_outcome(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str, run: str) -> RunVote:
    """Parse a body of POST /v1/runs/{run_id}/outcome.

    Raises:
        InvalidRequest: names the field and the reason.
    """
    given = typed(body, RunOutcomeBody)
    return RunVote(
        run=run,
        value=given.value,
        kind=given.kind,
        scale=given.scale,
        source=given.source,
        user=identity(headers, tenant, given.user).user,
        key=given.key or "",
        tenant=tenant,
    )


class PolicyBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of the policy."""

    action: Literal["set", "promote", "restore", "budget"]
    settings: dict[str, Any] | UnsetType = UNSET
    """set: any of $settings"""
    name: str | UnsetType = UNSET
    """promote: name of a shadow candidate"""
    tenant: str | UnsetType = UNSET
    """budget: whose limit"""
    usd_per_period: float | UnsetType | None = UNSET
    """budget: limit of the tenant's period; null takes the configuration's"""


def policy_change(body: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
    """Parse a body of POST /v1/policy: action, settings, and candidate or tenant.

    Raises:
        InvalidRequest: names the field and the reason.
    """
    given = typed(body, PolicyBody)
    takes = {"set": {"settings"}, "promote": {"name"}, "restore": set[str](), "budget": {"tenant", "usd_per_period"}}
    if unknown := sorted(set(body) - {"action"} - takes[given.action]):
        raise InvalidRequest(f"{unknown[0]}: unknown field for the action {given.action!r}")
    if given.action == "budget":
        if missing := sorted(takes["budget"] - set(body)):
            raise InvalidRequest(f"{missing[0]}: missing; give a tenant and its usd_per_period, null to take it back")
        tenant, usd = check_limit(given.tenant, given.usd_per_period)
        return given.action, {"usd_per_period": usd}, tenant
    return given.action, given.settings or {}, given.name or ""


# --- parameters ---------------------------------------------------------------------------------------------------


def _params(body: dict[str, Any]) -> dict[str, Any]:
    """Return the fields for providers; how to use tools only beside tools: some always send it, servers refuse it."""
    found = {name: value for name, value in body.items() if name not in _OURS and value is not None}
    for offered, uses in _USES_OF.items():
        if not found.get(offered):
            for name in (offered, *uses):
                if found.get(name) in ([], "auto", "none", True, False):
                    del found[name]
    return found


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
    for name in _AS_N:
        if body.get(name) not in (None, 1):
            raise InvalidRequest(f"{name}: give the number of choices as 'n', by which they are counted")
    optional(body, "response_format", dict, "an object")


# --- identity ------------------------------------------------------------------------------------------------------


def identity(
    headers: Mapping[str, bytes], tenant: str, user: object = None, metadata: object = None, *, traced: bool = True
) -> Identity:
    """Parse the identity: each field from its header, else from `metadata`, else the user from `user`.

    Without any, the trace of a caller that sends one is its run, if it is `traced`.

    The tenant is always that of the key.
    """
    trace = [_trace(headers)] if traced else []
    found = first_said([("", {"tenant": tenant}), *_channels(headers, metadata, FIELDS), ("", {"user": user}), *trace])
    return Identity(**found | {"tenant": tenant})


def _channels(headers: Mapping[str, bytes], metadata: object, fields: Iterable[str]) -> list[tuple[str, object]]:
    """List the channels of fields: their headers, then `metadata`."""
    said = {name: _header(headers, _HEADER + name) for name in fields if _HEADER + name in headers}
    return [(_HEADER, said), ("metadata.", metadata)]


def _trace(headers: Mapping[str, bytes]) -> tuple[str, object]:
    """Return the id of the W3C trace that a request is part of, as a channel of its run."""
    found = _TRACEPARENT.fullmatch(headers.get("traceparent", b""))
    return "traceparent: ", {"run": found[1].decode()} if found and set(found[1]) != {ord("0")} else None


def _header(headers: Mapping[str, bytes], name: str) -> str | None:
    raw = headers.get(name)
    if raw is None:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name}: the header is not UTF-8") from None


# --- values --------------------------------------------------------------------------------------------------------


def _thumb(value: object) -> float:
    if value in ("up", 1):  # True is 1
        return 1.0
    if value in ("down", 0):
        return 0.0
    raise InvalidRequest(f"value: got {shown(value)}; a thumb is 'up' or 'down'")
