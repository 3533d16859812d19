"""FitrouterMiddleware: routing between the chat models of an agent."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="install the extra `langchain`")

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, wrap_model_call
from langchain.agents.structured_output import ToolStrategy
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from tests.kits.agents import Agent, agent_router
from tests.kits.langchain import (
    HOW,
    PAIRS,
    WHERE,
    Chat,
    Streamed,
    add,
    answers,
    close_all,
    logged,
    placed,
    routed,
    run,
    said_where,
    team,
    written,
)

from fitrouter.config import parse_config
from fitrouter.types import Decision, Execution, FeedbackKind, Mode
from fitrouter_integrations.client import Vote
from fitrouter_integrations.langchain import ChatFitrouter, FitrouterMiddleware

STEPS = 10


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


# --- deciding ---


@pytest.mark.parametrize(("where", "how"), PAIRS)
def test_an_answer_carries_its_decision(tmp_path: Path, how: str, where: str) -> None:
    """Model, decision, propensity and cost are on the message, and the log has the same with tokens and latency."""
    models = team()
    with placed(where, tmp_path, models) as (middleware, router):
        agent = create_agent(models["fast"], [add], middleware=[middleware])
        found = answers(run(agent, how=how))
        decisions, executions = written(router, Decision), written(router, Execution)
        assert [said.response_metadata["decision_id"] for said in found] == [decision.id for decision in decisions]
        for said, decision, execution in zip(found, decisions, executions, strict=True):
            meta = said.response_metadata
            assert meta["model_name"] == execution.served_by == decision.chosen
            assert meta["provider_model"] == f"{meta['model_name']}-2026"
            assert meta["propensity"] == decision.propensity
            assert meta["mode"] == decision.mode.value
            assert meta["cost_usd"] == execution.cost_usd == pytest.approx((100 + 2 * 10) / 1e6)
            assert "model_provider" not in meta
            assert (execution.status, execution.prompt_tokens, execution.completion_tokens) == ("ok", 100, 10)
            assert execution.latency_ms > 0
        assert decisions[0].mode is Mode.ONLINE
        assert sum(decisions[0].probs) == pytest.approx(1.0)
        assert found[-1].text == f"{found[-1].response_metadata['model_name']} heard 1"
        assert middleware.feedback(Vote(decision_id=decisions[0].id, kind=FeedbackKind.THUMB, value=1.0))


@pytest.mark.parametrize("how", HOW)
def test_the_model_runs_where_its_agent_runs(tmp_path: Path, how: str) -> None:
    """The model sees the caller's context variables, and an awaiting one runs on the caller's own event loop."""
    loops: list[Any] = []

    class Placed(Chat):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
            loops.append(asyncio.get_running_loop())
            return await super()._agenerate(*args, **kwargs)

    models = {"only": Placed(name_="only")}
    middleware, _ = routed(tmp_path, models)
    agent = create_agent(models["only"], [add], middleware=[middleware])
    said_where.set("here")

    async def asked() -> Any:
        await agent.ainvoke({"messages": [("user", "2+3?")]})
        return asyncio.get_running_loop()

    if how == "ainvoke":
        assert set(loops) <= {asyncio.run(asked())}
        assert len(set(loops)) == 1
    else:
        run(agent)
    assert {where for where, _, _ in models["only"].heard} == {"here"}


class Tracer(BaseCallbackHandler):
    """Notes which runs are within which."""

    def __init__(self) -> None:
        self.names: dict[Any, str] = {}
        self.parents: list[Any] = []

    def on_chain_start(self, *_told: Any, run_id: Any, **more: Any) -> None:
        self.names[run_id] = more.get("name") or ""

    def on_chat_model_start(self, *_told: Any, parent_run_id: Any = None, **_more: Any) -> None:
        self.parents.append(parent_run_id)


@pytest.mark.parametrize("how", HOW)
def test_traces_show_models_within_their_agent(tmp_path: Path, how: str) -> None:
    """Each attempt is a run within the agent's node, the first as well as those in its place."""
    models = team(steps=0)
    asked: list[str] = []
    for name, model in models.items():

        def fails(_calls: int, name: str = name) -> Exception | None:
            asked.append(name)
            return OSError("gone") if len(asked) < 3 else None

        model.fails = fails
    middleware, _ = routed(tmp_path, models)
    tracer = Tracer()
    run(create_agent(models["fast"], middleware=[middleware]), how=how, config={"callbacks": [tracer]})
    assert len(asked) == 3
    assert [tracer.names[parent] for parent in tracer.parents] == ["model"] * 3


# --- identity ---


@dataclass
class Who:
    """A runtime context."""

    user_id: str = "ann"
    role: str = "nurse"
    task: str = "triage"


