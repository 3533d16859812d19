"""Outages over HTTP: every surface turns red and green, says whose and why, and counts the same requests."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.kits.gateway import Echo, cards, chat, client, config, make_router, serving, wait_for
from typer.testing import CliRunner

from fitrouter.errors import ProviderRejected, ProviderUnavailable
from fitrouter.monitors import service
from fitrouter.router import Router
from fitrouter.routing import breakers
from fitrouter.stores.journal import MemoryJournal
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter.types import Call, Chunk, Completion
from fitrouter_dashboards import Metrics
from fitrouter_integrations.cli import app

pytestmark = pytest.mark.usefixtures("commits_have_time", "_real_breakers")


@pytest.fixture
def _real_breakers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breakers as they are outside of the tests, which end an outage at once."""
    monkeypatch.setattr(breakers, "TRIP", 8.0)
    monkeypatch.setattr(breakers, "_FAULT", breakers._FAULT._replace(first_s=0.2, longest_s=0.2))
    monkeypatch.setattr(service, "QUIET_S", 0.0)


class Down(Echo):
    """Fails the models in `down`, as a provider or as refusals of the request."""

    down: frozenset[str] = frozenset()
    error: Exception = ProviderUnavailable("down for the test")

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        if call.target in self.down:
            raise self.error
        return await super().complete(call)


def installation(folder: Path, down: Down, **more: Any) -> Router:
    journal = MemoryJournal()
    feed = WarehouseFeed(journal, Warehouse(folder / "fitrouter.duckdb"))
    return make_router(folder, {"echo": down}, models=cards(("m", "n")), journal=journal, feed=feed, **more)


def alarms(http: httpx.Client) -> list[str]:
    return [each["text"] for each in http.get("/console/api/now").json()["alarms"]]


def test_a_total_outage_is_red_everywhere_and_green_again(tmp_path: Path) -> None:
    """/readyz, console, `top` and metric name the models and why; all count each of the requests, refused ones too."""
    down, metrics = Down(), Metrics()
    router = installation(tmp_path, down)
    with serving(router, config(("m", "n")), metrics) as url, client(url) as http:

        def ask(n: int) -> list[int]:
            return [http.post("/v1/chat/completions", json=chat()).status_code for _ in range(n)]

        def copied() -> None:
            wait_for(lambda: not any(router._recorder._refused.values()))
            wait_for(lambda: router._journal.append().result() and router._feed is not None and not router._feed.step())

        assert ask(3) == [200] * 3
        assert http.get("/readyz?strict").status_code == 200
        down.down = frozenset({"m", "n"})
        codes = ask(40)
        assert set(codes) == {502, 503}, "failures, then refusals by open breakers"
        ready = wait_for(lambda: (it := http.get("/readyz").json())["status"] == "down" and it)
        assert ready["ready"] is True
        assert re.search(r"No request is answered: .*\(. fails; . fails\)", ready["reasons"]["requests"])
        assert http.get("/readyz").status_code == 200
        assert http.get("/readyz?strict").status_code == 503
        copied()
        assert ready["reasons"]["requests"].split(":")[0] in alarms(http)[0]
        said = CliRunner().invoke(app, ["top", "--once", "--url", url]).output
        assert "No request is answered" in said
        red = re.compile(r'^fitrouter_outage\{error="ProviderUnavailable",name="",scope="all"\} 2.0', re.MULTILINE)
        wait_for(lambda: red.search(http.get("/metrics").text))

        shown = http.get("/console/api/now").json()["totals"]
        (outage,) = router.health.outages()
        assert (shown["requests"], shown["answered"]) == (43, 3)
        assert (shown["failed"] + shown["refused"], shown["refused"]) == (40, codes.count(503))
        assert (outage.requests, outage.failed, outage.refused) == (43, shown["failed"], shown["refused"])
        counted = dict.fromkeys(("ok", "failed", "refused"), 0.0)
        for status, value in re.findall(
            r'fitrouter_requests_total\{.*status="(\w+)"\} (\S+)', http.get("/metrics").text
        ):
            counted[status] += float(value)
        assert counted == {"ok": 3.0, "failed": shown["failed"], "refused": shown["refused"]}
        top = json.loads(CliRunner().invoke(app, ["top", "--json", "--url", url]).output)
        assert top["now"]["totals"] == shown

        down.down = frozenset()
        wait_for(lambda: ask(1) == [200])
        ask(12)
        wait_for(lambda: http.get("/readyz?strict").status_code == 200)
        for model in ("m", "n"):  # one that was not called since is still told to have answered none of its last calls
            wait_for(lambda m=model: http.post("/v1/chat/completions", json=chat(model=m)).status_code == 200)
        wait_for(lambda: not any("answered" in text for text in alarms(http)))
        wait_for(lambda: not red.search(http.get("/metrics").text))


