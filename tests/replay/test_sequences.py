"""Laws of confidence sequences: coverage at all times at once, and refusal of invalid streams."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from benchmarks.replay import _baseline_sequences as _gamma_exponential
from benchmarks.replay._baseline_sequences import by_slice, empirical_bernstein_lower, gamma_exponential_lower
from hypothesis import given, settings
from hypothesis import strategies as st

from fitrouter.errors import InvalidLog
from fitrouter.types import Floats
from fitrouter_evaluators.replay.inference import _betting
from fitrouter_evaluators.replay.inference.sequences import (
    Sequence,
    asymptotic,
    exact,
    exact_lower,
    spaced,
)

STREAMS, LENGTH = 300, 400

Lower = Callable[..., Floats]
LOWERS: dict[str, Lower] = {
    "bets": exact_lower,
    "gamma-exponential": gamma_exponential_lower,
    "empirical Bernstein": empirical_bernstein_lower,
}


# --- worlds: conditional means and observations ≥ −bound ---


def skewed(rng: np.random.Generator) -> tuple[Floats, Floats, float]:
    """A heavy downside at the bound: −4 once in 20, else a little."""
    x = np.where(rng.random(LENGTH) < 0.05, -4.0, 0.5)
    return np.full(LENGTH, 0.05 * -4.0 + 0.95 * 0.5), x, 4.0


def rare(rng: np.random.Generator) -> tuple[Floats, Floats, float]:
    """Weights: 50 once in 100, else nothing."""
    return np.full(LENGTH, 0.5), np.where(rng.random(LENGTH) < 0.01, 50.0, 0.0), 1.0


def drifting(rng: np.random.Generator) -> tuple[Floats, Floats, float]:
    """The mean swings between 0 and 1, and jumps."""
    mean = 0.5 + 0.5 * np.sign(np.sin(np.arange(LENGTH) / 40.0)) * np.linspace(0.2, 1.0, LENGTH)
    return mean, (rng.random(LENGTH) < mean).astype(float) * 2.0 - mean, 1.0


def adaptive(rng: np.random.Generator) -> tuple[Floats, Floats, float]:
    """How rare the downside is, and the mean itself, hang on what was seen before."""
    mean, x, seen = np.empty(LENGTH), np.empty(LENGTH), 0.0
    for i, luck in enumerate(rng.random(LENGTH)):
        often = 0.3 if seen > 0.0 else 0.02
        mean[i] = 0.4 - 0.3 * often
        x[i] = mean[i] - 2.0 if luck < often else mean[i] + 2.0 * often / (1.0 - often)
        seen += x[i] - mean[i]
    return mean, x, 2.0


ASKED = [(name, world) for name in LOWERS for world in (skewed, rare)]
ASKED += [(name, world) for name in LOWERS if name != "empirical Bernstein" for world in (drifting, adaptive)]


def ever_missed(lower: Lower, world: Callable[[np.random.Generator], tuple[Floats, Floats, float]], seed: int) -> float:
    """Share of streams whose lower limit is ever above the running mean; α = .1."""
    missed = 0
    for stream in range(STREAMS):
        mean, x, bound = world(np.random.default_rng([seed, stream]))
        running = np.cumsum(mean) / np.arange(1, LENGTH + 1)
        missed += bool((lower(x, bound, alpha=0.1) > running + 1e-9).any())
    return float(missed) / STREAMS


@pytest.mark.parametrize(("name", "world"), ASKED)
def test_exact_limits_are_ever_wrong_in_a_share_of_alpha_of_streams(name: str, world: Any) -> None:
    """Ville's inequality: a share of α at most, whatever the outcomes; 300 streams leave three standard errors of .052.

    The empirical Bernstein sequence is for means that do not change, and is not asked about others.
    """
    assert ever_missed(LOWERS[name], world, 1) <= 0.1 + 0.052


def test_the_simulation_detects_invalid_limits() -> None:
    """The check above can fail: with a limit for one look, nearly every second stream misses at some time."""

    def one_look(x: Floats, bound: float, *, alpha: float) -> Floats:
        t = np.arange(1.0, len(x) + 1.0)
        mean = np.cumsum(x) / t
        return np.where(t < 30, -bound, mean - 1.28 * np.sqrt(np.maximum(np.cumsum(x * x) / t - mean**2, 0.0) / t))

    assert ever_missed(one_look, skewed, 1) > 0.25


def test_two_sides_cover_together() -> None:
    """With half of α for each side, both limits hold at all times in 1 − α of streams."""
    missed = 0
    for stream in range(STREAMS):
        mean, x, _ = drifting(np.random.default_rng([2, stream]))
        found = exact(x, x, 1.0, 2.0, alpha=0.1)
        running = np.cumsum(mean) / found.at
        missed += bool(((found.low > running + 1e-9) | (found.high < running - 1e-9)).any())
    assert missed / STREAMS <= 0.152


def test_each_side_may_have_a_share_of_its_own() -> None:
    """The limits are the one-sided ones of these levels; one number is shared equally."""
    x = drifting(np.random.default_rng(8))[1]
    found = exact(x, x, 1.0, 2.0, alpha=(0.01, 0.2))
    np.testing.assert_array_equal(found.low, exact_lower(x, 1.0, alpha=0.01))
    np.testing.assert_array_equal(found.high, -exact_lower(-x, 2.0, alpha=0.2))
    both = exact(x, x, 1.0, 2.0, alpha=0.1)
    np.testing.assert_array_equal(both.low, exact_lower(x, 1.0, alpha=0.05))


def test_the_asymptotic_sequence_covers_moderate_outcomes() -> None:
    """No guarantee at small n, so it is asked from the 50th observation on, without rare weights."""
    missed = 0
    for stream in range(STREAMS):
        mean, x, _ = drifting(np.random.default_rng([3, stream]))
        found = asymptotic(x, alpha=0.1, at=300.0, looks=np.arange(50, LENGTH + 1))
        running = (np.cumsum(mean) / np.arange(1, LENGTH + 1))[found.at - 1]
        missed += bool(((found.low > running) | (found.high < running)).any())
    assert missed / STREAMS <= 0.152


# --- the mathematics, against slow solvers ---


@pytest.mark.parametrize("rho", [0.05, 1.0, 40.0])
def test_the_boundary_is_the_root_rounded_up(rho: float) -> None:
    """The table's boundary is at or above the root of the mixture at that time, by half a percent at most."""
    from scipy.optimize import brentq

    v = np.geomspace(2e-3, 1e5, 60)
    table = _gamma_exponential.boundary(v, rho, 0.025)
    for time, found in zip(v, table, strict=True):

        def short(s: float, time: float = time) -> float:
            return float(_gamma_exponential.wealth(np.array(s), np.array(time), rho)) + math.log(0.025)

        root = brentq(short, 1e-9, 1e4, xtol=1e-10)
        assert root * (1 - 1e-9) <= found <= 1.005 * root


