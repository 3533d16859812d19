"""Hostile and broken peers: what providers send is bounded, dear work has a budget, and nobody's text is logged."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.kits.fake_openai import FakeOpenAI, Reply, event, in_a_thread, reply, sse
from tests.kits.gateway import Echo, chat, client, config, make_router, serving, wait_for
from typer.testing import CliRunner

from fitrouter.config import RewardModelConfig, _reading, load_config
from fitrouter.config._models import PricesConfig
from fitrouter.draw import uuid7
from fitrouter.errors import ConfigError, ProviderRejected, ProviderUnavailable
from fitrouter.providers import LEFT_OUT, OpenAICompatible, _openai_compatible, is_public, tracing, without_addresses
from fitrouter.providers._addresses import names_address
from fitrouter.providers._json import decode_json
from fitrouter.providers._uniform import UniformChoice
from fitrouter.providers.usage import read_usage
from fitrouter.serving import attempts, feedback
from fitrouter.serving.attempts import Assembler
from fitrouter.types import Call, Chunk, EmbeddingCall
from fitrouter_evaluators.personal import Leaderboards, Reports, Scores
from fitrouter_evaluators.replay.importing.import_log import import_log
from fitrouter_evaluators.scoring.models.reward_model import RewardModel
from fitrouter_evaluators.scoring.models.reward_models import _Entry
from fitrouter_integrations import cli
from fitrouter_integrations.commands._files import replace_file, write_json, write_new, write_private
from fitrouter_integrations.gateway import _whole_log
from fitrouter_integrations.gateway.parsing import _schema

SECRETS = {"KEY_A": "aaaa-secret-of-tenant-a", "KEY_T": "tttt-secret-of-a-backend", "KEY_O": "oooo-secret-of-the-admin"}
NAMED = [
    {"name": "app", "tenant": "a", "key_env": "KEY_A", "requests_per_minute": 20},
    {"name": "backend", "tenant": "a", "key_env": "KEY_T", "trusted": True},
    {"name": "operator", "key_env": "KEY_O", "admin": True},
]
ENDS = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
DONE = b"data: [DONE]\n\n"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


@contextmanager
def speaking(url: str, key: str = "") -> Iterator[httpx.Client]:
    with client(url, headers={"authorization": f"Bearer {SECRETS[key]}"} if key else {}) as http:
        yield http


# --- what providers send ---------------------------------------------------------------------------------------------

MANY = 600_000
HUGE: dict[str, bytes] = {
    "numbers": b'{"a": [' + b"1," * MANY + b"1]}",
    "objects": b'{"a": [' + b"{}," * MANY + b"{}]}",
    "arrays in an array": b'{"a": [' + b"[]," * MANY + b"[]]}",
    "strings": b'{"a": [' + b'"",' * MANY + b'""]}',
    "members": b"{" + b",".join(b'"%x":0' % i for i in range(MANY)) + b"}",
    "levels": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "choices": json.dumps({"choices": [{"index": 0, "message": {}}] * 300_000}).encode(),
    "embeddings": b'{"error": [' + b"0," * MANY + b"0]}",
}


async def read(server: FakeOpenAI, *, stream: bool) -> list[Any]:
    """What a provider makes of a scripted answer."""
    provider = OpenAICompatible(server.base_url)
    try:
        asked = Call(target="m", messages=({"role": "user", "content": "x"},), stream=stream)
        found: Any = await provider.complete(asked)
        return [chunk async for chunk in found] if stream else [found]
    finally:
        await provider.aclose()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("body", HUGE.values(), ids=HUGE)
async def test_an_answer_of_many_values_is_refused_before_it_is_parsed(body: bytes, stream: bool) -> None:
    """Number and depth are bounded as for requests: others do not wait for what one provider sends."""
    given = sse(b"data: " + body + b"\n\n", DONE) if stream else reply(200, body)
    async with FakeOpenAI([given]) as server:
        with pytest.raises(ProviderUnavailable, match=r"more than 500000 values|invalid JSON"):
            await read(server, stream=stream)


VECTORS: dict[str, tuple[bytes, bool]] = {
    "a usage of many values": (
        b'{"data": [[0.5]], "usage": {' + b",".join(b'"%x":0' % i for i in range(MANY)) + b"}}",
        True,
    ),
    "no usage": (b'{"data": [[0.5]], "usage": null}', True),
    "a usage that is none": (b'{"data": [[0.5]], "usage": [7]}', True),
    "other fields": (b'{"data": [[0.5]], "x": [' + b"1," * MANY + b"1]}", True),
    "many vectors": (b'{"data": [' + b"[0.5]," * MANY + b"[0.5]]}", True),
    "levels": (b'{"data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", False),
    "no vectors": (b'{"data": {' + b",".join(b'"%x":0' % i for i in range(MANY)) + b"}}", False),
}


@pytest.mark.parametrize(("body", "passes"), VECTORS.values(), ids=VECTORS)
async def test_embeddings_are_relayed_unread(body: bytes, passes: bool) -> None:
    """Vectors may be many, and nothing of them becomes an object; a usage is short, or counts as none."""
    async with FakeOpenAI([reply(200, body)]) as server:
        provider = OpenAICompatible(server.base_url)
        asked = provider.embed(EmbeddingCall(target="m", params={"input": "x"}, timeout_s=60.0))
        if passes:
            found = await asked
            assert bytes(memoryview(found.data))[:6] == b"[[0.5]" or bytes(memoryview(found.data))[:5] == b"[0.5]"
            assert found.usage.prompt_tokens == 0
        else:
            with pytest.raises(ProviderUnavailable, match=r"no embeddings|more than 500000 values|invalid JSON"):
                await asked
        await provider.aclose()


async def test_calls_of_one_answer_are_bounded() -> None:
    """More of them than any model makes are left out, which is noted, and each id is looked up once."""
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}] * 50_000
    body = {"choices": [{"index": 0, "message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}
    async with FakeOpenAI([reply(200, body)]) as server:
        (found,) = await read(server, stream=False)
    assert len(found.message["tool_calls"]) == len({each["id"] for each in found.message["tool_calls"]}) == 256
    assert found.further[LEFT_OUT] == ["tool_calls"]
    pieces = [{"index": i, "id": f"c{i}", "function": {"name": "f", "arguments": "{}"}} for i in range(257)]
    async with FakeOpenAI(
        [sse(*(event({"choices": [{"delta": {"tool_calls": [each]}}]}) for each in pieces), DONE)]
    ) as server:
        with pytest.raises(ProviderUnavailable, match="more than 256 tool calls"):
            await read(server, stream=True)


PIECES: dict[str, list[dict[str, Any]]] = {
    "by index": [{"index": i, "function": {"arguments": "1"}} for i in range(200)],
    "by id": [{"id": f"c{i}", "function": {"arguments": "1"}} for i in range(200)],
    "named again": [{"index": i, "id": f"c{i}", "function": {"name": "f", "arguments": "1"}} for i in range(200)],
    "of odd ids": [{"index": i, "id": [i], "function": {"arguments": "1"}} for i in range(200)],
}


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
async def test_pieces_of_calls_take_time_by_their_number(pieces: list[dict[str, Any]]) -> None:
    """Twenty thousand of two hundred calls are told apart, and put together, in half a second of a slow machine."""
    started = [{**each, "function": {"name": "f", **each["function"]}} for each in pieces]
    uniform, whole = UniformChoice(), Assembler()
    begun = time.process_time()
    for each in [started, *[pieces] * 100]:
        whole.add(Chunk(delta=uniform.delta({"tool_calls": each})))
    message = whole.message()
    assert time.process_time() - begun < 0.7
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ["1" * 101] * 200


def test_words_are_counted_where_a_hard_limit_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """To count them takes 20 ms for 100 kB; what was used is estimated by bytes."""
    whole = Assembler()
    with monkeypatch.context() as patch:
        patch.setattr(attempts, "_UNITS", None)
        for chunk in (Chunk(delta={"content": "one two "}), Chunk(delta={"reasoning": "123456"}, finish_reason="stop")):
            whole.add(chunk)
        assert (whole.used().completion_tokens, whole.ended) == (4, True)
    assert whole.sent == 2 + 2


async def test_a_long_text_is_no_number_of_values() -> None:
    """An answer of a million commas in a text is read: four times as much as any model writes."""
    text = "a, b. " * 100_000
    body = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
    async with FakeOpenAI([reply(200, body)]) as server:
        provider = OpenAICompatible(server.base_url)
        found = await provider.complete(Call(target="m", messages=({"role": "user", "content": "x"},)))
        assert found.message["content"] == text  # type: ignore[union-attr]
        await provider.aclose()


def told(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, **choice}]}


CALL = {"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}
FLOODS: dict[str, Any] = {
    "words": told(delta={"content": "x"}),
    "thinking": told(delta={"reasoning_content": "h"}),
    "empty deltas": told(delta={}),
    "empty texts": told(delta={"content": ""}),
    "roles": told(delta={"role": "assistant"}),
    "ends": told(delta={}, finish_reason="stop"),
    "arguments": told(delta={"tool_calls": [{"index": 0, "function": {"arguments": "1"}}]}),
    "no choices": {},
    "other fields": {"a": 1},
    "the same usage": {"usage": {"prompt_tokens": 1}},
}
MADE = {
    **{name: [each] * 4_000 for name, each in FLOODS.items()},
    "more usage": [{"usage": {"prompt_tokens": 1, "completion_tokens": i}} for i in range(4_000)],
    "ends again": [FLOODS["ends"], FLOODS["roles"]] * 2_000,
    "words and usage": [{**FLOODS["words"], "usage": {"completion_tokens": i}} for i in range(4_000)],
}


@pytest.mark.parametrize("name", MADE)
async def test_pieces_that_arrive_at_once_are_few(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32 tiny events one chunk is made, and one usage read; what says nothing is not read again."""
    made, turns, read, parsed = MADE[name], [0], [0], [0]

    def reading(usage: object) -> Any:
        read[0] += 1
        return read_usage(usage)

    def parsing(data: bytes) -> Any:
        parsed[0] += 1
        return decode_json(data)

    async def beat() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(_openai_compatible, "read_usage", reading)
    monkeypatch.setattr(_openai_compatible, "decode_json", parsing)
    begins = event(told(delta={"content": "y", "tool_calls": [CALL]}))
    async with FakeOpenAI([sse(begins + b"".join(map(event, made)) + ENDS, DONE)]) as server:
        provider = OpenAICompatible(server.base_url)
        found: Any = await provider.complete(
            Call(target="m", messages=({"role": "user", "content": "x"},), stream=True)
        )
        other, whole, chunks, ends = asyncio.create_task(beat()), Assembler(), 0, 0
        async for chunk in found:
            whole.add(chunk)
            chunks += 1
            ends += chunk.finish_reason is not None
        other.cancel()
        await provider.aclose()
    assert ends == 1
    assert turns[0] >= len(made) / _openai_compatible._TURN
    assert chunks <= 2 * len(made) / _openai_compatible._TURN + 20
    assert read[0] <= 2 * len(made) / _openai_compatible._TURN + 20
    assert (parsed[0] < 10) is (name in FLOODS and name not in ("words", "thinking", "arguments"))
    said = whole.message()
    assert len(said["content"]) == 1 + 4_000 * name.startswith("words")
    assert len(said["tool_calls"][0]["function"]["arguments"]) == 4_000 * (name == "arguments")


