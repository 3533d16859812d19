"""The figures of a fit certificate, from its rows alone.

An estimate is of a model's mean rating by this person, had it answered every rated request for which it was eligible:
off-policy, doubly robust with the logged predictions, which were made before the answer (Dudík, Langford and Li 2011).
Its interval is of a single look. The confidence sequence holds at all looks at once (`replay.inference.sequences`), as
a person may ask for a certificate whenever they like; it reads importance-weighted ratings, which need no model.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from fitrouter.errors import ConfigError
from fitrouter_evaluators.personal.certificate.rows import Decided, Rows
from fitrouter_evaluators.personal.leaderboard import ranked
from fitrouter_evaluators.personal.scores import CLAIM, within_scale
from fitrouter_evaluators.replay.estimators import ESTIMATORS, Estimator
from fitrouter_evaluators.replay.estimators.rounds import Rounds
from fitrouter_evaluators.replay.inference.intervals import deltas
from fitrouter_evaluators.replay.inference.sequences import exact

LEAST = 5
"""Fewest rated answers of a model for an interval; with fewer the spread of its ratings is unknown."""


class Method(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Estimator of a certificate's figures, with its options."""

    estimator: str = "dr"
    """A name in `replay.estimators.ESTIMATORS`."""
    parameter: float | None = None
    """Its λ, if it has one."""
    alpha: float = 0.2
    """Intervals and sequences each miss with at most this probability."""

    def build(self) -> Estimator:
        """Build the estimator.

        Raises:
            ConfigError: there is none of this name, or the options do not suit it.
        """
        known = sorted(ESTIMATORS.keys() - {"rejection"})  # it needs draws of a candidate
        if self.estimator not in known:
            raise ConfigError(f"estimator: there is no {self.estimator!r}; choose one of {', '.join(known)}")
        if not 0.0 < self.alpha < 1.0:
            raise ConfigError(f"estimator: alpha is {self.alpha}; it must be above 0 and below 1")
        default = ESTIMATORS[self.estimator]
        kind: Any = type(default)
        if self.parameter is None:
            return default
        if not hasattr(default, "lam"):
            raise ConfigError(f"estimator: {self.estimator!r} has no parameter")
        built: Estimator = kind(self.parameter)
        return built


class Estimate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model's mean rating by the person, from 0 to 1."""

    model: str
    eligible: int
    """Rated requests that it could have answered."""
    answered: int
    """Those of them that it did answer."""
    share: float
    """Its mean logged probability in them."""
    value: float | None
    """None where a ratio has no weight."""
    low: float | None
    high: float | None
    """Interval of a single look; None with fewer than five rated answers, or where all are rated alike."""
    sequence_low: float
    sequence_high: float
    """Confidence sequence."""


class Fit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model's place in the fit report, as in `leaderboard.Standing`."""

    model: str
    rank: int
    rating: float
    low: float
    high: float
    lead: float
    lead_low: float | None
    lead_high: float | None
    best: float


class Figures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything computed from the rows of a certificate."""

    decisions: int
    rated: int
    first_seq: int
    last_seq: int
    """Positions in the journal of the first and last decision; 0 for none."""
    estimates: tuple[Estimate, ...]
    report: tuple[Fit, ...]
    population_first: str
    beats: float
    """Probability that the report's first model is better for them than the population's; 0 if they are the same."""
    claimed: bool
    """With `beats` of .8 or more, and at least one rated decision among the rows."""
    anchors: dict[str, float]


def figures(rows: Rows, method: Method) -> Figures:
    """Compute the figures of a certificate from its rows.

    Raises:
        ConfigError: the method is none.
    """
    estimator = method.build()
    rated = [each for each in rows.decisions if each.y is not None]
    names = sorted({name for each in rated for name in each.models})
    own = np.array([each.ratings for each in rows.draws])
    compared = rows.compared.names
    standings = ranked(compared, own, own)
    a, b = compared.index(standings[0].model), compared.index(rows.compared.population_first)
    beats = 0.0 if a == b else float((own[:, a] > own[:, b]).mean())
    return Figures(
        decisions=len(rows.decisions),
        rated=len(rated),
        first_seq=rows.decisions[0].seq if rows.decisions else 0,
        last_seq=rows.decisions[-1].seq if rows.decisions else 0,
        estimates=tuple(_estimate(name, rated, estimator, method.alpha) for name in names),
        report=tuple(Fit(**{f: getattr(each, f) for f in Fit.__struct_fields__}) for each in standings),
        population_first=rows.compared.population_first,
        beats=beats,
        claimed=beats >= CLAIM and bool(rated),
        anchors={each.model: each.score for each in rows.anchors},
    )


def _estimate(model: str, rated: list[Decided], estimator: Estimator, alpha: float) -> Estimate:
    own = [each for each in rated if model in each.models]
    at = np.array([each.models.index(model) for each in own])
    chosen = np.array([each.models.index(each.chosen) for each in own])
    y = np.array([each.y for each in own], dtype=np.float64)
    p = np.array([each.probs[k] for each, k in zip(own, at, strict=True)])
    # Without a prediction the baseline is 0: still unbiased, less precise.
    q, base = (
        np.array([each.predicted[k] if each.predicted else 0.0 for each, k in zip(own, places, strict=True)])
        for places in (chosen, at)
    )
    hit = at == chosen
    weight = np.divide(1.0, p, out=np.zeros(len(p)), where=hit)
    rounds = Rounds(reward=y, weight=weight, q=q, base=base, direct=base)
    cluster = np.unique([each.session for each in own], return_inverse=True)[1].astype(np.int64)
    (found,) = deltas([estimator], rounds, cluster=cluster, alpha=alpha)
    # w·y ≥ 0 and 1 − w·(1 − y) ≤ 1: any positive bounds hold.
    sequence = exact(
        weight * y, 1.0 - weight * (1.0 - y), 1.0, 2.0, alpha=alpha, within=(0.0, 1.0), looks=np.array([len(y)])
    )
    value, low, high = float(found.value[0]), float(found.low[0]), float(found.high[0])
    known = int(hit.sum()) >= LEAST and math.isfinite(low) and low < high
    value, low, high = within_scale(value, low, high)
    return Estimate(
        model=model,
        eligible=len(own),
        answered=int(hit.sum()),
        share=float(p.mean()),
        value=value if math.isfinite(value) else None,
        low=low if known else None,
        high=high if known else None,
        sequence_low=float(sequence.low[0]),
        sequence_high=float(sequence.high[0]),
    )
