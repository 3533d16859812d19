"""A log is the same whatever it lies in, is read while it is written, and is never read wrong in silence."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from tests.kits.gateway import make_router
from tests.kits.replay import log_of
from tests.kits.replay_story import assert_same, somebody, story, write_folder, write_journal, write_warehouse

from fitrouter.errors import ConfigError
from fitrouter.plain import pack
from fitrouter.stores.journal import SqliteJournal
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter.types import (
    Decision,
    Erasure,
    Event,
    Execution,
    Feedback,
    FeedbackKind,
    Identity,
    Mode,
    PolicyVersion,
    Request,
    Score,
)
from fitrouter_evaluators.replay.log import sources
from fitrouter_evaluators.replay.log._connection import OPTIONAL
from fitrouter_evaluators.replay.log._warehouse import open_warehouse
from fitrouter_evaluators.replay.log.log import MODES, Log
from fitrouter_evaluators.replay.log.sources import export, read_log

ROOT = Path(__file__).resolve().parents[2]
ENV = os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("router", "evaluators", "."))}
EVENTS = story()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gateway's folder with the story, and its export below."""
    return write_folder(tmp_path_factory.mktemp("data"), EVENTS)


@pytest.fixture
def warehouse(folder: Path, tmp_path: Path) -> Path:
    """A warehouse of its own for each test."""
    return Path(shutil.copy(folder / "fitrouter.duckdb", tmp_path / "fitrouter.duckdb"))


# --- one log, three forms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [{}, {"since": 1e9 + 205.0, "until": 1e9 + 610.0}, {"features": False}])
def test_all_sources_give_the_same_log(folder: Path, window: dict[str, Any]) -> None:
    """Warehouse, journal and Parquet give bit-identical columns."""
    first = read_log(folder / "fitrouter.duckdb", **window)
    assert first.decisions.n > 30
    assert (first.decisions.x is None) == (first.outcomes.h is None) == ("features" in window)
    assert_same(first, read_log(folder / "journal.db", **window))
    assert_same(first, read_log(folder / "export", **window))


def test_a_log_matches_its_events(folder: Path) -> None:
    """Columns match values computed event by event, up to the codes of names."""
    found, plain = read_log(folder / "journal.db"), log_of(EVENTS)
    drawn = np.isin(found.decisions.mode, [MODES.index(mode) for mode in (Mode.ONLINE, Mode.UNIFORM, Mode.SHADOW)])
    for name, column in found.decisions._asdict().items():
        expected = getattr(plain.decisions, name)
        if name in {"tenant", "user", "role", "task", "session"}:
            assert _named(found, name, column) == _named(plain, name, expected), name
        elif name == "begins":
            np.testing.assert_array_equal(column, expected & drawn)
        else:
            np.testing.assert_array_equal(column, expected, err_msg=name)
    arms, plainly = np.array(found.names.arms), np.array(plain.names.arms)
    np.testing.assert_array_equal(arms[found.options.arm], plainly[plain.options.arm])
    for name in ("prob", "mean", "sd", "cost", "latency", "availability", "switch", "rest", "twin", "personal"):
        np.testing.assert_array_equal(getattr(found.options, name), getattr(plain.options, name), err_msg=name)
    assert_same(dict(found.options.candidates), dict(plain.options.candidates))
    for name in ("status", "cost_usd", "latency_s"):
        np.testing.assert_array_equal(getattr(found.outcomes, name), getattr(plain.outcomes, name), err_msg=name)
    served, plain_served = found.outcomes.served, plain.outcomes.served
    assert [a if k >= 0 else None for k, a in zip(served, arms[served], strict=True)] == [
        a if k >= 0 else None for k, a in zip(plain_served, plainly[plain_served], strict=True)
    ]
    assert {Mode.ONLINE, Mode.UNIFORM, Mode.SHADOW, Mode.STICKY, Mode.PINNED, Mode.FORCED} == {
        MODES[k] for k in np.unique(found.decisions.mode)
    }


def _named(log: Log, column: str, codes: np.ndarray) -> list[str | None]:
    names = getattr(log.names, column + "s")
    return [names[code] if code >= 0 else None for code in codes]


def test_scores_come_with_the_most_frequent_features(folder: Path) -> None:
    """The last score that is ok counts; h of another schema is left NaN, and no number of two kinds is mixed."""
    log = read_log(folder / "fitrouter.duckdb")
    scores = {e.decision_id: e for e in EVENTS if isinstance(e, Score) and e.status == "ok"}
    assert log.outcomes.schema == "style-1"
    assert log.outcomes.h is not None
    assert {"style-0", "style-1"} == {score.schema for score in scores.values()}
    for i, name in enumerate(log.decisions.id):
        score = scores.get(name)
        assert log.outcomes.score[i] == score.mean if score else np.isnan(log.outcomes.score[i])
        if score and score.schema == "style-1":
            assert pack(log.outcomes.h[i]) == score.h
        else:
            assert np.isnan(log.outcomes.h[i]).all()


