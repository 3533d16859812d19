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
from fitrouter_evaluators.replay.importing.column_map import load_map, shipped_maps
from fitrouter_evaluators.replay.importing.import_log import import_log
from fitrouter_evaluators.replay.log.log import MODES, Log
from fitrouter_evaluators.replay.log.sources import read_log

PLAIN = {"arm": "arm", "reward": "y", "propensity": "p"}
PMF = {"arm": "arm", "reward": "y", "pmf": {"columns": "p_{arm}"}}


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
    """`read_log` returns every mapped column: identity, time, pmf, reward on its scale, costs, features."""
    rows = [
        {
            "id": f"d{i}", "when": f"2026-10-0{i + 1}T00:00:00.25Z", "arm": arm, "p_a": 0.25, "p_b": 0.75,
            "stars": stars, "who": "ann", "job": "nurse", "kind": "mail", "talk": "s", "usd": 0.5 * i, "s": 2.0,
            "age": 7 + i, "tone": tone,
        }
        for i, (arm, stars, tone) in enumerate([("b", 5, "warm"), ("a", 1, ""), ("b", 2, "dry")])
    ]  # fmt: skip
    columns = {
        "id": "id", "time": "when", "arm": "arm", "pmf": {"columns": "p_{arm}"},
        "reward": {"column": "stars", "scale": [1, 5]}, "user": "who", "role": "job", "task": "kind", "session": "talk",
        "cost_usd": "usd", "latency_s": "s", "features": ["age", {"column": "tone", "kind": "category"}],
        "constants": {"tenant": "shop", "policy": "theirs"},
    }  # fmt: skip
    made = import_log(write_csv(tmp_path / "log.csv", rows), columns, tmp_path / "log")
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


names = st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1, max_size=8)
"""Any name, NUL, quotes and line feeds included. A lone carriage return is no part of a CSV cell for every reader."""


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[str], list[dict[str, Any]]]:
    arms = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    n = draw(st.integers(1, 8))
    rows = []
    for i in range(n):
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
@given(log=logs(), parquet=st.booleans(), hostile=st.lists(names, min_size=6, max_size=6, unique=True))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, log: Any, parquet: bool, hostile: list[str]) -> None:
    """Any names of columns and arms: a table is read back exactly, from text and from Parquet."""
    arms, rows = log
    folder = tmp_path_factory.mktemp("round")
    arm, pmf, y, x, level, ts = hostile
    if parquet:
        data = folder / "log.parquet"
        quoted = [name.replace('"', '""') for name in hostile]
        if len({name.lower() for name in hostile}) < 6 or any("\0" in name for name in hostile):
            return  # DuckDB, which writes the file for us, cannot
        kinds = ("VARCHAR", "DOUBLE[]", "DOUBLE", "DOUBLE", "VARCHAR", "DOUBLE")
        declared = ", ".join(f'"{name}" {kind}' for name, kind in zip(quoted, kinds, strict=True))
        write_parquet(data, declared, [list(row.values()) for row in rows])
    else:
        data = folder / "log.csv"
        cells = [{**row, "pmf": json.dumps(row["pmf"])} for row in rows]
        write_csv(data, [dict(zip(hostile, row.values(), strict=True)) for row in cells])
    columns = {
        "arm": arm,
        "pmf": pmf,
        "reward": y,
        "arms": arms,
        "time": {"column": ts, "unit": "s"},
        "features": [x, {"column": level, "kind": "category"}],
        "tolerance": 1e-6,
    }
    made = import_log(data, columns, folder / "out")
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


