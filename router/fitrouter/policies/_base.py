"""The seam between beliefs and choices."""

from __future__ import annotations

from typing import Protocol

import msgspec

from fitrouter.types import Floats

__all__ = ["Beliefs", "Policy"]


class Beliefs(msgspec.Struct, frozen=True, kw_only=True):
    """What is believed of the K eligible arms, in canonical order."""

    arms: tuple[str, ...]
    utility: Floats
    """float64[K]: expected utility."""
    sd: Floats
    """float64[K]: its standard deviation."""
    steps: float
    """How much has been learnt: the number of labels folded so far."""


class Policy(Protocol):
    """Turns beliefs into probabilities. Pure: no state, no clock, no random numbers."""

    name: str

    def propose(self, beliefs: Beliefs) -> Floats:
        """float64[K], the whole pmf before floor and rollout share: non-negative, sums to 1 within 1e-12."""
        ...
