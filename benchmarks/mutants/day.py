"""Mutants of the acceptance day: columns of the warehouse that are gone, and reads of the stores that return nothing.

    python -m benchmarks.mutants.day                                  # all of tests/acceptance/mutants.yaml
    python -m benchmarks.mutants.day --only scores.h journal._sqlite:SqliteJournal.of
    python -m benchmarks.mutants.day --place postgres                 # the reads of PostgreSQL's stores

The day is lived once. Each mutant gets a copy of its folder (on PostgreSQL the same database), and the surfaces are
asked, the quickest first, until one is wrong. Those that the list calls unread are taken away all at once, and nothing
may be wrong then. Before and after, an unharmed copy must be right. Prints JSON on standard output, and with `--table`
lines of a table for docs/results/mutants.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx
from tests.acceptance.installation import ENVIRONMENT, Installation
from tests.acceptance.ledger import Ledger
from tests.acceptance.mutants import COLUMNS, READS, TOGETHER, UNREAD_COLUMNS, UNREAD_READS, blanked, drop
from tests.acceptance.places import first_wrong, living
from tests.acceptance.surfaces import READERS, Surfaces

KINDS = ("columns", "reads", "unread-columns", "unread-reads")
SINCE_START = {"GET /metrics"}
"""They count since the start, and a copy starts after the day."""
REBUILT = {"journal._sqlite:SqliteJournal.tail", "postgres._journal:PostgresJournal.tail"}
"""Reads of what is new, of which there is nothing in a copy: it begins without the warehouse."""
FEW = 5
"""Names that are printed."""
FILE = "duckdb "
"""Begins the names of surfaces that read the file themselves, without the stores."""


class Result(NamedTuple):
    """What became of a mutant."""

    mutant: str
    outcome: str
    """noticed, unnoticed, or timeout."""
    by: str = ""
    """The surface that was wrong, and the question."""
    seconds: float = 0.0


class Bench:
    """Copies of an installation that has lived, and what their surfaces say.

    Args:
        lived: it is stopped.
        books: of the day.
        copies: whether each mutant gets a copy of its folder.
    """

    def __init__(self, lived: Installation, books: Ledger, copies: bool) -> None:
        self.lived, self.books, self.copies = lived, books, copies
        self.order = sorted(READERS.keys() - SINCE_START)

    @contextlib.contextmanager
    def copied(self, blank: Iterable[str] = ()) -> Iterator[Installation]:
        """A copy that has not started."""
        with tempfile.TemporaryDirectory(prefix="fitrouter-day-") as folder, blanked(blank):
            found = self.lived.copied(Path(folder)) if self.copies else self.lived
            found.blank = tuple(blank)
            try:
                yield found
            finally:
                found.kill()
                found.blank = ()

    def ask(
        self, installation: Installation, mutant: str, *, columns: bool = False, everything: bool = False
    ) -> Result:
        """Ask the surfaces until one is wrong, or all of them."""
        began, lived, bad = time.monotonic(), Surfaces(installation, self.books), list[str]()
        took: dict[str, float] = {}
        for surface in self.order if columns else [each for each in self.order if not each.startswith(FILE)]:
            asked = time.monotonic()
            try:
                found = first_wrong(lived, [surface])
            except httpx.TimeoutException:
                return Result(mutant, "timeout", surface, round(time.monotonic() - began, 1))
            took[surface] = time.monotonic() - asked
            if found:
                bad.append(found)
                if not everything:
                    break
        if everything:
            self.order.sort(key=lambda each: took.get(each, 0.0))
        outcome = "noticed" if bad else "unnoticed"
        return Result(mutant, outcome, "; ".join(bad), round(time.monotonic() - began, 1))

    def columns(self, names: Sequence[str], groups: Sequence[Sequence[str]]) -> Iterator[Result]:
        """Take columns away, one at a time or in groups; the gateway opens the file for each query."""
        with self.copied() as installation:
            whole = installation.data / "whole"
            installation.tables.rename(whole)
            harmed = installation.tables.with_suffix(".new")
            shutil.copy(whole, installation.tables)
            installation.start()
            for some in [*([name] for name in names), *groups]:
                shutil.copy(whole, harmed)
                drop(harmed, some)
                harmed.replace(installation.tables)
                yield self.ask(installation, label(some), columns=True, everything=len(some) > 1)

    def reads(self, mutants: Iterable[Sequence[str]], *, everything: bool = False) -> Iterator[Result]:
        """Let reads return nothing from the start on; those of a mutant together."""
        for some in mutants:
            began = time.monotonic()
            with self.copied(some) as installation:
                try:
                    (installation.rebuild if REBUILT.intersection(some) else installation.start)()
                except AssertionError:
                    took = round(time.monotonic() - began, 1)
                    yield Result(label(some), "noticed", "it does not start, or come to rest", took)
                    continue
                yield self.ask(installation, label(some), everything=everything)

    def control(self) -> Result:
        """An unharmed copy, whose warehouse is built again."""
        with self.copied() as installation:
            installation.rebuild()
            return self.ask(installation, "none", columns=True, everything=True)


def label(some: Sequence[str]) -> str:
    """Name of a mutant."""
    return " ".join(some) if len(some) < FEW else f"{len(some)} at once"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--place", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument(
        "--only", nargs="*", default=None, help="columns and reads of the lists; all of them if not given"
    )
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS, help="all if not given")
    parser.add_argument("--table", action="store_true", help="print lines for docs/results/mutants.md")
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    here = options.place == "sqlite"

    def chosen(names: frozenset[str]) -> list[str]:
        mine = [each for each in names if each.startswith("postgres.") is not here or "." not in each.partition(":")[0]]
        return sorted(each for each in mine if options.only is None or each in options.only)

    folder = tempfile.TemporaryDirectory(prefix="fitrouter-day-")
    with folder as name, living(options.place, Path(name)) as (installation, books):
        installation.stop()
        bench = Bench(installation, books, copies=here)
        results = [tell(bench.control())]
        if here:
            columns = chosen(COLUMNS) if "columns" in options.kinds else []
            unread = [sorted(UNREAD_COLUMNS)] if "unread-columns" in options.kinds and options.only is None else []
            results += map(tell, bench.columns(columns, unread)) if columns or unread else ()
        if "reads" in options.kinds:
            pairs = [each for each in TOGETHER if any(chosen(frozenset(each[1:])))]
            alone = sorted(chosen(READS), key=lambda each: each in REBUILT)
            results += map(tell, bench.reads([*pairs, *([each] for each in alone)]))
        if "unread-reads" in options.kinds and options.only is None:
            results += map(tell, bench.reads([chosen(UNREAD_READS)], everything=True))
        results.append(tell(bench.control()))
    print(json.dumps([each._asdict() for each in results], indent=1))
    if options.table:
        for name, listed in (("columns", COLUMNS), ("reads", READS.union(map(" ".join, TOGETHER)))):
            ran = [each for each in results if each.mutant in listed]
            print(f"| {name} | {len(ran)} | {sum(each.outcome == 'noticed' for each in ran)} |")


def tell(result: Result) -> Result:
    """Print a result as it comes."""
    print(*result, sep="\t", file=sys.stderr, flush=True)
    return result


if __name__ == "__main__":
    main()
