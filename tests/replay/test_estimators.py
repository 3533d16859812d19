"""Laws of the estimators of a policy's value, and of choosing λ."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.replay._obp_tuning import LAMBDAS, SEEDS, logged
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators import (
    DR,
    ESTIMATORS,
    IPS,
    SNIPS,
    ClippedDR,
    ClippedIPS,
    DRos,
    Estimator,
    Paired,
    Rejection,
    SubgaussianDR,
    SubgaussianIPS,
    SwitchDR,
    estimate,
)
from fitrouter_evaluators.replay.estimators.rounds import Rounds
from fitrouter_evaluators.replay.estimators.tuning import mse_bound, tuned

GOLDEN = Path(__file__).parents[3] / "shared/golden/ope_golden.npz"
OURS = {
    "dm": ESTIMATORS["dm"],
    "ipw": IPS(),
    "ipw_clip": ClippedIPS(20.0),
    "snipw": SNIPS(),
    "dr": DR(),
    "dr_clip": ClippedDR(20.0),
    "sndr": ESTIMATORS["sndr"],
    "switch_dr": SwitchDR(3.0),
    "dr_os": DRos(50.0),
    "sg_ipw": SubgaussianIPS(0.05),
    "sg_dr": SubgaussianDR(0.05),
    "replay": Rejection(),
}
"""Name in the golden file → the estimator with the λ that was used there."""
TUNED = {"ipw": "clipped_ips", "switch": "switch_dr", "dr_os": "dr_os"}


def rounds_of(pmf: Floats, propensity: Floats, model: Floats, action: Any, reward: Floats) -> Rounds:
    """Units of one draw each, from float64[n, K]; those match whose arm the greedy policy would have drawn."""
    at = np.arange(len(action)), action
    direct = (pmf * model).sum(axis=1) / pmf.sum(axis=1)
    match = (pmf == pmf.max(axis=1, keepdims=True))[at]
    return Rounds(reward, pmf[at] / propensity, model[at], direct, direct, match)


@pytest.fixture(scope="module")
def golden() -> Any:
    if not GOLDEN.exists():
        pytest.skip("the golden values are not in ../shared/golden")
    return np.load(GOLDEN)


@pytest.fixture(scope="module")
def golden_rounds(golden: Any) -> Rounds:
    return rounds_of(golden["pie"], golden["pscore"], golden["qhat"], golden["action"], golden["reward"])


def some(n: int = 400, seed: int = 0) -> Rounds:
    """Units with a sensible model, weights of mean one and a few large ones."""
    rng = np.random.default_rng(seed)
    q, base = rng.random(n), rng.random(n)
    reward = (rng.random(n) < q).astype(np.float64)
    return Rounds(reward, rng.gamma(0.3, 1.0 / 0.3, n), q, base, base.copy(), rng.random(n) < 0.3)


def reads(estimator: Estimator) -> set[str]:
    """Columns that change an estimate."""
    rounds = some()
    changed = {name: getattr(rounds, name) * np.linspace(0.5, 0.9, 400) for name in rounds._fields if name != "match"}
    changed["match"] = ~rounds.match  # type: ignore[operator]
    was = estimate(estimator, rounds)
    return {name for name, column in changed.items() if estimate(estimator, rounds._replace(**{name: column})) != was}


MODEL = {name: one for name, one in ESTIMATORS.items() if {"q", "base"} <= reads(one)}
WEIGHTS = {name: one for name, one in ESTIMATORS.items() if reads(one) == {"reward", "weight"}}


@st.composite
def units(draw: st.DrawFn) -> Rounds:
    """Any rounds of 1 to 30 units with some weight and some match."""
    n = draw(st.integers(1, 20))
    columns = draw(arrays(np.float64, (5, n), elements=st.floats(0.0, 1.0)))
    match = draw(arrays(np.bool_, n))
    columns[0, 0], match[0] = draw(st.floats(0.01, 1.0)), True
    return Rounds(columns[1], 50.0 * columns[0] ** 2, columns[2], columns[3], columns[4], match)


# --- golden values ---


def test_golden(golden: Any, golden_rounds: Rounds) -> None:
    """Each estimator equals Open Bandit Pipeline's to 1e-9."""
    for name, estimator in OURS.items():
        found = estimate(estimator, golden_rounds)
        assert found == pytest.approx(float(golden[f"est_{name}"]), abs=1e-9), name


