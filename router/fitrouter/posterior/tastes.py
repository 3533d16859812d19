"""Taste posteriors of population, roles and users, for each labelled dimension.

Routing reads the dimension `overall`, in which a role and a user are mixtures of heads (`posterior.people`). Others
(`helpfulness`, `tone`, …) are sums w_0 + w_role + δ_u of one Gaussian each, over the same features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.identity import canonical_role, role_key
from fitrouter.posterior.gaussian import Gaussian, GaussianUpdate
from fitrouter.posterior.heads import HINGES, CompactTaste, DenseHeads, HeadPriors, LowRankHeads, Width, evenly
from fitrouter.posterior.people import Person
from fitrouter.posterior.users import Users
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
    population_hinge: float = 0.01
    """Prior variance of each of `HINGES`, without a trained prior."""
    role: float = 0.08
    user: float = 0.008
    user_intercept: float = 0.02
    """Prior variances of deviations in dimensions other than overall. Those of users are of people's own ratings of
    stories and dialogues (docs/results/judgements.md)."""
    narrow: Width = Width(level=0.002, offset=0.001, named={"length": 0.003, "structure": 1e-4})
    length: Width = Width(level=0.002, offset=0.001, named={"length": 0.03, "structure": 1e-4})
    """Between people who judge general quality: people's comparisons (docs/results/people.md). Two widths, because few
    people care for length, and those do much. The trace of structure lets these heads share arrays with the next."""
    form: Width = Width(level=0.01, offset=0.02, named={"length": 0.05, "structure": 0.05})
    """Of people with strong tastes in what people speak of most: length and lists."""
    medium: Width = Width(level=0.01, offset=0.02, taste=0.08)
    """Between people whose judgements are personal throughout, such as of values."""
    wide: Width = Width(level=0.02, offset=0.05, taste=0.2, named={"length": 0.1, "structure": 0.1})
    """Of people with strong tastes in anything, in an installation that nothing is known of."""
    roles: int = 32
    """Roles of a tenant that get terms of their own, in order of appearance."""
    declared: float = 0.047
    """Shift of a coordinate of the taste that a declared ±1 stands for."""


class TastePrior(NamedTuple):
    """Prior of tastes, trained on other people's labels."""

    id: str
    """sha256 of the file it came from."""
    mean: Floats
    cov: Floats
    """N(mean, cov) of w_0: float64[D] and float64[D, D]."""
    roles: Mapping[str, Floats] | None = None
    """Canonical role → mean of its people's deviation from it, as if the role had declared it: float64[D]."""


def voter_key(identity: Identity) -> str:
    """Key of the person whose votes are counted: the user, or all anonymous callers of a tenant as one."""
    return identity.user or f"anonymous {identity.tenant}"


