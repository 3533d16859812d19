"""Quality of reward heads on a recorded pool: pairs, best of N, policy optimum and routing.

A pool is every model's answer to every prompt, with a reference utility of each answer for each user, in logits: a user
prefers a to b with probability σ(u_a − u_b) (Bradley and Terry 1952). Any head, a function from users to scores, is
measured by

- **pairs**: how often it agrees with the utilities, and with votes drawn from them;
- **best of N**: the expected utility of its pick among N random answers, by order statistics over all subsets;
- **the optimum of the PPO objective**, E r(y) − β KL(π‖π₀): π(y) ∝ π₀(y)·exp(r(y)/β), with π₀ uniform over the answers,
  along the KL from 0 to 2 nats, and where on that way its utility is highest (over-optimisation: Gao et al. 2023);
- **routing**: the regret of the model that it expects to be best for a user and task, before any answer is seen.

Nothing is drawn at random but the intervals' resamples. How well accuracy predicts the rest is measured across heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from benchmarks.research._optimum import KLS, best_of, optimum
from numpy.typing import NDArray

from fitrouter.types import Floats

_RESAMPLES = 1000
_TARGETS = ("best_of_4", "best_of_all", "at_1_nat", "at_2_nats", "kept_at_2_nats", "routing_gain")
"""Outcomes that accuracy should predict; more is better in each."""


class Head(Protocol):
    """A reward head, which scores the pool's answers for a user; any scale, more is better."""

    def __call__(self, user: int, /) -> Floats:
        """Return scores of K answers to each of N prompts, float64[N, K], finite."""
        ...


class Reference(msgspec.Struct, frozen=True):
    """Utilities of users, and the prompts that heads may have seen."""

    models: tuple[str, ...]
    utility: Floats
    """float64[U, N, K]: what each answer is worth to each user, in logits. One user may stand for all: then intervals
    are over prompts."""
    known: NDArray[np.bool_]
    """bool[N]: prompts that heads may have learnt from, and that tell what a model can be expected to answer.
    Everything is measured on the others."""
    task: NDArray[np.int64]
    """int64[N]: the task of each prompt; all 0 for one model a user."""

    def __post_init__(self) -> None:
        U, N, K = self.utility.shape
        if len(self.models) != K or self.known.shape != (N,) or self.task.shape != (N,):
            raise ValueError(
                f"{len(self.models)} models, known {self.known.shape} and task {self.task.shape} do not fit "
                f"utilities of {U} users, {N} prompts and {K} answers"
            )
        if K < 2 or not np.isfinite(self.utility).all():
            raise ValueError(f"utilities are {self.utility.shape}; give finite numbers for at least two answers each")
        if not self.known.any() or self.known.all():
            raise ValueError("known is the same for all prompts; leave some to measure on and some to learn from")


def pair_accuracy(scores: Floats, utility: Floats) -> tuple[Floats, Floats]:
    """Measure agreement over all pairs of answers to a prompt, float64[…, N] each; a tie of the head counts half.

    Args:
        scores: float64[…, N, K].
        utility: float64[…, N, K].

    Returns:
        Agreement with the utilities, over pairs that differ in them (NaN where none does); and the expected agreement
        with one vote on each pair.
    """
    i, j = np.triu_indices(scores.shape[-1], 1)
    apart = utility[..., i] - utility[..., j]
    right = 0.5 + 0.5 * np.sign(scores[..., i] - scores[..., j]) * np.sign(apart)
    differ = apart != 0
    count = differ.sum(axis=-1)
    clean = np.where(count > 0, (right * differ).sum(axis=-1) / np.maximum(count, 1), np.nan)
    sure = 1.0 / (1.0 + np.exp(-np.abs(apart)))
    votes: Floats = (right * sure + (1.0 - right) * (1.0 - sure)).mean(axis=-1)
    return clean, votes