GIVEN = {"user_id": "ann", "role": "nurse", "task": "triage", "thread_id": "t1"}
NAMED = {"user": "ann", "role": "nurse", "task": "triage"}


class Naming(AgentMiddleware[Any, Any]):
    """Names the caller in the settings of the model's call."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(model_settings={**NAMED, "temperature": 0.1}))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request.override(model_settings={**NAMED, "temperature": 0.1}))


CHANNELS: dict[str, tuple[dict[str, Any], dict[str, Any], list[Any], dict[str, Any]]] = {
    "context": ({}, {"context": Who()}, [], {}),
    "metadata": ({"metadata": GIVEN}, {}, [], {}),
    "configurable": ({"configurable": GIVEN}, {}, [], {}),
    "settings": ({}, {}, [Naming()], {}),
    "constructor": ({}, {}, [], NAMED),
    "context over constructor": ({}, {"context": Who()}, [], {"user": "bob", "role": "cook"}),
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("channel", CHANNELS)
def test_every_channel_reaches_the_log(tmp_path: Path, channel: str, how: str) -> None:
    """User, role and task are in the decision log whichever way they were said, and no model sees them."""
    config, more, before, made = CHANNELS[channel]
    models = team()
    where = "far" if how == "ainvoke" else "near"
    with placed(where, tmp_path, models, **made) as (middleware, router):
        agent = create_agent(models["fast"], [add], middleware=[*before, middleware], context_schema=Who, name="helper")
        run(agent, how=how, config=config, **more)
        decisions = written(router, Decision)
        assert len(decisions) == 2
        for decision in decisions:
            identity = decision.identity
            assert identity.user == router._identities.subject("default", "ann")
            assert (identity.role, identity.task) == ("nurse", "triage")
            assert identity.session is not None
        for model in models.values():
            for _, kwargs, _ in model.heard:
                assert not {"user", "role", "task"} & kwargs.keys()
                assert kwargs.get("temperature") == (0.1 if before else None)


def test_feedback_belongs_to_the_middlewares_tenant(tmp_path: Path) -> None:
    """A tenant's answers can be rated through its own middleware only."""
    models = team(steps=0)
    middleware, router = routed(tmp_path, models, tenant="acme", user="ann")
    (said,) = answers(run(create_agent(models["fast"], middleware=[middleware])))
    decision = said.response_metadata["decision_id"]
    assert logged(router, Decision)[0].identity.tenant == "acme"
    assert middleware.feedback(Vote(decision_id=decision, kind=FeedbackKind.THUMB, value=1.0, user="ann"))
    assert asyncio.run(middleware.afeedback(Vote(decision_id=decision, kind=FeedbackKind.COPY, value=1.0)))


# --- ten steps ---


@pytest.mark.parametrize(("where", "how"), PAIRS)
def test_an_agent_of_ten_steps_stays_on_one_model(tmp_path: Path, how: str, where: str) -> None:
    """One draw, ten sticky steps of the same model, and another conversation is another draw."""
    models = team(steps=STEPS)
    with placed(where, tmp_path, models) as (middleware, router):
        agent = create_agent(models["fast"], [add], middleware=[middleware])
        messages = run(agent, how=how, config={"recursion_limit": 100})
        assert len(answers(messages)) == STEPS + 1
        decisions = written(router, Decision)
        assert len({decision.chosen for decision in decisions}) == 1
        assert Counter(decision.mode for decision in decisions) == {Mode.ONLINE: 1, Mode.STICKY: STEPS}
        assert {decision.draw_id for decision in decisions} == {decisions[0].id}
        run(agent, "other words", how=how, config={"recursion_limit": 100})
        assert written(router, Decision)[STEPS + 1].mode is Mode.ONLINE


@pytest.mark.parametrize("how", HOW)
def test_a_chat_model_of_ten_steps_stays_on_one_model(tmp_path: Path, how: str) -> None:
    """So does an agent over ChatFitrouter."""

    class Busy(Agent):
        def _tool(self, params: Any, last: Any) -> Any:
            done = sum(message["role"] == "tool" for message in self.calls[-1].messages)
            self.number = 3 + done  # the same call again would be a sign of a stuck agent
            return params["tools"][0] if params.get("tools") and done < STEPS else None

    router = agent_router(tmp_path, Busy())
    agent = create_agent(ChatFitrouter(router=router), [add])
    messages = run(agent, how=how, config={"recursion_limit": 100})
    assert len(answers(messages)) == STEPS + 1
    decisions = logged(router, Decision)
    assert len({decision.chosen for decision in decisions}) == 1
    assert Counter(decision.mode for decision in decisions) == {Mode.ONLINE: 1, Mode.STICKY: STEPS}


# --- what stays as it was ---


class Sum(BaseModel):
    """A number."""

    value: int


