"""Statements of a person, kept encrypted, and the declared values derived from them.

Goals are statements, and are read like them. A priority scales a taste; that of a metric or another reward model, of
which nothing may be known yet, is its weight in their mean, and a sum of 1 is a declared taste of 1. An example is a
comparison with the average answer, which a standardised text has at zero, with the likelihood of people's comparisons;
a declared ±1 is taken as one standard deviation between people. The population's taste in it is the published copy
(`People.published`), so that what comes out tells nothing of other people's votes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.likelihoods import SIGNALS, Observation
from fitrouter.types import FeedbackKind, Floats
from fitrouter_evaluators.personal.profile.document import UNIT, Comments, Example, Examples, Goals, Priorities

_LEAST = 0.01
"""Declared values below it are left out."""


class Stated(msgspec.Struct, frozen=True, kw_only=True):
    """Statements of a profile that are stored encrypted under the person's key."""

    role: str | None = None
    """In which goals and priorities were stated."""
    values: dict[str, float] = {}
    """Declared values as they were said or imported."""
    goals: Goals = ()
    priorities: Priorities = {}
    examples: Examples = ()
    comments: Comments = ()
    """Imported ones."""

    @property
    def more(self) -> bool:
        """Whether anything but values was stated."""
        return bool(self.role or self.goals or self.priorities or self.examples or self.comments)


def declared(
    values: Mapping[str, float],
    priorities: Mapping[str, float],
    examples: Sequence[Example],
    names: Sequence[str],
    common: Floats,
) -> dict[str, float]:
    """Combine stated values, priorities and examples into declared values in [−1, 1].

    Args:
        values: what was said, or read from goals.
        priorities: dimension → factor, or weight of a metric.
        examples: marked answers.
        names: of the features.
        common: the population's taste in them, float64[D].
    """
    at = {name: j for j, name in enumerate(names)}
    own = np.zeros(len(names))
    for name, value in values.items():
        if name in at:
            own[at[name]] = UNIT * value
    metrics = {name: weight for name, weight in priorities.items() if name in at and name.startswith("rm.")}
    for name, weight in metrics.items():
        own[at[name]] += UNIT * weight / (sum(metrics.values()) or 1.0)
    for name, weight in priorities.items():
        if name in at and name not in metrics:
            own[at[name]] = weight * (common[at[name]] + own[at[name]]) - common[at[name]]
    own = np.clip(own, -UNIT, UNIT)
    taste = Gaussian.prior(own, np.full(len(names), UNIT**2))
    for example in examples:
        row = np.zeros(len(names))
        for name, value in example.features.items():
            if name in at:
                row[at[name]] = value
        gain, mean = taste.along(row)
        seen = Observation(float(example.good), SIGNALS[FeedbackKind.PAIR])
        taste.learn(gain, seen.gaussian_update(mean + float(common @ row), float(gain @ row)))
    found = {name: float(np.clip(taste.mean[j] / UNIT, -1.0, 1.0)) for name, j in at.items()}
    return {name: value for name, value in found.items() if name in values or abs(value) >= _LEAST}
