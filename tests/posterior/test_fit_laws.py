"""Laws of the reward model: exact joint posteriors, symmetry between users, and weights of 0 for useless terms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fitrouter.posterior.arms import Arms
from fitrouter.posterior.gaussian import GaussianUpdate
from fitrouter.posterior.inclusion import LEAST, MOST, InclusionTest
from fitrouter.posterior.labels import Answered, FitParams, Label, Prequential
from fitrouter.posterior.model import TERMS, Fit
from fitrouter.posterior.offsets import OffsetEstimate, learn_offset
from fitrouter.types import FeedbackKind, Floats, Identity

d, D = 7, 6
ARMS = tuple(f"m{k}" for k in range(5))
USERS, ROLES = 30, 3


def _identity(user: int) -> Identity:
    return Identity(user=f"u{user}", role=f"r{user % ROLES}")


class _World:
    """Simulated users with tastes over texts and models, and their labels."""

    def __init__(self, seed: int, *, tastes: float = 0.1, offsets: float = 0.2) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.c = rng.normal(size=(len(ARMS), d)) * 0.15
        self.d_user = rng.normal(size=(USERS, len(ARMS))) * offsets
        self.d_role = rng.normal(size=(ROLES, len(ARMS))) * 0.3 * offsets
        self.w = rng.normal(size=(USERS, D)) * tastes
        self.w[:, 0] = 0.0
        self.activity = 1.0 / np.arange(1, USERS + 1) ** 0.7
        self.activity /= self.activity.sum()

    def label(self, *, pooled: bool = True, shift: float = 0.0) -> Label:
        """The next verdict."""
        rng = self.rng
        user, k = int(rng.choice(USERS, p=self.activity)), int(rng.integers(len(ARMS)))
        x, h = rng.normal(size=d) * 0.35, rng.normal(size=D)
        x[0] = h[0] = 1.0
        fit = 0.5 + self.c[k] @ x + h @ self.w[user] + self.d_user[user, k] + self.d_role[user % ROLES, k]
        y = float(fit + 0.3 * rng.normal() + shift)
        return Label(_identity(user), Answered(ARMS[k], x, h), y, FeedbackKind.THUMB, pooled)


class _Quiet(Fit):
    """A model that ignores alarms."""

    def _monitor(self, *label: object) -> None:
        pass


class _Tape(_Quiet):
    """A model that records the residual and the noise of each label for c and d."""

    def __init__(self) -> None:
        super().__init__(d, D)
        self.tape: list[tuple[Label, float, float]] = []

    def learn(self, label: Label) -> Prequential | None:
        """Fold one label of one answer."""

        def spy(arms: Arms, level: OffsetEstimate, innovation: GaussianUpdate, *people: object, pooled: bool) -> None:
            left, noise = innovation.step / innovation.shrink, 1.0 / innovation.shrink - level.variance
            self.tape.append((label, level.mean + left, noise))
            learn_offset(arms, level, innovation, *people, pooled=pooled)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fitrouter.posterior.model.learn_offset", spy)
            return super().learn(label)


def _joint(fit: _Tape, arm: str) -> tuple[Floats, Floats]:
    """Mean and sd of [c, d of every role, d of every user] for one arm, from all labels at once."""
    rows = [row for row in fit.tape if row[0].answer.arm == arm]
    design = np.zeros((len(rows), d + ROLES + USERS))
    for i, (label, _, _) in enumerate(rows):
        user = int(str(label.identity.user)[1:])
        design[i, :d] = label.answer.x
        design[i, d + user % ROLES] = design[i, d + ROLES + user] = 1.0
    c = fit.params.arms.correction_slope, fit.params.arms.correction_intercept
    tastes = fit.params.tastes
    prior = np.concatenate([[c[1]], np.full(d - 1, c[0]), np.full(ROLES, tastes.role_offset)])
    prior = np.concatenate([prior, np.full(USERS, tastes.user_offset)])
    weighted = design / np.array([noise for _, _, noise in rows])[:, None]
    cov = np.linalg.inv(np.diag(1.0 / prior) + weighted.T @ design)
    mean = cov @ (weighted.T @ np.array([y for _, y, _ in rows]))
    return mean, np.sqrt(np.diag(cov))


def _online(fit: Fit, arm: str) -> Floats:
    roles = [fit.offsets(Identity(role=f"r{r}"), (arm,))[0][0, 0] for r in range(ROLES)]
    users = [fit.offsets(_identity(u), (arm,))[0][1, 0] for u in range(USERS)]
    return np.concatenate([fit.arms.correction[fit.arms.row(arm)], roles, users])


@pytest.mark.parametrize("seed", [0, 1])
def test_corrections_and_offsets_are_the_joint_posterior(seed: int) -> None:
    """After 5,000 labels, c and both offsets of every arm equal the joint solution, far closer than .2 sd."""
    world, fit = _World(seed), _Tape()
    for _ in range(5000):
        fit.learn(world.label())
    for arm in ARMS:
        mean, sd = _joint(fit, arm)
        away = np.abs(_online(fit, arm) - mean) / sd
        assert away.max() < 1e-6
        variances = fit.offsets(_identity(0), (arm,))[1][:, 0]
        assert variances[1] <= sd[d + ROLES] ** 2, "given c, an offset is surer than without"


def test_people_of_two_roles_stay_near_the_joint_posterior() -> None:
    """For users with several roles, whose correlation is ignored, means stay within .2 sd (rms)."""
    world, fit = _World(2), _Tape()
    rng = np.random.default_rng(9)
    for _ in range(5000):
        label = world.label()
        if rng.random() < 0.3:
            label = replace(label, identity=Identity(user=label.identity.user, role=f"r{rng.integers(ROLES)}"))
        fit.learn(label)
    away = []
    for arm in ARMS:
        rows = [row for row in fit.tape if row[0].answer.arm == arm]
        design = np.zeros((len(rows), d + ROLES + USERS))
        for i, (label, _, _) in enumerate(rows):
            design[i, :d] = label.answer.x
            design[i, d + int(str(label.identity.role)[1:])] = 1.0
            design[i, d + ROLES + int(str(label.identity.user)[1:])] = 1.0
        params = fit.params
        prior = np.full(d + ROLES + USERS, params.tastes.user_offset)
        prior[d : d + ROLES], prior[:d] = params.tastes.role_offset, params.arms.correction_slope
        prior[0] = params.arms.correction_intercept
        weighted = design / np.array([noise for _, _, noise in rows])[:, None]
        cov = np.linalg.inv(np.diag(1.0 / prior) + weighted.T @ design)
        mean = cov @ (weighted.T @ np.array([y for _, y, _ in rows]))
        found = fit.arms.correction[fit.arms.row(arm)]
        away.append((found - mean[:d]) / np.sqrt(np.diag(cov))[:d])
    assert np.sqrt(np.mean(np.square(away))) < 0.2


def test_one_user_does_not_dominate() -> None:
    """A thousand labels of one person change a model's correction less than thirty labels of thirty people."""

    def level(users: int, labels: int) -> float:
        fit, x = Fit(d, D), np.eye(d)[0]
        for i in range(labels):
            fit.learn(Label(Identity(user=f"u{i % users}"), Answered("m", x, None), 0.0, FeedbackKind.THUMB))
        return float(fit.arms.correction[fit.arms.row("m"), 0])

    assert level(30, 30) < level(1, 1000) - 0.1
    assert level(1, 1000) > level(1, 100) - 0.02, "once a person's opinion is known, more of it says nothing"


