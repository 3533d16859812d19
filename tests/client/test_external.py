"""Plans that are executed by the caller work the same in process and through a gateway."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgspec
import pytest
from tests.kits.gateway import PATIENCE_S, cards, folded, make_router, serving, wait_for

from fitrouter.errors import ConfigError, InvalidRequest, NoEligibleModel, UnknownDecision
from fitrouter.router import Router
from fitrouter.routing.decider import Rules
from fitrouter.serving.external import AttemptReport, Outcome
from fitrouter.types import (
    AUTO,
    Completion,
    Decision,
    Execution,
    FeedbackKind,
    Identity,
    Mode,
    Request,
    Usage,
    Variant,
)
from fitrouter_integrations.client import Client, ObservedCall, Plan, Vote, connect
from fitrouter_integrations.client._local import LocalBackend
from fitrouter_integrations.client._remote import RemoteBackend

TERSE = Variant(name="terse", prefix="Be brief.", params={"temperature": 0.2})
SAID = Completion(message={"role": "assistant", "content": "fine"}, usage=Usage(prompt_tokens=7, completion_tokens=11))


class Here(NamedTuple):
    client: Client
    router: Router

    def logged(self, kind: type[Any]) -> list[Any]:
        return [row.event for row in self.router._journal.tail(0, 1000) if isinstance(row.event, kind)]

    def settle(self) -> None:
        """Wait until all that is written down is learnt."""
        folded(self.router)


def made(folder: Path, **more: Any) -> Router:
    """A router whose first model can be asked in two ways, and whose last one cannot stream."""
    first, other, last = cards()
    first = msgspec.structs.replace(first, variants=(TERSE,), parameters=("temperature",))
    last = msgspec.structs.replace(last, capabilities=("tools",))
    return make_router(folder, models=[first, other, last], rules=Rules(seed=3), droppable=("top_k",), **more)


@contextmanager
def reached(router: Router, how: str) -> Iterator[Client]:
    """A client of it, in this process or through a gateway."""
    if how == "near":
        with Client(LocalBackend(router)) as client:
            yield client
    else:
        with serving(router) as url, connect(url) as client:
            yield client


@pytest.fixture(params=["near", "far"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Here]:
    """A router that is near, or far."""
    router = made(tmp_path)
    with reached(router, request.param) as client:
        yield Here(client, router)


def ask(model: str = AUTO, **identity: Any) -> Request:
    return Request(messages=({"role": "user", "content": "Hello"},), model=model, identity=Identity(**identity))


def after(plan: Plan, *errors: str) -> Outcome:
    """The models of these errors fail, and the next one answers."""
    ways = zip(plan.order, [*errors, None], strict=False)
    tried = tuple(
        AttemptReport(model=choice.model, ms=5.0, error=error, probability=choice.probability) for choice, error in ways
    )
    return Outcome(tried=tried, completion=SAID, ttft_ms=2.0)


@pytest.mark.usefixtures("commits_have_time")
def test_a_plan_executed_elsewhere_is_logged(here: Here) -> None:
    """The log has the order, attempts with probabilities, cost and times; the answer can be rated."""
    plan = here.client.decide(ask(user="ann"))
    assert plan.about.model == plan.order[0].model
    assert plan.about.logged
    assert plan.about.cost_usd is None
    assert 0 < plan.about.propensity <= 1
    assert len({choice.model for choice in plan.order}) == len(plan.order) == 4
    assert plan.deadline_s == PATIENCE_S
    cost = here.client.report(plan.about.decision_id, ask(), after(plan, "TimeoutError"))
    assert cost == pytest.approx((7 + 2 * 11) / 1e6)
    (execution,) = here.logged(Execution)
    assert [(a.model, a.error, a.probability) for a in execution.attempts] == [
        (plan.order[0].model, "TimeoutError", 1.0),
        (plan.order[1].model, None, plan.order[1].probability),
    ]
    assert (execution.served_by, execution.status, execution.finish_reason) == (plan.order[1].model, "ok", "stop")
    assert (execution.ttft_ms, execution.latency_ms) == (2.0, 10.0)
    thumb = {"kind": FeedbackKind.THUMB, "value": 1.0, "user": "ann"}
    assert here.client.feedback(Vote(decision_id=plan.about.decision_id, **thumb))


def log_of(router: Router, how: str) -> list[Any]:
    """What a new router writes down of a script that has every kind of end. Its draws are always the same."""
    ids = (f"00000000-03e8-7000-8000-{i:012x}" for i in itertools.count())
    with mock.patch("fitrouter.routing.pipeline.uuid7", side_effect=ids), reached(router, how) as client:
        here = Here(client, router)
        for session, errors in (("a", []), ("a", ["Timeout"]), ("a", ["ProviderRejected"]), ("b", ["E", "E"])):
            plan = client.decide(ask(user="ann", role="nurse", task="t", session=session))
            client.report(plan.about.decision_id, ask(), after(plan, *errors))
            here.settle()
        for i, status in enumerate(("failed", "partial", "cancelled")):
            plan = client.decide(ask("alpha#terse", user="bob"))
            tried = (AttemptReport(model=plan.about.model, ms=1.0, error=None if i else "E"),)
            client.report(plan.about.decision_id, ask(), Outcome(tried=tried, status=status, cost_usd=0.25 * i))
            here.settle()
        client.observe(ObservedCall(request=ask(user="ann"), completion=SAID, model="beta", latency_ms=3.0))
        wait_for(lambda: len(here.logged(Execution)) == 8)
        return here.logged(Decision | Execution)  # type: ignore[arg-type]


def test_both_backends_write_the_same_log(tmp_path: Path) -> None:
    """The same decisions with the same outcomes, whatever those are."""
    near, far = (log_of(made(tmp_path, clock=lambda: 1000.0), how) for how in ("near", "far"))
    assert len(near) == 16
    assert far == near


async def test_async_and_blocking_calls_do_the_same(here: Here) -> None:
    """Both decide and report, inside a running loop."""
    plan = await here.client.adecide(ask())
    await here.client.areport(plan.about.decision_id, ask(), after(plan))
    assert [made.id for made in here.logged(Decision)] == [plan.about.decision_id]
    assert len(here.logged(Execution)) == 1


async def test_concurrent_agents_do_not_mix(here: Here) -> None:
    """Each of a hundred concurrent agents has its own plan, and its own outcome is logged."""

    async def agent(i: int) -> tuple[str, int]:
        plan = await here.client.adecide(ask(user=f"u{i % 10}", role=f"r{i}"))
        usage = Usage(prompt_tokens=i, completion_tokens=1)
        end = msgspec.structs.replace(after(plan), completion=msgspec.structs.replace(SAID, usage=usage))
        await here.client.areport(plan.about.decision_id, ask(), end)
        return plan.about.decision_id, i

    plans = dict(await asyncio.gather(*map(agent, range(100))))
    assert {made.id: made.identity.role for made in here.logged(Decision)} == {d: f"r{i}" for d, i in plans.items()}
    assert {end.decision_id: end.prompt_tokens for end in here.logged(Execution)} == plans


def test_lone_surrogates_do_not_fail_a_report(here: Here) -> None:
    """Text that is not valid UTF-8, in a request or an answer, is decided on and reported."""
    request = msgspec.structs.replace(ask(), messages=({"role": "user", "content": "half \ud83d"},))
    said = msgspec.structs.replace(SAID, message={"role": "assistant", "content": "\ude00 half"})
    plan = here.client.decide(request)
    end = msgspec.structs.replace(after(plan, "Timeout"), completion=said)
    assert here.client.report(plan.about.decision_id, request, end) > 0
    here.client.observe(ObservedCall(request=request, completion=said, model="beta", latency_ms=1.0))
    wait_for(lambda: [end.status for end in here.logged(Execution)] == ["ok", "ok"])


def test_a_request_may_have_a_deadline_of_its_own(here: Here) -> None:
    """The plan has the request's deadline, else the router's."""
    deadlines = [here.client.decide(msgspec.structs.replace(ask(), deadline_s=given)).deadline_s for given in (3, None)]
    assert deadlines == [3, PATIENCE_S]


def test_a_planned_call_is_complete(here: Here) -> None:
    """It has its target, its variant, and the parameters to leave out."""
    request = msgspec.structs.replace(ask("alpha#terse"), params={"top_k": 3, "temperature": 1.0})
    (choice,) = here.client.decide(request).order
    assert (choice.model, choice.target, choice.probability) == ("alpha#terse", "alpha", 1.0)
    assert (choice.variant, choice.dropped) == (TERSE, ("top_k",))


def test_a_sticky_turn_keeps_the_probabilities_of_its_plan(here: Here) -> None:
    """Its fallback's probabilities are in no log: the report returns those of the plan."""
    first = here.client.decide(ask(session="s"))
    here.client.report(first.about.decision_id, ask(), after(first))
    here.settle()
    plan = here.client.decide(ask(session="s"))
    here.client.report(plan.about.decision_id, ask(), after(plan, "TimeoutError"))
    assert plan.about.mode == Mode.STICKY
    assert [a.probability for a in here.logged(Execution)[-1].attempts] == [1.0, plan.order[1].probability]


