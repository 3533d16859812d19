"""Tenants apart: nothing that one sends changes one bit of what another's decisions read."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits import virtual_time
from tests.kits.gateway import Echo, make_router
from tests.kits.learner import D_H, D_X, SCHEMA, Log, learner, story

from fitrouter.context.features import context_names
from fitrouter.errors import FitrouterError, ProviderUnavailable
from fitrouter.hooks import Hooks
from fitrouter.policies import SquareCB
from fitrouter.routing import breakers
from fitrouter.routing.decider import GUEST_LABELS, GUEST_SHARE, Decider, Rules
from fitrouter.serving.external import AttemptReport, Outcome
from fitrouter.state.budgets import BudgetParams
from fitrouter.state.follower import Follower, catch_up
from fitrouter.state.learner import Learner
from fitrouter.state.projections import ProjectionParams
from fitrouter.state.settings import PolicySettings
from fitrouter.state.tenants import LEAST_USERS, TenantLearner
from fitrouter.stores.journal import Entry, MemoryJournal
from fitrouter.types import (
    Completion,
    Decision,
    Erasure,
    Event,
    FeedbackKind,
    Identity,
    ModelCard,
    ModelChange,
    PolicyChange,
    Prices,
    Request,
)


def apart(**more: object) -> TenantLearner:
    return TenantLearner(D_X, D_H, schema=SCHEMA, **more)


def of_tenant(event: Event, tenant: str) -> Event:
    """The event as another tenant's: its own ids, users and sessions."""
    if isinstance(event, Erasure):
        return msgspec.structs.replace(event, id=f"{tenant} {event.id}", subject=f"{tenant} {event.subject}")
    names: dict[str, Any] = {"id": f"{tenant} {event.id}"}
    for field in ("decision_id", "draw_id", "other"):
        if getattr(event, field, ""):
            names[field] = f"{tenant} {getattr(event, field)}"
    who = event.identity  # type: ignore[union-attr]
    user = None if who.user is None else f"{tenant} {who.user}"
    if decisions := getattr(event, "decisions", ()):
        names["decisions"] = tuple(f"{tenant} {decision}" for decision in decisions)
    run = who.run and f"{tenant} {who.run}"
    session = f"{tenant} {who.session}"
    names["identity"] = msgspec.structs.replace(who, tenant=tenant, user=user, session=session, run=run)
    return msgspec.structs.replace(event, **names)


REGISTRY = ModelChange(
    id="m", ts=1.0, cards=(ModelCard(name="a", provider="s"), ModelCard(name="b", provider="s")), registry="r"
)


def mixed(seeds: Mapping[str, int], order: int, n: int = 25) -> dict[str, MemoryJournal]:
    """The stories of some tenants, each alone, and `all` with their events in random order."""
    rng = np.random.default_rng(order)
    told = {name: [of_tenant(row.event, name) for row in story(seed, n).tail(0, 10**4)] for name, seed in seeds.items()}
    journals = {name: MemoryJournal() for name in (*seeds, "all")}
    for journal in journals.values():
        journal.append(Entry(REGISTRY)).result()
    while left := [name for name, events in told.items() if events]:
        name = str(rng.choice(left))
        event = told[name].pop(0)
        for journal in (journals[name], journals["all"]):
            journal.append(Entry(event)).result()
    return journals


def folded(journal: MemoryJournal, into: Learner | None = None) -> Learner:
    """Fold a journal as a gateway does, with the refits that it asks for."""
    into = into or apart()
    catch_up(into, journal, journal.head())
    return into


def states(learner: Learner, tenant: str) -> dict[str, bytes]:
    """The state of one tenant, whether its learner is the first or another."""
    return dict(Learner.state(learner.of(tenant)))


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_no_event_of_one_tenant_changes_a_bit_of_another(a: int, b: int, order: int) -> None:
    """A's state is that of a log in which B never was, whoever came first; votes, roles and erasures included."""
    journals = mixed({"a": a, "b": b}, order)
    together = folded(journals["all"])
    for tenant in ("a", "b"):
        assert states(together, tenant) == states(folded(journals[tenant]), tenant)


