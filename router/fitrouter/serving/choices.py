"""Several choices of one answer (`n`): further calls of the model that answered, for those its first call left out."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeAlias

import msgspec

from fitrouter.errors import NotCalled, ProviderError, ProviderRejected
from fitrouter.providers.usage import COUNTS
from fitrouter.routing.parameters import draws_choices
from fitrouter.serving.attempts import (
    Answering,
    Assembler,
    Caller,
    Reported,
    attempt_of,
    close,
    next_chunk,
    said_tokens,
)
from fitrouter.types import Attempt, Chunk, Completion, Request, Usage

AT_ONCE = 8
"""Further calls of one request at a time."""
_BUFFER = 64
"""Chunks of all choices that wait for a slow client."""
_Put: TypeAlias = Callable[[Chunk | Exception | None], Awaitable[None]]


class _Sent:
    """What one call of a stream has sent so far."""

    def __init__(self) -> None:
        self.choices: dict[int, Assembler] = {}
        self.reported = Reported()
        self.ended = False

    def said(self, limit: int | None) -> int:
        return sum(choice.said(limit) for choice in self.choices.values())


class Choices:
    """Draws the choices of an answer; the first went through the fallbacks, and is the one that is scored.

    A model that draws several in one call has been asked for all of them. What its answer lacks is drawn by further
    calls of the same model. One that fails before its first chunk is made once more, and then left out: the answer has
    fewer choices. A stream that breaks off later fails the whole stream.

    Args:
        caller: of models.
        request: the request.
        answering: its first answer.
        tenant: that asks.
        deadline: absolute, on the monotonic clock.
        dropped: parameters omitted from calls of the model.
        limit: tokens of each choice that a hard limit covers, once, so that no call that may be billed is made again.
        check: (usage of a call, estimated tokens of its answers, their number) → the usage within bounds.
        billed: gets the attempt, and what it used, where a call failed that says so.
    """

    def __init__(
        self,
        caller: Caller,
        request: Request,
        answering: Answering,
        *,
        tenant: str,
        deadline: float,
        dropped: tuple[str, ...],
        limit: Callable[[], int | None],
        check: Callable[[Usage, int, int], Usage],
        billed: list[tuple[Attempt, Usage]],
    ) -> None:
        self._caller, self._answering, self._n = caller, answering, request.n
        self._request = msgspec.structs.replace(request, n=1, stream=answering.rest is not None)
        self._tenant, self._deadline, self._dropped, self._check = tenant, deadline, dropped, check
        self._limit, self._billed = limit, billed
        self._ends = deadline if request.deadline_s else math.inf  # of streams that flow
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._whole: list[Usage] = []
        self._sent: list[_Sent] = []
        self.failed: list[Attempt] = []
        """Further calls without an answer."""
        if answering.completion is not None:
            self._count(answering.completion)

    @property
    def usage(self) -> Usage:
        """Total usage of all calls so far, including what was sent of unfinished answers."""
        usages = [*self._whole, *map(self._usage_of, self._sent)]
        if len(usages) == 1:
            return usages[0]
        return Usage(
            **{name: sum(getattr(usage, name) for usage in usages) for name in COUNTS},
            estimated=any(usage.estimated for usage in usages),
            cost_usd=None
            if any(usage.cost_usd is None for usage in usages)
            else sum(usage.cost_usd or 0 for usage in usages),
            details=usages[0].details if len(usages) == 1 else {},
        )

    async def whole(self, first: Completion) -> Completion:
        """Complete the first answer by its further choices."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._another()) for _ in range(self._n - 1 - len(first.others))]
        found = [task.result() for task in tasks]
        return msgspec.structs.replace(first, others=(*first.others, *(one for one in found if one is not None)))

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """The chunks of all choices as they come, then their usage.

        Raises:
            ProviderError: a choice broke off.
        """
        rest = self._answering.rest
        assert rest is not None
        queue: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue(_BUFFER)
        producer = asyncio.create_task(self._produce(queue.put))
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
            yield Chunk(usage=self.usage)
        finally:
            producer.cancel()
            await asyncio.gather(producer, return_exceptions=True)
            if not self._sent:  # cancelled before the first relay began
                self._answering.release()
                await close(rest)

    @property
    def first(self) -> Assembler:
        """Return the message of the first choice so far."""
        return self._sent[0].choices.get(0, Assembler()) if self._sent else Assembler()

    @property
    def unfinished(self) -> dict[int, Assembler]:
        """The choices of a stream that have begun and not ended."""
        return {i: each for sent in self._sent for i, each in sent.choices.items() if not each.ended}

    # --- whole answers ---

    async def _another(self) -> Completion | None:
        async with self._at_once:
            answering = await self._again()
        if answering is None or answering.completion is None:
            return None
        self._count(answering.completion)
        return answering.completion

    def _count(self, completion: Completion) -> None:
        choices = (completion, *completion.others)
        said = sum(said_tokens(choice.message) for choice in choices)
        self._whole.append(self._check(completion.usage, said, len(choices)))

    async def _again(self) -> Answering | None:
        """Call the model for a further answer; None if it gives none."""
        arm = self._answering.arm
        for retry in (False, True):
            begun = time.monotonic()
            try:
                return await self._caller.again(
                    self._request, arm, self._tenant, self._deadline, self._dropped, retry=retry
                )
            except (ProviderError, asyncio.CancelledError) as error:
                if not isinstance(error, NotCalled):
                    self.failed.append(attempt_of(arm, 1.0, error, begun))
                    if isinstance(error, ProviderError) and error.usage is not None:
                        self._billed.append((self.failed[-1], error.usage))
                if isinstance(error, asyncio.CancelledError):
                    raise
                if isinstance(error, ProviderRejected) or (
                    self._limit() is not None and not isinstance(error, NotCalled)
                ):
                    return None
        return None

    # --- streams ---

    async def _produce(self, put: _Put) -> None:
        """Put the chunks of all choices into the queue, then None; or the exception that ended one."""
        try:
            async with asyncio.TaskGroup() as group:
                first = group.create_task(self._relay(self._answering, 0, put))
                if draws_choices(self._caller.cards[self._answering.arm]):
                    await first
                known = self._sent[0].choices if self._sent else {}
                for index in range(1, self._n):
                    if index not in known:
                        group.create_task(self._relay_another(index, put))
        except* Exception as failures:  # noqa: BLE001 - `chunks` raises it
            failure: BaseException = failures
            while isinstance(failure, BaseExceptionGroup):
                failure = failure.exceptions[0]
            await put(failure if isinstance(failure, Exception) else ProviderError(str(failure)))
        await put(None)

    async def _relay_another(self, index: int, put: _Put) -> None:
        async with self._at_once:
            if (answering := await self._again()) is not None:
                await self._relay(answering, index, put)

    async def _relay(self, answering: Answering, place: int, put: _Put) -> None:
        """Put the chunks of one call into the queue; `place` is the index of its first choice."""
        sent, rest = _Sent(), answering.rest
        assert rest is not None
        self._sent.append(sent)
        try:
            for chunk in answering.head:
                await self._put(sent, chunk, place, put)
            gap_s = self._caller.timers.chunk_gap_s
            while (following := await next_chunk(rest, gap_s, self._ends)) is not None:
                await self._put(sent, following, place, put)
            for choice in sent.choices.values():
                choice.require_end(answering.arm)
            sent.ended = True
        except ProviderError as error:
            self._caller.breakers.of(self._tenant).broke_off(answering.arm, error)
            raise
        finally:
            reason = sent.choices[place].finish_reason if place in sent.choices else None
            answering.span.used(self._usage_of(sent), reason)
            answering.span.end("" if sent.ended else "partial")
            answering.release()
            await close(rest)

    async def _put(self, sent: _Sent, chunk: Chunk, place: int, put: _Put) -> None:
        index, usage = place + chunk.index, chunk.usage
        told = not (chunk.index and place) and index < self._n
        if told := told and bool(chunk.delta or chunk.finish_reason or chunk.logprobs):
            chunk = msgspec.structs.replace(chunk, index=index, usage=None)
            sent.choices.setdefault(index, Assembler()).add(chunk)
        if usage is not None:
            sent.reported.add(usage, sent.said(self._limit()))
        if told:
            await put(chunk)

    def _usage_of(self, sent: _Sent) -> Usage:
        said = sent.said(self._limit())
        return self._check(sent.reported.used(said, ended=sent.ended), said, len(sent.choices))
