"""A process that has imported what the tests import, and forks for each run of pytest, which so starts at once.

python -m benchmarks.mutants.forks fitrouter.router sklearn   # modules to import; then a line of JSON for each run
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest
from benchmarks.mutants import hits

PYTEST = ("-q", "--no-header", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")


def forked(
    arguments: Sequence[str], environment: Mapping[str, str], limit_s: float, said: Path, silence_s: float
) -> int | None:
    """Run pytest in a process of its own; its exit status, or None if it did not end in time.

    Args:
        arguments: of pytest.
        environment: added to this process's.
        limit_s: for all tests.
        said: file of the output.
        silence_s: longest time without the end of a test, where the environment names a file for these.
    """
    child = os.fork()
    if not child:
        _run(arguments, environment, said)
    until, status, notes = time.monotonic() + limit_s, None, Path(environment.get(hits.OUT, os.devnull))
    while status is None and time.monotonic() < until and not _silent(notes, silence_s):
        ended, how = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(how) if ended else None
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # with what its tests left running
    if status is None:
        os.waitpid(child, 0)
    return status


def _silent(notes: Path, silence_s: float) -> bool:
    return notes.is_file() and time.time() - notes.stat().st_mtime > silence_s


def _run(arguments: Sequence[str], environment: Mapping[str, str], said: Path) -> NoReturn:
    status = 4
    try:
        os.setsid()
        os.environ.update(environment)
        with said.open("wb") as file, Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        status = int(pytest.main([*PYTEST, *arguments], plugins=[hits]))
    except BaseException:  # noqa: BLE001  # the exit below shows nothing by itself
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    """Import the modules that the arguments name, then serve."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what modules print while they are imported is no answer
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()  # pytest looks for garbage at its end: all that was imported is none
    for line in sys.stdin:
        asked = json.loads(line)
        asked["said"] = Path(asked["said"])
        status = forked(**asked)
        print(json.dumps(status), file=answers, flush=True)


if __name__ == "__main__":
    main()
