"""Laws of the warehouse: every row of the journal exactly once, whatever happens to the file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from fitrouter.errors import NoWarehouse, StoreError, WarehouseLocked
from fitrouter.plain import pack
from fitrouter.stores.journal import Entry, MemoryJournal, Row, SqliteJournal
from fitrouter.stores.warehouse import OutOfStep, Warehouse, WarehouseFeed, described, rows_of, schema
from fitrouter.types import (
    DECLINED,
    OUTCOMES,
    RECORDED,
    ArtifactChange,
    Attempt,
    Decision,
    Erasure,
    Event,
    Execution,
    Feedback,
    FeedbackKind,
    Identity,
    Mode,
    ModelCard,
    ModelChange,
    PolicyChange,
    PolicyVersion,
    Prices,
    ProfileChange,
    Refusal,
    Remark,
    RunOutcome,
    Score,
)

ROOT = Path(__file__).resolve().parents[2]
ENV = os.environ | {"PYTHONPATH": str(ROOT / "router")}
TABLES = ("decisions", "executions", "scores", "feedback", "profiles", "models")
DUMPS = (
    "SELECT * FROM decisions ORDER BY seq",
    "SELECT * FROM executions ORDER BY seq",
    "SELECT * FROM scores ORDER BY seq",
    "SELECT * FROM feedback ORDER BY seq",
    "SELECT * FROM profiles ORDER BY seq",
    "SELECT * FROM models ORDER BY seq, arm",
    "SELECT * FROM policies ORDER BY seq",
    "SELECT * FROM outcomes ORDER BY seq",
    "SELECT seq, event_id, schema FROM position",  # `until` depends on when the file was begun
)
SLOW = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
X = pack(np.array([1.0, 0.1, -2.5]))


def who(user: str | None = "ann") -> Identity:
    return Identity(tenant="acme", user=user, role="nurse", task="triage", session="s1")


def decision(n: int, user: str | None = "ann") -> Decision:
    return Decision(
        id=f"d{n}",
        ts=1_700_000_000.125 + n,
        draw_id=f"d{n}",
        identity=who(user),
        mode=Mode.ONLINE,
        eligible=("a", "b"),
        excluded=(("c", "context window"),),
        probs=(1 / 3, 2 / 3),
        chosen="b",
        propensity=2 / 3,
        features=X,
        mean=(0.1, 0.2),
        sd=(0.3, 0.4),
        twin=(0.5, 0.5),
        budget_weight=0.25,
        candidates={"bold": (0.25, 0.75)},
        rest=(0.025, 0.025),
        steps=12.0,
        deadline_s=600.0,
        policy=PolicyVersion(algorithm="squarecb", config_hash="abc", seq=7),
        seed=2**63 - 1,
    )


def execution(n: int, user: str | None = "ann", **fields: Any) -> Execution:
    given = {"chosen": "b", "served_by": "a", "status": "ok", "features": X} | fields
    attempts = (Attempt(model="b", probability=2 / 3, error="timeout", ms=5.0), Attempt(model="a", probability=1.0))
    return Execution(
        id=f"x{n}", ts=n + 0.5, decision_id=f"d{n}", identity=who(user), attempts=attempts, cost_usd=0.25, **given
    )


def score(n: int, user: str | None = "ann", mean: float = 0.5) -> Score:
    return Score(id=f"s{n}-{mean}", ts=n, decision_id=f"d{n}", identity=who(user), served_by="a", h=X, mean=mean)


def feedback(n: int, i: int, value: float, user: str | None = "ann", **fields: Any) -> Feedback:
    given: dict[str, Any] = {"kind": FeedbackKind.THUMB} | fields
    return Feedback(id=f"f{n}-{i}", ts=n, decision_id=f"d{n}", identity=who(user), value=value, **given)


def story(n: int) -> list[Event]:
    """Events of all kinds, n times, with returning users."""
    events: list[Event] = []
    for i in range(n):
        user = None if i % 7 == 3 else f"user-{i % 5}"
        events += [decision(i, user), execution(i, user), score(i, user), feedback(i, 0, i % 2, user)]
    card = ModelCard(name="a", provider="p", prices=Prices(input=1.0, output=2.0), revision="2")
    return [
        *events,
        ProfileChange(id="p1", ts=1.0, identity=who(), declared={"brevity": 0.5, "warmth": -1.0}),
        ModelChange(id="m1", ts=2.0, cards=(card, ModelCard(name="b", provider="q")), registry="r1"),
        ArtifactChange(id="a1", ts=3.0, name="prior", sha256="0" * 64),
        Remark(id="n1", ts=3.5, decision_id="d1", identity=who(), kind="implicit", moved={"length": -1.0}, y=0.0),
        PolicyChange(id="c1", ts=4.0, action="promote", name="bold", settings={"gamma": 9.0}),
    ]


def rows(events: Sequence[Event], start: int = 1) -> list[Row]:
    return [Row(seq, event) for seq, event in enumerate(events, start)]


def dump(warehouse: Warehouse) -> list[list[tuple[Any, ...]]]:
    return [warehouse.query(sql) for sql in DUMPS]


def journal_of(*events: Event) -> MemoryJournal:
    journal = MemoryJournal()
    journal.append(*map(Entry, events)).result()
    return journal


def drain(feed: WarehouseFeed) -> int:
    total = 0
    while count := feed.step():
        total += count
    return total


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path / "fitrouter.duckdb")


# --- what is in it -------------------------------------------------------------------------------------------------


def test_every_field(warehouse: Warehouse) -> None:
    """Each event is one row of its table, with every field, unrounded."""
    events = story(1)
    assert warehouse.ingest(rows(events)) == len(events)
    event = events[0]
    assert isinstance(event, Decision)
    (found,) = warehouse.query("SELECT decisions FROM decisions")
    plain = {name: getattr(event, name) for name in event.__struct_fields__ if name in found[0]}
    plain = {name: value for name, value in plain.items() if isinstance(value, float | int | bool)}
    assert found[0] == found[0] | plain  # those that are added later, too
    expected = {
        "seq": 1,
        "decision_id": "d0",
        "ts": event.ts,
        "draw_id": "d0",
        "tenant": "acme",
        "user": "user-0",
        "role": "nurse",
        "task": "triage",
        "session": "s1",
        "mode": "online",
        "eligible": ["a", "b"],
        "excluded": [{"model": "c", "reason": "context window"}],
        "probs": [1 / 3, 2 / 3],
        "chosen": "b",
        "propensity": 2 / 3,
        "features": np.frombuffer(X, "<f4").tolist(),
        "mean": [0.1, 0.2],
        "sd": [0.3, 0.4],
        "cost": [],
        "latency": [],
        "availability": [],
        "cost_weight": 0.0,
        "latency_weight": 0.0,
        "floor": 0.0,
        "share": 1.0,
        "twin": [0.5, 0.5],
        "asked": False,
        "asked_probability": 0.0,
        "policy_algorithm": "squarecb",
        "policy_config_hash": "abc",
        "policy_seq": 7,
        "registry": "",
        "encoder": "",
        "seed": 2**63 - 1,
        "cost_unit_usd": 0.0,
        "latency_unit_s": 0.0,
        "budget_weight": 0.25,
        "budget_unit_usd": 0.0,
        "switch": [],
        "personal": [],
        "candidates": {"bold": [0.25, 0.75]},
        "new": [],
        "user_turn": True,
        "redraw": "",
        "rest": [0.025, 0.025],
        "steps": 12.0,
        "deadline_s": 600.0,
        "turn": 0,
        "unpriced": [],
    }
    assert found[0] == found[0] | expected
    assert warehouse.query("SELECT attempts, ttft_ms, cost_usd FROM executions") == [
        (
            [
                {"model": "b", "probability": 2 / 3, "error": "timeout", "ms": 5.0, "probe": False, "cost_usd": None},
                {"model": "a", "probability": 1.0, "error": None, "ms": 0.0, "probe": False, "cost_usd": None},
            ],
            None,
            0.25,
        )
    ]
    assert warehouse.query("SELECT len(h), mean, status FROM scores") == [(3, 0.5, "ok")]
    assert warehouse.query("SELECT kind, value, scale_low, scale_high, y, dimension FROM feedback") == [
        ("thumb", 0.0, 0.0, 1.0, 0.0, "overall")
    ]
    assert warehouse.query("SELECT declared FROM profiles") == [({"brevity": 0.5, "warmth": -1.0},)]
    assert warehouse.query("SELECT arm, input_usd_per_million, capabilities[1] FROM models ORDER BY arm") == [
        ("a@2", 1.0, "streaming"),
        ("b", 0.0, "streaming"),
    ]
    assert warehouse.query("SELECT action, name, settings FROM policies") == [("promote", "bold", '{"gamma":9.0}')]
    assert warehouse.query('SELECT decision_id, "user", kind, moved, y FROM remarks') == [
        ("d1", "ann", "implicit", {"length": -1.0}, 0.0)
    ]
    assert warehouse.query("SELECT count(*) FROM ope_runs") == [(0,)]


def test_a_field_of_an_event_is_a_column() -> None:
    """All fields have a column of their type, but for copies, content, and what only the journal's readers need."""
    left_out = {"cards", "topics", "stated", "grounds", "packed", "payer", "key", "worker", "look"}
    renamed = {"id", "identity", "scale", "policy"}  # to several columns, or to the name of the event's kind
    kinds = (
        Decision,
        Execution,
        Score,
        Feedback,
        ProfileChange,
        ModelChange,
        PolicyChange,
        Remark,
        Refusal,
        RunOutcome,
    )
    for table, kind in zip(schema(), kinds, strict=True):
        copied = {"features"} if kind is not Decision else set()
        assert set(kind.__struct_fields__) - renamed - left_out - copied <= schema()[table].keys(), table
        assert not schema()[table].keys() & (left_out | copied), table


