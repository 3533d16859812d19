"""Tests whether the logged probabilities are those the arms were drawn with: off-policy evaluation depends on it.

With a known seed every draw is repeated bit for bit. Without it the log is tested by betting: for any pmf q' known
before a draw, the product of q'(chosen) / q(chosen) is an e-process if the draws came from the logged q, so it reaches
1/α with probability α at most (Ville 1939). Three families of bets are those of `monitors.propensities`; a fourth bets
that a session or user gets the same arm again, or never again: the mark of an arm kept or avoided by an unlogged rule.

Sums of choices minus probabilities are tested by Freedman's inequality (1975), with the logged variance V and the
largest step M: P(|S| ≥ t) ≤ 2 exp(−t² / (2 (V + M t/3))). It is not asymptotic, and holds for adaptive logs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fitrouter.monitors.propensities import ALPHA, ARMS, BETA, EPSILON, FIRST, TILT, chi2_tail
from fitrouter.types import Floats, Mode
from fitrouter_evaluators.replay.log._draws import Draws, blocks, draws_of_log, uniforms_of, uuid_words
from fitrouter_evaluators.replay.log.log import MODES, Ints, Log, refuse_where
from fitrouter_evaluators.replay.report import Check

_AGAIN = np.exp(np.array([-1.5, -0.5, 0.5, 1.5]))
"""Factors on the odds of the arm last drawn for the session or user."""
_EXCESS = (0.02, 0.1, 0.3)
"""Shares of the stake that are bet on a mean weight above 1."""
_EXPECTED = 10.0
"""χ² uses arms whose count has at least this variance, the `_WIDEST` largest of them."""
_WIDEST = 100
_UNKNOWN = "the log holds only the propensities of the chosen arms"
_Result: TypeAlias = tuple[bool | None, str]
"""Whether a check passed, None if there was nothing to check; and the detail."""
_NOT_POSSIBLE = None, f"not possible: {_UNKNOWN}"


def audit(log: Log) -> list[Check]:
    """Run all audits on a valid log.

    Each statistical test raises a false alarm with probability at most `propensities.ALPHA` (0.001).
    """
    draws = draws_of_log(log)
    if not draws.n:
        return [Check(name="draws", ok=False, detail="the log has no draws, so there are no probabilities to test")]
    decisions = log.decisions
    with_pmf: dict[str, Callable[[], _Result]] = {
        "repeated arms of a session": lambda: _repeats(log, draws, "session", decisions.session),
        "repeated arms of a user": lambda: _repeats(log, draws, "user", decisions.user),
        "choices against probabilities (χ²)": lambda: _overall(log, draws),
    }
    found = {
        "draws repeated from their seeds": _repeat_from_seeds(log, draws),
        "e-process against the probabilities": _bets(log, draws),
        **{name: test() if draws.known else _NOT_POSSIBLE for name, test in with_pmf.items()},
        "choices of each arm": (
            _largest_deviation(log, *_deviations(log, draws)) if draws.known else _arm_weights(log, draws)
        ),
        "mean weight of the uniform policy": _mean_weight(draws),
        "floor": _floor(log, draws) if draws.known else _NOT_POSSIBLE,
        "uniform slice": _uniform_slice(log, draws),
        "label requests": _label_requests(log),
    }
    return [
        Check(name=name, ok=ok is not False, detail=detail, checked=ok is not None)
        for name, (ok, detail) in found.items()
    ]


def _repeat_from_seeds(log: Log, draws: Draws) -> _Result:
    """Repeat every draw, and every draw of a label request, from its seed."""
    seeds, words = log.decisions.seed, uuid_words(log.decisions.id)
    if seeds is None or words is None or any(seed is None for seed in seeds.tolist()):
        return None, "not possible: the log has no seeds"
    if not draws.known:
        return _NOT_POSSIBLE
    u = uniforms_of(seeds.astype(np.uint64), words, 2)
    landed = np.empty(draws.n, dtype=np.int64)
    for some, probs, is_arm in blocks(draws):
        edges = np.cumsum(probs, axis=1)
        at = u[draws.rows[some], 0] * edges[:, -1]
        landed[some] = np.minimum((edges <= at[:, None]).sum(axis=1), is_arm.sum(axis=1) - 1)
    lands = np.full(log.decisions.n, -1, dtype=np.int64)
    lands[draws.rows] = draws.arm[draws.start[:-1] + landed]
    broken = np.zeros(log.decisions.n, dtype=np.bool_)
    broken[draws.rows] = draws.start[:-1] + landed != draws.chosen
    arms = log.names.arms
    refuse_where(
        log,
        broken,
        lambda row: (
            f"its seed and its pmf give the arm {arms[lands[row]]!r}, but it chose "
            f"{arms[log.options.arm[log.decisions.chosen[row]]]!r}"
        ),
        "a draw follows from its seed: the logged pmf is not the one drawn from, or the arm was chosen otherwise",
    )
    refuse_where(
        log,
        log.decisions.asked != (u[:, 1] < log.decisions.asked_probability),
        lambda row: f"asked is {bool(log.decisions.asked[row])}, but its seed gives the opposite",
        "label requests follow from the seed: the logged probability is not the one used",
    )
    return True, f"all {draws.n:,} draws are repeated bit for bit from their seeds"


def _bets(log: Log, draws: Draws) -> _Result:
    """Test the draws by an e-process: the mean of the three families of bets in `fitrouter.monitors.propensities`."""
    draws = draws.take(draws.possible > 1)
    paths = (
        [_uniformity_path(draws), _sharpness_path(draws), _odds_path(draws)]
        if draws.known
        else [_uniformity_path(draws)]
    )
    return _alarm(log, draws, np.mean(paths, axis=0))


def _uniformity_path(draws: Draws) -> Floats:
    """E-process of bets that the mean of 1/(K p) is not 1."""
    excess = 1.0 / (draws.possible * draws.p) - 1.0
    epsilon = EPSILON[:, None]
    if draws.known:
        least = np.minimum.reduceat(np.where(draws.prob > 0.0, draws.prob, np.inf), draws.start[:-1])
        most = np.minimum(least * draws.possible, 0.5)
        shares = np.where(epsilon < 0.0, epsilon * most / (1.0 - most), epsilon)
    else:  # how small the others are is not known, so that only an excess can be bet upon
        shares = np.broadcast_to(EPSILON[EPSILON > 0.0][:, None], (int((EPSILON > 0.0).sum()), draws.n))
    logs = (np.log1p(share * excess) for share in shares)
    return e_process_path(logs, np.full(len(shares), 1.0 / len(shares)), draws.n)


def _sharpness_path(draws: Draws) -> Floats:
    """E-process of bets that the true pmf is sharper or flatter than the logged one."""
    logs = np.log(np.where(draws.prob > 0.0, draws.prob, 1.0))
    chosen, possible = np.log(draws.p), draws.prob > 0.0
    found = ((beta - 1.0) * chosen - np.log(draws.sums(np.where(possible, np.exp(beta * logs), 0.0))) for beta in BETA)
    return e_process_path(found, np.full(len(BETA), 1.0 / len(BETA)), draws.n)


def _odds_path(draws: Draws) -> Floats:
    """E-process of bets on the odds of every arm, in order of first appearance."""
    arms, first = np.unique(draws.arm, return_index=True)
    arms = arms[np.argsort(first)][:ARMS]
    share = np.where(np.arange(len(arms)) < FIRST, 0.5 / FIRST, 0.5 / (ARMS - FIRST))
    owner, drew = draws.owner, draws.drew

    def logs() -> Iterator[Floats]:
        for arm in arms:
            q = np.zeros(draws.n)
            mine = draws.arm == arm
            q[owner[mine]] = draws.prob[mine]
            for tilt in TILT:
                yield _odds(tilt, q, drew == arm)

    return e_process_path(logs(), np.repeat(share / len(TILT), len(TILT)), draws.n)


def _odds(tilt: float, q: Floats, hit: NDArray[np.bool_]) -> Floats:
    """Log factor of the bet that an arm's odds are `tilt` times the logged ones."""
    return np.where(hit, math.log(tilt), 0.0) - np.log1p(q * (tilt - 1.0))


