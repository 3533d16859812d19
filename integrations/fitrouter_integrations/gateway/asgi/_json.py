"""Strict JSON parsing of untrusted bodies in linear time, with limits that are checked before anything is built."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

import msgspec

from fitrouter.errors import InvalidRequest
from fitrouter.providers import decode_json

MAX_DEPTH = 64
"""Maximum nesting of arrays and objects."""
MAX_VALUES = 250_000
"""Maximum number of brackets, commas and colons in a document."""
_DIGITS = 20
"""Maximum digits of an integer: 64 bits."""
_NAMED = 16_384
"""Longest body in which a doubled name is looked up for the message."""

_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{},:"))
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1, ord(","): 0, ord(":"): 0}
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ZEROS = bytes(ord("0") if chr(byte).isdecimal() else byte for byte in range(256))
# Possessive, so that no digit is read twice.
_LONG_INTEGER = re.compile(rb"(?<![\d.eE+-])-?(\d{%d,}+)(?![.eE])" % (_DIGITS + 1))


def read_json(body: bytes, weigh: Callable[[int], object] = lambda _: None) -> dict[str, Any]:
    """Parse the JSON object in a body; `weigh` is called with the number of its values before it is parsed.

    Refused are: bytes that are not UTF-8, a byte order mark, NaN and infinities (also numbers too large for a double),
    integers of more than 20 digits, duplicate names in an object, lone surrogates, more than 64 levels of nesting, more
    than 250,000 values, and anything but an object.

    >>> read_json(b'{"a": [1, 2.5, null]}')
    {'a': [1, 2.5, None]}

    Raises:
        InvalidRequest: gives the reason.
    """
    structure = _structure(body)
    weigh(len(structure))
    try:
        value = decode_json(body)
    except UnicodeDecodeError:
        raise InvalidRequest(_not_utf8(body)) from None
    except msgspec.DecodeError as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        if "surrogate" in reason or (_SURROGATE.search(body) and "truncated" in reason):
            reason = "it has a lone surrogate, which is half of a character"
        raise InvalidRequest(f"the body is not JSON: {reason}") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body is a JSON {_kind(value)}; send an object")
    if _count_names(value) < structure.count(b":"):
        raise InvalidRequest(f"the body has {_doubled(body)} twice in one object")
    return value


def _structure(body: bytes) -> bytes:
    """Return the brackets, commas and colons outside of strings; checks nesting, number of values, and digits.

    Strings are cut out with functions of `bytes` that read each byte once. A document that is not JSON may be cut in
    the wrong place only behind its first error, where the parser stops.
    """
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    if bare.count(b'"') > 2 * MAX_VALUES + 2:  # every string stands beside a bracket, a comma or a colon
        raise InvalidRequest(_too_many())
    outside = b"".join(bare.split(b'"')[::2])
    structure = outside.translate(None, _NOT_STRUCTURE)
    if len(structure) > MAX_VALUES:
        raise InvalidRequest(_too_many())
    if structure.count(b"[") + structure.count(b"{") > MAX_DEPTH and max(_depths(structure)) > MAX_DEPTH:
        raise InvalidRequest(f"the body is nested more than {MAX_DEPTH} levels deep")
    if b"0" * (_DIGITS + 1) in outside.translate(_ZEROS) and (found := _LONG_INTEGER.search(outside)):
        given = len(found[1])
        raise InvalidRequest(f"the body contains an integer of {given} digits; at most {_DIGITS} are allowed")
    return structure


def _depths(structure: bytes) -> Iterable[int]:
    return accumulate(map(_STEP.__getitem__, structure))


def _count_names(document: dict[str, Any]) -> int:
    """Count the names in all objects of a document."""
    count = 0
    stack: list[Any] = [document]
    while stack:
        item = stack.pop()
        if type(item) is dict:
            count += len(item)
            item = item.values()
        stack.extend([inner for inner in item if type(inner) is dict or type(inner) is list])
    return count


def _doubled(body: bytes) -> str:
    """Describe the name that occurs twice in an object; in long bodies it is not looked up."""
    doubled = ["a name"]

    def note(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                doubled[:] = [f"the name {_shown(name)}"]
            seen.add(name)

    if len(body) <= _NAMED:
        json.loads(body, object_pairs_hook=note)
    return doubled[0]


def _too_many() -> str:
    return f"the body has more than {MAX_VALUES} values"


def _not_utf8(body: bytes) -> str:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f"the body is not UTF-8: byte {error.start} is {body[error.start]:#04x}"
    return "the body is not UTF-8"


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:40] + "…")


def _kind(value: object) -> str:
    kinds = {list: "array", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")