@pytest.mark.parametrize("method", ["slope", "mse"])
@pytest.mark.parametrize("name", TUNED)
def test_golden_tuned(name: str, method: Any, golden: Any, golden_rounds: Rounds) -> None:
    """λ is the one that Open Bandit Pipeline chooses, and so is the estimate."""
    estimator, lam = tuned(TUNED[name], golden_rounds, LAMBDAS, method)
    assert lam == estimator.lam == float(golden[f"est_{name}_{method}_lambda"])
    assert estimate(estimator, golden_rounds) == pytest.approx(float(golden[f"est_{name}_{method}"]), abs=1e-9)


def test_all_golden_values_are_compared(golden: Any) -> None:
    """No value of the file is left out."""
    met = set(OURS) | {f"{name}_{m}{end}" for name in TUNED for m in ("slope", "mse") for end in ("", "_lambda")}
    assert {key.removeprefix("est_") for key in golden if key.startswith("est_")} == met
    assert {estimator.name for estimator in OURS.values()} == set(ESTIMATORS)


def test_tuning_matches_open_bandit_pipeline() -> None:
    """On forty logs of 50 to 5,000 rows, λ is what Open Bandit Pipeline 0.5.7 chose (`_obp_tuning.py`)."""
    theirs = json.loads((Path(__file__).parents[1] / "data/obp_tuning.json").read_text(encoding="utf-8"))
    found: dict[str, dict[str, list[str]]] = {name: {m: [] for m in methods} for name, methods in theirs.items()}
    for seed in range(SEEDS):
        data = logged(seed)
        propensity = data.logged[np.arange(len(data.action)), data.action]
        rounds = rounds_of(data.target, propensity, data.model, data.action, data.reward)
        for name, methods in found.items():
            for method, chosen in methods.items():
                chosen.append(str(tuned(name, rounds, LAMBDAS, method)[1]))  # type: ignore[arg-type]
    assert found == theirs
    assert len({lam for methods in theirs.values() for chosen in methods.values() for lam in chosen}) > 3


# --- laws of all estimators: each example is given to every one of them ---


def check(expected: Callable[[Estimator], float], rounds: Rounds, names: Iterable[str], rel: float = 1e-9) -> None:
    """Each of these estimators gives the expected value; a failure names the estimator."""
    for name in names:
        assert estimate(ESTIMATORS[name], rounds) == pytest.approx(expected(ESTIMATORS[name]), rel=rel, abs=rel), name


def test_families() -> None:
    """The columns that change an estimate: weights alone, or an outcome model too."""
    assert set(WEIGHTS) == {"ips", "clipped_ips", "snips", "subgaussian_ips"}
    assert set(MODEL) == {"dr", "clipped_dr", "sndr", "switch_dr", "dr_os", "subgaussian_dr"}
    assert reads(ESTIMATORS["dm"]) == {"direct"}
    assert reads(ESTIMATORS["rejection"]) == {"reward", "match"}
    assert all(name == estimator.name for name, estimator in ESTIMATORS.items())


@given(rounds=units())
def test_logging_policy_gives_the_mean(rounds: Rounds) -> None:
    """Under the logging policy itself weights are 1, and the estimate is the sample mean."""
    rounds = rounds._replace(weight=np.ones_like(rounds.weight))
    check(lambda _: float(rounds.reward.mean()), rounds, WEIGHTS, 1e-12)


@given(rounds=units())
def test_without_a_model_doubly_robust_is_plain_weighting(rounds: Rounds) -> None:
    """A doubly robust estimate with a model of zero equals the one without a model."""
    zero = np.zeros_like(rounds.q)
    blank = rounds._replace(q=zero, base=zero, direct=zero)
    for suffix in ("", "clipped_", "subgaussian_"):
        check(lambda _, plain=f"{suffix}ips": estimate(ESTIMATORS[plain], blank), blank, [f"{suffix}dr"], 1e-12)  # type: ignore[misc]
    check(lambda _: estimate(SNIPS(), blank), blank, ["sndr"], 1e-12)


@given(rounds=units())
def test_exact_model_is_exact(rounds: Rounds) -> None:
    """With no residuals, weights do not matter: the estimate is the model's."""
    rounds = rounds._replace(reward=rounds.q.copy())
    check(lambda _: float(rounds.base.mean()), rounds, MODEL, 1e-12)


