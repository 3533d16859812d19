"""Runs of agents: who joins one, who reports how it ended, and what is kept of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from tests.kits.gateway import chat, client, config, make_router, serving, wait_for

from fitrouter.errors import InvalidRequest, UnknownDecision
from fitrouter.router import Router
from fitrouter.serving import runs
from fitrouter.serving.runs import MOST_ANSWERS, MOST_REPORTS, OPEN_S
from fitrouter.stores.identities import SqliteIdentities
from fitrouter.stores.journal import MemoryJournal, SqliteJournal
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter.sync import SyncRouter
from fitrouter.types import Decision, Identity, Request, RunOutcome, RunStep
from fitrouter_integrations._identity import first_said
from fitrouter_integrations.client import RunVote, connect

SECRETS = {name: f"{name}-secret-of-some-length" for name in ("KEY_A", "KEY_B", "KEY_T", "KEY_X")}
NAMES = [
    {"name": "app", "tenant": "b", "key_env": "KEY_A"},
    {"name": "other", "tenant": "b", "key_env": "KEY_B"},
    {"name": "backend", "tenant": "b", "key_env": "KEY_T", "trusted": True},
    {"name": "stranger", "tenant": "x", "key_env": "KEY_X", "trusted": True},
]


@pytest.fixture
def router(tmp_path: Path) -> Router:
    return make_router(tmp_path)


@pytest.fixture
def url(router: Router, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    with serving(router, config(keys=NAMES)) as address:
        yield address


def speaking(url: str, key: str) -> httpx.Client:
    return client(url, headers={"authorization": f"Bearer {SECRETS[key]}"})


def ask(http: httpx.Client, run: str = "", **more: Any) -> str:
    """The decision id of a step of a run."""
    headers = {"x-fitrouter-run": run} if run else {}
    reply = http.post("/v1/chat/completions", json=chat(**more), headers=headers)
    assert reply.status_code == 200, reply.text
    return str(reply.headers["x-fitrouter-decision"])


def events(router: Router, kind: type) -> list[Any]:
    return [row.event for row in router._journal.tail(0, 10_000) if isinstance(row.event, kind)]


def test_a_run_is_joined_by_header_metadata_and_trace_and_its_outcome_covers_its_answers(
    url: str, router: Router
) -> None:
    """Calls of several roles and sessions under one id are one run: shown with its cost and the outcome that counts."""
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    with speaking(url, "KEY_T") as http:
        first = ask(http, "r1", metadata={"role": "planner", "session": "a"}, user="ann")
        second = ask(http, metadata={"run_id": "r1", "role": "coder", "session": "b"}, user="ann")
        ask(http, "r2", user="ann")
        http.post("/v1/chat/completions", json=chat(), headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
        reply = http.post("/v1/runs/r1/outcome", json={"value": True, "user": "ann"})
        assert reply.status_code == 200, reply.text
        assert (reply.json()["decisions"], reply.json()["counts"]) == (2, True)
        shown = http.get("/v1/runs/r1", headers={"x-fitrouter-user": "ann"}).json()
        assert [step["decision_id"] for step in shown["decisions"]] == [first, second]
        assert [step["role"] for step in shown["decisions"]] == ["planner", "coder"]
        assert shown["cost_usd"] == pytest.approx(2 * 29e-6)
        assert (shown["outcome"]["value"], shown["outcome"]["source"]) == (1.0, "check")
        assert http.get(f"/v1/runs/{trace}").json()["steps"] == 1
        by_hash = http.get(f"/v1/runs/{shown['run']}").json()
        assert by_hash["decisions"] == shown["decisions"]
    (outcome,) = events(router, RunOutcome)
    assert outcome.decisions == (first, second)
    assert len(events(router, RunStep)) == 4
    assert all("r1" not in (one.identity.run or "") for one in events(router, Decision))


def test_guessing_the_id_of_a_run_joins_and_reports_nothing_of_others(url: str) -> None:
    """Another key, user or tenant with the same id has a run of its own; a trusted key names the user and the key."""
    with (
        speaking(url, "KEY_A") as app,
        speaking(url, "KEY_B") as other,
        speaking(url, "KEY_T") as trusted,
        speaking(url, "KEY_X") as stranger,
    ):
        ask(app, "r1", user="ann")
        for http, body in (
            (other, {"user": "ann"}),
            (app, {"user": "bob"}),
            (app, {}),
            (trusted, {"user": "ann"}),
            (stranger, {"user": "ann", "key": "app"}),
        ):
            reply = http.post("/v1/runs/r1/outcome", json={"value": False, **body})
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_decision"), body
        refused = other.post("/v1/runs/r1/outcome", json={"value": False, "user": "ann", "key": "app"})
        assert refused.status_code == 403
        ask(other, "r1", user="ann")
        who = {"x-fitrouter-user": "ann"}
        assert app.get("/v1/runs/r1", headers=who).json()["steps"] == 1
        named = trusted.post("/v1/runs/r1/outcome", json={"value": True, "user": "ann", "key": "app"})
        assert named.json()["counts"] is True
        run = app.get("/v1/runs/r1", headers=who).json()
        assert run["outcome"]["value"] == 1.0
        assert other.get("/v1/runs/r1", headers=who).json()["outcome"] is None
        # the hash of a run is a way in for trusted keys of its tenant alone
        assert other.get(f"/v1/runs/{run['run']}", headers=who).status_code == 404
        assert stranger.get(f"/v1/runs/{run['run']}").status_code == 404
        assert trusted.get(f"/v1/runs/{run['run']}").json()["steps"] == 1
        assert trusted.get(f"/v1/runs/{run['run']}", headers={"x-fitrouter-user": "bob"}).status_code == 403


def test_a_run_is_named_by_one_of_its_answers_too(url: str) -> None:
    """Adapters know answers: any of them stands for its run, for who may judge the answer, with the key that got it."""
    with speaking(url, "KEY_A") as app, speaking(url, "KEY_B") as other, speaking(url, "KEY_T") as trusted:
        decision = ask(app, "r1", user="ann")
        lonely = ask(app, user="ann")
        for http, body, status in (
            (other, {"user": "ann"}, 403),
            (app, {"user": "bob"}, 403),
            (app, {}, 403),
            (app, {"user": "ann"}, 200),
            (trusted, {"user": "ann"}, 200),
            (trusted, {}, 200),
            (trusted, {"user": "bob"}, 403),
        ):
            reply = http.post(f"/v1/runs/chatcmpl-{decision}/outcome", json={"value": True, **body})
            assert reply.status_code == status, (body, reply.text)
        assert app.post(f"/v1/runs/{lonely}/outcome", json={"value": True, "user": "ann"}).status_code == 404
        nobodys = ask(app, "r2")
        assert app.post(f"/v1/runs/{nobodys}/outcome", json={"value": True, "user": "ghost"}).status_code == 403
        assert app.post(f"/v1/runs/{nobodys}/outcome", json={"value": True}).status_code == 200


def test_all_reports_are_kept_and_one_counts(url: str, router: Router) -> None:
    """Person before check before adapter, and of one source the last."""
    with speaking(url, "KEY_T") as http:
        ask(http, "r1")
        for value, source, counts, standing in (
            (0, "adapter", True, 0.0),
            (1, "check", True, 1.0),
            (0, "adapter", False, 1.0),
            (0, "person", True, 0.0),
            (1, "check", False, 0.0),
            (1, "person", True, 1.0),
        ):
            reply = http.post("/v1/runs/r1/outcome", json={"value": value, "source": source}).json()
            assert reply["counts"] is counts
            assert http.get("/v1/runs/r1").json()["outcome"]["value"] == standing
    assert len(events(router, RunOutcome)) == 6


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "value"),
        ({"value": "yes"}, "value"),
        ({"value": 0.5}, "value"),
        ({"value": True, "scale": [0, 1]}, "value"),
        ({"value": 7, "kind": "rating", "scale": [1, 5]}, "value"),
        ({"value": True, "kind": "rating", "scale": [1, 5]}, "value"),
        ({"value": False, "kind": "number"}, "value"),
        ({"value": 3, "kind": "rating", "scale": [1, 1]}, "scale"),
        ({"value": 1e300, "kind": "number", "scale": [0, 1e308]}, "scale"),
        ({"value": 1, "kind": "vibes"}, "kind"),
        ({"value": 1, "source": "god"}, "source"),
        ({"value": 1, "further": 1}, "further"),
        ({"value": 1, "user": "a\x00b"}, "user"),
    ],
)
def test_a_bad_outcome_names_its_field(url: str, body: dict[str, Any], field: str) -> None:
    """Values off their scale, unknown kinds and fields get a 400 that begins with the field's name."""
    with speaking(url, "KEY_T") as http:
        ask(http, "r1")
        reply = http.post("/v1/runs/r1/outcome", json=body)
        assert reply.status_code == 400, reply.text
        assert field in reply.json()["error"]["message"].partition(":")[0]


