"""Laws of the intervals for a single look: delta method and bootstrap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.replay.test_estimators import some

from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators import DR, ESTIMATORS, IPS, SNIPS, Estimator, Paired
from fitrouter_evaluators.replay.estimators._quantiles import student
from fitrouter_evaluators.replay.estimators.rounds import Rounds
from fitrouter_evaluators.replay.inference import intervals
from fitrouter_evaluators.replay.inference.intervals import Interval, bootstraps, deltas
from fitrouter_evaluators.replay.log.log import Ints


def of(values: Floats) -> Rounds:
    """Rounds under the logging policy: IPS is the mean of these values."""
    one, none = np.ones_like(values), np.zeros_like(values)
    return Rounds(values, one, none, none, none, one > 0.0)


def take(rounds: Rounds, units: Ints) -> Rounds:
    """Some of the units."""
    return Rounds(*(column[units] for column in rounds if column is not None))


def same(one: Interval, other: Interval) -> None:
    """Bit for bit."""
    for name, left, right in zip(one._fields, one, other, strict=True):
        np.testing.assert_array_equal(left, right, err_msg=name)


# --- the delta method ---


def delta(estimator: Estimator, rounds: Rounds, **how: Any) -> Interval:
    """`deltas` of one estimator."""
    return deltas((estimator,), rounds, **how)[0]


def bootstrap(estimator: Estimator, rounds: Rounds, **how: Any) -> Interval:
    """`bootstraps` of one estimator."""
    return bootstraps((estimator,), rounds, **how)[0]


@pytest.fixture(scope="module")
def stats() -> Any:
    return pytest.importorskip("scipy.stats")


@settings(max_examples=20)
@given(df=st.integers(1, 5000), alpha=st.sampled_from((0.05, 0.01, 0.05 / 20)), wide=st.sampled_from((0.1, 0.2)))
def test_student_is_never_too_narrow(stats: Any, df: int, alpha: float, wide: float) -> None:
    """Against scipy: at two-sided 5% and below never narrower than Student's; at 10% and 20% within 0.2%."""
    right = stats.t.ppf(1.0 - alpha / 2.0, df)
    ours = float(student(1.0 - alpha / 2.0, np.array(float(df))))
    assert right * (1.0 - 1e-12) <= ours
    if df >= 5:
        assert ours <= 1.016 * right
        right = stats.t.ppf(1.0 - wide / 2.0, df)
        assert float(student(1.0 - wide / 2.0, np.array(float(df)))) == pytest.approx(right, rel=2e-3)


@pytest.mark.parametrize("n", [12, 200, 5000])
def test_delta_of_a_mean_matches_the_formula(n: int) -> None:
    """For the mean of n values: mean ± t · s / √n."""
    values = np.random.default_rng(n).random(n)
    found = delta(IPS(), of(values))
    assert found.value[0] == pytest.approx(values.mean(), abs=1e-12)
    assert found.se[0] == pytest.approx(values.std(ddof=1) / np.sqrt(n), rel=1e-9)
    half = float(student(0.975, np.array(n - 1.0))) * found.se[0]
    assert (found.low[0], found.high[0]) == pytest.approx((values.mean() - half, values.mean() + half))
    assert found.n[0] == n


def test_delta_of_a_ratio_matches_the_formula() -> None:
    """For SNIPS: √(Σ w² (r − v)²) / Σ w (Owen 2013, "Monte Carlo theory, methods and examples", eq. 9.9)."""
    rounds = some(3000)
    found = delta(SNIPS(), rounds)
    spread = np.sqrt(((rounds.weight * (rounds.reward - found.value[0])) ** 2).sum()) / rounds.weight.sum()
    assert found.se[0] == pytest.approx(spread * np.sqrt(3000 / 2999), rel=1e-9)


def test_clusters_of_any_size() -> None:
    """Sums over clusters by hand, for clusters of 1 to 9 units."""
    rng = np.random.default_rng(0)
    cluster = np.repeat(np.arange(200), rng.integers(1, 10, 200))
    values = rng.random(len(cluster)) + 0.3 * rng.normal(size=200)[cluster]
    found = delta(IPS(), of(values), cluster=cluster)
    sums = np.array([(values[cluster == c] - values.mean()).sum() for c in range(200)])
    assert found.value[0] == pytest.approx(values.mean())
    assert found.se[0] == pytest.approx(np.sqrt(200 / 199 * (sums**2).sum()) / len(values))
    assert found.n[0] == len(values)


