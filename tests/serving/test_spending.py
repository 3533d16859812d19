"""Laws of money: what a call reserves before it is made, and what is charged for it."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits import virtual_time
from tests.kits.gateway import Echo, chat, client, config, make_router, serving

from fitrouter.context.features import context_names
from fitrouter.errors import (
    AllModelsFailed,
    BudgetExhausted,
    FitrouterError,
    ProviderError,
    ProviderTimeout,
    ProviderUnavailable,
)
from fitrouter.providers import Fault, Faulty
from fitrouter.providers.usage import consistent, read_usage
from fitrouter.router import Router
from fitrouter.routing.eligibility import Wants, wants
from fitrouter.serving.attempts import Assembler, Timers, said_tokens
from fitrouter.serving.external import AttemptReport, Outcome, Plan
from fitrouter.serving.ledger import Ledger
from fitrouter.serving.spending import (
    MOST_STATED_USD,
    PLAN_S,
    TEMPLATE,
    Cover,
    Spending,
    answer_limit,
    call_usd,
    charge,
    checked_usage,
    most_prompt_tokens,
)
from fitrouter.state.budgets import BudgetParams
from fitrouter.state.learner import Learner
from fitrouter.state.projections import ProjectionParams
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import (
    AUTO,
    NOT_CALLED,
    Attempt,
    Call,
    Chunk,
    Completion,
    Decision,
    Execution,
    Identity,
    Message,
    Mode,
    ModelCard,
    Payer,
    PolicyVersion,
    Prices,
    Request,
    Usage,
    Variant,
)

LIMIT = 0.05
DAY = 86_400.0


class Dear(Echo):
    """Each answer takes a second and costs a cent: 10,000 tokens at a dollar a million."""

    usage = Usage(prompt_tokens=7, completion_tokens=10_000)

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        answer = await super().complete(call)
        await asyncio.sleep(1.0)
        if isinstance(answer, Completion):
            return Completion(message=answer.message, finish_reason="stop", usage=self.usage)
        return self._dear(answer)

    async def _dear(self, answer: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
        async for chunk in answer:
            yield chunk if chunk.usage is None else Chunk(usage=self.usage)


def ask(text: str = "Hello", model: str = AUTO, **more: Any) -> Request:
    return Request(messages=({"role": "user", "content": text},), model=model, **more)


def events(router: Router, kind: type[Any]) -> list[Any]:
    return [row.event for row in router._journal.tail(0, 100_000) if isinstance(row.event, kind)]


def models(*prices: float) -> list[ModelCard]:
    """alpha, beta … with prices in USD per million output tokens."""
    names = ("alpha", "beta", "gamma")
    return [
        ModelCard(name=name, provider="echo", target=name, prices=Prices(output=price))
        for name, price in zip(names, prices, strict=False)
    ]


def limited(tmp_path: Path, provider: Any = None, prices: tuple[float, ...] = (1.0,), **more: Any) -> Router:
    """A router whose tenants have five cents a day."""
    params = ProjectionParams(budget=BudgetParams(usd_per_period=LIMIT, **more.pop("budget", {})))
    learner = Learner(len(context_names()), 1, expects_scores=False, projections=params)
    clock = more.pop("clock", lambda: 1000.0 + time.monotonic())
    provider = provider or Dear()
    return make_router(tmp_path, {"echo": provider}, models=models(*prices), learner=learner, clock=clock, **more)


async def spend(router: Router, requests: list[Request], at_once: int) -> float:
    """USD paid for all requests that were not refused, `at_once` at a time."""
    paid, waiting = 0.0, list(requests)

    async def worker() -> None:
        nonlocal paid
        while waiting:
            request = waiting.pop()
            try:
                if request.stream:
                    stream = await router.stream(request)
                    _ = [chunk async for chunk in stream]
                    paid += stream.cost_usd or 0.0
                else:
                    answer = await router.complete(request)  # `paid +=` would read it before the wait
                    paid += answer.cost_usd or 0.0
            except BudgetExhausted:
                continue

    await asyncio.gather(*(worker() for _ in range(at_once)))
    await router.settled()
    return paid


@pytest.mark.parametrize("model", [AUTO, "alpha"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_hard_period_is_hard(tmp_path: Path, model: str, stream: bool) -> None:
    """Routed, named, whole or streamed: a hundred requests of a cent, one after the other, cost five cents and one."""

    async def scenario() -> None:
        async with limited(tmp_path) as router:
            paid = await spend(router, [ask(f"q{i}", model, stream=stream) for i in range(100)], at_once=1)
            assert 0.04 <= paid <= LIMIT + 0.01 + 1e-9
            with pytest.raises(BudgetExhausted, match="of the limit of the period") as refused:
                await router.complete(ask("one more", model))
            assert refused.value.retry_after_s == pytest.approx(DAY - router.clock())

    virtual_time.run(scenario())


def held(router: Router) -> float:
    """USD that are reserved or spent in all accounts of a router."""
    purses = router._ledger._purses.values()
    return sum(purse.spent + purse.held(router.clock()) for purse in purses if purse.account.ends > router.clock())


def test_requests_at_once_cannot_spend_the_same_money(tmp_path: Path) -> None:
    """What a hundred requests at once may cost is within the limit at every call; as many are answered as it pays."""

    class Watched(Dear):
        async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
            self.held.append(held(router))
            return await super().complete(call)

        held: list[float] = []  # noqa: RUF012 - of the only instance

    provider = Watched()
    router = limited(tmp_path, provider, prices=(30.0,), budget={"period_s": 1000.0})
    length = 100
    fits = int(LIMIT / (length * 30e-6))

    async def scenario() -> None:
        async with router:
            for period in range(1, 4):
                await asyncio.sleep(1000.0 * (period + 1) - router.clock() + 1.0)
                seen, provider.held = len(provider.calls), []
                provider.usage = Usage(prompt_tokens=7, completion_tokens=length)
                asked = [ask(f"q{period} {i}", params={"max_tokens": length}) for i in range(100)]
                paid = await spend(router, asked, at_once=100)
                assert max(provider.held) <= LIMIT + 1e-9
                assert paid == pytest.approx(fits * length * 30e-6)
                assert len(provider.calls) - seen == fits

    virtual_time.run(scenario())


def test_reservations_count_before_the_journal_knows_of_them(tmp_path: Path) -> None:
    """A journal that takes nothing makes no budget bigger."""

    class Full(MemoryJournal):
        def append(self, *entries: Any) -> Any:
            raise OSError("no space left on device")

    async def scenario() -> None:
        async with limited(tmp_path, journal=Full()) as router:
            paid = 0.0
            for i in range(100):
                try:
                    paid += (await router.complete(ask(f"q{i}", "alpha"))).cost_usd
                except BudgetExhausted:
                    break
            assert 0.04 <= paid <= LIMIT + 0.01

    virtual_time.run(scenario())


def test_the_next_period_starts_anew(tmp_path: Path) -> None:
    """And what was reserved or settled in the last one does not count in it."""

    async def scenario() -> None:
        async with limited(tmp_path, budget={"period_s": 100.0}) as router:
            first = await spend(router, [ask(f"q{i}") for i in range(20)], at_once=1)
            await asyncio.sleep(100.0)
            second = await spend(router, [ask(f"r{i}") for i in range(20)], at_once=1)
            assert min(first, second) >= 0.03

    virtual_time.run(scenario())


def test_plans_reserve_too(tmp_path: Path) -> None:
    """Money of plans that are not reported yet is not given to others; a report frees it."""

    async def scenario() -> None:
        async with limited(tmp_path, prices=(30.0,)) as router:
            short = {"max_tokens": 100}
            made = await asyncio.gather(
                *(router.decide(ask(f"q{i}", params=short)) for i in range(100)), return_exceptions=True
            )
            plans = [plan for plan in made if isinstance(plan, Plan)]
            assert {type(plan) for plan in made} == {Plan, BudgetExhausted}
            assert len(plans) == int(LIMIT / (100 * 30e-6))
            assert {plan.max_tokens for plan in plans} == {None}
            tried = (AttemptReport(model="alpha", ms=1.0, error="ProviderUnavailable"),)
            await router.report(plans[0].decision.id, ask("q0"), Outcome(tried=tried, status="failed"))
            assert (await router.decide(ask("free again", params=short))).decision.chosen == "alpha"
            await router.report(plans[1].decision.id, ask("q1"), Outcome(tried=tried, status="failed"))
            with pytest.raises(BudgetExhausted, match=r"0\.00768 USD at most, .* 0\.005 USD are left"):
                await router.decide(ask("any length"))

    virtual_time.run(scenario())


def test_the_money_of_a_plan_that_nobody_reports_is_free_after_its_time(tmp_path: Path) -> None:
    """Its reservation ends a minute after its deadline, not before; a plan says what its answer is limited to."""

    async def scenario() -> None:
        async with limited(tmp_path, prices=(30.0,)) as router:
            plan = await router.decide(ask(deadline_s=10.0))
            assert plan.max_tokens == int(LIMIT / 30e-6)
            assert held(router) == pytest.approx(LIMIT)
            await asyncio.sleep(9.0 + PLAN_S)
            assert held(router) == pytest.approx(LIMIT)
            await asyncio.sleep(2.0)
            assert held(router) == 0.0

    virtual_time.run(scenario())


class Reserving(NamedTuple):
    """A request, its model, and what a call reserves: in tokens in and out, for each choice."""

    asked: Mapping[str, Any] = MappingProxyType({})
    card: Mapping[str, Any] = MappingProxyType({})
    tokens: tuple[int, int] = (TEMPLATE, 128_000)
    choices: int = 1
    lost_usd: float = 0.0


@pytest.mark.parametrize(
    "case",
    [
        Reserving(),
        Reserving(asked={"choices": 5}, choices=5),
        Reserving(asked={"choices": 3}, choices=3, lost_usd=0.5),
        Reserving(asked={"answer_tokens": 100}, tokens=(TEMPLATE, 100)),
        Reserving(
            asked={"answer_tokens": 100, "prompt_tokens": 50, "choices": 2}, tokens=(TEMPLATE + 200, 100), choices=2
        ),
        Reserving(asked={"prompt_tokens": 10**6, "answer_tokens": 1}, tokens=(2 * 10**6, 1)),
        Reserving(asked={"prompt_tokens": 100_000, "answer_tokens": 1}, tokens=(200_000, 1)),
        Reserving(asked={"capabilities": ("tools",)}, tokens=(TEMPLATE + 1024, 128_000)),
        Reserving(asked={"capabilities": ("images",), "answer_tokens": 1}, tokens=(128_000, 1)),
        Reserving(card={"max_output_tokens": 8000}, tokens=(TEMPLATE, 8000)),
        Reserving(card={"context_window": 9000}, tokens=(TEMPLATE, 9000)),
        Reserving(card={"variant": Variant(name="v", prefix="é" * 10)}, tokens=(TEMPLATE + 20, 128_000)),
        Reserving(card={"variant": Variant(name="v", params={"max_tokens": 7})}, tokens=(TEMPLATE, 7)),
        Reserving(card={"max_output_tokens": 8000}, asked={"answer_tokens": 9}, tokens=(TEMPLATE, 9)),
    ],
)
def test_what_a_call_reserves(tmp_path: Path, case: Reserving) -> None:
    """All that it can cost, and the request's lost calls, in the tenant's budget and for the key alike."""

    async def scenario() -> None:
        async with limited(tmp_path) as router:
            decision = (await router.decide(ask())).decision
            router._learner.projections.budgets.limits = {"default": 100.0}
            card = ModelCard(name="alpha", provider="echo", prices=Prices(input=1.0, output=10.0), **case.card)
            payer = Payer(name="key", usd_per_day=100.0)
            cover = await router._spending.reserve(decision, card, Wants(**case.asked), payer, lost_usd=case.lost_usd)
            usd = case.lost_usd + case.choices * (case.tokens[0] * 1e-6 + case.tokens[1] * 1e-5)
            assert cover == Cover(pytest.approx(usd), case.tokens[1])
            purses = router._ledger._open[decision.id]
            assert [purse.account.what for purse in purses] == ["the limit of the period", "the key's limit of the day"]
            assert [purse.holds[decision.id][0] for purse in purses] == [pytest.approx(usd)] * 2

    virtual_time.run(scenario())


@pytest.mark.parametrize(("tenant_usd", "key_usd", "tokens"), [(2.0, 2.0, 0), (0.5, 2.0, 500), (2.0, 0.25, 256)])
@pytest.mark.parametrize("asked", [{}, {"answer_tokens": 1000}])
def test_an_answer_is_limited_to_what_tenant_and_key_both_cover(
    tmp_path: Path, tenant_usd: float, key_usd: float, tokens: int, asked: dict[str, int]
) -> None:
    """Limits in units of the call's cost: the smaller one decides, and below the setting nothing is reserved."""

    async def scenario() -> None:
        async with limited(tmp_path, budget={"hard": True}) as router:
            decision = (await router.decide(ask())).decision
            budgets = router._learner.projections.budgets
            card = ModelCard(name="alpha", provider="echo", prices=Prices(output=10.0), max_output_tokens=1000)
            budgets.limits = {"default": tenant_usd * 0.01}
            payer = Payer(name="key", usd_per_day=key_usd * 0.01)
            cover = await router._spending.reserve(decision, card, Wants(**asked), payer)
            if tokens == 256:  # 250 would be covered
                assert (
                    "it may cost 0.00256 USD at most, and of the key's limit of the day (0.0025 USD)" in cover.refusal
                )
                assert "0.0025 USD are left" in cover.refusal
            else:
                assert cover.max_tokens == (tokens or None)
            thinking = Wants(answer_tokens=1000, params={"thinking": {"type": "enabled", "budget_tokens": 700}})
            if tokens == 500:
                assert (await router._spending.reserve(decision, card, thinking, payer)).refusal

    virtual_time.run(scenario())


