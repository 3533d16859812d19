"""A log that would give wrong numbers is refused: what is wrong, in which row, and what to do."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pytest
from tests.kits.replay_logs import make_log
from tests.kits.replay_story import assert_same, story, write_folder

from fitrouter.errors import InvalidLog
from fitrouter.stores.journal import Entry, SqliteJournal
from fitrouter.types import Execution
from fitrouter_evaluators.replay.log.sources import read_log
from fitrouter_evaluators.replay.log.validation import validate

EVENTS = story()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gateway's folder with the story, and its export below."""
    return write_folder(tmp_path_factory.mktemp("data"), EVENTS)


@pytest.fixture
def warehouse(folder: Path, tmp_path: Path) -> Path:
    """A warehouse of its own for each test."""
    return Path(shutil.copy(folder / "fitrouter.duckdb", tmp_path / "fitrouter.duckdb"))


# --- what is refused -----------------------------------------------------------------------------------------------

A_DRAW = "SELECT {} FROM decisions WHERE mode = 'online' AND len(eligible) = 3 ORDER BY seq LIMIT 1 OFFSET 4"
A_TURN = "SELECT {} FROM decisions WHERE mode = 'sticky' ORDER BY seq LIMIT 1 OFFSET 2"
ANSWERED = "SELECT {} FROM executions ORDER BY seq LIMIT 1 OFFSET 3"
SCORED = "SELECT {} FROM scores WHERE status = 'ok' ORDER BY seq LIMIT 1 OFFSET 3"
VOTED = "SELECT {} FROM feedback WHERE kind = 'rating' ORDER BY seq LIMIT 1 OFFSET 3"
SWITCH = (
    "UPDATE decisions SET chosen = eligible[1 + list_position(eligible, chosen) % 3] WHERE seq = $seq; "
    "UPDATE executions SET chosen = (SELECT chosen FROM decisions WHERE seq = $seq) WHERE decision_id = $id"
)
COPY = "INSERT INTO {0} SELECT * REPLACE ($new AS seq) FROM {0} WHERE seq = $seq"

# fmt: off
REFUSED = [
    # name, table, which row, what is done to it, what the message says
    ("propensity", "decisions", A_DRAW, "UPDATE decisions SET propensity = propensity + 1e-8", "the propensity is"),
    ("sum", "decisions", A_DRAW, "UPDATE decisions SET probs = [probs[1], probs[2], probs[3] + 3e-9]", "sum is 1.0000"),
    ("above one", "decisions", A_DRAW, "UPDATE decisions SET probs = [-0.1, 0.6, 0.5]", "must be between 0 and 1"),
    ("zero", "decisions", A_DRAW, "UPDATE decisions SET propensity = 0.0", "the propensity of its draw is 0.0"),
    ("nan", "decisions", A_DRAW, "UPDATE decisions SET probs = ['nan'::DOUBLE, 0, 0]", "holds NULL, NaN or"),
    ("infinite mean", "decisions", A_DRAW, "UPDATE decisions SET mean = ['inf'::DOUBLE, 0, 0]", "an infinity"),
    ("a hole", "decisions", A_DRAW, "UPDATE decisions SET sd = [0.1, NULL, 0.1]", "holds NULL, NaN or an infinity"),
    ("infinite time", "decisions", A_DRAW, "UPDATE decisions SET ts = 'inf'::DOUBLE", "ts is inf"),
    ("infinite x", "decisions", A_DRAW, "UPDATE decisions SET features = [1, 'inf'::FLOAT, 0]", "features holds NaN"),
    ("short pmf", "decisions", A_DRAW, "UPDATE decisions SET probs = [0.5, 0.5]", "2 numbers in probs for 3 eligible"),
    ("no pmf", "decisions", A_DRAW, "UPDATE decisions SET probs = []", "no probs for 3 eligible"),
    ("short twin", "decisions", A_DRAW, "UPDATE decisions SET twin = [1.0]", "1 numbers in twin for 3 eligible"),
    ("short shadow", "decisions", A_DRAW, "UPDATE decisions SET candidates = MAP {'x': [1.0]}", "a candidate has"),
    ("not eligible", "decisions", A_DRAW, "UPDATE decisions SET chosen = 'z'", "chosen is z, and eligible are"),
    ("twice eligible", "decisions", A_DRAW, "UPDATE decisions SET eligible = ['a', 'b', 'b']", "eligible is [a, b, b]"),
    ("no arm", "decisions", A_DRAW, "UPDATE decisions SET eligible = [], probs = []", "no arm is eligible"),
    ("mode", "decisions", A_DRAW, "UPDATE decisions SET mode = 'greedy'", "mode is greedy"),
    ("nothing", "decisions", A_DRAW, "UPDATE decisions SET propensity = NULL", "nothing stands in propensity"),
    ("other draw", "decisions", A_DRAW, "UPDATE decisions SET draw_id = 'x'", "it was drawn, and draw_id names x"),
    ("asked rate", "decisions", A_DRAW, "UPDATE decisions SET asked_probability = 1.5", "asked_probability is 1.5"),
    ("twice", "decisions", A_DRAW, COPY.format("decisions"), "the decision is there already, in row {seq}"),
    ("a switch", "decisions", A_TURN, SWITCH, "it is sticky with the arm"),
    ("other session", "decisions", A_TURN, "UPDATE decisions SET session = 'x'", "belongs to another session"),
    ("no draw", "decisions", A_TURN, "UPDATE decisions SET draw_id = decision_id", "is not a draw"),
    ("answered twice", "executions", ANSWERED, COPY.format("executions"), "an execution of this decision is there"),
    ("status", "executions", ANSWERED, "UPDATE executions SET status = 'fine'", "status is fine"),
    ("other arm", "executions", ANSWERED, "UPDATE executions SET chosen = 'z'", "chosen is z, and the decision chose"),
    ("infinite cost", "executions", ANSWERED, "UPDATE executions SET cost_usd = 'inf'::DOUBLE", "cost_usd is inf"),
    ("lost answer", "executions", ANSWERED, "UPDATE executions SET decision_id = 'd'", "there is no such decision"),
    ("score twice", "scores", SCORED, COPY.format("scores"), "the score is there already, in row {seq}"),
    ("scored again", "scores", SCORED, COPY.format("scores").replace("AS seq", "AS seq, 'n' AS score_id"),
     "a score of this answer is there already, in row {seq}"),
    ("lost score", "scores", SCORED, "UPDATE scores SET decision_id = 'd', \"user\" = NULL", "no such decision"),
    ("vote twice", "feedback", VOTED, COPY.format("feedback"), "the vote is there already, in row {seq}"),
    ("off the scale", "feedback", VOTED, "UPDATE feedback SET value = 6, y = 1.25", "rating has y = 1.25"),
    ("wrong y", "feedback", VOTED, "UPDATE feedback SET y = abs(y - 0.5)", "on 1.0 to 5.0"),
    ("no scale", "feedback", VOTED, "UPDATE feedback SET scale_high = scale_low, y = NULL", "rating has y = NULL"),
    ("lost vote", "feedback", VOTED, "UPDATE feedback SET decision_id = 'd'", "there is no such decision"),
]
# fmt: on


