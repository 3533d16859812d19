"""E-process over a whole log, vectorised: the path of `fitrouter.monitors.e_process.MixtureEProcess`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fitrouter.types import Floats

_MOST = 690.0
"""Cap on the log e-value, far above any alarm."""


def e_process_path(logs: Iterable[Floats], weights: Floats, n: int) -> Floats:
    """float64[n]: the e-process after each observation, mixed over bets and over starting times.

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
