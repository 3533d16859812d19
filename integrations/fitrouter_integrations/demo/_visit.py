"""The simulated users as HTTP clients: they ask, read, and give feedback."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any, NamedTuple

import aiohttp

from fitrouter.errors import FitrouterError
from fitrouter.types import AUTO, FeedbackKind
from fitrouter_evaluators.simulation.simulate import Vote
from fitrouter_integrations.demo._play import People

_CONNECTIONS = 16
_TIMEOUT_S = 60.0
_TRIES = 5


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
        FitrouterError: the gateway did not answer a request with 200.
    """
    try:
        return asyncio.run(_all(url, people, heard, deadline, connections))
    except* (FitrouterError, aiohttp.ClientError, TimeoutError) as errors:
        first = errors.exceptions[0]
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise FitrouterError(f"a simulated user got no answer: {first or type(first).__name__}") from first


async def _all(
    url: str, people: People, heard: Callable[[Visit], None], deadline: float | None, connections: int
) -> list[Visit]:
    visits: list[Visit] = []
    left = takewhile(lambda _: deadline is None or time.monotonic() < deadline, iter(range(people.world.rounds)))
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(base_url=url, timeout=timeout, connector=connector) as session:

        async def come(rounds: Iterable[int]) -> None:
            for t in rounds:
                seen = await _round(session, people, t)
                visits.append(seen)
                heard(seen)

        async with asyncio.TaskGroup() as crowd:
            for _ in range(connections):
                crowd.create_task(come(left))
    return sorted(visits)


async def _round(session: aiohttp.ClientSession, people: People, t: int) -> Visit:
    """Ask, read, and perhaps give feedback."""
    play, world = people.play, people.world
    user, prompt = int(play.user[t]), int(play.prompt[t])
    body = {
        "model": AUTO,
        "messages": [{"role": "user", "content": people.stage.pool.prompts[prompt]}],
        "user": f"person-{user}",
        "metadata": {"role": world.role_names[int(play.role[user])]},
    }
    reply = await _post(session, "/v1/chat/completions", body)
    about = reply["fitrouter"]
    text = reply["choices"][0]["message"]["content"]
    satisfaction = people.satisfaction(user, about["model"], prompt, text)
    verdict = people.opinion(t, satisfaction, about["asked"])
    if verdict is not None:
        said = {"decision_id": about["decision_id"], "kind": verdict.kind.value, "user": body["user"]}
        if verdict.kind is FeedbackKind.RATING:
            said |= {"value": verdict.value, "scale": list(verdict.scale)}
        else:
            said["value"] = "up" if verdict.value else "down"
        await _post(session, "/v1/feedback", said)
    return Visit(t, about["decision_id"], about["model"], satisfaction, about["asked"], verdict)


async def _post(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request, retried if a store is not ready (503)."""
    attempt = 0
    while True:
        async with session.post(path, json=body) as response:
            if response.status == 200:
                answer: dict[str, Any] = await response.json()
                return answer
            attempt += 1
            if response.status != 503 or attempt == _TRIES:
                problem = (await response.text())[:500]
                raise FitrouterError(f"the gateway answered {path} with {response.status}: {problem}")
        await asyncio.sleep(0.1 * 2**attempt)
