"""A start with many events and another version of what is learnt: the facts are current before the first answer."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.gateway import config, make_router, serving, wait_for
from tests.kits.learner import D_H, D_X, SCHEMA, story

from fitrouter.context.features import context_names
from fitrouter.errors import BudgetExhausted
from fitrouter.hooks import Hooks
from fitrouter.router import Router
from fitrouter.routing.decider import Rules
from fitrouter.state import follower
from fitrouter.state.budgets import BudgetParams
from fitrouter.state.follower import Follower, catch_up, facts_ahead
from fitrouter.state.learner import Learner
from fitrouter.state.projections import FACTS, ProjectionParams
from fitrouter.state.reading import Batch, read_batch
from fitrouter.state.refit import refit as refit_
from fitrouter.state.tenants import TenantLearner
from fitrouter.stores.journal import Entry, MemoryJournal
from fitrouter.types import (
    Decision,
    Erasure,
    Event,
    Execution,
    PlanRun,
    PolicyChange,
    Request,
)

ASK = Request(messages=({"role": "user", "content": "hello"},))
BUDGET = ProjectionParams(budget=BudgetParams(usd_per_request=0.01, usd_per_period=9.0), sessions=3)
RULES = Rules(default_arm="beta", registry="r")


def spending(seed: int) -> MemoryJournal:
    """Two tenants' decisions, executions and votes, with costs, keys, sessions and changes of settings."""
    rng, journal = np.random.default_rng(seed), MemoryJournal()
    for n, row in enumerate(story(seed, 30).tail(0, 10**4)):
        event: Event = row.event
        if isinstance(event, Erasure):
            continue
        if (who := getattr(event, "identity", None)) is not None:
            about = getattr(event, "decision_id", event.id)
            who = msgspec.structs.replace(who, tenant="ab"[len(about) % 2], session=f"s{sum(map(ord, about)) % 5}")
            event = msgspec.structs.replace(event, identity=who)
        if isinstance(event, Decision):
            event = msgspec.structs.replace(event, cost=(0.01, 0.03), look="l" if rng.random() < 0.2 else "")
        if isinstance(event, Execution):
            event = msgspec.structs.replace(event, cost_usd=float(rng.exponential(0.02)), payer="k" if n % 2 else "")
        journal.append(Entry(event)).result()
        if isinstance(event, Decision) and event.look:
            run = PlanRun(
                id=f"run {event.id}",
                ts=event.ts,
                decision_id=event.id,
                by=event.id,
                identity=event.identity,
                nonce="",
                arm="a",
            )
            journal.append(Entry(run)).result()
        if rng.random() < 0.1:
            limit = {"tenant": "ab"[n % 2], "usd_per_period": float(rng.uniform(1.0, 9.0))}
            for action, given_ in (("budget", limit), ("set", {"floor": 0.1})):
                change = PolicyChange(id=f"{action} {n}", ts=1.0, action=action, settings=given_)
                journal.append(Entry(change)).result()
    return journal


def facts(learner: Learner) -> dict[str, bytes]:
    """The facts of every tenant, as they are stored."""
    return {key: payload for key, payload in learner.state() if key.rpartition("part:")[2] in {"tenants", *FACTS}}


@given(st.integers(0, 10_000), st.floats(0.0, 1.0), st.sampled_from([Learner, TenantLearner]))
@settings(max_examples=15, deadline=None)
def test_the_facts_alone_are_those_of_the_whole_fold(seed: int, share: float, kind: type[Learner]) -> None:
    """From zero, and from what a learner of another version has stored at any position."""
    journal, whole = spending(seed), kind(D_X, D_H, schema=SCHEMA, projections=BUDGET)
    catch_up(whole, journal, journal.head())
    before = kind(D_X, D_H, schema=SCHEMA, projections=BUDGET, votes_per_day=9)
    catch_up(before, journal, int(share * journal.head()))
    journal.save(before.snapshot())
    mine = whole.blank()
    assert not mine.restore(journal.snapshot())
    ahead = facts_ahead(mine, journal, journal.snapshot())
    assert dict(ahead.state()) == facts(whole)
    assert dict(facts_ahead(mine, journal, MemoryJournal().snapshot()).state()) == facts(whole)


