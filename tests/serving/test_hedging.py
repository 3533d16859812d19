"""Laws of hedging: a slow model is called once more within a budget; the loser is closed and paid."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kits import fault_simulation, virtual_time
from tests.kits.gateway import make_router
from tests.kits.tables import table_driven

from fitrouter.context.features import context_names
from fitrouter.draw import replay
from fitrouter.errors import AllModelsFailed, ProviderRejected, ProviderUnavailable
from fitrouter.hooks import Hedged
from fitrouter.router import Router
from fitrouter.serving import hedging
from fitrouter.serving.attempts import ABANDON_S, Timers
from fitrouter.serving.hedging import BURST, KEPT, LEAST, Hedges
from fitrouter.serving.slots import SlotParams
from fitrouter.state.budgets import BudgetParams
from fitrouter.state.learner import Learner
from fitrouter.state.projections import ProjectionParams
from fitrouter.types import AUTO, Call, Chunk, Completion, Decision, Execution, ModelCard, Prices, Request, Usage

QUICK_S, SLOW_S = 1.0, 20.0
USAGE = Usage(prompt_tokens=5, completion_tokens=10)
Outcome = float | Exception


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> fault_simulation.Identified:
    return fault_simulation.Identified(tmp_path_factory.mktemp("identities") / "identities.db")


class Scripted:
    """A provider whose calls take the seconds of a script, or fail after `QUICK_S`; then they are quick."""

    def __init__(self) -> None:
        self.script: list[Outcome] = []
        self.open = self.most = self.calls = 0

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        """Answer after its time."""
        outcome = self.script.pop(0) if self.script else QUICK_S
        self.calls += 1
        if call.stream:
            return self._stream(outcome)
        self._begin()
        try:
            await self._pass(outcome)
            return Completion(message={"role": "assistant", "content": "so"}, usage=USAGE)
        finally:
            self.open -= 1

    async def _stream(self, outcome: Outcome) -> AsyncIterator[Chunk]:
        self._begin()
        try:
            await self._pass(outcome)
            yield Chunk(delta={"content": "so"})
            await asyncio.sleep(QUICK_S)
            yield Chunk(delta={"content": "."}, finish_reason="stop", usage=USAGE)
        finally:
            self.open -= 1

    def _begin(self) -> None:
        self.open += 1
        self.most = max(self.most, self.open)

    async def _pass(self, outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            await asyncio.sleep(4 * QUICK_S)
            raise outcome
        await asyncio.sleep(outcome)

    async def aclose(self) -> None:
        """Nothing to close."""


def hedging_router(tmp_path: Path, share: float = 0.5, **more: Any) -> tuple[Router, Scripted, list[Hedged]]:
    """A router of one model, with its provider and the hedges that it tells of."""
    provider, told = Scripted(), list[Hedged]()
    card = ModelCard(name="one", provider="p", prices=Prices(input=1000.0, output=1000.0))
    timers = Timers(deadline_s=60.0, first_token_s=30.0, hedge_share=share)
    hook = lambda notice: told.append(notice) if isinstance(notice, Hedged) else None  # noqa: E731
    return make_router(tmp_path, {"p": provider}, models=[card], timers=timers, hook=hook, **more), provider, told


def ask(n: int = 0, stream: bool = False) -> Request:
    return Request(messages=({"role": "user", "content": f"q{n}"},), model=AUTO, stream=stream)


async def answer(router: Router, request: Request) -> float:
    """Ask; seconds until the first token, or the whole answer."""
    begun = time.monotonic()
    if not request.stream:
        await router.complete(request)
        return time.monotonic() - begun
    stream = await router.stream(request)
    took = time.monotonic() - begun
    _ = [chunk async for chunk in stream]
    return took


async def warm(router: Router, stream: bool) -> None:
    for n in range(LEAST):
        await answer(router, ask(n, stream))


def executions(router: Router) -> list[Execution]:
    return [row.event for row in router._journal.tail(0, 100_000) if isinstance(row.event, Execution)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "took", "result"),
    [
        (SLOW_S, QUICK_S, 2.0, "won"),
        (5.0, SLOW_S, 5.0, "lost"),
        (5.0, ProviderUnavailable("down", 503), 5.0, "lost"),
        (ProviderUnavailable("down", 503), 5.0, 6.0, "won"),
    ],
)
def test_the_first_answer_counts(
    tmp_path: Path, stream: bool, first: Outcome, second: Outcome, took: float, result: str
) -> None:
    """A call that passes p95 (1 s) gets a second one; the loser is closed, both are paid, one attempt is logged."""

    async def scenario() -> None:
        router, provider, told = hedging_router(tmp_path)
        async with router:
            await warm(router, stream)
            provider.script = [first, second]
            assert await answer(router, ask(99, stream)) == pytest.approx(took)
            assert provider.calls == LEAST + 2
            assert (provider.open, provider.most) == (0, 2)
            assert router._caller.slots["p"].used == 0
            await router.settled()
            (attempt,) = executions(router)[-1].attempts
            assert (attempt.model, attempt.error, attempt.probability) == ("one", None, 1.0)
            plain, hedged = (executions(router)[at].cost_usd for at in (0, -1))
            failed = isinstance(first, Exception) or isinstance(second, Exception)
            assert hedged == pytest.approx(plain) if failed else hedged > plain
            assert told == [Hedged("one", result)]
            decisions = [row.event for row in router._journal.tail(0, 1000) if isinstance(row.event, Decision)]
            assert all(replay(decision) == decision.chosen for decision in decisions)

    virtual_time.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_without_a_share_nothing_is_called_twice(tmp_path: Path, stream: bool) -> None:
    """Hedging is off by default."""
    assert Timers().hedge_share == 0.0

    async def scenario() -> None:
        router, provider, told = hedging_router(tmp_path, share=0.0)
        async with router:
            await warm(router, stream)
            provider.script = [SLOW_S]
            assert await answer(router, ask(99, stream)) == pytest.approx(SLOW_S)
            assert (provider.calls, told) == (LEAST + 1, [])

    virtual_time.run(scenario())


def test_failures_of_both_calls_are_one_failed_attempt(tmp_path: Path) -> None:
    """The first call's failure is logged, and the second one's counts at the breaker, too."""

    async def scenario() -> None:
        router, provider, told = hedging_router(tmp_path)
        async with router:
            await warm(router, False)
            provider.script = [ProviderUnavailable(which, 500) for which in ("first", "second", "again")]
            with pytest.raises(AllModelsFailed, match="first"):
                await answer(router, ask(99))
            await router.settled()
            attempt, again = executions(router)[-1].attempts
            assert (attempt.error, told) == ("ProviderUnavailable", [Hedged("one", "failed")])
            assert again.error == "ProviderUnavailable"
            assert router._breakers.of("default")._of["one"][0]._score == pytest.approx(3.0)

    virtual_time.run(scenario())


def test_a_rejected_request_is_not_waited_for(tmp_path: Path) -> None:
    """A second call of the same request would be rejected, too."""

    async def scenario() -> None:
        router, provider, told = hedging_router(tmp_path)
        async with router:
            await warm(router, False)
            provider.script, begun = [ProviderRejected("bad", 400), SLOW_S], time.monotonic()
            with pytest.raises(ProviderRejected):
                await answer(router, ask(99))
            assert time.monotonic() - begun == pytest.approx(4.0)
            assert (provider.open, told) == (0, [Hedged("one", "failed")])

    virtual_time.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_closes_both_calls(tmp_path: Path, stream: bool) -> None:
    """And both are charged for."""

    async def scenario() -> None:
        router, provider, told = hedging_router(tmp_path)
        async with router:
            await warm(router, stream)
            provider.script = [SLOW_S, SLOW_S]
            asking = asyncio.create_task(answer(router, ask(99, stream)))
            await asyncio.sleep(3.0)
            assert provider.open == 2
            asking.cancel()
            await asyncio.wait({asking})
            assert (provider.open, router._caller.slots["p"].used, told) == (0, 0, [Hedged("one", "cancelled")])
            await router.settled()
            execution = executions(router)[-1]
            assert [each.error for each in execution.attempts] == ["CancelledError"]
            assert execution.status == "cancelled"
            assert execution.prompt_tokens % 2 == 0 < execution.prompt_tokens

    virtual_time.run(scenario())


def test_no_free_slot_means_no_second_call(tmp_path: Path) -> None:
    """A second call waits for nobody."""

    async def scenario() -> None:
        router, provider, told = hedging_router(tmp_path, slots=SlotParams(concurrency={"p": 1}))
        async with router:
            await warm(router, False)
            provider.script = [SLOW_S]
            assert await answer(router, ask(99)) == pytest.approx(SLOW_S)
            assert (provider.most, told) == (1, [])

    virtual_time.run(scenario())


@pytest.mark.parametrize(("calls", "result"), [(1.5, []), (2.5, [Hedged("one", "won")])])
def test_a_second_call_is_reserved_before_it_is_made(tmp_path: Path, calls: float, result: list[Hedged]) -> None:
    """What is left of the period covers so many calls; where it covers one alone, nobody makes a second one."""

    async def scenario() -> None:
        params = ProjectionParams(budget=BudgetParams(usd_per_period=1e6, period_s=1e9))
        learner = Learner(len(context_names()), 1, expects_scores=False, projections=params)
        router, provider, told = hedging_router(tmp_path, learner=learner)
        async with router:
            await warm(router, False)
            budgets, now = router._learner.projections.budgets, router.clock()
            usd = (await router.decide(ask(99))).decision.cost[0]
            budgets.limits = {"default": 1e6 - budgets.left("default", now) + calls * usd}
            provider.script = [SLOW_S]
            took = await answer(router, ask(99))
            assert took == pytest.approx(2 * QUICK_S if result else SLOW_S)
            assert (provider.most, told, router._caller.slots["p"].used) == (1 + len(result), result, 0)

    virtual_time.run(scenario())


def test_two_slow_calls_at_once_do_not_spend_one_share_twice(tmp_path: Path) -> None:
    """Both could afford a second call when they began; the first to be slow makes it."""

    async def scenario() -> None:
        router, provider, told = hedging_router(tmp_path, share=0.05)
        async with router:
            await warm(router, False)
            provider.script = [SLOW_S, SLOW_S]
            took = await asyncio.gather(*(answer(router, ask(90 + n)) for n in range(2)))
            assert sorted(took) == pytest.approx([2 * QUICK_S, SLOW_S])
            assert (provider.most, told) == (3, [Hedged("one", "won")])

    virtual_time.run(scenario())


def test_a_breaker_that_opened_meanwhile_is_obeyed(tmp_path: Path) -> None:
    """A model that must not be called now is not called a second time either."""

    async def scenario() -> None:
        router, provider, told = hedging_router(tmp_path)
        async with router:
            await warm(router, False)
            provider.script = [SLOW_S]
            asking = asyncio.create_task(answer(router, ask(99)))
            await asyncio.sleep(0.5)
            router._breakers.of("default").broke_off("one", ProviderUnavailable("busy", 429, 30.0))
            assert await asking == pytest.approx(SLOW_S)
            assert (provider.most, told) == (1, [])

    virtual_time.run(scenario())


def test_a_probe_is_one_call(tmp_path: Path) -> None:
    """A model whose cooldown has ended meanwhile is not probed by a second call, and the probe stays to be made."""

    async def scenario() -> None:
        router, provider, told = hedging_router(tmp_path)
        async with router:
            await warm(router, False)
            provider.script = [SLOW_S]
            asking = asyncio.create_task(answer(router, ask(99)))
            await asyncio.sleep(0.2)
            breakers = router._breakers.of("default")
            breakers.broke_off("one", ProviderUnavailable("busy", 429, 0.3))
            assert await asking == pytest.approx(SLOW_S)
            assert (provider.most, told) == (1, [])
            assert breakers.enter("one").probes

    virtual_time.run(scenario())


def test_a_call_that_does_not_end_delays_the_other_ones_answer_by_a_second(tmp_path: Path) -> None:
    """A provider may ignore that its call is cancelled."""

    async def stubborn(outcome: Outcome) -> None:
        assert isinstance(outcome, float)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(outcome)
        if outcome == SLOW_S:
            await asyncio.sleep(SLOW_S)

    async def scenario() -> None:
        router, provider, told = hedging_router(tmp_path)
        async with router:
            await warm(router, False)
            provider._pass, provider.script = stubborn, [SLOW_S]  # type: ignore[method-assign]
            assert await answer(router, ask(99)) == pytest.approx(2 * QUICK_S + ABANDON_S)
            assert told == [Hedged("one", "won")]
            await asyncio.sleep(2 * SLOW_S)

    virtual_time.run(scenario())


def test_second_calls_stay_within_the_share(tmp_path: Path) -> None:
    """A tenth of the calls hang for 20 s; with a share of .02, 200 requests get four second calls at most."""

    async def scenario() -> None:
        router, provider, told = hedging_router(tmp_path, share=0.02)
        chance = random.Random(0)
        async with router:
            provider.script = [SLOW_S if chance.random() < 0.04 else QUICK_S for _ in range(400)]
            for n in range(200):
                await answer(router, ask(n))
            assert 1 <= len(told) <= 4
            assert provider.calls == 200 + len(told)

    virtual_time.run(scenario())


@given(
    share=st.floats(0.0, 1.0),
    steps=st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=300),
)
def test_budgets(share: float, steps: list[tuple[str, bool]]) -> None:
    """No order of requests and second calls exceeds a tenant's share of its own requests, nor `BURST` at once."""
    hedges = Hedges(share)
    requests, calls = dict.fromkeys("ab", 0), dict.fromkeys("ab", 0)
    for tenant, slow in steps:
        hedges.count(tenant)
        requests[tenant] += 1
        burst = 0
        while slow and hedges.affords(tenant):
            hedges.spend(tenant)
            calls[tenant] += 1
            burst += 1
        assert burst <= BURST
        assert calls[tenant] <= share * requests[tenant] + 1e-6


