"""Laws of what a head is worth on a pool: closed forms equal brute force, and what is known of extreme heads holds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from benchmarks.research._optimum import KLS, best_of, kl_at, optimum
from benchmarks.research.pool import (
    Reference,
    measure_head,
    pair_accuracy,
    predictiveness,
    routing_regret,
    run_pool,
    run_pools,
)
from benchmarks.research.pool_votes import vote_family, vote_pool
from hypothesis import given, settings
from hypothesis import strategies as st

from fitrouter.context.encoders import get_encoder
from fitrouter.errors import ConfigError
from fitrouter_evaluators.datasets import Pair, Text
from fitrouter_evaluators.scoring import ResponseFeatures

seeds = st.integers(0, 10_000)


def _reference(rng: np.random.Generator, U: int = 3, N: int = 12, K: int = 5, tasks: int = 2) -> Reference:
    known = np.arange(N) % 2 == 0
    models = tuple(f"m{k}" for k in range(K))
    return Reference(models, rng.normal(size=(U, N, K)), known, (np.arange(N) // 2 % tasks).astype(np.int64))


# --- best of N ---


@given(seeds, st.integers(2, 7), st.booleans())
@settings(max_examples=60)
def test_best_of_n_is_the_mean_over_all_subsets(seed: int, K: int, ties: bool) -> None:
    """The closed form equals brute force over every subset of N answers, ties of the head broken at random."""
    rng = np.random.default_rng(seed)
    s = rng.integers(0, 3, K).astype(float) if ties else rng.normal(size=K)
    u = rng.normal(size=K)
    found = best_of(s, u)
    for N in range(1, K + 1):
        picks = []
        for subset in itertools.combinations(range(K), N):
            chosen = np.array(subset)
            top = chosen[s[chosen] == s[chosen].max()]
            picks.append(u[top].mean())
        assert found[N - 1] == pytest.approx(np.mean(picks), abs=1e-12)


@given(seeds)
@settings(max_examples=30)
def test_best_of_n_needs_only_the_order(seed: int) -> None:
    """Any strictly rising transform of the scores leaves best of N, pair accuracy and the N = 1 mean as they are."""
    rng = np.random.default_rng(seed)
    s, u = rng.normal(size=(4, 6)), rng.normal(size=(4, 6))
    np.testing.assert_array_equal(best_of(s, u), best_of(np.exp(s), u))
    np.testing.assert_array_equal(pair_accuracy(s, u)[0], pair_accuracy(np.tanh(s / 4), u)[0])
    np.testing.assert_allclose(best_of(s, u)[:, 0], u.mean(axis=1), atol=1e-12)


# --- the optimum of the PPO objective ---


@given(seeds, st.integers(2, 8), st.integers(1, 6), st.floats(1e-3, 1e3))
@settings(max_examples=60)
def test_the_grid_of_nats_is_hit(seed: int, K: int, N: int, scale: float) -> None:
    """Every KL below the limit is reached to 1e-9; beyond it the policy is the pick, and its KL is the limit."""
    rng = np.random.default_rng(seed)
    r = scale * rng.normal(size=(N, K))
    found = optimum(r, rng.normal(size=(N, K)))
    reachable = found.limit - 1e-9 > KLS
    np.testing.assert_allclose(found.kl[reachable], KLS[reachable], atol=1e-9)
    np.testing.assert_allclose(found.kl[found.limit + 1e-9 < KLS], found.limit, atol=1e-9)
    assert found.limit == pytest.approx(math.log(K))
    for t, kl in zip(found.t[reachable], found.kl[reachable], strict=True):
        assert kl_at(r, float(t)) == pytest.approx(kl, abs=1e-9)


@given(seeds, st.floats(0.01, 100.0), st.floats(-50.0, 50.0))
@settings(max_examples=30)
def test_the_curve_does_not_know_scale_or_level(seed: int, scale: float, level: float) -> None:
    """β absorbs a positive scale, and π a level of each prompt; the curve along the KL is the same."""
    rng = np.random.default_rng(seed)
    r, u = rng.normal(size=(5, 6)), rng.normal(size=(5, 6))
    moved = scale * r + level * rng.normal(size=(5, 1))
    np.testing.assert_allclose(optimum(moved, u).utility, optimum(r, u).utility, atol=1e-6)


def test_no_nats_is_the_mean_and_many_are_the_pick() -> None:
    """At 0 nats the policy is uniform; past the limit it is the head's pick, ties sharing it."""
    rng = np.random.default_rng(0)
    r, u = rng.normal(size=(4, 6)), rng.normal(size=(4, 6))
    r[0, :3] = 9.0
    found = optimum(r, u, np.array([0.0, 5.0]))
    np.testing.assert_allclose(found.utility[:, 0], u.mean(axis=1), atol=1e-12)
    np.testing.assert_allclose(found.utility[:, 1], best_of(r, u)[:, -1], atol=1e-12)
    assert found.limit == pytest.approx((math.log(2) + 3 * math.log(6)) / 4)