def _repeats(log: Log, draws: Draws, thing: str, column: Ints) -> _Result:
    """Test whether the arm last drawn for the same session or user is repeated as often as its probability implies."""
    codes = column[draws.rows]
    order = np.argsort(codes, kind="stable")
    follows = np.zeros(draws.n, dtype=np.bool_)
    follows[1:] = (codes[order[1:]] == codes[order[:-1]]) & (codes[order[1:]] >= 0)
    before = np.full(draws.n, -1, dtype=np.int64)
    before[order[follows]] = draws.drew[order[np.flatnonzero(follows) - 1]]
    q = draws.of(before)
    bet = (q > 0.0) & (q < 1.0)
    if not bet.any():
        return None, f"no {thing} has two draws"
    q, hit = q[bet], (draws.drew == before)[bet]
    path = e_process_path((_odds(t, q, hit) for t in _AGAIN), np.full(len(_AGAIN), 1.0 / len(_AGAIN)), len(q))
    prefix = f"the previous arm was repeated in {hit.mean():.1%} of {len(q):,} draws, expected {q.mean():.1%}; "
    return _alarm(log, draws.take(bet), path, prefix)


def _alarm(log: Log, draws: Draws, path: Floats, prefix: str = "") -> _Result:
    """Build the check of an e-process, which fails where the path reaches 1/α."""
    if not len(path):
        return None, "every draw had one possible arm"
    most = int(np.argmax(path))
    rang = path >= 1.0 / ALPHA
    meaning = f"about 1 if the draws are as logged, alarm at {1.0 / ALPHA:g}"
    detail = f"{prefix}the largest evidence against the logged probabilities is {path[most]:.3g} ({meaning})"
    if rang.any():
        row = int(draws.rows[int(np.argmax(rang))])
        first = f"first at row {log.decisions.seq[row]} (decision {log.decisions.id[row]!r})"
        detail += f", {first}: the arms were not drawn with the logged probabilities"
    return not rang.any(), detail


