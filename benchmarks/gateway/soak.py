"""Soak test of a gateway: an hour of 50 requests a second with faults; memory, descriptors, tasks, threads over time.

    python -m benchmarks.gateway.soak --minutes 60
    python -m benchmarks.gateway.soak --minutes 6 --rate 20 --warm-minutes 3 --trailers-mb 500 --connections 10000

The gateway has a journal, a warehouse and a scorer on disk; its two models are one loopback server that fails one call
in eight: errors of each class, resets, stalls, streams that break off, nonsense. A tenth of the clients leave, a fifth
votes. `in_use_mb` is what C code has allocated and not freed, and `blocks` are Python's allocations: where they do not
grow and memory does, allocators keep the room of a peak. `mapped_mb` is the resident part of files and shared memory:
libraries, the index of the journal's log. The slopes are fitted to the samples after the warm-up, the
first third. With `--warm-minutes` it serves as long before, then takes trailers without end and connections that are
closed at every point of a request; what is resident after each part, and at rest, is compared with the plateau: the
median of the last half of these minutes. Prints JSON; exits with 1 if memory grows by more than 2 MB an hour beyond
twice the fit's standard error, or is 20 MB above the plateau, or descriptors, tasks and threads are not flat.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import itertools
import json
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import yaml
from benchmarks.gateway.process import memory_mb, wait_for
from tests.kits.fake_openai import HANG, FakeOpenAI, Reply, in_a_thread, reply, sse

SAMPLE_S = 10.0
USERS = 200
GROWTH_MB_PER_HOUR = 2.0
ABOVE_PLATEAU_MB = 20.0
_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
_BODY = b'{"model":"fitrouter/auto","user":"u1","messages":[{"role":"user","content":"What about it?"}]}'
_ASKED = _HEAD + b"content-length: %d\r\n\r\n" % len(_BODY) + _BODY
_TRAILERS = (b"x: y\r\n" * 10_000, b"x: " + b"y" * 60_000, b"y" * 60_000, (b"x-1: " + b"y" * 900 + b"\r\n") * 60)
_CLOSED = (
    *((b"", False), (b"GE", False), (_HEAD, False), (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", True)),
    *((_ASKED[:-9], False), (_ASKED, False), (_ASKED, True), (_ASKED.replace(b"{", b'{"stream":true,', 1), False)),
    *((_ASKED * 3, False), (b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n\r\n", True)),
)
"""What a client sends before it leaves, and whether it waits for an answer."""
_FIELDS = ("rss_mb", "descriptors", "tasks", "threads", "objects", "in_use_mb", "blocks", "mapped_mb")


class _Mallinfo(ctypes.Structure):
    """The structure `mallinfo2` of malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "in_use", "free", "top")
    )


def serve(config: Path, samples: Path) -> None:
    """Serve in this process, and append a sample to a file from time to time; the first line is the port."""
    from fitrouter.config import load_config
    from fitrouter_integrations.gateway import bind
    from fitrouter_integrations.gateway import serve as serve_gateway

    settings = load_config(config)
    listener = bind(settings)
    with samples.open("a", buffering=1) as file:
        file.write(f"{listener.getsockname()[1]}\n")
        threading.Thread(target=_sample, args=(file,), daemon=True).start()
        serve_gateway(settings, 1, listener, services_inside=True)


def _sample(file: Any) -> None:
    glibc = ctypes.CDLL(None)
    glibc.mallinfo2.restype = _Mallinfo
    while True:
        time.sleep(SAMPLE_S)
        found = gc.get_objects()
        tasks = sum(isinstance(each, asyncio.Task) and not each.done() for each in found)
        pages = map(int, Path("/proc/self/statm").read_text().split())
        _, rss, mapped, *_ = (each * os.sysconf("SC_PAGE_SIZE") / 1e6 for each in pages)
        process = (rss, len(list(Path("/proc/self/fd").iterdir())), tasks, threading.active_count(), len(found))
        now = (*process, glibc.mallinfo2().in_use / 1e6, sys.getallocatedblocks(), mapped)
        del found
        file.write(json.dumps([time.monotonic(), *now]) + "\n")


