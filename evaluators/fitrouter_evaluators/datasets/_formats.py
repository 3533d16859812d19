"""The open formats as frozen structs: pairs, ratings, choices and response matrices.

A row is one JSON object; fields outside the format are kept in `extra` and written back beside the others. Every struct
validates itself: finite numbers, a rating within its scale, a label among the allowed ones; ValueError names the value
given and what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import msgspec

Kind: TypeAlias = Literal["rating", "thumb", "accept", "copy", "edit", "dwell"]
"""How a rating was given: as a number, a thumb, or by behaviour."""

KINDS: tuple[str, ...] = get_args(Kind)


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of rows and parts of rows."""

    @classmethod
    def known(cls) -> tuple[str, ...]:
        """Names of all fields of the row's format."""
        return tuple(name for name in cls.__struct_fields__ if name != "extra")

    @classmethod
    def parts(cls) -> dict[str, type[Row]]:
        """Names and types of the fields that hold nested rows."""
        return {}

    def _check_extra(self, extra: Mapping[str, Any]) -> None:
        if not extra:
            return
        taken = [name for name in self.known() if name in extra]
        if taken:
            raise ValueError(f"extra holds {taken!r}, which are fields of the format; set the fields themselves")
        if not all(isinstance(name, str) for name in extra):
            raise ValueError(f"extra has the keys {list(extra)!r}; only text can be a key")
        wrong = [name for name, value in extra.items() if not _finite(value)]
        if wrong:
            raise ValueError(f"extra holds numbers that are not finite in {wrong!r}; leave a missing value out")


class Text(Row, frozen=True, omit_defaults=True):
    """An answer, and its model if known. It may be empty."""

    text: str
    model: str | None = None
    extra: dict[str, Any] = {}

    def __post_init__(self) -> None:
        self._check_extra(self.extra)


class Pair(Row, frozen=True, omit_defaults=True):
    """A user's preference between two answers to a prompt."""

    user: str
    prompt: str
    a: Text
    b: Text
    label: float
    """1: a is better, 0: b is better, 0.5: a tie."""
    role: str | None = None
    dimension: str = "overall"
    declared: dict[str, float] = {}
    """Values declared by the user, dimension → about −1 … 1."""
    ts: float | None = None
    """Seconds since the epoch, or since a start common to all users."""
    extra: dict[str, Any] = {}

    @classmethod
    def parts(cls) -> dict[str, type[Row]]:
        """Both answers, as nested rows of kind `Text`."""
        return {"a": Text, "b": Text}

    def __post_init__(self) -> None:
        _filled(user=self.user, prompt=self.prompt, dimension=self.dimension)
        if self.label not in (0.0, 0.5, 1.0):
            raise ValueError(f"label is {self.label!r}; give 1 where a is better, 0 where b is, 0.5 for a tie")
        _numbers({"ts": self.ts})
        _numbers(self.declared)
        self._check_extra(self.extra)


class Rating(Row, frozen=True, omit_defaults=True):
    """A user's rating of an answer; without a response, of the prompt or the item."""

    user: str
    prompt: str
    rating: float
    scale: tuple[float, float]
    """Lowest and highest possible rating; (0, 1) for binary ones."""
    response: str | None = None
    model: str | None = None
    item: str | None = None
    """Identifies the rated thing across users."""
    role: str | None = None
    dimension: str = "overall"
    kind: Kind = "rating"
    declared: dict[str, float] = {}
    ts: float | None = None
    extra: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _filled(user=self.user, dimension=self.dimension)
        if not self.prompt.strip() and not self.item:
            raise ValueError(f"prompt is {self.prompt!r} and there is no item; name at least one of them")
        low, high = self.scale
        if not (0.0 < high - low < math.inf):
            raise ValueError(f"scale is [{low!r}, {high!r}]; give two finite numbers, the lowest rating first")
        if not low <= self.rating <= high:
            raise ValueError(f"rating is {self.rating!r}; the scale allows {low!r} to {high!r}: correct either")
        _numbers({"ts": self.ts})
        _numbers(self.declared)
        self._check_extra(self.extra)

    @property
    def y(self) -> float:
        """The rating rescaled to [0, 1]."""
        low, high = self.scale
        return (self.rating - low) / (high - low)


