"""The OpenAI format of answers, streams and errors, and the headers of a decision."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote
from uuid import UUID

import msgspec
from starlette.types import Scope

from fitrouter import errors
from fitrouter.errors import FitrouterError, masked
from fitrouter.providers import without_addresses
from fitrouter.providers.usage import usage_body
from fitrouter.serving.embeddings import Embedded
from fitrouter.types import Chunk, Completion, Usage
from fitrouter_integrations._errors import CODES
from fitrouter_integrations.client import About, Reply

_PLAIN = " !#$&'()*+,/:;=?@[]~"
"""Characters of headers that are not quoted."""
DONE = b"data: [DONE]\n\n"


def dump(value: object) -> bytes:
    """Encode a value as compact JSON in UTF-8; numbers that are not finite, which JSON does not have, become null."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "replace")


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def event(value: object) -> bytes:
    """Encode a value as a server-sent event."""
    return b"data: " + dump(value) + b"\n\n"


# --- answers -------------------------------------------------------------------------------------------------------


def decision_headers(about: About) -> dict[str, str]:
    """Return the `x-fitrouter-…` headers of a decision, those of token, dropped and max-tokens where there are any."""
    return {
        "x-fitrouter-decision": about.decision_id,
        "x-fitrouter-model": quote(about.model, safe=_PLAIN),
        "x-fitrouter-propensity": repr(about.propensity),
        "x-fitrouter-logged": _bool(about.logged),
        "x-fitrouter-asked": _bool(about.asked),
        **({"x-fitrouter-token": about.token} if about.token else {}),
        **dropped_header(about.dropped),
        **({"x-fitrouter-max-tokens": str(about.max_tokens)} if about.max_tokens is not None else {}),
    }


def dropped_header(dropped: tuple[str, ...]) -> dict[str, str]:
    """Return the header that names what was left out of a request; none for nothing."""
    return {"x-fitrouter-dropped": quote(", ".join(dropped), safe=_PLAIN)} if dropped else {}


def about_json(about: About) -> dict[str, Any]:
    """Return the decision as in the field `fitrouter`, before its cost is known."""
    return {name: value for name, value in told_json(about).items() if name != "cost_usd"}


def told_json(about: About) -> dict[str, Any]:
    """Return the decision as in the field `fitrouter`; `dropped` and `max_tokens` only where something was."""
    seldom = ("dropped", "max_tokens")
    return {name: value for name, value in msgspec.to_builtins(about).items() if name not in seldom or value}


def completion_json(reply: Reply) -> dict[str, Any]:
    """Return an answer as a `chat.completion`."""
    choices: tuple[Reply | Completion, ...] = (reply, *reply.others)
    return {
        **reply.further,
        **_head("chat.completion", reply.about),
        "choices": [
            one.beside
            | {"index": i, "message": one.message, "logprobs": one.logprobs, "finish_reason": one.finish_reason}
            for i, one in enumerate(choices)
        ],
        "usage": usage_body(reply.usage),
        "fitrouter": told_json(reply.about),
    }


def embeddings_json(embedded: Embedded, about: About) -> bytes:
    """Encode OpenAI's list of embeddings, with the provider's vectors as they came."""
    tokens = embedded.found.usage.prompt_tokens
    body = {
        "object": "list",
        "data": embedded.found.data,
        "model": about.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "fitrouter": told_json(about),
    }
    return msgspec.json.encode(body)


def chunk_json(about: About, chunk: Chunk, usage: bool) -> dict[str, Any]:
    """Return a chunk as a `chat.completion.chunk`, with `usage: null` if the stream will end with a usage chunk."""
    choice = {
        **chunk.beside,
        "index": chunk.index,
        "delta": chunk.delta,
        "logprobs": chunk.logprobs,
        "finish_reason": chunk.finish_reason,
    }
    body = {**chunk.further, **_head("chat.completion.chunk", about), "choices": [choice]}
    return {**body, "usage": None} if usage else body


def usage_json(about: About, usage: Usage) -> dict[str, Any]:
    """Return the final chunk for `stream_options.include_usage`."""
    head = _head("chat.completion.chunk", about)
    return {**head, "choices": [], "usage": usage_body(usage), "fitrouter": told_json(about)}


