"""The simulated users as HTTP clients: they ask, read, and give feedback."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from itertools import takewhile
from typing import NamedTuple, TypeVar

from fitrouter.errors import FitrouterError, StoreError
from fitrouter.types import Identity, Request
from fitrouter_evaluators.simulation.simulate import Vote
from fitrouter_integrations import client
from fitrouter_integrations.client._remote import RemoteBackend
from fitrouter_integrations.demo._play import People

_CONNECTIONS = 16
_TIMEOUT_S = 60.0
_TRIES = 5

T = TypeVar("T")


class Visit(NamedTuple):
    """One round as seen by the user."""

    t: int
    decision_id: str
    model: str
    satisfaction: float
    """P(satisfied) with the text that was received."""
    asked: bool
    verdict: Vote | None


def visit(
    url: str,
    people: People,
    heard: Callable[[Visit], None],
    deadline: float | None = None,
    connections: int = _CONNECTIONS,
) -> list[Visit]:
    """Make the requests of all rounds, several at a time; returns the completed rounds in order.

    Args:
        url: of the gateway, without a path.
        people: the users and their requests.
        heard: called after every round.
        deadline: on the monotonic clock; no request starts after it.
        connections: requests at a time.

    Raises:
        FitrouterError: the gateway did not answer a request.
    """
    try:
        return asyncio.run(_all(url, people, heard, deadline, connections))
    except* FitrouterError as errors:
        first = errors.exceptions[0]
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise FitrouterError(f"a simulated user got no answer: {first or type(first).__name__}") from first


async def _all(
    url: str, people: People, heard: Callable[[Visit], None], deadline: float | None, connections: int
) -> list[Visit]:
    visits: list[Visit] = []
    left = takewhile(lambda _: deadline is None or time.monotonic() < deadline, iter(range(people.world.rounds)))
    gateway = RemoteBackend(url)

    async def send(rounds: Iterable[int]) -> None:
        for t in rounds:
            seen = await _round(gateway, people, t)
            visits.append(seen)
            heard(seen)

    await gateway.start()
    try:
        async with asyncio.TaskGroup() as crowd:
            for _ in range(connections):
                crowd.create_task(send(left))
    finally:
        await gateway.aclose()
    return sorted(visits)


async def _round(gateway: RemoteBackend, people: People, t: int) -> Visit:
    """Ask, read, and perhaps give feedback."""
    play, world = people.play, people.world
    user, prompt = int(play.user[t]), int(play.prompt[t])
    name = f"person-{user}"
    request = Request(
        messages=({"role": "user", "content": people.stage.pool.prompts[prompt]},),
        identity=Identity(user=name, role=world.role_names[int(play.role[user])]),
        deadline_s=_TIMEOUT_S,
    )
    reply = await _durably(lambda: gateway.complete(request))
    about = reply.about
    satisfaction = people.satisfaction(user, about.model, prompt, reply.message["content"])
    verdict = people.opinion(t, satisfaction, about.asked)
    if verdict is not None:
        vote = client.Vote(
            decision_id=about.decision_id, kind=verdict.kind, value=verdict.value, scale=verdict.scale, user=name
        )
        await _durably(lambda: gateway.feedback(vote))
    return Visit(t, about.decision_id, about.model, satisfaction, about.asked, verdict)


async def _durably(work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a request, which is repeated if a store is not ready."""
    for attempt in range(1, _TRIES):
        try:
            return await work()
        except StoreError:
            await asyncio.sleep(0.1 * 2**attempt)
    return await work()
