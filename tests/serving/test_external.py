"""Laws of what is answered elsewhere: its log is that of a request which the router answered itself."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits import virtual_time
from tests.kits.gateway import NAMES, PATIENCE_S, Echo, cards, make_router

from fitrouter.context.features import context_names
from fitrouter.errors import (
    AllModelsFailed,
    InvalidRequest,
    NoEligibleModel,
    ProviderUnavailable,
    StoreError,
    UnknownDecision,
)
from fitrouter.hooks import Notice, Unlogged
from fitrouter.providers import Fault, Faulty
from fitrouter.router import Router
from fitrouter.routing.decider import Rules
from fitrouter.serving.attempts import Timers
from fitrouter.serving.external import AttemptReport, Outcome, Plan
from fitrouter.state.learner import Learner
from fitrouter.stores.content import unpack_content
from fitrouter.stores.identities import SqliteIdentities
from fitrouter.stores.journal import MemoryJournal, SqliteJournal
from fitrouter.types import (
    AUTO,
    Completion,
    Decision,
    Execution,
    FeedbackKind,
    Identity,
    Mode,
    Request,
    Usage,
)

FOUR = (*NAMES, "delta")
"""So many that the second fallback is a draw, too."""
DOWN = "ProviderUnavailable"


def ask(text: str = "Hello", model: str = AUTO, **identity: Any) -> Request:
    return Request(messages=({"role": "user", "content": text},), model=model, identity=Identity(**identity))


def said(text: str = "fine") -> Completion:
    return Completion(
        message={"role": "assistant", "content": text}, usage=Usage(prompt_tokens=7, completion_tokens=11)
    )


def logged(router: Router, kind: type[Any]) -> list[Any]:
    return [row.event for row in router._journal.tail(0, 100_000) if isinstance(row.event, kind)]


def tried(plan: Plan, *errors: str | None) -> tuple[AttemptReport, ...]:
    """The first models of a plan, each with how it ended."""
    return tuple(
        AttemptReport(model=choice.model, ms=5.0, error=error, probability=choice.probability)
        for choice, error in zip(plan.order, errors, strict=False)
    )


def ended(plan: Plan, down: Collection[str] = ()) -> Outcome:
    """How a plan ends where some models are down: the first that is not answers."""
    failed = list(itertools.takewhile(lambda choice: choice.model in down, plan.order))
    if len(failed) == len(plan.order):
        return Outcome(tried=tried(plan, *[DOWN] * len(failed)), status="failed")
    return Outcome(tried=tried(plan, *[DOWN] * len(failed), None), completion=said())


# --- near is as if the router had answered ---------------------------------------------------------------------------


def timeless(event: Decision | Execution) -> Any:
    """An event without what a clock says, or what is expected of it, or the session's key, which each folder salts."""
    event = msgspec.structs.replace(event, identity=msgspec.structs.replace(event.identity, session=None))
    if isinstance(event, Decision):
        return msgspec.structs.replace(event, latency=())
    attempts = tuple(msgspec.structs.replace(attempt, ms=0.0) for attempt in event.attempts)
    return msgspec.structs.replace(event, attempts=attempts, latency_ms=0.0, overhead_ms=0.0)


async def log_of(requests: list[Request], down: Collection[str], *, elsewhere: bool, **more: Any) -> list[Any]:
    """What a new router writes down of the requests. Its draws are those of any other with the same requests."""
    broken = Faulty(Echo(), itertools.repeat(Fault(error=ProviderUnavailable("down", 503))))
    models = cards(FOUR, provider=lambda name: "broken" if name in down else "echo")
    count = itertools.count()
    ids = mock.patch(
        "fitrouter.routing.pipeline.uuid7", side_effect=lambda _: f"00000000-03e8-7000-8000-{next(count):012x}"
    )
    with ids, tempfile.TemporaryDirectory() as folder:
        providers = {"broken": broken, "echo": Echo()}
        made = make_router(Path(folder), providers, models=models, clock=lambda: 1000.0, **more)
        async with made as router:
            for request in requests:
                if elsewhere:
                    plan = await router.decide(request)
                    await router.report(plan.decision.id, request, ended(plan, down))
                else:
                    with suppress(AllModelsFailed):
                        await router.complete(request)
                await router.settled()
            return [timeless(event) for event in logged(router, Decision | Execution)]  # type: ignore[arg-type]


