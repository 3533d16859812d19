"""The direct OpenAI-compatible provider, against a real socket."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.kits.fake_openai import HANG, FakeOpenAI, Reply, event, reply, sse

from fitrouter.config import ProviderConfig
from fitrouter.errors import (
    ConfigError,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
    RateLimited,
    masked,
)
from fitrouter.providers import OpenAICompatible, Secret, _openai_compatible, build_provider
from fitrouter.providers._sse import sse_data
from fitrouter.providers.failures import from_status, retry_after
from fitrouter.serving.attempts import Assembler, close
from fitrouter.types import Call, Chunk, Completion, Usage

MESSAGES = ({"role": "user", "content": "hello"},)
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}]
SAID = event({"choices": [{"index": 0, "delta": {"content": "hi"}}]})
FINISH = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
DONE = event(b"[DONE]")


def call(stream: bool = False, timeout_s: float = 20.0, **params: Any) -> Call:
    return Call(target="m", messages=MESSAGES, params=params, stream=stream, timeout_s=timeout_s)


async def whole(provider: Any, one: Call) -> Completion:
    answer = await provider.complete(one)
    assert isinstance(answer, Completion)
    return answer


async def chunks(provider: Any, one: Call, found: list[Chunk] | None = None) -> list[Chunk]:
    """The chunks of an answer, also put into `found` one by one: what came before an error counts."""
    answer = await provider.complete(one)
    assert not isinstance(answer, Completion)
    found = [] if found is None else found
    async for chunk in answer:
        found.append(chunk)
    return found


def text(found: list[Chunk]) -> str:
    return "".join(chunk.delta.get("content") or "" for chunk in found)


@pytest.mark.parametrize("line", [b"<html>", b"hello", b"dat: {}", b"Data: {}"])
async def test_a_stream_of_something_else_is_refused(line: bytes) -> None:
    """A proxy's page is no stream, whatever follows; comments and empty lines are."""

    async def feed(first: bytes) -> AsyncIterator[bytes]:
        yield first + b"\n\ndata: 1\n\n"

    with pytest.raises(ProviderUnavailable, match="invalid server-sent event"):
        _ = [data async for data in sse_data(feed(line), "x", 1000)]
    assert [data async for data in sse_data(feed(b": hello"), "x", 1000)] == [b"1", b""]


@pytest.mark.parametrize(("timeout_s", "connect_s"), [(120.0, 10.0), (2.0, 2.0)])
async def test_a_server_that_takes_no_connection_is_left_after_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, connect_s: float
) -> None:
    """However long an answer may take, and sooner where the request has less time."""
    asked: list[aiohttp.ClientTimeout] = []

    async def post(self: aiohttp.ClientSession, url: str, **more: Any) -> Any:
        asked.append(more["timeout"])
        raise aiohttp.ConnectionTimeoutError

    monkeypatch.setattr(aiohttp.ClientSession, "post", post)
    provider = OpenAICompatible("http://127.0.0.1:9/v1")
    with pytest.raises(ProviderUnavailable, match="cannot be reached in time"):
        await whole(provider, call(timeout_s=timeout_s))
    await provider.aclose()
    assert [each.sock_connect for each in asked] == [connect_s]


async def test_a_whole_answer() -> None:
    """Message, finish reason and usage come through; the key is sent as a bearer and seen nowhere else."""
    async with FakeOpenAI() as server:
        provider = OpenAICompatible(server.base_url, Secret("sk-1"))
        answer = await whole(provider, call(temperature=0.3))
        await provider.aclose()
    assert answer.message == {"role": "assistant", "content": "m answers: hello"}
    assert (answer.finish_reason, answer.usage.prompt_tokens) == ("stop", 7)
    body, headers = server.seen[0]
    assert body == {"model": "m", "messages": list(MESSAGES), "temperature": 0.3}
    assert headers["authorization"] == "Bearer sk-1"
    assert "sk-1" not in repr(provider)


