"""FitrouterMiddleware with concurrent agents, nested agents and other middleware."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="install the extra `langchain`")

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware
from langchain_core.tools import tool
from tests.kits.gateway import wait_for
from tests.kits.langchain import HOW, PAIRS, WHERE, Chat, add, answers, close_all, placed, routed, run, team, written

from fitrouter.router import Router
from fitrouter.types import Decision, Execution
from fitrouter_integrations.langchain import FitrouterMiddleware


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


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
    wait_for(lambda: len(written(router, Execution)) >= len(ids))  # reports may outlive the agents
    decisions = {decision.id: decision for decision in written(router, Decision)}
    executions = {execution.decision_id: execution for execution in written(router, Execution)}
    assert set(ids) == set(decisions) == set(executions)
    for i, messages in enumerate(runs):
        subject = router._identities.subject("default", f"u{i % 20}")
        for said in answers(messages):
            decision = decisions[said.response_metadata["decision_id"]]
            assert decision.identity.user == subject
            assert executions[decision.id].served_by == said.response_metadata["model_name"]


@pytest.mark.parametrize(("how", "where", "n"), [("threads", "near", 100), ("asyncio", "far", 50)])
def test_concurrent_agents_do_not_mix(tmp_path: Path, how: str, where: str, n: int) -> None:
    """Agents of twenty users at once: no step is lost, or answered or logged as another's."""
    models = team(pause_s=0.005)

    def config(i: int) -> Any:
        return {"metadata": {"user_id": f"u{i % 20}"}, "configurable": {"thread_id": f"t{i}"}}

    def asked(i: int) -> Any:
        return {"messages": [("user", f"task {i}")]}

    with placed(where, tmp_path, models) as (middleware, router):
        agent = create_agent(models["fast"], [add], middleware=[middleware])
        if how == "threads":
            with ThreadPoolExecutor(50) as pool:
                found = list(pool.map(lambda i: agent.invoke(asked(i), config(i)), range(n)))
        else:

            async def crowd() -> Any:
                return await asyncio.gather(*(agent.ainvoke(asked(i), config(i)) for i in range(n)))

            found = asyncio.run(crowd())
        _check_crowd(router, [each["messages"] for each in found])


@pytest.mark.parametrize("where", WHERE)
def test_plain_code_works_inside_a_running_loop(tmp_path: Path, where: str) -> None:
    """`invoke` inside a coroutine is answered, as a notebook would do it."""
    models = team(steps=0)
    with placed(where, tmp_path, models) as (middleware, _):
        agent = create_agent(models["fast"], middleware=[middleware])

        async def cell() -> Any:
            return agent.invoke({"messages": [("user", "hi")]})

        assert "heard hi" in asyncio.run(cell())["messages"][-1].text


def test_one_middleware_serves_several_event_loops(tmp_path: Path) -> None:
    """Each `asyncio.run` has a loop of its own; the router has another."""
    models = team(steps=0)
    middleware, router = routed(tmp_path, models)
    agent = create_agent(models["fast"], middleware=[middleware])
    for i in range(3):
        assert run(agent, f"words {i}", how="ainvoke")[-1].text.endswith(f"heard words {i}")
    assert [execution.status for execution in written(router, Execution)] == ["ok"] * 3


# --- agents within agents ---


@pytest.mark.parametrize(("where", "how"), PAIRS)
def test_nested_agents_have_sessions_of_their_own(tmp_path: Path, how: str, where: str) -> None:
    """A tool that runs an agent over the same middleware: each role has a session of its own in the thread."""
    models = team()
    with placed(where, tmp_path, models) as (middleware, router):
        inner = create_agent(models["fast"], middleware=[middleware], name="clerk")

        @tool("add")
        async def aask(a: int, b: int) -> str:
            """Ask the clerk."""
            found = await inner.ainvoke({"messages": [("user", f"file {a}")]})
            return str(found["messages"][-1].text)

        @tool("add")
        def ask(a: int, b: int) -> str:
            """Ask the clerk."""
            return str(inner.invoke({"messages": [("user", f"file {a}")]})["messages"][-1].text)

        outer = create_agent(
            models["fast"], [ask if how == "invoke" else aask], middleware=[middleware], name="manager"
        )
        config = {"configurable": {"thread_id": "t1"}, "metadata": {"user_id": "ann"}}
        messages = run(outer, how=how, config=config)
        decisions = written(router, Decision)
    assert messages[-1].text.split(" heard ")[1].startswith(decisions[1].chosen)
    assert [decision.identity.role for decision in decisions] == ["manager", "clerk", "manager"]
    sessions = [decision.identity.session for decision in decisions]
    assert sessions[0] == sessions[2] != sessions[1]
    assert len({decision.identity.user for decision in decisions}) == 1
    assert decisions[2].draw_id == decisions[0].id != decisions[1].draw_id


def test_a_model_may_be_an_agent_itself(tmp_path: Path) -> None:
    """A model that runs a routed agent while it answers holds up nobody."""
    inner = team(steps=0)
    within, _ = routed(tmp_path / "inner", inner)

    class Nest(Chat):
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            run(create_agent(inner["fast"], middleware=[within]), "deep down")
            return super()._generate(*args, **kwargs)

    models = {"nest": Nest(name_="nest", steps=0)}
    middleware, _ = routed(tmp_path / "outer", models)
    agent = create_agent(models["nest"], middleware=[middleware])
    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda i: run(agent, f"task {i}")[-1].text, range(20)))
    assert found == [f"nest heard task {i}" for i in range(20)]


# --- beside other middleware ---


@pytest.mark.parametrize("how", HOW)
def test_retries_around_it_are_steps_of_their_own(tmp_path: Path, how: str) -> None:
    """LangChain's retries, in front of it, ask the router again once all its models have failed."""
    down = [3]

    def fails(_calls: int) -> Exception | None:
        down[0] -= 1
        return OSError("gone") if down[0] >= 0 else None

    models = team(steps=0, fails=fails)
    middleware, router = routed(tmp_path, models)
    retry = ModelRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False)
    found = run(create_agent(models["fast"], middleware=[retry, middleware]), how=how)
    executions = written(router, Execution)
    assert [(each.status, len(each.attempts)) for each in executions] == [("failed", 3), ("ok", 1)]
    assert found[-1].response_metadata["decision_id"] == executions[1].decision_id


def test_two_routers_in_one_agent_are_refused_by_langchain(tmp_path: Path) -> None:
    """One call has one chooser."""
    models = team(steps=0)
    routers = [routed(tmp_path / name, models)[0] for name in ("one", "two")]
    with pytest.raises(AssertionError, match="duplicate middleware"):
        create_agent(models["fast"], middleware=routers)


def test_threads_continue_over_turns(tmp_path: Path) -> None:
    """A thread with a checkpointer stays on its model over user turns."""
    from langgraph.checkpoint.memory import InMemorySaver

    models = team(steps=0)
    middleware, router = routed(tmp_path, models)
    agent = create_agent(models["fast"], middleware=[middleware], checkpointer=InMemorySaver())
    for i in range(4):
        run(agent, f"turn {i}", config={"configurable": {"thread_id": "t1"}})
    decisions = written(router, Decision)
    assert len({decision.chosen for decision in decisions}) == 1
    assert len({decision.identity.session for decision in decisions}) == 1
    assert {decision.draw_id for decision in decisions} == {decisions[0].id}
    assert isinstance(middleware, FitrouterMiddleware)
