"""Server-sent event streams, with an error event when a model fails and cancellation when the client leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fitrouter.types import Usage
from fitrouter_integrations.client import Streaming
from fitrouter_integrations.gateway._wire import (
    DONE,
    about_json,
    as_problem,
    chunk_json,
    decision_headers,
    event,
    usage_json,
)

WRITE_S = 20.0
"""Time limit of one write to a client that does not read."""

T = TypeVar("T")
_log = logging.getLogger("fitrouter.gateway")


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


async def while_client_waits(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """The result of `work`, which is cancelled when the client disconnects.

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


class EventStream(Response):
    """A streamed answer.

    If a model fails after the first chunk, or the gateway shuts down, the stream ends with an `error` event and no
    `[DONE]`. A client that disconnects, or does not read for 20 seconds, cancels the model call.

    Args:
        stream: the answer.
        usage: end with a usage chunk.
        failed: called with the code of the error that ended the stream.
    """

    media_type = "text/event-stream"

    def __init__(self, stream: Streaming, usage: bool, failed: Callable[[str], None]) -> None:
        super().__init__(
            headers={**decision_headers(stream.about), "cache-control": "no-store", "x-accel-buffering": "no"}
        )
        del self.headers["content-length"]
        self._stream, self._usage, self._failed = stream, usage, failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await while_client_waits(self._pump(_Writer(scope, send)), receive)
        except ClientGone:
            self._failed("client_gone")
        except asyncio.CancelledError:
            # Only the server cancels, at the end of its grace period; `_pump` has sent the error event.
            self._failed("cancelled")

    async def _pump(self, writer: _Writer) -> None:
        try:
            await writer.start(self.status_code, self.raw_headers)
            try:
                await self._relay(writer)
            except ClientGone:
                raise
            except asyncio.CancelledError:
                await _send_error(writer, "cancelled", "the gateway ended this stream")
                with suppress(Exception):
                    await writer.end()
                raise
            except Exception as error:  # noqa: BLE001 - the client must learn that the answer is incomplete
                problem = as_problem(error)
                if problem.status == 500:
                    _log.error("a stream failed", exc_info=error)
                self._failed(problem.code)
                await _send_error(writer, problem.code, problem.message)
            await writer.end()
        finally:
            await self._stream.aclose()

    async def _relay(self, writer: _Writer) -> None:
        about, usage = self._stream.about, self._usage
        total, first = Usage(), True
        async for chunk in self._stream:
            total = chunk.usage or total
            delta, reason = chunk.delta, chunk.finish_reason
            if first:
                first, opens = False, "role" in delta
                opening = (
                    chunk_json(about, delta, reason, usage)
                    if opens
                    else chunk_json(about, {"role": "assistant", "content": ""}, None, usage)
                )
                await writer.write(event({**opening, "fitrouter": about_json(about)}))
                if opens:
                    continue
            if delta or reason is not None:  # others only count tokens
                await writer.write(event(chunk_json(about, delta, reason, usage)))
        if usage:
            await writer.write(event(usage_json(self._stream.about, total)))
        await writer.write(DONE)


async def _send_error(writer: _Writer, code: str, message: str) -> None:
    """Send an error event, ignoring a client that does not take it."""
    with suppress(Exception):
        await writer.write(event({"error": {"message": message, "type": "api_error", "code": code, "param": None}}))


class _Writer:
    """Writes to a client, and cuts the connection if it does not read."""

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
