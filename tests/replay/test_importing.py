"""Import of foreign logs: values survive the round trip, names cannot break it, and invalid lines are reported."""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kits.datasets import folder
from tests.kits.tables import table_driven

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter_evaluators.replay.importing.import_log import import_log
from fitrouter_evaluators.replay.importing.tables import identifier, literal
from fitrouter_evaluators.replay.log.log import MODES, Log
from fitrouter_evaluators.replay.log.sources import read_log

PLAIN = "SELECT arm, y AS reward, p AS propensity FROM log"
PMF = "arm, y AS reward, MAP {'a': p_a, 'b': p_b} AS pmf, 0 AS worst, 1 AS best"


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path: Path, columns: str, rows: Sequence[Sequence[Any]]) -> Path:
    """Columns as DuckDB declares them, such as 'arm VARCHAR, y DOUBLE'."""
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t ({columns})")
        connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(rows[0]))})", rows)
        connection.execute(f"COPY t TO '{path}' (FORMAT parquet)")
    return path


def table(folder: Path, name: str, columns: str = "*") -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        path = str(folder / f"{name}.parquet")
        return connection.execute(f"SELECT {columns} FROM read_parquet(?) ORDER BY seq", [path]).fetchall()


def pmf_rows(n: int = 6) -> list[dict[str, Any]]:
    return [{"arm": "ab"[i % 2], "y": i % 3 / 2, "p_a": 0.25, "p_b": 0.75} for i in range(n)]


def chosen(log: Log) -> list[str]:
    return [log.names.arms[arm] for arm in log.options.arm[log.decisions.chosen]]


# --- round trips -----------------------------------------------------------------------------------------


def test_every_column_is_imported(tmp_path: Path) -> None:
    """`read_log` returns every selected column: identity, time, pmf, reward on its scale, costs, features."""
    rows = [
        {
            "id": f"d{i}", "when": f"2026-10-0{i + 1}T00:00:00.25Z", "arm": arm, "p_a": 0.25, "p_b": 0.75,
            "stars": stars, "who": "ann", "job": "nurse", "kind": "mail", "talk": "s", "cents": 50 * i, "s": 2.0,
            "age": 7 + i, "tone": tone,
        }
        for i, (arm, stars, tone) in enumerate([("b", 5, "warm"), ("a", 1, ""), ("b", 2, "dry")])
    ]  # fmt: skip
    select = tmp_path / "map.sql"
    select.write_text("""-- what the columns mean
        SELECT id, "when" AS time, arm, MAP {'b': p_b, 'a': p_a} AS pmf, stars AS reward, 1 AS worst, 5 AS best,
            who AS "user", job AS role, kind AS task, talk AS session, cents::DOUBLE / 100 AS cost_usd,
            s AS latency_s, {'age': age::INT, 'tone': tone} AS features, 'shop' AS tenant, 'theirs' AS policy
        FROM log;
    """)
    made = import_log(write_csv(tmp_path / "log.csv", rows), str(select), tmp_path / "log")
    assert (made.rows, made.skipped, made.arms) == (3, 0, ("a", "b"))
    assert made.features == ("age", "tone=dry", "tone=warm")
    log = read_log(made.folder)
    decisions, outcomes = log.decisions, log.outcomes
    assert decisions.id.tolist() == ["d0", "d1", "d2"]
    assert decisions.seq.tolist() == [1, 2, 3]
    np.testing.assert_array_equal(np.diff(decisions.ts), 86_400.0)
    assert decisions.ts[0] == 1790812800.25
    assert chosen(log) == ["b", "a", "b"]
    assert decisions.propensity.tolist() == [0.75, 0.25, 0.75]
    assert log.options.prob.tolist() == [0.25, 0.75] * 3
    assert outcomes.asked_label.tolist() == [1.0, 0.0, 0.25]
    assert np.isnan(outcomes.free_label).all()
    assert decisions.asked.all()
    assert (decisions.asked_probability == 1.0).all()
    assert outcomes.cost_usd.tolist() == [0.0, 0.5, 1.0]
    assert outcomes.latency_s.tolist() == [2.0, 2.0, 2.0]
    assert decisions.x is not None
    assert decisions.x.tolist() == [[7.0, 0.0, 1.0], [8.0, 0.0, 0.0], [9.0, 1.0, 0.0]]
    assert (log.names.users, log.names.roles, log.names.tasks, log.names.sessions) == (
        ("ann",), ("nurse",), ("mail",), ("s",),
    )  # fmt: skip
    assert log.names.tenants == ("shop",)
    assert decisions.begins.tolist() == [True, False, False]  # one session, drawn again at each row
    assert decisions.algorithm is not None
    assert set(decisions.algorithm.tolist()) == {"theirs"}


names = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), min_size=1, max_size=8)
"""Any name, quotes and line feeds included. A lone carriage return is no part of a CSV cell for every reader."""


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[str], list[dict[str, Any]]]:
    arms = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    rows = []
    for i in range(draw(st.integers(1, 8))):
        weights = np.array([draw(st.floats(0.01, 1.0)) for _ in arms])
        rows.append(
            {
                "arm": draw(st.sampled_from(arms)),
                "pmf": (weights / weights.sum()).tolist(),
                "y": draw(st.floats(0.0, 1.0)),
                "x": draw(st.floats(-1e6, 1e6, width=32)),
                "level": draw(st.sampled_from(["", *arms])),
                "ts": float(i),
            }
        )
    return arms, rows


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(log=logs(), parquet=st.booleans(), hostile=st.lists(names, min_size=6, max_size=6, unique_by=str.lower))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, log: Any, parquet: bool, hostile: list[str]) -> None:
    """Any names of columns and arms: a table is read back exactly, from text and from Parquet."""
    arms, rows = log
    place = tmp_path_factory.mktemp("round")
    arm, pmf, y, x, level, ts = map(identifier, hostile)
    if parquet:
        kinds = ("VARCHAR", "DOUBLE[]", "DOUBLE", "DOUBLE", "VARCHAR", "DOUBLE")
        declared = ", ".join(f"{identifier(name)} {kind}" for name, kind in zip(hostile, kinds, strict=True))
        data = write_parquet(place / "log.parquet", declared, [list(row.values()) for row in rows])
    else:
        cells = [{**row, "pmf": json.dumps(row["pmf"])} for row in rows]
        data = write_csv(place / "log.csv", [dict(zip(hostile, row.values(), strict=True)) for row in cells])
        pmf, x = f"{pmf}::DOUBLE[]", f"{x}::DOUBLE"
    made = import_log(
        data,
        f"SELECT {arm} AS arm, {y} AS reward, {pmf} AS pmf, [{', '.join(map(literal, arms))}] AS eligible, "
        f"{ts} AS time, {{'x': {x}, 'level': {level}}} AS features FROM log",
        place / "out",
    )
    assert made.arms == tuple(sorted(arms))
    found = read_log(made.folder)
    order = np.argsort(np.array(arms, dtype=object))
    assert chosen(found) == [row["arm"] for row in rows]
    np.testing.assert_allclose(
        found.options.prob.reshape(len(rows), -1), np.array([row["pmf"] for row in rows])[:, order], rtol=1e-12
    )
    np.testing.assert_array_equal(found.outcomes.asked_label, [row["y"] for row in rows])
    assert found.decisions.x is not None
    levels = sorted({row["level"] for row in rows} - {""})
    expected = [[row["x"], *(float(row["level"] == level) for level in levels)] for row in rows]
    np.testing.assert_array_equal(found.decisions.x, np.array(expected, dtype=np.float32))