@pytest.mark.parametrize(
    ("proxy", "environment", "used"),
    [
        (None, {"http_proxy": "{proxy}"}, True),
        (None, {"HTTP_PROXY": "{proxy}"}, True),
        (None, {"all_proxy": "{proxy}"}, True),
        (None, {"http_proxy": "{proxy}", "no_proxy": "example.org,models.invalid"}, False),
        (None, {"http_proxy": "{proxy}", "NO_PROXY": ".invalid"}, False),
        (None, {"https_proxy": "{proxy}"}, False),
        ("none", {"http_proxy": "{proxy}"}, False),
        ("{proxy}", {"no_proxy": "*"}, True),
    ],
)
async def test_the_proxy_is_that_of_the_environment_or_the_setting(
    monkeypatch: pytest.MonkeyPatch, proxy: str | None, environment: dict[str, str], used: bool
) -> None:
    """As other HTTP clients do; `none` is for servers that a company's proxy does not reach."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    async with FakeOpenAI() as server:  # its paths end alike, so that it can be a proxy
        url = server.base_url.removesuffix("/v1")
        for name, value in environment.items():
            monkeypatch.setenv(name, value.format(proxy=url))
        provider = OpenAICompatible("http://models.invalid/v1", proxy=proxy and proxy.format(proxy=url))
        if used:
            assert (await whole(provider, call())).message["content"] == "m answers: hello"
        else:
            with pytest.raises(ProviderUnavailable, match="cannot be reached"):
                await whole(provider, call())
        await provider.aclose()
        assert len(server.seen) == used


@pytest.mark.parametrize("name", ["https_proxy", "all_proxy"])
@pytest.mark.parametrize(
    "proxy", ["socks5://user:secret@127.0.0.1:9", "socks5h://127.0.0.1:9", "SOCKS4://h", "ftp://h"]
)
async def test_a_proxy_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch, name: str, proxy: str) -> None:
    """Before anything is sent: its kind, without its password, and what to set instead."""
    for each in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(each, raising=False)
        monkeypatch.delenv(each.upper(), raising=False)
    monkeypatch.setenv(name, proxy)
    provider = OpenAICompatible("https://models.invalid/v1")
    with pytest.raises(ProviderUnavailable, match=r"only HTTP proxies can be used; set HTTPS_PROXY") as found:
        await provider.complete(Call(target="m", messages=({"role": "user", "content": "hi"},)))
    assert proxy.partition(":")[0] + "://…" in str(found.value)
    assert "secret" not in str(found.value)
    await provider.aclose()


@pytest.mark.parametrize(("proxy", "used"), [("127.0.0.1:3128", "http://127.0.0.1:3128"), ("https://h", "https://h")])
def test_a_proxy_without_a_scheme_is_an_http_proxy(monkeypatch: pytest.MonkeyPatch, proxy: str, used: str) -> None:
    """As for curl."""
    monkeypatch.setattr(_openai_compatible, "getproxies", lambda: {"https": proxy})
    assert OpenAICompatible("https://models.invalid/v1")._proxy() == used


@pytest.mark.parametrize(
    ("host", "direct"),
    [
        *((host, True) for host in ("10.1.2.3", "172.16.0.9", "192.0.2.9", "[fd00::1]", "[fd12:3456::9]")),
        *((host, False) for host in ("11.1.2.3", "172.32.0.1", "192.0.2.10", "[fe80::1]", "ten.invalid")),
    ],
)
def test_networks_of_this_site_need_no_proxy(monkeypatch: pytest.MonkeyPatch, host: str, direct: bool) -> None:
    """NO_PROXY names them as for other clients, beside entries that are nothing."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "nonsense/99, 10.0.0.0/8,172.16.0.1/12 ,192.0.2.9,fd00::/8,/")
    assert OpenAICompatible(f"http://{host}:8000/v1")._proxy() == (None if direct else "http://127.0.0.1:9")


async def test_a_server_of_this_machine_needs_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A company's proxy reaches no loopback address, and few set NO_PROXY for their local models."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    async with FakeOpenAI() as server:
        provider = OpenAICompatible(server.base_url)
        assert (await whole(provider, call())).message["content"] == "m answers: hello"
        await provider.aclose()