@given(st.integers(0, 10_000))
@settings(max_examples=10)
def test_swapping_two_users_swaps_their_posteriors(seed: int) -> None:
    """Swapping the labels of two users of a role swaps their posteriors bit for bit and changes nothing else."""
    one, other, swap = Fit(d, D), Fit(d, D), {"u0": "u3", "u3": "u0"}
    world = _World(seed)
    for _ in range(60):
        label = world.label(pooled=bool(world.rng.random() < 0.8))
        if world.rng.random() < 0.3:
            label = replace(label, kind=FeedbackKind.RATING)
        one.learn(label)
        user = str(label.identity.user)
        other.learn(replace(label, identity=Identity(user=swap.get(user, user), role=label.identity.role)))
    assert one.tastes.users.keys() == {swap.get(user, user) for user in other.tastes.users}
    for user, person in one.tastes.users.items():
        assert person.dump() == other.tastes.users[swap.get(user, user)].dump()
    np.testing.assert_array_equal(one.tastes.population.state, other.tastes.population.state)
    np.testing.assert_array_equal(one.arms.corrections, other.arms.corrections)


@pytest.mark.parametrize("seed", [2, 4])
def test_a_common_shift_changes_no_taste(seed: int) -> None:
    """All labels .1 higher: no user's taste moves by more than .05 sd, nor level or offset by .05 sd between users.

    The alarms are events, which happen or do not: they are left out.
    """
    fits = []
    params = FitParams()
    for shift in (0.0, 0.1):
        world, fit = _World(seed), _Quiet(d, D, params)
        for _ in range(2000):
            fit.learn(world.label(shift=shift))
        fits.append(fit)
    before, after = fits
    moved = after.tastes.population.mean[0] - before.tastes.population.mean[0]
    assert moved == pytest.approx(0.1, abs=0.005), "it is everybody's"
    for user, person in before.tastes.users.items():
        sd = np.sqrt(np.concatenate([person.base_variance[:1], np.diag(person.taste.cov)[1:]]))
        assert (np.abs(after.tastes.users[user].taste.mean - person.taste.mean) <= 0.05 * sd).all()
        identity = _identity(int(user[1:]))
        further = after.offsets(identity, ARMS)[0] - before.offsets(identity, ARMS)[0]
        assert (np.abs(further[1]) <= 0.05 * np.sqrt(person.offset_variance)).all()