@table_driven(
    ("pmf",),
    [
        ("[0.5, 0.3, 0.2]",),
        ("MAP {'c': 0.5, 'a': 0.3, 'b': 0.2}",),
        ("{'b': 0.2, 'a': 0.3, 'c': 0.5}",),
        ("""'{"a": 0.3, "c": 0.5, "b": 0.2}'""",),
        ("MAP {'c': '0.5', 'a': '0.3', 'b': '0.2', 'd': NULL}",),
    ],
)
def test_probabilities_are_in_canonical_order(tmp_path: Path, pmf: str) -> None:
    """A pmf is a list in the order of the row's `eligible`, a map, an object or JSON; the log has sorted arms."""
    data = write_csv(tmp_path / "log.csv", [{"arm": "c", "y": 1}])
    listed = "['c', 'a', 'b'] AS eligible, " if pmf.startswith("[") else ""
    log = read_log(import_log(data, f"SELECT arm, y AS reward, {listed}{pmf} AS pmf FROM log", tmp_path / "o").folder)
    assert log.options.prob.tolist() == [0.3, 0.2, 0.5]
    assert [log.names.arms[arm] for arm in log.options.arm] == ["a", "b", "c"]
    assert (chosen(log), log.decisions.propensity.tolist()) == (["c"], [0.5])


def test_eligible_sets_choose_from_a_pmf(tmp_path: Path) -> None:
    """A row's probabilities are those of its eligible arms; what could not be drawn has none."""
    rows = [
        {"arm": "a", "set": "a|b", "p_a": 0.4, "p_b": 0.6, "p_c": "", "y": 1},
        {"arm": "c", "set": "c|a", "p_a": 0.1, "p_b": "", "p_c": 0.9, "y": 0},
    ]
    select = "SELECT arm, y AS reward, {'a': p_a, 'b': p_b, 'c': p_c} AS pmf FROM log"
    for name, more in (("own", ""), ("given", "string_split(set, '|') AS eligible, ")):
        made = import_log(
            write_csv(tmp_path / "log.csv", rows), select.replace("SELECT ", f"SELECT {more}"), tmp_path / name
        )
        log = read_log(made.folder)
        assert log.options.prob.tolist() == [0.4, 0.6, 0.1, 0.9]
        assert log.decisions.propensity.tolist() == [0.4, 0.9]


def test_logs_with_propensities_only(tmp_path: Path) -> None:
    """Without a pmf `probs` is empty, and all arms that occur are eligible."""
    rows = [{"arm": arm, "p": p, "y": y} for arm, p, y in [("b", 0.5, 1), ("a", 0.125, 0), ("c", 1.0, 1)]]
    made = import_log(write_csv(tmp_path / "log.csv", rows), PLAIN, tmp_path / "log")
    assert table(made.folder, "decisions", "chosen, propensity, probs, eligible, draw_id = decision_id") == [
        (arm, p, [], ["a", "b", "c"], True) for arm, p in [("b", 0.5), ("a", 0.125), ("c", 1.0)]
    ]
    assert table(made.folder, "feedback", "kind, y, asked, scale_low, scale_high") == [
        ("rating", y, True, 0.0, 1.0) for y in (1.0, 0.0, 1.0)
    ]
    log = read_log(made.folder)
    assert np.isnan(log.options.prob).all()
    assert log.decisions.propensity.tolist() == [0.5, 0.125, 1.0]
    assert chosen(log) == ["b", "a", "c"]
    assert table(made.folder, "executions", "served_by, status") == [("b", "ok"), ("a", "ok"), ("c", "ok")]


def test_uniform_logs_have_a_pmf(tmp_path: Path) -> None:
    """The mode `uniform` implies the whole pmf; a propensity that contradicts it is refused."""
    rows = [{"arm": "abc"[i % 3], "p": "0.333", "y": 1} for i in range(6)]
    data = write_csv(tmp_path / "log.csv", rows)
    select = PLAIN.replace("SELECT", "SELECT 'uniform' AS mode,")
    log = read_log(import_log(data, select, tmp_path / "log").folder)
    np.testing.assert_allclose(log.options.prob, 1 / 3, rtol=1e-15)
    assert {MODES[mode] for mode in log.decisions.mode} == {"uniform"}
    with pytest.raises(InvalidLog, match=r"row 1 of the selection: the propensity is 0\.25, and the pmf has 0\.3333"):
        import_log(data, select.replace("p AS", "0.25 AS"), tmp_path / "wrong")


