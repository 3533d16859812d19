"""Cost of calls: what may be charged is reserved before a call, what was charged is booked after it.

What a provider says that a call cost is its cost; else tokens times prices. Counts are taken where the model's context
window can hold them: tools that the provider runs add more to a prompt than its text. Where it reports none, since a
stream was left or a call abandoned, they are estimated and marked: the provider bills them all the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from fitrouter.providers.usage import consistent
from fitrouter.routing.eligibility import Wants
from fitrouter.routing.parameters import draws_choices
from fitrouter.serving.ledger import ROUNDING, Account, Ledger
from fitrouter.state.accounts import DAY_S
from fitrouter.state.budgets import BudgetParams
from fitrouter.state.learner import Learner
from fitrouter.types import TOKENS, WHOLE, Attempt, Decision, Execution, ModelCard, Payer, Prices, Usage

ABANDONED = frozenset({"ProviderTimeout", "CancelledError"})
"""Errors of calls that the provider may have answered, and billed."""
MOST_STATED_USD = 1.0
"""A stated cost up to it is always plausible: fees of tools that the provider ran are no tokens."""
MEDIA = frozenset({"audio", "files", "images", "video"})
TEMPLATE, TOOLS = 256, 1024
"""Prompt tokens that are reserved for the provider's template, and for its instructions for tools."""
PLAN_S = 60.0
"""How long the reservation of a plan that nobody reports outlives its deadline."""


USUAL = 4096
"""Tokens that an answer is limited to where a hard limit does not cover the whole context window of a model whose own
limit is not known: most models refuse a `max_tokens` above their own."""


_FEES = frozenset(
    {"compound_custom", "connectors", "enable_search", "inference_geo", "live_search", "mcp_servers", "models"}
) | {*("plugins", "search_options", "search_parameters", "speed", "web_search", "web_search_options")}
"""Parameters that cost more than tokens: searches and tools that the provider runs, faster machines, other regions
and, at OpenRouter, other models."""
_OTHER_LIMITS = frozenset({"maxOutputTokens", "max_gen_toks", "max_length", "max_new_tokens", "max_output_length"}) | {
    *("max_completion_length", "max_output_tokens", "max_tokens_to_sample", "n_predict", "num_predict")
}
"""Parameters that some servers take instead of `max_tokens`, or before it."""
_USUAL_FORMS = {"inference_geo": "global", "speed": "standard"}
"""Values of such parameters that cost no more."""
_OURS = frozenset({"apply_patch", "bash", "computer", "computer_use_preview", "custom", "function", "local_shell"}) | {
    *("memory", "text_editor")
}
"""Types of tools that the caller runs, at Anthropic with a date."""
_COUNTED = frozenset({"functions", "response_format", "tools"})
"""Parameters that are in the estimate of a prompt's tokens."""
_NO_COUNT = ", which a hard limit cannot count"
_UNPRICED = "it has no price, so that a hard limit cannot count it; set its `prices`"
_TIERS = frozenset({None, "auto", "batch", "default", "flex", "scale", "standard", "standard_only"})
"""Values of `service_tier` that cost no more than the prices."""


class Cover(NamedTuple):
    """A reservation for a call, or why there is none."""

    usd: float = 0.0
    answer_tokens: int | None = None
    """Tokens of each answer that are covered; None where no hard limit counts them."""
    lowered: bool = False
    """Whether these are fewer than what the request, or the model, would allow."""
    refusal: str = ""

    @property
    def max_tokens(self) -> int | None:
        """What the answer has to be limited to; None where nothing is lowered."""
        return self.answer_tokens if self.lowered else None