@given(rounds=units(), seed=st.integers(0, 2**32 - 1))
def test_order_does_not_matter(rounds: Rounds, seed: int) -> None:
    """Units in any order give the same estimate."""
    order = np.random.default_rng(seed).permutation(len(rounds.reward))
    shuffled = Rounds(*(column[order] for column in rounds if column is not None))
    check(lambda estimator: estimate(estimator, rounds), shuffled, ESTIMATORS)


@given(rounds=units(), scale=st.floats(-5.0, 5.0))
def test_scaling(rounds: Rounds, scale: float) -> None:
    """Scaling outcomes and their model scales the estimate."""
    scaled = rounds._replace(**{name: scale * getattr(rounds, name) for name in ("reward", "q", "base", "direct")})
    check(lambda estimator: scale * estimate(estimator, rounds), scaled, ESTIMATORS)


@given(rounds=units(), shift=st.floats(-5.0, 5.0))
def test_shift(rounds: Rounds, shift: float) -> None:
    """Shifting outcomes and their model shifts the estimate, except for unnormalised weighting."""
    shifted = rounds._replace(**{name: getattr(rounds, name) + shift for name in ("reward", "q", "base", "direct")})
    names = sorted(set(ESTIMATORS) - {"ips", "clipped_ips", "subgaussian_ips"})
    check(lambda estimator: estimate(estimator, rounds) + shift, shifted, names, 1e-8)


@given(rounds=units())
def test_no_shrinkage_is_the_plain_estimator(rounds: Rounds) -> None:
    """At the end of λ nothing is shrunk."""
    for limit in (ClippedIPS(math.inf), SubgaussianIPS(0.0)):
        assert estimate(limit, rounds) == pytest.approx(estimate(IPS(), rounds), rel=1e-12), limit.name
    for limit in (ClippedDR(math.inf), SwitchDR(math.inf), DRos(math.inf), SubgaussianDR(0.0)):  # type: ignore[assignment]
        assert estimate(limit, rounds) == pytest.approx(estimate(DR(), rounds), rel=1e-12), limit.name


def test_hard_shrinkage_is_the_model() -> None:
    """At the other end of λ the model alone is left."""
    rounds = some()
    for kind in (ClippedDR, SwitchDR, DRos):
        assert estimate(kind(1e-12), rounds) == pytest.approx(rounds.base.mean(), abs=1e-6), kind.name


@settings(max_examples=20)
@given(rounds=units(), against=units())
def test_gradient(rounds: Rounds, against: Rounds) -> None:
    """The gradient is that of the value, of one policy and of a pair; several slices at once."""
    n = min(len(rounds.reward), len(against.reward))
    first, second = (Rounds(*(c[:n] for c in some if c is not None)) for some in (rounds, against))
    for estimator in ESTIMATORS.values():
        for one in (estimator, Paired(estimator, second)):
            means = one.moments(first).mean(axis=1) + np.array([[0.0], [0.25]])
            step = 1e-6 * np.abs(means).max() * np.eye(means.shape[1])[:, None]
            slope = (one.value(means + step) - one.value(means - step)) / (2e-6 * np.abs(means).max())
            scale = np.abs(slope).max()
            np.testing.assert_allclose(
                one.gradient(means), slope.T, rtol=1e-4, atol=1e-4 * scale, err_msg=estimator.name
            )


def expectations(estimator: Estimator, seed: int) -> tuple[Floats, float]:
    """Mean columns over every arm as often as it is drawn, float64[c], and the true value."""
    rng = np.random.default_rng(seed)
    pmf, truth, model = rng.dirichlet(np.ones(4), 30), rng.random((30, 4)), rng.random((30, 4))
    # Rejection replay is for a log that was drawn uniformly.
    logged = np.full((30, 4), 0.25) if estimator.name == "rejection" else 0.8 * rng.dirichlet(np.ones(4), 30) + 0.05
    direct = np.repeat((pmf * model).sum(axis=1), 4)
    columns = estimator.moments(
        Rounds(truth.ravel(), (pmf / logged).ravel(), model.ravel(), direct, direct, np.ones(120, dtype=bool))
    )
    often = logged * pmf if estimator.name == "rejection" else logged
    return (columns * often.ravel()).sum(axis=1) / 30.0, float((pmf * truth).sum(axis=1).mean())


@pytest.mark.parametrize("name", ["ips", "snips", "dr", "sndr", "rejection"])
def test_unbiased_in_expectation(name: str) -> None:
    """At expected columns, every arm as often as it is drawn, the value is the truth, whatever the model says."""
    for seed in range(20):
        means, truth = expectations(ESTIMATORS[name], seed)
        assert float(ESTIMATORS[name].value(means)) == pytest.approx(truth, abs=1e-12)