def edit(path: Path, which: str, sql: str) -> tuple[int, int, str]:
    """Change one row of a warehouse: its sequence number, that of a row that is added, and its decision's id."""
    with duckdb.connect(path) as connection:
        found = connection.execute(which.format("seq, decision_id, (SELECT 1 + seq FROM position)")).fetchone()
        assert found is not None
        seq, name, new = found
        whole = sql if "$seq" in sql else f"{sql} WHERE seq = $seq"
        filled = whole.replace("$seq", str(seq)).replace("$id", f"'{name}'").replace("$new", str(new))
        for statement in filled.split("; "):
            connection.execute(statement)
    return seq, new, name


def test_one_bad_row_is_named(folder: Path, tmp_path: Path) -> None:
    """One row of a valid log is changed: the log is refused with the reason, the table, the row, and a remedy."""
    read_log(folder / "fitrouter.duckdb")
    for case, table, which, sql, reason in REFUSED:
        warehouse = Path(shutil.copy(folder / "fitrouter.duckdb", tmp_path / "fitrouter.duckdb"))
        seq, new, name = edit(warehouse, which, sql)
        with pytest.raises(InvalidLog) as refused:
            read_log(warehouse)
        place, message = str(refused.value).split(": ", 1)
        assert str(warehouse) in place, case
        assert f"table {table}, row {new if 'INSERT' in sql else seq} " in place, case
        assert ("'d'" if "decision_id = 'd'" in sql else name) in place, case
        assert reason.format(seq=seq) in message, case
        assert "; " in message, case


def test_features_of_an_answer_are_finite(warehouse: Path) -> None:
    """A score that is not finite is refused by its decision's name; NaN of a missing answer is accepted."""
    edit(warehouse, SCORED, "UPDATE scores SET h = [1, 'nan'::FLOAT, 0, 0], schema = 'style-1'")
    read_log(warehouse)
    _, _, name = edit(warehouse, SCORED, "UPDATE scores SET h = [1, 'inf'::FLOAT, 0, 0], schema = 'style-1'")
    with pytest.raises(InvalidLog, match="h of its score holds an infinity") as refused:
        read_log(warehouse)
    assert name in str(refused.value)


