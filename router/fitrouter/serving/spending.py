"""Cost of calls: reservations before a call, charged tokens after it.

What a provider says that a call cost is its cost; else tokens times prices. Counts are taken where the model's context
window can hold them: tools that the provider runs add more to a prompt than its text. Where it reports none, since a
stream was left or a call abandoned, they are estimated and marked: the provider bills them all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from fitrouter.providers.usage import consistent
from fitrouter.routing.eligibility import Wants
from fitrouter.routing.parameters import draws_choices
from fitrouter.state.learner import Learner
from fitrouter.types import WHOLE, Attempt, Decision, Execution, ModelCard, Payer, Prices, Usage

ABANDONED = frozenset({"ProviderTimeout", "CancelledError"})
"""Errors of calls that the provider may have answered, and billed."""
MOST_STATED_USD = 1.0
"""A stated cost up to it is always plausible: fees of tools that the provider ran are no tokens."""
PLAN_S = 60.0
"""How long the reservation of a plan that nobody reports outlives its deadline."""


class Spending:
    """Reserves the cost of calls in the tenants' budgets.

    Args:
        cards: arm → card.
        learner: its budgets; replaced by a refit, so read anew each time.
        clock: seconds since the epoch.
    """

    def __init__(self, cards: Mapping[str, ModelCard], learner: Learner, clock: Callable[[], float]) -> None:
        self.cards, self.learner, self.clock = cards, learner, clock

    def reserve(
        self,
        decision: Decision,
        arm: str,
        asked: Wants,
        payer: Payer | None = None,
        *,
        lost_usd: float = 0.0,
        valid_s: float = math.inf,
    ) -> bool:
        """Reserve the expected cost of a call; False if a hard budget, or the key's limit, does not cover it.

        Args:
            decision: of the request.
            arm: to be called.
            asked: requirements of the request; an answer cannot cost more than its limit.
            payer: the key, if it has a limit.
            lost_usd: cost of the request's earlier calls.
            valid_s: how long the reservation holds if nobody settles it.
        """
        tenant = decision.identity.tenant
        projections = self.learner.of(tenant).projections
        usd = decision.cost[decision.eligible.index(arm)]
        if asked.answer_tokens:
            most = Usage(prompt_tokens=asked.prompt_tokens, completion_tokens=asked.answer_tokens)
            usd = min(usd, spent(self.cards[arm].prices, most))
        now = self.clock()
        usd = lost_usd + asked.choices * usd
        covered = projections.budgets.reserve(tenant, now, decision.id, usd, now + valid_s)
        return covered and projections.accounts.reserve(payer, now, decision.id, usd, now + valid_s)

    def abandoned(self, decision: Decision, attempts: Sequence[Attempt], asked: Wants) -> tuple[Usage, float]:
        """Estimate tokens and USD of calls that were given up before an answer.

        The prompt counts in full, the answer by the share of its expected time that has passed.
        """
        usd, tokens, calls = 0.0, 0.0, [a for a in attempts if a.error in ABANDONED]
        for attempt in calls:
            k = decision.eligible.index(attempt.model)
            prices = self.cards[attempt.model].prices
            prompt_usd = prices.input * asked.prompt_tokens / 1e6
            share = min(attempt.ms / 1000.0 / max(decision.latency[k], 1e-3), 1.0)
            answer_usd = share * max(decision.cost[k] - prompt_usd, 0.0)
            if asked.answer_tokens:
                answer_usd = min(answer_usd, prices.output * asked.answer_tokens / 1e6)
            answer_usd *= asked.choices if draws_choices(self.cards[attempt.model]) else 1
            usd += prompt_usd + answer_usd + prices.request
            tokens += answer_usd * 1e6 / prices.output if prices.output else 0.0
        prompt_tokens = asked.prompt_tokens * len(calls)
        return Usage(prompt_tokens=prompt_tokens, completion_tokens=int(tokens), estimated=bool(calls)), usd

    def settle(self, execution: Execution) -> None:
        """Replace the reservation of a request by its real cost."""
        tenant = execution.identity.tenant
        projections = self.learner.of(tenant).projections
        projections.budgets.settle(tenant, execution.ts, execution.decision_id, execution.cost_usd)
        projections.accounts.settle(execution.payer, execution.ts, execution.decision_id, execution.cost_usd)


def checked_usage(
    usage: Usage, card: ModelCard, asked: Wants, said_tokens: int, *, whole: bool = True, choices: int = 1
) -> Usage:
    """Return the provider's token counts of one call, estimating those that are missing or impossible.

    Args:
        usage: as reported; counts of 0 where something was sent are missing.
        card: the model that answered.
        asked: requirements of the request.
        said_tokens: estimated tokens of the answer.
        whole: whether `asked` is of the whole prompt, not only of its last turn; else nothing is taken as missing.
        choices: number of answers of the call.
    """
    window = 2 * card.context_window  # the configured window may be too small
    prefix = 0 if card.variant is None else len(card.variant.prefix)
    prompt = _within(usage.prompt_tokens, window, asked.prompt_tokens + prefix // 4, whole)
    # Hidden reasoning is not in the text.
    most = 2 * choices * (card.max_output_tokens or card.context_window)
    completion = _within(usage.completion_tokens, most, said_tokens, whole)
    guessed = (prompt, completion) != (usage.prompt_tokens, usage.completion_tokens)
    if prompt != usage.prompt_tokens:
        usage = msgspec.structs.replace(usage, cached_tokens=0, written_tokens=0, audio_prompt_tokens=0)
    return consistent(
        msgspec.structs.replace(
            usage, prompt_tokens=prompt, completion_tokens=completion, estimated=usage.estimated or guessed
        )
    )


def _within(reported: int, most: int, estimate: int, required: bool) -> int:
    missing = reported == 0 and required
    return reported if 0 <= reported <= most and not missing else min(estimate, most)


class Charge(NamedTuple):
    """Cost of calls of one model."""

    usd: float
    assumed: bool
    """Whether the model has no known price, and the provider stated no cost."""
    estimated: bool
    """Whether a part of the tokens was counted at another part's price, for want of its own (`WHOLE`)."""


