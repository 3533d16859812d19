"""A history that its model cannot hold: another model is asked, and nobody is blamed for it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.kits.fake_openai import FakeOpenAI, Reply, event, in_a_thread, reply, sse
from tests.kits.gateway import Echo, chat, client, make_router, serving
from tests.kits.wordings import OTHERWISE, OVER_RATE, TOO_LONG

from fitrouter.errors import ContextOverflow, NoEligibleModel, ProviderRejected, ProviderUnavailable
from fitrouter.providers import OpenAICompatible
from fitrouter.providers.failures import from_status
from fitrouter.router import Router
from fitrouter.serving.external import AttemptReport, Outcome
from fitrouter.types import AUTO, Call, Execution, Identity, Request
from fitrouter_integrations.client import connect

SAYS = "400: context_length_exceeded: This model's maximum context length is 8192 tokens"


class Narrow(Echo):
    """Refuses every history for these models."""

    def __init__(self, *models: str) -> None:
        super().__init__()
        self.models: Collection[str] = models

    async def complete(self, call: Call) -> Any:
        if call.target in self.models:
            raise from_status(400, SAYS)
        return await super().complete(call)


def ask(i: int, model: str = AUTO) -> Request:
    who = Identity(user="ann", session=f"s{i}")
    return Request(messages=({"role": "user", "content": "Hello"},), model=model, identity=who)


def ends(router: Router) -> list[Execution]:
    return [row.event for row in router._journal.tail(0, 1000) if isinstance(row.event, Execution)]


@pytest.mark.parametrize(
    "said",
    [
        SAYS,
        "litellm: ContextWindowExceededError: too much",
        "prompt is too long: 203345 tokens > 200000 maximum",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        "Input is too long for requested model.",
    ],
)
def test_providers_say_it_in_their_own_words(said: str) -> None:
    """A refusal that means the window is told apart from one that means the request; an outage stays one."""
    assert type(from_status(400, said)) is ContextOverflow
    assert type(from_status(400, "tools[0].name: is missing")) is ProviderRejected
    assert type(from_status(503, said)) is ProviderUnavailable


@pytest.mark.parametrize("streamed", [False, True])
async def test_another_model_is_asked(tmp_path: Path, streamed: bool) -> None:
    """Its conditional probability is logged, no model's availability suffers, and the session is drawn again."""
    async with make_router(tmp_path, {"echo": Narrow("alpha", "beta")}) as router:
        arms = router._learner.fit.arms
        for i in range(20):
            if streamed:
                stream = await router.stream(ask(i))
                assert stream.served_by == "gamma"
                assert [chunk async for chunk in stream]
            else:
                assert (await router.complete(ask(i))).served_by == "gamma"
        await router.settled()
        rows = np.array([arms.model(name) for name in ("alpha", "beta", "gamma")])
        alpha, beta, gamma = arms.availability(rows, router.clock())
        found = ends(router)
        turn = (await router.complete(ask(next(i for i, end in enumerate(found) if end.chosen != "gamma")))).decision
    assert {attempt.error for end in found for attempt in end.attempts} == {None, "ContextOverflow"}
    assert all(0 < attempt.probability <= 1 for end in found for attempt in end.attempts)
    assert alpha == beta < gamma
    assert turn.redraw == "failed"


FORMS = {
    "400": lambda said: reply(400, {"error": {"message": said, "type": "invalid_request_error"}}),
    "422, plain": lambda said: reply(422, {"error": said, "error_type": "validation"}),
    "400, FastAPI": lambda said: reply(400, {"detail": [{"msg": said}]}),
    "400, escaped": lambda said: reply(400, json.dumps({"message": said}).replace("'", "\\u0027").encode()),
    "413, no words": lambda said: reply(413, b""),
    "400, text": lambda said: reply(400, said.encode(), "text/plain"),
    "200": lambda said: reply(200, {"error": {"message": said, "code": 400}}),
    "event": lambda said: sse(event({"error": {"message": said}})),
}


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, FakeOpenAI, deque[Reply]]]:
    """A gateway over three models of a server, whose next answers are in the queue."""
    queue: deque[Reply] = deque()
    with in_a_thread(FakeOpenAI(iter(lambda: queue.popleft() if queue else None, queue))) as server:
        router = make_router(tmp_path_factory.mktemp("d"), {"echo": OpenAICompatible(server.base_url)})
        with serving(router) as url, client(url) as http:
            yield http, server, queue


