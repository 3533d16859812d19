"""Calls to models: one deadline for all attempts, and fallback before the first byte only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from fitrouter.draw import renormalise
from fitrouter.errors import (
    AllModelsFailed,
    ContextOverflow,
    FitrouterError,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
)
from fitrouter.providers import Provider
from fitrouter.routing.variants import apply
from fitrouter.types import Attempt, Call, Chunk, Completion, Decision, Message, ModelCard, Request, Usage

Answer: TypeAlias = Completion | AsyncIterator[Chunk]


class Timers(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts in seconds, and the number of models a request may try."""

    deadline_s: float = 120.0
    first_token_s: float = 30.0
    chunk_gap_s: float = 30.0
    attempts: int = 3


class Answering(msgspec.Struct, kw_only=True):
    """An answer that has started: complete, or the first chunks and the rest of the stream."""

    arm: str
    attempts: tuple[Attempt, ...]
    provider_s: float
    """Seconds spent waiting for providers."""
    completion: Completion | None = None
    head: tuple[Chunk, ...] = ()
    rest: AsyncIterator[Chunk] | None = None


class Unanswered(Exception):
    """No model answered; holds the error to raise and the attempts."""

    def __init__(self, error: FitrouterError, attempts: tuple[Attempt, ...]) -> None:
        super().__init__(str(error))
        self.error = error
        self.attempts = attempts


async def first_answer(
    request: Request,
    decision: Decision,
    fallback: Decision | None,
    cards: Mapping[str, ModelCard],
    providers: Mapping[str, Provider],
    timers: Timers,
    deadline: float,
    *,
    dropped: Mapping[str, tuple[str, ...]] | None = None,
) -> Answering:
    """Call the chosen model, then fallbacks drawn from the pmf, until one starts to answer.

    Args:
        request: the request.
        decision: names the first model.
        fallback: decision whose pmf, renormalised without failed models, gives the next ones; None for no fallback.
        cards: arm → card.
        providers: provider name → provider.
        timers: timeouts.
        deadline: absolute, on the monotonic clock.
        dropped: arm → parameters omitted from its call.

    Raises:
        Unanswered: with ProviderRejected if a provider refused the request itself, else with AllModelsFailed.
    """
    attempts: list[Attempt] = []
    arm, probability = decision.chosen, 1.0
    started = time.monotonic()
    while True:
        begun = time.monotonic()
        left = deadline - begun
        last = len(attempts) + 1 >= timers.attempts or fallback is None
        patience = left if last else 0.6 * left
        try:
            card = cards[arm]
            prepared = _prepare(request, card, (dropped or {}).get(arm, ()))
            answering = await _call(prepared, card, providers[card.provider], timers, patience)
        except (ProviderError, TimeoutError, OSError) as error:
            failure = error if isinstance(error, ProviderError) else ProviderTimeout(f"no answer in {patience:.1f} s")
        except Exception as error:  # noqa: BLE001 - any exception of a provider counts as its failure
            failure = ProviderUnavailable(f"{type(error).__name__}: {error}")
        else:
            attempts.append(_attempt(arm, probability, None, begun))
            answering.arm, answering.attempts = arm, tuple(attempts)
            answering.provider_s = time.monotonic() - started
            return answering
        attempts.append(_attempt(arm, probability, failure, begun))
        following = None
        if not last and deadline - time.monotonic() > 0.01 and fallback is not None:
            following = renormalise(fallback, [attempt.model for attempt in attempts], len(attempts))
        final = isinstance(failure, ProviderRejected) and not isinstance(failure, ContextOverflow)
        if final or following is None:
            raise _failed(failure, decision, tuple(attempts), deadline)
        arm, probability = following


def _attempt(arm: str, probability: float, error: Exception | None, begun: float) -> Attempt:
    name = type(error).__name__ if error is not None else None
    return Attempt(model=arm, probability=probability, error=name, ms=(time.monotonic() - begun) * 1000.0)


