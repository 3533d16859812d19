"""Three gateways in network namespaces of their own on one PostgreSQL, with kills and partitions.

    python -m benchmarks.stores.partitions [--requests 10000] [--faults 12]

needs root, `ip` and PostgreSQL's binaries. Requests go to routers with simulated models; at random times the network
of one swallows all packets for some seconds, or one is killed (kill -9) and started again. At the end: is every
acknowledged event there once, does each belong to its decision's user, have all decisions exact propensities, do all
gateways fold to one digest at one position, and did two ever hold one lease? Prints JSON; exits with 1 if a law broke.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.kits import postgres

from fitrouter import Router
from fitrouter.config import parse_config
from fitrouter.stores.journal import Entry
from fitrouter.types import Decision, Execution, FeedbackKind, Identity, Request

GATEWAYS = 3
_TAG = f"fr{os.getpid()}"
"""Of interfaces and namespaces: two runs on one machine do not meet."""
_NET = f"10.{20 + os.getpid() % 200}.{os.getpid() // 200 % 250}"
_WAIT_S = 600.0


def possible() -> bool:
    """Whether namespaces can be made here."""
    if os.getuid() != 0 or shutil.which("ip") is None or postgres.binaries() is None:
        return False
    made = subprocess.run(["ip", "netns", "add", f"{_TAG}p"], capture_output=True).returncode == 0
    subprocess.run(["ip", "netns", "del", f"{_TAG}p"], capture_output=True)
    return made


def _ip(*command: str) -> None:
    subprocess.run(["ip", *command], check=True, capture_output=True)


@contextmanager
def networks() -> Iterator[list[str]]:
    """Namespaces with addresses on one bridge, whose own is the first address of the network."""
    bridge, names = f"{_TAG}b", [f"{_TAG}n{n}" for n in range(GATEWAYS)]
    with ExitStack() as stack:

        def remove(*command: str) -> None:
            stack.callback(lambda: subprocess.run(["ip", *command], capture_output=True))

        remove("link", "del", bridge)
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{_NET}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for n, name in enumerate(names):
            remove("netns", "del", name)
            _ip("netns", "add", name)
            _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", name, "master", bridge, "up")
            _ip("-n", name, "addr", "add", f"{_NET}.{n + 10}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield names


# --- a gateway's process ---


def _say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # at once: several threads speak


def _watch_lease(router: Router, stop: threading.Event) -> None:
    """Tell when it got a lease, and from when on it did not rely on it."""
    lease = router._journal.lease("drill")
    while not stop.wait(0.2):
        _say("asks", time.monotonic())
        _say("holds" if lease.held() else "lacks", time.monotonic())


async def _gateway(name: str, config: dict[str, Any], count: int) -> None:
    async with Router.from_config(parse_config(config)) as router:
        journal: Any = router._journal
        append, stop = journal.append, threading.Event()

        def noted(*entries: Entry) -> Any:
            future = append(*entries)
            names = [entry.event.id for entry in entries]
            future.add_done_callback(lambda done: None if done.exception() else _say("kept", *names))
            return future

        journal.append = noted
        watch = threading.Thread(target=_watch_lease, args=(router, stop), daemon=True)
        watch.start()
        room = asyncio.Semaphore(4)

        async def one(n: int) -> None:
            async with room:
                who = Identity(user=f"{name}-{n % 20}")
                ask = Request(messages=({"role": "user", "content": f"{name} asks {n}"},), identity=who)
                answer = await router.complete(ask)
                if n % 5 == 0:
                    with contextlib.suppress(Exception):  # of a decision that cannot be looked up now
                        await router.feedback(answer.decision.id, FeedbackKind.THUMB, float(n % 2), identity=who)
                _say("answered", n)

        await asyncio.gather(*(one(n) for n in range(count)))
        await router._recorder.settle()
        _say("done")
        while line := await asyncio.to_thread(sys.stdin.readline):
            if line == "waits\n":
                _say("waits", int(journal._detachable.waiting))
                continue
            while router._learner.seq < int(line):  # noqa: ASYNC110 - told by another process
                await asyncio.sleep(0.02)
            _say("digest", router._learner.seq, router._learner.digest())
        stop.set()
        watch.join()


class Gateway:
    """A process in a namespace, started again with the rest of its requests if it is killed."""

    def __init__(self, space: str, config: dict[str, Any], count: int) -> None:
        self.space, self.left = space, count
        self.kept, self.lease = set[str](), list[tuple[float, str]]()
        self.said: dict[str, str] = {}
        self.lives = 0
        self._config = config
        self.start()

    def start(self) -> None:
        """Start, and follow what it says."""
        self.said, self._asked = {}, 0.0
        name = f"{self.space}-{self.lives}"
        self.lives += 1
        command = ["ip", "netns", "exec", self.space, sys.executable, "-m", "benchmarks.stores.partitions", "--gateway"]
        self.process = subprocess.Popen(
            [*command, name, json.dumps(self._config), "--requests", str(self.left)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._follow, args=(self.process,), daemon=True)
        self._thread.start()

    def _follow(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            word, _, rest = line.rstrip("\n").partition(" ")
            if not line.endswith("\n"):
                continue  # cut by a kill
            if word == "kept":
                self.kept.update(rest.split())
            elif word == "answered":
                self.left -= 1
            elif word in {"asks", "holds", "lacks"}:
                self.lease.append((float(rest), word))
            else:
                self.said[word] = rest

    def kill(self) -> None:
        """Kill -9, and start again."""
        self.end()
        self.lease.append((time.monotonic(), "lacks"))
        self.start()

    def end(self) -> None:
        """Stop it for good."""
        self.process.kill()
        self._thread.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait()

    def ask(self, line: str, word: str) -> str:
        """Its answer to a line."""
        self.said.pop(word, None)
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.wait(word)

    def wait(self, word: str) -> str:
        """Wait until it has said a word; the rest of its line."""
        deadline = time.monotonic() + _WAIT_S
        while word not in self.said:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.space} ended with {self.process.poll()} or is too slow: no {word!r}")
            time.sleep(0.02)
        return self.said[word]

    def held(self) -> list[tuple[float, float]]:
        """Spans in which it relied on the lease: from a yes to the next question."""
        found, since = list[tuple[float, float]](), None
        for at, word in sorted(self.lease):
            if since is not None:
                found.append((since, at))
                since = None
            if word == "holds":
                since = at
        return found


# --- the experiment ---


def run(requests: int, faults: int, seed: int = 0) -> dict[str, Any]:
    """Let three gateways answer requests through faults, and check the laws."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        spaces = stack.enter_context(networks())
        server = stack.enter_context(postgres.serving(fsync=True, listen=f"{_NET}.1"))
        folder, name = Path(stack.enter_context(tempfile.TemporaryDirectory())), server.database()
        config = {
            "data": f"postgresql://admin@{_NET}.1/{name}",
            "folder": str(folder),
            "providers": {"s": {"kind": "simulated", "options": {"a": {}, "b": {}}}},
            "models": [{"name": model, "provider": "s"} for model in "ab"],
            "encoder": "hashing",
            "scorer": {"encoder": "hashing"},
        }
        began, load = time.monotonic(), os.getloadavg()[0]
        gateways = [Gateway(space, config, requests // GATEWAYS) for space in spaces]
        for gateway in gateways:
            stack.callback(gateway.end)
        kills = partitions = 0
        for fault in range(faults):
            goal = requests * (faults - fault - 0.5) / faults  # spread over the requests
            while sum(gateway.left for gateway in gateways) > goal:
                for gateway in gateways:
                    if gateway.process.poll() is not None:
                        raise RuntimeError(f"{gateway.space} ended with {gateway.process.poll()}")
                time.sleep(0.02)
            victim = chance.choice(gateways)
            if fault % 3 == 2:
                victim.kill()
                kills += 1
            else:
                _ip("link", "set", victim.space, "down")
                time.sleep(chance.uniform(3.0, 12.0))
                _ip("link", "set", victim.space, "up")
                partitions += 1
        for gateway in gateways:
            gateway.wait("done")
        seconds = time.monotonic() - began
        while any(gateway.ask("waits", "waits") != "0" for gateway in gateways):
            time.sleep(0.2)
        return {
            "requests": requests,
            "gateways": GATEWAYS,
            "kills": kills,
            "partitions": partitions,
            "seconds": round(seconds, 1),
            "load": round(load, 1),
            **_digests(gateways, server, name),
            **_laws(gateways, config),
        }


def _digests(gateways: list[Gateway], server: postgres.Server, name: str) -> dict[str, Any]:
    """Whether all fold to one digest at one position. The scorer may still append: then again."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        head = server.sql("SELECT seq FROM fitrouter.head", name)[0][0]
        told = {gateway.ask(str(head), "digest") for gateway in gateways}
        same = {line.split()[0] for line in told} == {str(head)}
        if same or time.monotonic() > deadline:
            return {"position": head, "equal_digests": same and len(told) == 1}


def _laws(gateways: list[Gateway], config: dict[str, Any]) -> dict[str, Any]:
    from fitrouter.stores.postgres import PostgresJournal

    kept = set[str]().union(*(gateway.kept for gateway in gateways))  # first: the scorer may still append
    journal = PostgresJournal(config["data"])
    try:
        seq, rows = 0, list[Any]()
        while page := journal.tail(seq, 2000):
            rows += page
            seq = page[-1].seq
    finally:
        journal.close()
    names = [row.event.id for row in rows]
    decisions = {row.event.id: row.event for row in rows if isinstance(row.event, Decision)}
    at = {row.event.id: row.seq for row in rows}
    ended = [row.event for row in rows if isinstance(row.event, Execution)]
    spans = [gateway.held() for gateway in gateways]
    pairs = [(one, two) for n, one in enumerate(spans) for two in spans[n + 1 :]]
    return {
        "events": len(rows),
        "acknowledged": len(kept),
        "lost": len(kept - set(names)),
        "doubled": len(names) - len(set(names)),
        "crossed": sum(
            event.decision_id not in decisions or event.identity.user != decisions[event.decision_id].identity.user
            for event in ended
        ),
        "out_of_order": sum(at[event.id] < at.get(event.decision_id, 0) for event in ended),
        "marked_lost": sum(event.status == "lost" for event in ended),
        "inexact_propensities": sum(
            abs(sum(each.probs) - 1.0) > 1e-9 or each.probs[each.eligible.index(each.chosen)] != each.propensity
            for each in decisions.values()
        ),
        "lease_holders_in_turn": sum(map(bool, spans)),
        "two_holders": sum(a < d and c < b for one, two in pairs for a, b in one for c, d in two),
    }


def broken(found: dict[str, Any]) -> list[str]:
    """The laws that a result breaks."""
    zero = ("lost", "doubled", "crossed", "out_of_order", "inexact_propensities", "two_holders")
    return [law for law in zero if found[law]] + ([] if found["equal_digests"] else ["equal_digests"])


def main() -> None:
    """Run the experiment, or one gateway of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--faults", type=int, default=12)
    parser.add_argument("--gateway", nargs=2, metavar=("NAME", "CONFIG"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.gateway:
        asyncio.run(_gateway(chosen.gateway[0], json.loads(chosen.gateway[1]), chosen.requests))
        return
    if not possible():
        sys.exit("network namespaces need root, `ip` and PostgreSQL's binaries")
    found = run(chosen.requests, chosen.faults)
    print(json.dumps(found, indent=1))
    sys.exit(1 if broken(found) else 0)


if __name__ == "__main__":
    main()