class Block(NamedTuple):
    """A Gaussian that a label observes, and whether the label updates it."""

    taste: Gaussian | CompactTaste
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
        self.role_variance = self._spread(params.role, 0.0)
        self.user_variance = self._spread(params.user, params.user_intercept)
        self.population = self.prior_of(OVERALL)
        widths = (params.narrow, params.length, params.form, params.medium, params.wide)
        self._compact = HeadPriors([Width(level=0.0, offset=0.0)], self.user_variance[None])
        self._heads = HeadPriors.grouped(widths, self.names, D)
        self.others: dict[str, Gaussian] = {}
        """Dimension → w_0 in it, for dimensions other than overall."""
        self.roles: dict[str, Person] = {}
        self.users = Users(self.new_person)
        self.forgotten: list[str] = []
        """Models whose offsets all people have forgotten, in order; each person does so when next read."""
        self.nobody = self.new_person()
        """A role or user without labels."""
        self._unmet = {role: self.new_role(role) for role in (prior and prior.roles) or ()}

    def _spread(self, spread: float, intercept: float) -> Floats:
        """Return prior variances under which hᵀw has variance `spread` for features of variance 1."""
        variance = evenly(spread, self.names, self.D)
        variance[0] = intercept
        return variance

    def new_person(self) -> Person:
        """Make a user's terms as before any label."""
        return Person(self.D, [LowRankHeads(priors) for priors in self._heads], len(self.forgotten), self._compact)

    def new_role(self, role: str | None = None) -> Person:
        """Make a role's terms as before any label."""
        made = Person(self.D, [DenseHeads(priors) for priors in self._heads], len(self.forgotten))
        means = (self.prior and self.prior.roles) or {}
        if (mean := means.get(canonical_role(role) or "")) is not None:
            made.declare(mean)
        return made

    def unmet(self, identity: Identity) -> Person:
        """Return the terms of a role that no label has named yet; they are read, never taught."""
        return self._current(self._unmet.get(canonical_role(identity.role) or "")) or self.nobody

    # --- reading ---

    def role(self, identity: Identity) -> Person | None:
        """The role's terms; None for no role, or for one that no label has named yet."""
        return self._current(self.roles.get(role_key(identity)))

    def user(self, identity: Identity) -> Person | None:
        """Return a user's terms; None for an anonymous caller, a user without labels, and one not in memory."""
        return self._current(self.users.hot(identity.user or ""))

    def _current(self, person: Person | None) -> Person | None:
        """Let a person forget the offsets of models that all people forgot, and return them."""
        if person is not None and person.alarms < len(self.forgotten):
            person.forget(self.forgotten)
        return person

    def others_of(self, identity: Identity, dimension: str) -> list[Gaussian]:
        """Return Gaussians whose sum is a user's w in a dimension other than overall; none if it has no label."""
        if dimension not in self.others:
            return []
        people = (self.role(identity), self.role_variance), (self.user(identity), self.user_variance)
        nothing = np.zeros(self.D)
        found = [self.others[dimension]]
        for person, variance in people:
            taste = None if person is None else person.others.get(dimension)
            full = taste.gaussian() if isinstance(taste, CompactTaste) else taste
            found.append(full or Gaussian.prior(nothing, variance))
        return found

    def named(self, kind: str, name: str) -> Person | None:
        """Return the terms of a user or a role by its stored key."""
        return self._current((self.users if kind == "user" else self.roles).get(name))

    # --- learning ---

    def forget(self, model: str) -> None:
        """Let all people forget their offsets of a model; each does so when next read."""
        self.forgotten.append(model)

    def meet(self, identity: Identity) -> None:
        """Create the terms of a label's role and user if they are new."""
        key = role_key(identity)
        if key and key not in self.roles:
            tenant = key.partition("\x1f")[0]
            if sum(known.partition("\x1f")[0] == tenant for known in self.roles) < self.params.roles:
                self.roles[key] = self.new_role(identity.role)
        if identity.user:
            self.voter(identity)

    def voter(self, identity: Identity) -> Person:
        """The person whose votes are counted (`voter_key`), created if it is new."""
        key = voter_key(identity)
        person = self._current(self.users.demand(key))
        if person is None:
            person = self.users[key] = self.new_person()
        return person

    def prior_of(self, dimension: str) -> Gaussian:
        """The population's taste in a dimension before any label."""
        if dimension == OVERALL and self.prior is not None:
            return Gaussian(self.prior.mean.copy(), self.prior.cov.copy())
        level = np.zeros(self.D)
        level[0] = self.params.level
        intercept = self.params.population_intercept if dimension == OVERALL else 0.05
        variance = self._spread(self.params.population, intercept)
        variance[[self.names[name] for name in HINGES if name in self.names]] = self.params.population_hinge
        return Gaussian.prior(level, variance)

    def blocks(self, identity: Identity, dimension: str, pooled: bool) -> list[Block]:
        """The posteriors that a label of a dimension other than overall observes; none for too many dimensions."""
        if dimension not in self.others:
            if len(self.others) >= DIMENSIONS:
                return []
            self.others[dimension] = self.prior_of(dimension)
        found = [Block(self.others[dimension], pooled)]
        role, user = self.role(identity), self.user(identity)
        for person, variance, learns in ((role, self.role_variance, pooled), (user, self.user_variance, True)):
            if person is not None:
                if dimension not in person.others:
                    prior = Gaussian.prior(np.zeros(self.D), variance)
                    taste = prior if person.compact is None else CompactTaste(person.compact, self.D)
                    person.others = {**person.others, dimension: taste}
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
