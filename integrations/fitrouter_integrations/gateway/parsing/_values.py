"""Validation of values in request bodies."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fitrouter.errors import InvalidRequest
from fitrouter_integrations._identity import LONGEST, name_of


def check_fields(body: dict[str, Any], allowed: Collection[str]) -> None:
    """Raise InvalidRequest if a body has a field that is not allowed."""
    unknown = sorted(set(body) - set(allowed))
    if unknown:
        raise InvalidRequest(f"{shown(unknown[0])}: unknown field; allowed are {', '.join(allowed)}")


def optional(body: dict[str, Any], name: str, kind: type, allowed: str) -> Any:
    """Return a field of a body, None if it is missing or null; raises InvalidRequest if it has another type."""
    value = body.get(name)
    if value is None or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
        return value
    raise InvalidRequest(f"{name}: got {shown(value)}; give {allowed}")


def string(value: object, where: str) -> str:
    """Check that a value is a non-empty string, and return it."""
    name = name_of(value, where) if isinstance(value, str) else None
    if name is None:
        raise InvalidRequest(f"{where}: got {shown(value)}; give a string of 1 to {LONGEST} characters")
    return name


def number(value: object, where: str) -> float:
    """Check that a value is a number, and return it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequest(f"{where}: got {shown(value)}; give a number")
    return float(value)


def shown(value: object) -> str:
    """Format a value for an error message: short and in ASCII."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:60] + "…"