def test_counts_of_a_part_are_within_the_whole() -> None:
    """Cached and hidden tokens below 0 or above those they are part of are cut to these."""
    card, asked = models(1.0)[0], Wants(prompt_tokens=100)
    for part, kept in ((-7, (0, 0)), (10, (10, 10)), (10**9, (100, 50))):
        usage = Usage(prompt_tokens=100, completion_tokens=50, cached_tokens=part, reasoning_tokens=part)
        found = checked_usage(usage, card, asked, 50)
        assert (found.cached_tokens, found.reasoning_tokens) == kept


def test_money_that_goes_between_decision_and_call_is_no_outage(tmp_path: Path) -> None:
    """The request is refused by the budget, with the time until there is more; no breaker and no model is to blame."""

    async def scenario() -> None:
        async with limited(tmp_path, clock=lambda: 1000.0) as router:
            budgets, first_answer = router._learner.projections.budgets, router._caller.first_answer

            async def late(*args: Any, **more: Any) -> Any:
                budgets.limits = {"default": 1e-12}
                try:
                    return await first_answer(*args, **more)
                finally:
                    budgets.limits = {}

            router._caller.first_answer = late  # type: ignore[method-assign]
            for n in range(1, 9):
                with pytest.raises(BudgetExhausted) as refused:
                    await router.complete(ask())
                assert refused.value.retry_after_s > 1.0
                assert refused.value.decision_id
                await router.settled()
                execution = events(router, Execution)[-1]
                assert len(events(router, Execution)) == n
                assert (execution.status, execution.cost_usd) == ("refused", 0.0)
                assert {each.error for each in execution.attempts} == {"NotCovered"}
            assert router.health.outages() == ()
            assert router._learner.projections.arm_counts.counts == {}

    virtual_time.run(scenario())


