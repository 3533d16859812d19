"""Laws of the orchestrator: what is logged, what falls back, and what no failure may touch."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.kits import virtual_time
from tests.kits.gateway import Echo, cards, make_router

from fitrouter.context.features import context_names
from fitrouter.draw import renormalise, replay, uuid7
from fitrouter.errors import (
    AllModelsFailed,
    InvalidRequest,
    NoEligibleModel,
    NotAuthorized,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
    StoreError,
    UnknownDecision,
)
from fitrouter.hooks import Happened, Notice, Trouble, Unlogged
from fitrouter.plain import pack
from fitrouter.providers import Fault, Faulty
from fitrouter.router import Router
from fitrouter.routing.decider import Rules
from fitrouter.serving.attempts import Timers, next_chunk
from fitrouter.serving.external import AttemptReport, Outcome
from fitrouter.state.learner import Learner
from fitrouter.state.reading import read_batch
from fitrouter.stores.identities import SqliteIdentities
from fitrouter.stores.journal import Entry, MemoryJournal
from fitrouter.sync import SyncRouter
from fitrouter.types import (
    Call,
    Chunk,
    Completion,
    Decision,
    Execution,
    Feedback,
    FeedbackKind,
    Identity,
    Mode,
    ModelCard,
    Request,
    Score,
)

DOWN = Fault(error=ProviderUnavailable("down", 503))


def ask(text: str = "Hello", user: str | None = None, **more: Any) -> Request:
    return Request(messages=({"role": "user", "content": text},), identity=Identity(user=user), **more)


def events(router: Router, kind: type[Any]) -> list[Any]:
    return [row.event for row in router._journal.tail(0, 100_000) if isinstance(row.event, kind)]


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that comes true on this loop."""
    async with asyncio.timeout(300.0):
        while not condition():  # noqa: ASYNC110 - what is waited for knows no event
            await asyncio.sleep(0.001)


def one_broken(tmp_path: Path, script: Any, **more: Any) -> tuple[Router, Faulty]:
    """A router where alpha stands behind a provider that fails by the script, the others behind one that works."""
    broken = Faulty(Echo(), script)
    models = cards(provider=lambda name: "broken" if name == "alpha" else "echo")
    return make_router(tmp_path, {"broken": broken, "echo": Echo()}, models=models, **more), broken


@pytest.mark.usefixtures("commits_have_time")
async def test_a_request_leaves_one_decision_and_one_execution_that_join(tmp_path: Path) -> None:
    """Each answer is logged by exactly one Decision and one Execution, with the draw replaying to the chosen model."""
    async with make_router(tmp_path) as router:
        answers = [await router.complete(ask(f"question {i}", user=f"u{i % 3}")) for i in range(20)]
        await router.settled()
    decisions, executions = events(router, Decision), events(router, Execution)
    assert [d.id for d in decisions] == [a.decision.id for a in answers]
    assert sorted(e.decision_id for e in executions) == sorted(d.id for d in decisions)
    for answer, decision in zip(answers, decisions, strict=True):
        assert answer.logged
        assert replay(decision) == decision.chosen == answer.served_by
        assert abs(sum(decision.probs) - 1.0) < 1e-12
        assert min(decision.probs) >= decision.floor / len(decision.probs)
        assert decision.identity.user is not None
        assert not decision.identity.user.startswith("u"), "a raw user id must not reach the journal"
    assert {e.cost_usd for e in executions} == {(7 * 1.0 + 11 * 2.0) / 1e6}


async def test_the_next_model_is_drawn_from_the_same_pmf_without_those_that_failed(tmp_path: Path) -> None:
    """Every attempt logs its conditional probability, and the drawn fallback replays."""
    router, _ = one_broken(tmp_path, itertools.repeat(DOWN))
    async with router:
        for i in range(60):
            answer = await router.complete(ask(f"q{i}"))
            assert answer.served_by != "alpha"
    fell = [e for e in events(router, Execution) if e.chosen == "alpha"]
    assert fell, "alpha was never chosen"
    decisions = {d.id: d for d in events(router, Decision)}
    for execution in fell:
        first, second = execution.attempts
        assert (first.model, first.probability, first.error) == ("alpha", 1.0, "ProviderUnavailable")
        decision = decisions[execution.decision_id]
        others = {arm: p for arm, p in zip(decision.eligible, decision.probs, strict=True) if arm != "alpha"}
        assert second.probability == pytest.approx(others[second.model] / sum(others.values()), abs=1e-12)
        assert renormalise(decision, ["alpha"], 1) == (second.model, second.probability)
        assert execution.served_by == second.model


