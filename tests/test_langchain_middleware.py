"""FitrouterMiddleware: a router between the chat models of an agent, and agents that live on one of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="install the extra `langchain`")

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, wrap_model_call
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from tests.agents_kit import Agent, agent_router
from tests.gateway_kit import make_router
from tests.langchain_kit import Chat, logged, routed, said_where, team

from fitrouter import proposals
from fitrouter.attempts import Timers
from fitrouter.config import parse_config
from fitrouter.errors import AllModelsFailed, ConfigError, NoEligibleModel, ProviderRejected, ProviderUnavailable
from fitrouter.router import Router
from fitrouter.types import Decision, Execution, FeedbackKind, Mode, ModelCard, Request
from fitrouter_integrations.client import Vote, connect
from fitrouter_integrations.langchain import AgentModels, ChatFitrouter, FitrouterMiddleware
from fitrouter_integrations.langchain._agent_models import PARAMETERS

STEPS = 10


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Refused(Exception):
    """What a provider's client raises for a request that is at fault."""

    status_code = 400


class Streamed(Chat):
    """Says its answer word by word."""

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Iterator[Any]:
        message = self._answer(messages, kwargs)
        for word in message.text.split(" "):
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))


def run(agent: Any, text: str = "2+3?", how: str = "invoke", config: Any = None, **more: Any) -> list[Any]:
    asked = {"messages": [("user", text)]}
    if how == "ainvoke":
        return asyncio.run(agent.ainvoke(asked, config, **more))["messages"]
    return agent.invoke(asked, config, **more)["messages"]


