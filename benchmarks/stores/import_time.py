"""CPU seconds and modules of a process before it works: imports and commands. Prints JSON, medians of several starts.

    python -m benchmarks.stores.import_time

The commands run in an installation that `fitrouter init` makes, with simulated models. Of those that ask a running
gateway the start is measured, up to the request that nothing answers.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

NOBODY = ("--url", "http://127.0.0.1:9")
"""The port `discard`: nothing answers."""
IMPORTS = {
    "numpy, msgspec, sqlite3, asyncio": "import numpy, msgspec, sqlite3, asyncio",
    "fitrouter": "import fitrouter",
    "fitrouter.Router": "from fitrouter import Router",
    "fitrouter_integrations.gateway": "from fitrouter_integrations.gateway import create_app",
}
COMMANDS = (
    ("--help",),
    ("init", "--help"),
    ("config", "check"),
    ("decisions",),
    ("rate", "0000", "up", *NOBODY),
    ("explain", "0000", *NOBODY),
    ("decisions", *NOBODY),
    ("models", *NOBODY),
    ("policy", "show", *NOBODY),
    ("personal", "leaderboard", *NOBODY),
    ("report", *NOBODY),
    ("top", "--once", *NOBODY),
)


def measured(command: list[str], folder: str) -> tuple[float, int]:
    """CPU seconds of a process, user and system, and how many modules it has imported."""
    before = os.times()
    subprocess.run(command, cwd=folder, capture_output=True, check=False)
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    told = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
    )
    return seconds, sum(line.startswith("import time:") for line in told.stderr.splitlines()) - 1


def main(runs: int = 5) -> None:
    """Print CPU seconds and modules of each."""
    rows = {name: [sys.executable, "-c", code] for name, code in IMPORTS.items()}
    command = [sys.executable, "-m", "fitrouter_integrations.cli"]
    rows |= {f"fitrouter {' '.join(each)}": [*command, *each] for each in COMMANDS}
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in rows}
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([*command, "init"], cwd=folder, capture_output=True, check=True)
            for name, each in rows.items():
                found[name].append(measured(each, folder))
    medians = {
        name: {"cpu_s": round(statistics.median(each[0] for each in all_of), 2), "modules": all_of[-1][1]}
        for name, all_of in found.items()
    }
    print(json.dumps({"runs": runs, "processes": medians}, indent=1))


if __name__ == "__main__":
    main()
