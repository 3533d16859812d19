"""Streams that wait: headers and comments at once, timers of silence, and errors that keep their meaning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.kits.fake_openai import FakeOpenAI, Reply, event, reply, sse
from tests.kits.gateway import Echo, chat, client, make_router, serving, wait_for

from fitrouter.draw import renormalise
from fitrouter.errors import ProviderError, ProviderUnavailable, RateLimited
from fitrouter.providers import Fault, Faulty, OpenAICompatible
from fitrouter.providers.failures import from_status, retry_after
from fitrouter.routing.decider import Rules
from fitrouter.serving.attempts import Timers
from fitrouter.types import (
    FULL_SHARE,
    Call,
    Chunk,
    Completion,
    Decision,
    Execution,
    Identity,
    Mode,
    PolicyVersion,
    Request,
)
from fitrouter_integrations.gateway.asgi import _stream

DONE = b"data: [DONE]\n\n"


class Thinker(Echo):
    """Thinks before its first chunk, and sends chunks with a pause between them; `left` when a caller went away."""

    def __init__(
        self, think_s: float, pause_s: float = 0.0, chunks: int = 3, error: ProviderError | None = None
    ) -> None:
        super().__init__()
        self.think_s, self.pause_s, self.chunks, self.error = think_s, pause_s, chunks, error
        self.left = False

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        self.calls.append(call)
        try:
            await asyncio.sleep(self.think_s)
        except asyncio.CancelledError:
            self.left = True
            raise
        if self.error is not None:
            raise self.error
        return self._pieces()

    async def _pieces(self) -> AsyncIterator[Chunk]:
        for i in range(self.chunks):
            await asyncio.sleep(self.pause_s)
            yield Chunk(delta={"content": f"w{i} "})
        yield Chunk(finish_reason="stop")


@pytest.fixture(autouse=True)
def _short_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stream, "HEARTBEAT_S", 0.1)


@pytest.mark.parametrize("model", ["fitrouter/auto", "alpha"])
@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("/v1/chat/completions", chat(stream=True), '"content":"w2 "'),
        ("/v1/messages", {"max_tokens": 9, **chat(stream=True)}, '"text":"w2 "'),
        ("/v1/responses", {"model": "fitrouter/auto", "input": "hi", "stream": True}, '"delta":"w2 "'),
    ],
)
def test_a_waiting_stream_sends_headers_and_comments(
    tmp_path: Path, path: str, body: dict[str, object], answer: str, model: str
) -> None:
    """Before the first token and between two; then the answer with its decision."""
    router = make_router(tmp_path, {"echo": Thinker(0.5, 0.3)})
    with serving(router) as url, client(url) as http, http.stream("POST", path, json={**body, "model": model}) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        text = "".join(reply.iter_text())
    assert text.startswith(": waiting\n\n")
    before, _, after = text.partition('"decision_id"')
    assert before.count(": waiting") >= 2
    assert ": waiting" in after
    assert answer in text


def test_a_quick_stream_names_its_model_in_the_headers(tmp_path: Path) -> None:
    """As ever, and without comments."""
    router = make_router(tmp_path, {"echo": Thinker(0.0)})
    with serving(router) as url, client(url) as http:
        reply = http.post("/v1/chat/completions", json=chat(stream=True))
    assert reply.headers["x-fitrouter-decision"]
    assert ": waiting" not in reply.text


def test_a_failure_after_the_headers_is_an_error_event(tmp_path: Path) -> None:
    """And no [DONE]; the failed request is logged."""
    router = make_router(tmp_path, {"echo": Thinker(0.3, error=ProviderUnavailable("out of order"))})
    with serving(router) as url, client(url) as http:
        reply = http.post("/v1/chat/completions", json=chat(stream=True, model="alpha"))
        wait_for(lambda: any(isinstance(row.event, Execution) for row in router._journal.tail(0, 100)))
    assert reply.status_code == 200
    assert '"code":"all_models_failed"' in reply.text
    assert "[DONE]" not in reply.text


def test_a_client_that_leaves_while_it_waits_ends_the_call(tmp_path: Path) -> None:
    """Nobody is billed for what nobody reads."""
    thinker = Thinker(60.0)
    with serving(make_router(tmp_path, {"echo": thinker})) as url, client(url) as http:
        with http.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as reply:
            assert next(reply.iter_text()).startswith(": waiting")
        wait_for(lambda: thinker.left)


async def stream(tmp_path: Path, provider: Echo, timers: Timers, deadline_s: float | None = None) -> str:
    """What a streamed request gets, until it ends or fails."""
    router = make_router(tmp_path, {"echo": provider}, timers=timers)
    request = Request(
        messages=({"role": "user", "content": "hi"},), identity=Identity(), model="alpha", deadline_s=deadline_s
    )
    text = ""
    async with router:
        async for chunk in await router.stream(request):
            text += chunk.delta.get("content") or ""
    return text


async def test_a_stream_that_flows_outlives_the_deadline(tmp_path: Path) -> None:
    """`deadline_s` is for its beginning; what ends a stream is silence."""
    timers = Timers(deadline_s=1.0, first_token_s=0.8, chunk_gap_s=0.8)
    assert await stream(tmp_path / "flows", Thinker(0.0, 0.1, 15), timers) == "".join(f"w{i} " for i in range(15))
    with pytest.raises(ProviderError, match=r"sent nothing for 0\.2 s"):
        await stream(tmp_path / "stops", Thinker(0.0, 0.7), Timers(chunk_gap_s=0.2))


FLOWING: dict[str, list[dict[str, object]]] = {
    "words": [{"content": f"w{i} "} for i in range(12)],
    "thinking": [{"reasoning_content": f"h{i} "} for i in range(12)],
    "thinking, then words": [{"reasoning_content": "h"}] * 6 + [{"content": "w"}] * 6,
    "arguments": [
        {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        *[{"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in ('{"a":"', *"123456789", '"}')],
    ],
    "empty deltas": [{"role": "assistant", "content": "w"}, *[{}] * 10, {"content": "w"}],
    "comments": [{"content": "w"}, *[{"comment": True}] * 10, {"content": "w"}],
}


@pytest.mark.parametrize("deltas", FLOWING.values(), ids=FLOWING)
async def test_whatever_flows_outlives_the_deadline(tmp_path: Path, deltas: list[dict[str, object]]) -> None:
    """Words, thinking, arguments, empty pieces and comments: every piece is a sign of life."""
    pieces: list[bytes | float | str] = []
    for delta in deltas:
        said = {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        pieces += [b": ping\n\n" if "comment" in delta else event(said), 0.12]
    ends = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    async with FakeOpenAI([sse(*pieces, ends, DONE)]) as server:
        provider = OpenAICompatible(server.base_url)
        router = make_router(
            tmp_path, {"echo": provider}, timers=Timers(deadline_s=1.0, first_token_s=0.9, chunk_gap_s=0.9)
        )
        async with router:
            asked = Request(messages=({"role": "user", "content": "hi"},), identity=Identity(), model="alpha")
            found = [chunk async for chunk in await router.stream(asked)]
    assert any(chunk.finish_reason for chunk in found)
    for name in ("content", "reasoning_content"):
        told = "".join(str(chunk.delta.get(name) or "") for chunk in found)
        assert told == "".join(str(delta.get(name) or "") for delta in deltas)


async def test_a_callers_own_deadline_ends_a_stream_and_says_so(tmp_path: Path) -> None:
    """Not that the model sent nothing."""
    with pytest.raises(ProviderError, match="deadline of the request itself has passed"):
        await stream(tmp_path, Thinker(0.0, 0.1, 50), Timers(), deadline_s=1.0)


async def test_comments_are_signs_of_life() -> None:
    """Before the first token and between two: they keep the timers of silence from ending the stream."""
    said = event({"choices": [{"index": 0, "delta": {"content": "a"}}]})
    ends = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    alive: list[bytes | float | str] = []
    for _ in range(6):
        alive += [b": thinking\n\n", 0.15]
    async with FakeOpenAI([sse(*alive, said, *alive, ends, DONE)]) as server:
        provider = OpenAICompatible(server.base_url)
        found = [chunk async for chunk in await _streamed(provider, 0.5)]
        await provider.aclose()
    assert "".join(chunk.delta.get("content", "") for chunk in found) == "a"
    assert sum(chunk == Chunk() for chunk in found) >= 10


async def test_comments_keep_a_request_alive(tmp_path: Path) -> None:
    """Through the router: the first token may take longer than `first_token_s` while comments come."""
    said = event({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]})
    alive: list[bytes | float | str] = []
    for _ in range(6):
        alive += [b": thinking\n\n", 0.2]
    reply: Reply = sse(*alive, said, DONE)
    async with FakeOpenAI([reply]) as server:
        provider = OpenAICompatible(server.base_url)
        assert await stream(tmp_path, provider, Timers(first_token_s=0.6, chunk_gap_s=0.6)) == "a"  # type: ignore[arg-type]


async def _streamed(provider: OpenAICompatible, timeout_s: float) -> AsyncIterator[Chunk]:
    request = Call(target="m", messages=({"role": "user", "content": "hi"},), stream=True, timeout_s=timeout_s)
    found = await provider.complete(request)
    assert not isinstance(found, Completion)
    return found


@pytest.mark.parametrize(
    "error",
    [
        RateLimited("slow down", 429, 17.0),
        ProviderUnavailable("slow down", 429, 17.0),
        from_status(429, '{"error": {"message": "tokens per min"}}', 17.0),
        from_status(429, "slow", retry_after({}, 0.0, "Rate limit reached. Please try again in 16.5s. Visit")),
    ],
    ids=["class", "status", "words", "words of when"],
)
@pytest.mark.parametrize(
    ("path", "kind"),
    [("/v1/chat/completions", "invalid_request_error"), ("/v1/messages", "rate_limit_error"), ("/v1/responses", "")],
)
def test_a_rate_limit_stays_one(tmp_path: Path, path: str, kind: str, error: ProviderError) -> None:
    """429 with the provider's Retry-After, of one model and of all; a client may try again."""
    limited = Faulty(Echo(), [Fault(error=error)] * 20)
    with serving(make_router(tmp_path, {"echo": limited})) as url, client(url) as http:
        for model in ("alpha", "fitrouter/auto"):
            body = {"model": model, "max_tokens": 9}
            body |= {"input": "hi"} if path.endswith("responses") else {"messages": [{"role": "user", "content": "hi"}]}
            reply = http.post(path, json=body)
            assert reply.status_code in (429, 503), reply.text
            assert reply.headers["retry-after"] in ("16", "17")
            assert "x-should-retry" not in reply.headers
            if model == "alpha":
                assert reply.status_code == 429
                assert kind in reply.json()["error"]["type"]