# --- terms that are worth nothing ---


def _reliance(tastes: float, offsets: float, seed: int, labels: int = 2500) -> Fit:
    world, fit = _World(seed, tastes=tastes, offsets=offsets), Fit(d, D)
    for _ in range(labels):
        fit.learn(world.label())
    return fit


@pytest.mark.parametrize("seed", [0, 1])
def test_without_tastes_personal_terms_have_no_weight(seed: int) -> None:
    """If users do not differ, P(term = 0) is at least .9 for every personal term, and the weights are low."""
    fit = _reliance(0.0, 0.0, seed)
    assert (fit.p_null()[1:] >= 0.9).all()
    assert (fit.stacking_weights()[1:] <= 0.2).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_with_strong_tastes_personal_terms_have_full_weight(seed: int) -> None:
    """With strong tastes and offsets, P(term = 0) is near 0 and the weights near 1."""
    fit = _reliance(0.15, 0.2, seed)
    assert (fit.p_null()[2:] < 0.01).all()
    assert (fit.stacking_weights()[2:] > 0.9).all()
    assert fit.p_null()[0] == 0.0, "the slopes of c are nobody's"
    assert len(fit.p_null()) == len(TERMS)


def test_a_term_that_begins_to_harm_is_dropped() -> None:
    """After a thousand labels that it predicted, eighty contrary ones suffice; and back again."""
    worth, rng = InclusionTest(1), np.random.default_rng(0)

    def live(n: int, sign: float) -> float:
        for _ in range(n):
            said = 0.3 * float(rng.normal())
            left = sign * said + 0.3 * float(rng.normal())
            worth.see([said], [0.0], left, 0.09)
        return worth.p_null()[0]

    assert worth.p_null() == [0.5]
    assert live(1000, 1.0) < 0.01
    assert live(80, -1.0) > 0.9
    assert live(1000, -1.0) > 0.9
    assert live(80, 1.0) < 0.1


@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(0, 1), st.floats(-3, 3)), max_size=40))
@settings(max_examples=40)
def test_inclusion_evidence_is_bounded_and_round_trips(labels: list[tuple[float, float, float]]) -> None:
    """For any labels, evidence is bounded and round-trips bit for bit; invalid bytes change nothing."""
    worth = InclusionTest(2)
    for term, share, left in labels:
        worth.see([term, -term], [share, 0.0], left, 0.1)
    assert all(LEAST <= nats <= MOST for row in worth.evidence for nats in row)
    payload, other = worth.dump(), InclusionTest(2)
    assert other.load(payload)
    assert other.dump() == payload
    for broken in (payload[:-1], b"", b"\xc1", InclusionTest(3).dump(), payload.replace(b"\x92", b"\x93", 1)):
        assert not other.load(broken)
    assert other.dump() == payload


# --- numbers that are none ---


@given(st.integers(0, 1000), st.sampled_from(["y", "x", "h", "inf", "seconds", "ts"]))
@settings(max_examples=30)
def test_nan_is_skipped(seed: int, where: str) -> None:
    """NaN anywhere leaves all posteriors finite; in y and x it changes nothing."""
    world, fit = _World(seed), Fit(d, D)
    for _ in range(10):
        fit.learn(world.label())
    label = world.label()
    x, h = label.answer.x.copy(), np.array(label.answer.h)
    before = fit.arms.corrections.tobytes(), fit.tastes.population.state.tobytes(), fit.labels
    if where == "y":
        label = replace(label, y=math.nan)
    elif where == "x":
        x[2] = math.nan
    elif where in {"h", "inf"}:
        h[2] = math.nan if where == "h" else math.inf
    fit.learn(replace(label, answer=replace(label.answer, x=x, h=h)))
    if where in {"y", "x"}:
        assert before == (fit.arms.corrections.tobytes(), fit.tastes.population.state.tobytes(), fit.labels)
    k = fit.arms.row(ARMS[0])
    fit.arms.observe_response(k, x, h)
    fit.arms.observe_operations(k, x, 100.0, math.nan if where == "seconds" else 1.0)
    fit.arms.observe_answer(k, True, math.nan if where == "ts" else 5.0)
    seen = fit.estimate(label.identity, world.label().answer.x, ARMS, 10.0)
    assert all(np.isfinite(part).all() for part in seen)
    assert all(math.isfinite(part) for part in fit.score(label.identity, h))


def test_an_update_without_information_changes_nothing() -> None:
    """A label so far in the tail that its weight is 0 leaves offsets unchanged."""
    fit = Fit(d, D)
    label = Label(Identity(user="u", role="r"), Answered("m", np.eye(d)[0], None), 1.0, FeedbackKind.COPY)
    offsets, role, user = fit._label_offsets(label, None, fit.tastes.voter(label.identity))
    learn_offset(fit.arms, offsets[0], GaussianUpdate(0.0, 0.0), role, user, pooled=True)
    assert not np.any(fit.tastes.users["u"].offsets["m"])
    assert not fit.arms.correction.any()
