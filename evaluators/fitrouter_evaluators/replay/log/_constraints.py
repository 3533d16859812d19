"""Integrity constraints between a log's tables, as SQL queries that return violating rows.

`fitrouter_evaluators.replay.log.validation` checks probabilities and sessions later.
"""

# ruff: noqa: S608 - names of tables and columns, and conditions, are constants of our own

from __future__ import annotations

from typing import NamedTuple

from fitrouter.types import OUTCOMES, Mode
from fitrouter_evaluators.replay.log._connection import OpenLog, words
from fitrouter_evaluators.replay.log.log import refuse_rows

ARRAYS = ("probs", "mean", "sd", "cost", "latency", "availability", "switch", "rest", "twin", "personal")
"""Columns with one number per eligible arm, or empty."""
DRAWN = "('online', 'uniform', 'shadow')"
STATUSES = str(tuple(OUTCOMES))
_FILLED = {
    "decisions": words(
        "decision_id draw_id mode eligible probs chosen propensity asked asked_probability floor share cost_weight "
        "latency_weight policy_seq seed"
    ),
    "executions": words("decision_id chosen status cost_usd latency_ms"),
    "scores": words("decision_id score_id status mean"),
    "feedback": words("decision_id feedback_id kind value dimension asked"),
}
_FINITE = {
    "decisions": words(
        "ts propensity asked_probability floor share cost_weight cost_unit_usd latency_weight latency_unit_s "
        "budget_weight budget_unit_usd steps"
    ),
    "executions": words("cost_usd latency_ms"),
    "scores": words("mean"),
    "feedback": words("value"),
}
_OUTCOMES = {"executions": "execution_id", "scores": "score_id", "feedback": "feedback_id"}


class _Rule(NamedTuple):
    table: str
    broken: str
    """SQL of (seq, decision id, value found) of the violating rows, in any order."""
    allowed: str
    test: str = "true"
    """SQL of an aggregate over the table; true if there may be violating rows."""


def _where(table: str, condition: str, found: str, allowed: str) -> _Rule:
    """Build a constraint on single rows, which `condition` violates."""
    broken = f"SELECT seq, decision_id, {found} AS found FROM log_{table} WHERE {condition}"
    return _Rule(table, broken, allowed, f"bool_or({condition})")


def _again(table: str, key: str, thing: str, allowed: str, among: str = "true") -> _Rule:
    """Build a uniqueness constraint, which reports the second row with a key."""
    broken = (
        f"SELECT seq, decision_id, '{thing} is there already, in row ' || first AS found FROM ("
        f"SELECT *, min(seq) OVER twins AS first, row_number() OVER (PARTITION BY {key} ORDER BY seq) AS nth "
        f"FROM (SELECT * FROM log_{table} WHERE {among} AND {key} IN "
        f"(SELECT {key} FROM log_{table} WHERE {among} GROUP BY {key} HAVING count(*) > 1)) "
        f"WINDOW twins AS (PARTITION BY {key})) WHERE nth > 1"
    )
    counts = [f"count({each}) FILTER (WHERE {among})" for each in (key, f"DISTINCT {key}")]
    return _Rule(table, broken, allowed, f"{counts[0]} > {counts[1]}")


def _orphans(table: str) -> str:
    """SQL of outcomes without a decision; `gone` tells that their user has no earlier decision, as after an erasure.

    An erasure deletes a person's data up to then; requests in progress end after it.
    """
    return (
        f'SELECT o.seq, o.decision_id, o."user" IS NOT NULL AND NOT EXISTS (SELECT 1 FROM log_decisions AS d '
        f'WHERE d."user" = o."user" AND d.seq < o.seq) AS gone '
        f"FROM log_{table} AS o ANTI JOIN log_decisions AS k ON o.decision_id = k.decision_id"
    )


def _rules() -> list[_Rule]:
    once = "leave the copy out: a row that counts twice makes every interval too narrow"
    rules = [
        _where(
            table,
            " OR ".join(f"{column} IS NULL" for column in ("seq", *columns)),
            "'nothing stands in ' || concat_ws(', ', "
            + ", ".join(f"CASE WHEN {column} IS NULL THEN '{column}' END" for column in ("seq", *columns))
            + ")",
            "every row has these: write the table again with fitrouter",
        )
        for table, columns in _FILLED.items()
    ]
    rules += [
        _where(
            table,
            " OR ".join(f"NOT isfinite({column})" for column in columns),
            "concat_ws(', ', "
            + ", ".join(f"CASE WHEN NOT isfinite({c}) THEN '{c} is ' || {c} END" for c in columns)
            + ")",
            "allowed are finite numbers: correct the row, or leave its session out",
        )
        for table, columns in _FINITE.items()
    ]
    rules += [
        _again("decisions", "decision_id", "the decision", once),
        _again("decisions", "seq", "its number in the journal", "each event has a number of its own: number the rows"),
        _again("executions", "decision_id", "an execution of this decision", f"a decision has one execution; {once}"),
        _again("scores", "score_id", "the score", once),
        _again("scores", "decision_id", "a score of this answer", f"an answer is scored once; {once}", "status = 'ok'"),
        _again("feedback", "feedback_id", "the vote", f"a changed vote has an id of its own; {once}"),
        _again("feedback", "seq", "its number in the journal", "each event has a number of its own: number the rows"),
    ]
    return [*rules, *_of_decisions(), *_of_outcomes()]


