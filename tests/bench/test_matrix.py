"""The routing protocol: its measures are what their authors define, and its table holds on a matrix of known shape."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitrouter.context.encoders import get_encoder
from fitrouter.errors import ConfigError
from fitrouter.state.budgets import BudgetParams
from fitrouter_evaluators.bench._routing import (
    Point,
    aiq,
    apgr,
    area,
    cost_of,
    cpt,
    hull,
    mixture,
    satisfaction,
    windows,
)
from fitrouter_evaluators.bench.matrix import Settings, bench, run
from fitrouter_evaluators.datasets import Cell, MatrixRow, write_jsonl
from fitrouter_evaluators.simulation.matrix_stream import Setting, matrix_of, play

WEAK, STRONG = Point(1.0, 0.4), Point(3.0, 0.8)
POINTS = st.lists(st.builds(Point, st.floats(0.0, 10.0), st.floats(0.0, 1.0)), min_size=1, max_size=8)

# --- measures ---


@given(POINTS, st.floats(0.0, 12.0))
def test_the_best_mixture_is_what_two_points_reach_together(points: list[Point], ceiling: float) -> None:
    """No pair and no share of it does better at the ceiling; the hull rises and bends downwards."""
    best = mixture(points, ceiling)
    for a in points:
        for b in points:
            if a.cost <= ceiling <= b.cost and b.cost > a.cost:
                share = (ceiling - a.cost) / (b.cost - a.cost)
                assert (1.0 - share) * a.reward + share * b.reward <= best + 1e-9
        if a.cost <= ceiling:
            assert a.reward <= best + 1e-12
    edge = hull(points)
    assert all(a.cost < b.cost and a.reward < b.reward for a, b in itertools.pairwise(edge))


def test_area_is_the_mean_over_the_logarithm_of_the_ceiling() -> None:
    """A constant has itself; a line in log cost has the mean of its ends."""
    assert area([1e-4, 1e-3, 1e-2], [0.7, 0.7, 0.7]) == pytest.approx(0.7)
    assert area([1e-4, 1e-3, 1e-2], [0.2, 0.4, 0.6]) == pytest.approx(0.4)


def test_aiq_is_the_mean_of_the_rising_hull() -> None:
    """RouterBench: two models give a trapezoid; a dearer and worse point adds nothing; left of all it is level."""
    assert aiq([WEAK, STRONG], 1.0, 3.0) == pytest.approx(0.6)
    assert aiq([WEAK, STRONG, Point(3.5, 0.5)], 1.0, 3.0) == pytest.approx(0.6)
    assert aiq([WEAK, STRONG], 1.0, 5.0) == pytest.approx((0.6 * 2 + 0.8 * 2) / 4)


def test_a_random_mixture_recovers_half_of_the_gap_and_reaches_a_share_at_that_share() -> None:
    """RouteLLM: APGR ½, CPT(50) ½, CPT(80) .8 for the line from weak to strong; better above, worse below it."""
    assert apgr([], WEAK, STRONG) == pytest.approx(0.5)
    assert cpt([], WEAK, STRONG, 0.5) == pytest.approx(0.5)
    assert cpt([], WEAK, STRONG, 0.8) == pytest.approx(0.8)
    good = [Point(1.4, 0.7)]
    assert apgr(good, WEAK, STRONG) == pytest.approx(0.2 * 0.375 + 0.8 * 0.875)
    assert cpt(good, WEAK, STRONG, 0.75) == pytest.approx(0.2)
    assert cpt([Point(2.0, 0.4)], WEAK, STRONG, 0.5) == pytest.approx(0.75)


def test_cost_at_equal_quality_is_read_off_the_hull() -> None:
    """None where the quality is never reached."""
    assert cost_of([WEAK, STRONG], 0.6) == pytest.approx(2.0)
    assert cost_of([WEAK, STRONG], 0.2) == pytest.approx(1.0)
    assert cost_of([WEAK, STRONG], 0.81) is None


def test_windows_begin_after_the_first_requests_and_all_of_them_count() -> None:
    """A dear start does not count; one dear request is in as many windows as are long."""
    costs = np.ones(1000)
    costs[:200] = 100.0
    assert windows(costs).tolist() == [1.0] * 301
    costs[700] = 51.0
    assert (windows(costs) > 1.0).sum() == 300
    assert windows(np.ones(699)).size == 0


def test_satisfaction_counts_users_not_rows() -> None:
    """A user with many rows has one mean; the worst tenth is at least one user; rows of nobody are left out."""
    rewards, users = np.array([1.0, 1.0, 0.0, 0.5]), ["a", "a", "b", None]
    found = satisfaction(rewards, users)
    assert (found.mean, found.variance, found.worst_decile) == (0.5, 0.25, 0.0)
    with pytest.raises(ValueError, match="no row has a user"):
        satisfaction(rewards, [None] * 4)


# --- the protocol ---


def rows(n: int = 240, *, users: bool = False) -> list[MatrixRow]:
    """Code is good on one model, verse on another; a third is cheap and poor. Users, where there are any, differ."""
    rng = np.random.default_rng(0)
    found = []
    for i in range(n):
        code = i % 2 == 0
        text = f"def f{i}(x): return x + {i}" if code else f"Write a poem about the sea and the moon, verse {i}."
        likes = (i // 2) % 2 if users else 0
        good = 0.9 - 0.3 * likes
        reward = {"coder": good if code else 0.3, "poet": 0.3 if code else good, "cheap": 0.4 + 0.4 * likes}
        cost = {"coder": 0.01, "poet": 0.012, "cheap": 0.0005}
        cells = {
            name: Cell(reward=float(np.clip(reward[name] + rng.normal(0, 0.05), 0, 1)), cost_usd=cost[name])
            for name in reward
        }
        found.append(MatrixRow(prompt=text, models=cells, user=f"u{likes}" if users else None))
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """The protocol on the plain matrix."""
    return run(rows(), Settings(seeds=2, ceilings=(0.002, 0.012)))


def test_every_table_shows_what_can_be_had_without_a_router(found: dict[str, Any]) -> None:
    """Random, best single, default, every fixed model, user-blind, ours, oracle; the oracle bounds all of them."""
    table = {row["policy"]: row for row in found["table"]}
    assert list(table) == [
        "random",
        "best single",
        "default",
        "fixed: cheap",
        "fixed: coder",
        "fixed: poet",
        "user-blind",
        "ours",
        "oracle",
    ]
    assert table["default"]["model"] == "coder"
    assert all(row["reward"] <= table["oracle"]["reward"] for row in found["table"])
    assert table["oracle"]["regret"] == [0.0] * 4
    assert table["oracle"]["opt_selection"] == 1.0
    assert table["random"]["reward"] == pytest.approx(np.mean([model["reward"] for model in found["models"]]))


def test_contexts_are_used_and_regret_falls(found: dict[str, Any]) -> None:
    """Where the prompt says which model is good, the router beats every fixed one, and learns while it goes."""
    table = {row["policy"]: row for row in found["table"]}
    assert table["ours"]["reward"] > table["best single"]["reward"] + 0.05
    assert table["ours"]["regret"][3] < 0.6 * table["ours"]["regret"][0]


def test_a_ceiling_is_kept_and_a_dearer_one_buys_more(found: dict[str, Any]) -> None:
    """Mean cost under each ceiling, but for what the bucket holds at the start; with costs there are measures."""
    low, high = found["curve"]
    assert low["cost_usd"] <= 1.05 * low["ceiling_usd"]
    assert high["cost_usd"] <= 1.05 * high["ceiling_usd"]
    assert high["reward"] > low["reward"]
    for name in ("area", "area_best_mixture", "aiq", "aiq_best_mixture", "apgr", "cpt50", "cpt80"):
        assert math.isfinite(found["measures"][name])


def test_with_users_the_table_says_how_each_is_served() -> None:
    """The best single model of each user bounds the best single one; spreads are there for every policy."""
    found = run(rows(160, users=True), Settings(seeds=1, ceilings=()))
    table = {row["policy"]: row for row in found["table"]}
    assert table["best single per user"]["reward"] >= table["best single"]["reward"]
    assert all({"satisfaction_variance", "worst_decile"} <= set(row) for row in found["table"])
    assert found["curve"] == []
    assert found["measures"] == {}


def test_the_same_seed_gives_the_same_stream_and_the_router_asks_nothing_of_the_future() -> None:
    """Bit for bit; and what comes later in the stream changes nothing before it."""
    matrix = matrix_of(rows(60), get_encoder("hashing"))
    order = np.arange(60)
    budget = BudgetParams(usd_per_request=0.004)
    one, two = (play(matrix, order, Setting(seed=3), budget) for _ in range(2))
    assert one.chosen.tolist() == two.chosen.tolist()
    assert one.cost.tolist() == two.cost.tolist()
    changed = matrix._replace(reward=np.where(np.arange(60)[:, None] >= 40, 0.0, matrix.reward))
    assert play(changed, order, Setting(seed=3), budget).chosen[:40].tolist() == one.chosen[:40].tolist()


def test_a_shock_multiplies_costs_from_its_time_on() -> None:
    """Costs are those of the matrix before it and ten times those after it."""
    matrix = matrix_of(rows(40), get_encoder("hashing"))
    shock = np.ones((40, 3))
    shock[20:] = 10.0
    played = play(matrix, np.arange(40), Setting(), None, shock)
    paid = matrix.cost[np.arange(40), played.chosen]
    assert played.cost.tolist() == (paid * np.repeat([1.0, 10.0], 20)).tolist()


def test_an_announced_shock_is_in_the_next_expected_cost() -> None:
    """A new price list counts at once: under a ceiling that the dear models then break, they are left out at once."""
    matrix = matrix_of(rows(120), get_encoder("hashing"))
    shock = np.ones((120, 3))
    shock[60:] = 100.0
    budget = BudgetParams(usd_per_request=0.05)
    told = play(matrix, np.arange(120), Setting(), budget, shock)
    assert (told.chosen[:60] != 0).sum() > 30
    assert (told.chosen[60:] != 0).sum() <= 3


def test_a_model_without_an_answer_is_not_chosen_for_that_prompt() -> None:
    """Cells may be missing: such a model is not eligible there."""
    some = [
        MatrixRow(prompt=row.prompt, models={k: v for k, v in row.models.items() if k != "poet" or i % 3})
        for i, row in enumerate(rows(60))
    ]
    matrix = matrix_of(some, get_encoder("hashing"))
    played = play(matrix, np.arange(60), Setting())
    assert np.isfinite(played.reward).all()
    assert run(some, Settings(seeds=1, encoder="hashing", ceilings=()))["prompts"] == 60


def test_prices_make_tokens_and_tokens_make_costs() -> None:
    """With a price list, expected costs come from prompt tokens and learnt answer tokens, as in the gateway."""
    matrix = matrix_of(
        rows(20), get_encoder("hashing"), {"coder": (1.0, 20.0), "poet": (1.0, 20.0), "cheap": (0.1, 1.0)}
    )
    assert [card.prices.output for card in matrix.cards] == [1.0, 20.0, 20.0]
    listed = matrix_of(rows(20), get_encoder("hashing"))
    assert listed.cards[1].prices.output * 400 / 1e6 == pytest.approx(0.01)


def test_a_file_is_read_and_its_bad_lines_are_named(tmp_path: Path) -> None:
    """The set is named after the file; unreadable lines take no part and are reported."""
    path = tmp_path / "mine.jsonl"
    write_jsonl(path, rows(24))
    path.write_bytes(path.read_bytes() + b'{"prompt": "no models"}\n')
    found = bench(path, "hashing", seeds=1, ceilings=())
    assert found["set"] == "mine"
    assert found["prompts"] == 24
    assert [problem["line"] for problem in found["problems"]] == [25]


def test_what_cannot_be_routed_is_refused(tmp_path: Path) -> None:
    """A missing file, a single model, an unknown default: the message says what is allowed."""
    with pytest.raises(ConfigError, match="there is no file"):
        bench(tmp_path / "none.jsonl")
    single = [MatrixRow(prompt="x", models={"a": Cell(reward=1.0)})]
    with pytest.raises(ValueError, match="two or more models"):
        bench(single, "hashing")
    with pytest.raises(ValueError, match="'gpt' is not in the matrix"):
        bench(rows(8), "hashing", default="gpt")
