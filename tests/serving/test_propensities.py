"""Exact propensities: what is served is what numpy draws from the log, of tiers, cascades, fallbacks and plans."""

from __future__ import annotations

import asyncio
import contextlib
import math
import tempfile
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.gateway import Echo, make_router
from tests.serving.test_looks import ask

from fitrouter.context.features import context_names
from fitrouter.errors import AllModelsFailed, CheckFailed, ProviderUnavailable
from fitrouter.policies import Beliefs, SquareCB
from fitrouter.router import Router
from fitrouter.routing.decider import Rules
from fitrouter.routing.tiers import TIERS, Tiers
from fitrouter.serving.attempts import Timers
from fitrouter.state.learner import Learner
from fitrouter.stores.journal import SqliteJournal
from fitrouter.types import FULL_SHARE, Call, Check, Decision, Execution, Mode, ModelCard, PlanRun, Prices
from fitrouter_evaluators.replay.log.log import MODES
from fitrouter_evaluators.replay.log.sources import read_log

NAMES = tuple("abcde")
TASTES = {"down": ProviderUnavailable.__name__, "checked": CheckFailed.__name__, "well": None}
"""How a model does → the error that its attempts log."""
FAILS = Check(schema={"type": "object"})
"""Of echoes, which are no objects."""
ACTS = ("run", "decline", "prefer", "leave")
"""What becomes of a plan."""

rules_ = st.builds(
    Rules,
    floor=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    uniform_slice=st.sampled_from([0.0, 0.2]),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    default_arm=st.sampled_from([None, "a", "b"]),
    cost_weight=st.floats(0, 0.5),
    ask=st.sampled_from([0.0, 1.0]),
    quality_factor=st.floats(0, 1),
    economy_factor=st.floats(1, 10),
    seed=st.integers(0, 2**63 - 1),
    registry=st.just("r1"),
)
states = st.lists(st.sampled_from(sorted(TASTES)), min_size=1, max_size=len(NAMES))
several = settings(max_examples=40, deadline=None)


class Moody(Echo):
    """Models of which some are down."""

    def __init__(self, state: Sequence[str]) -> None:
        super().__init__()
        self.state = dict(zip(NAMES, state, strict=False))

    async def complete(self, call: Call) -> Any:
        if self.state[call.target] == "down":
            raise ProviderUnavailable("it is down")
        return await super().complete(call)


def router_of(folder: Path, rules: Rules, state: Sequence[str], prior: int) -> Router:
    """A router over models in some state, of which something is believed; it learns nothing."""
    rng = np.random.default_rng(prior)
    made = Learner(len(context_names()), 1, expects_scores=False)
    for name in NAMES:
        row = made.fit.arms.row(name)
        made.fit.arms.correction[row] = rng.normal(size=len(context_names())) * 0.2
    models = [
        ModelCard(name=name, provider="echo", target=name, prices=Prices(input=1.0, output=10.0 * n), check=check)
        for n, (name, how) in enumerate(zip(NAMES, state, strict=False))
        for check in [FAILS if how == "checked" else None]
    ]
    rules = msgspec.structs.replace(rules, newcomer_floor=0.0)
    return make_router(
        folder,
        {"echo": Moody(state)},
        models=models,
        learner=made,
        rules=rules,
        timers=Timers(attempts=2 * len(NAMES), retry_share=2.0 * len(NAMES)),  # every retry is allowed
        journal=SqliteJournal(folder / "journal.db"),
    )


def log_of(folder: Path) -> tuple[dict[str, Decision], dict[str, Execution], list[PlanRun]]:
    """Decisions and executions by the decision's id, and claims of plans, of a router that has closed."""
    journal = SqliteJournal(folder / "journal.db")
    events = [row.event for row in journal.tail(0, 100_000)]
    journal.close()
    made = {each.id: each for each in events if isinstance(each, Decision)}
    ends = {each.decision_id: each for each in events if isinstance(each, Execution)}
    return made, ends, [each for each in events if isinstance(each, PlanRun)]