HOSTILE = ("nan", "inf", "-1e308", "9" * 400 + "s", "0001-01-01T00:00:00+23:59", "٣s", "")
BACK: dict[str, tuple[dict[str, str], str, float | None]] = {
    "seconds": ({"retry-after": "17"}, "", 17.0),
    "a fraction": ({"retry-after": "16.4"}, "", 16.4),
    "a date": ({"retry-after": "Thu, 01 Jan 1970 00:00:17 GMT"}, "", 17.0),
    "milliseconds": ({"retry-after-ms": "17000"}, "", 17.0),
    "both": ({"retry-after": "17", "retry-after-ms": "16400"}, "", 17.0),
    "OpenAI's words": ({}, "Limit 3, Used 3. Please try again in 20s. Visit", 20.0),
    "Groq's words": ({}, "Please try again in 1m2.5s.", 62.5),
    "milliseconds in words": ({}, "Please try again in 840ms.", 0.84),
    "Google's words": ({}, '[{"error": {"details": [{"retryDelay": "17s"}]}}]', 17.0),
    "nonsense, and words": ({"retry-after": "soon"}, "Please try again in 20s.", 20.0),
    "nonsense": ({"retry-after": "soon", "retry-after-ms": "x"}, "again in s", None),
    "the past": ({"retry-after": "-5"}, "", 0.0),
    "never": ({"retry-after": "inf"}, "", None),
    "nothing": ({}, "", None),
    "OpenAI's limits": ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s"}, "", 1.0),
    "the limit that is used up": (
        {
            "X-RateLimit-Reset-Requests": "120ms",
            "X-RateLimit-Reset-Tokens": "1h6m0.5s",
            "X-RateLimit-Remaining-Requests": "3",
            "X-RateLimit-Remaining-Tokens": "0",
        },
        *("", 3960.5),
    ),
    "milliseconds of a limit": ({"x-ratelimit-reset-requests": "120ms"}, "", 0.12),
    "plain seconds of a limit": ({"x-ratelimit-reset-requests": "2.5"}, "", 2.5),
    "words before limits": ({"x-ratelimit-reset-tokens": "6m0s"}, "Please try again in 20s.", 20.0),
    "nonsense, and a limit": ({"retry-after": "soon", "x-ratelimit-reset-tokens": "6m0s"}, "", 360.0),
    "Anthropic's": ({"anthropic-ratelimit-input-tokens-reset": "1970-01-01T00:00:17Z"}, "", 17.0),
    "Anthropic's, elsewhere": ({"anthropic-ratelimit-requests-reset": "1970-01-01T01:00:17+01:00"}, "", 17.0),
    "a limit of an hour ago": ({"anthropic-ratelimit-requests-reset": "1969-12-31T23:00:00Z"}, "", None),
    "OpenRouter's": ({}, '{"metadata": {"headers": {"X-RateLimit-Reset": "17000"}}}', 17_000.0),
    "a limit in a year": ({"x-ratelimit-reset": "31536000"}, "", None),
    "hostile limits": (
        dict(zip([f"x-ratelimit-reset-{i}" for i in range(7)], HOSTILE, strict=True)),
        *('"x-ratelimit-reset": "9' + "9" * 400, None),
    ),
}