async def test_the_number_of_pieces_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that never says anything ends."""
    monkeypatch.setattr(_openai_compatible, "_MOST_PIECES", 1000)
    async with FakeOpenAI([sse(b"data: {}\n\n" * 2000, DONE)]) as server:
        with pytest.raises(ProviderUnavailable, match="more than 1000 events"):
            await read(server, stream=True)


# --- what providers say ----------------------------------------------------------------------------------------------

PRICES = PricesConfig(input=1.0, output=1.0)
UNTOLD = ("a finish reason", "a stream that breaks off")
"""Pages of which callers read nothing."""
WORD = "canary-of-a-prompt"
PAGES: dict[str, Any] = {
    "an error": lambda said: reply(500, {"error": {"message": said}}),
    "a refused key": lambda said: reply(401, {"error": {"message": said}}),
    "a rate": lambda said: reply(429, {"error": {"message": said}}),
    "a page": lambda said: reply(502, f"<html>{said}</html>".encode(), "text/html"),
    "no JSON": lambda said: reply(200, f"{said}: {{".encode()),
    "an error with a 200": lambda said: reply(200, {"error": {"message": said}}),
    "an event": lambda said: sse(event({"error": {"message": said}})),
    "no event": lambda said: sse(f"{said}\n\n".encode()),
    "a type": lambda said: reply(200, b"x", f"text/{said}"),
    "a finish reason": lambda said: reply(
        200, {"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": said}], "model": said, "id": said}
    ),
    "a refusal": lambda said: reply(400, {"error": {"message": said, "type": said, "code": said, "param": said}}),
    "a stream that fails": lambda said: sse(
        event({"choices": [{"index": 0, "delta": {"content": "x"}}]}), event({"error": {"message": said}})
    ),
    "a stream that breaks off": lambda said: sse(
        event({"choices": [{"index": 0, "delta": {"content": said}}]}), f"data: {said}".encode(), end=False
    ),
    "an encoding": lambda said: reply(200, b"x", content_encoding=said),
    "a header": lambda said: Reply(f"HTTP/1.1 500 {said}\r\nretry-after: {said}\r\ncontent-length: 0\r\n\r\n".encode()),
}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_what_others_say_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, page: Any
) -> None:
    """Words of an upstream, a client and their headers reach no log, metric, span, or another tenant's error."""
    caplog.set_level(logging.INFO)
    monkeypatch.delenv("OTEL_SDK_DISABLED", raising=False)  # set for the tests of frameworks
    kept, traces = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    traces.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(tracing, "_tracer", traces.get_tracer("t"))
    streamed = page(WORD).pieces and b"event-stream" in page(WORD).pieces[0]
    with in_a_thread(FakeOpenAI([page(WORD) for _ in range(30)])) as server:
        router = make_router(tmp_path, {"echo": OpenAICompatible(server.base_url)})
        with serving(router, config(keys=NAMED, access_log="json")) as url:
            with speaking(url, "KEY_T") as http:
                for _ in range(12):
                    body = chat(WORD, model="alpha", stream=bool(streamed), metadata={"trace": WORD, "role": "cook"})
                    http.post("/v1/chat/completions", json=body, headers={"x-fitrouter-task": "t", "x-other": WORD})
                http.post("/v1/chat/completions", content=f'{{"model": "{WORD}'.encode())
                http.post("/v1/feedback", json={"decision_id": WORD, "kind": WORD, "comment": WORD})
                http.get(f"/v1/nowhere/{WORD}?q={WORD}")
            with speaking(url, "KEY_O") as http:
                told = [http.get("/metrics").text, http.get("/readyz").text, http.get("/v1/policy").text]
                server._script = iter([reply(500, {"error": {"message": "out of order"}})] * 9)
                told.append(http.post("/v1/chat/completions", json=chat("Hi", model="alpha")).text)
    own = [record for record in caplog.records if record.name.startswith(("fitrouter", "uvicorn", "asyncio"))]
    lines = [f"{record.getMessage()} {record.exc_text or ''}" for record in own]
    without_paths = [line for line in lines if "/v1/nowhere" not in line]  # the caller's own path
    spans = [span.to_json() for span in kept.get_finished_spans()]
    assert len(spans) > 5
    assert not [text for text in (*without_paths, *told, *spans) if WORD in text]


