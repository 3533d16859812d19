"""A small form of `benchmarks.simulation.million`: replicas in virtual time over the product's own fold and decider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from benchmarks.simulation.million.costs import sessions_kept
from benchmarks.simulation.million.crowd import Traffic, draw_traffic
from benchmarks.simulation.million.curves import fleets, limits, million, power_law
from benchmarks.simulation.million.replicas import Cut, Fleet, simulate
from hypothesis import given, settings
from hypothesis import strategies as st

from fitrouter.state.sessions import LIMIT
from fitrouter.types import Decision, Identity, Mode, PolicyVersion
from fitrouter_evaluators.simulation.pool import Pool
from fitrouter_evaluators.simulation.worlds import World, load_world

WORLD: World = load_world(Path(__file__).parents[2] / "benchmarks/simulation/worlds/lab-s1.yaml")
MODELS = ("NullModel", "Qwen2-72B-Instruct", "gpt-4o-2024-05-13")
REQUESTS = 160
DELAYED = Fleet(replicas=3, staleness_s=0.002, answer_s=0.001, label_s=0.003, share=0.5)


@pytest.fixture(scope="module")
def pool() -> Pool:
    """Numbers of three models' answers to forty prompts."""
    rng = np.random.default_rng(0)
    K, N, D = len(MODELS), 40, 6
    h = np.concatenate([np.ones((K, N, 1)), rng.normal(size=(K, N, D - 1))], axis=2)
    return Pool(
        models=MODELS,
        prompts=tuple(f"prompt {n}" for n in range(N)),
        x=np.concatenate([np.ones((N, 1)), 0.3 * rng.normal(size=(N, 7))], axis=1),
        h=h,
        attributes=h[:, :, 1:],
        topics=np.concatenate([np.ones((N, 1)), 0.3 * rng.normal(size=(N, 4))], axis=1),
        schema="numbers",
        prompt_tokens=np.full(N, 20),
        completion_tokens=np.full((K, N), 100),
        names=tuple(f"feature {i}" for i in range(D)),
    )


@pytest.fixture(scope="module")
def traffic(pool: Pool) -> Traffic:
    """Requests of a million users."""
    return draw_traffic(WORLD, pool, 1, users=1_000_000, requests=REQUESTS)


def test_replicas_that_share_a_learner_decide_as_with_their_own(pool: Pool, traffic: Traffic) -> None:
    """Bit for bit, with delays and a partition; in the end all states have one digest."""
    fleet = msgspec.structs.replace(DELAYED, cut=Cut((1,), 40, 100))
    shared, apart = (simulate(pool, traffic, fleet, apart=apart, digest=True) for apart in (False, True))
    assert np.array_equal(shared.probs, apart.probs)
    assert np.array_equal(shared.missing, apart.missing)
    assert len(apart.digests) == 3
    assert set(apart.digests) == set(shared.digests)


def test_the_number_of_replicas_in_contact_changes_no_decision(pool: Pool, traffic: Traffic) -> None:
    """One replica and a hundred read the same log, equally late."""
    one, hundred = (
        simulate(pool, traffic, msgspec.structs.replace(DELAYED, replicas=n), digest=True) for n in (1, 100)
    )
    assert np.array_equal(one.probs, hundred.probs)
    assert one.digests == hundred.digests


def test_a_replica_knows_nothing_younger_than_its_staleness(pool: Pool, traffic: Traffic) -> None:
    """Decisions until then are those of a replica that never folds; later ones are not."""
    late = simulate(pool, traffic, Fleet(staleness_s=0.006, share=1.0))
    deaf = simulate(pool, traffic, Fleet(staleness_s=1e9, share=1.0))
    first = int(np.searchsorted(np.cumsum(traffic.gap) / 10_000.0, 0.006 + traffic.gap[0] / 10_000.0))
    assert 20 < first < REQUESTS - 20
    assert np.array_equal(late.probs[:first], deaf.probs[:first])
    assert not np.array_equal(late.probs[first + 1 :], deaf.probs[first + 1 :])


def test_a_replica_that_is_cut_off_decides_on_what_it_knew(pool: Pool, traffic: Traffic) -> None:
    """What it does not know grows, the others do not know its events, and all are in the log in the end."""
    fleet = Fleet(replicas=2, share=0.5)
    whole = simulate(pool, traffic, fleet, digest=True)
    split = simulate(pool, traffic, msgspec.structs.replace(fleet, cut=Cut((0,), 40, 120)), digest=True)
    its = (traffic.user % 2 == 0) & (np.arange(REQUESTS) >= 40) & (np.arange(REQUESTS) < 120)
    assert (np.diff(split.missing[its]) >= 0).all()
    assert split.missing[its][-1] > 60
    assert (split.missing[~its] == 0).all()
    assert np.array_equal(split.probs[:40], whole.probs[:40])
    assert not np.array_equal(split.probs[~its], whole.probs[~its])
    assert split.digests != whole.digests


