"""Plain values: numpy scalars in events and labels become plain Python values, arrays bytes, and state msgpack.

`np.float64` is a subclass of `float`, so type checkers accept it, but msgspec does not encode it, and a projection that
has folded one could not be stored. Events and labels convert their fields when they are made, so that no projection has
to.
"""

from __future__ import annotations

import abc
import functools
import itertools
import struct
import typing
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar, Literal, TypeAlias

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


Form: TypeAlias = Literal["d", "f", "l", 7, 12]
"""How the numbers of a row are packed if that keeps all of their bits: as doubles; as singles; as numbers of levels, of
which there are few; or with so many binary digits after the point, as whole numbers above the lowest one."""

_ROWS: Mapping[str, Form] = {
    "probs": "d", "twin": "d", "personal": "d", "mean": "d", "sd": "d", "cost": "f", "latency": 7, "availability": 12,
    "switch": "d", "rest": "l",
}  # fmt: skip
"""Fields of a decision with a number of each model."""
_SOME = ("new", "unpriced")
"""Those with the names of some of the models."""
_TERMS, _LARGEST_SINGLE = 6, 3e38
PACKED_FROM = 8
"""Models from which on rows are packed: with fewer it takes longer than the bytes are worth (docs/results/log.md)."""


def on_grid(values: NDArray[np.float64], digits: int) -> NDArray[np.float64]:
    """Round to so many binary digits after the point; no result is −0, which has bits of its own."""
    rounded: NDArray[np.float64] = np.rint(values * 2.0**digits) / 2.0**digits + 0.0
    return rounded


def pack_rows(rows: Sequence[tuple[Form, Sequence[float]]]) -> bytes:
    """Encode rows of K numbers each, or none, without loss: of those whose form does not keep all bits, doubles."""
    size = max((len(row) for _, row in rows), default=0)
    found, last, grid = [size.to_bytes(2, "little")], b"", list[tuple[int, int, Sequence[float]]]()
    for form, row in rows:
        exact = struct.pack(f"<{len(row)}d", *row)
        found.append(b"d" + exact if exact else b"0")
        if exact and exact == last:
            found[-1] = b"="
        elif exact and exact == exact[:8] * size:
            found[-1] = b"l\x01" + exact[:8]
        elif exact and form == "l":
            each = [exact[i : i + 8] for i in range(0, len(exact), 8)]
            levels = {level: n for n, level in enumerate(dict.fromkeys(each))}
            if 2 * len(levels) < min(size, 256):
                places = bytes([levels[level] for level in each])
                found[-1] = b"l" + bytes([len(levels)]) + b"".join(levels) + places
        elif exact and form == "f" and max(map(abs, row)) < _LARGEST_SINGLE:
            single = struct.pack(f"<{size}f", *row)
            if struct.pack(f"<{size}d", *struct.unpack(f"<{size}f", single)) == exact:
                found[-1] = b"f" + single
        elif exact and not isinstance(form, str):
            grid.append((len(found) - 1, form, row))
        last = exact or last
    if grid:
        table, digits = np.array([row for _, _, row in grid], "<f8"), np.array([[digits] for _, digits, _ in grid])
        low, scale = table.min(axis=1, keepdims=True), 2.0**digits
        with np.errstate(over="ignore", invalid="ignore"):
            whole = ((table - low) * scale).astype("<u2")
            same = ((low + whole / scale).view("<i8") == table.view("<i8")).all(axis=1)
        narrow, few = whole.astype(np.uint8), whole.max(axis=1) < 256
        for k in np.flatnonzero(same).tolist():
            head, steps = (b"B", narrow[k]) if few[k] else (b"H", whole[k])
            found[grid[k][0]] = head + low[k].tobytes() + bytes([grid[k][1]]) + steps.tobytes()
    return b"".join(found)


