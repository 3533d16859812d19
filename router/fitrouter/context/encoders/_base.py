"""The seam between text and vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fitrouter.types import Floats


class Encoder(Protocol):
    """Turns texts into unit vectors; the same text gives the same vector on one build."""

    id: str
    """Name and version: vectors of different ids never mix."""
    dim: int

    def encode(self, texts: Sequence[str]) -> Floats:
        """float64[n, dim], each row of length 1 (0 for a text without any token)."""
        ...
