"""The seam between the router and whoever answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from fitrouter.types import Call, Chunk, Completion


class Provider(Protocol):
    """Answers calls. One instance serves many models and many calls at once."""

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        """Answer whole, or with an iterator of chunks where `call.stream` is set.

        Cancelling the awaiting task, or closing the iterator, ends the work upstream.

        Raises:
            ProviderRejected: the request itself is at fault; no other model should be asked.
            ProviderUnavailable: this model cannot answer now.
            ProviderTimeout: the upstream said so itself; the router enforces `call.timeout_s`.
        """
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...
