"""Digest of the folded state, computed in slices between the requests."""

from __future__ import annotations

import asyncio
import hashlib
import time

from fitrouter.state.learner import Learner

_SLICE_S = 0.002
"""Seconds of hashing before the event loop runs other tasks."""
_LONGEST_S = 5.0
"""Seconds after which it is abandoned because there are too many people."""


class StateDigest:
    """The digest of a learner's state, cached until the next event or refit."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._digest: tuple[int, str] | None = None
        self._revision = 0
        """The state that `_digest` belongs to: a refit replaces it, possibly at the same position."""
        self._mutex = asyncio.Lock()

    async def digest(self) -> tuple[int, str | None]:
        """Return sequence number and sha256 of the state; None as digest if an event comes in meanwhile.

        It is also None if the state has too many people to be hashed in time.
        """
        async with self._mutex:
            if not self._current():
                await self._compute()
            return self._digest if self._digest is not None and self._current() else (self._learner.seq, None)

    def _current(self) -> bool:
        """Whether the last digest is that of the present state."""
        return self._digest is not None and (self._digest[0], self._revision) == (
            self._learner.seq,
            self._learner.revision,
        )

    async def _compute(self) -> None:
        """Compute `Learner.digest` in slices with pauses; give up if the learner moves on during a pause."""
        learner = self._learner
        seq, revision = learner.seq, learner.revision
        digest = hashlib.sha256(learner.version.encode())
        began = time.monotonic()
        due = began + _SLICE_S
        for key, payload in learner.state():
            digest.update(key.encode())
            digest.update(payload)
            if time.monotonic() > due:
                await asyncio.sleep(0)
                if learner.seq != seq or learner.revision != revision or due > began + _LONGEST_S:
                    return
                due = time.monotonic() + _SLICE_S
        if not learner.parts_ahead:
            self._digest, self._revision = (seq, digest.hexdigest()), revision
