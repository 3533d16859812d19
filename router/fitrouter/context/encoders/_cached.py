"""LRU cache of encoded texts."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from fitrouter.context.encoders._base import Encoder
from fitrouter.types import Floats


class Cached:
    """An encoder with an LRU cache of `size` vectors, keyed by a hash of the text so that no text is kept.

    Thread safe. Texts are encoded outside the lock, so that two threads may encode the same text twice.
    """

    def __init__(self, encoder: Encoder, size: int = 4096) -> None:
        if size < 1:
            raise ValueError(f"size is {size}; it must be at least 1")
        self.id = encoder.id
        self.dim = encoder.dim
        self.ordered: bool = getattr(encoder, "ordered", False)
        self.slow: bool = getattr(encoder, "slow", False)
        self.basis: Floats | None = getattr(encoder, "basis", None)
        self.hits = 0
        self.misses = 0
        self._encoder = encoder
        self._size = size
        self._vectors: OrderedDict[bytes, Floats] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._vectors)

    def encode(self, texts: Sequence[str]) -> Floats:
        """Return the wrapped encoder's vectors, from the cache where possible, float64[n, dim]."""
        keys = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
        known: dict[bytes, Floats] = {}
        unknown: dict[bytes, str] = {}
        with self._lock:
            for key, text in zip(keys, texts, strict=True):
                if (vector := self._vectors.get(key)) is not None:
                    self._vectors.move_to_end(key)
                    known[key] = vector
                    self.hits += 1
                else:
                    unknown[key] = text
                    self.misses += 1
        if unknown:
            fresh = dict(zip(unknown, self._encoder.encode(list(unknown.values())), strict=True))
            known |= fresh
            self._store(fresh)
        return np.array([known[key] for key in keys]).reshape(len(texts), self.dim)

    def _store(self, fresh: dict[bytes, Floats]) -> None:
        with self._lock:
            for key, vector in fresh.items():
                self._vectors[key] = vector.copy()
                self._vectors.move_to_end(key)
            while len(self._vectors) > self._size:
                self._vectors.popitem(last=False)