def test_a_number_beyond_its_scale_counts_as_its_end() -> None:
    """A scale runs from the worst to the best value, whichever is larger."""
    made: dict[str, Any] = {"id": "o", "ts": 1.0, "identity": Identity(run="run-1"), "kind": "number"}
    found = [RunOutcome(**made, value=v, scale=(50_000.0, 0.0)).y for v in (80_000.0, 25_000.0, -1.0)]
    assert found == [0.0, 0.5, 1.0]


async def test_a_run_closes_takes_so_many_reports_and_is_about_so_many_answers(tmp_path: Path) -> None:
    """Thirty days after its last call no outcome is accepted; long runs are covered by evenly spaced answers."""
    now = [1e9]

    async with make_router(tmp_path, clock=lambda: now[0]) as router:
        with router.run() as run:
            for n in range(MOST_ANSWERS + 30):
                now[0] += 1.0
                await router.complete(Request(messages=({"role": "user", "content": f"Step {n}"},)))
        report = await run.outcome(True)
        assert report.decisions == MOST_ANSWERS
        with pytest.raises(UnknownDecision):
            await router.runs.outcome("nothing", True)
        with pytest.raises(UnknownDecision):
            await router.runs.outcome(run.id, True, identity=Identity(user="eve"))
        for _ in range(MOST_REPORTS - 1):
            await run.outcome(False)
        with pytest.raises(InvalidRequest, match="reports"):
            await run.outcome(False)
        with router.run() as late:
            await router.complete(Request(messages=({"role": "user", "content": "Late"},)))
        now[0] += OPEN_S - 1.0
        await late.outcome(True)
        now[0] += 2.0
        with pytest.raises(InvalidRequest, match="closed"):
            await late.outcome(False)


