"""The laws of virtual time: timers pass in their order and at once, threads are waited for, a deadlock is told."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from tests.kits import virtual_time


def test_timers_pass_in_their_order() -> None:
    """A day takes no time, and every clock of the loop says that it is over."""

    async def scenario() -> list[float]:
        passed: list[float] = []

        async def sleep(seconds: float) -> None:
            await asyncio.sleep(seconds)
            assert time.monotonic() == asyncio.get_running_loop().time()
            passed.append(time.monotonic())

        await asyncio.gather(*map(sleep, (86_400.0, 1.0, 3_600.0)))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await asyncio.Event().wait()
        return [*passed, time.monotonic()]

    assert virtual_time.run(scenario()) == pytest.approx([1.0, 3_600.0, 86_400.0, 86_405.0])


def test_time_stands_still_while_a_thread_is_at_work() -> None:
    """A deadline does not pass because a thread takes long."""
    held = threading.Event()

    async def scenario() -> str:
        async with asyncio.timeout(0.001):
            job = asyncio.create_task(asyncio.to_thread(held.wait, 300.0))
            threading.Timer(0.05, held.set).start()
            return "waited" if await job else "late"

    assert virtual_time.run(scenario()) == "waited"


def test_a_deadlock_is_told() -> None:
    """Nothing is waited for in vain."""

    async def scenario() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="deadlock"):
        virtual_time.run(scenario())


def test_a_seed_names_an_order() -> None:
    """Tasks that are ready together run in an order that the seed alone decides."""

    async def scenario() -> str:
        said: list[str] = []

        async def say(letter: str) -> None:
            await asyncio.sleep(0)
            said.append(letter)

        await asyncio.gather(*map(say, "abcdef"))
        return "".join(said)

    found = [virtual_time.run(scenario(), seed) for seed in range(10)]
    assert found == [virtual_time.run(scenario(), seed) for seed in range(10)]
    assert len(set(found)) > 1
    assert virtual_time.run(scenario()) == "abcdef"
