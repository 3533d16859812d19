"""Plans, outcomes and observations over plain HTTP."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from tests.kits.gateway import PATIENCE_S, cards, chat, client, config, make_router, serving
from tests.kits.pages import ROOT, section
from tests.kits.tables import table_driven

from fitrouter.router import Router
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import Decision, Execution

SAID = {"role": "assistant", "content": "fine"}
USAGE = {"prompt_tokens": 7, "completion_tokens": 11, "total_tokens": 18, "prompt_tokens_details": {"cached_tokens": 0}}


class Shared(NamedTuple):
    http: httpx.Client
    router: Router

    def logged(self, kind: type[Any]) -> list[Any]:
        return [row.event for row in self.router._journal.tail(0, 10_000) if isinstance(row.event, kind)]

    def plan(self, **more: Any) -> tuple[dict[str, Any], str]:
        """A plan, and where its end is told."""
        reply = self.http.post("/v1/plans", json=chat(**more))
        assert reply.status_code == 200, reply.text
        return reply.json(), f"/v1/plans/{reply.json()['about']['decision_id']}/outcome"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """One gateway for tests that do not mind what others left in it."""
    router = make_router(tmp_path_factory.mktemp("outside"))
    with serving(router, config(max_body_bytes=100_000)) as url, client(url) as http:
        yield Shared(http, router)


def told(plan: dict[str, Any], *errors: str, **more: Any) -> dict[str, Any]:
    """A body: the models of these errors failed, and the next one answered."""
    names = [choice["model"] for choice in plan["order"]]
    tried = [{"model": name, "ms": 5, "error": error} for name, error in zip(names, errors, strict=False)]
    tried.append({"model": names[len(errors)], "ms": 7.5})
    return {"messages": chat()["messages"], "tried": tried, "status": "ok", "message": SAID, "usage": USAGE, **more}


def test_a_plan_and_its_outcome(shared: Shared) -> None:
    """Body and headers have the plan; the outcome returns its cost, and the decision is explained."""
    reply = shared.http.post("/v1/plans", json=chat(user="ann", metadata={"role": "nurse"}))
    plan = reply.json()
    about = plan["about"]
    assert plan["object"] == "fitrouter.plan"
    assert reply.headers["x-fitrouter-decision"] == about["decision_id"]
    assert float(reply.headers["x-fitrouter-propensity"]) == about["propensity"]
    assert (about["model"], about["logged"]) == (plan["order"][0]["model"], True)
    assert plan["deadline_s"] == PATIENCE_S
    first, second, _ = plan["order"]
    assert first == {
        "model": about["model"],
        "target": about["model"],
        "probability": 1.0,
        "variant": None,
        "dropped": [],
    }
    path = f"/v1/plans/{about['decision_id']}/outcome"
    end = shared.http.post(path, json=told(plan, "Timeout", finish_reason="length", ttft_ms=1))
    assert end.json() == {
        "object": "fitrouter.outcome",
        "decision_id": about["decision_id"],
        "status": "ok",
        "served_by": second["model"],
        "cost_usd": pytest.approx(29e-6),
        "unpriced": False,
    }
    execution = shared.logged(Execution)[-1]
    assert [(a.model, a.error, a.probability, a.ms) for a in execution.attempts] == [
        (first["model"], "Timeout", 1.0, 5.0),
        (second["model"], None, second["probability"], 7.5),
    ]
    assert (execution.finish_reason, execution.prompt_tokens, execution.completion_tokens) == ("length", 7, 11)
    story = shared.http.get(f"/v1/decisions/{about['decision_id']}").json()
    assert story["role"] == "nurse"
    assert second["model"] in story["why"]
    vote = {"decision_id": about["decision_id"], "kind": "thumb", "value": "up", "user": "ann"}
    assert shared.http.post("/v1/feedback", json=vote).status_code == 200


def test_a_plan_that_was_looked_at_in_one_trace_is_run_in_another(shared: Shared) -> None:
    """Instrumented clients send a trace of its own with each call: it is no part of what a plan is for."""
    traces = ({"traceparent": f"00-{n:032x}-00f067aa0ba902b7-01"} for n in (1, 2))
    look = shared.http.post("/v1/plans", json=chat("traced") | {"kind": "look"}, headers=next(traces)).json()
    headers = next(traces) | {"x-fitrouter-plan": look["about"]["decision_id"]}
    answer = shared.http.post("/v1/chat/completions", json=chat("traced"), headers=headers)
    assert answer.status_code == 200, answer.text


def test_probabilities_come_from_the_log(shared: Shared) -> None:
    """A client's probabilities for a logged draw are ignored; a second report changes nothing."""
    plan, path = shared.plan()
    body = told(plan, "Timeout")
    for one in body["tried"]:
        one["probability"] = 0.123
    assert shared.http.post(path, json=body).status_code == 200
    again = shared.http.post(path, json=told(plan, cost_usd=99))
    execution = shared.logged(Execution)[-1]
    assert [a.probability for a in execution.attempts] == [choice["probability"] for choice in plan["order"][:2]]
    assert (again.status_code, again.json()["cost_usd"]) == (200, pytest.approx(29e-6))
    assert again.json()["served_by"] == plan["order"][1]["model"]


