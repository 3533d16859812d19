"""FitrouterMiddleware when a model or the router fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="install the extra `langchain`")

from langchain.agents import create_agent
from langchain.agents.middleware.types import ModelRequest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage
from langchain_core.outputs import ChatResult
from tests.kits.agents import Agent, agent_router
from tests.kits.langchain import (
    FAIR,
    HOW,
    PAIRS,
    WHERE,
    Busy,
    Chat,
    Refused,
    Streamed,
    add,
    answers,
    close_all,
    logged,
    placed,
    routed,
    run,
    team,
    written,
)

from fitrouter.errors import AllModelsFailed, ConfigError, ProviderRejected, ProviderUnavailable
from fitrouter.serving.attempts import Timers
from fitrouter.serving.external import PlannedCall
from fitrouter.types import Decision, Execution, Request
from fitrouter_integrations.client import About, Plan
from fitrouter_integrations.langchain import ChatFitrouter
from fitrouter_integrations.langchain._step import Step

STEPS = 10


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


def until(n: int, error: Exception) -> Callable[[int], Exception | None]:
    """Fails at the n-th call and after."""
    return lambda calls: error if calls >= n else None


def first_breaks(models: dict[str, Chat], error: Exception, after: int) -> list[str]:
    """Lets the model that is asked first fail from a call on; returns the names in the order of calls."""
    asked: list[str] = []
    for name, model in models.items():

        def fails(calls: int, name: str = name) -> Exception | None:
            asked.append(name)
            return error if name == asked[0] and calls > after else None

        model.fails = fails
    return asked


# --- a model ---


@pytest.mark.parametrize(("where", "how"), PAIRS)
def test_a_model_that_fails_is_replaced_and_the_agent_finishes(tmp_path: Path, how: str, where: str) -> None:
    """The step goes to another model, the log has both attempts, and the failing one is left."""
    models = team(steps=STEPS)
    asked = first_breaks(models, OSError("gone"), after=3)
    with placed(where, tmp_path, models) as (middleware, router):
        agent = create_agent(models["fast"], [add], middleware=[middleware])
        messages = run(agent, how=how, config={"recursion_limit": 100})
        executions = written(router, Execution)
    assert messages[-1].text.endswith(f"heard {STEPS}")
    assert len(answers(messages)) == STEPS + 1
    assert len(executions) == STEPS + 1
    assert {execution.status for execution in executions} == {"ok"}
    replaced = [execution for execution in executions if len(execution.attempts) > 1]
    assert replaced
    for execution in replaced:
        assert execution.attempts[0].model == asked[0] != execution.served_by
        assert execution.attempts[0].error == "ProviderUnavailable"
        assert execution.attempts[0].probability == 1.0
        assert 0 < execution.attempts[1].probability < 1.0


@pytest.mark.parametrize("where", WHERE)
def test_fallbacks_have_their_conditional_probabilities(tmp_path: Path, where: str) -> None:
    """p(second | first failed) is what the logged pmf says, and the answer tells who gave it."""
    models = team(steps=0)
    first_breaks(models, OSError("gone"), after=0)
    with placed(where, tmp_path, models) as (middleware, router):
        (said,) = answers(run(create_agent(models["fast"], middleware=[middleware])))
        (decision,), (execution,) = written(router, Decision), written(router, Execution)
    first, second = execution.attempts
    probs = dict(zip(decision.eligible, decision.probs, strict=True))
    assert first.model == decision.chosen
    assert second.probability == pytest.approx(probs[second.model] / (1 - probs[first.model]))
    assert said.response_metadata["model_name"] == execution.served_by == second.model
    assert said.response_metadata["propensity"] == decision.propensity == probs[first.model]


class CutOff(Agent):
    """Streams; one model gives up before the first byte of its third answer, which would be a tool call."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = 0

    def _tool(self, params: Any, last: Any) -> Any:
        done = sum(message["role"] == "tool" for message in self.calls[-1].messages)
        self.number = 3 + done  # the same call again would be a sign of a stuck agent
        return params["tools"][0] if params.get("tools") and done < STEPS else None

    async def _pieces(self, message: Any, reason: str, usage: Any) -> Any:
        target, asked = self.calls[-1].target, [call.target for call in self.calls]
        if asked.count(target) >= 3 and target == asked[0]:
            self.broken += 1
            raise ProviderUnavailable("cut off")
        async for piece in super()._pieces(message, reason, usage):
            yield piece


