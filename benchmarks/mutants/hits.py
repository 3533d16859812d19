"""Guards that act and guards that are removed: called by an instrumented copy of the source, and a plugin of pytest.

Each condition of a guard is replaced by `_hit(guard, condition)`, that of a filter by `_passed(guard, condition)`, and
each clamp by `_clamped(guard, clamped, value)`. The environment names the file to write to and the guard to remove, and
pytest puts the test's name into it, so that threads and child processes of a test count as well.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

OUT, REMOVED = "MUTANT_HITS", "MUTANT_REMOVED"
_seen: set[tuple[str, str]] = set()


def hit(guard: str, holds: Any) -> Any:
    """Note that a condition holds; return it, or False where its guard is removed."""
    if holds:
        _acts(guard)
    return holds and os.environ.get(REMOVED) != guard


def passed(guard: str, holds: Any) -> Any:
    """Note that a filter drops something; return its condition, or True where the filter is removed."""
    if not holds:
        _acts(guard)
    return holds or os.environ.get(REMOVED) == guard


def clamped(guard: str, value: Any, unbounded: Any) -> Any:
    """Note that a clamp changes a value; return what it makes of it, or the value itself where the clamp is removed."""
    if hasattr(value, "shape") or unbounded != value:
        _acts(guard)
    return unbounded if os.environ.get(REMOVED) == guard else value


def pytest_runtest_logreport(report: Any) -> None:
    """Note how long a test took, and whether it failed."""
    if report.when == "call" or not report.passed:
        kind = "time" if report.passed else report.outcome  # a failed subtest has a report of its own
        _write(f"{kind}\t{report.nodeid}\t{report.duration}\n")


def _acts(guard: str) -> None:
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if test and (guard, test) not in _seen:
        _seen.add((guard, test))
        _write(f"acts\t{test}\t{guard}\n")


def _write(line: str) -> None:
    if path := os.environ.get(OUT):
        with Path(path).open("a", encoding="utf-8") as file:  # one short write: processes do not mix lines
            file.write(line)
