"""Limits of the gateway: invalid input is refused with a reason, never answered with a 500."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.gateway import Echo, chat, client, config, make_router, raw, serving, wait_for

from fitrouter.errors import FitrouterError, InvalidRequest
from fitrouter.types import Chunk, Execution
from fitrouter_integrations.gateway.asgi import _bodies, _limits, _stream
from fitrouter_integrations.gateway.asgi._json import MAX_DEPTH, MAX_VALUES, read_json
from fitrouter_integrations.gateway.parsing._external import observation, outcome
from fitrouter_integrations.gateway.parsing._requests import chat_request, feedback

CHAT = b'{"model": "fitrouter/auto", "messages": [{"role": "user", "content": "Hi"}]'


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(make_router(tmp_path_factory.mktemp("limits")), config(max_body_bytes=2_000_000)) as address:
        yield address


HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"hello",
    "half": CHAT,
    "two documents": b"{} {}",
    "an array": b"[]",
    "a string": b'"x"',
    "null": b"null",
    "depth 65": b'{"a":' + b"[" * 64 + b"]" * 64 + b"}",
    "depth 100,000": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "depth 100,000, never closed": b'{"a":' + b"[" * 100_000,
    "objects, depth 100,000": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "NaN": CHAT + b', "temperature": NaN}',
    "Infinity": CHAT + b', "temperature": Infinity}',
    "-Infinity": CHAT + b', "temperature": -Infinity}',
    "1e999": CHAT + b', "temperature": 1e999}',
    "5,000 digits": CHAT + b', "seed": ' + b"9" * 5000 + b"}",
    "21 digits": CHAT + b', "seed": ' + b"9" * 21 + b"}",
    "a name twice": CHAT + b', "model": "alpha"}',
    "a name twice, escaped": CHAT + b', "m\\u006fdel": "alpha"}',
    "a name twice, deep": CHAT + b', "metadata": {"a": [{"b": 1, "b": 2}]}}',
    "a lone surrogate": CHAT + b', "user": "\\ud800"}',
    "a lone surrogate, upper case": CHAT + b', "user": "x\\uDFFF"}',
    "a lone surrogate in a name": CHAT + b', "metadata": {"\\udc00": 1}}',
    "no UTF-8": CHAT + b', "user": "\xff\xfe"}',
    "an encoded surrogate": CHAT + b', "user": "\xed\xa0\x80"}',
    "overlong UTF-8": CHAT + b', "user": "\xc0\xaf"}',
    "a byte order mark": b"\xef\xbb\xbf" + CHAT + b"}",
    "UTF-16": (CHAT + b"}").decode().encode("utf-16"),
    "NUL": CHAT + b"\x00}",
    "a control character": CHAT + b', "user": "a\nb"}',
    "a trailing comma": CHAT + b",}",
    "a comment": CHAT + b"} // hi",
    "single quotes": b"{'model': 1}",
    "too many values": b'{"a": [' + b"1," * 260_000 + b"1]}",
    "too many objects": b'{"a": [' + b"{}," * 130_000 + b"{}]}",
}


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/feedback", "/v1/plans", "/v1/plans/x/outcome", "/v1/observations"],
)
def test_hostile_json_is_always_a_400(url: str, path: str) -> None:
    """Every invalid body gets a 400 in OpenAI's format, and the connection stays open."""
    with client(url, headers={"content-type": "application/json"}) as http:
        for name, body in HOSTILE.items():
            reply = http.post(path, content=body)
            assert reply.status_code == 400, f"{name}: {reply.status_code} {reply.text}"
            assert reply.json()["error"]["code"] == "invalid_request", name


def test_unusual_but_valid_json_passes(url: str) -> None:
    """Brackets in strings, surrogate pairs, NUL escapes and 64-bit integers are accepted."""
    text = "[" * 300_000 + '\\"{' + "\u0000 😀 ﷽"
    body = json.dumps(chat(text, seed=2**63 - 1, metadata={"role": "😀"})).encode()
    assert b"\\ud83d\\ude00" in body
    with client(url, headers={"content-type": "application/json"}) as http:
        reply = http.post("/v1/chat/completions", content=body)
    assert reply.status_code == 200, reply.text[:300]
    assert reply.json()["choices"][0]["message"]["content"].endswith(text)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), JSON, max_size=5), st.booleans())
