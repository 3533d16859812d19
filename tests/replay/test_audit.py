"""Honest logs are believed, and those whose probabilities are not those of the draws are not."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.replay import log_of
from tests.kits.replay_logs import ONLINE, STICKY, make_log
from tests.kits.replay_story import story
from tests.kits.tables import table_driven
from tests.monitors.test_propensities import CORRECT, arm_times, chosen_times, relabel

from fitrouter.draw import draws, landing, replay
from fitrouter.errors import InvalidLog
from fitrouter.monitors.e_process import MixtureEProcess
from fitrouter.monitors.propensities import ALPHA
from fitrouter.monitors.propensities import audit as audit_of_events
from fitrouter.types import Decision, Mode
from fitrouter_evaluators.replay.log._draws import uniforms_of, uuid_words
from fitrouter_evaluators.replay.log.audit import _freedman, audit, e_process_path
from fitrouter_evaluators.replay.log.log import MODES, Log
from fitrouter_evaluators.replay.log.validation import validate
from fitrouter_evaluators.replay.report import Check

L, D, K = 6, 3, 4


def found(log: Log) -> dict[str, Check]:
    return {check.name: check for check in audit(log)}


def failed(log: Log) -> set[str]:
    return {check.name for check in audit(log) if not check.ok}


# --- draws again, and wealth ---------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**128 - 1)), min_size=1, max_size=20))
def test_vectorised_draws_equal_single_draws(pairs: list[tuple[int, int]]) -> None:
    """Bit for bit, for any seeds and ids."""
    ids = np.array([str(uuid.UUID(int=number)) for _, number in pairs], dtype=object)
    words = uuid_words(ids)
    assert words is not None
    mine = uniforms_of(np.array([seed for seed, _ in pairs], dtype=np.uint64), words, 4)
    one_by_one = np.array([draws(seed, name, 4) for (seed, _), name in zip(pairs, ids, strict=True)])
    np.testing.assert_array_equal(mine, one_by_one)


@pytest.mark.parametrize(
    "name", ["d7", "", "g" * 36, "é" * 36, "0" * 36, "-" * 36, "00000000-0000-0004-0000-00000000000"]
)
def test_foreign_ids_cannot_be_redrawn(name: str) -> None:
    """Ids of imported logs cannot be redrawn, which is reported and is not a failure."""
    good = str(uuid.UUID(int=1))
    assert uuid_words(np.array([good, name], dtype=object)) is None
    log = make_log(np.full((2, 2), 0.5), np.zeros(2, dtype=int), decisions={"seed": np.array([1, 1], dtype=object)})
    assert "not possible" in found(log)["draws repeated from their seeds"].detail


@given(st.integers(0, 2**32 - 1), st.integers(1, 300))
@settings(max_examples=20)
def test_the_e_process_path_matches_the_online_mixture(seed: int, n: int) -> None:
    """Observation by observation equal to `fitrouter.monitors.e_process.Mixture`, also near 0."""
    rng = np.random.default_rng(seed)
    factors, weights = np.exp(rng.normal(-0.1, 1.0, (3, n))), np.array([0.2, 0.3, 0.4])
    fold, one_by_one = MixtureEProcess(weights), []
    for column in factors.T:
        fold.multiply(column)
        one_by_one.append(fold.value)
    np.testing.assert_allclose(e_process_path(np.log(factors), weights, n), one_by_one, rtol=1e-9)


@pytest.mark.parametrize("alter", [None, chosen_times(1.05), arm_times(0.8)])
def test_the_audit_matches_the_online_monitor(alter: Callable[[Decision], Decision] | None) -> None:
    """The e-process and χ² equal those of the gateway's monitor, on valid and altered logs."""
    events = [d if alter is None else alter(d) for d in CORRECT[:3000]]
    watched = audit_of_events(events, replays=False)
    log = log_of(events)
    checks = found(log._replace(decisions=log.decisions._replace(seed=None)))
    detail = checks["e-process against the probabilities"].detail
    assert f"evidence against the logged probabilities is {watched.peak['all']:.3g} (about 1 if the draws " in detail
    counts = f"χ² = {watched.chi2:.1f} with {watched.chi2_dof} degrees of freedom, p = {watched.chi2_p:.3g}"
    assert counts in checks["choices against probabilities (χ²)"].detail
    assert checks["e-process against the probabilities"].ok == (watched.fired_at is None)


@table_driven("n", [5, 40, 400])
@table_driven("p", [0.01, 0.3, 0.5])
def test_freedmans_bound_is_above_the_binomial_tails(n: int, p: float) -> None:
    """P(|S − np| ≥ t) for every t that a count can be off."""
    pmf = np.array([math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])
    off = np.abs(np.arange(n + 1) - n * p)
    for t in off:
        assert pmf[off >= t - 1e-12].sum() <= _freedman(t, n * p * (1 - p), 1.0) + 1e-12


# --- honest logs ---------------------------------------------------------------------------------------------------


