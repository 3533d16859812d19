"""What a request gets: a whole answer, or a stream of its pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec

from fitrouter.serving.attempts import close
from fitrouter.types import Chunk, Completion, Decision


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer. `logged` is False where its decision did not become durable in time."""

    decision: Decision
    served_by: str
    completion: Completion
    cost_usd: float
    logged: bool


class Stream:
    """A streamed answer whose first chunk is there. Iterate it once, or close it; to close it early cancels the work.

    A model that fails after its first chunk raises `ProviderError` from the iteration: there is no silent switch.
    """

    def __init__(
        self,
        decision: Decision,
        served_by: str,
        logged: bool,
        chunks: AsyncIterator[Chunk],
        spent: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.decision, self.served_by, self.logged = decision, served_by, logged
        self._chunks, self._spent = chunks, spent
        self._begun = False

    @property
    def cost_usd(self) -> float | None:
        """What the answer cost, once it has ended."""
        return self._spent()

    def __aiter__(self) -> AsyncIterator[Chunk]:
        self._begun = True
        return self._chunks

    async def aclose(self) -> None:
        """End it early."""
        if not self._begun:
            # A generator that never ran has no end either: the execution would be missing.
            self._begun = True
            await anext(self._chunks, None)
        await close(self._chunks)
