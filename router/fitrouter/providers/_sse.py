"""Parser of server-sent events (WHATWG HTML, §9.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fitrouter.errors import ProviderUnavailable
from fitrouter.providers.failures import excerpt

_BOM = b"\xef\xbb\xbf"
_FIELDS = frozenset({b"data", b"event", b"id", b"retry"})
_TURN = 1_024
"""Lines after which others have their turn: a piece of padding may hold a million."""


async def sse_data(pieces: AsyncIterator[bytes], where: str, limit: int) -> AsyncIterator[bytes]:
    """The data of each event in a stream of byte chunks, and b"" at the end of each chunk: a sign of life.

    Some servers end no event by an empty line, or not the last one: an object of JSON is an event of its own, and what
    is there at the end is read.

    Raises:
        ProviderUnavailable: a line is not a field of an event, or the stream exceeds `limit` bytes.
    """
    buffer = bytearray()
    data: list[bytes] = []
    total = lines = 0
    async for piece in pieces:
        total += len(piece)
        if total > limit:
            raise ProviderUnavailable(f"{where} streamed more than {limit} bytes")
        buffer += piece
        if total <= len(_BOM) + len(piece) and buffer.startswith(_BOM):
            del buffer[: len(_BOM)]
        whole = len(buffer) - len(piece) + piece.rfind(b"\n") + 1 if b"\n" in piece else 0
        for line in bytes(buffer[:whole]).split(b"\n")[:-1]:
            lines += 1
            if not lines % _TURN:
                await asyncio.sleep(0)
            if not line or line == b"\r":
                if data:
                    yield b"\n".join(data)
                    data.clear()
                continue
            name, _, value = line.removesuffix(b"\r").partition(b":")
            if name == b"data":
                value = value.removeprefix(b" ")
                if data and data[-1].endswith(b"}") and value.startswith((b"{", b"[DONE]")):
                    yield b"\n".join(data)
                    data.clear()
                data.append(value)
            elif name and name not in _FIELDS:
                raise ProviderUnavailable(f"{where} sent an invalid server-sent event: {excerpt(line)!r}")
        del buffer[:whole]
        yield b""
    name, _, value = bytes(buffer).partition(b":")
    data += [value.strip()] if name == b"data" else []
    if data:
        yield b"\n".join(data)
