"""Typed bodies: structs that parsed bodies are decoded into, with errors that name the field and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, inspect

from fitrouter.errors import InvalidRequest
from fitrouter_integrations._identity import LONGEST
from fitrouter_integrations.gateway.parsing._values import shown

MAX_STATEMENT = 1000
Name: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=LONGEST,
        pattern=r"^[^\x00-\x1f\x7f-\x9f]*$",
        extra={"give": f"one line of 1 to {LONGEST} characters"},
    ),
]
Amount: TypeAlias = Annotated[float, Meta(extra_json_schema={"minimum": 0})]
"""A number whose bounds are checked where it is recorded."""
Statement: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_STATEMENT,
        pattern=r"\S",
        extra={"give": f"a string of 1 to {MAX_STATEMENT} characters"},
    ),
]


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A body of a request."""


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
        raise InvalidRequest(next(_faults(body, _known(kind), ""), str(error))) from None


_known = cache(inspect.type_info)


def _faults(value: Any, kind: inspect.Type, where: str) -> Iterator[str]:
    """Yield what is wrong with a value of a type, the first fault first."""
    own, kind = kind, _plain(kind)
    if not isinstance(value, _TAKEN.get(type(kind), object)) or (
        isinstance(value, bool) and isinstance(kind, (inspect.IntType, inspect.FloatType))
    ):
        yield f"{where}: got {shown(value)}; give {_words(own)}"
    match kind:
        case inspect.StructType(fields=fields):
            names = [field.name for field in fields]
            if kind.forbid_unknown_fields and (unknown := sorted(set(value) - set(names))):
                at = f"{where}: " if where else ""
                yield f"{at}{shown(unknown[0])}: unknown field; allowed are {', '.join(names)}"
            for field in fields:
                at = f"{where}.{field.name}" if where else field.name
                if field.name in value:
                    yield from _faults(value[field.name], field.type, at)
                elif field.required:
                    yield f"{at}: missing; give {_words(field.type)}"
        case inspect.ListType(item_type=each) | inspect.VarTupleType(item_type=each):
            if kind.max_length is not None and len(value) > kind.max_length:
                yield f"{where}: {len(value)} were given, at most {kind.max_length} are allowed"
            elif len(value) < (kind.min_length or 0):
                yield f"{where}: {len(value)} were given; give {_words(own)}"
            for i, item in enumerate(value):
                yield from _faults(item, each, f"{where}[{i}]")
        case inspect.DictType(value_type=each):
            for name, item in value.items():
                yield from _faults(item, each, f"{where}.{name[:100]}")
        case inspect.UnionType(types=types):
            kinds = [each for each in types if not isinstance(each, inspect.NoneType)]
            if value is not None and len(kinds) == 1:
                yield from _faults(value, kinds[0], where)
            elif value is not None and all(any(_faults(value, each, where)) for each in kinds):
                yield f"{where}: got {shown(value)}; give {_words(own)}"
        case inspect.TupleType(item_types=kinds):
            if len(value) != len(kinds):
                yield f"{where}: got {shown(value)}; give {_words(own)}"
            for i, (item, each) in enumerate(zip(value, kinds, strict=False)):
                yield from _faults(item, each, f"{where}[{i}]")
        case inspect.StrType():
            unfit = kind.pattern is not None and not re.search(kind.pattern, value)
            if unfit or _outside(len(value), kind.min_length, kind.max_length):
                yield f"{where}: got {shown(value)}; give {_words(own)}"
        case inspect.IntType() | inspect.FloatType():
            if _outside(value, kind.ge, kind.le) or (kind.gt is not None and value <= kind.gt):
                yield f"{where}: got {shown(value)}; give {_words(own)}"
        case inspect.LiteralType() | inspect.EnumType():
            if value not in _choices(kind):
                yield f"{where}: got {shown(value)}; allowed are {', '.join(map(str, _choices(kind)))}"
        case _:
            pass


_TAKEN: dict[type[inspect.Type], type | tuple[type, ...]] = {
    inspect.BoolType: bool,
    inspect.DictType: dict,
    inspect.FloatType: (int, float),
    inspect.IntType: int,
    inspect.ListType: list,
    inspect.StrType: str,
    inspect.StructType: dict,
    inspect.TupleType: list,
    inspect.VarTupleType: list,
}
"""Type → what a parsed body holds for it."""


def _plain(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def _choices(kind: inspect.LiteralType | inspect.EnumType) -> tuple[Any, ...]:
    return kind.values if isinstance(kind, inspect.LiteralType) else tuple(each.value for each in kind.cls)


def _outside(value: float, least: float | None, most: float | None) -> bool:
    return (least is not None and value < least) or (most is not None and value > most)


def _words(kind: inspect.Type) -> str:
    """Describe what may be given for a type: its own words (`Meta(extra={"give": …})`), else those of its parts."""
    if isinstance(kind, inspect.Metadata):
        return str((kind.extra or {}).get("give") or _words(kind.type))
    match kind:
        case inspect.StrType():
            return f"a string{_bounds(' of', kind.min_length, kind.max_length, ' characters')}"
        case inspect.IntType() | inspect.FloatType():
            name = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
            return (
                f"{name} above {kind.gt:g}"
                if kind.gt is not None
                else f"{name}{_bounds(' from', kind.ge, kind.le, '')}"
            )
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType() | inspect.EnumType():
            return " or ".join(map(str, _choices(kind)))
        case inspect.ListType(item_type=each) | inspect.VarTupleType(item_type=each):
            plural = _words(each).removeprefix("an ").removeprefix("a ").replace("object", "objects", 1)
            return f"an array of {plural.replace('string', 'strings', 1).replace('number', 'numbers', 1)}"
        case inspect.DictType(value_type=inspect.AnyType()):
            return "an object"
        case inspect.DictType(value_type=each):
            return f"an object of name → {_words(each)}"
        case inspect.StructType(fields=fields):
            return f"an object with {', '.join(field.name for field in fields)}"
        case inspect.UnionType(types=types):
            return " or ".join(_words(each) for each in types if not isinstance(each, inspect.NoneType))
        case _:
            return "a value"


def _bounds(before: str, least: float | None, most: float | None, after: str) -> str:
    if least is None and most is None:
        return ""
    if least is None:
        return f"{before} at most {most:g}{after}"
    return f"{before} {least:g} or more{after}" if most is None else f"{before} {least:g} to {most:g}{after}"
