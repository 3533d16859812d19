"""Limits that uvicorn and starlette lack: on connections, on headers, and on the time that these take to arrive."""

from __future__ import annotations

import asyncio
import json
import resource
import weakref
from collections.abc import Mapping
from http import HTTPStatus
from itertools import chain
from typing import Any, cast

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fitrouter.errors import InvalidRequest
from fitrouter_integrations.gateway.asgi._corked import Corked

HEADER_BYTES = 16_384
HEADER_COUNT = 100
HEADER_S = 10.0
"""Time for the headers of a request to arrive."""
LINGER_S = 2.0
"""Time that a refused client has to read why, before its connection is closed."""
PIPELINED = 16
"""Requests of a connection that may wait for the answer to one before them."""
_FRAMING = 8
"""Bytes of chunk sizes and trailers that may come for each byte of a body, beyond the first `HEADER_BYTES`."""
MAX_CONNECTIONS = 10_000
"""Connections of a worker, if its limit of descriptors allows as many."""
_OTHER_FILES = 128
"""Descriptors of stores, sockets that listen, and connections that are being closed."""
_MOST_FILES = 65_536


def connection_limit() -> int:
    """Number of connections, each with an upstream, that the process has descriptors for. Raises the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return (
        MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, max(8, (soft - _OTHER_FILES) // 2))
    )


class Connections:
    """The open connections of a server. At the limit, a new one takes the place of the one that is idle longest.

    Args:
        most: connections at a time.
    """

    def __init__(self, most: int) -> None:
        self.most, self.open = most, 0
        self._idle: dict[LimitedProtocol, None] = {}
        """Without a request in progress, the longest first."""

    def opened(self, protocol: LimitedProtocol) -> bool:
        """Count a connection; False if every one is busy."""
        self.open += 1
        if self.open > self.most:
            if not self._idle:
                return False
            longest = next(iter(self._idle))
            self.busy(longest)
            longest.transport.close()
        self.idle(protocol)
        return True

    def closed(self, protocol: LimitedProtocol) -> None:
        """Count a connection as closed."""
        self.open -= 1
        self.busy(protocol)

    def idle(self, protocol: LimitedProtocol) -> None:
        """Note that a connection has no request in progress."""
        self._idle[protocol] = None

    def busy(self, protocol: LimitedProtocol) -> None:
        """Note that a connection has a request in progress."""
        self._idle.pop(protocol, None)


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, closing connections that send too many headers or send them too slowly.

    Applications find `abort`, which cuts the connection, and uvicorn's `cycle` of the request under
    `scope["extensions"]["fitrouter"]`.

    Args:
        limits: all connections of the server.
        settings: of uvicorn.
    """

    _timer: asyncio.TimerHandle | None = None
    _within_headers = False
    _refused = False
    _received = 0
    _framed = 0
    """Bytes of the body's chunk sizes and trailers."""
    _body = 0
    parser: Any
    _message = 0
    """Number of the request that is being read; negative once its end has come."""

    def __init__(self, *, limits: Connections, **settings: Any) -> None:
        super().__init__(**settings)
        self._limits = limits
        self.parser = _Parser(self)  # until the connection is lost

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the header timer, or refuse the connection."""
        self._corked = Corked(transport)
        super().connection_made(cast("asyncio.Transport", self._corked))
        if self._limits.opened(self):
            self._start_timer()
        else:
            self._refuse(503, "overloaded", "too many connections; try again")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the header timer."""
        self._limits.closed(self)
        self._stop_timer()
        super().connection_lost(exc)
        self.pipeline.clear()
        if self.cycle is not None:  # it is of no more use, and both would wait for the garbage collector
            self.cycle.on_response = lambda: None

    def eof_received(self) -> None:
        """Send what is buffered, as the connection closes now."""
        self._corked.flush()
        super().eof_received()

    def data_received(self, data: bytes) -> None:
        """Count the bytes of headers."""
        if self._refused:
            return
        counted, reading, body = self._within_headers, self._message, self._body
        super().data_received(data)
        if reading > 0 and reading == self._message and not counted:
            self._framed += len(data) - (self._body - body)
        if self._framed > HEADER_BYTES + _FRAMING * self._body or len(self.pipeline) > PIPELINED:
            self.transport.close()
        if self._within_headers:
            self._received = self._received + len(data) if counted else 0
            if self._received > HEADER_BYTES:
                self._refuse(431, "headers_too_large", _TOO_LARGE)
        if self._within_headers or self.cycle is None or self.cycle.response_complete:
            self._start_timer()

    def on_message_begin(self) -> None:
        """Start counting headers of a request."""
        if not self.parser.replaying:
            super().on_message_begin()
            self._within_headers = True
            self._framed = self._body = 0
            self._message = abs(self._message) + 1

    def on_url(self, url: bytes) -> None:
        """Take a part of the request's target."""
        if not self.parser.replaying:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. A trailer is none: proxies that set or strip headers of identity do not look at trailers."""
        if self._within_headers and not self.parser.replaying:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Count the bytes of a body."""
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request, unless the parser took its body for another protocol."""
        if not self.parser.skipped_body:
            self._message = -abs(self._message)
            super().on_message_complete()

    def on_headers_complete(self) -> None:
        """Run the application, or answer that the headers are too large."""
        if self.parser.replaying:
            return
        self._within_headers = False
        self._stop_timer()
        size = sum(map(len, chain.from_iterable(self.headers))) + 4 * len(self.headers) + len(self.url)
        if size <= HEADER_BYTES and len(self.headers) <= HEADER_COUNT:
            self._begin()
            return
        app, self.app = self.app, _headers_too_large
        try:
            self._begin()
        finally:
            self.app = app

    def on_response_complete(self) -> None:
        """Count the connection as idle, unless a pipelined request follows."""
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._limits.idle(self)

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not valid HTTP."""
        self._refuse(400, "invalid_http", f"{msg} Send HTTP/1.1, without TLS")

    def _begin(self) -> None:
        self._limits.busy(self)
        super().on_headers_complete()
        cycle = weakref.proxy(self.cycle)  # which holds the scope
        self.scope["extensions"] = {"fitrouter": {"abort": self.transport.abort, "cycle": cycle}}

    def _start_timer(self) -> None:
        if self._timer is None and not self.transport.is_closing():
            text = f"the headers were not complete after {HEADER_S:g} s; send the request again"
            self._timer = self.loop.call_later(HEADER_S, self._refuse, 408, "request_timeout", text)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answer with an error, unless an answer has begun, and close the connection once the client has read it."""
        self._stop_timer()
        busy = self.cycle is not None and not self.cycle.response_complete
        if self.transport.is_closing() or busy:
            self.transport.close()
            return
        self._refused = True
        self.transport.write(_response(status, code, message))
        # A socket that is closed with unread bytes is reset, and the client would lose the answer.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_S, self.transport.close)


class _Parser:
    """Parser that reads a request with `Upgrade` like any other: the server knows no other protocol.

    httptools would skip its body, and take what comes for the next request.
    """

    replaying = False
    """Whether the headers of a request are read for the second time."""

    def __init__(self, protocol: LimitedProtocol) -> None:
        self._protocol = protocol
        self._parser = self._begun()

    def _begun(self) -> Any:
        parser = httptools.HttpRequestParser(self._protocol)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        return parser

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    @property
    def skipped_body(self) -> bool:
        """Whether the request of now asks for another protocol."""
        return bool(self._parser.should_upgrade())

    def should_upgrade(self) -> bool:
        """No: `Upgrade` may be ignored."""
        return False

    def feed_data(self, data: bytes) -> None:
        """Parse a piece of the connection; a request's body by its framing, whatever other protocol it names."""
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if self._parser.get_method() == b"CONNECT":
                    raise httptools.HttpParserError("this is no proxy") from None
                data = data[upgrade.args[0] :]
                framing = b"".join(b"%s: %s\r\n" % pair for pair in self._protocol.headers if pair[0] in _FRAMES)
                self._parser, self.replaying = self._begun(), True
                try:
                    self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")
                finally:
                    self.replaying = False
            else:
                return


