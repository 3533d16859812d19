"""promote.yaml: what must be shown before a candidate goes live, and messages that explain mistakes."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import yaml
from pydantic import Field

from fitrouter.errors import ConfigError
from fitrouter_evaluators.replay.study.sensitivity import GAMMA

LESS_IS_BETTER = frozenset({"cost", "latency"})
WORTH_HAVING = 0.02
"""Gain in fit or utility that is worth a change, above `min_gain`; money and time have no such scale."""
SCORE = (
    "a score is what a model believes of an answer, and a candidate may raise it while people are worse off; it may be "
    "looked at (`--metric score`) and decides nothing. Gate on 'fit', which is what people said"
)

Metric = Literal["fit", "cost", "latency", "utility"]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Section(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


def _no_score(metric: object) -> object:
    if metric == "score":
        raise ValueError(SCORE)
    return metric


class Guardrail(_Section):
    """What may not get worse, or not by more than so much."""

    metric: Annotated[Metric, pydantic.BeforeValidator(_no_score)]
    max_increase: Finite | None = None
    """cost, latency: what a decision may cost or take more, in USD or seconds; below 0 it must save as much."""
    max_decrease: Finite | None = None
    """fit, utility: what may be lost; below 0 as much must be gained."""
    slice: str = ""
    """`role=nurse`; `role` for each of the roles; empty for everybody."""
    require: Literal["proof", "no_harm_shown"] = "proof"
    """Whether a promotion waits until more harm is excluded, or goes ahead until it is shown."""

    @pydantic.model_validator(mode="after")
    def _one_limit(self) -> Guardrail:
        needed, other = ("max_increase", "max_decrease")[:: 1 if self.metric in LESS_IS_BETTER else -1]
        if getattr(self, needed) is None or getattr(self, other) is not None:
            raise ValueError(f"a guardrail on {self.metric!r} needs {needed!r} and no {other!r}")
        return self

    @property
    def worst(self) -> float:
        """The least gain that is accepted."""
        loss = self.max_increase if self.max_decrease is None else self.max_decrease
        assert loss is not None
        return -loss

    @property
    def name(self) -> str:
        """What a reader calls it."""
        return f"{self.metric} of {self.slice}" if self.slice else self.metric


class Users(_Section):
    """Limits on how satisfaction may differ between users. They hold at one look, and can only withhold."""

    max_worse_off: Fraction | None = None
    """Share of the users whose true mean may fall."""
    max_worst_decile_decrease: Fraction | None = None
    """What the tenth of the users that fares worst may lose."""
    per_role: bool = False
    """Ask this of every role as well."""


class Gate(_Section):
    """promote.yaml."""

    metric: Annotated[Metric, pydantic.BeforeValidator(_no_score)] = "fit"
    alpha: float = Field(default=0.05, gt=0.0, lt=0.5)
    """Probability of a wrong answer, ever: half of it for promotions, half for keeps."""
    min_gain: Finite = 0.0
    """Promote where the gain is shown to be above; for cost and latency the gain is what is saved."""
    keep_below: Finite | None = None
    """Keep where the gain is shown to be below: it is not worth a change, or further waiting. By default `min_gain`,
    for fit and utility .02 more: gains in between need very many labels to be told from none."""
    ceilings: dict[Metric, Annotated[float, Field(gt=0.0, allow_inf_nan=False)]] = {}
    """cost (USD), latency (s), utility (what it loses by both): the most that counts of one decision; more is cut.
    Exact limits need it before the log is seen."""
    guardrails: tuple[Guardrail, ...] = Field(default=(), max_length=32)
    users: Users = Users()
    min_units: int = Field(default=500, ge=0)
    """Units before which nothing is said."""
    max_unsupported: Fraction = 0.02
    """Mass of the candidate where the log has none, above which nothing is promoted."""
    max_weight: Annotated[float, Field(gt=0.0)] | None = None
    """Largest importance weight with which something is promoted."""
    sensitivity: float = Field(default=GAMMA, ge=1.0)
    """Γ: how far silence may speak, among those who were asked (`study.sensitivity`); 1 trusts that
    it says nothing, and `.inf` assumes nothing at all."""

    @pydantic.model_validator(mode="after")
    def _ordered(self) -> Gate:
        if self.keep_below is not None and self.keep_below < self.min_gain:
            raise ValueError(
                f"keep_below: {self.keep_below} is below min_gain {self.min_gain}; it must not be, or gains between "
                "them would end as neither"
            )
        for metric in (self.metric, *(rail.metric for rail in self.guardrails)):
            if metric in LESS_IS_BETTER and metric not in self.ceilings:
                raise ValueError(
                    f"ceilings: a rule names {metric!r}, of which the most that counts has to be said before, as in "
                    f"'ceilings: {{{metric}: {'0.5' if metric == 'cost' else '60'}}}'"
                )
        return self

    @property
    def keep_threshold(self) -> float:
        """`keep_below`, with its default."""
        if self.keep_below is not None:
            return self.keep_below
        return self.min_gain + (0.0 if self.metric in LESS_IS_BETTER else WORTH_HAVING)


def parse_gate(data: object, source: str = "the gate") -> Gate:
    """Validate a gate that was read from anywhere.

    Raises:
        ConfigError: with every mistake, its place, and what is allowed there.
    """
    try:
        return Gate.model_validate({} if data is None else data)
    except pydantic.ValidationError as error:
        raise ConfigError("\n".join([f"{source} cannot be used:", *map(_explained, error.errors())])) from None


def load_gate(path: str | os.PathLike[str]) -> Gate:
    """Read promote.yaml.

    Raises:
        ConfigError: the file is missing, is no YAML, or holds a rule that cannot be used.
    """
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {str(path)!r}; the shortest gate is `metric: fit`") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is not valid YAML: {error}") from None
    return parse_gate(data, f"{str(path)!r}")


def _explained(item: Mapping[str, Any]) -> str:
    loc = item["loc"]
    where = ".".join(str(part) for part in loc) or "the file"
    if item["type"] == "extra_forbidden":
        sections: dict[str, type[_Section]] = {"guardrails": Guardrail, "users": Users}
        section = sections.get(str(loc[0]), Gate) if loc[:-1] else Gate
        near = difflib.get_close_matches(str(loc[-1]), section.model_fields, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"  {where}: there is no such rule{hint} Allowed here: {', '.join(sorted(section.model_fields))}."
    said = f"  {where}: {item['msg'].removeprefix('Value error, ')}"
    return said if item["type"] in {"missing", "value_error"} else f"{said}; given was {item['input']!r}"