def test_a_label_that_nobody_asked_for_is_no_asked_label(warehouse: Path) -> None:
    """An asked vote is refused if its decision did not log a probability of asking."""
    with duckdb.connect(warehouse) as connection:
        votes = (
            "SELECT {} FROM decisions AS d JOIN feedback AS f USING (decision_id) WHERE NOT d.asked AND y IS NOT NULL"
        )
        seq = connection.execute(votes.format("min(d.seq)")).fetchone()
        connection.execute(f"UPDATE feedback SET asked = true WHERE decision_id IN ({votes.format('decision_id')})")
    with pytest.raises(InvalidLog, match="its decision did not request") as refused:
        read_log(warehouse)
    assert seq
    assert f"row {seq[0]} " in str(refused.value)


def test_what_breaks_several_rows_is_counted(warehouse: Path) -> None:
    """The message names the first bad row and the number of bad rows."""
    with duckdb.connect(warehouse) as connection:
        connection.execute("UPDATE decisions SET floor = 'nan'::DOUBLE WHERE seq < 40")
        count = connection.execute("SELECT count(*) FROM decisions WHERE seq < 40").fetchone()
    assert count
    with pytest.raises(InvalidLog, match=rf"{count[0] - 1} more rows are like it"):
        read_log(warehouse)


# --- damaged files and other schemas -------------------------------------------------------------------------------


def parquet(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder / "export", tmp_path / "tables"))


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("table", ["decisions", "feedback"])
def test_a_truncated_parquet_file_is_refused(folder: Path, tmp_path: Path, table: str, kept: float) -> None:
    """A truncated Parquet file is refused by its path, however much is kept."""
    tables = parquet(folder, tmp_path)
    path = tables / f"{table}.parquet"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    with pytest.raises(InvalidLog, match=rf"{table}\.parquet: it cannot be read"):
        read_log(tables)


def test_a_missing_table_is_refused(folder: Path, tmp_path: Path) -> None:
    """A log without executions is refused; one without profiles is read."""
    tables = parquet(folder, tmp_path)
    (tables / "profiles.parquet").unlink()
    assert not read_log(tables).declared
    (tables / "executions.parquet").unlink()
    with pytest.raises(InvalidLog, match=r"there is no executions\.parquet"):
        read_log(tables)


def rewrite(path: Path, select: str) -> None:
    partial = path.with_suffix(".new")
    duckdb.sql(f"COPY (SELECT {select} FROM read_parquet('{path}')) TO '{partial}' (FORMAT parquet)")
    partial.rename(path)


def test_a_changed_schema_is_refused(folder: Path, tmp_path: Path) -> None:
    """A missing, renamed or mistyped column is refused by name; another numeric width is accepted."""
    tables = parquet(folder, tmp_path)
    path = tables / "decisions.parquet"
    rewrite(path, "* REPLACE (seq::INT AS seq, policy_seq::UINTEGER AS policy_seq, probs::DOUBLE[] AS probs)")
    assert_same(read_log(tables), read_log(folder / "export"))
    for select, message in (
        ("* RENAME (propensity AS p)", "there is no column 'propensity'"),
        ("* REPLACE (propensity::VARCHAR AS propensity)", "column 'propensity' holds VARCHAR; it must hold DOUBLE"),
        ("* REPLACE (probs[1] AS probs)", r"column 'probs' holds DOUBLE; it must hold DOUBLE\[\]"),
        ("* REPLACE (asked::INT AS asked)", "column 'asked' holds INTEGER; it must hold BOOLEAN"),
    ):
        shutil.copy(folder / "export" / "decisions.parquet", path)
        rewrite(path, select)
        with pytest.raises(InvalidLog, match=message):
            read_log(tables)


def test_rounded_probabilities_are_refused(folder: Path, tmp_path: Path) -> None:
    """Propensities in single precision are refused."""
    tables = parquet(folder, tmp_path)
    rewrite(tables / "decisions.parquet", "* REPLACE (probs::FLOAT[] AS probs)")
    with pytest.raises(InvalidLog, match=r"their sum is|the propensity is"):
        read_log(tables)


@pytest.mark.parametrize("change", ["UPDATE position SET schema = 'another'", "DROP TABLE position"])
def test_a_warehouse_of_another_version_is_refused(warehouse: Path, change: str) -> None:
    """A warehouse of another schema, or a file that is none, is refused with the remedy."""
    with duckdb.connect(warehouse) as connection:
        connection.execute(change)
    with pytest.raises(InvalidLog, match=r"no warehouse of this version of fitrouter; start a gateway"):
        read_log(warehouse)


