"""Likelihoods of the kinds of feedback.

A reward model predicts the rating f = hᵀw (+ c + d) of an answer, on the scale of labels in [0, 1]. Each kind of
feedback is an observation of f: Gaussian, y = f + ε, for votes on a scale; logistic, P(y = 1) = σ((f − level) /
temperature), for actions. A pair is a logistic observation of the difference of two answers.

The parameters are fitted on human feedback by `benchmarks.training.likelihoods`; a test compares the two tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from fitrouter.posterior.gaussian import GaussianUpdate, gaussian_update
from fitrouter.types import FeedbackKind


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """Likelihood of one kind of feedback given the rating of an answer."""

    link: Literal["gaussian", "logistic"]
    noise: float = 1.0
    """σ² of a Gaussian signal, in labels²."""
    level: float = 0.0
    """Rating at which a logistic signal has probability ½."""
    temperature: float = 1.0
    """Difference of ratings that is one logit."""
    weight: float = 1.0
    """ρ: number of observations that an event of this kind counts for."""


SIGNALS: dict[FeedbackKind, Signal] = {
    FeedbackKind.THUMB: Signal(link="gaussian", noise=0.255),
    FeedbackKind.RATING: Signal(link="gaussian", noise=0.0651),
    FeedbackKind.PAIR: Signal(link="logistic", temperature=0.141, weight=0.75),
    FeedbackKind.ACCEPT: Signal(link="logistic", temperature=0.148, level=0.673, weight=0.131),
    FeedbackKind.COPY: Signal(link="logistic", temperature=0.0916, level=0.811, weight=0.809),
    FeedbackKind.EDIT: Signal(link="logistic", temperature=0.204, level=0.568, weight=0.137),
    FeedbackKind.DWELL: Signal(link="logistic", temperature=0.4, level=0.692, weight=0.173),
    FeedbackKind.REGENERATE: Signal(link="logistic", temperature=0.148, level=0.673, weight=0.0653),
}
"""A thumb is a Gaussian label with the noise that its fitted logistic likelihood has at the prior mean."""

TIE = Signal(link="logistic", temperature=0.141, weight=0.0725)
"""A pair with y = ½, which has little information."""

REMARKS: dict[str, Signal] = {
    "comment": Signal(link="logistic", temperature=0.141, weight=0.75),
    "implicit": Signal(link="logistic", temperature=0.141, weight=0.375),
}
"""What a person says about a dimension of an answer, as a pair: the answer moved that way is better. No public set has
such remarks: the likelihood is that of pairs, for remarks in passing at half its weight."""

REMARK_STEP = 1.0
"""How far the better answer is, in standard deviations of the feature."""

VERDICT = Signal(link="logistic", temperature=0.148, level=0.673, weight=0.32)
"""Praise or rejection in passing: the link of `accept`, with the weight of `benchmarks.training.remarks`."""

DWELL_LENGTH = (2.97, 0.252)
"""Expected log(1 + seconds) of reading = first + second · log(1 + tokens of the answer)."""
DWELL_SPREAD = 0.817
"""Standard deviation of log(1 + seconds) around it."""


class Observation(msgspec.Struct, frozen=True):
    """A label with its likelihood (`Signal`)."""

    y: float
    signal: Signal

    def at(self, factor: float) -> Observation:
        """Return a logistic observation with its temperature multiplied by a factor; a Gaussian one as it is."""
        if self.signal.link == "gaussian":
            return self
        return Observation(self.y, msgspec.structs.replace(self.signal, temperature=self.signal.temperature * factor))

    def gaussian_update(self, predicted: float, variance: float) -> GaussianUpdate:
        """Update of blocks whose sum is N(predicted, variance), in units of the rating."""
        signal = self.signal
        if signal.link == "gaussian":
            return gaussian_update(predicted, variance, self.y, noise=signal.noise, weight=signal.weight)
        tau = signal.temperature
        logit = gaussian_update((predicted - signal.level) / tau, variance / tau**2, self.y, weight=signal.weight)
        return GaussianUpdate(logit.step / tau, logit.shrink / tau**2)

    def gaussian_updates(self, means: Sequence[float], variances: Sequence[float]) -> tuple[list[float], list[float]]:
        """Steps and shrinkages of `gaussian_update` for several predictions."""
        if self.signal.link == "gaussian":
            noise, y = self.signal.noise / self.signal.weight, self.y
            totals = [noise + v for v in variances]
            return [(y - m) / total for m, total in zip(means, totals, strict=True)], [1.0 / total for total in totals]
        updates = [self.gaussian_update(m, v) for m, v in zip(means, variances, strict=True)]
        return [update.step for update in updates], [update.shrink for update in updates]

    def log_likelihoods(self, means: Sequence[float], variances: Sequence[float]) -> list[float]:
        """Compute `log_likelihood` for several predictions."""
        if self.signal.link != "gaussian":
            return [self.log_likelihood(m, v) for m, v in zip(means, variances, strict=True)]
        noise, y, log = self.signal.noise / self.signal.weight, self.y, math.log
        pairs = [(y - m, noise + v) for m, v in zip(means, variances, strict=True)]
        return [-0.5 * (apart**2 / total + log(total)) for apart, total in pairs]

    def linear(self, predicted: float) -> tuple[float, float]:
        """Return (y, σ²) of the Gaussian observation that approximates this one near `predicted`."""
        signal = self.signal
        if signal.link == "gaussian":
            return self.y, signal.noise / signal.weight
        a = min(max((predicted - signal.level) / signal.temperature, -4.0), 4.0)
        p = 1.0 / (1.0 + math.exp(-a))
        q = p * (1.0 - p)
        return predicted + signal.temperature * (self.y - p) / q, signal.temperature**2 / (signal.weight * q)

    def log_likelihood(self, mean: float, variance: float) -> float:
        """Log likelihood of y under a rating N(mean, variance), weighted, up to a constant of the signal.

        The logistic integral is MacKay's approximation (1992), σ(a / √(1 + π v / 8)).
        """
        signal = self.signal
        if signal.link == "gaussian":
            total = signal.noise / signal.weight + variance
            return -0.5 * ((self.y - mean) ** 2 / total + math.log(total))
        tau = signal.temperature
        a = (mean - signal.level) / tau / math.sqrt(1.0 + math.pi / 8.0 * variance / tau**2)
        return -signal.weight * (max(a, 0.0) + math.log1p(math.exp(-abs(a))) - self.y * a)


def observation_of(kind: FeedbackKind, y: float, tokens: int = 0) -> Observation:
    """Build the observation of a label from its kind and value.

    Args:
        kind: of the feedback.
        y: `Feedback.y`; for edits the changed share of the text, for dwell the seconds.
        tokens: length of the answer, by which dwell times are normalised: longer texts take longer to read.
    """
    if kind in {FeedbackKind.EDIT, FeedbackKind.REGENERATE}:
        y = 1.0 - y
    elif kind is FeedbackKind.DWELL:
        typical = DWELL_LENGTH[0] + DWELL_LENGTH[1] * math.log1p(tokens)
        y = 1.0 / (1.0 + math.exp(-(math.log1p(y) - typical) / DWELL_SPREAD))
    tie = kind is FeedbackKind.PAIR and y == 0.5
    return Observation(y, TIE if tie else SIGNALS[kind])