def uniforms(decision: Decision, n: int = 16) -> list[float]:
    """Of numpy's own Philox generator, keyed by seed and id."""
    number = uuid.UUID(decision.id).int
    key = np.array([decision.seed, number >> 64], dtype=np.uint64)
    counter = np.array([0, 0, 0, number & (2**64 - 1)], dtype=np.uint64)
    return list(map(float, np.random.Generator(np.random.Philox(key=key, counter=counter)).random(n)))


def pick(weights: Sequence[float], u: float) -> int:
    edges = np.cumsum(weights)
    return min(int(np.searchsorted(edges, u * edges[-1], side="right")), len(weights) - 1)


def follows(decision: Decision, execution: Execution) -> None:
    """Assert that the attempts are those that the logged pmf and uniforms give, each with its own probability."""
    u, tried = uniforms(decision), list[str]()
    for n, attempt in enumerate(execution.attempts):
        probability = 1.0
        if n:
            wide = decision.candidates.get(FULL_SHARE, ())
            # When all were tried, each gets a second call.
            out = tried if set(tried) < set(decision.eligible) else [a for a in tried if tried.count(a) > 1]
            for pmf in (decision.probs, wide, (1.0,) * len(decision.eligible)):
                if left := {a: p for a, p in zip(decision.eligible, pmf, strict=False) if a not in out and p > 0.0}:
                    break
            arms = list(left)
            arm = arms[pick([*left.values()], u[n + 1])]
            probability = left[arm] / math.fsum(left.values())
        else:
            arm = decision.eligible[pick(decision.probs, u[0])]
        assert attempt.model == arm
        assert math.isclose(attempt.probability, probability, rel_tol=1e-12)
        tried.append(arm)


def policy_of(decision: Decision, rules: Rules) -> None:
    """Assert that the logged pmf is SquareCB's of the logged predictions at the tier's price weight."""
    weight = Tiers.weight(rules, decision.tier, rules.cost_weight)
    assert decision.cost_weight == weight
    burden = weight / decision.cost_unit_usd * np.array(decision.cost)
    utility = np.array(decision.availability) * (np.array(decision.mean) - burden)
    sd = np.array(decision.availability) * np.array(decision.sd)
    own = SquareCB(20.0).propose(Beliefs(arms=decision.eligible, utility=utility, sd=sd, steps=decision.steps))
    rest = np.array(decision.rest)
    np.testing.assert_allclose(decision.probs, (1.0 - rest.sum()) * own + rest, rtol=0, atol=1e-12)


def excess(pairs: Sequence[tuple[Decision, Execution]]) -> float:
    """The largest distance of what was called from its probabilities, in standard errors: attempts are martingales."""
    drawn, spread = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for decision, execution in pairs:
        left = dict(zip(decision.eligible, decision.probs, strict=True))
        for n, attempt in enumerate(execution.attempts):
            if (mass := math.fsum(left.values())) <= 0.0 or attempt.model not in left:
                break
            for arm, p in left.items():
                drawn[n, arm] += (arm == attempt.model) - p / mass  # type: ignore[assignment]
                spread[n, arm] += p / mass * (1.0 - p / mass)  # type: ignore[assignment]
            del left[attempt.model]
    return max((abs(drawn[key]) / math.sqrt(var) for key, var in spread.items() if var > 5.0), default=0.0)


@several
@given(rules=rules_, state=states, prior=st.integers(0, 99), tiers=st.lists(st.sampled_from(TIERS), max_size=2))
def test_attempts_are_those_of_the_log(rules: Rules, state: list[str], prior: int, tiers: list[str]) -> None:
    """Every call has the probability of its arm in the logged pmf without the arms before it, and is what it draws.

    Of tiers, whose pmf is the policy's at their price weight; of models that are down, and of cascades, where the last
    one that is left is not checked.
    """

    async def run(folder: Path) -> None:
        async with router_of(folder, rules, state, prior) as router:
            for n, tier in enumerate(["", *tiers]):
                with contextlib.nullcontext() if {*state} - {"down"} else pytest.raises(AllModelsFailed):
                    await router.complete(ask(f"{n}", tier=tier))
        made, ends, _ = log_of(folder)
        assert len(made) == len(ends) == 1 + len(tiers)
        for id_, decision in made.items():
            end = ends[id_]
            assert decision.propensity == decision.probs[decision.eligible.index(decision.chosen)]
            policy_of(decision, rules)
            follows(decision, end)
            how = dict(zip(NAMES, state, strict=False))
            for attempt in end.attempts[:-1]:
                assert attempt.error == TASTES[how[attempt.model]]
            last, others = end.attempts[-1], {each.model for each in end.attempts[:-1]}
            alone = {*others, last.model} == set(decision.eligible)
            assert (last.error is None) is (how[last.model] == "well" or (how[last.model] == "checked" and alone))
            assert end.served_by == (None if last.error else last.model)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


