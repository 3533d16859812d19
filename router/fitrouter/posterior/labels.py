"""Inputs and outputs of the fit model: labels, predictions and prior scales."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from fitrouter.plain import convert_fields
from fitrouter.posterior.arms import ArmParams
from fitrouter.posterior.tastes import OVERALL, TasteParams
from fitrouter.types import FeedbackKind, Floats, Identity


class FitParams(msgspec.Struct, frozen=True, kw_only=True):
    """Prior scales of the fit model, for labels in [0, 1] and features of about unit variance."""

    arms: ArmParams = ArmParams()
    tastes: TasteParams = TasteParams()
    sensitive_roles: tuple[str, ...] = ()
    """Roles in whose service a user's terms start with almost no weight."""
    personal: bool = True
    """Whether roles and users have terms of their own."""
    users: bool = True
    """Whether users have, beside roles."""


class Answered(msgspec.Struct, frozen=True):
    """An answer that a person judges."""

    arm: str
    x: Floats
    h: Floats | None
    """Its features; None where it has no score."""
    stuck: bool = False
    """Whether its model was drawn because another one was stuck."""

    def __post_init__(self) -> None:
        convert_fields(self)


class Share(NamedTuple):
    """An answer of a label, and how much it counts in the rating that the label is of."""

    weight: float
    answer: Answered
    role: str | None = None
    task: str | None = None


class Label(msgspec.Struct, frozen=True):
    """A person's verdict, ready to be learnt from. Its numbers are plain floats and ints (`fitrouter.plain`).

    Raises:
        TypeError: a field holds something that is no number, or no text.
    """

    identity: Identity
    answer: Answered
    y: float
    kind: FeedbackKind
    pooled: bool = True
    """False where this user's cap for the model and day is used up: only the user's own terms learn."""
    against: Answered | None = None
    """The other answer of a pair."""
    dimension: str = OVERALL
    tokens: int = 0
    """Length of the answer, which a stay depends on."""
    ts: float = 0.0
    run: tuple[Share, ...] = ()
    """Of an outcome, the answers of the run, of which `answer` is the first; their weights sum to 1."""
    stream: str = ""
    """Of an outcome, its kind, which has noise and an offset of its own."""
    limited: bool = False
    """Whether its key vouches for a limited number of people (`state.vouching`): it raises no alarm about a model."""

    def __post_init__(self) -> None:
        convert_fields(self)

    @property
    def has_features(self) -> bool:
        """Whether the answers that the label judges have known features."""
        return all(share.answer.h is not None for share in self.shares)

    @property
    def part(self) -> float:
        """Variance of the mean of a run's answers as a share of one's, if they vary alike; 1 for other labels."""
        return math.fsum([share.weight**2 for share in self.run]) if self.run else 1.0

    @property
    def shares(self) -> tuple[Share, ...]:
        """The answers with their weights: 1 for a judged one, and −1 for the one that it is compared with."""
        if self.run:
            return self.run
        of = self.identity.role, self.identity.task
        first = Share(1.0, self.answer, *of)
        return (first,) if self.against is None else (first, Share(-1.0, self.against, *of))


class Prequential(NamedTuple):
    """A pooled label with its prediction from before it was learnt."""

    y: float
    blind: float
    """Without the terms of role and user."""
    term: float
    """Their contribution."""


class Estimate(NamedTuple):
    """Predictions for K arms at one request; arrays are float64[K]."""

    mean: Floats
    sd: Floats
    """Standard deviation of an arm's lead over the mean of the arms: uncertainty that all arms share cancels."""
    blind: Floats
    """The mean without the terms of role and user."""
    tokens: Floats
    seconds: Floats
    availability: Floats
    profile: Floats
    """Expected features of the answers, float64[K, D]."""
    with_role: Floats
    """The mean without the terms of the user."""
    tastes: tuple[Floats, Floats | float, Floats | float]
    """float64[D] each: the population's taste, and what role and user add to it; 0 for nothing."""
