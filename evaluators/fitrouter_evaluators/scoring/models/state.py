"""Running mean and variance of a reward model's outputs, and what it has spent, in a file of its own.

The statistics live here and not in the learner's snapshots: only the scorer needs them, whichever process holds its
lease, and the fold reads the standardised features that the Score events carry. A lost file costs a new warm-up.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.scoring.models.reward_model import ModelError
from fitrouter_evaluators.scoring.text.style import CLIP

_log = logging.getLogger(__name__)
WARM_UP = 16
"""Outputs of a dimension before it is a feature; until then there is no scale, and it is missing."""


class ModelState(msgspec.Struct, kw_only=True):
    """State of one reward model.

    The statistics of a batch are added before it is standardised, so that the order within a batch does not matter
    (Chan, Golub and LeVeque 1983).
    """

    format: str = "fitrouter-reward-model-1"
    fingerprint: str = ""
    dimensions: tuple[str, ...] = ()
    n: list[float] = []
    mean: list[float] = []
    m2: list[float] = []
    """Number, mean and sum of squared deviations of the outputs seen, by dimension."""
    day: int = 0
    usd: float = 0.0
    """Days since the epoch (UTC), and what a judge has spent on that day."""

    def begin(self, fingerprint: str, dimensions: tuple[str, ...]) -> None:
        """Reset the statistics if the weights or dimensions are others than before; otherwise keep them."""
        if (fingerprint, dimensions) != (self.fingerprint, self.dimensions):
            self.fingerprint, self.dimensions = fingerprint, dimensions
            self.n, self.mean, self.m2 = ([0.0] * len(dimensions) for _ in range(3))

    def standardise(self, outputs: Floats) -> Floats:
        """Add outputs float64[n, dimensions] to the statistics; return them with mean 0 and variance 1, within ±3.

        NaN stays NaN; a dimension in its warm-up, or without variance, is NaN.
        """
        known = np.isfinite(outputs)
        count, n = known.sum(axis=0), np.array(self.n)
        total, mean = n + count, np.array(self.mean)
        filled = np.where(known, outputs, 0.0)
        here = filled.sum(axis=0) / np.maximum(count, 1)
        gap = np.where(count > 0, here - mean, 0.0)
        squares = (np.where(known, outputs - here, 0.0) ** 2).sum(axis=0)
        m2 = np.array(self.m2) + squares + gap**2 * n * count / np.maximum(total, 1)
        mean = mean + gap * count / np.maximum(total, 1)
        self.n, self.mean, self.m2 = total.tolist(), mean.tolist(), m2.tolist()
        return self.scaled(outputs)

    def scaled(self, outputs: Floats) -> Floats:
        """Return outputs as `standardise` does, without adding them to the statistics."""
        total, mean, known = np.array(self.n), np.array(self.mean), np.isfinite(outputs)
        sd = np.sqrt(np.array(self.m2) / np.maximum(total, 1))
        scaled = (outputs - mean) / np.where(sd > 0, sd, 1.0)
        usable = (total >= WARM_UP) & (sd > 1e-6 * (1e-6 + np.abs(mean)))
        out: Floats = np.where(known & usable, np.clip(scaled, -CLIP, CLIP), np.nan)
        return out

    def left(self, limit: float, now: float) -> float:
        """USD left of a day's limit; a new day (UTC) starts at 0."""
        if int(now // 86_400) != self.day:
            self.day, self.usd = int(now // 86_400), 0.0
        return limit - self.usd

    def save(self, path: Path | None) -> None:
        """Replace the file; None keeps the state in memory only.

        Raises:
            OSError: it cannot be written.
        """
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.tmp")
            draft.write_bytes(msgspec.json.encode(self))
            draft.replace(path)


def _warn(error: Exception) -> None:
    _log.warning("%s", error)


def load_state(path: Path | None, tell: Callable[[Exception], object] = _warn) -> ModelState:
    """Read a file; a new state if there is none, or if it is damaged, which `tell` gets as an error."""
    if path is None or not path.exists():
        return ModelState()
    try:
        found = msgspec.json.decode(path.read_bytes(), type=ModelState)
    except (OSError, msgspec.MsgspecError) as error:
        tell(ModelError(f"the statistics and costs in {path} are not readable, and begin anew: {error}"))
        return ModelState()
    sizes = {len(found.dimensions), len(found.n), len(found.mean), len(found.m2)}
    return found if found.format == ModelState().format and len(sizes) == 1 else ModelState()
