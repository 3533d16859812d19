"""Schema of the warehouse: tables made from the fields of the events, the views, and the rows of an event.

A field that is added to an event is a column, of the type that follows from the field's, described by its docstring.
What differs from that rule stands in `_NAMES`, `_PAIRS` and `_DERIVED`, and in `words.yaml`.
"""

from __future__ import annotations

import ast
import enum
import functools
import hashlib
import inspect
import itertools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

import fitrouter.types
from fitrouter.stores.figures import COUNTED_OUTCOME
from fitrouter.stores.journal import Row
from fitrouter.types import (
    DECLINED,
    OUTCOMES,
    RECORDED,
    TOKENS,
    WHOLE,
    Decision,
    Execution,
    Feedback,
    Identity,
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
    Variant,
)

Cells: TypeAlias = tuple[Any, ...]

_EVENTS: dict[str, tuple[type, str]] = {
    "decisions": (Decision, "decision_id"),
    "executions": (Execution, "execution_id"),
    "scores": (Score, "score_id"),
    "feedback": (Feedback, "feedback_id"),
    "profiles": (ProfileChange, "profile_id"),
    "models": (ModelChange, "change_id"),
    "policies": (PolicyChange, "change_id"),
    "remarks": (Remark, "remark_id"),
    "refusals": (Refusal, "refusal_id"),
    "run_outcomes": (RunOutcome, "outcome_id"),
}
"""Table → its events, and the column of their id."""

TABLES = tuple(_EVENTS)
"""Tables filled from the journal."""

_NAMES: dict[tuple[type, str], str | None] = {
    (PolicyVersion, "algorithm"): "policy_algorithm",
    (PolicyVersion, "config_hash"): "policy_config_hash",
    (PolicyVersion, "seq"): "policy_seq",
    **{(Prices, each): f"{each}_usd_per_million" for each in ("input", "output", "long_input", "long_output", *WHOLE)},
    (Prices, "request"): "request_usd",
    (Prices, "long_above"): "long_above_tokens",
    (Prices, "known"): "price_known",
    (Variant, "name"): "variant",
    (Variant, "prefix"): None,
    (Variant, "params"): None,
    (ModelChange, "cards"): None,  # rows of their own
    (ModelCard, "variants"): None,
    (ModelCard, "effort"): None,
    (ModelCard, "check"): None,
    # Copies of the decision's: those of features were a quarter of all bytes.
    (Execution, "features"): None,
    (Score, "features"): None,
    (Execution, "payer"): None,
    (Execution, "key"): None,
    # For explanations, budgets, outages and the streams of a killed process, which read the journal.
    (Decision, "grounds"): None,
    (Decision, "packed"): None,
    (Decision, "payer"): None,
    (Decision, "key"): None,
    (Decision, "worker"): None,
    (Decision, "look"): None,
    (Refusal, "key"): None,
    # Content, which is encrypted.
    (ProfileChange, "topics"): None,
    (ProfileChange, "stated"): None,
}
"""Fields whose column has another name; None for no column."""

_PAIRS: dict[tuple[type, str], tuple[str, str]] = {
    (Decision, "excluded"): ("model", "reason"),
    (Score, "dimensions"): ("mean", "sd"),
    (Feedback, "scale"): ("low", "high"),
    (RunOutcome, "scale"): ("worst", "best"),
}
"""Fields with pairs of values, and what these are called."""


def _hashed(*texts: str) -> int:
    """A number for texts: to group and join by it takes half the time; two of a million are equal once in 10⁷ logs."""
    packed = "".join(f"{len(text)}:{text}" for text in texts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little", signed=True)


def _person(event: Any) -> int | None:
    who: Identity = event.identity
    return None if who.user is None else _hashed(who.tenant, who.user)


_PERSON: dict[str, tuple[str, Callable[[Any], Any]]] = {"person_hash": ("BIGINT", _person)}
_OF_DECISION: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "decision_hash": ("BIGINT", lambda event: _hashed(event.id if isinstance(event, Decision) else event.decision_id))
}
_DERIVED: dict[type, dict[str, tuple[str, Callable[[Any], Any]]]] = {
    Decision: _OF_DECISION,
    Execution: _PERSON | _OF_DECISION,
    Score: _OF_DECISION,
    Refusal: _PERSON,
    Feedback: {"y": ("DOUBLE", lambda vote: vote.y if vote.scale[0] != vote.scale[1] else None)}
    | _PERSON
    | _OF_DECISION,
    RunOutcome: {"y": ("DOUBLE", lambda ended: ended.y if ended.scale[0] != ended.scale[1] else None)},
    ModelCard: {"arm": ("VARCHAR", attrgetter("arm"))},
}
"""Columns that are no fields: type and value."""