def test_a_slow_fold_falls_behind_without_end(pool: Pool, traffic: Traffic) -> None:
    """A replica folds at most as many events as its rate allows, and goes on deciding."""
    rate = 8_000.0
    outcome = simulate(pool, traffic, Fleet(fold_rate=rate, share=0.5))
    times = np.cumsum(traffic.gap) / 10_000.0
    assert 0.9 * rate * times[-1] < outcome.folded <= rate * times[-1] + 1
    assert outcome.missing[-1] > outcome.missing[REQUESTS // 2] > 0
    np.testing.assert_allclose(outcome.probs.sum(axis=1), 1.0, atol=1e-12)


def test_most_of_a_million_users_are_seen_once(pool: Pool) -> None:
    """A longer window begins with the requests of a shorter one, and a user keeps role and taste."""
    short, long = (draw_traffic(WORLD, pool, 3, users=1_000_000, requests=n) for n in (500, 2000))
    for field in ("user", "role", "prompt", "reward", "gap", "label", "wait"):
        assert np.array_equal(getattr(short, field), getattr(long, field)[:500])
    users, counts = np.unique(long.user, return_counts=True)
    assert (counts == 1).mean() > 0.9
    assert counts.max() > 3
    assert users.max() > 500_000
    lost = draw_traffic(WORLD, pool, 3, users=1_000_000, requests=2000, loss=2.0)
    assert np.array_equal(lost.reward[:1000], long.reward[:1000])
    assert ((lost.reward[1000:] < long.reward[1000:]).sum(axis=0) > 0).sum() == 1


@given(st.floats(-1.0, 2.0), st.floats(0.1, 10.0))
@settings(max_examples=10)
def test_a_power_law_is_found(b: float, a: float) -> None:
    """With its exponent inside the interval, also where some excess is negative."""
    x = (10.0, 30.0, 100.0, 1000.0)
    noise = np.random.default_rng(0).normal(0, 0.05, (6, 4)) * np.array(x) ** b * a
    law = power_law(x, a * np.array(x) ** b + noise)
    assert law.b == pytest.approx(b, abs=0.1)
    assert law.b_low - 0.06 <= b <= law.b_high + 0.06
    assert power_law(x, -np.ones((6, 4))).a == 0.0


def _costs(**changed: Any) -> dict[str, Any]:
    """Costs as they are measured, in round numbers."""
    fold = {"Decision": 100.0, "Execution": 100.0, "Score": 100.0, "Vote learnt": 1000.0}
    return {
        "whole_request": {"cpu_us": 5000.0},
        "decide": {"cpu_us": 1000.0},
        "fold": {"fold_us": fold},
        "read_sqlite": {"cpu_us": 100.0},
        "append_sqlite": {"cpu_us": 50.0, "a_second": 9000},
        "append_postgres": {"cpu_us": 50.0, "server_cpu_us": 40.0, "a_second": 2000},
        "read_postgres": {"cpu_us": 100.0, "server_cpu_us": 10.0},
        "scorer": {"cpu_us": 500.0},
        "warehouse": {"us_per_event": 100, "bytes_per_decision": 2000},
        "journal": {"bytes_per_decision": 7000, "events": {"decision": 10, "feedback": 3}},
        "identities": {"a_second": 5000, "bytes": 200},
        "snapshot": {"always_ms": 2.0, "person_us": 20.0, "person_bytes": 900},
        "sessions_kept": 4096,
        **changed,
    }


def test_limits_are_in_order_and_follow_the_costs() -> None:
    """What is used up first comes first; a fold of half the cost bears twice the rate."""
    rows = limits(_costs())
    assert [row["requests_a_second"] for row in rows] == sorted(row["requests_a_second"] for row in rows)
    by = {row["resource"]: row["requests_a_second"] for row in rows}
    assert by["a replica's core that only folds"] == round(1e6 / 600.0)
    assert by["a replica's core that reads and folds"] == round(1e6 / 930.0)
    assert by["appends to PostgreSQL"] == round(2000 / 3.3)
    without = {name: cost for name, cost in _costs().items() if "postgres" not in name}
    assert "appends to PostgreSQL" not in {row["resource"] for row in limits(without)}


def test_a_fleet_that_folds_everything_has_an_end() -> None:
    """Beyond one over the cost of a fold no number of replicas is enough; folding once needs a finite number."""
    found = {row["rate"]: row for row in fleets(_costs(), rates=(100, 1000, 2000))}
    assert found[100]["replicas"] >= found[100]["once"]
    assert found[1000]["replicas"] > found[1000]["once"]
    assert found[2000]["replicas"] is None
    cpu = million(_costs())["CPU seconds in all, by replicas"]
    assert cpu["100"] - cpu["1"] == pytest.approx(99 * (930 + 33), rel=1e-6)


def test_a_session_is_forgotten_after_as_many_others_as_are_kept() -> None:
    """The bound of the state, found from outside."""
    decision = Decision(
        id="d",
        ts=1.0,
        draw_id="d",
        identity=Identity(user="u", session="first"),
        mode=Mode.ONLINE,
        eligible=("m",),
        probs=(1.0,),
        chosen="m",
        propensity=1.0,
        features=b"",
        policy=PolicyVersion(algorithm="squarecb"),
    )
    assert sessions_kept(decision) == LIMIT