async def test_headers_of_a_provider_are_sent_and_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call has them; values of the environment are no part of the file, and masked in messages."""
    monkeypatch.setenv("CF_SECRET", "cf-0123456789")
    async with FakeOpenAI() as server:
        headers = {"X-Title": "app", "CF-Access-Client-Secret": "id ${CF_SECRET}"}
        settings = ProviderConfig(kind="openai_compatible", base_url=server.base_url, headers=headers)
        provider = build_provider("p", settings)
        await whole(provider, call())
        await provider.aclose()
        monkeypatch.delenv("CF_SECRET")
        with pytest.raises(ConfigError, match=r"the header 'CF-Access-Client-Secret' from .*'CF_SECRET'.*not set"):
            build_provider("p", settings)
    seen = server.seen[0][1]
    assert (seen["x-title"], seen["cf-access-client-secret"]) == ("app", "id cf-0123456789")
    assert "cf-0123456789" not in repr(provider) + repr(settings) + masked("header: id cf-0123456789")


HEADERS = {
    "OpenRouter": ({"HTTP-Referer": "https://app.example", "X-Title": "app"}, {}),
    "Cloudflare Access": (
        {"CF-Access-Client-Id": "a.access", "CF-Access-Client-Secret": "${GATE}"},
        {"GATE": "s-0123456789"},
    ),
    "Azure": ({"api-key": "${AZURE}"}, {"AZURE": "k-0123456789"}),
    "a company's proxy": ({"X-Cost-Center": "r&d, 7", "X-Team": "${TEAM}"}, {"TEAM": "search"}),
    "Anthropic": ({"anthropic-beta": "a-1,b-2", "anthropic-version": "2023-06-01"}, {}),
    "basic authorization": ({"Authorization": "Basic ${PAIR}"}, {"PAIR": "dXNlcjpwYXNz"}),
}


@pytest.mark.parametrize(("given", "environment"), HEADERS.values(), ids=HEADERS)
async def test_headers_that_providers_ask_for(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], environment: dict[str, str]
) -> None:
    """Whole and streamed calls have them, with the values of the environment."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    async with FakeOpenAI() as server:
        settings = ProviderConfig(kind="openai_compatible", base_url=server.base_url, headers=given)
        provider = build_provider("p", settings)
        await whole(provider, call())
        await chunks(provider, call(stream=True))
        await provider.aclose()
    assert len(server.seen) == 2
    for _, seen in server.seen:
        for name, value in given.items():
            for variable, text in environment.items():
                value = value.replace(f"${{{variable}}}", text)
            assert seen[name.lower()] == value


def test_a_file_without_certificates_is_an_error(tmp_path: Path) -> None:
    """A bundle that is missing or no PEM file is said when the provider is built, not at the first call."""
    (tmp_path / "empty.pem").write_text("")
    for name in ("empty.pem", "missing.pem"):
        with pytest.raises(ConfigError, match=f"{name}' is no PEM file of certificates"):
            OpenAICompatible("https://models.invalid/v1", ca_file=tmp_path / name)


async def test_a_streamed_answer() -> None:
    """Deltas join to the text, the usage is asked for and arrives, and the caller's other stream options stay."""
    async with FakeOpenAI() as server:
        provider = OpenAICompatible(server.base_url)
        found = await chunks(provider, call(stream=True, stream_options={"x": 1}))
        await provider.aclose()
    assert text(found) == "m answers: hello"
    assert [chunk.finish_reason for chunk in found if chunk.finish_reason] == ["stop"]
    assert [chunk.usage.prompt_tokens for chunk in found if chunk.usage] == [7]
    assert server.seen[0][0]["stream_options"] == {"x": 1, "include_usage": True}
    assert server.seen[0][0]["stream"] is True
    assert "authorization" not in server.seen[0][1]


async def test_tools_and_formats_pass_through() -> None:
    """Tools and response_format go out as given; tool calls come back unmodified, whole and streamed."""
    form = {"type": "json_object"}
    async with FakeOpenAI() as server:
        provider = OpenAICompatible(server.base_url)
        answer = await whole(provider, call(tools=TOOLS))
        found = await chunks(provider, call(stream=True, tools=TOOLS))
        formatted = await whole(provider, call(response_format=form))
        await provider.aclose()
    assert answer.message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": "x"}'}
    assert answer.finish_reason == "tool_calls"
    deltas = [d for chunk in found for d in chunk.delta.get("tool_calls", ())]
    assert deltas[0]["function"]["name"] == "f"
    assert "".join(d["function"]["arguments"] for d in deltas) == '{"a": "x"}'
    assert json.loads(formatted.message["content"]) == {"answer": "x"}
    assert server.seen[0][0]["tools"] == TOOLS
    assert server.seen[2][0]["response_format"] == form


async def test_unknown_fields_are_relayed() -> None:
    """Fields that a provider adds to a message or delta reach the caller."""
    message = {"role": "assistant", "content": "hi", "thinking_signature": "abc", "annotations": [{"a": 1}]}
    body = {"choices": [{"message": message, "finish_reason": "stop"}]}
    delta = {"content": "x", "reasoning_content": "why", "extra": [1]}
    script = [reply(200, body), sse(event({"choices": [{"delta": delta, "finish_reason": "stop"}]}), DONE)]
    async with FakeOpenAI(script) as server:
        provider = OpenAICompatible(server.base_url)
        assert (await whole(provider, call())).message == message
        assert (await chunks(provider, call(stream=True)))[0].delta == delta
        await provider.aclose()