def test_requests_are_counted_by_outcome(warehouse: Warehouse) -> None:
    """Each status counts as what `OUTCOMES` says; equal refusals are one row, which an erasure deletes."""
    ends = [execution(n, status=status) for n, status in enumerate(OUTCOMES)]
    refused = Refusal(id="r1", ts=9.0, identity=who(), reason="breaker", model="b", n=7)
    warehouse.ingest(rows([*ends, refused]))
    counted = dict(warehouse.query("SELECT outcome, sum(n) FROM requests GROUP BY outcome"))
    apart = {RECORDED, DECLINED}
    expected = Counter(outcome for outcome in OUTCOMES.values() if outcome not in apart) + Counter(refused=7)
    assert counted == expected
    assert warehouse.query('SELECT "user", model, reason, n FROM refusals') == [("ann", "b", "breaker", 7)]
    warehouse.ingest(rows([Erasure(id="e1", ts=10.0, tenant="acme", subject="ann")], start=20))
    assert warehouse.query("SELECT count(*) FROM requests") == [(0,)]


@given(
    texts=st.lists(st.text(), min_size=5, max_size=5),
    numbers=st.lists(st.floats(allow_nan=False), max_size=4),
    x=st.lists(st.floats(width=32, allow_nan=False), max_size=4),
)
@SLOW
def test_any_value_reads_back(tmp_path_factory: Any, texts: list[str], numbers: list[float], x: list[float]) -> None:
    """Texts of any characters and numbers of any size come back bit for bit."""
    warehouse = Warehouse(tmp_path_factory.mktemp("w") / "w.duckdb")
    user, role, model, reason, chosen = texts
    event = Decision(
        id="d",
        ts=1.0,
        draw_id="d",
        identity=Identity(user=user, role=role),
        mode=Mode.PINNED,
        eligible=(model,),
        excluded=((model, reason),),
        probs=tuple(numbers),
        chosen=chosen,
        propensity=1.0,
        features=pack(np.array(x)),
        policy=PolicyVersion(algorithm="fixed"),
    )
    warehouse.ingest([Row(1, event)])
    sql = 'SELECT "user", role, eligible, excluded, probs, chosen, features FROM decisions'
    assert warehouse.query(sql) == [(user, role, [model], [{"model": model, "reason": reason}], numbers, chosen, x)]


