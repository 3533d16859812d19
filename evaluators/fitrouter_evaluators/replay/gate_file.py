"""Schema of promote.yaml, and its error messages."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from fitrouter_evaluators.replay._yaml_file import parse, read_yaml
from fitrouter_evaluators.replay.study.sensitivity import GAMMA

LESS_IS_BETTER = frozenset({"cost", "latency"})
DEFAULT_MARGIN = 0.02
"""Default of `keep_below` above `min_gain`, for fit and utility; cost and latency have no common scale."""
SCORE = (
    "a score is a model's prediction, and a candidate can raise it while users are worse off; it can be inspected "
    "(`--metric score`), not gated on. Gate on 'fit', the human ratings"
)

Metric = Literal["fit", "cost", "latency", "utility", "outcome"]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Section(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


def _no_score(metric: object) -> object:
    if metric == "score":
        raise ValueError(SCORE)
    return metric


class Guardrail(_Section):
    """A limit on the loss in one metric."""

    metric: Annotated[Metric, pydantic.BeforeValidator(_no_score)]
    max_increase: Finite | None = None
    """cost, latency: allowed increase per decision in USD or seconds; negative: required saving."""
    max_decrease: Finite | None = None
    """fit, utility: allowed loss; negative: required gain."""
    slice: str = ""
    """`role=nurse` for one slice, `role` for each role; empty for all units."""
    require: Literal["proof", "no_harm_shown"] = "proof"
    """Whether a promotion needs proof that the loss is within the limit, or only no proof of the contrary."""

    @pydantic.model_validator(mode="after")
    def _one_limit(self) -> Guardrail:
        needed, other = ("max_increase", "max_decrease")[:: 1 if self.metric in LESS_IS_BETTER else -1]
        if getattr(self, needed) is None or getattr(self, other) is not None:
            raise ValueError(f"a guardrail on {self.metric!r} needs {needed!r} and no {other!r}")
        return self

    @property
    def worst(self) -> float:
        """The least allowed gain."""
        loss = self.max_increase if self.max_decrease is None else self.max_decrease
        assert loss is not None
        return -loss

    @property
    def name(self) -> str:
        """Name in messages."""
        return f"{self.metric} of {self.slice}" if self.slice else self.metric


class Users(_Section):
    """Limits on differences between users. Valid for a single look, they can only withhold a promotion."""

    max_worse_off: Fraction | None = None
    """Allowed share of users whose true mean falls."""
    max_worst_decile_decrease: Fraction | None = None
    """Allowed loss of the worst-off tenth of users."""
    per_role: bool = False
    """Apply the limits to every role as well."""


class Gate(_Section):
    """Conditions of promotion, as `promote.yaml` gives them."""

    metric: Annotated[Metric, pydantic.BeforeValidator(_no_score)] = "fit"
    alpha: float = Field(default=0.05, gt=0.0, lt=0.5)
    """Probability of a wrong verdict at any time: half for promotions, half for keeps."""
    min_gain: Finite = 0.0
    """Promote if the gain is shown to be above; for cost and latency the gain is the saving."""
    keep_below: Finite | None = None
    """Keep if the gain is shown to be below. Default: `min_gain`, plus .02 for fit and utility, since smaller gains
    need very many labels to detect.
    """
    ceilings: dict[Metric, Annotated[float, Field(gt=0.0, allow_inf_nan=False)]] = {}
    """Caps on cost (USD), latency (s), and the loss of utility to both, per decision; larger values are cut. Exact
    limits need them before the log is seen.
    """
    guardrails: tuple[Guardrail, ...] = Field(default=(), max_length=32)
    users: Users = Users()
    min_units: int = Field(default=500, ge=0)
    """Minimum units for any verdict."""
    max_unsupported: Fraction = 0.02
    """Largest unsupported mass of a promoted candidate."""
    max_weight: Annotated[float, Field(gt=0.0)] | None = None
    """Largest importance weight of a promoted candidate."""
    sensitivity: float = Field(default=GAMMA, ge=1.0)
    """Γ of `study.sensitivity`: 1 assumes that non-response is random, `.inf` assumes nothing."""

    @pydantic.model_validator(mode="after")
    def _ordered(self) -> Gate:
        if self.keep_below is not None and self.keep_below < self.min_gain:
            raise ValueError(
                f"keep_below: {self.keep_below} is below min_gain {self.min_gain}; it must be at least as large"
            )
        for metric in (self.metric, *(rail.metric for rail in self.guardrails)):
            if metric in LESS_IS_BETTER and metric not in self.ceilings:
                raise ValueError(
                    f"ceilings: a rule names {metric!r}, which needs a cap chosen in advance, as in "
                    f"'ceilings: {{{metric}: {'0.5' if metric == 'cost' else '60'}}}'"
                )
        return self

    @property
    def keep_threshold(self) -> float:
        """`keep_below`, with its default."""
        if self.keep_below is not None:
            return self.keep_below
        return self.min_gain + (0.0 if self.metric in LESS_IS_BETTER else DEFAULT_MARGIN)


def parse_gate(data: object, source: str = "the gate") -> Gate:
    """Validate a gate.

    Raises:
        ConfigError: lists every invalid rule with what is allowed.
    """
    return parse(Gate, {} if data is None else data, source, {"guardrails": Guardrail, "users": Users})


def load_gate(path: str | os.PathLike[str]) -> Gate:
    """Read promote.yaml.

    Raises:
        ConfigError: the file is missing, is not YAML, or has an invalid rule.
    """
    return parse_gate(read_yaml(path, "the shortest gate is `metric: fit`"), f"{str(path)!r}")