def test_a_failed_plan_has_an_outcome(shared: Shared) -> None:
    """A plan without an answer is reported without a message."""
    plan, path = shared.plan()
    tried = [{"model": choice["model"], "ms": 1, "error": "Timeout"} for choice in plan["order"]]
    body = {"messages": chat()["messages"], "tried": tried, "status": "failed"}
    assert shared.http.post(path, json=body).json()["served_by"] is None
    assert shared.logged(Execution)[-1].status == "failed"


@table_driven(
    ("change", "words"),
    [
        ({"messages": None}, "messages: give an array"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": "hello"}, "messages"),
        ({"tools": "hammer"}, "tools"),
        ({"tools": ["hammer"]}, "tools[0]: got 'hammer'; give an object"),
        ({"tried": None}, "did not answer"),
        ({"tried": "alpha"}, "tried"),
        ({"tried": ["alpha"]}, "tried[0]"),
        ({"tried": [{"ms": 1}]}, "tried[0].model"),
        ({"tried": [{"model": "alpha"}]}, "tried[0].ms"),
        ({"tried": [{"model": "alpha", "ms": True}]}, "tried[0].ms"),
        ({"tried": [{"model": "alpha", "ms": -1}]}, "ms: -1"),
        ({"tried": [{"model": "alpha", "ms": 1, "error": 7}]}, "tried[0].error"),
        ({"tried": [{"model": "alpha", "ms": 1, "probability": "all"}]}, "tried[0].probability"),
        ({"tried": [{"model": "alpha", "ms": 1, "why": "?"}]}, "'why': unknown field"),
        ({"tried": [{"model": "nobody", "ms": 1}]}, "plans"),
        ({"tried": [{"model": "alpha", "ms": 1}] * 65}, "at most 64 are allowed"),
        ({"status": None}, "status"),
        ({"status": "lost"}, "allowed are cancelled, failed, ok, partial"),
        ({"message": None}, "usage: needs 'message'"),
        ({"message": None, "usage": None}, "message: required"),
        ({"message": "fine"}, "message"),
        ({"message": {"role": "user", "content": "x"}}, "message.role"),
        ({"message": {"role": "assistant", "content": 7}}, "message.content"),
        ({"message": {**SAID, "tool_calls": "add"}}, "message.tool_calls"),
        ({"finish_reason": 7}, "finish_reason"),
        ({"usage": 18}, "usage"),
        ({"usage": {"prompt_tokens": 1.5}}, "prompt_tokens"),
        ({"usage": {"prompt_tokens": -1}}, "usage.prompt_tokens: -1"),
        ({"usage": {"completion_tokens": 2**62}}, "usage.completion_tokens"),
        ({"cost_usd": "1"}, "cost_usd"),
        ({"cost_usd": -1}, "cost_usd: -1"),
        ({"ttft_ms": -1}, "ttft_ms: -1"),
        ({"api_key": "sk"}, "'api_key': unknown field"),
        ({"user": "ann"}, "'user': unknown field"),
    ],
)
def test_an_invalid_outcome_is_a_400(shared: Shared, change: dict[str, Any], words: str) -> None:
    """The error has OpenAI's format and names the field; nothing is logged."""
    plan, path = shared.plan()
    reply = shared.http.post(path, json=told(plan) | change)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request")
    assert words in reply.json()["error"]["message"]
    assert not any(end.decision_id == plan["about"]["decision_id"] for end in shared.logged(Execution))


def test_plans_have_the_errors_of_chats(shared: Shared) -> None:
    """Models, transport, sizes and unknown decisions have the errors of the other routes."""
    post = shared.http.post
    plan, _ = shared.plan()
    for path, body, status, code in (
        ("/v1/plans", chat(model="nobody"), 404, "model_not_found"),
        ("/v1/plans", chat(api_base="http://evil"), 400, "forbidden_field"),
        ("/v1/plans", chat("word " * 10_000, max_tokens=2**30), 400, "context_length_exceeded"),
        ("/v1/plans", chat("word " * 30_000), 413, "too_large"),
        ("/v1/plans/0/outcome", told(plan), 404, "unknown_decision"),
        ("/v1/observations", chat(model="nobody", message=SAID, latency_ms=1), 404, "model_not_found"),
    ):
        reply = post(path, json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (status, code), (path, reply.text)


def test_an_observation_is_logged(shared: Shared) -> None:
    """With its identity, the answer or failure, and the parameters of any request."""
    asked = chat(model="beta", user="ann", temperature=0.5)
    seen = shared.http.post("/v1/observations", json={**asked, "message": SAID, "usage": USAGE, "latency_ms": 12})
    assert seen.json()["object"] == "fitrouter.observation"
    about = seen.json()["about"]
    assert (about["model"], about["mode"], about["logged"]) == ("beta", "pinned", True)
    assert seen.headers["x-fitrouter-decision"] == about["decision_id"]
    failed = shared.http.post("/v1/observations", json={**asked, "latency_ms": 12, "error": "Timeout"})
    for reply in (seen, failed):
        story = shared.http.get(f"/v1/decisions/{reply.json()['about']['decision_id']}").json()
        assert story["mode"] == "pinned"
    ends = {end.decision_id: end for end in shared.logged(Execution)}
    assert ends[about["decision_id"]].status == "ok"
    assert ends[failed.json()["about"]["decision_id"]].status == "failed"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": None}, "model"),
        ({"model": "fitrouter/auto"}, "name the model that answered"),
        ({"latency_ms": None}, "latency_ms"),
        ({"latency_ms": -1}, "-1"),
        ({"error": "Timeout"}, "if and only if"),
        ({"message": None}, "if and only if there is no completion"),
        ({"message": None, "error": "it said: no"}, "name of an exception"),
        ({"base_url": "http://evil"}, "base_url"),
    ],
)
def test_an_invalid_observation_is_a_400(shared: Shared, change: dict[str, Any], words: str) -> None:
    """The error says what is allowed; nothing is decided."""
    before = len(shared.logged(Decision))
    reply = shared.http.post("/v1/observations", json=chat(model="beta", message=SAID, latency_ms=1) | change)
    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]
    assert len(shared.logged(Decision)) == before


