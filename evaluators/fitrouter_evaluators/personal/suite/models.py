"""Asks configured models, or reads recorded answers; every answer is kept in a ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fitrouter.context.features import estimate_tokens
from fitrouter.errors import BudgetExhausted, InvalidRequest, ProviderTimeout
from fitrouter.providers import Provider, Recorded
from fitrouter.serving.spending import charge
from fitrouter.types import Call, Completion, ModelCard
from fitrouter_evaluators.personal.suite.ledger import Ledger, LedgerAnswer

AT_ONCE = 8
"""Calls at a time."""
TOKENS = 1000
"""Longest answer, in tokens."""


class Models:
    """Asks the models of a suite, within a budget.

    Args:
        cards: of the models that may be asked, by name.
        providers: by name.
        ledger: keeps the answers.
        limit_usd: calls that would cost more in all are not made.
        recorded: answers that are read instead of asking.
        timeout_s: of a call.
    """

    def __init__(
        self,
        cards: Mapping[str, ModelCard],
        providers: Mapping[str, Provider],
        ledger: Ledger,
        *,
        limit_usd: float = 0.5,
        recorded: Recorded | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        self.cards, self.ledger, self.recorded = cards, ledger, recorded
        self._providers, self._limit, self._timeout_s = providers, limit_usd, timeout_s
        self._reserved = 0.0
        self._slots = asyncio.Semaphore(AT_ONCE)

    def card(self, model: str) -> ModelCard:
        """The card of a model.

        Raises:
            InvalidRequest: it is not configured.
        """
        if model not in self.cards:
            raise InvalidRequest(f"unknown model {model!r}; configured are {', '.join(sorted(self.cards))}")
        return self.cards[model]

    def kept(self, model: str, messages: Sequence[dict[str, Any]], tokens: int = TOKENS) -> bool:
        """Whether an answer is known or recorded, so that no call is made."""
        if self.ledger.known(model, _request(messages, tokens)) is not None:
            return True
        return self.recorded is not None and self._recorded(self.card(model), messages) is not None

    def cost(self, model: str, messages: Sequence[dict[str, Any]], tokens: int = TOKENS) -> float:
        """Largest possible cost of a call in USD; 0 if its answer is already known or the model has no price."""
        card = self.card(model)
        if self.kept(model, messages, tokens):
            return 0.0
        return (card.prices.input * estimate_tokens(tuple(messages), {}) + card.prices.output * tokens) / 1e6

    async def ask(
        self, model: str, messages: Sequence[dict[str, Any]], tokens: int = TOKENS, **params: Any
    ) -> str | None:
        """Ask a model and return its answer's text, or its tool calls as JSON; None if a call was lost in a crash.

        Raises:
            BudgetExhausted: the call may cost more than is left.
            InvalidRequest: there is no recorded answer, and the model cannot be asked.
            ProviderError: it failed.
        """
        card = self.card(model)
        if self.recorded is not None and (text := self._recorded(card, messages)) is not None:
            return text
        if card.provider not in self._providers:
            raise InvalidRequest(f"model {model!r}: the file of answers has none to {messages[-1]['content'][:60]!r}")

        async def call() -> LedgerAnswer:
            most = self.cost(model, messages, tokens)
            if self.ledger.usd + self._reserved + most > self._limit:
                raise BudgetExhausted(
                    f"a call of {model!r} may cost USD {most:.4f}, and USD {self.ledger.usd:.4f} of {self._limit:g} "
                    "are spent; raise --limit; what was answered is kept"
                )
            self._reserved += most
            try:
                async with self._slots, asyncio.timeout(self._timeout_s):
                    found = await self._providers[card.provider].complete(
                        Call(
                            target=card.target,
                            messages=tuple(messages),
                            params={"max_tokens": tokens, **params},
                            timeout_s=self._timeout_s,
                        )
                    )
            except TimeoutError:
                raise ProviderTimeout(f"model {model!r} did not answer within {self._timeout_s:g} s") from None
            finally:
                self._reserved -= most
            assert isinstance(found, Completion)
            cost = charge(card, found.usage)
            text = str(found.message.get("content") or "")
            if not text and found.message.get("tool_calls"):
                text = msgspec.json.encode(found.message["tool_calls"]).decode()
            return LedgerAnswer(text, None if cost.assumed else cost.usd)

        answered = await self.ledger.ask(model, _request(messages, tokens), call)
        return None if answered is None else answered.text

    async def aclose(self) -> None:
        """Close the providers."""
        for provider in self._providers.values():
            await provider.aclose()

    def _recorded(self, card: ModelCard, messages: Sequence[dict[str, Any]]) -> str | None:
        assert self.recorded is not None
        answers = self.recorded.answers(str(messages[-1]["content"]))
        return answers.get(card.target, answers.get(card.name))


def _request(messages: Sequence[dict[str, Any]], tokens: int) -> tuple[Sequence[dict[str, Any]], int]:
    return messages, tokens