@settings(max_examples=20)
@given(
    down=st.sets(st.sampled_from(FOUR)),
    requests=st.lists(
        st.builds(ask, model=st.sampled_from([AUTO, AUTO, "beta"]), session=st.sampled_from(["one", "two"])),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 9),
    attempts=st.integers(1, 4),
    force=st.sampled_from(["", "", "gamma"]),
)
def test_the_log_is_that_of_an_answer_of_the_routers_own(
    down: set[str], requests: list[Request], seed: int, attempts: int, force: str
) -> None:
    """Whatever is down, drawn, sticky, forced or pinned: the same decisions, attempts, probabilities and ends."""
    more = {"rules": Rules(seed=seed, force=force), "timers": Timers(attempts=attempts)}
    mine = asyncio.run(log_of(requests, down, elsewhere=False, **more))
    others = asyncio.run(log_of(requests, down, elsewhere=True, **more))
    assert len(mine) == 2 * len(requests)
    assert others == mine


# --- what is written down -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("commits_have_time")
async def test_a_plan_is_a_logged_decision_and_calls_nobody(tmp_path: Path) -> None:
    """The order begins with what was drawn; nothing is asked, and nothing has ended yet."""
    echo = Echo()
    async with make_router(tmp_path, {"echo": echo}) as router:
        plan = await router.decide(ask(user="ann"))
        assert plan.logged
        assert plan.order[0].model == plan.decision.chosen
        assert plan.order[0].probability == 1.0
        assert sorted(choice.model for choice in plan.order) == list(NAMES)
        assert (plan.deadline_s, plan.order[0].target) == (PATIENCE_S, plan.decision.chosen)
        assert logged(router, Decision) == [plan.decision]
        assert echo.calls == logged(router, Execution) == []
        assert (await router.decide(msgspec.structs.replace(ask(), deadline_s=3.0))).deadline_s == 3.0
        pinned = await router.decide(ask(model="beta"))
        assert [choice.model for choice in pinned.order] == ["beta"]


@pytest.mark.parametrize(
    ("errors", "status", "completion", "served"),
    [
        ((None,), "ok", said(), 0),
        (("Timeout", None), "partial", said("fi"), 1),
        (("litellm.Timeout", None), "partial", None, 1),
        ((None,), "cancelled", said("f"), 0),
        (("Timeout",), "cancelled", None, None),
        ((), "cancelled", None, None),
        (("Timeout", "Timeout"), "failed", None, None),
    ],
)
async def test_every_end_is_written_down(
    tmp_path: Path, errors: tuple[str | None, ...], status: str, completion: Completion | None, served: int | None
) -> None:
    """Whoever was tried last without an error has answered; tokens cost what the card says."""
    async with make_router(tmp_path) as router:
        plan = await router.decide(ask(user="ann"))
        how = Outcome(tried=tried(plan, *errors), status=status, completion=completion)
        execution = await router.report(plan.decision.id, ask(), how)
        assert logged(router, Execution) == [execution]
    assert execution.served_by == (None if served is None else plan.order[served].model)
    assert (execution.status, execution.chosen) == (status, plan.decision.chosen)
    assert execution.identity == plan.decision.identity
    assert execution.features == plan.decision.features
    assert [(a.model, a.error, a.ms) for a in execution.attempts] == [
        (choice.model, error, 5.0) for choice, error in zip(plan.order, errors, strict=False)
    ]
    assert execution.cost_usd == pytest.approx(29e-6 if completion else 0.0)
    assert execution.latency_ms == (0.0 if served is None else 5.0)


async def test_an_answer_can_be_scored_and_judged(tmp_path: Path) -> None:
    """A whole answer's text goes to the spool, under its user's key, with the tools that it calls; no other does."""
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    message = {"role": "assistant", "content": "sums", "tool_calls": [call]}
    asked = msgspec.structs.replace(ask("add 1 and 1", user="ann"), params={"tools": [tool]})
    async with make_router(tmp_path, learner=Learner(len(context_names()), 1)) as router:
        plan = await router.decide(asked)
        whole = Outcome(tried=tried(plan, None), completion=Completion(message=message))
        await router.report(plan.decision.id, asked, whole)
        broken = await router.decide(asked)
        await router.report(
            broken.decision.id, asked, Outcome(tried=tried(broken, None), status="partial", completion=said())
        )
        (spooled,) = router._journal.spooled()
        assert spooled.decision_id == plan.decision.id
        content = unpack_content(router._identities.decrypt(spooled.content))
        assert (content.prompt, content.message, content.tools) == ("add 1 and 1", message, (tool,))
        assert await router.feedback(plan.decision.id, FeedbackKind.THUMB, 1.0, identity=asked.identity)


