"""Plans that are looked at, then run: what is served has exactly the logged propensity, once, for who asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kits.gateway import Echo, make_router

from fitrouter.context.features import context_names
from fitrouter.draw import replay
from fitrouter.errors import BudgetExhausted, InvalidRequest, UnknownDecision
from fitrouter.router import Router
from fitrouter.routing.decider import Rules
from fitrouter.serving import sweeper
from fitrouter.serving.ledger import Ledger, Reserved
from fitrouter.serving.recorder import LOOK_S
from fitrouter.state.budgets import BudgetParams
from fitrouter.state.learner import Learner
from fitrouter.state.projections import ProjectionParams
from fitrouter.stores.journal import MemoryJournal, SqliteJournal
from fitrouter.types import (
    Decision,
    Event,
    Execution,
    Feedback,
    FeedbackKind,
    Identity,
    Message,
    Mode,
    PlanRun,
    Request,
)
from fitrouter_evaluators.replay.log.sources import read_log

USER: Message = {"role": "user", "content": "Hello"}


class Clock:
    """Seconds since the epoch, moved by the test."""

    def __init__(self) -> None:
        self.now = 1_000_000_000.0

    def __call__(self) -> float:
        return self.now


def ask(text: str = "Hello", **more: Any) -> Request:
    return Request(messages=({"role": "user", "content": text},), **{"identity": Identity(user="ann"), **more})


def logged(router: Router) -> list[Event]:
    return [row.event for row in router._journal.tail(0, 100_000)]


def of(router: Router, kind: type) -> list[Any]:
    return [event for event in logged(router) if isinstance(event, kind)]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**31), texts=st.lists(st.text(max_size=8), min_size=1, max_size=4, unique=True))
def test_what_is_served_has_the_logged_propensity(tmp_path: Path, seed: int, texts: list[str]) -> None:
    """The pick replays from the logged pmf and seed; running it serves that model, and the plan's is the only decision.

    Asking again, in another process too, gives the same plan: nobody draws twice.
    """

    async def run() -> None:
        journal, rules = MemoryJournal(), Rules(floor=1.0, seed=seed)
        async with make_router(tmp_path, {"echo": Echo()}, journal=journal, rules=rules) as router:
            for text in texts:
                look, again = await asyncio.gather(router.look(ask(text)), router.look(ask(text)))
                assert look == again == await router.look(ask(text))
                answer = await router.complete(ask(text, plan=look.decision.id))
                assert answer.served_by == look.decision.chosen == replay(look.decision)
                assert answer.decision.id == look.decision.id
            await router.settled()
            made = of(router, Decision)
            assert [each.propensity for each in made] == [each.probs[each.eligible.index(each.chosen)] for each in made]
            assert len(made) == len(of(router, Execution)) == len(of(router, PlanRun)) == len(texts)

    asyncio.run(run())


async def test_a_plan_is_bound(tmp_path: Path) -> None:
    """Another tenant, key, person, request or tier, an id twice, a foreign model, and an expired plan are refused."""
    clock = Clock()
    async with make_router(tmp_path, {"echo": Echo()}, clock=clock) as router:
        plan = (await router.look(ask(key="k"))).decision.id
        usual = ask(key="k", plan=plan)
        for changed, error, text in (
            ({"identity": Identity(tenant="other", user="ann")}, UnknownDecision, plan),
            ({"key": "other"}, UnknownDecision, "no plan"),
            ({"plan": "0"}, UnknownDecision, "0"),
            ({"identity": Identity(user="bob")}, InvalidRequest, "another request"),
            ({"messages": ({**USER, "content": "Bye"},)}, InvalidRequest, "another request"),
            ({"params": {"temperature": 0.1}}, InvalidRequest, "another request"),
            ({"tier": "economy"}, InvalidRequest, "another request"),
            ({"n": 2}, InvalidRequest, "another request"),
            ({"model": "nobody"}, InvalidRequest, "alternatives are alpha, beta, gamma"),
        ):
            with pytest.raises(error, match=text):
                await router.complete(msgspec.structs.replace(usual, **changed))
        assert not of(router, PlanRun)
        runs = await asyncio.gather(*(router.complete(usual) for _ in range(3)), return_exceptions=True)
        assert sorted(type(each).__name__ for each in runs) == ["Answer", "InvalidRequest", "InvalidRequest"]
        with pytest.raises(InvalidRequest, match="run already"):
            await router.complete(usual)
        second = (await router.look(ask(key="k"))).decision
        assert second.id != plan
        clock.now += LOOK_S
        with pytest.raises(InvalidRequest, match="expired, after 15 minutes"):
            await router.complete(ask(key="k", plan=second.id))
        ordinary = await router.complete(ask("other", key="k"))
        with pytest.raises(UnknownDecision):
            await router.complete(ask("other", key="k", plan=ordinary.decision.id))


async def test_a_plan_lives_on_at_the_turn_of_a_quarter(tmp_path: Path) -> None:
    """Within its 15 minutes the same request has the same plan, whenever it was made; afterwards a new one."""
    clock = Clock()
    async with make_router(tmp_path, {"echo": Echo()}, clock=clock) as router:
        clock.now = (clock.now // LOOK_S + 1) * LOOK_S - 1.0
        first = (await router.look(ask())).decision.id
        clock.now += LOOK_S - 1.0
        assert (await router.look(ask())).decision.id == first
        clock.now += 2.0
        assert (await router.look(ask())).decision.id != first


@pytest.mark.parametrize("person", [False, True])
async def test_an_alternative_is_pinned(tmp_path: Path, person: bool) -> None:
    """A named alternative is served as pinned; the plan is declined; it teaches only if a person chose it."""
    async with make_router(tmp_path, {"echo": Echo()}) as router:
        plan = (await router.look(ask())).decision
        other = next(arm for arm in plan.eligible if arm != plan.chosen)
        answer = await router.complete(ask(plan=plan.id, model=other, person=person))
        await router.settled()
        assert (answer.served_by, answer.decision.mode, answer.decision.plan) == (other, Mode.PINNED, plan.id)
        ends = {each.decision_id: each.status for each in of(router, Execution)}
        assert ends == {plan.id: "declined", answer.decision.id: "ok"}
        assert [(run.by, run.arm) for run in of(router, PlanRun)] == [(answer.decision.id, other)]
        assert [vote.source for vote in of(router, Feedback)] == ["preferred"] * person
        fit = router._learner.fit
        assert fit.labels == person
        better, worse = fit.estimate(Identity(), np.frombuffer(plan.features, "<f4"), (other, plan.chosen), 0.0).mean
        assert bool(better > worse) is person


async def test_a_declined_plan_tells_nothing(tmp_path: Path) -> None:
    """A session goes on as if nobody had looked; a declined draw is no row of replay's log, which counts it."""
    journal = SqliteJournal(tmp_path / "journal.db")
    async with make_router(tmp_path, {"echo": Echo()}, rules=Rules(floor=1.0), journal=journal) as router:
        who = Identity(user="ann", session="s")
        plan = (await router.look(ask(identity=who))).decision
        await router.settled()
        learner = router._learner
        assert len(learner.projections.sessions) == 0
        other = next(arm for arm in plan.eligible if arm != plan.chosen)
        await router.complete(ask(identity=who, plan=plan.id, model=other))
        await router.settled()
        assert plan.id not in learner.open
        assert learner.fit.arms.beta[learner.fit.arms.row(plan.chosen)].tolist() == [0.0, 0.0, 0.0]
        kept = (await router.look(ask(identity=who))).decision
        await router.complete(ask(identity=who, plan=kept.id))
        await router.settled()
        following = await router.complete(ask("and now?", identity=who))
        await router.settled()
        log = read_log(tmp_path / "journal.db")
    assert following.decision.mode is Mode.STICKY
    assert following.decision.draw_id == kept.id
    assert log.decisions.n == 3
    assert plan.id not in log.decisions.id
    assert log.outcomes.declined == 1


