"""Answers of the router: complete, or streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec

from fitrouter.serving.attempts import close
from fitrouter.types import Chunk, Completion, Decision


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer. `logged` is False if its decision did not become durable in time."""

    decision: Decision
    served_by: str
    completion: Completion
    cost_usd: float | None
    """None without a configured price."""
    logged: bool
    dropped: tuple[str, ...] = ()
    """Parameters of the request that the model does not support, and did not get."""
    max_tokens: int | None = None
    """What the answer was limited to, as a hard limit covered no more; None where nothing was lowered."""


class Stream:
    """A streamed answer whose first chunk has arrived. Iterate it once, or close it; closing early cancels the call.

    A failure after the first chunk raises `ProviderError` from the iteration; no other model continues the answer.
    """

    def __init__(
        self,
        decision: Decision,
        served_by: str,
        logged: bool,
        chunks: AsyncIterator[Chunk],
        spent: Callable[[], float | None] = lambda: None,
        dropped: tuple[str, ...] = (),
        max_tokens: int | None = None,
    ) -> None:
        self.decision, self.served_by, self.logged, self.dropped = decision, served_by, logged, dropped
        self.max_tokens = max_tokens
        self._chunks, self._spent = chunks, spent
        self._begun = False

    @property
    def cost_usd(self) -> float | None:
        """Cost of the answer, available once it has ended; None without a configured price."""
        return self._spent()

    def __aiter__(self) -> AsyncIterator[Chunk]:
        self._begun = True
        return self._chunks

    async def aclose(self) -> None:
        """Close the stream early."""
        if not self._begun:
            # A generator that never started runs no `finally`: the execution would not be logged.
            self._begun = True
            await anext(self._chunks, None)
        await close(self._chunks)
