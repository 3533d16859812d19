"""Bytes of a decision in the journal and the warehouse, and events a CPU-second of the fold. Prints JSON.

    python -m benchmarks.stores.log [--requests 5000] [--models 11] [--folder DIR]
    python -m benchmarks.stores.log --folder DIR --again     # with the events of the journal in DIR, written again
    python -m benchmarks.stores.log --start 1000000 --requests 1500 --models 3 --folder DIR    # a start with such a log
    python -m benchmarks.stores.log --per-model --requests 1000      # decisions of 3, 8 and 32 models

A router with simulated models, the default scorer and default settings answers requests of 200 users in eight roles;
nine of ten are rated. So the journal holds decisions, executions, scores and votes as a gateway writes them, by default
19,500 events. Bytes are those of whole files, after a checkpoint, divided by decisions: a decision's execution, score
and vote are counted with it. `cpu` is processor time: of the fold alone, and of the fold with reading and decoding.
With `--again` another version of fitrouter writes the same events, and both digests can be compared.

`--start` copies the events under other ids, in which a limit of money is spent and the share is 0, and measures starts:
with a snapshot of the first of them alone, with another version of what is learnt, and as stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import re
import sqlite3
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import numpy as np

from fitrouter.config import Config, parse_config
from fitrouter.errors import BudgetExhausted
from fitrouter.router import Router
from fitrouter.state.learner import Learner
from fitrouter.state.reading import read_batch
from fitrouter.stores.journal import Entry, Journal, SqliteJournal
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter.types import Decision, FeedbackKind, Identity, Request, decode_event, encode_event

ROLES = ("nurse", "lawyer", "teacher", "cook", "farmer", "pilot", "editor", "clerk")
FEW_AND_MANY = (3, 8, 32)
SUBJECTS = ("taxes", "bread", "a contract", "fractions", "tomatoes", "weather", "commas", "an invoice")


def config(folder: Path, models: int) -> Config:
    """Return a configuration of simulated models with prices; every other setting is the default."""
    names = [f"model-{k:02d}" for k in range(models)]
    personas = {name: {"length": 2 + k % 28, "latency_s": 0.01} for k, name in enumerate(names)}
    cards = [
        {"name": name, "provider": "sim", "prices": {"input": 0.1 + k, "output": 0.4 + 2 * k}}
        for k, name in enumerate(names)
    ]
    return parse_config(
        {
            "data": str(folder),
            "default_model": names[0],
            "providers": {"sim": {"kind": "simulated", "options": personas}},
            "models": cards,
        }
    )


async def live(settings: Config, requests: int, *, spent: bool = False) -> None:
    """Answer requests, score the answers, and rate nine of ten; `spent` then sets a limit below that, and share 0."""
    rng = np.random.default_rng(0)
    router = Router.from_config(settings)
    async with router:

        async def one(k: int) -> None:
            who = Identity(user=f"user {k % 200}", role=ROLES[k % len(ROLES)])
            words = f"Question {k} of somebody who knows little: what should I know of {SUBJECTS[k % 7]}, and why?"
            answer = await router.complete(Request(messages=({"role": "user", "content": words},), identity=who))
            if rng.random() < 0.9:
                await router.feedback(answer.decision.id, FeedbackKind.THUMB, float(rng.integers(2)), identity=who)

        for start in range(0, requests, 50):
            await asyncio.gather(*(one(k) for k in range(start, min(start + 50, requests))))
            await scored(router, 500)  # the scorer is the slower one
        await scored(router, 1)
        if spent:
            await router.policy.set_budget("default", 1e-6)
            await router.policy.set({"share": 0.0})
        await router.settled()


async def scored(router: Router, most: int) -> None:
    """Wait until fewer than `most` answers wait for their score."""
    while len(router._journal.spooled(most)) == most:  # noqa: ASYNC110 - the scorer works in a thread, at its pace
        await asyncio.sleep(0.1)


def written_again(journal: SqliteJournal, path: Path) -> SqliteJournal:
    """Write a new journal with the same events, as this version writes them."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    made, after = SqliteJournal(path), 0
    while rows := journal.tail(after, 1000):
        made.append(*(Entry(row.event) for row in rows)).result()
        after = rows[-1].seq
    journal.close()
    return made