def routing_regret(scores: Floats, reference: Reference) -> Floats:
    """Return the utility lost on each measured prompt by routing on expected scores, float64[U, n].

    Its mean is 0 or more.

    For each user and task the head's model is the one with the highest mean score of its answers to known prompts (of
    all tasks where the task has none; models that tie share the traffic). The feasible oracle is the one model of the
    user and task with the highest mean utility on the measured prompts: it sees no answer before it chooses either.
    """
    known, task, utility = reference.known, reference.task, reference.utility[:, ~reference.known]
    measured = task[~known]
    regret = np.zeros(utility.shape[:2])
    for t in np.unique(measured):
        seen = known & (task == t)
        expected = scores[:, seen if seen.any() else known].mean(axis=1)
        chosen = expected == expected.max(axis=1, keepdims=True)
        share = chosen / chosen.sum(axis=1, keepdims=True)
        here = utility[:, measured == t]
        best = here.mean(axis=1).argmax(axis=1)
        oracle = np.take_along_axis(here, best[:, None, None], axis=2)[:, :, 0]
        regret[:, measured == t] = oracle - np.einsum("unk,uk->un", here, share)
    return regret


class _Measured(msgspec.Struct, frozen=True):
    """Outcomes of one head on the measured prompts, float64[U, n] unless said otherwise."""

    accuracy: Floats
    votes: Floats
    best: Floats
    """float64[U, n, K]: utility of the pick among N = 1 … K, minus the mean's."""
    along: Floats
    """float64[U, n, G]: utility along the KL grid, minus the mean's."""
    saturated: Floats
    """float64[U]: nats beyond which the policy is the head's pick and moves no further."""
    regret: Floats


def measure_head(scores: Floats, reference: Reference) -> _Measured:
    """Measure all outcomes of a head's scores, float64[U, N, K].

    Raises:
        ValueError: the scores' shape is not the utilities', or a score is not finite.
    """
    if scores.shape != reference.utility.shape or not np.isfinite(scores).all():
        raise ValueError(
            f"a head gave scores of shape {scores.shape}, all finite: {bool(np.isfinite(scores).all())}; "
            f"they must be finite and of shape {reference.utility.shape}"
        )
    s, u = scores[:, ~reference.known], reference.utility[:, ~reference.known]
    accuracy, votes = pair_accuracy(s, u)
    mean = u.mean(axis=-1, keepdims=True)
    optima = [optimum(s[i], u[i]) for i in range(len(s))]
    return _Measured(
        accuracy=accuracy,
        votes=votes,
        best=best_of(s, u) - mean,
        along=np.array([o.utility for o in optima]) - mean,
        saturated=np.array([o.limit for o in optima]),
        regret=routing_regret(scores, reference),
    )


def run_pool(heads: Mapping[str, Head], reference: Reference, *, resamples: int = _RESAMPLES) -> dict[str, Any]:
    """Run `run_pools` on one pool."""
    return run_pools([(heads, reference)], resamples=resamples)