def test_every_valid_document_is_parsed(document: dict[str, object], escaped: bool) -> None:
    """Whatever json writes is parsed to the same value."""
    assert read_json(json.dumps(document, ensure_ascii=escaped).encode()) == document


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_bytes_raise_anything_but_invalid_request(body: bytes) -> None:
    """The parser has one way to fail."""
    try:
        assert isinstance(read_json(body), dict)
    except InvalidRequest as error:
        str(error).encode("utf-8")


@settings(max_examples=80)
@given(
    st.dictionaries(
        st.sampled_from(
            ["model", "messages", "stream", "stream_options", "n", "user", "metadata", "tools", "max_tokens"]
        )
        | st.sampled_from(["decision_id", "kind", "value", "scale", "dimension"])
        | st.sampled_from(["tried", "status", "message", "finish_reason", "usage", "latency_ms", "error"]),
        JSON
        | st.just([{"role": "user", "content": "x"}])
        | st.sampled_from(["thumb", "rating", "up", "ok", {"role": "assistant", "content": "x"}, {"prompt_tokens": 7}])
        | st.lists(st.dictionaries(st.sampled_from(["model", "ms", "error", "probability"]), JSON), max_size=2),
        max_size=6,
    )
)
def test_no_document_breaks_the_readers(body: dict[str, object]) -> None:
    """Any JSON is a request, feedback, an outcome, or InvalidRequest; never another exception."""
    for read in (chat_request, feedback, observation):
        with suppress(FitrouterError):
            read(body, {}, "default")
    with suppress(FitrouterError):
        outcome(body, "default")