def test_the_mixture_is_the_integral_over_bets() -> None:
    """The closed form equals ∫ exp(λs − ψ(λ)v) dF(λ) with F the gamma density of proposition 9, cut to [0, 1)."""
    from scipy.integrate import quad
    from scipy.special import gamma, gammainc

    rho = 2.5

    def density(bet: float) -> float:
        norm = rho**rho / (gamma(rho) * gammainc(rho, rho))
        return float(norm * (1.0 - bet) ** (rho - 1.0) * math.exp(-rho * (1.0 - bet)))

    assert math.isclose(quad(density, 0.0, 1.0)[0], 1.0, rel_tol=1e-9)
    for s, v in ((0.5, 0.2), (3.0, 1.0), (20.0, 30.0)):

        def integrand(bet: float, s: float = s, v: float = v) -> float:
            return density(bet) * math.exp(bet * s + (math.log1p(-bet) + bet) * v)

        closed = float(_gamma_exponential.wealth(np.array(s), np.array(v), rho))
        assert math.isclose(math.exp(closed), quad(integrand, 0.0, 1.0)[0], rel_tol=1e-7)


@settings(max_examples=30)
@given(
    st.lists(st.floats(-2.0, 30.0), min_size=1, max_size=40),
    st.floats(2.0, 40.0),
    st.floats(1e-4, 0.4),
)
def test_newton_finds_where_the_wealth_is_one_over_alpha(values: list[float], bound: float, alpha: float) -> None:
    """The limit is the root that a bracketing solver finds, and never above it."""
    from scipy.optimize import brentq

    x, on = np.array(values), _betting.bets(np.array([bound]))
    t = len(x)
    grown = np.log1p(on.size[:, None] * x).sum(axis=1)

    def surplus(m: float) -> float:
        logs = np.log(on.weight) + grown - t * np.log1p(on.size * m)
        return float(np.logaddexp.reduce(logs)) + math.log(alpha)

    root = brentq(surplus, -1.0 / on.size.max() * (1 - 1e-12), 1e6, xtol=1e-13, rtol=1e-13)
    found = float(_betting.root(grown[:, None], np.array([float(t)]), on, alpha)[0])
    assert surplus(found) >= -1e-9
    assert math.isclose(found, root, rel_tol=1e-9, abs_tol=1e-9)


