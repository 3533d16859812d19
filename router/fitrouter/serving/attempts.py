"""Calls to models: one deadline for all attempts, and fallback before the first byte only."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import msgspec

from fitrouter.draw import draw_next, renormalise
from fitrouter.errors import (
    AllModelsFailed,
    AllRateLimited,
    BudgetExhausted,
    CheckFailed,
    ContextOverflow,
    FitrouterError,
    NotCalled,
    NotCovered,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
    RateLimited,
    Unavailable,
    in_words,
)
from fitrouter.providers import Provider, tracing
from fitrouter.providers.checks import Checks
from fitrouter.providers.failures import kind_of
from fitrouter.routing.breakers import Entry, TenantBreakers
from fitrouter.routing.eligibility import STATE, without_state
from fitrouter.routing.parameters import (
    SAID,
    draws_choices,
    effort_of,
    foreign_to,
    limit_name,
    takes_cache_hints,
    takes_developer,
    toggled,
)
from fitrouter.routing.variants import apply
from fitrouter.serving.slots import CONCURRENCY, SlotParams, Slots
from fitrouter.serving.spending import Cover
from fitrouter.types import NOT_CALLED, Attempt, Call, Chunk, Completion, Decision, Message, ModelCard, Request, Usage

Answer: TypeAlias = Completion | AsyncIterator[Chunk]
_EXCERPT = 300
"""Characters of each model's error in the error of all."""
_SAID = ("content", "refusal", "tool_calls", "function_call", "audio")
_THOUGHT = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks")
"""Fields of a message with generated texts; the same thoughts may be in several."""
_TEXTS = frozenset({"arguments", "content", "custom", "function", "input", "name", "reasoning"}) | {
    *("summary", "text", "thinking", "transcript", "value")
}
_UNITS = re.compile(
    r"\d{1,3}|[\u2e80-\U0010ffff]{1,2}|[\u0900-\u0963\u0971-\u0dff]{1,20}|[\u0e00-\u109f\u1780-\u17ff]{1,3}"
    r"|[^\W\d_\u2e80-\U0010ffff]{1,20}|[^\w\s\u2e80-\U0010ffff]+(?![^\W\d_])"
)
"""What few tokens hold more than one of: three digits, two ideographs, a word with a sign before it (of India's scripts
with its vowel signs), three characters of scripts without blanks (Thai, Khmer, …), other signs."""
_LONGEST_TOKEN = 128
"""In bytes: of blanks or dashes."""
_SIDES = (
    ("prompt_tokens", "cached_tokens", "written_tokens", "written_1h_tokens", "audio_prompt_tokens"),
    ("completion_tokens", "reasoning_tokens", "audio_completion_tokens"),
)