def test_arms_are_sorted(tmp_path: Path) -> None:
    """A pmf is in the order of `arms` or of the row's `eligible`; the log has canonical order."""
    kinds = "arm VARCHAR, eligible VARCHAR[], pmf DOUBLE[], y DOUBLE"
    rows = [("c", ["c", "a", "b"], [0.5, 0.3, 0.2], 1.0), ("a", ["b", "a"], [0.1, 0.9], 0.0)]
    data = write_parquet(tmp_path / "own.parquet", kinds, rows)
    own = read_log(
        import_log(data, {"arm": "arm", "eligible": "eligible", "pmf": "pmf", "reward": "y"}, tmp_path / "own").folder
    )
    assert own.options.prob.tolist() == [0.3, 0.2, 0.5, 0.9, 0.1]
    assert [own.names.arms[arm] for arm in own.options.arm] == ["a", "b", "c", "a", "b"]
    assert chosen(own) == ["c", "a"]
    assert own.decisions.propensity.tolist() == [0.5, 0.9]
    data = write_parquet(tmp_path / "all.parquet", "arm VARCHAR, pmf DOUBLE[], y DOUBLE", [("c", [0.5, 0.3, 0.2], 1.0)])
    named = {"arm": "arm", "pmf": "pmf", "reward": "y", "arms": ["c", "a", "b"]}
    assert read_log(import_log(data, named, tmp_path / "all").folder).options.prob.tolist() == [0.3, 0.2, 0.5]


def test_columns_per_arm_with_eligible_sets(tmp_path: Path) -> None:
    """Columns named after arms give the pmf of the row's eligible arms; lists in text have a separator."""
    rows = [
        {"arm": "a", "set": "a|b", "p_a": 0.4, "p_b": 0.6, "p_c": "", "y": 1},
        {"arm": "c", "set": "c | a", "p_a": 0.1, "p_b": "", "p_c": 0.9, "y": 0},
    ]
    columns = {**PMF, "eligible": {"column": "set", "separator": "|"}}
    log = read_log(import_log(write_csv(tmp_path / "log.csv", rows), columns, tmp_path / "log").folder)
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
    rows = [{"arm": "abc"[i % 3], "p": "0.333333", "y": 1} for i in range(6)]
    columns = {**PLAIN, "constants": {"mode": "uniform"}, "tolerance": 1e-5}
    data = write_csv(tmp_path / "log.csv", rows)
    log = read_log(import_log(data, columns, tmp_path / "log").folder)
    np.testing.assert_allclose(log.options.prob, 1 / 3, rtol=1e-15)
    assert {MODES[mode] for mode in log.decisions.mode} == {"uniform"}
    with pytest.raises(InvalidLog, match=r"line 2: the propensity is 0\.333333, and the pmf has 0\.33333333"):
        import_log(data, {**columns, "tolerance": 1e-9}, tmp_path / "exact")


def test_rounded_probabilities_are_renormalised(tmp_path: Path) -> None:
    """Rounded probabilities are refused unless within `tolerance`, and are renormalised."""
    rows = [{"arm": "a", "y": 1, "p_a": 0.333, "p_b": 0.333, "p_c": 0.333}]
    data = write_csv(tmp_path / "log.csv", rows)
    columns = {**PMF, "arms": ["a", "b", "c"]}
    with pytest.raises(InvalidLog, match=r"line 2: pmf sums to 0\.999"):
        import_log(data, columns, tmp_path / "exact")
    log = read_log(import_log(data, {**columns, "tolerance": 0.01}, tmp_path / "rounded").folder)
    np.testing.assert_allclose(log.options.prob, 1 / 3, rtol=1e-15)
    np.testing.assert_allclose(log.decisions.propensity, 1 / 3, rtol=1e-15)


def test_times(tmp_path: Path) -> None:
    """Times are UTC unless they name a zone, numbers have a unit; without a column rows are a second apart."""
    stamps = ["2026-10-01 02:00:00+02:00", "2026-10-01", "2026-10-01T00:00:00.000001"]
    rows = [
        {**row, "when": stamp, "ms": 1_000 * i} for i, (row, stamp) in enumerate(zip(pmf_rows(3), stamps, strict=True))
    ]
    data = write_csv(tmp_path / "log.csv", rows)
    first = 1790812800.0
    for number, (time, expected) in enumerate(
        [
            ("when", [first, first, first + 1e-6]),
            ({"column": "ms", "unit": "ms"}, [0.0, 1.0, 2.0]),
            (None, [1.0, 2.0, 3.0]),
        ]
    ):
        made = import_log(data, {**PMF, "time": time}, tmp_path / str(number))
        assert [ts for (ts,) in table(made.folder, "decisions", "ts")] == expected
    kinds = "arm VARCHAR, y DOUBLE, p_a DOUBLE, day DATE, moment TIMESTAMP, n BIGINT"
    data = write_parquet(tmp_path / "t.parquet", kinds, [("a", 1.0, 1.0, "2026-10-01", "2026-10-01 00:00:01", 3)])
    for name, expected in (("day", [first]), ("moment", [first + 1])):
        made = import_log(data, {**PMF, "time": name}, tmp_path / name)
        assert [ts for (ts,) in table(made.folder, "decisions", "ts")] == expected
    with pytest.raises(ConfigError, match="'n' holds numbers; give its `unit`"):
        import_log(data, {**PMF, "time": "n"}, tmp_path / "n")


