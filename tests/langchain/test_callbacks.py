"""FitrouterCallbackHandler: feedback on runs, failing tools and retries reaches the right decision."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="install the extra `langchain`")

from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from tests.kits.agents import Agent, agent_router
from tests.kits.langchain import Chat, logged, routed, team

from fitrouter.errors import InvalidRequest, StoreError, UnknownDecision
from fitrouter.router import Router
from fitrouter.stores.journal import SqliteJournal
from fitrouter.types import Decision, Feedback, FeedbackKind, RunOutcome
from fitrouter_integrations.client import Vote, connect
from fitrouter_integrations.langchain import ChatFitrouter, FitrouterCallbackHandler, _callbacks


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def broken(a: int, b: int) -> int:
    """Fail."""
    raise ValueError("no such number")


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[tuple[ChatFitrouter, Router, FitrouterCallbackHandler]]:
    """A model, its router, and a handler."""
    router = agent_router(tmp_path)
    with connect(router):
        model = ChatFitrouter(router=router)
        yield model, router, FitrouterCallbackHandler(model)


def heard(router: Router, handler: FitrouterCallbackHandler) -> list[tuple[str, FeedbackKind, float, str]]:
    assert handler.flush()
    return [(each.decision_id, each.kind, each.y, each.dimension) for each in logged(router, Feedback)]


def decided(router: Router) -> list[str]:
    return [decision.id for decision in logged(router, Decision)]


# --- what people say ---

HOW = ["invoke", "ainvoke", "stream", "astream"]


async def _all(stream: Any) -> None:
    async for _ in stream:
        pass


def run(runnable: Any, given: Any, config: Any, how: str = "invoke") -> Any:
    if how == "ainvoke":
        return asyncio.run(runnable.ainvoke(given, config))
    if how == "astream":
        return asyncio.run(_all(runnable.astream(given, config)))
    return list(runnable.stream(given, config)) if how == "stream" else runnable.invoke(given, config)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", HOW)
def test_feedback_on_a_run_reaches_its_answer(asked: Any, how: str, when: str) -> None:
    """By the run's id, before or after the run, whole or streamed."""
    model, router, handler = asked
    run_id = uuid.uuid4()
    if when == "before":
        assert handler.create_feedback(run_id, "user_score", score=1)
        assert heard(router, handler) == []
    run(model, "hi", {"callbacks": [handler], "run_id": run_id}, how)
    if when == "after":
        assert handler.create_feedback(str(run_id), key="user_score", score=True, comment="nice")
    assert heard(router, handler) == [(*decided(router), FeedbackKind.THUMB, 1.0, "overall")]


@pytest.mark.parametrize("kind", ["chat model", "middleware"])
@pytest.mark.parametrize("how", HOW)
def test_feedback_on_an_agents_run_reaches_its_last_answer(tmp_path: Path, how: str, kind: str) -> None:
    """The outermost run of two steps means the second, even if the feedback came before the first."""
    if kind == "middleware":
        models = team()
        middleware, router = routed(tmp_path, models)
        agent, speaker = create_agent(models["fast"], [add], middleware=[middleware]), middleware
    else:
        router = agent_router(tmp_path)
        agent = create_agent(speaker := ChatFitrouter(router=router), [add])
    handler = FitrouterCallbackHandler(speaker)
    with connect(router):
        early, late = uuid.uuid4(), uuid.uuid4()
        handler.create_feedback(early, "thumbs", value="down")
        for run_id in (early, late):
            asking = {"messages": [("user", f"words {run_id}")]}
            run(agent, asking, {"callbacks": [handler], "run_id": run_id}, how)
        handler.create_feedback(late, "thumbs", value="up")
        ids = decided(router)
        said = [each for each in heard(router, handler) if each[3] == "overall"]
    assert said == [
        (ids[1], FeedbackKind.THUMB, 0.0, "overall"),
        (ids[3], FeedbackKind.THUMB, 1.0, "overall"),
    ]