def unpack_rows(payload: bytes) -> list[tuple[float, ...]]:
    """Decode the rows of `pack_rows`; raises ValueError, IndexError or struct.error for other bytes."""
    rows: list[tuple[float, ...]] = []
    last: tuple[float, ...] = ()
    size, at = int.from_bytes(payload[:2], "little"), 2
    while at < len(payload):
        form, at = chr(payload[at]), at + 1
        if form == "0":
            rows.append(())
            continue
        if form == "l":
            levels = struct.unpack_from(f"<{payload[at]}d", payload, at + 1)
            at += 1 + 8 * len(levels)
            places = struct.unpack_from(f"{size if len(levels) > 1 else 0}B", payload, at)
            last, at = tuple(levels[place] for place in places) or levels * size, at + len(places)
        elif form in "BH":
            low, digits = struct.unpack_from("<dB", payload, at)
            steps = struct.unpack_from(f"<{size}{form}", payload, at + 9)
            last, at = tuple(low + step / 2.0**digits for step in steps), at + 9 + size * struct.calcsize(form)
        elif form != "=":
            last = struct.unpack_from(f"<{size}{form}", payload, at)
            at += size * struct.calcsize(form)
        rows.append(last)
    return rows


def with_packed_rows(event: Any, least: int = PACKED_FROM) -> Any:
    """Return a decision with what it has of each model in `packed`, without loss.

    It is returned as it is if it has fewer models than `least`, or rows that do not match their number.

    Each name is shortened by the beginning that it shares with the one before, whose length comes first.
    """
    names, grounds = event.eligible, event.grounds
    if len(names) < least:
        return event
    rows: list[tuple[Form, Sequence[float]]] = [(form, getattr(event, name)) for name, form in _ROWS.items()]
    for some in (getattr(event, name) for name in _SOME):
        if some != tuple(name for name in names if name in some):
            return event
        rows.append(("l", [float(name in some) for name in names] if some else ()))
    rows += [("d", row) for row in event.candidates.values()]
    if grounds is not None:
        if len(grounds.terms) not in {0, _TERMS} or len(grounds.profile) != len(grounds.features):
            return event
        rows += [(12, row) for row in grounds.terms or ((),) * _TERMS] + [(7, row) for row in grounds.profile]
        grounds = msgspec.structs.replace(grounds, terms=(), profile=())
    if any(len(row) not in {0, len(names)} for _, row in rows):
        return event
    fields: dict[str, Any] = dict.fromkeys((*_ROWS, *_SOME), ())
    fields["eligible"] = tuple(
        chr(n := _shared(before, name)) + name[n:] for before, name in itertools.pairwise(("", *names))
    )
    fields |= {"candidates": dict.fromkeys(event.candidates, ()), "grounds": grounds}
    return msgspec.structs.replace(event, packed=pack_rows(rows), **fields)


def _shared(before: str, name: str) -> int:
    """Length of the beginning that two names share."""
    return next((n for n, (a, b) in enumerate(zip(before, name, strict=False)) if a != b), min(len(before), len(name)))


def with_rows(event: Any) -> Any:
    """Return the decision of which `with_packed_rows` made this one.

    Raises:
        msgspec.DecodeError: its rows are damaged.
    """
    names, grounds = list[str](), event.grounds
    try:
        for name in event.eligible:
            names.append((names[-1] if names else "")[: ord(name[0])] + name[1:])
        rows = iter(unpack_rows(event.packed))
        fields: dict[str, Any] = {name: next(rows) for name in _ROWS}
        for some in _SOME:
            fields[some] = tuple(name for name, is_in in zip(names, next(rows), strict=False) if is_in)
        fields["candidates"] = {name: next(rows) for name in event.candidates}
        if grounds is not None:
            terms = tuple(next(rows) for _ in range(_TERMS))
            profile = tuple(next(rows) for _ in grounds.features)
            grounds = msgspec.structs.replace(grounds, terms=terms if any(terms) else (), profile=profile)
    except (IndexError, StopIteration, TypeError, ValueError, struct.error) as error:
        raise msgspec.DecodeError(f"the rows of decision {event.id!r} are damaged") from error
    return msgspec.structs.replace(event, eligible=tuple(names), packed=b"", grounds=grounds, **fields)
