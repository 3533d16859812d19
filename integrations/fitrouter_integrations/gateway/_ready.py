"""The readiness report of a worker: position of its learner, and a digest of its state."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from typing import Any

from fitrouter.router import Router
from fitrouter_dashboards.metrics import Metrics, leases

_SLICE_S = 0.002
"""Seconds of hashing before other tasks run."""
_PATIENCE_S = 1.0


class Readiness:
    """Reports on a router. The digest is computed on request, once per position, in slices."""

    def __init__(self, router: Router, metrics: Metrics) -> None:
        self._router, self._metrics = router, metrics
        self._digest: tuple[int, str] | None = None
        self._mutex = asyncio.Lock()
        self.started = False

    async def report(self) -> dict[str, Any]:
        """The JSON of /readyz. `digest` is null while events keep arriving."""
        seq, digest = await self._position()
        gauges = self._metrics.gauges
        return {
            "ready": self.started,
            "pid": os.getpid(),
            "seq": seq,
            "digest": digest,
            "leases": sorted(name for name, held in leases(self._router).items() if held),
            "lag": {
                "learner_events": gauges.learner_events,
                "scorer_answers": gauges.scorer_answers,
                "scorer_seconds": gauges.scorer_seconds,
                "warehouse_events": gauges.warehouse_events,
                "warehouse_seconds": gauges.warehouse_seconds,
            },
        }

    async def _position(self) -> tuple[int, str | None]:
        """Sequence number, and the digest of the state at it."""
        learner = self._router.learner
        async with self._mutex:
            deadline = time.monotonic() + _PATIENCE_S
            while time.monotonic() < deadline:
                if self._digest is not None and self._digest[0] == learner.seq:
                    return self._digest
                await self._compute()
        return learner.seq, None

    async def _compute(self) -> None:
        """`Learner.digest` with pauses; abandoned if the learner advances in one of them."""
        learner = self._router.learner
        seq = learner.seq
        digest = hashlib.sha256(learner.version.encode())
        due = time.monotonic() + _SLICE_S
        for key, payload in learner.state():
            digest.update(key.encode())
            digest.update(payload)
            if time.monotonic() > due:
                await asyncio.sleep(0)
                if learner.seq != seq:
                    return
                due = time.monotonic() + _SLICE_S
        self._digest = (seq, digest.hexdigest())
