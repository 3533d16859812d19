"""Mutants: guards that are removed one at a time, and whether the tests that make them act notice.

    python -m benchmarks.mutants.run --seed 1 --seed 2     # 120 guards for each seed; common ones are removed once
    python -m benchmarks.mutants.run --subject money --tests tests/state/test_budgets.py

`--tests` names files or folders to look for tests in; without it, the rooms of `tests/` of the guards' modules and
those in `DOORS`, without the files in `LEFT_OUT`. A first run of an instrumented copy finds for each guard the tests
in which it acts (nobody else can notice its removal). Each guard is then removed in that copy, and those tests are run,
first those of the module's own file and the quickest first, up to the first failure; a test that also fails with all
guards in place has noticed nothing, and the others go on without it. A test that does not end is a success if it passes
with all guards in place, else a "timeout". A mutant whose tests cannot be collected is "broken" and no success. The
working tree is never changed.

`results/mutants/` keeps what a file's tests reach, until that file or a guard of its room changes, and what was
noticed, until the module or the test does.

Prints JSON on standard output, and a table for docs/results/mutants.md with `--table`.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.mutants.guards import SUBJECTS, Guard, draw, guards, instrumented
from benchmarks.mutants.hits import OUT, REMOVED
from benchmarks.mutants.known import KNOWN, Known

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "results" / "mutants"
PACKAGES = ("router", "evaluators", "integrations", "dashboards")
DOORS = ("gateway", "monitors", "personal", "serving", "state", "stores")
"""Rooms whose tests reach guards of other rooms."""
LEFT_OUT = (
    "test_postgres.py",
    "test_postgres_detached.py",
    "test_postgres_failures.py",
    "test_postgres_routers.py",
    "test_crash.py",
    "test_fuzz.py",
    "test_fit_laws.py",
    "test_agents_at_once.py",
    "test_acceptance.py",
)
"""Files of long tests, or of tests that start other programs."""
IMPORTED = (
    "anyio.pytest_plugin",
    "hypothesis.strategies",
    "pytest_asyncio",
    "syrupy",
    "sklearn.linear_model",
    "duckdb",
    "fitrouter.router",
    "fitrouter_integrations.gateway",
    "fitrouter_integrations.cli",
    "fitrouter_evaluators.personal",
)
"""What most tests import: it is in a fork at once."""
TESTS = 25
"""Tests run for one guard, at most."""
FILE_S = 600.0
"""Limit of a test file in the instrumented copy."""


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


class Reached(NamedTuple):
    """Which tests make which guard act."""

    acts: Mapping[str, set[str]]
    """Digest of a guard's name → tests that pass."""
    took: Mapping[str, float]
    """Test → seconds."""

    def by(self, guard: Guard) -> list[str]:
        """The tests in which a guard acts: first those of its module's file, and of each the quickest first."""
        own = f"/test_{Path(guard.file).stem.lstrip('_')}.py::"
        return sorted(self.acts.get(guard.key, ()), key=lambda test: (own not in test, self.took[test]))[:TESTS]


class Copy:
    """An instrumented copy of the working tree, and a process that runs tests in it."""

    def __init__(self, folder: Path, every: Sequence[Guard]) -> None:
        self.folder = copied(folder / "tree")
        self.modules = {guard.file: (self.folder / guard.file).read_bytes() for guard in every}
        """The guards' modules as they are."""
        for file, source in self.modules.items():
            mine = [guard for guard in every if guard.file == file]
            (self.folder / file).write_bytes(instrumented(source, mine))
        self.sound: set[str] = set()
        """Tests that pass alone, with all guards in place."""
        self._said, self.ended = folder / "said", folder / "ended"
        command = ["nice", "-n", "5", sys.executable, "-m", "benchmarks.mutants.forks", *IMPORTED]
        self._server = subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment(self.folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def pytest(self, tests: Sequence[str], limit_s: float, silence_s: float, **more: str) -> tuple[int | None, str]:
        """Run tests; the exit status, None for a timeout, and the output."""
        limits = {"limit_s": limit_s, "silence_s": silence_s}
        asked = {"arguments": tests, "environment": more, "said": str(self._said), **limits}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(asked), file=self._server.stdin, flush=True)
        return json.loads(self._server.stdout.readline()), self._said.read_text(errors="replace")

    def culprit(self, tests: Sequence[str], *, ended: bool) -> str:
        """Of the last run with a guard removed the first test that failed, or if it did not end, that was under way."""
        lines = [line.split("\t") for line in self.ended.read_text().splitlines() if not line.startswith("acts\t")]
        over = {test for _, test, _ in lines}
        failed = next((test for kind, test, _ in lines if kind == "failed"), "")
        return failed or ("" if ended else next((test for test in tests if test not in over), ""))

    def close(self) -> None:
        """End the process."""
        self._server.communicate()


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


