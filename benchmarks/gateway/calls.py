"""What a worker of the gateway loads at its start, and the calls that one chat and one thumb make. Prints JSON.

    python -m benchmarks.gateway.calls

The worker is a process of its own, as `fitrouter serve` starts them, behind a real socket: three models of an upstream
that answers at once, everything else by default. Counted are calls of functions of the project (`sys.setprofile`; the
resumption of a coroutine is one), between the request's first byte and the answer's last, on the thread of the event
loop and on all threads: what the journal's writer and the learner's fold do meanwhile is counted where it happens then.
Figures of requests are medians. The exit code is 1 if one of `LIMITS` is passed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OWN = tuple(f"{ROOT / name}/" for name in ("router", "evaluators", "dashboards", "integrations"))
LIMITS = {
    "start": {"own_lines": 25_000, "rss_mb": 100},
    "chat": {"calls": 450, "files": 50},
    "thumb": {"calls": 130, "files": 20},
}


class Profile:
    """Counts calls of own functions by function and thread, while it is switched on."""

    def __init__(self) -> None:
        self.on = False
        self.calls: Counter[tuple[CodeType, int]] = Counter()

    def __call__(self, frame: FrameType, event: str, _arg: object) -> None:
        """Count a call, as the function that `sys.setprofile` takes."""
        if self.on and event == "call" and frame.f_code.co_filename.startswith(OWN):
            self.calls[frame.f_code, threading.get_ident()] += 1

    def found(self, loop: int) -> dict[str, Any]:
        """Return the figures since it was switched on, given the event loop's thread."""
        here: Counter[str] = Counter()
        for (code, thread), count in self.calls.items():
            if thread == loop:
                here[f"{code.co_filename}:{code.co_qualname}"] += count
        return {
            "calls": here.total(),
            "functions": len(here),
            "files": len({name.partition(":")[0] for name in here}),
            "calls_of_all_threads": self.calls.total(),
            "by_function": {name.removeprefix(f"{ROOT}/"): count for name, count in here.most_common()},
        }


def serve(file: Path) -> None:
    """Serve as a worker in this process; answers lines of standard input: `start`, `on` and `off`."""
    from fitrouter.config import load_config
    from fitrouter_integrations.gateway import bind
    from fitrouter_integrations.gateway._worker import work

    profile, loop = Profile(), threading.get_ident()

    def answer() -> None:
        for line in sys.stdin:
            found: dict[str, Any] = {}
            if line == "start\n":
                found = loaded()
            elif line == "on\n":
                profile.calls.clear()
                profile.on = True
            else:
                profile.on = False
                found = profile.found(loop)
            print(json.dumps(found), flush=True)

    config = load_config(file)
    with bind(config) as listener:
        print(listener.getsockname()[1], flush=True)
        threading.Thread(target=answer, daemon=True).start()
        threading.setprofile(profile)
        sys.setprofile(profile)
        work(config, listener, services=False)


def loaded() -> dict[str, Any]:
    """Return what this process has loaded."""
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    lines = {
        name.removeprefix(f"{ROOT}/"): len(Path(name).read_bytes().splitlines())
        for name in files
        if name.startswith(OWN)
    }
    status = (Path("/proc") / "self" / "status").read_text()
    return {
        "own_lines": sum(lines.values()),
        "own_files": len(lines),
        "rss_mb": round(int(status.partition("VmRSS:")[2].split()[0]) / 1000.0, 1),
        "by_file": dict(sorted(lines.items(), key=lambda item: -item[1])),
    }


class Worker:
    """A worker in a process of its own."""

    def __init__(self, config: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.gateway.calls", "--serve", str(config)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.url = f"http://127.0.0.1:{self._read()}"

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, what: str) -> Any:
        """Ask for figures."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(60.0)


def measured(requests: int, detailed: bool) -> dict[str, Any]:
    """Measure a worker, with `requests` chats and as many thumbs."""
    import yaml
    from benchmarks.gateway.beside import small
    from benchmarks.gateway.process import new_client, wait_for

    with tempfile.TemporaryDirectory() as folder, small("upstream") as upstream:
        models = [{"name": name, "provider": "up", "prices": {"input": 1.0, "output": 2.0}} for name in "abc"]
        provider = {"kind": "openai_compatible", "base_url": upstream.url}
        settings = {"data": folder, "server": {"port": 0}, "providers": {"up": provider}, "models": models}
        file = Path(folder) / "fitrouter.yaml"
        file.write_text(yaml.safe_dump(settings))
        worker = Worker(file)
        try:
            with new_client(worker.url) as http:
                wait_for(lambda: http.get("/readyz").status_code == 200, 120.0)
                found: dict[str, Any] = {"start": worker.ask("start")}
                chats, thumbs = [], []
                for number in range(requests):
                    ask = {"user": "ann", "messages": [{"role": "user", "content": f"Name {number} towns of France."}]}
                    worker.ask("on")
                    reply = http.post("/v1/chat/completions", json=ask).raise_for_status().json()
                    chats.append(worker.ask("off"))
                    thumb = {"user": "ann", "value": "up", "decision_id": reply["fitrouter"]["decision_id"]}
                    worker.ask("on")
                    http.post("/v1/feedback", json=thumb).raise_for_status()
                    thumbs.append(worker.ask("off"))
        finally:
            worker.close()
    for name, each in (("chat", chats), ("thumb", thumbs)):
        middle = sorted(each, key=lambda one: int(one["calls"]))[len(each) // 2]
        counts = [name for name, value in middle.items() if isinstance(value, int)]
        found[name] = {count: statistics.median(one[count] for one in each) for count in counts}
        found[name]["by_function"] = middle["by_function"]
    if not detailed:
        for part in found.values():
            part.pop("by_file", None)
            part.pop("by_function", None)
    return found | {"limits": LIMITS}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=21)
    parser.add_argument(
        "--detailed", action="store_true", help="with the lines of each file, and the calls of each function"
    )
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve is not None:
        serve(chosen.serve)
        return 0
    found = measured(chosen.requests, chosen.detailed)
    print(json.dumps(found, indent=1))
    return int(any(found[part][name] > most for part, limits in LIMITS.items() for name, most in limits.items()))


if __name__ == "__main__":
    sys.exit(main())