def test_a_fallback_that_the_budget_does_not_cover_is_not_called(tmp_path: Path) -> None:
    """It is logged as such, and nobody is charged for it; the first model, whose money is reserved, is tried again."""

    class Down(Echo):
        """Fails, while another request spends what is left of the money."""

        router: Router

        async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
            self.calls.append(call)
            accounts = self.router._spending.accounts("default", None, 1000.0)
            usd = LIMIT - held(self.router) - 0.002
            if usd > 0.0:
                assert not (await self.router._ledger.reserve("other", accounts, most=usd, least=usd)).refusal
                self.router._ledger.settle("other", accounts, usd)
            raise ProviderUnavailable("down", 503)

    async def scenario(folder: Path) -> list[tuple[str, str | None]]:
        provider = Down()
        prices, wide = (5.0, 30.0), {"bucket": 1e4}
        async with limited(folder, provider, prices=prices, budget=wide, clock=lambda: 1000.0) as router:
            provider.router = router
            with pytest.raises(AllModelsFailed):
                await router.complete(ask(params={"max_tokens": 250}))
            await router.settled()
            (execution,) = events(router, Execution)
            assert held(router) < LIMIT
        assert execution.cost_usd == 0.0
        tried = [(each.model, each.error) for each in execution.attempts]
        assert [call.target for call in provider.calls] == [model for model, error in tried if error != "NotCovered"]
        return tried

    tries = (virtual_time.run(scenario(Path(tempfile.mkdtemp(dir=tmp_path)))) for _ in range(50))
    dear_second = next(tried for tried in tries if tried[0][0] == "alpha")
    failed = "ProviderUnavailable"
    assert dear_second == [("alpha", failed), ("beta", "NotCovered"), ("alpha", failed)]


def test_free_models_serve_an_exhausted_budget(tmp_path: Path) -> None:
    """What costs nothing needs no money; what costs something is excluded with the reason."""

    async def scenario() -> None:
        async with limited(tmp_path, prices=(1.0, 0.0)) as router:
            await spend(router, [ask(f"q{i}", "alpha") for i in range(10)], at_once=1)
            answer = await router.complete(ask("now"))
            assert answer.served_by == "beta"
            assert dict(answer.decision.excluded)["alpha"].startswith("budget: ")

    virtual_time.run(scenario())


def test_a_named_model_is_refused_where_routing_would_exclude_it(tmp_path: Path) -> None:
    """Above the limit of one request only the cheapest model can be named."""

    async def scenario() -> None:
        params = ProjectionParams(budget=BudgetParams(usd_per_request_max=1e-6))
        learner = Learner(len(context_names()), 1, expects_scores=False, projections=params)
        async with make_router(tmp_path, models=models(100.0, 10.0), learner=learner) as router:
            with pytest.raises(BudgetExhausted, match="allowed is 1e-06"):
                await router.complete(ask(model="alpha"))
            assert (await router.complete(ask(model="beta"))).served_by == "beta"
            assert (await router.complete(ask())).decision.eligible == ("beta",)

    async def observed() -> None:
        async with limited(tmp_path, prices=(1e6,)) as router:
            answer = Completion(message={"role": "assistant", "content": "Hi"}, finish_reason="stop")
            with pytest.raises(BudgetExhausted):
                await router.complete(ask(model="alpha"))
            plan = await router.observe(ask(), answer, "alpha", cost_usd=1.0, latency_ms=10.0)
            assert plan.decision.chosen == "alpha"

    virtual_time.run(scenario())
    virtual_time.run(observed())


def test_a_soft_budget_and_other_tenants_are_not_refused(tmp_path: Path) -> None:
    """`hard: false` only steers, and money is each tenant's own."""

    async def scenario() -> None:
        async with limited(tmp_path, budget={"hard": False}) as router:
            assert await spend(router, [ask(f"q{i}", "alpha") for i in range(10)], at_once=1) == pytest.approx(0.1)
        async with limited(tmp_path) as router:
            await spend(router, [ask(f"q{i}", identity=Identity(tenant="a")) for i in range(20)], at_once=1)
            assert (await router.complete(ask(identity=Identity(tenant="b")))).cost_usd > 0.0

    virtual_time.run(scenario())


def test_over_http_an_exhausted_budget_is_a_402(tmp_path: Path) -> None:
    """With the time until the period ends, and without a retry by the client's library."""
    with serving(limited(tmp_path, prices=(1e6,)), config()) as url, client(url) as http:
        for body in (chat(), chat(model="alpha"), chat(stream=True)):
            reply = http.post("/v1/chat/completions", json=body)
            assert (reply.status_code, reply.json()["error"]["code"]) == (402, "budget_exhausted")
            assert "USD at most" in reply.json()["error"]["message"]
            assert "USD are left" in reply.json()["error"]["message"]
            assert int(reply.headers["retry-after"]) > 60
            assert reply.headers["x-should-retry"] == "false"
        assert http.post("/v1/plans", json=chat()).status_code == 402


# --- what is charged -------------------------------------------------------------------------------------------------


class Says(Echo):
    """Reports a usage, or none: read from JSON as the providers do."""

    def __init__(self, reported: Any, text: str = "word " * 100) -> None:
        super().__init__({"role": "assistant", "content": text})
        self.usage = read_usage(reported)

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        answer = await super().complete(call)
        if isinstance(answer, Completion):
            return msgspec.structs.replace(answer, usage=self.usage or Usage())
        return self._says(answer)

    async def _says(self, answer: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
        async for chunk in answer:
            if chunk.usage is None or self.usage is not None:
                yield chunk if chunk.usage is None else Chunk(usage=self.usage)


def priced(**more: Any) -> list[ModelCard]:
    return [ModelCard(name="alpha", provider="echo", prices=Prices(input=1.0, output=2.0), **more)]


HUGE = (1e300, -1e300, math.nan, math.inf, -5, True, "many", 2**53 + 1, 2**63, 10**400, 300_000, None, [], {"a": 1})


@pytest.mark.parametrize("stream", [False, True])
def test_impossible_token_counts_are_estimated_and_marked(
    tmp_path: Path, stream: bool, subtests: pytest.Subtests
) -> None:
    """Whatever a provider reports, clients, log and budget get counts that text and context window can hold."""
    for number, odd in enumerate(HUGE):
        with subtests.test(odd=repr(odd)[:40]):
            reported = {"prompt_tokens": odd, "completion_tokens": odd, "prompt_tokens_details": {"cached_tokens": odd}}

            async def scenario(reported: Any = reported, number: int = number) -> None:
                folder = tmp_path / str(number)
                folder.mkdir()
                async with make_router(folder, {"echo": Says(reported)}, models=priced()) as router:
                    if stream:
                        chunks = [chunk async for chunk in await router.stream(ask())]
                        (usage,) = [chunk.usage for chunk in chunks if chunk.usage is not None]
                    else:
                        usage = (await router.complete(ask())).completion.usage
                    await router.settled()
                (execution,) = events(router, Execution)
                assert usage.estimated
                assert execution.estimated
                assert (usage.prompt_tokens, usage.completion_tokens) == (7, 125), "a token is four bytes"
                assert usage.cached_tokens <= usage.prompt_tokens
                assert (execution.prompt_tokens, execution.completion_tokens) == (7, 125)
                assert execution.cost_usd == pytest.approx((7 * 1.0 + 125 * 2.0) / 1e6)

            virtual_time.run(scenario())


def test_possible_counts_are_the_providers(tmp_path: Path) -> None:
    """Templates, pictures and hidden reasoning make more tokens than the text and its limit show; they are believed."""

    async def scenario(reported: dict[str, Any], request: Request) -> None:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        cards = priced(capabilities=("images",), max_output_tokens=2000)
        async with make_router(folder, {"echo": Says(reported)}, models=cards) as router:
            usage = (await router.complete(request)).completion.usage
        assert usage == read_usage(reported)
        assert not usage.estimated

    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}
    virtual_time.run(scenario({"prompt_tokens": 3000, "completion_tokens": 60_000}, ask()))
    virtual_time.run(scenario({"prompt_tokens": 36_835, "completion_tokens": 1}, Request(messages=(picture,))))


