"""Server-sent event streams, with an error event when a model fails and cancellation when the client leaves."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fitrouter.errors import masked
from fitrouter.types import Chunk, Usage
from fitrouter_integrations.client import About, Streaming
from fitrouter_integrations.gateway.asgi._wire import Problem, as_problem, decision_headers

WRITE_S = 20.0
"""Time limit of one write to a client that does not read."""

T = TypeVar("T")
_log = logging.getLogger("fitrouter.gateway")


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


async def while_client_waits(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Return the result of `work`, which is cancelled when the client disconnects.

    Raises:
        ClientGone: it disconnected.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Events(Protocol):
    """Formats one streamed answer as the bytes of its server-sent events."""

    def chunk(self, about: About, chunk: Chunk) -> bytes:
        """Return the events of a chunk, maybe none; the first call opens the stream."""
        ...

    def end(self, about: About, usage: Usage) -> bytes:
        """Return the events at the end of a complete answer."""
        ...

    def error(self, problem: Problem) -> bytes:
        """Return the event of an incomplete answer."""
        ...


class EventStream(Response):
    """Response that sends a streamed answer as server-sent events.

    If a model fails after the first chunk, or the gateway shuts down, the stream ends with an error event instead of
    its last event. A client that disconnects, or does not read for 20 seconds, cancels the model call.

    Args:
        stream: the answer.
        events: formats it.
        failed: called with the code of the error that ended the stream.
        ended: called at its end.
        dropped: what the dialect left out of the request.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        stream: Streaming,
        events: Events,
        failed: Callable[[str], None],
        ended: Callable[[], None],
        dropped: tuple[str, ...] = (),
    ) -> None:
        about = msgspec.structs.replace(stream.about, dropped=(*dropped, *stream.about.dropped))
        super().__init__(headers={**decision_headers(about), "cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._stream, self._events, self._failed, self._ended = stream, events, failed, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await while_client_waits(self._pump(_Writer(scope, send)), receive)
        except ClientGone:
            self._failed("client_gone")
        except asyncio.CancelledError:
            # Only the server cancels, at the end of its grace period; `_pump` has sent the error event.
            self._failed("cancelled")
        finally:
            self._ended()

    async def _pump(self, writer: _Writer) -> None:
        try:
            await writer.start(self.status_code, self.raw_headers)
            try:
                await self._relay(writer)
            except ClientGone:
                raise
            except asyncio.CancelledError:
                await self._send_error(
                    writer, Problem(500, "cancelled", "the gateway stops and ended this stream; send the request again")
                )
                with suppress(Exception):
                    await writer.end()
                raise
            except Exception as error:  # noqa: BLE001 - the client must learn that the answer is incomplete
                problem = as_problem(error)
                if problem.status == 500:
                    _log.error("a stream failed:\n%s", masked("".join(traceback.format_exception(error))))
                self._failed(problem.code)
                await self._send_error(writer, problem)
            await writer.end()
        finally:
            await self._stream.aclose()

    async def _relay(self, writer: _Writer) -> None:
        about, events, total = self._stream.about, self._events, Usage()
        async for chunk in self._stream:
            total = chunk.usage or total
            if sent := events.chunk(about, chunk):
                await writer.write(sent)
        await writer.write(events.end(self._stream.about, total))

    async def _send_error(self, writer: _Writer, problem: Problem) -> None:
        """Send an error event, ignoring a client that does not take it."""
        with suppress(Exception):
            await writer.write(self._events.error(problem))


class _Writer:
    """Writes a response to a client, and cuts the connection if the client does not read."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self._abort: Callable[[], None] | None = scope.get("extensions", {}).get("fitrouter", {}).get("abort")

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        await self._write({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, body: bytes) -> None:
        await self._write({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self) -> None:
        await self._write({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(WRITE_S):
                await self._send(message)
        except TimeoutError:
            if self._abort is not None:
                self._abort()
            raise ClientGone from None