def answers(messages: list[Any]) -> list[AIMessage]:
    return [message for message in messages if isinstance(message, AIMessage)]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Every router of a test ends with it."""
    from fitrouter_integrations.client import _client

    yield
    _client._close_all()
    _client._clients.clear()


HOW = ["invoke", "ainvoke"]


# --- deciding ---


@pytest.mark.parametrize("how", HOW)
def test_an_answer_says_what_was_decided(tmp_path: Path, how: str) -> None:
    """Model, decision, propensity and cost are on the message, and the log has the same with tokens and latency."""
    models = team()
    middleware, router = routed(tmp_path, models)
    agent = create_agent(models["fast"], [add], middleware=[middleware])
    found = answers(run(agent, how=how))
    decisions, executions = logged(router, Decision), logged(router, Execution)
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
    middleware, router = routed(tmp_path, models, **made)
    agent = create_agent(models["fast"], [add], middleware=[*before, middleware], context_schema=Who, name="helper")
    run(agent, how=how, config=config, **more)
    decisions = logged(router, Decision)
    assert len(decisions) == 2
    for decision in decisions:
        identity = decision.identity
        assert identity.user == router.identities.subject("default", "ann")
        assert (identity.role, identity.task) == ("nurse", "triage")
        assert identity.session is not None
    for model in models.values():
        for _, kwargs, _ in model.heard:
            assert not {"user", "role", "task", "fitrouter_turn"} & kwargs.keys()
            assert kwargs.get("temperature") == (0.1 if before else None)


# --- ten steps ---


@pytest.mark.parametrize("how", HOW)
def test_an_agent_of_ten_steps_stays_on_one_model(tmp_path: Path, how: str) -> None:
    """One draw, ten sticky steps of the same model, and another conversation is another draw."""
    models = team(steps=STEPS)
    middleware, router = routed(tmp_path, models)
    agent = create_agent(models["fast"], [add], middleware=[middleware])
    messages = run(agent, how=how, config={"recursion_limit": 100})
    assert len(answers(messages)) == STEPS + 1
    decisions = logged(router, Decision)
    assert len({decision.chosen for decision in decisions}) == 1
    assert Counter(decision.mode for decision in decisions) == {Mode.ONLINE: 1, Mode.STICKY: STEPS}
    assert {decision.draw_id for decision in decisions} == {decisions[0].id}
    run(agent, "other words", how=how, config={"recursion_limit": 100})
    assert logged(router, Decision)[STEPS + 1].mode is Mode.ONLINE


@pytest.mark.parametrize("how", HOW)
def test_a_chat_model_of_ten_steps_stays_on_one_model(tmp_path: Path, how: str) -> None:
    """So does an agent over ChatFitrouter."""

    class Busy(Agent):
        def _tool(self, params: Any, last: Any) -> Any:
            done = sum(message["role"] == "tool" for message in self.calls[-1].messages)
            return params["tools"][0] if params.get("tools") and done < STEPS else None

    router = agent_router(tmp_path, Busy())
    agent = create_agent(ChatFitrouter(router=router), [add])
    messages = run(agent, how=how, config={"recursion_limit": 100})
    assert len(answers(messages)) == STEPS + 1
    decisions = logged(router, Decision)
    assert len({decision.chosen for decision in decisions}) == 1
    assert Counter(decision.mode for decision in decisions) == {Mode.ONLINE: 1, Mode.STICKY: STEPS}


# --- failures ---


def until(n: int, error: Exception) -> Callable[[int], Exception | None]:
    """Fails at the n-th call and after."""
    return lambda calls: error if calls >= n else None


@pytest.mark.parametrize("how", HOW)
def test_a_model_that_fails_is_replaced_and_the_agent_finishes(tmp_path: Path, how: str) -> None:
    """The step goes to another model, the log has both attempts, and the failing one is left."""
    first: list[str] = []
    models = team(steps=STEPS)
    for name, model in models.items():

        def fails(calls: int, name: str = name) -> Exception | None:
            first.append(name)
            return OSError("gone") if name == first[0] and calls > 3 else None

        model.fails = fails
    middleware, router = routed(tmp_path, models)
    agent = create_agent(models["fast"], [add], middleware=[middleware])
    messages = run(agent, how=how, config={"recursion_limit": 100})
    assert messages[-1].text.endswith(f"heard {STEPS}")
    assert len(answers(messages)) == STEPS + 1
    executions = logged(router, Execution)
    assert len(executions) == STEPS + 1
    assert {execution.status for execution in executions} == {"ok"}
    replaced = [execution for execution in executions if len(execution.attempts) > 1]
    assert replaced
    for execution in replaced:
        assert execution.attempts[0].model == first[0] != execution.served_by
        assert execution.attempts[0].error == "ProviderUnavailable"
        assert execution.attempts[0].probability == 1.0
        assert 0 < execution.attempts[1].probability <= 1.0


class CutOff(Agent):
    """Streams; one model gives up before the first byte of its third answer, which would be a tool call."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = 0

    def _tool(self, params: Any, last: Any) -> Any:
        done = sum(message["role"] == "tool" for message in self.calls[-1].messages)
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


@pytest.mark.parametrize("how", HOW)
def test_where_all_fail_the_agent_sees_what_its_model_raised(tmp_path: Path, how: str) -> None:
    """The last model's own exception comes out, with a note of what was tried and the decision's id."""
    models = team(fails=until(1, ConnectionError("no route")))
    middleware, router = routed(tmp_path, models)
    agent = create_agent(models["fast"], [add], middleware=[middleware])
    with pytest.raises(ConnectionError, match="no route") as caught:
        run(agent, how=how)
    (execution,) = logged(router, Execution)
    assert execution.status == "failed"
    assert len(execution.attempts) == 3
    note = next(note for note in caught.value.__notes__ if note.startswith("fitrouter"))
    assert "deep" in note
    assert execution.decision_id in note


@pytest.mark.parametrize("how", HOW)
def test_a_request_that_is_at_fault_is_not_tried_again(tmp_path: Path, how: str) -> None:
    """A 400 of the model's provider comes out as it is, after one attempt."""
    models = team(fails=until(1, Refused("no such field")))
    middleware, router = routed(tmp_path, models)
    agent = create_agent(models["fast"], [add], middleware=[middleware])
    with pytest.raises(Refused, match="no such field"):
        run(agent, how=how)
    assert sum(len(model.heard) for model in models.values()) == 1
    (execution,) = logged(router, Execution)
    assert [attempt.error for attempt in execution.attempts] == ["ProviderRejected"]


