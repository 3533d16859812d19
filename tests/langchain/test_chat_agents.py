"""ChatFitrouter in LangGraph and in agents: steps, failures, threads, interrupts, fan-out and streams."""

from __future__ import annotations

import asyncio
import operator
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langchain", reason="install the extra `langchain`")

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, Send, interrupt
from tests.kits.agents import Agent
from tests.kits.chat import HOW, PAIRS, WHOLE, Steps, asked, chat, events
from tests.kits.gateway import wait_for

from fitrouter.errors import ProviderUnavailable
from fitrouter.serving.attempts import Timers
from fitrouter.types import Chunk, Decision, Execution, Mode

STEPS = 10
WHERE = ("near", "far")
LONG: RunnableConfig = {"recursion_limit": 100}


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def said(state: Any) -> list[AIMessage]:
    """The model's messages in a state."""
    return [message for message in state["messages"] if isinstance(message, AIMessage)]


def question(text: str = "2+3?") -> Any:
    return {"messages": [("user", text)]}


def modes(how: str) -> dict[str, Any]:
    return {"stream_mode": "values"} if "stream" in how else {}


# --- steps ---


@pytest.mark.parametrize(("where", "how"), PAIRS)
def test_an_agent_of_ten_steps_stays_on_one_model(tmp_path: Path, where: str, how: str) -> None:
    """One draw and ten sticky steps of the same model, each with a decision of its own; and then an answer."""
    with chat(tmp_path, where, Steps(STEPS)) as (model, router):
        state = asked(create_agent(model, [add]), how, question(), LONG, **modes(how))
        answers = said(state)
        assert len(answers) == STEPS + 1
        decisions = events(router, Decision)
        assert [answer.response_metadata["decision_id"] for answer in answers] == [each.id for each in decisions]
        assert len({answer.response_metadata["model_name"] for answer in answers}) == 1
        assert Counter(each.mode for each in decisions) == {Mode.ONLINE: 1, Mode.STICKY: STEPS}


class CutOff(Steps):
    """One model gives up before the first byte of its third answer, which would be a tool call; streamed or whole."""

    def __init__(self) -> None:
        super().__init__(STEPS)
        self.broken = 0

    def _breaks(self) -> bool:
        target, targets = self.calls[-1].target, [call.target for call in self.calls]
        broken = targets.count(target) >= 3 and target == targets[0]
        self.broken += broken
        return broken

    def _answer(self, call: Any) -> Any:
        if not call.stream and self._breaks():
            raise ProviderUnavailable("cut off")
        return super()._answer(call)

    async def _pieces(self, message: Any, reason: str, usage: Any) -> Any:
        if self._breaks():
            raise ProviderUnavailable("cut off")
        async for piece in super()._pieces(message, reason, usage):
            yield piece


@pytest.mark.parametrize(
    ("where", "how", "streaming"), [("near", "invoke", True), ("near", "astream", False), ("far", "astream", True)]
)
def test_a_model_that_fails_before_its_tool_call_is_replaced(
    tmp_path: Path, where: str, how: str, streaming: bool
) -> None:
    """The step goes to another model, the log has both attempts, and the agent finishes all its steps."""
    provider = CutOff()
    with chat(tmp_path, where, provider, streaming=streaming) as (model, router):
        state = asked(create_agent(model, [add]), how, question(), LONG, **modes(how))
        assert len(said(state)) == STEPS + 1
        assert said(state)[-1].text.startswith(("alpha", "beta", "gamma"))
        assert any(call.stream for call in provider.calls) is streaming
        assert provider.broken
        executions = events(router, Execution)
        assert {each.status for each in executions} == {"ok"}
        replaced = next(each for each in executions if len(each.attempts) > 1)
        assert replaced.attempts[0].error == "ProviderUnavailable"
        assert replaced.served_by != replaced.attempts[0].model