def test_rounded_probabilities_are_renormalised(tmp_path: Path) -> None:
    """Probabilities that were rounded to three digits are renormalised; two digits are refused."""
    for digits, message in ((3, ""), (2, r"pmf sums to 0\.99")):
        p = round(1 / 3, digits)
        data = write_csv(tmp_path / f"{digits}.csv", [{"arm": "a", "y": 1, "p_a": p, "p_b": p, "p_c": p}])
        select = "arm, y AS reward, {'a': p_a, 'b': p_b, 'c': p_c} AS pmf"
        if message:
            with pytest.raises(InvalidLog, match=message):
                import_log(data, select, tmp_path / "exact")
            continue
        log = read_log(import_log(data, select, tmp_path / "rounded").folder)
        np.testing.assert_allclose(log.options.prob, 1 / 3, rtol=1e-15)
        np.testing.assert_allclose(log.decisions.propensity, 1 / 3, rtol=1e-15)


FIRST = 1790812800.0


@table_driven(
    ("time", "expected"),
    [
        ("'2026-10-01 02:00:00+02:00'", FIRST),
        ("'2026-10-01'", FIRST),
        ("'2026-10-01T00:00:00.000001'", FIRST + 1e-6),
        ("DATE '2026-10-01'", FIRST),
        ("TIMESTAMP '2026-10-01 00:00:01'", FIRST + 1),
        ("TIMESTAMPTZ '2026-10-01 00:00:00+02:00'", FIRST - 7200),
        ("1790812800", FIRST),
        ("'1790812800.5'", FIRST + 0.5),
        ("1790812800000", FIRST),
        ("1790812800000000", FIRST),
        ("1790812800000000000", FIRST),
        ("7", 7.0),
    ],
)
def test_times(tmp_path: Path, time: str, expected: float) -> None:
    """Times are UTC unless they name a zone; the size of a number since 1970 tells its unit."""
    data = write_csv(tmp_path / "log.csv", pmf_rows(1))
    made = import_log(data, f"{PMF}, {time} AS time", tmp_path / "log")
    assert table(made.folder, "decisions", "ts") == [(expected,)]


def test_rows_without_a_time_are_a_second_apart(tmp_path: Path) -> None:
    """Their order is that of the file."""
    made = import_log(write_csv(tmp_path / "log.csv", pmf_rows(3)), PMF, tmp_path / "log")
    assert table(made.folder, "decisions", "ts") == [(1.0,), (2.0,), (3.0,)]


def test_features(tmp_path: Path) -> None:
    """Features are in the order of the object: numbers, lists, and a number for each value of a text."""
    rows = [
        {**row, "age": age, "like": i, "e": json.dumps([i, 0.5])}
        for i, (row, age) in enumerate(zip(pmf_rows(2), ["", "4"], strict=True))
    ]
    data = write_csv(tmp_path / "log.csv", rows)
    age = "coalesce(age::DOUBLE, -1)"
    features = f"{{'e': e::DOUBLE[], 'likes': \"like\"::INT, 'age': {age}, 'who': arm, 'old': {age} > 3}} AS features"
    made = import_log(data, f"{PMF}, {features}", tmp_path / "log")
    assert made.features == ("e[0]", "e[1]", "likes", "age", "who=a", "who=b", "old=false", "old=true")
    x = read_log(made.folder).decisions.x
    assert x is not None
    assert x.tolist() == [[0.0, 0.5, 0.0, -1.0, 1.0, 0.0, 1.0, 0.0], [1.0, 0.5, 1.0, 4.0, 0.0, 1.0, 0.0, 1.0]]
    made = import_log(data, f"{PMF}, [p_a::FLOAT, 2] AS features", tmp_path / "list")
    assert made.features == ("features[0]", "features[1]")
    for wrong, kind, message in (
        ("{'age': TRY_CAST(age AS DOUBLE)}", InvalidLog, "line 2: feature 'age' is empty"),
        ("{'age': age::DOUBLE / 0}", InvalidLog, "line 2: feature 'age' is"),
        ("{'age': p_a, 'e': [1, NULL]}", InvalidLog, r"feature 'e' is '\[1, NULL\]'; allowed are 2 finite numbers"),
        ("{'age': {'n': 1}}", ConfigError, r"feature 'age' is a STRUCT\(n INTEGER\)"),
        ("age::DATE", ConfigError, "Conversion Error"),
        ("DATE '2026-10-01'", ConfigError, "feature 'features' is a DATE; give a number, a text, or a list"),
    ):
        with pytest.raises(kind, match=message):
            import_log(data, f"{PMF}, {wrong} AS features", tmp_path / "wrong")
    many = write_csv(tmp_path / "many.csv", [{**pmf_rows(1)[0], "word": f"w{i}"} for i in range(101)])
    with pytest.raises(ConfigError, match="'features' is a text with more than 100 values"):
        import_log(many, f"{PMF}, word AS features", tmp_path / "many")


