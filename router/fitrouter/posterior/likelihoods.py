"""What each kind of feedback says of an answer: one table, one observation, one kernel.

A reward model predicts the fit f = hᵀw (+ c + d) of an answer, on the scale of labels in [0, 1]. A signal is an
observation of f: Gaussian, y = f + ε, for a verdict on a scale; logistic, P(y = 1) = σ((f − level) / temperature), for
something that people do or leave. A pair is a logistic observation of the difference of two answers.

The numbers are fitted on people's data, not set by hand: `benchmarks.research.signals` makes the table, and a
test holds the two together.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from fitrouter.posterior.gaussian import GaussianUpdate, gaussian_update
from fitrouter.types import FeedbackKind


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """How one kind of feedback depends on the fit of an answer."""

    link: Literal["gaussian", "logistic"]
    noise: float = 1.0
    """σ² of a Gaussian signal, in labels²."""
    level: float = 0.0
    """Fit at which a logistic signal is as likely as not."""
    temperature: float = 1.0
    """Fit that moves a logistic signal by one logit."""
    weight: float = 1.0
    """ρ: how many observations an event of this kind counts for."""


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
"""A thumb is read as a label itself, with the noise that its fitted logistic signal has at the prior's level."""

TIE = Signal(link="logistic", temperature=0.141, weight=0.0725)
"""A pair with y = ½: judges who call a tie have said little."""

DWELL_LENGTH = (2.97, 0.252)
"""log(1 + seconds) of a typical stay = first + second · log(1 + tokens of the answer)."""
DWELL_SPREAD = 0.817
"""Standard deviation of log(1 + seconds) around it."""


class Observation(msgspec.Struct, frozen=True):
    """One signal, ready for the kernel."""

    y: float
    signal: Signal

    def gaussian_update(self, predicted: float, variance: float) -> GaussianUpdate:
        """How far it moves blocks whose sum is predicted as N(predicted, variance), in units of the fit."""
        signal = self.signal
        if signal.link == "gaussian":
            return gaussian_update(predicted, variance, self.y, noise=signal.noise, weight=signal.weight)
        tau = signal.temperature
        logit = gaussian_update((predicted - signal.level) / tau, variance / tau**2, self.y, weight=signal.weight)
        return GaussianUpdate(logit.step / tau, logit.shrink / tau**2)

    def linear(self, predicted: float) -> tuple[float, float]:
        """(y, σ²) of the Gaussian observation of the fit that says the same near `predicted`."""
        signal = self.signal
        if signal.link == "gaussian":
            return self.y, signal.noise / signal.weight
        a = min(max((predicted - signal.level) / signal.temperature, -4.0), 4.0)
        p = 1.0 / (1.0 + math.exp(-a))
        q = p * (1.0 - p)
        return predicted + signal.temperature * (self.y - p) / q, signal.temperature**2 / (signal.weight * q)

    def surprise(self, predicted: float) -> float:
        """−log p(y | predicted) in nats, up to a constant of the signal."""
        signal = self.signal
        if signal.link == "gaussian":
            return 0.5 * signal.weight * (self.y - predicted) ** 2 / signal.noise
        a = (predicted - signal.level) / signal.temperature
        return signal.weight * (max(a, 0.0) + math.log1p(math.exp(-abs(a))) - self.y * a)


def observation_of(kind: FeedbackKind, y: float, tokens: int = 0) -> Observation:
    """The observation in a verdict.

    Args:
        kind: of the feedback.
        y: `Feedback.y`; for an edit the share of the text that was changed, for a stay its seconds.
        tokens: of the answer: longer texts keep readers longer, which says nothing of their worth.
    """
    if kind in {FeedbackKind.EDIT, FeedbackKind.REGENERATE}:
        y = 1.0 - y
    elif kind is FeedbackKind.DWELL:
        typical = DWELL_LENGTH[0] + DWELL_LENGTH[1] * math.log1p(tokens)
        y = 1.0 / (1.0 + math.exp(-(math.log1p(y) - typical) / DWELL_SPREAD))
    tie = kind is FeedbackKind.PAIR and y == 0.5
    return Observation(y, TIE if tie else SIGNALS[kind])
