"""The seam between state and where it is stored."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Part"]


class Part(Protocol):
    """A piece of state that is stored under its own name."""

    def dump(self) -> bytes:
        """The state, exactly."""
        ...

    def load(self, payload: bytes) -> bool:
        """Restore the state; False, and unchanged, where the bytes cannot be what `dump` made."""
        ...