async def test_several_choices_are_asked_for_and_read() -> None:
    """`n` is sent if it is above 1; choices are told apart by their index, and those beyond n are dropped."""
    choices = [{"index": i, "message": {"content": f"c{i}"}, "finish_reason": "stop"} for i in (1, 0, 2)]
    deltas = [event({"choices": [{"index": i, "delta": {"content": f"c{i}"}}]}) for i in (1, 0, 2)]
    ends = [event({"choices": [{"index": i, "delta": {}, "finish_reason": "stop"} for i in (0, 1)]}), DONE]
    async with FakeOpenAI([reply(200, {"choices": choices}), sse(*deltas, *ends), None]) as server:
        provider = OpenAICompatible(server.base_url)
        answer = await whole(provider, msgspec.structs.replace(call(), n=2))
        assert [answer.message["content"], *(other.message["content"] for other in answer.others)] == ["c0", "c1"]
        streamed = await chunks(provider, msgspec.structs.replace(call(stream=True), n=2))
        assert [(c.index, c.delta.get("content")) for c in streamed if c.delta] == [(1, "c1"), (0, "c0")]
        assert [c.index for c in streamed if c.finish_reason] == [0, 1]
        await whole(provider, call())
        assert [seen[0].get("n") for seen in server.seen] == [2, 2, None]
        await provider.aclose()


async def test_connections_are_kept_and_none_is_waited_for() -> None:
    """Answers in turn share one connection, whole and streamed; calls at once have one each."""
    async with FakeOpenAI([None] * 4 + [sse(HANG)] * 300) as server:
        provider = OpenAICompatible(server.base_url)
        for streamed in (False, True, True, False):
            await (chunks if streamed else whole)(provider, call(stream=streamed))
        assert server.connections == 1
        streams = await asyncio.gather(*(provider.complete(call(stream=True)) for _ in range(300)))
        assert server.connections == 300
        for stream in streams:
            assert not isinstance(stream, Completion)
            await close(stream)
        await provider.aclose()
    assert len(server.seen) == 304


async def test_an_error_with_a_200_is_the_error_that_it_names() -> None:
    """Whole, or as an event of a stream: whoever is told to slow down waits, and is not told of an empty answer."""
    limited = {"error": {"message": "slow down", "code": 429}}
    async with FakeOpenAI([reply(200, limited), sse(SAID, event(limited), FINISH, DONE)]) as server:
        provider = OpenAICompatible(server.base_url)
        for stream in (False, True):
            with pytest.raises(RateLimited, match=r"answered 200 with an error: .*slow down"):
                await (chunks if stream else whole)(provider, call(stream=stream))
        await provider.aclose()


async def test_statuses_that_allow_a_fallback(subtests: pytest.Subtests) -> None:
    """Outages, quotas, keys and unknown names are ProviderUnavailable with the status; redirects are not followed."""
    for status in (
        301,
        307,
        401,
        402,
        403,
        404,
        408,
        429,
        500,
        502,
        503,
        529,
    ):
        with subtests.test(status=status):
            script = [reply(status, {"error": {"message": "no"}}, Location="http://127.0.0.1:9/")]
            async with FakeOpenAI(script) as server:
                provider = OpenAICompatible(server.base_url)
                with pytest.raises(ProviderUnavailable, match="no") as caught:
                    await provider.complete(call(stream=True))
                await provider.aclose()
            assert caught.value.status == status
            assert len(server.seen) == 1


async def test_statuses_that_reject_the_request(subtests: pytest.Subtests) -> None:
    """Any other 4xx is ProviderRejected, so that no fallback is tried."""
    for status in (
        400,
        413,
        415,
        422,
        451,
    ):
        with subtests.test(status=status):
            async with FakeOpenAI([reply(status, {"error": {"message": "bad"}})]) as server:
                provider = OpenAICompatible(server.base_url)
                with pytest.raises(ProviderRejected, match="bad") as caught:
                    await provider.complete(call())
                await provider.aclose()
            assert caught.value.status == status


def test_an_exhausted_budget_is_not_the_requests_fault() -> None:
    """Gateways report an exhausted budget as a 400: another provider's model may still answer."""
    assert isinstance(from_status(400, '{"error": {"type": "budget_exceeded"}}'), ProviderUnavailable)


async def test_retry_after_is_kept() -> None:
    """A 429 carries how long to wait; nonsense in its place is None."""
    script = [reply(429, {}, Retry_After="7"), reply(429, {}, Retry_After="soon"), reply(429, {})]
    waits = []
    async with FakeOpenAI(script) as server:
        provider = OpenAICompatible(server.base_url)
        for _ in script:
            with pytest.raises(ProviderUnavailable) as caught:
                await provider.complete(call())
            waits.append(caught.value.retry_after_s)
        await provider.aclose()
    assert waits == [7.0, None, None]