def test_feedback_is_accepted_late_and_in_any_order(asked: Any) -> None:
    """The first run is rated after the second, and rated again."""
    model, router, handler = asked
    runs = [uuid.uuid4(), uuid.uuid4()]
    for run_id in runs:
        model.invoke("hi", {"callbacks": [handler], "run_id": run_id})
    for run_id, score in ((runs[1], 1), (runs[0], 0), (runs[0], 1)):
        handler.create_feedback(run_id, "thumb", score=score)
    first, second = decided(router)
    assert [(decision, y) for decision, _, y, _ in heard(router, handler)] == [
        (second, 1.0),
        (first, 0.0),
        (first, 1.0),
    ]


# --- key, arguments → (kind, y, dimension) ---
READ: dict[str, tuple[str, dict[str, Any], tuple[FeedbackKind, float, str]]] = {
    "a truth value": ("user_score", {"score": False}, (FeedbackKind.THUMB, 0.0, "overall")),
    "a share": ("user_score", {"score": 0.7}, (FeedbackKind.RATING, 0.7, "overall")),
    "a word": ("User-Score", {"value": "Good"}, (FeedbackKind.THUMB, 1.0, "overall")),
    "stars": ("stars", {"score": 4, "feedback_config": {"min": 1, "max": 5}}, (FeedbackKind.RATING, 0.75, "overall")),
    "a scale": ("score", {"score": 9, "feedback_config": {"min": -1, "max": 9}}, (FeedbackKind.RATING, 1.0, "overall")),
    "an aspect": ("tone", {"score": 1}, (FeedbackKind.THUMB, 1.0, "tone")),
    "right or wrong": ("correctness", {"score": 0}, (FeedbackKind.THUMB, 0.0, "base")),
    "accepted": ("accepted", {"value": True}, (FeedbackKind.ACCEPT, 1.0, "overall")),
    "on another scale": (
        "thumb",
        {"score": -1, "feedback_config": {"min": -1, "max": 1}},
        (FeedbackKind.THUMB, 0.0, "overall"),
    ),
    "regenerated": ("regenerated", {"score": 1}, (FeedbackKind.REGENERATE, 1.0, "overall")),
    "a key of one's own": ("liked", {"score": 1}, (FeedbackKind.COPY, 1.0, "overall")),
}


@pytest.mark.parametrize("case", READ)
def test_keys_and_scores_follow_langsmith(asked: Any, case: str) -> None:
    """Each key has its kind and dimension; an unknown key is a dimension."""
    model, router, _ = asked
    handler = FitrouterCallbackHandler(model, keys={"liked": (FeedbackKind.COPY, "overall")})
    key, arguments, (kind, y, dimension) = READ[case]
    run_id = uuid.uuid4()
    model.invoke("hi", {"callbacks": [handler], "run_id": run_id})
    assert handler.create_feedback(run_id, key, **arguments, source_info={"page": 1})
    assert heard(router, handler) == [(*decided(router), kind, pytest.approx(y), dimension)]


