"""Open Bandit Pipeline 0.5.7's choices of λ, for the tests. Runs in its own environment: numpy and obp alone.

python -m benchmarks.replay._obp_tuning > tests/data/obp_tuning.json
"""

from __future__ import annotations

import json
import math
import warnings
from typing import Any, NamedTuple

import numpy as np

LAMBDAS = (1.0, 5.0, 10.0, 50.0, 100.0, 500.0, math.inf)
SEEDS = 40
SIZES = (50, 200, 1000, 5000)


class Logged(NamedTuple):
    """A simulated log: n rows over K arms."""

    action: Any
    reward: Any
    logged: Any
    """float64[n, K]: the pmf that drew the action."""
    target: Any
    """float64[n, K]: the pmf that is evaluated."""
    model: Any
    """float64[n, K]: predicted rewards."""


def logged(seed: int) -> Logged:
    """Simulate a log of rewards 0 and 1, with small logged propensities where the target's are large."""
    rng = np.random.default_rng(seed)
    n, k = SIZES[seed % 4], (3, 10)[seed // 4 % 2]
    truth = 1.0 / (1.0 + np.exp(-rng.normal(size=(n, k))))
    target = 0.95 * _softmax(6.0 * truth) + 0.05 / k
    pmf = 0.95 * _softmax(rng.normal(size=(n, k)) - 2.0 * truth) + 0.05 / k
    action = (pmf.cumsum(axis=1) > rng.random(n)[:, None]).argmax(axis=1)
    reward = (rng.random(n) < truth[np.arange(n), action]).astype(np.float64)
    # Every other model is far off, so that shrinkage costs something.
    model = (1.0 - 0.6 * (seed // 8 % 2)) * truth + rng.normal(scale=0.2, size=(n, k))
    return Logged(action, reward, pmf, target, np.clip(model, 0.0, 1.0))


def _softmax(values: Any) -> Any:
    grown = np.exp(values - values.max(axis=1, keepdims=True))
    return grown / grown.sum(axis=1, keepdims=True)


def choices() -> dict[str, dict[str, list[str]]]:
    """Return λ of each seed by estimator and method, as text, since JSON has no infinity."""
    import obp.ope as ope

    kinds = {
        "clipped_ips": ope.InverseProbabilityWeightingTuning,
        "clipped_dr": ope.DoublyRobustTuning,
        "switch_dr": ope.SwitchDoublyRobustTuning,
        "dr_os": ope.DoublyRobustWithShrinkageTuning,
    }
    found: dict[str, dict[str, list[str]]] = {name: {"slope": [], "mse": []} for name in kinds}
    for seed in range(SEEDS):
        data = logged(seed)
        n = len(data.action)
        columns = {
            "reward": data.reward,
            "action": data.action,
            "pscore": data.logged[np.arange(n), data.action],
            "action_dist": data.target[:, :, None],
            "estimated_rewards_by_reg_model": data.model[:, :, None],
            "position": np.zeros(n, dtype=int),
        }
        for name, kind in kinds.items():
            for method in ("slope", "mse"):
                estimator = kind(lambdas=list(LAMBDAS), tuning_method=method)
                estimator.estimate_policy_value(**columns)
                found[name][method].append(str(float(estimator.best_hyperparam)))
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(choices()))
