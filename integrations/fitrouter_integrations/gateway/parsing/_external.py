"""Bodies of calls that were executed elsewhere: outcomes of plans, and observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fitrouter.errors import InvalidRequest
from fitrouter.providers.usage import read_usage
from fitrouter.serving.external import AttemptReport, Outcome
from fitrouter.stores.journal import MOST_TOKENS
from fitrouter.types import Completion, Identity, Request, Usage
from fitrouter_integrations.client import ObservedCall
from fitrouter_integrations.gateway.parsing._messages import message_of, messages_of
from fitrouter_integrations.gateway.parsing._requests import chat_request
from fitrouter_integrations.gateway.parsing._values import check_fields, number, optional, shown, string

MAX_TRIED = 64
_ANSWER = ("message", "finish_reason", "usage", "cost_usd")
_COUNTS = ("prompt_tokens", "completion_tokens")
_OUTCOME = ("messages", "tools", "tried", "status", *_ANSWER, "ttft_ms")
_TRIED = ("model", "ms", "error", "probability")


def outcome(body: dict[str, Any], tenant: str) -> tuple[Request, Outcome]:
    """Parse the request and outcome in a body of POST /v1/plans/{decision_id}/outcome.

    Raises:
        InvalidRequest: names the field and the reason.
    """
    check_fields(body, _OUTCOME)
    tools = optional(body, "tools", list, "an array of objects")
    if any(not isinstance(tool, dict) for tool in tools or ()):
        raise InvalidRequest("tools: give an array of objects")
    tried = optional(body, "tried", list, "an array of objects") or []
    if len(tried) > MAX_TRIED:
        raise InvalidRequest(f"tried: {len(tried)} were given, at most {MAX_TRIED} are allowed")
    request = Request(
        messages=messages_of(body.get("messages")),
        params={} if tools is None else {"tools": tools},
        identity=Identity(tenant=tenant),
    )
    ended = Outcome(
        tried=tuple(_tried(one, f"tried[{i}]") for i, one in enumerate(tried)),
        status=string(body.get("status"), "status"),
        completion=_completion(body),
        cost_usd=_number(body.get("cost_usd"), "cost_usd"),
        ttft_ms=_number(body.get("ttft_ms"), "ttft_ms"),
    )
    return request, ended


def observation(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> ObservedCall:
    """Parse the request and completion in a body of POST /v1/observations.

    Raises:
        ForbiddenField: the body sets transport.
        InvalidRequest: names the field and the reason.
    """
    own = {*_ANSWER, "latency_ms", "error"}
    model = string(body.get("model"), "model")
    return ObservedCall(
        request=chat_request({name: value for name, value in body.items() if name not in own}, headers, tenant),
        model=model,
        completion=_completion(body),
        cost_usd=_number(body.get("cost_usd"), "cost_usd"),
        latency_ms=number(body.get("latency_ms"), "latency_ms"),
        error=_string(body.get("error"), "error"),
    )


def _tried(given: object, where: str) -> AttemptReport:
    if not isinstance(given, dict):
        raise InvalidRequest(f"{where}: got {shown(given)}; give an object with {', '.join(_TRIED)}")
    check_fields(given, _TRIED)
    return AttemptReport(
        model=string(given.get("model"), f"{where}.model"),
        ms=number(given.get("ms"), f"{where}.ms"),
        error=_string(given.get("error"), f"{where}.error"),
        probability=_number(given.get("probability"), f"{where}.probability") or 0.0,
    )


def _completion(body: dict[str, Any]) -> Completion | None:
    """Parse the completion in a body, None if there is none."""
    message = optional(body, "message", dict, "the assistant's message")
    if message is None:
        if given := [name for name in ("finish_reason", "usage") if body.get(name) is not None]:
            raise InvalidRequest(f"{given[0]}: needs 'message', the answer")
        return None
    if message.get("role") != "assistant":
        raise InvalidRequest(f"message.role: got {shown(message.get('role'))}; allowed is 'assistant'")
    usage = optional(body, "usage", dict, "an object with prompt_tokens and completion_tokens") or {}
    prompt, completion = (optional(usage, name, int, "a whole number") or 0 for name in _COUNTS)
    read = read_usage(usage) or Usage()
    if not 0 <= min(prompt, completion) <= max(prompt, completion) <= MOST_TOKENS:  # for the error that says so
        read = Usage(prompt_tokens=prompt, completion_tokens=completion)
    return Completion(
        message=message_of(message, "message"),
        finish_reason=_string(body.get("finish_reason"), "finish_reason") or "stop",
        usage=read,
    )


def _string(value: object, where: str) -> str | None:
    return None if value is None else string(value, where)


def _number(value: object, where: str) -> float | None:
    return None if value is None else number(value, where)