def test_features(tmp_path: Path) -> None:
    """Features are in the order of the map: numbers, columns per arm, vectors; empty numbers may be filled."""
    rows = [
        {**row, "age": age, "like_a": i, "like_b": -i, "e": json.dumps([i, 0.5])}
        for i, (row, age) in enumerate(zip(pmf_rows(2), ["", "4"], strict=True))
    ]
    data = write_csv(tmp_path / "log.csv", rows)
    features = [{"column": "e", "kind": "vector"}, {"columns": "like_{arm}"}, {"column": "age", "fill": -1}]
    made = import_log(data, {**PMF, "features": features}, tmp_path / "log")
    assert made.features == ("e[0]", "e[1]", "like_a", "like_b", "age")
    x = read_log(made.folder).decisions.x
    assert x is not None
    assert x.tolist() == [[0.0, 0.5, 0.0, 0.0, -1.0], [1.0, 0.5, 1.0, -1.0, 4.0]]
    with pytest.raises(InvalidLog, match="line 2: feature 'age' is empty"):
        import_log(data, {**PMF, "features": ["age"]}, tmp_path / "strict")
    rows[0]["age"] = "3"
    wide = write_csv(tmp_path / "wide.csv", rows)
    category = {"column": "age", "kind": "category", "limit": 1}
    with pytest.raises(ConfigError, match="category 'age' has more than 1 values"):
        import_log(wide, {**PMF, "features": [category]}, tmp_path / "wide")


def test_an_arms_file(tmp_path: Path) -> None:
    """Arms that were never chosen are eligible too, and features of arms are in a table of their own."""
    write_csv(tmp_path / "arms.csv", [{"name": name, "size": i, "maker": "xy"[i % 2]} for i, name in enumerate("cab")])
    rows = [{"arm": "a", "p": 0.5, "y": 1}]
    features = ["size", {"column": "maker", "kind": "category"}]
    columns = {**PLAIN, "arms": {"file": "arms.csv", "column": "name", "features": features}}
    data = write_csv(tmp_path / "log.csv", rows)
    made = import_log(data, columns, tmp_path / "log")
    assert made.arms == ("a", "b", "c")
    assert made.arm_features == ("size", "maker=x", "maker=y")
    assert table(made.folder, "decisions", "eligible") == [(["a", "b", "c"],)]
    with duckdb.connect() as connection:
        arms = connection.execute("SELECT arm, features FROM read_parquet(?)", [str(made.folder / "arms.parquet")])
        assert arms.fetchall() == [("a", [1.0, 0.0, 1.0]), ("b", [2.0, 1.0, 0.0]), ("c", [0.0, 1.0, 0.0])]
    write_csv(
        tmp_path / "arms.csv", [{"name": "a", "size": "big", "maker": "x"}, {"name": "a", "size": 1, "maker": "x"}]
    )
    with pytest.raises(InvalidLog, match=r"'arms.csv', row 2: the arm is 'a'; list each arm once"):
        import_log(data, columns, tmp_path / "twice")
    write_csv(tmp_path / "arms.csv", [{"name": "a", "size": "big", "maker": "x"}])
    with pytest.raises(InvalidLog, match="line 2: feature 'size' is 'big'"):
        import_log(data, columns, tmp_path / "words")


