"""What labels say beyond the text: c_k(x) of a model, and the offsets d of a role and of a user on it, jointly.

    y − hᵀw = c_k(x) + d_{role,k} + d_{u,k} + ε,    ε ~ N(0, R)

All three are one Gaussian, and exactly so although only c has a covariance matrix. Given c and d_role, users are
independent, and a user's labels on k are summed up by b = Σ x/R, s = Σ y/R, n = Σ 1/R:

    d_u | c, d_role ~ N(v (s − bᵀc − n d_role), v),    v = 1 / (n + 1/τ²)

so that, with d_u integrated out, a label observes c along x − v b and d_role along γ = 1 − v n, with noise R + v. The
same once more for the role (whose own b, s, n sum γ (x − v b), γ (y − v s) and γ² over R + v), and c moves by one
update of rank one, along q = x − v b − γ v_role b_role. What a hundred labels of one person say of a model is therefore
that person's opinion, and everybody's only as far as others share it. (A person who speaks in two roles ties them
together; that correlation alone is left out.)
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
    """What is believed of one side before a label."""

    side: SignedAnswer
    along: Floats
    """float64[d]: q of the module."""
    gain: Floats
    """float64[d]: S q."""
    intercept: float
    slopes: float
    role: float
    user: float
    """The means of c, in two parts, and of both offsets."""
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
    """Beliefs of c + d_role + d_u at x; of the offsets as they were without this label, whose 1/R is given."""
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
    level: OffsetEstimate,
    innovation: GaussianUpdate,
    role: Person | None,
    user: Person | None,
    *,
    pooled: bool,
) -> None:
    """Fold a label whose innovation was computed with `level.variance` in it. Not pooled, it teaches the user's offset.

    An innovation is that of the Gaussian observation with noise R = 1 / shrink − variance and the residual
    step / shrink, also where it stands for another signal.
    """
    side, left = level.side, 1.0 - innovation.shrink * level.variance
    weight = innovation.shrink / left
    weighted = level.mean * weight + side.sign * innovation.step / left
    if pooled:
        arms.correct(side.k, level.gain, innovation if side.sign > 0 else innovation.mirrored())
        if role is not None:
            share = level.gamma / (1.0 + level.v * weight)
            found = role.record(side.model, arms.d)
            was = user.offsets.get(side.model) if user is not None else None
            direction = side.x if was is None else side.x - level.v * was[: arms.d]
            found[: arms.d] += direction * (share * weight)
            found[-2] += share * (weighted - level.known * weight)
            found[-1] += share * level.gamma * weight
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
    """Move the means as if the label had been `change` greater, its noise R being given; to first order."""
    level = offset_of(arms, side, role, user, without=1.0 / noise)
    if pooled:
        total = noise + level.variance - float(np.einsum("i,i->", level.gain, level.along))
        arms.correct(side.k, level.gain, GaussianUpdate(side.sign * change / total, 0.0))
        if role is not None:
            role.record(side.model, arms.d)[-2] += side.sign * change * level.gamma / (noise + level.v)
    if user is not None:
        user.record(side.model, arms.d)[-2] += side.sign * change / noise