@pytest.mark.parametrize("pieces", [0, 1, 3])
def test_a_stream_that_is_left_is_charged_for_what_was_streamed(tmp_path: Path, pieces: int) -> None:
    """Prompt and text so far are estimated, marked and booked in the budget."""

    async def scenario() -> None:
        provider = Faulty(Says(None, "word " * 300), itertools.repeat(Fault(hang=True, after=3)))
        async with limited(tmp_path, provider, prices=(1.0,)) as router:
            stream = await router.stream(ask("x" * 400))
            chunks = aiter(stream) if pieces else None
            for _ in range(pieces):
                assert chunks is not None
                await anext(chunks)
            await stream.aclose()
            await router.settled()
            (execution,) = events(router, Execution)
            assert (execution.status, execution.estimated) == ("cancelled", True)
            assert execution.prompt_tokens == 105
            assert execution.completion_tokens == 125 * max(pieces, 1)
            assert execution.cost_usd == stream.cost_usd == pytest.approx(125 * max(pieces, 1) / 1e6)
            spent = router._learner.projections.budgets.spent("default", router.clock())
            assert spent == pytest.approx(execution.cost_usd)

    virtual_time.run(scenario())


class Endless(Echo):
    """Streams token by token, whatever `max_tokens` says."""

    sent = 0

    def __init__(self, ends: bool = False, every: int = 10**9, text: str = "x ", tokens: int = 1) -> None:
        super().__init__()
        self.ends, self.every, self.text, self.tokens = ends, every, text, tokens

    async def _stream(self, message: Any, usage: Usage) -> AsyncIterator[Chunk]:
        while True:
            await asyncio.sleep(0.01)
            self.sent += self.tokens
            yield Chunk(
                delta={"content": self.text}, finish_reason="stop" if self.ends or not self.sent % self.every else None
            )
            if self.sent == 1 and self.ends:
                yield Chunk(usage=Usage(prompt_tokens=1, completion_tokens=1))


@pytest.mark.parametrize("limit", [None, 100])
@pytest.mark.parametrize(
    "provider",
    [
        Endless(),
        Endless(ends=True),
        Endless(every=50),
        Endless(text="more words here " * 4, tokens=12),
        Endless(text="\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22\u0e40\u0e1b\u0e47\u0e19" * 3, tokens=11),
    ],
    ids=["without an end", "after its end", "after several ends", "in long pieces", "in Thai"],
)
def test_a_stream_renews_its_reservation_and_ends_at_its_bound(
    tmp_path: Path, limit: int | None, provider: Endless
) -> None:
    """As long as there is money it goes on; then it ends as one that has reached its length, and is marked partial."""

    async def scenario() -> None:
        provider.sent = 0
        async with limited(tmp_path, provider, prices=(10.0,)) as router:
            stream = await router.stream(ask(params={"max_tokens": limit} if limit else {}))
            chunks = [chunk async for chunk in stream]
            assert provider.sent == pytest.approx(LIMIT / 10e-6, rel=0.01), "all of the money is used"
            assert provider.sent <= LIMIT / 10e-6 + provider.tokens
            assert [chunk.finish_reason for chunk in chunks][-2:] == ["length", None]
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.estimated
            await router.settled()
            (execution,) = events(router, Execution)
            assert (execution.status, execution.finish_reason) == ("partial", "length")
            assert execution.cost_usd <= held(router) <= LIMIT + 1e-9
            with pytest.raises(BudgetExhausted):
                await router.complete(ask())

    virtual_time.run(scenario())


@pytest.mark.parametrize("provider", [Endless(), Endless(every=40), Endless(text="more words here " * 4, tokens=12)])
def test_choices_of_a_stream_end_at_their_bound(tmp_path: Path, provider: Endless) -> None:
    """A provider that ignores `max_tokens` is ended in each choice, and no more is booked than the limit."""

    async def scenario() -> None:
        provider.sent = 0
        async with limited(tmp_path, provider, prices=(10.0,)) as router:
            stream = await router.stream(ask(n=3, params={"max_tokens": 100}))
            chunks = [chunk async for chunk in stream]
            assert provider.sent <= 1.1 * LIMIT / 10e-6
            assert {chunk.index for chunk in chunks if chunk.finish_reason == "length"} == {0, 1, 2}
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.estimated
            await router.settled()
            (execution,) = events(router, Execution)
            assert (execution.status, execution.finish_reason) == ("partial", "length")
            assert held(router) <= LIMIT + 1e-9

    virtual_time.run(scenario())


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 900), min_size=1, max_size=9), st.sampled_from([1, 3]), st.sampled_from([None, 100]))
def test_no_more_is_booked_than_a_limit(sizes: list[int], n: int, limit: int | None) -> None:
    """Of pieces of any size, that which crosses the limit is neither relayed nor counted."""

    class Ragged(Echo):
        async def _stream(self, message: Any, usage: Usage) -> AsyncIterator[Chunk]:
            for size in itertools.cycle(sizes):
                await asyncio.sleep(0.01)
                yield Chunk(delta={"content": "word " * size})

    async def scenario(folder: Path) -> None:
        async with limited(folder, Ragged(), prices=(10.0,)) as router:
            stream = await router.stream(ask(n=n, params={"max_tokens": limit} if limit else {}))
            told = sum(chunk.delta.get("content", "").count("word") for chunk in [chunk async for chunk in stream])
            await router.settled()
            (execution,) = events(router, Execution)
            assert told * 10e-6 <= LIMIT
            assert execution.cost_usd <= held(router) <= LIMIT + 1e-9

    with tempfile.TemporaryDirectory() as folder:
        virtual_time.run(scenario(Path(folder)))


WITHIN = {
    "long words": ["internationalization "] * 300,
    "long words in long pieces": ["uncharacteristically " * 50] * 6,
    "Chinese in long pieces": ["\u8bed\u8a00\u6a21\u578b" * 25] * 6,
    "Hindi in long pieces": ["\u0938\u0902\u0938\u094d\u0915\u0943\u0924\u093f " * 50] * 6,
    "Tamil in long pieces": ["\u0bae\u0ba9\u0bbf\u0ba4\u0bb0\u0bcd\u0b95\u0bb3\u0bcd " * 50] * 6,
    "blanks and dashes": [" " * 128, "-" * 128] * 100,
    "pieces without a text": ["", "word "] * 300,
    "numbers in long pieces": ["123456 " * 25] * 6,
}


