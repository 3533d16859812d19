"""Batched Laplace updates of many tastes on any torch device; the kernel is `fitrouter.posterior.gaussian`.

For training and re-fits, whose results are read as events. The fold itself learns event by event with
`fitrouter.posterior.gaussian`, and what comes out here equals it to 1e-10.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fitrouter.posterior.gaussian import Gaussian
from fitrouter.types import Floats

_CHUNK_BYTES = {"cpu": 1 << 20}
"""Covariances that are gathered together: on a CPU they stay in the cache, elsewhere they fit beside the state."""

_ITERATIONS = 200


def rounds(people: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Split events into rounds: the i-th event of every person forms round i, so that none has two in one.

    >>> [r.tolist() for r in rounds(np.array([7, 8, 7, 7, 8]))]
    [[0, 1], [2, 4], [3]]
    """
    order = np.argsort(people, kind="stable")
    ordered = people[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(people) else np.zeros(0, dtype=np.int64)
    lengths = np.diff(np.r_[starts, len(people)])
    turn = np.empty(len(people), dtype=np.int64)
    turn[order] = np.arange(len(people)) - np.repeat(starts, lengths)
    by_turn = np.argsort(turn, kind="stable")
    return iter(np.split(by_turn, np.cumsum(np.bincount(turn))[:-1]) if len(people) else [])


class BatchedTastes:
    """N people's Gaussians over w, float64[N, K] and float64[N, K, K] on a device, updated many at a time.

    Args:
        mean: float64[N, K].
        cov: float64[N, K, K], symmetric.
        device: 'cpu', 'cuda', 'cuda:1' …
    """

    def __init__(self, mean: Floats, cov: Floats, device: str = "cpu") -> None:
        import torch  # heavy, and only this class needs it

        N, K = mean.shape
        if cov.shape != (N, K, K):
            raise ValueError(f"cov has the shape {cov.shape}; for a mean of shape {mean.shape} it must be {(N, K, K)}")
        self._torch = torch
        self._device = torch.device(device)
        self.mean = torch.tensor(mean, dtype=torch.float64, device=self._device)
        """torch.float64[N, K]."""
        self.cov = torch.tensor(cov, dtype=torch.float64, device=self._device)
        """torch.float64[N, K, K]."""
        self._chunk = max(1, _CHUNK_BYTES.get(self._device.type, 1 << 28) // max(8 * K * K, 1))

    @classmethod
    def of(cls, gaussians: Sequence[Gaussian], device: str = "cpu") -> BatchedTastes:
        """Create one row for each Gaussian; all have the same length."""
        return cls(np.array([g.mean for g in gaussians]), np.array([g.cov for g in gaussians]), device)

    @classmethod
    def prior(cls, gaussian: Gaussian, n: int, device: str = "cpu") -> BatchedTastes:
        """Create rows for n people who all start at one prior."""
        K = len(gaussian.mean)
        return cls(np.broadcast_to(gaussian.mean, (n, K)), np.broadcast_to(gaussian.cov, (n, K, K)), device)

    def __len__(self) -> int:
        return len(self.mean)

    def gaussian(self, row: int) -> Gaussian:
        """Return a copy of one person's Gaussian."""
        return Gaussian(self.mean[row].cpu().numpy().copy(), self.cov[row].cpu().numpy().copy())

    def learn(
        self,
        people: ArrayLike,
        h: Floats,
        y: ArrayLike,
        *,
        noise: ArrayLike | None = None,
        weight: ArrayLike = 1.0,
        offset: ArrayLike = 0.0,
    ) -> None:
        """Learn n observations, those of one person in the order given.

        Args:
            people: int[n], the row of each observation; repeats are what rounds are for.
            h: float64[n, K], the vector that was seen along (h_a − h_b of a pair).
            y: float64[n], the label; in [0, 1] for a logistic observation.
            noise: σ², of each or of all; NaN, or None for all, is a logistic observation.
            weight: ρ > 0, of each or of all.
            offset: what is added to hᵀw before the link, of each or of all.

        Raises:
            ValueError: the shapes do not fit together, or a row does not exist.
        """
        torch, n = self._torch, len(h)
        rows = np.asarray(people, dtype=np.int64)
        if rows.shape != (n,) or h.shape != (n, self.mean.shape[1]) or np.shape(y) != (n,):
            raise ValueError(
                f"people has the shape {rows.shape}, h {h.shape} and y {np.shape(y)}; "
                f"they must be (n,), (n, {self.mean.shape[1]}) and (n,)"
            )
        if n and not (rows.min() >= 0 and rows.max() < len(self)):
            raise ValueError(f"people names the rows {rows.min()} to {rows.max()}; there are 0 to {len(self) - 1}")

        def given(value: ArrayLike) -> Any:
            each = np.broadcast_to(np.asarray(value, dtype=np.float64), (n,))
            return torch.tensor(each, device=self._device)

        columns = [given(value) for value in (y, np.nan if noise is None else noise, weight, offset)]
        where, along = torch.tensor(rows, device=self._device), torch.tensor(h, device=self._device)
        with torch.no_grad():
            for turn in rounds(rows):
                part = torch.tensor(turn, device=self._device)
                self._round(where[part], along[part], *(column[part] for column in columns))

    def _round(self, rows: Any, h: Any, y: Any, noise: Any, weight: Any, offset: Any) -> None:
        """Learn one observation of each of these people: m += s·step, S −= s sᵀ·shrink, with s = S h."""
        torch = self._torch
        parts = [slice(i, i + self._chunk) for i in range(0, len(rows), self._chunk)]
        # As S is symmetric, hᵀS is S h; torch is faster at it.
        s = torch.cat([torch.bmm(h[part, None, :], self.cov.index_select(0, rows[part]))[:, 0] for part in parts])
        v = torch.einsum("bi,bi->b", h, s)
        a = torch.einsum("bi,bi->b", h, self.mean[rows]) + offset
        step, shrink = self._innovate(a, v, y, noise, weight)
        self.mean[rows] += s * step[:, None]
        for part in parts:
            # The product of s and s·shrink would not be symmetric to the last bit.
            outer = s[part, :, None] * s[part, None, :]
            self.cov.index_add_(0, rows[part], outer.mul_(-shrink[part, None, None]))

    def _innovate(self, a0: Any, v: Any, y: Any, noise: Any, weight: Any) -> tuple[Any, Any]:
        """Compute `fitrouter.posterior.gaussian.gaussian_update` for each element."""
        torch = self._torch
        logistic = noise.isnan()
        total = noise / weight + v
        step, shrink = (y - a0) / total, 1.0 / total
        if bool(logistic.any()):
            p = torch.sigmoid(self._root(a0, weight * v, y))
            q = weight * p * (1.0 - p)
            step = torch.where(logistic, weight * (y - p), step)
            shrink = torch.where(logistic, q / (1.0 + q * v), shrink)
        return step, shrink

    def _root(self, predicted: Any, scale: Any, y: Any) -> Any:
        """Compute `gaussian._root` for each element: Newton inside a bracket, bisecting where Newton is slow."""
        torch = self._torch
        low, high = predicted + scale * (y - 1.0), predicted + scale * y
        a, before = predicted, high - low
        moving = torch.ones_like(a, dtype=torch.bool)
        for _ in range(_ITERATIONS):
            p = torch.sigmoid(a)
            error = a - predicted - scale * (y - p)
            low, high = torch.where(error > 0, low, a), torch.where(error > 0, a, high)
            step = -error / (1.0 + scale * p * (1.0 - p))
            slow = (a + step < low) | (a + step > high) | (step.abs() > 0.5 * before.abs())
            step = torch.where(slow, 0.5 * (low + high) - a, step)
            before = step
            a = torch.where(moving, a + step, a)
            moving &= step.abs() > 1e-14 * a.abs().clamp(min=1.0)
            if not bool(moving.any()):
                break
        return a