def test_outcomes(warehouse: Warehouse) -> None:
    """One row per decision: its last execution and score, and the latest vote of each kind."""
    events: list[Event] = [
        decision(1),
        decision(2),
        decision(3),
        execution(1, status="lost"),
        Execution(id="late", ts=9.0, decision_id="d1", identity=who(), chosen="b", served_by="a", status="ok"),
        score(1, mean=0.1),
        score(1, mean=0.9),
        feedback(1, 0, 1.0),
        feedback(1, 1, 0.0),
        feedback(1, 2, 4.0, kind=FeedbackKind.RATING, scale=(1.0, 5.0), asked=True),
        feedback(1, 3, 1.0, dimension="warmth"),
        feedback(2, 0, 1.0),
    ]
    warehouse.ingest(rows(events))
    assert warehouse.query("SELECT CAST(at_utc AS VARCHAR) FROM outcomes WHERE seq = 1") == [
        ("2023-11-14 22:13:21.125",)
    ]
    sql = "SELECT decision_id, status, score_mean, thumb, rating, vote_asked FROM outcomes ORDER BY seq"
    assert warehouse.query(sql) == [
        ("d1", "ok", 0.9, 0.0, 0.75, True),
        ("d2", None, None, 1.0, None, False),
        ("d3", None, None, None, None, None),
    ]
    votes = warehouse.query("SELECT feedback_id FROM latest_feedback ORDER BY seq")
    assert votes == [("f1-1",), ("f1-2",), ("f1-3",), ("f2-0",)]


