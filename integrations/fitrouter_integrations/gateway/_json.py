"""Strict JSON parsing of untrusted bodies, with limits that are checked before anything is built."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from fitrouter.errors import InvalidRequest

MAX_DEPTH = 64
"""Maximum nesting of arrays and objects."""
MAX_VALUES = 250_000
"""Maximum number of brackets, commas and colons in a document."""
_DIGITS = 20
"""Maximum digits of an integer: 64 bits."""

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{},:"))
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_json(body: bytes) -> dict[str, Any]:
    """The JSON object in a body.

    Refused are: bytes that are not UTF-8, a byte order mark, NaN and infinities (also numbers too large for a double),
    integers of more than 20 digits, duplicate names in an object, lone surrogates, more than 64 levels of nesting, more
    than 250,000 values, and anything but an object.

    >>> read_json(b'{"a": [1, 2.5, null]}')
    {'a': [1, 2.5, None]}

    Raises:
        InvalidRequest: gives the reason.
    """
    _check_structure(body)
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_float=_float,
            parse_int=_int,
        )
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8: byte {error.start} is {body[error.start]:#04x}") from None
    except RecursionError:
        raise InvalidRequest(_too_deep()) from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body is a JSON {_kind(value)}; send an object")
    if _ESCAPED_SURROGATE.search(body):
        _check_surrogates(value)
    return value


def _check_structure(body: bytes) -> None:
    """Bound nesting and number of values before parsing."""
    if len(body) <= MAX_VALUES and body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    structure = _STRING.sub(b"", body).translate(None, _NOT_STRUCTURE)
    if len(structure) > MAX_VALUES:
        raise InvalidRequest(f"the body has more than {MAX_VALUES} values")
    depth = 0
    for byte in structure:
        if byte in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise InvalidRequest(_too_deep())
        elif byte in b"]}":
            depth -= 1


def _too_deep() -> str:
    return f"the body is nested more than {MAX_DEPTH} levels deep"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"the body has the name {_shown(twice)} twice in one object")
    return result


def _no_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"the body contains {name}, which is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidRequest(f"the body contains the number {_shown(text)}, which is too large")
    return value


def _int(text: str) -> int:
    if len(text.lstrip("-")) > _DIGITS:
        raise InvalidRequest(f"the body contains an integer of {len(text)} digits; at most {_DIGITS} are allowed")
    return int(text)


def _check_surrogates(value: object) -> None:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            try:
                item.encode("utf-8")
            except UnicodeEncodeError:
                raise InvalidRequest(f"the body contains a lone surrogate in {_shown(item)}") from None
        elif isinstance(item, dict):
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:40] + "…")


def _kind(value: object) -> str:
    kinds = {list: "array", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")