class Timers(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts in seconds, the number of calls a request may make, and the retry budget.

    `deadline_s` is for a whole answer, and for the beginning of a stream; one that flows goes on. `first_token_s` and
    `chunk_gap_s` measure silence: whatever a server sends, comments too, begins them anew.
    """

    deadline_s: float = 120.0
    first_token_s: float = 30.0
    chunk_gap_s: float = 30.0
    attempts: int = 6
    retry_share: float = 0.5
    """Calls to a provider that has already failed the same request, for each other call of it."""


class Answering(msgspec.Struct, kw_only=True):
    """An answer that has started: complete, or the first chunks and the rest of the stream."""

    arm: str
    attempts: tuple[Attempt, ...]
    provider_s: float
    """Seconds spent waiting for providers."""
    completion: Completion | None = None
    head: tuple[Chunk, ...] = ()
    rest: AsyncIterator[Chunk] | None = None
    waited_s: float = 0.0
    """Seconds spent waiting for slots and for money."""
    release: Callable[[], None] = lambda: None
    """Gives the slot of a stream back."""
    span: tracing.Span = tracing.NOTHING
    """Of the call."""


class _Admitted(msgspec.Struct):
    """A call that the breakers let through, and that holds a slot."""

    entry: Entry
    release: Callable[[], None]
    """Gives the slot back."""
    hurried: bool
    """Whether the caller's own short deadline may end the call, which then says nothing about the model."""


class Unanswered(Exception):
    """Failure of all calls of a request; holds the error to raise and the attempts."""

    def __init__(self, error: FitrouterError, attempts: tuple[Attempt, ...]) -> None:
        super().__init__(str(error))
        self.error = error
        self.attempts = attempts


def unanswered(errors: Sequence[str | None]) -> str:
    """Return the status of a request without an answer, from the errors of its attempts in order."""
    if errors and errors[-1] in {"ProviderRejected", "ContextOverflow"}:
        return "rejected"
    return "refused" if errors and NOT_CALLED.issuperset(errors) else "failed"


class Caller:
    """Calls models, in the order of a decision's draw.

    Args:
        cards: arm → card.
        providers: provider name → provider.
        timers: timeouts; none of them includes the wait for a slot, except the deadline.
        breakers: told of every result; a model whose breaker is open is not called.
        slots: how many calls each provider gets at a time.
        checks: of answers.
    """

    def __init__(
        self,
        cards: Mapping[str, ModelCard],
        providers: Mapping[str, Provider],
        timers: Timers,
        breakers: TenantBreakers,
        slots: SlotParams,
        checks: Checks,
    ) -> None:
        self.cards, self.timers, self.breakers, self.checks = cards, timers, breakers, checks
        self.providers: dict[str, Provider] = {}
        self.slots: dict[str, Slots] = {}
        self._params = slots
        for name, provider in providers.items():
            self.connect(name, provider, slots.concurrency.get(name, CONCURRENCY))

    def connect(self, name: str, provider: Provider, concurrency: int) -> None:
        """Use another provider under a name from now on; calls that are under way end with the old one."""
        self.providers[name] = provider
        self.slots[name] = Slots(name, concurrency, self._params)

    async def first_answer(
        self,
        request: Request,
        decision: Decision,
        fallback: Decision | None,
        deadline: float,
        *,
        attempts: list[Attempt],
        billed: list[tuple[Attempt, Usage]],
        reserve: Callable[[str], Awaitable[Cover]],
        dropped: Mapping[str, tuple[str, ...]] | None = None,
    ) -> Answering:
        """Call the chosen model, then fallbacks drawn from the pmf, until one starts to answer.

        An answer of a model with a check that fails it is a failure too, unless all other models have been tried.

        Once all have failed, those whose failures may pass are drawn once more (`fitrouter.draw.draw_next`). A model
        that must not be called is logged as an attempt with the error `NotCalled`, and the next one is drawn.

        Args:
            request: the request.
            decision: names the first model.
            fallback: decision whose pmf gives the next ones; None for no fallback.
            deadline: absolute, on the monotonic clock.
            attempts: gets each attempt when it has ended, also one that is cancelled.
            billed: gets the attempts that failed although they say what they used, and that.
            reserve: reserves what a call of a model may cost, and waits for that, or raises `NotCovered`.
            dropped: arm → parameters omitted from its call.

        Raises:
            Unanswered: with ProviderRejected if a provider refused the request itself, with Unavailable if no model was
                called, else with AllModelsFailed.
        """
        calls, failed, said = 0, set[str](), list[str]()
        """Calls made, the providers that failed them, and what each model's failure was."""
        arm, probability = decision.chosen, 1.0
        started, waited, unpaid, patience = time.monotonic(), 0.0, 0.0, 0.0
        tenant = decision.identity.tenant
        while True:
            begun = time.monotonic()
            last = calls + 1 >= self.timers.attempts or fallback is None
            if attempts and fallback is not None:
                late = Attempt(model=arm, probability=probability, error=ProviderTimeout.__name__)
                last = last or draw_next(fallback, [*attempts, late]) is None
            failure: ProviderError
            try:
                cover = await reserve(arm)
                unpaid += time.monotonic() - begun
                begun = time.monotonic()
                until, retry = min(deadline, begun + self._params.wait_s - waited), self.cards[arm].provider in failed
                async with self._admitted(request, arm, tenant, until, retry=retry) as admitted:
                    waited += time.monotonic() - begun
                    begun = time.monotonic()
                    patience = (1.0 if last else 0.6) * (deadline - begun)
                    admitted.hurried = request.deadline_s is not None and patience < self.timers.first_token_s
                    left_out = (dropped or {}).get(arm, ())
                    asked, check = limited(request, cover), None if last else self.cards[arm].check
                    if check is not None and fallback is not None:
                        tried = [arm, *(attempt.model for attempt in attempts)]
                        if renormalise(fallback, tried, len(tried)) is None or (request.stream and request.n > 1):
                            check = None
                    if check is not None:  # a stream is checked as a whole, before any of it is sent
                        asked = msgspec.structs.replace(asked, stream=False)
                    answering = await self._start(asked, arm, left_out, admitted.release, patience)
                    if check is not None and (whole := answering.completion) is not None:
                        await self.checks.run(check, request, whole, deadline - time.monotonic())
                        answering = _streamed(whole) if request.stream else answering
            except ProviderError as error:
                failure = error
            except TimeoutError:
                failure = ProviderTimeout(f"no answer in {patience:.1f} s")
            except Exception as error:  # noqa: BLE001 - any exception of a provider counts as its failure
                failure = ProviderUnavailable(in_words(error))
            except asyncio.CancelledError as error:
                attempts.append(attempt_of(arm, probability, error, begun))
                raise
            else:
                attempts.append(attempt_of(arm, probability, None, begun, probe=bool(admitted.entry.probes)))
                answering.arm, answering.attempts = arm, tuple(attempts)
                answering.waited_s = waited + unpaid
                answering.provider_s = time.monotonic() - started - answering.waited_s
                return answering
            if isinstance(failure, NotCalled):
                waited += time.monotonic() - begun
                begun = time.monotonic()
            calls += not isinstance(failure, NotCalled)
            if not isinstance(failure, (CheckFailed, NotCalled, ProviderRejected)):
                failed.add(self.cards[arm].provider)
            attempts.append(attempt_of(arm, probability, failure, begun))
            if failure.usage is not None:
                billed.append((attempts[-1], failure.usage))
            said.append(f"{arm} ({_short(in_words(failure))})")
            following = None
            if calls < self.timers.attempts and deadline - time.monotonic() > 0.01 and fallback is not None:
                following = draw_next(fallback, attempts)
            final = isinstance(failure, ProviderRejected) and not isinstance(failure, ContextOverflow)
            if final or following is None:
                raise self._failed(failure, said, decision, tuple(attempts), deadline)
            arm, probability = following

    async def again(
        self, request: Request, arm: str, tenant: str, deadline: float, dropped: tuple[str, ...], *, retry: bool
    ) -> Answering:
        """Call a model that has answered a request once more, for a further choice.

        Args:
            request: the request, for one choice.
            arm: to be called.
            tenant: that asks.
            deadline: absolute, on the monotonic clock.
            dropped: parameters omitted from the call.
            retry: whether the model has already failed to draw this choice.

        Raises:
            ProviderError: it did not answer, or must not be called now.
        """
        try:
            until = min(deadline, time.monotonic() + self._params.wait_s)
            async with self._admitted(request, arm, tenant, until, retry=retry) as admitted:
                patience = deadline - time.monotonic()
                answering = await self._start(request, arm, dropped, admitted.release, patience)
        except ProviderError:
            raise
        except TimeoutError:
            raise ProviderTimeout("no further choice in time") from None
        except Exception as error:
            raise ProviderUnavailable(in_words(error)) from error
        answering.arm = arm
        return answering

    @asynccontextmanager
    async def _admitted(
        self, request: Request, arm: str, tenant: str, until: float, *, retry: bool
    ) -> AsyncIterator[_Admitted]:
        """Pass the breakers of a model and take a slot of its provider; the breakers are told how the call ended.

        Args:
            request: the request.
            arm: the model.
            tenant: that asks.
            until: end of the wait for the slot, on the monotonic clock.
            retry: whether the provider has already failed this request.

        Raises:
            NotCalled: a breaker is open, or opened during the wait, or there was no slot in time.
        """
        breakers, slots = self.breakers.of(tenant), self.slots[self.cards[arm].provider]
        admitted = _Admitted(
            breakers.enter(arm, retry=retry), partial(slots.free, tenant), request.deadline_s is not None
        )
        try:
            await slots.take(tenant, until - time.monotonic())
            try:
                breakers.confirm(admitted.entry)
            except NotCalled:
                admitted.release()
                raise
            yield admitted
        except BaseException as error:
            late = isinstance(error, (TimeoutError, ProviderTimeout))
            breakers.leave(admitted.entry, error, counts=not (late and admitted.hurried))
            raise
        breakers.leave(admitted.entry, None)

    async def _start(
        self, request: Request, arm: str, dropped: tuple[str, ...], release: Callable[[], None], patience: float
    ) -> Answering:
        """Call a model; its slot is released at the end, for a stream when the stream ends."""
        card = self.cards[arm]
        span = call_span("chat", card, gen_ai__request__stream=request.stream)
        try:
            prepared = prepare(request, card, dropped)
            with span.current():
                answering = await _call(prepared, card, self.providers[card.provider], self.timers, patience)
        except BaseException as error:
            span.end(kind_of(error).__name__)
            release()
            raise
        answering.span = span
        if answering.completion is not None:
            span.used(answering.completion.usage, answering.completion.finish_reason)
            span.end()
            release()
        else:
            answering.release = release
        return answering

    def _failed(
        self,
        failure: ProviderError,
        said: Sequence[str],
        decision: Decision,
        attempts: tuple[Attempt, ...],
        deadline: float,
    ) -> Unanswered:
        if isinstance(failure, ProviderRejected):
            return Unanswered(failure, attempts)
        message = f"no model answered; tried {'; '.join(said)}"
        called = [attempt for attempt in attempts if attempt.error not in NOT_CALLED]
        if called and all(attempt.error == RateLimited.__name__ for attempt in called):
            wait_s = self.breakers.of(decision.identity.tenant).retry_after_s(attempt.model for attempt in attempts)
            return Unanswered(AllRateLimited(message, wait_s, decision.id), attempts)
        timed_out = time.monotonic() >= deadline - 0.01 or isinstance(failure, ProviderTimeout)
        if not called and any(attempt.error == NotCovered.__name__ for attempt in attempts):
            return Unanswered(BudgetExhausted(message, decision_id=decision.id), attempts)
        # What is busy and says until when is like what is not called until then.
        if not timed_out and (not called or getattr(failure, "retry_after_s", None)):
            wait_s = self.breakers.of(decision.identity.tenant).retry_after_s(attempt.model for attempt in attempts)
            return Unanswered(Unavailable(message, wait_s, decision.id), attempts)
        return Unanswered(AllModelsFailed(message, decision.id, timed_out), attempts)


def call_span(operation: str, card: ModelCard, **more: Any) -> tracing.Span:
    """Start the trace span of one call, named by the GenAI conventions."""
    return tracing.start(
        f"{operation} {card.target or card.name}",
        kind="client",
        gen_ai__operation__name=operation,
        gen_ai__provider__name=card.provider,
        gen_ai__request__model=card.target or card.name,
        fitrouter__model=card.arm,
        **more,
    )


def _short(text: str) -> str:
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}…"


