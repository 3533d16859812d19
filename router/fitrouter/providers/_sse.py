"""Server-sent events, as chat completions use them (WHATWG HTML, §9.2)."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fitrouter.errors import ProviderUnavailable
from fitrouter.providers.failures import excerpt

_FIELDS = frozenset({b"data", b"event", b"id", b"retry"})


async def sse_data(pieces: AsyncIterator[bytes], where: str, limit: int) -> AsyncIterator[bytes]:
    """The data of each event, however the bytes were cut on their way.

    An event that the end of the stream cuts off is dropped, as the standard wants it.

    Raises:
        ProviderUnavailable: a line is no field of an event, or more than `limit` bytes came.
    """
    buffer = bytearray()
    data: list[bytes] = []
    total = 0
    async for piece in pieces:
        total += len(piece)
        if total > limit:
            raise ProviderUnavailable(f"{where} streamed more than {limit} bytes")
        searched = len(buffer)  # what stood here before holds no line break
        buffer += piece
        start = 0
        while (end := buffer.find(b"\n", max(start, searched))) >= 0:
            line = bytes(buffer[start:end]).removesuffix(b"\r")
            start = end + 1
            if not line:
                if data:
                    yield b"\n".join(data)
                    data.clear()
                continue
            name, _, value = line.partition(b":")
            if name == b"data":
                data.append(value.removeprefix(b" "))
            elif name and name not in _FIELDS:
                raise ProviderUnavailable(f"{where} sent a line that is no server-sent event: {excerpt(line)!r}")
        del buffer[:start]