REFUSED: dict[str, dict[str, Any]] = {
    "no run": {"run_id": None, "score": 1},
    "no score": {"score": None},
    "words that say nothing": {"value": "hm"},
    "off its scale": {"score": 4},
    "no scale": {"key": "stars", "score": 4, "feedback_config": {"min": 5, "max": 5}},
    "a judge": {"score": 1, "feedback_source_type": "model"},
    "not a number": {"score": float("nan")},
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_feedback_is_logged_and_does_not_raise(asked: Any, case: str, caplog: pytest.LogCaptureFixture) -> None:
    """The caller gets False, the log has the reason, and nothing reaches the journal."""
    model, router, handler = asked
    run_id = uuid.uuid4()
    model.invoke("hi", {"callbacks": [handler], "run_id": run_id})
    with caplog.at_level(logging.WARNING):
        assert not handler.create_feedback(**{"run_id": run_id, "key": "user_score", **REFUSED[case]})
    assert "was refused" in caplog.text
    assert heard(router, handler) == []


def test_an_object_without_feedback_is_refused() -> None:
    """The error is raised when the handler is created."""
    with pytest.raises(InvalidRequest, match="cannot send feedback"):
        FitrouterCallbackHandler(None)  # type: ignore[arg-type]


def test_feedback_on_a_run_without_an_answer_is_dropped(asked: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Feedback on a run that did not use the router is dropped, early or late, and logged."""
    _, router, handler = asked
    early, late = uuid.uuid4(), uuid.uuid4()
    assert handler.create_feedback(early, "thumb", score=1)
    for run_id in (early, late):
        RunnableLambda(lambda x: x).invoke("hi", {"callbacks": [handler], "run_id": run_id})
    assert not handler.create_feedback(late, "thumb", score=1)
    assert f"run {early} was dropped" in caplog.text
    assert heard(router, handler) == []


# --- tools ---


@pytest.mark.parametrize("how", HOW)
def test_a_failing_tool_counts_for_the_answer_that_called_it(asked: Any, how: str) -> None:
    """`tools` 0 on the step that called the failing tool, nothing on any other; the run's error is unchanged."""
    model, router, handler = asked
    agent = create_agent(model, [broken])
    with pytest.raises(ValueError, match="no such number"):
        run(agent, {"messages": [("user", "2+3?")]}, {"callbacks": [handler]}, how)
    assert heard(router, handler) == [(*decided(router), FeedbackKind.THUMB, 0.0, "tools")]


@pytest.mark.parametrize("how", HOW)
def test_working_tools_count_once(asked: Any, how: str) -> None:
    """`tools` 1 on the step whose calls all worked; a step without tools has no vote."""
    model, router, handler = asked
    run(create_agent(model, [add]), {"messages": [("user", "2+3?")]}, {"callbacks": [handler]}, how)
    assert heard(router, handler) == [(decided(router)[0], FeedbackKind.THUMB, 1.0, "tools")]


def test_a_tool_that_works_when_repeated_counts_as_good(asked: Any) -> None:
    """The failure is reported, and corrected when the same call works."""
    model, router, handler = asked
    tries: list[int] = []

    @tool
    def flaky(a: int, b: int) -> int:
        """Fail once."""
        tries.append(a)
        if len(tries) == 1:
            raise ConnectionError("try again")
        return a + b

    agent = create_agent(model, [flaky], middleware=[ToolRetryMiddleware(initial_delay=0.0, jitter=False)])
    agent.invoke({"messages": [("user", "2+3?")]}, {"callbacks": [handler]})
    first = decided(router)[0]
    assert heard(router, handler) == [
        (first, FeedbackKind.THUMB, 0.0, "tools"),
        (first, FeedbackKind.THUMB, 1.0, "tools"),
    ]


class Wrong(Agent):
    """Asks first for a tool that there is not, or with arguments that are no JSON."""

    def __init__(self, **function: str) -> None:
        super().__init__()
        self.function = function

    def _answer(self, call: Any) -> Any:
        message, reason = super()._answer(call)
        if message.get("tool_calls"):
            message["tool_calls"][0]["function"] |= self.function
        return message, reason


@pytest.mark.parametrize("function", [{"name": "nothing"}, {"arguments": "{"}])
def test_unknown_tools_and_invalid_json_are_failures(tmp_path: Path, function: dict[str, str]) -> None:
    """An unknown tool or invalid arguments are `tools` 0."""
    router = agent_router(tmp_path, Wrong(**function))
    with connect(router):
        model = ChatFitrouter(router=router)
        handler = FitrouterCallbackHandler(model)
        agent = create_agent(model, [add])
        agent.invoke({"messages": [("user", "2+3?")]}, {"callbacks": [handler]})
        assert heard(router, handler) == [(decided(router)[0], FeedbackKind.THUMB, 0.0, "tools")]


def test_tools_of_the_middlewares_answers_count(tmp_path: Path) -> None:
    """An answer routed by FitrouterMiddleware is found at the end of its node."""
    models = {"only": Chat(name_="only")}
    middleware, router = routed(tmp_path, models)
    handler = FitrouterCallbackHandler(middleware)
    agent = create_agent(models["only"], [add], middleware=[middleware])
    agent.invoke({"messages": [("user", "2+3?")]}, {"callbacks": [handler]})
    assert heard(router, handler) == [(decided(router)[0], FeedbackKind.THUMB, 1.0, "tools")]
    middleware.close()


# --- retries ---


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_a_retried_chain_counts_as_regenerated(asked: Any, how: str) -> None:
    """`regenerate` 1 on the answer before each retry, and nothing on the last."""
    model, router, handler = asked
    seen: list[Any] = []

    def parse(message: Any) -> Any:
        seen.append(message)
        if len(seen) < 3:
            raise ValueError("cannot be read")
        return message

    chain = (model | RunnableLambda(parse)).with_retry(stop_after_attempt=3, wait_exponential_jitter=False)
    run(chain, "hi", {"callbacks": [handler]}, how)
    ids = decided(router)
    assert len(ids) == 3
    assert heard(router, handler) == [(each, FeedbackKind.REGENERATE, 1.0, "overall") for each in ids[:2]]


# --- it does no harm ---


class Deaf:
    """Takes no verdict."""

    def __init__(self, error: Exception) -> None:
        self.error, self.votes = error, list[Vote]()

    def feedback(self, vote: Vote) -> str:
        self.votes.append(vote)
        raise self.error


@pytest.mark.parametrize("error", [StoreError("full"), UnknownDecision("who?"), RuntimeError("boom")])
def test_failing_feedback_does_not_fail_a_run(asked: Any, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """The agent finishes, and the loss is logged."""
    model, _, _ = asked
    deaf = Deaf(error)
    handler = FitrouterCallbackHandler(deaf, patience_s=0.0)
    found = create_agent(model, [add]).invoke({"messages": [("user", "2+3?")]}, {"callbacks": [handler]})
    assert isinstance(found["messages"][-1], AIMessage)
    assert handler.flush()
    assert deaf.votes
    assert type(error).__name__ in caplog.text


def test_its_memory_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Runs, tool calls and waiting votes are dropped, the oldest first."""
    monkeypatch.setattr(_callbacks, "LIMIT", 8)
    handler = FitrouterCallbackHandler(Deaf(StoreError("full")), patience_s=0.0)
    for i in range(100):
        handler.create_feedback(f"nobody {i}", "thumb", score=1)
        handler.create_feedback("somebody", "thumb", score=1)
        run_id = uuid.uuid4()
        handler.on_chat_model_start({}, [[HumanMessage("hi")]], run_id=run_id)
        call = {"name": "add", "args": {}, "id": f"c{i}", "type": "tool_call"}
        message = AIMessage("", tool_calls=[call], response_metadata={"decision_id": f"d{i}"})
        handler.on_llm_end(LLMResult(generations=[[ChatGeneration(message=message)]]), run_id=run_id)
        handler.on_tool_error(ValueError("no"), run_id=run_id, tool_call_id=f"c{i}")
    handler.flush()
    kept = (
        handler._parents,
        handler._decided,
        handler._ended,
        handler._met,
        handler._calls,
        handler._broken,
        handler._waiting,
    )
    assert max(map(len, kept)) == 8
    assert max(map(len, handler._waiting.values())) <= 64
    assert "too many unknown runs" in caplog.text


def test_concurrent_runs_do_not_mix(asked: Any) -> None:
    """100 agents in threads and on a loop, one handler: each vote is on its own run's last answer."""
    model, router, handler = asked
    agent = create_agent(model, [add])
    runs = [uuid.uuid4() for _ in range(100)]

    def config(run_id: uuid.UUID) -> Any:
        return {"callbacks": [handler], "run_id": run_id, "configurable": {"thread_id": str(run_id)}}

    def asking(run_id: uuid.UUID) -> Any:
        return {"messages": [("user", f"words {run_id}")]}

    def threaded(run_id: uuid.UUID) -> Any:
        found = agent.invoke(asking(run_id), config(run_id))
        handler.create_feedback(run_id, "thumb", score=1)
        return found

    async def crowd() -> list[Any]:
        async def one(run_id: uuid.UUID) -> Any:
            handler.create_feedback(run_id, "thumb", score=1)
            return await agent.ainvoke(asking(run_id), config(run_id))

        return await asyncio.gather(*map(one, runs[50:]))

    with ThreadPoolExecutor(25) as pool:
        found = list(pool.map(threaded, runs[:50]))
    found += asyncio.run(crowd())
    last = [each["messages"][-1].response_metadata["decision_id"] for each in found]
    said = [each for each in heard(router, handler) if each[3] == "overall"]
    assert len(set(last)) == 100
    assert sorted(decision for decision, *_ in said) == sorted(last)


SETTINGS = """
providers: {s: {kind: simulated, options: {m: {length: 2, latency_s: 0.0}}}}
models: [{name: m, provider: s}]
encoder: hashing
scorer: {encoder: hashing}
"""
ENDS = """
import uuid
from fitrouter.serving import recorder
from fitrouter_integrations.langchain import ChatFitrouter, FitrouterCallbackHandler

recorder.DURABLE_WAIT_S = 60.0  # commits may be slow on a busy machine
model = ChatFitrouter(router="fitrouter.yaml")
signals = FitrouterCallbackHandler(model)
for _ in range(5):
    run_id = uuid.uuid4()
    signals.create_feedback(run_id, "thumb", score=1)
    model.invoke("hi", {"callbacks": [signals], "run_id": run_id})
"""


def test_an_exiting_process_loses_no_feedback(tmp_path: Path) -> None:
    """Feedback given just before the exit is sent before the router closes."""
    (tmp_path / "fitrouter.yaml").write_text(SETTINGS, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-c", ENDS], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    journal = SqliteJournal(tmp_path / "fitrouter-data" / "journal.db")
    said = [row.event for row in journal.tail(0, 1000) if isinstance(row.event, Feedback)]
    journal.close()
    assert len({each.decision_id for each in said}) == 5


def test_a_thread_is_a_run_and_an_agent_that_fails_is_a_failure(tmp_path: Path) -> None:
    """The calls of a LangGraph thread are one run; an exception of the outermost run is an adapter's failure."""
    router = agent_router(tmp_path)
    model = ChatFitrouter(router=router)

    def step(state: MessagesState) -> dict[str, Any]:
        model.invoke("hi")
        if state["messages"][-1].content == "fail":
            raise RuntimeError("the tool is gone")
        return {}

    graph = StateGraph(MessagesState).add_node("step", step).add_edge(START, "step").compile()
    handler = FitrouterCallbackHandler(model)
    with connect(router):
        for thread, text in (("a", "go"), ("a", "on"), ("b", "fail"), (None, "fail")):
            config: Any = {"callbacks": [handler], "configurable": {"thread_id": thread} if thread else {}}
            with suppress(RuntimeError):
                graph.invoke({"messages": [HumanMessage(text)]}, config)
        assert handler.flush()
        first, second, third, fourth = (decision.identity.run for decision in logged(router, Decision))
        (failed,) = logged(router, RunOutcome)
    assert first == second != third
    assert fourth is None
    assert (failed.identity.run, failed.value, failed.source) == (third, 0.0, "adapter")