@given(seeds)
@settings(max_examples=30)
def test_the_optimum_is_the_best_policy_of_its_kl(seed: int) -> None:
    """No other policy of the same KL has more expected reward: mixtures with random ones are worse by E r − β KL."""
    rng = np.random.default_rng(seed)
    r = rng.normal(size=(1, 5))
    found = optimum(r, r, np.array([0.5]))
    beta = 1.0 / float(found.t[0])
    value = float(found.utility[0, 0]) - beta * float(found.kl[0])
    for other in rng.dirichlet(np.ones(5), size=50):
        kl = float((other * np.log(other * 5 + 1e-300)).sum())
        assert float(other @ r[0]) - beta * kl <= value + 1e-9


def test_a_head_without_opinions_stays_uniform() -> None:
    """Equal scores: no nats can be reached and the utility is the mean everywhere."""
    u = np.random.default_rng(0).normal(size=(3, 4))
    found = optimum(np.zeros((3, 4)), u)
    assert found.limit == 0.0
    np.testing.assert_allclose(found.kl, 0.0, atol=1e-12)
    np.testing.assert_allclose(found.utility, np.repeat(u.mean(axis=1)[:, None], len(KLS), axis=1), atol=1e-12)


# --- pairs ---


def test_pair_accuracy_counts_pairs_and_votes() -> None:
    """Two of three pairs right, one tie of the head: 2.5 / 3; votes are right with σ(|Δu|) where the head is."""
    u, s = np.array([[0.0, 1.0, 3.0]]), np.array([[0.0, 0.0, 1.0]])
    clean, votes = pair_accuracy(s, u)
    sure = [1 / (1 + math.exp(-gap)) for gap in (1.0, 3.0, 2.0)]
    assert clean[0] == pytest.approx(2.5 / 3)
    assert votes[0] == pytest.approx((0.5 + sure[1] + sure[2]) / 3)


def test_ties_of_the_reference_are_no_pairs() -> None:
    """A pair that the user does not care about says nothing of a head; where there is no other it is NaN."""
    u, s = np.array([[0.0, 0.0, 1.0], [2.0, 2.0, 2.0]]), np.array([[1.0, 0.0, 2.0], [1.0, 2.0, 3.0]])
    clean, votes = pair_accuracy(s, u)
    assert clean[0] == 1.0
    assert np.isnan(clean[1])
    assert votes[1] == 0.5


# --- routing ---


def test_routing_by_the_utilities_of_known_prompts_has_no_regret_where_they_hold() -> None:
    """With utilities that depend on user, task and model alone the oracle head has none, and its negation the most."""
    rng = np.random.default_rng(1)
    reference = _reference(rng)
    level = rng.normal(size=(3, 2, 5))
    fixed = Reference(reference.models, level[:, reference.task], reference.known, reference.task)
    np.testing.assert_allclose(routing_regret(fixed.utility, fixed), 0.0, atol=1e-12)
    worst = routing_regret(-fixed.utility, fixed).mean()
    assert worst == pytest.approx((level.max(axis=2) - level.min(axis=2)).mean())


@given(seeds)
@settings(max_examples=30)
def test_no_head_beats_the_feasible_oracle(seed: int) -> None:
    """The mean regret over a task's prompts is never below 0, and of a head without opinions it is random routing's."""
    rng = np.random.default_rng(seed)
    reference = _reference(rng)
    regret = routing_regret(rng.normal(size=reference.utility.shape), reference)
    task = reference.task[~reference.known]
    assert min(regret[:, task == t].mean(axis=1).min() for t in np.unique(task)) >= -1e-12
    blank = routing_regret(np.zeros(reference.utility.shape), reference)
    here = reference.utility[:, ~reference.known]
    best = np.mean([here[:, task == t].mean(axis=1).max(axis=1).mean() for t in np.unique(task)])
    assert blank.mean() == pytest.approx(best - here.mean())


