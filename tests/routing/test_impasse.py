"""Stuck agents: their signs, the draw that every candidate shares, and what is learnt of who gets them unstuck."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kits.gateway import Echo, make_router
from tests.kits.replay import log_of
from tests.routing.test_decider import X

from fitrouter.context.impasse import impasse
from fitrouter.draw import replay
from fitrouter.posterior.labels import Answered, Label
from fitrouter.posterior.model import Fit
from fitrouter.router import Router
from fitrouter.routing.decider import Rules
from fitrouter.types import Decision, FeedbackKind, Identity, Message, Request
from fitrouter_evaluators.replay.candidates.load import load_candidate

USER: Message = {"role": "user", "content": "Fix the build"}
NO: Message = {"role": "user", "content": "No, that's wrong."}
DONE: Message = {"role": "assistant", "content": "Done."}
SAME, OTHER = '{"path": "a.py"}', '{"path": "b.py"}'


def call(arguments: str = SAME) -> Message:
    function = {"name": "read", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": function}]}


def result(text: str = "x = 1") -> Message:
    return {"role": "tool", "tool_call_id": "c", "content": text}


def custom(text: str) -> Message:
    """A call of a tool that takes text, no function."""
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "sh", "input": text}}]}


LOOP = (USER, *[call(), result()] * 3)
LONG = "x = 1 " * 500


@pytest.mark.parametrize(
    ("messages", "sign"),
    [
        (LOOP, "loop"),
        ((USER, *[call(), result()] * 2), ""),
        ((USER, call(), result(), call(OTHER), result(), call(), result()), ""),
        ((*LOOP, call(OTHER), result()), ""),
        ((*LOOP, USER), ""),
        ((USER, call(), result("Error: no such file"), call(OTHER), result("Error: no such file")), "error"),
        ((USER, call(), result("same text"), call(OTHER), result("same text")), ""),
        ((USER, *[call(), result(f"{LONG}Traceback")] * 2), "error"),
        ((USER, *[call(), result(f"{LONG}Traceback{LONG}")] * 2), ""),
        ((USER, custom("a"), result(), custom("b"), result(), custom("c"), result()), ""),
        ((USER, DONE, result(), DONE, result(), DONE, result()), "idle"),
        (
            (
                USER,
                *[step for i in range(4) for step in ({**call(f'{{"n": {i}}}'), "content": "Let me look."}, result())],
            ),
            "",
        ),
        ((USER, DONE, NO, DONE, NO), "rejected"),
        ((USER, DONE, NO, DONE, USER), ""),
        ((USER, DONE, NO), ""),
        ((), ""),
        (({"role": "user", "content": [{"text": 7}, "x"]}, {"tool_calls": 5}, {"role": "tool"}), ""),
    ],
)
def test_signs(messages: tuple[Message, ...], sign: str) -> None:
    """Each sign is read from the end of the conversation, and is gone once the agent does something else.

    Only the ends of an output are searched, as it may be long; calls that are no functions are not told apart.
    """
    assert impasse(messages) == sign


def ask(*messages: Message, **more: Any) -> Request:
    return Request(messages=messages, identity=Identity(session="s", role="builder"), **more)


def logged(router: Router) -> list[Decision]:
    return [row.event for row in router._journal.tail(0, 100_000) if isinstance(row.event, Decision)]


async def test_a_stuck_session_is_drawn_again(tmp_path: Path) -> None:
    """A sign draws another model, twice at the most until the user speaks again; the draws replay, as candidates do."""
    async with make_router(tmp_path, {"echo": Echo()}, rules=Rules(floor=0.5, registry="r1")) as router:
        await router.complete(ask(USER))
        for n in range(3, 7):
            await router.complete(ask(USER, *[call(), result()] * n))
        await router.complete(ask(USER, *LOOP[1:], DONE, USER))
        await router.complete(ask(*LOOP, DONE, *LOOP))
        await router.complete(ask(*LOOP, model="beta"))
        await router.settled()
        made, log = logged(router), log_of(row.event for row in router._journal.tail(0, 100_000))
        assert [each.redraw for each in made] == ["", "stuck", "stuck", "", "", "", "stuck", ""]
        assert [each.stuck for each in made] == ["", "loop", "loop", "loop", "loop", "loop", "loop", ""]
        drawn = [each for each in made if each.mode.drawn]
        assert len({each.chosen for each in drawn[:3]}) == 3, "no model is tried twice in an impasse"
        assert all(replay(each) == each.chosen for each in drawn)
        assert dict(drawn[1].excluded)[drawn[0].chosen] == "stuck: it was tried in this impasse"
        rows = np.flatnonzero([each.mode.drawn for each in made])
        found = load_candidate({"algorithm": "squarecb", "gamma": 20.0}).pmf(log, rows)
        np.testing.assert_allclose(found, np.concatenate([each.probs for each in drawn]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [FeedbackKind.EDIT, FeedbackKind.REGENERATE])
async def test_answers_that_are_edited_twice_in_a_row_are_a_sign(tmp_path: Path, kind: FeedbackKind) -> None:
    """After two answers in a row that were changed, or made again, a session is drawn again, once."""
    async with make_router(tmp_path, {"echo": Echo()}, rules=Rules(floor=0.5, registry="r1")) as router:
        history: list[Message] = []
        for edited in (1.0, 0.0, 1.0, None, 1.0, 1.0, 1.0, None):
            answer = await router.complete(ask(*history, USER))
            history += [USER, DONE]
            if edited is not None:
                await router.feedback(answer.decision.id, kind, edited)
                await router.settled()
        made = logged(router)
        assert [each.redraw for each in made] == ["", "", "", "", "", "", "stuck", ""]
        assert [each.stuck for each in made][-2:] == ["edited", "edited"]
        assert made[6].chosen != made[5].chosen
        assert dict(made[6].excluded)[made[5].chosen] == "stuck: it was tried in this impasse"
        assert replay(made[6]) == made[6].chosen


@pytest.mark.parametrize("rules", [Rules(redraw_stuck=0, registry="r1")])
async def test_it_can_be_switched_off(tmp_path: Path, rules: Rules) -> None:
    """Without redraws for impasses a session stays on its model."""
    async with make_router(tmp_path, {"echo": Echo()}, rules=rules) as router:
        await router.complete(ask(USER))
        await router.complete(ask(*LOOP))
        assert [each.stuck or each.mode.value for each in logged(router)][1] == "sticky"


def test_who_gets_a_role_unstuck_is_learnt_apart() -> None:
    """Labels of stuck draws teach where an agent is stuck, most for its role; elsewhere they count as of the model."""
    fit, arms, who = Fit(len(X), 2), ("a", "b"), Identity(role="builder")
    fit.arms.join("a")
    fit.arms.join("b")
    before = fit.estimate(who, X, arms, 0.0)
    for _ in range(30):
        for arm, y in (("a", 0.0), ("b", 1.0)):
            fit.learn(Label(who, Answered(arm, X, None, True), y, FeedbackKind.RATING))

    def lead(identity: Identity, *, stuck: bool) -> float:
        mean = fit.estimate(identity, X, arms, 0.0, stuck=stuck).mean
        return float(mean[1] - mean[0])

    assert before.mean[0] == before.mean[1]
    analyst = Identity(role="analyst")  # of another place among the two that a context of three has
    assert lead(who, stuck=True) - lead(who, stuck=False) > lead(analyst, stuck=True) - lead(analyst, stuck=False) > 0
    other = Fit(len(X), 2)
    for arm in (*arms, "a#impasse-any", "b#impasse-any"):
        assert other.arms.load(arm, fit.arms.dump(arm))
    one, two = (
        each.arms.read(each.arms.find(arms), X, fit.widths.weights, "", "x").correction for each in (fit, other)
    )
    np.testing.assert_array_equal(one, two)