def test_a_stream_that_breaks_before_its_tool_call_is_replaced(tmp_path: Path) -> None:
    """A provider that fails before the first byte of a streamed tool call is replaced, and the agent finishes."""
    provider = CutOff()
    router = agent_router(tmp_path, provider)
    agent = create_agent(ChatFitrouter(router=router), [add])
    final = None
    for _, state in agent.stream(
        {"messages": [("user", "2+3?")]}, {"recursion_limit": 100}, stream_mode=["values", "messages"]
    ):
        final = state if isinstance(state, dict) else final
    assert final is not None
    assert len(answers(final["messages"])) == STEPS + 1
    assert provider.broken
    executions = logged(router, Execution)
    assert {execution.status for execution in executions} == {"ok"}
    broken = next(execution for execution in executions if len(execution.attempts) > 1)
    assert broken.attempts[0].model == executions[0].served_by != broken.served_by


def test_a_broken_answer_is_restarted_by_another_model(tmp_path: Path) -> None:
    """Chunks of the first answer were seen already; the state has the second one only."""

    class Torn(Streamed):
        def _stream(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
            yield next(super()._stream(*args, **kwargs))
            if self.fails is not None:
                raise OSError("torn")

    models = {name: Torn(name_=name, steps=0) for name in ("deep", "fast")}
    middleware, router = routed(tmp_path, models, over={"rules": FAIR})
    models["deep"].fails = lambda _calls: None
    agent = create_agent(models["fast"], middleware=[middleware])
    seen: dict[str, list[str]] = {}
    for i in range(40):
        final: dict[str, Any] = {}
        words: list[str] = []
        for mode, piece in agent.stream({"messages": [("user", f"words {i}")]}, stream_mode=["messages", "values"]):
            if mode == "values":
                final = piece
            else:
                words.append(piece[0].text)
        assert [said.text.strip() for said in answers(final["messages"])] == ["fast"]
        seen[logged(router, Decision)[-1].chosen] = words
    assert "".join(seen["deep"]).split() == ["deep", "fast"]
    assert "".join(seen["fast"]).split() == ["fast"]


@pytest.mark.parametrize(("where", "how"), PAIRS)
def test_if_all_fail_the_last_exception_is_raised(tmp_path: Path, how: str, where: str) -> None:
    """With a note of the attempts and the decision id."""
    models = team(fails=until(1, ConnectionError("no route")))
    with placed(where, tmp_path, models) as (middleware, router):
        agent = create_agent(models["fast"], [add], middleware=[middleware])
        with pytest.raises(ConnectionError, match="no route") as caught:
            run(agent, how=how)
        (execution,) = written(router, Execution)
    assert execution.status == "failed"
    assert len(execution.attempts) == 3
    note = next(note for note in caught.value.__notes__ if note.startswith("fitrouter"))
    assert "deep" in note
    assert execution.decision_id in note


@pytest.mark.parametrize("how", HOW)
def test_an_invalid_request_is_not_retried(tmp_path: Path, how: str) -> None:
    """A provider's 400 is raised after one attempt."""
    models = team(fails=until(1, Refused("no such field")))
    middleware, router = routed(tmp_path, models)
    agent = create_agent(models["fast"], [add], middleware=[middleware])
    with pytest.raises(Refused, match="no such field"):
        run(agent, how=how)
    assert sum(len(model.heard) for model in models.values()) == 1
    (execution,) = logged(router, Execution)
    assert [attempt.error for attempt in execution.attempts] == ["ProviderRejected"]


class Overflow(ContextOverflowError, ProviderRejected):
    """What a router that is an agent's model raises where a history does not fit."""

    status_code = 400


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (ContextOverflowError("too long"), "ContextOverflow"),
        (Overflow("too long"), "ContextOverflow"),
        (Busy("slow down"), "RateLimited"),
    ],
)
def test_limits_of_one_model_are_retried_with_another(tmp_path: Path, error: Exception, name: str) -> None:
    """A small context window and a rate limit belong to the model, not to the request."""
    models = team(steps=0)
    first_breaks(models, error, after=0)
    middleware, router = routed(tmp_path, models)
    run(create_agent(models["fast"], middleware=[middleware]))
    (execution,) = logged(router, Execution)
    assert [attempt.error for attempt in execution.attempts] == [name, None]


@pytest.mark.parametrize("how", HOW)
def test_a_slow_model_is_abandoned(tmp_path: Path, how: str) -> None:
    """After its share of the deadline another model is tried, and a late answer is dropped."""
    models = {"slow": Chat(name_="slow", pause_s=9.0, steps=0), "quick": Chat(name_="quick", steps=0)}
    middleware, router = routed(tmp_path, models, over={"timers": Timers(deadline_s=10.0), "rules": FAIR})
    agent = create_agent(models["quick"], middleware=[middleware])
    slow: list[Execution] = []
    for i in range(50):
        assert run(agent, f"words {i}", how=how)[-1].text.startswith("quick heard")
        slow = [each for each in logged(router, Execution) if each.attempts[0].model == "slow"]
        if slow:
            break
    assert [attempt.error for attempt in slow[0].attempts] == ["ProviderTimeout", None]
    assert slow[0].served_by == "quick"


