"""CPU and latency of gateways in front of the same upstream: pass-through, LiteLLM's SDK and proxy, and fitrouter.

    python -m benchmarks.gateway.beside --seconds 4 --litellm-proxy VENV/bin/litellm

VENV is an environment with `litellm[proxy]` of the pinned version, whose dependencies clash with ours; without the
option the proxy is left out. Every target is in processes of its own, with everything that it does by default:
fitrouter logs, scores and feeds its warehouse. CPU is that of all processes of a target, until nothing is left to do,
per request answered. Client and upstream share the machine with them and are not counted: read ratios. Latencies are of
an open loop, at 30 requests a second and at half of a target's throughput. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import httpx
import numpy as np
import yaml
from benchmarks.gateway.process import Gateway, wait_for

CHUNKS = 64
TEXT = "Some words of an answer. "
CONNECTIONS = (1, 32, 256)
RATE = 30.0
"""Requests a second at which all targets' latencies are compared."""
_CREATED = {"id": "chatcmpl-1", "created": 1, "model": "fake"}
_USAGE = {"prompt_tokens": 12, "completion_tokens": CHUNKS, "total_tokens": 12 + CHUNKS}


# --- upstream and small targets, each as `python -m benchmarks.gateway.beside --role NAME --port PORT` ---


def _whole() -> bytes:
    message = {"role": "assistant", "content": TEXT * 12}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = json.dumps({**_CREATED, "object": "chat.completion", "choices": [choice], "usage": _USAGE}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def _streamed() -> list[bytes]:
    def event(choices: list[dict[str, Any]], **more: Any) -> bytes:
        data = json.dumps({**_CREATED, "object": "chat.completion.chunk", "choices": choices, **more})
        return b"data: " + data.encode() + b"\n\n"

    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *[{"content": TEXT[:6]}] * (CHUNKS - 2), {}]
    events = [event([{"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}]) for delta in deltas]
    events += [event([], usage=_USAGE) + b"data: [DONE]\n\n"]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return [head, *(b"%x\r\n%s\r\n" % (len(each), each) for each in events), b"0\r\n\r\n"]


class Upstream(asyncio.Protocol):
    """HTTP server of a model that answers at once; each chunk of a stream is a write of its own."""

    whole, streamed = _whole(), _streamed()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Reset the state for a new connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._read = transport, b""

    def data_received(self, data: bytes) -> None:
        """Answer a request once its body is complete."""
        self._read += data
        head, found, body = self._read.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if not found or len(body) < length:
            return
        self._read = b""
        if b'"stream":true' in body.replace(b" ", b""):
            self._next(0)
        else:
            self._transport.write(self.whole)

    def _next(self, number: int) -> None:
        self._transport.write(self.streamed[number])
        if number + 1 < len(self.streamed):
            asyncio.get_running_loop().call_soon(self._next, number + 1)


async def _upstream(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


async def _body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


async def _begin(send: Any, kind: str) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind.encode())]})


def passing(upstream: str) -> Any:
    """Create an ASGI application that passes bytes through."""
    sessions: list[aiohttp.ClientSession] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if not sessions:
            sessions.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        headers = {"content-type": "application/json"}
        async with sessions[0].post(
            f"{upstream}/chat/completions", data=await _body(receive), headers=headers
        ) as reply:
            await _begin(send, reply.content_type)
            async for chunk in reply.content.iter_any():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    return app


def by_sdk(upstream: str) -> Any:
    """Create an ASGI application that calls `litellm.acompletion`."""
    import litellm

    litellm.suppress_debug_info = True

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = json.loads(await _body(receive))
        asked = {"model": "openai/fake", "api_base": upstream, "api_key": "none", "messages": body["messages"]}
        if not body.get("stream"):
            answer: Any = await litellm.acompletion(**asked)
            await _begin(send, "application/json")
            await send({"type": "http.response.body", "body": answer.model_dump_json().encode()})
            return
        chunks: Any = await litellm.acompletion(**asked, stream=True, stream_options={"include_usage": True})
        await _begin(send, "text/event-stream")
        async for chunk in chunks:
            event = f"data: {chunk.model_dump_json(exclude_none=True)}\n\n".encode()
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    return app


def play(role: str, port: int, upstream: str) -> None:
    """Serve as the upstream or a small target."""
    if role == "upstream":
        asyncio.run(_upstream(port))
        return
    import uvicorn

    app = {"bare": passing, "sdk": by_sdk}[role](upstream)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False, lifespan="off", loop="asyncio")