async def test_a_second_gateway_on_the_journal_joins_a_run(tmp_path: Path) -> None:
    """A run whose calls two routers served is one run, whichever of them is told how it ended."""
    identities = [SqliteIdentities(tmp_path / "identities.db") for _ in range(2)]
    made = [
        make_router(tmp_path, journal=SqliteJournal(tmp_path / "journal.db"), identities=each) for each in identities
    ]
    who = Identity(user="ann", run="r1")
    async with made[0] as one, made[1] as two:
        for router in (one, two, one):
            await router.complete(Request(messages=({"role": "user", "content": "Hi"},), identity=who))
        report = await two.runs.outcome("r1", 4, kind="rating", scale=(1, 5), identity=Identity(user="ann"))
        assert report.decisions == 3
        assert (await one.runs.show("r1", Identity(user="ann"))).outcome is not None


@pytest.mark.parametrize("kind", [MemoryJournal, SqliteJournal])
async def test_of_an_endless_run_the_last_steps_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """All steps are counted, with the time of the first one, and only the last `MOST_SHOWN` are read."""
    monkeypatch.setattr(runs, "MOST_SHOWN", 2)
    journal = kind(tmp_path / "journal.db") if kind is SqliteJournal else kind()
    async with make_router(tmp_path, journal=journal) as router:
        made = []
        for n in range(5):
            request = Request(messages=({"role": "user", "content": f"{n}"},), identity=Identity(user="ann", run="r"))
            made.append((await router.complete(request)).decision)
        await router.runs.outcome("r", True, identity=Identity(user="ann"))
        shown = await router.runs.show("r", Identity(user="ann"))
        steps, reports = await router.runs._found("r", Identity(user="ann"), "", trusted=True, most=2)
    assert (shown.steps, shown.began, shown.reports) == (5, made[0].ts, 1)
    assert [each.decision_id for each in shown.decisions] == [each.id for each in made[3:]]
    assert (len(steps), len(reports)) == (2, 1)


async def test_the_run_of_a_context_is_that_of_its_tasks_alone(tmp_path: Path) -> None:
    """Concurrent contexts keep their calls apart, and an id in a request takes precedence."""
    async with make_router(tmp_path) as router:

        async def agent(steps: int) -> int:
            with router.run() as run:
                for _ in range(steps):
                    await router.complete(Request(messages=({"role": "user", "content": "Hi"},)))
                named = Identity(run="named")
                await router.complete(Request(messages=({"role": "user", "content": "Hi"},), identity=named))
                return (await run.outcome(True)).decisions

        assert await asyncio.gather(*(agent(n) for n in (1, 3, 2))) == [1, 3, 2]
        await router.complete(Request(messages=({"role": "user", "content": "Hi"},)))
        assert (await router.runs.show("named")).steps == 3
    assert len(events(router, RunStep)) == 9