@given(st.text(max_size=20) | st.floats().map(str) | st.integers().map(str))
def test_any_retry_after_is_read(value: str) -> None:
    """For any header value the wait is None or a finite number ≥ 0."""
    wait = retry_after({"retry-after": value}, 0.0)
    assert wait is None or 0.0 <= wait < float("inf")


WHOLE_FAULTS = {
    "error body in a 200": reply(200, {"error": {"message": "overloaded", "code": 503}}),
    "error text in a 200": reply(200, {"error": "overloaded"}),
    "empty 200": reply(200, b""),
    "no choices": reply(200, {"choices": []}),
    "empty message, no reason": reply(200, {"choices": [{"message": {"role": "assistant", "content": ""}}]}),
    "null message": reply(200, {"choices": [{"message": None}]}),
    "choices of another type": reply(200, {"choices": "hello"}),
    "invalid JSON": reply(200, b'{"choices": ['),
    "deep JSON": reply(200, b"[" * 100_000),
    "a list": reply(200, [1]),
    "HTML": reply(200, b"<html>Bad gateway</html>", "text/html"),
    "a stream that was not asked for": sse(SAID, FINISH, DONE),
    "early EOF": Reply(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"choices"'),
    "no answer": Reply(),
    "no HTTP": Reply(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
    "gzip bomb": reply(200, gzip.compress(b"0" * 50_000_000), Content_Encoding="gzip"),
    "too large": reply(200, json.dumps({"choices": [{"message": {"content": "x" * 2_000_000}}]}).encode()),
    "cut chunk": sse(b"{", end=False, content_type="application/json"),
}


async def test_every_broken_whole_answer_is_unavailable(subtests: pytest.Subtests) -> None:
    """100% typed outcomes, never a 200 with nothing; and the provider answers the next call."""
    for fault in WHOLE_FAULTS.values():
        with subtests.test(fault=fault):
            async with FakeOpenAI([fault]) as server:
                provider = OpenAICompatible(server.base_url, max_bytes=1_000_000)
                with pytest.raises(ProviderUnavailable):
                    await provider.complete(call())
                assert (await whole(provider, call())).message["content"] == "m answers: hello"
                await provider.aclose()


STREAM_FAULTS = {
    "nothing": sse(),
    "only [DONE]": sse(DONE),
    "empty deltas": sse(event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}), DONE),
    "no finish, no [DONE]": sse(SAID),
    "early EOF": sse(SAID, end=False),
    "early EOF after the finish": sse(SAID, FINISH, end=False),
    "EOF inside an event": sse(SAID, FINISH[:10]),
    "invalid JSON": sse(SAID, b'data: {"choices"\n\n', FINISH, DONE),
    "no event": sse(b"Internal Server Error\n\n"),
    "an error event": sse(SAID, event({"error": {"message": "overloaded"}}), DONE),
    "a named error event": sse(SAID, b'event: error\ndata: {"error": "overloaded"}\n\n'),
    "an error body": reply(200, {"error": {"message": "overloaded"}}),
    "a whole answer without content": reply(200, {"choices": [{"message": {"content": ""}}]}),
    "endless": sse(*[b": keep-alive\n\n" * 1000] * 100),
    "an endless line": sse(*[b"x" * 100_000] * 20),
    "gzip": reply(200, gzip.compress(b"data: 1\n\n"), "text/event-stream", Content_Encoding="gzip"),
}


CALLED = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USED = {"prompt_tokens": 3, "completion_tokens": 1}
WITHOUT_REASON: dict[str, tuple[bytes, list[str | None]]] = {
    "text": (SAID, ["stop"]),
    "a null to the end": (SAID + event({"choices": [{"index": 0, "delta": {}, "finish_reason": None}]}), ["stop"]),
    "an empty reason": (SAID + event({"choices": [{"index": 0, "delta": {}, "finish_reason": ""}]}), ["stop"]),
    "usage at the end": (SAID + event({"choices": [], "usage": USED}), ["stop"]),
    "calls": (event({"choices": [{"index": 0, "delta": {"tool_calls": [CALLED]}}]}), ["tool_calls"]),
    "text and calls": (SAID + event({"choices": [{"index": 0, "delta": {"tool_calls": [CALLED]}}]}), ["tool_calls"]),
    "one of two choices": (SAID + SAID.replace(b'"index": 0', b'"index": 1') + FINISH, ["stop", "stop"]),
}