def test_repeated_rows_are_no_evidence() -> None:
    """Each unit three times in one cluster: value, error and limits stay; as three units, the error would shrink."""
    rounds = some(500)
    copies = np.repeat(np.arange(500), 3)
    for estimator in ESTIMATORS.values():
        once, thrice = delta(estimator, rounds), delta(estimator, take(rounds, copies), cluster=copies)
        np.testing.assert_allclose(np.array(thrice[:4]), np.array(once[:4]), rtol=1e-9, err_msg=estimator.name)
        assert delta(estimator, take(rounds, copies)).se[0] < 0.6 * once.se[0], estimator.name
    several = list(ESTIMATORS.values())
    resampled = np.array([found[:4] for found in bootstraps(several, take(rounds, copies), cluster=copies)])
    np.testing.assert_allclose(resampled, np.array([found[:4] for found in bootstraps(several, rounds)]), rtol=1e-9)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=15)
def test_names_and_order_of_clusters_do_not_matter(seed: int) -> None:
    """Codes may have gaps and come in any order, and so may units."""
    rng = np.random.default_rng(seed)
    rounds, cluster, slices = some(60), rng.integers(0, 20, 60), rng.integers(0, 3, 60)
    names, order = rng.permutation(1000)[:20], rng.permutation(60)
    for one in (DR(), SNIPS()):
        was = delta(one, rounds, cluster=cluster, slices=slices, n_slices=3)
        now = delta(one, take(rounds, order), cluster=names[cluster][order], slices=slices[order], n_slices=3)
        np.testing.assert_allclose(np.array(now[:4]), np.array(was[:4]), rtol=1e-9)


# --- slices ---


@pytest.mark.parametrize("clustered", [False, True])
def test_slices_are_separate_calls(clustered: bool) -> None:
    """Slices at once give, bit for bit, what each gives alone; units in no slice count nowhere."""
    rng = np.random.default_rng(3)
    rounds, slices = some(2000), rng.integers(-1, 3, 2000)
    cluster = np.sort(rng.integers(0, 600, 2000)) if clustered else None
    several = list(ESTIMATORS.values())
    for method in (deltas, bootstraps):
        together = method(several, rounds, cluster=cluster, slices=slices, n_slices=3)
        assert together[0].n.sum() == (slices >= 0).sum() < 2000
        for s in range(3):
            units = np.flatnonzero(slices == s)
            alone = method(several, take(rounds, units), cluster=None if cluster is None else cluster[units])
            for one, other in zip(together, alone, strict=True):
                same(Interval(*(column[s : s + 1] for column in one)), other)


def test_several_estimators_are_separate_calls() -> None:
    """One call for many estimators gives what each gives alone: the same draws, and other sums by rounding at most."""
    rounds, slices = some(800), np.arange(800) % 4
    several = list(ESTIMATORS.values())
    for many, one in ((deltas, delta), (bootstraps, bootstrap)):
        for estimator, found in zip(several, many(several, rounds, slices=slices, n_slices=4), strict=True):
            alone = one(estimator, rounds, slices=slices, n_slices=4)
            np.testing.assert_allclose(np.array(found), np.array(alone), rtol=1e-10)


@pytest.mark.parametrize("method", [deltas, bootstraps])
def test_empty_slices_and_single_clusters(method: Any) -> None:
    """An empty slice has no value; a slice of one cluster has no interval; neither gives a warning."""
    slices, several = np.array([0, 0, 0, 0, 2, 2]), list(ESTIMATORS.values())
    rounds = some(6)._replace(match=np.ones(6, bool))
    apart = slices.clip(max=1) * np.arange(6)
    for found in method(several, rounds, cluster=apart, slices=slices, n_slices=4):
        assert found.n.tolist() == [4, 0, 2, 0]
        assert np.isnan(found.value).tolist() == [False, True, False, True]
    for found in method(several, rounds, cluster=slices, slices=slices, n_slices=4):
        assert np.isnan(np.array(found[1:4])).all()


@pytest.mark.parametrize("method", [delta, bootstrap])
def test_without_units_everything_is_nan(method: Any) -> None:
    """No units, or none in any slice: NaN, without a warning."""
    for found in (
        method(DR(), some(0)),
        method(DR(), some(0), cluster=np.zeros(0, int), slices=np.zeros(0, int), n_slices=2),
        method(DR(), some(9), cluster=np.arange(9), slices=np.full(9, -1), n_slices=2),
    ):
        assert not found.n.any()
        assert np.isnan(np.array(found[:4])).all()


