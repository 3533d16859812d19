"""Taste posteriors of population, roles and users, for each labelled dimension.

    w = w_0 + w_role + δ_u

One Gaussian a block and dimension. `overall` is the dimension that routing reads; others (`helpfulness`, `tone`, …) are
heads of their own over the same features, learnt by the same kernel and reported beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.identity import role_key
from fitrouter.posterior.gaussian import Gaussian, GaussianUpdate
from fitrouter.posterior.people import Person
from fitrouter.types import Floats, Identity

OVERALL = "overall"
DIMENSIONS = 16
"""Dimensions beside `overall` that get heads, in order of appearance."""


class TasteParams(msgspec.Struct, frozen=True, kw_only=True):
    """Prior scales, for labels in [0, 1] and features of about unit variance."""

    level: float = 0.7
    """Prior mean of a label: mildly optimistic, so that every model is tried."""
    population: float = 0.024
    role: float = 0.08
    user: float = 0.08
    """Prior variances of hᵀw_0, hᵀw_role and hᵀδ for a typical answer, spread evenly over its features."""
    population_intercept: float = 0.25
    user_intercept: float = 0.01
    """Prior variances of the intercepts; w_role has none (its offsets have). A tight one for everybody would make the
    first labels' level look like a taste."""
    role_offset: float = 0.003
    user_offset: float = 0.05
    roles: int = 32
    """Roles that get terms of their own, in order of appearance."""
    declared_reach: float = 2.0
    """Prior standard deviations of a coordinate that a declared ±1 stands for."""
    declared_noise: float = 1.0
    """Variance of a declared value, in prior variances of its coordinate."""


class TastePrior(NamedTuple):
    """Prior of tastes, trained on other people's labels."""

    id: str
    """sha256 of the file it came from."""
    mean: Floats
    cov: Floats
    """N(mean, cov) of w_0: float64[D] and float64[D, D]."""
    role_variance: Floats
    user_variance: Floats
    """Variances of roles and users around it: float64[D]."""


class Block(NamedTuple):
    """A Gaussian that a label observes, and whether the label updates it."""

    taste: Gaussian
    learns: bool


class Tastes:
    """All taste posteriors. Reads never create a user; `meet` does.

    Args:
        D: length of h.
        params: prior scales.
        names: of the features, so that what people declare finds its coordinate.
        prior: learnt elsewhere; None for independent coordinates around `level`.
    """

    def __init__(self, D: int, params: TasteParams, names: Sequence[str] = (), prior: TastePrior | None = None) -> None:
        self.D, self.params, self.names, self.prior = D, params, {name: j for j, name in enumerate(names)}, prior
        self._role_variance = self._spread(params.role, 0.0) if prior is None else prior.role_variance
        self._user_variance = self._spread(params.user, params.user_intercept) if prior is None else prior.user_variance
        level = np.zeros(D)
        level[0] = params.level
        self.population = (
            Gaussian.prior(level, self._spread(params.population, params.population_intercept))
            if prior is None
            else Gaussian(prior.mean.copy(), prior.cov.copy())
        )
        self.others: dict[str, Gaussian] = {}
        """Dimension → w_0 in it, for dimensions other than overall."""
        self.roles: dict[str, Person] = {}
        self.users: dict[str, Person] = {}
        self.nobody = self.new_role(), self.new_user()
        """A role and a user without labels."""

    def _spread(self, spread: float, intercept: float) -> Floats:
        """Variances with which hᵀw varies by `spread` where each of the features has variance 1."""
        variance = np.full(self.D, spread / max(self.D - 1, 1))
        variance[0] = intercept
        return variance

    def new_role(self) -> Person:
        """A role's terms before any label."""
        return Person(self._role_variance, self.params.role_offset)

    def new_user(self) -> Person:
        """A user's terms before any label."""
        return Person(self._user_variance, self.params.user_offset)

    # --- reading ---

    def role(self, identity: Identity) -> Person | None:
        """The role's terms; None for no role, or for one that no label has named yet."""
        return self.roles.get(role_key(identity))

    def user(self, identity: Identity) -> Person | None:
        """The user's terms; None for an anonymous caller, or for one without any label."""
        return self.users.get(identity.user or "")

    def of(self, identity: Identity, dimension: str = OVERALL) -> list[Gaussian]:
        """The posteriors whose sum is this user's w in a dimension; none for an unlabelled dimension."""
        role, user = self.role(identity) or self.nobody[0], self.user(identity) or self.nobody[1]
        if dimension == OVERALL:
            return [self.population, role.taste, user.taste]
        if dimension not in self.others:
            return []
        return [
            self.others[dimension],
            role.others.get(dimension, self.nobody[0].taste),
            user.others.get(dimension, self.nobody[1].taste),
        ]

    # --- learning ---

    def meet(self, identity: Identity) -> None:
        """Create the posteriors of the role and user of a label."""
        key = role_key(identity)
        if key and key not in self.roles and len(self.roles) < self.params.roles:
            self.roles[key] = self.new_role()
        if identity.user and identity.user not in self.users:
            self.users[identity.user] = self.new_user()

    def voter(self, identity: Identity) -> Person:
        """The person whose votes are counted: the user, or all anonymous callers of a tenant as one."""
        key = identity.user or f"anonymous {identity.tenant}"
        if key not in self.users:
            self.users[key] = self.new_user()
        return self.users[key]

    def blocks(self, identity: Identity, dimension: str, pooled: bool) -> list[Block]:
        """The posteriors that a label observes, created for a new dimension. Empty if there are too many dimensions."""
        role, user = self.role(identity), self.user(identity)
        people = [(role, self._role_variance, pooled), (user, self._user_variance, True)]
        if dimension == OVERALL:
            known = [Block(person.taste, learns) for person, _, learns in people if person]
            return [Block(self.population, pooled), *known]
        if dimension not in self.others:
            if len(self.others) >= DIMENSIONS:
                return []
            level = np.zeros(self.D)
            level[0] = self.params.level
            self.others[dimension] = Gaussian.prior(level, self._spread(self.params.population, 0.05))
        found = [Block(self.others[dimension], pooled)]
        for person, variance, learns in people:
            if person is not None:
                if dimension not in person.others:
                    person.others[dimension] = Gaussian.prior(np.zeros(self.D), variance)
                found.append(Block(person.others[dimension], learns))
        return found

    def declare(self, identity: Identity, declared: Mapping[str, float]) -> None:
        """Set the prior of the user's taste to declared values; they replace earlier ones.

        A declared v is a pseudo-observation of its coordinate, y = v · reach · sd, with a variance, so that labels
        can overrule it. Names that are no feature are ignored.
        """
        self.meet(identity)
        user = self.user(identity)
        if user is None:
            return
        mean, variance = np.zeros(self.D), self._user_variance.copy()
        for name, value in declared.items():
            j = self.names.get(name)
            if j is None or not variance[j] > 0 or not np.isfinite(value):
                continue
            noise = self.params.declared_noise * variance[j]
            y = np.clip(value, -1.0, 1.0) * self.params.declared_reach * np.sqrt(variance[j])
            variance[j] = 1.0 / (1.0 / variance[j] + 1.0 / noise)
            mean[j] = variance[j] * y / noise
        user.declare(mean, variance)


def learn(blocks: Sequence[Block], gains: Sequence[Floats], update: GaussianUpdate) -> None:
    """Apply an update to the blocks that learn."""
    for block, gain in zip(blocks, gains, strict=True):
        if block.learns:
            block.taste.learn(gain, update)