_RUNS = """CREATE TABLE ope_runs (
    run_id VARCHAR, ts DOUBLE, candidate VARCHAR, baseline VARCHAR, estimator VARCHAR, metric VARCHAR, slice VARCHAR,
    estimate DOUBLE, low DOUBLE, high DOUBLE, n BIGINT, ess DOUBLE, max_weight DOUBLE, mean_weight DOUBLE,
    unsupported DOUBLE, verdict VARCHAR
);
"""

_OUTCOME = " ".join(f"WHEN '{status}' THEN '{outcome}'" for status, outcome in OUTCOMES.items())
_VIEWS = f"""
CREATE VIEW latest_feedback AS
    SELECT * FROM feedback
    QUALIFY row_number() OVER (PARTITION BY decision_id, kind, dimension ORDER BY seq DESC) = 1;
CREATE VIEW outcomes AS
    WITH execution AS (
        SELECT * FROM executions QUALIFY row_number() OVER (PARTITION BY decision_id ORDER BY seq DESC) = 1
    ), score AS (
        SELECT * FROM scores QUALIFY row_number() OVER (PARTITION BY decision_id ORDER BY seq DESC) = 1
    ), vote AS (
        SELECT
            decision_id,
            max(y) FILTER (kind = 'thumb') AS thumb,
            max(y) FILTER (kind = 'rating') AS rating,
            arg_max(asked, seq) AS vote_asked,
            arg_max(source, seq) AS vote_source
        FROM latest_feedback WHERE dimension = 'overall' GROUP BY decision_id
    )
    SELECT
        decision.decision_id, decision.seq, decision.ts,
        make_timestamp(CAST(decision.ts * 1000000 AS BIGINT)) AS at_utc, decision.draw_id,
        decision.tenant, decision."user", decision.role, decision.task, decision.session, decision.run, decision.mode,
        decision.chosen, decision.propensity, decision.eligible, decision.probs, decision.twin,
        decision.asked, decision.asked_probability, decision.policy_algorithm, decision.registry,
        execution.served_by, execution.status, execution.prompt_tokens, execution.completion_tokens,
        CASE WHEN execution.cost_assumed IS NOT TRUE THEN execution.cost_usd END AS cost_usd,
        NOT execution.cost_assumed AS price_known, execution.ttft_ms, execution.latency_ms, execution.overhead_ms,
        execution.finish_reason, len(execution.attempts) AS attempts,
        score.mean AS score_mean, score.sd AS score_sd, score.status AS score_status,
        vote.thumb, vote.rating, vote.vote_asked, vote.vote_source
    FROM decisions AS decision
    LEFT JOIN execution USING (decision_id)
    LEFT JOIN score USING (decision_id)
    LEFT JOIN vote USING (decision_id);
CREATE VIEW answers AS
    WITH votes AS (
        SELECT decision_id, string_agg(
            kind
            || CASE
                WHEN kind = 'thumb' THEN CASE WHEN value >= 0.5 THEN ' up' ELSE ' down' END
                WHEN kind = 'rating' THEN format(' {{:g}} of {{:g}} to {{:g}}', value, scale_low, scale_high)
                WHEN kind = 'dwell' THEN format(' {{:g}} s', value)
                ELSE format(' {{:g}}', value)
            END
            || CASE WHEN dimension = 'overall' THEN '' ELSE ' for ' || dimension END,
            ', ' ORDER BY seq
        ) AS votes
        FROM latest_feedback GROUP BY decision_id
    )
    SELECT
        at_utc, "user" AS who, role, task, coalesce(served_by, chosen) AS model, propensity AS probability,
        cost_usd, latency_ms / 1000 AS seconds, score_mean AS score, votes, mode, status, tenant, session,
        decision_id
    FROM outcomes LEFT JOIN votes USING (decision_id)
    ORDER BY at_utc DESC;
CREATE VIEW runs AS
    WITH counted AS (
        SELECT * FROM run_outcomes
        QUALIFY {COUNTED_OUTCOME}
    ), step AS (
        SELECT
            run, any_value(tenant) AS tenant, any_value("user") AS "user",
            make_timestamp(CAST(min(ts) * 1000000 AS BIGINT)) AS began_utc, min(ts) AS began, max(ts) AS last,
            count(*) AS decisions, list(DISTINCT role) AS roles, list(DISTINCT coalesce(served_by, chosen)) AS models,
            CASE WHEN count(*) FILTER (price_known IS FALSE) = 0 THEN sum(cost_usd) END AS cost_usd
        FROM outcomes WHERE run IS NOT NULL AND status IS DISTINCT FROM '{DECLINED}' GROUP BY run
    )
    SELECT step.*, counted.y, counted.kind, counted.value, counted.source, len(counted.decisions) AS covered
    FROM step LEFT JOIN counted USING (run);
CREATE VIEW requests AS
    SELECT
        seq, ts, tenant, "user", role, decision_id, person_hash, decision_hash, chosen, served_by, status,
        CASE status {_OUTCOME} END AS outcome,
        1 AS n, {", ".join(TOKENS)}, cost_usd, cost_assumed, estimated, latency_ms
    FROM executions WHERE status NOT IN ('{RECORDED}', '{DECLINED}')
    UNION ALL
    SELECT
        seq, ts, tenant, "user", role, NULL, person_hash, NULL, nullif(model, ''), NULL, 'refused', 'refused', n,
        {", ".join("0" * len(TOKENS))}, 0.0, false, false, NULL
    FROM refusals;
"""  # noqa: S608 - constants