class Raising(Echo):
    """A provider of somebody else's making, whose errors repeat what it was asked."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def complete(self, call: Call) -> Any:
        raise self.error

    async def embed(self, call: EmbeddingCall) -> Any:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [ProviderUnavailable(WORD), ProviderRejected(WORD, 400), KeyError(WORD), ValueError(WORD), OSError(5, WORD)],
    ids=lambda error: type(error).__name__,
)
def test_errors_that_repeat_what_was_asked_are_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Neither those of providers, of judges of answers and of parts, nor those that nobody thought of."""
    caplog.set_level(logging.INFO)
    router = make_router(tmp_path, {"echo": Raising(error)})
    given: Any = {"principles": {"*": ("be brief",)}, "send_text": True, "provider": "p"}
    entry = RewardModelConfig(name="judge", kind="judge", model="m", prices=PRICES, **given)
    judge = _Entry(entry, tmp_path, lambda _: cast("RewardModel", None))
    judge.report = router.hooks.trouble
    judge.failed(ProviderRejected(WORD, 400))
    router.hooks.trouble("encoder", ProviderUnavailable(WORD))

    async def unforeseen(*_: Any, **__: Any) -> Any:
        raise KeyError(WORD) from error

    with serving(router, config(keys=NAMED)) as url, speaking(url, "KEY_T") as http:
        for stream in (False, True):
            http.post("/v1/chat/completions", json=chat(WORD, stream=stream))
        monkeypatch.setattr(router, "events", unforeseen)
        assert http.get(f"/v1/decisions/{uuid7(0.0)}").status_code == 500
    lines = [f"{record.getMessage()} {record.exc_text or ''}" for record in caplog.records]
    assert any("KeyError" in line for line in lines)
    assert not [line for line in (*lines, judge.error) if WORD in line]


