"""Drill of three gateways in their own network namespaces on one PostgreSQL, with kills and partitions.

    python -m benchmarks.stores.partitions [--requests 10000] [--faults 12]

needs root, `ip` and PostgreSQL's binaries. Each has a folder of its own, and half of the requests are of users whom
all three meet. Requests go to routers with simulated models; at random times the network of one swallows all packets
for some seconds, or one is killed (kill -9) and started again. At the end: is every acknowledged event there once, does
each belong to its decision's user, have all decisions exact propensities, do all gateways fold to one digest at one
position, and did two ever hold one lease? Is each user one person on all three, does a session go on with its model on
the next gateway, and is nothing left anywhere of a user who is erased on one? Prints JSON; exits with 1 if a law broke.
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
_SESSIONS = 6


def possible() -> bool:
    """Whether network namespaces can be made here."""
    if os.getuid() != 0 or shutil.which("ip") is None or postgres.binaries() is None:
        return False
    made = subprocess.run(["ip", "netns", "add", f"{_TAG}p"], capture_output=True).returncode == 0
    subprocess.run(["ip", "netns", "del", f"{_TAG}p"], capture_output=True)
    return made


def _ip(*command: str) -> None:
    subprocess.run(["ip", *command], check=True, capture_output=True)


@contextmanager
def networks() -> Iterator[list[str]]:
    """Create namespaces on one bridge, which has the first address of the network; yields their names."""
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
    """Report again and again whether the router holds the lease, and when it asked."""
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
                who = Identity(user=f"everywhere-{n % 20}" if n % 2 else f"{name}-{n % 20}")
                ask = Request(messages=({"role": "user", "content": f"{name} asks {n}"},), identity=who)
                answer = await router.complete(ask)
                if n % 5 == 0:
                    with contextlib.suppress(Exception):  # of a decision that cannot be looked up now
                        await router.feedback(answer.decision.id, FeedbackKind.THUMB, float(n % 2), identity=who)
                _say("answered", answer.decision.id, who.user)

        await asyncio.gather(*(one(n) for n in range(count)))
        await router._recorder.settle()
        _say("done")
        while line := await asyncio.to_thread(sys.stdin.readline):
            word, *rest = line.split()
            if word == "waits":
                _say("waits", int(journal._detachable.waiting or bool(router.incidents())))
                continue
            if word == "turn":
                _say("turn", *await _turn(router, *rest))
                continue
            if word == "who":
                _say("who", (await router.people.identify(Identity(user=rest[0]))).user)
                continue
            if word == "erase":
                _say("erase", (await router.erase("default", rest[0], _WAIT_S)).unfinished or "all")
                continue
            if word == "unfinished":
                _say("unfinished", len(await asyncio.to_thread(journal.unfinished)))
                continue
            while router._learner.seq < int(line):  # noqa: ASYNC110 - told by another process
                await asyncio.sleep(0.02)
            _say("digest", router._learner.seq, router._learner.digest())
        stop.set()
        watch.join()


async def _turn(router: Router, user: str, session: str, turn: str) -> tuple[str, ...]:
    """Send the next step of a conversation; returns (model, mode)."""
    words = [{"role": "user", "content": "Hello"}]
    for n in range(int(turn)):
        words += [
            {"role": "assistant", "content": f"answer {n}"},
            {"role": "tool", "content": "1", "tool_call_id": "t"},
        ]
    answer = await router.complete(Request(messages=tuple(words), identity=Identity(user=user, session=session)))
    await router.settled()
    return answer.decision.chosen, answer.decision.mode.value


class Gateway:
    """A process in a namespace, started again with the rest of its requests if it is killed."""

    def __init__(self, space: str, config: dict[str, Any], count: int) -> None:
        self.space, self.left = space, count
        self.kept, self.lease = set[str](), list[tuple[float, str]]()
        self.whose: dict[str, str] = {}
        """Decision → the user who got the answer."""
        self.said: dict[str, str] = {}
        self.lives = 0
        self._config = config
        self.start()

    def start(self) -> None:
        """Start the process, and follow what it reports."""
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
                decision, user = rest.split()
                self.whose[decision] = user
            elif word in {"asks", "holds", "lacks"}:
                self.lease.append((float(rest), word))
            else:
                self.said[word] = rest

    def restart(self) -> None:
        """Kill -9 the process, and start it again."""
        self.stop()
        self.lease.append((time.monotonic(), "lacks"))
        self.start()

    def stop(self) -> None:
        """Kill the process for good."""
        self.process.kill()
        self._thread.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait()

    def ask(self, line: str, word: str) -> str:
        """Send a line to the process, and return its answer."""
        self.said.pop(word, None)
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.wait(word)

    def wait(self, word: str) -> str:
        """Wait until the process has reported a word; returns the rest of its line."""
        deadline = time.monotonic() + _WAIT_S
        while word not in self.said:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.space} ended with {self.process.poll()} or is too slow: no {word!r}")
            time.sleep(0.02)
        return self.said[word]

    def held(self) -> list[tuple[float, float]]:
        """Return the spans in which the process relied on the lease: from a yes to the next question."""
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
            "providers": {"s": {"kind": "simulated", "options": {"a": {}, "b": {}}}},
            "models": [{"name": model, "provider": "s"} for model in "ab"],
            "encoder": "hashing",
            "scorer": {"encoder": "hashing"},
        }
        began, load = time.monotonic(), os.getloadavg()[0]
        gateways = [Gateway(space, config | {"folder": str(folder / space)}, requests // GATEWAYS) for space in spaces]
        for gateway in gateways:
            stack.callback(gateway.stop)
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
                victim.restart()
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
            **_people(gateways, config, folder),
            **_sessions(gateways, server, name),
            **_erasure(gateways, config, folder),
        }


def _digests(gateways: list[Gateway], server: postgres.Server, name: str) -> dict[str, Any]:
    """Check that all gateways fold to one digest at one position; repeated while the scorer still appends."""
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


def _subjects(config: dict[str, Any], folder: Path) -> dict[str, str]:
    """Read the users from the database: subject or alias → user."""
    from fitrouter.stores.postgres import PostgresIdentities

    identities = PostgresIdentities(config["data"], folder / "looks")
    try:
        return {each.subject: json.loads(each.who)[1] for each in identities.rows.every()}
    finally:
        identities.close()


def _people(gateways: list[Gateway], config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Check that each user's decisions lead to that user, and that all gateways know each under one subject."""
    from fitrouter.stores.postgres import PostgresJournal

    owners = _subjects(config, folder)
    journal = PostgresJournal(config["data"])
    try:
        asked = {name: user for gateway in gateways for name, user in gateway.whose.items()}
        logged = {row.event.id: row.event for row in journal.latest(("decision",), 1_000_000)}
    finally:
        journal.close()
    found = [(user, owners.get(logged[name].identity.user or "")) for name, user in asked.items() if name in logged]  # type: ignore[union-attr]
    users = sorted({user for user in asked.values() if user.startswith("everywhere")})
    return {
        "users_of_all": len(users),
        "users_with_two_subjects": sum(
            len({each.ask(f"who {user}", "who") for each in gateways}) > 1 for user in users
        ),
        "aliases": len(owners) - len(set(owners.values())),
        "answers_of_another_user": sum(owner not in (user, None) for user, owner in found),
        "answers_of_nobody": sum(owner is None for _, owner in found),
        "subjects_left_on_disks": len([*folder.glob("*/postgres.identities-*"), *folder.glob("*/postgres.backlog-*")]),
    }


