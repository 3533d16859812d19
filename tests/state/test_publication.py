"""The published taste: the prior until enough people voted, then a copy that no single vote moves."""

from __future__ import annotations

import numpy as np

from fitrouter.posterior.labels import Answered, FitParams, Label
from fitrouter.posterior.model import Fit
from fitrouter.posterior.tastes import OVERALL
from fitrouter.state.publication import PEOPLE, Publication
from fitrouter.types import FeedbackKind, Identity


def test_a_copy_is_published_after_enough_people() -> None:
    """Two hundred people renew it, however often one votes; it survives a snapshot, and later votes do not move it."""
    fit, rng = Fit(1, 3, FitParams()), np.random.default_rng(0)
    fit.arms.join("model")
    published = Publication()

    def vote(user: str | None) -> None:
        h = np.array([1.0, *rng.normal(size=2)])
        fit.learn(Label(Identity(user=user), Answered("model", np.ones(1), h), float(h[1] > 0), FeedbackKind.THUMB))
        published.observe(user, fit.tastes)

    for number in range(PEOPLE - 1):
        vote(f"u{number}")
    for user in ("u1", None):
        vote(user)
    assert published.tastes == {}
    vote("ann")
    assert published.voters == set()
    then = published.tastes[OVERALL].mean.copy()
    assert (then == fit.tastes.population.mean).all()
    for number in range(PEOPLE - 1):
        vote(f"v{number}")
        assert (published.tastes[OVERALL].mean == then).all()
    restored = Publication()
    assert restored.load(published.dump())
    assert restored.dump() == published.dump()
    assert (restored.tastes[OVERALL].cov == published.tastes[OVERALL].cov).all()
    vote("bob")
    assert (published.tastes[OVERALL].mean != then).any()
    assert not restored.load(published.dump()[:-1])
