"""Gateways and scorers under Ray Serve: one of each is killed, then all are restarted, while clients send requests.

    python -m benchmarks.gateway.ray --clients 8
    python -m benchmarks.gateway.ray --database postgresql://…

A cluster of this machine, two gateways, two scorers; the restart allows a third scorer, for a target below the lag.
Clients send a request again after a 5xx or a broken connection, as the OpenAI client does. Prints JSON; exits with 1 if
a request failed for good, the journal is not whole, or answers stay without a score. Needs the extra `ray`.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx

from fitrouter.assemble import open_journal
from fitrouter.config import load_config
from fitrouter.types import Decision, Execution, Score

PATIENCE_S = 300.0
"""What a start may take; machines are shared."""
ATTEMPTS = 8
"""How often a client sends a request."""
LAG_S = 5.0
"""Lag that counts as recovered."""


class Load:
    """Clients that send requests one after the other, and send one again if it was not answered."""

    def __init__(self, url: str, clients: int) -> None:
        self.answered: list[tuple[str, float, int]] = []
        """Decision id, seconds, and number of attempts of each answered request."""
        self.failed: list[str] = []
        """Last error of each request that was not answered at all."""
        self.errors: Counter[str] = Counter()
        """Errors of single attempts."""
        self._url, self._ended = url, threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(clients)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let the requests under way finish, and stop."""
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _run(self, number: int) -> None:
        count = 0
        with httpx.Client(base_url=self._url, timeout=60.0) as client:
            while not self._ended.is_set():
                count += 1
                self._ask(client, f"What is {number * 1_000_000 + count}?", f"user {number % 5}")

    def _ask(self, client: httpx.Client, text: str, user: str) -> None:
        body = {"model": "fitrouter/auto", "messages": [{"role": "user", "content": text}], "user": user}
        began, last = time.monotonic(), ""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = client.post("/v1/chat/completions", json=body)
            except httpx.TransportError as error:
                last = type(error).__name__
            else:
                if answer.status_code == 200:
                    took = time.monotonic() - began
                    self.answered.append((answer.headers["x-fitrouter-decision"], took, attempt))
                    return
                last = str(answer.status_code)
            self.errors[last] += 1
            time.sleep(min(8.0, 0.5 * 2.0 ** (attempt - 1)))
        self.failed.append(last)


