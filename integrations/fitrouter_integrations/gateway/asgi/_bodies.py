"""Reading of request bodies, with bounds on size, time, and the memory of all bodies in flight."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fitrouter.errors import TooLarge
from fitrouter_integrations.gateway.asgi._json import read_json
from fitrouter_integrations.gateway.asgi._wire import Problem

BODY_S = 30.0
"""Time for a body to arrive."""
STALL_S = 10.0
"""Time without a byte of it."""
LINGER_S = 2.0
"""Time for which the rest of a refused body is read, so that its sender sees the answer instead of a reset."""
_VALUE = 64
"""Bytes that a bracket, comma or colon stands for once a body is parsed: small objects take some 250 for four."""


class Bodies:
    """Memory of the request bodies in flight, bounded in total and for each tenant.

    A request that is alone is always admitted.

    Args:
        total: bytes of all tenants.
        share: bytes of one tenant.
    """

    def __init__(self, total: int, share: int) -> None:
        self._total, self._share = total, share
        self._by_tenant: Counter[str] = Counter()

    def hold(self, tenant: str) -> BodyMemory:
        """Open the memory account of one request."""
        return BodyMemory(self, tenant)

    def add(self, tenant: str, size: int, own: int) -> None:
        """Count `size` more bytes of a request that holds `own` already.

        Raises:
            Problem: the bodies in flight take too much memory.
        """
        everyone, mine = self._by_tenant.total(), self._by_tenant[tenant]
        if (everyone + size > self._total and everyone > own) or (mine + size > self._share and mine > own):
            text = "the bodies of requests in flight take too much memory ('server.max_inflight_bytes'); try again"
            raise Problem(503, "overloaded", text, headers={"retry-after": "1"})
        self._by_tenant[tenant] += size

    def release(self, tenant: str, size: int) -> None:
        """Count bytes as freed."""
        self._by_tenant[tenant] -= size
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]


class BodyMemory:
    """Memory account of one request's body, until `release`."""

    def __init__(self, bodies: Bodies, tenant: str) -> None:
        self._bodies, self._tenant, self._size = bodies, tenant, 0

    def add(self, size: int) -> None:
        """Count more bytes.

        Raises:
            Problem: the bodies in flight take too much memory.
        """
        self._bodies.add(self._tenant, size, self._size)
        self._size += size

    def release(self) -> None:
        """Count all bytes as freed; may be called again."""
        self._bodies.release(self._tenant, self._size)
        self._size = 0


async def json_body(receive: Receive, headers: Mapping[str, bytes], limit: int, held: BodyMemory) -> dict[str, Any]:
    """Read the JSON object in the body of a request.

    Args:
        receive: of the request.
        headers: of the request.
        limit: longest body in bytes.
        held: its account.

    Raises:
        InvalidRequest: it is not an object in JSON.
        TooLarge: it is longer than `limit` bytes.
        Problem: its content type is another, it does not arrive in time, or there is no memory for it.
    """
    body = await _read_body(receive, headers, limit, held)
    if not body.isascii() or b"\\u" in body:
        held.add(3 * len(body))  # one character beyond Latin-1 makes a string of four bytes each
    return read_json(body, lambda values: held.add(_VALUE * values))


async def _read_body(receive: Receive, headers: Mapping[str, bytes], limit: int, held: BodyMemory) -> bytes:
    content_type = headers.get("content-type", b"").split(b";")[0].strip().lower()
    if content_type != b"application/json":
        given = ascii(content_type.decode("latin-1")[:80])
        raise Problem(415, "unsupported_media_type", f"content-type: got {given}, allowed is 'application/json'")
    announced = headers.get("content-length", b"0")
    if announced.isdigit() and int(announced[:20]) > limit:
        raise TooLarge(_too_large(limit))
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            while True:
                async with asyncio.timeout(STALL_S):
                    message = await receive()
                if message["type"] == "http.disconnect":
                    raise Problem(400, "client_gone", "the client disconnected before its request was complete")
                part = message.get("body", b"")
                if len(body) + len(part) > limit:
                    raise TooLarge(_too_large(limit))
                held.add(len(part))
                body += part
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        text = (
            f"the body was not complete after {BODY_S:g} s, or nothing of it arrived for {STALL_S:g} s; send the "
            "request again"
        )
        raise Problem(408, "request_timeout", text) from None


def _too_large(limit: int) -> str:
    return f"the body is longer than {limit} bytes ('server.max_body_bytes'); shorten it, or raise the setting"


class Refusal(Response):
    """An error response that may precede the end of the request's body.

    A server that closes a connection with unread bytes resets it, and the client loses the answer. So the answer is
    sent, and the rest of the body is read and dropped for a while.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        cycle = scope.get("extensions", {}).get("fitrouter", {}).get("cycle")
        if cycle is None or not cycle.more_body:
            await super().__call__(scope, receive, send)
            return
        if cycle.waiting_for_100_continue:  # the client may send its body or not: only closing is unambiguous
            self.headers["connection"] = "close"
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while cycle.more_body and not cycle.disconnected:
                    await receive()
        cycle.keep_alive = cycle.keep_alive and not cycle.more_body
        await send({"type": "http.response.body", "body": b"", "more_body": False})
