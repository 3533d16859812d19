"""Laws of the personal protocol: splits that leak nothing, intervals that cover, harm seen, noise not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitrouter_evaluators.bench import Ledger, NoHarm, folds
from fitrouter_evaluators.bench._metrics import (
    ACCURACY,
    AUC,
    ECE,
    KENDALL,
    NLL,
    PEARSON,
    RMSE,
    SPEARMAN,
    USER_RMSE,
    Metric,
    agreement,
    log_loss,
    squared,
)


def _labels(rng: np.random.Generator, users: int, items: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    grid = rng.permutation(users * items)[:n]
    return grid // items, grid % items


@given(st.integers(0, 10_000), st.integers(4, 20), st.integers(4, 20), st.booleans())
@settings(max_examples=20)
def test_no_split_leaks(seed: int, users: int, items: int, known: bool) -> None:
    """Training sees no unseen user, and held-out items only if known; labels that are shown are never held out."""
    rng = np.random.default_rng(seed)
    user, item = _labels(rng, users, items, users * items * 2 // 3)
    for fold in folds(user, item, [seed, seed + 1], known_items=known):
        new = {person.user for person in fold.people}
        assert not new & set(user[fold.train])
        held_items = {int(item[row]) for person in fold.people for row in person.held_out}
        if not known:
            assert not held_items & set(item[fold.train])
        for person in fold.people:
            assert (user[person.order] == person.user).all()
            assert (user[person.held_out] == person.user).all()
            assert not held_items & set(item[person.order])
            assert len(set(person.order)) == len(person.order)


def test_splits_repeat_by_seed() -> None:
    """The same seed gives the same split and order of labels; another seed gives another."""
    user, item = _labels(np.random.default_rng(0), 30, 30, 600)
    one, two, other = (next(folds(user, item, [seed])) for seed in (1, 1, 2))
    assert [person.order.tolist() for person in one.people] == [person.order.tolist() for person in two.people]
    assert [person.user for person in one.people] != [person.user for person in other.people]


@pytest.mark.parametrize(("users", "items"), [(0.0, 0.3), (1.0, 0.3), (0.3, 1.5), (0.01, 0.3)])
def test_shares_that_cannot_be_are_refused(users: float, items: float) -> None:
    """A share outside (0, 1), or one that leaves a side empty, is an error that says which."""
    user, item = _labels(np.random.default_rng(0), 10, 10, 60)
    with pytest.raises(ValueError, match=r"users|items"):
        next(folds(user, item, [0], users=users, items=items))


def _ledger(rng: np.random.Generator, better: np.ndarray, n: int, *, same: bool = False) -> Ledger:
    """User u's personal prediction has an error variance lower than the global one's by better[u], all else noise."""
    ledger = Ledger("planted")
    for u, gain in enumerate(better):
        y = rng.normal(size=n)
        errors = rng.normal(size=n)
        ledger.add("global", 0, 0, u, y, y + errors)
        own = errors if same else rng.normal(size=n) * np.sqrt(1.0 - gain)
        ledger.add("hierarchical", 20, 0, u, y, y + own)
    return ledger


@pytest.mark.parametrize("n", [5, 50])
def test_noise_alone_harms_sixteen_percent(n: int) -> None:
    """Where rows differ by noise only, z exceeds 1 for 16% of users on each side, with few labels too.

    And the users who look worst on one half of their labels are no worse on the other.
    """
    found = _ledger(np.random.default_rng(3), np.zeros(2000), n).no_harm("hierarchical", 20, squared)
    assert found.harmed == pytest.approx(0.159, abs=0.025)
    assert found.helped == pytest.approx(0.159, abs=0.025)
    assert abs(found.worst_decile) < 0.12
    assert found.differ > 0.9


def test_never_personalising_is_seen() -> None:
    """A row that repeats the base harms and helps nobody and differs for nobody."""
    found = _ledger(np.random.default_rng(0), np.zeros(50), 20, same=True).no_harm("hierarchical", 20, squared)
    assert (found.harmed, found.helped, found.differ, found.gain, found.worst_decile) == (0.0, 0.0, 0.0, 0.0, 0.0)


def test_a_planted_gain_and_a_planted_harm_are_seen() -> None:
    """A gain for all shows as helped; a tenth of users who lose show as harmed and as the worst decile."""
    rng = np.random.default_rng(1)
    gain = _ledger(rng, np.full(300, 0.6), 60).no_harm("hierarchical", 20, squared, root=np.sqrt)
    assert gain.helped > 0.9
    assert gain.harmed < 0.01
    assert gain.gain == pytest.approx(1 - np.sqrt(0.4), abs=0.03)
    assert gain.misses() == []
    better = np.full(300, 0.3)
    better[:30] = -2.0
    harm = _ledger(rng, better, 60).no_harm("hierarchical", 20, squared)
    assert harm.harmed >= 0.1
    assert harm.worst_decile > 1.0
    assert harm.cvar10 > harm.cvar10_base
    assert any("worst decile" in miss for miss in harm.misses())


def test_the_law_of_no_harm_has_two_cases() -> None:
    """With a gain above 5% the harmed are counted against the helped, and differing is due; else against noise."""
    kept = {"set": "s", "row": "r", "worst_decile": 0.0, "cvar10": 1.0, "cvar10_base": 1.0, "users": 10}
    assert not NoHarm(k=20, gain=0.1, harmed=0.05, helped=0.5, differ=0.5, **kept).misses()  # type: ignore[arg-type]
    assert NoHarm(k=20, gain=0.1, harmed=0.07, helped=0.5, differ=0.5, **kept).misses()  # type: ignore[arg-type]
    assert not NoHarm(k=5, gain=0.1, harmed=0.15, helped=0.5, differ=0.5, **kept).misses()  # type: ignore[arg-type]
    assert NoHarm(k=20, gain=0.1, harmed=0.0, helped=0.5, differ=0.1, **kept).misses()  # type: ignore[arg-type]
    assert not NoHarm(k=20, gain=0.0, harmed=0.17, helped=0.1, differ=0.0, **kept).misses()  # type: ignore[arg-type]
    assert NoHarm(k=20, gain=0.0, harmed=0.19, helped=0.1, differ=0.0, **kept).misses()  # type: ignore[arg-type]


@pytest.mark.parametrize(("metric", "runs"), [(RMSE, 150), (USER_RMSE, 150), (AUC, 40)], ids=lambda v: str(v)[:20])
def test_the_bootstrap_covers(metric: Metric, runs: int) -> None:
    """Of 95% intervals over users who differ, about 95% hold the value of the population they were drawn from."""
    rng = np.random.default_rng(2)

    def draw(ledger: Ledger, users: int) -> tuple[np.ndarray, np.ndarray]:
        every = []
        for u in range(users):
            y = (rng.random(12) < 0.5).astype(float)
            p = 0.5 + 0.2 * (y - 0.5) + rng.normal(0, 0.1) + rng.normal(0, 0.2 + 0.1 * rng.random(), 12)
            ledger.add("hierarchical", 5, 0, u, y, p)
            every.append((y, p))
        values = [metric.of(y, p) for y, p in every]
        pooled = metric.of(*(np.concatenate(part) for part in zip(*every, strict=True)))
        return np.array(values), np.array(pooled)

    values, pooled = draw(Ledger("population"), 10_000)
    truth = float(values.mean() if metric.per_user else pooled)
    inside = 0
    for _ in range(runs):
        ledger = Ledger("sample")
        draw(ledger, 40)
        found = ledger.result("hierarchical", 5, metric)
        inside += found.low <= truth <= found.high
    assert inside / runs >= 0.86


def test_pairs_of_rows_need_the_same_labels() -> None:
    """Rows that were measured on other users or labels are never compared."""
    ledger = Ledger("s")
    ledger.add("global", 0, 0, 1, np.zeros(3), np.ones(3))
    ledger.add("other", 5, 0, 2, np.zeros(3), np.ones(3))
    ledger.add("third", 5, 0, 1, np.ones(3), np.ones(3))
    for row in ("other", "third"):
        with pytest.raises(ValueError, match="were not measured on the same"):
            ledger.paired(row, 5, RMSE)
    with pytest.raises(ValueError, match="there is no row"):
        ledger.result("absent", 5, RMSE)
    with pytest.raises(ValueError, match="not finite"):
        ledger.add("global", 0, 0, 1, np.zeros(2), np.array([0.0, np.nan]))


def test_a_paired_difference_is_tighter_than_its_parts() -> None:
    """Two rows that share their errors: the interval of the difference is narrower than either row's own."""
    rng = np.random.default_rng(5)
    ledger = Ledger("s")
    for u in range(40):
        y = rng.normal(size=20)
        p = y + rng.normal(0, 0.2 + rng.random(), 20)
        ledger.add("global", 0, 0, u, y, p)
        ledger.add("hierarchical", 20, 0, u, y, y + 0.9 * (p - y))
    found = ledger.paired("hierarchical", 20, RMSE)
    assert found.relative == pytest.approx(-0.1, abs=1e-9)
    alone = ledger.result("hierarchical", 20, RMSE)
    assert found.high < 0
    assert found.high - found.low < (alone.high - alone.low) / 2