class Spending:
    """Reserves what calls may cost within hard limits, and books what they cost.

    Args:
        cards: arm → card.
        learner: its budgets; replaced by a refit, so read anew each time.
        clock: seconds since the epoch.
        ledger: of reservations.
    """

    def __init__(
        self, cards: Mapping[str, ModelCard], learner: Learner, clock: Callable[[], float], ledger: Ledger
    ) -> None:
        self.cards, self.learner, self.clock, self.ledger = cards, learner, clock, ledger
        self._unexpected: dict[str, float] = {}
        """Arm → USD by which costs that its provider stated were above the reservation; later ones have them, too."""

    async def reserve(
        self,
        decision: Decision,
        card: ModelCard,
        asked: Wants,
        payer: Payer | None = None,
        *,
        lost_usd: float = 0.0,
        until: float = 0.0,
        valid_s: float = math.inf,
        floor: int = 0,
    ) -> Cover:
        """Reserve what a call may cost at most, under the tenant's hard limit and the key's.

        Where that is not covered, the answer is limited to what is, and then money is waited for.

        Args:
            decision: of the request.
            card: of the model to be called.
            asked: requirements of the request.
            payer: the key, if it has a limit.
            lost_usd: what the request's earlier calls may have cost.
            until: when to stop waiting, on the monotonic clock.
            valid_s: how long the reservation holds if nobody settles it.
            floor: tokens that each answer has to have at least, if they are more than by the settings.
        """
        tenant, now = decision.identity.tenant, self.clock()
        limit = answer_limit(card, asked)
        most = call_usd(card, asked, limit)
        accounts = self.accounts(tenant, payer, now)
        if accounts and (refusal := _uncountable(card, asked)):
            return Cover(refusal=refusal)
        lost_usd += self._unexpected.get(card.arm, 0.0)
        if not accounts or most <= 0.0:
            return Cover()
        floor = max(self._floor(card, asked, tenant), min(floor, limit))
        usual = limit if asked.answer_tokens or card.max_output_tokens else min(limit, max(floor, USUAL))
        found = await self.ledger.reserve(
            decision.id,
            accounts,
            most=lost_usd + most,
            least=lost_usd + call_usd(card, asked, floor),
            rather=lost_usd + call_usd(card, asked, usual),
            until=until,
            expires=now + valid_s,
        )
        if found.refusal:
            return Cover(refusal=found.refusal)
        if found.usd >= lost_usd + most:
            return Cover(found.usd, limit)
        fixed = call_usd(card, asked, 0)
        tokens = int((found.usd - lost_usd - fixed) / (call_usd(card, asked, 1) - fixed) * (1.0 + 1e-9))
        return Cover(found.usd, max(tokens, floor), lowered=True)

    def uncovered(
        self, cards: Sequence[ModelCard], asked: Wants, tenant: str, payer: Payer | None
    ) -> list[tuple[str, str]]:
        """Return (arm, reason) for the models that no hard limit can cover a call of, however long it waits."""
        found = []
        if accounts := self.accounts(tenant, payer, self.clock()):
            for card in cards:
                least = call_usd(card, asked, self._floor(card, asked, tenant))
                if least > 0.0:
                    least += self._unexpected.get(card.arm, 0.0)
                reasons = (self.ledger.uncovered(account, least) for account in accounts if least > 0.0)
                if reason := _uncountable(card, asked) or next(filter(None, reasons), ""):
                    found.append((card.arm, reason))
        return found

    def _floor(self, card: ModelCard, asked: Wants, tenant: str) -> int:
        """Tokens below which an answer is not limited."""
        params = self.learner.facts(tenant).budgets.params(tenant) or BudgetParams()
        return min(answer_limit(card, asked), params.min_answer_tokens + _thinking_tokens(asked))

    def accounts(self, tenant: str, payer: Payer | None, ts: float) -> list[Account]:
        """Return the hard limits that a request of a tenant and a key counts towards at a time."""
        projections, found = self.learner.facts(tenant), list[Account]()
        params = projections.budgets.params(tenant)
        if params is not None and params.hard and params.usd_per_period is not None:
            period = int(ts // params.period_s)
            name, ends = json.dumps(["tenant", tenant, params.period_s, period]), (period + 1) * params.period_s
            spent_usd = projections.budgets.spent(tenant, ts)
            found.append(Account(name, "the limit of the period", params.usd_per_period, ends, spent_usd))
        if payer is not None:
            day = int(ts // DAY_S)
            name, spent_usd = json.dumps(["key", payer.name, day]), projections.accounts.spent(payer.name, ts)
            found.append(Account(name, "the key's limit of the day", payer.usd_per_day, (day + 1) * DAY_S, spent_usd))
        return found

    def abandoned(
        self,
        decision: Decision,
        attempts: Sequence[Attempt],
        asked: Wants,
        billed: Sequence[tuple[Attempt, Usage]] = (),
    ) -> list[tuple[Attempt, Usage, float]]:
        """Estimate tokens and USD of calls that were given up before an answer, beside those that failed as billed.

        The prompt counts in full, the answer by the share of its expected time that has passed.
        """
        found = []
        for attempt in (each for each in attempts if each.error in ABANDONED):
            k = decision.eligible.index(attempt.model)
            prices = self.cards[attempt.model].prices
            prompt_usd = prices.input * asked.prompt_tokens / 1e6
            share = min(attempt.ms / 1000.0 / max(decision.latency[k], 1e-3), 1.0)
            answer_usd = share * max(decision.cost[k] - prompt_usd, 0.0)
            if asked.answer_tokens:
                answer_usd = min(answer_usd, prices.output * asked.answer_tokens / 1e6)
            answer_usd *= asked.choices if draws_choices(self.cards[attempt.model]) else 1
            tokens = int(answer_usd * 1e6 / prices.output) if prices.output else 0
            usage = Usage(prompt_tokens=asked.prompt_tokens, completion_tokens=tokens, estimated=True)
            found.append((attempt, usage, prompt_usd + answer_usd + prices.request))
        for attempt, said in billed:
            card = self.cards[attempt.model]
            usage = checked_usage(said, card, asked, 0, whole=False)
            found.append((attempt, usage, charge(card, usage).usd if usage != Usage() else 0.0))
        return found

    def settle(self, execution: Execution, payer: Payer | None = None, least_usd: float = 0.0) -> None:
        """Replace the reservation of a request by its cost.

        Args:
            execution: of the request.
            payer: the key, if it has a limit.
            least_usd: what is booked at least, as calls without a known end may have cost it.
        """
        tenant, usd = execution.identity.tenant, max(execution.cost_usd, least_usd)
        reserved, arm = self.ledger.reserved(execution.decision_id), execution.served_by
        if arm and 0.0 < reserved < usd * (1.0 - ROUNDING):
            self._unexpected[arm] = self._unexpected.get(arm, 0.0) + usd - reserved
        self.ledger.settle(execution.decision_id, self.accounts(tenant, payer, execution.ts), usd)


def _uncountable(card: ModelCard, asked: Wants) -> str:
    """Say why no hard limit can count a call; empty if one can."""
    if not card.prices.known:
        return _UNPRICED
    params = {**(card.variant.params if card.variant else {}), **asked.params}
    tier, kinds = params.get("service_tier"), params.get("modalities")
    if not (isinstance(tier, str | None) and tier in _TIERS):
        return f"service_tier {str(tier)[:20]!r} costs more than its prices{_NO_COUNT}; use 'default'"
    options = params.get("options")  # Ollama's
    for name, value in [*params.items(), *(options.items() if isinstance(options, dict) else ())]:
        if name in _FEES | _OTHER_LIMITS and not _is_free(name, value):
            return f"{name} may cost more than tokens{_NO_COUNT}" + "; use max_tokens" * (name in _OTHER_LIMITS)
    if isinstance(kinds, list) and not {"audio", "text"}.issuperset(map(str, kinds)):
        return f"modalities: other answers than text and audio have prices of their own{_NO_COUNT}"
    tools = params["tools"] if isinstance(params.get("tools"), list) else []
    of_tools = (tool.get("type", "function") for tool in tools if isinstance(tool, dict))
    if hosted := next((kind for kind in of_tools if str(kind).rsplit("_2", 1)[0] not in _OURS), None):
        return f"tools: the provider runs {str(hosted)[:40]!r} at a price of its own{_NO_COUNT}"
    return ""


def _is_free(name: str, value: object) -> bool:
    """Whether a parameter of `_FEES` or `_OTHER_LIMITS` is off, as its vendor spells it; an empty object is not."""
    if isinstance(value, dict):
        return name == "search_parameters" and value.get("mode") == "off"
    if name == "plugins" and isinstance(value, list):
        return all(isinstance(each, dict) and each.get("enabled") is False for each in value)
    return not value or _USUAL_FORMS.get(name) == value


def answer_limit(card: ModelCard, asked: Wants) -> int:
    """Tokens that each answer of a call can have: by the request, the variant, the model, or its context window."""
    variant = {} if card.variant is None else card.variant.params
    limits = (asked.answer_tokens, variant.get("max_tokens"), card.max_output_tokens)
    return next((int(limit) for limit in limits if limit), card.context_window)


def call_usd(card: ModelCard, asked: Wants, answer_tokens: int) -> float:
    """Most USD that a call can cost if its answers have at most so many tokens: all of them at the dearest price."""
    audio, tokens = "audio" in asked.capabilities, most_prompt_tokens(card, asked)
    of_prompt = ("input", "cache_read", "cache_write", "cache_write_1h", *["audio_input"] * audio)
    of_answer = ("output", "reasoning", *["audio_output"] * audio)
    prompt, answer = (
        max(card.prices.of(part, length) for part in side for length in (0, tokens)) for side in (of_prompt, of_answer)
    )
    usd = (prompt * tokens + answer * (answer_tokens + beside_answer(asked))) / 1e6 + card.prices.request
    return asked.choices * usd


def beside_answer(asked: Wants) -> int:
    """Most tokens that are billed as an answer's beside its limit: rejected predictions, and thinking at DashScope."""
    predicted, thinking = asked.params.get("prediction"), asked.params.get("thinking_budget")
    thought = min(max(thinking, 0), 2**31) if isinstance(thinking, int) else 0
    return thought + (_bytes(predicted) if predicted else 0)


def _bytes(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace"))


def most_prompt_tokens(card: ModelCard, asked: Wants) -> int:
    """Most tokens that a provider can count for a prompt: a token is a byte or more, and media hold any number."""
    if not MEDIA.isdisjoint(asked.capabilities):
        return card.context_window
    prefix = 0 if card.variant is None else len(card.variant.prefix.encode("utf-8", "replace"))
    added = TEMPLATE + (TOOLS if "tools" in asked.capabilities else 0)
    # Documents, arguments of templates, …: some servers put them into the prompt.
    others = {name: each for name, each in asked.params.items() if name not in _COUNTED}
    added += _bytes(others) if others else 0
    # The configured window may be too small, but twice the estimate is a lot.
    return min(4 * asked.prompt_tokens + prefix + added, max(card.context_window, 2 * asked.prompt_tokens))


def _thinking_tokens(asked: Wants) -> int:
    """Tokens that Anthropic's `thinking` reserves: a limit of the answer below them is refused."""
    thinking = asked.params.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    return budget if isinstance(budget, int) and 0 < budget < 2**31 else 0


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
    # Hidden reasoning is not in the text, and at some vendors not within the limit of an answer.
    completion = _within(usage.completion_tokens, window * choices, said_tokens, whole)
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
    """Whether a part of the tokens was counted at another part's known price, for want of its own (`WHOLE`)."""


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
    guessed = prices.known and any(getattr(prices, part) is None and prices.of(part) > 0.0 for part in counted)
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


def counted(usage: Usage) -> dict[str, Any]:
    """The counts that an Execution keeps."""
    return {name: getattr(usage, name) for name in (*TOKENS, "written_1h_tokens")}


def spent(prices: Prices, usage: Usage) -> float:
    """Cost in USD of the tokens and calls, at these prices."""
    prompt = usage.prompt_tokens / max(usage.calls, 1)
    tokens = sum(prices.of(part, prompt) * count for part, count in parts(usage).items() if count)
    return tokens / 1e6 + prices.request * usage.calls
