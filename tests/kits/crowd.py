"""A crowd of agents, by every adapter: who asks what, and what each of them heard. Spawned workers import it too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from fitrouter.providers import Persona
from fitrouter.providers._simulated import write
from fitrouter.types import Identity, Message, Request
from fitrouter_integrations.client import connect

AUTO = "fitrouter/auto"
NAMES = ("alpha", "beta", "gamma")
PERSONA = {"length": 1.0, "latency_s": 0.0}
TURNS = 2


class Said(NamedTuple):
    """One answer, as an adapter gives it."""

    text: str
    decision_id: str
    model: str


class Heard(NamedTuple):
    """One turn of an agent."""

    who: Identity
    prompt: str
    said: Said


def agent(crowd: str, i: int) -> Identity:
    """Who the i-th agent of a crowd works for."""
    return Identity(user=f"{crowd} user {i}", role=f"Role {i % 7}", session=f"{crowd} talk {i}")


def prompts(who: Identity) -> list[str]:
    """What an agent asks, turn by turn: nobody else asks it."""
    return [f"Tell {who.user} about turn {turn}" for turn in range(TURNS)]


def written(model: str, prompt: str) -> str:
    """What a simulated model answers to a prompt, and no other model does."""
    return write(Persona(**PERSONA), prompt, 0, model)


# --- an adapter: ask and wait, and the same awaited ---

Ask = Callable[[list[Message], Identity], Said]
AwaitedAsk = Callable[[list[Message], Identity], Awaitable[Said]]


def plain(target: Any) -> tuple[Ask, AwaitedAsk]:
    """The client itself."""
    client = connect(target)

    def said(reply: Any) -> Said:
        return Said(reply.message["content"], reply.about.decision_id, reply.about.model)

    def request(messages: list[Message], who: Identity) -> Request:
        return Request(messages=tuple(messages), identity=who)

    def ask(messages: list[Message], who: Identity) -> Said:
        return said(client.complete(request(messages, who)))

    async def awaited(messages: list[Message], who: Identity) -> Said:
        return said(await client.acomplete(request(messages, who)))

    return ask, awaited


def langchain(target: Any) -> tuple[Ask, AwaitedAsk]:
    """One `ChatFitrouter` for all; metadata says who asks."""
    from fitrouter_integrations.langchain import ChatFitrouter

    model = ChatFitrouter(router=target)

    def said(message: Any) -> Said:
        about = message.response_metadata
        return Said(message.content, about["decision_id"], about["model_name"])

    def config(who: Identity) -> Any:
        return {"metadata": {"user_id": who.user, "role": who.role, "session_id": who.session}}

    def ask(messages: list[Message], who: Identity) -> Said:
        return said(model.invoke(messages, config(who)))

    async def awaited(messages: list[Message], who: Identity) -> Said:
        return said(await model.ainvoke(messages, config(who)))

    return ask, awaited


def crewai(target: Any) -> tuple[Ask, AwaitedAsk]:
    """A `FitrouterLLM` for each agent; they share the router."""
    from fitrouter_integrations.crewai import FitrouterLLM

    def model(who: Identity) -> Any:
        return FitrouterLLM(router=target, user=who.user, role=who.role, session=who.session)

    def said(llm: Any, text: str) -> Said:
        return Said(text, llm.last().decision_id, llm.last().model)

    def ask(messages: list[Message], who: Identity) -> Said:
        llm = model(who)
        return said(llm, llm.call(messages))

    async def awaited(messages: list[Message], who: Identity) -> Said:
        llm = model(who)
        return said(llm, await llm.acall(messages))

    return ask, awaited


def litellm(target: Any) -> tuple[Ask, AwaitedAsk]:
    """`fitrouter/auto` of one registered provider; metadata says who asks."""
    import litellm as library

    from fitrouter_integrations.litellm import register

    library.suppress_debug_info = True
    register(target)

    def call(messages: list[Message], who: Identity) -> dict[str, Any]:
        metadata = {"user_id": who.user, "role": who.role, "session_id": who.session}
        return {"model": AUTO, "messages": messages, "metadata": metadata}

    def said(answer: Any) -> Said:
        return Said(answer.choices[0].message.content, answer.fitrouter["decision_id"], answer.model)

    def ask(messages: list[Message], who: Identity) -> Said:
        return said(library.completion(**call(messages, who)))

    async def awaited(messages: list[Message], who: Identity) -> Said:
        return said(await library.acompletion(**call(messages, who)))

    return ask, awaited


ADAPTERS: dict[str, Callable[[Any], tuple[Ask, AwaitedAsk]]] = {
    "client": plain,
    "langchain": langchain,
    "crewai": crewai,
    "litellm": litellm,
}


# --- a crowd ---


def in_threads(adapter: str, target: Any, agents: Sequence[Identity], threads: int = 40) -> list[Heard]:
    """Every agent's turns, one after the other, the agents beside each other in threads."""
    ask, _ = ADAPTERS[adapter](target)

    def work(who: Identity) -> list[Heard]:
        messages: list[Message] = []
        heard = []
        for prompt in prompts(who):
            messages.append({"role": "user", "content": prompt})
            heard.append(Heard(who, prompt, ask(list(messages), who)))
            messages.append({"role": "assistant", "content": heard[-1].said.text})
        return heard

    with ThreadPoolExecutor(threads) as pool:
        return [turn for turns in pool.map(work, agents) for turn in turns]


def in_tasks(adapter: str, target: Any, agents: Sequence[Identity]) -> list[Heard]:
    """Every agent's turns, one after the other, all agents at once on one event loop."""
    _, ask = ADAPTERS[adapter](target)

    async def work(who: Identity) -> list[Heard]:
        messages: list[Message] = []
        heard = []
        for prompt in prompts(who):
            messages.append({"role": "user", "content": prompt})
            heard.append(Heard(who, prompt, await ask(list(messages), who)))
            messages.append({"role": "assistant", "content": heard[-1].said.text})
        return heard

    async def crowd() -> list[Heard]:
        found = [turn for turns in await asyncio.gather(*map(work, agents)) for turn in turns]
        if adapter == "litellm":
            await _callbacks_done()
        return found

    return asyncio.run(crowd())


async def _callbacks_done() -> None:
    """What litellm's own worker has to do on this loop is done before the loop ends."""
    from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER

    await GLOBAL_LOGGING_WORKER.flush()
    await GLOBAL_LOGGING_WORKER.stop()
