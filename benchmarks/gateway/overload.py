"""Goodput of one gateway worker in an open loop: at its capacity, at twice as much, and after.

    python -m benchmarks.gateway.overload --seconds 10 --json results/overload.json

Simulated models answer after 0.2 s, so that the worker's own CPU is the bottleneck; the journal is on disk and a scorer
runs. Capacity is the throughput of 32 connections in a closed loop, which back off for a second when they are refused.
In the open loop requests come at fixed times,
whatever has become of earlier ones. Goodput is the number of answers a second that came within a second. Client and
gateway share the machine: read ratios. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from benchmarks.gateway.process import Gateway

PATIENCE_S = 1.0
"""An answer counts if it came within this time."""
LATENCY_S = 0.2
PERSONA = {"length": 2.0, "latency_s": LATENCY_S}
CONFIG = f"""
providers: {{s: {{kind: simulated, concurrency: 4000, options: {{small: {PERSONA}, large: {PERSONA}}}}}}}
models: [{{name: small, provider: s}}, {{name: large, provider: s}}]
"""


class Result(NamedTuple):
    """One request: when it was due, how long it took, and its status; 0 for a lost connection."""

    due: float
    took: float
    status: int


async def ask(session: aiohttp.ClientSession, url: str, number: int, due: float) -> Result:
    """Send one request."""
    body = {"messages": [{"role": "user", "content": f"Case {number}: what next?"}], "user": f"u{number % 50}"}
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as reply:
            await reply.read()
            status = reply.status
    except (aiohttp.ClientError, TimeoutError):
        status = 0
    return Result(due, time.monotonic() - due, status)


async def closed_loop(session: aiohttp.ClientSession, url: str, seconds: float, connections: int = 32) -> float:
    """Measure answers a second with a fixed number of concurrent requests."""
    end, served = time.monotonic() + seconds, 0

    async def client(number: int) -> None:
        nonlocal served
        while (now := time.monotonic()) < end:
            status = (await ask(session, url, number, now)).status
            served += status == 200
            if status != 200:
                await asyncio.sleep(1.0)

    await asyncio.gather(*map(client, range(connections)))
    return served / seconds


async def open_loop(session: aiohttp.ClientSession, url: str, rate: float, seconds: float) -> list[Result]:
    """Send requests at a fixed rate, without waiting for earlier ones; return their results."""
    began, tasks = time.monotonic(), []
    for number in range(int(rate * seconds)):
        due = began + number / rate
        if (wait := due - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(ask(session, url, number, due)))
    return await asyncio.gather(*tasks)


def summary(results: list[Result], seconds: float) -> dict[str, Any]:
    """Summarise goodput, statuses, and latencies in ms."""
    good = [r.took for r in results if r.status == 200 and r.took <= PATIENCE_S]
    refused = [r.took for r in results if r.status in {429, 503}]
    return {
        "offered_per_s": round(len(results) / seconds, 1),
        "goodput_per_s": round(len(good) / seconds, 1),
        "statuses": dict(sorted(Counter(r.status for r in results).items())),
        "answer_ms": _quantiles([r.took for r in results if r.status == 200]),
        "refusal_ms": _quantiles(refused),
    }


def _quantiles(values: list[float]) -> dict[str, float] | None:
    if len(values) < 2:
        return None
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": round(1000 * cuts[49], 1), "p99": round(1000 * cuts[98], 1)}


def recovery_s(after: list[Result], normal_s: float) -> float:
    """Seconds from the end of the overload until every later request is answered in a normal time."""
    began = after[0].due
    late = [r.due - began for r in after if r.status != 200 or r.took > normal_s]
    return round(max(late, default=0.0), 2)


async def measure(url: str, seconds: float) -> dict[str, Any]:
    """Run all phases: capacity, half and full load, double load, and half load after it."""
    timeout = aiohttp.ClientTimeout(total=60.0)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        await closed_loop(session, url, 3.0)
        capacity = await closed_loop(session, url, seconds)
        half = await open_loop(session, url, 0.5 * capacity, seconds)
        full = await open_loop(session, url, capacity, seconds)
        await asyncio.sleep(3.0)
        double = await open_loop(session, url, 2.0 * capacity, seconds)
        after = await open_loop(session, url, 0.5 * capacity, seconds)
    phases = {"half": half, "full": full, "double": double, "half after it": after}
    found: dict[str, Any] = {name: summary(results, seconds) for name, results in phases.items()}
    normal = found["half"]["answer_ms"]["p99"] / 1000.0
    peak = max(found["half"]["goodput_per_s"], found["full"]["goodput_per_s"], capacity)
    return {
        "capacity_per_s": round(capacity, 1),
        **found,
        "goodput_kept": round(found["double"]["goodput_per_s"] / peak, 3),
        "recovery_s": recovery_s(after, max(2.0 * normal, 1.5 * LATENCY_S)),
    }


def main() -> None:
    """Parse the command line, measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fitrouter.yaml"
        file.write_text(CONFIG + f"data: {folder}/data\n")
        with Gateway(file) as gateway:
            found = asyncio.run(measure(gateway.url, options.seconds))
    text = json.dumps(found, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text)


if __name__ == "__main__":
    main()
