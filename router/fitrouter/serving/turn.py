"""A request in progress: calls a model, answers, and logs the execution. Read `complete` and `stream` first."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from fitrouter.errors import BudgetExhausted, NotCovered, ProviderError
from fitrouter.providers import LEFT_OUT, tracing
from fitrouter.routing.breakers import TenantBreakers
from fitrouter.routing.eligibility import noted
from fitrouter.routing.pipeline import Proposal
from fitrouter.routing.variants import called
from fitrouter.serving.answers import Answer, Stream
from fitrouter.serving.attempts import (
    Answering,
    Assembler,
    Caller,
    Timers,
    Unanswered,
    close,
    limited,
    next_chunk,
    unanswered,
)
from fitrouter.serving.choices import Choices
from fitrouter.serving.recorder import Recorder, execution_of
from fitrouter.serving.spending import ABANDONED, Cover, Spending, beside_answer, charge, checked_usage, counted
from fitrouter.types import Attempt, Chunk, Decision, Execution, Message, ModelCard, Payer, Request, Usage


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """What all requests of a router use."""

    cards: Mapping[str, ModelCard]
    caller: Caller
    breakers: TenantBreakers
    spending: Spending
    recorder: Recorder
    timers: Timers
    clock: Callable[[], float]
    wait_s: Callable[[str, float, Payer | None], float]
    """Seconds until a tenant's budget has money again."""
    continue_session: Callable[[Decision], None]
    streaming: set[str]
    """Decisions of streams in progress."""