@settings(max_examples=30)
@given(st.lists(st.floats(-3.0, 20.0), min_size=1, max_size=60), st.floats(0.02, 0.95))
def test_bets_give_away_less_than_the_gamma_exponential_process(values: list[float], share: float) -> None:
    """For every single bet, the limit by bets is at least that of exp(λ Σ(x − μ)/k − ψ(λ) Σx²/k²)."""
    x, bound, need = np.array(values), 3.0, math.log(40.0)
    growth = np.log1p(share * x / bound).sum()
    ours = math.expm1((growth - need) / len(x)) * bound / share
    psi = -math.log1p(-share) - share
    theirs = (x.sum() - bound * (need + psi * np.square(x / bound).sum()) / share) / len(x)
    assert ours >= theirs - 1e-9


# --- laws over inputs ---

STREAM = st.lists(st.floats(-1.0, 12.0).filter(lambda v: v == 0.0 or abs(v) > 1e-6), min_size=2, max_size=80)


def every(x: Floats) -> dict[str, Floats]:
    """All sequences of one stream, after every observation."""
    two = exact(np.stack([x, x]), x, np.array([1.0, 5.0]), 12.0)
    display = asymptotic(x)
    lowers = {name: lower(x, 1.0) for name, lower in LOWERS.items()}
    return lowers | {"low": two.low, "high": two.high, "display low": display.low, "display high": display.high}


@settings(max_examples=20)
@given(STREAM, st.integers(1, 79))
def test_limits_depend_on_the_past_only(values: list[float], cut: int) -> None:
    """The first t limits of a stream are those of its first t observations."""
    x, t = np.array(values), min(cut, len(values))
    for (name, whole), part in zip(every(x).items(), every(x[:t]).values(), strict=True):
        np.testing.assert_allclose(whole[:t], part, rtol=1e-12, atol=1e-12, err_msg=name)


@settings(max_examples=20)
@given(STREAM, st.floats(0.01, 100.0))
def test_units_do_not_matter(values: list[float], unit: float) -> None:
    """An outcome in other units, with its bound, has the limits in these units."""
    x = np.array(values)
    np.testing.assert_allclose(exact_lower(unit * x, unit), unit * exact_lower(x, 1.0), rtol=1e-7, atol=1e-9 * unit)
    ours = gamma_exponential_lower(unit * x, unit, cap=unit, at=2000.0 * unit**2)
    np.testing.assert_allclose(ours, unit * gamma_exponential_lower(x, 1.0), rtol=1e-7, atol=1e-9 * unit)
    shifted, display = asymptotic(unit * x + 3.0), asymptotic(x)
    finite = np.isfinite(display.low)
    assert (np.isfinite(shifted.low) == finite).all()
    wanted = unit * display.low[finite] + 3.0
    np.testing.assert_allclose(shifted.low[finite], wanted, rtol=1e-6, atol=1e-6 * (1.0 + unit))


