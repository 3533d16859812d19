"""Savings from the warehouse in known worlds; satisfaction as the command tells it."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitrouter.stores.journal import Row
from fitrouter.stores.warehouse import Warehouse
from fitrouter.types import Decision, Execution, Feedback, FeedbackKind, Identity, Mode, PolicyVersion
from fitrouter_dashboards.console import Reads
from fitrouter_dashboards.console.overview import single
from fitrouter_dashboards.quality import LEAST, Estimate, Quality, against, gain, measure, saved_in, savings
from fitrouter_evaluators.personal.satisfaction import measure_satisfaction


def test_little_says_nothing() -> None:
    """Few decisions, or a best model without a price, make no savings."""
    assert savings([], "a") is None
    one = ("a", 0.5, ["a", "b"], [1.0, 2.0], list[str](), 1.0)
    assert savings([one] * (LEAST - 1), "b") is None
    assert savings([one] * LEAST, "b") is not None
    assert savings([(*one[:4], ["b"], 1.0)] * LEAST, "b") is None


def test_savings_are_against_the_best_single_model() -> None:
    """The dear model is better, half of the requests go to the cheap one: half of the difference is saved."""
    rng, drawn = np.random.default_rng(1), []
    for _ in range(4000):
        chosen = "dear" if rng.random() < 0.5 else "cheap"
        paid = (0.03 if chosen == "dear" else 0.01) * rng.uniform(0.5, 1.5)
        drawn.append(
            (chosen, 0.5, ["cheap", "dear"], [0.02, 0.02], list[str](), paid)
        )  # expectations that know nothing
    saved = savings([*drawn, (*drawn[0][:5], None)], "dear")
    assert saved is not None
    assert saved.usd.low < 0.01 < saved.usd.high
    assert saved.usd.high - saved.usd.low < 0.002
    assert saved.share.low < 1 / 3 < saved.share.high
    assert saved.share.high - saved.share.low < 0.06
    low, high = (f"{100 * each:.0f}" for each in (saved.share.low, saved.share.high))
    assert str(saved) == (
        f"−{100 * saved.share.estimate:.0f}% [{low}, {high}] against dear, without 1 answer of unknown cost"
    )


def test_shares_saved_have_intervals_that_cover() -> None:
    """Of 200 logs of 200 draws, about 95 in 100 hold the truth: a third of what the dear model would have cost."""
    rng, covered = np.random.default_rng(2), 0
    for _ in range(200):
        dear = rng.random(200) < 0.5
        paid = np.where(dear, 0.03, 0.01) * rng.uniform(0.5, 1.5, 200)
        saved = savings(
            [
                ("dear" if d else "cheap", 0.5, ["cheap", "dear"], [0.01, 0.03], [], p)
                for d, p in zip(dear, paid, strict=True)
            ],
            "dear",
        )
        assert saved is not None
        covered += saved.share.low <= 1 / 3 <= saved.share.high
    assert 180 <= covered <= 199


def test_dearer_than_a_model_is_no_saving() -> None:
    """What cost more says so; where nothing would have been paid there is no share."""
    dearer = savings([("b", 0.5, ["a", "b"], [1.0, 2.0], [], 2.0)] * LEAST, "a")
    assert str(dearer) == "+100% against a"
    assert str(savings([("b", 0.5, ["a", "b"], [0.0, 2.0], [], 2.0)] * LEAST, "a")) == "not known against a"


def test_gains_are_the_weighted_means_of_the_log() -> None:
    """The mean had one model answered, and the difference, with the intervals of people; what is missing is told."""
    rng, rated = np.random.default_rng(3), list[tuple[int, bool, float, float]]()
    for i in range(600):
        own = rng.random() < 0.4
        rated.append((i % 30, bool(own), 0.4, float(rng.random() < (0.5 if own else 0.8))))
    found = gain(rated)
    weights = [own / p for _, own, p, _ in rated]
    alone = sum(w * y for w, (*_, y) in zip(weights, rated, strict=True)) / sum(weights)
    mean = sum(y for *_, y in rated) / len(rated)
    assert found.alone is not None
    assert found.gain is not None
    assert (found.alone.estimate, found.gain.estimate) == (pytest.approx(alone), pytest.approx(mean - alone))
    sums = dict.fromkeys(range(30), 0.0)
    for w, (who, _, _, y) in zip(weights, rated, strict=True):
        sums[who] += (y - mean) / len(rated) - w * (y - alone) / sum(weights)
    half = 1.959964 * math.sqrt(sum(each * each for each in sums.values()) * 30 / 29)
    assert found.gain.high - found.gain.estimate == pytest.approx(half)
    assert found.gain.low > 0.0
    assert found.more is None, "the sign is clear"
    few = gain(rated[:60])
    assert few.gain is None
    assert few.own < LEAST
    assert few.more == pytest.approx((LEAST - few.own) * 60 / few.own, abs=5)
    unclear = gain(rated[:90])
    assert unclear.gain is not None
    assert (unclear.more is None) == (unclear.gain.low > 0.0 or unclear.gain.high < 0.0)
    assert (gain([]).own, gain([]).more) == (0, None)


def test_gains_cover() -> None:
    """Of 200 logs, about 95 in 100 intervals hold the true difference; and people whose answers agree widen them."""
    rng, covered = np.random.default_rng(4), 0
    for _ in range(200):
        taste = rng.normal(0.0, 0.15, 40)
        own = rng.random((40, 8)) < 0.5
        y = np.clip(np.where(own, 0.5, 0.6) + taste[:, None] + rng.normal(0, 0.05, (40, 8)), 0.0, 1.0)
        found = gain([(u, bool(own[u, i]), 0.5, float(y[u, i])) for u in range(40) for i in range(8)]).gain
        assert found is not None
        covered += found.low <= 0.05 <= found.high
    assert 180 <= covered <= 199


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.floats(1e-3, 1.0),
            st.just(["a", "b"]),
            st.lists(st.floats(0, 1), min_size=2, max_size=2),
            st.just([]),
            st.floats(0, 1),
        ),
        max_size=80,
    )
)
def test_the_estimate_lies_in_its_interval(drawn: list[tuple[object, ...]]) -> None:
    """Whatever was drawn and paid."""
    saved = savings(drawn, "a")
    for found in () if saved is None else (saved.usd, saved.share):
        assert math.isnan(found.low) or found.low <= found.estimate <= found.high


def logged(path: Path, n: int, turned: int | None = None) -> Warehouse:
    """A warehouse of n answers, rated twice each; every second one is the cheap model's, better from `turned` on."""
    warehouse = Warehouse(path)
    events: list[Decision | Execution | Feedback] = []
    for i in range(n):
        identity = Identity(user=f"u{i % 12}", role="cook")
        common = {"ts": float(i), "identity": identity}
        events += [
            Decision(
                id=f"d{i}",
                draw_id=f"d{i}",
                mode=Mode.PINNED if i % 6 == 5 else Mode.ONLINE,
                eligible=("a", "b"),
                probs=(0.5, 0.5),
                chosen="ab"[i % 2],
                propensity=0.5,
                cost=(0.02, 0.01),
                policy=PolicyVersion(algorithm="squarecb"),
                **common,
            ),
            Execution(
                id=f"e{i}",
                decision_id=f"d{i}",
                chosen="ab"[i % 2],
                served_by="ab"[i % 2],
                status="ok",
                cost_usd=(0.02, 0.01)[i % 2],
                **common,
            ),
            *(
                Feedback(
                    id=f"f{i}.{k}",
                    decision_id=f"d{i}",
                    kind=FeedbackKind.THUMB,
                    value=float((turned is not None and i >= turned) == i % 2),
                    **common,
                )
                for k in range(2)
            ),
        ]
    warehouse.ingest([Row(i + 1, event) for i, event in enumerate(events)])
    return warehouse