class _Column(NamedTuple):
    name: str
    type: str
    cell: Callable[[Any], Any]
    """Value of an event, or of a model card."""
    field: tuple[Any, str]
    """Struct and field that it comes from."""


def rows_of(row: Row) -> tuple[str, Sequence[Cells]]:
    """Convert an event to rows; return their table and the rows, an empty name for an event without a table.

    Raises:
        ValueError: the size of an encoded array is not a multiple of four bytes.
    """
    table = _TABLE_OF.get(type(row.event))
    if table is None:
        return "", ()
    own = (row.seq, *(column.cell(row.event) for column in _columns(table)))
    if isinstance(row.event, ModelChange):
        cards = tuple(_columns_of(ModelCard))
        return table, [(*own, *(column.cell(card) for column in cards)) for card in row.event.cards]
    return table, (own,)


_TABLE_OF = {event: table for table, (event, _) in _EVENTS.items()}


@functools.cache
def schema() -> Mapping[str, Mapping[str, str]]:
    """Return table → column → type in DuckDB, of the tables that are filled from the journal."""
    return {table: {"seq": "BIGINT"} | {column.name: column.type for column in _all_columns(table)} for table in TABLES}


def abouts(table: str) -> dict[str, str]:
    """Return column → the docstring of the field that it comes from; none for a view, or a field without one."""
    columns = _all_columns(table) if table in _EVENTS else ()
    found = {column.name: _docstrings().get((column.field[0].__name__, column.field[1]), "") for column in columns}
    return {name: text for name, text in found.items() if text}


@functools.cache
def _docstrings() -> dict[tuple[str, str], str]:
    """Return (class, field) → docstring, of the classes in `fitrouter.types`: Python does not keep these strings."""
    found = {}
    tree = ast.parse(inspect.getsource(fitrouter.types))
    for struct in (each for each in tree.body if isinstance(each, ast.ClassDef)):
        for field, text in itertools.pairwise(struct.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as said)):
                    found[struct.name, name] = " ".join(said.split())
    return found


def _all_columns(table: str) -> Sequence[_Column]:
    return [*_columns(table), *(_columns_of(ModelCard) if table == "models" else ())]


@functools.cache
def tables_sql() -> str:
    """Return the statements that create the tables, without views and comments."""
    made = [
        f"CREATE TABLE {table} ({', '.join(f'{quoted(name)} {kind}' for name, kind in columns.items())});\n"
        for table, columns in schema().items()
    ]
    return "".join(made) + _RUNS


@functools.cache
def version() -> str:
    """Return a hash of the schema, which a file of the warehouse bears."""
    return hashlib.sha256((tables_sql() + _VIEWS).encode()).hexdigest()[:16]


