"""The outcome model reads nothing that it must not, and is good for what it has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.kits.replay_logs import make_log

from fitrouter_evaluators.replay.study.outcome_model import predict
from fitrouter_evaluators.replay.study.units import Units, closed_units

K, D = 4, 3


class World:
    """n decisions, outcomes of all arms, and what was seen of them."""

    def __init__(self, seed: int, n: int, *, d: int = D, **decisions: Any) -> None:
        rng = np.random.default_rng(seed)
        self.x = rng.normal(size=(n, d)).astype(np.float32) / np.sqrt(d)
        theta = np.random.default_rng(9).normal(size=(d, K))
        self.mean = 1.0 / (1.0 + np.exp(-(1.5 * self.x @ theta + np.array([-1.0, 0.0, 0.5, 1.0]))))
        self.arm = rng.integers(0, K, n)
        self.y = (rng.random(n) < self.mean[np.arange(n), self.arm]).astype(float)
        log = make_log(np.full((n, K), 1.0 / K), self.arm, decisions={"x": self.x, **decisions})
        self.units: Units = closed_units(log, idle_s=-1.0)

    def q(self, weight: np.ndarray | None = None, y: np.ndarray | None = None, **settings: Any) -> np.ndarray:
        weight = np.ones(self.units.n) if weight is None else weight
        return predict(self.units, self.y if y is None else y, weight, **settings).reshape(-1, K)

    def error(self, q: np.ndarray) -> float:
        return float(np.sqrt(np.mean((q - self.mean) ** 2)))


def test_a_unit_is_predicted_from_what_had_ended_before_it_began() -> None:
    """Outcomes of a unit and of all later ones change nothing of its Q; those of earlier ones do."""
    world = World(1, 400)
    q = world.q()
    for at in (0, 3, 17, 150, 399):
        changed = world.y.copy()
        changed[at:] = 1.0 - changed[at:]
        np.testing.assert_array_equal(world.q(y=changed)[: at + 1], q[: at + 1])
    earlier = world.y.copy()
    earlier[:100] = 1.0 - earlier[:100]
    assert np.abs(world.q(y=earlier)[200:] - q[200:]).max() > 0.05


def test_sessions_that_overlap_do_not_teach_each_other() -> None:
    """A session that began before another, and ended after it had begun, says nothing of it; its end tells."""
    n = 300
    session = np.arange(n)
    session[n - 1] = 0  # the first session is drawn again at the very end
    begins = np.ones(n, dtype=bool)
    begins[n - 1] = False
    world = World(2, n, session=session, begins=begins)
    units = world.units
    assert units.draws[0] == 2
    y = world.y[units.member[units.start[:-1]]]
    q = predict(units, y, np.ones(units.n))
    changed = y.copy()
    changed[0] = 1.0 - changed[0]
    np.testing.assert_array_equal(predict(units, changed, np.ones(units.n)), q)
    for at in range(1, 60):
        later = y.copy()
        later[at:] = 1.0 - later[at:]
        same = (at + 2) * K  # the entries of units up to this one; the first has two draws
        np.testing.assert_array_equal(predict(units, later, np.ones(units.n))[:same], q[:same])
    changed[1] = 1.0 - changed[1]
    assert (predict(units, changed, np.ones(units.n)) != q).any()


def test_folds_are_of_whole_clusters() -> None:
    """On a log whose logger does not learn: a session's own outcomes change nothing of any of its units' Q."""
    n = 200
    world = World(3, n, session=np.arange(n) // 4)  # four units each
    q = world.q(adaptive=False)
    changed = world.y.copy()
    changed[80:84] = 1.0 - changed[80:84]
    again = world.q(y=changed, adaptive=False)
    np.testing.assert_allclose(again[80:84], q[80:84], atol=1e-9)
    assert np.abs(again - q).max() > 1e-4


def test_before_there_are_outcomes_it_is_what_was_expected() -> None:
    """The router's own expectation, cut to the range; the middle of the range where nothing was logged."""
    world = World(4, 50)
    expected = np.random.default_rng(1).uniform(-1.0, 3.0, (50, K))
    expected[7] = np.nan
    nothing = np.zeros(50)
    q = world.q(nothing, expected=expected.ravel(), low=0.0, high=2.0)
    np.testing.assert_allclose(q, np.where(np.isnan(expected), 1.0, np.clip(expected, 0.0, 2.0)), rtol=1e-12)
    assert (world.q(nothing, low=-3.0, high=1.0) == -1.0).all()
    assert (world.q(nothing, adaptive=False) == 0.5).all()