def test_open_bandit_data(tmp_path: Path) -> None:
    """The built-in map reads both policies of Open Bandit Data with its clicks, propensities and pmf."""
    men = folder("obd")
    columns = load_map("open_bandit")
    made = import_log(men / "bts/men/men.csv", columns, tmp_path / "bts")
    assert (made.rows, len(made.arms), made.skipped) == (10_000, 34, 0)
    clicks, inverse = 0.0, 0.0
    for (y,), (p,) in zip(
        table(made.folder, "feedback", "y"), table(made.folder, "decisions", "propensity"), strict=True
    ):
        clicks, inverse = clicks + y, inverse + 1 / p
    assert clicks == 69
    assert inverse / 34 / 10_000 == pytest.approx(0.94331, abs=1e-5)
    assert read_log(made.folder).outcomes.asked_label.sum() == 69
    assert len(made.arm_features) == 1 + 7 + 16 + 4
    assert sum(name.startswith("user-item_affinity_") for name in made.features) == 34
    uniform = columns.model_copy(update={"constants": columns.constants.model_copy(update={"mode": "uniform"})})
    log = read_log(import_log(men / "random/men/men.csv", uniform, tmp_path / "random").folder)
    assert log.outcomes.asked_label.sum() == 46
    assert log.names.tasks == ("1", "2", "3")
    np.testing.assert_allclose(log.options.prob, 1 / 34, rtol=1e-12)


# --- names ----------------------------------------------------------------------------------------------------------


def test_hostile_names(tmp_path: Path) -> None:
    """Header names may hold quotes, keywords or statements, be empty, or differ in case only."""
    hostile = [
        'a"b',
        "select",
        "c0",
        "",
        "x'; DROP TABLE staged; --",
        "Reward",
        "reward",
        "line\nbreak",
        "{arm}",
        "rowid",
    ]
    rows = [dict(zip(hostile, ["arm'1", 0.5, 1, 2, 3, 9, 1, 5, 6, 7], strict=True)) for _ in range(2)]
    columns = {
        "arm": 'a"b', "propensity": "select", "reward": "reward",
        "features": [*hostile[2:5], *hostile[7:], {"column": "Reward", "kind": "category"}],
    }  # fmt: skip
    made = import_log(write_csv(tmp_path / "it's [a] log;*.csv", rows), columns, tmp_path / "o'ut [x]")
    assert made.arms == ("arm'1",)
    assert made.features == ("c0", "", "x'; DROP TABLE staged; --", "line\nbreak", "{arm}", "rowid", "Reward=9")
    assert table(made.folder, "decisions", "features, propensity") == [([1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 1.0], 0.5)] * 2
    assert table(made.folder, "feedback", "y") == [(1.0,)] * 2


def test_ambiguous_and_missing_columns_are_refused(tmp_path: Path) -> None:
    """Two columns of one name are refused only if the map uses the name."""
    data = tmp_path / "log.csv"
    data.write_text("arm,p,y,x,x\na,0.5,1,2,3\n")
    assert import_log(data, PLAIN, tmp_path / "fine").rows == 1
    with pytest.raises(ConfigError, match="several columns 'x'"):
        import_log(data, {**PLAIN, "features": ["x"]}, tmp_path / "twice")
    with pytest.raises(ConfigError, match="no column 'z'; its columns are 'arm', 'p', 'y'"):
        import_log(data, {**PLAIN, "features": ["z"]}, tmp_path / "missing")
    with pytest.raises(ConfigError, match="no column 'p_a'"):
        import_log(data, PMF, tmp_path / "per arm")


def test_nested_columns_of_parquet(tmp_path: Path) -> None:
    """Fields of a structure are not columns, although Parquet lists them beside the columns."""
    with duckdb.connect() as connection:
        sql = "SELECT {'p': 9, 'q': [{'arm': 1}]} AS s, 'a' AS arm, MAP {'y': 2} AS m, 0.5 AS p, 1 AS y"
        connection.execute(f"COPY ({sql}) TO '{tmp_path / 'log.parquet'}' (FORMAT parquet)")
    made = import_log(tmp_path / "log.parquet", PLAIN, tmp_path / "log")
    assert table(made.folder, "decisions", "chosen, propensity") == [("a", 0.5)]
    assert table(made.folder, "feedback", "y") == [(1.0,)]


# --- refusals ----------------------------------------------------------------------------------------------