def attempt_of(
    arm: str, probability: float, error: BaseException | None, begun: float, *, probe: bool = False
) -> Attempt:
    """Make the record of an attempt that began at `begun` and ends now."""
    name = kind_of(error).__name__ if error is not None else None
    ms = (time.monotonic() - begun) * 1000.0
    return Attempt(model=arm, probability=probability, error=name, ms=ms, probe=probe)


def limited(request: Request, cover: Cover) -> Request:
    """The request with its answer limited to what is covered, where that is less."""
    if cover.max_tokens is None:
        return request
    names = [name for name in ("max_tokens", "max_completion_tokens") if request.params.get(name)] or ["max_tokens"]
    lowered = dict.fromkeys(names, cover.max_tokens)
    return msgspec.structs.replace(request, params={**request.params, **lowered})


def prepare(request: Request, card: ModelCard, dropped: tuple[str, ...]) -> Request:
    """Adapt a request to a model: apply its variant, rename its limit, omit what is dropped or not understood."""
    if not takes_cache_hints(card):
        request = _without_cache_hints(request)
    if (effort := effort_of(card, request.params)) is not None:
        request = msgspec.structs.replace(request, params={**request.params, "reasoning_effort": effort})
    if isinstance(thinking := request.params.get("thinking"), dict) and toggled(card):
        switch = {"type": "disabled" if thinking.get("type") == "disabled" else "enabled"}
        request = msgspec.structs.replace(request, params={**request.params, "thinking": switch})
    if "max_tokens" in request.params and (name := limit_name(card)) != "max_tokens":
        params = {name: request.params["max_tokens"], **request.params}
        del params["max_tokens"]
        request = msgspec.structs.replace(request, params=params)
    params = {name: value for name, value in request.params.items() if name not in dropped}
    messages, params = apply(card.variant, request.messages, params)
    if any(name.startswith(STATE) for name in dropped):
        messages = tuple(without_state(message, card) for message in messages)
    return msgspec.structs.replace(request, messages=_plain(messages, card), params=params)


