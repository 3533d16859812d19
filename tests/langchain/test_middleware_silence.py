"""FitrouterMiddleware where its router is silent: the agent's own models still work."""

from __future__ import annotations

import asyncio
import http.server
import multiprocessing
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="install the extra `langchain`")

from langchain.agents import create_agent
from langchain.agents.middleware.types import AgentMiddleware, ModelRequest
from langchain_core.messages import HumanMessage
from tests.kits.gateway import config as gateway_config
from tests.kits.gateway import serving, wait_for
from tests.kits.langchain import (
    HOW,
    WHERE,
    add,
    answers,
    close_all,
    logged,
    placed,
    routed,
    router_over,
    run,
    team,
    written,
)

from fitrouter.errors import ConfigError, InvalidRequest, NotAuthorized
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import Decision, Execution
from fitrouter_integrations.client import _remote
from fitrouter_integrations.langchain import FitrouterMiddleware, _middleware

LONG = {"recursion_limit": 100}
NOBODY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == _middleware.__name__]


class Named(AgentMiddleware[Any, Any]):
    """Says who asks in the settings of the model's call."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(model_settings={"user": "ann"}))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request.override(model_settings={"user": "ann"}))


@contextmanager
def answering(how: Any) -> Iterator[str]:
    """A server that answers every POST by `how(handler)`, and knows no other address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            how(self)

        def log_message(self, *_told: Any) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


# --- the gateway ---


