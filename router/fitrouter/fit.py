"""The fit model: what an answer of model k is worth to user u.

    fit = (w_0 + w_role + δ_u)ᵀ ĥ_k(x) + c_k(x) + d_{role,k} + d_{u,k}

ĥ is learnt from every response; tastes from labels on the actual answer's text, without the model's name; c and d from
labels only, on what the taste could not say. A score (hᵀw) is never an observation: scores are features, labels are
rewards.

Each part of it counts as far as it has predicted labels so far (`Fit.reliance`, a Bayesian linear stacking of the
parts), so that a world without tastes is routed almost as if their terms did not exist.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.arms import ArmParams, Arms
from fitrouter.people import Person, canonical_role
from fitrouter.taste import Gaussian, Innovation, innovate
from fitrouter.types import FeedbackKind, Floats, Identity

__all__ = ["PARTS", "Estimate", "Fit", "FitParams", "Label"]

PARTS = ("slopes of c", "role", "user's taste", "user's offset")
"""What is added to the population's taste and an arm's level as far as it can be relied upon."""

CERTAIN = 4.0
"""Standard deviations above 0 from which on a people's term counts in full."""


class FitParams(msgspec.Struct, frozen=True, kw_only=True):
    """Prior scales of the fit model, for labels in [0, 1] and features of about unit variance."""

    arms: ArmParams = ArmParams()
    level: float = 0.7
    """Prior mean of a label: mildly optimistic, so that every model is tried."""
    population: float = 0.024
    role: float = 0.08
    user: float = 0.08
    """Prior variances of hᵀw_0, hᵀw_role and hᵀδ for a typical answer, spread evenly over its features."""
    population_intercept: float = 0.01
    user_intercept: float = 0.01
    """Prior variances of the intercepts; w_role has none (its offsets have)."""
    role_offset: float = 0.003
    user_offset: float = 0.003
    noise_thumb: float = 0.25
    noise_rating: float = 0.1
    slopes_reliance: tuple[float, float] = (1.0, 0.1)
    people_reliance: tuple[float, float] = (0.2, 0.1)
    """Prior mean and variance of the reliance on c's slopes, and on each term of role and user."""
    roles: int = 32
    """Roles that get terms of their own, in order of appearance."""
    personal: bool = True


class Label(NamedTuple):
    """A person's verdict on an answer, ready to be learnt from."""

    identity: Identity
    arm: str
    x: Floats
    h: Floats | None
    """Features of the actual answer; None where it has no score."""
    y: float
    kind: FeedbackKind
    pooled: bool
    """False where this user's cap for the model and day is used up: only the user's own terms learn."""


class Estimate(NamedTuple):
    """Beliefs of K arms for one request; arrays are float64[K]."""

    mean: Floats
    sd: Floats
    blind: Floats
    """The mean without the terms of role and user."""
    tokens: Floats
    seconds: Floats
    availability: Floats