def test_one_model_that_fails_alone_is_named(tmp_path: Path) -> None:
    """Requests that name it; those of others are answered, so that nobody reads of a total outage."""
    down = Down()
    with serving(installation(tmp_path, down), config(("m", "n"))) as url, client(url) as http:
        down.down = frozenset({"m"})
        for _ in range(8):
            http.post("/v1/chat/completions", json=chat(model="m") | {"model": "m"})
            assert http.post("/v1/chat/completions", json=chat() | {"model": "n"}).status_code == 200
        ready = wait_for(lambda: (it := http.get("/readyz").json())["status"] == "degraded" and it)
        assert list(ready["reasons"]) == ["model m"]
        assert "Requests of the model m go unanswered, while others are answered" in ready["reasons"]["model m"]


def test_a_model_whose_answers_others_give_is_named(tmp_path: Path) -> None:
    """Every request is answered, by fallback: no outage, but the console says which model seldom answers, or never."""
    down = Down()
    router = installation(tmp_path, down)
    with serving(router, config(("m", "n"))) as url, client(url) as http:
        down.down = frozenset({"m"})

        def asked(told: str) -> bool:
            assert http.post("/v1/chat/completions", json=chat()).status_code == 200
            wait_for(lambda: router._feed is not None and not router._feed.step())
            return any(re.match(told, text) for text in alarms(http))

        wait_for(lambda: asked(r"m is expected to answer \d+% of its calls|m answered none of its last \d+ calls"))
        wait_for(lambda: asked(r"m answered none of its last \d+ calls|m is not called for the moment"))
        assert not router.health.outages()
        wait_for(lambda: router.status().unanswered)
        shown = {each["name"]: each["unanswered"] for each in http.get("/console/api/models").json()["models"]}
        assert shown["n"] is None
        assert shown["m"]["calls"] >= 3
        listed = {name: http.get(f"/console/api/decisions?model={name}").json()["decisions"] for name in "mn"}
        assert (listed["m"], {each["served_by"] for each in listed["n"]}) == ([], {"n"})
        assert "m" in {each["chosen"] for each in listed["n"]}, "it was drawn, and the other one answered"
        assert f"0 of {shown['m']['calls']}" in CliRunner().invoke(app, ["top", "--once", "--url", url]).output


def test_callers_own_errors_and_plans_that_nobody_runs_are_no_outage(tmp_path: Path) -> None:
    """They are counted apart, and nothing turns."""
    down = Down()
    router = installation(tmp_path, down)
    with serving(router, config(("m", "n"))) as url, client(url) as http:
        assert http.post("/v1/chat/completions", json=chat()).status_code == 200
        down.down, down.error = frozenset({"m", "n"}), ProviderRejected("no such parameter", 400)
        for _ in range(12):
            assert http.post("/v1/chat/completions", json=chat()).status_code == 400
            assert http.post("/v1/plans", json=chat()).status_code == 200
        assert http.get("/readyz").json()["status"] == "ok"
        wait_for(lambda: router._journal.append().result() and router._feed is not None and not router._feed.step())
        totals = http.get("/console/api/now").json()["totals"]
        assert {key: totals[key] for key in ("answered", "failed", "refused", "rejected")} == {
            "answered": 1,
            "failed": 0,
            "refused": 0,
            "rejected": 12,
        }


def test_two_workers_and_a_restart_say_the_same(tmp_path: Path) -> None:
    """A worker that got no request tells of the outage that another one sees, and so does one that starts later."""
    down, journal = Down(), MemoryJournal()
    first = make_router(tmp_path / "a", {"echo": down}, models=cards(("m", "n")), journal=journal)
    second = make_router(tmp_path / "b", {"echo": down}, models=cards(("m", "n")), journal=journal)
    with serving(first) as url, client(url) as http, serving(second) as other, client(other) as idle:
        down.down = frozenset({"m", "n"})
        for _ in range(20):
            http.post("/v1/chat/completions", json=chat())
        (seen,) = wait_for(lambda: first.health.outages())
        wait_for(lambda: second.health.outages() and second.health.outages()[0].requests == 20)
        assert first.health.outages()[0].text == second.health.outages()[0].text
        assert idle.get("/readyz").json()["status"] == "down" == http.get("/readyz").json()["status"]
        late = make_router(tmp_path / "c", {"echo": down}, models=cards(("m", "n")), journal=journal)
        with serving(late) as third, client(third) as new:
            assert new.get("/readyz").json()["status"] == "down"
            assert late.health.outages()[0].failed == seen.failed
