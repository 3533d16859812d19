"""Plain Python values in place of numpy scalars, converted where events and labels are made.

`np.float64` is a subclass of `float`, so type checkers let it through; msgspec does not encode it, and a projection
that has folded one cannot be stored. Events and labels therefore convert their fields when they are made, and no
projection has to convert what it stores.
"""

from __future__ import annotations

import functools
import operator
import types
import typing
from collections.abc import Callable
from numbers import Real
from typing import Any, TypeAlias

import msgspec
import numpy as np

Converter: TypeAlias = Callable[[Any], Any]
"""Returns the value itself where it is plain; raises a TypeError for a value of another kind."""

_encoder = msgspec.msgpack.Encoder()


def make_plain(value: Any) -> None:
    """Convert the fields of a frozen msgspec.Struct in place where msgspec could not encode it as it is.

    Nearly every event is plain, and one is made for each request: encoding it tells so in less than a microsecond.

    Raises:
        TypeError: a field holds something that is no number, or no text.
    """
    try:
        _encoder.encode(value)
    except (OverflowError, TypeError, ValueError):
        convert_fields(value)


def convert_fields(value: Any) -> None:
    """Convert the numbers and texts in the fields of a frozen msgspec.Struct to `float`, `int`, `bool` and `str`.

    Integers and truth values in a `float` field become floats, as they do when an event is read from a journal. NaN
    and infinities stay: a fold skips them.

    Raises:
        TypeError: a field holds something that is no number, or no text.
    """
    kind: Any = type(value)
    for name, convert in _converters(kind):
        given = getattr(value, name)
        try:
            plain = convert(given)
        except (OverflowError, TypeError) as error:
            raise TypeError(f"{type(value).__name__}.{name}: {given!r} was given; {error}") from None
        if plain is not given:
            msgspec.structs.force_setattr(value, name, plain)


@functools.cache
def _converters(cls: type) -> tuple[tuple[str, Converter], ...]:
    """(field, converter) of the fields that hold numbers or texts."""
    found = ((name, _converter(hint)) for name, hint in typing.get_type_hints(cls).items())
    return tuple((name, convert) for name, convert in found if convert is not None)


def _converter(hint: Any) -> Converter | None:
    """The converter of a type; None for one that holds no numbers and texts itself, such as another struct."""
    if hint in _LEAVES:
        return _LEAVES[hint]
    parts = typing.get_args(hint)
    match typing.get_origin(hint):
        case types.UnionType:
            return _optional(*(part for part in parts if part is not types.NoneType))
        case origin if origin is tuple:
            return _tuple(*(part for part in parts if part is not ...))
        case origin if origin is dict:
            return _dict(*parts)
    return None


def _optional(kind: Any) -> Converter | None:
    convert = _converter(kind)
    return None if convert is None else lambda value: None if value is None else convert(value)


def _tuple(kind: Any, *_: Any) -> Converter | None:
    """Of a tuple whose members are all of one type."""
    convert = _converter(kind)
    if convert is None:
        return None

    def members(value: Any) -> Any:
        plain = tuple(map(convert, value))
        return value if all(map(operator.is_, plain, value)) else plain

    return members


def _dict(key: Any, kind: Any) -> Converter | None:
    of_key, of_value = _converter(key), _converter(kind)
    if of_key is None or of_value is None:
        return None
    return lambda value: {of_key(name): of_value(part) for name, part in value.items()}


def _float(value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, Real | np.bool_):
        return float(value)
    raise TypeError("give a number")


def _int(value: Any) -> int:
    if type(value) is int:
        return value
    try:
        return int(operator.index(value))
    except TypeError:
        raise TypeError("give a whole number") from None


def _bool(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise TypeError("give True or False")


def _str(value: Any) -> str:
    if type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError("give a text")


def _any(value: Any) -> Any:
    """A setting of any type, with numpy scalars in the lists and dicts in it too."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [_any(part) for part in value]
    if isinstance(value, dict):
        return {_any(name): _any(part) for name, part in value.items()}
    return value


_LEAVES: dict[Any, Converter] = {float: _float, int: _int, bool: _bool, str: _str, Any: _any}
