"""Server-sent event streams, with an error event when a model fails and cancellation when the client leaves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fitrouter.errors import where
from fitrouter.types import Chunk, Usage
from fitrouter_integrations.client import About, Streaming
from fitrouter_integrations.gateway.asgi._wire import Problem, as_problem, decision_headers, dropped_header

WRITE_S = 20.0
"""Time limit of one write to a client that does not read."""

HEARTBEAT_S = 5.0
"""Silence of a stream after which a comment is sent: proxies and clients cut connections that are idle."""
_COMMENT = b": waiting\n\n"

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


async def begun(work: Coroutine[Any, Any, Streaming], receive: Receive) -> Streaming | asyncio.Task[Streaming]:
    """Return the stream that `work` opens; after `HEARTBEAT_S` its task, which goes on. See `while_client_waits`.

    Raises:
        ClientGone: the client disconnected; `work` is cancelled.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    handed = False
    try:
        await asyncio.wait({task, gone}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() and not task.done():
            raise ClientGone
        handed = True
        return task.result() if task.done() else task
    finally:
        gone.cancel()
        if not handed:
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
        stream: the answer; or the task that waits for its first chunk: then headers go out without the decision, and
            comments until the answer begins.
        events: formats it.
        failed: called with the code of the error that ended the stream.
        ended: called at its end.
        dropped: what the dialect left out of the request.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        stream: Streaming | asyncio.Task[Streaming],
        events: Events,
        failed: Callable[[str], None],
        ended: Callable[[], None],
        dropped: tuple[str, ...] = (),
    ) -> None:
        self._dropped = dropped
        decided = dropped_header(dropped) if isinstance(stream, asyncio.Task) else decision_headers(self._about(stream))
        super().__init__(headers={**decided, "cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._stream, self._events, self._failed, self._ended = stream, events, failed, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await while_client_waits(self._pump(_Writer(scope, send), scope), receive)
        except ClientGone:
            self._failed("client_gone")
        except asyncio.CancelledError:
            # Only the server cancels, at the end of its grace period; `_pump` has sent the error event.
            self._failed("cancelled")
        finally:
            self._ended()

    async def _pump(self, writer: _Writer, scope: Scope) -> None:
        beat: asyncio.Task[None] | None = None
        try:
            await writer.start(self.status_code, self.raw_headers)
            beat = asyncio.create_task(writer.beat())
            try:
                if isinstance(self._stream, asyncio.Task):
                    await writer.write(_COMMENT)
                    self._stream = await self._stream
                await self._relay(writer, self._stream)
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
                problem = as_problem(error, scope)
                if problem.status == 500:
                    _log.error("a stream failed:\n%s", where(error))
                self._failed(problem.code)
                await self._send_error(writer, problem)
            await writer.end()
        finally:
            if beat is not None:
                beat.cancel()
            if isinstance(self._stream, asyncio.Task):
                self._stream.cancel()
                await asyncio.gather(self._stream, return_exceptions=True)
            else:
                await self._stream.aclose()

    def _about(self, stream: Streaming) -> About:
        """Return the decision, with what the dialect left out."""
        return msgspec.structs.replace(stream.about, dropped=(*self._dropped, *stream.about.dropped))

    async def _relay(self, writer: _Writer, stream: Streaming) -> None:
        about, events, total = self._about(stream), self._events, Usage()
        async for chunk in stream:
            total = chunk.usage or total
            if sent := events.chunk(about, chunk):
                await writer.write(sent)
        await writer.write(events.end(self._about(stream), total))

    async def _send_error(self, writer: _Writer, problem: Problem) -> None:
        """Send an error event, ignoring a client that does not take it."""
        with suppress(Exception):
            await writer.write(self._events.error(problem))


class _Writer:
    """Writes a response to a client, and cuts the connection if the client does not read."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self._abort: Callable[[], None] | None = scope.get("extensions", {}).get("fitrouter", {}).get("abort")
        self._written = 0.0

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        await self._write({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, body: bytes) -> None:
        await self._write({"type": "http.response.body", "body": body, "more_body": True})

    async def beat(self) -> None:
        """Send a comment whenever nothing has been sent for some seconds, until cancelled."""
        with suppress(ClientGone):  # whoever writes next learns of it
            while True:
                await asyncio.sleep(HEARTBEAT_S)
                if time.monotonic() - self._written >= HEARTBEAT_S:
                    await self.write(_COMMENT)

    async def end(self) -> None:
        await self._write({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(WRITE_S):
                await self._send(message)
            self._written = time.monotonic()
        except TimeoutError:
            if self._abort is not None:
                self._abort()
            raise ClientGone from None
