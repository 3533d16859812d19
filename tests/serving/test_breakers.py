"""Laws of breakers and of the retry budget: failing models are left out, and one probe at a time brings them back."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from pathlib import Path
from typing import Any

import pytest
from tests.kits import virtual_time
from tests.kits.gateway import Echo, cards, chat, client, config, make_router, serving

from fitrouter.draw import draw_next, replay
from fitrouter.errors import (
    AllModelsFailed,
    AllRateLimited,
    KeyRefused,
    NotCalled,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
    QuotaExhausted,
    Unavailable,
)
from fitrouter.providers import Fault, Faulty
from fitrouter.router import Router
from fitrouter.routing import breakers as breakers_module
from fitrouter.routing.breakers import Breakers
from fitrouter.routing.decider import Rules
from fitrouter.serving.attempts import Timers
from fitrouter.serving.slots import SlotParams
from fitrouter.types import AUTO, Completion, Decision, Execution, Identity, ModelCard, Refusal, Request

DOWN = Fault(error=ProviderUnavailable("down", 503))


def ask(text: str = "Hello", model: str = AUTO, **more: Any) -> Request:
    return Request(messages=({"role": "user", "content": text},), model=model, **more)


def events(router: Router, kind: type[Any]) -> list[Any]:
    return [row.event for row in router._journal.tail(0, 100_000) if isinstance(row.event, kind)]


def alpha_apart(tmp_path: Path, script: Any, **more: Any) -> tuple[Router, Faulty]:
    """A router whose alpha fails by a script; the other models work."""
    faulty = Faulty(Echo(), script)
    models = cards(provider=lambda name: "faulty" if name == "alpha" else "echo")
    return make_router(tmp_path, {"faulty": faulty, "echo": Echo()}, models=models, **more), faulty


def alone(tmp_path: Path, script: Any, **more: Any) -> tuple[Router, Faulty]:
    """A router whose models all stand behind one provider that fails by a script."""
    faulty = Faulty(Echo(), script)
    return make_router(tmp_path, {"echo": faulty}, **more), faulty


def breakers_of(*names: str) -> Breakers:
    return Breakers({name: ModelCard(name=name, provider="p") for name in names})


def fail(breakers: Breakers, arm: str, error: Exception, times: int = 1) -> None:
    for _ in range(times):
        breakers.leave(breakers.enter(arm), error)


def test_a_hanging_default_model_costs_few_requests_their_patience(tmp_path: Path) -> None:
    """Of 120 requests in turn, four wait for its first-token timer; the others go elsewhere at once."""

    async def scenario() -> None:
        timers = Timers(deadline_s=100.0, first_token_s=30.0, chunk_gap_s=30.0)
        rules = Rules(registry="r1", default_arm="alpha", share=0.2)
        router, faulty = alpha_apart(tmp_path, itertools.repeat(Fault(hang=True)), timers=timers, rules=rules)
        async with router:
            waits = []
            for i in range(120):
                began = time.monotonic()
                stream = await router.stream(ask(f"q{i}"))
                waits.append(time.monotonic() - began)
                assert stream.served_by != "alpha"
                _ = [chunk async for chunk in stream]
            await router.settled()
        assert [wait for wait in waits if wait > 1.0] == pytest.approx([30.0] * 4)
        assert len(faulty.calls) == 4
        barred = [d for d in events(router, Decision) if "alpha" not in d.eligible]
        assert len(barred) > 80
        for decision in barred:
            ((arm, reason),) = decision.excluded
            assert (arm, reason.startswith("breaker: does not answer in time; ")) == ("alpha", True)
            assert replay(decision) == decision.chosen
            assert sum(decision.probs) == pytest.approx(1.0, abs=1e-12)

    virtual_time.run(scenario())


def test_retry_after_is_honoured_and_one_call_probes(tmp_path: Path) -> None:
    """After a 429 with Retry-After 30 the model gets no call for 30 s, then one of many at once, then all."""

    async def scenario() -> None:
        limited = ProviderUnavailable("slow down", 429, 30.0)
        router, faulty = alpha_apart(tmp_path, [Fault(error=limited), Fault(delay_s=5.0)])
        async with router:
            with pytest.raises(AllRateLimited):
                await router.complete(ask(model="alpha"))
            await asyncio.sleep(29.0)
            with pytest.raises(Unavailable, match="rate limited") as refused:
                await router.complete(ask(model="alpha"))
            assert refused.value.retry_after_s == pytest.approx(1.0)
            assert len(faulty.calls) == 1
            await asyncio.sleep(1.5)
            crowd = [router.complete(ask(f"q{i}", model="alpha")) for i in range(50)]
            found = await asyncio.gather(*crowd, return_exceptions=True)
            assert [type(each).__name__ for each in found].count("Unavailable") == 49
            assert len(faulty.calls) == 2
            assert router.status().breakers == {}
            await asyncio.gather(*(router.complete(ask(f"r{i}", model="alpha")) for i in range(50)))
            assert len(faulty.calls) == 52

    virtual_time.run(scenario())


def test_all_models_down_is_told_at_once(tmp_path: Path) -> None:
    """100 requests cost eight calls of each model; the others get Unavailable, with a time to come back."""

    async def scenario() -> None:
        router, faulty = alone(tmp_path, itertools.repeat(DOWN))
        async with router:
            kinds = []
            for i in range(100):
                try:
                    await router.complete(ask(f"q{i}"))
                except (AllModelsFailed, Unavailable) as error:
                    kinds.append(type(error))
            assert kinds == [AllModelsFailed] * 4 + [Unavailable] * 96
            assert len(faulty.calls) == 24
            assert set(router.status().breakers) == {"alpha", "beta", "gamma"}
            for _ in range(600):  # ten minutes, a request each second: cooldowns double up to two minutes
                await asyncio.sleep(1.0)
                with pytest.raises((AllModelsFailed, Unavailable)):
                    await router.complete(ask())
            assert len(faulty.calls) <= 24 + 3 * 9
            await router.settled()
        assert len(events(router, Decision)) == len(events(router, Execution))
        refusals = events(router, Refusal)
        assert len(events(router, Execution)) + sum(refusal.n for refusal in refusals) == 700, "each of them is counted"
        assert len(refusals) <= 601, "equal ones of half a second as one"

    virtual_time.run(scenario())


def test_a_model_that_recovers_is_back_within_two_probes(tmp_path: Path) -> None:
    """An outage of a minute ends with the next probe."""

    async def scenario() -> None:
        router, _ = alone(tmp_path, (DOWN if time.monotonic() < 60.0 else None for _ in itertools.count()))
        async with router:
            ended = None
            for i in range(200):
                await asyncio.sleep(1.0)
                try:
                    await router.complete(ask(f"q{i}"))
                except (AllModelsFailed, Unavailable):
                    continue
                ended = ended or time.monotonic()
            assert ended is not None
            assert ended <= 60.0 + 40.0
            assert router.status().breakers == {}

    virtual_time.run(scenario())


def test_an_abandoned_probe_leaves_room_for_the_next(tmp_path: Path) -> None:
    """A caller that gives up while its call probes does not keep the model closed."""

    async def scenario() -> None:
        script = [*[DOWN] * 8, Fault(hang=True)]
        router, _ = alone(tmp_path, script, models=cards(["alpha"]))
        async with router:
            for _ in range(4):  # each calls it twice
                with pytest.raises(AllModelsFailed):
                    await router.complete(ask())
            await asyncio.sleep(6.0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await router.complete(ask())
            assert (await router.complete(ask())).served_by == "alpha"

    virtual_time.run(scenario())


def test_a_session_leaves_a_model_whose_breaker_opened(tmp_path: Path) -> None:
    """Its next turn is a draw over the others, with the reason in the log."""

    async def scenario() -> None:
        router, _ = alpha_apart(tmp_path, itertools.chain([None], itertools.repeat(DOWN)))
        async with router:
            session = Identity(user="ann", session="s")
            first = await router.complete(ask(identity=session))
            while first.served_by != "alpha":
                session = Identity(user="ann", session=f"{session.session}x")
                first = await router.complete(ask(identity=session))
            await router.settled()
            fail(router._breakers.of("default"), "alpha", ProviderUnavailable("down", 500), 8)
            later = await router.complete(ask("and now?", identity=session))
            assert later.decision.redraw == "ineligible"
            assert later.decision.excluded[0][0] == "alpha"
            assert replay(later.decision) == later.decision.chosen

    virtual_time.run(scenario())


def test_an_observed_call_is_logged_whatever_the_breakers_say(tmp_path: Path) -> None:
    """The call has been made already."""

    async def scenario() -> None:
        router, _ = alone(tmp_path, ())
        async with router:
            for name in ("alpha", "beta", "gamma"):
                fail(router._breakers.of("default"), name, ProviderUnavailable("down", 500), 8)
            with pytest.raises(Unavailable):
                await router.decide(ask())
            answer = Completion(message={"role": "assistant", "content": "Hi"}, finish_reason="stop")
            plan = await router.observe(ask(), answer, "alpha", cost_usd=None, latency_ms=10.0)
            assert plan.decision.chosen == "alpha"

    virtual_time.run(scenario())


def test_cooldown_classes(subtests: pytest.Subtests) -> None:
    """Which failure opens which breaker, after how many, and for how long."""
    late = 1e9
    for error, failures, opened, wait_s in (
        (ProviderUnavailable("bad key", 401), 3, {"a"}, 60.0),
        (ProviderUnavailable("pay first", 402), 3, {"a"}, 60.0),
        (ProviderUnavailable("insufficient_quota", 429), 3, {"a"}, 60.0),
        (ProviderUnavailable("slow down", 429, 7.0), 1, {"a"}, 7.0),
        (ProviderUnavailable("slow down", 429, late), 1, {"a"}, 900.0),
        (ProviderUnavailable("slow down", 429), 3, {"a"}, 2.0),
        (ProviderUnavailable("maintenance", 503, 20.0), 1, {"a"}, 20.0),
        (ProviderUnavailable("down", 500), 8, {"a"}, 5.0),
        (ProviderUnavailable("empty answer"), 8, {"a"}, 5.0),
        (ProviderTimeout("late"), 4, {"a"}, 5.0),
        (TimeoutError(), 4, {"a"}, 5.0),
        (KeyError("choices"), 8, {"a"}, 5.0),
        (ProviderUnavailable("flagged", 403), 15, {"a"}, 5.0),
        (ProviderUnavailable("insufficient_quota, says the prompt", 400), 15, {"a"}, 5.0),
    ):
        with subtests.test(error=repr(error)):

            async def scenario(
                error: Exception = error, failures: int = failures, opened: set[str] = opened, wait_s: float = wait_s
            ) -> None:
                breakers = breakers_of("a", "b")
                fail(breakers, "a", error, failures - 1)
                assert breakers.report() == {}
                fail(breakers, "a", error)
                assert set(breakers.report()) == opened
                assert breakers.retry_after_s(["a"]) == pytest.approx(wait_s)
                assert [arm for arm, _ in breakers.excluded(["a", "b"])] == ["a"]
                await asyncio.sleep(wait_s + 0.5)
                assert breakers.excluded(["a", "b"]) == []

            virtual_time.run(scenario())


ACCOUNT = [
    ProviderUnavailable("bad key", 401),
    ProviderUnavailable("requires more credits, or fewer max_tokens", 402),
    ProviderUnavailable("insufficient_quota", 429),
    KeyRefused("bad key", 401),
    QuotaExhausted("pay first", 402),
    QuotaExhausted("pay first, later", 402, 30.0),
]


def test_one_models_refusal_is_that_models(subtests: pytest.Subtests) -> None:
    """The account is to blame when two models are refused within two minutes, or the only one is."""
    for error in ACCOUNT:
        with subtests.test(error=repr(error)):

            async def scenario(error: Exception = error) -> None:
                breakers = breakers_of("a", "b", "c")
                fail(breakers, "a", error)
                assert "provider p" not in breakers.report()
                breakers.leave(breakers.enter("b"), None)  # an answer clears the account
                fail(breakers, "c", error)
                assert "provider p" not in breakers.report()
                await asyncio.sleep(150.0)
                fail(breakers, "b", error)
                assert "provider p" not in breakers.report()
                fail(breakers, "a", error)
                assert "provider p" in breakers.report()
                only = Breakers({"a": ModelCard(name="a", provider="p"), "z": ModelCard(name="z", provider="other")})
                fail(only, "a", error)
                assert "provider p" in only.report()

            virtual_time.run(scenario())


def test_what_a_caller_provokes_closes_no_model_for_others() -> None:
    """Refused requests, and content filters between others' answers, open nothing; neither does a caller's hurry."""
    breakers = breakers_of("a")
    fail(breakers, "a", ProviderRejected("no such parameter", 400), 100)
    for _ in range(100):
        fail(breakers, "a", ProviderUnavailable("flagged", 403), 3)
        breakers.leave(breakers.enter("a"), None)
    for _ in range(100):
        breakers.leave(breakers.enter("a"), TimeoutError(), counts=False)
        breakers.leave(breakers.enter("a"), asyncio.CancelledError())
        breakers.leave(breakers.enter("a"), NotCalled("no slot"))
    assert breakers.report() == {}


def test_retry_after_of_a_call_that_was_under_way_stands() -> None:
    """The longest Retry-After counts, whichever call got it, and a probe's answer does not shorten it."""

    async def scenario() -> None:
        breakers = breakers_of("a")
        early = [breakers.enter("a") for _ in range(3)]
        for entry, wait_s in zip(early[:2], (1.0, 30.0), strict=True):
            breakers.leave(entry, ProviderUnavailable("slow down", 429, wait_s))
        assert breakers.retry_after_s(["a"]) == pytest.approx(30.0)
        await asyncio.sleep(31.0)
        probe = breakers.enter("a")
        breakers.leave(early[2], ProviderUnavailable("slow down", 429, 60.0))
        breakers.leave(probe, None)
        assert breakers.retry_after_s(["a"]) == pytest.approx(60.0)

    virtual_time.run(scenario())


