"""Simulation of the router under faults in virtual time: laws over many seeds, and figures of the fault catalogue.

    python -m benchmarks.gateway.faults --seeds 10000 --jobs 2

A seed that violates a law is printed with what it violates; `--first N --seeds 1` runs seed N alone. Every 20th seed is
run again in another process, whose hashes have another salt, and must give the same events. Exits with 1 on any fault.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.kits import fault_simulation as faults
from tests.kits.fault_simulation import Script, Weather

from fitrouter.serving.attempts import Timers

_BATCH = 50
_PATIENT = Timers(deadline_s=10.0, first_token_s=3.0, chunk_gap_s=3.0)
_ROW_9 = Weather(math.inf, 0.45, (*("500",) * 6, *("hang",) * 2, "reset"))
"""30 % 5xx, 10 % hangs, 5 % resets."""
_FINE = (Weather(math.inf, 0.0),)


def run_batch(first: int, count: int, requests: int) -> tuple[dict[int, str], dict[int, list[str]], Counter[str], int]:
    """Simulate some seeds: their digests, violations and outcomes, and the number of calls."""
    digests: dict[int, str] = {}
    violations: dict[int, list[str]] = {}
    outcomes: Counter[str] = Counter()
    calls = 0
    with tempfile.TemporaryDirectory() as folder:
        identities = faults.Identified(Path(folder) / "identities.db")
        for seed in range(first, first + count):
            script = faults.script_of(seed, requests)
            result = faults.simulate(seed, identities, script, refold=seed % 10 == 0)
            digests[seed], calls = result.digest, calls + result.calls
            outcomes += result.outcomes
            if result.violations:
                violations[seed] = result.violations[:5]
    return digests, violations, outcomes, calls


def run_seeds(first: int, seeds: int, requests: int, jobs: int) -> dict[str, Any]:
    """Check the laws of all seeds, and the replay of some."""
    began = time.monotonic()
    starts = range(first, first + seeds, _BATCH)
    sizes = [min(_BATCH, first + seeds - start) for start in starts]
    # Processes that are spawned each have a salt of hashes of their own.
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        found = list(pool.map(run_batch, starts, sizes, [requests] * len(sizes)))
        digests = {seed: digest for part in found for seed, digest in part[0].items()}
        again = list(digests)[::20]
        with ProcessPoolExecutor(jobs, get_context("spawn")) as others:
            replays = list(others.map(run_batch, again, [1] * len(again), [requests] * len(again)))
    differing = [seed for part in replays for seed, digest in part[0].items() if digests[seed] != digest]
    return {
        "seeds": seeds,
        "requests": seeds * requests,
        "calls": sum(part[3] for part in found),
        "outcomes": dict(sum((part[2] for part in found), Counter()).most_common()),
        "violations": {seed: said for part in found for seed, said in part[1].items()},
        "replayed": len(again),
        "replayed_otherwise": differing,
        "seconds": round(time.monotonic() - began),
    }


# --- the catalogue's rows ---------------------------------------------------------------------------------------------


def _row(
    identities: faults.Identified, weather: tuple[tuple[Weather, ...], ...], seeds: int, **more: Any
) -> dict[str, Any]:
    """Measure answers, calls and waits of plain requests to three models, each of its own provider."""
    settings = {"requests": 100, "rate": 20.0, "timers": _PATIENT, "plain": True, "answer_s": (0.1, 1.0)} | more
    script = Script(models=(0, 1, 2), weather=weather, **settings)
    results = [faults.simulate(seed, identities, script) for seed in range(seeds)]
    outcomes = sum((result.outcomes for result in results), Counter[str]())
    requests = sum(outcomes.values())
    return {
        "requests": requests,
        "answered_percent": round(100.0 * outcomes["ok"] / requests, 3),
        "calls_per_request": round(sum(result.calls for result in results) / requests, 3),
        "longest_wait_s": round(max(max(result.waits) for result in results), 3),
        "outcomes": dict(outcomes),
        "violations": [said for result in results for said in result.violations][:5],
    }


def run_rows(seeds: int) -> dict[str, dict[str, Any]]:
    """Compute the figures of rows of the catalogue, by name."""
    down = (Weather(math.inf, 1.0, ("500",)),)
    back = (Weather(20.0, 1.0, ("500",)),)
    storm = (Weather(20.0, 0.9, ("429 storm",)),)
    with tempfile.TemporaryDirectory() as folder:
        identities = faults.Identified(Path(folder) / "identities.db")
        return {
            "9: one of three providers fails 45 % of its calls": _row(identities, ((_ROW_9,), _FINE, _FINE), seeds),
            "9: all three do": _row(identities, ((_ROW_9,),) * 3, seeds),
            "10: one of three is down": _row(identities, (down, _FINE, _FINE), seeds),
            "11: all are down": _row(identities, (down,) * 3, seeds),
            "10: all are down for 20 s of 100": _row(identities, (back,) * 3, seeds, requests=200, rate=2.0),
            "14: 429 with Retry-After 7 s": _row(identities, (storm, _FINE, _FINE), seeds, rate=5.0, requests=200),
            "47: budget of 0.02 USD": _row(identities, (_FINE,) * 3, seeds, usd=0.02, rate=200.0),
        }


def main() -> None:
    """Run the seeds and the rows; print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rows", type=int, default=20, help="seeds of each row of the catalogue")
    chosen = parser.parse_args()
    found = run_seeds(chosen.first, chosen.seeds, chosen.requests, chosen.jobs)
    rows = run_rows(chosen.rows) if chosen.rows else {}
    print(json.dumps({"laws": found, "rows": rows}, indent=1))
    broken = found["violations"] or found["replayed_otherwise"] or any(row["violations"] for row in rows.values())
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
