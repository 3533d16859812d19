"""Guesses the column map of a table from the names in its header, and reads and writes maps on one line.

A line is `arm=model,reward=stars,scale=1:5,propensity=p`: what `--map` of `fitrouter replay` takes, and what the guess
prints. A part that is given is kept; the rest is guessed.
"""

# ruff: noqa: S608 - statements are made of positions

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter_evaluators.replay.importing._row_sql import WORDS
from fitrouter_evaluators.replay.importing._staging import TABLES, SourceFile, open_source, reader_of
from fitrouter_evaluators.replay.importing.column_map import ARM, ColumnMap, load_map
from fitrouter_evaluators.replay.importing.import_log import import_log

NAMES: Mapping[str, str] = {
    "arm": "model arm action chosen model_name model_id chosen_model selected_model llm variant route treatment",
    "reward": (
        "reward rating thumb thumbs stars feedback label liked satisfaction outcome click clicked success score y"
    ),
    "propensity": (
        "propensity propensity_score pscore prob probability action_prob chosen_prob prob_chosen action_probability p"
    ),
    "time": "time timestamp ts datetime created_at created date when",
    "user": "user user_id userid uid customer customer_id person who",
    "role": "role",
    "task": "task task_type topic category intent",
    "cost": "cost cost_usd usd price",
    "latency": "latency_s latency seconds duration_s",
}
"""Part of a map → names of columns, the likeliest first; compared in lower case without punctuation."""
_PMF = ("p_{arm}", "prob_{arm}", "probability_{arm}", "propensity_{arm}", "pmf_{arm}", "pi_{arm}")
_SCALES = ((0.0, 1.0), (-1.0, 1.0), (1.0, 5.0), (0.0, 5.0), (1.0, 10.0), (0.0, 10.0), (0.0, 100.0))
_KEYS = (*NAMES, "scale", "pmf", "unit", "mode", "id", "tenant", "session", "delimiter")
_UNITS = ((1e17, "ns"), (1e14, "us"), (1e11, "ms"), (0.0, "s"))
"""Least number of a time since 1970 → its unit, for times from 1973 on."""
_FIELDS = {"cost": "cost_usd", "latency": "latency_s"}
_MOST_ARMS = 1000


