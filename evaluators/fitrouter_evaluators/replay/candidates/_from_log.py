"""Candidates that need no computation: logged pmfs, the uniform policy, and a fixed model."""

from __future__ import annotations

import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.replay.candidates._base import DescribedCandidate
from fitrouter_evaluators.replay.candidates._log_columns import arm_codes, entries, per_entry, sums
from fitrouter_evaluators.replay.log.log import Ints, Log

_DESCRIPTIONS = {
    "current": "the logged policy",
    "twin": "the logged policy without the user and role terms (the user-blind policy)",
    "personal": "the logged policy with the user and role terms",
}
_REMEDIES = {
    "current": "only the chosen arm's probability is known: compare with uniform or with one model (--against)",
    "twin": "choose a window logged by fitrouter",
    "personal": "choose a window logged by fitrouter",
}


class LoggedCandidate(DescribedCandidate):
    """A pmf that every decision logs: "current", "twin", "personal", or "candidate" for one that ran in shadow."""

    def __init__(self, kind: str, shadow: str = "") -> None:
        super().__init__(_DESCRIPTIONS.get(kind, f"the shadow candidate {shadow!r}"))
        self.kind, self.shadow = kind, shadow

    def pmf(self, log: Log, rows: Ints) -> Floats:
        if self.kind != "candidate":
            column = log.options.prob if self.kind == "current" else getattr(log.options, self.kind)
            return per_entry(log, column, rows, _DESCRIPTIONS[self.kind], _REMEDIES[self.kind])
        column = log.options.candidates.get(self.shadow)
        if column is None:
            known = ", ".join(repr(name) for name in sorted(log.options.candidates)) or "none"
            raise ConfigError(f"candidate: {log.source} has no shadow candidate {self.shadow!r}; it has {known}")
        remedy = "choose a window in which it ran in shadow"
        return per_entry(log, column, rows, f"the pmf of shadow candidate {self.shadow!r}", remedy)


class UniformCandidate(DescribedCandidate):
    """Equal probabilities for all eligible arms."""

    def pmf(self, log: Log, rows: Ints) -> Floats:
        counts = np.diff(log.decisions.start)[rows]
        return np.repeat(1.0 / counts, counts)


class FixedCandidate(DescribedCandidate):
    """One model for all traffic but the exploration floor; uniform where it is not eligible.

    A model name without a revision stands for all its revisions.
    """

    def __init__(self, model: str, floor: float = 0.0) -> None:
        super().__init__(f"always {model}" + (f", floor {floor:g}" if floor else ""))
        self.model, self.floor = model, floor

    def pmf(self, log: Log, rows: Ints) -> Floats:
        codes = arm_codes(log.names.arms, self.model)
        if not len(codes):
            raise ConfigError(
                f"fixed: there is no arm {self.model!r} in {log.source}; there are {', '.join(log.names.arms)}"
            )
        counts = np.diff(log.decisions.start)[rows]
        matches = np.isin(log.options.arm[entries(log, rows)], codes).astype(np.float64)
        found = sums(matches, counts)
        even = np.repeat(1.0 / counts, counts)
        pmf = np.where(np.repeat(found, counts) > 0.0, matches / np.repeat(np.maximum(found, 1.0), counts), even)
        return np.asarray((1.0 - self.floor) * pmf + self.floor * even)