@pytest.mark.parametrize(("where", "how"), PAIRS)
def test_parallel_tool_calls(tmp_path: Path, where: str, how: str) -> None:
    """Several calls of one answer, beside its text, all run, and each result goes back to its call."""
    provider = Steps(1, width=3)
    with chat(tmp_path, where, provider) as (model, _):
        state = asked(create_agent(model, [add]), how, question(), **modes(how))
        first = said(state)[0]
        assert first.text == "Let me look."
        assert len(first.tool_calls) == 3
        told = [message for message in provider.calls[-1].messages if message["role"] == "tool"]
        assert {each["tool_call_id"] for each in told} == {call["id"] for call in first.tool_calls}


# --- graphs ---


def graph_of(model: Any, checkpointer: Any = None) -> Any:
    """A model and its tools by hand."""

    def answer(state: MessagesState) -> Any:
        return {"messages": [model.bind_tools([add]).invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_node("tools", ToolNode([add]))
    graph.add_edge(START, "answer")
    graph.add_conditional_edges("answer", tools_condition)
    graph.add_edge("tools", "answer")
    return graph.compile(checkpointer=checkpointer)


@pytest.mark.parametrize("how", HOW)
def test_a_custom_graph_keeps_its_thread(tmp_path: Path, how: str) -> None:
    """With a checkpointer turns accumulate, the model sees them all, and the thread is one session."""
    provider = Steps(2)
    with chat(tmp_path, "near", provider) as (model, router):
        graph = graph_of(model, InMemorySaver())
        thread: RunnableConfig = {"configurable": {"thread_id": "t1"}}
        asked(graph, how, question("first"), thread, **modes(how))
        state = asked(graph, how, question("second"), thread, **modes(how))
        assert len(said(state)) == 6
        assert [each["content"] for each in provider.calls[-1].messages if each["role"] == "user"] == [
            "first",
            "second",
        ]
        assert len({each.identity.session for each in events(router, Decision)}) == 1


def test_time_travel_is_a_new_decision(tmp_path: Path) -> None:
    """A graph resumed from an earlier state gets a new decision; the first one stays."""
    with chat(tmp_path, "near", Steps(1)) as (model, router):
        graph = graph_of(model, InMemorySaver())
        thread: RunnableConfig = {"configurable": {"thread_id": "t1"}}
        first = graph.invoke(question(), thread)
        before = next(each for each in graph.get_state_history(thread) if each.next == ("tools",))
        again = graph.invoke(None, before.config)
        ids = [message.response_metadata["decision_id"] for message in said(first) + said(again)]
        assert ids[0] == ids[2]
        assert ids[1] != ids[3]
        assert {each.id for each in events(router, Decision)} == set(ids)


@pytest.mark.parametrize(("where", "how"), WHOLE)
def test_an_interrupt_stops_and_continue_session(tmp_path: Path, where: str, how: str) -> None:
    """A tool that asks a person stops the agent; the answer resumes it, and no model is asked twice for a step."""

    @tool
    def approve(value: int) -> str:
        """Ask a person."""
        return f"the person said {interrupt(value)}"

    with chat(tmp_path, where, Steps(1)) as (model, router):
        agent = create_agent(model, [approve], checkpointer=InMemorySaver())
        thread: RunnableConfig = {"configurable": {"thread_id": "t1"}}
        stopped = asked(agent, how, question(), thread)
        assert stopped["__interrupt__"][0].value == 3
        state = asked(agent, how, Command(resume="yes"), thread)
        assert state["messages"][-2].text == "the person said yes"
        assert len(events(router, Decision)) == len(said(state)) == 2


class Fan(TypedDict):
    """A state that collects what many nodes say."""

    heard: Annotated[list[tuple[str, str, str]], operator.add]


class Branch(Fan):
    """The state of one of them."""

    who: str


@pytest.mark.parametrize(("where", "how"), WHOLE)
def test_a_fan_out_does_not_mix(tmp_path: Path, where: str, how: str) -> None:
    """Twenty branches of `Send`, each a subgraph with its own user: each answer belongs to its question."""
    with chat(tmp_path, where, Agent()) as (model, router):

        def one(state: Any) -> Any:
            answer = model.invoke(f"I am {state['who']}", user=state["who"])
            return {"heard": [(state["who"], answer.text, answer.response_metadata["decision_id"])]}

        inner = StateGraph(Branch, output_schema=Fan)
        inner.add_node("one", one)
        inner.add_edge(START, "one")
        outer = StateGraph(Fan)
        outer.add_node("branch", inner.compile())
        outer.add_conditional_edges(
            START, lambda _: [Send("branch", {"who": f"user{i}", "heard": []}) for i in range(20)], ["branch"]
        )
        outer.add_edge("branch", END)
        heard = asked(outer.compile(), how, {"heard": []})["heard"]
        assert len(heard) == 20
        decisions = {each.id: each for each in events(router, Decision)}
        for who, text, decision in heard:
            assert text.endswith(f"heard I am {who}")
            assert decisions[decision].identity.user == router._identities.subject("default", who)


# --- streams ---


@pytest.mark.parametrize("where", WHERE)
def test_streamed_tokens_carry_the_decision(tmp_path: Path, where: str) -> None:
    """`messages`, `updates` and `custom` at once: the pieces of each answer add up to it, decision, usage and cost."""
    with chat(tmp_path, where, Steps(1)) as (model, _):

        @tool
        def look(value: int) -> str:
            """Look it up."""
            get_stream_writer()({"looked": value})
            return "found"

        agent = create_agent(model, [look])
        pieces: dict[str, AIMessageChunk] = {}
        updates, custom = [], []
        for mode, part in agent.stream(question(), stream_mode=["messages", "updates", "custom"]):
            if mode == "updates":
                updates.append(part)
            elif mode == "custom":
                custom.append(part)
            elif isinstance(part[0], AIMessageChunk):
                piece = part[0]
                pieces[piece.id] = pieces[piece.id] + piece if piece.id in pieces else piece
        assert custom == [{"looked": 3}]
        answers = [update["model"]["messages"][0] for update in updates if "model" in update]
        assert len(answers) == 2
        for answer in answers:
            whole = pieces[answer.id]
            assert (whole.content, whole.tool_calls) == (answer.content, answer.tool_calls)
            assert whole.usage_metadata == answer.usage_metadata
            assert whole.response_metadata == answer.response_metadata
            assert whole.response_metadata["cost_usd"] > 0


def test_events_carry_each_decision(tmp_path: Path) -> None:
    """`astream_events` of an agent: the end of each model's run has its decision, and pieces came before it."""

    async def run() -> tuple[list[Any], int]:
        ended, pieces = [], 0
        async for event in create_agent(model, [add]).astream_events(question(), version="v2"):
            pieces += event["event"] == "on_chat_model_stream"
            if event["event"] == "on_chat_model_end":
                ended.append(event["data"]["output"])
        return ended, pieces

    with chat(tmp_path, "near", Steps(1)) as (model, router):
        ended, pieces = asyncio.run(run())
        assert [each.response_metadata["decision_id"] for each in ended] == [d.id for d in events(router, Decision)]
        assert pieces >= 4


class Slow(Agent):
    """Says a word, and then nothing for as long as nobody stops it."""

    async def _pieces(self, message: Any, reason: str, usage: Any) -> Any:
        yield Chunk(delta={"role": "assistant", "content": "Well, "})
        await asyncio.sleep(60.0)
        raise AssertionError("nobody stopped it")


@pytest.mark.parametrize("where", WHERE)
def test_leaving_a_stream_early_ends_the_model_call(tmp_path: Path, where: str) -> None:
    """The model call is cancelled and logged as such."""
    with chat(tmp_path, where, Slow(), timers=Timers(deadline_s=90.0, chunk_gap_s=90.0)) as (model, router):
        for piece in model.stream("tell me"):
            assert piece.text == "Well, "
            break

        async def some() -> None:
            async for _ in model.astream("tell me more"):
                break

        asyncio.run(some())
        wait_for(lambda: [each.status for each in events(router, Execution)] == ["cancelled", "cancelled"])
