"""Runs vw-estimators on logs that `replay_intervals.py` hands over, in the environment that has them.

`python _vw_estimators.py IN.npz OUT.npz`. IN holds logged and target, float64[R, n], the probabilities of what was
drawn; reward float64[R, n]; looks int64[L], ascending; alpha and largest, the largest weight there can be. OUT holds
for each of `cs` (gamma-exponential mixture) and `cressieread` (empirical likelihood, for one look) limits
float64[R, L, 2] and the microseconds that an event took, with the looks.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np


def limits(interval: Any, logged: Any, target: Any, reward: Any, looks: Any, alpha: float) -> list[Any]:
    """Return an interval's limits at every look."""
    found, wanted = [], set(looks.tolist())
    for t, (p, pi, r) in enumerate(zip(logged.tolist(), target.tolist(), reward.tolist(), strict=True), start=1):
        interval.add_example(p, r, pi)
        if t in wanted:
            found.append(interval.get(alpha))
    return found


def main(source: str, goal: str) -> None:
    import estimators.bandits.cressieread as cressieread
    import estimators.bandits.cs as cs

    data = dict(np.load(source))
    makers = {
        "cs": lambda: cs.Interval(0, 1),
        "cressieread": lambda: cressieread.Interval(0, float(data["largest"]), 0, 1),
    }
    out = {}
    for name, make in makers.items():
        begin = time.perf_counter()
        out[name] = np.array(
            [
                limits(make(), *columns, data["looks"], float(data["alpha"]))
                for columns in zip(data["logged"], data["target"], data["reward"], strict=True)
            ],
            dtype=np.float64,
        )
        out[f"{name}_us"] = np.array(1e6 * (time.perf_counter() - begin) / data["reward"].size)
    np.savez(goal, **out)


if __name__ == "__main__":
    main(*sys.argv[1:])
