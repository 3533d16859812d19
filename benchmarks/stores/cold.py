"""The cold store beside the file of DuckDB: bytes, processor time, and a replay over both. Prints JSON.

    python -m benchmarks.stores.cold --folder DIR [--decisions 20000] [--s3]

`--folder` has a journal of `benchmarks.stores.log`, whose rows are those of a real gateway: bytes and the time to write
are of it. The replay is of a log of 20,000 decisions and their scores and votes, in a town in which the product decides
and learns (`tests/kits/replay.py`); both forms are read three times in turn, and the medians are given. With `--s3` the
cold store of the replay is in a bucket of moto's server in another process. Times are processor time, and by the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
from tests.kits.replay import Town
from tests.kits.replay_story import RULES
from tests.kits.s3 import KEYS

from fitrouter.stores import cold
from fitrouter.stores.cold_feed import ColdFeed
from fitrouter.stores.journal import SqliteJournal
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter_evaluators.replay.candidates.load import load_candidate
from fitrouter_evaluators.replay.evaluation import ReplaySettings, evaluate
from fitrouter_evaluators.replay.log.sources import read_log

SERVER = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Run a function; return its result, CPU seconds, and wall seconds."""
    cpu, clock = time.process_time(), time.perf_counter()
    result = work()
    return result, time.process_time() - cpu, time.perf_counter() - clock


def drain(feed: WarehouseFeed | ColdFeed) -> None:
    while feed.step():
        pass


def written(source: Path, folder: Path) -> dict[str, Any]:
    """Measure bytes and time of writing a gateway's journal: the file, and the cold store."""
    journal = SqliteJournal(Path(shutil.copy(source / "journal.db", folder)))
    warehouse = Warehouse(folder / "fitrouter.duckdb")
    _, cpu, _ = timed(lambda: drain(WarehouseFeed(journal, warehouse)))
    events = journal.head()
    ((decisions,),) = warehouse.query("SELECT count(*) FROM decisions")
    found: dict[str, Any] = {
        "decisions": decisions,
        "events": events,
        "file": {
            "bytes_per_decision": round(warehouse.path.stat().st_size / decisions),
            "us_per_event": round(1e6 * cpu / events),
        },
    }
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{warehouse.path}' AS old (READ_ONLY); ATTACH '{folder}/copied.duckdb' AS new")
        connection.execute("COPY FROM DATABASE old TO new")
    found["file"]["copied_bytes_per_decision"] = round((folder / "copied.duckdb").stat().st_size / decisions)
    feed = ColdFeed(journal, str(folder / "cold"), folder, every_s=0.0)
    _, cpu, _ = timed(lambda: drain(feed))
    found["cold store"] = {
        "files": len(cold.files_at(feed.storage)),
        "bytes_per_decision": round(sum(feed.storage.sizes().values()) / decisions),
        "us_per_event": round(1e6 * cpu / events),
    }
    journal.close()
    return found


def town(folder: Path, decisions: int) -> SqliteJournal:
    """Generate the log of a town of a thousand people, as a journal and a warehouse file."""
    made = Town(seed=3, rules=RULES, votes=0.6)
    rng = np.random.default_rng(3)
    for _ in range(decisions):
        made.request(user=f"person-{rng.integers(1000)}")
    journal = SqliteJournal(folder / "town.db")
    from fitrouter.stores.journal import Entry

    rows = made.journal.tail(0, 10**9)
    for start in range(0, len(rows), 2000):
        journal.append(*(Entry(row.event) for row in rows[start : start + 2000])).result()
    drain(WarehouseFeed(journal, Warehouse(folder / "town.duckdb")))
    return journal


def numbers(value: Any, where: str = "") -> dict[str, float]:
    """Return every number of a report by its place."""
    if isinstance(value, dict):
        return {k: v for key, each in value.items() for k, v in numbers(each, f"{where}.{key}").items()}
    if isinstance(value, (list, tuple)):
        return {k: v for i, each in enumerate(value) for k, v in numbers(each, f"{where}[{i}]").items()}
    return {where: float(value)} if isinstance(value, (int, float)) else {}


def replayed(log: str | Path) -> dict[str, Any]:
    read, cpu, clock = timed(lambda: read_log(log))
    report, more, longer = timed(
        lambda: evaluate(read, load_candidate("uniform"), load_candidate("current"), ReplaySettings(idle_s=30.0))
    )
    found = msgspec.to_builtins(report)
    found.pop("made")
    return {
        "decisions": read.decisions.n,
        "read": (cpu, clock),
        "evaluate": (more, longer),
        "numbers": numbers(found),
    }


def _both_nan(one: dict[str, float], other: dict[str, float], key: str) -> bool:
    return bool(np.isnan(one[key]) and np.isnan(other[key]))


def compared(forms: dict[str, str | Path]) -> dict[str, Any]:
    """Replay each form three times, in turn; returns the largest difference of results, and median times."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in forms}
    for _ in range(3):
        for name, log in forms.items():
            runs[name].append(replayed(log))
    first = next(iter(runs.values()))[0]["numbers"]
    found: dict[str, Any] = {}
    for name, each in runs.items():
        other = each[0]["numbers"]
        assert other.keys() == first.keys()
        gaps = [
            float(np.nan_to_num(abs(first[k] - other[k]), nan=np.inf)) for k in first if not _both_nan(first, other, k)
        ]
        found[name] = {
            "decisions": each[0]["decisions"],
            "numbers": len(first),
            "largest_difference": max(gaps),
            **{
                f"{part}_{unit}_s": round(statistics.median(run[part][i] for run in each), 3)
                for part in ("read", "evaluate")
                for i, unit in enumerate(("cpu", "clock"))
            },
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--decisions", type=int, default=20_000)
    parser.add_argument("--s3", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found: dict[str, Any] = {"written": written(args.folder, folder)}
        journal = town(folder, args.decisions)
        forms: dict[str, str | Path] = {"file": folder / "town.duckdb", "cold store": str(folder / "town")}
        server = None
        if args.s3:
            import boto3

            server = subprocess.Popen(
                [sys.executable, "-c", SERVER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            assert server.stdout is not None
            endpoint = f"http://127.0.0.1:{server.stdout.readline().strip()}"
            os.environ.update(KEYS, AWS_ENDPOINT_URL=endpoint)
            boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="bucket")
            forms["cold store in a bucket"] = "s3://bucket/town"
        try:
            for form in list(forms.values())[1:]:
                drain(ColdFeed(journal, str(form), folder, every_s=0.0))
            found["replay"] = compared(forms)
        finally:
            if server is not None:
                assert server.stdin is not None
                server.stdin.close()
                server.wait(10)
        journal.close()
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
