"""Digest of the folded state, computed in slices beside the requests."""

from __future__ import annotations

import asyncio
import hashlib
import time

from fitrouter.posterior.model import Fit
from fitrouter.state.learner import Learner

_SLICE_S = 0.002
"""Seconds of hashing before the event loop runs other tasks."""
_WAIT_S = 1.0
"""Seconds after which a digest is abandoned because events keep coming in."""


class StateDigest:
    """The digest of a learner's state, cached until the next event or refit."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._digest: tuple[int, str] | None = None
        self._fit: Fit | None = None
        """The model that `_digest` belongs to: a refit replaces it, possibly at the same position."""
        self._mutex = asyncio.Lock()

    async def digest(self) -> tuple[int, str | None]:
        """Sequence number and sha256 of the state there; the digest is None while events keep coming in."""
        async with self._mutex:
            deadline = time.monotonic() + _WAIT_S
            while time.monotonic() < deadline:
                current = self._fit is self._learner.fit
                if current and self._digest is not None and self._digest[0] == self._learner.seq:
                    return self._digest
                await self._compute()
        return self._learner.seq, None

    async def _compute(self) -> None:
        """`Learner.digest` with pauses; abandoned if the learner moves on during one."""
        learner = self._learner
        seq, fit = learner.seq, learner.fit
        digest = hashlib.sha256(learner.version.encode())
        due = time.monotonic() + _SLICE_S
        for key, payload in learner.state():
            digest.update(key.encode())
            digest.update(payload)
            if time.monotonic() > due:
                await asyncio.sleep(0)
                if learner.seq != seq or learner.fit is not fit:
                    return
                due = time.monotonic() + _SLICE_S
        self._digest, self._fit = (seq, digest.hexdigest()), fit