def test_open_bandit_data(tmp_path: Path) -> None:
    """Both policies of Open Bandit Data are read with their clicks, propensities and pmf."""
    men = folder("obd")
    select = "timestamp AS time, item_id AS arm, click AS reward, position AS task, {}"
    every = f"{list(map(str, range(34)))} AS eligible"
    made = import_log(
        men / "bts/men/men.csv", select.format("propensity_score AS propensity, ") + every, tmp_path / "bts"
    )
    assert (made.rows, len(made.arms), made.skipped) == (10_000, 34, 0)
    inverse = sum(1 / p for (p,) in table(made.folder, "decisions", "propensity"))
    assert inverse / 34 / 10_000 == pytest.approx(0.94331, abs=1e-5)
    assert read_log(made.folder).outcomes.asked_label.sum() == 69
    uniform = select.format("'uniform' AS mode, ") + every
    log = read_log(import_log(men / "random/men/men.csv", uniform, tmp_path / "random").folder)
    assert log.outcomes.asked_label.sum() == 46
    assert log.names.tasks == ("1", "2", "3")
    np.testing.assert_allclose(log.options.prob, 1 / 34, rtol=1e-12)


# --- names ----------------------------------------------------------------------------------------------------------


def test_hostile_names(tmp_path: Path) -> None:
    """Header names may hold quotes, keywords or statements, be empty, occur twice, or differ in case only."""
    hostile = ['a"b', "select", "c0", "", "x'; DROP TABLE log; --", "Reward", "reward", "line\nbreak", "rowid", "row"]
    cells = ["arm'1", 0.5, 1, 2, 3, 9, 1, 5, 6, 7]
    rows = [dict(zip(hostile, cells, strict=True)) for _ in range(2)]
    features = {"c0": "c0", "column": "empty", hostile[4]: "drop", "Reward": "word", hostile[7]: "broken", "row": "row"}
    shown = ", ".join(f"'{name}': {identifier(column)}::INT" for column, name in features.items())
    made = import_log(
        write_csv(tmp_path / "it's [a] log;*.csv", rows),
        f'SELECT "a""b" AS arm, "select" AS propensity, reward_1 AS reward, {{{shown}}} AS features FROM log',
        tmp_path / "o'ut [x]",
    )
    assert made.arms == ("arm'1",)
    assert made.features == ("c0", "empty", "drop", "word", "broken", "row")
    assert table(made.folder, "decisions", "features, propensity") == [([1.0, 2.0, 3.0, 9.0, 5.0, 7.0], 0.5)] * 2
    assert table(made.folder, "feedback", "y") == [(1.0,)] * 2


def test_nested_columns(tmp_path: Path) -> None:
    """Fields of objects are selected by their path, from Parquet and from JSON."""
    sql = "SELECT {'p': 0.5, 'q': [{'arm': 'b'}]} AS s, 'a' AS arm, MAP {'y': 1} AS m"
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({sql}) TO '{tmp_path / 'log.parquet'}' (FORMAT parquet)")
    (tmp_path / "log.json").write_text('[{"s": {"p": 0.5, "q": [{"arm": "b"}]}, "arm": "a", "m": {"y": 1}}]')
    for name, reward in (("log.parquet", "m['y']"), ("log.json", "m.y")):
        select = f"s.q[1].arm AS arm, s.p AS propensity, {reward} AS reward"
        made = import_log(tmp_path / name, select, tmp_path / f"out-{name}")
        assert table(made.folder, "decisions", "chosen, propensity") == [("b", 0.5)]
        assert table(made.folder, "feedback", "y") == [(1.0,)]


# --- refusals ----------------------------------------------------------------------------------------------


