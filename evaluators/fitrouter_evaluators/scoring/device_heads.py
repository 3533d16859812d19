"""Reward heads on a GPU: cached taste posteriors, and one product per batch."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.tastes import OVERALL
from fitrouter.types import Floats, Identity
from fitrouter_evaluators.scoring.head_store import HeadStore


def found_device(device: str) -> str:
    """Resolve 'auto', 'cpu' or 'cuda' on this machine.

    auto is cuda only if torch is already loaded, for example by a sentence transformer: a batch takes microseconds,
    which does not justify loading torch.
    """
    if device == "auto":
        torch = sys.modules.get("torch")
        return "cuda" if torch is not None and torch.cuda.is_available() else "cpu"
    return device


class _Copied(NamedTuple):
    """A state's slot on the device; updates replace states, so identity tells whether the copy there is current.

    The reference is weak: the cache does not keep states alive.
    """

    slot: int
    state: weakref.ref[Floats]

    def current(self, block: Gaussian) -> bool:
        return self.state() is block.state


class DeviceHeads:
    """Mean and sd of hᵀw for many users at once, on a device that torch knows.

    w is a sum of independent Gaussian blocks (population, role, user). Blocks are copied to the device when first
    needed and when changed; the least recently used ones are evicted. The sum equals numpy's to 1e-5.

    Args:
        tastes: returns the current blocks of a user, and of a dimension other than `overall` if it is given.
        dim: D, the length of h.
        device: 'cuda', 'cuda:1', 'cpu' …
        capacity: blocks that are kept at most, 4·(D + D²) bytes each.
        dimensions: returns the names of the other dimensions.
    """

    def __init__(
        self,
        tastes: Callable[..., Sequence[Gaussian]],
        dim: int,
        device: str = "cuda",
        *,
        capacity: int = 1_000_000,
        dimensions: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        import torch  # heavy, and only this class needs it

        self._torch = torch
        self._tastes = tastes
        self.dimensions = dimensions
        self._store = HeadStore(dim, device, capacity)
        self._copied: OrderedDict[int, _Copied] = OrderedDict()
        self._lock = threading.Lock()
        self.uploads = 0
        """Blocks copied so far."""

    def score(self, identity: Identity, h: Floats, dimension: str = OVERALL) -> tuple[float, float]:
        """Mean and sd of the score of one answer, h float64[D]; a missing feature (NaN) counts as average."""
        means, sds = self.score_many([identity], h[None], dimension)
        return float(means[0]), float(sds[0])

    def score_many(self, identities: Sequence[Identity], h: Floats, dimension: str = OVERALL) -> tuple[Floats, Floats]:
        """Means and sds of the scores of answers h float64[n, D], float64[n] each.

        Raises:
            ValueError: one answer needs more blocks than the cache holds.
        """
        named = () if dimension == OVERALL else (dimension,)
        blocks = [list(self._tastes(identity, *named)) for identity in identities]
        needed = {id(block) for row in blocks for block in row}
        torch, device = self._torch, self._store.device
        with self._lock, torch.no_grad():
            fits = len(needed) <= self._store.reserve(min(len(self._copied) + len(needed), self._store.capacity))
            if fits:
                flat = [block for row in blocks for block in row]
                slots = torch.tensor(self._slots(flat, needed), dtype=torch.int64, device=device)
                owner = torch.from_numpy(np.repeat(np.arange(len(blocks)), [len(row) for row in blocks])).to(device)
                x = torch.from_numpy(np.nan_to_num(h, nan=0.0)).to(device, torch.float32)[owner, None]
                out = torch.zeros((2, len(blocks)), dtype=torch.float64, device=device)
                for total, part in zip(out, self._store.score(slots, x), strict=True):
                    total.index_add_(0, owner, part[:, 0].double())
                means, variances = out.cpu().numpy()
                return means, np.sqrt(np.maximum(variances, 0.0))
        return self._halves(identities, h, dimension)

    def _halves(self, identities: Sequence[Identity], h: Floats, dimension: str) -> tuple[Floats, Floats]:
        n = len(identities)
        if n == 1:
            raise ValueError(
                f"the capacity of {self._store.capacity} blocks is less than one user's; raise it, or free the device"
            )
        first = self.score_many(identities[: n // 2], h[: n // 2], dimension)
        second = self.score_many(identities[n // 2 :], h[n // 2 :], dimension)
        return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])

    def _slots(self, blocks: Sequence[Gaussian], needed: set[int]) -> list[int]:
        """Slots of the blocks, after copying all new and changed blocks to the device together."""
        stale: dict[int, tuple[Floats, Floats]] = {}
        slots: list[int] = []
        for block in blocks:
            key = id(block)
            held = self._copied.get(key)
            if held is None or not held.current(block):
                slot = held.slot if held else self._free(needed)
                held = self._copied[key] = _Copied(slot, weakref.ref(block.state))
                stale[slot] = block.mean, block.cov
            self._copied.move_to_end(key)
            slots.append(held.slot)
        if stale:
            means, covs = (np.array(arrays) for arrays in zip(*stale.values(), strict=True))
            self._store.put(list(stale), means, covs)
            self.uploads += len(stale)
        return slots

    def _free(self, needed: set[int]) -> int:
        """A free slot, or that of the least recently used block that is not needed now."""
        if len(self._copied) < len(self._store):
            return len(self._copied)
        oldest = next(key for key in self._copied if key not in needed)
        return self._copied.pop(oldest).slot
