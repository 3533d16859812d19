"""Kill -9 of the gateway under load: each acknowledged event is there once, and the state is the fold of the journal.

    python -m benchmarks.gateway.crash --kills 50 --workers 1 2 --prefill 1000000
    python -m benchmarks.gateway.crash --kills 1000 --workers 2 --forked

With two workers every other kill takes one worker only, and the rest goes on. A start is mostly imports: with
`--forked` each gateway is a copy of a process that has imported all, and its workers are copies of it. Prints JSON;
exits with 1 on any loss, or if a start took a file for damaged.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from benchmarks.gateway.process import (
    RESPONSES,
    ROOT,
    Gateway,
    alive,
    kill_9,
    members,
    new_client,
    wait_for,
    write_config,
)

from fitrouter.config import load_config
from fitrouter.draw import uuid7
from fitrouter.router import Router
from fitrouter.state.reading import read_batch
from fitrouter.stores.journal import Entry, Journal, SqliteJournal
from fitrouter.types import Attempt, Decision, Event, Execution, Identity, Mode, PolicyVersion

_QUICK = {name: {"length": length, "latency_s": 0.02} for name, length in (("short", 1), ("medium", 3), ("long", 6))}
SIMULATED: dict[str, Any] = {
    "providers": {"simulated": {"kind": "simulated", "options": _QUICK}},
    "models": [{"name": name, "provider": "simulated"} for name in _QUICK],
    "server": {"port": 0},
}
"""Settings that take no time to start."""
PROMPT = "What are the names of some famous actors that started their careers on Broadway?"


class Load:
    """Threads that make requests and give feedback, and remember what was acknowledged."""

    def __init__(self, threads: int = 4) -> None:
        self.url = ""
        self.decisions: set[str] = set()
        self.feedback: dict[str, str] = {}
        self._running = threading.Event()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def resume(self, url: str) -> None:
        """Send requests again, to this address."""
        self.url = url
        self._running.set()

    def pause(self) -> None:
        """Stop sending requests for now."""
        self._running.clear()

    def end(self) -> None:
        """Stop the threads."""
        self._ended.set()
        self._running.set()
        for thread in self._threads:
            thread.join(30.0)

    def _run(self, number: int) -> None:
        count = 0
        while not self._ended.is_set():
            self._running.wait()
            count += 1
            try:
                self._once(number, count)
            except httpx.TransportError:
                time.sleep(0.01)

    def _once(self, number: int, count: int) -> None:
        with new_client(self.url) as http:
            body = {"messages": [{"role": "user", "content": PROMPT}], "user": f"u{number}", "stream": count % 3 == 0}
            reply = http.post("/v1/chat/completions", json=body)
            if reply.status_code != 200 or reply.headers["x-fitrouter-logged"] != "true":
                return
            id_ = reply.headers["x-fitrouter-decision"]
            self.decisions.add(id_)
            if count % 2:
                vote = {"decision_id": id_, "kind": "rating", "value": count % 5, "scale": [0, 4]}
                answer = http.post("/v1/feedback", json=vote)
                if answer.status_code == 200:
                    self.feedback[answer.json()["id"]] = id_


class ForkedGateway(Gateway):
    """A gateway that is forked from a process with all modules imported."""

    def __init__(self, config: Path, workers: int = 1) -> None:
        super().__init__(config, workers)
        command = [sys.executable, "-m", "benchmarks.gateway.crash", "--fork", str(config), "--workers", str(workers)]
        self._nursery = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self._main = 0

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        assert self._nursery.stdin is not None
        self._nursery.stdin.close()
        self._nursery.wait(30.0)

    @property
    def parent(self) -> int:
        """Process id of the parent that keeps the workers alive."""
        return self._main

    def start(self) -> float:
        """Fork, and wait until all workers are ready; returns the seconds until then."""
        began = time.monotonic()
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.write("start\n")
        self._nursery.stdin.flush()
        self._main, port = map(int, self._nursery.stdout.readline().split())
        self.url = f"http://127.0.0.1:{port}"
        wait_for(lambda: len(self.reports()) == self.workers)
        return time.monotonic() - began

    def stop(self) -> int:
        """End the gateway by SIGTERM as an operator does; returns 0 once it has ended."""
        os.kill(self._main, signal.SIGTERM)
        wait_for(lambda: not alive(self._main), 90.0)
        self.kill()
        return 0

    def kill(self) -> None:
        """Kill -9, parent and workers, and wait until they are gone."""
        if self._main:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._main, signal.SIGKILL)  # copies hold each other's pipes, and would outlive their parent
            wait_for(lambda: not any(map(alive, members(self._main))))
        self._main, self.pids = 0, set()


def fork(config: Path, workers: int) -> None:
    """Import all that a gateway needs; fork one for each line of standard input, and print its process and port."""
    from fitrouter.serving.services import load_scorer
    from fitrouter_integrations.gateway import _serve, bind

    for name in ("_services", "_worker"):
        importlib.import_module(f"fitrouter_integrations.gateway.{name}")
    settings = load_config(config)
    load_scorer(settings)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # killed ones are gone at once
    pid = 0
    for _ in sys.stdin:
        listener = bind(settings)
        if pid := os.fork():
            print(pid, listener.getsockname()[1], flush=True)
            listener.close()
            continue
        os.setpgid(0, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        multiprocessing.get_context = lambda _: multiprocessing.context.ForkContext()  # type: ignore[assignment]
        _serve.serve(settings, workers, listener)
        os._exit(0)
    if pid:  # of a benchmark that was ended
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def run(
    folder: Path,
    kills: int,
    workers: int,
    prefill: int = 0,
    seed: int = 0,
    *,
    forked: bool = False,
    minutes: float = math.inf,
) -> dict[str, Any]:
    """Kill the gateway repeatedly, and check journal and state at the end. After `minutes` it stops early."""
    file = write_config(folder, **SIMULATED) if forked else write_config(folder)
    if prefill:
        fill(load_config(file).data, prefill)
    chance = random.Random(seed)
    load = Load()
    ready: list[float] = []
    with (ForkedGateway if forked else Gateway)(file, workers) as gateway:
        load.resume(gateway.url)
        until, done = time.monotonic() + 60.0 * minutes, 0
        for kill in range(kills):
            if time.monotonic() > until:
                break
            done = kill + 1
            print(f"kill {kill} of {kills}: {len(load.decisions)} decisions acknowledged", file=sys.stderr)
            acknowledged = len(load.decisions)
            wait_for(lambda before=acknowledged: len(load.decisions) > before)
            time.sleep(chance.uniform(0.05, 0.6))
            if workers > 1 and kill % 2 == 0:
                kill_9(chance.choice(sorted(gateway.pids)))
                gateway.pids = set()
                wait_for(lambda: len(gateway.reports()) == workers)
            else:
                gateway.kill()
                load.pause()
                ready.append(gateway.start())
                load.resume(gateway.url)
        load.end()
        reports = gateway.at_rest()
        code = gateway.stop()
    return {"kills": done, "workers": workers, "exit_code": code} | checked(file, load, reports, ready)


def checked(file: Path, load: Load, reports: dict[int, dict[str, Any]], ready: list[float]) -> dict[str, Any]:
    """Count lost and doubled events, and check whether the state is the fold of the journal."""
    router = Router.from_config(load_config(file))
    journal, learner = router._journal, router._learner
    ids = Counter(event.id for event in events(journal))
    outcomes = Counter(event.decision_id for event in events(journal) if isinstance(event, Execution))
    seqs, digests = {report["seq"] for report in reports.values()}, {report["digest"] for report in reports.values()}
    while learner.apply_batch(read_batch(journal, learner.seq, waiting=learner.waiting)) and learner.seq < max(seqs):
        pass
    result = {
        "decisions": len(load.decisions),
        "feedback": len(load.feedback),
        "lost": len(load.decisions - ids.keys()) + len(load.feedback.keys() - ids.keys()),
        "doubled": sum(count > 1 for count in ids.values()) + sum(count > 1 for count in outcomes.values()),
        "taken_for_damaged": len(list(load_config(file).data.glob("*.corrupt-*"))),
        "slowest_ready_s": round(max(ready, default=0.0), 2),
        "events": journal.head(),
        "position": (learner.seq, sorted(seqs)),
        "state_is_the_fold": (seqs, digests) == ({learner.seq}, {learner.digest()}),
    }
    journal.close()
    harmed = result["lost"] or result["doubled"] or result["taken_for_damaged"]
    result["passed"] = not harmed and bool(result["state_is_the_fold"])
    return result


def events(journal: Journal) -> Iterator[Event]:
    """Yield all events of a journal."""
    after = 0
    while rows := journal.tail(after, 2000):
        yield from (row.event for row in rows)
        after = rows[-1].seq


def fill(data: Path, count: int) -> None:
    """Fill a journal with `count` events of earlier traffic."""
    journal = SqliteJournal(data / "journal.db")
    identity = Identity(user="an earlier user")
    version = PolicyVersion(algorithm="squarecb")
    now = time.time() - 86_400.0
    attempt = Attempt(model="NullModel", probability=1.0)
    pending: list[Entry] = []
    for i in range(count // 2):
        id_ = uuid7(now + i * 1e-3)
        execution_id = f"{id_}:execution"
        who: dict[str, Any] = {"ts": now, "identity": identity, "chosen": "NullModel"}
        asked = {"draw_id": id_, "mode": Mode.PINNED, "eligible": ("NullModel",), "propensity": 1.0, "policy": version}
        answered = {"decision_id": id_, "served_by": "NullModel", "status": "ok", "attempts": (attempt,)}
        decision, execution = Decision(id=id_, **who, **asked), Execution(id=execution_id, **who, **answered)
        pending += [Entry(decision), Entry(execution)]
        if len(pending) >= 5000:
            journal.append(*pending).result()
            pending = []
    if pending:
        journal.append(*pending).result()
    journal.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prefill", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=math.inf, help="end each run after so long")
    parser.add_argument("--forked", action="store_true", help="do without the imports of each start")
    parser.add_argument("--fork", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fork:
        fork(arguments.fork, arguments.workers[0])
        return
    if not arguments.forked and not RESPONSES.is_file():
        print(json.dumps({"skipped": f"there is no {RESPONSES.name}"}))
        return
    results = []
    for workers in arguments.workers:
        with tempfile.TemporaryDirectory() as folder:
            chosen = (arguments.kills, workers, arguments.prefill)
            results.append(run(Path(folder), *chosen, forked=arguments.forked, minutes=arguments.minutes))
    print(json.dumps(results, indent=1))
    sys.exit(0 if all(result["passed"] for result in results) else 1)


if __name__ == "__main__":
    main()