class Choice(Row, frozen=True, omit_defaults=True):
    """The option that best fits preferences stated in words."""

    user: str
    declared: tuple[str, ...]
    prompt: str
    options: tuple[str, ...]
    best: int
    """Index into `options`."""
    extra: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _filled(user=self.user, prompt=self.prompt)
        if not self.declared or not all(text.strip() for text in self.declared):
            raise ValueError(f"declared is {self.declared!r}; give at least one statement, none of them empty")
        if len(self.options) < 2:
            raise ValueError(f"there are {len(self.options)} options; give two or more to choose from")
        if not 0 <= self.best < len(self.options):
            raise ValueError(f"best is {self.best!r}; it counts from 0 to {len(self.options) - 1}, the options' number")
        self._check_extra(self.extra)


class Cell(Row, frozen=True, omit_defaults=True):
    """A model's answer to a prompt, with its reward."""

    reward: float
    cost_usd: float | None = None
    latency_s: float | None = None
    response: str | None = None
    extra: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _numbers({"reward": self.reward, "cost_usd": self.cost_usd, "latency_s": self.latency_s})
        for name, value in (("cost_usd", self.cost_usd), ("latency_s", self.latency_s)):
            if value is not None and value < 0:
                raise ValueError(f"{name} is {value!r}; it is 0 or more, or left out where it is not known")
        self._check_extra(self.extra)


class MatrixRow(Row, frozen=True, omit_defaults=True):
    """All models' answers to a prompt; with `user`, the rewards are that user's."""

    prompt: str
    models: dict[str, Cell]
    source: str | None = None
    user: str | None = None
    role: str | None = None
    extra: dict[str, Any] = {}

    @classmethod
    def parts(cls) -> dict[str, type[Row]]:
        """The cell of each model, by model name."""
        return {"models": Cell}

    def __post_init__(self) -> None:
        _filled(prompt=self.prompt)
        if not self.models:
            raise ValueError("models is empty; give at least one model's cell")
        self._check_extra(self.extra)


def lift(kind: type[Row], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Build constructor fields of `kind` from a JSON object: unknown keys go to `extra`, null fields are dropped."""
    known, parts = kind.known(), kind.parts()
    fields = {name: raw[name] for name in known if raw.get(name) is not None}
    for name, part in parts.items():
        value = fields.get(name)
        if not isinstance(value, dict):
            continue
        if kind is MatrixRow:
            fields[name] = {key: lift(part, cell) if isinstance(cell, dict) else cell for key, cell in value.items()}
        else:
            fields[name] = lift(part, value)
    fields["extra"] = {name: value for name, value in raw.items() if name not in known}
    return fields


def plain(value: Any) -> Any:
    """Convert a row to its JSON object: defaults are dropped and `extra` is merged in."""
    if isinstance(value, Row):
        fields = msgspec.structs.asdict(value)
        extra = fields.pop("extra")
        defaults = {field.name: field.default for field in msgspec.structs.fields(value)}
        shown = {name: plain(part) for name, part in fields.items() if part != defaults[name] and part != {}}
        return {**shown, **extra}
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _filled(**texts: str) -> None:
    for name, text in texts.items():
        if not text.strip():
            raise ValueError(f"{name} is {text!r}; it cannot be empty: fill it in or leave the row out")


def _numbers(values: Mapping[str, float | None]) -> None:
    for name, value in values.items():
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{name} is {value!r}; only finite numbers are allowed: leave a missing value out")


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(_finite(part) for part in value.values())
    return all(_finite(part) for part in value) if isinstance(value, list | tuple) else True