async def test_the_first_report_counts(tmp_path: Path) -> None:
    """A second one changes nothing and returns what stands, also where both come at once or it says another thing."""
    notes = list[Notice]()
    async with make_router(tmp_path, hook=notes.append) as router:
        plan = await router.decide(ask())
        failed = Outcome(tried=tried(plan, *[DOWN] * 3), status="failed")
        one, two = await asyncio.gather(*(router.report(plan.decision.id, ask(), how) for how in (ended(plan), failed)))
        told = list(notes)
        assert one == two == await router.report(plan.decision.id, ask(), failed)
        assert logged(router, Execution) == [one]
        assert notes == told


async def test_any_router_over_the_journal_takes_the_report(tmp_path: Path) -> None:
    """Nothing is kept in the one that decided: another process tells the same of attempts and probabilities."""
    journal = tmp_path / "journal.db"
    async with (
        make_router(tmp_path, journal=SqliteJournal(journal)) as one,
        make_router(tmp_path, journal=SqliteJournal(journal)) as other,
    ):
        plan = await one.decide(ask(user="ann"))
        execution = await other.report(plan.decision.id, ask(), ended(plan, [plan.decision.chosen]))
        assert [a.probability for a in execution.attempts] == [choice.probability for choice in plan.order[:2]]
        assert await one.report(plan.decision.id, ask(), ended(plan)) == execution
        await one.settled()
        assert plan.decision.id not in one._learner.open


def test_a_plan_that_nobody_reports_is_lost(tmp_path: Path) -> None:
    """Once its deadline is long over; a report that comes later finds that."""

    async def scenario() -> None:
        journal = MemoryJournal()
        async with make_router(tmp_path, journal=journal) as router:
            plan = await router.decide(ask())
            await router.settled()
        journal._closed = False
        async with make_router(tmp_path, journal=journal) as router:
            await asyncio.sleep(1000.0)
            await router.settled()
            assert plan.decision.id not in router._learner.open
            assert (await router.report(plan.decision.id, ask(), ended(plan))).status == "lost"

    virtual_time.run(scenario())


def test_a_request_is_not_lost_before_its_own_deadline(tmp_path: Path) -> None:
    """An agent that gives itself an hour has an hour, though the router's own deadline is over long before."""

    async def scenario() -> None:
        async with make_router(tmp_path) as router:
            hurried = await router.decide(ask())
            patient = await router.decide(msgspec.structs.replace(ask(), deadline_s=3600.0))
            await asyncio.sleep(1000.0)
            await router.settled()
            assert hurried.decision.id not in router._learner.open
            assert patient.decision.id in router._learner.open
            assert (await router.report(patient.decision.id, ask(), ended(patient))).status == "ok"

    virtual_time.run(scenario())


# --- what cannot be ---


@settings(max_examples=20)
@given(
    told=st.lists(st.sampled_from([*NAMES, "nobody"]), min_size=1, max_size=4),
    lies=st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4),
    seed=st.integers(0, 5),
)
def test_attempts_follow_the_draw(told: list[str], lies: list[float], seed: int) -> None:
    """Only the plan's own order is taken, and its probabilities are the log's, whatever a caller says of them."""

    async def check(folder: Path) -> None:
        async with make_router(folder, rules=Rules(seed=seed)) as router:
            plan = await router.decide(ask())
            ways = zip(told, lies, [DOWN] * (len(told) - 1) + [None], strict=False)
            how = tuple(AttemptReport(model=model, ms=1.0, error=error, probability=lie) for model, lie, error in ways)
            report = router.report(plan.decision.id, ask(), Outcome(tried=how, completion=said()))
            if told == [choice.model for choice in plan.order[: len(told)]]:
                attempts = (await report).attempts
                assert [a.probability for a in attempts] == [c.probability for c in plan.order[: len(told)]]
            else:
                with pytest.raises(InvalidRequest, match="plans"):
                    await report
                assert logged(router, Execution) == []

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder)))


