"""The services process: gateways go on without it, it comes back, and what it reports completes their status."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import msgspec
import pytest
from benchmarks.gateway.overload import CONFIG
from benchmarks.gateway.process import Gateway, alive, kill_9, wait_for
from tests.dashboards.test_metrics import status
from tests.kits.gateway import chat, make_router, serving
from tests.kits.gateway import config as gateway_config

from fitrouter.config import load_config
from fitrouter.errors import StoreError
from fitrouter.hooks import Hooks
from fitrouter.router import Router
from fitrouter.serving import status as reports
from fitrouter.serving.services import Failing, Service
from fitrouter.serving.status import Lag
from fitrouter.stores.journal import MemoryJournal, leased
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter.types import Identity, Request
from fitrouter_integrations.commands.setup import _health

SERVICES = ("scorer", "warehouse", "snapshot")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration of two simulated models."""
    path = tmp_path / "fitrouter.yaml"
    path.write_text(CONFIG.replace("'latency_s': 0.2", "'latency_s': 0.0") + f"data: {tmp_path}/data\n")
    return path


def test_gateways_go_on_while_the_services_process_is_restarted(file: Path) -> None:
    """Killed, it is restarted and holds the leases again; signals to it alone do not end it; workers do not score."""
    with Gateway(file) as gateway, httpx.Client(base_url=gateway.url, timeout=300.0) as http:

        def services() -> int | None:
            report = http.get("/readyz").json()
            return report["services"] if report["leases"] == ["scorer", "warehouse"] else None

        first = wait_for(services, 300.0)
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(first, number)
        kill_9(first)
        wait_for(lambda: not alive(first))
        assert http.post("/v1/chat/completions", json=chat()).status_code == 200
        second = wait_for(lambda: (pid := services()) != first and pid, 300.0)
        wait_for(lambda: 'scores_total{status="ok"} 1.0' in http.get("/metrics").text, 300.0)
        (worker,) = gateway.reports()
        assert worker not in {second, gateway.parent}
        wait_for(lambda: not any(http.get("/readyz").json()["lag"].values()), 300.0)
        assert gateway.stop() == 0
        wait_for(lambda: not alive(second))
    assert not (file.parent / "data" / reports.REPORT_FILE).exists()


def test_services_inside_are_in_the_only_process(file: Path) -> None:
    """With the option a single worker is the process itself, which holds all leases."""
    with Gateway(file, 1, "--services-inside") as gateway:
        (worker,) = gateway.reports()
        assert worker == gateway.parent
        wait_for(lambda: gateway.reports()[worker]["leases"] == ["scorer", "warehouse"], 300.0)
        assert gateway.reports()[worker]["services"] is None
        assert gateway.stop() == 0


