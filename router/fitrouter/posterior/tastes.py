"""Taste posteriors of population, roles and users, for each labelled dimension.

Routing reads the dimension `overall`, in which a role and a user are mixtures of heads (`posterior.people`). Others
(`helpfulness`, `tone`, …) are sums w_0 + w_role + δ_u of one Gaussian each, over the same features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.identity import role_key
from fitrouter.posterior.gaussian import Gaussian, GaussianUpdate
from fitrouter.posterior.heads import HeadPrior, Width
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
    """Prior variance of hᵀw_0 for a typical answer, spread evenly over its features."""
    population_intercept: float = 0.25
    role: float = 0.08
    user: float = 0.08
    user_intercept: float = 0.01
    """Prior variances of deviations in dimensions other than overall, where nothing trained them."""
    narrow: Width = Width(level=0.002, offset=0.001, named={"length": 0.01})
    """Between people who judge general quality: moments of people's comparisons (docs/results/people.md)."""
    medium: Width = Width(level=0.01, offset=0.02, taste=0.08)
    """Between people whose judgements are personal throughout, such as of values."""
    wide: Width = Width(level=0.02, offset=0.05, taste=0.2, named={"length": 0.1, "structure": 0.1})
    """Of people with strong tastes in style."""
    recent: Width = Width(level=0.02, offset=0.05, taste=0.2, named={"length": 0.1, "structure": 0.1}, forget=0.06)
    """The same, following changes within some fifteen labels."""
    roles: int = 32
    """Roles that get terms of their own, in order of appearance."""
    declared: float = 0.047
    """Shift of a coordinate of the taste that a declared ±1 stands for."""


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
        self.role_variance = self._spread(params.role, 0.0) if prior is None else prior.role_variance
        self.user_variance = self._spread(params.user, params.user_intercept) if prior is None else prior.user_variance
        level = np.zeros(D)
        level[0] = params.level
        self.population = (
            Gaussian.prior(level, self._spread(params.population, params.population_intercept))
            if prior is None
            else Gaussian(prior.mean.copy(), prior.cov.copy())
        )
        widths = (params.narrow, params.medium, params.wide, params.recent)
        self._heads = [HeadPrior.of(width, self.names, D) for width in widths]
        self.others: dict[str, Gaussian] = {}
        """Dimension → w_0 in it, for dimensions other than overall."""
        self.roles: dict[str, Person] = {}
        self.users: dict[str, Person] = {}
        self.nobody = self.new_person()
        """A role or user without labels."""

    def _spread(self, spread: float, intercept: float) -> Floats:
        """Variances with which hᵀw varies by `spread` where each of the features has variance 1."""
        variance = np.full(self.D, spread / max(self.D - 1, 1))
        variance[0] = intercept
        return variance

    def new_person(self) -> Person:
        """A role's or a user's terms before any label."""
        return Person(self.D, self._heads)

    # --- reading ---

    def role(self, identity: Identity) -> Person | None:
        """The role's terms; None for no role, or for one that no label has named yet."""
        return self.roles.get(role_key(identity))

    def user(self, identity: Identity) -> Person | None:
        """The user's terms; None for an anonymous caller, or for one without any label."""
        return self.users.get(identity.user or "")

    def others_of(self, identity: Identity, dimension: str) -> list[Gaussian]:
        """The posteriors whose sum is this user's w in a dimension other than overall; none if it has no label."""
        if dimension not in self.others:
            return []
        people = (self.role(identity), self.role_variance), (self.user(identity), self.user_variance)
        nothing = np.zeros(self.D)
        own = [(person.others.get(dimension) if person else None) or Gaussian.prior(nothing, v) for person, v in people]
        return [self.others[dimension], *own]

    # --- learning ---

    def meet(self, identity: Identity) -> None:
        """Create the posteriors of the role and user of a label."""
        key = role_key(identity)
        if key and key not in self.roles and len(self.roles) < self.params.roles:
            self.roles[key] = self.new_person()
        if identity.user and identity.user not in self.users:
            self.users[identity.user] = self.new_person()

    def voter(self, identity: Identity) -> Person:
        """The person whose votes are counted: the user, or all anonymous callers of a tenant as one."""
        key = identity.user or f"anonymous {identity.tenant}"
        if key not in self.users:
            self.users[key] = self.new_person()
        return self.users[key]

    def blocks(self, identity: Identity, dimension: str, pooled: bool) -> list[Block]:
        """The posteriors that a label of a dimension other than overall observes; none for too many dimensions."""
        if dimension not in self.others:
            if len(self.others) >= DIMENSIONS:
                return []
            level = np.zeros(self.D)
            level[0] = self.params.level
            self.others[dimension] = Gaussian.prior(level, self._spread(self.params.population, 0.05))
        found = [Block(self.others[dimension], pooled)]
        role, user = self.role(identity), self.user(identity)
        for person, variance, learns in ((role, self.role_variance, pooled), (user, self.user_variance, True)):
            if person is not None:
                if dimension not in person.others:
                    person.others[dimension] = Gaussian.prior(np.zeros(self.D), variance)
                found.append(Block(person.others[dimension], learns))
        return found

    def declare(self, identity: Identity, declared: Mapping[str, float]) -> None:
        """Set the prior mean of the user's taste to declared values in [−1, 1]; they replace earlier ones.

        Names that are no feature are ignored, and so are numbers that are not finite.
        """
        self.meet(identity)
        user = self.user(identity)
        if user is None:
            return
        mean = np.zeros(self.D)
        for name, value in declared.items():
            j = self.names.get(name)
            if j is not None and np.isfinite(value):
                mean[j] = self.params.declared * min(max(value, -1.0), 1.0)
        user.declare(mean)


def learn(blocks: Sequence[Block], gains: Sequence[Floats], update: GaussianUpdate) -> None:
    """Apply an update to the blocks that learn."""
    for block, gain in zip(blocks, gains, strict=True):
        if block.learns:
            block.taste.learn(gain, update)