@pytest.mark.parametrize("how", HOW)
def test_structured_answers_are_returned(tmp_path: Path, how: str) -> None:
    """An agent with a response format has its parsed answer, and the message says what was decided."""
    models = team()
    middleware, _ = routed(tmp_path, models)
    agent = create_agent(models["fast"], middleware=[middleware], response_format=ToolStrategy(Sum))
    asked = {"messages": [("user", "2+3?")]}
    found = asyncio.run(agent.ainvoke(asked)) if how == "ainvoke" else agent.invoke(asked)
    assert found["structured_response"] == Sum(value=5)
    assert answers(found["messages"])[-1].response_metadata["decision_id"]


def test_an_agent_that_is_interrupted_stops_and_continue_session(tmp_path: Path) -> None:
    """An interrupt inside the model's call is the agent's affair: no other model is asked, and it resumes."""

    @wrap_model_call
    def approving(request: Any, handler: Any) -> Any:
        interrupt("may I?")
        return handler(request)

    models = team(steps=0)
    middleware, router = routed(tmp_path, models)
    agent = create_agent(models["fast"], middleware=[middleware, approving], checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "t1"}}
    stopped = agent.invoke({"messages": [("user", "hi")]}, config)
    assert stopped["__interrupt__"][0].value == "may I?"
    assert not any(model.heard for model in models.values())
    found = agent.invoke(Command(resume=True), config)
    assert "heard hi" in found["messages"][-1].text
    assert sum(len(model.heard) for model in models.values()) == 1
    assert [(each.status, each.served_by is None) for each in logged(router, Execution)] == [
        ("cancelled", True),
        ("ok", False),
    ]


@pytest.mark.parametrize("where", WHERE)
def test_tokens_are_streamed(tmp_path: Path, where: str) -> None:
    """`stream_mode="messages"` gives the words of the model that was chosen, to plain code and to awaiting code."""
    models = {name: Streamed(name_=name, steps=0) for name in ("deep", "fast")}
    with placed(where, tmp_path, models) as (middleware, router):
        agent = create_agent(models["fast"], middleware=[middleware])
        plain = list(agent.stream({"messages": [("user", "one two")]}, stream_mode="messages"))

        async def awaited() -> list[Any]:
            asked = {"messages": [("user", "one two")]}
            return [piece async for piece in agent.astream(asked, stream_mode="messages")]

        for pieces, execution in zip((plain, asyncio.run(awaited())), written(router, Execution), strict=True):
            words = [chunk.text for chunk, _ in pieces if isinstance(chunk, AIMessageChunk)]
            assert "".join(words).strip() == f"{execution.served_by} heard one two"
            assert len([word for word in words if word]) >= 3


VARIED = {
    "providers": {"any": {"kind": "simulated"}},
    "models": [
        {
            "name": "only",
            "provider": "any",
            "variants": [{"name": "brief", "prefix": "Be brief.", "params": {"temperature": 0.2}}],
        }
    ],
    "policy": {"floor": 1.0},
    "encoder": "hashing",
    "scorer": {"encoder": "none"},
}


@pytest.mark.parametrize("system", ["You are kind.", None])
def test_variants_change_the_request(tmp_path: Path, system: str | None) -> None:
    """A variant's prefix leads the system text, and its parameters are model settings."""
    models = {"only": Chat(name_="only", steps=0)}
    config = parse_config({**VARIED, "data": str(tmp_path / "data")})
    agent = create_agent(models["only"], middleware=[FitrouterMiddleware(models, router=config)], system_prompt=system)
    found = [run(agent, f"words {i}")[-1].response_metadata["model_name"] for i in range(25)]
    assert set(found) == {"only", "only#brief"}
    for name, (_, kwargs, messages) in zip(found, models["only"].heard, strict=True):
        texts = [message.text for message in messages if message.type == "system"]
        ways = ["Be brief." if "#" in name else "", system or ""]
        assert "\n\n".join(texts) == "\n\n".join(filter(None, ways))
        assert kwargs.get("temperature") == (0.2 if "#" in name else None)


class Cool(AgentMiddleware[Any, Any]):
    """Sets a temperature of its own."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(model_settings={"temperature": 0.9}))


def test_an_agents_settings_override_a_variants(tmp_path: Path) -> None:
    """A variant's parameters are defaults."""
    models = {"only": Chat(name_="only", steps=0)}
    middleware = FitrouterMiddleware(models, router=parse_config({**VARIED, "data": str(tmp_path / "data")}))
    agent = create_agent(models["only"], middleware=[Cool(), middleware])
    found = {run(agent, f"words {i}")[-1].response_metadata["model_name"] for i in range(20)}
    assert "only#brief" in found
    assert {kwargs["temperature"] for _, kwargs, _ in models["only"].heard} == {0.9}
