"""Protocol of text encoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fitrouter.types import Floats


class Encoder(Protocol):
    """Encodes texts as unit vectors, deterministically on one build."""

    id: str
    """Name and version; vectors of different ids must not be mixed."""
    dim: int

    def encode(self, texts: Sequence[str]) -> Floats:
        """Encode texts as rows of length 1 (0 for a text without any token), float64[n, dim]."""
        ...
