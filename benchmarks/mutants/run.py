"""Mutants: guards that are removed one at a time, and whether the tests that make them act notice.

    python -m benchmarks.mutants.run --seed 1                       # 120 guards
    python -m benchmarks.mutants.run --seed 1 --subject money --tests tests/state/test_budgets.py

`--tests` names files or folders to look for tests in; without it, the rooms of `tests/` of the guards' modules. A first
run of an instrumented copy finds for each guard the tests in which its condition holds (nobody else can notice
its removal), and keeps them in `results/mutants/`. Each guard is then removed in another copy, and those tests are run,
the quickest first, up to the first failure. A mutant that cannot be imported, or whose tests cannot be collected, is
"broken" and no success; one whose tests do not end is a "timeout". The working tree is never changed.

Prints JSON on standard output, and a table for docs/results/mutants.md with `--table`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.mutants.guards import SUBJECTS, Guard, applied, draw, guards
from benchmarks.mutants.hits import OUT
from benchmarks.mutants.known import KNOWN

ROOT = Path(__file__).parents[2]
PACKAGES = ("router", "evaluators", "integrations", "dashboards")
TESTS = 25
"""Tests run for one guard, at most."""
COLLECT_S = 900.0
"""Limit of a test file in the instrumented copy."""
_IMPORT = "from benchmarks.mutants.hits import hit as _hit, passed as _passed"
_FUTURE = "from __future__ import annotations\n"


class Result(NamedTuple):
    """What became of a mutant."""

    guard: str
    subject: str
    kind: str
    line: int
    outcome: str
    """noticed, unnoticed, timeout, broken, or "never acts": no test makes the condition hold."""
    by: str
    tests: int
    seconds: float


def copied(to: Path) -> Path:
    """Copy the files that git knows or does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    ).stdout.split(b"\0")
    for name in map(os.fsdecode, filter(None, listed)):
        source = ROOT / name
        if source.is_file() and not source.is_symlink():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            (to / name).write_bytes(source.read_bytes())
    return to


def pytest(copy: Path, tests: Sequence[str], limit_s: float, **more: str) -> tuple[int | None, str]:
    """Run tests in a copy; the exit status, None for a timeout, and the output."""
    paths = [str(copy), *(str(copy / name) for name in PACKAGES)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **more}
    command = [
        "nice",
        "-n",
        "10",
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        *tests,
    ]
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, timeout=limit_s, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout


def instrument(copy: Path, every: Sequence[Guard]) -> None:
    """Let each guard of a copy tell when it acts."""
    for file in {guard.file for guard in every}:
        source = (copy / file).read_bytes()
        mine = sorted((guard for guard in every if guard.file == file), key=lambda guard: guard.start)
        inner: list[Guard] = []
        for guard in reversed(mine):  # from the end, so that places stay valid; a guard within another one is left out
            if any(guard.start < other.start < guard.end for other in inner):
                continue
            number = every.index(guard)
            inside = f"_hit({number}, {guard.text}, {guard.without})"
            if guard.kind == "filter":
                inside = f"_passed({number}, ({guard.text}))"
            elif guard.kind != "clamp":
                inside = f"_hit({number}, ({guard.text}))"
            source = applied(source, guard, inside)
            inner.append(guard)
        text = source.decode()
        assert _FUTURE in text, file
        (copy / file).write_text(text.replace(_FUTURE, f"{_FUTURE[:-1]}; {_IMPORT}\n", 1))


def collected(
    every: Sequence[Guard], files: Sequence[Path], kept: Path
) -> tuple[dict[str, set[str]], dict[str, float]]:
    """Guard → the tests in which it acts, and test → seconds; of tests that fail without a mutant nothing is said."""
    acts: dict[str, set[str]] = {}
    took: dict[str, float] = {}
    stamp = hashlib.sha256("".join(guard.name for guard in every).encode()).hexdigest()[:16]
    with tempfile.TemporaryDirectory() as folder:
        copy: Path | None = None
        for file in files:
            name = str(file.relative_to(ROOT))
            version = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
            cache = kept / f"{name.replace('/', '.')}.{stamp}.{version}.hits"
            if not cache.exists():
                if copy is None:
                    copy = copied(Path(folder))
                    instrument(copy, every)
                lines = Path(folder) / "lines"
                lines.write_text("")
                status, _ = pytest(copy, ["-p", "benchmarks.mutants.hits", name], COLLECT_S, **{OUT: str(lines)})
                print(f"{name}: pytest ended with {status}", file=sys.stderr)
                kept.mkdir(parents=True, exist_ok=True)
                cache.write_text(lines.read_text())
            rows = [line.split("\t") for line in cache.read_text().splitlines()]
            failed = {row[1] for row in rows if row[0] == "failed"}
            took |= {row[1]: float(row[2]) for row in rows if row[0] == "time" and row[1] not in failed}
            for row in rows:
                if row[0].isdigit() and row[1] in took:
                    acts.setdefault(every[int(row[0])].name, set()).add(row[1])
    return acts, took