def test_a_plan_that_nobody_ran_is_no_decision_of_its_run(warehouse: Warehouse) -> None:
    """The view of runs counts what was served or failed, not what was looked at and declined."""
    in_run = [msgspec.structs.replace(decision(n), identity=Identity(tenant="acme", run="run-1")) for n in (1, 2)]
    warehouse.ingest(rows([*in_run, execution(1), execution(2, status="declined", served_by=None)]))
    assert warehouse.query("SELECT run, decisions, models FROM runs") == [("run-1", 1, ["a"])]


def test_answers_are_for_people(warehouse: Warehouse) -> None:
    """The newest first: who, model, probability, cost, score, and the standing votes in words."""
    events: list[Event] = [
        decision(1),
        decision(2),
        execution(1, status="ok"),
        score(1, mean=0.9),
        feedback(1, 0, 0.0),
        feedback(1, 1, 1.0),
        feedback(1, 2, 4.0, kind=FeedbackKind.RATING, scale=(1.0, 5.0)),
        feedback(1, 3, 0.25, kind=FeedbackKind.EDIT, dimension="tone"),
    ]
    warehouse.ingest(rows(events))
    found = warehouse.query("SELECT who, model, probability, score, votes, status, decision_id FROM answers")
    assert {row[-1] for row in found} == {"d1", "d2"}
    (first,) = (row for row in found if row[-1] == "d1")
    said = decision(1)
    votes = "thumb up, rating 4 of 1 to 5, edit 0.25 for tone"
    assert first == ("ann", execution(1).served_by, said.propensity, 0.9, votes, "ok", "d1")
    times = warehouse.query("SELECT at_utc FROM answers")
    assert times == sorted(times, reverse=True)


def test_every_table_and_column_has_a_comment(warehouse: Warehouse) -> None:
    """The database itself says what everything is, also after the migration of an old file."""
    warehouse.ingest(rows([decision(1)]))
    for sql in (
        "SELECT table_name FROM duckdb_tables() WHERE comment IS NULL",
        "SELECT view_name FROM duckdb_views() WHERE NOT internal AND comment IS NULL",
        "SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal AND comment IS NULL",
    ):
        assert warehouse.query(sql) == []
    tables = {
        name for (name,) in warehouse.query("SELECT DISTINCT table_name FROM duckdb_columns() WHERE NOT internal")
    }
    assert tables == set(described())


def test_erasure(warehouse: Warehouse) -> None:
    """An erased user's rows are deleted, also those of the same batch; other users' stay."""
    warehouse.ingest(rows([decision(1, "bob"), decision(2), execution(2)]))
    warehouse.ingest(rows([score(2), feedback(2, 0, 1.0), Erasure(id="e", ts=1.0, subject="ann"), decision(3)], 4))
    assert warehouse.query('SELECT decision_id, "user" FROM decisions ORDER BY seq') == [("d1", "bob"), ("d3", "ann")]
    for sql in DUMPS[1:4]:
        assert warehouse.query(sql) == []
    assert warehouse.position() == 7


