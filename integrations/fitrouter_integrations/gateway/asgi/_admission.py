"""Admission: how many requests a worker takes at a time, and how many of one tenant.

A worker's limit adapts to the delay of its event loop. When even the shortest delay of an interval is above the target,
a queue stands that does not drain (CoDel: Nichols and Jacobson 2012, "Controlling queue delay"), and the limit falls by
a tenth; otherwise it grows by its square root while it is used (as in Netflix's concurrency-limits). While the loop is
late by `STALL_S` nothing more is taken. A burst after a quiet time, which drains by itself, is allowed more delay. What
is above the limit is refused at once, before it is parsed, with 503 or, above a tenant's share, with 429, and a time to
come back.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from fitrouter.stores.figures import many
from fitrouter_integrations.gateway.asgi._bodies import Refusal
from fitrouter_integrations.gateway.asgi._wire import Problem, dump

TARGET_S = 0.03
"""Delay of the event loop above which requests queue."""
SAMPLE_S = 0.02
"""Time between two measurements of it."""
SAMPLES = 3
"""Measurements of an interval."""
STALL_S = 0.1
"""Delay at which new requests are refused, as soon as it is seen."""
BURST_S = 1.5
"""The same after `CALM_S` without a refusal: a burst is served, late."""
CALM_S = 10.0
LEAST = 32
"""Requests that are always taken."""
BACKOFF = 0.9
"""Factor of the limit after an interval of delay."""


class Limit:
    """Number of requests in progress, and an adaptive limit on it.

    Args:
        most: highest limit.
        tenant_share: share of the limit that one tenant may use.
    """

    def __init__(self, most: int, tenant_share: float = 1.0) -> None:
        self.most, self.tenant_share = most, tenant_share
        self.limit = float(most)
        self.open = 0
        self._peak = 0
        """Most requests in progress since the last interval."""
        self._refused_at = -math.inf
        self._late_s = 0.0
        """How long the loop has been late without a break."""
        self._of: dict[str, int] = {}
        """Tenant → requests in progress."""

    def enter(self, tenant: str, late_s: float = 0.0) -> None:
        """Count a request in, or refuse it; `leave` counts it out.

        Args:
            tenant: that sends it.
            late_s: delay of the event loop now.

        Raises:
            Problem: there are too many.
        """
        self._peak = max(self._peak, self.open + 1)
        wait = {"retry-after": str(random.randint(1, 3))}  # noqa: S311 - so that not all come back at once
        if self.open >= int(self.limit) or (late_s > self._allowed_s() and self.open >= LEAST):
            self._refused_at = time.monotonic()
            taken = many(self.open, "request is", "requests are")
            text = f"{taken} in progress, all that this worker takes now; try again in a moment"
            raise Problem(503, "overloaded", text, headers=wait)
        own = self._of.get(tenant, 0)
        if own >= math.ceil(self.tenant_share * int(self.limit)):
            yours = many(own, "request of yours is", "requests of yours are")
            text = f"{yours} in progress, which is your share; wait for one to end"
            raise Problem(429, "too_many_requests", text, headers=wait)
        self.open += 1
        self._of[tenant] = own + 1

    def leave(self, tenant: str) -> None:
        """Count a request out."""
        self.open -= 1
        self._of[tenant] -= 1
        if not self._of[tenant]:
            del self._of[tenant]

    def adapt(self, delay_s: float) -> None:
        """Adapt the limit to the event loop's shortest delay in an interval."""
        peak, self._peak = self._peak, self.open
        self._late_s = self._late_s + SAMPLES * (SAMPLE_S + delay_s) if delay_s > TARGET_S else 0.0
        if self._late_s:
            if peak >= LEAST and self._late_s > self._allowed_s():  # a few requests are not what delays the loop
                self.limit = max(float(LEAST), BACKOFF * min(self.limit, peak))
        elif peak >= 0.5 * self.limit:
            self.limit = min(self.limit + math.sqrt(self.limit), float(self.most))

    def _allowed_s(self) -> float:
        """Return the delay of the event loop that is tolerated now, in seconds."""
        return BURST_S if time.monotonic() - self._refused_at > CALM_S else STALL_S


class Admission:
    """ASGI middleware that refuses requests to /v1 above a limit.

    Args:
        app: the application.
        limit: of the worker.
        tenant: headers → tenant of a request; None for an unknown key, which the application refuses.
        refused: called with the code of each refusal, the tenant, and the path.
    """

    def __init__(
        self,
        app: ASGIApp,
        limit: Limit,
        tenant: Callable[[Mapping[bytes, bytes]], str | None],
        refused: Callable[[str, str, str], None],
    ) -> None:
        self.app, self.limit, self.tenant, self.refused = app, limit, tenant, refused
        self._due = math.inf
        """Time of the next measurement of the delay."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] == "lifespan":
            watching = asyncio.create_task(self._watch(), name="fitrouter-admission")
            try:
                await self.app(scope, receive, send)
            finally:
                watching.cancel()
            return
        tenant = self.tenant(dict(scope["headers"])) if scope["path"].startswith("/v1/") else None
        if tenant is None:
            await self.app(scope, receive, send)
            return
        try:
            self.limit.enter(tenant, time.monotonic() - self._due)
        except Problem as problem:
            self.refused(problem.code, tenant, scope["path"])
            refusal = Refusal(
                dump(problem.body(scope["path"])), problem.status, problem.headers, media_type="application/json"
            )
            await refusal(scope, receive, send)
            return
        try:
            await self.app(scope, receive, send)
        finally:
            self.limit.leave(tenant)

    async def _watch(self) -> None:
        """Measure the event loop's delay."""
        while True:
            delays = []
            for _ in range(SAMPLES):
                self._due = time.monotonic() + SAMPLE_S
                await asyncio.sleep(SAMPLE_S)
                delays.append(time.monotonic() - self._due)
            self.limit.adapt(min(delays))
