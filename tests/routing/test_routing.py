"""Routing through the whole router: variants, parameters, sessions, budgets, new arms and the quality floor."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.kits.gateway import Echo, cards, make_router

from fitrouter.config import load_config
from fitrouter.context.features import context_names
from fitrouter.errors import NoEligibleModel
from fitrouter.hooks import Hooks, Notice, Trouble
from fitrouter.router import Router
from fitrouter.routing.decider import Rules
from fitrouter.state.budgets import BudgetParams
from fitrouter.state.learner import Learner
from fitrouter.state.projections import ArmCounts, ProjectionParams, Unanswered
from fitrouter.types import NO_EVIDENCE, Attempt, FeedbackKind, Identity, Mode, ModelCard, Prices, Request, Variant


def ask(text: str = "hello", *, session: str | None = None, **params: object) -> Request:
    return Request(
        messages=({"role": "user", "content": text},), params=dict(params), identity=Identity(user="u", session=session)
    )


async def test_a_variant_is_an_arm_whose_prefix_comes_first(tmp_path: Path) -> None:
    """Arms are model × variant; a call has the variant's prefix and options, and the caller's own take precedence."""
    echo = Echo()
    terse = Variant(name="terse", prefix="Be brief.", params={"temperature": 0.1, "top_p": 0.5})
    card = ModelCard(name="alpha", provider="echo", target="alpha", variants=(terse,))
    async with make_router(tmp_path, {"echo": echo}, models=[card]) as router:
        assert list(router._cards) == ["alpha", "alpha#terse"]
        request = Request(
            model="alpha#terse",
            messages=({"role": "system", "content": "Speak French."}, {"role": "user", "content": "hi"}),
            params={"temperature": 0.9},
        )
        answer = await router.complete(request)
    assert (answer.served_by, answer.decision.mode) == ("alpha#terse", Mode.PINNED)
    assert echo.calls[0].messages[0]["content"] == "Be brief.\n\nSpeak French."
    assert echo.calls[0].params == {"temperature": 0.9, "top_p": 0.5}


async def test_parameters_exclude_or_are_dropped(tmp_path: Path) -> None:
    """A parameter that a model does not take excludes it with the reason, unless it may be left out of the call."""
    echo = Echo()
    models = [msgspec.structs.replace(card, parameters=("max_tokens",)) for card in cards(["alpha"])]
    async with make_router(tmp_path, {"echo": echo}, models=models) as router:
        with pytest.raises(NoEligibleModel, match="seed"):
            await router.complete(ask(seed=7))
    async with make_router(tmp_path, {"echo": echo}, models=models, droppable=["seed"]) as router:
        await router.complete(ask(seed=7, max_tokens=5))
    assert echo.calls[-1].params == {"max_tokens": 5}


async def test_a_session_is_drawn_again_after_n_user_turns(tmp_path: Path) -> None:
    """Turns are sticky until the nth user turn; the new draw logs the reason and the switching cost."""
    async with make_router(tmp_path, rules=Rules(redraw_every=3, consistency=0.5, floor=0.03)) as router:
        made = []
        for turn in range(8):
            made.append((await router.complete(ask(f"turn {turn}", session="s"))).decision)
            await router.settled()
    drawn = [i for i, decision in enumerate(made) if decision.mode is not Mode.STICKY]
    assert drawn == [0, 3, 6]
    assert [made[i].redraw for i in drawn] == ["", "turns", "turns"]
    for i in drawn[1:]:
        stay = made[i].eligible.index(made[i - 1].chosen)
        assert made[i].switch[stay] == 0.0
        assert min(cost for k, cost in enumerate(made[i].switch) if k != stay) >= 0.5
        assert max(made[i].probs) == made[i].probs[stay]
    assert all(made[i].draw_id == made[max(d for d in drawn if d <= i)].id for i in range(8))


async def test_a_session_is_drawn_again_after_a_failure(tmp_path: Path) -> None:
    """After a failure, the next turn is drawn again and logs the reason."""
    broken = Echo()

    async def refuse(call: object) -> None:
        raise OSError("down")

    models = cards(provider=lambda name: "echo")
    async with make_router(tmp_path, {"echo": broken}, models=models) as router:
        first = (await router.complete(ask("one", session="s"))).decision
        await router.settled()
        well = broken.complete

        async def complete(call):  # type: ignore[no-untyped-def]
            return await (refuse(call) if call.target == first.chosen else well(call))

        broken.complete = complete  # type: ignore[method-assign]
        await router.complete(ask("two", session="s"))
        await router.settled()
        third = (await router.complete(ask("three", session="s"))).decision
    assert third.redraw == "failed"
    assert third.probs


def budgeted(usd: float) -> Learner:
    params = ProjectionParams(budget=BudgetParams(usd_per_request=usd))
    return Learner(len(context_names()), 1, expects_scores=False, projections=params)


async def test_a_budget_weighs_cost_and_caps_it(tmp_path: Path) -> None:
    """λ and its unit are logged; a model above the cap is excluded with a reason, the cheapest never is."""
    dear = ModelCard(name="dear", provider="echo", target="dear", prices=Prices(output=1000.0))
    cheap = ModelCard(name="cheap", provider="echo", target="cheap", prices=Prices(output=0.1))
    async with make_router(tmp_path, models=[dear, cheap], learner=budgeted(1e-4)) as router:
        decision = (await router.complete(ask())).decision
    assert decision.eligible == ("cheap",)
    assert "budget" in dict(decision.excluded)["dear"]
    assert decision.budget_weight > 0
    assert decision.budget_unit_usd == 1e-4


async def test_spending_raises_the_cost_weight(tmp_path: Path) -> None:
    """Executions above the limit raise λ for that tenant only, and it survives a restart."""
    learner = budgeted(1e-5)
    async with make_router(tmp_path, learner=learner) as router:
        before = learner.projections.budgets.weight("default", 0.0)
        for i in range(10):
            await router.complete(ask(f"q{i}"))
        await router.settled()
        assert learner.projections.budgets.weight("default", 0.0) > before
        assert learner.projections.budgets.weight("other", 0.0) == before
        fresh = learner.blank()
        assert fresh.restore(learner.snapshot())
        assert fresh.digest() == learner.digest()


async def test_new_arms_have_an_exploration_share(tmp_path: Path) -> None:
    """An arm that joins later is drawn with its share until it has enough calls, and decisions log it."""
    learner = Learner(len(context_names()), 1, expects_scores=False)
    rules = Rules(newcomer_pulls=4, newcomer_floor=0.4)
    async with make_router(tmp_path, models=cards(["alpha", "beta"]), learner=learner, rules=rules) as router:
        first = (await router.complete(ask())).decision
        pulls = learner.projections.arm_counts
        pulls.observe([Attempt(model="alpha", probability=1.0)] * 20, 0.0)
        pulls.joined["beta"] = 20  # as if it had joined now
        second = (await router.complete(ask("two"))).decision
        pulls.observe([Attempt(model="beta", probability=1.0)] * 40, 0.0)
        third = (await router.complete(ask("three"))).decision
    assert (first.new, second.new, third.new) == ((), ("beta",), ())
    assert second.probs[1] >= 0.4
    assert second.floor < first.floor == third.floor


def test_which_arms_are_new() -> None:
    """An arm that joins late is new: first unconditionally, then while it has few labels; the first arms never are."""
    pulls = ArmCounts()
    for arm in ("old", "rare"):
        pulls.join(arm)
    pulls.observe([Attempt(model="old", probability=1.0)] * 100, 0.0)
    pulls.join("late")
    arms = ("late", "old", "rare")
    assert pulls.new_arms(arms, 20, 60) == (("late", False),)
    pulls.observe([Attempt(model="late", probability=1.0)] * 20, 0.0)
    assert pulls.new_arms(arms, 20, 60) == (("late", True),)
    restored = ArmCounts()
    assert restored.load(pulls.dump())
    for _ in range(60):
        pulls.observe_label("late")
    assert pulls.new_arms(arms, 20, 60) == ()
    restored.observe([Attempt(model="late", probability=1.0)] * 180, 0.0)
    assert restored.new_arms(arms, 20, 60) == ()


def test_a_model_that_answers_none_of_its_calls_is_told_until_it_answers() -> None:
    """Calls in a row without an answer are counted since the first; one answer ends the row, time does not."""
    counts = ArmCounts()

    def call(ts: float, error: str | None = None) -> None:
        counts.observe([Attempt(model="a", probability=1.0, error=error)], ts)

    call(1.0)
    assert counts.answers == {"a": 1}
    for ts in (2.0, 900.0, 90_000.0):
        call(ts, "ProviderUnavailable")
    for error in sorted(NO_EVIDENCE):
        call(90_001.0, error)
    restored = ArmCounts()
    assert restored.load(counts.dump())
    assert restored.unanswered == counts.unanswered == {"a": Unanswered(3, 2.0)}
    assert counts.answers == {"a": 1}
    call(90_002.0)
    assert counts.unanswered == {}
    assert counts.answers == {"a": 2}


async def test_a_budget_limits_the_share_of_new_arms(tmp_path: Path) -> None:
    """The share of an expensive new arm, a quarter of the traffic, is reduced to what the limit allows."""
    old = ModelCard(name="old", provider="echo", target="old", prices=Prices(output=1.0))
    dear = ModelCard(name="dear", provider="echo", target="dear", prices=Prices(output=5.0))
    learner = budgeted(1e-3)
    learner.projections.arm_counts.observe([Attempt(model="old", probability=1.0)] * 200, 0.0)
    arms = learner.fit.arms
    best = arms.row("old")
    arms.correction[best] = 0.5
    async with make_router(tmp_path, models=[old, dear], learner=learner) as router:
        decision = (await router.complete(ask())).decision
    assert decision.new == ("dear",)
    place = decision.eligible.index("dear")
    assert 0.01 < decision.probs[place] < 0.2


async def test_a_damaged_arm_prior_is_ignored(tmp_path: Path) -> None:
    """A damaged file is reported as trouble, and the router starts and answers without it."""
    (tmp_path / "arms.prior").write_bytes(b"no prior")
    (tmp_path / "fitrouter.yaml").write_text(
        "encoder: hashing\nscorer: {encoder: hashing, prior: none}\n"
        "providers: {sim: {kind: simulated, options: {a: {}, b: {}}}}\n"
        "models: [{name: a, provider: sim}, {name: b, provider: sim}]\n"
        "policy: {prior: arms.prior}\n",
        encoding="utf-8",
    )
    notices: list[Notice] = []
    settings = load_config(tmp_path / "fitrouter.yaml")
    assert settings.policy.prior == tmp_path / "arms.prior"
    async with Router.from_config(settings, hooks=Hooks(notices.append)) as router:
        answer = await router.complete(ask())
    assert answer.completion.message["content"]
    assert [notice.part for notice in notices if isinstance(notice, Trouble)] == ["policy"]


async def test_the_quality_floor_precedes_tastes(tmp_path: Path) -> None:
    """A model with bad base labels is excluded with the reason, whatever its predicted rating."""
    rules = Rules(base_delta=0.2)
    async with make_router(tmp_path, models=cards(["alpha", "beta"]), rules=rules) as router:
        for i in range(40):
            who = Identity(user=f"u{i}")
            answer = await router.complete(msgspec.structs.replace(ask(), model="alpha", identity=who))
            await router.feedback(answer.decision.id, FeedbackKind.THUMB, 0.0, dimension="base")
        await router.settled()
        decision = (await router.complete(ask())).decision
    assert decision.eligible == ("beta",)
    assert dict(decision.excluded)["alpha"].startswith("quality floor")