def _overall(log: Log, draws: Draws) -> _Result:
    """χ² = DᵀC⁻D of choices minus probabilities, with the covariance implied by the pmfs."""
    deviation, variance = _deviations(log, draws)
    arms = np.argsort(-variance, kind="stable")[:_WIDEST]
    arms = arms[variance[arms] >= _EXPECTED]
    if not len(arms):
        return None, "too few draws"
    values, vectors = np.linalg.eigh(_covariance(draws, arms, len(variance)))
    use = values > 1e-9 * values.max()
    along = np.einsum("ij,i->j", vectors[:, use], deviation[arms])
    chi2, dof = float((along * along / values[use]).sum()), int(use.sum())
    p = chi2_tail(chi2, dof)
    return p >= ALPHA, f"χ² = {chi2:.1f} with {dof} degrees of freedom, p = {p:.3g} (alarm below {ALPHA:g})"


def _deviations(log: Log, draws: Draws) -> tuple[Floats, Floats]:
    """Choices minus expected choices of each arm, and the variance of this difference, float64[A] each."""
    A = len(log.names.arms)
    expected = np.bincount(draws.arm, weights=draws.prob, minlength=A).astype(np.float64)
    variance = np.bincount(draws.arm, weights=draws.prob * (1.0 - draws.prob), minlength=A).astype(np.float64)
    return np.bincount(draws.drew, minlength=A) - expected, variance