@pytest.mark.parametrize("beside", [0, 300])
@pytest.mark.parametrize("pieces", WITHIN.values(), ids=WITHIN)
def test_an_answer_within_its_limit_is_not_cut(tmp_path: Path, pieces: list[str], beside: int) -> None:
    """Three hundred tokens of few bytes or many: what was reserved for an answer covers it, though nothing is left.

    So does what was reserved beside its limit.
    """

    class Whole(Echo):
        async def _stream(self, message: Any, usage: Usage) -> AsyncIterator[Chunk]:
            for piece in pieces * (2 if beside else 1):
                yield Chunk(delta={"content": piece})
            yield Chunk(finish_reason="stop")
            yield Chunk(usage=Usage(prompt_tokens=1, completion_tokens=300 + beside))

    async def scenario() -> None:
        params = {"max_tokens": 300, "thinking_budget": beside}
        async with limited(tmp_path, Whole(), prices=(LIMIT / (305 + beside) * 1e6,)) as router:
            stream = await router.stream(ask(params=params))
            assert {chunk.finish_reason for chunk in [chunk async for chunk in stream]} == {"stop", None}
            assert stream.cost_usd == pytest.approx(LIMIT * (300 + beside) / (305 + beside))

    virtual_time.run(scenario())


SAID = Chunk(delta={"content": "word " * 100})
FIRST = Usage(prompt_tokens=9, completion_tokens=1)
LAST = Usage(prompt_tokens=9, completion_tokens=130)
REPORTED: dict[str, tuple[list[Chunk], Usage]] = {
    "at the beginning": ([Chunk(usage=FIRST), SAID], Usage(prompt_tokens=9, completion_tokens=126, estimated=True)),
    "the prompt's at the beginning": (
        [Chunk(usage=Usage(prompt_tokens=9)), SAID],
        Usage(prompt_tokens=9, completion_tokens=125, estimated=True),
    ),
    "zeros at the beginning": (
        [Chunk(usage=Usage()), SAID],
        Usage(prompt_tokens=7, completion_tokens=125, estimated=True),
    ),
    "no cost at the beginning": (
        [Chunk(usage=Usage(cost_usd=0.0)), SAID],
        Usage(prompt_tokens=7, completion_tokens=125, estimated=True),
    ),
    "in the middle": (
        [SAID, Chunk(usage=Usage(prompt_tokens=9, completion_tokens=200)), SAID],
        Usage(prompt_tokens=9, completion_tokens=325, estimated=True),
    ),
    "with each piece": ([msgspec.structs.replace(SAID, usage=FIRST), msgspec.structs.replace(SAID, usage=LAST)], LAST),
    "in two halves": (
        [Chunk(usage=Usage(prompt_tokens=9)), SAID, Chunk(usage=Usage(completion_tokens=130))],
        LAST,
    ),
    "again as zeros": ([SAID, Chunk(usage=LAST), Chunk(usage=Usage())], LAST),
    "as a cost alone": (
        [SAID, Chunk(usage=Usage(cost_usd=0.5))],
        Usage(prompt_tokens=7, completion_tokens=125, cost_usd=0.5, estimated=True),
    ),
}


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(("chunks", "expected"), REPORTED.values(), ids=REPORTED)
def test_the_last_report_of_a_stream_counts_up_to_where_it_was_made(
    tmp_path: Path, chunks: list[Chunk], expected: Usage, n: int
) -> None:
    """What is said after it is estimated, and marked; callers read one usage, at the end."""

    class Reports(Echo):
        async def _stream(self, message: Any, usage: Usage) -> AsyncIterator[Chunk]:
            for chunk in (*chunks, Chunk(finish_reason="stop")):
                yield chunk

    async def scenario() -> None:
        async with make_router(tmp_path, {"echo": Reports()}, models=priced()) as router:
            told = [chunk async for chunk in await router.stream(ask(n=n))]
            await router.settled()
        assert [chunk.usage is not None for chunk in told] == [False] * (len(told) - 1) + [True]
        assert (told[-1].usage or Usage()).completion_tokens == n * expected.completion_tokens
        if n == 1:
            assert told[-1].usage == expected
        (execution,) = events(router, Execution)
        assert execution.completion_tokens == n * expected.completion_tokens
        assert execution.estimated == expected.estimated

    virtual_time.run(scenario())


GENERATED: dict[str, Message] = {
    "text": {"content": "word " * 100},
    "parts": {"content": [{"type": "text", "text": "word " * 60}, {"type": "output_text", "text": "word " * 40}]},
    "a refusal": {"refusal": "word " * 100},
    "reasoning": {"reasoning": "word " * 100},
    "reasoning in parts": {"reasoning_details": [{"type": "reasoning.text", "text": "word " * 100, "signature": "x"}]},
    "a summary": {"reasoning_details": [{"type": "reasoning.summary", "summary": "word " * 100}]},
    "reasoning twice": {"reasoning": "word " * 100, "reasoning_details": [{"text": "word " * 100}]},
    "thinking": {"thinking_blocks": [{"type": "thinking", "thinking": "word " * 100}]},
    "an old call": {"function_call": {"name": "word ", "arguments": "word " * 99}},
    "a call": {"tool_calls": [{"index": 0, "function": {"name": "word ", "arguments": "word " * 99}}]},
    "a custom call": {
        "tool_calls": [{"index": 0, "type": "custom", "custom": {"name": "word ", "input": "word " * 99}}]
    },
    "speech": {"audio": {"id": "a", "data": "AAAA", "transcript": "word " * 100}},
}


@pytest.mark.parametrize("message", GENERATED.values(), ids=GENERATED)
def test_every_text_that_is_generated_is_estimated(message: Message) -> None:
    """Wherever a message has it, once."""
    assert said_tokens(message) == 125
    assembler = Assembler()
    assembler.add(Chunk(delta={"role": "assistant", **message}))
    assert (assembler.sent, assembler.used().completion_tokens, assembler.used().estimated) == (100, 125, True)


class Failing(Echo):
    """Answers the first call only; others may have been billed, and fail."""

    made = 0

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        self.made += 1
        if self.made > 1:
            raise ProviderTimeout("'echo' gave no answer in time")
        return await super().complete(call)


@pytest.mark.parametrize(("hard", "calls"), [(True, 3), (False, 5)])
def test_a_further_choice_is_made_once_more_only_if_no_limit_counts_it(tmp_path: Path, hard: bool, calls: int) -> None:
    """A reservation covers one call of each choice."""

    async def scenario() -> None:
        provider = Failing()
        async with limited(tmp_path, provider, budget={"hard": hard}) as router:
            answer = await router.complete(ask(n=3, params={"max_tokens": 10}))
            assert (answer.completion.others, provider.made) == ((), calls)

    virtual_time.run(scenario())


class Stating(Echo):
    """States a cost that no tokens explain."""

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        answer = await super().complete(call)
        assert isinstance(answer, Completion)
        return msgspec.structs.replace(answer, usage=Usage(prompt_tokens=7, completion_tokens=4, cost_usd=0.012))


def test_a_stated_cost_above_its_reservation_is_in_the_next_one(tmp_path: Path) -> None:
    """What a provider charges besides tokens exceeds a limit by one request at most, and then no more."""

    async def scenario() -> None:
        async with limited(tmp_path, Stating()) as router:
            paid = await spend(router, [ask(params={"max_tokens": 10}) for _ in range(20)], 1)
            assert paid == pytest.approx(0.048)
            with pytest.raises(BudgetExhausted, match=r"it may cost 0\.012\d* USD at most"):
                await router.complete(ask(params={"max_tokens": 10}))

    virtual_time.run(scenario())