@settings(max_examples=15)
@given(STREAM, st.floats(0.001, 0.2), st.floats(1.01, 5.0))
def test_more_certainty_is_wider(values: list[float], alpha: float, times: float) -> None:
    """A smaller α never raises a lower limit; the bets of the empirical Bernstein sequence depend on α."""
    x = np.array(values)
    for name in ("bets", "gamma-exponential"):
        lower = LOWERS[name]
        assert (lower(x, 1.0, alpha=alpha) <= lower(x, 1.0, alpha=min(alpha * times, 0.9)) + 1e-9).all(), name


def test_limits_close_in_on_a_constant() -> None:
    """A stream that never varies: limits stay below it, and come as near as 1/n lets them."""
    x = np.full(20_000, 0.7)
    for name, lower in LOWERS.items():
        limit = lower(x, 1.0)
        assert (limit <= 0.7).all(), name
        assert limit[-1] > 0.69, name
    assert exact_lower(x, 1.0)[-1] >= gamma_exponential_lower(x, 1.0)[-1]


def test_bets_are_tighter_than_the_gamma_exponential_mixture() -> None:
    """On weighted outcomes with rare large weights, after 50 observations and after 5,000."""
    rng = np.random.default_rng(4)
    weight = np.where(rng.random((20, 5000)) < 0.02, 25.0, 25.0 / 49.0)
    x = 0.6 + weight * ((rng.random((20, 5000)) < 0.6) - np.minimum(0.6, 8.0 / weight))
    looks = np.array([50, 500, 5000])
    bets = np.mean([exact_lower(row, 8.0, looks=looks) for row in x], axis=0)
    gamma = np.mean([gamma_exponential_lower(row, 8.0, looks=looks) for row in x], axis=0)
    assert (bets > gamma).all()


def test_streams_truncated_at_different_bounds_combine() -> None:
    """Two bounds together are nearly as good as the better of them, at few observations and at many."""
    rng = np.random.default_rng(5)
    looks = np.array([60, 20_000])
    heads = rng.random((12, 20_000)) < 0.6
    weight = np.where(rng.random(heads.shape) < 0.02, 25.0, 25.0 / 49.0)
    model = {k: np.minimum(0.6, k / weight) for k in (1.0, 25.0)}
    offset = {k: 0.02 * 25.0 * min(0.6, k / 25.0) + 0.98 * 25.0 / 49.0 * 0.6 for k in model}
    x = {k: offset[k] + weight * (heads - model[k]) for k in model}
    alone = {k: np.mean([exact_lower(row, k, looks=looks) for row in x[k]], axis=0) for k in x}
    rows = np.stack([x[1.0], x[25.0]], axis=1)
    both = np.mean([exact_lower(pair, np.array([1.0, 25.0]), looks=looks) for pair in rows], axis=0)
    assert alone[1.0][0] > alone[25.0][0]
    assert alone[1.0][1] < alone[25.0][1]
    assert (0.6 - both < 1.2 * (0.6 - np.maximum(alone[1.0], alone[25.0]))).all()


# --- slices, looks and refusals ---


def test_a_slice_has_the_sequence_of_its_own_observations() -> None:
    """Slices are cut out of the stream in order; −1 is in none, and an empty one is an empty path."""
    rng = np.random.default_rng(6)
    x, slices = rng.random((2, 900)), rng.choice([-1, 0, 1, 3], 900)
    bounds = np.array([1.0, 4.0])

    def of(rows: Any, looks: Any) -> Sequence:
        return exact(x[:, rows], x[:, rows], bounds, bounds, looks=looks)

    paths = by_slice(of, slices, 4, points=9)
    for s, path in enumerate(paths):
        own = np.flatnonzero(slices == s)
        assert path.sequence.at.tolist() == spaced(len(own), 9).tolist()
        assert path.rows.tolist() == own[path.sequence.at - 1].tolist()
        whole = exact(x[:, own], x[:, own], bounds, bounds)
        np.testing.assert_allclose(path.sequence.low, whole.low[path.sequence.at - 1])
        np.testing.assert_allclose(path.sequence.high, whole.high[path.sequence.at - 1])
    assert len(paths[2].rows) == 0