# --- targets ---


class Target(NamedTuple):
    """A running gateway."""

    name: str
    url: str
    pid: int
    model: str = "fake"
    quiet: Callable[[], bool] = lambda: True


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], port: int, env: dict[str, str] | None = None) -> Iterator[int]:
    """Start a process and wait until it accepts connections; yields its id."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env) as process:

        def accepts() -> bool:
            assert process.poll() is None, command
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        try:
            wait_for(accepts, 120.0)
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20.0)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def small(role: str, upstream: str = "") -> Iterator[Target]:
    """Start the upstream itself, or a small target."""
    port = free_port()
    here = [sys.executable, "-m", "benchmarks.gateway.beside", "--role", role, "--port", str(port)]
    with running([*here, "--upstream", upstream], port) as pid:
        yield Target(role, f"http://127.0.0.1:{port}/v1", pid)


@contextlib.contextmanager
def proxy(program: Path, upstream: str, folder: Path) -> Iterator[Target]:
    """Start LiteLLM's proxy with one model, without a database and keys."""
    port, file = free_port(), folder / "litellm.yaml"
    model = {"model": "openai/fake", "api_base": upstream, "api_key": "none"}
    file.write_text(yaml.safe_dump({"model_list": [{"model_name": "fake", "litellm_params": model}]}))
    command = [str(program), "--config", str(file), "--port", str(port), "--host", "127.0.0.1", "--telemetry", "False"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    env["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"
    with running(command, port, env) as pid:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: httpx.get(f"{url}/health/liveliness", timeout=10.0).status_code == 200, 120.0)
        yield Target("LiteLLM proxy", f"{url}/v1", pid)


@contextlib.contextmanager
def fitrouter(kind: str, upstream: str, folder: Path, *options: str) -> Iterator[Target]:
    """Start `fitrouter serve` with two models of the upstream."""
    provider = {"kind": kind, "base_url": upstream, "api_key_env": "BESIDE_KEY", "concurrency": 4000}
    os.environ["BESIDE_KEY"] = "none"
    prefix = "openai/" if kind == "litellm" else ""
    models = [
        {"name": name, "provider": "up", "target": f"{prefix}fake", "prices": {"input": 1, "output": 2}}
        for name in ("small", "large")
    ]
    file = folder / f"{kind}{len(options)}.yaml"
    data = str(folder / f"{kind}{len(options)}")
    file.write_text(yaml.safe_dump({"data": data, "providers": {"up": provider}, "models": models}))
    name = " ".join(["fitrouter", "direct" if kind == "openai_compatible" else "through litellm", *options])
    with Gateway(file, 1, *options) as gateway:
        yield Target(
            name,
            f"{gateway.url}/v1",
            gateway.parent,
            "fitrouter/auto",
            lambda: not any(next(iter(gateway.reports().values()))["lag"].values()),
        )
        gateway.stop()


def used_s(pid: int) -> float:
    """Return the CPU seconds of a process and all its living descendants."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(used_s(int(child)) for child in children)


# --- load ---


class Load:
    """A client of one target."""

    def __init__(self, session: aiohttp.ClientSession, target: Target, *, stream: bool) -> None:
        self._session, self._target, self._stream = session, target, stream
        self._number = 0
        self.served, self.failed = 0, 0

    async def ask(self) -> None:
        """Send one request."""
        self._number += 1
        number = self._number
        text = f"Case {number}: what should we do next, and why? Answer in a few sentences."
        body: dict[str, Any] = {"model": self._target.model, "messages": [{"role": "user", "content": text}]}
        body["user"] = f"u{number % 50}"
        if self._stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        try:
            async with self._session.post(f"{self._target.url}/chat/completions", json=body) as reply:
                found = await reply.read()
                good = reply.status == 200 and (found.rstrip().endswith(b"[DONE]") or not self._stream)
        except (aiohttp.ClientError, TimeoutError):
            good = False
        self.served += good
        self.failed += not good

    async def closed(self, connections: int, seconds: float) -> float:
        """Keep a number of requests in progress; returns the seconds taken."""
        began = time.monotonic()

        async def one() -> None:
            while time.monotonic() - began < seconds:
                failed = self.failed
                await self.ask()
                if self.failed > failed:
                    await asyncio.sleep(0.2)

        await asyncio.gather(*(one() for _ in range(connections)))
        return time.monotonic() - began

    async def open(self, rate: float, seconds: float) -> list[float]:
        """Send requests at a fixed rate, without waiting for earlier ones; return their times in ms."""
        took: list[float] = []
        began = time.monotonic()

        async def one(due: float) -> None:
            await self.ask()
            took.append(1000.0 * (time.monotonic() - due))

        tasks = []
        for number in range(int(rate * seconds)):
            due = began + number / rate
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(one(due)))
        await asyncio.gather(*tasks)
        return took


async def measured(target: Target, seconds: float, connections: tuple[int, ...]) -> dict[str, Any]:
    """Measure CPU per request and throughput, complete and streamed, and latency in an open loop."""
    found: dict[str, Any] = {}
    timeout = aiohttp.ClientTimeout(total=60.0)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        for stream in (False, True):
            await Load(session, target, stream=stream).closed(8, 1.5)
            for count in connections:
                await _quiet(target)
                load, before = Load(session, target, stream=stream), used_s(target.pid)
                took = await load.closed(count, seconds)
                await _quiet(target)
                found[f"{'streamed' if stream else 'whole'} {count}"] = {
                    "cpu_ms": round(1000.0 * (used_s(target.pid) - before) / max(1, load.served), 3),
                    "per_s": round(load.served / took, 1),
                    "failed": load.failed,
                }
        rate = found["whole 32"]["per_s"] / 2.0 if 32 in connections else RATE
        for name, at in (("at 30 per s", RATE), ("at half load", rate)):
            await _quiet(target)
            took_ms = await Load(session, target, stream=False).open(at, seconds)
            p50, p99 = (round(float(np.quantile(took_ms, q)), 2) for q in (0.5, 0.99))
            found[name] = {"rate": round(at, 1), "p50_ms": p50, "p99_ms": p99}
    return found


async def _quiet(target: Target) -> None:
    deadline = time.monotonic() + 30.0
    while not await asyncio.to_thread(target.quiet) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.25)


def run(chosen: argparse.Namespace) -> dict[str, Any]:
    """Measure all targets, one after the other, on one upstream."""
    found: dict[str, Any] = {}
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as name, small("upstream") as upstream:
        folder, url = Path(name), upstream.url
        targets: dict[str, Callable[[], contextlib.AbstractContextManager[Target]]] = {
            "bare": lambda: small("bare", url),
            "sdk": lambda: small("sdk", url),
            "direct": lambda: fitrouter("openai_compatible", url, folder),
            "litellm": lambda: fitrouter("litellm", url, folder),
        }
        if chosen.litellm_proxy:
            targets["proxy"] = lambda: proxy(chosen.litellm_proxy, url, folder)
        if chosen.inside:
            targets["inside"] = lambda: fitrouter("openai_compatible", url, folder, "--services-inside")
        for short in chosen.only or targets:
            with targets[short]() as target:
                found[target.name] = asyncio.run(measured(target, chosen.seconds, tuple(chosen.connections)))
            loads.append(os.getloadavg()[0])
            print(target.name, json.dumps(found[target.name]), file=sys.stderr)
    return {"targets": found, "load": [round(each, 1) for each in loads], "cores": os.cpu_count()}


def main() -> None:
    """Parse the command line, measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each phase")
    parser.add_argument("--connections", type=int, nargs="+", default=list(CONNECTIONS))
    parser.add_argument("--litellm-proxy", type=Path, help="the program of LiteLLM's proxy")
    parser.add_argument("--inside", action="store_true", help="also fitrouter with its services inside")
    parser.add_argument("--only", nargs="+", help="bare, sdk, direct, litellm, proxy, inside")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--upstream", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.role:
        play(chosen.role, chosen.port, chosen.upstream)
        return
    text = json.dumps(run(chosen), indent=1)
    print(text)
    if chosen.json:
        chosen.json.write_text(text)


if __name__ == "__main__":
    main()