@pytest.mark.parametrize("page", [page for name, page in PAGES.items() if name not in UNTOLD])
def test_a_callers_error_names_no_address(tmp_path: Path, page: Any) -> None:
    """Neither the provider's URL nor its host; an administrator, and whoever needs no key, read them."""
    with in_a_thread(FakeOpenAI()) as server:
        at = server.base_url.removeprefix("http://").removesuffix("/v1")
        server._script = iter([page(f"see {server.base_url} and {at}") for _ in range(60)])
        streamed = b"event-stream" in page(WORD).pieces[0]
        router = make_router(tmp_path, {"echo": OpenAICompatible(server.base_url)})
        said: dict[str, str] = {}
        with serving(router, config(keys=NAMED)) as url:
            for key in ("KEY_A", "KEY_T", "KEY_O"):
                with speaking(url, key) as http:
                    for path in ("/v1/chat/completions", "/v1/messages"):
                        body = {**chat("Hi", model="alpha", stream=streamed), "max_tokens": 9}
                        said[key] = said.get(key, "") + http.post(path, json=body).text
        assert at in said["KEY_O"]
        assert "provider echo" in said["KEY_A"]
        for key in ("KEY_A", "KEY_T"):
            assert at not in said[key]
            assert "127.0.0.1" not in said[key]