def test_what_cannot_be_configured_is_said_once(file: Path) -> None:
    """A gateway whose configuration cannot be served ends at once, and its log says why."""
    keyed = "keyed: {kind: openai_compatible, base_url: 'http://127.0.0.1:9/v1', api_key_env: NOT_SET_ANYWHERE}"
    file.write_text(file.read_text().replace("providers: {", f"providers: {{{keyed}, "))
    done = subprocess.run(
        [sys.executable, "-m", "fitrouter_integrations.cli", "serve", "--port", "0", "--config", str(file)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode != 0
    assert "a worker cannot start" in done.stderr
    assert "NOT_SET_ANYWHERE" in done.stderr
    assert done.stderr.rstrip().endswith("the log says why"), done.stderr


async def test_a_router_without_services_takes_no_lease(file: Path) -> None:
    """It decides and folds, and leaves scores, warehouse and snapshots to another process; an erasure keeps nothing."""
    config = load_config(file)
    asked = Request(messages=({"role": "user", "content": "Hello"},), identity=Identity(user="ann"))
    async with Router.from_config(config) as whole, Router.from_config(config, services=False) as router:
        await whole.settled()
        await router.complete(asked)
        await router.settled()
        assert not any(router.status().leases.values())
    journal = config.data / "journal.db"
    async with Router.from_config(config, services=False) as router:
        await router.complete(asked)
        await router.settled()
        assert (await router.erase("default", "ann")).unfinished == ""
        assert not any(leased(journal, name) for name in SERVICES)


def test_a_warehouse_that_fails_is_told_while_routing_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both codes of readiness stay 200; bodies, alarms and doctor name the part and why, until it works."""
    monkeypatch.setattr(reports, "FAILING_S", 0.0)
    broken, journal = [True], MemoryJournal()
    feed = WarehouseFeed(journal, Warehouse(tmp_path / "fitrouter.duckdb"))

    def step() -> int:
        copied = feed.step()
        if broken and feed.warehouse.path.exists():
            raise StoreError("the tables are held by another program")
        return copied

    service = Service("warehouse", step, Hooks(), idle_s=0.01, retry_s=0.01)
    settings = gateway_config().model_copy(update={"data": tmp_path})
    router = make_router(tmp_path, services=[service], journal=journal, feed=feed)
    with serving(router, settings) as url, httpx.Client(base_url=url) as http:
        wait_for(lambda: http.get("/healthz").json()["behind"] == ["warehouse"])
        report = http.get("/readyz")
        assert (report.status_code, report.json()["status"]) == (200, "degraded")
        said = report.json()["behind"]["warehouse"]
        assert re.fullmatch(r"has failed for \d+ s \([\d,]+ tr(y|ies)\): the tables are held by another program", said)
        assert http.get("/readyz?strict").status_code == 200
        assert http.post("/v1/chat/completions", json=chat()).status_code == 200
        alarms = [each["text"] for each in http.get("/console/api/now").json()["alarms"]]
        assert any(text.startswith("The warehouse has failed for") for text in alarms), alarms
        with monkeypatch.context() as patched:
            patched.setattr(_health.journals, "in_use", lambda _: True)
            patched.setattr(_health, "installation_of", lambda _: http.get("/healthz").json()["installation"])
            patched.setattr(_health, "url_of", lambda _: url)
            patched.setattr(_health, "_services", lambda _: [])
            (tmp_path / "journal.db").touch()
            found = [check for check in _health.gateway(settings) if check.name == "gateway: warehouse"]
            assert found
            assert "held by another program" in found[0].text
        broken.clear()
        wait_for(lambda: http.get("/readyz").json()["status"] == "ok")
        assert http.get("/healthz").json()["behind"] == []


def test_a_part_that_is_late_says_for_how_long() -> None:
    """Each lag of more than a minute is told, and with what its steps fail; a moment's failure is not."""
    late, now = Lag(scorer_answers=1, scorer_seconds=61.0, warehouse_events=1200, warehouse_seconds=84.0), 1000.0
    failing = {
        "warehouse": Failing(since=now - 84.0, times=80, error="disk"),
        "cold": Failing(since=now, times=1, error="x"),
    }
    idle = status({})
    assert reports.behind(idle, now) == {}
    assert reports.behind(msgspec.structs.replace(idle, lag=late, failing=failing), now) == {
        "scorer": "is 61 s behind, 1 answer waits for a score",
        "warehouse": "is 84 s behind, 1,200 events not copied; it has failed for 84 s (80 tries): disk",
    }


async def test_the_report_of_the_services_completes_a_status(file: Path) -> None:
    """Leases, lags and reward models are the services'; of a process that is gone no lease, and the age as lag."""
    config = load_config(file)
    async with Router.from_config(config, services=False) as router:
        own = router.status()
        assert router.completed(own) == own
        failing = {"warehouse": Failing(since=1.0, times=2, error="full")}
        reports.write_report(config.data, msgspec.structs.replace(own, failing=failing), now := router.clock())
        report = config.data / reports.REPORT_FILE
        report.write_bytes(report.read_bytes().replace(b'"warehouse":false', b'"warehouse":true'))
        found = router.completed(own)
        assert found.leases == {"scorer": False, "warehouse": True}
        assert found.services == os.getpid()
        assert found.failing == failing
        gone = reports.completed(own, config.data, now + 60.0)
        assert (gone.services, any(gone.leases.values())) == (None, False)
        assert gone.lag.warehouse_seconds >= 60.0
        report.write_bytes(b"{")
        with pytest.raises(StoreError, match="not readable now"):
            router.completed(own)