class Guess(NamedTuple):
    """A guessed map, and the line that gives the same map to `--map`."""

    columns: ColumnMap
    line: str
    """The map on one line."""


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a file in a format of tables: CSV, JSONL or Parquet."""
    place = Path(path)
    return place.is_file() and place.name.lower().endswith(TABLES)


@contextmanager
def imported(path: Path, given: str | None, *, skip_bad: bool = False) -> Iterator[tuple[Path, str]]:
    """Import a table into a temporary folder that `read_log` reads.

    Yields the folder, and the map on one line: empty for a map from a file.

    Raises:
        ConfigError: the columns cannot be guessed; the message has the line to type.
        InvalidLog: the table is damaged, or has an invalid line.
    """
    named = given is not None and ("=" not in given or Path(given).exists())
    columns, line = (load_map(str(given)), "") if named else guess_map(path, _parsed(given or ""))
    with tempfile.TemporaryDirectory(prefix="fitrouter-") as folder:
        yield import_log(path, columns, Path(folder) / "log", skip_bad=skip_bad).folder, line


def guess_map(path: Path, given: Mapping[str, str]) -> Guess:
    """Complete the map of a table: the parts that are given, and guesses for the others."""
    source = open_source(path, given.get("delimiter") or _delimiter(path))
    found = dict(given)
    factors = {part: _factor(source, found, part) for part in _FIELDS if part in given}
    for part, names in NAMES.items():
        if part not in found and (column := _column(source, names.split(), taken=set(found.values()))) is not None:
            found[part] = column
    _check_required(source, found)
    with duckdb.connect(config={"threads": 2, "memory_limit": "1GB"}) as connection:
        table = _Table(connection, source)
        if "pmf" not in found and found.get("mode") != "uniform" and (pmf := _pmf(source, table, found["arm"])):
            found["pmf"] = pmf
        if not {"propensity", "pmf", "mode"} & set(found):
            raise ConfigError(_no_probabilities(source, found))
        if found.get("mode") == "uniform" and "propensity" not in given:
            found.pop("propensity", None)
        facts = table.facts(found["reward"], found.get("time"))
        if "scale" not in found:
            low, high = _scale(source, facts, found["reward"])
            found["scale"] = f"{low:g}:{high:g}"
        if "time" in found and "unit" not in found and facts.time is not None:
            found["unit"] = next(unit for least, unit in _UNITS if abs(facts.time) >= least)
    return Guess(
        _map(found, source.delimiter, factors, unrated=bool(facts.empty)),
        ",".join(f"{k}={v}" + (f"*{factors[k]:g}" if factors.get(k, 1.0) != 1.0 else "") for k, v in found.items()),
    )


def _factor(source: SourceFile, found: dict[str, str], part: str) -> float:
    """Split a given `COLUMN*FACTOR` of a cost or a latency; returns the factor."""
    name, _, factor = found[part].rpartition("*")
    if not name or found[part] in source.names:
        return 1.0
    try:
        value = float(factor)
    except ValueError:
        raise ConfigError(f"--map: {part}={found[part]} has no number after the *; give {part}=COLUMN*0.01") from None
    found[part] = name
    return value


def _parsed(line: str) -> dict[str, str]:
    """Parse the parts of a map that is given on one line, `name=value,…`."""
    found = {}
    for part in filter(None, (part.strip() for part in line.split(","))):
        name, _, value = part.partition("=")
        if name not in _KEYS or not value:
            raise ConfigError(f"--map: {part!r} is not a part of a map; give {', '.join(f'{key}=…' for key in _KEYS)}")
        found[name] = value
    return found


def _map(found: Mapping[str, str], delimiter: str, factors: Mapping[str, float], *, unrated: bool) -> ColumnMap:
    low, _, high = found["scale"].partition(":")
    try:
        scale = [float(low), float(high)]
    except ValueError:
        raise ConfigError(f"--map: scale={found['scale']} is not a scale; give the ends, such as scale=1:5") from None
    plain = ("arm", "propensity", "id", "tenant", "user", "role", "task", "session")
    content: dict[str, Any] = {name: found[name] for name in plain if name in found}
    for part, field in _FIELDS.items():
        if part in found:
            content[field] = {"column": found[part], "factor": factors.get(part, 1.0)}
    content["reward"] = {"column": found["reward"], "scale": scale, "unrated": unrated}
    content["tolerance"] = 1e-3
    if "time" in found:
        content["time"] = {"column": found["time"], "unit": found.get("unit")}
    if "pmf" in found:
        content["pmf"] = {"columns": found["pmf"]}
    if "mode" in found:
        content["constants"] = {"mode": found["mode"]}
    if delimiter:
        content["delimiter"] = delimiter
    return load_map(content)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _column(source: SourceFile, names: Sequence[str], taken: set[str]) -> str | None:
    """Find the first of these names that is a free column; None if there is none."""
    plain = [_plain(name) for name in source.names]
    for name in names:
        found = [source.names[i] for i, each in enumerate(plain) if each == name and source.names[i] not in taken]
        if len(found) > 1:
            raise ConfigError(
                f"{source.path.name!r} has several columns {', '.join(map(repr, found))}; rename all but one"
            )
        if found:
            return found[0]
    return None


def _check_required(source: SourceFile, found: Mapping[str, str]) -> None:
    """Raise ConfigError where the arm or the reward is not known, with the line to type."""
    missing = [part for part in ("arm", "reward") if part not in found]
    if missing:
        what = {"arm": "the model that was chosen", "reward": "the rating or reward"}
        known = ", ".join(repr(name) for name in source.names[:40])
        example = ",".join(f"{name}={found.get(name, 'COLUMN')}" for name in ("arm", "reward", "propensity"))
        raise ConfigError(
            f"{source.path.name!r}: which column has {' and '.join(what[part] for part in missing)}? "
            f"Columns are {known}. Type: --map {example}"
        )


def _no_probabilities(source: SourceFile, found: Mapping[str, str]) -> str:
    base = ",".join(f"{name}={found[name]}" for name in ("arm", "reward"))
    return (
        f"{source.path.name!r} has no column of probabilities, and without them nothing can be said about another "
        "policy. If a column has the probability with which the model was chosen, type: "
        f"--map {base},propensity=COLUMN. If all models were equally likely: --map {base},mode=uniform. If a rule "
        "chose them, nothing can be estimated: log the probabilities of a random choice first"
    )


def _delimiter(path: Path) -> str | None:
    """Find the delimiter that is most frequent in the header of a .csv file."""
    if not path.name.lower().endswith((".csv", ".csv.gz")):
        return None
    head = open_source(path, "\x00").names
    return max(",;\t|", key="".join(head).count)


class _Table:
    """Runs aggregate queries on a table."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, source: SourceFile) -> None:
        self.connection, self.source = connection, source
        self.reader, self.given = reader_of(source, "guess")

    def one(self, columns: str) -> tuple[Any, ...]:
        """Run a query of aggregates and return its only row."""
        reader = self.reader
        try:
            return self.connection.execute(f"SELECT {columns} FROM {reader}", self.given).fetchone() or ()
        except duckdb.Error as error:
            raise InvalidLog(f"{self.source.path.name!r} cannot be read: {error}; write it again") from None

    def _text(self, name: str) -> str:
        return f"CAST(c{self.source.position(name)} AS VARCHAR)"

    def arms(self, name: str) -> list[str]:
        found = self.one(f"list(DISTINCT {self._text(name)})")[0] or []
        return sorted(arm for arm in found if arm)[:_MOST_ARMS]

    def facts(self, reward: str, time: str | None) -> _Facts:
        """Aggregate the rewards and times in one pass."""
        text = self._text(reward)
        number = f"coalesce({WORDS.format(text)}, TRY_CAST({text} AS DOUBLE))"
        numbers = f"min({number}) FILTER (isfinite({number})), max({number}) FILTER (isfinite({number}))"
        latest = "NULL" if time is None else f"max(TRY_CAST({self._text(time)} AS DOUBLE))"
        n, *found = self.one(f"count(*), count(*) FILTER (coalesce({text}, '') = ''), {numbers}, {latest}")
        if not n:
            raise InvalidLog(f"{self.source.path.name!r} has a header but no rows that can be read")
        return _Facts(*found)