def test_invalid_rows_are_skipped(warehouse: Warehouse, caplog: pytest.LogCaptureFixture) -> None:
    """An event that cannot be a row, or has absurd numbers, does not block later rows."""
    broken = msgspec.structs.replace(score(2), h=b"abc")
    absurd = [execution(3, prompt_tokens=2**64 - 1), feedback(1, 0, 1.0, scale=(2.0, 2.0))]
    assert warehouse.ingest(rows([decision(1), broken, *absurd, decision(4)])) == 5
    assert "row 2" in caplog.text
    assert warehouse.query("SELECT prompt_tokens FROM executions") == [(2**63 - 1,)]
    assert warehouse.query("SELECT y FROM feedback") == [(None,)]
    assert (warehouse.position(), len(warehouse.query("SELECT * FROM decisions"))) == (5, 2)


# --- exactly once --------------------------------------------------------------------------------------------------


def test_repeated_batches(warehouse: Warehouse) -> None:
    """Rows at or before the position are skipped, the position moves with the rows, and an empty batch is nothing."""
    all_rows = rows([decision(n) for n in range(10)])
    assert (warehouse.position(), warehouse.ingest([])) == (0, 0)
    assert not warehouse.path.exists()
    assert (warehouse.ingest(all_rows[:6]), warehouse.position()) == (6, 6)
    assert (warehouse.ingest(all_rows[:6]), warehouse.position()) == (0, 6)
    assert (warehouse.ingest(all_rows[3:]), warehouse.position()) == (4, 10)
    assert warehouse.query("SELECT seq FROM decisions ORDER BY seq") == [(n,) for n in range(1, 11)]


def test_gap_is_refused(warehouse: Warehouse) -> None:
    """A batch that follows a row which is not here adds nothing."""
    warehouse.ingest(rows([decision(1)]))
    with pytest.raises(OutOfStep, match="ends at row 1"):
        warehouse.ingest(rows([decision(5)], 5), after=4)
    assert warehouse.position() == 1
    assert warehouse.ingest(rows([decision(5)], 5), after=1) == 1


