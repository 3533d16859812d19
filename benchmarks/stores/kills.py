"""Kill -9 of a process that writes the journal: acknowledged entries are there, once and in order.

    python -m benchmarks.stores.kills --kills 1000

`benchmarks.gateway.crash` kills the whole gateway, at three seconds a kill; here a kill takes some 50 ms, and falls
into starts, commits, checkpoints and snapshots alike. Prints JSON; exits with 1 on any loss.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fitrouter.stores.journal import Entry, Snapshot, SqliteJournal
from fitrouter.types import Erasure

_AHEAD = 20
"""Entries that wait for their acknowledgement."""
_SNAPSHOT_EVERY = 100
_WAIT_S = 300.0


def _entry(name: str, n: int) -> Entry:
    return Entry(Erasure(id=f"{name}-{n}", ts=float(n), subject=name, digests=("x" * 64,) * (n % 50)))


def write(path: Path, name: str, acknowledged: Connection) -> None:
    """Append entries forever, and report which are acknowledged."""
    journal = SqliteJournal(path)
    waiting = []
    n = 0
    while True:
        waiting.append((n, journal.append(_entry(name, n))))
        if len(waiting) > _AHEAD:
            done, future = waiting.pop(0)
            future.result(_WAIT_S)
            acknowledged.send(done)
        if n % _SNAPSHOT_EVERY == 0:
            journal.save(Snapshot(journal.head(), {"n": b"%d" % n, name: b"x" * 5000}))
        n += 1


def run(folder: Path, kills: int, seed: int = 0) -> dict[str, Any]:
    """Kill writers of one journal after random times; check it after each."""
    chance, path = random.Random(seed), folder / "journal.db"
    context = get_context("forkserver")
    context.set_forkserver_preload(["fitrouter.stores.journal"])
    lost = doubled = kept_in_all = unacknowledged = 0
    slowest_s, before = 0.0, 0
    for life in range(kills):
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(target=write, args=(path, f"life{life}", writer), daemon=True)
        process.start()
        writer.close()
        last = -1
        # Some die while they open the file, most while they write.
        until = chance.choice([-1, chance.randrange(10), chance.randrange(300)])
        while last < until:
            last = reader.recv()
        time.sleep(chance.random() * 0.02)
        process.kill()
        process.join(_WAIT_S)
        try:
            while True:
                last = reader.recv()
        except (EOFError, OSError):
            reader.close()
        began = time.monotonic()
        journal = SqliteJournal(path)
        slowest_s = max(slowest_s, time.monotonic() - began)
        rows = journal.tail(before, 10**7)
        kept = [row.event.id for row in rows]
        wanted = [f"life{life}-{n}" for n in range(len(kept))]
        doubled += len(kept) - len(set(kept))
        lost += max(last + 1 - len(kept), 0) + (kept != wanted) + (journal.quarantined is not None)
        kept_in_all, unacknowledged = kept_in_all + len(kept), unacknowledged + len(kept) - last - 1
        before = journal.append(_entry("between", life)).result(_WAIT_S)
        lost += before != journal.head()
        journal.close()
    return {
        "kills": kills,
        "events": kept_in_all,
        "unacknowledged": unacknowledged,
        "lost": lost,
        "doubled": doubled,
        "slowest_opening_s": round(slowest_s, 3),
    }


def main() -> None:
    """Kill writers; print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = run(Path(folder), chosen.kills, chosen.seed)
    print(json.dumps(result))
    sys.exit(1 if result["lost"] or result["doubled"] else 0)


if __name__ == "__main__":
    main()