@table_driven(
    ("select", "message"),
    [
        ("z AS arm", "(?s)Referenced column \"z\" not found.*The columns of 'log.csv' are 'arm', 'p', 'y'"),
        ("arm AS armm", "'armm' cannot be used; columns of a selection are arm, reward, propensity"),
        ("SELECT arm FROM log; DROP TABLE log", "give one SELECT"),
        ("SELECT arm FROM log; SELECT 1", "give one SELECT"),
        ("nothing.sql", "'nothing.sql' cannot be read"),
        ("arm, y AS reward, p AS propensity, p::DATE AS time", "Conversion Error"),
        ("SELECT arm, y AS reward, [p] AS pmf FROM log", "pmf is a list, whose order is not known"),
        ("SELECT y AS reward, p AS propensity FROM log", "the column `arm` is missing"),
        ("SELECT arm, y AS reward FROM log", "the column `propensity` or `pmf` or `mode` is missing"),
        ("arm, p AS propensity, 1 AS worst, 'x' AS best", r"(?s)line 2: worst and best are 1\.0 and not a number"),
        ("arm, p AS propensity, 1 AS worst, 1 AS best", "give two numbers that differ"),
        ("arm, p AS propensity, true AS time", "time is of type BOOLEAN; give a date and time, or a number"),
        ("arm, p AS propensity, 1 AS eligible", "eligible is of type INTEGER; give a list of arms"),
        ("arm, p::DOUBLE AS pmf", "pmf is of type DOUBLE; give a map"),
        ("arm, 'magic' AS mode", "the mode is magic; allowed are online and uniform"),
        ("arm, MAP {} AS pmf", "pmf is empty or no map"),
    ],
)
def test_invalid_selections_are_refused(tmp_path: Path, select: str, message: str) -> None:
    """A selection that cannot be run, or lacks a column, is refused with what is allowed; nothing is left."""
    data = write_csv(tmp_path / "log.csv", [{"arm": "a", "p": 0.5, "y": 1}])
    with pytest.raises((ConfigError, InvalidLog), match=message):
        import_log(data, select, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [data]


BAD = [
    ("a,0,1", "the propensity is 0.0; it must be above 0 and at most 1"),
    ("a,-0.5,1", "the propensity is -0.5"),
    ("a,1.5,1", "the propensity is 1.5"),
    ("a,nan,1", "the propensity is nan"),
    ("a,,1", "the propensity is not a number"),
    ("a,half,1", "the propensity is not a number"),
    (",0.5,1", "the chosen arm is empty"),
    ("z,0.5,1", "the arm 'z' was chosen, but eligible are [a, b]"),
    ("a,0.5,2", "the reward is '2'; the scale is 0 to 1"),
    ("a,0.5,nan", "the reward is 'nan'"),
    ("a,0.5,good", "the reward is 'good'"),
    ("a,0.5", "it has fewer columns than the header"),
    ("a,0.5,1,1", "it has more columns than the header"),
    ('"a"b,0.5,1', "a quote is not closed, or text follows"),
    ("a,0.5,\udcff", "it is not UTF-8"),
]
OF_TWO = "arm, y AS reward, p AS propensity, ['a', 'b'] AS eligible, 0 AS worst, 1 AS best"


@table_driven(("line", "reason"), BAD)
def test_an_invalid_line_is_reported(tmp_path: Path, line: str, reason: str) -> None:
    """An invalid line is reported by its number in the file, also after multi-line cells and empty lines."""
    data = tmp_path / "log.csv"
    text = f'arm,p,y\na,0.5,1\n"b",0.5,"1\n"\n\n{line}\nb,0.5,0\n'
    data.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidLog) as refused:
        import_log(data, OF_TWO, tmp_path / "log")
    assert f"line 6: {reason}" in str(refused.value)
    assert "1 of 4 rows" in str(refused.value)
    assert list(tmp_path.iterdir()) == [data]


