"""From the request to the call: dropped parameters, prefixes of variants, and re-draws of a session."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kits.gateway import Echo, make_router

from fitrouter.context.features import context_names
from fitrouter.errors import ConfigError, NoEligibleModel, ProviderUnavailable
from fitrouter.providers import Fault, Faulty
from fitrouter.router import Router
from fitrouter.routing.decider import Rules
from fitrouter.state.budgets import BudgetParams
from fitrouter.state.learner import Learner
from fitrouter.state.projections import ProjectionParams
from fitrouter.types import Decision, Identity, Message, Mode, ModelCard, Prices, Request, Variant

USER: Message = {"role": "user", "content": "Hello"}
STEP: tuple[Message, ...] = (
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "42"},
)
TERSE = Variant(name="terse", prefix="Be brief.", params={"temperature": 0.2})


def ask(*messages: Message, session: str | None = None, **more: Any) -> Request:
    return Request(messages=messages or (USER,), identity=Identity(user="ann", session=session), **more)


def logged(router: Router) -> list[Decision]:
    return [row.event for row in router._journal.tail(0, 100_000) if isinstance(row.event, Decision)]


async def test_unsupported_parameters_are_dropped_per_model(tmp_path: Path) -> None:
    """Droppable parameters reach the models that take them; any other excludes those that do not, with the reason."""
    echo = Echo()
    models = [
        ModelCard(name="claude", provider="echo", target="anthropic/claude-x"),
        ModelCard(name="open", provider="echo", target="local/llama"),
    ]
    params = {"seed": 7, "n": 1, "top_k": 5, "novelty": True}
    async with make_router(
        tmp_path, {"echo": echo}, models=models, rules=Rules(floor=1.0), droppable=["seed"]
    ) as router:
        for i in range(12):
            await router.complete(ask({"role": "user", "content": f"q{i}"}, params=params))
        with pytest.raises(
            NoEligibleModel, match="claude: parameter: needs logprobs, which anthropic models do not take"
        ):
            await router.complete(ask(model="claude", params={"logprobs": True}))
    sent = {call.target: call.params for call in echo.calls}
    assert sent == {"anthropic/claude-x": {"top_k": 5, "novelty": True}, "local/llama": params}
    assert {d.chosen for d in logged(router)} == {"claude", "open"}


async def test_each_variant_is_an_arm_with_its_own_prefix(tmp_path: Path) -> None:
    """A variant is drawn like a model, is called under the model's name with its prefix, and can be pinned by name."""
    echo = Echo()
    models = [ModelCard(name="m", provider="echo", revision="2", variants=(TERSE,), target="m-large")]
    async with make_router(tmp_path, {"echo": echo}, models=models, rules=Rules(floor=1.0)) as router:
        answers = [await router.complete(ask({"role": "user", "content": f"q{i}"})) for i in range(16)]
        assert logged(router)[0].eligible == ("m#terse@2", "m@2")
        assert {answer.served_by for answer in answers} == {"m#terse@2", "m@2"}
        for answer, call in zip(answers, echo.calls, strict=True):
            terse = answer.served_by == "m#terse@2"
            assert call.target == "m-large"
            assert call.params == ({"temperature": 0.2} if terse else {})
            assert [message["role"] for message in call.messages] == (["system", "user"] if terse else ["user"])
        pinned = await router.complete(ask({"role": "system", "content": "You are a lawyer."}, USER, model="m#terse"))
        plain = await router.complete(ask(model="m"))
    assert (pinned.served_by, plain.served_by) == ("m#terse@2", "m@2")
    assert echo.calls[-2].messages[0]["content"] == "Be brief.\n\nYou are a lawyer."


def test_an_invalid_variant_is_a_configuration_error(tmp_path: Path) -> None:
    """A configuration error names the variant and the remedy."""
    models = [
        ModelCard(name="m", provider="echo", target="anthropic/c", variants=(Variant(name="v", params={"n": 2}),))
    ]
    with pytest.raises(ConfigError, match="variant 'v' of 'm'"):
        make_router(tmp_path, models=models)


async def test_a_session_is_redrawn_every_n_user_turns_but_not_during_an_agent_run(tmp_path: Path) -> None:
    """A re-draw logs its pmf, its own draw and a reason; between re-draws the session is sticky."""
    async with make_router(tmp_path, rules=Rules(redraw_every=2)) as router:
        history: list[Message] = []
        for i in range(5):
            history.append({"role": "user", "content": f"turn {i}"})
            for _ in range(3):
                await router.complete(ask(*history, session="s"))
                await router.settled()
                history.extend(STEP)
    made = logged(router)
    assert [d.user_turn for d in made] == [True, False, False] * 5
    assert [d.redraw for d in made] == [*[""] * 6, "turns", *[""] * 5, "turns", "", ""]
    for d in made:
        drawn = d.id == d.draw_id
        assert d.mode is (Mode.ONLINE if drawn else Mode.STICKY)
        assert bool(d.probs) == drawn
        assert len(d.switch) == (3 if d.redraw else 0)
    stays = {d.id: d.chosen for d in made if d.id == d.draw_id}
    assert len(stays) == 3
    assert all(d.chosen == stays[d.draw_id] for d in made)


