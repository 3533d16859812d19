"""Reward heads on a GPU: a cache of the fold, and one product for a whole batch."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fitrouter.taste import Gaussian
from fitrouter.types import Floats, Identity

__all__ = ["DeviceHeads", "found_device"]


def found_device(device: str) -> str:
    """The device that 'auto', 'cpu' or 'cuda' means here.

    auto is cuda only where something else, such as a sentence transformer, has loaded torch already: the product of a
    batch takes microseconds, which is no reason to load it.
    """
    if device == "auto":
        torch = sys.modules.get("torch")
        return "cuda" if torch is not None and torch.cuda.is_available() else "cpu"
    return device


class _Cached(NamedTuple):
    mean: Floats
    cov: Floats
    """The arrays that were copied: updates replace them, so identity tells whether the copy is current."""
    slot: int


class DeviceHeads:
    """Mean and sd of hᵀw for many users at once, on a device that torch knows.

    w is a sum of independent Gaussian blocks (population, role, user). Each block is copied to the device when it is
    first needed and again when it has changed; blocks not used for longest make room. The sum is in float64 and equals
    numpy's to 1e-5.

    Args:
        tastes: the blocks of a user, as they are now.
        dim: D, the length of h.
        device: 'cuda', 'cuda:1', 'cpu' …
        capacity: blocks that are kept, 8·(D + D²) bytes each.
    """

    def __init__(
        self, tastes: Callable[[Identity], Sequence[Gaussian]], dim: int, device: str = "cuda", *, capacity: int = 4096
    ) -> None:
        import torch  # heavy, and only this class needs it

        self._torch = torch
        self._tastes = tastes
        self._device = torch.device(device)
        self._capacity = capacity
        self._means = torch.zeros((capacity, dim), dtype=torch.float64, device=self._device)
        self._covs = torch.zeros((capacity, dim, dim), dtype=torch.float64, device=self._device)
        self._cached: OrderedDict[int, tuple[Gaussian, _Cached]] = OrderedDict()
        self._lock = threading.Lock()
        self.uploads = 0
        """Blocks copied so far."""

    def score(self, identity: Identity, h: Floats) -> tuple[float, float]:
        """Mean and sd for one answer, float64[D]; a missing feature (NaN) counts as average."""
        means, sds = self.score_many([identity], h[None])
        return float(means[0]), float(sds[0])

    def score_many(self, identities: Sequence[Identity], h: Floats) -> tuple[Floats, Floats]:
        """float64[n] means and sds of float64[n, D].

        Raises:
            ValueError: one answer needs more blocks than the cache holds.
        """
        blocks = [list(self._tastes(identity)) for identity in identities]
        if len({id(block) for row in blocks for block in row}) > self._capacity:
            return self._halves(identities, h)
        torch = self._torch
        with self._lock, torch.no_grad():
            slots = torch.tensor(self._slots([block for row in blocks for block in row]), device=self._device)
            owner = np.repeat(np.arange(len(blocks)), [len(row) for row in blocks])
            rows = torch.from_numpy(owner).to(self._device)
            x = torch.from_numpy(np.nan_to_num(h, nan=0.0)).to(self._device)[rows]
            out = torch.zeros((2, len(blocks)), dtype=torch.float64, device=self._device)
            out[0].index_add_(0, rows, (x * self._means[slots]).sum(-1))
            out[1].index_add_(0, rows, torch.einsum("pi,pij,pj->p", x, self._covs[slots], x))
            means, variances = out.cpu().numpy()
        return means, np.sqrt(np.maximum(variances, 0.0))

    def _halves(self, identities: Sequence[Identity], h: Floats) -> tuple[Floats, Floats]:
        n = len(identities)
        if n == 1:
            raise ValueError(f"the capacity of {self._capacity} blocks is less than one user's; raise it")
        first = self.score_many(identities[: n // 2], h[: n // 2])
        second = self.score_many(identities[n // 2 :], h[n // 2 :])
        return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])

    def _slots(self, blocks: Sequence[Gaussian]) -> list[int]:
        """Where each block lies on the device, after what is new or changed was copied there in one go."""
        needed = {id(block) for block in blocks}
        stale: dict[int, _Cached] = {}
        for block in blocks:
            mean, cov = block.mean, block.cov
            held = self._cached.get(id(block))
            if held is None or held[0] is not block or held[1].mean is not mean or held[1].cov is not cov:
                fresh = _Cached(mean, cov, held[1].slot if held else self._free(needed))
                self._cached[id(block)] = block, fresh
                stale[fresh.slot] = fresh
            self._cached.move_to_end(id(block))
        if stale:
            where = self._torch.tensor(list(stale), device=self._device)
            means, covs = np.array([c.mean for c in stale.values()]), np.array([c.cov for c in stale.values()])
            self._means[where] = self._torch.from_numpy(means).to(self._device)
            self._covs[where] = self._torch.from_numpy(covs).to(self._device)
            self.uploads += len(stale)
        return [self._cached[id(block)][1].slot for block in blocks]

    def _free(self, needed: set[int]) -> int:
        """A slot without a block, or that of the block used longest ago and not needed now."""
        if len(self._cached) < self._capacity:
            return len(self._cached)
        oldest = next(key for key in self._cached if key not in needed)
        return self._cached.pop(oldest)[1].slot