def _of_decisions() -> list[_Rule]:
    modes = ", ".join(f"'{mode.value}'" for mode in Mode)
    sums = " + ".join(f"coalesce(list_sum({column}), 0)" for column in ARRAYS)
    holes = " OR ".join(f"list_count({column}) < len({column})" for column in ARRAYS)
    lengths = " OR ".join(f"len({column}) NOT IN (0, len(eligible))" for column in ARRAYS)
    told = "concat_ws(', ', " + ", ".join(
        f"CASE WHEN len({column}) NOT IN (0, len(eligible)) THEN len({column}) || ' numbers in {column}' END"
        for column in ARRAYS
    )
    shadows = "list_filter(map_values(candidates), lambda pmf: len(pmf) <> len(eligible) OR list_count(pmf) < len(pmf))"
    return [
        _where("decisions", f"mode NOT IN ({modes})", "'mode is ' || mode", f"allowed are {modes}"),
        _where("decisions", "len(eligible) = 0", "'no arm is eligible'", "a decision is among at least one arm"),
        _where(
            "decisions",
            "len(list_distinct(eligible)) < len(eligible)",
            "'eligible is ' || eligible::VARCHAR",
            "each arm stands there once, and none is NULL: name revisions apart",
        ),
        _where(
            "decisions",
            "NOT list_contains(eligible, chosen)",
            "'chosen is ' || chosen || ', and eligible are ' || eligible::VARCHAR",
            "an arm is chosen among the eligible: log all arms that could have been drawn",
        ),
        _where(
            "decisions",
            # A log that was imported may know the propensities of what was drawn alone.
            f"{lengths} OR (mode IN {DRAWN} AND len(probs) = 0 AND encoder IS DISTINCT FROM 'import')",
            f"{told}, CASE WHEN len(probs) = 0 THEN 'no probs' END) || ' for ' || len(eligible) || ' eligible arms'",
            "there is one number for each eligible arm: log the whole vector",
        ),
        _where(
            "decisions",
            f"{holes} OR NOT isfinite({sums})",
            "'one of its arrays holds NULL, NaN or an infinity: probs are ' || probs::VARCHAR",
            "allowed are finite numbers: correct the row, or leave its session out",
        ),
        _where(
            "decisions",
            f"len({shadows}) > 0",
            "'a candidate has another number of probabilities than ' || len(eligible)",
            "there is one for each eligible arm: log the whole vector, or none",
        ),
        _where(
            "decisions",
            f"mode IN {DRAWN} AND draw_id <> decision_id",
            "'it was drawn, and draw_id names ' || draw_id",
            "a draw lives on itself: a turn that kept its session's model has the mode sticky",
        ),
    ]


def _of_outcomes() -> list[_Rule]:
    said = "kind IN ('thumb', 'rating')"
    span = "(value - scale_low) / (scale_high - scale_low)"
    rules = [
        _Rule(
            table,
            f"SELECT seq, decision_id, 'there is no such decision' AS found FROM ({_orphans(table)}) WHERE NOT gone",
            "an outcome belongs to a logged decision: put back what is missing, or leave the outcome out with it",
        )
        for table in _OUTCOMES
    ]
    return [
        *rules,
        _where("executions", f"status NOT IN {STATUSES}", "'status is ' || status", f"allowed are {STATUSES}"),
        _Rule(
            "executions",
            "SELECT e.seq, e.decision_id, 'chosen is ' || e.chosen || ', and the decision chose ' || d.chosen AS found "
            "FROM log_executions AS e JOIN log_decisions AS d USING (decision_id) WHERE e.chosen <> d.chosen",
            "an execution repeats what was drawn, and says in served_by who answered instead: one of the two is wrong",
        ),
        _where("scores", "status NOT IN ('ok', 'expired', 'failed')", "'status is ' || status", "see fitrouter.Score"),
        _where(
            "feedback",
            f"{said} AND NOT coalesce(y BETWEEN 0 AND 1, false)",
            "kind || ' has y = ' || coalesce(y::VARCHAR, 'NULL')",
            "a verdict lies on [0, 1]: put value onto its scale",
        ),
        _where(
            "feedback",
            f"{said} AND abs(y - {span}) > 1e-9",
            "kind || ' has y = ' || y || ', and ' || value || ' on ' || scale_low || ' to ' || scale_high",
            "y is (value − low) / (high − low): one of them is wrong",
        ),
    ]


def check_structure(log: OpenLog) -> int:
    """Check all constraints; returns the number of orphaned outcomes of erased users."""
    rules = _rules()
    violated: set[_Rule] = set()
    for table in _FILLED:
        mine = [rule for rule in rules if rule.table == table]
        tests = f"SELECT {', '.join(rule.test for rule in mine)} FROM log_{table}"
        violated |= {
            rule for rule, failed in zip(mine, log.connection.execute(tests).fetchall()[0], strict=True) if failed
        }
    for rule in rules:
        if rule not in violated:
            continue
        first = f"SELECT seq, decision_id, found, count(*) OVER () FROM ({rule.broken}) ORDER BY seq LIMIT 1"
        found = log.connection.execute(first).fetchone()
        if found is not None:
            seq, decision_id, what, count = found
            refuse_rows(log.place, seq, decision_id, what, rule.allowed, count=count, table=rule.table)
    asked = [f"SELECT count(*) FROM ({_orphans(table)}) WHERE gone" for table in _OUTCOMES]
    return sum(int(row[0]) for sql in asked for row in log.connection.execute(sql).fetchall())
