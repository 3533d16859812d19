"""Readiness report of a worker: position, state digest, leases and lag."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from fitrouter.router import Router
from fitrouter.serving.status import Lag
from fitrouter_dashboards.metrics import Metrics


class Readiness:
    """Reports on a router."""

    def __init__(self, router: Router, metrics: Metrics) -> None:
        self._router, self._metrics = router, metrics
        self.started = False

    async def report(self) -> dict[str, Any]:
        """The JSON of /readyz. `digest` is null while events keep coming in."""
        seq, digest = await self._router.state_digest()
        status = self._metrics.status
        return {
            "ready": self.started,
            "pid": os.getpid(),
            "seq": seq,
            "digest": digest,
            "leases": sorted(name for name, held in status.leases.items() if held) if status else [],
            "lag": msgspec.to_builtins(status.lag if status else Lag()),
        }