@pytest.mark.parametrize(("headers", "said", "seconds"), BACK.values(), ids=BACK)
def test_every_spelling_of_when_to_come_back(headers: dict[str, str], said: str, seconds: float | None) -> None:
    """Headers of all kinds, and words of those who send none; only Retry-After counts with other failures."""
    assert retry_after(headers, 0.0, said) == seconds
    assert retry_after(headers, 0.0, said, 503) == seconds
    own = {name: value for name, value in headers.items() if name.startswith("retry")}
    assert retry_after(headers, 0.0, said, 500) == retry_after(own, 0.0)


def test_a_limit_may_be_reset_at_a_time() -> None:
    """In seconds or milliseconds since 1970, as OpenRouter says it in the body."""
    said = '{"error": {"metadata": {"headers": {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1760000017000"}}}}'
    assert retry_after({}, 1_760_000_000.0, said) == pytest.approx(17.0)
    assert retry_after({"x-ratelimit-reset": "1760000017"}, 1_760_000_000.0) == pytest.approx(17.0)
    unused = {"x-ratelimit-reset-requests": "17s", "x-ratelimit-remaining-requests": "59"}  # no reason of a 503
    assert (retry_after(unused, 0.0), retry_after(unused, 0.0, "", 503)) == (17.0, None)