WITHIN = (
    *("10.1.2.3", "[fd00::12]:8000", "::1", "169.254.169.254", "localhost:8000", "vllm-worker-3:8000"),
    *("vllm-0.models.svc.cluster.local", "gpu.corp.internal:8443", "http://vllm/v1", "models.example.com:8000"),
    *("http:\\/\\/ollama:11434\\/api", "redis://:pw@cache:6379", "fp-10.1.2.3", "http://[fd00::12]/v1", "VLLM.Corp"),
)
PUBLIC = (
    "https://platform.openai.com/docs",
    "8.8.8.8",
    "qwen2.5:72b",
    "claude-3-5-sonnet-v2:0",
    "12:30:45",
    "std::map",
)


@pytest.mark.parametrize("address", WITHIN)
def test_no_address_of_a_network_is_told(address: str) -> None:
    """Whoever sent it, and however it is written: servers behind a provider are no more of a caller's than itself."""
    said = f"upstream {address} of {address}, failed ({address})"
    assert address not in without_addresses(said)
    assert names_address({"debug": [{"at": address}]})
    assert without_addresses(" and ".join(PUBLIC)) == " and ".join(PUBLIC)
    assert not names_address([*PUBLIC, f"the docs say: open {address}"])


PLACES: dict[str, Any] = {
    "refused, by a name": (OpenAICompatible("http://localhost:9/v1"), ("localhost", "127.0.0.1", "::1")),
    "a proxy": (OpenAICompatible("http://m.example/v1", proxy="http://127.0.0.1:9"), ("127.0.0.1", "m.example")),
    "an unknown name": (OpenAICompatible("http://models.corp.internal/v1"), ("corp.internal",)),
    "a stream that fails": lambda said: sse(
        event({"choices": [{"index": 0, "delta": {"content": "x"}}]}), event({"error": {"message": said}})
    ),
    "an answer's fields": lambda said: reply(
        200,
        {"choices": [{"index": 0, "message": {"content": "x", "node": said}, "finish_reason": "stop", "at": said}]}
        | {"upstream": {"host": [said]}, "system_fingerprint": said, "usage": {"prompt_tokens": 1, "host": said}},
    ),
    "a stream's fields": lambda said: sse(
        event({"choices": [{"index": 0, "delta": {"content": "x", "node": said}, "at": said}], "upstream": said}),
        ENDS + DONE,
    ),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_what_a_tenant_reads_names_no_address(tmp_path: Path, place: Any) -> None:
    """In errors, events and fields of answers, in what is said of outages, in embeddings, and in the console."""
    address = "10.1.2.3:8000"
    with in_a_thread(FakeOpenAI()) as server:
        provider, hidden = place if isinstance(place, tuple) else (OpenAICompatible(server.base_url), (address[:8],))
        page = None if isinstance(place, tuple) else place(address)
        server._script = iter([page] * 60)
        streamed = page is not None and b"event-stream" in page.pieces[0]
        router = make_router(tmp_path, {"echo": provider})
        told = []
        with serving(router, config(keys=NAMED)) as url, speaking(url, "KEY_T") as http:
            for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
                body = {**chat("Hi", model="alpha", stream=streamed), "max_tokens": 9, "input": "Hi"}
                body = {name: each for name, each in body.items() if name != "messages" or "responses" not in path}
                told.append(http.post(path, json=body).text)
            told.append(http.post("/v1/embeddings", json={"model": "vectors", "input": "x"}).text)
            views = [f"/console/api/{name}" for name in ("now", "models", "learning", "policy", "decisions")]
            told += [http.get(path).text for path in ("/readyz", "/v1/models", "/v1/policy", "/v1/decisions", *views)]
    assert not [text for text in told if any(name in text for name in hidden)]


def test_without_keys_the_address_is_told(tmp_path: Path) -> None:
    """Whoever starts a gateway on this machine must learn which server does not answer."""
    router = make_router(tmp_path, {"echo": OpenAICompatible("http://127.0.0.1:9/v1")})
    with serving(router) as url, client(url) as http:
        assert "http://127.0.0.1:9/v1" in http.post("/v1/chat/completions", json=chat()).text


# --- money and time of others ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "stream"), [(15, False), (19, False), (8, True), (2, False)])
def test_rates_count_calls(tmp_path: Path, n: int, stream: bool) -> None:
    """A request for n choices is n requests of its key's rate; what is over is waited for."""
    with serving(make_router(tmp_path), config(keys=NAMED)) as url, speaking(url, "KEY_A") as http:
        answered = 0
        for _ in range(40):
            reply = http.post("/v1/chat/completions", json=chat(n=n, stream=stream))
            if reply.status_code == 429:
                break
            assert reply.status_code == 200, reply.text
            answered += 1
        assert reply.json()["error"]["code"] == "rate_limited"
        assert (answered - 1) * n < 20 <= answered * n + n
        assert int(reply.headers["retry-after"]) >= (answered * n - 20) * 3


@pytest.mark.parametrize(
    "name", ["best_of", "candidate_count", "num_return_sequences", "num_generations", "fallback_models", "models"]
)
def test_calls_by_another_name_are_refused(tmp_path: Path, name: str) -> None:
    """What other servers call `n`, and lists of further models: they would be neither counted nor chosen."""
    with serving(make_router(tmp_path), config(keys=NAMED)) as url, speaking(url, "KEY_A") as http:
        for value in (4, ["dear"]):
            reply = http.post("/v1/chat/completions", json={**chat(), name: value})
            assert (reply.status_code, name in reply.text) == (400, True)


def test_votes_of_one_answer_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads all of them, so that a crowd of votes would slow down everybody's; other answers take theirs."""
    monkeypatch.setattr(feedback, "MOST_EVENTS", 12)
    router = make_router(tmp_path)
    with serving(router) as url, client(url) as http:
        one, other = (http.post("/v1/chat/completions", json=chat(user="ann")).headers for _ in range(2))
        codes: list[int] = []
        for kind, value in (("thumb", "up"), ("rating", 3), ("thumb", "down")) * 8:
            vote = {"decision_id": one["x-fitrouter-decision"], "user": "ann", "kind": kind, "value": value}
            reply = http.post("/v1/feedback", json=vote | ({"scale": [0, 5]} if kind == "rating" else {}))
            codes.append(reply.status_code)
        assert 200 in codes
        assert codes[-1] == 400
        assert "the most that count" in reply.text
        assert http.get(f"/v1/decisions/{one['x-fitrouter-decision']}").status_code == 200
        vote = {"decision_id": other["x-fitrouter-decision"], "user": "ann", "kind": "thumb", "value": "up"}
        assert http.post("/v1/feedback", json=vote).status_code == 200


DEAR: dict[str, tuple[dict[str, Any] | None, int]] = {
    "/v1/score": ({"items": [{"prompt": "2 + 2?", "answers": ["4"]}]}, 4),
    "/v1/diagnose": ({"history": [{"messages": [{"role": "user", "content": "Hi"}]}]}, 1),
    "/v1/leaderboard": (None, 4),
    "/v1/report": (None, 4),
    "/v1/satisfaction": (None, 1),
    "/v1/exposure": (None, 1),
}


@pytest.mark.parametrize("path", DEAR)
def test_dear_routes_have_a_budget_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Beside some others of its tenant a request is refused before its body is read; another tenant's is answered."""
    (body, most), begun, go_on = DEAR[path], list[object](), threading.Event()

    async def slow(*_: Any, **__: Any) -> Any:
        begun.append(None)
        await asyncio.to_thread(go_on.wait, 120.0)
        return []

    for owner, name in ((Scores, "score"), (Leaderboards, "of"), (Reports, "of")):
        monkeypatch.setattr(owner, name, slow)
    monkeypatch.setattr(_whole_log, "in_background", slow)

    def ask(key: str) -> None:
        with speaking(url, key) as http:
            http.request("GET" if body is None else "POST", path, json=body)

    with serving(make_router(tmp_path), config(keys=NAMED)) as url:
        asking = [threading.Thread(target=ask, args=("KEY_T",)) for _ in range(most)]
        for one in asking:
            one.start()
        wait_for(lambda: len(begun) == most)
        with speaking(url, "KEY_T") as http:
            method, content = ("GET", b"") if body is None else ("POST", b"{" * 50_000)
            refused = http.request(method, path, content=content, headers={"content-type": "application/json"})
        asking.append(threading.Thread(target=ask, args=("KEY_O",)))
        asking[-1].start()
        wait_for(lambda: len(begun) == most + 1)
        go_on.set()
        for one in asking:
            one.join(120.0)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "busy")
    assert refused.headers["retry-after"]


