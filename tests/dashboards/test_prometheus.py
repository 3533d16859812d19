"""Rules, alerts and Grafana panels, statically and against a real Prometheus."""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from benchmarks.gateway.process import Gateway
from prometheus_client import CollectorRegistry
from tests.kits.fake_openai import FakeOpenAI, in_a_thread, reply
from tests.kits.gateway import Echo, chat, client, serving, wait_for
from tests.kits.prometheus import RULES, prometheus, tool

from fitrouter.config import parse_config
from fitrouter.errors import ProviderUnavailable
from fitrouter.monitors.propensities import Propensities
from fitrouter.router import Router
from fitrouter.routing import breakers, decider
from fitrouter.serving.services import Service
from fitrouter.stores.figures import best_single, figures
from fitrouter.stores.journal import Entry
from fitrouter.types import Call, Chunk, Completion, Feedback, Floats, Mode, Quarantine
from fitrouter_dashboards import Metrics

ROOT = Path(__file__).parents[2]
FILES = ROOT / "dashboards" / "fitrouter_dashboards"
BOARDS = sorted((FILES / "grafana").glob("*.json"))
NAME = re.compile(r"\bfitrouter_\w+")
RECORDED = re.compile(r"\bfitrouter:[\w:]+")


def rules(file: str) -> list[dict[str, Any]]:
    found = yaml.safe_load((RULES / file).read_text(encoding="utf-8"))
    return [rule for group in found["groups"] for rule in group["rules"]]


def panels() -> Iterator[tuple[str, str]]:
    """Title and expression of every query of every dashboard."""
    for path in BOARDS:
        board = json.loads(path.read_text(encoding="utf-8"))
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']}", target["expr"]