_ONCE = frozenset({"authorization", "host", "origin", "x-api-key"})
"""Headers of which a proxy may have read another one than the first."""
_FRAMES = frozenset({b"content-length", b"transfer-encoding"})
_TOO_LARGE = f"the headers exceed {HEADER_BYTES} bytes or {HEADER_COUNT} fields; send fewer"


def _error(code: str, message: str) -> bytes:
    error = {"message": message, "type": "invalid_request_error", "code": code, "param": None}
    return json.dumps({"error": error}).encode()


def _response(status: int, code: str, message: str) -> bytes:
    body = _error(code, message)
    lines = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


async def _headers_too_large(_scope: Any, _receive: Any, send: Any) -> None:
    body = _error("headers_too_large", _TOO_LARGE)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 431, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def headers_of(scope: Scope) -> dict[str, bytes]:
    """Return the headers of a request: lower-case name → value.

    Raises:
        InvalidRequest: a header that identifies the caller appears twice.
    """
    headers: dict[str, bytes] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1")
        if name in headers and (name in _ONCE or name.startswith("x-fitrouter-")):
            raise InvalidRequest(f"header {name}: appears twice")
        headers.setdefault(name, value)
    if (given := authorization(headers.get("authorization"), headers.get("x-api-key"))) is not None:
        headers["authorization"] = given
    return headers


def authorization(given: bytes | None, api_key: bytes | None) -> bytes | None:
    """Return the `Authorization` header, or `x-api-key` (Anthropic's clients) in the form of one."""
    return b"Bearer " + api_key if given is None and api_key is not None else given


def is_own(origin: bytes, headers: Mapping[str, bytes]) -> bool:
    """Return whether the origin of a page is the host that a request is sent to."""
    return origin.split(b"://")[-1].lower() == headers.get("host", b"").lower()