def test_a_warehouse_with_another_column_is_refused(warehouse: Path) -> None:
    """A warehouse whose tables differ from its schema is refused."""
    with duckdb.connect(warehouse) as connection:
        connection.execute("DROP VIEW outcomes; ALTER TABLE decisions DROP COLUMN rest")
    with pytest.raises(InvalidLog, match=r"table decisions: there is no column 'rest'"):
        read_log(warehouse)


@pytest.mark.parametrize("spoil", [lambda raw: raw[: len(raw) // 2], lambda raw: b"hello" * 2000, lambda raw: b""])
def test_a_damaged_warehouse_is_refused(warehouse: Path, spoil: Callable[[bytes], bytes]) -> None:
    """A truncated, overwritten or empty warehouse is refused with its path and a remedy."""
    warehouse.write_bytes(spoil(warehouse.read_bytes()))
    with pytest.raises(InvalidLog) as refused:
        read_log(warehouse)
    assert str(warehouse) in str(refused.value)


@pytest.mark.parametrize("spoil", [lambda raw: raw[: len(raw) // 2], lambda raw: b"hello" * 2000, lambda raw: b""])
def test_a_damaged_journal_is_refused(folder: Path, tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    """A truncated, overwritten or empty journal is refused and left as it is."""
    path = Path(shutil.copy(folder / "journal.db", tmp_path / "journal.db"))
    path.write_bytes(spoil(path.read_bytes()))
    size = path.stat().st_size
    with pytest.raises(InvalidLog, match="journal"):
        read_log(path)
    assert path.stat().st_size == size


def journal_with(folder: Path, tmp_path: Path, sql: str, *values: object) -> Path:
    path = Path(shutil.copy(folder / "journal.db", tmp_path / "journal.db"))
    connection = sqlite3.connect(path)
    connection.execute(sql, values)
    connection.commit()
    connection.close()
    return path


def test_a_flipped_bit_in_the_journal_is_named(folder: Path, tmp_path: Path) -> None:
    """A row that the gateway would skip is refused by replay."""
    path = journal_with(folder, tmp_path, "UPDATE events SET crc = crc + 1 WHERE seq = 17")
    with pytest.raises(InvalidLog, match="row 17: its checksum does not match"):
        read_log(path)


def test_a_journal_of_another_version_is_refused(folder: Path, tmp_path: Path) -> None:
    """A log of a later format is refused."""
    path = journal_with(folder, tmp_path, "PRAGMA user_version = 3")
    with pytest.raises(InvalidLog, match="its format version is 3"):
        read_log(path)


def test_a_decision_that_is_gone_leaves_orphans(folder: Path, tmp_path: Path) -> None:
    """An execution without its decision is refused by name."""
    some = [e for e in EVENTS if isinstance(e, Execution)][20]
    path = journal_with(folder, tmp_path, "DELETE FROM events WHERE id = ?", some.decision_id)
    with pytest.raises(InvalidLog, match="there is no such decision") as refused:
        read_log(path)
    assert some.decision_id in str(refused.value)


def test_an_event_that_is_appended_again_is_no_duplicate(folder: Path, tmp_path: Path) -> None:
    """Of two executions of a decision the first is read."""
    path = Path(shutil.copy(folder / "journal.db", tmp_path / "journal.db"))
    journal = SqliteJournal(path)
    journal.append(*(Entry(event) for event in EVENTS[:50])).result()
    journal.close()
    assert_same(read_log(path), read_log(folder))


def test_an_empty_window_is_refused(folder: Path) -> None:
    """A log without decisions is refused."""
    with pytest.raises(InvalidLog, match="it holds no decision"):
        read_log(folder, since=2e9)


# --- a log of any origin -------------------------------------------------------------------------------------------


def test_a_log_that_knows_only_propensities_is_valid() -> None:
    """Imports with only the chosen probability are read; a pmf that is partly missing is refused."""
    probs = np.full((4, 3), 1 / 3)
    log = make_log(probs, np.array([0, 1, 2, 0]))
    validate(log._replace(options=log.options._replace(prob=np.full(12, np.nan))))
    probs[2, 1] = np.nan
    with pytest.raises(InvalidLog, match="either the full vector"):
        validate(make_log(probs, np.array([0, 1, 2, 0])))


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"propensity": np.array([0.5, 0.5, 0.4])}, "row 2.*the propensity is 0.4"),
        ({"asked_probability": np.array([1.0, 0.0, 1.0])}, "row 1.*asked_probability is 0.0"),
    ],
)
def test_columns_of_any_log_are_looked_at(columns: dict[str, np.ndarray], reason: str) -> None:
    """Imported logs are checked by the same rules."""
    probs = np.full((3, 2), 0.5)
    validate(make_log(probs, np.zeros(3, dtype=int)))
    with pytest.raises(InvalidLog, match=reason):
        validate(make_log(probs, np.zeros(3, dtype=int), decisions=columns))