def test_the_latest_declared_values_are_used(folder: Path) -> None:
    """Declared values are the user's latest."""
    log = read_log(folder / "export")
    ages = {log.names.users[code]: values["brevity"] for code, values in log.declared.items()}
    assert ages == {"person-0": 0.0, "person-1": 70.0, "person-2": 90.0, "person-4": 80.0}


async def test_a_running_routers_journal_and_warehouse_are_read(tmp_path: Path) -> None:
    """Requests, sessions, a pinned turn and votes are read while the router is running."""
    journal = SqliteJournal(tmp_path / "journal.db")
    feed = WarehouseFeed(journal, Warehouse(tmp_path / "fitrouter.duckdb"))
    async with make_router(tmp_path, journal=journal) as router:
        for number in range(12):
            who = Identity(user=f"ann {number // 3 % 2}", role="nurse", session=f"s{number // 3}")
            messages = ({"role": "user", "content": f"What is {number}?"},)
            model = "alpha" if number % 5 == 4 else "fitrouter/auto"
            answer = await router.complete(Request(messages=messages, identity=who, model=model))
            await router.feedback(answer.decision.id, FeedbackKind.THUMB, float(number % 2))
            await router.settled()
        while feed.step():
            pass
        log = read_log(tmp_path / "journal.db")
        assert_same(log, read_log(tmp_path / "fitrouter.duckdb"))
    assert log.decisions.n == 12
    assert np.count_nonzero(log.decisions.mode == MODES.index(Mode.STICKY)) > 3
    assert np.count_nonzero(log.decisions.mode == MODES.index(Mode.PINNED)) == 2
    assert log.outcomes.free_label.tolist() == [float(number % 2) for number in range(12)]
    assert (log.outcomes.status == "ok").all()
    assert len(log.names.users) == 2


# --- what is legal -------------------------------------------------------------------------------------------------


def decision(name: str, ts: float, **fields: Any) -> Decision:
    given: dict[str, Any] = {
        "draw_id": name,
        "identity": somebody("ann"),
        "mode": Mode.ONLINE,
        "eligible": ("a", "b"),
        "probs": (0.25, 0.75),
        "chosen": "b",
        "propensity": 0.75,
        "policy": PolicyVersion(algorithm="squarecb"),
    }
    return Decision(id=name, ts=ts, **(given | fields))


def vote(name: str, about: str, value: float, kind: FeedbackKind = FeedbackKind.THUMB, **fields: Any) -> Feedback:
    return Feedback(id=name, ts=9.0, decision_id=about, identity=somebody("ann"), kind=kind, value=value, **fields)


def test_a_rating_takes_precedence_over_a_thumb(tmp_path: Path) -> None:
    """A changed vote replaces its own kind, and `asked` distinguishes requested labels."""
    stars = FeedbackKind.RATING
    events: list[Event] = [
        decision("d0", 1.0),
        decision("d1", 2.0, asked=True, asked_probability=0.5),
        decision("d2", 3.0),
        vote("v0", "d0", 1.0),
        vote("v1", "d0", 0.0),
        vote("v2", "d1", 2.0, stars, scale=(1.0, 5.0), asked=True),
        vote("v3", "d1", 4.0, stars, scale=(1.0, 5.0), asked=True),
        vote("v4", "d1", 0.0, asked=True),
        vote("v5", "d2", 1.0, dimension="tone"),
        vote("v6", "d2", 1.0, FeedbackKind.COPY),
    ]
    log = read_log(write_warehouse(tmp_path / "w.duckdb", events))
    np.testing.assert_array_equal(log.outcomes.free_label, [0.0, np.nan, np.nan])
    np.testing.assert_array_equal(log.outcomes.asked_label, [np.nan, 0.75, np.nan])
    assert np.isnan(log.outcomes.cost_usd).all()
    assert (log.outcomes.status == "").all()
    assert log.outcomes.h is None