class _Facts(NamedTuple):
    empty: int
    """Rows without a reward."""
    low: float | None
    high: float | None
    """Range of the finite rewards."""
    time: float | None
    """The latest time that is a number."""


def _pmf(source: SourceFile, table: _Table, arm: str) -> str | None:
    """Find the pattern of the columns with every arm's probability."""
    for pattern in _PMF:
        before = pattern.partition(ARM)[0]
        if sum(name.startswith(before) for name in source.names) > 1:
            arms = table.arms(arm)
            if arms and all(pattern.replace(ARM, name) in source.names for name in arms):
                return pattern
    return None


def _scale(source: SourceFile, facts: _Facts, reward: str) -> tuple[float, float]:
    if facts.low is None or facts.high is None:
        raise ConfigError(
            f"{source.path.name!r}: the column {reward!r} has no numbers, and no words such as up, down, true, false; "
            "name the reward with --map reward=COLUMN"
        )
    for low, high in _SCALES:
        if low <= facts.low and facts.high <= high:
            return low, high
    raise ConfigError(
        f"{source.path.name!r}: {reward!r} goes from {facts.low:g} to {facts.high:g}, and what are its worst and its "
        f"best value? Type: --map reward={reward},scale={facts.low:g}:{facts.high:g} if these are they"
    )