def faulty(rng: random.Random) -> Iterator[Reply | None]:
    """Generate replies of the upstream: mostly its own, now and then a fault."""
    error = {"error": {"message": "no"}}
    faults = (
        *(reply(status, error) for status in (400, 403, 408, 500, 502)),
        *(reply(status, error, retry_after="1") for status in (429, 503)),
        reply(200, error),
        reply(200, b"<html>"),
        reply(200, {"choices": []}),
        Reply(),
        Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"),
        Reply(HANG),
        Reply(1.5, b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n"),
        sse(b'data: {"choices":[{"delta":{"content":"so"}}]}\n\n', end=False),
        sse(b'data: {"choices":[{"delta":{"content":"so"}}]}\n\n', HANG),
    )
    for _ in itertools.count():
        yield rng.choice(faults) if rng.random() < 0.125 else None


class Load:
    """Clients that arrive at a fixed rate."""

    def __init__(self, url: str, rate: float, seed: int) -> None:
        self.url, self.rate, self.rng = url, rate, random.Random(seed)
        self.statuses: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        """Send requests at the fixed rate, without waiting for earlier ones."""
        began, tasks = time.monotonic(), set[asyncio.Task[None]]()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            for number in range(int(self.rate * seconds)):
                if (wait := began + number / self.rate - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                task = asyncio.create_task(self.client(session))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.gather(*tasks)

    async def client(self, session: aiohttp.ClientSession) -> None:
        """Act as one client: ask, perhaps leave early, perhaps vote."""
        rng, user = self.rng, f"u{self.rng.randrange(USERS)}"
        text = f"What about case {rng.randrange(1000)}?"
        body = {"messages": [{"role": "user", "content": text}], "user": user, "stream": rng.random() < 0.4}
        patience = rng.expovariate(2.0) if rng.random() < 0.1 else 60.0
        try:
            async with asyncio.timeout(patience):
                async with session.post(f"{self.url}/v1/chat/completions", json=body) as answer:
                    await answer.read()
                self.statuses[f"{answer.status}"] += 1
                if answer.status == 200 and rng.random() < 0.2:
                    id_ = answer.headers["x-fitrouter-decision"]
                    vote = {"decision_id": id_, "kind": "thumb", "value": "up", "user": user}
                    async with session.post(f"{self.url}/v1/feedback", json=vote) as voted:
                        self.statuses[f"vote {voted.status}"] += 1
        except TimeoutError:
            self.statuses["left"] += 1
        except aiohttp.ClientError as error:
            self.statuses[type(error).__name__] += 1


def send_trailers(address: tuple[str, int], megabytes: float) -> int:
    """Send trailers that do not end, each connection until it is closed; returns the number of connections."""
    head = _HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    sent = connections = 0
    while sent < 1e6 * megabytes:
        piece = _TRAILERS[connections % len(_TRAILERS)]
        connections += 1
        with socket.create_connection(address, 60.0) as connection, suppress(ConnectionError):
            connection.sendall(head)
            while sent < 1e6 * megabytes:
                sent += connection.send(piece)
    return connections


def close_connections(address: tuple[str, int], count: int) -> None:
    """Open connections, eight at a time, and close each at some point of a request."""

    def leave(number: int) -> None:
        sent, waits = _CLOSED[number % len(_CLOSED)]
        with socket.create_connection(address, 60.0) as connection, suppress(ConnectionError):
            connection.sendall(sent)
            if waits:
                connection.recv(65_536)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(leave, range(count)))


def slopes(samples: list[list[float]]) -> dict[str, dict[str, float]]:
    """Fit the slope per hour of each measure, with its standard error, by least squares over the last two thirds."""
    rows = np.array(samples[len(samples) // 3 :])
    hours = (rows[:, 0] - rows[0, 0]) / 3600.0
    found = {}
    for i, name in enumerate(_FIELDS, 1):
        (slope, at), cov = np.polyfit(hours, rows[:, i], 1, cov=True)
        found[name] = {
            "first": float(rows[0, i]),
            "last": float(rows[-1, i]),
            "per_hour": round(float(slope), 2),
            "se": round(float(np.sqrt(cov[0, 0])), 2),
            "at_start": round(float(at), 2),
        }
    return found


def run(
    folder: Path, minutes: float, rate: float, seed: int, warm: float, megabytes: float, closed: int
) -> dict[str, Any]:
    """Serve, load, and sample; return what was measured."""
    rng = random.Random(seed)
    with in_a_thread(FakeOpenAI(faulty(rng), models=("fake-a", "fake-b"))) as upstream:
        settings = {
            "data": str(folder / "data"),
            "providers": {"fake": {"kind": "openai_compatible", "base_url": upstream.base_url}},
            "models": [{"name": name, "provider": "fake"} for name in ("fake-a", "fake-b")],
            "server": {"port": 0, "deadline_s": 10, "first_token_s": 2, "chunk_gap_s": 1},
        }
        config, samples = folder / "fitrouter.yaml", folder / "samples"
        config.write_text(yaml.safe_dump(settings))
        command = [sys.executable, "-m", "benchmarks.gateway.soak", "--serve", str(config), "--samples", str(samples)]
        with subprocess.Popen(command) as process:
            try:
                wait_for(lambda: process.poll() is not None or (samples.is_file() and samples.read_text()))
                assert process.poll() is None, "the gateway did not start"
                address = ("127.0.0.1", int(samples.read_text().split()[0]))
                load = Load(f"http://127.0.0.1:{address[1]}", rate, seed)
                asyncio.run(load.run(60.0 * warm))
                before = [json.loads(line) for line in samples.read_text().splitlines()[1:]]
                resident = {}
                if before:
                    resident["plateau"] = statistics.median(line[1] for line in before[len(before) // 2 :])
                    trailing = send_trailers(address, megabytes)
                    resident[f"after {megabytes:.0f} MB of trailers, {trailing} connections"] = memory_mb(process.pid)
                    close_connections(address, closed)
                    resident[f"after {closed} closed connections"] = memory_mb(process.pid)
                began = time.monotonic()
                asyncio.run(load.run(60.0 * minutes))
                resident[f"after {minutes:g} minutes of soak"] = memory_mb(process.pid)
                time.sleep(2 * SAMPLE_S)
                resident["at rest"] = memory_mb(process.pid)
            finally:
                process.terminate()
                code = process.wait(90.0)
        lines = [json.loads(line) for line in samples.read_text().splitlines()[1:]]
    lines = [line for line in lines if line[0] >= began]
    found = slopes(lines[:-2])
    flat = {name: abs(found[name]["last"] - found[name]["first"]) <= 20 for name in ("descriptors", "threads")}
    flat["tasks"] = lines[-1][3] <= lines[0][3] + 20
    flat["memory"] = found["rss_mb"]["per_hour"] - 2.0 * found["rss_mb"]["se"] <= GROWTH_MB_PER_HOUR
    flat["plateau"] = max(resident.values()) <= resident.get("plateau", math.inf) + ABOVE_PLATEAU_MB
    return {
        "minutes": minutes,
        "rate": rate,
        "exit_code": code,
        "outcomes": dict(load.statuses),
        "resident_mb": {name: round(each, 1) for name, each in resident.items()},
        "slopes": found,
        "at_rest": dict(zip(_FIELDS, lines[-1][1:], strict=True)),
        "flat": flat,
        "samples": [[round(each, 1) for each in line] for line in lines[:: max(1, len(lines) // 20)]],
    }


def main() -> None:
    """Run the soak; print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm-minutes", type=float, default=0.0, help="of load before the trailers; 0: no such drill")
    parser.add_argument("--trailers-mb", type=float, default=500.0)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--samples", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        serve(chosen.serve, chosen.samples)
        return
    with tempfile.TemporaryDirectory() as folder:
        drill = chosen.warm_minutes, chosen.trailers_mb, chosen.connections
        found = run(Path(folder), chosen.minutes, chosen.rate, chosen.seed, *drill)
    print(json.dumps(found, indent=1))
    sys.exit(0 if all(found["flat"].values()) else 1)


if __name__ == "__main__":
    main()
