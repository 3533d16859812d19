"""A real Prometheus that scrapes a gateway with the rules of the package, in short times."""

from __future__ import annotations

import math
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.kits.gateway import wait_for

RULES = Path(__file__).parents[2] / "dashboards" / "fitrouter_dashboards" / "prometheus"


def tool(name: str) -> str:
    """The path of a program of Debian's package `prometheus`."""
    if (path := shutil.which(name)) is None:
        pytest.skip(f"{name} is not installed; Debian has it in the package prometheus")
    return path


class Prometheus:
    """A running Prometheus that scrapes a gateway every half second."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=60.0)
        self.close = self._http.close

    def query(self, expression: str) -> list[Any]:
        """The result of an instant query; an error of the expression fails the test."""
        reply = self._http.get("/api/v1/query", params={"query": expression})
        assert reply.status_code == 200, f"{expression}: {reply.text}"
        return list(reply.json()["data"]["result"])

    def query_range(self, expression: str, begin: float, end: float, step_s: float) -> list[Any]:
        """The result of a range query; an error of the expression fails the test."""
        span = {"query": expression, "start": begin, "end": end, "step": step_s}
        reply = self._http.get("/api/v1/query_range", params=span)
        assert reply.status_code == 200, f"{expression}: {reply.text}"
        return list(reply.json()["data"]["result"])

    def ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        alerts = self._http.get("/api/v1/alerts").json()["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def fired(self, seconds: float) -> set[str]:
        """Names of the alerts that fired in the last `seconds`, those that have cleared since included."""
        found = self.query(f'count_over_time(ALERTS{{alertstate="firing"}}[{math.ceil(seconds)}s])')
        return {series["metric"]["alertname"] for series in found}


SHORT = {
    "alerts.yml": {
        r"for: \d+m": "for: 1s",
        r"\[30m\]": "[3s]",
        r"\[5m\]": "[3s]",
        "_seconds > 600": "_seconds > 2",
        "_seconds > 60": "_seconds > 2",
        r"_count\[1h\]\)\) > 50": "_count[4s])) > 5",
        r"\[1h\]": "[4s]",
        "offset 1d": "offset 15s",
    },
    "recording.yml": {"interval: 15s": "interval: 500ms", r"reward(.*)\[1h\]": r"reward\1[4s]", r"\[1d\]": "[60s]"},
    "prometheus.yml": {"scrape_interval: 15s": "scrape_interval: 500ms", "n_interval: 15s": "n_interval: 500ms"},
}
"""Times of the rules that a drill shortens."""


@contextmanager
def prometheus(gateway: str, folder: Path) -> Iterator[Prometheus]:
    program = tool("prometheus")
    folder.mkdir()
    for file, changes in SHORT.items():
        text = (RULES / file).read_text(encoding="utf-8")
        for old, new in changes.items():
            text, count = re.subn(old, new, text)
            assert count, f"{file} has no {old}"
        (folder / file).write_text(text.replace("127.0.0.1:8484", gateway.removeprefix("http://")), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    options = [
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--enable-feature=exemplar-storage",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, *options], stdout=log, stderr=log)
    server = Prometheus(f"http://{address}")
    try:
        wait_for(lambda: server.ready() or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text()
        yield server
    finally:
        server.close()
        process.terminate()
        process.wait(60)