@pytest.mark.parametrize("adaptive", [True, False])
def test_it_learns_what_there_is_to_learn(adaptive: bool) -> None:
    """With thousands of outcomes it is near the truth; with forty it is better than their mean in hindsight."""
    many = World(5, 6000)
    q = many.q(adaptive=adaptive)
    last = slice(3000, None)
    assert np.sqrt(np.mean((q[last] - many.mean[last]) ** 2)) < 0.06
    few, ignorant = [], []
    for seed in range(20):
        world = World(100 + seed, 400)
        weight = (np.arange(400) % 5 == 0).astype(float)
        weight[200:] = 0.0
        q = world.q(weight, adaptive=adaptive)[200:]
        few.append(np.mean((q - world.mean[200:]) ** 2))
        ignorant.append(np.mean((world.y[weight > 0.0].mean() - world.mean[200:]) ** 2))
    assert np.mean(few) < 0.92 * np.mean(ignorant)


def test_more_dimensions_than_labels_do_no_harm() -> None:
    """Forty labels in 200 dimensions of which none matters: hardly worse than without the context."""
    with_x: list[float] = []
    without: list[float] = []
    for seed in range(10):
        world = World(200 + seed, 300)
        noise = np.random.default_rng(seed).normal(size=(300, 200)).astype(np.float32)
        log = world.units.log
        weight = (np.arange(300) % 5 == 0).astype(float)
        for x, errors in ((noise, with_x), (None, without)):
            units = world.units._replace(log=log._replace(decisions=log.decisions._replace(x=x)))
            q = predict(units, world.y, weight).reshape(-1, K)
            errors.append(float(np.mean((q[200:] - world.mean[200:]) ** 2)))
    assert np.mean(with_x) < 1.15 * np.mean(without)


def test_an_arm_that_appears_later_starts_from_what_holds_for_all() -> None:
    """Where all arms are as good as each other, a new one is predicted as well as those that were seen, at once."""
    rng = np.random.default_rng(6)
    n = 1000
    x = rng.normal(size=(n, 1)).astype(np.float32)
    mean = 1.0 / (1.0 + np.exp(-2.0 * x[:, 0]))
    arm = rng.integers(0, 2, n)
    units = closed_units(make_log(np.full((n, 3), 1.0 / 3.0), arm, decisions={"x": x}))
    q = predict(units, (rng.random(n) < mean).astype(float), np.ones(n)).reshape(-1, 3)[500:]
    seen, new = (float(np.mean((q[:, a] - mean[500:]) ** 2)) for a in (0, 2))
    assert new < 1.2 * seen + 1e-3


def test_predictions_keep_the_range_and_the_scale_of_the_outcome() -> None:
    """The same model on outcomes of another unit gives predictions in that unit."""
    world = World(7, 500)
    q = world.q()
    assert q.min() >= 0.0
    assert q.max() <= 1.0
    np.testing.assert_allclose(world.q(y=5.0 * world.y - 2.0, low=-2.0, high=3.0), 5.0 * q - 2.0, rtol=1e-9, atol=1e-9)


def test_units_that_teach_nothing_are_not_read() -> None:
    """NaN outcomes, and weights of 0."""
    world = World(8, 300)
    weight = np.ones(300)
    weight[::3] = 0.0
    hidden = np.where(weight > 0.0, world.y, np.nan)
    np.testing.assert_array_equal(world.q(weight), world.q(y=hidden))
