"""Protocol of policies, the types of their settings, and validation of their inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Protocol, TypeGuard

import msgspec
import numpy as np
from pydantic import ConfigDict, Field

from fitrouter.types import Floats

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
DECLARED = ConfigDict(defer_build=True)
"""Of a policy's dataclass: its fields, with their types, ranges, defaults and docstrings, are its settings."""
_LARGE = 1e100
"""Utilities are clipped to ± this, since differences of larger ones could overflow."""


class Beliefs(msgspec.Struct, frozen=True, kw_only=True):
    """Posterior utilities of the K eligible arms, in canonical order; the input of a policy."""

    arms: tuple[str, ...]
    utility: Floats
    """Expected utility, float64[K]."""
    sd: Floats
    """Its standard deviation, float64[K]."""
    steps: float
    """The number of labels learned so far."""


class Policy(Protocol):
    """Turns utility estimates into choice probabilities, without state, clock or random numbers.

    The fields of its pydantic dataclass are its settings: each is a setting of the configuration and of candidates of
    replay, an option of `fitrouter policy set`, and a row of the reference page.

    Policies are equivariant: permuting the arms permutes the pmf, and tied arms have equal probabilities. Estimates
    that are not finite are replaced first, see `sound`.
    """

    name: ClassVar[str]

    def propose(self, beliefs: Beliefs) -> Floats:
        """Return the pmf over the arms before floor and rollout share, float64[K], with sum 1 within 1e-12.

        Raises:
            ValueError: there are no arms.
        """
        ...


class Batched(Protocol):
    """A policy that depends on utilities only, not on names of arms, and can process many requests at once."""

    def pmf(self, utility: Floats, sd: Floats, steps: float | Floats) -> Floats:
        """Return the pmfs of `propose` for sound inputs, float64[..., K]; `steps` has shape [..., 1]."""
        ...


def is_batched(policy: Policy) -> TypeGuard[Batched]:
    """Whether a policy is `Batched`: `isinstance` with a protocol takes as long as a pmf."""
    return hasattr(policy, "pmf")


def proposals(policy: Policy, arms: Sequence[Sequence[str]], utility: Floats, sd: Floats, steps: Floats) -> Floats:
    """A policy's pmfs for n requests with K eligible arms each, bit-identical to `propose`, float64[n, K].

    Args:
        policy: called once if it is `Batched`, else for each request.
        arms: of each request; ignored for a `Batched` policy, and can be empty then.
        utility: float64[n, K].
        sd: float64[n, K].
        steps: float64[n].
    """
    if not is_batched(policy):
        rows = zip(arms, utility, sd, steps.tolist(), strict=True)
        each = [policy.propose(Beliefs(arms=tuple(a), utility=u, sd=s, steps=t)) for a, u, s, t in rows]
        return np.array(each).reshape(utility.shape)
    squares = np.einsum("ik,ik->i", utility, utility) + np.einsum("ik,ik->i", sd, sd)
    valid = np.isfinite(squares) & (np.minimum.reduce(sd, axis=1) >= 0.0)
    if not np.logical_and.reduce(valid):
        utility, sd = utility.copy(), sd.copy()
        for i in np.flatnonzero(~valid).tolist():
            beliefs = Beliefs(arms=("",) * utility.shape[1], utility=utility[i], sd=sd[i], steps=0.0)
            utility[i], sd[i] = sound(beliefs)
    return policy.pmf(utility, sd, steps[:, None])


def sound(beliefs: Beliefs) -> tuple[Floats, Floats]:
    """Utility and sd, float64[K] each, with invalid numbers replaced.

    A utility that is not finite is replaced by the lowest finite one, so that a broken estimate neither wins nor
    disturbs the others; an sd that is not finite, or negative, becomes 0, so that it gets no exploration. Valid arrays
    are returned uncopied.

    Raises:
        ValueError: there are no arms.
    """
    utility, sd = beliefs.utility, beliefs.sd
    if not len(utility):
        raise ValueError("no arms: a policy needs at least one eligible arm")
    if len(utility) == len(sd) == len(beliefs.arms):
        # A finite sum of squares implies finite entries, far from where differences overflow: one comparison instead of
        # several passes, since this runs for every pmf.
        if math.isfinite(np.vdot(utility, utility) + np.vdot(sd, sd)) and sd.min() >= 0.0:
            return utility, sd
        return _repaired(utility), np.where(np.isfinite(sd) & (sd > 0.0), np.minimum(sd, _LARGE), 0.0)
    raise ValueError(
        f"{len(beliefs.arms)} arms with {len(utility)} utilities and {len(sd)} sds: the lengths must be equal"
    )


def _repaired(utility: Floats) -> Floats:
    finite = np.isfinite(utility)
    worst = utility[finite].min() if finite.any() else 0.0
    return np.clip(np.where(finite, utility, worst), -_LARGE, _LARGE)
