"""Encoder by signed feature hashing, without a model (Weinberger et al. 2009)."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from fitrouter.types import Floats

_WORD = re.compile(r"\w+|[^\w\s]")


def _features(text: str) -> Iterable[str]:
    """Yield a text's words, word pairs and character trigrams, in forms that never coincide between kinds."""
    words = _WORD.findall(text.casefold())
    yield from words
    yield from map(" ".join, pairwise(words))
    for word in words:
        padded = f"\x02{word}\x03"
        yield from (padded[i : i + 3] for i in range(len(padded) - 2))


class Hashing:
    """Encoder that hashes counts of words, word pairs and character trigrams into `dim` signed buckets.

    A count c weighs 1 + log c (sublinear term frequency). The hash is CRC-32, so that vectors are the same on every
    machine. Nothing is learned: it is the fallback without dependencies, and the baseline of the other encoders.
    """

    ordered = False

    def __init__(self, dim: int = 256) -> None:
        if dim < 8:
            raise ValueError(f"dim is {dim}; a hashing encoder needs at least 8 buckets")
        self.dim = dim
        self.id = f"hashing-v1-{dim}"

    def encode(self, texts: Sequence[str]) -> Floats:
        """Encode texts as rows of length 1 (0 for a text without any word), float64[n, dim]."""
        out = np.zeros((len(texts), self.dim))
        for row, text in zip(out, texts, strict=True):
            self._fill(row, text)
        return out

    def _fill(self, row: Floats, text: str) -> None:
        hashes = np.fromiter(
            (zlib.crc32(feature.encode("utf-8", "surrogatepass")) for feature in _features(text)), dtype=np.uint32
        )
        if not hashes.size:
            return
        unique, counts = np.unique(hashes, return_counts=True)
        # CRC is linear over GF(2): a multiplication mixes its bits before sign and bucket are taken from it.
        mixed = unique.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        signs = np.where(mixed >> np.uint64(63), 1.0, -1.0)
        buckets = (mixed >> np.uint64(32)) % np.uint64(self.dim)
        np.add.at(row, buckets.astype(np.intp), signs * (1.0 + np.log(counts)))
        norm = np.sqrt(np.einsum("i,i->", row, row))
        if norm > 0.0:
            row /= norm