async def test_a_sticky_turn_tells_its_fallbacks_itself(tmp_path: Path) -> None:
    """Its pmf is in no log: models that were eligible, each once, with a probability that can be one."""
    async with make_router(tmp_path) as router:
        first = await router.decide(ask(session="s"))
        await router.report(first.decision.id, ask(), ended(first))
        await router.settled()
        plan = await router.decide(ask(session="s"))
        assert plan.decision.mode is Mode.STICKY
        stay, *others = (choice.model for choice in plan.order)
        for models, probability in (
            ([others[0]], 0.5),
            ([stay, stay], 0.5),
            ([stay, "nobody"], 0.5),
            ([stay, others[0]], 0.0),
            ([stay, others[0]], 1.5),
            ([stay, others[0]], float("nan")),
        ):
            ways = zip(models, [DOWN, None][-len(models) :], strict=True)
            how = tuple(
                AttemptReport(model=model, ms=1.0, error=error, probability=probability) for model, error in ways
            )
            with pytest.raises(InvalidRequest, match="tried"):
                await router.report(plan.decision.id, ask(), Outcome(tried=how, completion=said()))
        execution = await router.report(plan.decision.id, ask(), ended(plan, [stay]))
        assert [a.probability for a in execution.attempts] == [1.0, plan.order[1].probability]


GOOD = (AttemptReport(model="alpha", ms=1.0),)
BAD = (AttemptReport(model="alpha", ms=1.0, error="Timeout"),)


async def test_an_end_that_cannot_be_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """With what was given and what is allowed; the plan can be reported all the same."""
    for how, words in (
        (Outcome(tried=GOOD, status="great", completion=said()), "status: 'great'"),
        (Outcome(tried=GOOD, status="lost"), "allowed are ok, partial, cancelled, failed"),
        (Outcome(tried=GOOD), "message: required"),
        (Outcome(tried=(), completion=said()), "did not answer"),
        (Outcome(tried=BAD, completion=said()), "did not answer"),
        (Outcome(tried=BAD, status="partial"), "did not answer"),
        (Outcome(tried=GOOD, status="failed"), "answered"),
        (Outcome(tried=BAD, status="failed", completion=said()), "message: not allowed"),
        (Outcome(tried=BAD, status="cancelled", completion=said()), "message: not allowed"),
        (Outcome(tried=(), status="failed"), "no model was called"),
        (Outcome(tried=GOOD * 2, completion=said()), "only the last"),
        (Outcome(tried=(AttemptReport(model="alpha", ms=-1.0),), completion=said()), "ms: -1.0"),
        (Outcome(tried=(AttemptReport(model="alpha", ms=float("nan")),), completion=said()), "ms: nan"),
        (Outcome(tried=(AttemptReport(model="alpha", ms=1e300),), completion=said()), "ms: 1e"),
        (Outcome(tried=(AttemptReport(model="alpha", ms=1.0, error=""),), status="failed"), "name of an exception"),
        (
            Outcome(tried=(AttemptReport(model="alpha", ms=1.0, error="ann said no"),), status="failed"),
            "name of an exception",
        ),
        (
            Outcome(tried=(AttemptReport(model="alpha", ms=1.0, error="E" * 101),), status="failed"),
            "name of an exception",
        ),
        (Outcome(tried=GOOD, completion=said(), cost_usd=-0.1), "cost_usd"),
        (Outcome(tried=GOOD, completion=said(), cost_usd=float("inf")), "cost_usd"),
        (Outcome(tried=GOOD, completion=said(), ttft_ms=float("nan")), "ttft_ms"),
        (Outcome(tried=GOOD, completion=Completion(message={}, usage=Usage(prompt_tokens=-1))), "usage.prompt_tokens"),
        (
            Outcome(tried=GOOD, completion=Completion(message={}, usage=Usage(completion_tokens=2**40))),
            "completion_tok",
        ),
    ):
        with subtests.test(how=how, words=words):
            async with make_router(tmp_path) as router:
                plan = await router.decide(ask(model="alpha"))
                with pytest.raises(InvalidRequest, match=words):
                    await router.report(plan.decision.id, ask(), how)
                assert (await router.report(plan.decision.id, ask(), ended(plan))).status == "ok"