def test_router_logs_pass_the_audit() -> None:
    """Sessions, redraws, the uniform slice, the default's share: every draw follows from its seed."""
    checks = found(log_of(story(120)))
    assert all(check.ok for check in checks.values())
    assert "bit for bit" in checks["draws repeated from their seeds"].detail


RNG = np.random.default_rng(5)
TRUE = RNG.normal(size=(D, K))
LOGGED, TARGET = TRUE + RNG.normal(0.0, 0.6, (D, K)), TRUE + RNG.normal(0.0, 0.3, (D, K))


def policy(x: np.ndarray, weights: np.ndarray, sharp: float = 2.0) -> np.ndarray:
    """float64[..., K]: softmax with a floor."""
    scores = np.exp(sharp * (x @ weights))
    return 0.95 * scores / scores.sum(-1, keepdims=True) + 0.05 / K


def sessions(seed: int, n: int, kind: str, seeded: bool = False) -> Log:
    """Sessions of six turns whose contexts drift, each turn logged as a draw from the policy's pmf.

    Args:
        seed: of the world.
        n: sessions.
        kind: how turns after the first came about. fresh: drawn. sticky: the session's arm. switch: the session's arm
            until another seems better by 1.2, then that one.
        seeded: whether ids and seeds are those that the draws came from.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(L, n, D))
    for t in range(1, L):
        x[t] = 0.7 * x[t - 1] + 0.71 * x[t]
    probs = policy(x, LOGGED)
    ids = np.array([str(uuid.UUID(int=seed << 64 | i)) for i in range(L * n)], dtype=object)
    words = uuid_words(ids)
    assert words is not None
    u = uniforms_of(np.full(L * n, 7, dtype=np.uint64), words)[:, 0].reshape(L, n)
    edges = np.cumsum(probs, axis=-1)
    drew = np.minimum((edges <= (u * edges[..., -1])[..., None]).sum(-1), K - 1)
    for t in range(1, L):
        if kind != "fresh":
            drew[t] = drew[t - 1]
        if kind == "switch":
            means = x[t] @ LOGGED
            best = means.argmax(-1)
            gain = means.max(-1) - means[np.arange(n), drew[t]]
            drew[t] = np.where(gain > 1.2, best, drew[t])
    return make_log(
        probs.reshape(-1, K),
        drew.ravel(),
        decisions={"session": np.tile(np.arange(n), L), "user": np.tile(np.arange(n) % 50, L), "x": x.reshape(-1, D)}
        | ({"id": ids, "seed": np.full(L * n, 7, dtype=object)} if seeded else {}),
    )


def test_a_clean_log_passes() -> None:
    """Of 40 clean logs of 800 sessions at most one fails any check; with seeds all their draws are repeated."""
    assert sum(bool(failed(sessions(seed, 800, "fresh"))) for seed in range(40)) <= 1
    assert not failed(sessions(1, 800, "fresh", seeded=True))


# --- hidden switches -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["switch", "sticky"])
@pytest.mark.parametrize("seed", range(5))
def test_an_unlogged_rule_is_detected(kind: str, seed: int) -> None:
    """Turns that kept their model, or left it by a threshold, with the policy's pmf in the log.

    The mean weight of a candidate would not tell: for the switch it is 1 within 0.06.
    """
    log = sessions(seed, 800, kind)
    checks = found(log)
    assert not checks["repeated arms of a session"].ok
    assert "were not drawn" in checks["repeated arms of a session"].detail
    if kind == "switch":
        wanted = policy(log.decisions.x, TARGET, 3.0).ravel()[log.decisions.chosen]  # type: ignore[arg-type]
        assert abs(float((wanted / log.decisions.propensity).mean()) - 1.0) < 0.06


def test_a_choice_that_contradicts_its_seed_is_named() -> None:
    """With seeds in the log, the first turn that was not drawn is named."""
    log = sessions(3, 800, "switch", seeded=True)
    with pytest.raises(InvalidLog, match="its seed and its pmf give the arm") as refused:
        audit(log)
    row = int(str(refused.value).split("row ")[1].split(" ")[0])
    at = int(log.decisions.chosen[row])
    pmf = log.options.prob[log.decisions.start[row] : log.decisions.start[row + 1]]
    u = float(draws(7, log.decisions.id[row], 1)[0])
    assert landing(pmf, u)[0] != at - log.decisions.start[row]
    assert row >= 800


def test_a_sticky_turn_with_another_arm_is_refused() -> None:
    """A sticky turn must have its draw's arm."""
    log, n = sessions(3, 800, "switch"), 800
    rows = np.arange(L * n)
    later = log._replace(
        decisions=log.decisions._replace(
            mode=np.where(rows < n, ONLINE, STICKY), draw=np.tile(np.arange(n), L), propensity=np.ones(L * n)
        )
    )
    stay = later._replace(
        decisions=later.decisions._replace(propensity=np.where(rows < n, log.decisions.propensity, 1.0))
    )
    with pytest.raises(InvalidLog, match="it is sticky with the arm"):
        validate(stay)