def test_the_synchronous_router_and_the_clients_have_runs(tmp_path: Path) -> None:
    """`with router.run()` in blocking code, a client in process, and one over HTTP."""
    hi = Request(messages=({"role": "user", "content": "Hi"},))
    with SyncRouter(make_router(tmp_path / "sync")) as sync, sync.run() as run:
        sync.complete(hi)
        assert run.outcome(True).decisions == 1
    local = make_router(tmp_path / "local")
    with connect(local) as inside, local.run() as run:
        inside.complete(hi)
        assert inside.outcome(RunVote(run=run.id, value=True)).decisions == 1
    far = make_router(tmp_path / "far")
    with serving(far) as url, connect(url) as remote, local.run() as run:
        remote.complete(hi)
        vote = RunVote(run=run.id, value=3, kind="rating", scale=(1, 5), source="person")
        assert remote.outcome(vote).decisions == 1
        with pytest.raises(UnknownDecision):
            remote.outcome(RunVote(run="none", value=True))


def test_what_adapters_take_for_a_run() -> None:
    """A framework's UUID is the id of a run; a method that is called `run` is none."""

    class Context:
        def run(self) -> None: ...

    found = UUID("4bf92f35-77b3-4da6-a3ce-929d0e0e4736")
    assert first_said([("", {"run_id": found})]) == {"run": str(found)}
    assert first_said([("", Context()), ("", {"run": "r1"})]) == {"run": "r1"}


async def test_erasing_a_user_erases_their_runs(tmp_path: Path) -> None:
    """Steps and outcomes are deleted with the decisions, and the id is that of no run then."""
    journal = MemoryJournal()
    async with make_router(tmp_path, journal=journal) as router:
        who = Identity(user="ann", run="r1")
        await router.complete(Request(messages=({"role": "user", "content": "Hi"},), identity=who))
        await router.runs.outcome("r1", True, identity=Identity(user="ann"))
        await router.erase("default", "ann")
        assert not [row for row in journal.tail(0, 100) if isinstance(row.event, RunStep | RunOutcome)]
        with pytest.raises(UnknownDecision):
            await router.runs.show("r1", Identity(user="ann"))


def test_the_consoles_runs_are_the_logs(tmp_path: Path) -> None:
    """Steps, roles, cost and the outcome that counts are those of `GET /v1/runs`; a silent run has none."""
    journal, identities = MemoryJournal(), SqliteIdentities(tmp_path / "identities.db")
    feed = WarehouseFeed(journal, Warehouse(tmp_path / "fitrouter.duckdb"))
    router = make_router(tmp_path, journal=journal, identities=identities, feed=feed)
    with serving(router, config()) as url, client(url) as http:
        for name, roles in (("silent", ["cook"]), ("told", ["cook", "judge", "cook"])):
            for role in roles:
                ask(http, name, metadata={"role": role}, user="ann")
        http.post("/v1/runs/told/outcome", json={"value": True, "user": "ann"})
        person = {"kind": "rating", "value": 2, "scale": [1, 5], "source": "person", "user": "ann"}
        http.post("/v1/runs/told/outcome", json=person)
        http.post("/v1/runs/told/outcome", json={"value": True, "user": "ann"})
        headers = {"x-fitrouter-user": "ann"}
        looked = chat(metadata={"role": "judge", "run_id": "told"}, user="ann")
        plan = http.post("/v1/plans", json=looked | {"kind": "look"}).json()
        other = {"model": plan["alternatives"][1]["model"]}  # the pick is declined, and no step
        made = http.post(
            "/v1/chat/completions", json=looked | other, headers={"x-fitrouter-plan": plan["about"]["decision_id"]}
        )
        assert made.status_code == 200, made.text
        shown = {name: http.get(f"/v1/runs/{name}", headers=headers).json() for name in ("silent", "told")}
        wait_for(lambda: feed.step() == 0 and feed.lag == 0)
        found = wait_for(lambda: len(rows := http.get("/console/api/runs").json().get("runs", [])) == 2 and rows)
    told, silent = found
    assert (told["steps"], told["roles"], silent["steps"], silent["outcome"]) == (4, ["cook", "judge"], 1, None)
    assert told["outcome"] == {"y": 0.25, "kind": "rating", "value": 2.0, "source": "person"}
    for row, name in ((told, "told"), (silent, "silent")):
        assert row["run"] == shown[name]["run"]
        assert row["steps"] == len(shown[name]["decisions"])
        assert row["cost"]["usd"] == pytest.approx(shown[name]["cost_usd"])