def test_a_task_without_known_prompts_is_routed_by_all() -> None:
    """A task that was never seen gets the model that is best over all known prompts."""
    utility = np.zeros((1, 4, 2))
    utility[0, :, 1] = 1.0
    reference = Reference(("a", "b"), utility, np.array([True, True, False, False]), np.array([0, 0, 0, 1]))
    np.testing.assert_array_equal(routing_regret(utility, reference), 0.0)


# --- the whole ---


def test_oracle_and_its_negation_frame_every_head() -> None:
    """The oracle's curve rises to 2 nats and loses nothing; the anti-oracle loses from the first step on."""
    rng = np.random.default_rng(3)
    reference = _reference(rng, U=6, N=40, K=11)
    u = reference.utility
    noise = rng.normal(size=u.shape)
    out = run_pool(
        {
            "oracle": lambda user: u[user],
            "noisy": lambda user: u[user] + noise[user],
            "anti": lambda user: -u[user],
        },
        reference,
        resamples=50,
    )
    oracle, noisy, anti = (out["heads"][name] for name in ("oracle", "noisy", "anti"))
    assert (np.diff(oracle["along"]) > 0).all()
    assert oracle["peak"] == "none up to 2 nats"
    assert oracle["lost_at_2_nats"] == oracle["past_their_peak"] == 0.0
    assert oracle["accuracy"][0] == oracle["share_of_oracle"] == 1.0
    assert anti["accuracy"][0] == 0.0
    assert anti["peak_nats"] == 0.0
    assert anti["along"][-1] < -1.0
    assert anti["lost_at_2_nats"] == pytest.approx(-anti["along"][-1])
    for key in ("accuracy", "vote_accuracy", "best_of_all"):
        assert anti[key][0] < noisy[key][0] < oracle[key][0]
        assert noisy[key][1] <= noisy[key][0] <= noisy[key][2]
    assert oracle["best_of"] == out["oracle"]["best_of"]
    assert out["predicts"]["best_of_all"]["spearman"][0] == 1.0


def test_a_head_that_is_fooled_by_one_answer_over_optimises() -> None:
    """A head right on all pairs but those of one bad answer has high accuracy, and loses at 2 nats what it had."""
    rng = np.random.default_rng(4)
    K = 11
    base = _reference(rng, U=3, N=40, K=K)
    utility = base.utility.copy()
    utility[:, :, 0] = -3.0
    reference = Reference(base.models, utility, base.known, base.task)
    fooled = utility.copy()
    fooled[:, :, 0] = 6.0
    row = run_pool({"fooled": lambda user: fooled[user]}, reference, resamples=20)["heads"]["fooled"]
    assert row["accuracy"][0] == pytest.approx(1.0 - 2.0 / K, abs=1e-3)
    assert row["best_of"][1] > 0.1
    assert row["best_of_all"][0] < -2.0
    assert row["peak_nats"] is not None
    assert row["lost_at_2_nats"] > 1.0


def test_several_pools_put_their_users_together() -> None:
    """Means over two pools of as many users are the mean of their means; pools that do not match are refused."""
    rng = np.random.default_rng(8)
    pools = []
    for _ in range(2):
        reference = _reference(rng, U=4)
        scores = rng.normal(size=reference.utility.shape)
        pools.append(({"a": lambda user, scores=scores: scores[user]}, reference))
    both = run_pools(pools, resamples=10)
    apart = [run_pool(*one, resamples=10)["heads"]["a"] for one in pools]
    assert both["users"] == 8
    for key in ("accuracy", "best_of_all", "routing_regret"):
        assert both["heads"]["a"][key][0] == pytest.approx(np.mean([one[key][0] for one in apart]), abs=1e-4)
    with pytest.raises(ValueError, match="one by one"):
        run_pools([pools[0], (pools[1][0], _reference(rng, N=20))])