@pytest.mark.parametrize(("said", "reasons"), WITHOUT_REASON.values(), ids=WITHOUT_REASON)
async def test_a_stream_that_says_it_is_done_has_ended(said: bytes, reasons: list[str | None]) -> None:
    """With `[DONE]` after content some give no reason; one that breaks off before it stays a failure."""
    async with FakeOpenAI([sse(said, DONE), sse(said)]) as server:
        provider = OpenAICompatible(server.base_url)
        asked = msgspec.structs.replace(call(stream=True), n=len(reasons))
        found = await chunks(provider, asked)
        assert [chunk.finish_reason for chunk in found if chunk.finish_reason] == reasons
        assert {chunk.index for chunk in found if chunk.finish_reason} == {*range(len(reasons))}
        if len(reasons) == 1:
            with pytest.raises(ProviderUnavailable, match="without a finish reason"):
                await chunks(provider, asked)
        await provider.aclose()


async def test_every_broken_stream_is_unavailable(subtests: pytest.Subtests) -> None:
    """100% typed outcomes: a stream without an answer never ends as if it had one."""
    for fault in STREAM_FAULTS.values():
        with subtests.test(fault=fault):
            async with FakeOpenAI([fault]) as server:
                provider = OpenAICompatible(server.base_url, max_bytes=1_000_000)
                found: list[Chunk] = []
                with pytest.raises(ProviderUnavailable):
                    await chunks(provider, call(stream=True), found)
                assert text(found) in {"", "hi"}
                assert text(await chunks(provider, call(stream=True))) == "m answers: hello"
                await provider.aclose()


ANSWER = json.dumps({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}).encode()
LONG = json.dumps({"choices": [{"message": {"content": "x" * 2_000}, "finish_reason": "stop"}]}).encode()
EVENTS = SAID + FINISH + DONE


@pytest.mark.parametrize(
    ("stream", "fault", "words"),
    [
        (False, reply(200, gzip.compress(ANSWER), Content_Encoding="gzip"), "sent a compressed answer"),
        (False, reply(200, LONG), "answered more than 1000 bytes"),
        (False, reply(500, LONG), "answered more than 1000 bytes"),
        (True, reply(200, gzip.compress(EVENTS), "text/event-stream", Content_Encoding="br"), "compressed answer"),
        (True, sse(SAID, b": keep-alive\n\n" * 100, FINISH, DONE), "streamed more than 1000 bytes"),
        (True, sse(SAID, b"data: " + b"x" * 1_000, end=False), "streamed more than 1000 bytes"),
    ],
)
async def test_sound_answers_that_are_too_large_or_compressed_are_refused(
    stream: bool, fault: Reply, words: str
) -> None:
    """Nothing is decompressed, nothing beyond the limit is kept, and the error says which of the two it was."""
    async with FakeOpenAI([fault]) as server:
        provider = OpenAICompatible(server.base_url, max_bytes=1_000)
        with pytest.raises(ProviderUnavailable, match=words):
            await (chunks if stream else whole)(provider, call(stream=stream))
        await provider.aclose()


async def test_a_stream_does_not_depend_on_the_chunks() -> None:
    """Drips of single bytes, CRLF, comments, a second [DONE] and characters cut in half make no difference."""
    said = event({"choices": [{"index": 0, "delta": {"content": "né 你😀"}}]})
    raw = json.dumps({"choices": [{"delta": {"content": "é你😀"}}]}, ensure_ascii=False).encode()
    whole_stream = b": hi\r\n\r\n" + said + b"data:" + raw + b"\r\n\r\n" + FINISH + DONE + DONE
    drip = [whole_stream[i : i + 1] for i in range(len(whole_stream))]
    async with FakeOpenAI([sse(*drip)]) as server:
        provider = OpenAICompatible(server.base_url)
        assert text(await chunks(provider, call(stream=True))) == "né 你😀é你😀"
        await provider.aclose()


@pytest.mark.parametrize("padding", [b"\n", b"\r\n", b":\n", b"data:\n"])
async def test_padding_leaves_others_their_turn(padding: bytes) -> None:
    """Lines without an event may come a hundred thousand at a time; they are read in turn with everything else."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def feed() -> AsyncIterator[bytes]:
        yield padding * 100_000

    waiting = asyncio.create_task(others())
    _ = [data async for data in sse_data(feed(), "x", 1_000_000)]
    waiting.cancel()
    assert turns > 50


@given(st.lists(st.text(alphabet='ab é你\\"', max_size=8), min_size=1, max_size=5), st.data())
def test_sse_events_do_not_depend_on_the_chunks(texts: list[str], data: st.DataObject) -> None:
    """For any events and any cuts, the data come out in order and whole."""
    stream = b"".join(event(one) for one in texts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    async def feed() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def read() -> list[str]:
        return [json.loads(one) async for one in sse_data(feed(), "x", 10_000) if one]

    assert asyncio.run(read()) == texts


@pytest.mark.parametrize(
    "hanging", [Reply(HANG), sse(SAID, HANG), sse(HANG)], ids=["head", "mid-stream", "first token"]
)
async def test_a_hanging_server_is_a_timeout(hanging: Reply) -> None:
    """Silence past the call's time is ProviderTimeout, before the first token and after."""
    async with FakeOpenAI([hanging]) as server:
        provider = OpenAICompatible(server.base_url)
        with pytest.raises(ProviderTimeout):
            await chunks(provider, call(stream=True, timeout_s=0.2))
        await provider.aclose()


