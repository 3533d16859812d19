"""Column map of `fitrouter replay import`: which column of a foreign log means what."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import pydantic

from fitrouter_evaluators.replay._yaml_file import parse, read_yaml

ARM = "{arm}"
"""Placeholder for each arm's name in column names."""

_MAPS = Path(__file__).parent / "maps"


class _Part(pydantic.BaseModel):
    """Base of the sections of a map: frozen, and refuses unknown settings."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True)


class _Column(_Part):
    """Section that may be given as the column's name alone."""

    column: str

    @pydantic.model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"column": value} if isinstance(value, str) else value


class Time(_Column):
    """Time of a decision: ISO 8601 (UTC unless it names a zone), or a number of units since 1970."""

    unit: Literal["s", "ms", "us", "ns"] | None = None


class Amount(_Column):
    """A cost or a latency, in a unit that `factor` converts: .01 for cents, .001 for milliseconds, −1 to negate."""

    factor: float = 1.0

    @pydantic.field_validator("factor")
    @classmethod
    def _converts(cls, value: float) -> float:
        if not value:
            raise ValueError("a factor of 0 makes every amount 0; give the size of one unit, such as 0.01 for cents")
        return value


class Reward(_Column):
    """The outcome, on a scale from the worst to the best value; `[5, 0]` where less is better."""

    scale: tuple[float, float] = (0.0, 1.0)
    unrated: bool = False
    """Whether the cell may be empty: that row was not rated. Otherwise such rows are invalid."""

    @pydantic.field_validator("scale")
    @classmethod
    def _differs(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] == value[1]:
            raise ValueError(f"{list(value)} is not a scale; give the worst and the best value, such as [0, 1]")
        return value


class ListColumn(_Column):
    """A column of lists: JSON lists, or texts with values between `separator`s."""

    separator: str | None = pydantic.Field(None, min_length=1)


class PerArm(_Part):
    """One column per arm; `{arm}` in the name stands for the arm's."""

    columns: str

    @pydantic.field_validator("columns")
    @classmethod
    def _has_place(cls, value: str) -> str:
        if ARM not in value:
            raise ValueError(f"{value!r} names the same column for every arm; put {ARM} in place of the arm's name")
        return value

    def of(self, arm: str) -> str:
        """Name of an arm's column."""
        return self.columns.replace(ARM, arm)


class Number(_Column):
    """A numeric feature."""

    fill: float | None = None
    """Replaces an empty cell; None: such rows are invalid."""


class Category(_Part):
    """A categorical feature, one-hot encoded; an empty cell gives zeros."""

    column: str
    kind: Literal["category"]
    limit: int = pydantic.Field(100, ge=1, le=10_000)
    """Maximum number of distinct values."""


class Vector(_Part):
    """A column of equally long lists of numbers, such as an embedding."""

    column: str
    kind: Literal["vector"]
    separator: str | None = pydantic.Field(None, min_length=1)


def _kind(value: Any) -> str:
    """Discriminator of a feature's kind, from its settings or its object."""
    if isinstance(value, Mapping):
        return "per arm" if "columns" in value else str(value.get("kind", "number"))
    return "per arm" if isinstance(value, PerArm) else str(getattr(value, "kind", "number"))


Feature: TypeAlias = Annotated[
    Annotated[Number, pydantic.Tag("number")]
    | Annotated[Category, pydantic.Tag("category")]
    | Annotated[Vector, pydantic.Tag("vector")]
    | Annotated[PerArm, pydantic.Tag("per arm")],
    pydantic.Discriminator(_kind),
]
"""A context feature. Features are concatenated in the order of the map."""


class ArmList(_Part):
    """The arms by name."""

    names: tuple[str, ...] = pydantic.Field(min_length=1)

    @pydantic.field_validator("names")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if twice := sorted({name for name in value if value.count(name) > 1}):
            raise ValueError(f"{twice} occur more than once; list each arm once")
        return value


class ArmsFile(_Part):
    """The arms in a second file, one a row."""

    file: str
    """Relative to the folder of the data."""
    column: str
    features: tuple[Feature, ...] = ()