def test_failed_batch_leaves_nothing(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that fails half way through its tables leaves neither rows nor position, and succeeds later."""
    events = story(3)
    warehouse.ingest(rows(events[:2]))
    before = dump(warehouse)
    with monkeypatch.context() as patch:
        patch.setattr(
            "fitrouter.stores.warehouse._warehouse.TABLES", ("decisions", "scores", "feedback", "no_such_table")
        )
        patch.setattr(
            "fitrouter.stores.warehouse._warehouse.rows_of",
            lambda row: ("no_such_table", [(1,)]) if row.seq == 8 else ("decisions", _cells(row)),
        )
        with pytest.raises(StoreError, match="no_such_table"):
            warehouse.ingest(rows(events))
    assert dump(warehouse) == before
    warehouse.ingest(rows(events))
    assert warehouse.position() == len(events)


def test_a_row_that_is_not_copied_is_an_incident(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not block later rows; the warehouse says which row it is, and why, also after further batches."""
    events = story(3)

    def broken(row: Row) -> Any:
        if row.seq == 2:
            raise ValueError("no columns")
        return rows_of(row)

    monkeypatch.setattr("fitrouter.stores.warehouse._warehouse.rows_of", broken)
    warehouse.ingest(rows(events[:3]))
    warehouse.ingest(rows(events))
    assert warehouse.position() == len(events)
    assert warehouse.incident == "row 2 is not copied to the warehouse: no columns"


def _cells(row: Row) -> Sequence[tuple[Any, ...]]:
    table, cells = rows_of(row)
    return cells if table == "decisions" else ()


def test_rebuilt_identically(warehouse: Warehouse) -> None:
    """Whatever the batches were, and after deleting the file, every table and view is the same."""
    events = [*story(20), Erasure(id="e", ts=1.0, subject="user-1"), decision(99)]
    journal = journal_of(*events)
    done = []
    for batch in (7, 1000):
        feed = WarehouseFeed(journal, warehouse, batch=batch)
        assert drain(feed) == len(events)
        assert feed.lag == 0
        done.append(dump(warehouse))
        warehouse.path.unlink()
        assert drain(feed) == len(events), "the running feed notices, too"
        done.append(dump(warehouse))
        feed.release()
        warehouse.path.unlink()
    assert done[0] == done[1] == done[2] == done[3]
    assert len(done[0][0]) == 17


FEEDER = """
import sys
from fitrouter.stores.journal import SqliteJournal
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
feed = WarehouseFeed(SqliteJournal(sys.argv[1]), Warehouse(sys.argv[2]), batch=5)
while True:
    print(feed.step(), flush=True)
"""

HOLDER = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1], read_only=True)
print(connection.execute("SELECT count(*) FROM outcomes").fetchall(), flush=True)
sys.stdin.read()
"""


@contextmanager
def started(code: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """The code in its own process, which does not outlive the test."""
    command = [sys.executable, "-c", code, *map(str, args)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENV) as process:
        try:
            yield process
        finally:
            process.kill()


def test_kill_9_of_the_feeder(warehouse: Warehouse, tmp_path: Path) -> None:
    """A feeder that is killed at any moment leaves whole batches; the next one ends with each row once."""
    events = story(60)
    journal = SqliteJournal(tmp_path / "j.db")
    journal.append(*map(Entry, events)).result(300.0)
    for steps in (1, 5, 9):
        with started(FEEDER, tmp_path / "j.db", warehouse.path) as feeder:
            assert feeder.stdout is not None
            for _ in range(steps):
                assert feeder.stdout.readline() == "5\n"
            feeder.send_signal(signal.SIGKILL)
            feeder.wait(300.0)
        assert warehouse.position() >= 5 * steps
        assert warehouse.position() % 5 == 0
    feed = WarehouseFeed(journal, warehouse)
    drain(feed)
    other = Warehouse(tmp_path / "other.duckdb")
    other.ingest(rows(events))
    assert dump(other) == dump(warehouse)
    assert warehouse.quarantined is None
    journal.close()


def test_other_processes_open_the_file_between_batches(warehouse: Warehouse) -> None:
    """Another process can open the file while a feed runs; ingestion waits for it, and loses no row."""
    journal = journal_of(*story(4))
    feed = WarehouseFeed(journal, warehouse, clock=lambda: 2_000_000_000.0)
    drain(feed)
    with started(HOLDER, warehouse.path) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "[(4,)]\n"
        journal.append(Entry(decision(100)), Entry(execution(100))).result()
        for _ in range(2):
            with pytest.raises(StoreError, match="Could not set lock"):
                feed.step()
        assert (feed.lag, feed.lag_seconds) == (2, 2_000_000_000.0 - 1_700_000_100.125)
        assert warehouse.query("SELECT count(*) FROM outcomes") == [(4,)], "readers do not exclude each other"
        holder.stdin.close()
        holder.wait(300.0)
    assert feed.step() == 2
    assert (feed.lag, feed.lag_seconds) == (0, 0.0)
    assert warehouse.query("SELECT count(*) FROM outcomes") == [(5,)]
    assert warehouse.quarantined is None


# --- one feeder ----------------------------------------------------------------------------------------------------


def test_nothing_is_copied_before_the_first_step(warehouse: Warehouse) -> None:
    """Until a feed has looked, all rows may be missing in the file: its lag says so, and never that there are none."""
    journal = journal_of(*story(3))
    drain(done := WarehouseFeed(journal, warehouse))
    done.release()
    assert done.lag == 0
    feed = WarehouseFeed(journal, warehouse)
    assert feed.lag == journal.head() > 0
    feed.step()
    assert feed.lag == 0


def test_only_one_feed_works_at_a_time(warehouse: Warehouse) -> None:
    """Of two feeds one ingests; when it is released the other continues at its position."""
    journal = journal_of(*story(3))
    one, two = (WarehouseFeed(journal, warehouse, batch=4) for _ in range(2))
    assert (one.step(), two.step()) == (4, 0)
    assert (one.holds, two.holds, two.lag) == (True, False, 0)
    one.release()
    assert drain(two) == journal.head() - 4
    assert one.step() == 0
    two.release()
    journal.append(Entry(decision(50))).result()
    assert drain(one) == 1
    assert warehouse.query("SELECT count(*), count(DISTINCT seq) FROM decisions") == [(4, 4)]


def test_file_replaced_by_an_older_one(warehouse: Warehouse) -> None:
    """A file restored from a backup under a running feed is brought up to date from its own position."""
    journal = journal_of(*story(2))
    feed = WarehouseFeed(journal, warehouse, batch=3)
    feed.step()
    backup = warehouse.path.read_bytes()
    drain(feed)
    whole = dump(warehouse)
    warehouse.path.write_bytes(backup)
    journal.append(Entry(ArtifactChange(id="nudge", ts=1.0, name="x", sha256=""))).result()
    assert feed.step() == 0
    drain(feed)
    assert dump(warehouse)[:-2] == whole[:-2]
    assert warehouse.position() == journal.head()


@pytest.mark.parametrize("longer", [False, True])
def test_another_journal(warehouse: Warehouse, longer: bool) -> None:
    """Rows of a replaced journal are not mixed with those of the old one."""
    old = WarehouseFeed(journal_of(*story(3)), warehouse)
    drain(old)
    journal = journal_of(*(decision(n) for n in range(1000, 1040 if longer else 1002)))
    feed = WarehouseFeed(journal, warehouse)
    assert feed.step() == 0
    assert drain(feed) == journal.head()
    assert warehouse.quarantined is not None
    assert warehouse.query("SELECT min(decision_id), count(*) FROM decisions") == [("d1000", journal.head())]


# --- the file ------------------------------------------------------------------------------------------------------


DIES = """
import os, sys, duckdb
connection = duckdb.connect(sys.argv[1])
for n in range(100):
    connection.execute("UPDATE position SET seq = ?", [n])
