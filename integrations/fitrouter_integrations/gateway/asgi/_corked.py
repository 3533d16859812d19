"""A transport that sends all data written in one turn of the event loop by one system call."""

from __future__ import annotations

import asyncio
from typing import Any

_MOST_BYTES = 65_536
"""What is kept back at most; beyond it the transport's own buffer says when to wait."""


class Corked:
    """Transport that collects writes of one turn of the event loop, such as the head and body of an answer.

    Args:
        transport: of the connection; has all other attributes.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._kept: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Buffer data, which is sent within this turn of the event loop."""
        if not self._kept:
            self._loop.call_soon(self.flush)
        self._kept.append(data)
        self._size += len(data)
        if self._size > _MOST_BYTES:
            self.flush()

    def close(self) -> None:
        """Send what is buffered, then close."""
        self.flush()
        self._transport.close()

    def write_eof(self) -> None:
        """Send what is buffered, then close this direction."""
        self.flush()
        self._transport.write_eof()

    def flush(self) -> None:
        """Send what is buffered."""
        if self._kept:
            kept, self._kept, self._size = b"".join(self._kept), [], 0
            self._transport.write(kept)