def test_the_schema_is_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is long, and the same for everybody, also for those who ask while it is made."""
    made = list[object]()

    def document(routes: Any) -> dict[str, Any]:
        made.append(list(routes))
        return {"openapi": "3.1.0"}

    monkeypatch.setattr(_schema, "document", document)
    with serving(make_router(tmp_path)) as url, ThreadPoolExecutor(8) as threads:
        answers = [*threads.map(lambda _: httpx.get(f"{url}/openapi.json", timeout=120.0), range(16))]
    assert {(answer.status_code, answer.headers["content-type"]) for answer in answers} == {(200, "application/json")}
    assert len({answer.content for answer in answers}) == len(made) == 1


# --- addresses, files, YAML ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        *("64:ff9b::a9fe:a9fe", "64:ff9b::10.0.0.1", "64:ff9b:1::a9fe:a9fe", "::127.0.0.1", "::10.1.2.3", "fec0::1"),
        *("192.0.0.192", "192.0.0.8", "192.88.99.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "2002:7f00:1::"),
        *("fe80::1", "fc00::1", "ff02::1", "2001:db8::1", "100.64.0.1", "0.0.0.0", "255.255.255.255", "224.0.0.1"),
        *("5f00::1", "198.18.0.1", "fe80::1%eth0", "::", "::ffff:0:127.0.0.1", "::ffff:0:10.0.0.1", "168.63.129.16"),
        *("3fff::1", "100:0:0:1::1", "::ffff:0:a9fe:a9fe", "2001:0:7f00:1::"),
    ],
)
def test_addresses_of_this_network_are_not_public(address: str) -> None:
    """However they are written: mapped, translated, compatible, of a site, or reserved."""
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "2606:4700:4700::1111", "64:ff9b::1.1.1.1", "::ffff:1.1.1.1", "8.8.8.8"]
)
def test_addresses_of_the_internet_are_public(address: str) -> None:
    """Also behind a translator."""
    assert is_public(address)


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
BOMBS: dict[str, str] = {
    "aliases of aliases": LAUGHS,
    "aliases in mappings": LAUGHS.replace("[", "{k1: ").replace(", ", ", k: ").replace("]", "}"),
    "merges of merges": "a: &a {k: v}\n"
    + "".join(
        f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n" for before, name in pairwise("abcdefghijkl")
    ),
    "many merges": f"a: &a {{{', '.join(f'k{i}: 1' for i in range(100))}}}\nmodels: {{<<: [{'*a, ' * 60}]}}",
    "a merge of itself": "models: &a {<<: *a}\nb: " + "[" * 80 + "]" * 80,
    "an alias of itself": "models: &a [*a]",
    "a mapping in itself": "models: &a {b: *a}",
    "deep lists": "models: " + "[" * 3_000 + "]" * 3_000,
    "levels": "models: " + "[" * 80 + "]" * 80,
    "deep mappings": "models: " + "{a: " * 2_000 + "1" + "}" * 2_000,
    "digits": "models: " + "9" * 200_000,
    "digits of base 60": "models: " + ":".join(["59"] * 20_000),
    "no date": "models: 2001-99-99",
    "many values": "models: [" + "1, " * 6_000 + "1]",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_grows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Aliases count as what they stand for; the message says what the bounds are."""
    monkeypatch.setattr(_reading, "_MOST_VALUES", 5_000)
    file = tmp_path / "fitrouter.yaml"
    text = BOMBS[name]
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"more than 100000 values|nested too deeply|stands here|cannot be read"):
        load_config(file)
    checked = CliRunner().invoke(cli.app, ["config", "check", "--config", str(file)])
    assert checked.exit_code != 0
    assert not isinstance(checked.exception, RecursionError)


