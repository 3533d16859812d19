"""OpenAPI descriptions of the routes."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from fitrouter.serving.external import STATUSES
from fitrouter.state.settings import SETTINGS
from fitrouter.types import FeedbackKind

_STRING: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": "number"}
_BOOLEAN: dict[str, Any] = {"type": "boolean"}
_ANY: dict[str, Any] = {"type": "object", "additionalProperties": True}


def _object(properties: dict[str, Any], *required: str, more: bool = False) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": more}


_ERROR = _object(
    {"error": _object({"message": _STRING, "type": _STRING, "code": _STRING, "param": {}}, "message", "code")}
)

_MESSAGE = _object(
    {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool", "function"]},
        "content": {"type": ["string", "array", "null"], "items": _ANY},
        "tool_calls": {"type": "array", "items": _ANY},
        "tool_call_id": _STRING,
    },
    "role",
    more=True,
)
_METADATA = _object(dict.fromkeys(("user", "role", "task", "session"), _STRING), more=True)
_MESSAGES = {"type": "array", "items": _MESSAGE, "minItems": 1, "maxItems": 2048}
_TOOLS = {"type": "array", "items": _ANY}
_COUNT = {"type": "integer", "minimum": 0}
_AMOUNT = {"type": "number", "minimum": 0}
_CHAT = {
    "model": {
        **_STRING,
        "default": "fitrouter/auto",
        "description": "fitrouter/auto (routed), a model (pinned) or an alias",
    },
    "messages": _MESSAGES,
    "stream": {**_BOOLEAN, "default": False},
    "stream_options": _object({"include_usage": _BOOLEAN}, more=True),
    "user": _STRING,
    "metadata": {**_METADATA, "description": "identity, unless the x-fitrouter-* headers give it"},
    "tools": _TOOLS,
    "response_format": _ANY,
    "temperature": _NUMBER,
    "max_tokens": {"type": "integer", "minimum": 1},
}
_CHAT_BODY = _object(_CHAT, "messages", more=True)
_ERROR_NAME = {
    **_STRING,
    "description": "exception class; ProviderRejected: the request is invalid; ContextOverflow: it is too long",
}
_ANSWER = {
    "message": {**_MESSAGE, "description": "the complete assistant message; left out if no model answered"},
    "finish_reason": {**_STRING, "default": "stop"},
    "usage": _object({"prompt_tokens": _COUNT, "completion_tokens": _COUNT}, more=True),
    "cost_usd": {**_AMOUNT, "description": "computed from the model's prices if left out"},
}
_OUTCOME_BODY = _object(
    {
        "messages": {**_MESSAGES, "description": "the messages of the plan's request"},
        "tools": _TOOLS,
        "tried": {
            "type": "array",
            "maxItems": 64,
            "items": _object(
                {"model": _STRING, "ms": _AMOUNT, "error": _ERROR_NAME, "probability": _NUMBER}, "model", "ms"
            ),
            "description": "attempted models in the order of the plan; all but an answering last one have an error",
        },
        "status": {"enum": list(STATUSES)},
        **_ANSWER,
        "ttft_ms": {**_AMOUNT, "description": "time to the first chunk of a stream"},
    },
    "messages",
    "tried",
    "status",
)
_OBSERVATION_BODY = _object(
    {
        **_CHAT,
        "model": {**_STRING, "description": "name of the called model"},
        **_ANSWER,
        "latency_ms": _AMOUNT,
    }
    | {"error": _ERROR_NAME},
    "model",
    "messages",
    "latency_ms",
    more=True,
)
_FEEDBACK_BODY = _object(
    {
        "decision_id": _STRING,
        "kind": {"enum": [kind.value for kind in FeedbackKind]},
        "value": {
            "description": "thumb: up, down, true, false, 1, 0; rating: a number on the scale; pair: 1 better than "
            "`other`, 0.5 tie, 0 worse; accept, copy, regenerate: 1 or 0; edit: share of the text that was "
            "changed; dwell: seconds"
        },
        "scale": {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2, "default": [0, 1]},
        "dimension": {**_STRING, "default": "overall"},
        "other": {**_STRING, "description": "decision id of the other answer of a pair"},
        "user": {**_STRING, "description": "must be the user who got the answer"},
    },
    "decision_id",
    "kind",
    "value",
)
_PROFILE_BODY = _object(
    {
        "user": _STRING,
        "role": _STRING,
        "values": {
            "type": "object",
            "additionalProperties": {"type": "number", "minimum": -1, "maximum": 1},
            "description": "dimension → −1 (less) … 1 (more)",
        },
        "statements": {
            "type": "array",
            "items": {"type": "string", "maxLength": 1000},
            "maxItems": 64,
            "description": "preferences in words, such as 'I dislike bullet points'",
        },
    }
)
_POLICY_BODY = _object(
    {
        "action": {"enum": ["set", "promote", "restore"]},
        "settings": {"type": "object", "description": f"set: any of {', '.join(SETTINGS)}"},
        "name": {**_STRING, "description": "promote: name of a shadow candidate"},
    },
    "action",
)
_PLAN = _object(
    {
        "object": {"const": "fitrouter.plan"},
        "about": {**_ANY, "description": "the decision, with its decision_id"},
        "order": {
            "type": "array",
            "minItems": 1,
            "items": _object(
                {
                    "model": _STRING,
                    "target": {**_STRING, "description": "the provider's name of the model"},
                    "probability": {
                        **_NUMBER,
                        "description": "of being next, given earlier failures",
                    },
                    "variant": {
                        "type": ["object", "null"],
                        "description": "prefix: prepended to the system text; params: default parameters",
                    },
                    "dropped": {
                        "type": "array",
                        "items": _STRING,
                        "description": "parameters to leave out",
                    },
                },
                "model",
                "target",
                "probability",
                "variant",
                "dropped",
            ),
        },
        "deadline_s": _NUMBER,
    },
    "object",
    "about",
    "order",
    "deadline_s",
)
_IDENTITY = [
    {"name": f"x-fitrouter-{name}", "in": "header", "required": False, "schema": _STRING}
    for name in ("user", "role", "task", "session")
]


def _shape(answer: Any, *errors: int, body: Any = None, media: str = "application/json", **more: Any) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": "OK", "content": {media: {"schema": answer}}}}
    for status in errors:
        responses[str(status)] = {"description": "error", "content": {"application/json": {"schema": _ERROR}}}
    shape: dict[str, Any] = {"responses": responses, **more}
    if body is not None:
        shape["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return shape


def _path(name: str) -> list[dict[str, Any]]:
    return [{"name": name, "in": "path", "required": True, "schema": _STRING}]


CHAT = _shape(_ANY, 400, 401, 403, 404, 408, 413, 415, 502, 503, 504, body=_CHAT_BODY, parameters=_IDENTITY)
FEEDBACK = _shape(_ANY, 400, 401, 403, 404, 408, 413, 415, 503, body=_FEEDBACK_BODY, parameters=_IDENTITY[:1])
PROFILE = _shape(_ANY, 400, 401, 403, 408, 413, 415, 503, body=_PROFILE_BODY, parameters=_IDENTITY[:2])
POLICY = _shape(_ANY, 401, 403)
STEER = _shape(_ANY, 400, 401, 403, 408, 413, 415, 503, body=_POLICY_BODY)
DECIDE = _shape(_PLAN, 400, 401, 403, 404, 408, 413, 415, body=_CHAT_BODY, parameters=_IDENTITY)
DECISION = _shape(_ANY, 401, 403, 404, 503, parameters=_path("decision_id"))
OUTCOME = _shape(_ANY, 400, 401, 403, 404, 408, 413, 415, 503, body=_OUTCOME_BODY, parameters=_path("decision_id"))
OBSERVE = _shape(_ANY, 400, 401, 403, 404, 408, 413, 415, body=_OBSERVATION_BODY, parameters=_IDENTITY)
MODELS = _shape(_ANY, 401, 403)
MODEL = _shape(_ANY, 401, 403, 404, parameters=_path("model"))
METRICS = _shape(_STRING, 401, 403, 503, media="text/plain")
HEALTHZ = _shape(_ANY, 403)
READYZ = _shape(_ANY, 403, 503)


def version() -> str:
    """Version of the installed package."""
    return metadata.version("fitrouter")