def test_a_greedy_switch_logged_as_a_draw_is_detected() -> None:
    """Kept arms are logged as sticky, and greedy switches as draws: the bets detect it."""
    log, n = sessions(3, 800, "switch"), 800
    arm = log.options.arm[log.decisions.chosen].reshape(L, n)
    switched = np.vstack([np.ones((1, n), dtype=bool), arm[1:] != arm[:-1]])
    last = np.where(switched, np.arange(L * n).reshape(L, n), 0)
    draw = np.maximum.accumulate(last, axis=0).ravel()
    honest = log._replace(
        decisions=log.decisions._replace(
            mode=np.where(switched.ravel(), ONLINE, STICKY),
            draw=draw,
            propensity=np.where(switched.ravel(), log.decisions.propensity, 1.0),
        )
    )
    validate(honest)
    assert "e-process against the probabilities" in failed(honest)


# --- other lies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "alter",
    [
        chosen_times(1.05),
        chosen_times(1 / 1.3),
        lambda d: relabel(d, np.array(d.probs) ** (1 / 1.15)),
        arm_times(0.8),
        lambda d: relabel(d, 0.9 * np.array(d.probs) + 0.1 / len(d.probs)),
    ],
)
def test_altered_probabilities_are_detected_without_seeds(alter: Callable[[Decision], Decision]) -> None:
    """Draws from another pmf than the logged one are detected by a bet or a count."""
    log = log_of([alter(d) for d in CORRECT])
    assert failed(log._replace(decisions=log.decisions._replace(seed=None)))


def test_a_single_altered_draw_is_named() -> None:
    """One changed arm, logged with its own probability, is named."""
    log = log_of(CORRECT)
    log = log._replace(decisions=log.decisions._replace(draw=np.arange(log.decisions.n)))
    chosen = log.decisions.chosen.copy()
    first, last = log.decisions.start[4321], log.decisions.start[4322]
    chosen[4321] = first + (chosen[4321] - first + 1) % (last - first)
    propensity = log.options.prob[chosen]
    wrong = log._replace(decisions=log.decisions._replace(chosen=chosen, propensity=propensity))
    validate(wrong)
    with pytest.raises(InvalidLog, match=r"row 4322 \(decision") as refused:
        audit(wrong)
    assert CORRECT[4321].id in str(refused.value)
    assert repr(replay(CORRECT[4321])) in str(refused.value)


def test_label_requests_are_audited() -> None:
    """Requests that contradict their seed, or are more frequent than logged, are detected."""
    log = log_of(story(40))
    decisions = log.decisions
    whim = log._replace(decisions=decisions._replace(asked=decisions.asked | (np.arange(decisions.n) == 17)))
    assert not decisions.asked[17]
    with pytest.raises(InvalidLog, match="asked is True, but its seed gives the opposite"):
        audit(whim)
    rng = np.random.default_rng(1)
    more = {"asked": rng.random(2000) < 0.2, "asked_probability": np.full(2000, 0.1)}
    assert failed(make_log(np.full((2000, 2), 0.5), rng.integers(0, 2, 2000), decisions=more)) == {"label requests"}


def test_a_violated_floor_is_named() -> None:
    """The check names the first draw with a probability below floor / K."""
    probs = np.tile([0.06, 0.94], (50, 1))
    log = make_log(probs, np.ones(50, dtype=int), decisions={"floor": np.where(np.arange(50) < 20, 0.12, 0.13)})
    check = found(log)["floor"]
    assert not check.ok
    assert "30 draws" in check.detail
    assert "row 20 " in check.detail


def test_a_non_uniform_slice_is_detected() -> None:
    """Draws of the slice must be uniform over the eligible arms, whatever the overall pmf."""
    rng = np.random.default_rng(2)
    uniform = np.full(3000, MODES.index(Mode.UNIFORM))
    probs = np.tile([0.2, 0.3, 0.5], (3000, 1))
    for chosen, ok in ((rng.integers(0, 3, 3000), True), (rng.choice(3, 3000, p=probs[0]), False)):
        assert found(make_log(probs, chosen, decisions={"mode": uniform}))["uniform slice"].ok is ok


def test_logs_with_propensities_only_are_audited() -> None:
    """Without pmfs an excess of 1/(K p) can still be caught; what cannot be asked is said."""
    rng = np.random.default_rng(3)
    probs = np.tile([0.1, 0.2, 0.7], (4000, 1))
    honest = make_log(probs, rng.choice(3, 4000, p=probs[0]))
    honest = honest._replace(options=honest.options._replace(prob=np.full(12_000, np.nan)))
    checks = found(honest)
    assert all(check.ok for check in checks.values())
    assert "holds only the propensities" in checks["choices against probabilities (χ²)"].detail
    assert checks["choices of each arm"].checked
    lying = honest._replace(decisions=honest.decisions._replace(propensity=honest.decisions.propensity * 0.8))
    assert failed(lying) == {"e-process against the probabilities", "choices of each arm"}


def test_a_log_without_draws_fails_the_audit() -> None:
    """A log without draws fails."""
    log = make_log(np.full((3, 2), 0.5), np.zeros(3, dtype=int), decisions={"mode": np.full(3, STICKY)})
    assert failed(log) == {"draws"}
    assert ALPHA == 1e-3