async def test_a_refused_request_is_not_offered_to_another_model(tmp_path: Path) -> None:
    """ProviderRejected means the request is at fault: one attempt, and the error reaches the caller."""
    provider = Faulty(Echo(), itertools.repeat(Fault(error=ProviderRejected("bad schema", 400))))
    async with make_router(tmp_path, {"echo": provider}) as router:
        with pytest.raises(ProviderRejected, match="bad schema"):
            await router.complete(ask())
    (execution,) = events(router, Execution)
    assert (execution.status, execution.served_by, len(execution.attempts)) == ("rejected", None, 1)


async def test_a_request_that_nobody_answers_is_an_outcome(tmp_path: Path) -> None:
    """All attempts failing is logged as such under the id that the error carries."""
    provider = Faulty(Echo(), itertools.repeat(DOWN))
    async with make_router(tmp_path, {"echo": provider}) as router:
        with pytest.raises(AllModelsFailed) as failure:
            await router.complete(ask())
    (execution,) = events(router, Execution)
    assert execution.decision_id == failure.value.decision_id
    assert execution.status == "failed"
    assert sorted(a.model for a in execution.attempts) == ["alpha", "alpha", "beta", "beta", "gamma", "gamma"]
    assert len({a.model for a in execution.attempts[:3]}) == 3


