"""The litellm provider, against a loopback server. One file, since importing litellm takes seconds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.kits.echoes import ECHOES, FORMS, KEY
from tests.kits.fake_openai import HANG, FakeOpenAI, Reply, event, reply, sse

from fitrouter.errors import ProviderError, ProviderRejected, ProviderTimeout, ProviderUnavailable
from fitrouter.providers import LiteLLM, Secret, tracing
from fitrouter.types import Call, Completion

pytestmark = pytest.mark.filterwarnings("ignore")  # litellm's own
pytest.importorskip("litellm")

MESSAGES = ({"role": "user", "content": "hello"},)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "d",
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
        },
    }
]
SAID = event(
    {
        "id": "1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": "hi"}, "finish_reason": None}],
    }
)


def call(stream: bool = False, timeout_s: float = 20.0, **params: Any) -> Call:
    return Call(target="openai/m", messages=MESSAGES, params=params, stream=stream, timeout_s=timeout_s)


def provider(server: FakeOpenAI) -> LiteLLM:
    return LiteLLM(Secret("sk-secret-1"), {"api_base": server.base_url})


async def consume(answer: Any) -> tuple[str, list[Any]]:
    chunks = [chunk async for chunk in answer]
    return "".join(chunk.delta.get("content") or "" for chunk in chunks), chunks


async def test_a_whole_answer() -> None:
    """Message, finish reason and usage come through; no parameter of litellm's own reaches the server."""
    async with FakeOpenAI() as server:
        answer = await provider(server).complete(call(temperature=0.3))
    assert isinstance(answer, Completion)
    assert answer.message == {"role": "assistant", "content": "m answers: hello"}
    assert (answer.finish_reason, answer.usage.prompt_tokens) == ("stop", 7)
    body, headers = server.seen[0]
    assert {key: body[key] for key in ("model", "messages", "temperature")} == {
        "model": "m", "messages": list(MESSAGES), "temperature": 0.3}  # fmt: skip
    assert not {"no-log", "caching", "num_retries", "max_retries"} & set(body)
    assert headers["authorization"] == "Bearer sk-secret-1"


