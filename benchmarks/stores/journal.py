"""Journal throughput in rows a second, and acknowledgement latency.

    python -m benchmarks.stores.journal [--rows 40000] [--folder DIR]

prints one JSON object a line. `flood`: every process appends as fast as its queue takes. `paced`: every process
appends 200 entries a second and the time from append to acknowledgement is taken.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "router"))

from fitrouter.draw import uuid7
from fitrouter.errors import JournalFull
from fitrouter.plain import pack
from fitrouter.stores.journal import Entry, SqliteJournal
from fitrouter.types import Decision, Identity, Mode, PolicyVersion

MODELS = tuple(f"model-{k}" for k in range(11))
FEATURES = pack(np.random.default_rng(0).normal(size=64))


def decision(user: str) -> Entry:
    now = time.time()
    name = uuid7(now)
    eleven = tuple(1 / 11 for _ in MODELS)
    return Entry(
        Decision(
            id=name,
            ts=now,
            draw_id=name,
            identity=Identity(user=user, role="nurse"),
            mode=Mode.ONLINE,
            eligible=MODELS,
            probs=eleven,
            chosen=MODELS[0],
            propensity=1 / 11,
            features=FEATURES,
            mean=eleven,
            sd=eleven,
            cost=eleven,
            latency=eleven,
            availability=eleven,
            twin=eleven,
            policy=PolicyVersion(algorithm="squarecb"),
        )
    )


def flood(path: str, rows: int, results: Any) -> None:
    journal = SqliteJournal(path)
    entries = [decision(f"user-{i % 100}") for i in range(rows)]
    latencies: list[float] = []
    mutex = threading.Lock()

    def note(start: float) -> None:
        with mutex:
            latencies.append(time.perf_counter() - start)

    begin, future = time.time(), None
    for entry in entries:
        while True:
            try:
                start = time.perf_counter()
                future = journal.append(entry)
            except JournalFull:
                time.sleep(0.002)
            else:
                future.add_done_callback(lambda _, start=start: note(start))
                break
    assert future is not None
    future.result()
    results.put((begin, time.time(), latencies))
    journal.close()


def paced(path: str, rows: int, results: Any) -> None:
    journal = SqliteJournal(path)
    latencies: list[float] = []
    begin = time.time()
    for i in range(rows):
        entry, start = decision(f"user-{i % 100}"), time.perf_counter()
        journal.append(entry).add_done_callback(lambda _, start=start: latencies.append(time.perf_counter() - start))
        time.sleep(max(0.0, begin + (i + 1) / 200 - time.time()))
    journal.append().result()
    results.put((begin, time.time(), latencies))
    journal.close()


def measure(name: str, target: Any, rows: int, processes: int, folder: str) -> None:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path, results = str(Path(place) / "journal.db"), context.Queue()
        workers = [context.Process(target=target, args=(path, rows, results)) for _ in range(processes)]
        for worker in workers:
            worker.start()
        found = [results.get() for _ in workers]
        for worker in workers:
            worker.join()
        journal = SqliteJournal(path)
        assert journal.head() == rows * processes
        start, seq = time.perf_counter(), 0
        while read := journal.tail(seq, 1000):
            seq = read[-1].seq
        tail_s = time.perf_counter() - start
        journal.close()
    seconds = max(end for _, end, _ in found) - min(begin for begin, _, _ in found)
    ms = np.concatenate([latencies for _, _, latencies in found]) * 1000
    print(
        json.dumps(
            {
                "name": name,
                "processes": processes,
                "rows": rows * processes,
                "rows_per_s": round(rows * processes / seconds),
                "ack_p50_ms": round(float(np.quantile(ms, 0.5)), 2),
                "ack_p99_ms": round(float(np.quantile(ms, 0.99)), 2),
                "tail_rows_per_s": round(rows * processes / tail_s),
            }
        ),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--folder", default=None, help="where the file is made; the disk is part of the result")
    options = parser.parse_args()
    for processes in (1, 2):
        measure("flood", flood, options.rows, processes, options.folder)
        measure("paced", paced, min(options.rows, 1000), processes, options.folder)


if __name__ == "__main__":
    main()