async def test_a_plan_that_is_run_is_a_step_of_its_run(tmp_path: Path) -> None:
    """Looking joins no run, running the pick or an alternative does, and the run's outcome is about both."""
    journal = SqliteJournal(tmp_path / "journal.db")
    async with make_router(tmp_path, {"echo": Echo()}, journal=journal) as router:
        who = Identity(user="ann", run="r")
        pick = (await router.look(ask(identity=who))).decision
        with pytest.raises(UnknownDecision):
            await router.runs.show("r", who)
        await router.complete(ask(identity=who, plan=pick.id))
        assert (await router.runs.show("r", who)).steps == 1, "known as soon as it is answered"
        plan = (await router.look(ask(identity=who))).decision
        other = next(arm for arm in plan.eligible if arm != plan.chosen)
        named = await router.complete(ask(identity=who, plan=plan.id, model=other))
        shown = await router.runs.show("r", who)
        assert [step.decision_id for step in shown.decisions] == [pick.id, named.decision.id]
        assert (await router.runs.outcome("r", True, identity=who)).decisions == 2


async def test_a_vote_on_a_plan_does_not_end_it(tmp_path: Path) -> None:
    """Nobody gets another draw by saying something of the plan, and it can be run afterwards."""
    async with make_router(tmp_path, {"echo": Echo()}) as router:
        plan = (await router.look(ask())).decision
        await router.feedback(plan.id, FeedbackKind.THUMB, 0.0, identity=Identity(user="ann"))
        assert (await router.look(ask())).decision.id == plan.id
        assert (await router.complete(ask(plan=plan.id))).served_by == plan.chosen