def environment(copy: Path) -> dict[str, str]:
    """What a process that runs tests in a copy is told."""
    paths = [str(copy), *(str(copy / name) for name in PACKAGES)]
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OTEL_SDK_DISABLED": "true", "TOKENIZERS_PARALLELISM": "false"}
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return os.environ | quiet | offline | {"PYTHONPATH": os.pathsep.join(paths)}


def digest(*contents: bytes | str) -> str:
    """Digest of contents."""
    return hashlib.sha256(b"".join(c.encode() if isinstance(c, str) else c for c in contents)).hexdigest()[:16]


def reached(copy: Copy, every: Sequence[Guard], drawn: Iterable[Guard], files: Sequence[Path]) -> Reached:
    """Run test files with all guards in place; of tests that fail nothing is said."""
    acts: dict[str, set[str]] = {}
    took: dict[str, float] = {}
    asked, listed = list(drawn), f"guards\t{' '.join(guard.key for guard in every)}\t"
    for file in files:
        name = str(file.relative_to(ROOT))
        kept = KEPT / f"{name.replace('/', '.')}.{digest((copy.folder / name).read_bytes())}.hits"
        known = set(kept.read_text().partition("\n")[0].split("\t")[1].split()) if kept.exists() else set[str]()
        if not known or any(file.parent.name in Path(guard.file).parts and guard.key not in known for guard in asked):
            kept.parent.mkdir(parents=True, exist_ok=True)
            lines = kept.with_suffix(".running")
            lines.write_text(f"{listed}\n")
            status, said = copy.pytest([name], FILE_S, FILE_S, **{OUT: str(lines)})
            print(f"{name}: pytest ended with {status}: {said.strip().rpartition(chr(10))[2]}", file=sys.stderr)
            if status not in (0, 1, 5, None):
                raise RuntimeError(f"{name} cannot be run in a copy:\n{said}")
            lines.rename(kept)
        rows = [line.split("\t") for line in kept.read_text().splitlines()]
        failed = {row[1] for row in rows if row[0] == "failed"}
        took |= {row[1]: float(row[2]) for row in rows if row[0] == "time" and row[1] not in failed}
        for kind, test, what in rows:
            if kind == "acts" and test in took:
                acts.setdefault(what, set()).add(test)
    return Reached(acts, took)


def judged(copy: Copy, guard: Guard, tests: Sequence[str], limit_s: float, silence_s: float) -> tuple[str, str]:
    """Remove a guard and run tests: the outcome, and which test noticed."""
    left = list(tests)
    while left:
        copy.ended.write_bytes(b"")
        status, _ = copy.pytest(["-x", *left], limit_s, silence_s, **{REMOVED: guard.key, OUT: str(copy.ended)})
        if status == 0:
            return "unnoticed", ""
        test = copy.culprit(left, ended=status is not None)  # after a failure the exit status may tell of leaks
        if test not in left:
            return "broken", test
        if test in copy.sound or copy.pytest([test], limit_s, limit_s)[0] == 0:
            copy.sound.add(test)
            return "noticed", test
        if status is None:
            return "timeout", test
        left.remove(test)
    return "unnoticed", ""