def test_rows_are_in_order_of_time(tmp_path: Path) -> None:
    """Rows are ordered by time, then by journal position, ragged columns included."""
    arms = [("a", "b", "c"), ("a",), ("a", "b")]
    probs = [(0.2, 0.3, 0.5), (1.0,), (0.25, 0.75)]
    events: list[Event] = [
        decision(f"d{i}", ts, eligible=arm, probs=p, chosen="a", propensity=p[0], features=pack(np.full(2, i)))
        for i, (ts, arm, p) in enumerate(zip((3.0, 1.0, 1.0), arms, probs, strict=True))
    ]
    events.append(decision("d3", 4.0, mode=Mode.STICKY, draw_id="d0", probs=(), propensity=1.0, chosen="a"))
    events.append(vote("v", "d0", 1.0))
    log = read_log(write_journal(tmp_path / "journal.db", events))
    assert log.decisions.id.tolist() == ["d1", "d2", "d0", "d3"]
    assert log.decisions.seq.tolist() == [2, 3, 1, 4]
    assert log.decisions.draw.tolist() == [0, 1, 2, 2]
    assert log.decisions.start.tolist() == [0, 1, 3, 6, 8]
    np.testing.assert_array_equal(log.options.prob, [1.0, 0.25, 0.75, 0.2, 0.3, 0.5, np.nan, np.nan])
    assert log.decisions.chosen.tolist() == [0, 1, 3, 6]
    np.testing.assert_array_equal(log.outcomes.free_label, [np.nan, np.nan, 1.0, np.nan])
    assert log.decisions.x is not None
    np.testing.assert_array_equal(log.decisions.x[:, 0], [1.0, 2.0, 0.0, np.nan])


def test_a_turn_without_its_draw_is_valid(tmp_path: Path) -> None:
    """If a decision did not become durable its turns have draw −1, and the log is accepted."""
    events = [
        decision("d0", 1.0),
        decision("d1", 2.0, mode=Mode.STICKY, draw_id="gone", probs=(), propensity=1.0),
    ]
    log = read_log(write_warehouse(tmp_path / "w.duckdb", events))
    assert log.decisions.draw.tolist() == [0, -1]
    assert log.decisions.begins.tolist() == [True, False]


def test_erased_users_are_in_no_source(tmp_path: Path) -> None:
    """An erasure removes earlier rows; outcomes of requests in progress are left out and counted in the source."""
    ann, bob = somebody("ann"), somebody("bob")
    late = {"decision_id": "d0", "identity": ann, "ts": 5.0}
    events: list[Event] = [
        decision("d0", 1.0, identity=ann),
        decision("d1", 2.0, identity=bob),
        vote("v0", "d0", 1.0),
        Erasure(id="e", ts=4.0, subject="ann"),
        Execution(id="x0", chosen="b", served_by="b", status="ok", **late),  # type: ignore[arg-type]
        Score(id="s0", served_by="b", status="failed", **late),  # type: ignore[arg-type]
    ]
    log = read_log(write_warehouse(tmp_path / "w.duckdb", events))
    assert_same(log, read_log(write_journal(tmp_path / "journal.db", events)))
    assert log.decisions.id.tolist() == ["d1"]
    assert log.names.users == ("bob",)
    assert log.source.endswith("without 2 outcomes of erased people")


def test_columns_that_tables_may_lack(folder: Path, tmp_path: Path) -> None:
    """Parquet tables are read without their optional columns, and what these tell is not known."""
    bare = tmp_path / "bare"
    shutil.copytree(folder / "export", bare)
    for table, columns in OPTIONAL.items():
        path = bare / f"{table}.parquet"
        duckdb.sql(f"COPY (SELECT * EXCLUDE ({', '.join(columns)}) FROM '{folder}/export/{path.name}') TO '{path}'")
    log, whole = read_log(bare), read_log(folder / "export")
    assert log.options.rest is None
    assert log.decisions.steps is None
    assert not log.options.candidates
    assert not log.options.switch.any()  # type: ignore[union-attr]
    np.testing.assert_array_equal(log.options.prob, whole.options.prob)
    np.testing.assert_array_equal(log.outcomes.asked_label, whole.outcomes.asked_label)


# --- what is read --------------------------------------------------------------------------------------------------


def test_a_gateways_folder_reads_the_warehouse_unless_it_is_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source names which was read and how far the warehouse was behind."""
    monkeypatch.setattr(sources, "_FEED_S", 0.01)
    assert "warehouse" in read_log(folder).source
    later = tmp_path / "later"
    later.mkdir()
    write_journal(later / "journal.db", EVENTS)
    only = read_log(later)
    assert only.source.startswith("journal")
    write_warehouse(later / "fitrouter.duckdb", EVENTS[:-7])
    behind = read_log(later)
    assert behind.source.endswith("whose warehouse is 7 rows behind")
    assert_same(only, behind)
    (later / "journal.db").unlink()
    assert read_log(later).decisions.n <= only.decisions.n


def test_a_warehouse_that_gets_on_is_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is not read instead while the feed adds rows, however long that takes."""
    reached = iter(range(len(EVENTS) - 20, len(EVENTS) + 1))
    monkeypatch.setattr(sources, "_FEED_S", 0.05)
    monkeypatch.setattr(sources, "_POLL_S", 0.01)
    monkeypatch.setattr(sources._warehouse, "reaches", lambda _: next(reached))
    assert read_log(folder).source.startswith("warehouse")
    assert next(reached, None) is None


