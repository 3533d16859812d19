"""Effect of single hostile clients on a gateway: bodies slow to parse, bodies that never end, idle connections.

    python -m benchmarks.hostile
    python -m benchmarks.hostile --root ANOTHER_CHECKOUT

While each body is sent, another connection asks for /healthz all the time: its longest wait is how long the event loop
was blocked.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_HEAD = b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_CHAT = "/v1/chat/completions"


def _chat(content: Any, **more: Any) -> bytes:
    body = {"model": "fitrouter/auto", "messages": [{"role": "user", "content": content}], **more}
    return json.dumps(body, ensure_ascii=False).encode()


BODIES: dict[str, tuple[str, str, bytes]] = {
    "Hello": ("POST", _CHAT, _chat("Hello")),
    "unclosed string of escapes, 10 kB": ("POST", _CHAT, b"[" * 65 + b'"\\' * 5_000),
    "unclosed string of escapes, 40 kB": ("POST", _CHAT, b"[" * 65 + b'"\\' * 20_000),
    "escaped quotes, 9.8 MB": ("POST", _CHAT, _chat('"' * 4_900_000)),
    "one million combining marks": ("POST", _CHAT, _chat("\u0301" * 1_000_000)),
    "30,000 parts": ("POST", _CHAT, _chat([{"type": "text", "text": "x"}] * 30_000)),
    "80,000 names in metadata": ("POST", _CHAT, _chat("x", metadata={f"k{i}": 1 for i in range(80_000)})),
    "64 statements of 1,000 commas": (
        *("PUT", "/v1/profile"),
        json.dumps({"user": "ann", "statements": [("," * 990 + f"{i:03}") for i in range(64)]}).encode(),
    ),
}


class Running:
    """A gateway process."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.port, self.log = process, port, log

    def ask(self, method: str, path: str, body: bytes | None = None, timeout_s: float = 120.0) -> str:
        """Send a request; return the status of the answer, or the name of the error."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            reply = connection.getresponse()
            reply.read()
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        else:
            return str(reply.status)
        finally:
            connection.close()

    def memory_mb(self) -> float:
        """Return the resident memory in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1000.0

    def cpu_s(self) -> float:
        """Return the CPU seconds so far."""
        user, system = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def gateway(folder: Path, root: Path, files: int | None = None) -> Iterator[Running]:
    """Start `fitrouter serve` of a checkout, with at most `files` open files."""
    models = [f"{{name: {name}, provider: demo, context_window: 9000000}}" for name in ("brief", "wordy")]
    config = folder / "fitrouter.yaml"
    config.write_text(
        f"data: {folder / 'data'}\nmodels: [{', '.join(models)}]\n"
        "providers: {demo: {kind: simulated, options: {brief: {length: 1}, wordy: {length: 9}}}}\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    sources = os.pathsep.join(str(root / name) for name in ("router", "evaluators", "dashboards", "integrations"))
    serve = f"exec {sys.executable} -m fitrouter_integrations.cli serve --config {config} --port {port}"
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["bash", "-c", f"ulimit -n {files}; {serve}" if files else serve],
            env={**os.environ, "PYTHONPATH": sources, "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
    running = Running(process, port, log)
    try:
        while running.ask("GET", "/readyz", timeout_s=5.0) != "200":
            assert process.poll() is None, log.read_text()
            time.sleep(0.2)
        yield running
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def bodies(running: Running) -> None:
    """Print the time of each slow body, and how long the event loop was blocked meanwhile."""
    worst, rounds, stopped = [0.0], [0], threading.Event()

    def watch() -> None:
        while not stopped.is_set():
            began = time.perf_counter()
            running.ask("GET", "/healthz")
            worst[0] = max(worst[0], time.perf_counter() - began)
            rounds[0] += 1

    threading.Thread(target=watch, daemon=True).start()
    running.ask("PUT", "/v1/profile", b'{"user": "ann", "statements": ["I like short answers"]}')  # loads its files
    print("| body | status | seconds | loop blocked, seconds | CPU, seconds |\n|---|---|---|---|---|")
    for name, (method, path, body) in BODIES.items():
        worst[0], began, cpu = 0.0, time.perf_counter(), running.cpu_s()
        status = running.ask(method, path, body)
        took, last = time.perf_counter() - began, rounds[0]
        while rounds[0] < last + 2:  # the question that waited has its answer
            time.sleep(0.01)
        used = running.cpu_s() - cpu
        print(f"| {name} | {status} | {took:.2f} | {worst[0]:.2f} | {used:.2f} |", flush=True)
    stopped.set()


def slow_bodies(running: Running) -> None:
    """Print the memory that 100 unfinished bodies of 9.9 MB take, and the answer to a body over the limit."""
    open_: list[socket.socket] = []
    before = running.memory_mb()
    for _ in range(100):
        connection = socket.create_connection(("127.0.0.1", running.port), timeout=5.0)
        with suppress(OSError):
            connection.sendall(_HEAD % (_CHAT.encode(), 9_900_000) + b'{"a": "' + b"x" * 9_700_000)
        open_.append(connection)
    time.sleep(1.0)
    after, found = running.memory_mb(), running.ask("POST", _CHAT, _chat("Hello"))
    answers: Counter[str] = Counter()
    for connection in open_:
        connection.setblocking(False)
        try:
            answers[connection.recv(12)[9:].decode()] += 1
        except OSError as error:
            answers[type(error).__name__] += 1
        connection.close()
    print(f"100 slow bodies: {before:.0f} → {after:.0f} MB, answers {dict(answers)}; another client gets {found}")
    with socket.create_connection(("127.0.0.1", running.port), timeout=60.0) as connection:
        try:
            connection.sendall(_HEAD % (_CHAT.encode(), 20_000_000) + b"x" * 20_000_000)
            answer = connection.recv(100).partition(b"\r\n")[0].decode()
        except OSError as error:
            answer = type(error).__name__
    print(f"a body of 20 MB, sent before reading: {answer}")


def idle_connections(running: Running) -> None:
    """Print CPU and log of nine seconds with more connections than open files, and whether another client is served."""
    cpu, size = running.cpu_s(), running.log.stat().st_size
    held = []
    with suppress(OSError):
        held += [socket.create_connection(("127.0.0.1", running.port), timeout=2.0) for _ in range(600)]
    time.sleep(9.0)
    found = running.ask("GET", "/healthz", timeout_s=8.0)
    cpu, size = running.cpu_s() - cpu, running.log.stat().st_size - size
    print(f"600 idle connections at 200 files: {cpu:.1f} CPU s, {size} bytes of log; another client gets {found}")
    for connection in held:
        connection.close()


def main() -> None:
    """Print all figures of one checkout."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="checkout to measure")
    root = parser.parse_args().root.resolve()
    for part, files in ((bodies, None), (slow_bodies, None), (idle_connections, 200)):
        with tempfile.TemporaryDirectory() as folder, gateway(Path(folder), root, files) as running:
            part(running)


if __name__ == "__main__":
    main()
