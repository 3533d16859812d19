"""Sessions of agents that are quicker than the fold."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.kits.gateway import make_router

from fitrouter.context.features import session_key
from fitrouter.router import Router
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import Decision, Identity, Message, Mode, Request

SOMEBODY = Request(messages=({"role": "user", "content": "hello"},), identity=Identity(session="s"))


async def test_a_quick_agent_stays_on_its_model(tmp_path: Path) -> None:
    """200 agents whose next turn follows at once, long before the fold has heard of the last one: all are sticky."""

    async def agent(router: Router, i: int) -> list[Decision]:
        messages: list[Message] = []
        made = []
        for turn in range(3):
            messages.append({"role": "user", "content": f"agent {i}, turn {turn}"})
            request = Request(messages=tuple(messages), identity=Identity(user=f"u{i}", session=f"s{i}"))
            answer = await router.complete(request)
            messages.append(answer.completion.message)
            made.append(answer.decision)
        return made

    async with make_router(tmp_path) as router:
        for first, *later in await asyncio.gather(*(agent(router, i) for i in range(200))):
            assert [decision.mode for decision in later] == [Mode.STICKY] * 2
            assert {decision.draw_id for decision in later} == {first.id}
            assert {decision.chosen for decision in later} == {first.chosen}
        await router.settled()
        for i in range(200):
            request = Request(messages=(), identity=Identity(user=f"u{i}", session=f"s{i}"))
            key, _ = session_key(request, router._identities.salt)
            folded = router._learner.projections.sessions.get(key)
            assert folded is not None
            assert folded.turns == 3
            assert router._pipeline._session("default", key) is folded
        assert not router._pipeline._ahead, "nothing is kept that the fold knows"


async def test_a_turn_that_was_not_logged_leaves_no_session(tmp_path: Path) -> None:
    """What the journal lost is nothing to go on from: the next turn is a draw of its own."""
    broken = True

    def fault(_step: str) -> None:
        if broken:
            raise OSError("no space left on device")

    async with make_router(tmp_path, journal=MemoryJournal(fault=fault)) as router:
        assert not (await router.complete(SOMEBODY)).logged
        broken = False
        answer = await router.complete(SOMEBODY)
        assert (answer.decision.mode, answer.decision.draw_id) == (Mode.ONLINE, answer.decision.id)
