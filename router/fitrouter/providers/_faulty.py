"""Fault injection: a provider that fails by a script, for tests and drills."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable

import msgspec

from fitrouter.providers._base import Provider
from fitrouter.providers._streams import OwnedStream
from fitrouter.types import Call, Chunk, Completion


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A scripted fault of one call: before its answer or, in a stream, after `after` chunks.

    The call sleeps for `delay_s`, then hangs until it is cancelled, or raises `error`, or proceeds if neither is set.
    """

    error: Exception | None = None
    hang: bool = False
    delay_s: float = 0.0
    after: int = 0


class Faulty:
    """Forwards calls to `provider`, with the faults of `script`: one (or None) for each call in turn.

    After the end of the script calls are forwarded unchanged; `itertools.cycle` or `itertools.repeat` make an endless
    one. `calls` are the calls received, and `cancelled` counts those cancelled or closed before their end.
    """

    def __init__(
        self,
        provider: Provider,
        script: Iterable[Fault | None] = (),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.calls: list[Call] = []
        self.cancelled = 0
        self._provider = provider
        self._script = iter(script)
        self._sleep = sleep

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        """Answer by the wrapped provider, or fail as the script says; see `Provider`."""
        self.calls.append(call)
        fault = next(self._script, None)
        try:
            if fault is not None and not (call.stream and fault.after):
                await self._suffer(fault)
                fault = None
            answer = await self._provider.complete(call)
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise
        if isinstance(answer, Completion):
            return answer
        return OwnedStream(self._relay(answer, fault), functools.partial(_close, answer))

    async def aclose(self) -> None:
        """Close the wrapped provider."""
        await self._provider.aclose()

    async def _suffer(self, fault: Fault) -> None:
        if fault.delay_s:
            await self._sleep(fault.delay_s)
        if fault.hang:
            await asyncio.Event().wait()
        if fault.error is not None:
            raise fault.error

    async def _relay(self, chunks: AsyncIterator[Chunk], fault: Fault | None) -> AsyncGenerator[Chunk]:
        passed = 0
        try:
            async for chunk in chunks:
                if fault is not None and passed == fault.after:
                    await self._suffer(fault)
                yield chunk
                passed += 1
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise


async def _close(chunks: AsyncIterator[Chunk]) -> None:
    if (close := getattr(chunks, "aclose", None)) is not None:
        await close()