async def test_decisions_are_for_whom_they_were_made(tmp_path: Path) -> None:
    """Another tenant's decision is as unknown as none; what nobody can take is not decided."""
    async with make_router(tmp_path) as router:
        plan = await router.decide(ask(tenant="a"))
        for id_, tenant in ((plan.decision.id, "b"), (plan.decision.id, "default"), ("nothing", "a")):
            with pytest.raises(UnknownDecision):
                await router.report(id_, ask(tenant=tenant), ended(plan))
        await router.report(plan.decision.id, ask(tenant="a"), ended(plan))
        with pytest.raises(InvalidRequest, match="unknown model 'nobody'"):
            await router.decide(ask(model="nobody"))
        with pytest.raises(NoEligibleModel):
            await router.decide(ask("word " * 1_000_000))


# --- stores that fail ---


async def test_a_store_that_fails_costs_the_log_and_no_plan(tmp_path: Path) -> None:
    """A plan goes out unlogged and has no end then; once the store is back, a report that failed is taken."""
    failing, notes = True, list[Notice]()

    def fault(_step: str) -> None:
        if failing:
            raise OSError("read-only file system")

    async with make_router(tmp_path, journal=MemoryJournal(fault=fault), hook=notes.append) as router:
        plan = await router.decide(ask())
        assert (plan.logged, len(plan.order)) == (False, 3)
        assert Unlogged(plan.decision.id) in notes
        with pytest.raises(StoreError, match="read-only file system; try again"):  # nobody can know whether it waits
            await router.report(plan.decision.id, ask(), ended(plan))
        assert not (await router.observe(ask(), said(), "beta", cost_usd=None, latency_ms=1.0)).logged
        failing = False
        with pytest.raises(UnknownDecision):
            await router.report(plan.decision.id, ask(), ended(plan))
        plan = await router.decide(ask())
        failing = True
        with pytest.raises(StoreError, match="report it again"):
            await router.report(plan.decision.id, ask(), ended(plan))
        failing = False
        assert (await router.report(plan.decision.id, ask(), ended(plan))).status == "ok"


async def test_a_report_waits_for_slow_stores(tmp_path: Path) -> None:
    """A decision that was not durable in time is reported once it is, and its end is durable when that returns."""

    class Slow(SqliteIdentities):
        def encrypt(self, subject: str | None, text: str, tenant: str = "default") -> bytes:
            time.sleep(0.3)
            return super().encrypt(subject, text, tenant)

    journal, slow = SqliteJournal(tmp_path / "journal.db", hold=0.1), Slow(tmp_path / "identities.db")
    learner = Learner(len(context_names()), 1)
    async with make_router(tmp_path, journal=journal, identities=slow, learner=learner) as router:
        plan = await router.decide(ask())
        assert not plan.logged
        assert (await router.report(plan.decision.id, ask(), ended(plan))).status == "ok"


# --- what others decided ---------------------------------------------------------------------------------------------


async def test_a_call_that_failed_elsewhere_teaches_availability_and_nothing_else(tmp_path: Path) -> None:
    """Fit is what people say of answers, and here there is none; a request that was at fault teaches nothing at all."""

    async def beliefs(router: Router) -> Decision:
        await router.settled()
        return (await router.decide(ask())).decision

    async with make_router(tmp_path) as router:
        before = await beliefs(router)
        for _ in range(5):
            await router.observe(ask(), None, "beta", cost_usd=None, latency_ms=1.0, error="ProviderRejected")
        rejected = await beliefs(router)
        for _ in range(5):
            await router.observe(ask(), None, "beta", cost_usd=None, latency_ms=1.0, error="Timeout")
        after = await beliefs(router)
    assert [made.chosen for made in logged(router, Decision) if made.mode is Mode.PINNED] == ["beta"] * 10
    ends = logged(router, Execution)
    assert {(end.status, end.served_by, end.chosen) for end in ends} == {
        ("failed", None, "beta"),
        ("rejected", None, "beta"),
    }
    assert rejected.availability == before.availability
    assert after.availability[1] < before.availability[1] - 0.1
    assert (after.availability[0], after.availability[2]) == (before.availability[0], before.availability[2])
    assert (after.mean, after.sd) == (before.mean, before.sd)


@pytest.mark.parametrize(("completion", "error"), [(None, None), (said(), "Timeout"), (None, "it said no")])
async def test_a_call_has_either_an_answer_or_an_error(
    tmp_path: Path, completion: Completion | None, error: str | None
) -> None:
    """Anything else is refused before it is written down."""
    async with make_router(tmp_path) as router:
        with pytest.raises(InvalidRequest, match="error"):
            await router.observe(ask(), completion, "beta", cost_usd=None, latency_ms=1.0, error=error)
        assert logged(router, Decision) == []
