"""Protocol of providers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from fitrouter.types import Call, Chunk, Completion


class Provider(Protocol):
    """Answers chat completions. One instance serves many models and concurrent calls."""

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        """Return a completion, or an iterator of chunks if `call.stream` is set.

        Cancelling the awaiting task, or closing the iterator, ends the upstream request.

        Raises:
            ProviderRejected: the request itself is at fault; no other model is tried.
            ProviderUnavailable: this model cannot answer now.
            ProviderTimeout: the upstream timed out; the router itself enforces `call.timeout_s`.
        """
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...
