"""Laws of `n`, several choices of one answer, over a real socket and with the openai client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.kits.gateway import Echo, cards, chat, client, make_router, serving, wait_for

from fitrouter.errors import ProviderUnavailable
from fitrouter.router import Router
from fitrouter.types import Call, Chunk, Completion, Decision, Execution, ModelCard, Prices, Request, Usage

USAGE = Usage(prompt_tokens=7, completion_tokens=11)


class Numbered:
    """Answers its k-th call with `draw k`; calls in `failing` fail, and those in `breaking` break off."""

    def __init__(self, failing: set[int] | None = None, breaking: set[int] | None = None) -> None:
        self.calls: list[Call] = []
        self.failing, self.breaking = failing or set(), breaking or set()
        self.open = 0
        self.hold: asyncio.Event | None = None
        self.fourth = asyncio.Event()

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        k = len(self.calls)
        self.calls.append(call)
        if k == 3:
            self.fourth.set()
        if k in self.failing:
            raise ProviderUnavailable("down")
        if self.hold is not None and k:
            await self.hold.wait()
        choices = [{"role": "assistant", "content": f"draw {k}.{i}"} for i in range(call.n)]
        if not call.stream:
            first, *others = [Completion(message=message) for message in choices]
            usage = Usage(prompt_tokens=7, completion_tokens=11 * call.n)
            return Completion(message=first.message, usage=usage, others=tuple(others))
        return self._stream(choices, k)

    async def _stream(self, choices: list[dict[str, Any]], k: int) -> AsyncIterator[Chunk]:
        self.open += 1
        try:
            for piece in range(2):
                for i, message in enumerate(choices):
                    yield Chunk(delta={"content": message["content"][4 * piece : 4 * piece + 4]}, index=i)
                await asyncio.sleep(0)
            if k in self.breaking:
                raise ProviderUnavailable("broke off")
            for i in range(len(choices)):
                yield Chunk(finish_reason="stop", index=i)
            yield Chunk(usage=Usage(prompt_tokens=7, completion_tokens=11 * len(choices)))
        finally:
            self.open -= 1

    async def aclose(self) -> None:
        """Nothing is open."""


@contextmanager
def gateway(folder: Path, provider: Any, models: list[ModelCard] | None = None) -> Iterator[tuple[Router, str]]:
    router = make_router(folder, {"echo": provider}, models=models or cards())
    with serving(router) as url:
        yield router, url


def sdk(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=300.0)


def logged(router: Router, kind: type[Any]) -> list[Any]:
    return [row.event for row in router._journal.tail(0, 10_000) if isinstance(row.event, kind)]


def ask(url: str, n: int, **more: Any) -> Any:
    with sdk(url) as session:
        found: Any = session.chat.completions.create(
            model="fitrouter/auto", messages=[{"role": "user", "content": "Hello"}], n=n, **more
        )
        return list(found) if more.get("stream") else found


NATIVE = [ModelCard(name="alpha", provider="echo", target="gpt-4o", prices=Prices(input=1.0, output=2.0))]


@pytest.mark.parametrize("n", [1, 2, 5, 20])
def test_n_answers_are_draws_of_one_model_and_one_decision(tmp_path: Path, n: int) -> None:
    """It has n choices in order, from n calls of one model, one decision, one execution with usage and cost summed."""
    provider = Numbered()
    with gateway(tmp_path, provider) as (router, url):
        answer = ask(url, n)
        assert [choice.index for choice in answer.choices] == list(range(n))
        assert {choice.message.content for choice in answer.choices} == {f"draw {k}.0" for k in range(n)}
        assert answer.choices[0].message.content == "draw 0.0"
        assert {call.target for call in provider.calls} == {answer.model}
        assert {call.n for call in provider.calls} == {1}
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7 * n, 11 * n)
        (decision,) = logged(router, Decision)
        (execution,) = wait_for(lambda: logged(router, Execution))
        assert (execution.decision_id, execution.status, len(execution.attempts)) == (decision.id, "ok", 1)
        assert (execution.prompt_tokens, execution.completion_tokens) == (7 * n, 11 * n)
        assert execution.cost_usd == pytest.approx(n * (7 * 1.0 + 11 * 2.0) / 1e6)
        assert not execution.estimated


@pytest.mark.parametrize("n", [2, 5])
def test_streamed_choices_come_side_by_side(tmp_path: Path, n: int) -> None:
    """Each choice has its role, deltas and finish reason under its index; the last chunk has the sum of usage."""
    provider = Numbered()
    with gateway(tmp_path, provider) as (router, url):
        chunks = ask(url, n, stream=True, stream_options={"include_usage": True})
        texts, ends, roles = dict.fromkeys(range(n), ""), {}, {}
        for chunk in chunks:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                roles.setdefault(choice.index, choice.delta.role)
                if choice.finish_reason:
                    ends[choice.index] = choice.finish_reason
        assert sorted(texts.values()) == [f"draw {k}.0" for k in range(n)]
        assert ends == dict.fromkeys(range(n), "stop")
        assert roles == dict.fromkeys(range(n), "assistant")
        assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (7 * n, 11 * n)
        (execution,) = wait_for(lambda: logged(router, Execution))
        assert (execution.status, execution.prompt_tokens) == ("ok", 7 * n)
        assert provider.open == 0
        assert all(slots.used == 0 for slots in router._caller.slots.values())


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_draws_several_is_called_once(tmp_path: Path, stream: bool) -> None:
    """OpenAI's own models get `n`, and their prompt is billed once."""
    provider = Numbered()
    with gateway(tmp_path, provider, NATIVE) as (router, url):
        found = ask(url, 3, stream=stream)
        texts: dict[int, str] = {}
        for part in found if stream else [found]:
            for choice in part.choices:
                text = choice.delta.content if stream else choice.message.content
                texts[choice.index] = texts.get(choice.index, "") + (text or "")
        assert texts == {i: f"draw 0.{i}" for i in range(3)}
        assert [call.n for call in provider.calls] == [3]
        (execution,) = wait_for(lambda: logged(router, Execution))
        assert (execution.prompt_tokens, execution.completion_tokens) == (7, 33)


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_model_leaves_out_of_n_is_drawn_by_further_calls(tmp_path: Path, stream: bool) -> None:
    """A server that ignores `n` is asked again, for one choice each time."""
    provider = Echo()
    with gateway(tmp_path, provider, NATIVE) as (_, url):
        found = ask(url, 3, stream=stream)
        indices = {choice.index for part in (found if stream else [found]) for choice in part.choices}
        assert indices == {0, 1, 2}
        assert [call.n for call in provider.calls] == [3, 1, 1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_further_choice_that_fails_is_tried_once_more_and_then_left_out(tmp_path: Path, stream: bool) -> None:
    """The first answer is paid for and stays; a choice that cannot be drawn is missing, and the rest is complete."""
    provider = Numbered(failing={1, 2, 3})  # of two further choices, one is drawn at its second try
    with gateway(tmp_path, provider) as (router, url):
        found = ask(url, 3, stream=stream)
        indices = {choice.index for part in (found if stream else [found]) for choice in part.choices}
        assert len(indices) == 2
        assert 0 in indices
        assert len(provider.calls) == 5
        (execution,) = wait_for(lambda: logged(router, Execution))
        assert (execution.status, execution.prompt_tokens) == ("ok", 14)


def test_a_choice_that_breaks_off_ends_the_stream_with_an_error(tmp_path: Path) -> None:
    """Never half a choice without a word: an error event and no [DONE]; all calls are closed, and their cost counts."""
    provider = Numbered(breaking={1})
    with gateway(tmp_path, provider) as (router, url), client(url) as http:
        text = http.post("/v1/chat/completions", json=chat(n=3, stream=True)).text
        assert '"error"' in text
        assert "[DONE]" not in text
        (execution,) = wait_for(lambda: logged(router, Execution))
        assert execution.status == "partial"
        assert execution.cost_usd > 0.0
        assert provider.open == 0
        assert all(slots.used == 0 for slots in router._caller.slots.values())


def test_a_client_that_leaves_ends_all_draws_and_pays_for_them(tmp_path: Path) -> None:
    """Also the calls for further choices are cancelled; what may be billed of them is in the cost."""
    provider = Numbered()

    async def leave(router: Router) -> None:
        provider.hold = asyncio.Event()
        async with router:
            asked = Request(messages=({"role": "user", "content": "Hello " * 50},), n=4)
            task = asyncio.create_task(router.complete(asked))
            await provider.fourth.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await router.settled()

    router = make_router(tmp_path, {"echo": provider})
    asyncio.run(leave(router))
    (execution,) = logged(router, Execution)
    assert execution.status == "cancelled"
    assert execution.estimated
    one = (7 * 1.0 + 11 * 2.0) / 1e6
    assert execution.cost_usd > one + 3 * 70 * 1.0 / 1e6  # three prompts of some 75 tokens


def test_a_plan_is_for_one_choice(tmp_path: Path) -> None:
    """A client that calls the model itself reports one answer: `n` is refused there, with the reason."""
    with gateway(tmp_path, Echo()) as (_, url), client(url) as http:
        for path, body in (("/v1/plans", chat(n=2)), ("/v1/observations", {**chat(n=2), "model": "alpha"})):
            reply = http.post(path, json=body)
            assert reply.status_code == 400
            assert "n: got 2; allowed is 1" in reply.json()["error"]["message"]
