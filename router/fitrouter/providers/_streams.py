"""Streams that own something upstream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

from fitrouter.types import Chunk


class OwnedStream:
    """Chunks, and what has to be closed behind them: when they end, fail, are cancelled, or are closed unread.

    (A plain generator runs none of its own clean-up if it is closed before its first chunk was asked for.)
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
        """End the work upstream; closing twice is fine."""
        await self._end()
        await self._chunks.aclose()

    async def _end(self) -> None:
        if not self._closed:
            self._closed = True
            await self._close()