def _sessions(gateways: list[Gateway], server: postgres.Server, name: str) -> dict[str, Any]:
    """Check conversations whose first step is on one gateway, and the next on each of the others."""
    moved = 0
    for n in range(_SESSIONS):
        first, *others = gateways[n % GATEWAYS :] + gateways[: n % GATEWAYS]
        chosen, _ = first.ask(f"turn everywhere-{n} talk-{n} 0", "turn").split()
        for turn, other in enumerate(others, 1):
            _digests(gateways, server, name)  # all have folded it
            moved += other.ask(f"turn everywhere-{n} talk-{n} {turn}", "turn") != f"{chosen} sticky"
    return {"sessions": _SESSIONS, "steps_with_another_model": moved}


def _erasure(gateways: list[Gateway], config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Erase a user on one gateway; check what is left of them anywhere, and who they are when they come again."""
    user = "everywhere-1"
    before = {subject for subject, owner in _subjects(config, folder).items() if owner == user}
    said = gateways[0].ask(f"erase {user}", "erase")
    deadline = time.monotonic() + _WAIT_S
    while any(gateway.ask("unfinished", "unfinished") != "0" for gateway in gateways) and time.monotonic() < deadline:
        time.sleep(0.2)
    data = {path: path.read_bytes() for path in folder.glob("*/*") if path.is_file()}
    traces = [word.encode() for word in (f'"{user}"', *before)]
    again = {gateway.ask(f"who {user}", "who") for gateway in gateways}
    return {
        "erased_subjects": len(before),
        "erasure_unfinished": int(said != "all"),
        "files_with_an_erased_user": sum(any(trace in text for trace in traces) for text in data.values()),
        "erased_subjects_known": len(before & _subjects(config, folder).keys()) + len(before & again),
        "subjects_of_who_came_again": len(again),
    }


def broken(found: dict[str, Any]) -> list[str]:
    """Return the laws that a result breaks."""
    zero = (
        "lost",
        "doubled",
        "crossed",
        "out_of_order",
        "inexact_propensities",
        "two_holders",
        "users_with_two_subjects",
        "answers_of_another_user",
        "subjects_left_on_disks",
        "steps_with_another_model",
        "erasure_unfinished",
        "files_with_an_erased_user",
        "erased_subjects_known",
    )
    one = {"equal_digests": True, "subjects_of_who_came_again": 1}
    return [law for law in zero if found[law]] + [law for law, right in one.items() if found[law] != right]


def main() -> None:
    """Run the drill, or one gateway of it."""
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
