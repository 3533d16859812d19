"""Laws of the reward model: symmetry between users, weights of personal terms, and labels that are no numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.labels import Answered, FitParams, Label
from fitrouter.posterior.likelihoods import SIGNALS, observation_of
from fitrouter.posterior.mixture import EXPERTS, TEMPERATURES, updated
from fitrouter.posterior.model import Fit
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


def _taught(users: int, labels: int, spread: float, slope: float = 0.0, role: str | None = None) -> Floats:
    """Correction of a model after thumbs of y = slope x_1, from users in turn; `spread` is the sd of the prompts."""
    fit, rng = Fit(d, D), np.random.default_rng(0)
    for i in range(labels):
        x = np.concatenate([[1.0, 0.5], np.full(d - 2, 0.2)]) if spread < 0 else spread * rng.normal(size=d)
        x[0] = 1.0
        who = Identity(user=f"u{i % users}", role=role)
        fit.learn(Label(who, Answered("m", x, None), slope * float(x[1]), FeedbackKind.THUMB))
    mean: Floats = fit.widths.weights @ fit.arms.correction[fit.arms.row("m")]
    return mean


@pytest.mark.parametrize("spread", [0.0, 0.4, -1.0], ids=["no prompt", "prompts", "one prompt"])
def test_one_user_does_not_dominate(spread: float) -> None:
    """A thousand labels of one person change a model's correction less than thirty labels of thirty people."""
    x = np.concatenate([[1.0, 0.5], np.full(d - 2, 0.2)]) if spread < 0 else np.eye(d)[0]
    few, many, one = (float(_taught(users, n, spread) @ x) for users, n in ((30, 30), (1, 1000), (1, 100)))
    assert few < many - 0.1
    assert many > one - 0.03, "once a person's opinion is known, more of it says nothing"


def test_what_a_small_team_agrees_on_is_no_taste() -> None:
    """The first choices of three people teach how good models are nearly as much as without personal terms."""
    rng, fits, x = np.random.default_rng(0), (_Quiet(d, D), _Quiet(d, D, FitParams(personal=False))), np.eye(d)[0]
    level = np.arange(len(ARMS)) - 2.0
    for i in range(60):
        a, b = rng.permutation(len(ARMS))[:2]
        answers = Answered(ARMS[a], x, None), Answered(ARMS[b], x, None)
        for fit in fits:
            fit.learn(
                Label(Identity(user=f"u{i // 20}"), answers[0], float(a > b), FeedbackKind.PAIR, against=answers[1])
            )
    personal, blind = (level @ fit.arms.correction[[fit.arms.row(arm) for arm in ARMS], 1, 0] for fit in fits)
    assert personal > 0.85 * blind > 0.5


def test_a_person_teaches_how_a_model_varies_as_anybody() -> None:
    """What depends on the prompt is learnt from one person's labels as from as many people's."""
    one, many = _taught(1, 200, 0.4, slope=0.5), _taught(200, 200, 0.4, slope=0.5)
    assert one[1] > 0.8 * many[1] > 0.1