@pytest.mark.parametrize("form", FORMS)
def test_every_servers_words_lead_to_a_larger_window(
    upstream: tuple[httpx.Client, FakeOpenAI, deque[Reply]], form: str
) -> None:
    """Through what is served, in each form of error: another model answers; a model that was named gets the code."""
    http, server, queue = upstream
    for i, (who, said) in enumerate(TOO_LONG.items()):
        server.seen.clear()
        queue.append(FORMS[form](said))
        answer = http.post("/v1/chat/completions", json=chat(f"{form} {i}", stream=form == "event"))
        assert (answer.status_code, len(server.seen)) == (200, 2), (who, answer.text)
        first, second = (body["model"] for body, _ in server.seen)
        assert first != second, who
        queue.append(FORMS[form](said))
        named = http.post("/v1/chat/completions", json=chat(f"{form} {i}", stream=form == "event", model="alpha"))
        assert (named.status_code, named.json()["error"]["code"]) == (400, "context_length_exceeded"), who


def test_other_refusals_are_told_as_they_are(upstream: tuple[httpx.Client, FakeOpenAI, deque[Reply]]) -> None:
    """A parameter that is refused is not tried elsewhere; a rate in tokens is another's to answer, or a 429."""
    http, server, queue = upstream
    for i, said in enumerate(OTHERWISE):
        server.seen.clear()
        queue.append(FORMS["400"](said))
        answer = http.post("/v1/chat/completions", json=chat(f"other {i}"))
        assert (answer.json()["error"]["code"], len(server.seen)) == ("provider_rejected", 1), said
    for i, said in enumerate(OVER_RATE):
        server.seen.clear()
        queue.append(FORMS["400"](said))
        assert http.post("/v1/chat/completions", json=chat(f"rate {i}")).status_code == 200, said
        assert len(server.seen) == 2, said
    queue.append(reply(413, {"error": {"message": OVER_RATE[0]}}))
    named = http.post("/v1/chat/completions", json=chat("rate", model="alpha"))
    assert (named.status_code, named.json()["error"]["code"]) == (429, "models_rate_limited")


async def test_where_no_window_is_large_enough_that_is_said(tmp_path: Path) -> None:
    """Not that all models failed; a model that was asked for by name says it at once."""
    async with make_router(tmp_path, {"echo": Narrow("alpha", "beta", "gamma")}) as router:
        for model, tried in ((AUTO, 3), ("alpha", 1)):
            with pytest.raises(ContextOverflow, match="maximum context length") as failure:
                await router.complete(ask(0, model))
            assert failure.value.too_long
            await router.settled()
            assert len(ends(router)[-1].attempts) == tried


def test_a_gateway_says_it_in_openais_word(tmp_path: Path) -> None:
    """Agents shorten their history on `context_length_exceeded`; our own client knows it, too."""
    with serving(make_router(tmp_path, {"echo": Narrow("alpha", "beta", "gamma")})) as url:
        body = {"model": "alpha", "messages": [{"role": "user", "content": "Hello"}]}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        with connect(url) as client:
            with pytest.raises(ContextOverflow):
                client.complete(ask(0))
            endless = ({"role": "user", "content": "word " * 200_000},)
            with pytest.raises(NoEligibleModel) as failure:
                client.complete(Request(messages=endless))
            assert failure.value.too_long


async def test_elsewhere_it_is_held_against_nobody_either(tmp_path: Path) -> None:
    """A caller who asks the models itself reports it by its name."""
    async with make_router(tmp_path) as router:
        plan = await router.decide(ask(0))
        errors = ("ContextOverflow", "ContextOverflow", "ContextOverflow")
        tried = tuple(
            AttemptReport(model=choice.model, ms=1.0, error=e) for choice, e in zip(plan.order, errors, strict=True)
        )
        before = router._learner.fit.arms.availability(np.arange(3), router.clock())
        await router.report(plan.decision.id, ask(0), Outcome(tried=tried, status="failed"))
        await router.settled()
        assert np.array_equal(before, router._learner.fit.arms.availability(np.arange(3), router.clock()))