@pytest.mark.parametrize(("stated", "usd"), [(MOST_STATED_USD, MOST_STATED_USD), (MOST_STATED_USD + 0.01, 4e-6)])
def test_up_to_a_dollar_a_stated_cost_is_plausible(stated: float, usd: float) -> None:
    """However cheap the tokens are: fees of tools are no tokens. Above it, tokens that cannot cost so much decide."""
    card = ModelCard(name="a", provider="p", prices=Prices(input=0.0, output=1.0), context_window=1000)
    assert charge(card, Usage(prompt_tokens=7, completion_tokens=4, cost_usd=stated)).usd == pytest.approx(usd)


@pytest.mark.parametrize(("known", "estimated"), [(True, True), (False, False)])
def test_a_cost_that_nobody_knows_is_not_estimated(known: bool, estimated: bool) -> None:
    """Cached tokens without a price of their own are estimated at the prompt's, where that is known."""
    card = ModelCard(name="a", provider="p", prices=Prices(input=1.0, output=1.0, known=known))
    charged = charge(card, Usage(prompt_tokens=10, completion_tokens=4, cached_tokens=5))
    assert (charged.assumed, charged.estimated) == (not known, estimated)


@pytest.mark.parametrize("n", [1, 2])
def test_no_model_is_called_after_the_deadline(tmp_path: Path, n: int) -> None:
    """Money that took until the deadline to reserve buys no call, and none is booked."""

    async def scenario() -> None:
        provider = Dear()
        async with limited(tmp_path, provider) as router:
            ledger = router._ledger
            reserve = ledger.reserve

            async def late(*args: Any, **kwargs: Any) -> Any:
                found = await reserve(*args, **kwargs)
                await asyncio.sleep(4.0)
                return found

            ledger.reserve = late  # type: ignore[method-assign]
            with pytest.raises(FitrouterError):
                await router.complete(ask(params={"max_tokens": 10}, deadline_s=3.0, n=n))
            await router.settled()
            assert provider.calls == []
            assert {attempt.error for event in events(router, Execution) for attempt in event.attempts} == {"NotCalled"}
            assert sum(event.cost_usd or 0.0 for event in events(router, Execution)) == 0.0

    virtual_time.run(scenario())


TIERS = {"auto": True, "default": True, "flex": True, "priority": False, "ultrafast": False, "fast": False, "": False}


@pytest.mark.parametrize("stream", [False, True])
def test_tiers_without_a_known_price_are_refused_under_a_hard_limit(tmp_path: Path, stream: bool) -> None:
    """Tiers that cost more than the prices; without a hard limit all are served."""

    async def scenario() -> None:
        for hard in (True, False):
            async with limited(tmp_path, Echo(), budget={"hard": hard}) as router:
                for tier, served in TIERS.items():
                    asked = ask(params={"service_tier": tier, "max_tokens": 10}, stream=stream)
                    if served or not hard:
                        await (router.stream if stream else router.complete)(asked)
                    else:
                        with pytest.raises(BudgetExhausted, match="service_tier"):
                            await (router.stream if stream else router.complete)(asked)

    virtual_time.run(scenario())


BESIDE_TOKENS: dict[str, tuple[dict[str, Any], bool]] = {
    "a search": ({"web_search_options": {}}, False),
    "xAI's search": ({"search_parameters": {"mode": "on"}}, False),
    "a plugin": ({"plugins": [{"id": "web"}]}, False),
    "DashScope's search": ({"enable_search": True}, False),
    "a faster machine": ({"speed": "fast"}, False),
    "another region": ({"inference_geo": "us"}, False),
    "servers of tools": ({"mcp_servers": [{"url": "x"}]}, False),
    "a tool of the provider's": ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, False),
    "pictures": ({"modalities": ["text", "image"]}, False),
    "other models": ({"models": ["openai/gpt-5.2"]}, False),
    "another limit": ({"max_new_tokens": 10_000}, False),
    "Ollama's limit": ({"options": {"num_predict": 10_000}}, False),
    "Ollama's limit beside its temperature": ({"options": {"temperature": 0, "num_predict": 10_000}}, False),
    "options that nobody knows": ({"options": {"flavour": "mint"}}, True),
    "a plugin that is on": ({"plugins": [{"id": "web", "enabled": False}, {"id": "web"}]}, False),
    "xAI's search, as it likes": ({"search_parameters": {"mode": "auto"}}, False),
    "xAI's search, by default": ({"search_parameters": {"max_search_results": 1}}, False),
    "a tool of a similar name": ({"tools": [{"type": "functions_search"}]}, False),
    "Ollama's temperature": ({"options": {"temperature": 0, "num_ctx": 8192}}, True),
    "xAI's search, in other words": ({"search_parameters": {"enabled": False, "type": "none"}}, False),
    "a plugin, in other words": ({"plugins": [{"id": "web", "mode": "off"}]}, False),
    "a search as a word": ({"enable_search": "off"}, False),
    "two limits of Ollama's": ({"options": {"num_predict": 10_000}, "num_predict": 0}, False),
    "xAI's search, off": ({"search_parameters": {"mode": "off"}}, True),
    "a plugin that is off": ({"plugins": [{"id": "web", "enabled": False}]}, True),
    "no plugins": ({"plugins": []}, True),
    "any region": ({"inference_geo": "global"}, True),
    "tools that the caller runs": (
        {"tools": [{"type": "bash_20250124", "name": "bash"}, {"type": "local_shell"}]},
        True,
    ),
    "no search": ({"enable_search": False}, True),
    "an ordinary machine": ({"speed": "standard"}, True),
    "tools of the caller": ({"tools": [{"type": "function", "function": {"name": "f"}}]}, True),
    "text": ({"modalities": ["text"]}, True),
    "a field that nobody knows": ({"flavour": "mint"}, True),
}


@pytest.mark.parametrize(("params", "served"), BESIDE_TOKENS.values(), ids=BESIDE_TOKENS)
def test_what_costs_more_than_tokens_is_refused_under_a_hard_limit(
    tmp_path: Path, params: dict[str, Any], served: bool
) -> None:
    """Searches, tools that the provider runs, other limits of the answer: without a hard limit all are served."""

    async def scenario() -> None:
        for hard in (True, False):
            async with limited(tmp_path, Echo(), budget={"hard": hard}) as router:
                asked = ask(params={"max_tokens": 10, **params})
                if served or not hard:
                    await router.complete(asked)
                else:
                    with pytest.raises(BudgetExhausted, match="which a hard limit cannot count"):
                        await router.complete(asked)

    virtual_time.run(scenario())


LONG = "word " * 100_000
HIDDEN: dict[str, tuple[tuple[Message, ...], dict[str, Any]]] = {
    "documents": ((), {"documents": [{"text": LONG}]}),
    "arguments of a template": ((), {"chat_template_kwargs": {"context": LONG}}),
    "a template": ((), {"chat_template": LONG}),
    "a grammar": ((), {"guided_json": {"description": LONG}}),
    "an unknown field": ((), {"context": [LONG]}),
    "a prediction": ((), {"prediction": {"type": "content", "content": LONG}}),
    "a text beside a picture": (({"role": "tool", "content": {"type": "image", "text": LONG}},), {}),
    "a field of a message": (({"role": "user", "content": "x", "more": {"deep": [LONG]}},), {}),
}


@pytest.mark.parametrize(("messages", "params"), HIDDEN.values(), ids=HIDDEN)
def test_what_a_server_may_put_into_a_prompt_is_reserved(messages: tuple[Message, ...], params: dict[str, Any]) -> None:
    """Wherever a request holds it: a token is a byte or more."""
    card = ModelCard(name="a", provider="p", prices=Prices(input=1.0, output=1.0), context_window=10_000_000)
    asked = wants(Request(messages=messages, params=params))
    assert call_usd(card, asked, 0) >= len(LONG) / 1e6


