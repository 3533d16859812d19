"""Limits that uvicorn and starlette lack: on headers, body size, and the time that a client takes to send them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.types import Receive, Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fitrouter.errors import InvalidRequest, TooLarge
from fitrouter_integrations.gateway._wire import Problem

HEADER_BYTES = 16_384
HEADER_COUNT = 100
HEADER_S = 10.0
"""Time for the headers of a request to arrive."""
BODY_S = 30.0
"""Time for its body."""

_REFUSAL = "HTTP/1.1 {}\r\ncontent-type: text/plain\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, closing connections that send too many headers or send them too slowly.

    Applications find `abort`, which cuts the connection, under `scope["extensions"]["fitrouter"]`.
    """

    _timer: asyncio.TimerHandle | None = None
    _within_headers = False
    _received = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the header timer."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the header timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of headers."""
        counted = self._within_headers
        super().data_received(data)
        if self._within_headers:
            self._received = self._received + len(data) if counted else 0
            if self._received > HEADER_BYTES:
                self._refuse("431 Request Header Fields Too Large")
        if self._within_headers or self.cycle is None or self.cycle.response_complete:
            self._start_timer()

    def on_message_begin(self) -> None:
        """Start counting headers of a request."""
        super().on_message_begin()
        self._within_headers = True
        self.scope["extensions"] = {"fitrouter": {"abort": self.transport.abort}}

    def on_headers_complete(self) -> None:
        """Run the application, or refuse the request in its place."""
        self._within_headers = False
        self._stop_timer()
        size = sum(len(name) + len(value) + 4 for name, value in self.headers) + len(self.url)
        if size <= HEADER_BYTES and len(self.headers) <= HEADER_COUNT:
            super().on_headers_complete()
            return
        app, self.app = self.app, _headers_too_large
        try:
            super().on_headers_complete()
        finally:
            self.app = app

    def _start_timer(self) -> None:
        if self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(HEADER_S, self._refuse, "408 Request Timeout")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: str) -> None:
        self._stop_timer()
        busy = self.cycle is not None and not self.cycle.response_complete
        if not self.transport.is_closing() and not busy:
            self.transport.write(_REFUSAL.format(status).encode())
        self.transport.close()


async def _headers_too_large(_scope: Any, _receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 431, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def headers_of(scope: Scope) -> dict[str, bytes]:
    """Lower-case name → value.

    Raises:
        InvalidRequest: a header that identifies the caller appears twice.
    """
    headers: dict[str, bytes] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1")
        if name in headers and (name == "authorization" or name.startswith("x-fitrouter-")):
            raise InvalidRequest(f"header {name}: appears twice")
        headers.setdefault(name, value)
    return headers


async def read_body(receive: Receive, headers: Mapping[str, bytes], limit: int) -> bytes:
    """The body of a request whose content type must be JSON.

    Raises:
        TooLarge: it is longer than `limit` bytes.
        Problem: its content type is another, or it does not arrive in time.
    """
    content_type = headers.get("content-type", b"").split(b";")[0].strip().lower()
    if content_type != b"application/json":
        given = ascii(content_type.decode("latin-1"))
        raise Problem(415, "unsupported_media_type", f"content-type: got {given}, allowed is 'application/json'")
    announced = headers.get("content-length", b"0")
    if announced.isdigit() and int(announced[:20]) > limit:
        raise TooLarge(_too_large(limit))
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Problem(400, "client_gone", "the client disconnected before its request was complete")
                part = message.get("body", b"")
                size += len(part)
                if size > limit:
                    raise TooLarge(_too_large(limit))
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise Problem(408, "request_timeout", f"the body was not complete after {BODY_S:g} s") from None


def _too_large(limit: int) -> str:
    return f"the body is longer than {limit} bytes ('server.max_body_bytes')"