def test_a_path_without_a_log_is_a_config_error(tmp_path: Path) -> None:
    """A wrong path is a configuration error, not an invalid log."""
    for path in (tmp_path, tmp_path / "nowhere.duckdb"):
        with pytest.raises(ConfigError, match="there is no log at"):
            read_log(path)


def test_an_export_is_complete_and_overwrites_nothing(folder: Path, tmp_path: Path) -> None:
    """All tables go into the folder, from a journal as from a warehouse; files that are there stay."""
    paths = export(folder / "journal.db", tmp_path / "new")
    assert {path.name for path in paths} == {path.name for path in (folder / "export").iterdir()}
    for path in paths:
        mine, other = (duckdb.read_parquet(str(p)).fetchall() for p in (path, folder / "export" / path.name))
        assert mine == other, path.name
    with pytest.raises(ConfigError, match=r"holds decisions\.parquet"):
        export(folder / "journal.db", tmp_path / "new")
    with pytest.raises(ConfigError, match="Parquet files already"):
        export(folder / "export", tmp_path / "again")


def test_folder_names_are_not_glob_patterns(folder: Path, tmp_path: Path) -> None:
    """Folder names may contain glob characters."""
    odd = tmp_path / "it's [a-b]* log?"
    shutil.copytree(folder / "export", odd)
    assert read_log(odd).decisions.n == read_log(folder).decisions.n


def test_reading_does_not_modify_files(folder: Path) -> None:
    """Neither file is modified."""
    paths = [folder / "journal.db", folder / "fitrouter.duckdb"]
    before = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    for path in paths:
        read_log(path)
    assert before == [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


# --- beside a gateway ----------------------------------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from fitrouter.errors import StoreError
from fitrouter.stores.journal import Entry, SqliteJournal
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed

folder = Path(sys.argv[1])
given = SqliteJournal(sys.argv[2])
events = [row.event for row in given.tail(0, 10**6)]
journal = SqliteJournal(folder / "journal.db")
feed = WarehouseFeed(journal, Warehouse(folder / "fitrouter.duckdb"))

def step():
    try:
        feed.step()
        return feed.warehouse.position()
    except StoreError:
        return 0  # somebody reads the file: the feed tries again

for i in range(0, len(events), 25):
    journal.append(*map(Entry, events[i : i + 25])).result(300.0)
    step()
    if i == 50:
        print("begun", flush=True)
while (position := step()) < len(events):
    pass
print(journal.head(), position, flush=True)
"""


def test_a_log_is_read_while_it_is_written(folder: Path, tmp_path: Path) -> None:
    """Every read succeeds and is a prefix of the whole; no append fails, and the feed catches up."""
    command = [sys.executable, "-c", WRITER, str(tmp_path), str(folder / "journal.db")]
    with subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout
        assert writer.stdout.readline() == "begun\n"
        seen = []
        while writer.poll() is None or not seen:
            seen += [read_log(tmp_path / name) for name in ("journal.db", "fitrouter.duckdb")]
        assert writer.stdout.readline().split() == [str(len(EVENTS))] * 2
    whole = read_log(tmp_path / "journal.db")
    assert_same(whole, read_log(tmp_path / "fitrouter.duckdb"))
    assert_same(whole, read_log(folder / "journal.db"))
    assert seen[0].decisions.n < whole.decisions.n
    for log in seen:
        assert log.decisions.id.tolist() == whole.decisions.id[: log.decisions.n].tolist()


HOLDER = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1])
connection.execute("CREATE TABLE mine (i INT)")
print("held", flush=True)
sys.stdin.readline()
connection.execute("INSERT INTO mine VALUES (1)")
print(connection.execute("SELECT count(*) FROM mine").fetchone()[0], flush=True)
"""


def test_a_locked_file_is_read_from_a_copy(warehouse: Path) -> None:
    """A writer that keeps the lock neither blocks the reader nor is blocked; its write-ahead log is included."""
    before = read_log(warehouse)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(warehouse)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        with open_warehouse(warehouse, patience_s=0.05) as log:
            assert log.connection.execute("SELECT count(*) FROM mine").fetchone() == (0,)
            assert log.connection.execute("SELECT count(*) FROM log_decisions").fetchone() == (before.decisions.n,)
            assert process.communicate("\n", timeout=300)[0] == "1\n"


def test_a_file_that_this_process_writes_is_read_from_a_copy(warehouse: Path) -> None:
    """A router of the same process may have it open, as a certificate that is made beside it finds."""
    before = read_log(warehouse)
    with Warehouse(warehouse)._open(), open_warehouse(warehouse, patience_s=0.05) as log:
        assert log.connection.execute("SELECT count(*) FROM log_decisions").fetchone() == (before.decisions.n,)
