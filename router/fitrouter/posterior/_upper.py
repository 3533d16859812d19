"""Quadratic forms of many covariances at once, for reading."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats


class PackedCovariances:
    """The upper triangles of the rows' covariances side by side, to read xᵀSx of all in one small product.

    float32, which is enough for a standard deviation, so that 32 models fit into a processor's second cache.
    """

    def __init__(self, d: int) -> None:
        i, j = np.triu_indices(d)
        self._i, self._j, self._flat = i, j, i * d + j
        self._twice = np.where(i == j, 1.0, 2.0).astype(np.float32)
        self._rows: NDArray[np.float32] = np.empty((0, len(i)), dtype=np.float32)
        self.changed: set[int] = set()
        """Rows that were written to since they were read."""

    def squares(self, x: Floats) -> NDArray[np.float32]:
        """What the rows are multiplied with."""
        short = x.astype(np.float32)
        out: NDArray[np.float32] = short.take(self._i) * short.take(self._j)
        out *= self._twice
        return out

    def of(self, covs: Floats) -> NDArray[np.float32]:
        """float32[rows, d (d + 1) / 2]."""
        if len(self._rows) != len(covs):
            self.changed.update(range(len(self._rows), len(covs)))
            self._rows = np.resize(self._rows, (len(covs), len(self._flat)))
        while self.changed:
            k = self.changed.pop()
            self._rows[k] = covs[k].take(self._flat)
        return self._rows
