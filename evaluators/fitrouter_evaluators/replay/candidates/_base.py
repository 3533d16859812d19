"""Base class of all candidates."""

from __future__ import annotations


class DescribedCandidate:
    """Holds a candidate's description for reports, and the time up to which it was trained (None: unknown or never)."""

    def __init__(self, description: str, *, name: str = "", trained_until: float | None = None) -> None:
        self.description = f"{name}: {description}" if name else description
        self.trained_until = trained_until