def _plain(messages: Sequence[Message], card: ModelCard) -> tuple[Message, ...]:
    """The messages as a model's server reads them.

    OpenAI's `developer` is `system` to others, whose templates take one such message, at the beginning. What was
    thought is left out where fields that a server does not know are refused, and so is a turn that says nothing.
    """
    known, foreign = takes_developer(card), foreign_to(card)
    found: list[Message] = []
    for message in messages:
        role = message.get("role")
        if role == "developer" and not known:
            found.append({**message, "role": "system"})
        elif role != "assistant":
            found.append(message)
        elif any(message.get(name) for name in SAID - foreign):
            found.append({name: value for name, value in message.items() if name not in foreign})
    first = next((i for i, message in enumerate(found) if message.get("role") != "system"), len(found))
    if first > 1 and not known:
        contents = [message.get("content") or "" for message in found[:first]]
        texts = [content for content in contents if isinstance(content, str)]
        parts = [[{"type": "text", "text": each}] if isinstance(each, str) else each for each in contents]
        whole = "\n\n".join(texts) if len(texts) == first else [*chain.from_iterable(parts)]
        found[:first] = [{**found[0], "content": whole}]
    return tuple(found or messages)


def _without_cache_hints(request: Request) -> Request:
    """The request without `cache_control`, which is a hint to Anthropic's cache."""
    messages = tuple(
        {**message, "content": _unhinted(content)} if isinstance(content := message.get("content"), list) else message
        for message in request.messages
    )
    params, tools = request.params, request.params.get("tools")
    if isinstance(tools, list):
        params = {**params, "tools": _unhinted(tools)}
    return msgspec.structs.replace(request, messages=messages, params=params)


