"""ParetoBandit's own code on a stream from `matrix.py`; runs in the environment that has the package.

`python _paretobandit.py IN.npz OUT.npz`. IN holds x float64[N, d] without a constant (the package appends its own),
reward and cost float64[N, K], orders int64[S, T], prices float64[K, 2] (USD per million tokens), ceilings (NaN: none),
alphas, forgetting factors, and shocks float64[C, T, K] or nothing. OUT holds chosen int8[C, A, F, S, T].
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np


def stream(data: Any, order: Any, ceiling: float, alpha: float, forgetting: float, seed: int, shock: Any) -> Any:
    """Return the arms chosen from a cold start, with the pacer in adaptive mode and true costs."""
    from pareto_bandit import BanditRouter
    from pareto_bandit.budget_pacer import BudgetPacer, PacingMode
    from pareto_bandit.feature_service import FeatureService
    from pareto_bandit.storage import EphemeralContextStore

    K = data["reward"].shape[1]
    arms = [f"model-{k}" for k in range(K)]
    registry = {
        arm: {"input_cost_per_m": float(prices[0]), "output_cost_per_m": float(prices[1])}
        for arm, prices in zip(arms, data["prices"], strict=True)
    }
    np.random.seed(seed)
    router = BanditRouter.create(
        model_registry=registry,
        feature_service=FeatureService.for_precomputed(data["x"].shape[1]),
        context_store=EphemeralContextStore(),
        priors="none",
        alpha=alpha,
        forgetting_factor=forgetting,
        bandit_seed=seed,
        cost_penalty=0.0,
        budget_pacer=None if np.isnan(ceiling) else BudgetPacer(ceiling, mode=PacingMode.ADAPTIVE),
    )
    chosen = np.empty(len(order), dtype=np.int8)
    for t, n in enumerate(order.tolist()):
        arm, log = router.route(data["x"][n])
        k = arms.index(arm)
        log.cost_usd = float(data["cost"][n, k] * (1.0 if shock is None else shock[t, k]))
        router.process_feedback(log.request_id, reward=float(data["reward"][n, k]))
        chosen[t] = k
    return chosen


def main(source: str, target: str) -> None:
    """Run every ceiling, alpha, forgetting factor and order, and write the chosen arms."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    with np.load(source) as file:
        data = dict(file)
    shape = tuple(len(data[name]) for name in ("ceilings", "alphas", "forgetting", "orders"))
    chosen = np.empty((*shape, data["orders"].shape[1]), dtype=np.int8)
    for c, a, f, s in np.ndindex(*shape):
        shock = data["shocks"][c] if "shocks" in data else None
        chosen[c, a, f, s] = stream(
            data,
            data["orders"][s],
            float(data["ceilings"][c]),
            float(data["alphas"][a]),
            float(data["forgetting"][f]),
            s,
            shock,
        )
    np.savez_compressed(target, chosen=chosen)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