# --- undefined estimates and invalid arguments ---


def test_ratios_without_any_weight_are_nan() -> None:
    """Ratio estimators give NaN, without a warning, if all weights are 0."""
    rounds = some(5)._replace(weight=np.zeros(5), match=np.zeros(5, dtype=bool))
    for name in ("snips", "sndr", "rejection"):
        assert math.isnan(estimate(ESTIMATORS[name], rounds)), name


def test_an_estimate_needs_units() -> None:
    """An estimate over no units is an error with a remedy."""
    for estimator in ESTIMATORS.values():
        with pytest.raises(InvalidLog, match="widen the window"):
            estimate(estimator, some(0))


def test_invalid_arguments_are_refused() -> None:
    """λ out of range, rejection without matches, and pairs of unequal length."""
    for kind in (ClippedIPS, ClippedDR, SwitchDR, DRos):
        for lam in (0.0, -1.0, math.nan):
            with pytest.raises(ConfigError, match="above 0"):
                kind(lam)
    for share in (SubgaussianIPS, SubgaussianDR):
        for lam in (-0.1, 1.0, math.nan):
            with pytest.raises(ConfigError, match="to below 1"):
                share(lam)
    with pytest.raises(ConfigError, match="match"):
        estimate(Rejection(), some()._replace(match=None))
    with pytest.raises(ConfigError, match="400 and 7 units"):
        estimate(Paired(DR(), some(7)), some())


def test_a_paired_estimate_is_the_difference() -> None:
    """A paired estimate is one policy's minus the other's."""
    for estimator in ESTIMATORS.values():
        pair = Paired(estimator, some(seed=1))
        assert pair.name == estimator.name
        difference = estimate(estimator, some()) - estimate(estimator, some(seed=1))
        assert estimate(pair, some()) == pytest.approx(difference, abs=1e-12)


# --- λ ---


@pytest.mark.parametrize("name", ["clipped_ips", "clipped_dr", "switch_dr", "dr_os"])
@pytest.mark.parametrize("method", ["slope", "mse"])
def test_order_of_lambdas_does_not_matter(name: str, method: Any) -> None:
    """The chosen λ does not depend on the order of the candidates."""
    assert tuned(name, some(), LAMBDAS[::-1], method)[1] == tuned(name, some(), LAMBDAS, method)[1]


def test_slope_shrinks_where_it_costs_nothing() -> None:
    """With an exact model shrinkage has no bias, so that the narrowest estimate is taken; λ = ∞ where all are one."""
    rounds = some(2000)
    right = rounds._replace(reward=np.random.default_rng(1).normal(rounds.q, 0.3))
    assert tuned("dr_os", right)[1] == 1.0
    assert tuned("switch_dr", rounds._replace(weight=np.ones(2000)))[1] == math.inf


def test_slope_does_not_shrink_into_bias() -> None:
    """With many units and a model that is far off, hard shrinkage disagrees with the rest and is not taken."""
    rounds = some(200_000)
    wrong = rounds._replace(q=np.zeros_like(rounds.q), base=np.zeros_like(rounds.q))
    assert tuned("dr_os", wrong)[1] > 5.0
    assert tuned("clipped_ips", wrong)[1] > 1.0


def test_mse_bound_is_above_the_variance() -> None:
    """The bound holds variance and a bias that is never 0: it grows with shrinkage where the model is off."""
    rounds = some(5000)
    wrong = rounds._replace(q=np.ones_like(rounds.q), base=np.ones_like(rounds.q))
    assert mse_bound(DR(), wrong) > float(DR().score(wrong).var()) / 5000
    bounds = [mse_bound(SwitchDR(lam), wrong) for lam in (1.0, 2.0, math.inf)]
    assert bounds == sorted(bounds, reverse=True)


def test_tuning_refuses_invalid_arguments() -> None:
    """Invalid names, methods and numbers are refused with what is allowed."""
    with pytest.raises(ConfigError, match="clipped_dr, clipped_ips, dr_os, switch_dr"):
        tuned("snips", some())
    with pytest.raises(ConfigError, match="'slope' or 'mse'"):
        tuned("dr_os", some(), method="best")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least one"):
        tuned("dr_os", some(), ())
    with pytest.raises(ConfigError, match="delta"):
        tuned("dr_os", some(), delta=0.6)
    with pytest.raises(InvalidLog, match="1 units"):
        tuned("dr_os", some(1))
