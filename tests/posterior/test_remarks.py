"""Laws of remarks: what a person says about an answer moves that person's taste, and nothing else."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fitrouter.posterior.labels import Answered, Label
from fitrouter.posterior.model import Fit
from fitrouter.types import FeedbackKind, Identity, Remark

NAMES = ("one", "length", "structure", "warmth")
ANN = Identity(user="ann", role="analyst")
X = np.array([1.0, 0.3])


def answer(*h: float, arm: str = "a") -> Answered:
    return Answered(arm, X, np.array([1.0, *h]))


def said(kind: str = "comment", y: float | None = None, user: str | None = "ann", **moved: float) -> Remark:
    who = Identity(user=user, role="analyst")
    return Remark(id="r", ts=1.0, decision_id="d", identity=who, kind=kind, moved=moved, y=y)


def model(votes: int = 0) -> Fit:
    fit = Fit(2, len(NAMES), names=NAMES)
    rng = np.random.default_rng(1)
    for _ in range(votes):
        fit.learn(Label(ANN, answer(*rng.normal(size=3)), float(rng.random() < 0.5), FeedbackKind.THUMB))
    return fit


def taste(fit: Fit, name: str = "length", user: str = "ann") -> float:
    return float(fit.taste(Identity(user=user))[NAMES.index(name)])


def test_a_remark_moves_the_dimension_that_it_names() -> None:
    """Too long: less of length, and nothing of the rest; too short the other way, by as much at the middle."""
    short, long = model(), model()
    short.remark(said(length=-1.0), answer(0.0, 0.0, 0.0))
    long.remark(said(length=1.0), answer(0.0, 0.0, 0.0))
    assert taste(short) < -0.03
    assert np.isclose(taste(short), -taste(long))
    assert taste(short, "structure") == taste(model(), "structure")


def test_it_is_relative_to_the_answer() -> None:
    """Shorter than the shortest says nothing; the same words about a long answer do. A missing feature says nothing."""
    for h in (-3.0, float("nan")):
        fit = model()
        fit.remark(said(length=-1.0), answer(h, 0.0, 0.0))
        assert taste(fit) == 0.0


def test_a_comment_says_more_than_a_remark_in_passing() -> None:
    """The weights of the two kinds."""
    passing, comment = model(), model()
    passing.remark(said("implicit", length=-1.0), answer(1.0, 0.0, 0.0))
    comment.remark(said(length=-1.0), answer(1.0, 0.0, 0.0))
    assert taste(comment) < taste(passing) < -0.01


def test_praise_and_rejection_move_the_answer() -> None:
    """The answer's prediction for this user rises with praise and falls with a rejection."""
    scores = []
    for y in (0.0, None, 1.0):
        fit = model()
        fit.remark(said("implicit", y), answer(1.0, 0.0, 0.0))
        scores.append(fit.estimate(Identity(user="ann"), X, ("a", "b"), 2.0).mean[0])
    assert scores[0] < scores[1] < scores[2]


def test_other_people_and_shared_terms_do_not_change() -> None:
    """Population, roles, models, the common prior of heads and the label count stay as they were, bit for bit."""
    before, after = model(5), model(5)
    after.remark(said("implicit", 0.0, length=-1.0), answer(1.0, 0.0, 0.0))
    assert after.tastes.population.state.tobytes() == before.tastes.population.state.tobytes()
    assert [p.dump() for p in after.tastes.roles.values()] == [p.dump() for p in before.tastes.roles.values()]
    assert {k: v.dump() for k, v in after.named().items()} == {k: v.dump() for k, v in before.named().items()}
    assert after.arms.dump("a") == before.arms.dump("a")
    assert (after.labels, after.residuals) == (before.labels, before.residuals)
    nobody = model()
    nobody.remark(said(user=None, length=-1.0), answer(1.0, 0.0, 0.0))
    assert not nobody.tastes.users


@settings(max_examples=20, deadline=None)
@given(
    votes=st.integers(0, 8),
    length=st.floats(-1, 1),
    y=st.sampled_from((None, 0.0, 1.0)),
    h=st.floats(-3, 3),
)
def test_what_is_withdrawn_at_once_leaves_little(votes: int, length: float, y: float | None, h: float) -> None:
    """Means return to what they were; no variance is above the prior's.

    Of several parts of a remark the first ones return in part: covariances stay until a refit.
    """
    fit, remark, where = model(votes), said("implicit", y, length=length), answer(h, 0.5, 0.0)
    fit.tastes.meet(ANN)
    kept = model(votes)
    kept.tastes.meet(ANN)
    fit.remark(remark, where)
    moved = [heads.tastes() for heads in fit.tastes.users["ann"].heads]
    fit.remark(remark, where, withdraw=True)
    for heads, before, after in zip(fit.tastes.users["ann"].heads, kept.tastes.users["ann"].heads, moved, strict=True):
        change = np.abs(after - before.tastes()).max(axis=1)
        left = np.abs(heads.tastes() - before.tastes()).max(axis=1)
        limit = 0.01 * change + 2e-3 if y is None else np.full(len(change), 0.06)
        assert (left <= limit).all()
        features = len(heads.priors.features)
        for one in np.eye(len(heads)):
            cov = heads.covariance(one)[:features, :features]
            assert (np.diag(cov) <= (one @ heads.priors.variance) * (1.0 + 1e-3)).all()
            assert (np.linalg.eigvalsh(cov) >= -1e-3).all()


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.floats(-1, 1), st.floats(-3, 3)), max_size=25))
def test_any_sequence_stays_finite(steps: list[tuple[bool, float, float]]) -> None:
    """Remarks and withdrawals in any order, even of what was never said, leave valid posteriors and weights."""
    fit = model(2)
    for withdraw, wanted, h in steps:
        fit.remark(said("implicit", 1.0, length=wanted), answer(h, 0.0, 0.0), withdraw=withdraw)
    for person in fit.tastes.users.values():
        assert person.finite()
        for weights in person.weights.values():
            assert np.isclose(weights.sum(), 1.0)
            assert (weights >= 0.0).all()


def test_what_is_no_dimension_is_ignored() -> None:
    """Unknown names, the level and numbers that are not finite change nothing."""
    fit = model()
    fit.remark(said(humour=1.0, one=1.0, warmth=float("nan")), answer(0.0, 0.0, 0.0))
    assert not fit.taste(ANN)[1:].any()
