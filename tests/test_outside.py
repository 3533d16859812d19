"""Laws of what is answered elsewhere: its log is that of a request which the router answered itself."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway_kit import NAMES, Echo, cards, make_router

from fitrouter.attempts import Timers
from fitrouter.decide import Rules
from fitrouter.errors import AllModelsFailed, ProviderUnavailable
from fitrouter.outside import Ended, Plan, Tried
from fitrouter.providers import Fault, Faulty
from fitrouter.router import Router
from fitrouter.types import (
    AUTO,
    Completion,
    Decision,
    Execution,
    Identity,
    Request,
    Usage,
)

DOWN = "ProviderUnavailable"


def ask(text: str = "Hello", model: str = AUTO, **identity: Any) -> Request:
    return Request(messages=({"role": "user", "content": text},), model=model, identity=Identity(**identity))


def said(text: str = "fine") -> Completion:
    return Completion(
        message={"role": "assistant", "content": text}, usage=Usage(prompt_tokens=7, completion_tokens=11)
    )


def logged(router: Router, kind: type[Any]) -> list[Any]:
    return [row.event for row in router.journal.tail(0, 100_000) if isinstance(row.event, kind)]


def tried(plan: Plan, *errors: str | None) -> tuple[Tried, ...]:
    """The first models of a plan, each with how it ended."""
    return tuple(
        Tried(model=choice.model, ms=5.0, error=error, probability=choice.probability)
        for choice, error in zip(plan.order, errors, strict=False)
    )


def ended(plan: Plan, down: Collection[str] = ()) -> Ended:
    """How a plan ends where some models are down: the first that is not answers."""
    failed = list(itertools.takewhile(lambda choice: choice.model in down, plan.order))
    if len(failed) == len(plan.order):
        return Ended(tried=tried(plan, *[DOWN] * len(failed)), status="failed")
    return Ended(tried=tried(plan, *[DOWN] * len(failed), None), completion=said())


# --- near is as if the router had answered ---------------------------------------------------------------------------


def timeless(event: Decision | Execution) -> Any:
    """An event without what a clock says, or what is expected of it."""
    if isinstance(event, Decision):
        return msgspec.structs.replace(event, latency=())
    attempts = tuple(msgspec.structs.replace(attempt, ms=0.0) for attempt in event.attempts)
    return msgspec.structs.replace(event, attempts=attempts, latency_ms=0.0, overhead_ms=0.0)


async def log_of(requests: list[Request], down: Collection[str], *, elsewhere: bool, **more: Any) -> list[Any]:
    """What a new router writes down of the requests. Its draws are those of any other with the same requests."""
    broken = Faulty(Echo(), itertools.repeat(Fault(error=ProviderUnavailable("down", 503))))
    models = cards(provider=lambda name: "broken" if name in down else "echo")
    count = itertools.count()
    ids = mock.patch("fitrouter.proposals.uuid7", side_effect=lambda _: f"00000000-03e8-7000-8000-{next(count):012x}")
    with ids, tempfile.TemporaryDirectory() as folder:
        providers = {"broken": broken, "echo": Echo()}
        made = make_router(Path(folder), providers, models=models, clock=lambda: 1000.0, **more)
        async with made as router:
            for request in requests:
                if elsewhere:
                    plan = await router.decide(request)
                    await router.report(plan.decision.id, request, ended(plan, down))
                else:
                    with suppress(AllModelsFailed):
                        await router.complete(request)
                await router.settled()
            return [timeless(event) for event in logged(router, Decision | Execution)]  # type: ignore[arg-type]


@settings(max_examples=30, deadline=None)
@given(
    down=st.sets(st.sampled_from(NAMES)),
    requests=st.lists(
        st.builds(ask, model=st.sampled_from([AUTO, AUTO, "beta"]), session=st.sampled_from(["one", "two"])),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 9),
    attempts=st.integers(1, 3),
    force=st.sampled_from(["", "", "gamma"]),
)
def test_the_log_is_that_of_an_answer_of_the_routers_own(
    down: set[str], requests: list[Request], seed: int, attempts: int, force: str
) -> None:
    """Whatever is down, drawn, sticky, forced or pinned: the same decisions, attempts, probabilities and ends."""
    more = {"rules": Rules(seed=seed, force=force), "timers": Timers(attempts=attempts)}
    mine = asyncio.run(log_of(requests, down, elsewhere=False, **more))
    others = asyncio.run(log_of(requests, down, elsewhere=True, **more))
    assert len(mine) == 2 * len(requests)
    assert others == mine