def test_invalid_lines_can_be_skipped(tmp_path: Path) -> None:
    """All skipped lines are listed in file order; all others are imported with their numbers."""
    data = tmp_path / "log.csv"
    lines = ["a,0.5,1", *(line for line, _ in BAD), "b,0.5,0"]
    data.write_bytes("\n".join(["arm,p,y", *lines, ""]).encode("utf-8", "surrogateescape"))
    made = import_log(data, OF_TWO, tmp_path / "log", skip_bad=True)
    assert (made.rows, made.skipped) == (2, len(BAD))
    listed = [json.loads(line) for line in (made.folder / "problems.jsonl").read_text().splitlines()]
    assert [problem["place"] for problem in listed] == [f"line {k}" for k in range(3, 3 + len(BAD))]
    assert all(problem["reason"].startswith(reason) for problem, (_, reason) in zip(listed, BAD, strict=True))
    assert table(made.folder, "decisions", "chosen, decision_id") == [("a", "log-1"), ("b", "log-13")]
    found = json.loads((made.folder / "import.json").read_text())
    assert (found["skipped"], found["select"]) == (len(BAD), OF_TWO)


def test_line_numbers_of_large_files(tmp_path: Path) -> None:
    """Line numbers are right throughout a large file, compressed or not, with either line end."""
    for end, opened, name in (("\n", open, "log.csv"), ("\r\n", gzip.open, "log.tsv.gz")):
        cells = [["a", "0.5", "1"] for _ in range(60_000)]
        for row in (17, 30_000, 59_998):
            cells[row] = ["a", "0", "1"]
        cells[40_000] = ["a"]
        comma = "\t" if "tsv" in name else ","
        with opened(tmp_path / name, "wt", newline="") as file:
            file.write(end.join(comma.join(row) for row in [["arm", "p", "y"], *cells]))
        made = import_log(tmp_path / name, None, tmp_path / f"out {name}", skip_bad=True)
        listed = [json.loads(line)["place"] for line in (made.folder / "problems.jsonl").read_text().splitlines()]
        assert listed == ["line 19", "line 30002", "line 40002", "line 60000"]
        assert made.rows == 59_996


def test_broken_lines_are_told_beside_rows_of_a_whole_select(tmp_path: Path) -> None:
    """A whole SELECT has its own rows: they are counted, and broken lines of the file are told as such."""
    data = tmp_path / "log.csv"
    data.write_text("arm,p,y\na,0.5,1\nb\na,2,1\nb,0.5,0\n")
    with pytest.raises(InvalidLog, match=r"(?s)2 of 4 rows.*line 3: it has fewer.*row 1 of the selection: the prop"):
        import_log(data, f"{PLAIN} ORDER BY p DESC", tmp_path / "log")


def test_invalid_rows_of_parquet(tmp_path: Path) -> None:
    """Rows of Parquet are counted from 1; every number of a list is checked."""
    kinds = "id VARCHAR, arm VARCHAR, eligible VARCHAR[], pmf DOUBLE[], y DOUBLE"
    rows = [
        ("0", "a", ["a", "b"], [0.5, 0.5], 1.0),
        ("1", "a", ["a", "b"], [0.0, 1.0], 1.0),
        ("2", "a", ["a", "b"], [0.5], 1.0),
        ("3", "a", ["b"], [1.0], 1.0),
        ("4", "a", ["a", "a"], [0.5, 0.5], 1.0),
        ("5", "a", ["a", "b"], [1.5, -0.5], 1.0),
        ("6", "a", ["a", "b"], [0.5, None], 1.0),
        ("7", "a", ["a", None], [0.5, 0.5], 1.0),
        ("8", "a", [], [], 1.0),
        ("9", "a", None, None, 1.0),
        ("10", "a", ["a", "b"], [0.5, 0.4], 1.0),
        ("0", "a", ["a", "b"], [0.5, 0.5], 1.0),
        (None, "a", ["a", "b"], [0.5, 0.5], 1.0),
        ("11", "b", ["a", "b"], [0.5, 0.5], 7.0),
        ("12", "b", ["a", "b"], [0.5, math.nan], 1.0),
    ]
    data = write_parquet(tmp_path / "log.parquet", kinds, rows)
    select = "id, arm, eligible, pmf, y AS reward, 0 AS worst, 1 AS best"
    made = import_log(data, select, tmp_path / "log", skip_bad=True)
    listed = {
        p["place"]: p["reason"] for p in map(json.loads, (made.folder / "problems.jsonl").read_text().splitlines())
    }
    assert list(listed) == [f"row {row}" for row in range(2, 16)]
    for row, part in {
        2: "the pmf gives the chosen arm the probability 0", 3: "pmf is not a list of 2 numbers", 4: "eligible are [b]",
        5: "list each arm once", 6: "allowed are numbers from 0 to 1", 7: "allowed are numbers from 0 to 1",
        8: "eligible is not a list of arms", 9: "eligible is not a list of arms", 10: "eligible is not a list of arms",
        11: "pmf sums to 0.9", 12: "the id '0' occurs more than once", 13: "the id is empty", 14: "the reward is '7.0'",
        15: "allowed are numbers from 0 to 1",
    }.items():  # fmt: skip
        assert part in listed[f"row {row}"], (row, listed[f"row {row}"])
    with pytest.raises(InvalidLog, match=r"(?s)14 of 15 rows cannot be used.*row 2: .*row 6: .*and 9 more"):
        import_log(data, select, tmp_path / "strict")


