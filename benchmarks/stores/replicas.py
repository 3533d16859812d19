"""What a second gateway on one PostgreSQL adds: throughput, CPU and lag, beside one gateway and one with SQLite.

    python -m benchmarks.stores.replicas [--seconds 10] [--rounds 3] [--delay 0.4]

starts a server of its own, with fsync; its binaries must be installed. Each gateway is a process with a folder of its
own: a router with scorer and warehouse, whose simulated models answer after `--delay`. Callers wait for an answer
before they ask again; a fifth of the answers is rated. With few callers a gateway waits for its models; with many, for
a core. The kinds take turns; medians of the rounds are compared. CPU is of the gateways and of the server, per request.
Lag is the time from a look at the log's end to the moment when a gateway has folded it. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from tests.kits import postgres

from fitrouter import Router
from fitrouter.config import parse_config
from fitrouter.types import FeedbackKind, Identity, Request

KINDS = {"sqlite": 1, "postgres": 1, "two_on_postgres": 2}
CALLERS = {"waiting": 8, "busy": 64}
_USERS = 50
_LOOK_S = 0.1


def _config(data: str, folder: Path, delay: float) -> dict[str, Any]:
    place = {"data": data, "folder": str(folder)} if data else {"data": str(folder)}
    return {
        **place,
        "providers": {"s": {"kind": "simulated", "options": {name: {"latency_s": delay} for name in "ab"}}},
        "models": [{"name": name, "provider": "s"} for name in "ab"],
        "encoder": "hashing",
        "scorer": {"encoder": "hashing"},
    }


# --- a gateway's process ---


async def _gateway(config: dict[str, Any], callers: int, seconds: float) -> None:
    async with Router.from_config(parse_config(config)) as router:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        began, done, lags = time.perf_counter(), 0, list[float]()
        spent = time.process_time()

        async def call(caller: int) -> None:
            nonlocal done
            n = caller
            while time.perf_counter() - began < seconds:
                who = Identity(user=f"user-{n % _USERS}")
                words = ({"role": "user", "content": f"question {n} of {who.user}"},)
                answer = await router.complete(Request(messages=words, identity=who))
                done += 1
                if n % 5 == 0:
                    await router.feedback(answer.decision.id, FeedbackKind.THUMB, float(n % 2), identity=who)
                n += callers

        async def look() -> None:
            while time.perf_counter() - began < seconds:
                head, since = await asyncio.to_thread(router._journal.head), time.perf_counter()
                while router._learner.seq < head:  # noqa: ASYNC110 - the lag is measured, not waited for
                    await asyncio.sleep(0.002)
                lags.append((time.perf_counter() - since) * 1000)
                await asyncio.sleep(_LOOK_S)

        await asyncio.gather(look(), *(call(n) for n in range(callers)))
        wall, spent = time.perf_counter() - began, time.process_time() - spent
        print(json.dumps({"requests": done, "seconds": wall, "cpu_s": spent, "lags": lags}), flush=True)


# --- the comparison ---


def _server_cpu(server: postgres.Server) -> float:
    """Return CPU seconds of the server and its processes, ended ones included."""
    assert server._process is not None
    first, ticks = server._process.pid, os.sysconf("SC_CLK_TCK")
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(first)], capture_output=True, text=True, check=True)
    total = 0
    for pid in (first, *map(int, children.stdout.split())):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15] if pid == first else fields[11:13]))
    return total / ticks


def one(kind: str, callers: int, seconds: float, delay: float, server: postgres.Server) -> dict[str, float]:
    """Run the gateways of one kind for some seconds, and measure them."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        data = "" if kind == "sqlite" else server.url(server.database())
        several = []
        for n in range(KINDS[kind]):
            command = [sys.executable, "-m", "benchmarks.stores.replicas", "--gateway"]
            config = json.dumps(_config(data, folder / str(n), delay))
            process = subprocess.Popen(
                [*command, config, str(callers), str(seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"  # one after the other: the first makes the tables
            several.append(process)
        before = _server_cpu(server)
        for process in several:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        told = [json.loads(process.stdout.readline()) for process in several if process.stdout]
        server_s = _server_cpu(server) - before
        for process in several:
            process.communicate(timeout=120)
    requests = sum(each["requests"] for each in told)
    lags = [lag for each in told for lag in each["lags"]]
    return {
        "requests_per_s": sum(each["requests"] / each["seconds"] for each in told),
        "gateway_cpu_ms": 1000 * sum(each["cpu_s"] for each in told) / requests,
        "server_cpu_ms": 0.0 if kind == "sqlite" else 1000 * server_s / requests,
        "cores_used": (sum(each["cpu_s"] for each in told) + (0.0 if kind == "sqlite" else server_s))
        / max(each["seconds"] for each in told),
        "lag_p50_ms": float(np.quantile(lags, 0.5)),
        "lag_p99_ms": float(np.quantile(lags, 0.99)),
    }


def main() -> None:
    """Compare the kinds, or run as one gateway."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.4)
    parser.add_argument("--gateway", nargs=3, metavar=("CONFIG", "CALLERS", "SECONDS"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.gateway:
        config, callers, seconds = chosen.gateway
        asyncio.run(_gateway(json.loads(config), int(callers), float(seconds)))
        return
    found: dict[str, Any] = {"rounds": chosen.rounds, "seconds": chosen.seconds, "delay_s": chosen.delay}
    with postgres.serving(fsync=True) as server:
        for name, callers in CALLERS.items():
            rounds = [
                {kind: one(kind, callers, chosen.seconds, chosen.delay, server) for kind in KINDS}
                for _ in range(chosen.rounds)
            ]
            middle = {
                kind: {what: statistics.median(each[kind][what] for each in rounds) for what in rounds[0][kind]}
                for kind in KINDS
            }
            rate = {kind: [each[kind]["requests_per_s"] for each in rounds] for kind in KINDS}
            found[name] = {
                "callers_per_gateway": callers,
                **{kind: {what: round(value, 2) for what, value in each.items()} for kind, each in middle.items()},
                "two_over_one": [
                    round(b / a, 2) for a, b in zip(rate["postgres"], rate["two_on_postgres"], strict=True)
                ],
                "postgres_over_sqlite": [
                    round(b / a, 2) for a, b in zip(rate["sqlite"], rate["postgres"], strict=True)
                ],
            }
    found |= {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