def test_an_agent_that_is_interrupted_stops_and_goes_on(tmp_path: Path) -> None:
    """An interrupt inside the model's call is the agent's affair: no other model is asked, and it resumes."""

    @wrap_model_call
    def approving(request: Any, handler: Any) -> Any:
        interrupt("may I?")
        return handler(request)

    models = team(steps=0)
    middleware, _ = routed(tmp_path, models)
    agent = create_agent(models["fast"], middleware=[middleware, approving], checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "t1"}}
    stopped = agent.invoke({"messages": [("user", "hi")]}, config)
    assert stopped["__interrupt__"][0].value == "may I?"
    assert not any(model.heard for model in models.values())
    found = agent.invoke(Command(resume=True), config)
    assert "heard hi" in found["messages"][-1].text
    assert sum(len(model.heard) for model in models.values()) == 1


@pytest.mark.parametrize("how", HOW)
def test_a_model_that_is_too_slow_is_given_up(tmp_path: Path, how: str) -> None:
    """After its share of the deadline another model is asked, and what the slow one says later is dropped."""
    models = {"slow": Chat(name_="slow", pause_s=6.0, steps=0), "quick": Chat(name_="quick", steps=0)}
    middleware, router = routed(tmp_path, models, timers=Timers(deadline_s=4.0))
    agent = create_agent(models["quick"], middleware=[middleware])
    slow: list[Execution] = []
    for i in range(50):
        assert run(agent, f"words {i}", how=how)[-1].text.startswith("quick heard")
        slow = [each for each in logged(router, Execution) if each.attempts[0].model == "slow"]
        if slow:
            break
    assert [attempt.error for attempt in slow[0].attempts] == ["ProviderTimeout", None]
    assert slow[0].served_by == "quick"


def test_cancelling_an_agent_cancels_its_model(tmp_path: Path) -> None:
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
    middleware, router = routed(tmp_path, models)
    agent = create_agent(models["endless"], middleware=[middleware])

    async def cancelled() -> None:
        task = asyncio.create_task(agent.ainvoke({"messages": [("user", "hi")]}))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await ended.wait()

    asyncio.run(cancelled())
    (execution,) = logged(router, Execution)
    assert execution.status == "cancelled"


# --- what stays as it was ---


class Sum(BaseModel):
    """A number."""

    value: int


@pytest.mark.parametrize("how", HOW)
def test_structured_answers_come_through(tmp_path: Path, how: str) -> None:
    """An agent with a response format has its parsed answer, and the message says what was decided."""
    models = team()
    middleware, _ = routed(tmp_path, models)
    agent = create_agent(models["fast"], middleware=[middleware], response_format=ToolStrategy(Sum))
    asked = {"messages": [("user", "2+3?")]}
    found = asyncio.run(agent.ainvoke(asked)) if how == "ainvoke" else agent.invoke(asked)
    assert found["structured_response"] == Sum(value=5)
    assert answers(found["messages"])[-1].response_metadata["decision_id"]


def test_tokens_are_streamed_through(tmp_path: Path) -> None:
    """`stream_mode="messages"` gives the words of the model that was chosen."""
    models = {name: Streamed(name_=name, steps=0) for name in ("deep", "fast")}
    middleware, router = routed(tmp_path, models)
    agent = create_agent(models["fast"], middleware=[middleware])
    words = [
        chunk.text
        for chunk, _ in agent.stream({"messages": [("user", "one two")]}, stream_mode="messages")
        if isinstance(chunk, AIMessageChunk)
    ]
    (execution,) = logged(router, Execution)
    assert "".join(words).strip() == f"{execution.served_by} heard one two"
    assert len([word for word in words if word]) >= 3