def test_rules_are_valid_and_alerts_fire_on_time() -> None:
    """`promtool check rules`, `check config` and `test rules` find nothing; every alert has a case."""
    promtool = tool("promtool")
    cases = [ROOT / "tests" / "dashboards" / name for name in ("alerts_test.yml", "alerts_day_test.yml")]
    for arguments in (
        ["check", "rules", "--lint-fatal", str(RULES / "recording.yml"), str(RULES / "alerts.yml")],
        ["check", "config", str(RULES / "prometheus.yml")],
        ["test", "rules", *map(str, cases)],
    ):
        done = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    tested = {
        case["alertname"]
        for file in cases
        for test in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert tested == {rule["alert"] for rule in rules("alerts.yml")}


def test_every_alert_has_its_runbook() -> None:
    """It exists, says what the alert means, what to look at and what to do, and names the alert."""
    pages = set()
    for rule in rules("alerts.yml"):
        page = ROOT / rule["annotations"]["runbook"]
        text = page.read_text(encoding="utf-8")
        assert rule["alert"] in text, page
        assert [line for line in text.splitlines() if line.startswith("## ")] == [
            "## What it means",
            "## What to look at",
            "## What to do",
        ], page
        pages.add(page)
    assert pages == set((ROOT / "docs" / "runbooks").glob("*.md")) - {ROOT / "docs" / "runbooks" / "README.md"}


def test_metrics_are_defined_and_used() -> None:
    """Panels, alerts and rules use defined metrics only, and every metric stands in one of them."""
    registry = CollectorRegistry(auto_describe=False)
    Metrics(registry)
    defined = set()
    for collector in set(registry._collector_to_names):
        for metric in collector.collect():
            suffixes = {
                "counter": ["_total"],
                "summary": ["_sum", "_count"],
                "histogram": ["_sum", "_count", "_bucket"],
            }
            defined |= {frozenset(metric.name + suffix for suffix in suffixes.get(metric.type, [""]))}
    recorded = {rule["record"] for rule in rules("recording.yml")}
    texts = [rule["expr"] for file in ("recording.yml", "alerts.yml") for rule in rules(file)]
    texts += [expression for _, expression in panels()]
    used = {name for text in texts for name in NAME.findall(text)}
    assert used <= set().union(*defined)
    assert {name for text in texts for name in RECORDED.findall(text)} == recorded
    assert [min(names) for names in defined if not names & used] == []


def test_dashboards_are_those_of_the_builder() -> None:
    """`python dashboards/build.py --check` finds no difference; ids are unique, sources are variables."""
    pytest.importorskip("grafana_foundation_sdk", reason="the builders of Grafana are not installed")
    done = subprocess.run(
        [sys.executable, str(ROOT / "dashboards" / "build.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for path in BOARDS:
        board = json.loads(path.read_text(encoding="utf-8"))
        ids = [panel["id"] for panel in board["panels"]]
        assert len(set(ids)) == len(ids) > 0
        sources = {target["datasource"]["uid"] for panel in board["panels"] for target in panel["targets"]}
        assert sources == {"${datasource}"}


def test_pictures_are_of_these_dashboards() -> None:
    """docs/console.md shows a picture of every dashboard, drawn with the panels that it has now."""
    page = (ROOT / "docs" / "console.md").read_text(encoding="utf-8")
    for path in BOARDS:
        picture = f"images/grafana/{path.stem}.png"
        assert f"]({picture})" in page
        titles = [panel["title"] for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]]
        data = (ROOT / "docs" / picture).read_bytes()
        assert json.dumps(titles).encode() in data, f"{picture} is of other panels: `make screenshots`"


# --- a real server -------------------------------------------------------------------------------------------------


class Fragile(Echo):
    """Fails while `down`."""

    down = False

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        if self.down:
            raise ProviderUnavailable("the drill")
        return await super().complete(call)


class Drill:
    """A gateway with two models, people of two roles, a budget and a scorer; and what can break in it."""

    def __init__(self, folder: Path) -> None:
        self.fragile, self.visits = Fragile(), 0
        self.folder = folder
        price = {"input": 1.0, "output": 2.0}
        self.router = Router.from_config(
            parse_config(
                {
                    "data": str(folder),
                    "providers": {"solid": {"kind": "simulated"}, "fragile": {"kind": "simulated"}},
                    "models": [
                        {"name": "alpha", "provider": "solid", "prices": price},
                        {"name": "beta", "provider": "solid", "prices": price},
                        {"name": "gamma", "provider": "fragile", "prices": price},
                    ],
                    "feedback": {"votes_per_day": 10_000},
                    "budget": {"tenants": {"default": {"usd_per_period": 1.0, "hard": False}}},
                }
            ),
            providers={"solid": Echo(), "fragile": self.fragile},
        )
        self.metrics = Metrics()
        self.now = self.router.clock

    def measure(self) -> None:
        """Measure quality now instead of at the next minute."""
        self.metrics._measured = 0
        self.metrics.measure()

    def visit(self, http: httpx.Client) -> None:
        """What else happens: streams, a rating of a dimension, a failed call, a refused request."""
        for number in range(8):
            self.ask(http, number + 1000, thumb="up")
        for number in range(4):
            http.post("/v1/chat/completions", json=chat(f"Stream {number}", model="beta", stream=True))
            reply = http.post("/v1/chat/completions", json=chat(f"Rated {number}", model="beta", user="user 1"))
            vote = {
                "decision_id": reply.headers["x-fitrouter-decision"],
                "kind": "rating",
                "value": 0.5,
                "user": "user 1",
            }
            assert http.post("/v1/feedback", json=vote | {"dimension": "warmth"}).status_code == 200
        http.post("/v1/chat/completions", json={"model": "nobody", "messages": []})
        self.visits += 1
        self.fragile.down = self.visits <= 4  # five are an outage
        http.post("/v1/chat/completions", json=chat("Fails", model="gamma"))
        self.fragile.down = False

    def ask(self, http: httpx.Client, number: int, model: str = "fitrouter/auto", thumb: str | None = None) -> None:
        body = chat(f"Question {number}", user=f"user {number % 40}", model=model)
        body["metadata"] = {"role": ("cook", "clerk")[number % 2], "session": f"s{number}"}
        reply = http.post("/v1/chat/completions", json=body)
        if thumb is not None and reply.status_code == 200:
            vote = {"decision_id": reply.headers["x-fitrouter-decision"], "kind": "thumb", "value": thumb}
            assert http.post("/v1/feedback", json=vote | {"user": f"user {number % 40}"}).status_code == 200


def provider_killed(drill: Drill, http: httpx.Client, _patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The provider of one model refuses; after it is back, a probe closes the breaker."""
    drill.fragile.down = True
    for number in range(6):
        drill.ask(http, number, model="gamma")

    def heal() -> None:
        drill.fragile.down = False
        wait_for(lambda: http.post("/v1/chat/completions", json=chat("Probe", model="gamma")).status_code == 200)
        for number in range(40):
            drill.ask(http, number, model="gamma")

    return heal


def silent_change(drill: Drill, http: httpx.Client, _patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A model that everybody liked is disliked from one answer to the next."""
    for number in range(80):
        drill.ask(http, number, model="alpha", thumb="up")
    wait_for(lambda: drill.metrics.status is not None and drill.metrics.status.lag.warehouse_events == 0)
    drill.measure()  # of the liked model
    drifted = drill.router._learner.fit.drift

    def worsen() -> bool:
        for number in range(10):
            drill.ask(http, number + 7, model="alpha", thumb="down")
        return drifted.ratio("alpha") > 0.8

    wait_for(worsen)
    return lambda: drifted._sums.clear() or drifted._raised.clear()


def people_disappointed(drill: Drill, http: httpx.Client, _patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Six of forty people get most of what is disliked."""
    for number in range(240):
        drill.ask(http, number % 6, model="alpha", thumb="down")
    return lambda: None


def budget_burst(drill: Drill, http: httpx.Client, patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A burst of dear requests spends a period; the next one begins."""
    budgets = drill.router._learner.projections.budgets
    budgets.observe("default", drill.router.clock(), 0.95)
    return lambda: patch.setattr(drill.router, "clock", lambda: 86_400.0 + drill.now())


def scorer_stopped(drill: Drill, http: httpx.Client, _patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The scorer's thread ends, answers come in; a new one scores them."""
    at, stopped = next((k, s) for k, s in enumerate(drill.router._services) if s.part == "scorer")
    stopped.stop()
    for number in range(3):
        drill.ask(http, number)

    def heal() -> None:
        made = Service("scorer", stopped.step, drill.router.hooks)
        drill.router._services[at] = made
        made.start()

    return heal


def fold_stopped(drill: Drill, http: httpx.Client, patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The follower waits for ever; it goes on."""
    follower = drill.router._follower
    step = follower._step

    async def nothing() -> bool:
        return False

    patch.setattr(follower, "_step", nothing)
    for number in range(3):
        drill.ask(http, number)
    return lambda: patch.setattr(follower, "_step", step)


def draws_changed(drill: Drill, http: httpx.Client, patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Models are drawn by something else than the logged probabilities. The alarm of a log stays for ever."""
    draw, state = decider._draw, drill.router._learner.projections

    def least(probs: Floats, *rest: Any) -> tuple[int, Mode]:
        draw(probs, *rest)
        return int(probs.argmin()), Mode.ONLINE

    patch.setattr(decider, "_draw", least)
    for number in range(40):
        drill.ask(http, number + 5000)
    patch.setattr(decider, "_draw", draw)
    wait_for(lambda: state.propensities.evidence["all"] > 1000.0)
    return lambda: vars(state.propensities).update(vars(Propensities()))


def event_excluded(drill: Drill, http: httpx.Client, _patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Votes are excluded by their ids, as `fitrouter journal quarantine` does."""
    journal, before = drill.router._journal, drill.router._learner.fit
    votes = [row.event.id for row in journal.tail(0, 100_000) if isinstance(row.event, Feedback)]
    for vote in votes[:3]:
        journal.append(
            Entry(Quarantine(id=f"quarantine:{vote}", ts=drill.router.clock(), event_id=vote, reason="the drill"))
        )
    wait_for(lambda: drill.router._learner.fit is not before)
    return lambda: None


def disk_full(drill: Drill, http: httpx.Client, _patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The file system of the data folder is full, so that the journal fails, too; then there is room again."""
    filler = drill.folder / "filler"
    with closing(sqlite3.connect(drill.folder / "journal.db")) as journal:
        journal.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # else there is room for a while in its file
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1024))
    for number in range(3):
        drill.ask(http, number, model="alpha", thumb=None)
    return filler.unlink


FAULTS = {
    ("FitrouterEventsExcluded",): event_excluded,
    ("FitrouterProviderDown", "FitrouterUnanswered"): provider_killed,
    ("FitrouterDrift",): silent_change,
    ("FitrouterRewardDrop", "FitrouterWorstTenthFalling"): people_disappointed,
    ("FitrouterPropensityAudit",): draws_changed,
    ("FitrouterBudgetBurning",): budget_burst,
    ("FitrouterScorerLag",): scorer_stopped,
    ("FitrouterLearningStopped",): fold_stopped,
    ("FitrouterDiskNearlyFull", "FitrouterJournalLag"): disk_full,
}
"""In this order: what comes after the fold has stopped would not be learnt."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path | None]:
    """A small disk; None where file systems cannot be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", "size=96m", "tmpfs"]
    if subprocess.run(["mount", *options, str(place)], capture_output=True, check=False).returncode:
        yield None
        return
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_panels_have_data_and_alerts_fire_and_clear(
    tmp_path: Path, disk: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every expression of every panel returns data; every alert is raised by its fault, and clears after it."""
    faults = {alerts: fault for alerts, fault in FAULTS.items() if disk or fault is not disk_full}
    expected = {alert for alerts in faults for alert in alerts}
    assert {alert for alerts in FAULTS for alert in alerts} == {rule["alert"] for rule in rules("alerts.yml")}
    drill = Drill(disk or tmp_path / "data")
    with (
        serving(drill.router, metrics=drill.metrics) as url,
        client(url) as http,
        prometheus(url, tmp_path / "prometheus") as server,
    ):
        for number in range(120):
            drill.ask(http, number, thumb="up" if number % 3 else "down")
        drill.visit(http)
        wait_for(lambda: drill.metrics.status is not None and drill.metrics.status.lag.warehouse_events == 0)
        drill.measure()
        assert drill.metrics.best_single == figures(drill.router.warehouse.queries, best_single())[0][0]

        def missing() -> list[str]:
            drill.visit(http)  # a rate needs two scrapes
            found = [
                (title, re.sub(r"\$(model|role|tenant)", ".*", expression).replace("$__rate_interval", "30m"))
                for title, expression in panels()
            ]
            return [f"{title}: {text}" for title, text in found if not server.query(text)]

        with suppress(AssertionError):
            wait_for(lambda: not missing())
        assert missing() == []
        monkeypatch.setattr(breakers, "TRIP", 2.4)  # the suite's breakers stay closed, see tests/conftest.py
        wait_for(lambda: not server.firing())  # in seconds, the means of a few votes differ

        fired: set[str] = set()
        heal = []
        for alerts, fault in faults.items():
            began = time.monotonic()
            heal.append(fault(drill, http, monkeypatch))

            def fires(alerts: tuple[str, ...] = alerts, began: float = began) -> bool:
                drill.ask(http, 0, model="gamma")  # traffic goes on: a breaker ends its cooldown without it
                if "FitrouterWorstTenthFalling" in alerts:  # measured every minute
                    drill.measure()
                time.sleep(0.25)
                fired.update(server.fired(time.monotonic() - began))
                return fired >= set(alerts)

            with suppress(AssertionError):
                wait_for(fires, 30.0)
            assert fired >= set(alerts)
        for each in reversed(heal):
            each()
        wait_for(lambda: not server.firing())
    assert fired == expected
    if disk is None:
        pytest.skip("file systems cannot be mounted here: a full disk was not tried")


def test_an_outage_of_a_running_gateway_fires_and_clears(tmp_path: Path) -> None:
    """With its default settings, in processes of its own: /readyz, the console and the alert turn, and turn back."""
    down = [False]
    script = (reply(500, {"error": {"message": "down"}}) if down[0] else None for _ in itertools.count())
    with in_a_thread(FakeOpenAI(script, models=("m", "n"))) as models:
        settings = {
            "data": str(tmp_path / "data"),
            "providers": {"fake": {"kind": "openai_compatible", "base_url": models.base_url}},
            "models": [{"name": name, "provider": "fake", "prices": {"input": 1, "output": 1}} for name in ("m", "n")],
        }
        (tmp_path / "fitrouter.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        with (
            Gateway(tmp_path / "fitrouter.yaml") as gateway,
            client(gateway.url) as http,
            prometheus(gateway.url, tmp_path / "prometheus") as server,
        ):
            turned = [False, True, False]
            for down[0] in turned:

                def told() -> bool:
                    http.post("/v1/chat/completions", json=chat())
                    shown = http.get("/console/api/now")
                    alarms = shown.json()["alarms"] if shown.status_code == 200 else []
                    red = {
                        http.get("/readyz").json()["status"] == "down",
                        http.get("/readyz?strict").status_code == 503,
                        any("No request is answered" in each["text"] for each in alarms),
                        "FitrouterUnanswered" in server.firing(),
                    }
                    time.sleep(0.5)
                    return red == {down[0]} and shown.status_code == 200

                wait_for(told)