def create_sql() -> str:
    """Return the statements that create an empty warehouse, without comments."""
    columns = "seq BIGINT NOT NULL, event_id VARCHAR NOT NULL, until BIGINT NOT NULL, schema VARCHAR NOT NULL"
    position = f"CREATE TABLE position ({columns});\nINSERT INTO position VALUES (0, '', 0, '{version()}');\n"
    return f"{position}{tables_sql()}{_VIEWS}"


def quoted(name: str) -> str:
    """Quote a name for SQL."""
    return '"' + name.replace('"', '""') + '"'


@functools.cache
def _columns(table: str) -> Sequence[_Column]:
    event, key = _EVENTS[table]
    return [column._replace(name=key) if column.name == "id" else column for column in _columns_of(event)]


@functools.cache
def _columns_of(kind: Any) -> Sequence[_Column]:
    """Columns of a struct's fields, those of structs in it among them, and of what is derived from it."""
    found: list[_Column] = []
    for field in msgspec.structs.fields(kind):
        name = _NAMES.get((kind, field.name), field.name)
        if name is None:
            continue
        get, (hint, optional) = attrgetter(field.name), _without_none(field.type)
        pair = _PAIRS.get((kind, field.name))
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            found += [part._replace(cell=_of_part(get, part.cell)) for part in _columns_of(hint)]
        elif pair and hint == tuple[float, float]:
            found += [_Column(f"{name}_{of}", "DOUBLE", _at(get, i), (kind, field.name)) for i, of in enumerate(pair)]
        else:
            sql, convert = _type_of(hint, pair)
            found.append(_Column(name, sql, _cell(get, convert, optional=optional), (kind, field.name)))
    derived = _DERIVED.get(kind, {})
    return [*found, *(_Column(name, sql, cell, (kind, name)) for name, (sql, cell) in derived.items())]


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (only,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
        return only, True
    return hint, False


def _of_part(get: Callable[[Any], Any], cell: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda event: None if (part := get(event)) is None else cell(part)


def _at(get: Callable[[Any], Any], i: int) -> Callable[[Any], Any]:
    return lambda event: get(event)[i]


def _cell(get: Callable[[Any], Any], convert: Callable[[Any], Any] | None, *, optional: bool) -> Callable[[Any], Any]:
    if convert is None:
        return get
    return _of_part(get, convert) if optional else lambda event: convert(get(event))


def _type_of(hint: Any, pair: tuple[str, str] | None = None) -> tuple[str, Callable[[Any], Any] | None]:
    """DuckDB's type for the values of a field, and how they are converted; None if they go as they are."""
    plain = {str: "VARCHAR", bool: "BOOLEAN", float: "DOUBLE"}
    if hint in plain:
        return plain[hint], None
    if hint is int:
        return "BIGINT", _int64
    if hint is bytes:
        return "FLOAT[]", _floats
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "VARCHAR", attrgetter("value")
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        names = [field.name for field in msgspec.structs.fields(hint)]
        types_ = [_type_of(_without_none(field.type)[0])[0] for field in msgspec.structs.fields(hint)]
        return f"STRUCT({_members(names, types_)})", lambda value: {name: getattr(value, name) for name in names}
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and args[1:] == (...,):
        item, convert = _type_of(args[0], pair)
        return f"{item}[]", convert and functools.partial(_each, convert)
    if origin is tuple and pair:
        types_ = [_type_of(arg)[0] for arg in args]
        return f"STRUCT({_members(pair, types_)})", lambda value: dict(zip(pair, value, strict=True))
    if origin is dict and args[1] is Any:
        return "VARCHAR", lambda value: msgspec.json.encode(value, order="sorted").decode()
    if origin is dict:
        item, convert = _type_of(args[1], pair)
        return f"MAP(VARCHAR, {item})", convert and functools.partial(_each_value, convert)
    raise TypeError(f"{hint} has no column type; name its field in _NAMES, with None for no column")


def _each(convert: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    return [convert(value) for value in values]


def _each_value(convert: Callable[[Any], Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: convert(value) for key, value in values.items()}


def _members(names: Sequence[str], types_: Sequence[str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in zip(names, types_, strict=True))


def _floats(payload: bytes) -> list[float]:
    values: list[float] = np.frombuffer(payload, dtype="<f4").tolist()
    return values


def _int64(value: int) -> int:
    """Clamp a value to the range of a BIGINT, since providers' token counts are not validated."""
    return max(-(2**63), min(value, 2**63 - 1))