def test_metrics_on_cases_worked_by_hand() -> None:
    """Each metric gives what its definition gives, and NaN where it is not defined."""
    y, p = np.array([0.0, 1.0, 1.0, 0.0]), np.array([0.1, 0.9, 0.4, 0.5])
    assert ACCURACY.of(y, p) == pytest.approx(0.625)
    assert AUC.of(y, p) == pytest.approx(0.75)
    assert RMSE.of(y, p) == pytest.approx(np.sqrt((0.01 + 0.01 + 0.36 + 0.25) / 4))
    assert NLL.of(y, p) == pytest.approx(-(2 * np.log(0.9) + np.log(0.4) + np.log(0.5)) / 4)
    assert log_loss(np.array([0.5]), np.array([0.5]))[0] == pytest.approx(np.log(2))
    assert PEARSON.of(p, 3 * p + 1) == pytest.approx(1.0)
    assert SPEARMAN.of(p, np.exp(p)) == pytest.approx(1.0)
    assert KENDALL.of(p, -p) == pytest.approx(-1.0)
    assert np.isnan(AUC.of(np.ones(3), p[:3]))
    assert np.isnan(PEARSON.of(p, np.ones(4)))
    rng = np.random.default_rng(0)
    p = rng.random(20_000)
    y = (rng.random(20_000) < p).astype(float)
    assert ECE.of(y, p) < 0.015
    assert ECE.of(y, np.clip(p + 0.2, 0, 1)) > 0.1


def test_human_agreement() -> None:
    """People who agree always, at random, and to a known degree are told apart; things judged once say nothing."""
    rng = np.random.default_rng(0)
    item = np.repeat(np.arange(500), 4)
    verdict = (rng.random(500) < 0.5).astype(float)[item]
    assert agreement(item, verdict).same == pytest.approx(1.0)
    assert agreement(item, verdict).correlation == pytest.approx(1.0)
    coin = (rng.random(2000) < 0.5).astype(float)
    assert agreement(item, coin).same == pytest.approx(0.5, abs=0.03)
    graded = rng.normal(size=500)[item] + rng.normal(size=2000)
    found = agreement(item, graded)
    assert found.correlation == pytest.approx(0.5, abs=0.06)
    assert found.rmse == pytest.approx(np.sqrt(2), abs=0.06)
    alone = agreement(np.arange(5), np.ones(5))
    assert alone.items == 0
    assert np.isnan(alone.same)
