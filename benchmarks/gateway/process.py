"""A gateway in its own processes, for benchmarks and tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import yaml

ROOT = Path(__file__).resolve().parents[2]
RESPONSES = ROOT.parent / "shared" / "data" / "alpaca_eval" / "responses.parquet"
"""Recorded answers of eleven models to 805 prompts."""


def write_config(folder: Path, **changes: Any) -> Path:
    """Write the example `recorded.yaml` with its data in `folder`; returns its path."""
    settings = yaml.safe_load((ROOT / "examples" / "recorded.yaml").read_text())
    settings["data"] = str(folder / "data")
    settings["providers"]["recorded"]["path"] = str(RESPONSES)
    file = folder / "fitrouter.yaml"
    file.write_text(yaml.safe_dump({**settings, **changes}))
    return file


class Gateway:
    """Runs `fitrouter serve` on a free port. As a context manager it ends all processes."""

    def __init__(self, config: Path, workers: int = 1, *options: str) -> None:
        self.config, self.workers, self.options = config, workers, options
        self.url = ""
        self.pids: set[int] = set()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Gateway:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self) -> float:
        """Start, and wait until all workers are ready; returns the seconds until the first one was."""
        sources = [str(ROOT / name) for name in ("router", "evaluators", "dashboards", "integrations")]
        command = [sys.executable, "-m", "fitrouter_integrations.cli", "serve", "--config", str(self.config)]
        began = time.monotonic()
        self._process = subprocess.Popen(
            [*command, "--port", "0", "--workers", str(self.workers), *self.options],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sources), "HF_HUB_OFFLINE": "1"},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        assert " on http://" in line, line  # what follows may take as long as it serves
        self.url = line.split(" on ")[1].split("/v1")[0]
        wait_for(self.reports, 300.0)
        took = time.monotonic() - began
        wait_for(lambda: len(self.reports()) == self.workers, 300.0)
        return took

    @property
    def parent(self) -> int:
        """Process id of the parent that keeps the workers alive."""
        assert self._process is not None
        return self._process.pid

    def reports(self) -> dict[int, dict[str, Any]]:
        """Return the /readyz reports of the workers that answer, by process id."""
        found: dict[int, dict[str, Any]] = {}
        for _ in range(1 if self.workers == 1 else 12 * self.workers):
            try:
                with new_client(self.url) as http:  # another connection may be another worker's
                    reply = http.get("/readyz")
            except httpx.TransportError:
                continue
            if reply.status_code == 200:
                found[reply.json()["pid"]] = reply.json()
            if len(found) == self.workers:
                break
        self.pids |= found.keys() | {report["services"] for report in found.values() if report["services"]}
        return found

    def at_rest(self) -> dict[int, dict[str, Any]]:
        """Wait until nothing is left to score, fold or ingest and all workers agree; return their reports."""

        def settled() -> dict[int, dict[str, Any]] | None:
            reports = self.reports()
            quiet = all(not any(report["lag"].values()) and report["digest"] for report in reports.values())
            agree = len({(report["seq"], report["digest"]) for report in reports.values()}) == 1
            return reports if quiet and agree and len(reports) == self.workers else None

        try:
            first = wait_for(settled, 120.0)
        except TimeoutError:
            raise TimeoutError(f"it does not come to rest: {self.reports()}") from None
        time.sleep(1.5)  # the services report every half second what they read every half second
        second: dict[int, dict[str, Any]] = wait_for(settled, 120.0)
        same = {report["seq"] for report in first.values()} == {report["seq"] for report in second.values()}
        return second if same else self.at_rest()

    def stop(self) -> int:
        """End the gateway by SIGTERM as an operator does; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(90.0)
        self.kill()
        return code

    def kill(self) -> None:
        """Kill -9, parent, workers and services, also those that no report has named, and wait until they are gone."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30.0)
        if self._process.stderr is not None:
            self._process.stderr.close()
        group = self._process.pid
        wait_for(lambda: not any(map(alive, members(group))))
        self._process, self.pids = None, set()


def new_client(url: str) -> httpx.Client:
    """Create a client of a gateway on this machine; not reading certificates saves 50 ms."""
    return httpx.Client(base_url=url, timeout=10.0, verify=False)


def kill_9(pid: int) -> None:
    """Kill a process; one that has ended is ignored."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6


def alive(pid: int) -> bool:
    """Whether a process exists and runs."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def members(group: int) -> list[int]:
    """Return the processes of a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            if int(stat.read_text().rpartition(")")[2].split()[2]) == group:
                found.append(int(stat.parent.name))
    return found


def wait_for(condition: Any, timeout_s: float = 60.0) -> Any:
    """Wait until `condition` returns a true value, and return it."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError("it did not come true in time")
        time.sleep(0.02)
    return value