def test_calls_that_were_under_way_keep_a_breaker_open_no_longer() -> None:
    """Only a probe's failure or a Retry-After prolongs a cooldown, up to a quarter of an hour, and never its reason."""

    async def scenario() -> None:
        breakers = breakers_of("a")
        early = [breakers.enter("a") for _ in range(9)]
        fail(breakers, "a", ProviderUnavailable("down", 503), 8)
        await asyncio.sleep(4.0)
        for entry in early[:8]:
            breakers.leave(entry, ProviderTimeout("late"))
        assert breakers.retry_after_s(["gone", "a"]) == pytest.approx(1.0)
        assert breakers.report() == {"a": "fails"}
        breakers.leave(early[8], ProviderUnavailable("slow down", 429, 1e9))
        assert breakers.retry_after_s(["a"]) == pytest.approx(900.0)
        await asyncio.sleep(1000.0)
        breakers.enter("a")
        assert breakers.retry_after_s(["a"]) == 1.0, "a second, while it is probed"

    virtual_time.run(scenario())


def test_a_model_that_is_down_for_a_year_is_probed_still() -> None:
    """The wait grows up to its limit, and no number of failed probes is too large for it."""

    async def scenario() -> None:
        breakers, down = breakers_of("a"), ProviderUnavailable("down", 503)
        fail(breakers, "a", down, 8)
        waits_s = []
        for _ in range(1100):
            waits_s.append(breakers.retry_after_s(["a"]))
            await asyncio.sleep(waits_s[-1])
            breakers.leave(breakers.enter("a"), down)
        assert waits_s == pytest.approx([5.0, 10.0, 20.0, 40.0, 80.0, *[120.0] * 1095])

    virtual_time.run(scenario())


