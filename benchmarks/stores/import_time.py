"""Import time of fitrouter beside that of its standard-library imports: medians of processes, in turn."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

OURS, BASE = "import fitrouter", "import numpy, msgspec, sqlite3, asyncio"


def seconds(code: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - started


def main(runs: int = 15) -> None:
    pairs = [(seconds(OURS), seconds(BASE)) for _ in range(runs)]
    print(
        json.dumps(
            {
                "ours_s": statistics.median(ours for ours, _ in pairs),
                "base_s": statistics.median(base for _, base in pairs),
                "ratio": statistics.median(ours / base for ours, base in pairs),
                "runs": runs,
            }
        )
    )


if __name__ == "__main__":
    main()