async def test_the_trace_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server gets the headers of the span, beside those of the configuration."""
    monkeypatch.setattr(tracing, "headers", lambda: {"traceparent": "00-1"})
    async with FakeOpenAI() as server:
        options = {"api_base": server.base_url, "extra_headers": {"x-own": "1"}}
        await LiteLLM(Secret("sk-secret-1"), options).complete(call())
    _, headers = server.seen[0]
    assert (headers["traceparent"], headers["x-own"]) == ("00-1", "1")


async def test_a_streamed_answer() -> None:
    """Deltas join to the text, with a finish reason and one usage."""
    async with FakeOpenAI() as server:
        text, chunks = await consume(await provider(server).complete(call(stream=True)))
    assert text == "m answers: hello"
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]
    assert [chunk.usage.prompt_tokens for chunk in chunks if chunk.usage] == [7]


async def test_a_tools_call() -> None:
    """Tools work, whole and streamed: releases of litellm have broken exactly this."""
    async with FakeOpenAI() as server:
        answer: Any = await provider(server).complete(call(tools=TOOLS))
        _, chunks = await consume(await provider(server).complete(call(stream=True, tools=TOOLS)))
    assert answer.message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": "x"}'}
    assert answer.finish_reason == "tool_calls"
    deltas = [d for chunk in chunks for d in chunk.delta.get("tool_calls", ())]
    assert "".join(d["function"].get("arguments") or "" for d in deltas) == '{"a": "x"}'
    assert server.seen[0][0]["tools"] == TOOLS


async def test_errors_are_translated_and_never_retried(subtests: pytest.Subtests) -> None:
    """Each status becomes our error with that status after a single request, and the key is not repeated."""
    for status, kind in (
        (400, ProviderRejected),
        (401, ProviderUnavailable),
        (403, ProviderUnavailable),
        (404, ProviderUnavailable),
        (422, ProviderRejected),
        (429, ProviderUnavailable),
        (500, ProviderUnavailable),
        (503, ProviderUnavailable),
    ):
        with subtests.test(status=status, kind=kind):
            script = [
                reply(status, {"error": {"message": "no, sk-secret-1", "type": "x", "code": None}}, Retry_After="7")
            ]
            async with FakeOpenAI(script) as server:
                with pytest.raises(kind) as caught:
                    await provider(server).complete(call())
            assert caught.value.status == status
            assert len(server.seen) == 1
            assert "sk-secret-1" not in str(caught.value)
            if isinstance(caught.value, ProviderUnavailable) and status == 429:
                assert caught.value.retry_after_s == 7.0


async def test_broken_whole_answers_are_unavailable(subtests: pytest.Subtests) -> None:
    """An empty answer is ProviderUnavailable."""
    for fault in (
        reply(200, {"choices": []}),
        reply(200, b"<html>", "text/html"),
        Reply(),
    ):
        with subtests.test(fault=fault):
            async with FakeOpenAI([fault]) as server:
                with pytest.raises(ProviderUnavailable):
                    await provider(server).complete(call())


@pytest.mark.parametrize(
    "fault", [sse(), sse(event(b"[DONE]")), sse(SAID, end=False)], ids=["nothing", "only DONE", "early EOF"]
)
async def test_broken_streams_are_unavailable(fault: Reply) -> None:
    """A stream without an answer, or one that breaks off, ends in an error."""
    async with FakeOpenAI([fault]) as server:
        with pytest.raises(ProviderUnavailable):
            await consume(await provider(server).complete(call(stream=True)))


async def test_calls_with_other_deadlines_share_a_connection() -> None:
    """Since litellm keeps a client for each timeout, and what is left until a deadline differs each time."""
    async with FakeOpenAI() as server:
        for timeout_s in (20.0, 19.97, 18.4, 25.0):
            await provider(server).complete(call(timeout_s=timeout_s))
        assert server.connections == 1


async def test_a_hanging_server_is_a_timeout() -> None:
    """Silence past the call's time is ProviderTimeout."""
    async with FakeOpenAI([Reply(HANG)]) as server:
        with pytest.raises(ProviderTimeout):
            await provider(server).complete(call(timeout_s=0.3))


@pytest.mark.parametrize("read", [0, 1])
async def test_closing_a_stream_ends_it_upstream(read: int) -> None:
    """A stream that is closed after any chunk, also before the first, closes its connection."""
    async with FakeOpenAI([sse(SAID, SAID, HANG)]) as server:
        stream: Any = await provider(server).complete(call(stream=True))
        for _ in range(read):
            await anext(stream)
        await stream.aclose()
        await asyncio.wait_for(server.left.wait(), 300)


def test_the_key_is_masked() -> None:
    """Neither the key nor the values of options show in the repr."""
    assert "s3cr3t" not in repr(LiteLLM(Secret("s3cr3t"), {"aws_secret": "s3cr3t"}))


async def test_an_echoed_key_stays_here() -> None:
    """Whatever an upstream echoes the key in, neither errors nor answers hold it, and no cause does."""
    script = [(name, stream, form) for name in ECHOES for stream in (False, True) for form in FORMS]
    said = []
    async with FakeOpenAI([ECHOES[name](form) for name, _, form in script]) as server:
        upstream = LiteLLM(Secret(KEY), {"api_base": server.base_url})
        for name, stream, form in script:
            try:
                answer = await upstream.complete(call(stream=stream))
                found = repr(answer if isinstance(answer, Completion) else (await consume(answer))[1])
            except ProviderError as error:
                found = f"{error!r}{error.__cause__!r}"
            said.append((name, stream, form, found))
    assert not [entry for entry in said for form in FORMS if form in entry[3]]