def test_a_breaker_that_opens_stops_calls_that_wait_for_a_slot(tmp_path: Path) -> None:
    """Two requests share one slot; the first is told to come back in a minute, and the second is not made."""

    async def scenario() -> None:
        script = itertools.repeat(Fault(error=ProviderUnavailable("slow down", 429, 60.0), delay_s=1.0))
        slots = SlotParams(concurrency={"echo": 1})
        router, faulty = alone(tmp_path, script, models=cards(["alpha"]), slots=slots)
        async with router:
            crowd = [router.complete(ask(f"q{i}")) for i in range(2)]
            found = await asyncio.gather(*crowd, return_exceptions=True)
        assert len(faulty.calls) == 1
        assert [type(each) for each in found] == [AllRateLimited, Unavailable]
        assert router._caller.slots["echo"].used == 0

    virtual_time.run(scenario())


def test_a_further_choice_counts_its_failures_whatever_the_deadline(tmp_path: Path) -> None:
    """A Retry-After that a further choice gets is honoured, also for a request with a deadline of its own."""

    async def scenario() -> None:
        script = [None, Fault(error=ProviderUnavailable("slow down", 429, 60.0))]
        router, faulty = alone(tmp_path, script, models=cards(["alpha"]))
        async with router:
            await router.complete(ask(n=2, deadline_s=5.0))
            assert len(faulty.calls) == 2
            assert set(router.status().breakers) == {"alpha"}

    virtual_time.run(scenario())