def test_a_failing_store_does_not_fail_a_plan(tmp_path: Path) -> None:
    """The plan has `logged: false`; its outcome is then refused, until it is known that it was not logged."""
    failing = True

    def fault(_step: str) -> None:
        if failing:
            raise OSError("read-only file system")

    router = make_router(tmp_path, journal=MemoryJournal(fault=fault))
    with serving(router) as url, client(url) as http:
        here = Shared(http, router)
        plan, path = here.plan()
        assert plan["about"]["logged"] is False
        assert http.post(path, json=told(plan)).status_code == 503  # whether it was logged is not known now
        failing = False
        assert http.post(path, json=told(plan)).status_code == 404
        plan, path = here.plan()
        failing = True
        refused = http.post(path, json=told(plan))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        failing = False
        assert http.post(path, json=told(plan)).status_code == 200


def test_the_schema_describes_the_bodies(shared: Shared) -> None:
    """/openapi.json has every accepted field, and marks the required ones."""
    paths = shared.http.get("/openapi.json").json()["paths"]

    def body(path: str) -> Any:
        return paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]

    outcome = body("/v1/plans/{decision_id}/outcome")
    assert set(outcome["properties"]) == {*told(shared.plan()[0]), "tools", "finish_reason", "cost_usd", "ttft_ms"}
    assert outcome["required"] == ["messages", "tried", "status"]
    assert set(outcome["properties"]["tried"]["items"]["properties"]) == {"model", "ms", "error", "probability"}
    observed = body("/v1/observations")
    assert {"message", "usage", "finish_reason", "cost_usd", "latency_ms", "error"} <= set(observed["properties"])
    assert set(observed["required"]) == {"model", "messages", "latency_ms"}
    order = paths["/v1/plans"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]["properties"]
    look = shared.http.post("/v1/plans", json=chat() | {"kind": "look"}).json()
    assert set(order) == {*shared.plan()[0], *look}
    assert set(order["order"]["items"]["properties"]) == set(shared.plan()[0]["order"][0])


