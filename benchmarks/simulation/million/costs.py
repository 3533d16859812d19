"""CPU and bytes of each part of a request, measured from the product in one run.

A router with eleven simulated models answers some requests, of which nine in ten are rated (`benchmarks.stores.log`).
Its journal is then folded, read, loaded into a warehouse, appended to SQLite and to PostgreSQL, and read from there.
Processor time is that of this process and of PostgreSQL's server; what a loaded machine makes slower is slower in all
rows alike.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from benchmarks.memory import SPIN, sizes
from benchmarks.scoring.scorer import answers, prompt, response_features
from benchmarks.stores.log import config, journal_bytes, live, warehouse_bytes
from tests.kits import postgres

from fitrouter.context.encoders import get_encoder
from fitrouter.errors import JournalFull
from fitrouter.plain import unpack
from fitrouter.policies import SquareCB
from fitrouter.router import Router
from fitrouter.routing.decider import Decider, Rules
from fitrouter.state.learner import Learner
from fitrouter.state.reading import read_batch
from fitrouter.state.sessions import Sessions
from fitrouter.stores.identities import Identities
from fitrouter.stores.journal import Entry, Journal, Row, SqliteJournal
from fitrouter.types import Decision, Event, Feedback, ModelCard, ModelChange, Score
from fitrouter_evaluators.scoring import Answer

MODELS = 11
REQUESTS, ANSWERS, MET = 1000, 480, 3000
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class _Cpu:
    """Stopwatch of CPU seconds of this process and of a PostgreSQL server."""

    def __init__(self, server: postgres.Server | None = None) -> None:
        self.server = server
        self.began = time.process_time(), self._theirs(), time.perf_counter()

    def _theirs(self) -> float:
        if self.server is None or self.server._process is None:
            return 0.0
        total = 0.0
        for file in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = file.read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            if int(fields[1]) == self.server._process.pid:
                total += (int(fields[11]) + int(fields[12])) * _TICK_S
        return total

    def per(self, count: int) -> dict[str, float]:
        """Return the microseconds of each of `count` things, and how many a second."""
        ours, theirs, at = self.began
        found = {"cpu_us": round(1e6 * (time.process_time() - ours) / count, 1)}
        if self.server is not None:
            found["server_cpu_us"] = round(1e6 * (self._theirs() - theirs) / count, 1)
        return found | {"a_second": round(count / (time.perf_counter() - at))}


def fold(journal: Journal, learner: Learner) -> dict[str, Any]:
    """Measure microseconds of reading, and of folding by the kind of event."""
    took: defaultdict[str, list[float]] = defaultdict(list)
    reading, after, count = 0.0, 0, 0
    while True:
        began = time.process_time()
        rows = read_batch(journal, after, waiting=learner.waiting).rows
        reading += time.process_time() - began
        if not rows:
            break
        for row, related in rows:
            began = time.process_time()
            learner.apply(row, related)
            took[_kind(row.event, related)].append(time.process_time() - began)
        after, count = rows[-1][0].seq, count + len(rows)
    kinds = {name: round(1e6 * float(np.mean(each)), 1) for name, each in took.items()}
    return {"read_us": round(1e6 * reading / count, 1), "fold_us": kinds, "events": count}


def _kind(event: Event, related: Sequence[Event]) -> str:
    """Name what is folded; a vote that came before the answer's score is learnt with the score."""
    kinds = {type(each) for each in (event, *related)}
    if isinstance(event, Score | Feedback) and kinds >= {Score, Feedback}:
        return "Vote learnt"
    return type(event).__name__


def decide(decisions: Sequence[Decision], cards: Sequence[ModelCard], learner: Learner) -> dict[str, float]:
    """Measure microseconds of a decision for people that the state knows."""
    decider, cpu = Decider(SquareCB(2560.0), learner, Rules()), _Cpu()
    for each in decisions:
        decider.decide(each.id, each.ts, each.identity, unpack(each.features), cards)
    return cpu.per(len(decisions))


def converse(sessions: Sessions, decision: Decision, count: int) -> None:
    """Add the first decisions of `count` other conversations."""
    for k in range(count):
        identity = msgspec.structs.replace(decision.identity, session=f"{k:032x}")
        sessions.observe_decision(msgspec.structs.replace(decision, identity=identity))


def sessions_kept(decision: Decision) -> int:
    """Count the other conversations after which one that pauses is forgotten."""
    low, high = 0, 1 << 14
    while high - low > 1:
        sessions, middle = Sessions(), (low + high) // 2
        key = decision.identity.session or ""
        sessions.observe_decision(decision)
        converse(sessions, decision, middle)
        low, high = (low, middle) if sessions.get(key) is None else (middle, high)
    return high


