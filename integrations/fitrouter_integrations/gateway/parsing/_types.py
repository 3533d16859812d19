"""JSON schemas of structs, as OpenAPI has them: without references, and null as one of a type's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, TypeAlias

from msgspec import inspect

from fitrouter.state.settings import SETTINGS, described

Schema: TypeAlias = dict[str, Any]
_LOOSE = {"About", "Plan"}
"""Structs of answers that leave out fields without a value."""


@cache
def struct_schema(cls: type[Any], *, answer: bool = False) -> Schema:
    """Return the schema of the body that a struct decodes, or of an answer, which has every field that it may have.

    A field's description is the docstring under it.
    """
    kind = inspect.type_info(cls)
    assert isinstance(kind, inspect.StructType)
    texts = {name: text.replace("$settings", ", ".join(SETTINGS)) for name, text in described(cls).items()}
    properties = {}
    for field in kind.fields:
        shown = {"description": texts[field.name]} if field.name in texts else {}
        plain = not answer and isinstance(field.default, (bool, int, float, str)) and field.default != ""
        default = {"default": field.default} if plain else {}
        properties[field.encode_name] = _schema(field.type, answer=answer) | shown | default
    required = [field.encode_name for field in kind.fields if field.required or (answer and cls.__name__ not in _LOOSE)]
    open_ = {} if answer else {"additionalProperties": not kind.forbid_unknown_fields}
    return {"type": "object", "required": required, "properties": properties} | open_


def _schema(kind: inspect.Type, *, answer: bool) -> Schema:
    """Return the JSON schema of a type."""
    match kind:
        case inspect.Metadata():
            return _schema(kind.type, answer=answer) | (kind.extra_json_schema or {})
        case inspect.StructType():
            return struct_schema(kind.cls, answer=answer)
        case inspect.ListType(item_type=each) | inspect.VarTupleType(item_type=each) | inspect.SetType(item_type=each):
            sizes = {"minItems": kind.min_length, "maxItems": kind.max_length}
            return {"type": "array", "items": _schema(each, answer=answer)} | _given(sizes)
        case inspect.TupleType(item_types=types):
            return {"type": "array", "items": _either(types, answer), "minItems": len(types), "maxItems": len(types)}
        case inspect.NamedTupleType(fields=fields):
            return {"type": "array", "items": _either([field.type for field in fields], answer)}
        case inspect.DictType(value_type=each):
            inner = _schema(each, answer=answer)
            return {"type": "object"} | ({"additionalProperties": inner} if inner else {})
        case inspect.UnionType(types=types):
            return _either(types, answer)
        case inspect.LiteralType(values=values):
            return {"enum": list(values)}
        case inspect.EnumType():
            return {"enum": [each.value for each in kind.cls]}
        case inspect.StrType():
            limits = {"minLength": kind.min_length, "maxLength": kind.max_length, "pattern": kind.pattern}
            return {"type": "string"} | _given(limits)
        case inspect.IntType() | inspect.FloatType():
            name = "integer" if isinstance(kind, inspect.IntType) else "number"
            return {"type": name} | _given({"minimum": kind.ge, "maximum": kind.le, "exclusiveMinimum": kind.gt})
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.NoneType():
            return {"type": "null"}
        case _:
            return {}


def _either(kinds: Iterable[inspect.Type], answer: bool) -> Schema:
    """Return the schema of one of several types; of simple ones that is a list of their names."""
    found: list[Schema] = []
    for kind in kinds:
        if (schema := _schema(kind, answer=answer)) not in found:
            found.append(schema)
    bare = [each for each in found if each.keys() == {"type"}]
    rest = [each for each in found if each not in bare]
    if {} in found:
        return {}
    names = [each["type"] for each in bare]
    if not rest:
        return {"type": names[0] if len(names) == 1 else names}
    if len(rest) == 1 and isinstance(rest[0].get("type"), str):
        return rest[0] | {"type": [rest[0]["type"], *names]} if names else rest[0]
    if len(rest) == 1 and "enum" in rest[0] and names == ["null"]:
        return {"enum": [*rest[0]["enum"], None]}
    return {"anyOf": [*rest, *bare]}


def _given(limits: Mapping[str, Any]) -> Schema:
    return {name: value for name, value in limits.items() if value is not None}
