"""The background queue of feedback and observations."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fitrouter_integrations._outbox import Outbox


def test_items_beyond_the_size_are_lost_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """`put` never blocks: a full queue loses items, each kind of loss is warned of once, and the outbox recovers."""
    gate, sent = threading.Event(), list[int]()

    async def send(item: int) -> None:
        await asyncio.to_thread(gate.wait)
        sent.append(item)
        if item == 0:
            raise ValueError("no")

    outbox = Outbox("an item", send, size=10, threads=2)
    with caplog.at_level("WARNING", "fitrouter"):
        for item in range(100):
            outbox.put(item)
        assert not outbox.flush(0.0)
        assert 88 <= outbox.lost <= 90  # ten wait, and up to two are being sent
        gate.set()
        assert outbox.flush(30.0)
        lost = outbox.lost
        outbox.put(1000)
        assert outbox.flush(30.0)
    assert len(sent) == 100 - lost + 2  # with the failed item and the one that came afterwards
    assert max(sent) == 1000
    assert outbox.lost == lost
    assert [caplog.text.count(words) for words in ("10 items wait", "ValueError: no")] == [1, 1]


def test_one_thread_keeps_the_order() -> None:
    """With a single thread, items are sent in the order in which they were put."""
    sent = list[int]()

    async def send(item: int) -> None:
        await asyncio.sleep(0)
        sent.append(item)

    outbox = Outbox("an item", send, size=100)
    for item in range(50):
        outbox.put(item)
    assert outbox.flush(30.0)
    assert sent == list(range(50))