def run_pools(pools: Sequence[tuple[Mapping[str, Head], Reference]], *, resamples: int = _RESAMPLES) -> dict[str, Any]:
    """Measure every head on the pools, and how well pair accuracy predicts the rest across heads.

    Args:
        pools: heads by name, and the pool that they are measured on. Several pools, as the seeds of a world are, have
            the same names of heads and as many measured prompts; their users are put together. Correlations across
            heads need three.
        resamples: bootstrap resamples; of users (of prompts where there is one user), and of heads with them.

    Returns:
        JSON: `heads` (name → numbers with 95 % intervals over users), `predicts` (outcome → rank correlations with
        accuracy), `predicts_better_half` (the same among heads of at least the median accuracy, between which one would
        have to choose), and what was measured. Utilities are in logits, relative to a random answer.

    Raises:
        ValueError: there are no heads, the pools do not match, or a head's scores cannot be used.
    """
    if not pools or not pools[0][0]:
        raise ValueError("heads is empty; give at least one, and a pool to measure it on")
    names, reference = list(pools[0][0]), pools[0][1]
    prompts = int((~reference.known).sum())
    if any(set(heads) != set(names) or int((~one.known).sum()) != prompts for heads, one in pools):
        raise ValueError("the pools differ in heads or in the number of measured prompts; measure them one by one")
    found = {name: _together([_measure(heads[name], one) for heads, one in pools]) for name in names}
    oracle = _together([measure_head(one.utility, one) for _, one in pools])
    blank = [routing_regret(np.zeros_like(one.utility), one) for _, one in pools]
    uniform = float(np.concatenate(blank).mean())
    U = len(oracle.regret)
    units = U if U > 1 else prompts
    draws = np.random.default_rng(2026).integers(units, size=(resamples, units))
    outcomes = {name: _outcomes(m, uniform) for name, m in found.items()}
    accuracy = {name: float(values["accuracy"].mean()) for name, values in outcomes.items()}
    middle = float(np.median(list(accuracy.values())))
    better = {name: values for name, values in outcomes.items() if accuracy[name] >= middle}
    return {
        "users": U,
        "prompts": prompts,
        "models": list(reference.models),
        "tasks": len(np.unique(reference.task)),
        "kl_grid": KLS.tolist(),
        "oracle": {"best_of": _round(oracle.best.mean(axis=(0, 1))), "along": _round(oracle.along.mean(axis=(0, 1)))},
        "random_routing_regret": round(uniform, 4),
        "heads": {name: _row(m, oracle, draws) for name, m in found.items()},
        "predicts": predictiveness(outcomes, draws) if len(names) > 2 else {},
        "predicts_better_half": predictiveness(better, draws) if len(better) > 2 else {},
    }


def _measure(head: Head, reference: Reference) -> _Measured:
    return measure_head(np.array([head(user) for user in range(len(reference.utility))]), reference)


def _together(parts: Sequence[_Measured]) -> _Measured:
    """Join the users of all parts."""
    fields = _Measured.__struct_fields__
    return _Measured(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in fields})


def _units(values: Floats) -> Floats:
    """Average over prompts by user, float64[U, n, …]; with only one user, return the values by prompt."""
    out: Floats = values.mean(axis=1) if len(values) > 1 else values[0]
    return out


def _agreement(m: _Measured) -> Floats:
    """Return accuracy by unit; a prompt whose answers are all worth the same is left out (½ where it is the unit)."""
    if len(m.accuracy) > 1:
        mine: Floats = np.nanmean(m.accuracy, axis=1)
        return mine
    return np.where(np.isnan(m.accuracy[0]), 0.5, m.accuracy[0])


def _lost(m: _Measured) -> Floats:
    """Return by unit the utility at the best point of the way to 2 nats minus that at 2 nats.

    A user has a best point of their own, and all prompts of one user the same.
    """
    along = _units(m.along)
    peak = along.max(axis=1) if len(m.along) > 1 else along[:, int(along.mean(axis=0).argmax())]
    out: Floats = peak - along[:, -1]
    return out


def _outcomes(m: _Measured, uniform: float) -> dict[str, Floats]:
    """Return the outcomes by unit, float64[units] each; more is better."""
    K = m.best.shape[-1]
    best, along = _units(m.best), _units(m.along)
    return {
        "accuracy": _agreement(m),
        "best_of_4": best[:, min(4, K) - 1],
        "best_of_all": best[:, K - 1],
        "at_1_nat": along[:, int(np.argmin(np.abs(KLS - 1.0)))],
        "at_2_nats": along[:, -1],
        "kept_at_2_nats": -_lost(m),
        "routing_gain": uniform - _units(m.regret),
    }