def _unhinted(items: list[Any]) -> list[Any]:
    return [
        {name: value for name, value in item.items() if name != "cache_control"}
        if isinstance(item, dict) and "cache_control" in item
        else item
        for item in items
    ]


async def _call(request: Request, card: ModelCard, provider: Provider, timers: Timers, patience: float) -> Answering:
    """Call a model once, and wait for the complete answer or the first chunk with content."""
    if patience <= 0:
        raise NotCalled("the request's deadline has passed")
    call = Call(
        target=card.target or card.name,
        messages=request.messages,
        params=request.params,
        stream=request.stream,
        n=request.n if draws_choices(card) else 1,
        timeout_s=patience,
    )
    if not request.stream:
        async with asyncio.timeout(patience):
            answer = await provider.complete(call)
        if not isinstance(answer, Completion):
            await close(answer)
            raise ProviderUnavailable(f"{card.name!r} streamed although a complete answer was requested")
        return Answering(arm="", attempts=(), provider_s=0.0, completion=answer)
    loop = asyncio.get_running_loop()
    latest = loop.time() + patience
    async with asyncio.timeout(min(patience, timers.first_token_s)) as silence:
        answer = await provider.complete(call)
        if isinstance(answer, Completion):
            raise ProviderUnavailable(f"{card.name!r} sent a complete answer although a stream was requested")
        rest = aiter(answer)
        head: list[Chunk] = []
        try:
            async for chunk in rest:
                silence.reschedule(min(latest, loop.time() + timers.first_token_s))
                if not (chunk.delta or chunk.further) and chunk.finish_reason is None and chunk.usage is None:
                    continue  # a sign of life
                head.append(chunk)
                # A chunk with only a role is not an answer yet: another model can still give it.
                if any(value for key, value in chunk.delta.items() if key != "role"):
                    return Answering(arm="", attempts=(), provider_s=0.0, head=tuple(head), rest=rest)
        except BaseException as error:
            await close(rest)
            if isinstance(error, ProviderUnavailable):
                error.billed(error.usage or _reported(head))
            raise
    if any(chunk.finish_reason for chunk in head):  # an empty answer is one: it says why it ended, and what it cost
        return Answering(arm="", attempts=(), provider_s=0.0, head=tuple(head), rest=rest)
    raise ProviderUnavailable(f"{card.name!r} ended its stream without an answer").billed(_reported(head))