def test_a_lone_tenant_has_the_state_of_a_plain_learner() -> None:
    """Installations with one tenant keep every bit; only the names of the tenants are stored beside."""
    journal = story(7)
    assert states(folded(journal), "default") == dict(folded(journal, learner()).state())


def test_an_erasure_refits_its_own_tenant_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a running gateway too: B's refit replaces B's state, and the events since then are folded once each."""
    monkeypatch.setattr("fitrouter.state.follower.POLL_S", 0.001)
    log, live = Log(MemoryJournal(), np.random.default_rng(3)), apart()
    names = mixed({"a": 5, "b": 6}, 1)["all"]

    async def scenario() -> None:
        follower = Follower(log.journal, live, Hooks())
        await follower.start()
        for row in names.tail(0, 10**4):
            if not isinstance(row.event, Erasure):
                log.put(row.event)
        follower.wake()
        await follower.caught_up()
        before = states(live, "a"), states(live, "b")
        log.put(Erasure(id="e", ts=2.0, subject="b bob"))
        follower.wake()
        await follower.caught_up()
        assert states(live, "a") == before[0]
        assert states(live, "b") != before[1]
        assert live.seq == log.journal.head()
        assert not live.parts_ahead
        await follower.aclose()

    asyncio.run(scenario())
    again = folded(log.journal)
    assert live.digest() == again.digest()
    restored = apart()
    assert restored.restore(log.journal.snapshot())
    assert restored.digest() == live.digest()


def test_states_of_tenants_survive_a_restart_with_people_aside(tmp_path: Path) -> None:
    """Snapshots hold every tenant under its own keys, whatever its name; users beyond the bound wait in the spill."""
    seeds = {"a": 1, "b:/%": 2, "ü ": 3}
    journal = mixed(seeds, 9)["all"]
    live = folded(journal)
    journal.save(live.snapshot())
    assert live.snapshot().state.keys().isdisjoint({"user:"})
    restored = apart(people=2, folder=tmp_path)
    fresh = restored.blank()
    assert restored.restore(fresh.put_aside(journal), fresh)
    assert restored.digest() == live.digest()
    assert [part.tenant for part in restored.parts()] == [part.tenant for part in live.parts()]


def test_only_tenants_with_events_are_written_again() -> None:
    """A snapshot after one tenant's events holds nothing of the others' states."""
    journal = mixed({"a": 1, "b": 2, "c": 3}, 9)["all"]
    live = folded(journal)
    live.snapshot()
    row = next(row for row in journal.tail(0) if isinstance(row.event, Decision) and row.event.identity.tenant == "b")
    first = live.tenant
    live.apply(row._replace(seq=10**6))
    written = {key.partition("/")[2].rpartition(":")[0] for key in live.snapshot().state}
    assert {key.split(":")[1] for key in written if key.startswith("tenant:")} == {"b"} - {first}


def test_a_new_tenant_begins_at_the_prior() -> None:
    """However much others have voted, and as if the models had been there from its start."""
    journal = mixed({"a": 1, "b": 2}, 9)["all"]
    live = folded(journal)
    blank = MemoryJournal()
    blank.append(Entry(REGISTRY)).result()
    assert states(live, "new") == states(folded(blank), "new")


# --- the router -----------------------------------------------------------------------------------------------------

A_ASKS = ("rate", "rate", "ask", "session", "rate")
B_ASKS = ("rate", "down", "fail", "refused", "session", "role", "plan", "seen", "comment", "pin", "leave")


class Moody(Echo):
    """Fails when it is asked to."""

    async def complete(self, call: Any) -> Any:
        said = call.messages[-1]["content"]
        if "fail" in said:
            raise ProviderUnavailable("down", 500)
        if "refused" in said:
            raise ProviderUnavailable("bad key", 401)
        return await super().complete(call)


async def act(router: Any, tenant: str, what: str, n: int) -> Decision | None:
    """One thing that a tenant does; the decision, if it was answered."""
    who = Identity(
        tenant=tenant,
        user=f"{tenant}{n % 3}",
        role=f"role {n}" if what == "role" else "analyst",
        session=f"s{n % 2}" if what == "session" else None,
    )
    request = Request(
        messages=({"role": "user", "content": f"{what} question"},),
        identity=who,
        model="alpha" if what == "pin" else "fitrouter/auto",
    )
    try:
        if what == "plan":
            plan = await router.decide(request)
            tried = AttemptReport(model=plan.decision.chosen, ms=1e6, error="TimeoutError")
            await router.report(plan.decision.id, request, Outcome(tried=(tried,), status="failed"))
            return None
        if what == "seen":
            answer = Completion(message={"role": "assistant", "content": "no"})
            await router.observe(request, answer, "alpha", cost_usd=5.0, latency_ms=1e6)
            return None
        if what == "leave":
            stream = await router.stream(request)
            await stream.aclose()
            return None
        answer = await router.complete(request)
    except FitrouterError:
        return None
    value = float(answer.served_by == "alpha") if tenant == "a" else float(answer.served_by != "alpha")
    if what in {"rate", "down"}:
        await router.feedback(answer.decision.id, FeedbackKind.THUMB, value, identity=who)
    await router.settled()
    return answer.decision


def lives(folder: Path, doings: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> list[Decision]:
    """A's decisions in a router in which tenants do things in turn. Ids and times are A's own count."""
    at = [0, 0]
    ids = iter(range(10**6))
    monkeypatch.setattr(
        "fitrouter.routing.pipeline.uuid7",
        lambda now: f"{int(now):08x}-0000-7000-{at[1]:04x}-{next(ids) if at[1] else 0:012x}",
    )
    found = []

    async def scenario() -> None:
        made = TenantLearner(len(context_names()), 1, expects_scores=False)
        router = make_router(folder, {"echo": Moody()}, learner=made, clock=lambda: 1000.0 + 60.0 * at[0])
        async with router:
            for tenant, what in doings:
                at[:] = [at[0] + (tenant == "a"), int(tenant == "b")]
                decision = await act(router, tenant, what, at[0] if tenant == "a" else next(ids))
                if tenant == "a":
                    assert decision is not None
                    policy = msgspec.structs.replace(decision.policy, seq=0)
                    nobody = Identity(tenant="a")
                    found.append(msgspec.structs.replace(decision, policy=policy, identity=nobody))

    virtual_time.run(scenario())
    return found


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(B_ASKS)), max_size=25))
def test_nothing_that_b_sends_changes_a_decision_of_a(
    tmp_path_factory: pytest.TempPathFactory, between: list[tuple[int, str]]
) -> None:
    """Property of the whole router: requests, votes, failures, reports, streams that are left, roles and sessions."""
    alone = [("a", what) for what in A_ASKS * 2]
    mixed_in = list(alone)
    for place, what in between:
        mixed_in.insert(place * 2, ("b", what))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(breakers, "TRIP", 2.4)
        expected = lives(tmp_path_factory.mktemp("alone"), alone, patch)
        assert lives(tmp_path_factory.mktemp("mixed"), mixed_in, patch) == expected


def limited(tenant: str, usd: float | None, number: int) -> PolicyChange:
    settings = {"tenant": tenant, "usd_per_period": usd}
    return PolicyChange(id=f"p{number}", ts=2.0, action="budget", settings=settings, config_hash="h")


def test_a_changed_budget_holds_for_its_tenant_in_every_fold() -> None:
    """Tenants that came before and that come after; a replay, a snapshot and a refit agree to the bit."""
    params = ProjectionParams(budget=BudgetParams(usd_per_period=9.0))
    log, names = Log(MemoryJournal(), np.random.default_rng(3)), mixed({"a": 5, "b": 6}, 1)["all"]
    events = [row.event for row in names.tail(0, 10**4) if not isinstance(row.event, Erasure)]
    changes = {3: limited("b", 2.0, 1), 40: limited("a", 4.0, 2), 60: limited("b", 1.0, 3), 70: limited("c", 3.0, 4)}
    for i, event in enumerate(events):
        if i in changes:
            log.put(changes[i])
        log.put(event)
    one = folded(log.journal, apart(projections=params))
    shown = [one.of(name).projections.budgets.params(name) for name in "abcd"]
    assert [each and each.usd_per_period for each in shown] == [4.0, 1.0, 3.0, 9.0]
    restored = apart(projections=params)
    assert restored.restore(one.snapshot())
    assert restored.digest() == one.digest()
    for learner_ in (one, restored):
        log.put(Erasure(id=f"e{learner_.seq}", ts=3.0, subject="b bob"))
        folded(log.journal, learner_)
    catch_up(one, log.journal, log.journal.head())
    assert one.digest() == restored.digest() == folded(log.journal, apart(projections=params)).digest()
    log.put(PolicyChange(id="n", ts=4.0, action="config", config_hash="other"))
    assert folded(log.journal, one).of("b").projections.budgets.params("b") == params.budget


def unerased(seeds: Mapping[str, int]) -> MemoryJournal:
    """A mixed journal without erasures, after which everything would be folded anew."""
    journal = MemoryJournal()
    for row in mixed(seeds, 9)["all"].tail(0, 10**4):
        if not isinstance(row.event, Erasure):
            journal.append(Entry(row.event)).result()
    return journal


def test_a_policy_change_is_kept_once() -> None:
    """By the first tenant, whose settings are everybody's; the others hold limits of spending alone."""
    journal = unerased({"a": 1, "b": 2})
    journal.append(Entry(PolicyChange(id="p", ts=2.0, action="set", settings={"floor": 0.2}))).result()
    live = folded(journal)
    held = {each.projections.policy_settings.dump() for each in live.others.values()}
    assert held == {PolicySettings().dump()}
    assert live.projections.policy_settings.dump() not in held