async def test_a_user_turn_that_names_another_task_is_drawn_again(tmp_path: Path) -> None:
    """The log has the reason and the cost of the switch; turns of the same task, or of none, keep the model."""
    async with make_router(tmp_path) as router:
        history: list[Message] = []
        for task in ("code", "code", None, "poems", "poems"):
            history.append({"role": "user", "content": "Go on."})
            for _ in range(2):
                request = ask(*history, session="s")
                identity = msgspec.structs.replace(request.identity, task=task)
                await router.complete(msgspec.structs.replace(request, identity=identity))
                await router.settled()
                history.extend(STEP)
    made = logged(router)
    assert [d.redraw for d in made] == [*[""] * 6, "task", "", "", ""]
    assert [d.id == d.draw_id for d in made] == [True, *[False] * 5, True, *[False] * 3]
    assert len(made[6].switch) == 3


async def test_a_session_whose_model_failed_is_redrawn_with_switch_costs_in_the_pmf(tmp_path: Path) -> None:
    """After a failure the next call is drawn from all models; the model with the prompt cache has no switch cost."""
    broken = Faulty(Echo(), itertools.repeat(Fault(error=ProviderUnavailable("down", 503))))
    models = [
        ModelCard(name="alpha", provider="broken", prices=Prices(input=1.0)),
        ModelCard(name="beta", provider="echo", prices=Prices(input=1.0)),
    ]
    rules = Rules(floor=1.0, consistency=0.01, cost_weight=1.0)
    async with make_router(tmp_path, {"broken": broken, "echo": Echo()}, models=models, rules=rules) as router:
        for i in range(30):
            await router.complete(ask(session=f"s{i}"))
            await router.settled()
            again = await router.complete(ask(session=f"s{i}"))
            first = logged(router)[-2]
            if first.chosen == "alpha":
                assert (again.decision.redraw, again.decision.draw_id) == ("failed", again.decision.id)
                assert again.decision.switch == (0.0, 0.01)
                assert abs(sum(again.decision.probs) - 1.0) < 1e-12
            else:
                assert again.decision.mode is Mode.STICKY
    assert {d.redraw for d in logged(router)} == {"", "failed"}


async def test_a_session_whose_model_is_over_budget_is_redrawn(tmp_path: Path) -> None:
    """Models that the decider excludes after eligibility also end a stay, and the log has the reason."""
    models = [
        ModelCard(name="cheap", provider="echo"),
        ModelCard(name="dear", provider="echo", prices=Prices(input=1000.0)),
    ]
    watch = ProjectionParams(budget=BudgetParams(usd_per_request_max=0.5))
    learner = Learner(len(context_names()), 1, expects_scores=False, projections=watch)
    async with make_router(tmp_path, models=models, learner=learner, rules=Rules(floor=1.0)) as router:
        for i in range(30):
            await router.complete(ask(session=f"s{i}"))
            await router.settled()
            if logged(router)[-1].chosen == "dear":
                break
        again = await router.complete(ask({"role": "user", "content": "x" * 40_000}, session=f"s{i}"))
    assert "budget" in dict(again.decision.excluded)["dear"]
    assert (again.served_by, again.decision.redraw) == ("cheap", "ineligible")
    assert again.decision.draw_id == again.decision.id


async def test_context_overflow_redraws_the_session_and_idle_time_ends_it(tmp_path: Path) -> None:
    """Overflow is logged as the reason of a re-draw; idle time starts a new session. Switch costs apply to neither."""
    models = [
        ModelCard(name="large", provider="echo"),
        ModelCard(name="small", provider="echo", context_window=300),
    ]
    now = [1000.0]
    async with make_router(tmp_path, models=models, clock=lambda: now[0], rules=Rules(floor=1.0)) as router:
        for i in range(20):
            await router.complete(ask(session=f"s{i}"))
            await router.settled()
            if logged(router)[-1].chosen == "small":
                break
        grown = await router.complete(ask({"role": "user", "content": "x" * 2000}, session=f"s{i}"))
        await router.settled()
        now[0] += 3601.0
        late = await router.complete(ask(session=f"s{i}"))
    assert (grown.served_by, grown.decision.redraw, grown.decision.switch) == ("large", "context", ())
    assert (late.decision.redraw, late.decision.mode, late.decision.draw_id) == ("", Mode.ONLINE, late.decision.id)