def _streamed(whole: Completion) -> Answering:
    """A complete answer as a stream."""

    async def rest() -> AsyncIterator[Chunk]:
        yield Chunk(finish_reason=whole.finish_reason, beside=whole.beside)
        yield Chunk(usage=whole.usage)

    delta = dict(whole.message)
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
    head = (Chunk(delta=delta, logprobs=whole.logprobs, further=whole.further),)
    return Answering(arm="", attempts=(), provider_s=0.0, head=head, rest=rest())


def _reported(head: Sequence[Chunk]) -> Usage | None:
    """What a stream that said nothing has reported that it used."""
    whole = Assembler()
    for chunk in head:
        whole.add(chunk)
    return whole.usage


async def next_chunk(chunks: AsyncIterator[Chunk], gap_s: float, deadline: float) -> Chunk | None:
    """Return the next chunk, waiting within the gap timer and the caller's own deadline; None at the end.

    Raises:
        ProviderError: none came in time, or the stream failed.
    """
    left = deadline - time.monotonic()
    patience = min(gap_s, left)
    try:
        async with asyncio.timeout(patience):
            return await anext(chunks)
    except StopAsyncIteration:
        return None
    except TimeoutError:
        if left < gap_s:
            raise ProviderTimeout("the deadline of the request itself has passed; the answer is incomplete") from None
        raise ProviderTimeout(f"the stream sent nothing for {patience:.1f} s") from None
    except ProviderError:
        raise
    except Exception as error:  # any exception of a provider counts as its failure
        raise ProviderError(in_words(error)) from error


async def close(chunks: AsyncIterator[Chunk]) -> None:
    """Close a provider's stream, ignoring errors."""
    aclose: Callable[[], Any] | None = getattr(chunks, "aclose", None)
    if aclose is not None:
        try:
            await aclose()
        except Exception:  # noqa: BLE001 - the stream is abandoned
            return