@table_driven(
    ("columns", "message"),
    [
        ({"arm": "arm", "reward": "y"}, "neither 'propensity' nor 'pmf'"),
        ({"reward": "y", "propensity": "p"}, "arm: Field required"),
        ({**PLAIN, "reward": {"column": "y", "scale": [1, 1]}}, r"reward.scale: \[1.0, 1.0\] is not a scale"),
        ({**PLAIN, "reward": {"column": "y", "scale": [0, math.inf]}}, "reward.scale.1"),
        ({**PLAIN, "rewards": "y"}, "rewards: there is no such setting"),
        ({**PLAIN, "features": [{"columns": "p"}]}, "'p' names the same column for every arm"),
        ({**PLAIN, "features": [{"column": "p", "kind": "magic"}]}, "magic"),
        ({"arm": "arm", "reward": "y", "pmf": "p"}, "the order of the list in 'p' is unknown"),
        ({**PLAIN, "arms": ["a", "b", "a"]}, r"\['a'\] occur more than once"),
        ({**PLAIN, "user": "u", "constants": {"user": "v"}}, "user is given as a column and as a constant"),
        ({**PMF, "constants": {"mode": "uniform"}}, "'uniform' already implies"),
        (
            {**PLAIN, "arms": {"file": "f", "column": "c", "features": [{"columns": "x_{arm}"}]}},
            "cannot be used in the arms file",
        ),
        ([1], "the file: Input should be"),
    ],
)
def test_invalid_maps_are_refused(tmp_path: Path, columns: Any, message: str) -> None:
    """An invalid map is refused with the place and what is allowed there."""
    path = tmp_path / "map.yaml"
    path.write_text(json.dumps(columns))
    with pytest.raises(ConfigError, match=message):
        load_map(path)


def test_maps_by_name_and_file(tmp_path: Path) -> None:
    """Built-in maps have names; others are files; an unknown name is refused with the known ones."""
    assert "open_bandit" in shipped_maps()
    for name in shipped_maps():
        assert load_map(name) == load_map(load_map(name).model_dump(mode="json"))
    with pytest.raises(ConfigError, match="no column map 'nowhere'; give a YAML file, or one of open_bandit"):
        load_map("nowhere")
    (tmp_path / "map.yaml").write_text("arm: [")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        load_map(tmp_path / "map.yaml")


BAD = [
    ("a,0,1", "the propensity is 0.0; it must be above 0 and at most 1"),
    ("a,-0.5,1", "the propensity is -0.5"),
    ("a,1.5,1", "the propensity is 1.5"),
    ("a,nan,1", "the propensity is nan"),
    ("a,,1", "the propensity is not a number"),
    ("a,half,1", "the propensity is not a number"),
    (",0.5,1", "the chosen arm is empty"),
    ("z,0.5,1", "the arm 'z' is not among a, b"),
    ("a,0.5,2", "the reward is '2'; the scale is 0 to 1"),
    ("a,0.5,", "the reward is empty"),
    ("a,0.5,nan", "the reward is 'nan'"),
    ("a,0.5,good", "the reward is 'good'"),
    ("a,0.5", "it has fewer columns than the header"),
    ("a,0.5,1,1", "it has more columns than the header"),
    ('"a"b,0.5,1', "a quote is not closed, or text follows"),
    ("a,0.5,\udcff", "it is not UTF-8"),
]


@table_driven(("line", "reason"), BAD)
def test_an_invalid_line_is_reported(tmp_path: Path, line: str, reason: str) -> None:
    """An invalid line is reported by its number in the file, also after multi-line cells and empty lines."""
    data = tmp_path / "log.csv"
    text = f'arm,p,y\na,0.5,1\n"b",0.5,"1\n"\n\n{line}\nb,0.5,0\n'
    data.write_bytes(text.encode("utf-8", "surrogateescape"))
    columns = {**PLAIN, "arms": ["a", "b"]}
    with pytest.raises(InvalidLog) as refused:
        import_log(data, columns, tmp_path / "log")
    assert f"line 6: {reason}" in str(refused.value)
    assert "1 of 4 rows" in str(refused.value)
    assert list(tmp_path.iterdir()) == [data]