@pytest.mark.usefixtures("commits_have_time")
def test_observations_are_logged_as_pinned_calls(here: Here) -> None:
    """Answers and failures of calls without a decision are those of a pinned model."""
    request = ask(user="ann", role="nurse")
    about = here.client.observe(
        ObservedCall(request=request, completion=SAID, model="beta", cost_usd=0.5, latency_ms=7.0)
    )
    assert (about.model, about.mode, about.logged) == ("beta", Mode.PINNED, True)
    assert here.client.feedback(Vote(decision_id=about.decision_id, kind=FeedbackKind.THUMB, value=1.0, user="ann"))
    here.client.observe(ObservedCall(request=request, completion=None, model="beta", latency_ms=9.0, error="Timeout"))
    wait_for(lambda: len(here.logged(Execution)) == 2)
    answered, failed = here.logged(Execution)
    assert (answered.status, answered.served_by, answered.cost_usd) == ("ok", "beta", 0.5)
    assert (failed.status, failed.served_by, failed.cost_usd) == ("failed", None, 0.0)
    assert [(a.model, a.error, a.ms) for a in failed.attempts] == [("beta", "Timeout", 9.0)]
    assert {made.identity.role for made in here.logged(Decision)} == {"nurse"}


@pytest.mark.parametrize(("name", "error"), [("nobody", InvalidRequest), (AUTO, InvalidRequest)])
def test_only_a_named_model_can_be_observed(here: Here, name: str, error: type[Exception]) -> None:
    """Neither `fitrouter/auto` nor an unknown name can be observed."""
    with pytest.raises(error):
        here.client.observe(ObservedCall(request=ask(), completion=SAID, model=name))
    assert here.logged(Decision) == []