def test_a_file_of_invalid_lines_is_refused(tmp_path: Path) -> None:
    """If every line is invalid the selection is wrong: nothing is written, even with `skip_bad`."""
    data = write_csv(tmp_path / "log.csv", [{"arm": "a", "p": 0.5, "y": 7}] * 3)
    with pytest.raises(InvalidLog, match="3 of 3 rows cannot be used; check the selection"):
        import_log(data, PLAIN, tmp_path / "log", skip_bad=True)
    assert not (tmp_path / "log").exists()


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    """Missing, empty, truncated and foreign files are refused with a reason; nothing is left behind."""
    whole = write_parquet(tmp_path / "whole.parquet", "arm VARCHAR, p DOUBLE, y DOUBLE", [("a", 0.5, 1.0)] * 100)
    (tmp_path / "cut.parquet").write_bytes(whole.read_bytes()[:-30])
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "header.csv").write_text("arm,p,y\n")
    (tmp_path / "open.csv").write_text('arm,p,y\na,0.5,1\n"a,0.5,1\na,0.5,1\n')
    (tmp_path / "no.csv.gz").write_text("arm,p,y\n")
    (tmp_path / "no.json.gz").write_text("{}")
    (tmp_path / "log.xlsx").write_text("")
    before = sorted(tmp_path.iterdir())
    for name, kind, message in (
        ("none.csv", ConfigError, "there is no file"),
        ("log.xlsx", ConfigError, "has an unknown type"),
        ("cut.parquet", InvalidLog, "it is not a Parquet file"),
        ("empty.csv", InvalidLog, "is empty"),
        ("header.csv", InvalidLog, "has a header but no rows"),
        ("open.csv", InvalidLog, "line 3: a quote is not closed"),
        ("no.csv.gz", InvalidLog, "cannot be read"),
        ("no.json.gz", InvalidLog, "cannot be read"),
    ):
        with pytest.raises(kind, match=message):
            import_log(tmp_path / name, None, tmp_path / "out")
    with pytest.raises(InvalidLog, match="has no rows, or none is selected"):
        import_log(tmp_path / "header.csv", PLAIN, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """Existing files are never overwritten; an empty folder may be given."""
    data = write_csv(tmp_path / "log.csv", pmf_rows())
    (tmp_path / "empty").mkdir()
    assert import_log(data, PMF, tmp_path / "empty").rows == 6
    with pytest.raises(ConfigError, match="exists and is not empty; give a new folder"):
        import_log(data, PMF, tmp_path / "empty")
    with pytest.raises(ConfigError, match="exists and is not empty"):
        import_log(data, PMF, data)


def test_a_column_of_ids_is_not_one_of_arms(tmp_path: Path) -> None:
    """A selection that names a column of ids as the arm is refused."""
    data = write_csv(tmp_path / "log.csv", [{"arm": f"id{i}", "p": 0.5, "y": 1} for i in range(1001)])
    with pytest.raises(ConfigError, match="more than 1000 arms; is `arm` the column"):
        import_log(data, PLAIN, tmp_path / "log")
