"""Small logs of the replay's own form, made of plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fitrouter.types import Mode
from fitrouter_evaluators.replay.log.log import MODES, Decisions, Log, Names, Options, Outcomes

ONLINE, STICKY = MODES.index(Mode.ONLINE), MODES.index(Mode.STICKY)


def make_log(
    probs: np.ndarray,
    chosen: np.ndarray,
    *,
    decisions: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    outcomes: Mapping[str, Any] | None = None,
) -> Log:
    """A log of n decisions a second apart, over the same K arms, each a session of its own, asked with probability 1.

    Args:
        probs: float64[n, K], the logged pmfs.
        chosen: int64[n], arms.
        decisions: columns of `Decisions` that differ.
        options: columns of `Options` that differ: float64[n, K].
        outcomes: columns of `Outcomes` that differ.
    """
    n, K = probs.shape
    further: dict[str, Any] = {name: np.asarray(values).ravel() for name, values in (options or {}).items()}
    none, nan = np.full(n, -1), np.full(n, np.nan)
    rows: dict[str, Any] = {
        "id": np.array([f"d{i}" for i in range(n)], dtype=object),
        "seq": np.arange(n),
        "ts": np.arange(n, dtype=float),
        "draw": np.arange(n),
        "mode": np.full(n, ONLINE),
        "start": np.arange(n + 1) * K,
        "chosen": np.arange(n) * K + chosen,
        "propensity": probs[np.arange(n), chosen],
        "tenant": np.zeros(n, dtype=int),
        "user": none,
        "role": none,
        "task": none,
        "session": none,
        "begins": np.ones(n, dtype=bool),
        "asked": np.ones(n, dtype=bool),
        "asked_probability": np.ones(n),
        "learnt": none,
    }
    came: dict[str, Any] = {
        "status": np.full(n, "ok", dtype=object),
        "served": np.asarray(chosen),
        "cost_usd": nan,
        "latency_s": nan,
        "asked_label": nan,
        "free_label": nan,
        "score": nan,
    }
    return Log(
        source="a test",
        names=Names(arms=tuple(f"m{k}" for k in range(K))),
        decisions=Decisions(**{**rows, **(decisions or {})}),
        options=Options(
            arm=np.tile(np.arange(K), n),
            prob=probs.ravel(),
            **further,
        ),
        outcomes=Outcomes(**{**came, **(outcomes or {})}),
    )