# --- the bootstrap ---


def test_delta_and_bootstrap_agree() -> None:
    """On 6,000 units in 2,000 clusters, errors within 8% and limits within a tenth of the width."""
    rng = np.random.default_rng(5)
    rounds, cluster, several = some(6000), rng.integers(0, 2000, 6000), list(ESTIMATORS.values())
    linears = deltas(several, rounds, cluster=cluster)
    for estimator, linear, resampled in zip(
        several, linears, bootstraps(several, rounds, cluster=cluster, seed=1), strict=True
    ):
        assert resampled.value[0] == linear.value[0], estimator.name
        assert resampled.se[0] == pytest.approx(linear.se[0], rel=0.08), estimator.name
        width = linear.high[0] - linear.low[0]
        assert resampled.low[0] == pytest.approx(linear.low[0], abs=0.1 * width), estimator.name
        assert resampled.high[0] == pytest.approx(linear.high[0], abs=0.1 * width), estimator.name


def test_bags_are_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dealt to bags, 2,000 clusters of uneven size have the error that they have one by one."""
    rng = np.random.default_rng(7)
    rounds, cluster = some(6000), (2000 * rng.random(6000) ** 2).astype(np.int64)
    alone = bootstraps((DR(), SNIPS()), rounds, cluster=cluster)
    monkeypatch.setattr(intervals, "BAGS", 700)
    for bagged, whole in zip(bootstraps((DR(), SNIPS()), rounds, cluster=cluster), alone, strict=True):
        assert bagged.se[0] != whole.se[0]
        assert bagged.se[0] == pytest.approx(whole.se[0], rel=0.1)


def test_bootstrap_follows_its_seed() -> None:
    """The same seed gives the same bits; another one does not, nor do other replicates."""
    rounds = some(700)
    same(bootstrap(DR(), rounds, seed=4), bootstrap(DR(), rounds, seed=4))
    assert bootstrap(DR(), rounds, seed=4).low[0] != bootstrap(DR(), rounds, seed=5).low[0]
    assert bootstrap(DR(), rounds, seed=4).se[0] != bootstrap(DR(), rounds, seed=4, replicates=1999).se[0]


def test_bootstrap_equals_plain_resampling() -> None:
    """For a mean, errors and limits are those of resampling units with replacement, done the long way."""
    values = np.random.default_rng(2).exponential(size=80)
    rng = np.random.default_rng(11)
    means = np.array([rng.choice(values, 80).mean() for _ in range(10_000)])
    found = bootstrap(IPS(), of(values), replicates=10_000)
    assert found.se[0] == pytest.approx(means.std(), rel=0.03)
    low, high = np.quantile(means, (0.025, 0.975))
    assert (found.low[0], found.high[0]) == pytest.approx((low, high), abs=0.03 * (high - low))


def test_replicates_without_weight_are_left_out() -> None:
    """A ratio with weight on few units: replicates that draw none of them do not spoil the rest."""
    rounds = some(30)._replace(weight=np.where(np.arange(30) < 2, 1.0, 0.0), reward=np.arange(30) / 30.0)
    found = bootstrap(SNIPS(), rounds)
    assert 0.0 <= found.low[0] <= found.value[0] <= found.high[0] <= 1.0 / 30.0


# --- pairs, and coverage ---


def test_pairs() -> None:
    """A policy does not differ from itself, without error; the level changes the limits only."""
    rounds = some(400)
    for estimator in ESTIMATORS.values():
        itself = delta(Paired(estimator, rounds), rounds)
        np.testing.assert_allclose(np.array(itself[:4]), 0.0, atol=1e-12, err_msg=estimator.name)
        narrow, wide = delta(estimator, rounds, alpha=0.2), delta(estimator, rounds, alpha=0.01)
        assert narrow.se[0] == wide.se[0], estimator.name
        assert wide.low[0] < narrow.low[0] < narrow.value[0] < narrow.high[0] < wide.high[0], estimator.name


def test_a_pair_is_narrower_than_two() -> None:
    """Two policies that differ on a tenth of the units: what is shared cancels."""
    rounds = some(5000)
    near = rounds._replace(weight=np.where(np.arange(5000) % 10 == 0, rounds.weight[::-1], rounds.weight))
    pair, single = delta(Paired(DR(), near), rounds), delta(DR(), rounds)
    assert pair.se[0] < 0.6 * single.se[0]
    assert pair.value[0] == pytest.approx(single.value[0] - delta(DR(), near).value[0], abs=1e-12)


REPETITIONS, UNITS = 500, 400


def world(seed: int, *, alike: bool) -> tuple[Rounds, Ints, Ints, float]:
    """Repetitions as slices: 400 units in sessions of 4; two kinds, two arms, weights up to 4.

    In sessions that are alike, kind, arm and mood are drawn once for all four.
    """
    rng = np.random.default_rng(seed)
    n = REPETITIONS * UNITS
    session, repetition = np.arange(n) // 4, np.arange(n) // UNITS
    kind, arm, mood = rng.random((3, n // 4))[:, session] if alike else rng.random((3, n))
    logged = np.where(kind < 0.5, 0.2, 0.7)
    one = arm < logged
    mean = np.where(one, np.where(kind < 0.5, 0.8, 0.3), np.where(kind < 0.5, 0.4, 0.6))
    weight = np.where(one, 0.8 / logged, 0.2 / (1.0 - logged))
    base = np.full(n, 0.8 * 0.7 + 0.2 * 0.4)
    truth = 0.5 * (0.8 * 0.8 + 0.2 * 0.4) + 0.5 * (0.8 * 0.3 + 0.2 * 0.6)
    return (
        Rounds((mood < mean).astype(np.float64), weight, np.where(one, 0.7, 0.4), base, base),
        session,
        repetition,
        truth,
    )


def coverage(found: Interval, truth: float) -> float:
    """Share of the intervals with the truth inside."""
    return float(((found.low <= truth) & (truth <= found.high)).mean())


@pytest.mark.parametrize("method", [deltas, bootstraps])
@pytest.mark.parametrize("alike", [False, True])
def test_coverage(method: Any, alike: bool) -> None:
    """At fixed n, 500 repetitions cover as often as 95% coin tosses would (± 3.5 sd), and errors are the spread."""
    rounds, session, repetition, truth = world(17, alike=alike)
    names = ("ips", "snips", "dr", "sndr")
    several = [ESTIMATORS[name] for name in names]
    found = method(several, rounds, cluster=session, slices=repetition, n_slices=REPETITIONS)
    for name, interval in zip(names, found, strict=True):
        share = coverage(interval, truth)
        assert abs(share - 0.95) <= 3.5 * np.sqrt(0.95 * 0.05 / REPETITIONS), (name, share)
        assert interval.se.mean() == pytest.approx(interval.value.std(), rel=0.12), name


def test_ignoring_clusters_does_not_cover() -> None:
    """Treating the dependent units of a session as independent makes intervals too narrow."""
    rounds, _, repetition, truth = world(17, alike=True)
    naive = delta(IPS(), rounds, slices=repetition, n_slices=REPETITIONS)
    assert coverage(naive, truth) < 0.8


# --- refusals ---


def test_invalid_arguments_are_refused() -> None:
    """Levels, codes and numbers out of range are errors that say what is allowed."""
    rounds, codes = some(10), np.arange(10)
    for alpha in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(ConfigError, match="alpha"):
            delta(DR(), rounds, alpha=alpha)
        with pytest.raises(ConfigError, match="alpha"):
            bootstrap(DR(), rounds, alpha=alpha)
    with pytest.raises(ConfigError, match="replicates"):
        bootstrap(DR(), rounds, replicates=1)
    with pytest.raises(ConfigError, match="up to 9 for 3 slices"):
        delta(DR(), rounds, slices=codes, n_slices=3)
    with pytest.raises(ConfigError, match="no slice codes for 3"):
        delta(DR(), rounds, n_slices=3)
    with pytest.raises(ConfigError, match="slices has shape"):
        delta(DR(), rounds, slices=codes[:5], n_slices=10)
    with pytest.raises(ConfigError, match="slices has shape"):
        delta(DR(), rounds, slices=codes - 2, n_slices=10)
    with pytest.raises(ConfigError, match="cluster has shape"):
        delta(DR(), rounds, cluster=codes - 1)
    with pytest.raises(ConfigError, match="to 4611686018427387913"):
        delta(DR(), rounds, cluster=codes + (1 << 62))