@settings(max_examples=3, deadline=None)
@given(rules=rules_, state=st.permutations(["checked"] * 3 + ["well"] * 2), prior=st.integers(0, 99))
def test_calls_are_as_frequent_as_their_probabilities(rules: Rules, state: list[str], prior: int) -> None:
    """Over many requests each model is called n-th as often as the logged pmf without the earlier ones says."""

    async def run(folder: Path) -> None:
        seeded = msgspec.structs.replace(rules, floor=0.5, share=0.5, default_arm="c")
        async with router_of(folder, seeded, state, prior) as router:
            for n in range(250):
                await router.complete(ask(f"{n}", tier=TIERS[n % 3]))
        made, ends, _ = log_of(folder)
        found = [(made[id_], end) for id_, end in ends.items()]
        assert max(len(end.attempts) for _, end in found) > 2
        assert excess(found) < 5.0

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


@settings(max_examples=12, deadline=None)
@given(
    rules=rules_,
    state=st.lists(st.sampled_from(["checked", "well"]), min_size=2, max_size=4),
    prior=st.integers(0, 99),
    what=st.lists(
        st.tuples(st.sampled_from(["run", "decline", "prefer", "leave"]), st.sampled_from(TIERS)), max_size=5
    ),
)
def test_plans_serve_what_they_show(rules: Rules, state: list[str], prior: int, what: list[tuple[str, str]]) -> None:
    """A plan is one draw of the log, of its tier; running it serves its pick alone, and is the one outcome of the draw.

    A declined plan has none and an unused one nothing at all, an alternative is pinned, and replay weighs only draws
    that were run.
    """
    what = [("run", "economy"), *what]

    async def run(folder: Path) -> None:
        async with router_of(folder, rules, state, prior) as router:
            plans = [(await router.look(ask(f"{n}", tier=tier))).decision for n, (_, tier) in enumerate(what)]
            for n, ((act, tier), plan) in enumerate(zip(what, plans, strict=True)):
                assert (await router.look(ask(f"{n}", tier=tier))).decision == plan
                model = next(arm for arm in plan.eligible if arm != plan.chosen)
                if act != "leave":
                    named: dict[str, Any] = {} if act == "run" else {"model": model, "person": act == "prefer"}
                    answer = await router.complete(ask(f"{n}", tier=tier, plan=plan.id, **named))
                    assert answer.served_by == (plan.chosen if act == "run" else model)
        made, ends, claims = log_of(folder)
        log = read_log(folder / "journal.db")
        acts = Counter(act for act, _ in what)
        assert len(claims) == len(what) - acts["leave"]
        assert len(made) == len(what) + acts["decline"] + acts["prefer"]
        for (act, tier), plan in zip(what, plans, strict=True):
            assert plan.tier == ("" if tier == "balanced" else tier)
            assert plan.chosen == plan.eligible[pick(plan.probs, uniforms(plan)[0])]
            policy_of(plan, rules)
            end = ends.get(plan.id)
            calls = () if end is None else tuple((each.model, each.probability) for each in end.attempts)
            status = {"run": "ok", "leave": None}.get(act, "declined")
            assert (end and end.status, calls) == (status, ((plan.chosen, 1.0),) if act == "run" else ())
        for other in (each for each in made.values() if each.plan):
            assert (other.mode, other.probs, other.propensity) == (Mode.PINNED, (), 1.0)
        weighed = {log.decisions.id[row] for row in np.flatnonzero(log.decisions.mode != MODES.index(Mode.PINNED))}
        ran, left = ({p.id for (act, _), p in zip(what, plans, strict=True) if act == which} for which in ACTS[::3])
        assert ran <= weighed <= ran | left
        assert log.outcomes.declined == len(what) - len(ran) - len(left)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))
