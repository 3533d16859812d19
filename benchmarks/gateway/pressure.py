"""SIGTERM with many open streams; and how long other requests take while the scorer hangs or slow bodies are held.

    python -m benchmarks.gateway.pressure --streams 500
    python -m benchmarks.gateway.pressure --streams 0 --rounds 4 --seconds 20 --rate 10

Streams: some end within the grace period, others could not. Each must finish, or be told why it ends, and each decision
must have its execution in the journal. The other requests come at a fixed rate; phases without and with the pressure
alternate in one run, so that their ratio says more than their times. Prints JSON; exits with 1 if a stream or a
decision has no end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from benchmarks.gateway.crash import events
from benchmarks.gateway.overload import Result, open_loop, summary
from benchmarks.gateway.process import Gateway, wait_for

from fitrouter.stores.journal import SqliteJournal
from fitrouter.types import Decision, Execution

OPENED_PER_S, OPENED_IN_S = 5.0, 150.0
QUICK_S, SLOW_S = 15.0, 60.0
"""How long streams of two models take beyond the time before SIGTERM; the grace period is 30 s."""
BODIES, BODY, SENT = 100, 9_900_000, 500_000
"""Slow bodies held at a time, their length, and what comes of it at once; then a thousand bytes a second."""


def write_config(folder: Path, models: dict[str, float], **server: float) -> Path:
    """A configuration with simulated models that answer after some seconds."""
    options = {name: {"length": 9.0, "latency_s": latency} for name, latency in models.items()}
    settings = {
        "data": str(folder / "data"),
        "providers": {"s": {"kind": "simulated", "concurrency": 4000, "options": options}},
        "models": [{"name": name, "provider": "s"} for name in models],
        "server": {"port": 0, **server},
    }
    file = folder / "fitrouter.yaml"
    file.write_text(yaml.safe_dump(settings))
    return file


# --- SIGTERM ---------------------------------------------------------------------------------------------------------


async def read_stream(session: aiohttp.ClientSession, url: str, model: str, number: int, refused: set[int]) -> str:
    """How a stream ended: finished, told (and what), or lost. One that is refused for overload is asked for again.

    `refused` has the streams that wait to ask again, and −1 if none may any more.
    """
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": f"Case {number}: what next?"}]}
    text = ""
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as reply:
            async for part in reply.content.iter_any():
                text += part.decode()
            status = reply.status
    except (aiohttp.ClientError, TimeoutError) as error:
        return f"lost: {type(error).__name__}{' after a part' if text else ''}"
    if status == 503 and json.loads(text)["error"]["code"] == "overloaded":
        if -1 in refused:
            return "not open: 503 overloaded"
        refused.add(number)
        await asyncio.sleep(1.0)
        refused.discard(number)
        return await read_stream(session, url, model, number, refused)
    if status != 200:
        return f"refused: {status} {json.loads(text)['error']['code']}"
    last = text.rstrip().rpartition("data: ")[2]
    if last == "[DONE]":
        return "finished"
    with suppress(ValueError, KeyError, TypeError):
        return f"told: {json.loads(last)['error']['code']}"
    return "lost: no end"


async def terminate(gateway: Gateway, count: int) -> tuple[Counter[str], int]:
    """Open streams, send SIGTERM while all are open, and count how they end; also the exit code."""
    connector, patience = aiohttp.TCPConnector(limit=0, force_close=True), aiohttp.ClientTimeout(total=None)
    refused = set[int]()
    async with aiohttp.ClientSession(connector=connector, timeout=patience) as session:
        began, streams = time.monotonic(), []
        for number in range(count):
            model = ("quick", "slow")[number % 2]
            streams.append(asyncio.create_task(read_stream(session, gateway.url, model, number, refused)))
            await asyncio.sleep(1.0 / OPENED_PER_S)
        await asyncio.sleep(max(began + OPENED_IN_S - 2.0 - time.monotonic(), 0.0))
        refused.add(-1)  # no more attempts
        await asyncio.sleep(2.0)
        open_now = sum(not stream.done() for stream in streams)
        code = await asyncio.to_thread(gateway.stop)
        ended = Counter(await asyncio.gather(*streams))
    ended["open at SIGTERM"] = open_now
    return ended, code


def streams(folder: Path, count: int) -> dict[str, Any]:
    """A gateway that is told to end while streams are open."""
    latencies = {"quick": OPENED_IN_S + QUICK_S, "slow": OPENED_IN_S + SLOW_S}
    config = write_config(folder, latencies, deadline_s=600.0, first_token_s=300.0)
    with Gateway(config) as gateway:
        ended, code = asyncio.run(terminate(gateway, count))
    journal = SqliteJournal(folder / "data" / "journal.db")
    logged = list(events(journal))
    journal.close()
    decisions = {event.id for event in logged if isinstance(event, Decision)}
    executions = {event.decision_id: event.status for event in logged if isinstance(event, Execution)}
    return {
        "streams": count,
        "ended": dict(sorted(ended.items())),
        "exit_code": code,
        "decisions": len(decisions),
        "without an execution": len(decisions - executions.keys()),
        "executions": dict(Counter(executions.values())),
        "passed": not any(how.startswith("lost") for how in ended) and not code and decisions == executions.keys(),
    }


# --- other requests --------------------------------------------------------------------------------------------------


def serve(config: Path, hang: Path) -> None:
    """Serve in this process with the services inside; the scorer hangs while a file exists. Prints the port."""
    from fitrouter.config import load_config
    from fitrouter_evaluators.scoring.plugin import ScorerService
    from fitrouter_integrations.gateway import bind
    from fitrouter_integrations.gateway import serve as serve_gateway

    step = ScorerService.step

    def step_or_hang(self: ScorerService) -> int:
        while hang.exists():
            time.sleep(0.05)
        return step(self)

    ScorerService.step = step_or_hang  # type: ignore[method-assign]
    settings = load_config(config)
    listener = bind(settings)
    print(listener.getsockname()[1], flush=True)
    serve_gateway(settings, 1, listener, services_inside=True)


async def slow_body(host: str, port: int, seen: Counter[str]) -> None:
    """Send bodies that hardly advance, one after the other."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += b"content-length: %d\r\n\r\n"
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(head % BODY + b'{"x":"' + b"y" * SENT)
            answered = asyncio.create_task(reader.read(1000))
            while not answered.done():
                await asyncio.wait([answered], timeout=1.0)
                writer.write(b"y" * 1000)
                seen["seconds held"] += 1
            seen[(await answered)[9:12].decode() or "closed"] += 1
            writer.close()
        except OSError:
            seen["reset"] += 1
        await asyncio.sleep(1.0)