@pytest.mark.parametrize("how", HOW)
def test_a_models_own_timeout_is_its_failure(tmp_path: Path, how: str) -> None:
    """A TimeoutError that a model raises is not the deadline's: it comes out where nobody else answers."""
    models = team(steps=0, fails=until(1, TimeoutError("read timed out")))
    middleware, router = routed(tmp_path, models)
    with pytest.raises(TimeoutError, match="read timed out"):
        run(create_agent(models["fast"], middleware=[middleware]), how=how)
    (execution,) = logged(router, Execution)
    assert [attempt.error for attempt in execution.attempts] == ["ProviderUnavailable"] * 3


@pytest.mark.parametrize("how", HOW)
def test_a_deadline_without_an_answer_is_the_routers_error(tmp_path: Path, how: str) -> None:
    """Where no model raised anything, the router says that time was up."""
    models = {"slow": Chat(pause_s=1.5, steps=0)}
    middleware, router = routed(tmp_path, models, timeout=0.3)
    with pytest.raises(AllModelsFailed, match="slow") as caught:
        run(create_agent(models["slow"], middleware=[middleware]), how=how)
    assert caught.value.timed_out
    (execution,) = logged(router, Execution)
    assert (caught.value.decision_id, execution.status) == (execution.decision_id, "failed")


def step_of(asked: list[str], models: dict[str, Chat], left_s: float) -> Step:
    """A step of a plan that names these models."""
    about = About(decision_id="d", model=asked[0], chosen=asked[0], mode="online", propensity=0.5)
    order = tuple(PlannedCall(model=name, target=name, probability=0.5) for name in asked)
    request = ModelRequest(model=models["fast"], messages=[HumanMessage("hi")])
    plan = Plan(about=about, order=order, deadline_s=30.0)
    return Step(plan, Request(messages=()), request, models, deadline=time.monotonic() + left_s)


def test_no_model_is_called_after_the_deadline() -> None:
    """A model that fails once time is over was the last: no further call is paid for."""
    step = step_of(["deep", "fast", "wide"], team(), left_s=0.0)
    assert step.next() is not None
    step.failed(OSError("gone"))
    assert step.next() is None
    with pytest.raises(OSError, match="gone"):
        step.result()


def test_an_agent_without_the_planned_models_is_an_error() -> None:
    """A plan of which nothing can be asked here is a mistake of names, and no failure of models."""
    step = step_of(["huge", "tiny"], team(), left_s=30.0)
    assert step.next() is None
    assert [(one.model, one.error) for one in step.ended().tried] == [
        ("huge", "ProviderUnavailable"),
        ("tiny", "ProviderUnavailable"),
    ]
    with pytest.raises(ConfigError, match=r"got .* planned huge .*, tiny"):
        step.result()


@pytest.mark.parametrize("where", WHERE)
def test_cancelling_an_agent_cancels_its_model(tmp_path: Path, where: str) -> None:
    """A task that is cancelled ends the model's call, and the log says so."""
    begun, ended = asyncio.Event(), asyncio.Event()

    class Endless(Chat):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
            begun.set()
            try:
                await asyncio.sleep(3600)
            finally:
                ended.set()
            raise AssertionError

    models = {"endless": Endless()}
    with placed(where, tmp_path, models) as (middleware, router):
        agent = create_agent(models["endless"], middleware=[middleware])

        async def cancelled() -> None:
            task = asyncio.create_task(agent.ainvoke({"messages": [("user", "hi")]}))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await ended.wait()

        asyncio.run(cancelled())
        (execution,) = written(router, Execution)
    assert (execution.status, execution.served_by) == ("cancelled", None)


class Stop(BaseException):
    """What a person's interrupt, or the end of a process, is."""


def test_plain_code_that_is_stopped_is_cancelled(tmp_path: Path) -> None:
    """What ends the agent comes out at once: nobody else is asked, and the log says that nobody waited."""
    models = team(steps=0, fails=until(1, Stop()))  # type: ignore[arg-type]
    middleware, router = routed(tmp_path, models)
    with pytest.raises(Stop):
        run(create_agent(models["fast"], middleware=[middleware]))
    assert sum(len(model.heard) for model in models.values()) == 1
    (execution,) = logged(router, Execution)
    assert (execution.status, execution.attempts) == ("cancelled", ())