def known(one: Known) -> tuple[str, str]:
    """Replace a text in a copy without instruments, and run its tests: the outcome, and which test noticed."""
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        source = (copy / one.file).read_text()
        if source.count(one.text) != 1:
            raise ValueError(f"{one.file} has changed: {one.text!r} is not in it once; see benchmarks/mutants/known.py")
        (copy / one.file).write_text(source.replace(one.text, one.without))
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-x", *one.tests]
        done = subprocess.run(command, cwd=copy, env=environment(copy), capture_output=True, text=True, check=False)
    outcome = {0: "unnoticed", 1: "noticed"}.get(done.returncode, "broken")
    return outcome, _first(done.stdout) if outcome == "noticed" else ""


def _first(said: str) -> str:
    """The test of the first failure that pytest tells of."""
    lines = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR ", "SUBFAILED"))]
    found = next((line for line in lines if " tests/" in line), "")
    return f"tests/{found.partition(' tests/')[2]}".partition(" - ")[0]


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
    parser.add_argument("--seed", type=int, action="append", help="may be repeated; 1 if none is given")
    parser.add_argument("--count", type=int, default=120, help="guards to draw for each seed")
    parser.add_argument("--subject", action="append", choices=SUBJECTS, help="only of these; may be repeated")
    parser.add_argument("--tests", nargs="+", type=Path, help="files or folders of tests")
    parser.add_argument("--no-known", action="store_true", help="leave out the guards of known.py")
    parser.add_argument("--table", action="store_true", help="also print a table on standard error")
    options = parser.parse_args()
    every = guards(ROOT)
    eligible = [each for each in every if each.subject in (options.subject or SUBJECTS)]
    drawn = {seed: draw(eligible, options.count, seed) for seed in options.seed or [1]}
    union = {guard.name: guard for mine in drawn.values() for guard in mine}
    rooms = {ROOT / "tests" / part for guard in union.values() for part in (*Path(guard.file).parts, *DOORS)}
    places = [place.resolve() for place in options.tests or sorted(room for room in rooms if room.is_dir())]
    files = [file for place in places for file in (sorted(place.rglob("test_*.py")) if place.is_dir() else [place])]
    files = [file for file in files if not any(fnmatch.fnmatch(file.name, pattern) for pattern in LEFT_OUT)]
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder), every)
        try:
            reach = reached(copy, every, union.values(), files)
            for guard in union.values():
                results[guard.name] = _result(copy, guard, reach)
                print(f"{results[guard.name].outcome}: {guard.name}", file=sys.stderr)
        finally:
            copy.close()
    before: list[Result] = []
    for one in () if options.no_known else KNOWN:
        at = time.monotonic()
        outcome, by = known(one)
        before.append(Result(one.name, "known", "known", 0, outcome, by, 1, time.monotonic() - at))
    if options.table:
        print(table(list(results.values())), file=sys.stderr)
    seeds = {seed: summary(results[guard.name] for guard in mine) for seed, mine in drawn.items()}
    mutants = [result._asdict() for result in (*before, *results.values())]
    shown = {"guards": len(every), "seeds": seeds, "union": summary(results.values()), "known": summary(before)}
    print(json.dumps({**shown, "mutants": mutants}, indent=1))


def _result(copy: Copy, guard: Guard, reach: Reached) -> Result:
    """What became of one mutant; what was noticed before is not run again while module and test are the same."""
    kept, module = KEPT / f"{guard.key}.json", copy.modules[guard.file]
    if kept.exists():
        seen, before = json.loads(kept.read_text())
        test = copy.folder / before["by"].partition("::")[0]
        if test.is_file() and seen == digest(module, test.read_bytes()):
            return Result(**before)
    at, tests = time.monotonic(), reach.by(guard)
    outcome, by = "never acts", ""
    if tests:
        took = [reach.took[test] for test in tests]
        outcome, by = judged(copy, guard, tests, 60.0 + 5.0 * sum(took), 30.0 + 5.0 * max(took))
    seconds = round(time.monotonic() - at, 1)
    result = Result(guard.name, guard.subject, guard.kind, guard.line, outcome, by, len(tests), seconds)
    if outcome == "noticed":
        seen = digest(module, (copy.folder / by.partition("::")[0]).read_bytes())
        kept.write_text(json.dumps([seen, result._asdict()]))
    return result


if __name__ == "__main__":
    main()
