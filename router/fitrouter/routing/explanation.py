"""An explained decision: the terms of each model's utility, and a contrast with the best alternative."""

from __future__ import annotations

import msgspec

TERMS = {
    "fit": "predicted fit",
    "population": "everybody's taste in its text",
    "role_taste": "the role's taste in its text",
    "user_taste": "the user's taste in its text",
    "correction": "what labels say of it beyond its text",
    "role_offset": "the role's offset for it",
    "user_offset": "the user's offset for it",
    "since": "what was believed then and is no longer",
    "cost": "price",
    "budget": "price on top while the budget is short",
    "latency": "wait",
    "availability": "chance that it does not answer",
    "switch": "leaving the session's model",
}
"""Terms of a utility in their order. Where a fit is given, the seven from `population` to `since` stand for `fit`."""


class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frozen value."""


class Term(_Value, frozen=True, kw_only=True):
    """One summand of a utility, in units of fit."""

    name: str
    """One of `TERMS`."""
    value: float


class Account(_Value, frozen=True, kw_only=True):
    """One eligible model. What was not logged is None, and the utility without it too."""

    arm: str
    probability: float | None = None
    blind_probability: float | None = None
    """Without what is known of the user and the role."""
    personal_probability: float | None = None
    """With it, where it is switched off."""
    fit: float | None = None
    sd: float | None = None
    blind_fit: float | None = None
    """The fit without the terms of role and user; known with a fit only."""
    utility: float | None = None
    terms: tuple[Term, ...] = ()
    """They sum to `utility`."""
    cost_usd: float | None = None
    latency_s: float | None = None
    availability: float | None = None
    candidates: dict[str, float] = {}
    """Shadow candidate → the probability that it would have given this model."""
    new: bool = False
    """Under the raised floor of newcomers."""


class Feature(_Value, frozen=True, kw_only=True):
    """What one response feature adds to the gap between two models: a weight times a difference in writing."""

    name: str
    difference: float
    """Of the rival's answers from the model's, in standard deviations."""
    population: float
    role: float
    user: float
    """The difference times everybody's, the role's and the user's weight for the feature."""

    @property
    def value(self) -> float:
        """All three."""
        return self.population + self.role + self.user


class Contrast(_Value, frozen=True, kw_only=True):
    """A model beside the one that it is best compared with: the runner-up of a leader, the leader for all others."""

    arm: str
    rival: str
    gap: float
    """Utility of the rival minus that of the model."""
    terms: tuple[Term, ...]
    """They sum to `gap`."""
    features: tuple[Feature, ...] = ()
    """Largest first; they sum to the three tastes of `terms`."""


class Explanation(_Value, frozen=True, kw_only=True):
    """What moved one decision."""

    decision_id: str
    draw_id: str
    mode: str
    chosen: str
    propensity: float
    leader: str | None = None
    """The model with the highest utility."""
    explores: bool = False
    """A draw whose model is not the leader."""
    explored: float | None = None
    """Probability that the draw falls on another than the leader."""
    floor_each: float = 0.0
    """Probability that every eligible model has for the sake of exploration."""
    share: float = 1.0
    redraw: str = ""
    models: tuple[Account, ...] = ()
    contrast: Contrast | None = None
    excluded: tuple[tuple[str, str], ...] = ()
    cost_weight: float = 0.0
    latency_weight: float = 0.0
    budget_weight: float = 0.0
    budget_unit_usd: float = 0.0
    split: bool = False
    """The fit is split into its parts by what is known now."""
    missing: str = ""
    """Why there are no utilities."""
    drew: float | None = None
    """For a turn that stayed on its session's model: with what probability the draw that it lives on fell there."""
    served_by: str | None = None
    """Who answered in the end."""
    sentences: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.sentences)