class Turn:
    """A request that is decided, until its execution is logged.

    Args:
        tools: of the router.
        request: what was asked.
        proposal: the decision on it, and what goes with it.
        durable: the append of the decision to the journal.
        span: of the request.
        started: when it came, on the monotonic clock.
        deadline: until when an answer has to begin.
    """

    def __init__(
        self,
        tools: Tools,
        request: Request,
        proposal: Proposal,
        durable: Future[int] | None,
        span: tracing.Span,
        *,
        started: float,
        deadline: float,
    ) -> None:
        self._tools, self._request, self._proposal, self._durable = tools, request, proposal, durable
        self._decision, self._asked = proposal.decision, proposal.asked
        self._span, self._started, self._deadline = span, started, deadline
        self._own_deadline = deadline if request.deadline_s else math.inf
        """When a stream ends although it flows: at the deadline that the caller has set, if any."""
        self._cost_usd: float | None = None
        """Set at the end, if the model has a price."""
        self._cover, self._lost_usd = Cover(), 0.0
        """The reservation for the last call, and what earlier calls may have cost."""
        self._billed: list[tuple[Attempt, Usage]] = []
        """Attempts that failed although they say what they used, and that."""
        self._told: Usage | None = None
        """The usage that was relayed last."""

    async def complete(self) -> Answer:
        """Answer as a whole; see `Router.complete`."""
        answering = await self._first_answer()
        completion = answering.completion
        assert completion is not None
        choices = self._choices(answering)
        status = "cancelled"
        try:
            if self._request.n > 1:
                completion = await choices.whole(completion)
            logged = await self._logged()
            status = "ok"
        finally:
            usage, lost = choices.usage, choices.failed
            completion = msgspec.structs.replace(completion, usage=usage)
            self._finish(answering, completion.message, usage, completion.finish_reason, status=status, further=lost)
        return Answer(
            decision=self._decision,
            served_by=answering.arm,
            completion=completion,
            cost_usd=self._cost_usd,
            logged=logged,
            dropped=(*self._dropped(answering.arm), *completion.further.pop(LEFT_OUT, ())),
            max_tokens=self._cover.max_tokens,
        )

    async def stream(self) -> Stream:
        """Answer as a stream, once the first chunk is there; see `Router.stream`."""
        answering = await self._first_answer()
        ttft_ms = (time.monotonic() - self._started) * 1000.0
        relay = (self._relay if self._request.n == 1 else self._relay_choices)(answering, ttft_ms)
        dropped = self._dropped(answering.arm)
        self._tools.streaming.add(self._decision.id)
        stream = Stream(
            self._decision, answering.arm, False, relay, lambda: self._cost_usd, dropped, self._cover.max_tokens
        )
        try:
            stream.logged = await self._logged()
        except BaseException:
            await stream.aclose()
            raise
        return stream

    async def _logged(self) -> bool:
        """Whether the decision is durable; if so, the next turn of its session continues from it."""
        if logged := await self._tools.recorder.durable(self._decision, self._durable):
            self._tools.continue_session(self._decision)
        return logged

    async def _first_answer(self) -> Answering:
        """Call models until one starts to answer; a request without an answer is logged as failed."""
        attempts: list[Attempt] = []
        try:
            with self._span.current():
                answering = await self._tools.caller.first_answer(
                    self._request,
                    self._decision,
                    self._proposal.fallback,
                    self._deadline,
                    attempts=attempts,
                    billed=self._billed,
                    reserve=lambda arm: self._reserve(arm, attempts),
                    dropped=self._proposal.dropped,
                )
        except Unanswered as failure:
            self._log_unanswered(failure.attempts, unanswered([each.error for each in failure.attempts]))
            if isinstance(failure.error, BudgetExhausted):
                tenant, payer = self._decision.identity.tenant, self._request.payer
                failure.error.retry_after_s = self._tools.wait_s(tenant, self._tools.clock(), payer)
            raise failure.error from failure.error.__cause__
        except asyncio.CancelledError:
            self._log_unanswered(tuple(attempts), "cancelled")
            raise
        return answering

    async def _reserve(self, arm: str, attempts: Sequence[Attempt]) -> Cover:
        """Reserve what a call may cost, on top of the earlier ones; raises NotCovered if no hard limit covers it."""
        billed_usd = self._lost()[1]
        if attempts and attempts[-1].error in ABANDONED:
            self._lost_usd = max(self._cover.usd - billed_usd, 0.0)
        cover = await self._tools.spending.reserve(
            self._decision,
            self._tools.cards[arm],
            self._asked,
            self._request.payer,
            lost_usd=self._lost_usd + billed_usd,
            until=self._deadline,
        )
        if cover.refusal:
            raise NotCovered(f"{arm!r} is not called: {cover.refusal}")
        self._cover = cover
        return cover

    def _checked(self, arm: str, usage: Usage, said_tokens: int, choices: int = 1) -> Usage:
        """Correct the reported usage of a call that is out of bounds."""
        return checked_usage(usage, self._tools.cards[arm], self._asked, said_tokens, choices=choices)

    async def _relay(self, answering: Answering, ttft_ms: float) -> AsyncIterator[Chunk]:
        """Relay the chunks; log the execution at the end, whatever ends the stream."""
        assembler = Assembler()
        status = "cancelled"
        rest = answering.rest
        assert rest is not None
        try:
            head, gap_s = iter(answering.head), self._tools.timers.chunk_gap_s
            while (chunk := next(head, None) or await next_chunk(rest, gap_s, self._own_deadline)) is not None:
                received = self._received(answering.arm, assembler, chunk)
                if await self._is_covered(answering.arm, assembler):
                    yield received
                    continue
                status = "partial"
                assembler.cut(self._most_tokens)
                yield Chunk(finish_reason="length")
                yield Chunk(usage=self._used(answering.arm, assembler, ended=False))
                return
            assembler.require_end(answering.arm)
            if (usage := self._used(answering.arm, assembler)) != self._told:
                yield Chunk(usage=usage)
            status = "ok"
        except ProviderError as error:
            status = "partial"
            self._tools.breakers.of(self._decision.identity.tenant).broke_off(answering.arm, error)
            raise
        finally:
            message = assembler.message()
            usage = self._used(answering.arm, assembler, ended=status == "ok")
            answering.span.used(usage, assembler.finish_reason)
            answering.span.end("" if status == "ok" else status)
            answering.release()
            self._finish(answering, message, usage, assembler.finish_reason, status=status, ttft_ms=ttft_ms)
            await close(rest)

    @property
    def _most_tokens(self) -> int:
        """Tokens of each choice that are reserved."""
        return (self._cover.answer_tokens or 0) + beside_answer(self._asked)

    async def _is_covered(self, arm: str, assembler: Assembler) -> bool:
        """Whether a stream is within its reservation; one whose provider ignores `max_tokens` reserves more."""
        if self._cover.answer_tokens is None or assembler.ended:
            return True
        sent = assembler.sent
        if assembler.usage is not None and assembler.usage.completion_tokens:
            sent = max(sent, self._checked(arm, assembler.usage, assembler.tokens).completion_tokens)
        if sent <= self._most_tokens:
            return True
        asked, card = msgspec.structs.replace(self._asked, answer_tokens=2 * sent), self._tools.cards[arm]
        billed_usd = self._lost()[1]
        cover = await self._tools.spending.reserve(
            self._decision, card, asked, self._request.payer, lost_usd=self._lost_usd + billed_usd, floor=sent + 1
        )
        self._cover = self._cover if cover.refusal else cover
        return not cover.refusal

    async def _relay_choices(self, answering: Answering, ttft_ms: float) -> AsyncIterator[Chunk]:
        """Relay the chunks of several choices; log the execution at the end, whatever ends them."""
        choices = self._choices(answering)
        status = "cancelled"
        try:
            async with contextlib.aclosing(choices.chunks()) as chunks:
                async for chunk in chunks:
                    longest = max(choices.unfinished.values(), key=lambda each: each.sent, default=Assembler())
                    if await self._is_covered(answering.arm, longest):
                        yield chunk
                        continue
                    status = "partial"
                    for index, each in choices.unfinished.items():
                        each.cut(self._most_tokens)
                        yield Chunk(index=index, finish_reason="length")
                    yield Chunk(usage=choices.usage)
                    return
            status = "ok"
        except ProviderError:
            status = "partial"
            raise
        finally:
            first, usage, lost = choices.first, choices.usage, choices.failed
            self._finish(
                answering, first.message(), usage, first.finish_reason, status=status, ttft_ms=ttft_ms, further=lost
            )

    def _choices(self, answering: Answering) -> Choices:
        return Choices(
            self._tools.caller,
            limited(self._request, self._cover),
            answering,
            tenant=self._decision.identity.tenant,
            deadline=self._deadline,
            dropped=self._proposal.dropped.get(answering.arm, ()),
            limit=lambda: self._cover.answer_tokens,
            billed=self._billed,
            check=lambda usage, said, n: self._checked(answering.arm, usage, said, n),
        )

    def _dropped(self, arm: str) -> tuple[str, ...]:
        """Return the parameters that the caller misses in the call of a model."""
        return noted(self._tools.cards[arm], self._request.params, self._proposal.dropped.get(arm, ()))

    def _used(self, arm: str, assembler: Assembler, *, ended: bool = True) -> Usage:
        """Return what a stream has used, within bounds."""
        limit = self._cover.answer_tokens
        return self._checked(arm, assembler.used(limit, ended=ended), assembler.said(limit))

    def _received(self, arm: str, assembler: Assembler, chunk: Chunk) -> Chunk:
        """Add a received chunk to the assembled message; a usage before the end is not told, as it is not the last."""
        assembler.add(chunk)
        if chunk.usage is None:
            return chunk
        self._told = self._used(arm, assembler) if assembler.ended else None
        return msgspec.structs.replace(chunk, usage=self._told)

    def _finish(
        self,
        answering: Answering,
        message: Message,
        usage: Usage,
        finish_reason: str | None,
        *,
        status: str = "ok",
        ttft_ms: float | None = None,
        further: Sequence[Attempt] = (),
    ) -> Execution:
        """Log the execution; a complete answer is queued for the scorer.

        `further` are failed calls for further choices, which only cost.
        """
        abandoned = (*answering.attempts, *further)
        lost, lost_usd = self._lost(abandoned)
        charged = charge(self._tools.cards[answering.arm], usage)
        cost_usd = charged.usd + lost_usd
        cost_assumed = charged.assumed or self._unpriced(abandoned)
        self._cost_usd = None if cost_assumed else cost_usd
        total = time.monotonic() - self._started
        own_s = (total if ttft_ms is None else ttft_ms / 1000.0) - answering.provider_s - answering.waited_s
        return self._log_end(
            answering.attempts,
            status=status,
            served_by=answering.arm,
            message=message if status == "ok" else None,
            **counted(usage),
            cost_usd=cost_usd,
            cost_assumed=cost_assumed,
            estimated=usage.estimated or lost.estimated or charged.estimated,
            ttft_ms=ttft_ms,
            latency_ms=answering.attempts[-1].ms if ttft_ms is None else (total - answering.waited_s) * 1000.0,
            finish_reason=finish_reason,
            overhead_ms=own_s * 1000.0,
        )

    def _log_unanswered(self, attempts: tuple[Attempt, ...], status: str) -> None:
        """Log the execution of a request without an answer, with the estimated cost of its calls."""
        usage, usd = self._lost(attempts)
        self._log_end(
            attempts,
            status=status,
            served_by=None,
            **counted(usage),
            cost_usd=usd,
            cost_assumed=self._unpriced(attempts),
            estimated=usage.estimated,
        )

    def _lost(self, attempts: Sequence[Attempt] = ()) -> tuple[Usage, float]:
        """Tokens and USD of attempts that were given up, and of those that failed and say what they used."""
        calls = self._tools.spending.abandoned(self._decision, attempts, self._asked, self._billed)
        usage = Usage(
            prompt_tokens=sum(each.prompt_tokens for _, each, _ in calls),
            completion_tokens=sum(each.completion_tokens for _, each, _ in calls),
            estimated=any(each.estimated for _, each, _ in calls),
        )
        return usage, math.fsum(usd for *_, usd in calls)

    def _with_costs(self, attempts: tuple[Attempt, ...], total_usd: float) -> tuple[Attempt, ...]:
        """The attempts with what each cost; the one that answered, what the others leave of the whole."""
        calls = self._tools.spending.abandoned(self._decision, attempts, self._asked, self._billed)
        lost = {id(attempt): usd for attempt, _, usd in calls}
        rest = max(total_usd - math.fsum(lost.get(id(each), 0.0) for each in attempts), 0.0)
        costs = (lost.get(id(each)) if each.error else rest for each in attempts)
        return tuple(msgspec.structs.replace(each, cost_usd=usd) for each, usd in zip(attempts, costs, strict=True))

    def _unpriced(self, attempts: tuple[Attempt, ...]) -> bool:
        """Whether a call that may be billed without an answer went to a model of unknown price."""
        arms = [a.model for a in attempts if a.error in ABANDONED]
        arms += [attempt.model for attempt, usage in self._billed if usage.cost_usd is None]
        return any(not self._tools.cards[arm].prices.known for arm in arms)

    def _log_end(
        self,
        attempts: tuple[Attempt, ...],
        *,
        status: str,
        served_by: str | None,
        message: Message | None = None,
        **measured: Any,
    ) -> Execution:
        if not measured["cost_assumed"]:
            attempts = self._with_costs(attempts, measured["cost_usd"])
        execution = execution_of(
            self._decision, self._tools.clock(), status=status, served_by=served_by, attempts=attempts, **measured
        )
        self._span.note(
            gen_ai__response__model=served_by and called(self._tools.cards[served_by]),
            gen_ai__usage__input_tokens=execution.prompt_tokens,
            gen_ai__usage__output_tokens=execution.completion_tokens,
            fitrouter__attempts=len(attempts),
            fitrouter__cost_usd=execution.known_usd,
        )
        errors = [attempt.error for attempt in attempts if attempt.error]
        self._span.end("" if status == "ok" else errors[-1] if errors and not served_by else status)
        self._tools.streaming.discard(self._decision.id)
        self._tools.spending.settle(execution, self._request.payer, self._unproven(execution))
        self._tools.recorder.append_outcome(self._proposal.prompt, self._request, self._durable, execution, message)
        return execution

    def _unproven(self, execution: Execution) -> float:
        """USD that a request may have cost, as far as it is not known what its calls were billed."""
        attempts = execution.attempts
        left = execution.status != "ok" if execution.served_by else bool(attempts) and attempts[-1].error in ABANDONED
        return self._cover.usd if left else self._lost_usd + execution.cost_usd if self._lost_usd else 0.0
