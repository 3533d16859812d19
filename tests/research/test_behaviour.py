"""Laws of the behaviour benchmark: nothing looks ahead, and people who differ are found to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.research._behaviour_features import Events, copies
from benchmarks.research.behaviour import development, follow, measure_events
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fitrouter.context.encoders import Hashing
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.types import Floats

DATA = Path(__file__).parents[3] / "shared/data"
HEADER = "request,response,copy_events,logprobs,programmer_id,timestamp,model,task_name\n"


@given(
    y=hnp.arrays(np.float64, 8, elements=st.floats(0, 1)),
    other=hnp.arrays(np.float64, 8, elements=st.floats(0, 1)),
    at=st.integers(0, 7),
)
def test_what_is_foreseen_does_not_depend_on_what_comes_later(y: Floats, other: Floats, at: int) -> None:
    """Other labels from event `at` on leave the predictions up to and with it as they are, to the bit."""
    H = np.random.default_rng(1).standard_normal((8, 3))
    start = Gaussian(np.zeros(3), np.eye(3))
    changed = np.concatenate([y[:at], other[at:]])
    assert (follow(start, H, y, 0.7)[: at + 1] == follow(start, H, changed, 0.7)[: at + 1]).all()
    assert (start.mean == 0.0).all()


def test_without_weight_nothing_is_learnt_and_with_it_a_habit_is() -> None:
    """At ρ = 0 the same h is foreseen alike for ever; at ρ = 1 someone who always copies is foreseen to."""
    H, y = np.ones((20, 1)), np.ones(20)
    start = Gaussian(np.zeros(1), np.eye(1))
    assert (follow(start, H, y, 0.0) == 0.5).all()
    learnt = follow(start, H, y, 1.0)
    assert (np.diff(learnt) > 0.0).all()
    assert learnt[-1] > 0.8


def _simulated(spread: float) -> Events:
    """Thirty people who keep texts by one common feature, and by a habit of their own of this spread."""
    rng = np.random.default_rng(2)
    user = np.repeat(np.arange(30), 12).astype(np.int64)
    X = rng.standard_normal((360, 2))
    a = X[:, 0] + spread * rng.standard_normal(30)[user]
    y = (rng.random(360) < 1.0 / (1.0 + np.exp(-a))).astype(np.float64)
    return Events("simulated", "edit", user, y, X, (), np.zeros((360, 0)), (), np.zeros((360, 0)), np.zeros((360, 0)))


def test_people_who_differ_are_served_better_and_people_who_do_not_no_worse() -> None:
    """Planted habits: the hierarchical row beats global surely. No habits: it costs less than .02 nats."""
    apart = measure_events(_simulated(2.0), 1)
    paired = next(p for p in apart.paired if (p.row, p.k, p.metric) == ("hierarchical", 5, "nll"))
    assert paired.high < 0.0
    alike = measure_events(_simulated(0.0), 1)
    paired = next(p for p in alike.paired if (p.row, p.k, p.metric) == ("hierarchical", 0, "nll"))
    assert paired.mean < 0.02
    rows = {result.row for result in apart.results}
    assert rows == {"global", "population", "bias-only", "user-only", "hierarchical"}


def _row(person: int, at: float, copied: bool, response: str, task: str = "t") -> str:
    request = "\"[{'content': 'write a function', 'role': 'user'}]\""
    events = "\"[{'copied': 'x'}]\"" if copied else "[]"
    return f'{request},"{response}",{events},{{}},{person},{at},m{person % 2},{task}\n'


def test_features_of_an_event_do_not_know_what_became_of_it(tmp_path: Path) -> None:
    """Two files that differ in the last event's outcome have the same features everywhere."""
    seen = []
    for copied in (True, False):
        folder = tmp_path / str(copied)
        folder.mkdir()
        rows = [_row(1, 0.0, True, "one"), _row(1, 9.0, False, "two"), _row(2, 0.0, True, "three")]
        (folder / "chat_data.csv").write_text(HEADER + "".join(rows) + _row(2, 30.0, copied, "```a = 1```"))
        seen.append(copies(folder, Hashing()))
    one, two = seen
    assert one.y[-1] != two.y[-1]
    assert (one.X == two.X).all()
    assert (one.own == two.own).all()
    assert one.own[1, 2] == 0.5  # the answer before was copied
    assert one.own[2, 2] == 0.0  # someone else's first


def test_sets_that_are_not_there_are_left_out(tmp_path: Path) -> None:
    """An empty folder gives an empty table."""
    assert development(tmp_path, 1, "hashing") == []


@pytest.mark.reproduction
@pytest.mark.skipif(not (DATA / "realhumaneval").is_dir(), reason="the public sets are not in ../shared/data")
def test_copies_are_foreseen_better_than_the_target(tmp_path: Path) -> None:
    """RealHumanEval, programmers unseen, in order: AUC at least .77, above global."""
    (tmp_path / "realhumaneval").symlink_to(DATA / "realhumaneval")
    auc = {r.row: r.mean for r in development(tmp_path, 1, "static") if r.metric == "auc" and r.k == 0}
    assert auc["hierarchical"] > 0.77
    assert auc["hierarchical"] > auc["global"] > auc["floor features"] > auc["user-only"]