_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_COPIED = """SELECT id, ts, kind, decision_id, subject, payload FROM events
WHERE kind IN ('decision', 'execution', 'score', 'feedback') ORDER BY seq"""
_INSERT = "INSERT OR IGNORE INTO events (id, ts, kind, decision_id, subject, payload, crc) VALUES (?, ?, ?, ?, ?, ?, ?)"


def grow(path: Path, events: int) -> None:
    """Add copies of a journal's requests under other ids until it has so many events."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        rows = connection.execute(_COPIED).fetchall()
        (head,) = connection.execute("SELECT max(seq) FROM events").fetchone()
        for copy in range(1, -(-(events - head) // len(rows)) + 1):

            def other(text: bytes, number: bytes = b"%05x" % copy) -> bytes:
                return _UUID.sub(lambda found: found[0][:24] + number + found[0][29:], text)

            connection.execute("BEGIN")
            for event, ts, kind, decision, subject, payload in rows[: events - head]:
                payload, names = other(payload), [other(each.encode()).decode() for each in (event, decision)]
                connection.execute(_INSERT, (names[0], ts, kind, names[1], subject, payload, zlib.crc32(payload)))
            connection.execute("COMMIT")
            head += len(rows)


async def start(settings: Config, *, waits: bool) -> dict[str, Any]:
    """Measure a start to its first answer, what that was, and when all is folded."""
    began, cpu = time.perf_counter(), time.process_time()
    router, found, kinds = Router.from_config(settings), dict[str, Any](), Counter[str]()
    try:
        await router.start()
        found["started_s"] = round(time.perf_counter() - began, 2)
        request = Request(messages=({"role": "user", "content": "And now?"},), identity=Identity(user="user 1"))
        for limit in (None, 1e9):
            if limit is not None:
                await router.policy.set_budget("default", limit)
            try:
                answer = await router.complete(request)
                kinds[answer.decision.mode.value] += 1
                found["position"] = answer.decision.policy.seq
            except BudgetExhausted:
                kinds["BudgetExhausted"] += 1
            found.setdefault("first_answer_s", round(time.perf_counter() - began, 2))
        found |= {"first_answer_cpu_s": round(time.process_time() - cpu, 2), "answers": dict(kinds)}
        found |= {"service": router.service().status, "reasons": dict(router.service().reasons)}
        await router.policy.set_budget("default", 1e-6)
        if waits:
            await router.settled()
            found |= {"all_folded_s": round(time.perf_counter() - began, 1), "then": router.service().status}
            found["all_folded_cpu_s"] = round(time.process_time() - cpu, 1)
    finally:
        await router.aclose()
    return found


def starts(settings: Config, events: int) -> Iterator[dict[str, Any]]:
    """Measure starts with a log of so many events."""
    grow(settings.journal_file(), events)
    yield {"after": "a copied log"} | asyncio.run(start(settings, waits=False))
    with patch.object(Learner, "version", "another"):
        yield {"after": "another version of what is learnt"} | asyncio.run(start(settings, waits=False))
        yield {"after": "the same, until all is learnt"} | asyncio.run(start(settings, waits=True))
        yield {"after": "a stop"} | asyncio.run(start(settings, waits=False))


def journal_bytes(path: Path) -> dict[str, Any]:
    """Measure the file without snapshots, and its tables and indexes, in bytes for each decision."""
    copied = path.with_name("copied.db")
    copied.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM INTO ?", (str(copied),))
    with closing(sqlite3.connect(copied, isolation_level=None)) as connection:
        connection.execute("DELETE FROM snapshot_state")  # learned state, which grows with people
        connection.execute("VACUUM")
        kinds = dict(connection.execute("SELECT kind, count(*) FROM events GROUP BY kind"))
        mean = dict(connection.execute("SELECT kind, round(avg(length(payload))) FROM events GROUP BY kind"))
        n = kinds["decision"]
        found: dict[str, Any] = {"events": kinds, "bytes_per_decision": round(copied.stat().st_size / n)}
        found["payload_bytes"] = mean
        try:
            parts = connection.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name").fetchall()
            found["parts"] = {name: round(size / n) for name, size in parts if size > 10 * n}
        except sqlite3.Error:
            pass  # SQLite without dbstat
    return found


def warehouse_bytes(journal: Journal, path: Path) -> dict[str, Any]:
    """Measure a warehouse filled from a journal, and its tables' largest columns, in bytes for each decision."""
    path.unlink(missing_ok=True)
    warehouse = Warehouse(path)
    feed, cpu = WarehouseFeed(journal, warehouse), time.process_time()
    while feed.step():
        pass
    cpu = time.process_time() - cpu
    feed.release()
    with closing(duckdb.connect(str(path))) as connection:
        connection.execute("CHECKPOINT")
        (n,) = connection.execute("SELECT count(*) FROM decisions").fetchone() or (1,)
    found: dict[str, Any] = {
        "bytes_per_decision": round(path.stat().st_size / n),
        "us_per_event": round(1e6 * cpu / journal.head()),
    }
    copied = path.with_name("copied.duckdb")
    copied.unlink(missing_ok=True)
    with closing(duckdb.connect()) as connection:
        connection.execute(f"ATTACH '{path}' AS source (READ_ONLY); ATTACH '{copied}' AS target")
        connection.execute("COPY FROM DATABASE source TO target; CHECKPOINT target")
    found["copied_bytes_per_decision"] = round(copied.stat().st_size / n)
    return found