DELTAS: tuple[dict[str, Any], ...] = (
    {"role": "assistant", "content": ""},
    {"content": "a"},
    {"content": "b", "role": "assistant", "reasoning": None},
    {"content": "", "reasoning": "c"},
    {"reasoning_content": "d", "content": None},
    {"content": "e", "reasoning": "f"},
    {"refusal": "g"},
    {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]},
    {"tool_calls": [{"index": 1, "id": "y", "function": {"name": "g", "arguments": "{"}}]},
    {"tool_calls": [{"index": 1, "function": {"arguments": "}"}}, {"index": 0, "function": {"arguments": " "}}]},
    {"annotations": [{"type": "url_citation"}]},
    {},
)
BESIDE: tuple[dict[str, Any], ...] = (
    *({},) * 4,
    {"usage": {"prompt_tokens": 5}},
    {"usage": {"completion_tokens": 3}},
    {"usage": {"prompt_tokens": 0, "completion_tokens": 4}},
    {"usage": {"prompt_tokens": 6, "completion_tokens": 2, "cost": 0.5}},
    {"citations": ["https://example.org"]},
    {"system_fingerprint": "s"},
    {"choices": []},
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(DELTAS),
            st.sampled_from(BESIDE),
            st.sampled_from((*(None,) * 6, "stop", "length")),
            st.sampled_from((None, None, None, {"content": [{"token": "t", "logprob": -1.0}]})),
            st.sampled_from((0, 0, 0, 1)),
        ),
        max_size=12,
    )
)
@example([(DELTAS[1], BESIDE[4], None, None, 0), (DELTAS[1], BESIDE[5], None, None, 0)])
@example([(DELTAS[1], BESIDE[5], None, None, 0), ({"content": "words " * 9}, BESIDE[0], None, None, 0)])
@example([(DELTAS[1], BESIDE[0], None, None, 0), (DELTAS[1], BESIDE[0], None, {"content": [1]}, 0)])
def test_what_a_stream_says_does_not_depend_on_when_it_arrives(
    sent: list[tuple[dict[str, Any], dict[str, Any], str | None, Any, int]],
) -> None:
    """Events that arrive at once are put together without loss: texts and thoughts in order, calls, usage, the rest."""
    events = [
        event({"choices": [{"index": i, "delta": delta, "finish_reason": end, "logprobs": probs}]} | beside)
        for delta, beside, end, probs, i in sent
    ]

    async def said(pieces: list[bytes]) -> Any:
        provider, body = OpenAICompatible("http://127.0.0.1:9/v1"), SimpleNamespace()

        async def feed() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        body.content = SimpleNamespace(iter_any=feed)
        assembled, order, further = [Assembler(), Assembler()], list[list[Any]](), dict[str, Any]()
        probs, notes = list[Any](), list[Any]()
        async for chunk in provider._chunks(cast("aiohttp.ClientResponse", body), 2):
            assembled[chunk.index].add(chunk)
            further |= chunk.further
            probs += (chunk.logprobs or {}).get("content", [])
            notes += chunk.delta.get("annotations", [])
            for name in ("reasoning", "reasoning_content", "content", "refusal"):
                if text := chunk.delta.get(name):
                    if order and order[-1][:2] == [chunk.index, name]:
                        order[-1][2] += text
                    else:
                        order.append([chunk.index, name, text])
        ends = [(each.message(), each.used(), each.finish_reason, each.ended) for each in assembled]
        for call_ in (one for message, *_ in ends for one in message.get("tool_calls", [])):
            call_["id"] = call_["id"] if call_["id"] in ("x", "y") else "ours"
        return ends, order, further, probs, notes

    last = [FINISH, DONE]
    assert asyncio.run(said([*events, *last])) == asyncio.run(said([b"".join([*events, *last])]))


async def test_what_arrives_with_an_error_is_told_before_it() -> None:
    """The text that came in one piece with an error event was said, and its usage is booked."""
    used = event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}})
    async with FakeOpenAI([sse(SAID + used + event({"error": "overloaded"}))]) as server:
        provider, told = OpenAICompatible(server.base_url), Assembler()
        stream: Any = await provider.complete(call(stream=True))

        async def read() -> None:
            async for chunk in stream:
                told.add(chunk)

        with pytest.raises(ProviderUnavailable, match="overloaded"):
            await read()
        assert told.message()["content"]
        assert told.usage is not None
        assert told.usage.completion_tokens == 3
        await provider.aclose()


