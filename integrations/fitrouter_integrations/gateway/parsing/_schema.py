"""OpenAPI operations of the routes, from `openapi.yaml`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources
from string import Template
from typing import Any

import yaml

from fitrouter.serving.external import STATUSES
from fitrouter.state.settings import SETTINGS
from fitrouter.types import FeedbackKind

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""In C, where PyYAML has it: a twentieth of the time at the start of every gateway."""
_ALWAYS = (400, 401, 403, 408, 429, 431, 503)
"""Errors of every route: headers that are malformed, late or too long, keys, a crowded tenant, and overload."""


@cache
def error_codes() -> dict[str, dict[str, Any]]:
    """Load the table of error codes: code → `statuses`, `when` it happens, and what to `do`."""
    text = resources.files(__package__ or __name__).joinpath("errors.yaml").read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = yaml.load(text, _LOADER)  # noqa: S506 - a safe loader
    return found


@cache
def operations() -> dict[str, dict[str, Any]]:
    """Load the OpenAPI operations of the routes, by the name of their handler."""
    text = resources.files(__package__ or __name__).joinpath("openapi.yaml").read_text(encoding="utf-8")
    names: dict[str, Iterable[str]] = {"kinds": FeedbackKind, "settings": SETTINGS, "statuses": STATUSES}
    filled = Template(text).substitute({key: ", ".join(each) for key, each in names.items()})
    described = yaml.load(filled, _LOADER)  # noqa: S506 - a safe loader
    types = described["types"]
    return {handler: _operation(types, **route) for handler, route in described["routes"].items()}


def _operation(
    types: dict[str, Any],
    errors: list[int],
    body: Any = None,
    answer: Any = None,
    headers: tuple[str, ...] = (),
    query: tuple[str, ...] = (),
    path: str | None = None,
    media: str = "application/json",
    stream: bool = False,
    unavailable: Any = None,
    error: Any = None,
) -> dict[str, Any]:
    failed = {"description": "error", "content": {"application/json": {"schema": error or types["error"]}}}
    content = {media: {"schema": answer or types["any"]}}
    if stream:
        content["text/event-stream"] = {}
    operation: dict[str, Any] = {"responses": {"200": {"description": "OK", "content": content}}}
    operation["responses"] |= {str(status): failed for status in sorted({*_ALWAYS, *errors})}
    if unavailable is not None:
        schema = {"anyOf": [unavailable, types["error"]]}
        operation["responses"]["503"] = {
            "description": "not ready",
            "content": {"application/json": {"schema": schema}},
        }
    places = [("header", f"x-fitrouter-{name}", False) for name in headers] + [("query", name, False) for name in query]
    places += [("path", path, True)] if path else []
    if places:
        operation["parameters"] = [
            {"name": name, "in": place, "required": required, "schema": types["string"]}
            for place, name, required in places
        ]
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation
