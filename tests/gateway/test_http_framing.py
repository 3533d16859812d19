"""Framing of requests: upgrades, trailers, pipelines, and the memory of connections that are gone."""

from __future__ import annotations

import gc
import http.client
import json
import socket
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.kits.gateway import Echo, chat, client, config, make_router, raw, serving, wait_for

from fitrouter_integrations.gateway.asgi._limits import PIPELINED, LimitedProtocol

BODY = json.dumps(chat("my own question")).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
HIDDEN = b"GET /v1/nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n"
KEYED = [{"name": "team", "tenant": "a", "key_env": "KEY_A", "trusted": True}]


@pytest.fixture(scope="module")
def echo() -> Echo:
    return Echo()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, echo: Echo) -> Iterator[str]:
    with serving(make_router(tmp_path_factory.mktemp("d"), {"echo": echo}), config()) as address:
        yield address


def connected(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60.0)


def answers(connection: socket.socket, n: int) -> list[tuple[int, bytes]]:
    """The next n answers of a connection."""
    found = []
    file = connection.makefile("rb")
    for _ in range(n):
        status = int(file.readline().split()[1])
        headers = http.client.parse_headers(file)
        assert headers["content-length"] is not None, headers
        found.append((status, file.read(int(headers["content-length"]))))
    return found


def answered(url: str, payload: bytes) -> int:
    """Number of answers until the connection is closed or reset."""
    received = b""
    with connected(url) as connection, suppress(ConnectionError):
        connection.sendall(payload)
        while part := connection.recv(65_536):
            received += part
    return received.count(b"HTTP/1.1 ")


UPGRADES = {
    "websocket": b"connection: Upgrade\r\nupgrade: websocket\r\n",
    "h2c, as Java's and curl's": (
        b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
    ),
    "a word": b"connection: upgrade\r\nupgrade: anything\r\n",
    "in capitals": b"CONNECTION: UPGRADE\r\nUPGRADE: WebSocket\r\n",
    "among others": b"connection: keep-alive, Upgrade\r\nupgrade: TLS/1.0, h2c\r\n",
    "an upgrade alone": b"upgrade: h2c\r\n",
}
FRAMES = {
    "by length": (b"content-length: %d\r\n" % len(BODY), BODY),
    "in chunks": (b"transfer-encoding: chunked\r\n", b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)),
}


@pytest.mark.parametrize("pieces", [1, 2, 7])
@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("upgrade", UPGRADES)
def test_an_upgrade_is_ignored_and_its_body_read(url: str, echo: Echo, upgrade: str, frame: str, pieces: int) -> None:
    """Whatever protocol is named and however the body comes, it belongs to its request, and the next is the next."""
    header, body = FRAMES[frame]
    head = HEAD + UPGRADES[upgrade] + header + b"\r\n"
    with connected(url) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if pieces == 1:
            connection.sendall(head + body + HIDDEN)
        else:
            connection.sendall(head)
            size = -(-len(body) // (pieces - 1))
            for start in range(0, len(body), size):
                threading.Event().wait(0.01)
                connection.sendall(body[start : start + size])
            connection.sendall(HIDDEN)
        (first, said), (second, _) = answers(connection, 2)
    assert (first, second) == (200, 404), said
    assert echo.calls[-1].messages[-1]["content"] == "my own question"


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("upgrade", UPGRADES)
def test_a_body_is_no_second_request(url: str, upgrade: str, frame: str) -> None:
    """A request in a body, in a packet of its own, is not answered as one: nobody else's key is used for it."""
    hidden = b"POST /v1/feedback HTTP/1.1\r\nhost: localhost\r\n\r\n"
    framed = {
        "by length": (b"content-length: %d\r\n" % len(hidden), hidden),
        "in chunks": (b"transfer-encoding: chunked\r\n", b"%x\r\n%s\r\n0\r\n\r\n" % (len(hidden), hidden)),
    }[frame]
    with connected(url) as connection:
        connection.sendall(HEAD + UPGRADES[upgrade] + framed[0] + b"\r\n")
        threading.Event().wait(0.05)
        connection.sendall(framed[1])
        ((status, said),) = answers(connection, 1)
        assert (status, json.loads(said)["error"]["code"]) == (400, "invalid_request")
        connection.sendall(HIDDEN)
        ((status, _),) = answers(connection, 1)
        assert status == 404


CHUNKED = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
LENGTH = b"content-length: %d\r\n" % len(BODY)
ODD: dict[str, bytes] = {
    "a length in a trailer": b"transfer-encoding: chunked\r\n\r\n" + CHUNKED + b"content-length: 55\r\n\r\n",
    "a coding in a trailer": b"transfer-encoding: chunked\r\n\r\n" + CHUNKED + b"transfer-encoding: chunked\r\n\r\n",
    "a length and a coding": b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKED + b"\r\n",
    "the same with an upgrade": (
        b"connection: upgrade\r\nupgrade: x\r\ncontent-length: 5\r\n"
        b"transfer-encoding: chunked\r\n\r\n" + CHUNKED + b"\r\n"
    ),
    "two lengths with an upgrade": (
        b"connection: upgrade\r\nupgrade: x\r\ncontent-length: 5\r\n" + LENGTH + b"\r\n" + BODY
    ),
    "another coding": b"transfer-encoding: xchunked\r\n\r\n" + CHUNKED + b"\r\n",
    "another coding at the end": b"transfer-encoding: chunked, identity\r\n\r\n" + CHUNKED + b"\r\n",
    "a blank before the colon": b"transfer-encoding : chunked\r\n\r\n" + CHUNKED + b"\r\n",
    "a length with a sign": b"content-length: +%d\r\n\r\n%s" % (len(BODY), BODY),
    "a list of lengths": b"content-length: 5, %d\r\n\r\n%s" % (len(BODY), BODY),
    "a chunk in another notation": b"transfer-encoding: chunked\r\n\r\n0x" + CHUNKED + b"\r\n",
    "a chunk that ends with a line feed": (
        b"transfer-encoding: chunked\r\n\r\n" + CHUNKED.replace(b"\r\n", b"\n", 1) + b"\r\n"
    ),
    "a line feed within a header": b"x-a: b\nx-fitrouter-user: mallory\r\n" + LENGTH + b"\r\n" + BODY,
    "a folded header": b"x-a: b\r\n x-fitrouter-user: mallory\r\n" + LENGTH + b"\r\n" + BODY,
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_what_proxies_read_otherwise_is_not_read_on(url: str, odd: bytes) -> None:
    """Whatever another server takes for the end of the request, nothing behind it is answered here."""
    with connected(url) as connection, suppress(OSError):
        connection.sendall(HEAD + odd + HIDDEN)
        connection.settimeout(2.0)
        received = b""
        while part := connection.recv(65_536):
            received += part
            assert b"HTTP/1.1 404" not in received
            assert b"HTTP/1.1 200" not in received


TWICE = (
    "host: localhost",
    "origin: http://localhost",
    "authorization: Bearer x",
    "x-api-key: x",
    "x-fitrouter-task: a",
)


@pytest.mark.parametrize("header", TWICE)
def test_what_identifies_a_caller_is_said_once(url: str, header: str) -> None:
    """A proxy may have looked at the other one."""
    other = header.partition(":")[0] + ": mallory"
    said = [*dict.fromkeys(("host: localhost", header)), other, "connection: close"]
    assert b"appears twice" in raw(url, "\r\n".join(("GET /v1/models HTTP/1.1", *said, "", "")).encode())


@pytest.mark.parametrize("upgrade", UPGRADES)
def test_an_upgrade_without_a_body_is_a_request(url: str, upgrade: str) -> None:
    """It is answered as any other, as often as it comes on a connection."""
    asked = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + UPGRADES[upgrade] + b"\r\n"
    with connected(url) as connection:
        connection.sendall(asked * 5)
        assert [status for status, _ in answers(connection, 5)] == [200] * 5


def test_many_upgrades_in_one_packet_are_read_one_after_the_other(url: str) -> None:
    """A connection that pipelines more than it may is closed, and the server goes on."""
    asked = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + UPGRADES["a word"] + b"\r\n"
    assert answered(url, asked * 3_000) <= PIPELINED + 1
    with client(url) as http_:
        assert http_.get("/healthz").status_code == 200


@pytest.mark.parametrize("path", [b"/healthz", b"/v1/models", b"/v1/nowhere"])
def test_what_is_pipelined_is_bounded(url: str, path: bytes) -> None:
    """Sixteen requests wait for their answers at most; those of honest clients are all answered, in order."""
    asked = b"GET %s HTTP/1.1\r\nhost: localhost\r\n\r\n" % path
    with connected(url) as connection:
        connection.sendall(asked * PIPELINED)
        assert len(answers(connection, PIPELINED)) == PIPELINED
    assert answered(url, asked * 5_000) <= PIPELINED + 1


def test_a_tunnel_is_refused(url: str) -> None:
    """CONNECT is for proxies."""
    answer = raw(url, b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org\r\n\r\n" + HIDDEN)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1 ") == 1


TRAILERS = {
    "many": b"x-filler: aaaa\r\n",
    "long": b"x-filler: " + b"a" * 8_000 + b"\r\n",
    "one without an end": b"a" * 4_000,
    "our own": b"x-fitrouter-user: mallory\r\n",
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/healthz", "/v1/nowhere"])
@pytest.mark.parametrize("kind", TRAILERS)
def test_trailers_are_bounded(url: str, kind: str, path: str) -> None:
    """A connection that sends more of them than headers are allowed is closed."""
    method = b"GET" if path == "/healthz" else b"POST"
    head = HEAD.replace(b"POST /v1/chat/completions", method + b" " + path.encode())
    start = b"x-filler: " if kind.startswith("one") else b""
    sent = 0
    with connected(url) as connection:
        connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + start)
        try:
            while sent < 40_000_000:
                connection.sendall(TRAILERS[kind] * 4)
                sent += len(TRAILERS[kind]) * 4
        except OSError:
            pass
    assert sent < 40_000_000


@pytest.mark.parametrize("extension", [b";a=b", b";" + b"x" * 60])
def test_extensions_of_chunks_are_bounded(url: str, extension: bytes) -> None:
    """A body of many small chunks is read; one whose framing outweighs it many times is not."""
    pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY)
    honest = HEAD + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n" + pieces + b"0\r\n\r\n"
    assert raw(url, honest).startswith(b"HTTP/1.1 200")
    sent = 0
    with connected(url) as connection:
        connection.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        try:
            while sent < 40_000_000:
                connection.sendall((b"1%s\r\na\r\n" % (extension * 8)) * 500)
                sent += 500 * len(extension)
        except OSError:
            pass
    assert sent < 40_000_000


IDENTITY = {
    "a user": (b"x-fitrouter-user: mallory", 200),
    "a key": (b"authorization: Bearer aaaa-secret-of-tenant-a", 401),
    "Anthropic's key": (b"x-api-key: aaaa-secret-of-tenant-a", 401),
    "a host": (b"host: evil.example", 200),
    "an origin": (b"origin: https://evil.example", 200),
}


@pytest.mark.parametrize("name", IDENTITY)
def test_a_trailer_is_no_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A proxy that sets or strips the headers of identity is not bypassed."""
    monkeypatch.setenv("KEY_A", "aaaa-secret-of-tenant-a")
    trailer, status = IDENTITY[name]
    router = make_router(tmp_path)
    settings = config(keys=KEYED) if status == 401 else config()
    with serving(router, settings) as address:
        head = HEAD + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        answer = raw(address, head + b"%x\r\n%s\r\n0\r\n%s\r\n\r\n" % (len(BODY), BODY, trailer))
    assert answer.startswith(b"HTTP/1.1 %d" % status), answer
    if status == 200:
        assert not [
            row.event
            for row in router._journal.tail(0)
            if getattr(row.event, "identity", None) and row.event.identity.user
        ]


def test_a_connection_that_is_gone_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its protocol and its requests are freed at once, not when the garbage collector comes by."""
    seen: list[weakref.ref[Any]] = []
    begin = LimitedProtocol._begin

    def noted(self: LimitedProtocol) -> None:
        begin(self)
        seen.extend((weakref.ref(self), weakref.ref(self.cycle)))

    monkeypatch.setattr(LimitedProtocol, "_begin", noted)
    with serving(make_router(tmp_path)) as address:
        gc.collect()
        gc.disable()
        try:
            for _ in range(2):  # each waits until a body has stalled for long enough
                with client(address) as http_:
                    assert http_.get("/healthz").status_code == 200
                    assert http_.post("/v1/chat/completions", json=chat()).status_code == 200
                    assert "[DONE]" in http_.post("/v1/chat/completions", json=chat(stream=True)).text
                    assert http_.post("/v1/chat/completions", content=b"x" * 100_000).status_code == 415
                raw(address, HIDDEN * 3 + HEAD + b"content-length: 9\r\n\r\n{")
            assert len(seen) == 32
            wait_for(lambda: not any(each() for each in seen))
        finally:
            gc.enable()
