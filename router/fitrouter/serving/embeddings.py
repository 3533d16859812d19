"""Embeddings: calls of the models configured for them, passed through without routing or learning.

Each call is logged as a decision for a pinned model, so that its cost counts in budgets, also of other processes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from fitrouter.draw import uuid7
from fitrouter.errors import (
    BudgetExhausted,
    FitrouterError,
    NotCalled,
    ProviderError,
    ProviderTimeout,
    ProviderUnavailable,
    Unavailable,
    in_words,
)
from fitrouter.providers import Provider
from fitrouter.providers.failures import kind_of
from fitrouter.routing.decider import exhausted
from fitrouter.routing.eligibility import Wants
from fitrouter.serving.attempts import call_span, unanswered
from fitrouter.serving.recorder import Recorder, execution_of
from fitrouter.serving.slots import Slots
from fitrouter.serving.spending import Charge, Spending, charge, checked_usage, counted, spent
from fitrouter.types import (
    Decision,
    EmbeddingCall,
    Embeddings,
    Identity,
    Mode,
    ModelCard,
    PolicyVersion,
    Request,
    Usage,
)

WINDOW = 2**31
"""Context window of the cards: a batch may hold any number of texts."""


class Embedded(msgspec.Struct, frozen=True, kw_only=True):
    """Vectors of the texts of a request."""

    decision: Decision
    found: Embeddings
    cost_usd: float
    logged: bool


class Embedder:
    """Calls models for embeddings, once each, as clients retry by themselves.

    Args:
        cards: name → card of the models.
        providers: provider name → provider; those of the cards have the method `embed`.
        slots: provider name → its concurrency limit, which chat completions share.
        recorder: of events.
        spending: of the tenants' budgets.
        deadline_s: time for a request.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        cards: Mapping[str, ModelCard],
        *,
        providers: Mapping[str, Provider],
        slots: Mapping[str, Slots],
        recorder: Recorder,
        spending: Spending,
        deadline_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.cards, self.providers, self.slots = dict(cards), providers, slots
        self.recorder, self.spending, self.deadline_s, self.clock = recorder, spending, deadline_s, clock

    async def embed(self, request: Request) -> Embedded:
        """Call a model for embeddings; see `Router.embed`."""
        card, now = self.cards[request.model], self.clock()
        tenant, given = request.identity.tenant, dict(request.params)
        asked = Wants(prompt_tokens=_tokens(given.pop("input", None)), params=given)
        decision_id = uuid7(now)
        decision = Decision(
            id=decision_id,
            ts=now,
            draw_id=decision_id,
            identity=Identity(tenant=tenant),
            mode=Mode.PINNED,
            eligible=(card.arm,),
            chosen=card.arm,
            propensity=1.0,
            cost=(spent(card.prices, Usage(prompt_tokens=asked.prompt_tokens)),),
            policy=PolicyVersion(algorithm="embeddings"),
            payer="" if request.payer is None else request.payer.name,
            key=request.key,
        )
        cover = await self.spending.reserve(decision, card, asked, request.payer)
        if cover.refusal:
            projections = self.spending.learner.facts(tenant)
            self.recorder.refuse(Identity(tenant=tenant), BudgetExhausted.reason, card.arm, request.key)
            raise exhausted([(card.arm, cover.refusal)], projections.wait_s(tenant, request.payer, now))
        stored = self.recorder.append_event(decision)
        status, usage = "failed", Usage()
        try:
            found = await self._call(card, request)
            usage = checked_usage(found.usage, card, asked, 0)
            found, status = msgspec.structs.replace(found, usage=usage), "ok"
        except (FitrouterError, asyncio.CancelledError) as error:
            if isinstance(error, (ProviderTimeout, asyncio.CancelledError)):  # the provider may bill it all the same
                usage = Usage(prompt_tokens=asked.prompt_tokens, estimated=True)
            elif isinstance(error, ProviderError) and error.usage is not None:
                usage = checked_usage(error.usage, card, asked, 0, whole=False)
            failure = NotCalled.__name__ if isinstance(error, Unavailable) else kind_of(error).__name__
            status = "cancelled" if isinstance(error, asyncio.CancelledError) else unanswered([failure])
            raise
        finally:
            charged = charge(card, usage) if usage != Usage() else Charge(0.0, assumed=False, estimated=False)
            execution = execution_of(
                decision,
                self.clock(),
                status=status,
                served_by=card.arm if status == "ok" else None,
                attempts=(),
                **counted(usage),
                cost_usd=charged.usd,
                cost_assumed=charged.assumed,
                estimated=usage.estimated or charged.estimated,
                latency_ms=(self.clock() - now) * 1000.0,
            )
            self.spending.settle(execution, request.payer, cover.usd if usage.estimated and status != "ok" else 0.0)
            self.recorder.append_outcome("", request, stored, execution, None)
        logged = await self.recorder.durable(decision, stored)
        return Embedded(decision=decision, found=found, cost_usd=execution.cost_usd, logged=logged)

    async def _call(self, card: ModelCard, request: Request) -> Embeddings:
        """Call a model once, within the provider's slots and the deadline.

        Raises:
            Unavailable: the provider has no free slot.
            ProviderError: it gave no answer.
        """
        slots, tenant = self.slots[card.provider], request.identity.tenant
        embed: Any = getattr(self.providers[card.provider], "embed", None)
        span = call_span("embeddings", card)
        try:
            async with asyncio.timeout(self.deadline_s):
                await slots.take(tenant, self.deadline_s)
                try:
                    with span.trying():
                        found: Embeddings = await embed(
                            EmbeddingCall(
                                target=card.target or card.name, params=request.params, timeout_s=self.deadline_s
                            )
                        )
                    span.used(found.usage, None)
                    span.end()
                finally:
                    slots.free(tenant)
        except NotCalled as error:
            raise Unavailable(str(error)) from error
        except TimeoutError:
            raise ProviderTimeout(f"no embeddings in {self.deadline_s:g} s") from None
        except ProviderError:
            raise
        except Exception as error:  # any exception of a provider counts as its failure
            raise ProviderUnavailable(in_words(error)) from error
        return found


def _tokens(given: object) -> int:
    """Estimate the tokens of an input: a text, a list of tokens, or a list of either."""
    if isinstance(given, str):
        return math.ceil(len(given.encode("utf-8", "replace")) / 4)
    return sum(1 if isinstance(one, int) else _tokens(one) for one in given) if isinstance(given, list) else 0
