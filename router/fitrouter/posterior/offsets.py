"""Offsets: the correction c_k(x) of a model, and random effects d of role and user on it, learnt from residuals.

    y − hᵀw = c_k(x) + d_{role,k} + d_{u,k} + ε,    ε ~ N(0, R)

The posterior is jointly Gaussian, and computed exactly although only c has a covariance matrix. Given c and d_role,
users are independent, and b = Σ x/R, s = Σ y/R, n = Σ 1/R are sufficient for a user's labels on k:

    d_u | c, d_role ~ N(v (s − bᵀc − n d_role), v),    v = 1 / (n + 1/τ²)

With d_u integrated out, a label observes c along x − v b and d_role along γ = 1 − v n, with noise R + v. Integrating
out d_role likewise (its b, s, n sum γ (x − v b), γ (y − v s) and γ² over R + v), c has one rank-one update, along
q = x − v b − γ v_role b_role. A hundred labels of one person on a model are therefore mostly attributed to that person.
The correlation between two roles of the same person is ignored.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fitrouter.posterior.arms import Arms
from fitrouter.posterior.gaussian import GaussianUpdate
from fitrouter.posterior.people import Person
from fitrouter.types import Floats


class SignedAnswer(NamedTuple):
    """One answer of a label: +1 for the answer, −1 for the one it is compared with."""

    sign: float
    model: str
    """The arm without its variant."""
    k: int
    """Its row."""
    x: Floats


class OffsetEstimate(NamedTuple):
    """Posterior of c + d_role + d_u for one answer before its label."""

    side: SignedAnswer
    along: Floats
    """float64[d]: q of the module."""
    gain: Floats
    """float64[d]: S q."""
    intercept: float
    slopes: float
    role: float
    user: float
    """Means of c (intercept and slopes), and of both offsets."""
    variance: float
    """Of their sum."""
    v: float
    gamma: float
    known: float
    """v, γ and v s of the user."""

    @property
    def mean(self) -> float:
        """Of the sum."""
        return self.intercept + self.slopes + self.role + self.user


def offset_of(
    arms: Arms, side: SignedAnswer, role: Person | None, user: Person | None, *, without: float = 0.0
) -> OffsetEstimate:
    """Posterior of c + d_role + d_u at x; `without` is 1/R of a label to leave out of the offsets' sums."""
    d, x, mean = arms.d, side.x, arms.correction[side.k]
    rows = np.zeros((3, d))
    rows[0] = x
    v = w = 0.0
    s_user = n_user = s_role = 0.0
    if user is not None:
        found = user.offsets.get(side.model)
        if found is not None:
            rows[1] = found[:d]
            s_user, n_user = float(found[d]), float(found[d + 1])
        if without and found is not None:
            rows[1] -= without * x
            n_user = max(n_user - without, 0.0)
        v = user.offset_variance / (1.0 + n_user * user.offset_variance)
    gamma = 1.0 - v * n_user
    if role is not None:
        found, n_role = role.offsets.get(side.model), 0.0
        if found is not None:
            rows[2] = found[:d]
            s_role, n_role = float(found[d]), float(found[d + 1])
        if without and found is not None:
            share = gamma * without / (1.0 + v * without)
            rows[2] -= share * (x - v * rows[1])
            n_role = max(n_role - share * gamma, 0.0)
        w = role.offset_variance / (1.0 + n_role * role.offset_variance)
    c, of_user, of_role = np.einsum("bi,i->b", rows, mean).tolist()
    along = np.einsum("b,bi->i", np.array([1.0, -v, -gamma * w]), rows)
    gain = np.einsum("ij,j->i", arms.correction_cov[side.k], along)
    d_role = w * (s_role - of_role)
    d_user = v * (s_user - of_user - n_user * d_role)
    intercept = float(mean[0] * x[0])
    variance = float(np.einsum("i,i->", gain, along)) + v + gamma * gamma * w
    return OffsetEstimate(side, along, gain, intercept, c - intercept, d_role, d_user, variance, v, gamma, v * s_user)


def learn_offset(
    arms: Arms,
    offset: OffsetEstimate,
    update: GaussianUpdate,
    role: Person | None,
    user: Person | None,
    *,
    pooled: bool,
) -> None:
    """Learn from a label whose update was computed with `offset.variance`. Not pooled: the user's offset only.

    The update is treated as that of the Gaussian observation with noise R = 1 / shrink − variance and residual
    step / shrink, also for other likelihoods.
    """
    side, left = offset.side, 1.0 - update.shrink * offset.variance
    weight = update.shrink / left
    weighted = offset.mean * weight + side.sign * update.step / left
    if pooled:
        arms.correct(side.k, offset.gain, update if side.sign > 0 else update.mirrored())
        if role is not None:
            share = offset.gamma / (1.0 + offset.v * weight)
            found = role.record(side.model, arms.d)
            was = user.offsets.get(side.model) if user is not None else None
            direction = side.x if was is None else side.x - offset.v * was[: arms.d]
            found[: arms.d] += direction * (share * weight)
            found[-2] += share * (weighted - offset.known * weight)
            found[-1] += share * offset.gamma * weight
    if user is not None:
        found = user.record(side.model, arms.d)
        found[: arms.d] += side.x * weight
        found[-2] += weighted
        found[-1] += weight


def correct_offset(
    arms: Arms,
    side: SignedAnswer,
    change: float,
    noise: float,
    role: Person | None,
    user: Person | None,
    *,
    pooled: bool,
) -> None:
    """First-order correction of the means for a label that was changed by `change`, with noise R."""
    offset = offset_of(arms, side, role, user, without=1.0 / noise)
    if pooled:
        total = noise + offset.variance - float(np.einsum("i,i->", offset.gain, offset.along))
        arms.correct(side.k, offset.gain, GaussianUpdate(side.sign * change / total, 0.0))
        if role is not None:
            role.record(side.model, arms.d)[-2] += side.sign * change * offset.gamma / (noise + offset.v)
    if user is not None:
        user.record(side.model, arms.d)[-2] += side.sign * change / noise