class Fit:
    """Arms, people, and how far people matter; every method is a pure function of what was folded before."""

    def __init__(self, d: int, D: int, params: FitParams | None = None) -> None:
        self.d, self.D = d, D
        self.params = params or FitParams()
        self.arms = Arms(d, D, self.params.arms)
        mean = np.zeros(D)
        mean[0] = self.params.level
        self.population = self._taste(self.params.population, self.params.population_intercept, mean)
        self.roles: dict[str, Person] = {}
        self.users: dict[str, Person] = {}
        self._new_role, self._new_user = self.new_role(), self.new_user()
        slopes, people = self.params.slopes_reliance, self.params.people_reliance
        self.stack = Gaussian.prior(
            np.array([slopes[0], people[0], people[0], people[0]]),
            np.array([slopes[1], people[1], people[1], people[1]]),
        )
        """Coefficients of the parts `PARTS` in the best prediction of a label."""
        self.labels = 0

    # --- people ---

    def role(self, identity: Identity) -> Person | None:
        """The role's terms; None for no role, or for one that no label has named yet."""
        return self.roles.get(_role_key(identity)) if self.params.personal else None

    def user(self, identity: Identity) -> Person | None:
        """The user's terms; None for an anonymous caller, or for one without any label."""
        return self.users.get(identity.user or "") if self.params.personal else None

    def _meet(self, identity: Identity) -> None:
        """Make room for the people that a label speaks of. Only learning does this: reading leaves no trace."""
        key = _role_key(identity)
        if key and key not in self.roles and len(self.roles) < self.params.roles:
            self.roles[key] = self.new_role()
        if identity.user and identity.user not in self.users:
            self.users[identity.user] = self.new_user()

    def voter(self, identity: Identity) -> Person:
        """Whose votes are counted: the user, or all anonymous callers of a tenant as one."""
        key = identity.user or f"anonymous {identity.tenant}"
        if key not in self.users:
            self.users[key] = self.new_user()
        return self.users[key]

    def _taste(self, spread: float, intercept: float, mean: Floats | None = None) -> Gaussian:
        """A prior whose variance of hᵀw is `spread` where each of the features has variance 1."""
        variance = np.full(self.D, spread / max(self.D - 1, 1))
        variance[0] = intercept
        return Gaussian.prior(np.zeros(self.D) if mean is None else mean, variance)

    def new_role(self) -> Person:
        """A role's terms before any label."""
        return Person(self._taste(self.params.role, 0.0), self.params.role_offset)

    def new_user(self) -> Person:
        """A user's terms before any label."""
        return Person(self._taste(self.params.user, self.params.user_intercept), self.params.user_offset)

    def reliance(self) -> Floats:
        """float64[4] in [0, 1]: how far each of `PARTS` counts in decisions.

        A part is itself an estimate with errors, which draws its coefficient towards 0 (errors in variables) however
        sure it is that the part helps. So a people's term counts in full once its coefficient is `CERTAIN` standard
        deviations above 0, and in proportion before, where that is more than the coefficient.
        """
        mean, sd = self.stack.mean, np.sqrt(np.diag(self.stack.cov) + 1e-300)
        sure = np.minimum(mean / sd, CERTAIN) / CERTAIN
        sure[0] = mean[0]
        return np.clip(np.maximum(mean, sure), 0.0, 1.0)

    # --- reading ---

    def estimate(self, identity: Identity, x: Floats, names: tuple[str, ...], now: float) -> Estimate:
        """Beliefs of the eligible arms for one request, at a time in seconds since the epoch."""
        arms = self.arms
        rows = arms.rows(names)
        relied = self.reliance()
        profile = np.einsum("kdh,d->kh", arms.profile[rows], x)
        spread = np.einsum("ki,i->k", np.einsum("kij,j->ki", arms.profile_cov[rows], x), x)
        correction = arms.correction[rows]
        w, cov = self.population.mean, self.population.cov
        blind = np.einsum("kh,h->k", profile, w) + correction[:, 0] * x[0]
        blind = blind + relied[0] * np.einsum("kd,d->k", correction[:, 1:], x[1:])
        variance = np.einsum("ki,i->k", np.einsum("kij,j->ki", arms.correction_cov[rows], x), x)
        mean = blind
        if self.params.personal:
            role, user = self.role(identity) or self._new_role, self.user(identity) or self._new_user
            for person, taste, offset in ((role, relied[1], relied[1]), (user, relied[2], relied[3])):
                offsets = np.array([person.offset(name) for name in names])
                mean = mean + taste * np.einsum("kh,h->k", profile, person.taste.mean) + offset * offsets[:, 0]
                variance = variance + offset * offset * offsets[:, 1]
                w = w + taste * person.taste.mean
                cov = cov + taste * taste * person.taste.cov
        variance = variance + np.einsum("kh,kh->k", np.einsum("kh,hj->kj", profile, cov), profile)
        variance = variance + spread * np.einsum("kh,h->k", arms.spread[rows], w * w)
        operations = np.einsum("kdo,d->ko", arms.operations[rows], x)
        return Estimate(
            mean=mean,
            sd=np.sqrt(variance),
            blind=blind,
            tokens=np.maximum(operations[:, 0], 1.0),
            seconds=np.maximum(operations[:, 1], 0.0),
            availability=arms.availability(rows, now),
        )

    def tastes(self, identity: Identity) -> list[Gaussian]:
        """The blocks whose sum is this user's w. Safe from another thread."""
        if not self.params.personal:
            return [self.population]
        role, user = self.role(identity) or self._new_role, self.user(identity) or self._new_user
        return [self.population, role.taste, user.taste]

    def score(self, identity: Identity, h: Floats) -> tuple[float, float]:
        """Mean and sd of hᵀw for this user; a missing feature (NaN) counts as average. Safe from another thread."""
        h = np.where(np.isnan(h), 0.0, h)
        mean = variance = 0.0
        for block in self.tastes(identity):
            mean += float(np.einsum("i,i->", h, block.mean))
            variance += float(np.einsum("i,i->", h, block.gain(h)))
        return mean, float(np.sqrt(max(variance, 0.0)))

    # --- learning ---

    def learn(self, label: Label) -> None:
        """Fold one label: first what it says of the text (tastes), then what it says beyond it (c and d)."""
        self._meet(label.identity)
        k = self.arms.row(label.arm)
        h = label.h
        if h is None:
            h = np.einsum("dh,d->h", self.arms.profile[k], label.x)
        h = np.where(np.isnan(h), 0.0, h)
        noise = self.params.noise_thumb if label.kind is FeedbackKind.THUMB else self.params.noise_rating
        role, user = self.role(label.identity), self.user(label.identity)
        parts, text_variance = self._learn_taste(label, h, noise, role, user)
        self._learn_offsets(label, k, parts, text_variance, noise, role, user)
        self.labels += 1

    def _learn_taste(
        self, label: Label, h: Floats, noise: float, role: Person | None, user: Person | None
    ) -> tuple[list[float], float]:
        """Fold into w_0, w_role and δ. Returns hᵀw of (population, role, user) and var(hᵀw), as before the label."""
        blocks = self._blocks(label, role, user)
        gains = [block.gain(h) for block, _ in blocks]
        parts = [float(np.einsum("i,i->", h, block.mean)) for block, _ in blocks]
        variance = float(sum(np.einsum("i,i->", h, gain) for gain in gains))
        innovation = innovate(sum(parts), variance, label.y, noise=noise)
        if label.h is not None:
            for (block, learns), gain in zip(blocks, gains, strict=True):
                if learns:
                    block.learn(gain, innovation)
        by_block = [parts[0], parts[1] if role else 0.0, parts[-1] if user else 0.0]
        return by_block, variance

    def _blocks(self, label: Label, role: Person | None, user: Person | None) -> list[tuple[Gaussian, bool]]:
        """The tastes that a label is about, and whether it counts for them."""
        blocks = [(self.population, label.pooled)]
        if role:
            blocks.append((role.taste, label.pooled))
        if user:
            blocks.append((user.taste, True))
        return blocks

    def _learn_offsets(
        self,
        label: Label,
        k: int,
        parts: list[float],
        text_variance: float,
        noise: float,
        role: Person | None,
        user: Person | None,
    ) -> None:
        """Fold the residual y − hᵀw (w as before this label) into c and d, and weigh the parts."""
        arms = self.arms
        gain = np.einsum("ij,j->i", arms.correction_cov[k], label.x)
        intercept = float(arms.correction[k, 0] * label.x[0])
        slopes = float(np.einsum("i,i->", arms.correction[k, 1:], label.x[1:]))
        c_variance = float(np.einsum("i,i->", gain, label.x))
        role_d = role.offset(label.arm) if role else (0.0, 0.0)
        user_d = user.offset(label.arm) if user else (0.0, 0.0)
        variance = c_variance + role_d[1] + user_d[1] + text_variance
        if label.pooled:
            z = np.array([slopes, parts[1] + role_d[0], parts[2], user_d[0]])
            self._weigh(z, label.y - parts[0] - intercept, noise)
        predicted = intercept + slopes + role_d[0] + user_d[0]
        innovation = innovate(predicted, variance, label.y - sum(parts), noise=noise)
        if label.pooled:
            arms.correction[k] += gain * innovation.step
            arms.correction_cov[k] -= np.multiply.outer(gain, gain) * innovation.shrink
            if role:
                role.offsets[label.arm] = _scalar(*role_d, innovation)
        if user:
            user.offsets[label.arm] = _scalar(*user_d, innovation)

    def _weigh(self, z: Floats, y: float, noise: float) -> None:
        """Learn how much of each part to add to the population's and the arm's level to predict y."""
        gain = self.stack.gain(z)
        predicted = float(np.einsum("i,i->", z, self.stack.mean))
        self.stack.learn(gain, innovate(predicted, float(np.einsum("i,i->", z, gain)), y, noise=noise))

    def revise(self, label: Label, before: float) -> None:
        """Change the label y of an earlier observation: a vote that supersedes `before`.

        In a Gaussian block the posterior mean is linear in every label, with slope S h / (σ² + variance of the other
        blocks) for the present S; covariances do not depend on labels, so nothing else moves.
        """
        k = self.arms.row(label.arm)
        if label.h is None:
            return
        h = np.where(np.isnan(label.h), 0.0, label.h)
        noise = self.params.noise_thumb if label.kind is FeedbackKind.THUMB else self.params.noise_rating
        role, user = self.role(label.identity), self.user(label.identity)
        change = label.y - before
        blocks = self._blocks(label, role, user)
        gains = [block.gain(h) for block, _ in blocks]
        own = [float(np.einsum("i,i->", h, gain)) for gain in gains]
        for (block, learns), gain, variance in zip(blocks, gains, own, strict=True):
            if learns:
                block.mean = block.mean + gain * (change / (noise + sum(own) - variance))
        gain = np.einsum("ij,j->i", self.arms.correction_cov[k], label.x)
        c_variance = float(np.einsum("i,i->", gain, label.x))
        role_d = role.offset(label.arm) if role else (0.0, 0.0)
        user_d = user.offset(label.arm) if user else (0.0, 0.0)
        total = noise + c_variance + role_d[1] + user_d[1] + sum(own)
        if label.pooled:
            self.arms.correction[k] += gain * (change / (total - c_variance))
            if role:
                role.offsets[label.arm] = role_d[0] + role_d[1] * change / (total - role_d[1]), role_d[1]
        if user:
            user.offsets[label.arm] = user_d[0] + user_d[1] * change / (total - user_d[1]), user_d[1]


def _role_key(identity: Identity) -> str:
    """Roles belong to their tenant; empty for no role."""
    name = canonical_role(identity.role)
    return f"{identity.tenant}\x1f{name}" if name else ""


def _scalar(mean: float, variance: float, innovation: Innovation) -> tuple[float, float]:
    """A scalar Gaussian block after an innovation along it."""
    return mean + variance * innovation.step, variance - variance * variance * innovation.shrink