def test_a_further_choice_that_does_not_come_is_a_timeout(tmp_path: Path) -> None:
    """It is told as a model that is slow, not as one that is broken."""

    async def scenario() -> None:
        router, _ = alone(tmp_path, itertools.repeat(Fault(hang=True)), models=cards(["alpha"]))
        async with router:
            with pytest.raises(ProviderTimeout, match="no further choice in time"):
                await router._caller.again(ask(), "alpha", "default", time.monotonic() + 5.0, (), retry=False)

    virtual_time.run(scenario())


@pytest.mark.parametrize(("failures", "opens"), [(9, True), (5, False)])
def test_nine_of_ten_calls_failing_opens_and_half_does_not(failures: int, opens: bool) -> None:
    """What answers one call in ten is left out; what answers every other call is called."""
    breakers = breakers_of("a")
    with contextlib.ExitStack() as stack:
        if opens:
            stack.enter_context(pytest.raises(NotCalled))
        for i in range(200):
            error = ProviderUnavailable("down", 500) if i * failures % 10 < failures else None
            breakers.leave(breakers.enter("a"), error)
    assert bool(breakers.report()) is opens


def test_streams_that_break_off_open_the_breaker(tmp_path: Path) -> None:
    """A model that begins every answer and ends none is failing, although its first tokens come."""

    async def scenario() -> None:
        broken = itertools.repeat(Fault(error=ProviderUnavailable("reset"), after=1))
        router, _ = alone(tmp_path, broken, models=cards(["alpha"]))
        async with router:
            for i in range(50):
                try:
                    stream = await router.stream(ask(f"q{i}"))
                except Unavailable:
                    break
                with pytest.raises(ProviderError):
                    _ = [chunk async for chunk in stream]
            else:
                pytest.fail("it was called 50 times")

    virtual_time.run(scenario())