def _covariance(draws: Draws, arms: Ints, A: int) -> Floats:
    """Covariance of the choices of some arms, Σ diag(q) − q qᵀ over the draws, float64[a, a]."""
    place = np.full(A, -1)
    place[arms] = np.arange(len(arms))
    columns, a = place[draws.arm], len(arms)
    owner, found = draws.owner, np.zeros((a, a))
    step = max(1, 4_000_000 // a)
    for begin in range(0, draws.n, step):
        stop = min(begin + step, draws.n)
        part = slice(draws.start[begin], draws.start[stop])
        mine = columns[part] >= 0
        q = np.zeros((stop - begin, a))
        q[owner[part][mine] - begin, columns[part][mine]] = draws.prob[part][mine]
        found += np.diag(q.sum(axis=0)) - q.T @ q
    return found


def _largest_deviation(log: Log, deviation: Floats, variance: Floats) -> _Result:
    """Test the number of choices of each arm by Freedman's inequality, with a Bonferroni correction."""
    arms = log.names.arms
    bounds = np.array([_freedman(t, v, 1.0) for t, v in zip(deviation, variance, strict=True)]) * len(arms)
    k = int(np.argmin(bounds))
    times = deviation[k] / math.sqrt(variance[k]) if variance[k] > 0.0 else 0.0
    return bool(bounds[k] >= ALPHA), (
        f"largest deviation: {arms[k]!r}, {deviation[k]:+.1f} choices, {times:+.2f} standard deviations; "
        f"p ≤ {min(bounds[k], 1.0):.3g} (alarm below {ALPHA:g})"
    )


def _arm_weights(log: Log, draws: Draws) -> _Result:
    """Test that no arm was drawn more often than its propensities imply; nothing but those of the drawn arms is needed.

    The weight of always choosing an arm, 1/p where it was drawn and 0 elsewhere, has a mean of 1 at most, so that bets
    on more are an e-process. That it has less shows nothing: the arm may have had almost no chance.
    """
    arms, first = np.unique(draws.arm, return_index=True)
    arms = arms[np.argsort(first)][:ARMS]
    drew = draws.drew
    weight = [np.where(drew == arm, 1.0 / draws.p, 0.0) for arm in arms]
    logs = (np.log1p(share * (each - 1.0)) for each in weight for share in _EXCESS)
    path = e_process_path(logs, np.full(len(arms) * len(_EXCESS), 1.0 / (len(arms) * len(_EXCESS))), draws.n)
    k = int(np.argmax([each.mean() for each in weight]))
    se = weight[k].std() / math.sqrt(draws.n)
    prefix = f"the largest mean weight is {weight[k].mean():.3f} ± {se:.3f}, of {log.names.arms[arms[k]]!r}; "
    return _alarm(log, draws, path, prefix)


def _freedman(total: float, variance: float, step: float) -> float:
    """Freedman's bound on P(|S| ≥ |total|) for a sum S with this variance and steps of at most `step`."""
    if total == 0.0:
        return 1.0
    return 2.0 * math.exp(-total * total / (2.0 * (variance + step * abs(total) / 3.0)))


def _mean_weight(draws: Draws) -> _Result:
    """Check that the mean of 1/(K p), the importance weight of the uniform policy, is near 1."""
    weight = 1.0 / (draws.possible * draws.p)
    mean = f"{weight.mean():.4f}"
    if not draws.known:
        return None, f"{mean} ± {weight.std() / math.sqrt(draws.n):.4f}; {_UNKNOWN}, so this is not a test"
    inverse = draws.sums(np.where(draws.prob > 0.0, 1.0 / np.where(draws.prob > 0.0, draws.prob, 1.0), 0.0))
    variance = inverse / draws.possible**2 - 1.0
    least = np.minimum.reduceat(np.where(draws.prob > 0.0, draws.prob, np.inf), draws.start[:-1])
    p = _freedman(float((weight - 1.0).sum()), float(variance.sum()), float((1.0 / (draws.possible * least)).max()))
    se = math.sqrt(variance.sum()) / draws.n
    return p >= ALPHA, f"{mean}, expected 1 ± {se:.4f} (standard error); p ≤ {min(p, 1.0):.3g} (alarm below {ALPHA:g})"


def _floor(log: Log, draws: Draws) -> _Result:
    """Check that every arm's probability is at least floor / K."""
    floor = log.decisions.floor
    if floor is None:
        return None, "not possible: the log has no floor"
    least = np.minimum.reduceat(draws.prob, draws.start[:-1])
    below = least < floor[draws.rows] / np.diff(draws.start) - 1e-12
    if below.any():
        row = int(draws.rows[int(np.argmax(below))])
        where = f"row {log.decisions.seq[row]} (decision {log.decisions.id[row]!r})"
        return False, f"{np.count_nonzero(below):,} draws have a probability below their floor / K, first {where}"
    return True, f"the smallest probability is {least.min():.3g}; none is below its floor"


def _uniform_slice(log: Log, draws: Draws) -> _Result:
    """Test whether draws of the uniform slice are uniform; rejection sampling depends on it."""
    mine = log.decisions.mode[draws.rows] == MODES.index(Mode.UNIFORM)
    if not mine.any():
        return None, "the log has none"
    some = draws.take(mine)
    sizes = np.diff(some.start)
    return _largest_deviation(log, *_deviations(log, some._replace(prob=np.repeat(1.0 / sizes, sizes))))


def _label_requests(log: Log) -> _Result:
    """Check that label requests are as frequent as their logged probabilities imply."""
    rate = log.decisions.asked_probability
    open_ = (rate > 0.0) & (rate < 1.0)
    if not open_.any():
        return None, "no label was requested at random"
    asked, e = log.decisions.asked[open_], rate[open_]
    p = _freedman(float((asked - e).sum()), float((e * (1.0 - e)).sum()), 1.0)
    counts = f"{np.count_nonzero(asked):,} of {len(e):,}, expected {e.sum():,.1f}"
    return p >= ALPHA, f"{counts}; p ≤ {min(p, 1.0):.3g} (alarm below {ALPHA:g})"


_MOST = 690.0
"""Cap on the log e-value, far above any alarm."""


def e_process_path(logs: Iterable[Floats], weights: Floats, n: int) -> Floats:
    """Compute the path of `fitrouter.monitors.e_process.MixtureEProcess`, mixed over bets and starts, float64[n].

    `logs` are the logarithms of each bet's factors; the bets' weights sum to at most 1, and the remainder is not bet.
    """
    waits = np.concatenate([[1.0], 0.5 / np.log2(np.arange(1, n + 1) + 2.0)])
    enters = np.log(waits[:-1] - waits[1:])
    idle = 1.0 - float(weights.sum())
    path = idle + (1.0 - idle) * waits[1:]
    for weight, log in zip(weights, logs, strict=True):
        # W_t = (W_{t−1} + e_t) f_t  ⇒  W_t = F_t Σ_{s≤t} e_s / F_{s−1} with F the running product.
        grown = np.cumsum(log)
        staked = grown + np.logaddexp.accumulate(enters - (grown - log))
        path += weight * np.exp(np.minimum(staked, _MOST))
    return path
