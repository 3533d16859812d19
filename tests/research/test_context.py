"""Laws of over- and under-personalisation: what extreme rows must show, and that the mixture of heads lies between."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.research._relevance import TasteLearner
from benchmarks.research.context import KINDS, Setting, draw_setting, run_context
from hypothesis import given, settings
from hypothesis import strategies as st

from fitrouter.types import Floats
from fitrouter_evaluators.simulation.pool import Pool
from fitrouter_evaluators.simulation.worlds import World

C, A, N, K = 4, 8, 160, 6


def _pool(rng: np.random.Generator) -> Pool:
    """Answers whose features are their attributes, the first of which tells good models from bad; four topics."""
    attributes = np.clip(rng.normal(size=(K, N, A)), -3, 3)
    attributes[:, :, 0] = np.linspace(-2, 2, K)[:, None] + 0.1 * rng.normal(size=(K, N))
    topic = np.repeat(np.eye(C), N // C, axis=0) * 9 + 0.1 * rng.normal(size=(N, C))
    return Pool(
        models=tuple(f"m{k}" for k in range(K)),
        prompts=tuple(f"prompt {n}" for n in range(N)),
        x=np.zeros((N, 2)),
        h=np.concatenate([np.ones((K, N, 1)), attributes], axis=2),
        attributes=attributes,
        topics=np.concatenate([np.ones((N, 1)), topic], axis=1),
        schema="test",
        prompt_tokens=np.zeros(N, dtype=np.int64),
        completion_tokens=np.zeros((K, N), dtype=np.int64),
    )


_WORLD = World(name="t", quality={f"m{k}": float(k) for k in range(K)}, quality_weight=1.0, prompt_noise=0.2)


def _setting(kind: str, seed: int, users: int = 20) -> Setting:
    return draw_setting(_pool(np.random.default_rng(0)), _WORLD, kind, users, seed, tasks=C)


@pytest.mark.parametrize("kind", KINDS)
def test_tastes_apply_where_the_kind_says(kind: str) -> None:
    """A user's part is 0 on all answers where no taste belongs, and differs between answers where one does."""
    setting = _setting(kind, 1)
    apart = np.ptp(setting.personal, axis=2)
    assert (apart[:, ~setting.belongs] == 0).all()
    assert (apart[:, setting.belongs] > 0).all()
    share = {"half": 0.5, "quarter": 0.25, "everywhere": 1.0, "nowhere": 0.0}
    if kind in share:
        assert setting.belongs.mean() == pytest.approx(share[kind], abs=0.05)


class _Told:
    """Knows the answers' worth in every respect."""

    def __init__(self, setting: Setting, sign: float = 1.0) -> None:
        self.setting, self.sign = setting, sign

    def learn(self, user: int, h: Floats, task: int, y: float) -> None:
        pass

    def scores(self, h: Floats, task: object, users: int) -> Floats:
        new = ~self.setting.known
        worth = self.setting.shared[new] + self.setting.personal[:, new]
        return self.sign * 0.5 * (1.0 + np.tanh(0.5 * worth))


class _Shared(_Told):
    """Knows what everybody likes, and nobody in particular."""

    def scores(self, h: Floats, task: object, users: int) -> Floats:
        worth = 0.5 * (1.0 + np.tanh(0.5 * self.setting.shared[~self.setting.known]))
        return np.repeat(worth[None], users, axis=0)


def test_knowing_all_misses_nothing_and_the_global_row_everything() -> None:
    """Beside a global row that knows the shared part: an oracle has over = under = 0, its negation loses everywhere."""
    rows = {"global": _Shared, "told": _Told, "against": lambda setting: _Told(setting, -1.0)}
    table = run_context(_setting, kinds=["half"], seeds=[0, 1], rows=rows, checkpoints=[1])
    found = {entry["row"]: entry for entry in table}
    assert found["global"]["gain"] == found["global"]["over"] == [0.0, 0.0, 0.0]
    assert found["global"]["under"] == [1.0, 1.0, 1.0]
    assert found["told"]["over"] == found["told"]["under"] == [0.0, 0.0, 0.0]
    assert found["told"]["gain"][1] > 0.02
    assert found["against"]["over"][1] > 0.1
    assert found["against"]["under"][1] > 1.0
    assert found["told"]["users"] == 40


def test_the_mixture_limits_over_personalisation() -> None:
    """At fifty labels a taste applied everywhere over-personalises; the mixture of heads does so less."""
    table = run_context(_setting, kinds=["half", "nowhere"], seeds=[0, 1], checkpoints=[50])
    found = {(entry["tastes"], entry["row"]): entry for entry in table}
    for kind in ("half", "nowhere"):
        everywhere, learnt = found[kind, "taste everywhere"], found[kind, "mixture of heads"]
        assert everywhere["over"][1] > 0.0
        assert learnt["over"][0] < 0.4 * everywhere["over"][0]
    assert found["half", "mixture of heads"]["under"][2] < 1.0
    assert found["half", "mixture of heads"]["gain"][0] > found["half", "taste everywhere"]["gain"][0]
    assert found["nowhere", "mixture of heads"]["under"] is None


@given(st.integers(0, 10_000))
@settings(max_examples=20)
def test_no_relevance_is_no_user(seed: int) -> None:
    """With a relevance of 0 all users are scored alike and their tastes stay at the prior."""
    rng = np.random.default_rng(seed)
    learner = TasteLearner(3, np.zeros((2, 5)))
    for _ in range(10):
        learner.learn(int(rng.integers(3)), rng.normal(size=5), int(rng.integers(2)), float(rng.random()))
    scores = learner.scores(rng.normal(size=(4, 3, 5)), rng.integers(2, size=4), 3)
    np.testing.assert_array_equal(scores[0], scores[2])
    assert all((user.mean == 0).all() for user in learner.users)


def test_an_unknown_kind_is_refused() -> None:
    """The message says what there is."""
    with pytest.raises(ValueError, match="'half', 'quarter'"):
        _setting("sometimes", 0)