def test_a_refit_folds_no_event_of_another_tenant_twice() -> None:
    """While a refitted tenant folds what it missed, the others leave out what they have."""
    journal = unerased({"a": 1, "b": 2})
    live = folded(journal)
    before, half = live.digest(), journal.head() // 2
    fresh = apart()
    catch_up(fresh, journal, half)
    live.refitted(live.others["b"], fresh.others["b"])
    assert live.parts_ahead
    catch_up(live, journal, journal.head())
    assert live.digest() == before


def test_however_many_tenants_there_are_each_keeps_some_users_in_memory() -> None:
    """The bound is shared, but never below `LEAST_USERS`."""
    live = folded(mixed({"a": 1, "b": 2, "c": 3}, 9)["all"])
    live.limit = 6
    live.shrink()
    assert {part.users.limit for part in live.parts()} == {LEAST_USERS}


# --- shared ---------------------------------------------------------------------------------------------------------


def voted(votes: Mapping[str, float], n: int = 30) -> TenantLearner:
    """A learner after votes of each tenant's users for the arm `a`, of some value."""
    made = TenantLearner(D_X, 1, expects_scores=False)
    seq = 0
    for tenant, value in votes.items():
        log = Log(MemoryJournal(), np.random.default_rng(1))
        for k in range(n):
            log.vote(log.answer(f"u{k}", "a"), value)
        for row in log.journal.tail(0, 10**4):
            journal = MemoryJournal()
            event = of_tenant(row.event, tenant)
            related = [
                of_tenant(r.event, tenant)
                for r in log.journal.of(getattr(row.event, "decision_id", ""))
                if r.seq < row.seq
            ]
            seq += 1
            made.apply(row._replace(seq=seq, event=event), related)
            del journal
    return made


