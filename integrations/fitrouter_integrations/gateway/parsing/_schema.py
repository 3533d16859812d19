"""The OpenAPI schema: bodies and answers from the structs that are decoded and encoded.

`openapi.yaml` has the types of OpenAI's and Anthropic's APIs, whose bodies are passed on with fields that nobody here
knows, and the answers that are no struct's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache, reduce
from importlib import metadata, resources
from typing import Any, NamedTuple

import msgspec
import yaml

from fitrouter.serving.model_registry import Addition
from fitrouter.serving.policy_control import Standing
from fitrouter.serving.runs import Reported, ShownRun
from fitrouter.stores.erasure import Erased
from fitrouter.stores.listing import ListedAnswer, ListedFeedback, ListedUser
from fitrouter_evaluators.personal import FitReport, Leaderboard, Profile, Progress, Scored
from fitrouter_evaluators.personal.audit.swaps import Audit
from fitrouter_evaluators.personal.diagnose.diagnosis import Diagnosis
from fitrouter_evaluators.personal.exposure import Exposure
from fitrouter_evaluators.personal.satisfaction import Satisfaction
from fitrouter_integrations.client import About, Plan
from fitrouter_integrations.gateway.me._links import Link, Withdrawn
from fitrouter_integrations.gateway.parsing._external import ObservationBody, OutcomeBody
from fitrouter_integrations.gateway.parsing._people import (
    FILTERS,
    HistoryBody,
    LinkBody,
    ProfileBody,
    QuizAnswerBody,
    QuizBody,
    ScoreBody,
)
from fitrouter_integrations.gateway.parsing._requests import FeedbackBody, PolicyBody, RunOutcomeBody
from fitrouter_integrations.gateway.parsing._types import Schema, struct_schema

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""In C, where PyYAML has it: a twentieth of the time."""
_SUMMARY = "An OpenAI-compatible gateway that routes each request to the model that suits its user and task."
_ALWAYS = (400, 401, 403, 408, 429, 431, 503)
"""Errors of every route: headers that are malformed, late or too long, keys, a crowded tenant, and overload."""
_WHO = ("user", "role", "task", "session", "run")
_ROUTE = (*_WHO, "tier")
_RUN = (*_ROUTE, "plan", "chosen-by")


class Operation(NamedTuple):
    """What a route takes and answers. A type is a struct, or a name in `openapi.yaml`; of several, all fields."""

    answer: type[msgspec.Struct] | str = "any"
    body: tuple[type[msgspec.Struct] | str, ...] = ()
    object: str = ""
    """Of an answer that is an object with the fields of a struct; `list` for one with a list of them."""
    headers: tuple[str, ...] = ()
    """Of the identity."""
    query: tuple[str, ...] = ()
    errors: tuple[int, ...] = ()
    """Besides those of every route, of every body (413, 415), and of a name in the path (404)."""
    media: str = "application/json"
    stream: bool = False
    unavailable: str = ""
    """Type of the answer with status 503."""
    error: str = "error"


class _ScoredPrompt(msgspec.Struct):
    answers: tuple[Scored, ...]


class _Scores(msgspec.Struct):
    user: str | None
    """Whose taste it is, by name; null for a role's and the population's."""
    items: tuple[_ScoredPrompt, ...]


class _Satisfaction(Satisfaction, frozen=True, kw_only=True):
    saved: tuple[str, ...]
    """What routing saved against the default and the best single model, in words."""


_ROUTED = (404, 502, 504)
OPERATIONS = {
    "chat": Operation("completion", ("chat",), headers=_RUN, errors=_ROUTED, stream=True),
    "messages": Operation(
        "anthropic_message", ("message_request",), headers=_RUN, errors=_ROUTED, stream=True, error="any_error"
    ),
    "count_tokens": Operation("tokens_counted", ("message_request",), headers=_WHO, error="any_error"),
    "responses": Operation("response", ("response_request",), headers=_RUN, errors=_ROUTED, stream=True),
    "input_tokens": Operation("input_counted", ("response_request",), headers=_WHO),
    "embeddings": Operation("embeddings_found", ("embeddings_request",), headers=_WHO, errors=_ROUTED),
    "models": Operation("models_list"),
    "model": Operation("model_entry"),
    "add_model": Operation(Addition, ("added_model",), "fitrouter.model"),
    "remove_model": Operation("removed_found"),
    "feedback": Operation("feedback_id", (FeedbackBody,), headers=("user",), errors=(404,)),
    "run_outcome": Operation(Reported, (RunOutcomeBody,), "fitrouter.run_outcome", ("user",)),
    "run": Operation(ShownRun, object="fitrouter.run", headers=("user",), query=("key",)),
    "profile": Operation("profile_found", (ProfileBody,), headers=("user", "role"), errors=(404,)),
    "show_profile": Operation(Profile, headers=("user", "role")),
    "erase_profile": Operation(Erased, object="fitrouter.erasure", headers=("user",)),
    "start_quiz": Operation(Progress, (QuizBody,), "fitrouter.quiz", ("user", "role"), errors=(404,)),
    "quiz": Operation(Progress, object="fitrouter.quiz", headers=("user",)),
    "link": Operation(Link, (LinkBody,), "fitrouter.link", ("user", "role")),
    "unlink": Operation(Withdrawn, object="fitrouter.link", headers=("user",)),
    "answer_quiz": Operation(Progress, (QuizAnswerBody,), "fitrouter.quiz", ("user",)),
    "score": Operation(_Scores, (ScoreBody,), "fitrouter.scores", ("user", "role")),
    "leaderboard": Operation(Leaderboard, object="fitrouter.leaderboard", headers=("user", "role"), query=FILTERS),
    "report": Operation(FitReport, object="fitrouter.report", headers=("user", "role")),
    "certificate": Operation("certificate", headers=("user", "role")),
    "suite": Operation("suite", headers=("user", "role")),
    "satisfaction": Operation(_Satisfaction, object="fitrouter.satisfaction"),
    "exposure": Operation(Exposure, object="fitrouter.exposure"),
    "audit": Operation(Audit, object="fitrouter.audit", headers=("role",), errors=(404,)),
    "diagnose": Operation(Diagnosis, (HistoryBody,), "fitrouter.diagnosis"),
    "decide": Operation(Plan, ("planned",), "fitrouter.plan", _ROUTE, errors=(404,)),
    "outcome": Operation("outcome_found", (OutcomeBody, "with_messages")),
    "observe": Operation("observed", ("asked", ObservationBody), headers=_WHO, errors=(404,)),
    "decision": Operation("explained", query=("now",)),
    "list_decisions": Operation(ListedAnswer, object="list", headers=("user", "role"), query=("last", "model")),
    "list_feedback": Operation(ListedFeedback, object="list", headers=("user", "role"), query=("last", "model")),
    "list_users": Operation(ListedUser, object="list", headers=("user",), query=("last",)),
    "policy": Operation(Standing, object="fitrouter.policy"),
    "steer": Operation(Standing, (PolicyBody,), "fitrouter.policy"),
    "metrics_page": Operation("string", media="text/plain"),
    "schema": Operation(),
    "healthz": Operation("healthy"),
    "readyz": Operation("ready", query=("strict",), unavailable="ready"),
}
"""Handler → its operation."""


