"""Satisfaction and savings from the warehouse: right in known worlds, and nothing where nothing is known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fitrouter.stores.journal import Row
from fitrouter.stores.warehouse import Warehouse
from fitrouter.types import Decision, Execution, Feedback, FeedbackKind, Identity, Mode, PolicyVersion
from fitrouter_dashboards.quality import LEAST, Estimate, Quality, measure, satisfaction_estimates, savings


def test_satisfaction_is_of_people_not_of_ratings() -> None:
    """Happy people who rate five times as often count once each: in the mean, the worst tenth and the worst role."""
    rng, rated = np.random.default_rng(0), []
    for person in range(60):
        happy = person % 2 == 0
        for _ in range(60 if happy else 12):
            role = "cook" if happy else "clerk"
            rated.append((f"u{person}", role, float(rng.random() < (0.9 if happy else 0.3))))
    found = satisfaction_estimates(rated)
    assert sorted(found) == ["cvar10", "mean", "variance", "worst_role"]
    assert found["mean"].low < 0.6 < found["mean"].high
    assert abs(found["variance"].estimate - 0.09) < 0.03
    assert found["worst_role"].low < 0.3 < found["worst_role"].high
    assert found["cvar10"].low <= found["cvar10"].estimate < 0.4


def test_little_says_nothing() -> None:
    """Fewer than ten people, or no ratings, make no figures."""
    assert satisfaction_estimates([]) == {}
    assert satisfaction_estimates([(f"u{i % 9}", None, 1.0) for i in range(500)]) == {}
    assert savings([]) == ("", None)
    assert savings([("a", 0.5, ["a", "b"], [1.0, 2.0], 1.0, 1.0)] * (LEAST - 1)) == ("", None)


def test_savings_are_against_the_best_single_model() -> None:
    """The dear model is better, half of the requests go to the cheap one: half of the difference is saved."""
    rng, drawn = np.random.default_rng(1), []
    for _ in range(4000):
        chosen = "dear" if rng.random() < 0.5 else "cheap"
        y = float(rng.random() < (0.8 if chosen == "dear" else 0.6)) if rng.random() < 0.3 else None
        paid = (0.03 if chosen == "dear" else 0.01) * rng.uniform(0.5, 1.5)
        drawn.append((chosen, 0.5, ["cheap", "dear"], [0.02, 0.02], paid, y))  # expectations that know nothing
    best, saved = savings(drawn)
    assert best == "dear"
    assert saved is not None
    assert saved.low < 0.01 < saved.high
    assert saved.high - saved.low < 0.002


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.floats(1e-3, 1.0),
            st.just(["a", "b"]),
            st.lists(st.floats(0, 1), min_size=2, max_size=2),
            st.floats(0, 1),
            st.none() | st.floats(0, 1),
        ),
        max_size=80,
    )
)
def test_the_estimate_lies_in_its_interval(drawn: list[tuple[object, ...]]) -> None:
    """Whatever was drawn and paid."""
    _, saved = savings(drawn)
    assert saved is None or saved.low <= saved.estimate <= saved.high


def test_the_warehouse_is_read(tmp_path: Path) -> None:
    """Ratings count once a decision, calls that failed over or were not drawn do not count as draws."""
    warehouse = Warehouse(tmp_path / "warehouse.duckdb")
    events: list[Decision | Execution | Feedback] = []
    for i in range(120):
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
                    value=1.0 - i % 2,
                    **common,
                )
                for k in range(2)
            ),
        ]
    warehouse.ingest([Row(i + 1, event) for i, event in enumerate(events)])
    found = measure(warehouse)
    assert isinstance(found, Quality)
    assert found.best_single == "a"
    assert found.saved_usd is not None
    assert math.isclose(found.saved_usd.estimate, 0.004, rel_tol=1e-9)  # 40 of 100 draws went to the cheap one
    assert isinstance(found.satisfaction["mean"], Estimate)
    assert math.isclose(found.satisfaction["mean"].estimate, 0.5)
