"""Acceptance test of a whole gateway: the openai client against eleven recorded models, then all invariants of the log.

    python -m benchmarks.gateway.acceptance --requests 2000 --users 50 --workers 1

Prints JSON; exits with 1 where an invariant does not hold, or a killed worker is replaced too late.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import httpx
import numpy as np
import openai
from benchmarks.gateway.process import RESPONSES, Gateway, kill_9, wait_for, write_config

from fitrouter.config import load_config
from fitrouter.draw import replay
from fitrouter.errors import FitrouterError
from fitrouter.stores.journal import SqliteJournal
from fitrouter.stores.warehouse import Warehouse
from fitrouter.types import Decision, FeedbackKind
from fitrouter_integrations.client import Vote
from fitrouter_integrations.feedback import send

ROLES = ("developer", "writer", "analyst", "teacher")
VOTE_PATIENCE_S = 60.0
"""How long a vote waits for its decision: answers do not wait for slow commits."""
TAKEOVER_S = 5.0
"""How soon another process has the lease of one that was killed."""


def recorded() -> dict[tuple[str, str], str]:
    """Load the recorded responses, by (prompt, model)."""
    with duckdb.connect(":memory:") as connection:
        rows = connection.read_parquet(str(RESPONSES)).select("prompt", "model", "response").fetchall()
    return {(prompt, model): response for prompt, model, response in rows}


class Client:
    """An openai client that makes requests for users, checks every answer, and rates a few."""

    def __init__(self, url: str, answers: dict[tuple[str, str], str]) -> None:
        self.url, self.answers = url, answers
        self.prompts = list(dict.fromkeys(prompt for prompt, _ in answers))
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.latencies: list[float] = []
        self._local = threading.local()

    def ask(self, number: int, users: int) -> None:
        """Send one request and check its answer; its number decides whether it is streamed."""
        if not hasattr(self._local, "sdk"):
            self._local.sdk = openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0)
        prompt = random.Random(number).choice(self.prompts)
        user = number % users
        body: Any = {
            "model": "fitrouter/auto",
            "messages": [{"role": "user", "content": prompt}],
            "user": f"user-{user}",
            "metadata": {"role": ROLES[user % len(ROLES)]},
        }
        began = time.perf_counter()
        if number % 2:
            answer = self._local.sdk.chat.completions.create(**body)
            text, model, id_ = answer.choices[0].message.content, answer.model, answer.id
        else:
            chunks = list(self._local.sdk.chat.completions.create(**body, stream=True))
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            model, id_ = chunks[0].model, chunks[0].id
        self.latencies.append(time.perf_counter() - began)
        self.ids.append(id_.removeprefix("chatcmpl-"))
        if text != self.answers[prompt, model]:
            self.wrong.append(f"{id_}: not what {model} answered to {prompt[:60]!r}")
        if number % 10 == 0:
            vote = Vote(decision_id=self.ids[-1], kind=FeedbackKind.THUMB, value=float(bool(number % 20)))
            try:
                send(self.url, vote, VOTE_PATIENCE_S)
            except FitrouterError as error:
                self.wrong.append(f"feedback: {error}")


def run(folder: Path, requests: int = 2000, users: int = 50, workers: int = 1, threads: int = 8) -> dict[str, Any]:
    """Send the requests, wait until everything is processed, and check all that was logged."""
    file = write_config(folder)
    data = load_config(file).data
    result: dict[str, Any] = {"requests": requests, "users": users, "workers": workers}
    with Gateway(file, workers) as gateway:
        client = Client(gateway.url, recorded())
        began = time.monotonic()
        for number in range(min(2, requests)):  # whole and streamed: the SDK builds its models on first use, unlocked
            client.ask(number, users)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(client.ask, range(2, requests), itertools.repeat(users)))
        result["seconds"] = round(time.monotonic() - began, 1)
        result["latency_ms"] = {
            name: round(1000 * float(np.quantile(client.latencies, q)), 2) for name, q in (("p50", 0.5), ("p99", 0.99))
        }
        result["wrong_answers"] = client.wrong[:5]
        reports = gateway.at_rest()
        result["positions"] = sorted({(report["seq"], report["digest"][:16]) for report in reports.values()})
        result["leases"] = sorted({name for report in reports.values() for name in report["leases"]})
        result["explained"] = explained(gateway.url, random.Random(0).sample(client.ids, min(50, requests)))
        warehouse = Warehouse(data / "fitrouter.duckdb")
        result["rows"] = {
            table: warehouse.query(f"SELECT count(*), count(DISTINCT decision_id) FROM {table}")[0]
            for table in ("decisions", "executions", "scores")
        }
        result["takeover_s"] = takeover(gateway, reports)
        result["exit_code"] = gateway.stop()
    result["invariants"] = invariants(decisions_of(data))
    result["passed"] = passed(result)
    return result


def explained(url: str, ids: Sequence[str]) -> int:
    """Count the decisions whose explanation is complete."""
    with httpx.Client(base_url=url, timeout=30.0) as http:
        stories = [http.get(f"/v1/decisions/{id_}").json() for id_ in ids]
    return sum(
        story["decision_id"] == id_ and story["chosen"] in story["why"] and bool(story["execution"] and story["score"])
        for id_, story in zip(ids, stories, strict=True)
    )


def takeover(gateway: Gateway, reports: dict[int, dict[str, Any]]) -> float:
    """Kill -9 the services process; return the seconds until another one holds its leases."""
    holder = next(report["services"] for report in reports.values())
    kill_9(holder)
    began = time.monotonic()

    def taken() -> bool:
        found = gateway.reports().values()
        return any(report["services"] not in {holder, None} and "scorer" in report["leases"] for report in found)

    wait_for(taken)
    return round(time.monotonic() - began, 2)


def decisions_of(data: Path) -> list[Decision]:
    """All decisions of a journal that is not in use."""
    journal = SqliteJournal(data / "journal.db")
    found: list[Decision] = []
    after = 0
    while rows := journal.tail(after, 2000):
        found += [row.event for row in rows if isinstance(row.event, Decision)]
        after = rows[-1].seq
    journal.close()
    return found


def invariants(decisions: Sequence[Decision]) -> dict[str, Any]:
    """Count violated sums, floors and replayed draws; report the mean of 1 / (K p) and how far it is from 1."""
    drawn = [d for d in decisions if d.mode.drawn]
    inverse = np.array([1.0 / (len(d.probs) * d.propensity) for d in drawn])
    error = float(inverse.std(ddof=1)) / math.sqrt(len(drawn))
    return {
        "drawn": len(drawn),
        "sum_off_by": max(abs(math.fsum(d.probs) - 1.0) for d in drawn),
        "below_floor": sum(min(d.probs) < d.floor / len(d.probs) for d in drawn),
        "not_replayed": sum(replay(d) != d.chosen for d in drawn),
        "propensity_not_logged": sum(d.propensity != d.probs[d.eligible.index(d.chosen)] for d in drawn),
        "twin_off_by": max(abs(math.fsum(d.twin) - 1.0) for d in drawn),
        "mean_inverse_propensity": float(inverse.mean()),
        "standard_errors_from_1": float((inverse.mean() - 1.0) / error) if error > 0 else 0.0,
    }


def passed(result: dict[str, Any]) -> bool:
    """Whether all invariants hold, whatever the time."""
    n = result["requests"]
    checks = result["invariants"]
    return (
        not result["wrong_answers"]
        and all(tuple(count) == (n, n) for count in result["rows"].values())
        and len(result["positions"]) == 1
        and result["leases"] == ["scorer", "warehouse"]
        and result["explained"] == min(50, n)
        and result["exit_code"] == 0
        and checks["drawn"] == n
        and max(checks["sum_off_by"], checks["twin_off_by"]) < 1e-12
        and checks["below_floor"] == checks["not_replayed"] == checks["propensity_not_logged"] == 0
        and abs(checks["standard_errors_from_1"]) < 5.0
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    if not RESPONSES.is_file():
        print(json.dumps({"skipped": f"there is no {RESPONSES.name}"}))
        return
    results = []
    for workers in arguments.workers:
        with tempfile.TemporaryDirectory() as folder:
            results.append(run(Path(folder), arguments.requests, arguments.users, workers))
    print(json.dumps(results, indent=1))
    sys.exit(0 if all(result["passed"] and result.get("takeover_s", 0.0) <= TAKEOVER_S for result in results) else 1)


if __name__ == "__main__":
    main()