os.kill(os.getpid(), 9)
"""


def _damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "garbage":
        data = bytearray(b"not a database " * 1000)
    elif how == "empty":
        data = bytearray()
    elif how == "cut":
        del data[5000:]
    elif how == "header":
        data[8:200] = bytes(192)
    elif how == "blocks":
        for start in range(12288, len(data), 4096):
            data[start] ^= 0xFF
    path.write_bytes(data)
    if how == "wal":
        subprocess.run([sys.executable, "-c", DIES, str(path)], env=ENV, check=False)
        wal = path.with_name(path.name + ".wal")
        wal.write_bytes(wal.read_bytes()[:-50] + bytes(50))


@pytest.mark.parametrize("how", ["garbage", "empty", "cut", "header", "blocks", "wal"])
def test_damaged_file(warehouse: Warehouse, tmp_path: Path, how: str) -> None:
    """A damaged file is renamed, never deleted, and the feed fills a new one within three steps."""
    events = story(30)
    feed = WarehouseFeed(journal_of(*events), warehouse)
    drain(feed)
    whole = dump(warehouse)
    _damage(warehouse.path, how)
    damaged = warehouse.path.read_bytes()
    again = Warehouse(warehouse.path, clock=lambda: 55.5)
    feed.release()
    feed = WarehouseFeed(journal_of(*events), again)
    for _ in range(3):
        try:
            feed.step()
        except StoreError:
            continue
    assert again.quarantined == tmp_path / "fitrouter.duckdb.corrupt-55"
    assert (tmp_path / "fitrouter.duckdb.corrupt-55").read_bytes() == damaged
    assert dump(again) == whole


def test_another_version_is_rebuilt(warehouse: Warehouse) -> None:
    """A file of another schema is filled again from the journal; recorded replays are carried over."""
    feed = WarehouseFeed(journal_of(*story(5)), warehouse)
    drain(feed)
    run = ("r1", 1.0, "bold", "live", "dr", "fit", "all", 0.5, 0.4, 0.6, 9, 8.0, 2.0, 1.0, 0.0, "keep")
    warehouse.note_runs([run])
    whole = dump(warehouse)
    with duckdb.connect(warehouse.path) as connection:
        connection.execute("DROP VIEW answers; DROP VIEW outcomes; UPDATE position SET schema = 'another'")
        connection.execute("ALTER TABLE decisions DROP COLUMN steps; ALTER TABLE ope_runs ADD COLUMN gone DOUBLE")
    with pytest.raises(StoreError, match="another version of fitrouter made"):
        warehouse.query("SELECT 1")
    feed.release()
    assert drain(WarehouseFeed(feed.journal, Warehouse(warehouse.path))) == feed.journal.head()
    assert dump(warehouse) == whole
    assert warehouse.query("SELECT * FROM ope_runs") == [run]
    assert warehouse.quarantined is None
    bare = "SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal AND comment IS NULL"
    assert warehouse.query(bare) == []


def test_figures_wait_for_a_file_that_is_filled_again(tmp_path: Path) -> None:
    """Until it has what the journal had when it was begun, `whole` refuses; then a lag of the feed is no obstacle."""
    journal = journal_of(*story(10))
    feed = WarehouseFeed(journal, Warehouse(tmp_path / "w.duckdb"))
    feed.batch, count = 20, "SELECT count(*) FROM decisions"
    feed.step()
    feed.warehouse.prune(1)  # which copies the file
    with pytest.raises(StoreError, match=r"have 20 of 45 events; ask again"):
        feed.warehouse.query(count, whole=True)
    assert feed.warehouse.query(count) == [(4,)]
    drain(feed)
    assert feed.warehouse.query(count, whole=True) == [(9,)]
    journal.append(*map(Entry, [decision(100), decision(101)])).result()
    feed.batch = 1
    feed.step()
    assert feed.warehouse.query(count, whole=True) == [(10,)]


def test_a_file_of_another_program_is_set_aside(warehouse: Warehouse) -> None:
    """What stands at the path of the warehouse and is none is kept under another name."""
    with duckdb.connect(warehouse.path) as connection:
        connection.execute("CREATE TABLE position (seq BIGINT); INSERT INTO position VALUES (7)")
    assert warehouse.ingest(rows([decision(1)])) == 1
    assert warehouse.query("SELECT count(*) FROM decisions") == [(1,)]
    assert warehouse.quarantined is not None
    with duckdb.connect(warehouse.quarantined) as connection:
        assert connection.execute("FROM position").fetchall() == [(7,)]


def test_a_file_without_tables_is_filled(warehouse: Warehouse) -> None:
    """A process that is killed while it makes the file leaves it empty: that is no damage, and no other version."""
    duckdb.connect(warehouse.path).close()
    with pytest.raises(NoWarehouse, match="no tables yet"):
        warehouse.query("SELECT 1")
    assert warehouse.ingest(rows([decision(1)])) == 1
    assert warehouse.query("SELECT count(*) FROM decisions") == [(1,)]
    assert warehouse.quarantined is None


def test_a_version_without_replays(warehouse: Warehouse) -> None:
    """A file of another version that has no recorded replays is filled again, too."""
    with duckdb.connect(warehouse.path) as connection:
        connection.execute("CREATE TABLE position (seq BIGINT, event_id VARCHAR)")
    assert warehouse.ingest(rows([decision(1)])) == 1
    assert warehouse.query("SELECT count(*) FROM ope_runs") == [(0,)]
    assert warehouse.quarantined is None


def test_unusable(tmp_path: Path) -> None:
    """A place where no file can be, a missing file and a wrong query each give StoreError."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="could not be used"):
        Warehouse(tmp_path / "file" / "w.duckdb").ingest(rows([decision(1)]))
    warehouse = Warehouse(tmp_path / "w.duckdb")
    with pytest.raises(NoWarehouse, match="no event has been copied"):
        warehouse.query("SELECT 1")
    warehouse.ingest(rows([decision(1)]))
    with pytest.raises(StoreError, match="no_such"):
        warehouse.query("SELECT * FROM no_such")
    with pytest.raises(StoreError, match="read-only"):
        warehouse.query("DELETE FROM decisions")
    assert warehouse.query("SELECT decision_id FROM decisions WHERE seq = ?", [1]) == [("d1",)]


def test_the_file_is_free_after_each_use(warehouse: Warehouse) -> None:
    """A query that fails or takes too long leaves the file to others, like one that succeeds; the next one works."""
    warehouse.ingest(rows([decision(1)]))
    endless = "SELECT count(*) FROM range(1000000) AS a(i), range(1000000) AS b(j) WHERE hash(i, j) = 1"
    for sql, limit_s in (("SELECT 1", None), ("SELECT * FROM no_such", None), (endless, 0.1)):
        with suppress(StoreError):
            warehouse.queries([(sql, [])], limit_s=limit_s)
        with duckdb.connect(warehouse.path), pytest.raises(WarehouseLocked, match="Unique file handle conflict"):
            warehouse.query("SELECT 1", patience_s=0.0)
    assert warehouse.query("SELECT count(*) FROM decisions") == [(1,)]
    assert not warehouse.path.with_name(f"{warehouse.path.name}.wal").exists()


def test_duckdb_is_lazy() -> None:
    """Importing the package imports no DuckDB."""
    code = "import sys, fitrouter.stores.warehouse; sys.exit('duckdb' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=ENV)