class Reported:
    """What the stream of a call has reported that it used, which is the last word if nothing was said since."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self._said = 0

    def add(self, usage: Usage, said: int) -> None:
        """Add a report, made when so many tokens had been said; a side of it that is 0 is what was known before."""
        if usage.completion_tokens or usage.cost_usd is not None:
            self._said = said
        for side in _SIDES if self.usage is not None else ():
            if not getattr(usage, side[0]):
                usage = msgspec.structs.replace(usage, **{name: getattr(self.usage, name) for name in side})
        self.usage = usage

    def used(self, said: int, *, ended: bool) -> Usage:
        """Return what was used; estimated where more was said after the last report, or the stream did not end."""
        usage, since = self.usage or Usage(), max(said - self._said, 0)
        if ended and not since:
            return usage
        tokens = max(usage.completion_tokens + since, said)
        return msgspec.structs.replace(usage, completion_tokens=tokens, cost_usd=None, estimated=True)


class Assembler:
    """Assembles streamed deltas into a complete message."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._bytes = 0
        self._calls: dict[int, tuple[dict[str, Any], dict[str, list[str]]]] = {}
        self._reported = Reported()
        self._sent, self._uncounted = 0, list[tuple[int, list[str]]]()
        self.ended = False
        """Whether the end was told, and nothing said since."""
        self.finish_reason: str | None = None

    def add(self, chunk: Chunk) -> None:
        """Add a chunk."""
        content = chunk.delta.get("content")
        if isinstance(content, str):
            self._text.append(content)
        pieces = chunk.delta.get("tool_calls")
        for piece in pieces if isinstance(pieces, list) else ():
            self._add_call(piece if isinstance(piece, dict) else {})
        if any(value for name, value in chunk.delta.items() if name != "role"):
            texts = _spoken(chunk.delta)
            size = sum(len(text.encode("utf-8", "replace")) for text in texts)
            self._bytes += size
            self._uncounted.append((size, texts))
            self.ended = self.finish_reason is None and chunk.finish_reason is not None
        elif chunk.finish_reason is not None:
            self.ended = True
        self.finish_reason = chunk.finish_reason or self.finish_reason
        if chunk.usage is not None:
            self._reported.add(chunk.usage, self.tokens)

    def _add_call(self, piece: Message) -> None:
        index, function = piece.get("index"), piece.get("function")
        call, texts = self._calls.setdefault(
            index if isinstance(index, int) else 0, ({"type": "function"}, {"name": [], "arguments": []})
        )
        if piece.get("id"):
            call["id"] = piece["id"]
        for name, said in texts.items():
            text = function.get(name) if isinstance(function, dict) else None
            if isinstance(text, str):
                said.append(text)

    @property
    def sent(self) -> int:
        """Tokens so far, hardly more than a server has generated: few of them hold more than a word."""
        while self._uncounted:  # dear, and asked for under hard limits only
            size, texts = self._uncounted.pop()
            self._sent += max(1, size // _LONGEST_TOKEN, sum(len(_UNITS.findall(text)) for text in texts))
        return self._sent

    @property
    def usage(self) -> Usage | None:
        """What was reported so far, if anything."""
        return self._reported.usage

    def used(self, limit: int | None = None, *, ended: bool = True) -> Usage:
        """Return what was used, estimated where that is not reported."""
        return self._reported.used(self.said(limit), ended=ended)

    def cut(self, limit: int) -> None:
        """End at a limit: what crossed it is neither told nor counted."""
        self._sent, self.finish_reason, self.ended = min(self.sent, limit), "length", True

    def said(self, limit: int | None) -> int:
        """Estimated tokens so far, within what a limit let a server say; more only as far as it surely did."""
        return self.tokens if limit is None else min(self.tokens, max(limit, self.sent))

    @property
    def tokens(self) -> int:
        """Estimated tokens so far, counted as in `fitrouter.context.features.estimate_tokens`."""
        return -(-self._bytes // 4)

    def require_end(self, arm: str) -> None:
        """Raise if the stream ended without a finish reason.

        Raises:
            ProviderError: there was no finish reason.
        """
        if self.finish_reason is None:
            raise ProviderError(f"{arm!r} ended its stream without a finish reason")

    def message(self) -> Message:
        """The assistant message so far."""
        message: Message = {"role": "assistant", "content": "".join(self._text) or None}
        if self._calls:
            message["tool_calls"] = [
                {**call, "function": {name: "".join(said) for name, said in texts.items()}}
                for _, (call, texts) in sorted(self._calls.items(), key=lambda each: each[0])
            ]
        return message


def _spoken(message: Message) -> list[str]:
    """The texts of a message or delta that a model has generated."""
    said = [text for name in _SAID if name in message for text in _texts(message[name])]
    thoughts = ([*_texts(message[name])] for name in _THOUGHT if name in message)
    return said + max(thoughts, key=lambda texts: sum(map(len, texts)), default=[])


def _texts(value: object, levels: int = 4) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif levels and isinstance(value, list | dict):
        for each in value if isinstance(value, list) else [value[name] for name in value.keys() & _TEXTS]:
            yield from _texts(each, levels - 1)


def said_tokens(message: Message) -> int:
    """Estimate the tokens of a complete answer as `Assembler` does."""
    assembler = Assembler()
    assembler.add(Chunk(delta=message))
    return assembler.tokens