def test_invalid_lines_can_be_skipped(tmp_path: Path) -> None:
    """All skipped lines are listed in file order; all others are imported with their numbers."""
    data = tmp_path / "log.csv"
    lines = ["a,0.5,1", *(line for line, _ in BAD), "b,0.5,0"]
    data.write_bytes("\n".join(["arm,p,y", *lines, ""]).encode("utf-8", "surrogateescape"))
    made = import_log(data, {**PLAIN, "arms": ["a", "b"]}, tmp_path / "log", skip_bad=True)
    assert (made.rows, made.skipped) == (2, len(BAD))
    listed = [json.loads(line) for line in (made.folder / "problems.jsonl").read_text().splitlines()]
    assert [problem["line"] for problem in listed] == list(range(3, 3 + len(BAD)))
    assert all(problem["reason"].startswith(reason) for problem, (_, reason) in zip(listed, BAD, strict=True))
    assert table(made.folder, "decisions", "chosen, decision_id") == [("a", "log-1"), ("b", "log-14")]
    assert json.loads((made.folder / "import.json").read_text())["skipped"] == len(BAD)


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
        made = import_log(tmp_path / name, PLAIN, tmp_path / f"out {name}", skip_bad=True)
        listed = [json.loads(line)["line"] for line in (made.folder / "problems.jsonl").read_text().splitlines()]
        assert listed == [19, 30_002, 40_002, 60_000]
        assert made.rows == 59_996


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
        ("11", "b", ["a", "b"], [0.5, 0.5], None),
        ("12", "b", ["a", "b"], [0.5, math.nan], 1.0),
    ]
    data = write_parquet(tmp_path / "log.parquet", kinds, rows)
    columns = {"id": "id", "arm": "arm", "eligible": "eligible", "pmf": "pmf", "reward": "y"}
    made = import_log(data, columns, tmp_path / "log", skip_bad=True)
    listed = {
        p["line"]: p["reason"] for p in map(json.loads, (made.folder / "problems.jsonl").read_text().splitlines())
    }
    assert sorted(listed) == list(range(2, 16))
    for row, part in {
        2: "the pmf gives the chosen arm the probability 0", 3: "pmf is not a list of 2 numbers", 4: "eligible are [b]",
        5: "list each arm once", 6: "allowed are numbers from 0 to 1", 7: "allowed are numbers from 0 to 1",
        8: "eligible is not a list of arms", 9: "eligible is not a list of arms", 10: "eligible is not a list of arms",
        11: "pmf sums to 0.9", 12: "the id '0' occurs more than once", 13: "the id is empty", 14: "the reward is empty",
        15: "allowed are numbers from 0 to 1",
    }.items():  # fmt: skip
        assert part in listed[row], (row, listed[row])
    with pytest.raises(InvalidLog, match=r"(?s)14 of 15 rows cannot be used.*row 2: .*row 6: .*and 9 more"):
        import_log(data, columns, tmp_path / "strict")


def test_a_file_of_invalid_lines_is_refused(tmp_path: Path) -> None:
    """If every line is invalid the map is wrong: nothing is written, even with `skip_bad`."""
    data = write_csv(tmp_path / "log.csv", [{"arm": "a", "p": 0.5, "y": 7}] * 3)
    with pytest.raises(InvalidLog, match="3 of 3 rows cannot be used; check the map"):
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
    (tmp_path / "log.xlsx").write_text("")
    before = sorted(tmp_path.iterdir())
    for name, kind, message in (
        ("none.csv", ConfigError, "there is no file"),
        ("log.xlsx", ConfigError, "has an unknown type"),
        ("cut.parquet", InvalidLog, "is not a Parquet file"),
        ("empty.csv", InvalidLog, "is empty"),
        ("header.csv", InvalidLog, "has a header but no rows"),
        ("open.csv", InvalidLog, "line 3: a quote is not closed"),
        ("no.csv.gz", InvalidLog, "cannot be read"),
    ):
        with pytest.raises(kind, match=message):
            import_log(tmp_path / name, PLAIN, tmp_path / "out")
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
    """A map that names a column of ids as the arm is refused."""
    data = write_csv(tmp_path / "log.csv", [{"arm": f"id{i}", "p": 0.5, "y": 1} for i in range(1001)])
    with pytest.raises(ConfigError, match="more than 1000 arms; is 'arm' the column"):
        import_log(data, PLAIN, tmp_path / "log")
