"""Drills: flipped bits and bad pages in a journal, and votes of one tenant that move another's traffic.

python -m benchmarks.stores.drills            # prints JSON
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sqlite3
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np

from fitrouter.context.features import context_names
from fitrouter.plain import pack
from fitrouter.policies import SquareCB
from fitrouter.routing.decider import GUEST_SHARE, Rules
from fitrouter.state.learner import Learner
from fitrouter.state.tenants import TenantLearner
from fitrouter.stores.journal import Entry, Row, SqliteJournal
from fitrouter.types import (
    Decision,
    Execution,
    Feedback,
    FeedbackKind,
    Identity,
    Mode,
    ModelCard,
    ModelChange,
    PolicyVersion,
    Prices,
    Salvage,
)
from fitrouter_evaluators.simulation.runner import InProcess, Turn

PAGE = 4096
_WAL_HEADER, _FRAME_HEADER = 32, 24
"""Bytes (sqlite.org/fileformat.html)."""


def entries(n: int, rng: random.Random) -> list[Entry]:
    """Make a decision, its execution with an answer, and a vote, of realistic sizes."""
    who = Identity(user=f"user {n % 50}")
    arms = tuple(f"model {k}" for k in range(11))
    decision = Decision(
        id=f"d{n}",
        ts=float(n),
        draw_id=f"d{n}",
        identity=who,
        mode=Mode.ONLINE,
        eligible=arms,
        probs=(1 / 11,) * 11,
        mean=tuple(rng.random() for _ in arms),
        chosen=arms[0],
        propensity=1 / 11,
        features=pack(np.array([rng.gauss(0.0, 1.0) for _ in range(20)])),
        policy=PolicyVersion(algorithm="squarecb"),
    )
    execution = Execution(
        id=f"x{n}", ts=float(n), decision_id=f"d{n}", identity=who, chosen=arms[0], served_by=arms[0], status="ok"
    )
    vote = Feedback(
        id=f"v{n}", ts=float(n), decision_id=f"d{n}", identity=who, kind=FeedbackKind.THUMB, value=float(n % 2)
    )
    return [Entry(decision), Entry(execution, rng.randbytes(rng.randrange(6000))), Entry(vote)]


def write(path: Path, requests: int, *, checkpoint: bool) -> dict[str, int]:
    """Write a journal as a killed process leaves it, with or without a write-ahead log; returns id → its seq."""
    rng = random.Random(1)
    journal = SqliteJournal(path)
    for n in range(requests):
        for entry in entries(n, rng):
            journal.append(entry).result()
    expected = {row.event.id: row.seq for row in journal.tail(0, 10**6)}
    if checkpoint:
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{path}{suffix}.kept")
    journal.close()
    return expected


def sqlite_alone(path: Path) -> int:
    """Count the events that plain SQLite still reads, without reporting damage; 0 if it refuses the file."""
    try:
        connection = sqlite3.connect(path)
        count = int(connection.execute("SELECT count(*) FROM events NOT INDEXED").fetchone()[0])
        connection.close()
    except sqlite3.Error:
        return 0
    return count


def damage(folder: Path, requests: int, runs: int, kind: str) -> dict[str, object]:
    """Damage a journal in many ways, one at a time, and open it after each."""
    path = folder / f"{kind}.db"
    expected = write(path, requests, checkpoint=kind != "log bit")
    target = Path(f"{path}-wal" if kind == "log bit" else path)
    lost, alone, silent, wrong, slowest = [], [], 0, 0, 0.0
    for run in range(runs):
        rng = random.Random(run)
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}.kept", f"{path}{suffix}")
        Path(f"{path}-shm").unlink(missing_ok=True)
        data = bytearray(target.read_bytes())
        if kind.endswith("page"):
            at = rng.randrange(len(data) // PAGE) * PAGE
            data[at : at + PAGE] = rng.randbytes(PAGE)
        else:
            bit = rng.randrange(len(data) * 8)
            data[bit // 8] ^= 1 << bit % 8
        target.write_bytes(data)
        copy = folder / "alone.db"
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
        alone.append(len(expected) - sqlite_alone(copy))
        for file in folder.glob("alone.db*"):
            file.unlink()
        started = time.perf_counter()
        journal = SqliteJournal(path, clock=lambda: 1.0)
        slowest = max(slowest, time.perf_counter() - started)
        found = {row.event.id: row.seq for row in journal.tail(0, 10**6) if not isinstance(row.event, Salvage)}
        lost.append(len(expected) - len(found.keys() & expected.keys()))
        wrong += sum(expected.get(name) != seq for name, seq in found.items())
        silent += bool(lost[-1]) and not journal.incident and not journal._damaged
        journal.close()
        for file in folder.glob(f"{kind}.db.corrupt*"):
            file.unlink()
    return {
        "events": len(expected),
        "runs": runs,
        "runs with loss": sum(n > 0 for n in lost),
        "most events lost": max(lost),
        "events lost in all": sum(lost),
        "SQLite alone: runs with loss": sum(n > 0 for n in alone),
        "SQLite alone: events lost in all": sum(alone),
        "lost without a word": silent,
        "events with another number": wrong,
        "slowest opening, s": round(slowest, 2),
    }


def tear(folder: Path, requests: int, runs: int, kind: str) -> dict[str, object]:
    """Cut the log of a killed process at some byte, or replace the rest by zeros or noise, and open the journal."""
    path = folder / f"{kind}.db"
    expected = list(write(path, requests, checkpoint=False))
    log = Path(f"{path}-wal")
    whole = Path(f"{log}.kept").read_bytes()
    opened = prefixes = set_aside = 0
    kept = []
    for run in range(runs):
        rng = random.Random(run)
        at = rng.randrange(len(whole))
        shutil.copy(f"{path}.kept", path)
        rest = {"cut": b"", "zeros": bytes(len(whole) - at), "noise": rng.randbytes(len(whole) - at)}[kind]
        log.write_bytes(whole[:at] + rest)
        Path(f"{path}-shm").unlink(missing_ok=True)
        journal = SqliteJournal(path, clock=lambda: 1.0)
        opened += 1
        found = [row.event.id for row in journal.tail(0, 10**6) if not isinstance(row.event, Salvage)]
        prefixes += found == expected[: len(found)]
        set_aside += journal.quarantined is not None
        kept.append(len(found))
        journal.close()
        for file in folder.glob(f"{kind}.db.corrupt*"):
            file.unlink()
    return {
        "runs": runs,
        "opened": opened,
        "a prefix is left": prefixes,
        "set aside": set_aside,
        "fewest, most events": (min(kept), max(kept)),
    }


def cut_everywhere(folder: Path, requests: int, size: int) -> dict[str, object]:
    """Cut the log at each of its last `size` bytes and around the beginning of every frame, and open the journal.

    The log begins after a checkpoint, so that all events in it are lost one by one as it becomes shorter.
    """
    path = folder / "every byte.db"
    before = write(path, requests, checkpoint=True)
    shutil.copy(f"{path}.kept", path)
    journal, rng = SqliteJournal(path), random.Random(2)
    for n in range(requests, requests + 2):
        for entry in entries(n, rng):
            journal.append(entry).result()
    expected = [row.event.id for row in journal.tail(0, 10**6)]
    file, whole = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    journal.close()
    opened = prefixes = incidents = 0
    kept = []
    frames = range(_WAL_HEADER, len(whole), PAGE + _FRAME_HEADER)
    around = {at + by for at in frames for by in (-1, 0, 1)}
    cuts = sorted(around.union(range(max(len(whole) - size, 0), len(whole) + 1)))
    for at in cuts:
        path.write_bytes(file)
        Path(f"{path}-wal").write_bytes(whole[:at])
        Path(f"{path}-shm").unlink(missing_ok=True)
        journal = SqliteJournal(path, clock=lambda: 1.0)
        opened += 1
        found = [row.event.id for row in journal.tail(0, 10**6)]
        prefixes += found == expected[: len(found)] and found[: len(before)] == list(before)
        incidents += bool(journal.incident)
        kept.append(len(found))
        journal.close()
    return {
        "log, bytes": len(whole),
        "cuts": len(cuts),
        "opened": opened,
        "a prefix is left": prefixes,
        "never fewer with a longer log": kept == sorted(kept),
        "taken for damaged": incidents,
        "fewest, most events": (min(kept), max(kept)),
    }


LEARNERS = {"one pool": (Learner, 0.0), "none": (TenantLearner, 0.0), "shared": (TenantLearner, GUEST_SHARE)}
"""`policy.pooling` → kind of learner, and share that each guest places; `one pool` is the learner before it."""


def votes(seed: int, pooling: str, *, own: int, sybils: int, each: int, friends: int = 0) -> tuple[float, float]:
    """Return tenant A's traffic on a model before and after votes of another tenant's users against it.

    Args:
        seed: of the draws.
        pooling: key of `LEARNERS`.
        own: votes of A's users before.
        sybils: users of the other tenant.
        each: votes of each of them.
        friends: further tenants, with 100 honest votes each.
    """
    d = len(context_names())
    cards = [ModelCard(name=name, provider="s", prices=Prices(output=1.0)) for name in ("a", "b")]
    kind, guests = LEARNERS[pooling]
    world = InProcess(kind(d, 1, expects_scores=False), SquareCB(), Rules(seed=seed, guests=guests), cards)
    rng, count = np.random.default_rng(seed), 0

    def request(who: Identity) -> Turn:
        nonlocal count
        count += 1
        x = np.concatenate([[1.0], rng.normal(size=d - 1) * 0.2])
        decision = world.decide(count, 1000.0 + count, who, x)
        return world.answer(decision, completion_tokens=100, seconds=1.0)

    def share() -> float:
        who = [Identity(tenant="A", user=f"new {n}") for n in range(200 if guests else 20)]
        read = [world.decide(10**6 + n, 2000.0, each, np.eye(d)[0]) for n, each in enumerate(who)]
        return float(np.mean([one.probs[one.eligible.index("a")] for one in read]))

    honest = [("A", own), *((f"friend {n}", 100) for n in range(friends))]
    for tenant, number in honest:
        for n in range(number):
            turn = request(Identity(tenant=tenant, user=f"{tenant} ann {n % 40}"))
            world.vote(turn, FeedbackKind.THUMB, float(rng.random() < 0.7))
    before = share()
    for n in range(sybils):
        for _ in range(each):
            turn = request(Identity(tenant="B", user=f"eve {n}"))
            world.vote(turn, FeedbackKind.THUMB, float(turn.decision.chosen != "a"))
    return before, share()


def cost(tenants: int = 30, models: int = 11, D: int = 60) -> dict[str, object]:
    """Measure memory, snapshot and time that each further tenant costs, with the shipped scorer's response features."""
    made = TenantLearner(len(context_names()), D, schema="s", people=20_000)
    cards = tuple(ModelCard(name=f"model {k}", provider="s") for k in range(models))
    made.apply(Row(1, ModelChange(id="m", ts=1.0, cards=cards, registry="r")))
    tracemalloc.start()
    started, before = time.perf_counter(), tracemalloc.get_traced_memory()[0]
    for n in range(tenants + 1):
        who = Identity(tenant=f"t{n}", user=f"u{n}")
        execution = Execution(
            id=f"x{n}", ts=1.0, decision_id=f"d{n}", identity=who, chosen="model 0", served_by="model 0", status="ok"
        )
        made.apply(Row(2 + n, execution))
    took, after = time.perf_counter() - started, tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    stored = sum(len(payload) for key, payload in made.state() if key.startswith("tenant:"))
    return {
        "models": models,
        "memory, kB": round((after - before) / tenants / 1000),
        "snapshot, kB": round(stored / tenants / 1000),
        "first event, ms": round(1000 * took / tenants, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--runs", type=int, default=100, help="0 for the drills between tenants only")
    parser.add_argument("--no-votes", dest="votes", action="store_false", help="only the drills of a journal")
    parser.add_argument(
        "--every-byte", type=int, default=0, metavar="BYTES", help="cut a log at each of its last bytes"
    )
    options = parser.parse_args()
    out: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        if options.every_byte:
            out["log cut at every byte"] = cut_everywhere(Path(folder), 6, options.every_byte)
        for kind in ("log bit", "file bit", "file page") if options.runs else ():
            out[kind] = damage(Path(folder), options.requests, options.runs, kind)
        for kind in ("cut", "zeros", "noise") if options.runs else ():
            out[f"log ends in {kind}"] = tear(Path(folder), min(options.requests, 60), options.runs, kind)
    if not options.votes:
        print(json.dumps(out, indent=1))
        return
    for name, drill in {
        "one user, fresh installation": {"own": 0, "sybils": 1, "each": 30},
        "sixty sybils, fresh installation": {"own": 0, "sybils": 60, "each": 10},
        "one user, after 1,000 votes of A": {"own": 1000, "sybils": 1, "each": 30},
        "sixty sybils, after 1,000 votes of A": {"own": 1000, "sybils": 60, "each": 10},
        "sixty sybils, fresh installation, nine honest tenants": {"own": 0, "sybils": 60, "each": 10, "friends": 9},
    }.items():
        for pooling in LEARNERS:
            found = np.array([votes(seed, pooling, **drill) for seed in range(5)])
            out[f"{name}; {pooling}"] = {
                "before": found[:, 0].round(3).tolist(),
                "after": found[:, 1].round(3).tolist(),
                "largest move": round(float(np.abs(found[:, 1] - found[:, 0]).max()), 3),
            }
    out["cost of a tenant"] = cost()
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