def judged(copy: Path, file: str, mutant: bytes, tests: Sequence[str], limit_s: float) -> tuple[str, str]:
    """Run the tests over a mutant: the outcome, and which test noticed. The copy is as before afterwards."""
    original = (copy / file).read_bytes()
    try:
        compile(mutant, file, "exec")
    except SyntaxError as error:
        return "broken", str(error)
    (copy / file).write_bytes(mutant)
    try:
        status, said = pytest(copy, ["-x", *tests], limit_s)
    finally:
        (copy / file).write_bytes(original)
    if status == 1:
        first = next((line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))), "")
        return "noticed", first.removeprefix("FAILED ").partition(" - ")[0]
    return {None: "timeout", 0: "unnoticed"}.get(status, "broken"), ""


def summary(results: Iterable[Result]) -> dict[str, object]:
    """Counts of a run."""
    counts = Counter(result.outcome for result in results)
    return {
        "guards": counts.total(),
        **dict(sorted(counts.items())),
        "noticed_share": counts["noticed"] / max(counts.total(), 1),
    }


def table(results: Sequence[Result]) -> str:
    """Markdown: a row for each subject, then each mutant that no test noticed."""
    lines = ["| subject | guards | noticed |", "|---|---|---|"]
    for subject in dict.fromkeys(result.subject for result in results):
        mine = [result for result in results if result.subject == subject]
        lines.append(f"| {subject} | {len(mine)} | {sum(each.outcome == 'noticed' for each in mine)} |")
    lines += ["", "| not noticed | outcome |", "|---|---|"]
    lines += [f"| `{each.guard}` | {each.outcome} |" for each in results if each.outcome != "noticed"]
    return "\n".join(lines)


def main() -> None:
    """Draw, remove, run, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=120, help="guards to draw")
    parser.add_argument("--subject", action="append", choices=SUBJECTS, help="only of these; may be repeated")
    parser.add_argument("--tests", nargs="+", type=Path, help="files or folders of tests")
    parser.add_argument(
        "--for-s", type=float, default=float("inf"), help="start no further mutant after so many seconds"
    )
    parser.add_argument("--no-known", action="store_true", help="leave out the guards of known.py")
    parser.add_argument("--table", action="store_true", help="also print a table on standard error")
    options = parser.parse_args()
    every = guards(ROOT)
    drawn = draw([each for each in every if each.subject in (options.subject or SUBJECTS)], options.count, options.seed)
    rooms = {ROOT / "tests" / part for guard in drawn for part in Path(guard.file).parts}
    places = [place.resolve() for place in options.tests or sorted(room for room in rooms if room.is_dir())]
    files = [file for place in places for file in (sorted(place.rglob("test_*.py")) if place.is_dir() else [place])]
    acts, took = collected(every, files, ROOT / "results" / "mutants")
    began, results = time.monotonic(), list[Result]()
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        known = () if options.no_known else KNOWN
        for one in known:
            source = (copy / one.file).read_text()
            assert source.count(one.text) == 1, f"{one.file} has changed: {one.text!r} is not in it once; see known.py"
            at = time.monotonic()
            outcome, by = judged(copy, one.file, source.replace(one.text, one.without).encode(), one.tests, 600.0)
            results.append(Result(one.name, "known", "known", 0, outcome, by, 1, time.monotonic() - at))
        for guard in drawn:
            if time.monotonic() - began > options.for_s:
                break
            tests = sorted(acts.get(guard.name, ()), key=took.__getitem__)[:TESTS]
            outcome, by, at = "never acts", "", time.monotonic()
            if tests:
                mutant = applied((copy / guard.file).read_bytes(), guard, guard.without)
                limit_s = 120.0 + 5.0 * sum(map(took.__getitem__, tests))
                outcome, by = judged(copy, guard.file, mutant, tests, limit_s)
            results.append(
                Result(
                    guard.name, guard.subject, guard.kind, guard.line, outcome, by, len(tests), time.monotonic() - at
                )
            )
            print(f"{outcome}: {guard.name}", file=sys.stderr)
    if options.table:
        print(table(results), file=sys.stderr)
    shown = {"seed": options.seed, "drawn": len(drawn), **summary(results), "mutants": [r._asdict() for r in results]}
    print(json.dumps(shown, indent=1))


if __name__ == "__main__":
    main()