@pytest.mark.parametrize("read", [0, 1, 2])
async def test_closing_a_stream_ends_it_upstream(read: int) -> None:
    """A client that leaves after any chunk, also before the first, closes the connection upstream."""
    async with FakeOpenAI([sse(SAID, 0.02, SAID, 0.02, SAID, HANG)]) as server:
        provider = OpenAICompatible(server.base_url)
        stream: Any = await provider.complete(call(stream=True))
        for _ in range(read):
            await anext(stream)
        await stream.aclose()
        await stream.aclose()
        await asyncio.wait_for(server.left.wait(), 300)
        await provider.aclose()


@pytest.mark.parametrize("script", [Reply(HANG), sse(SAID, HANG)], ids=["before the head", "in the stream"])
async def test_cancelling_ends_the_work_upstream(script: Reply) -> None:
    """A task that is cancelled while it waits leaves no connection behind."""
    async with FakeOpenAI([script]) as server:
        provider = OpenAICompatible(server.base_url)
        task = asyncio.create_task(chunks(provider, call(stream=True)))
        await asyncio.wait_for(server.asked.wait(), 300)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.left.wait(), 300)
        await provider.aclose()


async def test_a_refused_connection_is_unavailable() -> None:
    """A refused connection is ProviderUnavailable."""
    async with FakeOpenAI() as server:
        url = server.base_url
    provider = OpenAICompatible(url)
    with pytest.raises(ProviderUnavailable, match="cannot be reached"):
        await provider.complete(call())
    await provider.aclose()


async def test_errors_do_not_repeat_the_key() -> None:
    """A provider that quotes the key in its message, or in a 200, does not get it into our errors."""
    leak = {"error": {"message": "Incorrect API key: sk-secret-1"}}
    async with FakeOpenAI([reply(401, leak), reply(200, leak), reply(200, b"sk-secret-1")]) as server:
        provider = OpenAICompatible(server.base_url, Secret("sk-secret-1"))
        for _ in range(3):
            with pytest.raises(ProviderError) as caught:
                await provider.complete(call())
            assert "sk-secret-1" not in f"{caught.value!r}{caught.value.__cause__!r}"
            assert "••••" in str(caught.value)
        await provider.aclose()


async def test_parameters_that_are_not_json_are_rejected() -> None:
    """Parameters that JSON cannot carry are the request's fault, and nothing is sent."""
    async with FakeOpenAI() as server:
        provider = OpenAICompatible(server.base_url)
        for bad in (float("nan"), object(), {1, 2}):
            with pytest.raises(ProviderRejected, match="cannot be encoded as JSON"):
                await provider.complete(call(temperature=bad))
        await provider.aclose()
    assert not server.seen


async def test_params_cannot_change_the_model_or_the_messages() -> None:
    """`params` override neither the model nor the messages of the call."""
    async with FakeOpenAI() as server:
        provider = OpenAICompatible(server.base_url)
        params = {"model": "dear", "messages": [], "stream": True}
        await whole(provider, Call(target="m", messages=MESSAGES, params=params))
        await provider.aclose()
    assert server.seen[0][0] == {"model": "m", "messages": list(MESSAGES)}


async def test_a_closed_provider_reopens() -> None:
    """A call after `aclose` opens a new session."""
    async with FakeOpenAI() as server:
        provider = OpenAICompatible(server.base_url)
        for _ in range(2):
            assert (await whole(provider, call())).usage != Usage()
            await provider.aclose()


def test_an_invalid_base_url_is_explained(subtests: pytest.Subtests) -> None:
    """Anything but a plain http(s) URL is refused at once, and a password in it is not repeated."""
    for url in (
        "",
        "localhost:8000",
        "ftp://x/v1",
        "http://",
        "http://h/v1?key=1",
        "http://u:p@h/v1",
    ):
        with subtests.test(url=url):
            with pytest.raises(ConfigError, match="base_url") as caught:
                OpenAICompatible(url)
            assert "u:p" not in str(caught.value)
    for blank in ("http://h/v1 ", " http://h/v1/", "http://h/v1\t", "http://h/v1/ ", "\nhttp://h/v1\n"):
        assert OpenAICompatible(blank).address == "http://h/v1"
    with pytest.raises(ValueError, match="URL of one endpoint"):
        ProviderConfig(kind="openai_compatible", base_url="http://h/v1/chat/completions ")
