"""Candidate whose probabilities are read from a file and checked against the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.replay.candidates._base import DescribedCandidate
from fitrouter_evaluators.replay.candidates._log_columns import drawn, entries, row_name, sums
from fitrouter_evaluators.replay.log.log import Ints, Log

_COLUMNS = "decision_id, arm, probability"
_READERS = {
    ".csv": "read_csv(?, header = true, all_varchar = true)",
    ".jsonl": "read_json(?, format = 'newline_delimited', "
    "columns = {decision_id: 'VARCHAR', arm: 'VARCHAR', probability: 'VARCHAR'})",
    ".parquet": "read_parquet(?)",
}
_TOLERANCE = 1e-6
"""Allowed error of a sum: files hold rounded numbers."""


class _Lines(NamedTuple):
    """Lines of the file, expressed in rows and arms of the log; line i is row i + 1 in messages."""

    row: Ints
    """Position among the requested rows; −1 for other decisions."""
    arm: Ints
    """Arm code; −1 if unknown."""
    probability: Floats
    """NaN if not a number."""


class PmfFile(DescribedCandidate):
    """Probabilities from a CSV, JSONL or Parquet file with one line for each decision and arm.

    Arms without a line have probability 0; lines of decisions outside the log are ignored.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() not in _READERS:
            raise ConfigError(
                f"pmf: {str(path)!r} ends in {path.suffix!r}; it must end in one of {', '.join(_READERS)}: rename or "
                "convert it"
            )
        try:
            with path.open("rb"):
                pass
        except OSError as error:
            raise ConfigError(f"pmf: {str(path)!r} cannot be read ({error.strerror})") from None
        super().__init__(f"probabilities from {path.name}")
        self.path = path

    def pmf(self, log: Log, rows: Ints) -> Floats:
        lines = self._read(log, rows)
        self._check_lines(lines, log)
        counts = np.diff(log.decisions.start)[rows]
        known = np.flatnonzero((lines.row >= 0) & (lines.probability > 0.0))
        places = self._places(log, rows, counts, lines, known)
        probs = np.zeros(int(counts.sum()))
        np.add.at(probs, places, lines.probability[known])
        twice = np.flatnonzero(np.bincount(places, minlength=len(probs)) > 1)
        if len(twice):
            line = int(known[places == twice[0]][1])
            self._fail(line, "repeats an arm of its decision; give each arm once")
        total = sums(probs, counts)
        draws = drawn(log, rows)
        missing = np.flatnonzero(draws & ~np.isin(np.arange(len(rows)), lines.row))
        if len(missing):
            where = row_name(log, int(rows[missing[0]]))
            raise ConfigError(
                f"pmf: {str(self.path)!r} has no probabilities for {where} of {log.source} and {len(missing) - 1} "
                "other draws; give probabilities for every draw, or choose a window"
            )
        wrong = np.flatnonzero(draws & (np.abs(total - 1.0) > _TOLERANCE))
        if len(wrong):
            line = int(np.flatnonzero(lines.row == wrong[0])[0])
            where = row_name(log, int(rows[wrong[0]]))
            self._fail(
                line, f"begins the probabilities of {where}, which sum to {total[wrong[0]]:.9g}; they must sum to 1"
            )
        probs /= np.repeat(np.where(total > 0.0, total, 1.0), counts)
        return probs

    def _read(self, log: Log, rows: Ints) -> _Lines:
        import duckdb

        reader = _READERS[self.path.suffix.lower()]
        ids = {"id": log.decisions.id[rows].astype(object), "row": np.arange(len(rows))}
        arms = {"arm": np.array(log.names.arms, dtype=object), "code": np.arange(len(log.names.arms))}
        try:
            with duckdb.connect(config={"threads": 2}) as connection:
                connection.register("decisions", ids)
                connection.register("arms", arms)
                connection.execute(
                    "CREATE TEMP TABLE lines AS SELECT row_number() OVER () AS line, decision_id::VARCHAR AS id, "  # noqa: S608
                    f"arm::VARCHAR AS arm, TRY_CAST(probability AS DOUBLE) AS probability FROM {reader}",
                    [str(self.path)],
                )
                found: dict[str, Any] = connection.execute(
                    "SELECT coalesce(decisions.row, -1) AS row, coalesce(arms.code, -1) AS arm, "
                    "coalesce(lines.probability, 'nan'::DOUBLE) AS probability FROM lines "
                    "LEFT JOIN decisions ON lines.id = decisions.id LEFT JOIN arms ON lines.arm = arms.arm "
                    "ORDER BY lines.line"
                ).fetchnumpy()
        except duckdb.Error as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"pmf: {str(self.path)!r} cannot be read ({reason}); it must have the columns {_COLUMNS}"
            ) from None
        return _Lines(found["row"].astype(np.int64), found["arm"].astype(np.int64), np.asarray(found["probability"]))

    def _check_lines(self, lines: _Lines, log: Log) -> None:
        ours = lines.row >= 0
        bad = ours & ~((lines.probability >= 0.0) & (lines.probability <= 1.0 + _TOLERANCE))
        if bad.any():
            self._fail(int(bad.argmax()), "has no probability between 0 and 1; correct it")
        unknown = ours & (lines.arm < 0)
        if unknown.any():
            self._fail(
                int(unknown.argmax()),
                f"names an arm that is not in {log.source}: there are {', '.join(log.names.arms)}",
            )

    def _places(self, log: Log, rows: Ints, counts: Ints, lines: _Lines, known: Ints) -> Ints:
        """Find the entries of the known lines' arms; raises if an arm was not eligible."""
        width = len(log.names.arms) + 1
        keys = np.repeat(np.arange(len(rows)), counts) * width + log.options.arm[entries(log, rows)]
        order = np.argsort(keys, kind="stable")
        wanted = lines.row[known] * width + lines.arm[known]
        at = np.minimum(np.searchsorted(keys[order], wanted), max(len(keys) - 1, 0))
        lost = keys[order][at] != wanted
        if lost.any():
            line = int(known[lost.argmax()])
            where = row_name(log, int(rows[lines.row[line]]))
            self._fail(
                line, f"gives {log.names.arms[lines.arm[line]]!r} a probability in {where}, where it was not eligible"
            )
        return np.asarray(order[at])

    def _fail(self, line: int, problem: str) -> None:
        raise ConfigError(f"pmf: {str(self.path)!r}, row {line + 1} {problem}")