USD = st.floats(0.0, 100.0)
PRICES = st.builds(
    Prices,
    **dict.fromkeys(("input", "output", "request"), USD),
    **dict.fromkeys(
        ("cache_read", "cache_write", "cache_write_1h", "reasoning", "long_input", "long_output"), st.none() | USD
    ),
    long_above=st.none() | st.integers(0, 300_000),
)


@given(PRICES, st.integers(0, 300_000), st.integers(1, 5), st.sampled_from([0, 1, 4000]), st.booleans(), st.data())
@settings(max_examples=20)
def test_no_bill_is_above_its_bound(
    prices: Prices, estimate: int, n: int, limit: int, tools: bool, data: st.DataObject
) -> None:
    """Whatever the calls of a request report within their prompt and limit, whichever part it is and however long."""
    card = ModelCard(name="a", provider="p", prices=prices, context_window=400_000)
    asked = Wants(prompt_tokens=estimate, answer_tokens=limit, choices=n, capabilities=("tools",) * tools)
    most_prompt, most_answer = most_prompt_tokens(card, asked), answer_limit(card, asked)
    usd = 0.0
    for _ in range(n):
        prompt, answer = (data.draw(st.integers(0, most)) for most in (most_prompt, most_answer))
        read, long, thought = (
            data.draw(st.integers(0, prompt)),
            data.draw(st.integers(0, prompt)),
            data.draw(st.integers(0, answer)),
        )
        counts = {"cached_tokens": read, "written_tokens": prompt - read, "written_1h_tokens": long}
        usage = Usage(prompt_tokens=prompt, completion_tokens=answer, reasoning_tokens=thought, **counts)
        usd += charge(card, consistent(usage)).usd
    assert usd <= call_usd(card, asked, most_answer) * (1.0 + 1e-9)


def test_a_stream_that_was_left_is_booked_with_its_whole_reservation(tmp_path: Path) -> None:
    """Under a hard limit: nobody knows what the provider bills. An answer that ended gives the rest back at once."""

    async def scenario() -> None:
        async with limited(tmp_path, Endless(), prices=(10.0,)) as router:
            stream = await router.stream(ask(params={"max_tokens": 1000}))
            await anext(aiter(stream))
            assert held(router) == pytest.approx(0.01)
            await stream.aclose()
            assert held(router) == pytest.approx(0.01)
        async with limited(tmp_path, Echo(), prices=(10.0,)) as router:
            await router.complete(ask(params={"max_tokens": 1000}))
            assert held(router) == pytest.approx(11 * 10e-6)

    virtual_time.run(scenario())


def test_a_call_that_failed_is_booked_with_what_it_used(tmp_path: Path) -> None:
    """An answer without a choice may be billed: it counts for the request, under its limit, and for its later calls."""

    class Empty(Echo):
        async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
            self.calls.append(call)
            failed = ProviderUnavailable("no choice").billed(Usage(prompt_tokens=7, completion_tokens=10_000))
            if not call.stream:
                raise failed
            return self._nothing(failed.usage)

        async def _nothing(self, usage: Usage | None) -> AsyncIterator[Chunk]:
            yield Chunk(delta={"role": "assistant"})
            yield Chunk(usage=usage)

    async def scenario(stream: bool) -> None:
        provider = Empty()
        async with limited(Path(tempfile.mkdtemp(dir=tmp_path)), provider, budget={"bucket": 1e4}) as router:
            for n in range(8):
                with pytest.raises(FitrouterError):
                    await (router.stream if stream else router.complete)(ask(f"q{n}", params={"max_tokens": 10_000}))
            await router.settled()
            paid = [event.cost_usd for event in events(router, Execution)]
            assert sum(paid) == pytest.approx(0.01 * len(provider.calls))
            tried = [attempt for event in events(router, Execution) for attempt in event.attempts]
            called = [each.cost_usd for each in tried if each.error not in NOT_CALLED]
            assert called == [pytest.approx(0.01)] * len(provider.calls), "each attempt says what it cost"
            assert {each.cost_usd for each in tried if each.error in NOT_CALLED} <= {None}
            assert len(provider.calls) > 1
            assert held(router) == pytest.approx(sum(paid))
            assert held(router) <= LIMIT + 1e-9

    virtual_time.run(scenario(stream=False))
    virtual_time.run(scenario(stream=True))


def test_a_call_that_timed_out_is_booked_in_full(tmp_path: Path) -> None:
    """Its fallback reserves on top of it."""

    async def scenario() -> None:
        provider = Faulty(Echo(), [Fault(hang=True)])
        timers = Timers(deadline_s=100.0, first_token_s=5.0)
        async with limited(tmp_path, provider, prices=(10.0, 10.0), timers=timers, budget={"bucket": 1e4}) as router:
            await router.complete(ask(params={"max_tokens": 1000}))
            assert 0.01 + 11 * 10e-6 <= held(router) < 0.02

    virtual_time.run(scenario())


def test_models_without_a_price_are_excluded_under_a_hard_limit(tmp_path: Path) -> None:
    """Of two the one with a price answers; without one the error says what to set. Soft limits weigh them."""

    async def scenario(known: bool, *, hard: bool) -> tuple[str, str]:
        found = [msgspec.structs.replace(card, prices=Prices(output=1.0, known=False)) for card in models(1.0, 1.0)]
        found[1] = msgspec.structs.replace(found[1], prices=Prices(output=1.0, known=known))
        params = ProjectionParams(budget=BudgetParams(usd_per_period=LIMIT, hard=hard))
        learner = Learner(len(context_names()), 1, expects_scores=False, projections=params)
        async with make_router(Path(tempfile.mkdtemp(dir=tmp_path)), models=found, learner=learner) as router:
            answer = await router.complete(ask())
            return answer.served_by, dict(answer.decision.excluded).get("alpha", "")

    for _ in range(5):
        served, reason = virtual_time.run(scenario(True, hard=True))
        assert (served, "set its `prices`" in reason) == ("beta", True)
    with pytest.raises(BudgetExhausted, match=r"alpha: budget: it has no price, .* set its `prices`; beta: budget"):
        virtual_time.run(scenario(False, hard=True))
    assert virtual_time.run(scenario(False, hard=False))[1] == ""


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", ""])
def test_what_the_model_gets_is_what_is_covered(tmp_path: Path, name: str) -> None:
    """The limit that the caller sent is lowered under its name, or one is added; the answer says so."""

    async def scenario() -> None:
        provider = Echo()
        async with limited(tmp_path, provider, prices=(20.0,)) as router:
            answer = await router.complete(ask(params={name: 100_000} if name else {}))
            assert answer.max_tokens == int(LIMIT / 20e-6)
            assert provider.calls[0].params == {name or "max_tokens": answer.max_tokens}
            free = await router.complete(ask(params={"max_tokens": 300}))
            assert (free.max_tokens, provider.calls[1].params) == (None, {"max_tokens": 300})

    virtual_time.run(scenario())


def test_a_stream_that_breaks_off_is_charged_for_what_was_streamed(tmp_path: Path) -> None:
    """As one that was left; what the provider reported at the beginning is not the end's."""

    class Counts(Echo):
        async def _stream(self, message: Any, usage: Usage) -> AsyncIterator[Chunk]:
            yield Chunk(delta={"content": "word " * 100}, usage=Usage(prompt_tokens=9, completion_tokens=1))
            raise ProviderUnavailable("reset")

    async def scenario() -> None:
        async with make_router(tmp_path, {"echo": Counts()}, models=priced()) as router:
            stream = await router.stream(ask())
            with pytest.raises(ProviderError):
                _ = [chunk async for chunk in stream]
            await router.settled()
        (execution,) = events(router, Execution)
        assert (execution.status, execution.prompt_tokens, execution.completion_tokens) == ("partial", 9, 125)
        assert execution.estimated

    virtual_time.run(scenario())


