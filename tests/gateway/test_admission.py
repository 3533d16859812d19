"""Laws of admission: what a worker cannot serve soon is refused at once, and no tenant crowds out another."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest
from tests.kits import virtual_time
from tests.kits.gateway import Echo, chat, client, config, make_router, serving

from fitrouter.providers import Fault, Faulty
from fitrouter_integrations.gateway.asgi import _admission
from fitrouter_integrations.gateway.asgi._admission import LEAST, TARGET_S, Admission, Limit
from fitrouter_integrations.gateway.asgi._wire import Problem


def fill(limit: Limit, tenant: str = "a") -> int:
    """Requests that enter until one is refused."""
    for n in itertools.count():
        try:
            limit.enter(tenant)
        except Problem:
            return n
    raise AssertionError


def test_the_limit_falls_while_the_loop_is_late_and_recovers() -> None:
    """Never below the least, never above the most; a worker with few requests keeps its limit."""
    limit = Limit(1000)
    for _ in range(100):
        limit.adapt(1.0)
    assert limit.limit == 1000, "nobody was in progress"
    for _ in range(100):
        for _ in range(fill(limit)):
            limit.leave("a")
        limit.adapt(2 * TARGET_S)
    assert limit.limit == LEAST
    for _ in range(100):
        for _ in range(fill(limit)):
            limit.leave("a")
        limit.adapt(0.0)
    assert limit.limit == 1000


def test_a_stalled_loop_takes_nothing_more() -> None:
    """But few requests are always taken: they are not what stalls it."""
    limit = Limit(1000)
    for _ in range(LEAST):
        limit.enter("a", 10.0)
    with pytest.raises(Problem):
        limit.enter("a", 10.0)
    limit.enter("a", 0.0)


def test_a_burst_after_a_quiet_time_is_served_late() -> None:
    """A second of delay refuses nobody then; right after a refusal a tenth does."""
    limit = Limit(1000)
    for _ in range(100):
        limit.enter("a", 1.0)
    limit.adapt(0.3)
    assert limit.limit == 1000
    with pytest.raises(Problem):
        limit.enter("a", 2.0)
    with pytest.raises(Problem):
        limit.enter("a", 0.2)


def test_an_unused_limit_does_not_grow() -> None:
    """Else an hour of quiet would let any crowd in."""
    limit = Limit(1000)
    limit.limit = 20.0
    for _ in range(100):
        limit.adapt(0.0)
    assert limit.limit == 20.0


def test_a_tenant_has_its_share_only() -> None:
    """The others are taken while one is refused with 429."""
    limit = Limit(100, tenant_share=0.75)
    assert fill(limit, "a") == 75
    with pytest.raises(Problem) as refused:
        limit.enter("a")
    assert (refused.value.status, refused.value.code) == (429, "too_many_requests")
    assert 1 <= int(refused.value.headers["retry-after"]) <= 3
    assert fill(limit, "b") == 25
    with pytest.raises(Problem) as refused:
        limit.enter("c")
    assert (refused.value.status, refused.value.code) == (503, "overloaded")


class Worker:
    """An open-loop simulation: one CPU that takes `cost_s` for each request and `refusal_s` for each refusal.

    What is admitted and not served queues for the CPU, and so does the measurement of the loop's delay: each waits for
    all that is ready before it.
    """

    def __init__(self, limit: Limit | None, cost_s: float, refusal_s: float, upstream_s: float) -> None:
        self.limit, self.cost_s, self.refusal_s, self.upstream_s = limit, cost_s, refusal_s, upstream_s
        self.now = self.free_at = 0.0
        self.served: list[tuple[float, float]] = []
        """(end, latency)"""
        self.refused = 0

    def run(self, arrivals: list[float]) -> None:
        """Serve requests that arrive at these times."""
        with mock.patch("time.monotonic", side_effect=lambda: self.now):
            self._run(arrivals)

    def _run(self, arrivals: list[float]) -> None:
        tie = itertools.count()
        events: list[tuple[float, int, str, float]] = [(t, next(tie), "arrive", t) for t in arrivals]
        if self.limit is not None:
            events.append((0.0, next(tie), "sample", 0.0))
        heapq.heapify(events)
        delays: list[float] = []
        last = arrivals[-1] + 20.0
        while events:
            now, _, kind, began = heapq.heappop(events)
            if now > last:
                break
            self.now = start = max(now, self.free_at)
            if kind == "sample":
                assert self.limit is not None
                delays.append(start - now)
                if len(delays) == _admission.SAMPLES:
                    self.limit.adapt(min(delays))
                    delays.clear()
                heapq.heappush(events, (start + _admission.SAMPLE_S, next(tie), "sample", 0.0))
            elif kind == "arrive":
                try:
                    if self.limit is not None:
                        self.limit.enter("a", start - now)
                except Problem:
                    self.refused += 1
                    self.free_at = start + self.refusal_s
                    continue
                self.free_at = start + 0.5 * self.cost_s
                heapq.heappush(events, (self.free_at + self.upstream_s, next(tie), "answer", began))
            else:
                self.free_at = start + 0.5 * self.cost_s
                self.served.append((self.free_at, self.free_at - began))
                if self.limit is not None:
                    self.limit.leave("a")


def goodput(worker: Worker, begin: float, end: float, within_s: float) -> float:
    """Requests a second that were served in time."""
    return sum(begin <= at < end and late <= within_s for at, late in worker.served) / (end - begin)


@pytest.mark.parametrize("upstream_s", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("overload", [2.0, 10.0])
def test_goodput_stays_under_overload_and_recovers(upstream_s: float, overload: float) -> None:
    """At 2× and 10× capacity at least 80% of the peak, within upstream's time and a second; then normal within 2 s.

    The peak at 10× is what refusing leaves of the CPU. Without admission goodput is 0.
    """
    cost_s, refusal_s = 0.007, 0.0003
    capacity = 1.0 / cost_s
    crowd = [i / (overload * capacity) for i in range(int(30.0 * overload * capacity))]
    after = [30.0 + i / (0.5 * capacity) for i in range(int(20.0 * 0.5 * capacity))]
    patience_s = upstream_s + 1.0
    open_door = Worker(None, cost_s, refusal_s, upstream_s)
    open_door.run(crowd + after)
    assert goodput(open_door, 20.0, 30.0, patience_s) == 0.0
    guarded = Worker(Limit(2000), cost_s, refusal_s, upstream_s)
    guarded.run(crowd + after)
    peak = capacity * (1.0 - refusal_s * (overload - 1.0) * capacity)
    assert goodput(guarded, 10.0, 30.0, patience_s) >= 0.8 * peak
    recovered = [late for at, late in guarded.served if at > 32.0 + patience_s]
    assert max(recovered) <= upstream_s + 0.2
    assert len(recovered) >= 0.95 * 0.5 * capacity * (20.0 - 2.0 - patience_s)


def test_a_late_loop_is_measured() -> None:
    """Callbacks that hold the loop lower the limit; an idle loop does not."""

    async def scenario() -> None:
        limit = Limit(1000)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual_time.VirtualTimeLoop)

        async def nothing(*scope: Any) -> None:
            for _ in range(100):
                loop.now += 2 * TARGET_S  # work that takes so long
                await asyncio.sleep(0)

        fill(limit)
        await Admission(nothing, limit, lambda _: None, print)({"type": "lifespan"}, nothing, nothing)  # type: ignore[arg-type]
        assert limit.limit < 1000

    virtual_time.run(scenario())


def test_over_http_the_refused_are_told_when_to_come_back(tmp_path: Path) -> None:
    """A worker that is full answers 503 at once; its probes and metrics answer, and it serves again when it can."""
    provider = Faulty(Echo(), itertools.repeat(Fault(hang=True)))
    with serving(make_router(tmp_path, {"echo": provider}), config(max_requests=16)) as url, client(url) as http:

        async def crowd() -> Counter[int]:
            async with httpx.AsyncClient(base_url=url, timeout=60.0) as many:
                tasks = [asyncio.create_task(many.post("/v1/chat/completions", json=chat(f"q{i}"))) for i in range(40)]
                while sum(task.done() for task in tasks) < 24:
                    await asyncio.wait([task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED)
                found = Counter(task.result().status_code for task in tasks if task.done())
                reply = next(task.result() for task in tasks if task.done())
                assert reply.json()["error"]["code"] == "overloaded"
                assert 1 <= int(reply.headers["retry-after"]) <= 3
                assert (await many.get("/readyz")).status_code == 200
                assert 'fitrouter_errors_total{kind="overloaded"} 24.0' in (await many.get("/metrics")).text
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                return found

        assert asyncio.run(crowd()) == {503: 24}
        deadline = time.monotonic() + 60.0
        while http.get("/v1/models").status_code == 503:
            assert time.monotonic() < deadline
