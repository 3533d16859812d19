"""The services process: gateways go on without it, it comes back, and what it reports completes their status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from benchmarks.gateway.overload import CONFIG
from benchmarks.gateway.process import Gateway, alive, kill_9, wait_for
from tests.kits.gateway import chat

from fitrouter.config import load_config
from fitrouter.errors import StoreError
from fitrouter.router import Router
from fitrouter.serving import status as reports
from fitrouter.stores.journal import leased
from fitrouter.types import Identity, Request

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


async def test_the_report_of_the_services_completes_a_status(file: Path) -> None:
    """Leases, lags and reward models are the services'; of a process that is gone no lease, and the age as lag."""
    config = load_config(file)
    async with Router.from_config(config, services=False) as router:
        own = router.status()
        assert router.completed(own) == own
        reports.write_report(config.data, own, now := router.clock())
        report = config.data / reports.REPORT_FILE
        report.write_bytes(report.read_bytes().replace(b'"warehouse":false', b'"warehouse":true'))
        found = router.completed(own)
        assert found.leases == {"scorer": False, "warehouse": True}
        assert found.services == os.getpid()
        gone = reports.completed(own, config.data, now + 60.0)
        assert (gone.services, any(gone.leases.values())) == (None, False)
        assert gone.lag.warehouse_seconds >= 60.0
        report.write_bytes(b"{")
        with pytest.raises(StoreError, match="not readable now"):
            router.completed(own)
