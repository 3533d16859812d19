"""Kill -9 of the gateway under load: what was acknowledged is there once, and what is known is the fold of the journal.

    python -m benchmarks.gateway.crash --kills 50 --workers 1 2 --prefill 1000000

With two workers every other kill takes one worker only, and the rest goes on. Prints JSON; exits with 1 on any loss.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from benchmarks.gateway.process import RESPONSES, Gateway, kill_9, wait_for, write_config

from fitrouter.config import load_config
from fitrouter.draw import uuid7
from fitrouter.router import Router
from fitrouter.state.learner import read_batch
from fitrouter.stores.journal import Entry, Journal, SqliteJournal
from fitrouter.types import Attempt, Decision, Event, Execution, Identity, Mode, PolicyVersion

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
        """Go on, at this address."""
        self.url = url
        self._running.set()

    def pause(self) -> None:
        """Send nothing more."""
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
        with httpx.Client(base_url=self.url, timeout=10.0) as http:
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


def run(folder: Path, kills: int, workers: int, prefill: int = 0, seed: int = 0) -> dict[str, Any]:
    """Kill the gateway repeatedly; check the journal after each start, and the state at the end."""
    file = write_config(folder)
    if prefill:
        fill(load_config(file).data, prefill)
    chance = random.Random(seed)
    load = Load()
    ready: list[float] = []
    with Gateway(file, workers) as gateway:
        load.resume(gateway.url)
        for kill in range(kills):
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
    return {"kills": kills, "workers": workers, "exit_code": code} | checked(file, load, reports, ready)


def checked(file: Path, load: Load, reports: dict[int, dict[str, Any]], ready: list[float]) -> dict[str, Any]:
    """Lost and doubled events, and whether the state is the fold of the journal."""
    router = Router.from_config(load_config(file))
    journal, learner = router._journal, router._learner
    ids = Counter(event.id for event in events(journal))
    outcomes = Counter(event.decision_id for event in events(journal) if isinstance(event, Execution))
    seqs, digests = {report["seq"] for report in reports.values()}, {report["digest"] for report in reports.values()}
    while learner.apply_batch(read_batch(journal, learner.seq)) and learner.seq < max(seqs):
        pass
    result = {
        "decisions": len(load.decisions),
        "feedback": len(load.feedback),
        "lost": len(load.decisions - ids.keys()) + len(load.feedback.keys() - ids.keys()),
        "doubled": sum(count > 1 for count in ids.values()) + sum(count > 1 for count in outcomes.values()),
        "slowest_ready_s": round(max(ready, default=0.0), 2),
        "events": journal.head(),
        "position": (learner.seq, sorted(seqs)),
        "state_is_the_fold": (seqs, digests) == ({learner.seq}, {learner.digest()}),
    }
    journal.close()
    result["passed"] = not result["lost"] and not result["doubled"] and bool(result["state_is_the_fold"])
    return result


def events(journal: Journal) -> Iterator[Event]:
    """All events of a journal."""
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
    arguments = parser.parse_args()
    if not RESPONSES.is_file():
        print(json.dumps({"skipped": f"there is no {RESPONSES.name}"}))
        return
    results = []
    for workers in arguments.workers:
        with tempfile.TemporaryDirectory() as folder:
            results.append(run(Path(folder), arguments.kills, workers, arguments.prefill))
    print(json.dumps(results, indent=1))
    sys.exit(0 if all(result["passed"] for result in results) else 1)


if __name__ == "__main__":
    main()