class Constants(_Part):
    """Constants for every row."""

    tenant: str | None = None
    user: str | None = None
    role: str | None = None
    task: str | None = None
    session: str | None = None
    mode: Literal["online", "uniform"] = "online"
    """uniform: all eligible arms had the same probability; the pmf is known, and rejection replay is possible."""
    policy: str = "imported"
    """Name of the policy that decided."""


class ColumnMap(_Part):
    """Names of columns, as they are in the header.

    The propensity of the chosen arm is required, or the whole pmf, or the mode `uniform`. Arms are those of `arms`,
    or all that occur.
    """

    arm: str
    """The arm that was chosen."""
    reward: Reward
    propensity: str | None = None
    """Probability with which the chosen arm was drawn."""
    pmf: ListColumn | PerArm | None = None
    """Probability of every arm: one column each, or a list in the order of `eligible`, else of `arms`."""
    eligible: ListColumn | None = None
    """Names of the arms that could be chosen; all of them where None."""
    arms: ArmList | ArmsFile | None = None
    id: str | None = None
    """Column of the decision id; None for file name and row number."""
    time: Time | None = None
    """Without it a row is one second later than the row above it."""
    tenant: str | None = None
    user: str | None = None
    role: str | None = None
    task: str | None = None
    session: str | None = None
    cost_usd: Amount | None = None
    latency_s: Amount | None = None
    features: tuple[Feature, ...] = ()
    constants: Constants = Constants()
    tolerance: float = pydantic.Field(1e-9, ge=0.0, le=0.01)
    """How far a pmf's sum may be from 1, and a propensity from its place in the pmf: what rounding left of them."""
    delimiter: str | None = pydantic.Field(None, min_length=1, max_length=1)
    """Between the columns of a text file; a tab in .tsv, else a comma."""

    @pydantic.field_validator("arms", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            return {"names": value}
        return value

    @pydantic.model_validator(mode="after")
    def _complete(self) -> ColumnMap:
        if self.propensity is None and self.pmf is None and self.constants.mode != "uniform":
            raise ValueError(
                "neither 'propensity' nor 'pmf' is given, and replay needs probabilities: name the column of the "
                "chosen arm's probability, or the columns of all arms'"
            )
        if self.pmf is not None and self.constants.mode == "uniform":
            raise ValueError("pmf: the mode 'uniform' already implies equal probabilities; omit one of them")
        if isinstance(self.pmf, ListColumn) and self.eligible is None and not isinstance(self.arms, ArmList):
            raise ValueError(
                f"pmf: the order of the list in {self.pmf.column!r} is unknown; name the 'eligible' column, or list "
                "the 'arms' in that order"
            )
        for name in ("tenant", "user", "role", "task", "session"):
            if getattr(self, name) is not None and getattr(self.constants, name) is not None:
                raise ValueError(f"{name} is given as a column and as a constant; keep one")
        if isinstance(self.arms, ArmsFile) and any(isinstance(part, PerArm) for part in self.arms.features):
            raise ValueError(f"arms.features: {ARM} cannot be used in the arms file; name the column")
        return self


def shipped_maps() -> tuple[str, ...]:
    """List the names of the built-in maps."""
    return tuple(sorted(path.stem for path in _MAPS.glob("*.yaml")))


def load_map(source: ColumnMap | Mapping[str, Any] | str | os.PathLike[str]) -> ColumnMap:
    """Load a map by name (built-in), from a YAML file, or from its content.

    Raises:
        ConfigError: there is no such map, or it is invalid.
    """
    if isinstance(source, ColumnMap):
        return source
    if isinstance(source, Mapping):
        return parse(ColumnMap, source, "the column map", _SECTIONS)
    path = _MAPS / f"{source}.yaml" if isinstance(source, str) and source in shipped_maps() else Path(source)
    content = read_yaml(path, f"give a YAML file, or one of {', '.join(shipped_maps())}", "column map")
    return parse(ColumnMap, content, f"the column map {str(source)!r}", _SECTIONS)


_SECTIONS: dict[str, type[pydantic.BaseModel]] = {
    "reward": Reward,
    "cost_usd": Amount,
    "latency_s": Amount,
    "time": Time,
    "eligible": ListColumn,
    "constants": Constants,
    "number": Number,
    "category": Category,
    "vector": Vector,
    "per arm": PerArm,
}
