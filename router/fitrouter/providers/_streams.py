"""Chunk streams with guaranteed clean-up."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

from fitrouter.types import Chunk


class OwnedStream:
    """An iterator of chunks that calls `close` when it ends, fails, is cancelled, or is closed unread.

    (A plain generator does not run its clean-up if it is closed before its first item was requested.)
    """

    def __init__(self, chunks: AsyncGenerator[Chunk], close: Callable[[], Awaitable[None]]) -> None:
        self._chunks = chunks
        self._close = close
        self._closed = False

    def __aiter__(self) -> OwnedStream:
        return self

    async def __anext__(self) -> Chunk:
        try:
            return await anext(self._chunks)
        except BaseException:
            await self._end()
            raise

    async def aclose(self) -> None:
        """End the upstream request; closing twice is allowed."""
        await self._end()
        await self._chunks.aclose()

    async def _end(self) -> None:
        if not self._closed:
            self._closed = True
            await self._close()
