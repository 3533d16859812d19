"""Bodies of calls that were executed elsewhere: outcomes of plans, and observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from fitrouter.errors import InvalidRequest
from fitrouter.providers.usage import read_usage
from fitrouter.serving.external import AttemptReport, Outcome
from fitrouter.stores.journal import MOST_TOKENS
from fitrouter.types import Completion, Identity, Request, Usage
from fitrouter_integrations.client import ObservedCall
from fitrouter_integrations.gateway.parsing._messages import message_of, messages_of
from fitrouter_integrations.gateway.parsing._requests import chat_request
from fitrouter_integrations.gateway.parsing._typed import Amount, Body, Name, typed
from fitrouter_integrations.gateway.parsing._values import optional, shown

MAX_TRIED = 64
_COUNTS = ("prompt_tokens", "completion_tokens")


class AnswerBody(Body, frozen=True, kw_only=True):
    """The answer of a model that the client called."""

    message: dict[str, Any] | None = None
    """the complete assistant message; left out if no model answered"""
    finish_reason: Name | None = None
    """stop if left out"""
    usage: dict[str, Any] | None = None
    """as the provider reported it, in its own spelling, with cached and hidden tokens"""
    cost_usd: Amount | None = None
    """computed from the model's prices if left out"""


class TriedBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An attempted model."""

    model: Name
    ms: Amount
    error: Name | None = None
    """exception class; ProviderRejected: the request is invalid; ContextOverflow: it is too long"""
    probability: float | None = None


class OutcomeBody(AnswerBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The outcome of a plan."""

    messages: Annotated[Any, Meta(title="an array with at least one message")]
    """the messages of the plan's request"""
    tools: list[dict[str, Any]] | None = None
    tried: Annotated[list[TriedBody], Meta(max_length=MAX_TRIED)] | None
    """attempted models in the order of the plan; all but an answering last one have an error"""
    status: Literal["ok", "partial", "cancelled", "failed"]
    ttft_ms: Amount | None = None
    """time to the first chunk of a stream"""


class ObservationBody(AnswerBody, frozen=True, kw_only=True):
    """A call beside the router; all other fields are its request's."""

    model: Name
    """name of the called model"""
    latency_ms: Amount
    error: Name | None = None
    """exception class; ProviderRejected: the request is invalid; ContextOverflow: it is too long"""


def outcome(body: dict[str, Any], tenant: str) -> tuple[Request, Outcome]:
    """Parse the request and outcome in a body of POST /v1/plans/{decision_id}/outcome.

    Raises:
        InvalidRequest: names the field and the reason.
    """
    given = typed(body, OutcomeBody)
    request = Request(
        messages=messages_of(given.messages),
        params={} if given.tools is None else {"tools": given.tools},
        identity=Identity(tenant=tenant),
    )
    tried = (
        AttemptReport(model=one.model, ms=one.ms, error=one.error, probability=one.probability or 0.0)
        for one in given.tried or ()
    )
    return request, Outcome(
        tried=tuple(tried),
        status=given.status,
        completion=_completion(given),
        cost_usd=given.cost_usd,
        ttft_ms=given.ttft_ms,
    )


def observation(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> ObservedCall:
    """Parse the request and completion in a body of POST /v1/observations.

    Raises:
        ForbiddenField: the body sets transport.
        InvalidRequest: names the field and the reason.
    """
    own = {*ObservationBody.__struct_fields__} - {"model"}
    request = chat_request({name: value for name, value in body.items() if name not in own}, headers, tenant)
    given = typed(body, ObservationBody)
    return ObservedCall(
        request=request,
        model=given.model,
        completion=_completion(given),
        cost_usd=given.cost_usd,
        latency_ms=given.latency_ms,
        error=given.error,
    )


def _completion(given: AnswerBody) -> Completion | None:
    """Parse the completion in a body, None if there is none."""
    message = given.message
    if message is None:
        for name in ("finish_reason", "usage"):
            if getattr(given, name) is not None:
                raise InvalidRequest(f"{name}: needs 'message', the answer")
        return None
    if message.get("role") != "assistant":
        raise InvalidRequest(f"message.role: got {shown(message.get('role'))}; allowed is 'assistant'")
    usage = given.usage or {}
    prompt, completion = (optional(usage, name, int, "a whole number") or 0 for name in _COUNTS)
    read = read_usage(usage) or Usage()
    if not 0 <= min(prompt, completion) <= max(prompt, completion) <= MOST_TOKENS:  # for the error that says so
        read = Usage(prompt_tokens=prompt, completion_tokens=completion)
    return Completion(message=message_of(message, "message"), finish_reason=given.finish_reason or "stop", usage=read)
