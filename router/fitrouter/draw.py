"""UUIDv7 identifiers, and reproducible draws from logged probabilities."""

from __future__ import annotations

import os
import uuid
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from fitrouter.types import FULL_SHARE, Attempt, Decision, Floats

PASSING = frozenset({"CheckFailed", "ProviderError", "ProviderUnavailable"})
"""Errors of attempts after which the same model may answer the same request: 5xx, lost connections, empty answers, and
answers that failed a check, as no answer is worse."""
_WORD = 2**64 - 1


def uuid7(now: float, entropy: Callable[[int], bytes] = os.urandom) -> str:
    """Make a UUIDv7 (RFC 9562, §5.7) for the time `now`, in seconds since the epoch.

    >>> uuid7(1.0, lambda n: bytes(n))
    '00000000-03e8-7000-8000-000000000000'
    """
    value = int(now * 1000) << 80 | int.from_bytes(entropy(10), "big")
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(0b11 << 62) | 0b10 << 62
    return str(uuid.UUID(int=value))


def draws(seed: int, decision_id: str, n: int) -> Floats:
    """Draw a decision's n uniforms on [0, 1) by Philox 4×64 keyed by (seed, decision id) (Salmon et al. 2011).

    A counter-based generator has no state to share, so that any process can replay a logged draw.

    >>> draws(7, "00000000-03e8-7000-8000-000000000000", 2).round(6).tolist()
    [0.593276, 0.15889]
    """
    number = int(decision_id.replace("-", ""), 16)
    keys, low = (seed & _WORD, number >> 64), number & _WORD
    # In Python, since a numpy generator reads the system's entropy and gives the interpreter's lock away.
    blocks = (_philox(keys, (block, 0, 0, low)) for block in range(1, -(-n // 4) + 1))
    # The conversion of Generator.random.
    return np.array([(word >> 11) * 2.0**-53 for words in blocks for word in words][:n])


def _philox(keys: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Return one block of Philox 4×64 with 10 rounds: four words of 64 bits."""
    (k0, k1), (c0, c1, c2, c3) = keys, counter
    for _ in range(10):
        a, b = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (b >> 64) ^ c1 ^ k0, b & _WORD, (a >> 64) ^ c3 ^ k1, a & _WORD
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & _WORD, (k1 + 0xBB67AE8584CAA73B) & _WORD
    return c0, c1, c2, c3


def landing(probs: Floats, u: float) -> tuple[int, float]:
    """Return the index that a uniform u on [0, 1) draws (inverse CDF), and how much of its mass lies above u."""
    edges = [*accumulate(probs.tolist())]
    at = u * edges[-1]
    index = min(bisect_right(edges, at), len(edges) - 1)
    return index, edges[index] - at


def replay(decision: Decision) -> str:
    """Draw a decision's arm again from the logged seed and probabilities; equals `decision.chosen` if it was drawn."""
    u = draws(decision.seed, decision.id, 1)
    return decision.eligible[landing(np.array(decision.probs), float(u[0]))[0]]


def renormalise(decision: Decision, failed: Sequence[str], attempt: int) -> tuple[str, float] | None:
    """Draw the next arm after failures, from the same pmf without the failed arms.

    Where that pmf leaves no mass, as with a share of 0, the next arm is drawn from the policy's pmf for all of the
    traffic, and where that leaves none either, such as a fixed one, uniformly: an outage of one model is no outage.
    `attempt` is 1 for the first fallback; every attempt has its own uniform.

    Returns:
        (arm, conditional probability); None if no arm is left.
    """
    left: list[tuple[str, float]] = []
    for pmf in (decision.probs, decision.candidates.get(FULL_SHARE, ()), (1.0,) * len(decision.eligible)):
        if not left and len(pmf) == len(decision.eligible):
            left = [(arm, p) for arm, p in zip(decision.eligible, pmf, strict=True) if arm not in failed and p > 0]
    if not left:
        return None
    probs = np.array([p for _, p in left])
    probs = probs / probs.sum()
    chosen, _ = landing(probs, float(draws(decision.seed, decision.id, 2 + attempt)[1 + attempt]))
    return left[chosen][0], float(probs[chosen])


def draw_next(decision: Decision, attempts: Sequence[Attempt]) -> tuple[str, float] | None:
    """Draw the arm to call after attempts that failed: one that was not tried, else one to be tried a second time.

    Returns:
        (arm, probability given the attempts); None if no arm is left.
    """
    tried = Counter(attempt.model for attempt in attempts)
    if (following := renormalise(decision, list(tried), len(attempts))) is not None:
        return following
    lasting = {attempt.model for attempt in attempts if attempt.error not in PASSING}
    return renormalise(decision, [arm for arm, count in tried.items() if count > 1 or arm in lasting], len(attempts))
