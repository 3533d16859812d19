"""Draws from a logged pmf: by any process, again and again, with the same result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fitrouter.ids import draws
from fitrouter.types import Decision, Floats

__all__ = ["index_at", "renormalise", "replay"]


def index_at(probs: Floats, u: float) -> int:
    """The index that a uniform u on [0, 1) falls on."""
    edges = np.cumsum(probs)
    return min(int(np.searchsorted(edges, u * edges[-1], side="right")), len(probs) - 1)


def replay(decision: Decision) -> str:
    """The arm that the logged draw leads to; equals `decision.chosen` for every drawn decision."""
    u = draws(decision.seed, decision.id, 1)
    return decision.eligible[index_at(np.array(decision.probs), float(u[0]))]


def renormalise(decision: Decision, failed: Sequence[str], attempt: int) -> tuple[str, float] | None:
    """The next arm after failures: drawn from the same pmf without them. Returns (arm, conditional probability).

    `attempt` is 1 for the first fallback; every attempt has a uniform of its own. None where no arm is left.
    """
    left = [(arm, p) for arm, p in zip(decision.eligible, decision.probs, strict=True) if arm not in failed and p > 0]
    if not left:
        return None
    probs = np.array([p for _, p in left])
    probs = probs / probs.sum()
    chosen = index_at(probs, float(draws(decision.seed, decision.id, 2 + attempt)[1 + attempt]))
    return left[chosen][0], float(probs[chosen])
