"""The file's laws across processes: kill -9, two writers, leases of the dead, and a machine that tries everything."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from benchmarks.stores import kills
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fitrouter.stores.journal import Entry, Snapshot, SqliteJournal
from fitrouter.types import Execution, Identity, Score

ROOT = Path(__file__).resolve().parents[2]
ENV = os.environ | {"PYTHONPATH": str(ROOT / "router")}
WAIT = 300.0

WRITER = """
import sys
from fitrouter.stores.journal import Entry, SqliteJournal
from fitrouter.types import Erasure

path, name, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
journal = SqliteJournal(path)
waiting = []
for n in range(rows):
    waiting.append((n, journal.append(Entry(Erasure(id=f"{name}-{n}", ts=float(n), subject=name)))))
    while len(waiting) > 20 or (waiting and n == rows - 1):
        n_acked, future = waiting.pop(0)
        future.result(300.0)
        print(n_acked, flush=True)
journal.close()
"""

HOLDER = """
import sys, time
from fitrouter.stores.journal import SqliteJournal
journal = SqliteJournal(sys.argv[1])
lease = journal.lease("scorer")
print(lease.held(), flush=True)
time.sleep(600)
"""


@contextmanager
def started(code: str, *args: object, stdout: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """The code in its own process, which does not outlive the test."""
    command = [sys.executable, "-c", code, *map(str, args)]
    with subprocess.Popen(command, stdout=stdout, text=True, env=ENV) as process:
        try:
            yield process
        finally:
            process.kill()


def test_kill_9_loses_nothing(tmp_path: Path) -> None:
    """Fifty writers are killed: what they had acknowledged is there, once, in order (`make bench-kills`: 1,000)."""
    result = kills.run(tmp_path, 50)
    assert (result["lost"], result["doubled"]) == (0, 0)
    assert result["events"] > 50


def test_two_writers_one_order(tmp_path: Path) -> None:
    """While two processes append, a reader that follows the tail sees every row once, each writer's in its order."""
    path, rows = tmp_path / "j.db", 1500
    journal = SqliteJournal(path)
    seen: list[tuple[int, str]] = []
    deadline = time.monotonic() + WAIT
    with (
        started(WRITER, path, "a", rows, stdout=subprocess.DEVNULL) as one,
        started(WRITER, path, "b", rows, stdout=subprocess.DEVNULL) as two,
    ):
        while len(seen) < 2 * rows and time.monotonic() < deadline:
            page = journal.tail(seen[-1][0] if seen else 0, 100)
            seen += [(row.seq, row.event.id) for row in page]
        assert (one.wait(WAIT), two.wait(WAIT)) == (0, 0)
    for name in ("a", "b"):
        assert [f"{name}-{n}" for n in range(rows)] == [i for _, i in seen if i.startswith(name)]
    assert seen == [(row.seq, row.event.id) for row in journal.tail(0, 10 * rows)]
    journal.close()


def test_lease_of_the_dead_is_free(tmp_path: Path) -> None:
    """A lease held by another process is refused while that lives, and taken over after kill -9."""
    journal = SqliteJournal(tmp_path / "j.db")
    lease = journal.lease("scorer")
    with started(HOLDER, tmp_path / "j.db") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "True"
        assert not lease.held()
        holder.kill()
    assert lease.held()
    journal.close()


IDS = st.integers(0, 8)
WHO = st.sampled_from(["ann", "bob", None])


class JournalMachine(RuleBasedStateMachine):
    """`SqliteJournal` against a dict, with reopening and failing writes at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.fail = False
        self.events: dict[str, Any] = {}
        self.spool: dict[str, bytes] = {}
        self.saved = Snapshot(0, {})
        self.open()

    def open(self) -> None:
        def fault(step: str) -> None:
            if self.fail and step == "commit":
                raise OSError("broken")

        self.journal = SqliteJournal(Path(self.folder.name) / "j.db", fault=fault)

    def write(self, *entries: Entry) -> None:
        future = self.journal.append(*entries)
        if self.fail:
            assert "broken" in str(future.exception(WAIT))
            return
        future.result(WAIT)
        for entry in entries:
            event = entry.event
            if event.id in self.events:
                continue
            self.events[event.id] = event
            if isinstance(event, Execution) and entry.content is not None:
                self.spool.pop(event.decision_id, None)
                self.spool[event.decision_id] = entry.content
            if isinstance(event, Score):
                self.spool.pop(event.decision_id, None)

    @staticmethod
    def execution(n: int, decision: int, who: str | None, content: bytes | None) -> Entry:
        event = Execution(
            id=f"execution-{n}",
            ts=float(n),
            decision_id=f"decision-{decision}",
            identity=Identity(user=who),
            chosen="a",
            served_by=None,
            status="ok",
        )
        return Entry(event, content)

    @rule(n=IDS, decision=IDS, who=WHO, content=st.none() | st.binary(max_size=3))
    def execute(self, n: int, decision: int, who: str | None, content: bytes | None) -> None:
        self.write(self.execution(n, decision, who, content))

    @rule(n=IDS, decision=IDS, who=WHO)
    def rate(self, n: int, decision: int, who: str | None) -> None:
        event = Score(
            id=f"score-{n}", ts=1.0, decision_id=f"decision-{decision}", identity=Identity(user=who), served_by="a"
        )
        self.write(Entry(event), self.execution(n, n, who, b"both"))

    @rule(seq=st.integers(0, 9), state=st.dictionaries(st.sampled_from("abc"), st.binary(max_size=2)))
    def save(self, seq: int, state: dict[str, bytes]) -> None:
        if not self.fail:
            self.journal.save(Snapshot(seq, state))
            if seq >= self.saved.seq:
                kept = {key: data for key, data in (self.saved.state | state).items() if data}  # no bytes: removed
                self.saved = Snapshot(seq, kept)

    @rule(fail=st.booleans())
    def disk(self, fail: bool) -> None:
        self.fail = fail

    @rule()
    def reopen(self) -> None:
        self.journal.close()
        self.open()

    @invariant()
    def agrees(self) -> None:
        rows = self.journal.tail(0, 1000)
        assert list(self.events.values()) == [row.event for row in rows]
        assert (rows[-1].seq if rows else 0) == self.journal.head()
        assert list(self.spool.items()) == [(item.decision_id, item.content) for item in self.journal.spooled()]
        assert self.saved == self.journal.snapshot()
        for key in ("ann", "decision-0"):
            mine = [e for e in self.events.values() if key in (e.identity.user, e.decision_id)]
            assert mine == [row.event for row in self.journal.of(key)]

    def teardown(self) -> None:
        self.journal.close()
        self.folder.cleanup()


JournalMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=20, suppress_health_check=[HealthCheck.too_slow]
)
TestJournalMachine = JournalMachine.TestCase