async def test_looks_hold_no_money(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of a small hard limit that are only looked at leave all of it to requests; a larger one fails."""
    reserve, reserved = Ledger.reserve, list[str]()

    async def noted(ledger: Ledger, name: str, *args: Any, **more: Any) -> Reserved:
        reserved.append(name)
        return await reserve(ledger, name, *args, **more)

    monkeypatch.setattr(Ledger, "reserve", noted)
    budget = BudgetParams(usd_per_period=1e-3, hard=True)
    state = Learner(len(context_names()), 1, expects_scores=False, projections=ProjectionParams(budget=budget))
    async with make_router(tmp_path, {"echo": Echo()}, learner=state) as router:
        for n in range(10):
            plan = (await router.look(ask(f"{n}", params={"max_tokens": 100}))).decision
        assert not reserved, "several at once would refuse each other"
        await router.complete(ask("whole", params={"max_tokens": 200}))
        assert (await router.complete(ask("9", params={"max_tokens": 100}, plan=plan.id))).served_by == plan.chosen
        with pytest.raises(BudgetExhausted):
            await router.look(ask("long " * 10_000))


async def test_an_unused_plan_is_declined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that nobody ran becomes declined when its time is over, never lost, and its budget is given back."""
    monkeypatch.setattr(sweeper, "LOST_AFTER_S", 0.05)
    state = Learner(
        len(context_names()),
        1,
        expects_scores=False,
        projections=ProjectionParams(budget=BudgetParams(usd_per_request=1.0)),
    )
    async with make_router(tmp_path, {"echo": Echo()}, learner=state) as router:
        plan = (await router.look(ask())).decision
        await router.settled()
        account = state.projections.budgets._accounts["default"]
        assert list(account.pending) == [plan.id]
        parts = router._journal, router._workers, router._recorder, state, router.hooks
        sweeping = asyncio.create_task(sweeper.close_lost(*parts, 0.0, router.clock))
        await asyncio.sleep(0.3)
        assert not of(router, Execution)
        monkeypatch.setattr(sweeper, "LOOK_S", 0.0)
        for _ in range(200):
            await asyncio.sleep(0.05)
            if of(router, Execution):
                break
        sweeping.cancel()
        await router.settled()
        assert [each.status for each in of(router, Execution)] == ["declined"]
        assert not account.pending
        with pytest.raises(InvalidRequest, match="expired"):
            await router.complete(ask(plan=plan.id))
