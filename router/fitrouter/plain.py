"""Plain values: numpy scalars in events and labels become plain Python values, arrays bytes, and state msgpack.

`np.float64` is a subclass of `float`, so type checkers accept it, but msgspec does not encode it, and a projection that
has folded one could not be stored. Events and labels convert their fields when they are made, so that no projection has
to.
"""

from __future__ import annotations

import abc
import functools
import typing
from numbers import Real
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

_LEAVES = frozenset((float, int, bool, str, Any, type(None), ...))
_encoder = msgspec.msgpack.Encoder()


def make_plain(value: Any) -> None:
    """Convert the fields of a frozen msgspec.Struct in place if msgspec cannot encode it as it is.

    Nearly every event is plain, and each request makes several; encoding one is the cheapest test.

    Raises:
        TypeError: a field holds a value that cannot be converted to the field's type.
    """
    try:
        _encoder.encode(value)
    except (OverflowError, TypeError, ValueError):
        convert_fields(value)


def convert_fields(value: Any) -> None:
    """Convert the numbers and strings in the fields of a frozen msgspec.Struct to `float`, `int`, `bool` and `str`.

    Integers and booleans in a `float` field become floats, as when an event is read from a journal. NaN and infinities
    stay: the learner skips such events.

    Raises:
        TypeError: a field holds a value that cannot be converted to the field's type.
    """
    kind: Any = type(value)  # mypy takes a class with a metaclass for unhashable
    for name, hint in _scalar_fields(kind):
        given = getattr(value, name)
        if type(given) is hint:
            continue
        plain = _plain(given)
        try:
            plain = float(plain) if hint is float and isinstance(plain, Real) else msgspec.convert(plain, hint)
        except (OverflowError, msgspec.ValidationError) as error:
            raise TypeError(f"{type(value).__name__}.{name} is {given!r}: {error}") from None
        msgspec.structs.force_setattr(value, name, plain)


@functools.cache
def _scalar_fields(cls: type) -> tuple[tuple[str, Any], ...]:
    """Return (name, type) of the fields that hold numbers or strings, or tuples and dicts of them."""
    return tuple((name, hint) for name, hint in typing.get_type_hints(cls).items() if _is_scalar(hint))


def _is_scalar(hint: Any) -> bool:
    parts = typing.get_args(hint)
    return hint in _LEAVES or (bool(parts) and all(map(_is_scalar, parts)))


def _plain(value: Any) -> Any:
    """Convert numpy scalars, also within lists and dicts, to Python values; tuples become lists, as when decoded."""
    if isinstance(value, np.floating):
        return float(value)  # tolist() would leave a longdouble as it is
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    if isinstance(value, dict):
        return {_plain(key): _plain(member) for key, member in value.items()}
    return value


class Projection(abc.ABC):
    """State computed from events and stored under its own name, as the msgpack of one value."""

    __slots__ = ()
    stored_type: ClassVar[Any]
    """Type of the value that is stored."""

    def dump(self) -> bytes:
        """Encode the state as bytes, without loss."""
        return msgspec.msgpack.encode(self._store())

    def load(self, payload: bytes) -> bool:
        """Restore a state from `dump`; if the bytes are damaged or inconsistent, return False and change nothing."""
        try:
            return self._restore(msgspec.msgpack.decode(payload, type=self.stored_type))
        except (msgspec.DecodeError, ValueError):
            return False

    @abc.abstractmethod
    def _store(self) -> Any:
        """The state as a value of `stored_type`."""

    @abc.abstractmethod
    def _restore(self, stored: Any) -> bool:
        """Check a value of `stored_type`, then take it over; if it is inconsistent, return False and change nothing."""


def pack(values: NDArray[Any]) -> bytes:
    """Encode an array as little-endian float32 bytes."""
    return np.ascontiguousarray(values, dtype="<f4").tobytes()


def unpack(payload: bytes) -> NDArray[np.float64]:
    """Decode `pack`'s float32 bytes as float64[d]."""
    return np.frombuffer(payload, dtype="<f4").astype(np.float64)