def fold(blank: Learner, journal: Journal, rounds: int) -> dict[str, Any]:
    """Measure events a CPU-second, the best of some rounds, and return the digest."""
    head, best, both = journal.head(), float("inf"), float("inf")
    digest = ""
    for _ in range(rounds):
        learner, folding, after = blank.blank(), 0.0, 0
        gc.collect()
        started = time.process_time()
        while (batch := read_batch(journal, after, waiting=learner.waiting)).rows:
            learner.load(batch)
            began = time.process_time()
            for row, related in batch.rows:
                learner.apply(row, related)
            folding += time.process_time() - began
            after = batch.rows[-1][0].seq
        both, best = min(both, time.process_time() - started), min(best, folding)
        digest = learner.digest()
    return {"events": head, "fold": round(head / best), "read_and_fold": round(head / both), "digest": digest}


def per_model(requests: int) -> dict[str, Any]:
    """Measure encoded decisions with few and many models, and what each further model takes."""
    found: dict[str, Any] = {}
    sizes = []
    for models in FEW_AND_MANY:
        with tempfile.TemporaryDirectory() as place:
            asyncio.run(live(config(Path(place), models), requests))
            with closing(SqliteJournal(Path(place) / "journal.db")) as journal:
                events = [row.event for row in journal.tail(0, 1 << 40)]
        decisions = [event for event in events if isinstance(event, Decision)]
        begun = time.process_time()
        payloads = [encode_event(event) for event in decisions]
        encoded = time.process_time()
        for payload in payloads:
            decode_event(payload)
        took = encoded - begun, time.process_time() - encoded
        sizes.append(sum(map(len, payloads)) / len(payloads))
        found[f"bytes_with_{models}"] = round(sizes[-1])
        found[f"encode_decode_us_with_{models}"] = [round(1e6 * each / len(payloads)) for each in took]
    return found | {"bytes_a_model": round((sizes[-1] - sizes[-2]) / (FEW_AND_MANY[-1] - FEW_AND_MANY[-2]), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--models", type=int, default=11)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="where the files are made and stay")
    parser.add_argument("--start", type=int, default=0, help="measure starts with so many events")
    parser.add_argument("--again", action="store_true", help="with the events of the journal in the folder")
    parser.add_argument("--per-model", action="store_true", help="only bytes of decisions, by number of models")
    options = parser.parse_args()
    if options.per_model:
        print(json.dumps(per_model(options.requests), indent=1))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = options.folder or Path(place)
        settings = config(folder, options.models)
        if not options.again:
            asyncio.run(live(settings, options.requests, spent=bool(options.start)))
        if options.start:
            for each in starts(settings, options.start):
                print(json.dumps(each), flush=True)
            return
        with Router.offline(settings) as router:
            blank = router._learner.blank()
        journal = SqliteJournal(folder / "journal.db")
        if options.again:
            journal = written_again(journal, folder / "again.db")
        found: dict[str, Any] = {"fold_events_per_cpu_s": fold(blank, journal, options.rounds)}
        sizes: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for row in journal.tail(0, 5000):
            kind = type(row.event).__name__
            sizes[kind] += len(encode_event(row.event))
            counts[kind] += 1
        found["encoded_bytes"] = {kind: round(sizes[kind] / counts[kind]) for kind in counts}
        found["warehouse"] = warehouse_bytes(journal, folder / "measured.duckdb")
        journal.close()
        found["journal"] = journal_bytes(journal.path)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
