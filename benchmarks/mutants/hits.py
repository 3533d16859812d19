"""Which tests make which guard act: called by an instrumented copy of the source, and loaded as a plugin of pytest.

Each condition of a guard is replaced by `_hit(number, condition)` and each clamp by `_hit(number, clamped, value)`. The
environment names the file to write to, and pytest puts the test's name into it, so that threads and child processes of
a test count as well.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

OUT = "MUTANT_HITS"
_seen: set[tuple[int, str]] = set()


def hit(number: int, value: Any, *unbounded: Any) -> Any:
    """Note that a guard acts: its condition holds, its filter drops, its clamp changes the value. Return the value."""
    acted = bool(unbounded[0] != value) if unbounded and not hasattr(value, "shape") else bool(unbounded) or bool(value)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if acted and test and (number, test) not in _seen:
        _seen.add((number, test))
        _write(f"{number}\t{test}\n")
    return value


def passed(number: int, value: Any) -> Any:
    """Note that a filter dropped something; return its condition."""
    hit(number, not value)
    return value


def pytest_runtest_logreport(report: Any) -> None:
    """Note how long a test took, and whether it failed."""
    if report.when == "call" or not report.passed:
        _write(f"{'time' if report.passed else 'failed'}\t{report.nodeid}\t{report.duration}\n")


def _write(line: str) -> None:
    if path := os.environ.get(OUT):
        with Path(path).open("a", encoding="utf-8") as file:  # one short write: processes do not mix lines
            file.write(line)