def test_variants_are_asked_in_their_way(tmp_path: Path) -> None:
    """A variant's prefix leads the system text, and its parameters are the settings of the model's call."""
    models = {"only": Chat(name_="only", steps=0)}
    config = parse_config(
        {
            "data": str(tmp_path / "data"),
            "providers": {"any": {"kind": "simulated"}},
            "models": [
                {
                    "name": "only",
                    "provider": "any",
                    "variants": [{"name": "brief", "prefix": "Be brief.", "params": {}}],
                }
            ],
            "encoder": "hashing",
            "scorer": {"encoder": "none"},
        }
    )
    middleware = FitrouterMiddleware(models, config=config)
    agent = create_agent(models["only"], middleware=[middleware], system_prompt="You are kind.")
    found = [run(agent, f"words {i}")[-1].response_metadata["model_name"] for i in range(40)]
    assert set(found) == {"only", "only#brief"}
    for name, (_, _, messages) in zip(found, models["only"].heard, strict=True):
        assert messages[0].text == ("Be brief.\n\nYou are kind." if "#" in name else "You are kind.")


# --- settings ---


def test_models_and_prices_are_all_it_needs(tmp_path: Path) -> None:
    """Without a configuration the models' own profiles say what they can do, and the folder is where it learns."""
    models = team(steps=0)
    models["deep"].profile = {"max_input_tokens": 1000, "tool_calling": False, "image_inputs": True}
    middleware = FitrouterMiddleware(
        models,
        data=tmp_path / "learnt",
        prices={"fast": (1.0, 2.0)},
        encoder="hashing",
        scorer={"encoder": "none"},
        policy={"floor": 0.3},
    )
    cards = middleware.router.cards
    assert cards["deep"].context_window == 1000
    assert set(cards["deep"].capabilities) == {"images", "json", "streaming"}
    assert "audio" in cards["fast"].capabilities
    agent = create_agent(models["fast"], middleware=[middleware])
    found = {run(agent, f"words {i}")[-1].response_metadata["model_name"] for i in range(30)}
    assert found == {"deep", "fast", "wide"}
    middleware.close()
    assert (tmp_path / "learnt" / "journal.db").exists()


