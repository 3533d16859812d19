"""Draws from a logged pmf: by any process, again and again, with the same result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fitrouter.ids import draws
from fitrouter.types import Decision, Floats

__all__ = ["landing", "renormalise", "replay"]


def landing(probs: Floats, u: float) -> tuple[int, float]:
    """The index that a uniform u on [0, 1) falls on, and how much of its probability lies above u."""
    edges = np.cumsum(probs)
    at = u * edges[-1]
    index = min(int(np.searchsorted(edges, at, side="right")), len(probs) - 1)
    return index, float(edges[index] - at)


def replay(decision: Decision) -> str:
    """The arm that the logged draw leads to; equals `decision.chosen` for every drawn decision."""
    u = draws(decision.seed, decision.id, 1)
    return decision.eligible[landing(np.array(decision.probs), float(u[0]))[0]]


def renormalise(decision: Decision, failed: Sequence[str], attempt: int) -> tuple[str, float] | None:
    """The next arm after failures: drawn from the same pmf without them. Returns (arm, conditional probability).

    `attempt` is 1 for the first fallback; every attempt has a uniform of its own. None where no arm is left.
    """
    left = [(arm, p) for arm, p in zip(decision.eligible, decision.probs, strict=True) if arm not in failed and p > 0]
    if not left:
        return None
    probs = np.array([p for _, p in left])
    probs = probs / probs.sum()
    chosen, _ = landing(probs, float(draws(decision.seed, decision.id, 2 + attempt)[1 + attempt]))
    return left[chosen][0], float(probs[chosen])
