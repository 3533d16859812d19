"""Gaussians on a device, with batched means and variances of hᵀw."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fitrouter.errors import in_words
from fitrouter.types import Floats

_log = logging.getLogger(__name__)
_FIRST = 1024
"""Slots of a new store."""

_CHUNK_BYTES = {"cpu": 1 << 20}
"""Bytes of covariances per gather, sized to stay in the cache (a GPU's L2: 16 MB)."""


class HeadStore:
    """Up to `capacity` Gaussians over R^dim, in float32: 4·(dim + dim²) bytes each, 5.9 GB for a million of 38.

    It starts small and doubles while the device has memory. Storing in float32 moves a mean by about 1e-7 of the sizes
    of its terms. Products are float32 too, so torch must not be told to use TF32 where there is no Triton.

    Args:
        dim: D, the length of h.
        device: 'cuda', 'cuda:1', 'cpu' …
        capacity: slots at most.
    """

    def __init__(self, dim: int, device: str = "cuda", capacity: int = 1_000_000) -> None:
        import torch  # heavy, and only this class needs it

        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; a store holds at least 1 Gaussian")
        self._torch = torch
        self.device = torch.device(device)
        self.dim = dim
        self.capacity = capacity
        """Maximum slots; lowered once the device is full."""
        self._means, self._covs = self._room(min(_FIRST, capacity))
        self._chunk = max(1, _CHUNK_BYTES.get(self.device.type, 1 << 24) // (4 * dim * dim))
        self.fused: Callable[..., None] | None = None
        """The fused kernel; None where torch operations are used."""
        if self.device.type == "cuda":
            self._try_fused()

    def __len__(self) -> int:
        """Number of allocated slots."""
        return len(self._means)

    def reserve(self, slots: int) -> int:
        """Grow to this many slots if memory allows; return the number of slots."""
        while len(self) < min(slots, self.capacity):
            try:
                means, covs = self._room(min(max(slots, 2 * len(self)), self.capacity))
            except self._torch.OutOfMemoryError:
                self.capacity = len(self)
                break
            means[: len(self)], covs[: len(self)] = self._means, self._covs
            self._means, self._covs = means, covs
        return len(self)

    def put(self, slots: Any, means: Floats, covs: Floats) -> None:
        """Store Gaussians in n different slots: means float64[n, D] and covariances float64[n, D, D]."""
        torch = self._torch
        where = torch.as_tensor(slots, device=self.device)
        self._means[where] = torch.from_numpy(means).to(self.device, torch.float32)
        self._covs[where] = torch.from_numpy(covs).to(self.device, torch.float32)

    def score(self, slots: Any, h: Any) -> tuple[Any, Any]:
        """Mean and variance of hᵀw, torch.float32[n, C] each: torch.int64[n] slots, torch.float32[n, C, D] answers."""
        torch = self._torch
        n, C, _ = h.shape
        mean, variance = (torch.empty((n, C), dtype=torch.float32, device=self.device) for _ in range(2))
        with torch.no_grad():
            if self.fused is not None:
                self.fused(self._means, self._covs, slots, h.contiguous(), mean, variance)
                return mean, variance
            for begin in range(0, n, self._chunk):
                part = slice(begin, begin + self._chunk)
                x, slot = h[part], slots[part]
                mean[part] = torch.bmm(x, self._means.index_select(0, slot)[:, :, None])[:, :, 0]
                variance[part] = (torch.bmm(x, self._covs.index_select(0, slot)) * x).sum(-1)
        return mean, variance

    def _room(self, slots: int) -> tuple[Any, Any]:
        torch, D = self._torch, self.dim
        return (
            torch.empty((slots, D), dtype=torch.float32, device=self.device),
            torch.empty((slots, D, D), dtype=torch.float32, device=self.device),
        )

    def _try_fused(self) -> None:
        """Load the fused kernel if it runs: it needs Triton, and Triton a C compiler."""
        from fitrouter_evaluators.scoring._fused import fused_score

        torch, D = self._torch, self.dim
        slot, x = torch.zeros(1, dtype=torch.int64, device=self.device), torch.zeros((1, 1, D), device=self.device)
        try:
            self.fused = fused_score
            self.score(slot, x)
        except Exception as error:  # noqa: BLE001 - whatever a compiler raises
            self.fused = None
            _log.warning("scores take longer, since their fused kernel does not run: %s", in_words(error))