def test_the_limits_of_depth_and_number_are_exact() -> None:
    """64 levels and 250,000 values pass; one more does not."""
    assert read_json(b'{"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}")
    with pytest.raises(InvalidRequest, match="64 levels"):
        read_json(b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}")
    full = b'{"a":[' + b"1," * (MAX_VALUES - 5) + b"1]}"
    assert len(read_json(full)["a"]) == MAX_VALUES - 4
    with pytest.raises(InvalidRequest, match="250000 values"):
        read_json(full.replace(b"[1,", b"[1,1,", 1))


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_a_long_body_is_413_announced_or_chunked(url: str) -> None:
    """An announced length is refused unread; chunks are counted as they arrive."""
    long = json.dumps(chat("x" * 2_000_000)).encode()
    fits = json.dumps(chat("x" * 300_000)).encode()
    with client(url, headers={"content-type": "application/json"}) as http:
        assert http.post("/v1/chat/completions", content=fits).status_code == 200
        assert http.post("/v1/chat/completions", content=iter([fits])).status_code == 200
    for header in (b"content-length: 99999999999999999999", b"content-length: 2000001"):
        reply = raw(url, _post(header) + b"{")
        assert reply.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400")), reply[:100]
    reply = raw(url, _post(b"content-length: %d" % len(long)))
    assert reply.startswith(b"HTTP/1.1 413"), reply[:100]
    assert b'"code":"too_large"' in reply
    chunk = b"%x\r\n" % 100_000 + b"x" * 100_000 + b"\r\n"
    # A client that goes on sending may find the connection reset before it has read why.
    endless = _until_refused(url, _post(b"transfer-encoding: chunked"), chunk)
    assert endless == b"" or endless.startswith(b"HTTP/1.1 413")


def _post(*headers: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    lines = [b"POST " + path + b" HTTP/1.1", b"host: localhost", b"content-type: application/json", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _until_refused(url: str, head: bytes, piece: bytes) -> bytes:
    """Send pieces without end; returns what the server says before it closes."""
    host, port = url.removeprefix("http://").split(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=300.0) as connection:
        connection.sendall(head)
        for _ in range(1000):
            try:
                connection.sendall(piece)
                connection.setblocking(False)
                try:
                    received += connection.recv(65_536)
                except BlockingIOError:
                    pass
                finally:
                    connection.settimeout(20.0)
            except (BrokenPipeError, ConnectionResetError):
                return received
            if received:
                return received
    raise AssertionError("the server took everything")


def test_headers_have_limits(url: str) -> None:
    """More than 16 KB or 100 headers are a 431, also if they never end."""
    assert raw(url, _post(b"x-long: " + b"a" * 17_000, b"content-length: 0")).startswith(b"HTTP/1.1 431")
    many = [b"x-%d: 1" % i for i in range(101)]
    assert raw(url, _post(*many, b"content-length: 0")).startswith(b"HTTP/1.1 431")
    assert raw(url, _post(path=b"/" + b"a" * 17_000)).startswith(b"HTTP/1.1 431")
    endless = _until_refused(url, b"GET /healthz HTTP/1.1\r\nx-endless: ", b"a" * 30_000)
    assert endless == b"" or endless.startswith(b"HTTP/1.1 431")
    fine = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-long: " + b"a" * 15_000 + b"\r\n\r\n"
    assert raw(url, fine).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"GET /healthz HTTP/1.1\r\nhost : localhost\r\n\r\n",
        b"GET /healthz FTP/1.1\r\nhost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_smuggling_and_nonsense_are_400(url: str, head: bytes) -> None:
    """Requests that two servers could parse differently are refused and the connection closed."""
    assert raw(url, head).startswith(b"HTTP/1.1 400")


def test_nothing_is_served_on_a_connection_that_was_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that comes after the refusal is not run: its answer could not be read, and would have to be paid."""
    monkeypatch.setattr(_limits, "HEADER_S", 0.3)
    router, body = make_router(tmp_path), json.dumps(chat()).encode()
    with serving(router) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=300.0) as connection:
            received = connection.recv(65_536)
            connection.sendall(_post(b"content-length: %d" % len(body)) + body)
            with suppress(ConnectionResetError):
                while more := connection.recv(65_536):
                    received += more
        assert received.startswith(b"HTTP/1.1 408")
        assert received.count(b"HTTP/1.1 ") == 1
        with client(url) as http:
            assert http.post("/v1/chat/completions", json=chat()).status_code == 200
        executions = lambda: [r for r in router._journal.tail(0) if isinstance(r.event, Execution)]  # noqa: E731
        assert len(wait_for(executions)) == 1


def test_slow_clients_time_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers and bodies that do not arrive end in 408, and a silent connection is closed."""
    monkeypatch.setattr(_limits, "HEADER_S", 0.3)
    monkeypatch.setattr(_bodies, "BODY_S", 0.3)
    with serving(make_router(tmp_path)) as url:
        assert raw(url, b"").startswith(b"HTTP/1.1 408")
        assert raw(url, b"GET /healthz HTTP/1.1\r\nhost: local").startswith(b"HTTP/1.1 408")
        assert raw(url, b"\r\n").startswith(b"HTTP/1.1 408")
        reply = raw(url, _post(b"content-length: 10") + b"{")
        assert reply.startswith(b"HTTP/1.1 408")
        assert b"request_timeout" in reply
        kept = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
        again = raw(url, kept + b"GET /healthz HTTP/1.1\r\nhost: lo")
        assert again.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408" in again


def test_a_client_that_does_not_read_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is not read does not hold its model call."""

    class Endless(Echo):
        async def _stream(self, message, usage):  # type: ignore[no-untyped-def]
            while True:
                yield Chunk(delta={"content": "x" * 100_000})

    monkeypatch.setattr(_stream, "WRITE_S", 0.3)
    router = make_router(tmp_path, {"echo": Endless()})
    with serving(router) as url:
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps(chat(stream=True)).encode()
        with socket.create_connection((host, int(port)), timeout=300.0) as connection:
            connection.sendall(_post(b"content-length: %d" % len(body)) + body)
            wait_for(lambda: any(isinstance(row.event, Execution) for row in router._journal.tail(0)))
    (execution,) = [row.event for row in router._journal.tail(0) if isinstance(row.event, Execution)]
    assert execution.status == "cancelled"


def test_only_json_is_accepted(url: str) -> None:
    """A form, which any web page can send, is refused."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        with client(url) as http:
            reply = http.post("/v1/chat/completions", content=CHAT + b"}", headers={"content-type": kind})
        assert (reply.status_code, reply.json()["error"]["code"]) == (415, "unsupported_media_type")
    with client(url) as http:
        kind = {"content-type": "Application/JSON; charset=utf-8"}
        assert http.post("/v1/chat/completions", content=CHAT + b"}", headers=kind).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil.example:8484", "[evil]", "", "localhost@evil"]
)
def test_without_keys_only_local_host_names_are_served(url: str, host: str) -> None:
    """A web page with a rebound DNS name is refused."""
    with client(url) as http:
        for method, path in (("GET", "/v1/models"), ("GET", "/metrics"), ("POST", "/v1/chat/completions")):
            reply = http.request(method, path, headers={"host": host}, json=chat() if method == "POST" else None)
            assert (reply.status_code, reply.json()["error"]["code"]) == (403, "wrong_host"), (path, host)