class Held:
    """What is learnt, held back: the learner finds nothing to fold until `let_go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = True
        monkeypatch.setattr(follower, "BEHIND", 20)
        monkeypatch.setattr(follower, "read_batch", self.read)

    def read(self, *args: Any, **more: Any) -> Batch:
        """The next rows."""
        return Batch([]) if self.held else read_batch(*args, **more)


def router(folder: Path, journal: MemoryJournal, **more: Any) -> Router:
    """A router with a budget, whose learner is of another version with other `more`."""
    learner = TenantLearner(len(context_names()), 1, expects_scores=False, projections=BUDGET, **more)
    return make_router(folder, journal=journal, rules=RULES, learner=learner)


async def spent(folder: Path) -> MemoryJournal:
    """The journal of a router that is stopped, with a spent budget and share 0."""
    journal = MemoryJournal()
    journal.close = lambda: None  # type: ignore[method-assign]
    async with router(folder, journal) as one:
        for _ in range(20):
            await one.complete(ASK)
        await one.policy.set({"share": 0.0})
        await one.policy.set_budget("default", 1e-9)
    return journal


async def test_a_start_with_another_version_spends_nothing_and_draws_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer knows limits, spending and settings, though nothing is learnt yet; decisions say so.

    Changes take effect meanwhile. A second start finds the same, and in the end all is folded, once.
    """
    journal = await spent(tmp_path)
    held, calls = Held(monkeypatch), sum(isinstance(row.event, Execution) for row in journal.tail(0, 1000))
    for limit in (1e6, 1e6 + 1):
        async with router(tmp_path, journal, votes_per_day=9) as one:
            assert one._learner.seq == 0
            with pytest.raises(BudgetExhausted):
                await one.complete(ASK)
            assert sum(isinstance(row.event, Execution) for row in journal.tail(0, 1000)) == calls
            status = one.service()
            assert status.status == "degraded"
            assert status.reasons["learner"].startswith(f"learning is at 0 of {journal.head()} events")
            await one.policy.set_budget("default", limit)
            decision = (await one.complete(ASK)).decision
            assert (decision.mode.value, decision.chosen, decision.policy.seq) == ("shadow", "beta", 0)
            await one._recorder.settle()  # else the last cost is booked within the next limit
            await one.policy.set_budget("default", 1e-9)
            calls += 1
    async with router(tmp_path, journal, votes_per_day=9) as one:
        held.held = False
        await one.settled()
        assert one.service().status == "ok"
        assert one._learner.ahead is None
        whole = one._learner.blank()
        catch_up(whole, journal, journal.head())
        assert one._learner.digest() == whole.digest()
        head = journal.head()
    mine = whole.blank()
    assert mine.restore(journal.snapshot())
    assert mine.seq >= head


def test_readyz_says_how_far_learning_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway takes requests, and is degraded until all is learnt."""
    journal = asyncio.run(spent(tmp_path))
    held = Held(monkeypatch)
    with serving(router(tmp_path, journal, votes_per_day=9), config()) as url:
        found = httpx.get(f"{url}/readyz")
        assert (found.status_code, found.json()["status"]) == (200, "degraded")
        assert "learning is at 0 of" in found.json()["reasons"]["learner"]
        held.held = False
        assert wait_for(lambda: httpx.get(f"{url}/readyz").json()["status"] == "ok")


@pytest.mark.parametrize("behind", [0, 1000])
async def test_what_erased_people_spent_counts_from_the_start(
    behind: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Their requests are gone from the journal, and no snapshot is left; that is so before the state is rebuilt."""
    monkeypatch.setattr(follower, "BEHIND", behind)
    journal = spending(3)
    whole = TenantLearner(D_X, D_H, schema=SCHEMA, projections=BUDGET)
    catch_up(whole, journal, journal.head())
    before = {tenant: whole.facts(tenant).budgets.spent(tenant, 1.0) for tenant in "ab"}
    subjects = {row.event.identity.user for row in journal.tail(0) if isinstance(row.event, Execution)} - {None}
    assert journal.erase([str(min(subjects))], "", 2.0)
    gate = threading.Event()
    monkeypatch.setattr(follower, "refit", lambda *args: gate.wait(9.0) and refit_(*args))
    mine = whole.blank()
    following = Follower(journal, mine, Hooks())
    await following.start()
    assert {tenant: mine.facts(tenant).budgets.spent(tenant, 1.0) for tenant in "ab"} == pytest.approx(before)
    gate.set()
    await following.caught_up()
    assert mine.ahead is None
    assert {tenant: mine.facts(tenant).budgets.spent(tenant, 1.0) for tenant in "ab"} == pytest.approx(before)
    await following.aclose()


async def test_a_slow_join_of_models_is_folded_by_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`start` does not wait for it for ever, and what goes on is the follower's fold alone."""
    join, threads = Learner.join, list[int]()

    def slow(self: Learner, arms: Any) -> None:
        threads.append(threading.get_ident())
        time.sleep(0.2)
        join(self, arms)

    monkeypatch.setattr(Learner, "join", slow)
    monkeypatch.setattr("fitrouter.router.START_WAIT_S", 0.05)
    async with make_router(tmp_path, rules=Rules(config_hash="other", default_arm="beta")) as one:
        await one.complete(ASK)
        await one.settled()
        assert one._learner.fit.arms.names
    assert threads == [threading.get_ident()]