@cache
def error_codes() -> dict[str, dict[str, Any]]:
    """Load the table of error codes: code → `statuses`, `when` it happens, and what to `do`."""
    found: dict[str, dict[str, Any]] = _yaml("errors.yaml")
    return found


def document(routes: Iterable[tuple[str, str, Callable[..., object]]]) -> dict[str, Any]:
    """Make the OpenAPI schema of routes.

    Args:
        routes: method, path and handler of each.
    """
    paths: dict[str, dict[str, Any]] = {}
    for method, path, handler in routes:
        plain = path.replace(":path", "")
        operation = {
            "summary": (handler.__doc__ or "").partition("\n")[0],
            "operationId": re.sub(r"\W", "_", f"{handler.__name__}{plain}_{method.lower()}"),
            **_described(OPERATIONS[handler.__name__], re.findall(r"\{(\w+)\}", plain)),
        }
        paths.setdefault(plain, {})[method.lower()] = operation
    info = {"title": "fitrouter", "summary": _SUMMARY, "version": metadata.version("fitrouter")}
    return {"openapi": "3.1.0", "info": info, "paths": paths}


def _described(operation: Operation, named: list[str]) -> dict[str, Any]:
    """Return an operation as OpenAPI has it; `named` are the names in its path."""
    error = schema_of(operation.error)
    content: dict[str, Any] = {operation.media: {"schema": _answer(operation)}}
    if operation.stream:
        content["text/event-stream"] = {}
    statuses = {*_ALWAYS, *operation.errors, *((413, 415) if operation.body else ()), *((404,) if named else ())}
    responses = {"200": {"description": "OK", "content": content}} | {
        str(status): _json_response("error", error) for status in sorted(statuses)
    }
    if operation.unavailable:
        either = {"anyOf": [schema_of(operation.unavailable), error]}
        responses["503"] = _json_response("not ready", either)
    places = [("header", f"x-fitrouter-{name}") for name in operation.headers]
    places += [("query", name) for name in operation.query] + [("path", name) for name in named]
    found: dict[str, Any] = {"responses": responses}
    if places:
        found["parameters"] = [
            {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}}
            for place, name in places
        ]
    if operation.body:
        body = reduce(_joined, map(schema_of, operation.body))
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return found


def _json_response(description: str, schema: Schema) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _answer(operation: Operation) -> Schema:
    if isinstance(operation.answer, str):
        return schema_of(operation.answer)
    found = struct_schema(operation.answer, answer=True)
    if operation.object == "list":
        return _object({"object": {"const": "list"}, "data": {"type": "array", "items": found}})
    return _joined(_object({"object": {"const": operation.object}}), found) if operation.object else found


def _object(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "required": list(properties), "properties": properties}


def _joined(first: Schema, second: Schema) -> Schema:
    """Return the schema of an object with the fields of two."""
    properties = first["properties"] | second["properties"]
    required = {*first["required"], *second["required"]}
    return first | {"properties": properties, "required": [name for name in properties if name in required]}


# --- types -----------------------------------------------------------------------------------------------------------


def schema_of(kind: type[msgspec.Struct] | str) -> Schema:
    """Return the JSON schema of the body that a struct decodes, or of a type of `openapi.yaml`."""
    return dict(_types()[kind]) if isinstance(kind, str) else struct_schema(kind)


@cache
def _types() -> dict[str, Schema]:
    found: dict[str, Schema] = _yaml("openapi.yaml")
    found["about"].update(schema_of(About))  # which other types refer to
    return found


def _yaml(name: str) -> Any:
    text = resources.files(__package__ or __name__).joinpath(name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe one