class Lags:
    """Thread that polls the lag of the scorer."""

    def __init__(self, url: str) -> None:
        self.seen: list[tuple[float, float]] = []
        """Monotonic time, and age in seconds of the oldest answer without a score."""
        self._url, self._ended = url, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop polling."""
        self._ended.set()
        self._thread.join()

    def since(self, begin: float) -> list[tuple[float, float]]:
        """Return the (time, lag) pairs seen since a time."""
        return [(at, lag) for at, lag in self.seen if at >= begin]

    def _run(self) -> None:
        while not self._ended.wait(0.5):
            try:
                lag = httpx.get(f"{self._url}/readyz", timeout=10.0).json()["lag"]["scorer_seconds"]
            except (httpx.HTTPError, ValueError, KeyError):
                continue
            self.seen.append((time.monotonic(), lag))


class Cluster:
    """`ray start` in the foreground, and the commands that use it.

    Args:
        folder: of Ray's files and the configuration; its path must be short, since Ray has sockets in it.
        config: the configuration.
    """

    def __init__(self, folder: Path, config: Path) -> None:
        self.folder, self.config, self.address = folder, config, f"127.0.0.1:{free_port()}"
        self._environ = os.environ | {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_TMPDIR": str(folder),
        }
        self._log = (folder / "log").open("wb")
        ray = Path(sys.executable).with_name("ray")
        port = self.address.rpartition(":")[2]
        options = ["--num-cpus=10", "--include-dashboard=false", "--object-store-memory=100000000", "--block"]
        command = [str(ray), "start", "--head", f"--port={port}", "--node-ip-address=127.0.0.1", *options]
        environ = {name: value for name, value in self._environ.items() if name != "RAY_ADDRESS"}
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig=TERM", *command, f"--temp-dir={folder}"],  # it dies with this process
            env=environ,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def deploy(self, *options: str) -> float:
        """Run `fitrouter deploy ray`; returns the seconds that it took."""
        began = time.monotonic()
        command = [sys.executable, "-m", "fitrouter_integrations.cli", "deploy", "ray", str(self.config), *options]
        while True:
            done = subprocess.run(command, env=self._environ, capture_output=True, text=True, timeout=2 * PATIENCE_S)
            if done.returncode == 0:
                return time.monotonic() - began
            if "does not answer" not in done.stderr or time.monotonic() - began > PATIENCE_S:
                raise RuntimeError(done.stderr[-3000:])
            time.sleep(1.0)  # the cluster is still starting

    def replicas(self, name: str) -> list[int]:
        """Process ids of a deployment's replicas."""
        return [pid for pid in self._children() if title(pid).startswith(f"ray::ServeReplica:fitrouter:{name}")]

    def end(self) -> None:
        """Kill all processes of the cluster."""
        mine = self._children()
        self._process.terminate()
        try:
            self._process.wait(20.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid in mine:
            if title(pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        self._log.close()

    def _children(self) -> list[int]:
        """All processes below `ray start`."""
        parents = {int(each.name): parent(int(each.name)) for each in Path("/proc").iterdir() if each.name.isdecimal()}
        found, new = list[int](), {self._process.pid}
        while new:
            new = {pid for pid, above in parents.items() if above in new}
            found += new
        return found


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def title(pid: int) -> str:
    """Return the command line of a process; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def parent(pid: int) -> int:
    """Return the parent of a process; 0 if there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def wait_for(condition: Any, what: str) -> float:
    """Wait until a condition holds; return the seconds.

    Raises:
        TimeoutError: it has not come true.
    """
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > PATIENCE_S:
            raise TimeoutError(what)
        time.sleep(0.2)
    return time.monotonic() - began


def kill(cluster: Cluster, name: str) -> float:
    """Kill -9 one replica; return the seconds until there are as many as before."""
    before = cluster.replicas(name)
    os.kill(before[0], signal.SIGKILL)
    return wait_for(lambda: len(now := cluster.replicas(name)) >= len(before) and before[0] not in now, f"a new {name}")


def write_config(config: Path, database: str, port: int, ray: dict[str, Any]) -> None:
    """Write the configuration; the two models take 0.3 s for an answer."""
    settings = {
        "data": database or "data",
        "providers": {"s": {"kind": "simulated", "options": {n: {"latency_s": 0.3} for n in ("a", "b")}}},
        "models": [{"name": "a", "provider": "s"}, {"name": "b", "provider": "s"}],
        "server": {"port": port, "deadline_s": 30},
        "ray": ray,
    }
    if database:
        settings["folder"] = str(config.parent / "data")
    config.write_text(json.dumps(settings), encoding="utf-8")


@contextmanager
def deployed(folder: Path, database: str) -> Iterator[tuple[Cluster, str]]:
    """Deploy the application on a new cluster; yields the cluster and the URL."""
    port, config = free_port(), folder / "fitrouter.yaml"
    write_config(config, database, port, {"gateways": {"min": 2}, "scorers": {"min": 2}})
    cluster = Cluster(folder, config)
    try:
        cluster.deploy()
        yield cluster, f"http://127.0.0.1:{port}"
    finally:
        cluster.end()


def told(lags: Lags, begin: float) -> dict[str, float]:
    """Wait until the lag has recovered; return its peak since a time, and the seconds until it stayed below `LAG_S`."""
    wait_for(lambda: (seen := lags.since(begin)[-5:]) and len(seen) == 5 and max(lag for _, lag in seen) < LAG_S, "lag")
    late = [at for at, lag in lags.since(begin) if lag >= LAG_S]
    return {
        "peak_lag_s": round(max(lag for _, lag in lags.since(begin)), 2),
        "recovered_after_s": round(max(late, default=begin) - begin, 1),
    }


def journal_of(config: Path, answered: set[str]) -> dict[str, int]:
    """Count what the journal has of the answered requests, and of all."""
    with closing(open_journal(load_config(config))) as journal:
        ids: Counter[str] = Counter()
        kinds = {kind: Counter[str]() for kind in (Decision, Execution, Score)}
        after = 0
        while rows := journal.tail(after):
            after = rows[-1].seq
            for _, event in rows:
                ids[event.id] += 1
                if isinstance(event, Decision):
                    kinds[Decision][event.id] += 1
                elif isinstance(event, Execution | Score):
                    kinds[type(event)][event.decision_id] += 1
        unscored = len(journal.spooled(10_000))
    return {
        "events": sum(ids.values()),
        "doubled": sum(count - 1 for count in ids.values()),
        "decisions": len(kinds[Decision]),
        "without_execution": len(kinds[Decision].keys() - kinds[Execution].keys()),
        "unscored": unscored,
        **{
            f"answered_without_{kind.__name__.lower()}": sum(found[each] != 1 for each in answered)
            for kind, found in kinds.items()
        },
    }


def measure(folder: Path, *, clients: int, pause_s: float, database: str = "") -> dict[str, Any]:
    """Run the whole experiment."""
    found: dict[str, Any] = {}
    with deployed(folder, database) as (cluster, url):
        began, load, lags = time.monotonic(), Load(url, clients), Lags(url)

        def answer_more() -> None:
            goal = len(load.answered) + 5 * clients
            wait_for(lambda: len(load.answered) >= goal, "answers")
            time.sleep(pause_s)

        answer_more()
        for name in ("gateway", "scorer", "services"):
            at, errors = time.monotonic(), load.errors.total()
            replaced = kill(cluster, name)
            answer_more()
            found[f"kill_{name}"] = {"replaced_after_s": round(replaced, 1), **told(lags, at)}
            found[f"kill_{name}"]["attempts_failed"] = load.errors.total() - errors
        at, errors = time.monotonic(), load.errors.total()
        old = [*cluster.replicas("gateway"), *cluster.replicas("scorer"), *cluster.replicas("services")]
        more = {"gateways": {"min": 2}, "scorers": {"min": 2, "max": 3, "lag_s": 0.02}, "up_s": 1}
        write_config(cluster.config, database, int(url.rpartition(":")[2]), more)
        found["restart"] = {"seconds": round(cluster.deploy(), 1)}
        wait_for(lambda: not any(title(pid) for pid in old), "old replicas")
        scaled = wait_for(lambda: len(cluster.replicas("scorer")) == 3, "a third scorer, for a target below the lag")
        found["restart"]["third_scorer_after_s"] = round(scaled, 1)
        answer_more()
        found["restart"] |= told(lags, at) | {"attempts_failed": load.errors.total() - errors}
        load.end()
        seconds = time.monotonic() - began
        wait_for(lambda: lags.seen[-1][1] == 0.0, "no lag")
        lags.end()
        found["stop_s"] = round(cluster.deploy("--stop"), 1)
        wait_for(lambda: not cluster.replicas("services"), "the stop")
    times = sorted(took for _, took, _ in load.answered)
    return {
        "requests": len(load.answered) + len(load.failed),
        "failed": len(load.failed),
        "attempts_failed": load.errors.total(),
        "errors": dict(load.errors),
        "requests_per_s": round(len(load.answered) / seconds, 1),
        "p50_s": round(times[len(times) // 2], 3),
        "p99_s": round(times[len(times) * 99 // 100], 3),
        **found,
        "journal": journal_of(cluster.config, {decision for decision, _, _ in load.answered}),
    }


def whole(found: dict[str, Any]) -> bool:
    """Whether no request failed, and the journal has each answered one once."""
    journal = found["journal"]
    lost = sum(count for name, count in journal.items() if name.startswith("answered_without"))
    return not (found["failed"] or lost or journal["doubled"] or journal["unscored"])


def main() -> int:
    """Parse the command line, measure, print the results, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=8, help="clients, each with one request at a time")
    parser.add_argument("--pause", type=float, default=5.0, help="seconds of load between two blows")
    parser.add_argument("--database", default="", help="URL of a PostgreSQL database for the journal; else a file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fr-") as folder:
        found = measure(Path(folder), clients=options.clients, pause_s=options.pause, database=options.database)
    print(json.dumps(found, indent=1))
    return 0 if whole(found) else 1


if __name__ == "__main__":
    sys.exit(main())
