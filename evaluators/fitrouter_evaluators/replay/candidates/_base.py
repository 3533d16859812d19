"""What every candidate is called and known by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


class DescribedCandidate:
    """A name in words, the settings behind it, and their hash.

    Args:
        words: what it is.
        config: the settings, ready for JSON.
        name: what its file calls it.
        trained_until: seconds since the epoch: the last moment that it has learnt from; None where it has not learnt
            from the log, or it is not known.
    """

    def __init__(
        self, words: str, config: Mapping[str, Any], *, name: str = "", trained_until: float | None = None
    ) -> None:
        self.description = f"{name}: {words}" if name else words
        self.trained_until = trained_until
        self._config = dict(config)

    def config(self) -> dict[str, Any]:
        """The settings, for JSON."""
        return dict(self._config)

    def hash(self) -> str:
        """Sixteen hex digits that change with any setting."""
        return hashlib.sha256(json.dumps(self._config, sort_keys=True).encode()).hexdigest()[:16]