def test_predictiveness_sees_order_and_its_absence() -> None:
    """An outcome that rises with accuracy has correlation 1, one that falls −1, one that never differs none."""
    accuracy = np.linspace(0.5, 0.9, 8)[:, None] + np.zeros(4)
    keys = ("best_of_4", "best_of_all", "at_1_nat", "at_2_nats", "kept_at_2_nats", "routing_gain")
    outcomes = {
        f"h{i}": {"accuracy": a, **dict.fromkeys(keys, a), "at_2_nats": -a, "kept_at_2_nats": 0 * a}
        for i, a in enumerate(accuracy)
    }
    found = predictiveness(outcomes, np.random.default_rng(0).integers(4, size=(40, 4)))
    assert found["best_of_4"]["spearman"] == found["best_of_4"]["kendall"] == [1.0, 1.0, 1.0]
    assert found["at_2_nats"]["kendall"][0] == -1.0
    assert found["kept_at_2_nats"]["kendall"] is None


def test_what_cannot_be_measured_is_refused() -> None:
    """Shapes that differ, scores that are no numbers, and pools with nothing to learn from or measure on."""
    rng = np.random.default_rng(0)
    reference = _reference(rng)
    with pytest.raises(ValueError, match="must be finite"):
        measure_head(np.full(reference.utility.shape, np.nan), reference)
    with pytest.raises(ValueError, match="shape"):
        measure_head(np.zeros((3, 12, 4)), reference)
    with pytest.raises(ValueError, match="leave some"):
        Reference(reference.models, reference.utility, np.ones(12, dtype=bool), reference.task)
    with pytest.raises(ValueError, match="do not fit"):
        Reference(("a",), reference.utility, reference.known, reference.task)
    with pytest.raises(ValueError, match="heads is empty"):
        run_pool({}, reference)


# --- votes as the reference ---


def _vote_rows(rng: np.random.Generator, N: int = 40, each: int = 30) -> list[Pair]:
    """Votes on answers whose worth is their model's and falls with the place: m0 best."""
    rows = []
    for n in range(N):
        for _ in range(each):
            a, b = (int(k) for k in rng.choice(4, 2, replace=False))
            label = float(rng.random() < 1 / (1 + np.exp(1.0 * (a - b))))
            texts = [Text(f"answer {'word ' * (k + 1)} to {n}", model=f"m{k}") for k in (a, b)]
            rows.append(Pair(f"u{n}", f"prompt {n}", *texts, label, extra={"category": n % 2}))
    return rows


def test_votes_give_back_the_utilities_they_were_drawn_from() -> None:
    """Bradley–Terry utilities of 1,200 votes: models one logit apart, and intervals over prompts."""
    pool = vote_pool(_vote_rows(np.random.default_rng(0)))
    level = pool.reference.utility[0].mean(axis=0)
    np.testing.assert_allclose(np.diff(level), -1.0, atol=0.25)
    assert pool.reference.models == ("m0", "m1", "m2", "m3")
    assert pool.answers[3][2] == "answer word word word  to 3"
    out = run_pool({"known": lambda user: pool.reference.utility[user]}, pool.reference, resamples=30)
    row = out["heads"]["known"]
    assert out["users"] == 1
    assert row["accuracy"] == [1.0, 1.0, 1.0]
    assert row["peak"] == "none up to 2 nats"
    assert row["saturated_users"] == 1.0
    assert row["best_of_all"][1] < row["best_of_all"][0] < row["best_of_all"][2]
    assert row["past_their_peak"] == 0.0


def test_heads_learn_from_votes_on_known_prompts() -> None:
    """The name of the model, and the text that gives it away, are learnt; the reversed reference is all wrong."""
    pool = vote_pool(_vote_rows(np.random.default_rng(1)))
    features = ResponseFeatures(get_encoder("hashing"), latent=2)
    heads = vote_family(pool, features, get_encoder("hashing"))
    out = run_pool(heads, pool.reference, resamples=30)["heads"]
    assert out["reversed"]["accuracy"][0] == 0.0
    assert out["reference"]["share_of_oracle"] == 1.0
    assert out["model's name, 600 votes"]["accuracy"][0] > 0.9
    assert out["text, 600 votes"]["accuracy"][0] > 0.8
    assert out["shortest"]["accuracy"][0] > 0.9 > out["longest"]["accuracy"][0]


def test_a_pool_of_votes_needs_all_answers() -> None:
    """Prompts that lack a model's answer are left out; with hardly any left the pool is refused."""
    rows = _vote_rows(np.random.default_rng(2), N=6)
    lone = Pair("u", "another", Text("x", model="m0"), Text("y", model="m1"), 1.0)
    assert "another" not in vote_pool([*rows, lone]).prompts
    with pytest.raises(ConfigError, match="at least 4"):
        vote_pool([lone])