async def test_what_a_provider_raises_by_mistake_is_its_failure(tmp_path: Path) -> None:
    """A bug in a provider is treated as an outage of it, not as the end of the request."""
    router, _ = one_broken(tmp_path, itertools.repeat(Fault(error=KeyError("choices"))))
    async with router:
        answers = [await router.complete(ask(f"q{i}")) for i in range(20)]
    assert {a.served_by for a in answers} <= {"beta", "gamma"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_provider_that_answers_in_the_other_way_is_told_so(tmp_path: Path, stream: bool) -> None:
    """Whole instead of streamed, or streamed instead of whole: the error names what was asked for."""

    class Other(Echo):
        async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
            return await super().complete(msgspec.structs.replace(call, stream=not call.stream))

    async with make_router(tmp_path, {"echo": Other()}) as router:
        with pytest.raises(
            AllModelsFailed, match=f"although a {'stream' if stream else 'complete answer'} was requested"
        ):
            await (router.stream(ask()) if stream else router.complete(ask()))


def test_a_hanging_model_leaves_time_for_another(tmp_path: Path) -> None:
    """One deadline spans all attempts, and the first may not use it up."""

    async def scenario() -> None:
        router, _ = one_broken(tmp_path, itertools.repeat(Fault(hang=True)))
        async with router:
            answers = [await router.complete(ask(f"q{i}", deadline_s=10.0)) for i in range(60)]
        assert {a.served_by for a in answers} <= {"beta", "gamma"}
        fell = [e for e in events(router, Execution) if e.chosen == "alpha"]
        assert fell, "alpha was never chosen"
        assert all(e.attempts[0].ms == pytest.approx(6_000.0) for e in fell), "60% of the deadline"

    virtual_time.run(scenario())


def test_all_hanging_ends_at_the_deadline(tmp_path: Path) -> None:
    """When every model hangs, the error comes at the deadline and says that time ran out."""

    async def scenario() -> None:
        provider = Faulty(Echo(), itertools.repeat(Fault(hang=True)))
        async with make_router(tmp_path, {"echo": provider}) as router:
            began = time.monotonic()
            with pytest.raises(AllModelsFailed) as failure:
                await router.complete(ask(deadline_s=120.0))
            assert time.monotonic() - began == pytest.approx(120.0)
        assert failure.value.timed_out
        (execution,) = events(router, Execution)
        assert [a.ms / 1000.0 for a in execution.attempts] == pytest.approx([72.0, 28.8, 19.2])

    virtual_time.run(scenario())


def test_a_stream_that_stands_still_ends_at_its_gap(tmp_path: Path) -> None:
    """Before the first piece another model is asked when its time is over; after it, the stream breaks off."""

    async def scenario() -> None:
        timers = Timers(deadline_s=600.0, first_token_s=20.0, chunk_gap_s=30.0)
        script = [Fault(hang=True), Fault(hang=True, after=2)]
        provider = Faulty(Echo(), script)
        async with make_router(tmp_path, {"echo": provider}, timers=timers) as router:
            began = time.monotonic()
            stream = await router.stream(ask())
            assert time.monotonic() - began == pytest.approx(20.0)
            with pytest.raises(ProviderError, match="sent nothing for 30"):
                _ = [chunk async for chunk in stream]
            assert time.monotonic() - began == pytest.approx(50.0)
            await router.settled()
        (execution,) = events(router, Execution)
        assert execution.status == "partial"
        assert [a.error for a in execution.attempts] == ["ProviderTimeout", None]

    virtual_time.run(scenario())


def test_a_plan_that_nobody_reports_is_lost_half_a_minute_after_its_deadline(tmp_path: Path) -> None:
    """The running router closes it, and not before."""

    async def scenario() -> None:
        def clock() -> float:
            return 1_000_000.0 + time.monotonic()

        async with make_router(tmp_path, timers=Timers(deadline_s=120.0), clock=clock) as router:
            plan = await router.decide(ask())
            await asyncio.sleep(149.0)
            await router.settled()
            assert plan.decision.id in router._learner.open
            await asyncio.sleep(62.0)  # it looks every half a minute
            await router.settled()
            assert plan.decision.id not in router._learner.open
        assert [e.status for e in events(router, Execution)] == ["lost"]

    virtual_time.run(scenario())


class Slow(Echo):
    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        async def flow() -> AsyncIterator[Chunk]:
            for _ in range(20):
                await asyncio.sleep(20.0)
                yield Chunk(delta={"content": "a"})
            yield Chunk(finish_reason="stop")

        return flow()


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_a_stream_of_another_process_is_lost_only_with_it(tmp_path: Path, first: bool, crashes: bool) -> None:
    """While its process lives it has one execution, of its end; when that is gone, another closes the decision."""

    async def scenario() -> None:
        def clock() -> float:
            return 1_000_000.0 + time.monotonic()

        journal, timers = MemoryJournal(), Timers(deadline_s=120.0)
        more: dict[str, Any] = {"journal": journal, "timers": timers, "clock": clock}
        one, other = (make_router(tmp_path, {"echo": Slow()}, **more) for _ in range(2))
        async with one:
            await asyncio.sleep(1.0)
            await other.start()
            await asyncio.sleep(1.0)
            assert {one._workers.own, other._workers.own} == {0, 1}
            serving, left = (one, other) if first else (other, one)
            stream = await serving.stream(ask())
            if crashes:
                assert serving._sweeper is not None
                serving._sweeper.cancel()
                serving._workers.leave()  # as the end of a process frees its leases
                await asyncio.sleep(300.0)
                await left.settled()
                assert [e.status for e in events(left, Execution)] == ["lost"]
            else:
                assert len([chunk async for chunk in stream]) > 20
                await serving.settled()
                await asyncio.sleep(100.0)
                assert [e.status for e in events(left, Execution)] == ["ok"]
            await stream.aclose()
            await other.aclose()

    virtual_time.run(scenario())


def test_a_stream_that_outlives_its_deadline_is_not_lost(tmp_path: Path) -> None:
    """It has one execution, of its end: the router knows that it still flows."""

    async def scenario() -> None:
        def clock() -> float:
            return 1_000_000.0 + time.monotonic()

        async with make_router(tmp_path, {"echo": Slow()}, timers=Timers(deadline_s=120.0), clock=clock) as router:
            assert len([chunk async for chunk in await router.stream(ask())]) > 20
            await router.settled()
        assert [e.status for e in events(router, Execution)] == ["ok"]

    virtual_time.run(scenario())


WRITING = ("profile", "profile_cov", "correction", "correction_cov", "spread", "responses")


def writing(router: Router, arm: str) -> dict[str, Any]:
    """What is believed of an arm's writing: its profile ĥ and its correction c."""
    arms = router._learner.fit.arms
    return {name: getattr(arms, name)[arms.names[arm]].copy() for name in WRITING}


async def rated(router: Router, text: str, thumb: float) -> str:
    """Ask, score the answer by hand, and rate it; returns who answered."""
    answer = await router.complete(ask(text, user="ann"))
    await router.settled()
    newest = router._journal.tail(router._journal.head() - 8, 8)  # all of them, each time, would take minutes
    execution = [row.event for row in newest if isinstance(row.event, Execution)][-1]
    h = np.array([1.0, len(text) % 5, {"alpha": 1.0, "beta": -1.0, "gamma": 0.0}[answer.served_by]])
    score = Score(
        id=f"{execution.decision_id}:score",
        ts=execution.ts,
        decision_id=execution.decision_id,
        identity=execution.identity,
        served_by=answer.served_by,
        features=execution.features,
        h=pack(h),
        schema="hand",
    )
    router._journal.append(Entry(score)).result()
    await router.feedback(answer.decision.id, FeedbackKind.THUMB, thumb)
    return answer.served_by


async def test_500_rounds_of_outage_leave_the_beliefs_about_writing_alone(tmp_path: Path) -> None:
    """Criterion 6: while alpha is down and others answer for it and are rated, its profile moves by at most 1e-9.

    Its availability falls and its traffic goes, although its fallback is excellent.
    """
    down = False
    script = (DOWN if down else None for _ in itertools.count())
    learner = Learner(len(context_names()), 3, schema="hand")
    rules = Rules(registry="r1", floor=0.3)  # so that alpha is met often enough while it is down
    router, broken = one_broken(tmp_path, script, learner=learner, rules=rules)
    async with router:
        for i in range(60):
            await rated(router, f"before {i}", float(i % 2))
        await router.settled()
        before, calls = writing(router, "alpha"), len(broken.calls)
        down = True
        served = [await rated(router, f"during {i}", 1.0) for i in range(500)]
        await router.settled()
    assert len(broken.calls) - calls >= 20, "the outage was hardly met"
    assert "alpha" not in served
    for name, value in writing(router, "alpha").items():
        np.testing.assert_allclose(value, before[name], rtol=0.0, atol=1e-9, err_msg=name)
    chosen = [d.chosen for d in events(router, Decision)]
    assert chosen[-200:].count("alpha") < 40, "its traffic stayed: the floor alone gives 20 ± 4 of 200"


async def test_a_model_that_always_fails_loses_its_traffic(tmp_path: Path) -> None:
    """Intention to treat: `chosen` gets the failure, whoever saved the request."""
    router, _ = one_broken(tmp_path, itertools.repeat(DOWN))
    async with router:
        for i in range(300):
            answer = await router.complete(ask(f"q{i}"))
            await router.feedback(answer.decision.id, FeedbackKind.THUMB, 1.0)
            await router.settled()
    shares = [d.probs[d.eligible.index("alpha")] for d in events(router, Decision)]
    assert shares[0] == pytest.approx(1 / 3, abs=0.02)
    assert shares[-1] < 0.12


# --- models, sessions, eligibility -----------------------------------------------------------------------------------


async def test_naming_a_model_pins_it_and_it_has_no_fallback(tmp_path: Path) -> None:
    """A pinned request has no pmf, and nobody else answers for it."""
    router, _ = one_broken(tmp_path, [None, DOWN])
    async with router:
        answer = await router.complete(ask(model="alpha"))
        assert (answer.served_by, answer.decision.mode, answer.decision.probs) == ("alpha", Mode.PINNED, ())
        with pytest.raises(AllModelsFailed):
            await router.complete(ask(model="alpha"))


async def test_aliases_lead_to_routing_or_to_a_model(tmp_path: Path) -> None:
    """What agents hard-code can be routed; an unknown name is refused with those that exist."""
    async with make_router(tmp_path, aliases={"gpt-4o": "fitrouter/auto", "fast": "beta"}) as router:
        assert (await router.complete(ask(model="gpt-4o"))).decision.mode is Mode.ONLINE
        assert (await router.complete(ask(model="fast"))).served_by == "beta"
        with pytest.raises(InvalidRequest, match=r"'gpt-5'.*'fitrouter/auto'"):
            await router.complete(ask(model="gpt-5"))


async def test_a_session_stays_on_its_model_and_names_its_draw(tmp_path: Path) -> None:
    """Later turns are sticky, carry the draw_id of the session's draw, and have no pmf of their own."""
    async with make_router(tmp_path) as router:
        identity = Identity(user="ann", session="s1")
        first = await router.complete(msgspec.structs.replace(ask(), identity=identity))
        await router.settled()
        for i in range(5):
            later = await router.complete(msgspec.structs.replace(ask(f"turn {i}"), identity=identity))
            assert later.decision.mode is Mode.STICKY
            assert (later.served_by, later.decision.draw_id) == (first.served_by, first.decision.id)
            assert later.decision.probs == ()


async def test_a_plain_client_is_sticky_too(tmp_path: Path) -> None:
    """Without a session id, the same system prompt and first words with an answer in between are one conversation."""
    opening = {"role": "user", "content": "Plan my week"}
    async with make_router(tmp_path) as router:
        first = await router.complete(Request(messages=(opening,), identity=Identity(user="ann")))
        await router.settled()
        said = {"role": "assistant", "content": "Gladly."}
        more = Request(
            messages=(opening, said, {"role": "user", "content": "And Sunday?"}), identity=Identity(user="ann")
        )
        later = await router.complete(more)
        again = await router.complete(Request(messages=(opening,), identity=Identity(user="ann")))
    assert later.decision.mode is Mode.STICKY
    assert later.decision.draw_id == first.decision.id
    assert again.decision.mode is Mode.ONLINE


async def test_models_that_cannot_take_a_request_are_excluded_with_the_reason(tmp_path: Path) -> None:
    """Exclusions happen before the pmf and are logged; when nobody is left, the error says why."""
    models = [
        ModelCard(name="alpha", provider="echo", capabilities=("streaming",)),
        ModelCard(name="beta", provider="echo", context_window=50),
        ModelCard(name="gamma", provider="echo"),
    ]
    tools = {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}
    async with make_router(tmp_path, models=models) as router:
        answer = await router.complete(ask("x" * 400, params=tools))
        assert answer.decision.eligible == ("gamma",)
        assert dict(answer.decision.excluded).keys() == {"alpha", "beta"}
        with pytest.raises(NoEligibleModel, match="gamma: context") as failure:
            await router.complete(ask("x" * 600_000, params=tools))
    assert [arm for arm, _ in failure.value.excluded] == ["alpha", "beta", "gamma"]


async def test_share_zero_is_shadow_and_a_part_is_a_mixture(tmp_path: Path) -> None:
    """The pmf is (1 − share)·default + share·policy, exactly; at 0 the policy proposes and is not asked."""
    async with make_router(tmp_path / "a", rules=Rules(share=0.0, default_arm="beta")) as router:
        answers = [await router.complete(ask(f"q{i}")) for i in range(10)]
    assert {(a.served_by, a.decision.mode, a.decision.propensity) for a in answers} == {("beta", Mode.SHADOW, 1.0)}
    async with make_router(tmp_path / "b", rules=Rules(share=0.3, default_arm="beta")) as router:
        decision = (await router.complete(ask())).decision
    assert decision.probs == pytest.approx((0.1, 0.8, 0.1), abs=1e-12)


# --- streams ---------------------------------------------------------------------------------------------------------


async def test_a_stream_relays_every_piece_and_logs_at_its_end(tmp_path: Path) -> None:
    """Chunks pass unmodified; the execution comes with the last one and has usage and time to first token."""
    async with make_router(tmp_path) as router:
        stream = await router.stream(ask())
        chunks = [chunk async for chunk in stream]
        await router.settled()
    text = "".join(chunk.delta.get("content", "") for chunk in chunks)
    assert text == f"{stream.served_by} heard Hello"
    (execution,) = events(router, Execution)
    assert (execution.status, execution.prompt_tokens, execution.completion_tokens) == ("ok", 7, 11)
    assert execution.ttft_ms is not None
    assert execution.finish_reason == "stop"


async def test_a_stream_falls_back_before_its_first_piece_only(tmp_path: Path) -> None:
    """A failure before anything was said is another model's chance; after it, an error and a partial execution."""
    router, _ = one_broken(tmp_path, itertools.repeat(DOWN))
    async with router:
        for i in range(10):
            stream = await router.stream(ask(f"q{i}"))
            assert stream.served_by != "alpha"
            assert [chunk async for chunk in stream][-2].finish_reason == "stop"
    provider = Faulty(Echo(), itertools.repeat(Fault(error=ConnectionResetError("gone"), after=2)))
    async with make_router(tmp_path / "b", {"echo": provider}) as router:
        stream = await router.stream(ask())
        chunks = aiter(stream)
        assert all([(await anext(chunks)).delta["content"] for _ in range(2)])
        with pytest.raises(ProviderError, match="gone"):
            await anext(chunks)
    (execution,) = events(router, Execution)
    assert (execution.status, execution.served_by) == ("partial", stream.served_by)


async def test_a_stream_that_says_nothing_falls_back(tmp_path: Path) -> None:
    """A role without an end is no answer: nobody has seen a byte, so another model is asked."""

    class Silent(Echo):
        async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
            async def nothing() -> AsyncIterator[Chunk]:
                yield Chunk(delta={"role": "assistant", "content": ""})

            return nothing()

    models = cards(provider=lambda name: "echo" if name == "beta" else "silent")
    async with make_router(tmp_path, {"silent": Silent(), "echo": Echo()}, models=models) as router:
        for i in range(6):
            stream = await router.stream(ask(f"q{i}"))
            assert stream.served_by == "beta"
            assert [chunk async for chunk in stream]
            await router.settled()


async def test_a_stream_that_ends_too_late_says_whose_time_was_up() -> None:
    """The caller's own deadline is no silence of the model."""

    async def silent() -> AsyncIterator[Chunk]:
        await asyncio.sleep(3600.0)
        yield Chunk()

    with pytest.raises(ProviderTimeout, match="the deadline of the request itself has passed"):
        await next_chunk(silent(), 30.0, time.monotonic())
    with pytest.raises(ProviderTimeout, match="the stream sent nothing"):
        await next_chunk(silent(), 0.0, time.monotonic() + 30.0)


async def test_a_stream_begins_with_the_answer(tmp_path: Path) -> None:
    """What a server sends before, only to say that it is at work, reaches no client."""

    class Slow(Echo):
        async def _stream(self, message: Any, usage: Any) -> Any:
            yield Chunk()
            async for chunk in super()._stream(message, usage):
                yield chunk

    async with make_router(tmp_path, {"echo": Slow()}) as router:
        chunks = [chunk async for chunk in await router.stream(ask())]
    assert chunks[0].delta


async def test_a_stream_that_ends_empty_with_a_reason_is_an_answer(tmp_path: Path) -> None:
    """Its reason and its cost are the caller's, and no other model is asked."""

    class Empty(Echo):
        async def _stream(self, message: Any, usage: Any) -> Any:
            yield Chunk(delta={"role": "assistant"})
            yield Chunk(finish_reason="length", usage=usage)

    provider = Empty()
    async with make_router(tmp_path, {"echo": provider}) as router:
        chunks = [chunk async for chunk in await router.stream(ask())]
        await router.settled()
    assert [chunk.finish_reason for chunk in chunks] == [None, "length"]
    (execution,) = events(router, Execution)
    assert (execution.status, execution.finish_reason, execution.prompt_tokens) == ("ok", "length", 7)
    assert [attempt.error for attempt in execution.attempts] == [None]


async def test_a_stream_that_ends_without_a_reason_is_partial(tmp_path: Path) -> None:
    """A stream that breaks off is an error, never a silent end."""

    class Breaks(Echo):
        async def _stream(self, message: Any, usage: Any) -> Any:
            yield Chunk(delta={"content": "half an"})

    async with make_router(tmp_path, {"echo": Breaks()}) as router:
        stream = await router.stream(ask())
        with pytest.raises(ProviderError, match="without a finish reason"):
            _ = [chunk async for chunk in stream]
    assert events(router, Execution)[0].status == "partial"


@pytest.mark.parametrize("pieces", [0, 1, 2])
async def test_a_stream_that_is_closed_early_is_cancelled_upstream_and_logged(tmp_path: Path, pieces: int) -> None:
    """Closing after any number of pieces, also none, cancels the model's work and logs one execution."""
    provider = Faulty(Echo(), itertools.repeat(Fault(hang=True, after=3)))
    async with make_router(tmp_path, {"echo": provider}) as router:
        stream = await router.stream(ask())
        chunks = aiter(stream) if pieces else None
        for _ in range(pieces):
            assert chunks is not None
            await anext(chunks)
        await stream.aclose()
        await router.settled()
        assert provider.cancelled == 1
    (execution,) = events(router, Execution)
    assert execution.status == "cancelled"


async def test_a_cancelled_request_is_logged_as_cancelled(tmp_path: Path) -> None:
    """A caller that leaves while the model works leaves an outcome."""
    provider = Faulty(Echo(), itertools.repeat(Fault(hang=True)))
    async with make_router(tmp_path, {"echo": provider}) as router:
        task = asyncio.create_task(router.complete(ask()))
        await until(lambda: provider.calls)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert provider.cancelled == 1
    assert [e.status for e in events(router, Execution)] == ["cancelled"]


# --- stores that fail ------------------------------------------------------------------------------------------------


class Notes(list[Notice]):
    """Keeps every notice."""

    def __call__(self, notice: Notice) -> None:
        self.append(notice)

    def troubles(self) -> list[str]:
        return [notice.part for notice in self if isinstance(notice, Trouble)]


@pytest.mark.parametrize("k", range(8))
async def test_a_store_that_fails_its_kth_write_costs_a_log_entry_and_no_answer(tmp_path: Path, k: int) -> None:
    """Every request is answered, `logged` tells the truth, and no execution lacks its decision."""
    steps = itertools.count()
    notes = Notes()

    def fault(step: str) -> None:
        if step == "insert" and next(steps) == k:
            raise OSError("no space left on device")

    async with make_router(tmp_path, journal=MemoryJournal(fault=fault), hook=notes) as router:
        answers = [await router.complete(ask(f"q{i}")) for i in range(5)]
    stored = {d.id for d in events(router, Decision)}
    assert {a.decision.id for a in answers if a.logged} == stored
    assert {e.decision_id for e in events(router, Execution)} <= stored
    assert "journal" in notes.troubles()
    unlogged = [notice.decision_id for notice in notes if isinstance(notice, Unlogged)]
    assert unlogged == [a.decision.id for a in answers if not a.logged]


@pytest.mark.usefixtures("commits_have_time")
async def test_a_store_that_refuses_everything_leaves_routing_alone(tmp_path: Path) -> None:
    """Requests are answered unlogged; feedback says 'try again', and once the store is back it is taken."""
    broken = True

    def fault(_step: str) -> None:
        if broken:
            raise OSError("read-only file system")

    async with make_router(tmp_path, journal=MemoryJournal(fault=fault)) as router:
        answer = await router.complete(ask())
        assert not answer.logged
        with pytest.raises(UnknownDecision):
            await router.feedback(answer.decision.id, FeedbackKind.THUMB, 1.0)
        broken = False
        answer = await router.complete(ask())
        assert answer.logged
        broken = True
        with pytest.raises(StoreError):
            await router.feedback(answer.decision.id, FeedbackKind.THUMB, 1.0)
        broken = False
        await router.feedback(answer.decision.id, FeedbackKind.THUMB, 1.0)
    assert len(events(router, Feedback)) == 1


class Hangs(MemoryJournal):
    """A journal whose writes never become durable and whose reads wait for `freed`."""

    def __init__(self) -> None:
        super().__init__()
        self.freed = threading.Event()
        self.hanging = False

    def append(self, *entries: Entry) -> Any:
        if self.hanging:
            return Future()
        return super().append(*entries)

    def tail(self, after: int, limit: int = 512) -> Any:
        if self.hanging:
            self.freed.wait(300.0)
        return super().tail(after, limit)


async def test_a_store_that_hangs_delays_an_answer_by_its_grace_only(tmp_path: Path) -> None:
    """A hanging journal blocks no request: each waits its 50 ms and goes on, unlogged."""
    journal = Hangs()
    async with make_router(tmp_path, journal=journal) as router:
        journal.hanging = True
        answers = await asyncio.gather(*(router.complete(ask(f"q{i}")) for i in range(20)))
        assert not any(a.logged for a in answers)
        journal.hanging = False
        journal.freed.set()
        for task in router._recorder._storing.values():
            task.cancel()


async def test_identities_that_fail_make_users_anonymous(tmp_path: Path) -> None:
    """Without its store a user is nobody, and is answered."""

    class Broken(SqliteIdentities):
        def meet(self, tenant: str, user: str | None) -> Future[str]:
            raise StoreError("no identities today")

        def mint(self, tenant: str, user: str | None) -> str:
            raise StoreError("no identities today")

    notes = Notes()
    async with make_router(tmp_path, identities=Broken(tmp_path / "i.db"), hook=notes) as router:
        answer = await router.complete(ask(user="ann"))
    assert answer.decision.identity.user is None
    assert "identities" in notes.troubles()


async def test_a_policy_or_an_encoder_that_fails_leaves_uniform_routing(tmp_path: Path) -> None:
    """A router that can compute nothing draws uniformly, with exact propensities."""

    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("NaN in the weights")

        name = "broken"
        id = "broken"
        dim = 8

    notes = Notes()
    async with make_router(tmp_path, hook=notes) as router:
        router._decider.policy = Broken()  # type: ignore[assignment]
        router._pipeline.encoder = Broken()  # type: ignore[assignment]
        answers = [await router.complete(ask(f"q{i}")) for i in range(5)]
    for answer in answers:
        assert answer.decision.probs == pytest.approx((1 / 3,) * 3)
        assert replay(answer.decision) == answer.served_by
    assert {"policy", "encoder"} <= set(notes.troubles())


# --- feedback and what is known --------------------------------------------------------------------------------------


async def test_feedback_is_of_the_tenant_and_the_user_that_were_served(tmp_path: Path) -> None:
    """Another tenant learns not even that the decision exists; another user is refused."""
    async with make_router(tmp_path) as router:
        identity = Identity(tenant="a", user="ann")
        answer = await router.complete(msgspec.structs.replace(ask(), identity=identity))
        id_ = answer.decision.id
        with pytest.raises(UnknownDecision):
            await router.feedback(id_, FeedbackKind.THUMB, 1.0, identity=Identity(tenant="b", user="ann"))
        with pytest.raises(UnknownDecision):
            await router.events(id_, tenant="b")
        with pytest.raises(UnknownDecision):
            await router.events(answer.decision.identity.user or "", tenant="a")
        with pytest.raises(NotAuthorized):
            await router.feedback(id_, FeedbackKind.THUMB, 1.0, identity=Identity(tenant="a", user="bob"))
        for value in (2.0, -1.0, float("nan"), float("inf")):
            with pytest.raises(InvalidRequest, match="not on the scale"):
                await router.feedback(id_, FeedbackKind.THUMB, value, identity=identity)
        await router.feedback(id_, FeedbackKind.RATING, 4.0, scale=(1.0, 5.0), identity=identity)
        kinds = [type(event).__name__ for event in await router.events(id_, tenant="a")]
    assert kinds == ["Decision", "Execution", "Feedback"]


async def test_a_sticky_turn_is_explained_without_its_draw(tmp_path: Path) -> None:
    """The draw of a sticky turn may be erased or unlogged: the turn is explained all the same."""
    async with make_router(tmp_path) as router:
        drawn = (await router.complete(ask())).decision
        turn = msgspec.structs.replace(
            drawn, id=uuid7(drawn.ts), draw_id=uuid7(drawn.ts), mode=Mode.STICKY, probs=(), twin=(), rest=()
        )
        router._recorder.append_event(turn)
        await router.settled()
        found = await router.explain(turn.id)
    assert (found.mode, found.chosen, found.drew) == ("sticky", drawn.chosen, None)


async def test_feedback_tells_hooks_whose_answer_it_is_about(tmp_path: Path) -> None:
    """A metric by model needs the arm, which the event does not hold."""
    notes = Notes()
    async with make_router(tmp_path, hook=notes) as router:
        answer = await router.complete(ask())
        await router.feedback(answer.decision.id, FeedbackKind.THUMB, 1.0)
    told = [n for n in notes if isinstance(n, Happened) and isinstance(n.event, Feedback)]
    assert [n.served_by for n in told] == [answer.served_by]


async def test_a_second_router_on_the_journal_knows_the_same(tmp_path: Path) -> None:
    """Everything known is a fold over the journal: another process, or a restart, has the same digest."""
    journal = MemoryJournal()
    async with make_router(tmp_path, journal=journal) as router:
        for i in range(30):
            answer = await router.complete(ask(f"q{i}", user=f"u{i % 4}"))
            await router.feedback(answer.decision.id, FeedbackKind.THUMB, float(i % 3 == 0))
        await router.settled()
        fresh = Learner(len(context_names()), 1, expects_scores=False)
        while fresh.apply_batch(read_batch(journal, fresh.seq, waiting=fresh.waiting)):
            pass
        assert (fresh.seq, fresh.digest()) == (router._learner.seq, router._learner.digest())


@pytest.mark.parametrize("skew", [-3600.0, 0.0, 3600.0])
def test_what_a_crash_left_open_becomes_lost(tmp_path: Path, skew: float) -> None:
    """A decision without an execution is closed as lost by the next start, half a minute after its deadline.

    That start may be on a machine whose clock is an hour away: what it sees may still be under way on another.
    """

    async def scenario() -> None:
        journal, timers = MemoryJournal(), Timers(deadline_s=120.0)
        async with make_router(tmp_path, journal=journal, clock=lambda: 1_000_000.0) as router:
            answer = await router.complete(ask())
            decision = msgspec.structs.replace(answer.decision, id="01a1f81f-95a7-7579-a0cd-cfed71c9669f")
            journal.append(Entry(decision)).result()
        journal._closed = False
        clock = 1_000_000.0 + skew
        async with make_router(tmp_path, journal=journal, timers=timers, clock=lambda: clock) as router:
            await asyncio.sleep(149.0)
            await router.settled()
            assert decision.id in router._learner.open
            await asyncio.sleep(62.0)  # it looks every half a minute
            await router.settled()
            assert decision.id not in router._learner.open
        lost = [e for e in events(router, Execution) if e.status == "lost"]
        assert [e.decision_id for e in lost] == [decision.id]

    virtual_time.run(scenario())


def test_the_sync_facade_works_as_the_router(tmp_path: Path) -> None:
    """Whole, streamed, decided only, observed, rated and explained without an event loop of one's own."""
    with SyncRouter(make_router(tmp_path)) as router:
        plan = router.decide(ask())
        answerer = plan.order[0].model
        said = Completion(message={"role": "assistant", "content": "fine"})
        told = router.report(
            plan.decision.id, ask(), Outcome(tried=(AttemptReport(model=answerer, ms=1.0),), completion=said)
        )
        assert (told.served_by, told.status) == (plan.decision.chosen, "ok")
        assert router.observe(ask(), None, answerer, error="TimeoutError").decision.mode is Mode.PINNED
        answer = router.complete(ask())
        text = "".join(chunk.delta.get("content", "") for chunk in router.stream(ask()))
        assert text.endswith("heard Hello")
        router.feedback(answer.decision.id, FeedbackKind.THUMB, 1.0)
        assert len(router.events(answer.decision.id)) == 3
