"""The seam between beliefs and choices, and the two rules that all policies share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.types import Floats

_LARGE = 1e100
"""Utilities beyond this are as good as infinite: their differences could overflow."""


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
    """Turns beliefs into probabilities. Pure: no state, no clock, no random numbers.

    All policies treat arms by their beliefs alone: permuting the arms permutes the pmf, and arms that tie share
    equally. Beliefs that are not finite never enter a pmf, see `sound`.
    """

    name: str

    def propose(self, beliefs: Beliefs) -> Floats:
        """float64[K], the whole pmf before floor and rollout share: non-negative, sums to 1 within 1e-12.

        Raises:
            ValueError: there are no arms.
        """
        ...


@runtime_checkable
class Batched(Protocol):
    """A policy that looks at beliefs alone and can do so for many requests at once."""

    def pmf(self, utility: Floats, sd: Floats, steps: float | Floats) -> Floats:
        """float64[..., K], what `propose` makes of sound beliefs, along the last axis; steps are of shape [..., 1]."""
        ...


def proposals(policy: Policy, arms: Sequence[Sequence[str]], utility: Floats, sd: Floats, steps: Floats) -> Floats:
    """float64[n, K]: what a policy proposes for n requests with K eligible arms each, bit for bit.

    Args:
        policy: at once where it is `Batched`, else request by request.
        arms: of each request; a `Batched` policy does not look at them, and they may be missing.
        utility: float64[n, K].
        sd: float64[n, K].
        steps: float64[n].
    """
    if not isinstance(policy, Batched):
        rows = zip(arms, utility, sd, steps.tolist(), strict=True)
        each = [policy.propose(Beliefs(arms=tuple(a), utility=u, sd=s, steps=t)) for a, u, s, t in rows]
        return np.array(each).reshape(utility.shape)
    squares = np.einsum("ik,ik->i", utility, utility) + np.einsum("ik,ik->i", sd, sd)
    broken = np.flatnonzero(~(np.isfinite(squares) & (sd.min(axis=1) >= 0.0)))
    if len(broken):
        utility, sd = utility.copy(), sd.copy()
        for i in broken.tolist():
            beliefs = Beliefs(arms=("",) * utility.shape[1], utility=utility[i], sd=sd[i], steps=0.0)
            utility[i], sd[i] = sound(beliefs)
    return policy.pmf(utility, sd, steps[:, None])


def sound(beliefs: Beliefs) -> tuple[Floats, Floats]:
    """Utility and sd, float64[K] each, with numbers that arithmetic can be done on.

    An arm whose utility is not finite counts as the worst of those that are finite, so that a broken belief neither
    wins nor disturbs the others; an sd that is not finite, or negative, counts as 0, so that it wins no exploration.
    Sound beliefs are returned as they are, not copied.

    Raises:
        ValueError: there are no arms.
    """
    utility, sd = beliefs.utility, beliefs.sd
    if not len(utility):
        raise ValueError(
            "beliefs of no arms: a policy chooses among at least one eligible arm; a request that no model can take is "
            "refused before (NoEligibleModel)"
        )
    if len(utility) == len(sd) == len(beliefs.arms):
        # A finite sum of squares means finite entries, far from where differences overflow; one comparison instead of
        # several passes, since this runs for every pmf.
        if math.isfinite(np.vdot(utility, utility) + np.vdot(sd, sd)) and sd.min() >= 0.0:
            return utility, sd
        return _repaired(utility), np.where(np.isfinite(sd) & (sd > 0.0), np.minimum(sd, _LARGE), 0.0)
    raise ValueError(
        f"beliefs of {len(beliefs.arms)} arms with {len(utility)} utilities and {len(sd)} sds: give one of each an arm"
    )


def _repaired(utility: Floats) -> Floats:
    finite = np.isfinite(utility)
    worst = utility[finite].min() if finite.any() else 0.0
    return np.clip(np.where(finite, utility, worst), -_LARGE, _LARGE)


def checked(policy: str, setting: str, value: float, *, low: float = 0.0, high: float = math.inf) -> float:
    """A setting of a policy, over `low` (or 0 where `low` is 0 and `high` is finite) and at most `high`.

    Raises:
        ConfigError: it is not.
    """
    if math.isfinite(value) and (low < value <= high or (value == low and math.isfinite(high))):
        return float(value)
    allowed = f"{low:g} to {high:g}" if math.isfinite(high) else f"a finite number over {low:g}"
    raise ConfigError(f"policy: {setting}={value!r} of {policy!r} cannot be used; allowed is {allowed}: correct it")