def _head(kind: str, about: About) -> dict[str, Any]:
    created = (UUID(about.decision_id).int >> 80) // 1000  # the id is a UUIDv7, which begins with its time
    return {"id": f"chatcmpl-{about.decision_id}", "object": kind, "created": created, "model": about.model}


def _bool(value: bool) -> str:
    return "true" if value else "false"


# --- errors --------------------------------------------------------------------------------------------------------


class Problem(Exception):
    """An error response: HTTP status, OpenAI's type and code, and headers."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        self.status, self.code, self.message = status, code, masked(message)
        super().__init__(self.message)
        self.kind = "invalid_request_error" if status < 500 else "api_error"
        self.param, self.headers = param, headers or {}
        self.more: dict[str, Any] = {}
        """What the answer has besides."""

    def body(self, path: str = "") -> dict[str, Any]:
        """Return the error object of the API at a path: OpenAI's, or Anthropic's."""
        if path.startswith("/v1/messages"):
            return self.anthropic()
        return {
            "error": {"message": self.message, "type": self.kind, "code": self.code, "param": self.param},
            **self.more,
        }

    def anthropic(self) -> dict[str, Any]:
        """Anthropic's error object, with our code."""
        kind = _ANTHROPIC.get(self.status, self.kind)
        # Agents shorten their history on these words.
        message = f"prompt is too long: {self.message}" if self.code == "context_length_exceeded" else self.message
        return {"type": "error", "error": {"type": kind, "message": message, "code": self.code}}


_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    402: "billing_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Status → Anthropic's type of error, where it is not OpenAI's."""


def _when(error: FitrouterError, status: int) -> dict[str, str]:
    """Return headers with the time to try again; none for an error that a retry does not fix."""
    if isinstance(error, errors.Unavailable):
        decided = {"x-fitrouter-decision": error.decision_id} if error.decision_id else {}
        if isinstance(error, errors.BudgetExhausted):
            decided["x-should-retry"] = "false"  # not within the patience of a client library
        return {"retry-after": str(max(1, math.ceil(error.retry_after_s))), **decided}
    return {"retry-after": "1"} if status == 503 else {}


HIDES = "fitrouter.hides"
"""Of a request's scope: function that returns what its caller must not read → what stands for it."""


def as_problem(error: Exception, scope: Scope | None = None) -> Problem:
    """Return the error response for an exception, without what the caller of the scope must not read."""
    problem = _problem(error)
    problem.message = readable(problem.message, scope or {})
    return problem


def readable(said: Any, scope: Mapping[str, Any]) -> Any:
    """Return a text, or a value of JSON, without what the caller of a scope must not read: addresses of networks."""
    if HIDES not in scope:
        return said
    if isinstance(said, dict):
        return {name: readable(each, scope) for name, each in said.items()}
    if isinstance(said, list):
        return [readable(each, scope) for each in said]
    if not isinstance(said, str):
        return said
    for address, name in scope[HIDES]().items():
        said = name.join(re.split(re.escape(address), said, flags=re.IGNORECASE))
    return without_addresses(said)


def _problem(error: Exception) -> Problem:
    """Return the error response for an exception; unexpected exceptions reveal no details."""
    match error:
        case Problem():
            return error
        # Agents shorten their history on this OpenAI code.
        case errors.NoEligibleModel(too_long=too_long):
            return Problem(400, "context_length_exceeded" if too_long else "no_eligible_model", str(error))
        case errors.ContextOverflow():
            return Problem(400, "context_length_exceeded", str(error), param="messages")
        case errors.ProviderRejected(status=status):
            # Pass on what the provider says of the request, but not errors of our own key.
            return Problem(status if status in {400, 404, 413, 415, 422} else 502, "provider_rejected", str(error))
        case errors.AllModelsFailed(decision_id=decision_id, timed_out=timed_out):
            # Several models were tried already; a client that retries would multiply that.
            headers = {"x-should-retry": "false", "x-fitrouter-decision": decision_id}
            return Problem(504 if timed_out else 502, "all_models_failed", str(error), headers=headers)
        case FitrouterError():
            for kind, status, code in CODES:
                if isinstance(error, kind):
                    return Problem(status, code, str(error), headers=_when(error, status))
        case _:
            pass
    return Problem(500, "internal_error", "internal error; see the gateway's log")
