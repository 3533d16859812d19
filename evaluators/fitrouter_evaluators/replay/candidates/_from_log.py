"""Candidates that need no computing: pmfs that the log holds, and those that look at nothing but the eligible arms."""

from __future__ import annotations

import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.replay.candidates._base import DescribedCandidate
from fitrouter_evaluators.replay.candidates._log_columns import called, entries, per_entry, sums
from fitrouter_evaluators.replay.log.log import Ints, Log

_WORDS = {
    "current": "the logged policy",
    "twin": "the logged policy without the terms of role and user (the blind twin)",
    "personal": "the logged policy with the terms of role and user",
}
_MISSING = {
    "current": "only the chosen arm's probability is known: compare with uniform or with one model (--against)",
    "twin": "choose a window in which fitrouter decided",
    "personal": "choose a window in which fitrouter decided",
}


class LoggedCandidate(DescribedCandidate):
    """A pmf that every decision holds: `current`, `twin`, `personal`, or a candidate that was in shadow.

    Args:
        kind: one of the three, or "candidate".
        shadow: the candidate's name.
        name: for reports.
        trained_until: the last moment that it has learnt from, where that is known.
    """

    def __init__(self, kind: str, shadow: str = "", *, name: str = "", trained_until: float | None = None) -> None:
        words = _WORDS.get(kind, f"the candidate {shadow!r} as it ran in shadow")
        super().__init__(words, {kind: shadow or True}, name=name, trained_until=trained_until)
        self.kind, self.shadow = kind, shadow

    def pmf(self, log: Log, rows: Ints) -> Floats:
        """float64[m], flat over the entries of these rows; NaN may stand in rows that are no draws.

        Raises:
            ConfigError: no candidate of that name was in shadow.
            InvalidLog: a draw does not have it.
        """
        if self.kind != "candidate":
            column = log.options.prob if self.kind == "current" else getattr(log.options, self.kind)
            return per_entry(log, column, rows, _WORDS[self.kind], _MISSING[self.kind])
        column = log.options.candidates.get(self.shadow)
        if column is None:
            known = ", ".join(repr(name) for name in sorted(log.options.candidates)) or "none"
            raise ConfigError(f"candidate: {log.source} has no candidate {self.shadow!r} in shadow; it has {known}")
        remedy = "choose a window in which it was in shadow"
        return per_entry(log, column, rows, f"what {self.shadow!r} would have done", remedy)


class UniformCandidate(DescribedCandidate):
    """All eligible arms alike."""

    def __init__(self, *, name: str = "") -> None:
        super().__init__("all eligible models alike", {"uniform": True}, name=name)

    def pmf(self, log: Log, rows: Ints) -> Floats:
        """float64[m], flat over the entries of these rows."""
        counts = np.diff(log.decisions.start)[rows]
        return np.repeat(1.0 / counts, counts)


class FixedCandidate(DescribedCandidate):
    """One arm takes everything but the floor; where it is not eligible, all others alike.

    Args:
        model: an arm, or a model for all its revisions.
        floor: share of the traffic that is spread evenly.
        name: for reports.
    """

    def __init__(self, model: str, floor: float = 0.0, *, name: str = "") -> None:
        words = f"always {model}" + (f", floor {floor:g}" if floor else "")
        super().__init__(words, {"fixed": model, "floor": floor}, name=name)
        self.model, self.floor = model, floor

    def pmf(self, log: Log, rows: Ints) -> Floats:
        """float64[m], flat over the entries of these rows.

        Raises:
            ConfigError: the log knows no such arm.
        """
        codes = called(log.names.arms, self.model)
        if not len(codes):
            known = ", ".join(log.names.arms)
            raise ConfigError(f"fixed: there is no arm {self.model!r} in {log.source}; there are {known}")
        counts = np.diff(log.decisions.start)[rows]
        is_it = np.isin(log.options.arm[entries(log, rows)], codes).astype(np.float64)
        found = sums(is_it, counts)
        even = np.repeat(1.0 / counts, counts)
        pmf = np.where(np.repeat(found, counts) > 0.0, is_it / np.repeat(np.maximum(found, 1.0), counts), even)
        probs: Floats = (1.0 - self.floor) * pmf + self.floor * even
        return probs
