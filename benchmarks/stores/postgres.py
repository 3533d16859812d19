"""The journal on PostgreSQL beside SQLite: appends a second, acknowledgement, tail, copy; each as a ratio, in one run.

    python -m benchmarks.stores.postgres [--rows 20000] [--copied 100000] [--rounds 3]

starts a server of its own, with fsync; its binaries must be installed. `TMPDIR` names the disk. The kinds take turns,
and the medians of the rounds are compared. `--copied` events go from SQLite to PostgreSQL and back, and
are compared by digest. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
from benchmarks.stores.journal import decision
from tests.kits import postgres

from fitrouter.errors import JournalFull
from fitrouter.stores.journal import FilePlace, Journal, SqliteJournal, copy
from fitrouter.stores.postgres import Database, DatabasePlace, PostgresJournal

PACED = 400
_PER_S = 200
_AT_ONCE = 20_000


def flood(journal: Journal, rows: int) -> float:
    """Measure appends a second, as fast as the queue takes them."""
    entries = [decision(f"user-{i % 100}") for i in range(rows)]
    began, future = time.perf_counter(), None
    for entry in entries:
        while True:
            try:
                future = journal.append(entry)
                break
            except JournalFull:
                time.sleep(0.002)
    assert future is not None
    future.result()
    return rows / (time.perf_counter() - began)


def paced(journal: Journal) -> list[float]:
    """Measure milliseconds from append to acknowledgement, at 200 appends a second."""
    found: list[float] = []
    began = time.perf_counter()
    for i in range(PACED):
        start = time.perf_counter()
        journal.append(decision(f"user-{i % 100}")).add_done_callback(
            lambda _, start=start: found.append((time.perf_counter() - start) * 1000)
        )
        time.sleep(max(0.0, began + (i + 1) / _PER_S - time.perf_counter()))
    journal.append().result()
    return found


def tailed(journal: Journal, rows: int) -> float:
    """Measure the rows a second that a reader gets."""
    began, seq, count = time.perf_counter(), 0, 0
    while count < rows and (read := journal.tail(seq, 1000)):
        seq, count = read[-1].seq, count + len(read)
    return count / (time.perf_counter() - began)


def one_round(make: Callable[[], Journal], rows: int) -> dict[str, float]:
    journal = make()
    try:
        ms = paced(journal)
        return {
            "appends_per_s": flood(journal, rows),
            "ack_p50_ms": float(np.quantile(ms, 0.5)),
            "ack_p99_ms": float(np.quantile(ms, 0.99)),
            "tail_rows_per_s": tailed(journal, rows),
        }
    finally:
        journal.close()


def copied(folder: Path, server: postgres.Server, rows: int) -> dict[str, object]:
    """Copy a journal SQLite → PostgreSQL → SQLite; returns times and the digest of each copy."""
    origin = SqliteJournal(folder / "origin.db")
    for start in range(0, rows, _AT_ONCE):
        flood(origin, min(_AT_ONCE, rows - start))
    origin.close()
    database, seconds, digests = Database(server.url(server.database())), [], set()

    def places() -> Iterator[tuple[FilePlace | DatabasePlace, FilePlace | DatabasePlace]]:
        yield FilePlace(folder / "origin.db", new=False), DatabasePlace(database)
        yield DatabasePlace(database), FilePlace(folder / "back.db", new=True)

    for source, target in places():
        with closing(source), closing(target):
            began = time.perf_counter()
            found = copy(source, target)
            seconds.append(time.perf_counter() - began)
            digests.add(found.digest)
            assert found.events == rows
    return {
        "events": rows,
        "to_postgres_s": round(seconds[0], 1),
        "to_sqlite_s": round(seconds[1], 1),
        "equal": len(digests) == 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--copied", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with postgres.serving(fsync=True) as server, tempfile.TemporaryDirectory() as place:
        folder, rounds = Path(place), list[tuple[dict[str, float], dict[str, float]]]()
        for n in range(options.rounds):
            url = server.url(server.database())
            rounds.append(
                (
                    one_round(lambda n=n: SqliteJournal(folder / f"{n}.db"), options.rows),  # type: ignore[misc]
                    one_round(lambda url=url: PostgresJournal(url), options.rows),  # type: ignore[misc]
                )
            )
        names = list(rounds[0][0]) if rounds else []
        middle = [{name: statistics.median(pair[kind][name] for pair in rounds) for name in names} for kind in (0, 1)]
        result = {
            "rows": options.rows,
            "rounds": options.rounds,
            "load": round(os.getloadavg()[0], 1),
            "sqlite": {name: round(value, 2) for name, value in middle[0].items()},
            "postgres": {name: round(value, 2) for name, value in middle[1].items()},
            "postgres_over_sqlite": {name: round(middle[1][name] / middle[0][name], 2) for name in names},
            "copy": copied(folder, server, options.copied) if options.copied else None,
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