def test_abandoned_calls_are_charged(tmp_path: Path) -> None:
    """A call that timed out before its fallback, and one whose caller left, may be billed: prompt and time passed."""

    async def scenario() -> None:
        provider = Faulty(Echo(), [Fault(hang=True), None, Fault(hang=True)])
        timers = Timers(deadline_s=100.0)
        models = [ModelCard(name=n, provider="echo", prices=Prices(input=1e3, output=1e3)) for n in ("alpha", "beta")]
        async with make_router(tmp_path, {"echo": provider}, models=models, timers=timers) as router:
            answer = await router.complete(ask())
            task = asyncio.create_task(router.complete(ask("another")))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await router.settled()
        late, left = events(router, Execution)
        first = answer.decision
        expected = first.cost[first.eligible.index(first.chosen)]
        assert late.estimated
        assert late.cost_usd == answer.cost_usd == pytest.approx(expected + (7 + 11) * 1e-3)
        assert [each.cost_usd for each in late.attempts] == [pytest.approx(expected), pytest.approx((7 + 11) * 1e-3)]
        assert [each.cost_usd for each in left.attempts] == [pytest.approx(left.cost_usd)]
        assert left.estimated
        assert left.prompt_tokens * 1e-3 <= left.cost_usd < expected
        assert [each.error for each in left.attempts] == ["CancelledError"]
        beta = router._learner.fit.arms.beta
        assert beta[:, 1].sum() == 1.0, "only the timeout is evidence on availability"

    virtual_time.run(scenario())


def test_a_call_that_was_given_up_costs_its_prompt_at_least() -> None:
    """Whatever is believed of the model: no latency yet, or a whole answer that is cheaper than the prompt."""
    known: dict[str, Any] = {"eligible": ("a",), "chosen": "a", "propensity": 1.0, "cost": (1e-6,), "latency": (0.0,)}
    decision = Decision(
        id="d", ts=0.0, draw_id="d", identity=Identity(), mode=Mode.PINNED, policy=PolicyVersion(algorithm="x"), **known
    )
    card = ModelCard(name="a", provider="p", prices=Prices(input=1e3, output=1e3))
    spending = Spending({"a": card}, Learner(3, 1), lambda: 0.0, Ledger(MemoryJournal(), lambda: 0.0))
    left = [Attempt(model="a", probability=1.0, error="CancelledError", ms=ms) for ms in (0.0, 5.0)]
    for attempt, (each, usage, usd) in zip(
        left, spending.abandoned(decision, left, Wants(prompt_tokens=7)), strict=True
    ):
        assert each is attempt
        assert (usage.prompt_tokens, usage.completion_tokens, usage.estimated) == (7, 0, True)
        assert usd == pytest.approx(7e-3)


def test_costs_at_assumed_prices_are_labelled(tmp_path: Path) -> None:
    """An answer's cost is unknown if any call that may be billed for it went to a model without a price."""

    async def scenario(alpha: bool, beta: bool, faults: list[Fault | None]) -> tuple[float | None, Execution]:
        models = [
            ModelCard(name=name, provider="echo", prices=Prices(input=1e3, output=1e3, known=known))
            for name, known in (("alpha", alpha), ("beta", beta))
        ]
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        async with make_router(folder, {"echo": Faulty(Echo(), faults)}, models=models) as router:
            stream = await router.stream(ask())
            _ = [chunk async for chunk in stream]
            await router.settled()
        (execution,) = events(router, Execution)
        return stream.cost_usd, execution

    hang, down = Fault(hang=True), Fault(error=ProviderUnavailable("down"))
    seen = set()
    for known, fault in itertools.product([{"alpha"}, {"beta"}, {"alpha", "beta"}], [hang, down, None]):
        shown, execution = virtual_time.run(scenario("alpha" in known, "beta" in known, [fault, None]))
        billed = {a.model for a in execution.attempts if a.error != "ProviderUnavailable"}  # refusals cost nothing
        assert execution.cost_assumed == (not billed <= known)
        assert shown == (execution.cost_usd if billed <= known else None)
        seen.add((len(billed), execution.cost_assumed))
    assert seen >= {(1, False), (2, False), (2, True)}

    async def cancelled() -> Execution:
        models = [ModelCard(name="alpha", provider="echo", prices=Prices(input=1e3, output=1e3, known=False))]
        async with make_router(tmp_path, {"echo": Faulty(Echo(), [Fault(hang=True)])}, models=models) as router:
            task = asyncio.create_task(router.complete(ask()))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await router.settled()
        (execution,) = events(router, Execution)
        return execution

    left = virtual_time.run(cancelled())
    assert left.cost_usd > 0.0
    assert left.cost_assumed


def test_a_stream_without_usage_ends_with_an_estimate(tmp_path: Path) -> None:
    """A provider that reports nothing still charges; clients that ask for usage get the estimate, marked."""
    router = make_router(tmp_path, {"echo": Says(None)}, models=priced())
    with serving(router, config()) as url, client(url) as http:
        whole = http.post("/v1/chat/completions", json=chat()).json()
        assert whole["usage"] == {
            "prompt_tokens": 7,
            "completion_tokens": 125,
            "total_tokens": 132,
            "estimated": True,
        }
        body = chat("again", stream=True, stream_options={"include_usage": True})
        lines = http.post("/v1/chat/completions", json=body).text.splitlines()
        last = json.loads([line for line in lines if line.startswith("data: {")][-1].removeprefix("data: "))
        assert last["usage"]["estimated"]
        assert last["usage"]["completion_tokens"] == 125


def test_malformed_tool_calls_of_a_stream_cost_no_log_entry() -> None:
    """Indices and pieces of any type are assembled or left out, and counted."""
    assembler = Assembler()
    for calls in (
        [{"index": "a", "function": {"name": "f", "arguments": "{"}}, {"index": 2, "function": {"name": 7}}],
        [{"index": [], "function": {"arguments": "}"}}, None, "text", {"function": 3}],
        {"index": 0},
        "calls",
        [{"index": math.nan}],
    ):
        assembler.add(Chunk(delta={"tool_calls": calls}))
    calls = assembler.message()["tool_calls"]
    assert [call["function"] for call in calls] == [{"name": "f", "arguments": "{}"}, {"name": "", "arguments": ""}]
    assert assembler.tokens == 3


def test_reports_of_others_are_within_bounds_too(tmp_path: Path) -> None:
    """An outcome with more tokens than the window holds, or a cost beyond it, is logged by estimate."""

    async def scenario() -> None:
        async with make_router(tmp_path, models=priced(context_window=1000)) as router:
            usage = Usage(prompt_tokens=2**31, completion_tokens=2**31)
            answer = Completion(message={"role": "assistant", "content": "word " * 100}, usage=usage)
            await router.observe(ask(), answer, "alpha", cost_usd=1e6, latency_ms=10.0)
            honest = Completion(message=answer.message, usage=Usage(prompt_tokens=900, completion_tokens=100))
            await router.observe(ask(), honest, "alpha", cost_usd=0.005, latency_ms=10.0)
            await router.settled()
        hostile, fine = events(router, Execution)
        assert (hostile.prompt_tokens, hostile.completion_tokens, hostile.estimated) == (7, 125, True)
        assert hostile.cost_usd == pytest.approx(257e-6)
        assert (fine.prompt_tokens, fine.completion_tokens, fine.cost_usd, fine.estimated) == (900, 100, 0.005, False)

    virtual_time.run(scenario())