def _failed(failure: ProviderError, decision: Decision, attempts: tuple[Attempt, ...], deadline: float) -> Unanswered:
    if isinstance(failure, ProviderRejected):
        return Unanswered(failure, attempts)
    tried = ", ".join(f"{attempt.model} ({attempt.error})" for attempt in attempts)
    timed_out = time.monotonic() >= deadline - 0.01 or isinstance(failure, ProviderTimeout)
    message = f"no model answered; tried {tried}; last error: {failure}"
    return Unanswered(AllModelsFailed(message, decision.id, timed_out), attempts)


def _prepare(request: Request, card: ModelCard, dropped: tuple[str, ...]) -> Request:
    """Apply a card's variant to the request and omit dropped parameters."""
    if card.variant is None and not dropped:
        return request
    params = {name: value for name, value in request.params.items() if name not in dropped}
    messages, params = apply(card.variant, request.messages, params)
    return msgspec.structs.replace(request, messages=messages, params=params)


async def _call(request: Request, card: ModelCard, provider: Provider, timers: Timers, patience: float) -> Answering:
    """One attempt, until the complete answer or the first chunk with content."""
    if patience <= 0:
        raise ProviderTimeout("the request's deadline has passed")
    call = Call(
        target=card.target or card.name,
        messages=request.messages,
        params=request.params,
        stream=request.stream,
        timeout_s=patience,
    )
    if not request.stream:
        async with asyncio.timeout(patience):
            answer = await provider.complete(call)
        if not isinstance(answer, Completion):
            await close(answer)
            raise ProviderUnavailable(f"{card.name!r} streamed although a complete answer was requested")
        return Answering(arm="", attempts=(), provider_s=0.0, completion=answer)
    async with asyncio.timeout(min(patience, timers.first_token_s)):
        answer = await provider.complete(call)
        if isinstance(answer, Completion):
            raise ProviderUnavailable(f"{card.name!r} sent a complete answer although a stream was requested")
        rest = aiter(answer)
        head: list[Chunk] = []
        try:
            async for chunk in rest:
                head.append(chunk)
                # A chunk with only a role or an end is not an answer yet: another model can still give it.
                if any(value for key, value in chunk.delta.items() if key != "role"):
                    return Answering(arm="", attempts=(), provider_s=0.0, head=tuple(head), rest=rest)
        except BaseException:
            await close(rest)
            raise
    raise ProviderUnavailable(f"{card.name!r} ended its stream without an answer")


async def close(chunks: AsyncIterator[Chunk]) -> None:
    """Close a provider's stream, ignoring errors."""
    aclose: Callable[[], Any] | None = getattr(chunks, "aclose", None)
    if aclose is not None:
        try:
            await aclose()
        except Exception:  # noqa: BLE001 - the stream is abandoned
            return


class Assembler:
    """Assembles streamed deltas into a complete message."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self.finish_reason: str | None = None
        self.usage = Usage()

    def add(self, chunk: Chunk) -> None:
        """Add a chunk."""
        content = chunk.delta.get("content")
        if isinstance(content, str):
            self._text.append(content)
        for piece in chunk.delta.get("tool_calls") or ():
            call = self._calls.setdefault(
                piece.get("index", 0), {"type": "function", "function": {"name": "", "arguments": ""}}
            )
            if piece.get("id"):
                call["id"] = piece["id"]
            function = piece.get("function") or {}
            call["function"]["name"] += function.get("name") or ""
            call["function"]["arguments"] += function.get("arguments") or ""
        self.finish_reason = chunk.finish_reason or self.finish_reason
        if chunk.usage is not None:
            self.usage = chunk.usage

    def require_end(self, arm: str) -> None:
        """Raise if the stream broke off.

        Raises:
            ProviderError: there was no finish reason.
        """
        if self.finish_reason is None:
            raise ProviderError(f"{arm!r} ended its stream without a finish reason")

    def message(self) -> Message:
        """The assistant message so far."""
        message: Message = {"role": "assistant", "content": "".join(self._text) or None}
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return message