@pytest.mark.parametrize("how", HOW)
def test_without_its_gateway_an_agent_calls_its_own_model(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every step is answered by `create_agent`'s model, one warning says why, and no answer claims a decision."""
    monkeypatch.setattr(_middleware, "REST", 0.0)
    models = team(steps=3)
    middleware = FitrouterMiddleware(models, router=NOBODY)
    found = answers(run(create_agent(models["fast"], [add], middleware=[Named(), middleware]), how=how))
    assert len(found) == len(models["fast"].heard) == 4
    assert not any("user" in kwargs for _, kwargs, _ in models["fast"].heard)
    assert found[-1].text == "fast heard 3"
    assert not any("decision_id" in said.response_metadata for said in found)
    (told,) = warnings(caplog)
    assert NOBODY in told
    assert "the agent's own model" in told


@pytest.mark.parametrize("how", HOW)
def test_a_gateway_that_comes_back_routes_again(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is asked again soon if its failure took no time; the next outage is logged again."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    models = team(steps=0)
    middleware = FitrouterMiddleware(models, router=f"http://127.0.0.1:{port}")
    agent = create_agent(models["fast"], middleware=[middleware])
    assert "decision_id" not in run(agent, how=how)[-1].response_metadata
    with serving(router_over(tmp_path, models), gateway_config(port=port)):
        assert wait_for(lambda: run(agent, how=how)[-1].response_metadata.get("decision_id"))
    assert "decision_id" not in run(agent, how=how)[-1].response_metadata
    assert len(warnings(caplog)) == 2


def hang(handler: Any) -> None:
    handler.rfile.read(1)


def broken(handler: Any) -> None:
    handler.send_error(502)


def nonsense(handler: Any) -> None:
    handler.send_response(200)
    handler.send_header("content-length", "2")
    handler.end_headers()
    handler.wfile.write(b"{}")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("trouble", [hang, broken, nonsense])
def test_a_broken_gateway_does_not_fail_an_agent(
    how: str, trouble: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that hangs, one whose proxy answers for it, and one that talks nonsense: the agent's model is asked."""
    monkeypatch.setattr(_remote, "QUICK_S", 0.3)
    models = team(steps=0)
    with answering(trouble) as url:
        middleware = FitrouterMiddleware(models, router=url)
        middleware._compared = True
        agent = create_agent(models["wide"], middleware=[middleware])
        assert run(agent, how=how)[-1].text.startswith("wide heard")
        middleware.close()
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("how", HOW)
def test_a_slow_gateway_is_skipped_for_a_while(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an agent's ten steps one waits for it; the others continue at once."""
    monkeypatch.setattr(_remote, "QUICK_S", 0.5)
    monkeypatch.setattr(_middleware, "REST", 1000.0)
    asked: list[Any] = []
    models = team(steps=9)

    def count(handler: Any) -> None:
        asked.append(handler)
        hang(handler)

    with answering(count) as url:
        middleware = FitrouterMiddleware(models, router=url)
        middleware._compared = True
        found = run(create_agent(models["wide"], [add], middleware=[middleware]), how=how, config=LONG)
        middleware.close()
    assert len(answers(found)) == 10
    assert len(asked) == 1


@pytest.mark.parametrize("how", HOW)
def test_a_gateway_that_ends_during_a_step_loses_no_answer(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer is given with its decision, without a cost, and a warning says that its end was not recorded."""
    models = team(steps=0)
    leaving = serving(router_over(tmp_path, models))
    middleware = FitrouterMiddleware(models, router=leaving.__enter__())
    for model in models.values():
        model.fails = lambda _calls: leaving.__exit__(None, None, None) or None
    (said,) = answers(run(create_agent(models["fast"], middleware=[middleware]), how=how))
    assert said.text.endswith("heard 2+3?")
    assert said.response_metadata["decision_id"]
    assert "cost_usd" not in said.response_metadata
    (told,) = wait_for(lambda: warnings(caplog))
    assert "was not recorded" in told


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("how", HOW)
def test_an_outcome_outlives_the_agent(
    tmp_path: Path, where: str, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A report that takes longer than the answer waits for it is recorded, though the event loop has closed."""
    monkeypatch.setattr(_middleware, "REPORT_S", 0.0)
    monkeypatch.setattr(_middleware, "UNLOGGED_S", 0.0)
    caplog.set_level("ERROR")
    models, ended = team(steps=0), threading.Event()
    with placed(where, tmp_path, models) as (middleware, router):
        report = router.report

        async def late(*given: Any, **more: Any) -> Any:
            await asyncio.to_thread(ended.wait, 300.0)
            return await report(*given, **more)

        monkeypatch.setattr(router, "report", late)
        (said,) = answers(run(create_agent(models["fast"], middleware=[middleware]), how=how))
        assert "cost_usd" not in said.response_metadata
        assert written(router, Execution) == []
        ended.set()
        (execution,) = wait_for(lambda: written(router, Execution))
    assert execution.decision_id == said.response_metadata["decision_id"]
    assert not caplog.records


@pytest.mark.parametrize("how", HOW)
def test_a_wrong_key_is_an_error(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is answered unrouted for a mistake: the key comes from `api_key`, or from the environment."""
    monkeypatch.setenv("KEYS", "sk-right-and-long-enough")
    models = team(steps=0)
    keyed = gateway_config(keys=[{"name": "acme", "key_env": "KEYS", "tenant": "acme"}])
    router = router_over(tmp_path, models)
    with serving(router, keyed) as url:
        agent = create_agent(models["fast"], middleware=[FitrouterMiddleware(models, router=url, api_key="sk-wrong")])
        with pytest.raises(NotAuthorized, match="key"):
            run(agent, how=how)
        agent = create_agent(
            models["fast"], middleware=[FitrouterMiddleware(models, router=url, api_key="sk-right-and-long-enough")]
        )
        assert run(agent, how=how)[-1].response_metadata["decision_id"]
        close_all()
        monkeypatch.setenv("FITROUTER_API_KEY", "sk-right-and-long-enough")
        agent = create_agent(models["fast"], middleware=[FitrouterMiddleware(models, router=url)])
        assert run(agent, how=how)[-1].response_metadata["decision_id"]
        assert {decision.identity.tenant for decision in written(router, Decision)} == {"acme"}
        close_all()


# --- the router of this process ---


@pytest.mark.parametrize("how", HOW)
def test_a_broken_router_does_not_fail_an_agent(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it raises that is nobody's mistake, the agent's own model is asked, and asked again the next time."""
    models = team(steps=0)
    middleware, router = routed(tmp_path, models)
    agent = create_agent(models["wide"], middleware=[middleware])

    async def boom(_request: Any) -> Any:
        raise ZeroDivisionError("by a bug")

    with monkeypatch.context() as patched:
        patched.setattr(router._external, "decide", boom)
        assert run(agent, how=how)[-1].text.startswith("wide heard")
    assert "decision_id" in run(agent, how=how)[-1].response_metadata
    (told,) = warnings(caplog)
    assert "ZeroDivisionError: by a bug" in told


@pytest.mark.parametrize("how", HOW)
def test_a_journal_that_cannot_be_written_loses_no_answer(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that is full costs the entry. The chosen model answers, and nobody waits long for the log."""
    monkeypatch.setattr(_middleware, "REPORT_S", 0.2)
    full = [False]

    def fault(_step: str) -> None:
        if full[0]:
            raise OSError("no space left")

    models = team(steps=0)
    middleware, router = routed(tmp_path, models, over={"journal": MemoryJournal(fault=fault)})
    agent = create_agent(models["fast"], middleware=[middleware])
    assert run(agent, how=how)[-1].response_metadata["logged"]
    full[0] = True
    said = run(agent, "more", how=how)[-1]
    full[0] = False
    assert said.text == f"{said.response_metadata['model_name']} heard more"
    assert not said.response_metadata["logged"]
    assert len(logged(router, Execution)) == 1


def test_messages_that_the_router_cannot_read_go_unrouted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a model of the agent takes is not refused because the router has no words for it."""
    models = team(steps=0)
    middleware, router = routed(tmp_path, models)
    agent = create_agent(models["fast"], middleware=[middleware])
    odd = HumanMessage(content=[{"type": "image"}, {"type": "text", "text": "hi"}])
    assert agent.invoke({"messages": [odd]})["messages"][-1].text.startswith("fast heard")
    assert not logged(router, Decision)
    assert len(warnings(caplog)) == 1


# --- mistakes ---


@pytest.mark.parametrize("how", HOW)
def test_use_after_close_is_an_error(tmp_path: Path, how: str) -> None:
    """Calling a closed router is an error, not an outage."""
    models = team(steps=0)
    middleware, _ = routed(tmp_path, models)
    agent = create_agent(models["fast"], middleware=[middleware])
    run(agent, how=how)
    middleware.close()
    with pytest.raises(ConfigError, match="closed"):
        run(agent, how=how)


def _in_child(middleware: Any, models: Any, out: Any) -> None:
    try:
        request = ModelRequest(model=models["fast"], messages=[HumanMessage("hi")])
        out.put(repr(middleware.wrap_model_call(request, None)))
    except BaseException as error:  # noqa: BLE001
        out.put(repr(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_use_after_a_fork_is_told(tmp_path: Path) -> None:
    """A child has no threads of its parent's: nothing is asked unrouted, and the error says what to do."""
    models = team(steps=0)
    middleware, _ = routed(tmp_path, models)
    run(create_agent(models["fast"], middleware=[middleware]))
    context = multiprocessing.get_context("fork")
    out = context.Queue()
    child = context.Process(target=_in_child, args=(middleware, models, out))
    child.start()
    said = out.get(timeout=300)
    child.join(300.0)
    assert "ConfigError" in said
    assert "after a fork" in said


def test_a_name_that_is_none_is_told(tmp_path: Path) -> None:
    """Who asks must be said in text: no step goes to nobody's account."""
    models = team(steps=0)
    middleware, _ = routed(tmp_path, models)
    with pytest.raises(InvalidRequest, match="user_id"):
        run(create_agent(models["fast"], middleware=[middleware]), config={"metadata": {"user_id": ["ann"]}})
    assert not any(model.heard for model in models.values())
