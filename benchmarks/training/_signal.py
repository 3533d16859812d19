"""One kind of feedback as an observation of an answer's utility."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np

from fitrouter.posterior import likelihoods as signals
from fitrouter.posterior.gaussian import GaussianUpdate

LEVEL = 0.7
"""Mean utility of an answer before any label, as in the core's `FitParams`."""


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """How events of one kind depend on the utility u of an answer (of a pair: on the difference of two)."""

    kind: str
    link: Literal["gaussian", "logistic"]
    weight: float
    """ρ in [0, 1]: how many observations an event counts for."""
    weight_sd: float | None = None
    """How uncertain ρ is after the fit."""
    noise: float | None = None
    """Variance of a Gaussian kind, in squared label units; of a thumb, where y itself is read as utility."""
    temperature: float | None = None
    """Of a logistic kind, in label units."""
    level: float = 0.0
    """Utility at which y = 1 and y = 0 are equally likely."""
    knots: tuple[tuple[float, float], ...] = ()
    """Piecewise linear map from what is measured to y; none: y is what is measured."""
    length: tuple[float, float, float] | None = None
    """Of dwell: intercept and slope of log(1 + seconds) on log(1 + tokens), sd around it; y = σ(residual / sd)."""
    note: str = ""
    source: str = ""
    predicts: str = ""
    """The kind whose held-out likelihood chose ρ."""
    events: int = 0
    people: int = 0
    nll: float | None = None
    """Mean negative log likelihood of what is predicted, held-out people, learning from the events …"""
    nll_without: float | None = None
    """… and never learning from them."""
    gain_se: float | None = None
    """Standard error of the difference, over people."""

    def label(self, measured: float, tokens: float = 0.0) -> float:
        """Convert what was measured (a vote, an edit's relative distance, seconds on `tokens`) to a label in [0, 1]."""
        if self.length is not None:
            intercept, slope, sd = self.length
            z = (math.log1p(max(measured, 0.0)) - intercept - slope * math.log1p(tokens)) / sd
            return 1.0 / (1.0 + math.exp(-min(max(z, -30.0), 30.0)))
        if self.knots:
            at, y = zip(*self.knots, strict=True)
            measured = float(np.interp(measured, at, y))
        return min(max(measured, 0.0), 1.0)

    def gaussian_update(self, predicted: float, variance: float, y: float, weight: float = 1.0) -> GaussianUpdate:
        """Return the update of a prediction N(predicted, variance) of u by one event, with `weight` times its own."""
        weight *= self.weight
        if weight <= 0.0:
            return GaussianUpdate(0.0, 0.0)
        signal = signals.Signal(
            link="gaussian" if self.temperature is None else self.link,
            noise=self.noise or 1.0,
            level=self.level,
            temperature=self.temperature or 1.0,
            weight=weight,
        )
        return signals.Observation(y, signal).gaussian_update(predicted, variance)

    def nll_of(self, predicted: float, variance: float, y: float) -> float:
        """Return −log p(y) under the prediction N(predicted, variance) of u; cross entropy where 0 < y < 1."""
        if self.link == "gaussian" or self.temperature is None:
            total = variance + (self.noise or 0.0)
            return 0.5 * ((y - predicted) ** 2 / total + math.log(2.0 * math.pi * total))
        T = self.temperature
        a = (predicted - self.level) / T / math.sqrt(1.0 + math.pi * variance / T**2 / 8.0)
        return float(np.logaddexp(0.0, a)) - y * a