@asynccontextmanager
async def under(pressure: str, host: str, port: int, hang: Path, seen: Counter[str]) -> AsyncIterator[None]:
    """Put the gateway under a kind of pressure."""
    tasks = []
    if pressure == "the scorer hangs":
        await asyncio.to_thread(hang.touch)
    elif pressure == "slow bodies":
        tasks = [asyncio.create_task(slow_body(host, port, seen)) for _ in range(BODIES)]
        await asyncio.sleep(3.0)
    try:
        yield
    finally:
        await asyncio.to_thread(hang.unlink, missing_ok=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(3.0)  # what waited is scored


async def measure(port: int, hang: Path, rounds: int, seconds: float, rate: float) -> dict[str, Any]:
    """Alternate between phases with and without each kind of pressure."""
    url, host = f"http://127.0.0.1:{port}", "127.0.0.1"
    kinds = ("nothing", "the scorer hangs", "nothing", "slow bodies")
    found: dict[str, list[Result]] = {kind: [] for kind in kinds}
    bodies: Counter[str] = Counter()
    timeout = aiohttp.ClientTimeout(total=60.0)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        await open_loop(session, url, rate, 5.0)
        for _ in range(rounds):
            for kind in kinds:
                async with under(kind, host, port, hang, bodies):
                    found[kind] += await open_loop(session, url, rate, seconds)
    shown: dict[str, Any] = {kind: summary(results, 1.0) for kind, results in found.items()}
    alone = shown["nothing"]["answer_ms"]
    out: dict[str, Any] = {"bodies": dict(bodies)}
    for kind, each in shown.items():
        times = each["answer_ms"]
        ratio = {name: round(times[name] / alone[name], 2) for name in times}
        out[kind] = {"requests": len(found[kind]), "statuses": each["statuses"], "answer_ms": times, "ratio": ratio}
    return out


def others(folder: Path, rounds: int, seconds: float, rate: float) -> dict[str, Any]:
    """Other requests of a gateway under pressure."""
    config, hang = write_config(folder, {"small": 0.05, "large": 0.05}), folder / "hang"
    command = [sys.executable, "-m", "benchmarks.gateway.pressure", "--serve", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            wait_for(lambda: _ready(port), 120.0)
            return asyncio.run(measure(port, hang, rounds, seconds, rate))
        finally:
            hang.unlink(missing_ok=True)
            process.terminate()
            process.wait(90.0)


def _ready(port: int) -> bool:
    import httpx

    with suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5.0).status_code == 200
    return False


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=500, help="open at SIGTERM; 0 for none")
    parser.add_argument("--rounds", type=int, default=0, help="of phases without and with pressure")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each phase")
    parser.add_argument("--rate", type=float, default=10.0, help="other requests a second")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        serve(chosen.serve, chosen.serve.parent / "hang")
        return
    found: dict[str, Any] = {}
    if chosen.streams:
        with tempfile.TemporaryDirectory() as folder:
            found["SIGTERM"] = streams(Path(folder), chosen.streams)
    if chosen.rounds:
        with tempfile.TemporaryDirectory() as folder:
            found["other requests"] = others(Path(folder), chosen.rounds, chosen.seconds, chosen.rate)
    print(json.dumps(found, indent=1))
    sys.exit(0 if found.get("SIGTERM", {}).get("passed", True) else 1)


if __name__ == "__main__":
    main()
