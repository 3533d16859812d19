"""Chunk streams with guaranteed clean-up, and with what arrives at once in one chunk."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from fitrouter.errors import ProviderError
from fitrouter.types import Chunk, Usage

ARRIVED = Chunk()
"""Ends what is put together: nothing more has arrived, or others have their turn. A sign of life, where it is told."""
_TEXTS = frozenset({"content", "reasoning", "reasoning_content", "refusal"})


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


async def together(chunks: AsyncGenerator[Chunk], read: Callable[[Any], Usage | None]) -> AsyncGenerator[Chunk]:
    """Put chunks between two `ARRIVED` together where nothing is lost, and `read` what they tell of usage as sent."""
    held: Chunk | None = None
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                whole = None if held is None or chunk is ARRIVED else _joined(held, chunk)
                if whole is None and (held is not None or chunk is ARRIVED):
                    yield _read(held or chunk, read)
                held = None if chunk is ARRIVED else whole or chunk
    except ProviderError:
        if held is not None:
            yield _read(held, read)
        raise
    if held is not None:
        yield _read(held, read)


def _read(chunk: Chunk, read: Callable[[Any], Usage | None]) -> Chunk:
    return chunk if chunk.usage is None else msgspec.structs.replace(chunk, usage=read(chunk.usage))


def _joined(one: Chunk, two: Chunk) -> Chunk | None:
    """Return what two chunks say as one; None if they are not of one text or call, or one has more than that."""
    said = {name for each in (one, two) for name, value in each.delta.items() if value and name != "role"}
    if (
        (one.index, one.finish_reason, one.logprobs) != (two.index, None, None)
        or two.finish_reason is not None
        or two.logprobs
        or len(said) > 1
        or (one.usage and (not _covered(one.usage, two.usage) if two.usage else said))
        or (one.further, one.beside) != (two.further, two.beside)
    ):
        return None
    whole: Any
    match [each.delta[name] for name in said for each in (one, two) if each.delta.get(name)]:
        case [] | [_] as alone:
            whole = alone[0] if alone else None
        case [str(text), str(more)] if not said.isdisjoint(_TEXTS):
            whole = text + more
        case [
            [{"index": i, "function": {**begun}} as call],
            [{"index": j, "function": {"arguments": str(more), **other}, **others}],
        ] if i == j and not other and not others:
            whole = [{**call, "function": {**begun, "arguments": str(begun.get("arguments") or "") + more}}]
        case _:
            return None
    delta = {**two.delta, **one.delta, **dict.fromkeys(said, whole)}
    return msgspec.structs.replace(one, delta=delta, usage=two.usage or one.usage)


def _covered(before: Any, later: Any) -> bool:
    """Whether usages, as they were sent, tell of all that earlier ones told."""
    return len(before) == len(later) and all(
        new.get(name) for old, new in zip(before, later, strict=True) for name, value in old.items() if value
    )