@given(st.lists(st.floats(0.0, 1e6), max_size=3 * KEPT))
def test_the_quantile_is_of_the_last_latencies(latencies: list[float]) -> None:
    """At most 5 % of the kept latencies are above it; with too few of them there is none."""
    hedges = Hedges(0.1)
    for seconds in latencies:
        hedges.observe("m", stream=True, seconds=seconds)
    after_s, kept = hedges.after_s("m", stream=True), latencies[-KEPT:]
    assert hedges.after_s("m", stream=False) == math.inf
    if len(kept) < LEAST:
        assert after_s == math.inf
    else:
        assert after_s in kept
        assert sum(seconds > after_s for seconds in kept) <= 0.05 * len(kept)


def test_tenants_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget of the tenant that is silent longest is forgotten."""
    monkeypatch.setattr(hedging, "TENANTS", 3)
    hedges = Hedges(1.0)
    for tenant in "abcad":
        hedges.count(tenant)
    assert [hedges.affords(tenant) for tenant in "abcd"] == [True, False, True, True]


@table_driven("seed", range(40))
def test_faults_with_hedging(
    seed: int, identities: fault_simulation.Identified, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under seeded faults no call, slot, probe or reservation is left, and every propensity replays."""
    monkeypatch.setattr(hedging, "LEAST", 2)
    script = fault_simulation.script_of(seed, 40)
    timers = msgspec.structs.replace(script.timers, hedge_share=1.0)
    result = fault_simulation.simulate(seed, identities, msgspec.structs.replace(script, timers=timers))
    assert result.violations == []