def test_what_no_model_can_take_says_why(tmp_path: Path) -> None:
    """A step that is too long for every model is refused with each model's reason."""
    models = {"small": Chat(steps=0, profile={"max_input_tokens": 50, "tool_calling": True})}
    middleware = FitrouterMiddleware(models, data=tmp_path / "learnt", encoder="hashing", scorer={"encoder": "none"})
    with pytest.raises(NoEligibleModel, match="small: context"):
        run(create_agent(models["small"], middleware=[middleware]), "word " * 500)


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "a price of nobody": ({"prices": {"slow": (1.0, 2.0)}}, "no model 'slow'"),
    "half a price": ({"prices": {"fast": (1.0,)}}, "input, output"),
    "a setting that is none": ({"polcy": {}}, "did you mean 'policy'"),
    "settings beside a configuration": ({"config": "x.yaml", "policy": {}}, "policy"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told(tmp_path: Path, mistake: str) -> None:
    """Each says what was given and what is allowed."""
    settings, told = MISTAKES[mistake]
    with pytest.raises(ConfigError, match=told):
        FitrouterMiddleware(team(), data=tmp_path, **settings)


def test_models_and_routers_must_agree(tmp_path: Path) -> None:
    """A configuration with other models, a router over other providers, and a provider that it does not name."""
    described = {"providers": {"p": {"kind": "simulated"}}, "models": [{"name": "slow", "provider": "p"}]}
    config = parse_config({**described, "data": str(tmp_path / "data")})
    with pytest.raises(ConfigError, match="slow"):
        FitrouterMiddleware(team(), config=config)
    with pytest.raises(ConfigError, match="AgentModels"):
        FitrouterMiddleware(team(), router=agent_router(tmp_path))
    cards = [ModelCard(name="slow", provider="agent", parameters=PARAMETERS)]
    with pytest.raises(ConfigError, match="'slow' is missing"):
        FitrouterMiddleware(team(), router=make_router(tmp_path, {"agent": AgentModels()}, models=cards))
    with pytest.raises(ConfigError, match="other"):
        Router.from_config(config, providers={"other": AgentModels()})


def test_an_agents_models_are_asked_by_agents_alone(tmp_path: Path) -> None:
    """A request that comes another way says so."""
    _, router = routed(tmp_path, team())
    with pytest.raises(ProviderRejected, match="FitrouterMiddleware"):
        connect(router).complete(Request(messages=({"role": "user", "content": "hi"},)))


def test_a_deadline_without_an_answer_is_the_routers_error(tmp_path: Path) -> None:
    """Where no model raised anything, the router says that time was up."""
    models = {"slow": Chat(pause_s=1.5, steps=0)}
    middleware, _ = routed(tmp_path, models, timeout=0.3)
    with pytest.raises(AllModelsFailed, match="slow"):
        run(create_agent(models["slow"], middleware=[middleware]))


# --- many at once ---


def _check_crowd(router: Router, runs: list[list[Any]]) -> None:
    """Each agent heard its own words in both steps, and every decision has one execution and one answer."""
    ids: list[str] = []
    for i, messages in enumerate(runs):
        first, last = answers(messages)
        assert first.tool_calls[0]["args"] == {"a": 0, "b": 1}
        assert messages[0].text == f"task {i}"
        assert last.text.endswith("heard 1")
        ids += [said.response_metadata["decision_id"] for said in (first, last)]
    assert len(set(ids)) == 2 * len(runs)
    decisions = {decision.id: decision for decision in logged(router, Decision)}
    assert set(ids) == set(decisions)
    assert sorted(execution.decision_id for execution in logged(router, Execution)) == sorted(ids)
    for i, messages in enumerate(runs):
        subject = router.identities.subject("default", f"u{i % 20}")
        for said in answers(messages):
            assert decisions[said.response_metadata["decision_id"]].identity.user == subject


@pytest.mark.parametrize("how", ["threads", "asyncio"])
def test_two_hundred_agents_cross_nothing(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 agents of twenty people at once: nothing is lost, and nobody's step is answered or logged as another's."""
    monkeypatch.setattr(proposals, "IDENTITY_WAIT_S", 30.0)  # on a machine that is busy a user would be anonymous
    models = team(pause_s=0.005)
    middleware, router = routed(tmp_path, models)
    agent = create_agent(models["fast"], [add], middleware=[middleware])

    def config(i: int) -> Any:
        return {"metadata": {"user_id": f"u{i % 20}"}, "configurable": {"thread_id": f"t{i}"}}

    def asked(i: int) -> Any:
        return {"messages": [("user", f"task {i}")]}

    for i in range(20):  # everybody is known by then: the first look-up of a person writes to the disk
        router.identities.subject("default", f"u{i}")
    if how == "threads":
        with ThreadPoolExecutor(50) as pool:
            found = list(pool.map(lambda i: agent.invoke(asked(i), config(i)), range(200)))
    else:

        async def crowd() -> Any:
            return await asyncio.gather(*(agent.ainvoke(asked(i), config(i)) for i in range(200)))

        found = asyncio.run(crowd())
    _check_crowd(router, [each["messages"] for each in found])


def test_plain_code_works_inside_a_running_loop(tmp_path: Path) -> None:
    """`invoke` inside a coroutine is answered, as a notebook would do it."""
    models = team(steps=0)
    middleware, _ = routed(tmp_path, models)
    agent = create_agent(models["fast"], middleware=[middleware])

    async def cell() -> Any:
        return agent.invoke({"messages": [("user", "hi")]})

    assert "heard hi" in asyncio.run(cell())["messages"][-1].text