def test_errors_are_the_same_in_process_and_over_http(here: Here) -> None:
    """An unknown model, an ineligible one, an unknown decision, and an invalid outcome."""
    with pytest.raises(InvalidRequest, match="unknown model 'nobody'"):
        here.client.decide(ask("nobody"))
    with pytest.raises(NoEligibleModel, match="streaming"):
        here.client.decide(msgspec.structs.replace(ask("gamma"), stream=True))
    plan = here.client.decide(ask())
    with pytest.raises(UnknownDecision):
        here.client.report("0", ask(), after(plan))
    with pytest.raises(InvalidRequest, match="in that order"):
        here.client.report(plan.about.decision_id, ask(), after(msgspec.structs.replace(plan, order=plan.order[1:])))
    with pytest.raises(InvalidRequest, match="name of an exception"):
        here.client.report(plan.about.decision_id, ask(), after(plan, "ann said: no"))
    assert here.logged(Execution) == []


class Old(BaseHTTPRequestHandler):
    """A gateway of an earlier version: it has none of these routes."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        error = {"message": "there is no such route", "type": "invalid_request_error", "code": "not_found"}
        body = json.dumps({"error": error}).encode()
        self.send_response(404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Quiet."""


@pytest.fixture
def old() -> Iterator[Client]:
    """A client of a gateway that is too old."""
    with HTTPServer(("127.0.0.1", 0), Old) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with Client(RemoteBackend(f"http://127.0.0.1:{server.server_port}")) as client:
            yield client
        server.shutdown()
        thread.join()


def test_a_gateway_that_is_too_old_is_reported(old: Client) -> None:
    """The error is not about unknown models or decisions."""
    with pytest.raises(ConfigError, match="too old"):
        old.decide(ask())
    with pytest.raises(ConfigError, match="too old"):
        old.report("0", ask(), Outcome(tried=(), status="cancelled"))
    with pytest.raises(ConfigError, match="too old"):
        old.observe(ObservedCall(request=ask(), completion=SAID, model="alpha"))