def test_looks_pick_from_the_running_limits() -> None:
    """Limits at looks are those of the whole path, across the blocks in which it is computed."""
    rng = np.random.default_rng(7)
    x = rng.normal(0.2, 0.3, _betting.BLOCK + 500).clip(-1.0, 2.0)
    looks = np.array([1, 77, _betting.BLOCK, _betting.BLOCK + 1, len(x)])
    for name, lower in LOWERS.items():
        picked, whole = lower(x, 1.0, looks=looks), lower(x, 1.0)[looks - 1]
        np.testing.assert_allclose(picked, whole, rtol=1e-11, atol=1e-11, err_msg=name)
    display, at_looks = asymptotic(x), asymptotic(x, looks=looks)
    np.testing.assert_array_equal(at_looks.low, display.low[looks - 1])
    np.testing.assert_allclose(at_looks.mean, (np.cumsum(x) / np.arange(1, len(x) + 1))[looks - 1], rtol=1e-9)


def test_looks_are_spread_over_the_stream() -> None:
    """From `first` or the whole of a shorter stream, ascending, to the end."""
    assert spaced(0).tolist() == []
    assert spaced(7).tolist() == [7]
    looks = spaced(5000)
    assert (looks[0], looks[-1], len(looks)) == (50, 5000, 40)
    assert (np.diff(looks) > 0).all()


def test_limits_stay_within_what_is_known() -> None:
    """Before the first observations say more, the range of the mean is the interval."""
    found = exact(np.full(50, 0.5), np.full(50, 0.5), 1.0, 2.0, within=(0.0, 1.0))
    assert (found.low[0], found.high[0]) == (0.0, 1.0)
    assert (found.low >= 0.0).all()
    assert (found.high <= 1.0).all()
    assert found.mean.tolist() == pytest.approx([0.5] * 50)


def test_a_broken_bound_is_refused_with_the_row() -> None:
    """An observation below its bound, or one that is no number, would make limits wrong: it is named."""
    x = np.full(30, 0.5)
    x[17] = -2.5
    for lower in LOWERS.values():
        with pytest.raises(InvalidLog, match=r"observation 17 is -2\.5"):
            lower(x, 2.0)
        assert len(lower(x, 2.5)) == 30
    with pytest.raises(InvalidLog, match=r"observation 17 is 2\.5, above its bound of 2"):
        exact(np.ones(30), -x, 1.0, 2.0)
    x[3] = math.nan
    for refuses in (lambda: exact_lower(x, 3.0), lambda: asymptotic(x)):
        with pytest.raises(InvalidLog, match="observation 3 is nan"):
            refuses()


def test_invalid_arguments_are_refused() -> None:
    """Invalid levels, looks and bounds are refused with what is allowed."""
    x = np.ones(5)
    with pytest.raises(ValueError, match="between 0 and 1"):
        exact_lower(x, 1.0, alpha=0.0)
    with pytest.raises(ValueError, match="between 1 and 5"):
        exact_lower(x, 1.0, looks=np.array([2, 6]))
    with pytest.raises(ValueError, match="ascending"):
        asymptotic(x, looks=np.array([3, 2]))
    with pytest.raises(ValueError, match="positive"):
        exact_lower(x, 0.0)
    with pytest.raises(ValueError, match="codes from 0 to 1"):
        by_slice(lambda rows, looks: asymptotic(x[rows], looks=looks), np.array([0, 1, 2, 0, 1]), 2)
    with pytest.raises(ValueError, match="one bound for each row"):
        exact_lower(np.ones((2, 5)), 1.0)


def test_an_empty_stream_has_empty_limits() -> None:
    """No observations, no looks, no error."""
    for lower in LOWERS.values():
        assert lower(np.zeros(0), 1.0).tolist() == []
    assert asymptotic(np.zeros(0)).low.tolist() == []
    assert exact(np.zeros(0), np.zeros(0), 1.0, 1.0).mean.tolist() == []
