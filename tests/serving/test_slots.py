"""Laws of slots: calls of a provider at a time are bounded, waiting for one is fair and is never the model's fault."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.kits import virtual_time
from tests.kits.gateway import Echo, cards, make_router

from fitrouter.errors import NotCalled, ProviderUnavailable, Unavailable
from fitrouter.router import Router
from fitrouter.serving.attempts import Timers
from fitrouter.serving.slots import SlotParams, Slots
from fitrouter.types import AUTO, Call, Chunk, Completion, Execution, Identity, Message, Request, Usage


class Slow(Echo):
    """Takes ten seconds to an answer, or to the end of a stream that starts at once; knows how many it serves."""

    def __init__(self) -> None:
        super().__init__()
        self.busy = self.most = 0

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        if call.stream:
            return await super().complete(call)
        with self:
            await asyncio.sleep(10.0)
            return await super().complete(call)

    async def _stream(self, message: Message, usage: Usage) -> AsyncIterator[Chunk]:
        with self:
            async for chunk in super()._stream(message, usage):
                yield chunk
                await asyncio.sleep(2.0)

    def __enter__(self) -> None:
        self.busy += 1
        self.most = max(self.most, self.busy)

    def __exit__(self, *error: object) -> None:
        self.busy -= 1


def ask(text: str = "Hello", model: str = AUTO, tenant: str = "default", **more: Any) -> Request:
    message = {"role": "user", "content": text}
    return Request(messages=(message,), model=model, identity=Identity(tenant=tenant), **more)


def events(router: Router, kind: type[Any]) -> list[Any]:
    return [row.event for row in router._journal.tail(0, 100_000) if isinstance(row.event, kind)]


def narrow(tmp_path: Path, provider: Any, size: int, **more: Any) -> Router:
    """A router with few slots at its one provider."""
    slots = SlotParams(concurrency={"echo": size}, **more.pop("slots", {}))
    return make_router(tmp_path, {"echo": provider}, models=cards(["alpha"]), slots=slots, **more)


async def read(stream: AsyncIterator[Chunk]) -> int:
    return len([chunk async for chunk in stream])


@pytest.mark.parametrize("stream", [False, True])
def test_waiting_is_bounded_and_no_fault_of_the_models(tmp_path: Path, stream: bool) -> None:
    """Of 1,000 requests at once 20 are served and 20 wait for them; the others learn at once that there is no room.

    First-token timers of a second start at the call, not in the queue, and no availability is lost.
    """

    async def one(router: Router, i: int) -> str:
        began = time.monotonic()
        try:
            if stream:
                await read(aiter(await router.stream(ask(f"q{i}", stream=True))))
            else:
                await router.complete(ask(f"q{i}"))
        except Unavailable:
            return f"refused after {time.monotonic() - began:.0f} s"
        return "served"

    async def scenario() -> None:
        provider = Slow()
        timers = Timers(deadline_s=100.0, first_token_s=1.0)
        async with narrow(tmp_path, provider, 20, timers=timers, slots={"wait_s": 30.0}) as router:
            found = Counter(await asyncio.gather(*(one(router, i) for i in range(1000))))
            await router.settled()
            assert found == {"served": 40, "refused after 0 s": 960}
            assert (provider.most, provider.busy) == (20, 0)
            slots = router._caller.slots["echo"]
            assert (slots.used, slots._held) == (0, {})
            assert router.status().breakers == {}
            arms = router._learner.fit.arms
            assert arms.beta[arms.names["alpha"]][1] == 0.0
        executions = events(router, Execution)
        assert Counter(e.status for e in executions) == {"ok": 40, "refused": 960}
        served = [e for e in executions if e.status == "ok"]
        assert {round(e.latency_ms) for e in served} == {10_000}, "without the wait"
        assert {round(e.overhead_ms) for e in served} == {0}

    virtual_time.run(scenario())


def test_a_busy_provider_is_left_for_another(tmp_path: Path) -> None:
    """A request that waits in vain goes to a model behind another provider, and logs that the first was not called."""

    async def scenario() -> None:
        models = cards(["alpha", "beta"], provider=lambda name: "slow" if name == "alpha" else "echo")
        slots = SlotParams(concurrency={"slow": 1}, wait_s=2.0)
        async with make_router(tmp_path, {"slow": Slow(), "echo": Echo()}, models=models, slots=slots) as router:
            holding = asyncio.create_task(router.complete(ask("first", "alpha")))
            await asyncio.sleep(0.1)
            for i in range(20):
                assert (await router.complete(ask(f"q{i}"))).served_by == "beta"
                if time.monotonic() > 7.0:
                    break
            await holding
            await router.settled()
        fell = [e for e in events(router, Execution) if len(e.attempts) == 2]
        assert fell
        for execution in fell:
            assert [a.error for a in execution.attempts] == ["NotCalled", None]
            assert execution.attempts[0].ms == 0.0

    virtual_time.run(scenario())


def test_a_crowd_of_one_tenant_delays_another_by_one_call() -> None:
    """Freed slots go to the tenants in turn."""

    async def scenario() -> None:
        slots = Slots("p", 2, SlotParams(wait_s=1000.0))
        order: list[str] = []

        async def work(tenant: str) -> None:
            await slots.take(tenant, 1000.0)
            await asyncio.sleep(1.0)
            order.append(tenant)
            slots.free(tenant)

        crowd = [asyncio.create_task(work("a")) for _ in range(4)]
        await asyncio.sleep(0)
        await work("b")
        assert order.count("a") <= 3
        await asyncio.gather(*crowd)
        assert (slots.used, slots._held, slots._waiting) == (0, {}, {})

    virtual_time.run(scenario())


def test_one_tenant_cannot_hold_all_slots() -> None:
    """With a share of three quarters, a quarter is always left for others, however long its streams are."""

    async def scenario() -> None:
        slots = Slots("p", 8, SlotParams(wait_s=1.0, tenant_share=0.75))
        for _ in range(6):
            await slots.take("a", 10.0)
        with pytest.raises(NotCalled):
            await slots.take("a", 10.0)
        await slots.take("b", 10.0)
        await slots.take("b", 10.0)
        assert slots.used == 8

    virtual_time.run(scenario())


def test_slots_are_given_back_whatever_ends_the_wait_or_the_call(tmp_path: Path) -> None:
    """Cancelled in the queue or in the call, failed, closed early or unread: no slot is lost."""

    class Fails(Echo):
        async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
            raise ProviderUnavailable("down", 503)

    async def scenario() -> None:
        async with narrow(tmp_path, Slow(), 2) as router:
            slots = router._caller.slots["echo"]
            unread = await router.stream(ask("a", stream=True))
            begun = await router.stream(ask("b", stream=True))
            await anext(aiter(begun))
            waiting = [asyncio.create_task(router.complete(ask(f"c{i}"))) for i in range(2)]
            await asyncio.sleep(0.5)
            waiting[0].cancel()
            await unread.aclose()
            await begun.aclose()
            await asyncio.sleep(0.5)
            waiting[1].cancel()
            found = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(each) for each in found] == [asyncio.CancelledError] * 2
            assert (slots.used, slots._held) == (0, {})
        folder = tmp_path / "other"
        folder.mkdir()
        async with narrow(folder, Fails(), 2) as router:
            await asyncio.gather(*(router.complete(ask(f"q{i}")) for i in range(50)), return_exceptions=True)
            assert router._caller.slots["echo"].used == 0

    virtual_time.run(scenario())