def test_the_documented_requests_work(tmp_path: Path) -> None:
    """The requests of docs/recipes.md are accepted, with real ids and plans."""
    text = section(ROOT / "docs" / "recipes.md", "Deciding without calling: your own clients")
    sent = [shlex.split(block) for block in re.findall(r"```bash\n(curl.*?)```", text, re.DOTALL)]
    assert len(sent) == 3
    (shown,) = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL))
    router = make_router(tmp_path, models=cards(["small", "large"]))
    with serving(router) as url, client(url) as http:
        plan, names = {"about": {"decision_id": ""}}, {"small": "small", "large": "large"}
        for command in sent:
            body = json.loads(command[-1])
            for one in body.get("tried", ()):
                one["model"] = names[one["model"]]
            path = command[2].removeprefix("http://127.0.0.1:8484").replace("DECISION_ID", plan["about"]["decision_id"])
            reply = http.post(path, json=body)
            assert reply.status_code == 200, reply.text
            if path == "/v1/plans":
                plan = reply.json()
                names = dict(zip(names, (choice["model"] for choice in plan["order"]), strict=True))
    assert (set(shown), set(shown["about"])) == (set(plan), set(plan["about"]))
    assert [set(choice) for choice in shown["order"]] == [set(choice) for choice in plan["order"]]
    ends = [row.event for row in router._journal.tail(0) if isinstance(row.event, Execution)]
    assert [(end.status, len(end.attempts)) for end in ends] == [("ok", 2), ("ok", 1)]


def test_the_path_of_openais_decisions_is_theirs(shared: Shared) -> None:
    """`POST /v1/decisions` with questions is not implemented yet; anything else there is told where plans are made."""
    asked = {"model": "alpha", "input": "Is it true?", "questions": [{"name": "q", "type": "boolean"}]}
    for body in (asked, {**asked, "questions": []}, {**chat(), "questions": None}):
        refused = shared.http.post("/v1/decisions", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (501, "not_implemented")
    for body in (chat(), {}, {"question": "x"}):
        refused = shared.http.post("/v1/decisions", json=body)
        assert refused.status_code == 405
        assert "POST /v1/plans" in refused.json()["error"]["message"]
    assert shared.http.post("/v1/decisions/x/outcome", json={}).status_code == 404
    assert "/v1/decisions" in shared.http.get("/openapi.json").json()["paths"]
    assert set(shared.http.get("/openapi.json").json()["paths"]["/v1/decisions"]) == {"get"}
