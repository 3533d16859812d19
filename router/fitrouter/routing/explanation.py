"""Data types of an explained decision: the terms of each model's utility, and a contrast with the closest rival."""

from __future__ import annotations

import msgspec

TERMS = {
    "fit": "predicted rating",
    "text": "everybody's taste for its text",
    "role": "what the role adds to taste and rating",
    "style": "this user's taste for its text",
    "model": "everybody's rating beyond its text",
    "offset": "this user's rating beyond its text",
    "price": "price",
    "latency": "latency",
    "availability": "risk of no answer",
}
"""Terms of a utility, in order. Where the split is known the five from `text` to `offset` replace `fit`, as the eight
groups that a difference between two models is split over."""


_RATING = tuple(TERMS)[1:6]


class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the immutable types of this module."""


class Term(_Value, frozen=True, kw_only=True):
    """One summand of a utility, in units of fit."""

    name: str
    """One of `TERMS`."""
    value: float


class Account(_Value, frozen=True, kw_only=True):
    """What an explanation says of one eligible model; None where a value, or a part of it, was not logged."""

    arm: str
    probability: float | None = None
    blind_probability: float | None = None
    """Probability under the user-blind policy."""
    personal_probability: float | None = None
    """Probability with personalisation, where that is switched off."""
    fit: float | None = None
    sd: float | None = None
    blind_fit: float | None = None
    """Predicted rating without role and user terms; needs the split."""
    utility: float | None = None
    terms: tuple[Term, ...] = ()
    """Sum to `utility`."""
    cost_usd: float | None = None
    """Expected; of an unpriced model what it is weighed as, None for nothing."""
    unpriced: bool = False
    latency_s: float | None = None
    availability: float | None = None
    switch: float | None = None
    """Rating that leaving the session's model for this one costs, a part of the term `price`."""
    candidates: dict[str, float] = {}
    """Candidate policy → its probability for this model."""
    new: bool = False
    """Has the raised exploration share of new models."""
    votes_up: int = 0
    votes_down: int = 0
    votes: int = 0
    """This user's ratings of its answers until then, as `stores.figures.tallies` counts them."""
    answers: int | None = None
    labels: int | None = None
    """Its answers and labels of all users until then; None if they were not logged."""

    @property
    def rating(self) -> float | None:
        """Predicted rating as the sum of its terms; None without terms."""
        values = {term.name: term.value for term in self.terms}
        return sum(values[name] for name in _RATING) if "text" in values else self.fit


class Feature(_Value, frozen=True, kw_only=True):
    """Contribution of one response feature to the gap between two models: weight × feature difference."""

    name: str
    """Empty for all properties of the text that are not listed."""
    difference: float
    """Rival minus model, in standard deviations."""
    population: float
    role: float
    user: float
    """The difference times the population, role and user weight."""

    @property
    def value(self) -> float:
        """Sum of the contributions by population, role and user."""
        return self.population + self.role + self.user


class Contrast(_Value, frozen=True, kw_only=True):
    """Comparison of a model with its closest rival: the runner-up if it leads, else the leader."""

    arm: str
    rival: str
    gap: float
    """Utility of the rival minus utility of the model."""
    terms: tuple[Term, ...]
    """Sum to `gap`."""
    features: tuple[Feature, ...] = ()
    """Largest first; sum to `text`, `style` and that part of `role` which is about texts."""


class Explanation(_Value, frozen=True, kw_only=True):
    """Explanation of one decision: the terms of every model, in words and numbers."""

    decision_id: str
    draw_id: str
    mode: str
    chosen: str
    propensity: float
    leader: str | None = None
    """The model with the highest utility."""
    explores: bool = False
    """The draw chose another model than the leader."""
    explored: float | None = None
    """Probability that the draw chooses another model than the leader."""
    floor_each: float = 0.0
    """Exploration probability of every eligible model."""
    share: float = 1.0
    redraw: str = ""
    models: tuple[Account, ...] = ()
    contrast: Contrast | None = None
    excluded: tuple[tuple[str, str], ...] = ()
    cost_weight: float = 0.0
    cost_unit_usd: float = 0.0
    tier: str = ""
    """Cost tier of the request; empty for balanced."""
    latency_weight: float = 0.0
    budget_weight: float = 0.0
    budget_unit_usd: float = 0.0
    own: float | None = None
    """Weight of the heads with terms of this user or role of their own; None without labels, or without a split."""
    split: bool = False
    """The predicted rating is split into terms."""
    now: bool = False
    """The split is by the estimates of now, not by those of the decision."""
    today: Explanation | None = None
    """The same decision by the estimates of now, for comparison."""
    missing: str = ""
    """Why there are no utilities."""
    drew: float | None = None
    """Sticky turns: probability of the session's draw."""
    would: str | None = None
    """In shadow: the model that the policy would have drawn for this request."""
    served_by: str | None = None
    """The model that answered."""
    sentences: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.sentences)