def test_the_warehouse_is_read(tmp_path: Path) -> None:
    """Ratings count once a decision, calls that failed over or were not drawn do not count as draws."""
    warehouse = logged(tmp_path / "warehouse.duckdb", 120)
    found = measure(warehouse, "b")
    assert isinstance(found, Quality)
    assert found.best_single == "a"
    best, default = found.saved["best"], found.saved["default"]
    assert (best.model, default.model) == ("a", "b")
    assert math.isclose(best.usd.estimate, 0.004, rel_tol=1e-9)  # 40 of 100 draws went to the cheap one
    assert math.isclose(default.usd.estimate, -0.006, rel_tol=1e-9)
    assert saved_in(warehouse, "b", "default") == [str(default), str(best)]
    assert saved_in(warehouse, "a", "default") == [str(best)], "the default is the best single model: one sentence"
    assert saved_in(None, "b", "default") == ["what was saved is not known: there is no warehouse, which needs DuckDB"]
    (unknown,) = saved_in(Warehouse(tmp_path / "none.duckdb"), "b", "default")
    assert unknown.startswith("what was saved is not known yet: ")
    told = measure_satisfaction(warehouse.path, None, tenant="default", now=200.0)
    assert isinstance(found.satisfaction["mean"], Estimate)
    for name, each in found.satisfaction.items():
        other = getattr(told, name)
        assert (each.estimate, each.low, each.high) == (other.estimate, other.low, other.high)
    assert sorted(found.satisfaction) == ["mean", "variance", "worst_role"]  # half give 0 always: no interval of CVaR10
    assert math.isclose(found.satisfaction["mean"].estimate, 0.5)


def test_the_best_single_model_is_one(tmp_path: Path) -> None:
    """Of the whole log: also in the comparison of a time in which another one was better, and for every reader."""
    warehouse = logged(tmp_path / "warehouse.duckdb", 400, 300)
    told = measure_satisfaction(warehouse.path, None, tenant="default", now=500.0).best_single
    reads = Reads(warehouse)
    best = single(reads, "default")
    assert (told, best, single(reads, None), measure(warehouse, "b").best_single) == ("a", "a", "a", "a")
    lately = against(reads.rows, "b", best, "default", 300.0)
    assert (lately["default"].model, lately["best"].model) == ("b", "a")
    assert lately["best"].rating.gain is not None
    assert lately["best"].rating.gain.estimate > 0.0
    assert saved_in(warehouse, "b", "default")[1].endswith("against a")
    reads.close()


def test_a_long_log_takes_no_memory(tmp_path: Path) -> None:
    """What is estimated every half minute is summed where the log is: its rows never become objects."""
    peaks = []
    for n in (1000, 5000):
        warehouse = logged(tmp_path / f"{n}.duckdb", n)
        measure(warehouse, "b")
        tracemalloc.start()
        try:
            measure(warehouse, "b")
            saved_in(warehouse, "b", "default")
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] - peaks[0] < 200 * 4000  # bytes; three numbers of each rating, but no tuple
