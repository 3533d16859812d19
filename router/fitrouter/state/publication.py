"""Published tastes: what keys without trust see of the population's taste.

The population's taste holds every person's votes: who reads it before and after somebody votes learns that person's
taste. So callers who may not read what was learnt of people get a copy, which is renewed only after `PEOPLE` people
have voted since; before that they get the prior (docs/results/manipulation.md has what an attacker learns).
"""

from __future__ import annotations

import msgspec
import numpy as np

from fitrouter.plain import Projection
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.tastes import OVERALL, Tastes

PEOPLE = 200
"""People whose votes a renewal mixes."""


class _Taste(msgspec.Struct, array_like=True):
    mean: list[float]
    cov: list[list[float]]


class _StoredTastes(msgspec.Struct, array_like=True):
    voters: list[str]
    tastes: dict[str, _Taste]


class Publication(Projection):
    """The published tastes of one tenant, one for each dimension."""

    stored_type = _StoredTastes

    def __init__(self) -> None:
        self.voters: set[str] = set()
        """Who voted since the last renewal; at most `PEOPLE`."""
        self.tastes: dict[str, Gaussian] = {}
        """Dimension → the population's taste at the last renewal."""

    def observe(self, user: str | None, tastes: Tastes) -> None:
        """Count a vote that has been learnt, and renew the published tastes after votes of enough people."""
        if user is None:
            return
        self.voters.add(user)
        if len(self.voters) >= PEOPLE:
            now = {OVERALL: tastes.population, **tastes.others}
            self.tastes = {name: Gaussian(taste.mean.copy(), taste.cov.copy()) for name, taste in now.items()}
            self.voters = set()

    def _store(self) -> _StoredTastes:
        tastes = {name: _Taste(taste.mean.tolist(), taste.cov.tolist()) for name, taste in self.tastes.items()}
        return _StoredTastes(sorted(self.voters), tastes)

    def _restore(self, stored: _StoredTastes) -> bool:
        sizes = {len(taste.mean) for taste in stored.tastes.values()}
        square = all(
            len(taste.cov) == len(taste.mean) == len(row) for taste in stored.tastes.values() for row in taste.cov
        )
        if len(stored.voters) >= PEOPLE or len(sizes) > 1 or not square:
            return False
        self.voters = set(stored.voters)
        self.tastes = {name: Gaussian(np.array(t.mean), np.array(t.cov)) for name, t in stored.tastes.items()}
        return True