def test_a_role_keeps_nothing_from_everybody() -> None:
    """Labels of people in a role teach a model's correction as much as those of people without one."""
    without, within = _taught(50, 200, 0.4), _taught(50, 200, 0.4, role="analyst")
    assert within[0] < 0.9 * without[0] < -0.1


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
    """All labels .1 higher: no coordinate of a user's heads moves by more than a fifth of its standard deviation.

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
    assert moved == pytest.approx(0.1, abs=0.01), "it is everybody's"
    for user, person in before.tastes.users.items():
        for head, other in zip(person.heads, after.tastes.users[user].heads, strict=True):
            sd = np.sqrt([np.diag(head.covariance(one)) for one in np.eye(len(head))])
            assert (np.abs(other.mean - head.mean) <= 0.2 * sd).all()


# --- how far personal terms count ---


@pytest.mark.parametrize("seed", [0, 1])
def test_where_people_do_not_differ_a_new_person_starts_at_the_population(seed: int) -> None:
    """If users do not differ, the wide heads of a new person keep no more than the floor of the common prior."""
    world, fit = _World(seed, tastes=0.0, offsets=0.0), Fit(d, D)
    for _ in range(1500):
        fit.learn(world.label())
    weights = dict(zip(EXPERTS, fit.mixture.weights("user").tolist(), strict=True))
    assert weights["form"] + weights["medium"] + weights["wide"] < 0.1


@pytest.mark.parametrize("seed", [0, 1])
def test_with_strong_tastes_personal_heads_take_over(seed: int) -> None:
    """With strong tastes and offsets, people with many labels are predicted by their own heads."""
    world, fit = _World(seed, tastes=0.15, offsets=0.2), Fit(d, D)
    for _ in range(2500):
        fit.learn(world.label())
    weights = fit.weights(_identity(0))
    assert weights[EXPERTS.index("form") :].sum() > 0.9


# --- numbers that are none ---


@given(st.integers(0, 1000), st.sampled_from(["y", "x", "h", "inf", "seconds", "ts"]))
@settings(max_examples=15)
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


def test_temperature_of_choices_is_learnt() -> None:
    """How decisively people choose is learnt, for them and for those to come; ratings do not change it."""
    rng, x, rating = np.random.default_rng(0), np.eye(d)[0], SIGNALS[FeedbackKind.PAIR].temperature
    learnt: list[Fit] = []
    for factor in (0.1, 1.0, 4.0):
        fit = Fit(d, D)
        fit.tastes.population = Gaussian(np.full(D, 0.2), np.zeros((D, D)))
        for i in range(400):
            worth = 0.5 * rng.normal(size=(2, D))
            chance = 1.0 / (1.0 + np.exp(-0.2 * float((worth[0] - worth[1]).sum()) / (rating * factor)))
            one, other = (Answered("m", x, h) for h in worth)
            y = float(rng.random() < chance)
            fit.learn(Label(Identity(user=f"u{i % 80}"), one, y, FeedbackKind.PAIR, against=other))
        learnt.append(fit)
    for user in ("stranger", None):
        decisive, usual, undecided = (fit.temperature(Identity(user=user)) for fit in learnt)
        assert decisive < 0.8 * usual < usual < 0.8 * undecided
    assert learnt[0].temperature(Identity(user="u0")) < 0.9 * learnt[1].temperature(Identity(user="u0"))
    before = fit.temperature(Identity(user="u0"))
    fit.learn(Label(Identity(user="u0"), Answered("m", x, np.ones(D)), 1.0, FeedbackKind.RATING))
    assert fit.temperature(Identity(user="u0")) == before
    restored = fit.tastes.new_person()
    assert restored.load(fit.tastes.users["u0"].dump())
    assert np.array_equal(restored.weights["temperature"], fit.tastes.users["u0"].weights["temperature"])


def test_a_part_of_the_variance_of_a_person_counts_in_temperatures() -> None:
    """Temperatures are learnt by the probability of a choice that counts a part of the person's variance."""
    x, h, fit = np.eye(d)[0], np.eye(D)[0], Fit(d, D)
    answers = Answered("a", x, h), Answered("b", x, 0.0 * h)
    label = Label(Identity(user="u"), answers[0], 1.0, FeedbackKind.PAIR, against=answers[1])
    for _ in range(3):
        (_, shared), _, (mean, variance) = fit.predict(label)[1:]
        before = fit.people(label.identity)[1]
        weights = fit.mixture.weights("temperature") if before is None else before.weights.get("temperature")
        fit.learn(label)
    seen = observation_of(FeedbackKind.PAIR, 1.0)
    nats = [seen.at(t).log_likelihood(mean, shared + 0.25 * (variance - shared)) for t in TEMPERATURES.tolist()]
    assert weights is not None
    expected = updated(weights, np.array(nats), fit.mixture.weights("temperature"))[1]
    np.testing.assert_allclose(fit.tastes.users["u"].weights["temperature"], expected, rtol=1e-3)


def test_a_choice_moves_posteriors_at_the_common_temperature() -> None:
    """A decisive person's choices say more about which head is right, and move each head as anybody's do."""
    moved = []
    for decisive in (False, True):
        fit, x = Fit(d, D), np.eye(d)[0]
        answers = [Answered("a", x, np.ones(D)), Answered("b", x, np.zeros(D))]
        fit.tastes.meet(Identity(user="ann"))
        if decisive:
            person = fit.tastes.users["ann"]
            person.weights["temperature"] = np.eye(len(TEMPERATURES))[0]
        label = Label(Identity(user="ann"), answers[0], 1.0, FeedbackKind.PAIR, against=answers[1])
        fit.learn(label)
        moved.append([heads.mean.copy() for heads in fit.tastes.users["ann"].heads])
        assert fit.observation(label).signal.temperature < SIGNALS[FeedbackKind.PAIR].temperature
    assert all(np.array_equal(one, other) for one, other in zip(*moved, strict=True))