def shares(made: TenantLearner, rules: Rules, n: int = 400) -> float:
    """Mean probability of the arm `a` for a tenant."""
    decider = Decider(SquareCB(20.0), made, rules)
    models = [ModelCard(name=name, provider="s", prices=Prices(output=1.0)) for name in ("a", "b")]
    who, x = Identity(tenant="t", user="new"), np.eye(D_X)[0]
    made_ = [decider.decide(str(uuid.UUID(int=k)), 1e5, who, x, models) for k in range(n)]
    return float(np.mean([d.probs[0] for d in made_]))


@pytest.mark.parametrize("others", [1, 5, 20])
def test_shared_tenants_move_each_other_by_two_points_at_most(others: int) -> None:
    """Whatever one tenant votes, another's traffic moves by 2 points; what all vote counts up to 20."""
    rules = Rules(guests=GUEST_SHARE)
    crowd = {f"o{k}": 1.0 for k in range(others - 1)}
    for own in ({}, {"t": 1.0}):
        base = shares(voted({**own, **crowd}), rules)
        for value in (0.0, 1.0):
            moved = shares(voted({**own, **crowd, "evil": value}), rules)
            assert abs(moved - base) <= 0.02 + 0.02 * (others > 1), "two points, and the noise of the guests' draws"


def test_a_guests_mass_is_logged_as_that_of_new_arms_is() -> None:
    """The pmf is (1 − Σ rest) · policy + rest, no probability is below the logged floor, and `rest` as for new arms."""
    made, who, x = voted({"evil": 0.0}), Identity(tenant="t"), np.eye(D_X)[0]
    models = [ModelCard(name=name, provider="s", prices=Prices(output=1.0)) for name in ("a", "b", "c")]
    for rules in (Rules(guests=0.2), Rules(guests=0.2, uniform_slice=0.3, floor=0.2, share=0.6, default_arm="c")):
        found = Decider(SquareCB(20.0), made, rules).decide(str(uuid.UUID(int=5)), 1e5, who, x, models)
        probs, rest = np.array(found.probs), np.array(found.rest)
        assert probs.min() * 3 >= found.floor
        policy = (probs - rest) / (1.0 - rest.sum())
        assert policy == pytest.approx(np.full(3, 1 / 3)), "the tenant's own model knows nothing yet"
        s, u, f, r = rules.share, rules.uniform_slice, rules.floor, 0.2
        assert found.floor == pytest.approx(s * ((1 - u) * (1 - r) * f + u))
        assert rest.sum() == pytest.approx(s * ((1 - u) * (1 - r) * f + u + (1 - u) * r) + 1 - s)


def test_guests_place_a_fifth_at_most_and_nobody_is_a_guest_at_home() -> None:
    """However many tenants there are, and however large the share of each."""
    models = [ModelCard(name=name, provider="s", prices=Prices(output=1.0)) for name in ("a", "b")]
    for others, placed in ((12, 0.2), (0, 0.0)):
        made = voted({"t": 1.0, **{f"o{k}": 0.0 for k in range(others)}}, n=2)
        decider = Decider(SquareCB(20.0), made, Rules(guests=0.1, floor=0.0))
        found = decider.decide(str(uuid.UUID(int=5)), 1e5, Identity(tenant="t"), np.eye(D_X)[0], models)
        assert sum(found.rest) == pytest.approx(placed * GUEST_LABELS / (GUEST_LABELS + found.steps))


def test_without_sharing_other_tenants_place_nothing() -> None:
    """`pooling: none` is the default: the pmf is that of a lone tenant, bit for bit."""
    assert shares(voted({"evil": 0.0}), Rules()) == shares(voted({}), Rules())
