"""Closed forms over a finite set of answers: best of N, and the optimum of the PPO objective.

Sources: order statistics of a draw without replacement (David and Nagaraja 2003, 12.3); the optimum of KL-regularised
reward is the exponential tilt of π₀ (Ziegler et al. 2019; Korbak et al. 2022).
"""

from __future__ import annotations

import importlib
import math
from typing import Any, NamedTuple

import numpy as np

from fitrouter.types import Floats

KLS: Floats = np.linspace(0.0, 2.0, 21)
"""Nats at which the optimum is evaluated."""

_LOG_T = np.linspace(-12.0, 30.0, 85)
"""Where log(1/β) is looked for, in units of the scores' spread; beyond it only ties to the last bit are left."""


def best_of(scores: Floats, utility: Floats) -> Floats:
    """Return the expected utility of the highest score among N = 1 … K answers without replacement, float64[…, K].

    P(the highest of N is an answer with `below` answers under it and `upto` answers not above it) =
    (C(upto, N) − C(below, N)) / C(K, N), shared by those that tie.

    Args:
        scores: float64[…, K].
        utility: float64[…, K].
    """
    K = scores.shape[-1]
    # chances[m, N − 1]: that N drawn answers are all among m given ones.
    chances = np.array([[math.comb(m, N) / math.comb(K, N) for N in range(1, K + 1)] for m in range(K + 1)])
    below = (scores[..., None, :] < scores[..., :, None]).sum(axis=-1)
    upto = (scores[..., None, :] <= scores[..., :, None]).sum(axis=-1)
    weight = (chances[upto] - chances[below]) / (upto - below)[..., None]
    out: Floats = np.einsum("...k,...kn->...n", utility, weight)
    return out


class Optimum(NamedTuple):
    """The policies π ∝ exp(t·r) at each of G nats."""

    t: Floats
    """float64[G], t = 1/β; inf where no t reaches the nats: there the policy is the pick itself."""
    kl: Floats
    """float64[G]: the mean KL to uniform, at most `limit`."""
    utility: Floats
    """float64[N, G]: expected utility."""
    limit: float
    """Nats of the pick: the mean over prompts of ln(K / answers that tie for the highest score)."""


def kl_at(scores: Floats, t: float) -> float:
    """Return the mean over prompts of KL(π_t ‖ uniform), nats; scores float64[N, K], t ≥ 0 or inf. It rises with t."""
    policy, log_policy = _tilt(scores, t)
    return float(np.einsum("nk,nk->n", policy, log_policy).mean() + math.log(scores.shape[1]))


def optimum(scores: Floats, utility: Floats, kls: Floats = KLS) -> Optimum:
    """Return the optimum of the PPO objective at each KL, with one β for all prompts, as the objective has.

    Args:
        scores: r, float64[N, K].
        utility: float64[N, K].
        kls: nats, float64[G], each 0 or more.
    """
    K = scores.shape[1]
    centred = scores - scores.mean(axis=1, keepdims=True)
    spread = float(np.sqrt((centred**2).mean()))
    unit = centred / spread if spread > 0.0 else np.zeros_like(centred)
    ties = (unit == unit.max(axis=1, keepdims=True)).sum(axis=1)
    limit = float(np.log(K / ties).mean())
    reached = np.array([kl_at(unit, float(np.exp(x))) for x in _LOG_T]) if spread > 0.0 else np.zeros(len(_LOG_T))
    ts = np.array([_temperature(unit, float(kl), reached) for kl in kls])
    policies = [_tilt(unit, float(t))[0] for t in ts]
    return Optimum(
        t=ts / spread if spread > 0.0 else ts,
        kl=np.array([kl_at(unit, float(t)) for t in ts]),
        utility=np.array([np.einsum("nk,nk->n", policy, utility) for policy in policies]).T,
        limit=limit,
    )


def _temperature(unit: Floats, kl: float, reached: Floats) -> float:
    """Find the t with kl_at(unit, t) = kl; 0 for 0 nats, inf for more than can be reached."""
    optimize: Any = importlib.import_module("scipy.optimize")
    if kl <= reached[0]:
        return 0.0 if kl < 1e-9 else np.inf
    if kl >= reached[-1]:
        return np.inf
    above = int(np.searchsorted(np.maximum.accumulate(reached), kl))
    low, high = float(_LOG_T[above - 1]), float(_LOG_T[above])
    root = optimize.brentq(lambda x: kl_at(unit, float(np.exp(x))) - kl, low, high, xtol=1e-13, rtol=1e-14)
    return float(np.exp(root))


def _tilt(scores: Floats, t: float) -> tuple[Floats, Floats]:
    """Return π ∝ exp(t·scores) and log π, float64[N, K]; where π is 0 its logarithm counts as 0."""
    top = scores.max(axis=1, keepdims=True)
    a = np.where(scores == top, 0.0, -np.inf) if np.isinf(t) else t * (scores - top)
    weight = np.exp(a)
    total = weight.sum(axis=1, keepdims=True)
    return weight / total, np.where(weight > 0.0, a - np.log(total), 0.0)
