"""The OpenAI format of answers, streams and errors, and the headers of a decision."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from fitrouter.errors import (
    AllModelsFailed,
    ContextOverflow,
    FitrouterError,
    ForbiddenField,
    InvalidRequest,
    NoEligibleModel,
    NotAuthorized,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    StoreError,
    TooLarge,
    UnknownDecision,
)
from fitrouter.providers.usage import usage_body
from fitrouter.types import Chunk, Completion, Decision, Message, Usage

DONE = b"data: [DONE]\n\n"


def dump(value: object) -> bytes:
    """Compact JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def event(value: object) -> bytes:
    """A server-sent event."""
    return b"data: " + dump(value) + b"\n\n"


# --- answers -------------------------------------------------------------------------------------------------------


class Reply:
    """Renders the answer of a decision.

    Args:
        decision: the decision.
        model: name of the model that answered.
        logged: whether the decision is durable.
    """

    def __init__(self, decision: Decision, model: str, logged: bool) -> None:
        self.decision, self.model, self.logged = decision, model, logged

    def headers(self) -> dict[str, str]:
        """Decision id, model that answered, propensity, logged, asked."""
        decision = self.decision
        return {
            "x-fitrouter-decision": decision.id,
            "x-fitrouter-model": quote(self.model, safe=" !#$&'()*+,/:;=?@[]~"),
            "x-fitrouter-propensity": repr(decision.propensity),
            "x-fitrouter-logged": _bool(self.logged),
            "x-fitrouter-asked": _bool(decision.asked),
        }

    def whole(self, completion: Completion, cost_usd: float) -> dict[str, Any]:
        """A `chat.completion`."""
        choice = {
            "index": 0,
            "message": completion.message,
            "logprobs": None,
            "finish_reason": completion.finish_reason,
        }
        return {
            **self._head("chat.completion"),
            "choices": [choice],
            "usage": usage_body(completion.usage),
            "fitrouter": {**self.about(), "cost_usd": cost_usd},
        }

    def first(self, delta: Message, finish_reason: str | None, usage: bool) -> dict[str, Any]:
        """The first `chat.completion.chunk`, with the decision in `fitrouter`."""
        return {**self.chunk(delta, finish_reason, usage), "fitrouter": self.about()}

    def chunk(self, delta: Message, finish_reason: str | None, usage: bool) -> dict[str, Any]:
        """A `chat.completion.chunk`. If the stream ends with a usage chunk, the others carry `usage: null`."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        head = self._head("chat.completion.chunk")
        return {**head, "choices": [choice], "usage": None} if usage else {**head, "choices": [choice]}

    def usage(self, usage: Usage, cost_usd: float | None) -> dict[str, Any]:
        """The final chunk for `stream_options.include_usage`."""
        about = {**self.about(), "cost_usd": cost_usd}
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage_body(usage), "fitrouter": about}

    def _head(self, kind: str) -> dict[str, Any]:
        created = int(self.decision.ts)
        return {"id": f"chatcmpl-{self.decision.id}", "object": kind, "created": created, "model": self.model}

    def about(self) -> dict[str, Any]:
        """The decision, as in the field `fitrouter`."""
        decision = self.decision
        return {
            "decision_id": decision.id,
            "model": self.model,
            "chosen": decision.chosen,
            "mode": decision.mode.value,
            "propensity": decision.propensity,
            "logged": self.logged,
            "asked": decision.asked,
        }


def relayed(chunk: Chunk) -> bool:
    """Whether a chunk has content; one that only counts tokens has none."""
    return bool(chunk.delta) or chunk.finish_reason is not None


def _bool(value: bool) -> str:
    return "true" if value else "false"


# --- errors --------------------------------------------------------------------------------------------------------


class Problem(Exception):
    """An error response: HTTP status, OpenAI's type and code, and headers."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        kind: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.kind = kind or ("invalid_request_error" if status < 500 else "api_error")
        self.param, self.headers = param, headers or {}

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return {"error": {"message": self.message, "type": self.kind, "code": self.code, "param": self.param}}


_STATUS: tuple[tuple[type[FitrouterError], int, str], ...] = (
    # The first match decides, so subclasses come before their bases.
    (ForbiddenField, 400, "forbidden_field"),
    (TooLarge, 413, "too_large"),
    (InvalidRequest, 400, "invalid_request"),
    (NotAuthorized, 403, "not_authorized"),
    (UnknownDecision, 404, "unknown_decision"),
    (ProviderTimeout, 504, "provider_timeout"),
    (ProviderError, 502, "provider_error"),
    (StoreError, 503, "store_unavailable"),
)


def as_problem(error: Exception) -> Problem:
    """The error response for an exception; unexpected exceptions reveal no details."""
    match error:
        case Problem():
            return error
        # Agents shorten their history on this OpenAI code.
        case NoEligibleModel(too_long=too_long):
            return Problem(400, "context_length_exceeded" if too_long else "no_eligible_model", str(error))
        case ContextOverflow():
            return Problem(400, "context_length_exceeded", str(error), param="messages")
        case ProviderRejected(status=status):
            # Pass on what the provider says of the request, but not errors of our own key.
            return Problem(status if status in {400, 404, 413, 415, 422} else 502, "provider_rejected", str(error))
        case AllModelsFailed(decision_id=decision_id, timed_out=timed_out):
            # Several models were tried already; a client that retries would multiply that.
            headers = {"x-should-retry": "false", "x-fitrouter-decision": decision_id}
            return Problem(504 if timed_out else 502, "all_models_failed", str(error), headers=headers)
        case FitrouterError():
            for kind, status, code in _STATUS:
                if isinstance(error, kind):
                    return Problem(status, code, str(error), headers={"retry-after": "1"} if status == 503 else None)
        case _:
            pass
    return Problem(500, "internal_error", "internal error; see the gateway's log")