def _row(m: _Measured, oracle: _Measured, draws: NDArray[np.int64]) -> dict[str, Any]:
    """Return a head's numbers as JSON."""
    K = m.best.shape[-1]
    curve = m.along.mean(axis=(0, 1))
    peak = int(curve.argmax())
    rising = bool(curve[peak] - curve[-1] <= 1e-9)
    lost = _lost(m)
    return {
        "accuracy": _interval(_agreement(m), draws),
        "vote_accuracy": _interval(_units(m.votes), draws),
        "best_of": _round(m.best.mean(axis=(0, 1))),
        "best_of_all": _interval(_units(m.best)[:, K - 1], draws),
        "share_of_oracle": round(float(m.best[:, :, K - 1].mean() / oracle.best[:, :, K - 1].mean()), 4),
        "along": _round(curve),
        "peak_nats": None if rising else round(float(KLS[peak]), 4),
        "peak": "none up to 2 nats" if rising else f"{KLS[peak]:.2g} nats",
        "lost_at_2_nats": round(float(curve[peak] - curve[-1]), 4),
        "past_their_peak": round(float((lost > 1e-9).mean()), 4),
        "lost_by_unit": _interval(lost, draws),
        "saturated_users": round(float((m.saturated < KLS[-1]).mean()), 4),
        "routing_regret": _interval(_units(m.regret), draws),
    }


def predictiveness(outcomes: Mapping[str, Mapping[str, Floats]], draws: NDArray[np.int64]) -> dict[str, Any]:
    """Compute rank correlations across heads of accuracy with each other outcome.

    Args:
        outcomes: head → outcome → float64[units]; units are users, or prompts.
        draws: int64[B, units], resamples of them; heads are resampled with them.

    Returns:
        outcome → `spearman` and `kendall` of the means over units, each [value, low, high] with a 95 % interval over
        units and heads, None where heads do not differ; `kendall_these` with an interval for these very heads;
        `kendall_within`, the mean over units of each one's own correlation across heads.
    """
    from scipy import stats

    names = list(outcomes)
    values = {key: np.array([outcomes[name][key] for name in names]) for key in ("accuracy", *_TARGETS)}
    rng = np.random.default_rng(2026)
    heads = rng.integers(len(names), size=(len(draws), len(names)))
    accuracy = values["accuracy"]

    def correlate(kind: str, a: Floats, b: Floats) -> float:
        if np.ptp(a) == 0.0 or np.ptp(b) == 0.0:
            return float("nan")
        return float(getattr(stats, kind)(a, b).statistic)

    out: dict[str, Any] = {}
    for key in _TARGETS:
        target = values[key]
        row: dict[str, Any] = {}
        for name, kind in (("spearman", "spearmanr"), ("kendall", "kendalltau")):
            drawn = [
                correlate(kind, accuracy[h][:, u].mean(axis=1), target[h][:, u].mean(axis=1))
                for h, u in zip(heads, draws, strict=True)
            ]
            row[name] = _spread(correlate(kind, accuracy.mean(axis=1), target.mean(axis=1)), drawn)
        drawn = [correlate("kendalltau", accuracy[:, u].mean(axis=1), target[:, u].mean(axis=1)) for u in draws]
        row["kendall_these"] = _spread(correlate("kendalltau", accuracy.mean(axis=1), target.mean(axis=1)), drawn)
        own = [correlate("kendalltau", accuracy[:, u], target[:, u]) for u in range(accuracy.shape[1])]
        row["kendall_within"] = round(float(np.nanmean(own)), 3) if np.isfinite(own).any() else None
        out[key] = row
    return out


def _spread(value: float, drawn: Sequence[float]) -> list[float] | None:
    """Return [value, low, high]; None where the heads do not differ."""
    if not np.isfinite(value):
        return None
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return [round(float(x), 3) for x in (value, low, high)]


def _interval(values: Floats, draws: NDArray[np.int64]) -> list[float]:
    """Return [mean, low, high] of float64[units] over resamples of them."""
    low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
    return [round(float(x), 4) for x in (values.mean(), low, high)]


def _round(values: Floats) -> list[float]:
    return [round(float(value), 4) for value in values]
