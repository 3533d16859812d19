"""Concurrency limits of providers: a bounded queue in front of each, shared fairly by the tenants.

Waiting for a slot is the router's own business: it ends before the model's timers start, and says nothing about the
model. Freed slots go to the tenants in turn, so that one tenant's crowd delays another's request by one call at most,
and with several tenants none holds more than `tenant_share` of a provider's slots.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Mapping

import msgspec

from fitrouter.errors import NotCalled

CONCURRENCY = 256
"""Default number of calls of a provider at a time."""


class SlotParams(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of calls at a time, in one process."""

    concurrency: Mapping[str, int] = {}
    """Provider → calls at a time; `CONCURRENCY` where it is not named."""
    wait_s: float = 5.0
    """Longest wait for a slot, before another model is tried."""
    tenant_share: float = 1.0
    """Share of a provider's slots that one tenant may hold."""


class Slots:
    """Concurrency limit of one provider: its slots, and the tenants that wait for one."""

    def __init__(self, name: str, size: int, params: SlotParams) -> None:
        self.name, self.size, self.params = name, size, params
        self.used = 0
        self._held: dict[str, int] = {}
        """Tenant → slots."""
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Tenant → its queue; the first tenant is served next."""
        self._most = math.ceil(params.tenant_share * size)

    async def take(self, tenant: str, patience: float) -> None:
        """Wait for a slot, which must be given back with `free`.

        Args:
            tenant: that asks.
            patience: seconds that the request can wait.

        Raises:
            NotCalled: as many wait already as there are slots, or none became free in time.
        """
        if self.used < self.size and self._held.get(tenant, 0) < self._most:
            self._grant(tenant)
            return
        queue = self._waiting.setdefault(tenant, deque())
        if len(queue) >= self._most or sum(map(len, self._waiting.values())) >= 2 * self.size:
            raise NotCalled(f"provider {self.name!r} is busy: {self.used} calls, and as many as may wait")
        place = asyncio.get_running_loop().create_future()
        queue.append(place)
        try:
            async with asyncio.timeout(min(patience, self.params.wait_s)):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                self.free(tenant)  # granted while the wait ended
            elif place in queue:
                queue.remove(place)
            if isinstance(error, TimeoutError):
                raise NotCalled(f"provider {self.name!r} is busy: no call ended in {self.params.wait_s:g} s") from None
            raise

    def free(self, tenant: str) -> None:
        """Give a slot back, for the next waiting tenant in turn."""
        self.used -= 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        for name in list(self._waiting):
            queue = self._waiting[name]
            while queue and queue[0].done():
                queue.popleft()
            if not queue:
                del self._waiting[name]
            elif self._held.get(name, 0) < self._most:
                self._grant(name)
                queue.popleft().set_result(None)
                self._waiting.move_to_end(name)
                return

    def _grant(self, tenant: str) -> None:
        self.used += 1
        self._held[tenant] = self._held.get(tenant, 0) + 1