@pytest.mark.parametrize("status", [503, 529, 502])
def test_a_busy_model_says_until_when(tmp_path: Path, status: int) -> None:
    """503 with the provider's Retry-After, as the next request would get; one that does not say it has failed."""
    with (
        serving(
            make_router(tmp_path, {"echo": Faulty(Echo(), [Fault(error=from_status(status, "busy", 17.0))])})
        ) as url,
        client(url) as http,
    ):
        reply = http.post("/v1/chat/completions", json=chat(model="alpha"))
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "17")
    assert "x-should-retry" not in reply.headers


@pytest.mark.parametrize(
    ("probs", "candidates", "chances"),
    [
        ((0.5, 0.3, 0.2), {}, {"b": 0.6, "c": 0.4}),
        ((1.0, 0.0, 0.0), {FULL_SHARE: (0.2, 0.6, 0.2)}, {"b": 0.75, "c": 0.25}),
        ((1.0, 0.0, 0.0), {}, {"b": 0.5, "c": 0.5}),
        ((1.0, 0.0, 0.0), {FULL_SHARE: (1.0, 0.0, 0.0)}, {"b": 0.5, "c": 0.5}),
    ],
    ids=["any share", "share 0", "fixed", "share 0 of a fixed policy"],
)
def test_every_mode_falls_back(
    probs: tuple[float, ...], candidates: dict[str, tuple[float, ...]], chances: dict[str, float]
) -> None:
    """From the pmf without what failed; where it leaves nothing from the policy's own, else uniformly."""
    seen = {}
    for number in range(40):
        decision = Decision(
            id=f"01900000-0000-7000-8000-{number:012d}",
            ts=0.0,
            draw_id="d",
            identity=Identity(),
            mode=Mode.SHADOW,
            eligible=("a", "b", "c"),
            probs=probs,
            candidates=candidates,
            chosen="a",
            propensity=probs[0],
            policy=PolicyVersion(algorithm="x"),
        )
        arm, chance = renormalise(decision, ["a"], 1) or ("", 0.0)
        seen[arm] = round(chance, 12)
    assert seen == chances


FAILURES: dict[str, Reply] = {
    "an outage": reply(500, {"error": {"message": "out of order"}}),
    "a proxy's page": reply(502, b"<html>", "text/html"),
    "no such model": reply(404, {"error": {"message": "model not found"}}),
    "a refused key": reply(401, {"error": {"message": "invalid key"}}),
    "no credit": reply(402, {"error": {"message": "pay"}}),
    "a rate": reply(429, {"error": {"message": "slow down"}}),
    "no JSON": reply(200, b"{"),
    "an error with a 200": reply(200, {"error": {"message": "overloaded"}}),
    "a lost connection": Reply(b""),
    "a long history": reply(400, {"error": {"code": "context_length_exceeded"}}),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
async def test_a_share_of_zero_falls_back(tmp_path: Path, failure: Reply) -> None:
    """Whatever fails at the default model, another one answers, as in any other mode."""
    async with FakeOpenAI([failure]) as server:
        router = make_router(
            tmp_path, {"echo": OpenAICompatible(server.base_url)}, rules=Rules(share=0.0, default_arm="beta")
        )
        async with router:
            found = await router.complete(Request(messages=({"role": "user", "content": "hi"},), identity=Identity()))
            await router.settled()
        assert server.seen[0][0]["model"] == "beta"
        assert len(server.seen) == 2
    assert found.served_by in {"alpha", "gamma"}