def charge(card: ModelCard, usage: Usage) -> Charge:
    """Return the cost that the provider states, if that is plausible; else the tokens' cost.

    Up to a dollar, or twice a full context window each way, is plausible.
    """
    prices, stated = card.prices, usage.cost_usd
    window = 2 * card.context_window
    most = usage.calls * max(spent(prices, Usage(prompt_tokens=window, completion_tokens=window)), MOST_STATED_USD)
    if stated is not None and (stated <= most or not prices.known):
        return Charge(stated, assumed=False, estimated=False)
    counted = [part for part, tokens in parts(usage).items() if tokens and part in WHOLE and part != "reasoning"]
    guessed = any(getattr(prices, part) is None and prices.of(part) > 0.0 for part in counted)
    return Charge(spent(prices, usage), assumed=not prices.known, estimated=guessed)


def parts(usage: Usage) -> dict[str, int]:
    """Split a call's tokens into the parts that are billed apart: name of the price → tokens."""
    of_prompt = usage.cached_tokens + usage.written_tokens + usage.audio_prompt_tokens
    return {
        "input": usage.prompt_tokens - of_prompt,
        "cache_read": usage.cached_tokens,
        "cache_write": usage.written_tokens - usage.written_1h_tokens,
        "cache_write_1h": usage.written_1h_tokens,
        "audio_input": usage.audio_prompt_tokens,
        "output": usage.completion_tokens - usage.reasoning_tokens - usage.audio_completion_tokens,
        "reasoning": usage.reasoning_tokens,
        "audio_output": usage.audio_completion_tokens,
    }


def spent(prices: Prices, usage: Usage) -> float:
    """Cost in USD of the tokens and calls, at these prices."""
    return sum(prices.of(part) * tokens for part, tokens in parts(usage).items()) / 1e6 + prices.request * usage.calls
