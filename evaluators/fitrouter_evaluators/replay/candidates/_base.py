"""Base class of all candidates."""

from __future__ import annotations

from fitrouter.types import Floats
from fitrouter_evaluators.replay.log.log import Ints, Log


class DescribedCandidate:
    """A candidate with a description for reports."""

    trained_until: float | None = None
    """End of its training data in seconds since the epoch; None: unknown or never trained."""

    def __init__(self, description: str) -> None:
        self.description = description

    def pmf(self, log: Log, rows: Ints) -> Floats:
        """Compute the pmf at these rows, flat over their entries, float64[m]; may be NaN in rows without a draw."""
        raise NotImplementedError
