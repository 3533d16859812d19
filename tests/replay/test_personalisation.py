"""Value of personalisation: paired difference to the user-blind policy, overall, per role and per group."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitrouter.types import Mode
from fitrouter_evaluators.replay.log.log import MODES, Decisions, Log, Names, Options, Outcomes
from fitrouter_evaluators.replay.report import Band
from fitrouter_evaluators.replay.study.personalisation import (
    LEAST,
    declared_groups,
    personalisation_bands,
    report_slices,
    with_blind_pmf,
)
from fitrouter_evaluators.replay.study.units import closed_units

K, FLOOR, USERS = 3, 0.3, 30
ROLES = ("nurse", "clerk")


class Town(NamedTuple):
    """A log of decisions without sessions, all labelled."""

    log: Log
    gain: np.ndarray
    """float64[n]: what the personal pmf was truly worth more than the blind one."""


def town(seed: int, n: int, *, boost: float = 0.3, declares: bool = True) -> Town:
    """Nurses love the model that the personal pmf prefers for them; for clerks it is as good as any."""
    rng = np.random.default_rng([21, seed])
    user = rng.integers(-1, USERS, size=n)
    role = np.where(user < 0, -1, user % 2)
    worth = np.full((n, K), 0.4)
    blind = np.full((n, K), 1.0 / K)
    personal = np.full((n, K), FLOOR / K)
    favourite = rng.integers(K, size=n)
    personal[np.arange(n), favourite] += 1.0 - FLOOR
    worth[np.arange(n), favourite] += boost * (role == 0)
    personal[role < 0] = blind[role < 0]
    arm = (personal.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    label = (rng.random(n) < worth[np.arange(n), arm]).astype(np.float64)
    none = np.full(n, np.nan)
    decisions = Decisions(
        id=np.array([f"d{i}" for i in range(n)], dtype=object),
        seq=np.arange(n) + 1,
        ts=60.0 * np.arange(n, dtype=np.float64),
        draw=np.arange(n),
        mode=np.full(n, MODES.index(Mode.ONLINE)),
        start=np.arange(n + 1) * K,
        chosen=np.arange(n) * K + arm,
        propensity=personal[np.arange(n), arm],
        tenant=np.zeros(n, dtype=np.int64),
        user=user,
        role=role,
        task=np.full(n, -1),
        session=np.full(n, -1),
        begins=np.ones(n, dtype=bool),
        asked=np.ones(n, dtype=bool),
        asked_probability=np.ones(n),
        learnt=np.zeros(n, dtype=np.int64),
    )
    log = Log(
        source="a test",
        names=Names(arms=("a", "b", "c"), users=tuple(f"u{i}" for i in range(USERS)), roles=ROLES),
        decisions=decisions,
        options=Options(
            arm=np.tile(np.arange(K), n), prob=personal.ravel(), twin=blind.ravel(), personal=personal.ravel()
        ),
        outcomes=Outcomes(
            status=np.full(n, "ok", dtype=object),
            served=arm,
            cost_usd=none,
            latency_s=none,
            asked_label=label,
            free_label=none,
            score=none,
        ),
        declared={0: {"brevity": 1.0, "warmth": 0.2}, 2: {"brevity": 0.5}, 3: {"warmth": -0.7}} if declares else {},
    )
    return Town(log, ((personal - blind) * worth).sum(axis=1))


def bands(log: Log, **how: Any) -> dict[tuple[str, str], Band]:
    """With Q = ½, which nothing has to be learnt for."""
    found = with_blind_pmf(closed_units(log, now=1e12))
    units = found.units
    at = units.entry_start()[:-1]
    change = found.personal - found.blind
    weight = change[units.chosen()] / units.propensity()
    y = log.outcomes.asked_label[units.draw]
    x = weight * (y - 0.5) + np.add.reduceat(change * 0.5, at)
    bound = 0.5 * K / FLOOR  # |Δ| ≤ 1, and no propensity is below FLOOR / K
    made = personalisation_bands(units, x, x, x, bound, bound, **how)
    return {(band.kind, band.slice): band for band in made}


def test_a_gain_is_found_where_it_is() -> None:
    """For those whose tastes are met the limits exclude 0, for the others they hold it; overall lies in between."""
    seen = town(1, 20_000)
    found = bands(seen.log)
    for kind in ("exact", "asymptotic"):
        nurse, clerk, overall = (found[kind, where] for where in ("role=nurse", "role=clerk", ""))
        assert nurse.low > 0.0
        assert clerk.low < 0.0 < clerk.high
        assert clerk.value < overall.value < nurse.value
        assert overall.low > 0.0


def test_limits_hold_at_all_points_of_their_paths() -> None:
    """The running mean of true gains lies between exact limits at every look, in all but α of the logs."""
    missed = 0
    for seed in range(40):
        seen = town(seed, 2_000)
        for (kind, where), band in bands(seen.log, alpha=0.1).items():
            if kind != "exact" or where:
                continue
            truth = np.cumsum(seen.gain)[np.array(band.at) - 1] / band.at
            missed += bool(((truth < band.lows) | (truth > band.highs)).any())
    assert missed <= 8


def test_what_is_the_same_for_all_bought_nothing() -> None:
    """Where the two pmfs are one the difference is 0, however people like it."""
    log = town(2, 500).log
    same = log._replace(options=log.options._replace(twin=log.options.prob))
    for band in bands(same).values():
        assert band.value == 0.0
        assert band.low <= 0.0 <= band.high


def test_paths_are_short_and_end_at_the_band() -> None:
    """At most 200 points, in order, the last of which is what the band says."""
    for band in bands(town(4, 3_000).log).values():
        assert len(band.at) <= 200
        assert band.at == sorted(set(band.at))
        assert (band.at[-1], band.means[-1], band.lows[-1], band.highs[-1]) == (
            band.n,
            band.value,
            band.low,
            band.high,
        )
        assert band.policy == "personal − blind"


def test_groups_of_your_own_take_the_place_of_declared_ones() -> None:
    """A mapping of users to groups decides; users without one are undeclared."""
    units = closed_units(town(5, 3_000).log, now=1e12)
    found = dict(report_slices(units, {0: "early", 1: "early", 2: "late"}))
    assert set(found) == {"", "role=nurse", "role=clerk", "taste=early", "taste=late", "taste=undeclared"}
    assert (found["taste=early"] == np.isin(units.user, [0, 1])).all()
    assert (found["taste=undeclared"] == ~np.isin(units.user, [0, 1, 2])).all()
    everyone = found["taste=early"].astype(int) + found["taste=late"] + found["taste=undeclared"]
    assert (everyone == 1).all()


def test_small_slices_and_empty_logs_are_left_out() -> None:
    """A slice begins with fifty units; where nobody declared anything there are no taste groups."""
    units = closed_units(town(6, 40, declares=False).log, now=1e12)
    assert [name for name, _ in report_slices(units)] == [""]
    assert [name for name, here in report_slices(closed_units(town(6, 400, declares=False).log, now=1e12))] == [
        "",
        "role=nurse",
        "role=clerk",
    ]
    assert all(int(here.sum()) >= LEAST for _, here in report_slices(closed_units(town(6, 400).log, now=1e12)))
    assert report_slices(units.select(np.zeros(units.n, dtype=bool))) == []


def test_units_without_a_user_blind_pmf_are_excluded() -> None:
    """Units with a draw without a user-blind pmf are excluded, counted, and reported in a warning."""
    log = town(7, 300).log
    assert with_blind_pmf(closed_units(log, now=1e12)).said == ""
    assert log.options.twin is not None
    partly = log.options.twin.copy()
    partly[: 100 * K] = np.nan
    found = with_blind_pmf(closed_units(log._replace(options=log.options._replace(twin=partly)), now=1e12))
    assert found.units.n == 200
    assert found.said.startswith("100 of 300 units have draws without a user-blind pmf")
    assert found.units.excluded["no user-blind pmf logged"] == 100
    assert (found.personal == log.options.prob[100 * K :]).all()
    assert (found.blind == log.options.twin[100 * K :]).all()
    bare = with_blind_pmf(closed_units(log._replace(options=log.options._replace(twin=None, personal=None)), now=1e12))
    assert bare.units.n == 0
    assert "300 of 300" in bare.said
    assert personalisation_bands(bare.units, np.zeros(0), np.zeros(0), np.zeros(0), 1.0, 1.0) == []


def test_where_the_terms_are_off_the_personal_pmf_is_the_one_beside() -> None:
    """What was drawn from is the twin's then, and the difference is that of the pmf that would have counted."""
    log = town(8, 400).log
    assert log.options.twin is not None
    off = log._replace(options=log.options._replace(prob=log.options.twin))
    found = with_blind_pmf(closed_units(off, now=1e12))
    assert (found.personal == log.options.personal).all()
    assert not (found.personal == found.blind).all()


@given(st.dictionaries(st.integers(0, 5), st.dictionaries(st.sampled_from("abc"), st.floats(-1.0, 1.0)), max_size=6))
def test_a_taste_group_is_what_was_declared_most_strongly(declared: dict[int, dict[str, float]]) -> None:
    """Its name is that of a value of the largest size, with its sign; those who declared nothing have none."""
    groups = declared_groups(town(0, 1)._replace(log=town(0, 1).log._replace(declared=declared)).log)
    for user, values in declared.items():
        most = max((abs(value) for value in values.values()), default=0.0)
        if most == 0.0:
            assert user not in groups
            continue
        name, sign = groups[user].split()
        assert values[name] == (most if sign == "+" else -most)


def test_slices_share_alpha() -> None:
    """The overall sequence has level α; roles and groups share another α (Bonferroni)."""
    found = bands(town(3, 5_000).log, alpha=0.04)
    names = {where for _, where in found if where}
    assert names == {"role=nurse", "role=clerk", "taste=brevity +", "taste=warmth −", "taste=undeclared"}
    assert found["exact", ""].alpha == 0.04
    assert all(band.alpha == pytest.approx(0.04 / 5) for (_, where), band in found.items() if where)