def test_the_retry_budget_bounds_calls_to_a_provider_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of the calls fail: after the first twenty, one request in ten is tried again at the same provider."""
    monkeypatch.setattr(breakers_module, "TRIP", math.inf)

    async def scenario() -> None:
        timers = Timers(retry_share=0.1)
        router, faulty = alone(tmp_path, itertools.cycle([DOWN, None, None]), timers=timers)
        async with router:
            skipped = 0
            for i in range(600):
                found = await asyncio.gather(router.complete(ask(f"q{i}")), return_exceptions=True)
                skipped += "too many retries" in str(found[0])
            await router.settled()
        assert len(faulty.calls) <= 600 * 1.1 + 20
        assert skipped > 0
        for execution in events(router, Execution):
            names = [attempt.error for attempt in execution.attempts]
            assert names[0] != "NotCalled"
            assert execution.status == ("failed" if "NotCalled" in names else "ok")

    virtual_time.run(scenario())


def test_a_long_time_without_failures_saves_up_twenty_retries() -> None:
    """However many calls went well before, an outage is not answered by a storm of retries."""
    breakers = breakers_of("a")
    for _ in range(1000):
        breakers.leave(breakers.enter("a"), None)
    for _ in range(20):
        breakers.leave(breakers.enter("a", retry=True), None)
    with pytest.raises(NotCalled, match="too many retries"):
        breakers.enter("a", retry=True)


def test_models_that_were_not_called_do_not_hide_why_the_others_failed(tmp_path: Path) -> None:
    """One is told to wait, and the others are out of order already: the answer is a 429 with the time to come back."""

    async def scenario() -> None:
        models = cards(provider=lambda name: "faulty" if name == "alpha" else "down")
        slow = Faulty(Echo(), [Fault(error=ProviderUnavailable("slow down", 429, 30.0))])
        providers = {"faulty": slow, "down": Faulty(Echo(), itertools.repeat(DOWN))}
        router = make_router(tmp_path, providers, models=models)
        async with router:
            breakers = router._caller.breakers.of("default")
            router._caller.slots["down"].size = 0  # they are drawn, and not called
            with pytest.raises(AllRateLimited) as refused:
                await router.complete(ask())
            assert refused.value.retry_after_s <= 30.0
            assert set(breakers.report()) == {"alpha"}

    virtual_time.run(scenario())


def test_models_are_tried_again_once_all_have_failed(tmp_path: Path) -> None:
    """Not one that refuses the request; each attempt replays from the log, with its probability."""

    async def scenario() -> None:
        refused = Fault(error=ProviderUnavailable("flagged", 403))
        router, faulty = alone(tmp_path, [DOWN, refused, DOWN, DOWN, None])
        async with router:
            answer = await router.complete(ask())
            await router.settled()
            (decision,), (execution,) = events(router, Decision), events(router, Execution)
        assert len(faulty.calls) == 5
        assert answer.served_by == execution.attempts[-1].model
        names = [attempt.error for attempt in execution.attempts]
        assert names == ["ProviderUnavailable", "ModelRefused", "ProviderUnavailable", "ProviderUnavailable", None]
        first, second, third, *again = [attempt.model for attempt in execution.attempts]
        assert len({first, second, third}) == 3
        assert sorted(again) == sorted({first, third})
        for i, attempt in enumerate(execution.attempts[1:], 1):
            assert draw_next(decision, execution.attempts[:i]) == (attempt.model, attempt.probability)

    virtual_time.run(scenario())


def test_calls_that_were_not_made_teach_nothing(tmp_path: Path) -> None:
    """An attempt `NotCalled` is logged with its probability, and moves neither availability nor the count of calls."""

    async def scenario() -> None:
        router, _ = alone(tmp_path, itertools.repeat(DOWN), timers=Timers(retry_share=0.0))
        async with router:
            router._breakers.of("default")._retries["echo"] = 0.0
            with pytest.raises(AllModelsFailed):
                await router.complete(ask())
            await router.settled()
            (execution,) = events(router, Execution)
            called, *others = execution.attempts
            assert [each.error for each in others] == ["NotCalled"] * 3
            assert all(0.0 < each.probability <= 1.0 and each.ms == 0.0 for each in others)
            assert router._learner.projections.arm_counts.counts == {called.model: 1}
            arms = router._learner.fit.arms
            up = {each.model: arms.beta[arms.names[each.model]].tolist() for each in execution.attempts}
            assert up[others[0].model] == up[others[1].model] != up[called.model]

    virtual_time.run(scenario())


def test_over_http_a_closed_model_is_a_503_with_retry_after(tmp_path: Path) -> None:
    """And /readyz and /metrics name it."""
    router, _ = alone(tmp_path, itertools.repeat(Fault(error=ProviderUnavailable("quota", 402))))
    with serving(router, config()) as url, client(url) as http:
        assert http.post("/v1/chat/completions", json=chat()).status_code == 502
        reply = http.post("/v1/chat/completions", json=chat())
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "unavailable")
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        shown: dict[str, str] = {}
        while not shown:
            shown = http.get("/readyz").json()["breakers"]
        assert shown == {"provider echo": "its quota is exhausted"}
        assert 'fitrouter_breaker_open{name="provider echo"} 1.0' in http.get("/metrics").text
