"""Typed bodies: structs that parsed bodies are decoded into, with errors that name the field and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from fitrouter.errors import InvalidRequest
from fitrouter_integrations._identity import LONGEST
from fitrouter_integrations.gateway.parsing._types import Schema, struct_schema
from fitrouter_integrations.gateway.parsing._values import shown

MAX_STATEMENT = 1000
_LINE, _WORDS = f"one line of 1 to {LONGEST} characters", f"a string of 1 to {MAX_STATEMENT} characters"
Name: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=LONGEST, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$", title=_LINE)
]
Statement: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_STATEMENT, pattern=r"\S", title=_WORDS)]
BY_DIMENSION = "an object of dimension → number"
Taste: TypeAlias = Annotated[float, Meta(extra_json_schema={"minimum": -1, "maximum": 1})]
Amount: TypeAlias = Annotated[float, Meta(extra_json_schema={"minimum": 0})]
"""Numbers whose bounds are checked where they are recorded."""


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A body of a request. The title of a type says what to give, where its limits do not."""


class OfUser(Body, frozen=True, kw_only=True):
    """A body about a user, whom the headers may name instead."""

    user: str | int | None = None
    """or as x-fitrouter-user"""


class OfPerson(OfUser, frozen=True, kw_only=True):
    """A body about a user or role, whom the headers may name instead."""

    role: str | int | None = None
    """or as x-fitrouter-role"""


T = TypeVar("T", bound=Body)


def typed(body: Mapping[str, Any], kind: type[T]) -> T:
    """Decode a body; null stands for a field that is left out, where that has a default of null.

    Raises:
        InvalidRequest: names the field and the reason.
    """
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(next(_faults(body, struct_schema(kind), ""), str(error))) from None


_KINDS: dict[str, type | tuple[type, ...]] = {
    "array": list,
    "boolean": bool,
    "integer": int,
    "null": type(None),
    "number": (int, float),
    "object": dict,
    "string": str,
}


def _faults(value: Any, schema: Schema, where: str) -> Iterator[str]:
    """Yield what is wrong with a value by the schema of its type, the first fault first."""
    if "anyOf" in schema:
        if all(any(_faults(value, each, where)) for each in schema["anyOf"]):
            yield f"{where}: got {shown(value)}; give {_words(schema)}"
        return
    if "enum" in schema:
        if value not in schema["enum"]:
            allowed = ", ".join(str(each) for each in schema["enum"] if each is not None)
            yield f"{where}: got {shown(value)}; allowed are {allowed}"
        return
    kinds = _kinds(schema)
    fits = any(isinstance(value, _KINDS[each]) for each in kinds) and (type(value) is not bool or "boolean" in kinds)
    if kinds and (not fits or not _within(value, schema)):
        yield f"{where}: got {shown(value)}; give {_words(schema)}"
    elif isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            yield f"{where}: {len(value)} were given, at most {schema['maxItems']} are allowed"
        elif len(value) < schema.get("minItems", 0):
            yield f"{where}: {len(value)} were given; give {_words(schema)}"
        for i, item in enumerate(value):
            yield from _faults(item, schema.get("items", {}), f"{where}[{i}]")
    elif isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        if schema.get("additionalProperties") is False and (unknown := sorted(value.keys() - known.keys())):
            yield f"{where and f'{where}: '}{shown(unknown[0])}: unknown field; allowed are {', '.join(known)}"
        for name, inner in known.items() if known else ((name, others) for name in value):
            at = f"{where}.{name[:100]}" if where else name
            if name in value:
                yield from _faults(value[name], inner, at)
            elif name in schema.get("required", ()):
                yield f"{at}: missing; give {_words(inner)}"


def _within(value: Any, schema: Schema) -> bool:
    """Whether a text or number is within the limits of a schema."""
    if isinstance(value, str):
        fits = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
        return fits and re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, (int, float)):
        lowest, highest = schema.get("minimum", value), schema.get("maximum", value)
        return bool(lowest <= value <= highest and value > schema.get("exclusiveMinimum", value - 1))
    return True


def _kinds(schema: Schema) -> list[str]:
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else kinds


def _words(schema: Schema) -> str:
    """Describe what may be given for a schema: its title, else its types and limits."""
    if "title" in schema:
        return str(schema["title"])
    if "enum" in schema:
        return " or ".join(str(each) for each in schema["enum"] if each is not None)
    if "anyOf" in schema:
        return " or ".join(map(_words, schema["anyOf"]))
    return " or ".join(_plain_words(kind, schema) for kind in _kinds(schema) if kind != "null") or "a value"


def _plain_words(kind: str, schema: Schema) -> str:
    match kind:
        case "string":
            return f"a string{_bounds(' of', schema.get('minLength'), schema.get('maxLength'), ' characters')}"
        case "integer" | "number":
            name = "a whole number" if kind == "integer" else "a number"
            if "exclusiveMinimum" in schema:
                return f"{name} above {schema['exclusiveMinimum']:g}"
            return f"{name}{_bounds(' from', schema.get('minimum'), schema.get('maximum'), '')}"
        case "array":
            each = _words(schema.get("items", {})).removeprefix("an ").removeprefix("a ")
            return "an array of " + _NOUN.sub(r"\1s", each, count=1)
        case "object":
            return f"an object with {', '.join(schema['properties'])}" if "properties" in schema else "an object"
        case _:
            return "true or false"


_NOUN = re.compile(r"(object|string|number)")


def _bounds(before: str, least: float | None, most: float | None, after: str) -> str:
    if least is None and most is None:
        return ""
    if least is None:
        return f"{before} at most {most:g}{after}"
    return f"{before} {least:g} or more{after}" if most is None else f"{before} {least:g} to {most:g}{after}"
