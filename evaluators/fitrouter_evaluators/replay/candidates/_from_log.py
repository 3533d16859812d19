"""Candidates that need no computation: logged pmfs, the uniform policy, and a fixed model."""

from __future__ import annotations

import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.types import FULL_SHARE, Floats
from fitrouter_evaluators.replay.candidates._base import DescribedCandidate
from fitrouter_evaluators.replay.candidates._log_columns import arm_codes, entries, per_entry, sums
from fitrouter_evaluators.replay.log.log import Ints, Log

_DESCRIPTIONS = {
    "current": "the logged policy",
    "twin": "the logged policy without the user and role terms (the user-blind policy)",
    "personal": "the logged policy with the user and role terms",
    "shadow": "the logged policy with all of the traffic (share 1)",
}
_REMEDIES = {
    "twin": "choose a window logged by fitrouter",
    "personal": "choose a window logged by fitrouter",
    "shadow": "choose a window logged by this version of fitrouter or a later one",
}


class LoggedCandidate(DescribedCandidate):
    """Candidate with a logged pmf: "current", "twin", "personal", "shadow" or "candidate" (one that ran in shadow)."""

    def __init__(self, kind: str, shadow: str = "") -> None:
        super().__init__(_DESCRIPTIONS.get(kind, f"the shadow candidate {shadow!r}"))
        self.kind, self.shadow = kind, shadow

    def pmf(self, log: Log, rows: Ints) -> Floats:
        if self.kind != "candidate":
            column = self._column(log)
            if self.kind == "current":
                column = _with_propensities(log)
                return np.asarray(column[entries(log, rows)])
            return per_entry(log, column, rows, _DESCRIPTIONS[self.kind], _REMEDIES[self.kind])
        column = log.options.candidates.get(self.shadow)
        if column is None:
            known = ", ".join(repr(name) for name in sorted(log.options.candidates) if name != FULL_SHARE) or "none"
            raise ConfigError(f"candidate: {log.source} has no shadow candidate {self.shadow!r}; it has {known}")
        remedy = "choose a window in which it ran in shadow"
        return per_entry(log, column, rows, f"the pmf of shadow candidate {self.shadow!r}", remedy)

    def _column(self, log: Log) -> Floats | None:
        if self.kind != "shadow":
            return log.options.prob if self.kind == "current" else getattr(log.options, self.kind)
        share = np.ones(log.decisions.n) if log.decisions.share is None else log.decisions.share
        whole = np.repeat(share >= 1.0, np.diff(log.decisions.start))
        logged = log.options.candidates.get(FULL_SHARE, np.full(len(whole), np.nan))
        return np.where(whole, log.options.prob, logged)


def _with_propensities(log: Log) -> Floats:
    """Return the logged probabilities, with the chosen arm's propensity where only that is known.

    The others stay NaN there: the value of the logged policy is a mean of outcomes, which does not need them.
    """
    decisions, found = log.decisions, log.options.prob.copy()
    there = decisions.chosen >= 0
    chosen = decisions.chosen[there]
    found[chosen] = np.where(np.isnan(found[chosen]), decisions.propensity[there], found[chosen])
    return found


class UniformCandidate(DescribedCandidate):
    """Uniform policy: equal probabilities for all eligible arms."""

    def pmf(self, log: Log, rows: Ints) -> Floats:
        counts = np.diff(log.decisions.start)[rows]
        return np.repeat(1.0 / counts, counts)


class FixedCandidate(DescribedCandidate):
    """Sends all traffic except the exploration floor to one model; uniform where it is not eligible.

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