@pytest.mark.parametrize(
    "text", ["? " + "k" * 100_000 + "\n: 1", "\n".join(f"k{i}: 1" for i in range(5_000))], ids=["long", "many"]
)
def test_errors_of_a_configuration_are_bounded(tmp_path: Path, text: str) -> None:
    """Neither one long name nor many wrong settings make a long message."""
    file = tmp_path / "fitrouter.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="unknown setting") as found:
        load_config(file)
    assert len(str(found.value)) < 100_000


def test_exports_are_private(tmp_path: Path) -> None:
    """What the commands write of people can be read by its owner only; a configuration has no secret."""
    before = os.umask(0o022)
    try:
        write_new(tmp_path / "export.json", "{}", "FILE")
        write_new(tmp_path / "fitrouter.yaml", "{}", "--config", private=False)
        write_json({}, tmp_path / "report.json")
        for name, write in (("page.html", write_private), ("earlier.json", lambda path, *_: write_json({}, path))):
            (tmp_path / name).write_text("of yesterday, and for all to read")
            write(tmp_path / name, b"{}", "--html")
        replace_file(tmp_path / "export.json", "{}\n")  # as `suite judge` does after each answer
        Path(tmp_path / "log.csv").write_text("model,reward,propensity\na,1,0.5\nb,0,0.5\n")
        import_log(tmp_path / "log.csv", None, tmp_path / "imported")
        (tmp_path / "log.csv").unlink()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes.pop("fitrouter.yaml") == 0o644
    assert modes.pop("imported") == 0o700
    assert modes == dict.fromkeys(("export.json", "report.json", "page.html", "earlier.json"), 0o600)


def test_no_command_writes_files_in_its_own_way() -> None:
    """What a command writes goes through the functions that keep it private."""
    folder = Path(cli.__file__).parent / "commands"
    own = re.compile(r"\.write_(?:text|bytes)\(|open\([^)]*[\"'][wxa]b?[\"'](?![^)]*opener=for_owner)")
    assert [path.name for path in folder.rglob("*.py") if own.search(path.read_text("utf-8"))] == ["_files.py"]


def test_a_crowd_of_echoes_is_answered(tmp_path: Path) -> None:
    """The bounds above leave ordinary traffic alone."""
    with serving(make_router(tmp_path, {"echo": Echo()}), config(keys=NAMED)) as url, speaking(url, "KEY_T") as http:
        assert all(http.post("/v1/chat/completions", json=chat()).status_code == 200 for _ in range(20))