def snapshot(learner: Learner, decision: Decision) -> dict[str, Any]:
    """Measure what every snapshot holds (sessions at their limit), and what a changed person adds."""
    converse(learner.projections.sessions, decision, learner.projections.sessions.limit)
    began = time.process_time()
    small = dict(learner._small_state())
    whole = time.process_time() - began
    people = [key for key in learner._keys() if key.startswith("user:")]
    began = time.process_time()
    stored = [len(learner._dump(key)) for key in people]
    each = (time.process_time() - began) / len(people)
    return {
        "always_ms": round(1e3 * whole, 2),
        "always_bytes": sum(map(len, small.values())),
        "sessions_bytes": len(small["part:sessions"]),
        "person_us": round(1e6 * each, 1),
        "person_bytes": round(float(np.mean(stored))),
    }


def append(journal: Journal, rows: list[Row], server: postgres.Server | None = None) -> dict[str, float]:
    """Append all events as fast as the queue takes them, and measure it."""
    cpu, future = _Cpu(server), None
    for row in rows:
        while True:
            try:
                future = journal.append(Entry(row.event))
                break
            except JournalFull:
                time.sleep(0.002)
    assert future is not None
    future.result()
    return cpu.per(len(rows))


def tail(journal: Journal, server: postgres.Server | None = None, *, alone: bool = False) -> dict[str, float]:
    """Read all events, as a replica does with those that they refer to, or alone, and measure it."""
    cpu, after, count = _Cpu(server), 0, 0
    while rows := journal.tail(after, 256) if alone else [row for row, _ in read_batch(journal, after).rows]:
        after, count = rows[-1].seq, count + len(rows)
    return cpu.per(count)


def meet(folder: Path) -> dict[str, float]:
    """Measure storing users who were never met, each with a key of their own, in a file."""
    with closing(Identities(folder / "identities.db")) as identities:
        cpu, waiting = _Cpu(), []
        for k in range(MET):
            waiting.append(identities.meet("default", f"somebody new {k}"))
            if len(waiting) == 256:
                _all(waiting)
        _all(waiting)
        found = cpu.per(MET)
    found["bytes"] = round((folder / "identities.db").stat().st_size / MET)
    return found


def _all(waiting: list[Any]) -> None:
    for each in waiting:
        each.result()
    waiting.clear()


def score() -> dict[str, float]:
    """Measure features of answers of 256 word pieces, with the default encoder."""
    features, texts = response_features(get_encoder("static")), answers(ANSWERS)
    features.encode([Answer(prompt=prompt(0), text=texts[0])])
    cpu = _Cpu()
    for start in range(0, ANSWERS, 16):
        chunk = range(start, min(start + 16, ANSWERS))
        features.encode([Answer(prompt=prompt(i), text=texts[i]) for i in chunk])
    return cpu.per(ANSWERS)


def spin() -> float:
    """Measure milliseconds of CPU of a fixed computation, to compare with an idle machine."""
    took = []
    for _ in range(100):
        began = time.process_time()
        sum(range(SPIN))
        took.append(time.process_time() - began)
    return round(1e3 * float(np.median(took)), 3)


def measure(requests: int = REQUESTS, told: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Measure all parts."""
    found: dict[str, Any] = {"requests": requests, "models": MODELS, "load_before": round(os.getloadavg()[0], 1)}
    found["spin_ms"] = spin()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        settings = config(folder, MODELS)
        cpu = _Cpu()
        asyncio.run(live(settings, requests))
        found["whole_request"] = cpu.per(requests)
        told("lived")
        with Router.offline(settings) as router:
            learner = router._learner.blank()
        with closing(SqliteJournal(folder / "journal.db")) as journal:
            found["fold"] = fold(journal, learner)
            rows, after = list[Row](), 0
            while more := journal.tail(after, 1000):
                rows += more
                after = more[-1].seq
            decisions = [row.event for row in rows if isinstance(row.event, Decision)]
            cards = [card for row in rows if isinstance(row.event, ModelChange) for card in row.event.cards]
            found["decide"] = decide(decisions[:400], sorted(cards, key=lambda card: card.arm), learner)
            found["snapshot"] = snapshot(learner, decisions[0])
            found["sessions_kept"] = sessions_kept(decisions[0])
            found["read_sqlite"] = tail(journal)
            told("folded")
            found["warehouse"] = warehouse_bytes(journal, folder / "measured.duckdb")
            found["journal"] = journal_bytes(journal.path)
        with closing(SqliteJournal(folder / "again.db")) as journal:
            found["append_sqlite"] = append(journal, rows)
        told("stored")
        if postgres.binaries():
            from fitrouter.stores.postgres import PostgresJournal

            with (
                postgres.serving(fsync=True) as server,
                closing(PostgresJournal(server.url(server.database()))) as database,
            ):
                found["append_postgres"] = append(database, rows, server)
                found["read_postgres"] = tail(database, server)
                found["read_postgres_alone"] = tail(database, server, alone=True)
        told("served")
        found["identities"] = meet(folder)
    found["scorer"] = score()
    found["person_bytes_in_memory"] = sizes()
    found["load_after"] = round(os.getloadavg()[0], 1)
    return found
