"""Conversion of a logged data set to router events: open formats, exported tables, or a journal."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.plain import pack
from fitrouter.state.reading import read_batch
from fitrouter.state.waiting_pairs import WaitingPairs
from fitrouter.stores.journal import SqliteJournal
from fitrouter.types import Decision, Event, Execution, Feedback, FeedbackKind, Floats, Identity, Score
from fitrouter_evaluators.datasets import Cell, Problem, read_matrix, read_ratings
from fitrouter_evaluators.datasets._reading import read_values

Related: TypeAlias = tuple[Event, Sequence[Event]]
"""An event and the earlier ones of its decision."""

_STEP_S = 60.0
"""Seconds between two answers of a file without times."""
_TABLES = ("executions", "scores", "feedback")


class LoggedAnswer(NamedTuple):
    """An answer of a model in a file."""

    prompt: str
    model: str
    y: float
    """Rating in [0, 1]."""
    response: str | None = None
    cost_usd: float | None = None
    latency_s: float | None = None
    user: str | None = None
    role: str | None = None


class LabelLog(NamedTuple):
    """Events of a logged data set, with its unusable rows."""

    events: Iterator[Related]
    problems: list[Problem]
    """Unusable rows."""


class TextEncoding(NamedTuple):
    """Encoder and scorer that turn texts into features."""

    x: Callable[[str], Floats]
    """The context of a prompt."""
    h: Callable[[Sequence[tuple[str, str]]], Floats] | None
    """Response features of (prompt, answer) pairs, float64[n, D]; None to ignore answers."""
    tokens: Callable[[LoggedAnswer], float | None]
    schema: str
    encoder: str
    """Id of the encoder of prompts."""


def read_log(data: Path, reading: TextEncoding, scale: tuple[float, float] = (0.0, 1.0)) -> LabelLog:
    """Read a logged data set as events.

    Args:
        data: a matrix or ratings file (JSONL or Parquet), a folder with the warehouse's tables as Parquet, or a journal
            or its folder.
        reading: how texts become numbers.
        scale: lowest and highest reward of a matrix.

    Raises:
        ConfigError: the data set is missing, in another format, or made with another encoder.
    """
    if data.is_dir() and all((data / f"{name}.parquet").is_file() for name in _TABLES):
        return LabelLog(_exported(data, reading.encoder), [])
    journal = data / "journal.db" if data.is_dir() else data
    if journal.suffix == ".db" and journal.is_file():
        return LabelLog(_journalled(journal, reading.encoder), [])
    if data.is_dir():
        wanted = ", ".join(f"{name}.parquet" for name in _TABLES)
        raise ConfigError(f"--data: {str(data)!r} has neither a journal.db nor the tables {wanted}")
    answers, problems = _answers(data, scale)
    return LabelLog(_played(answers, reading), problems)


def _answers(data: Path, scale: tuple[float, float]) -> tuple[list[LoggedAnswer], list[Problem]]:
    """Read the answers of an open file, in an order that depends on the prompts alone."""
    first = next((value for _, value in read_values(data) if isinstance(value, dict)), {})
    if "models" in first:
        matrix = read_matrix(data)
        low, high = scale
        found = [
            LoggedAnswer(
                row.prompt,
                model,
                (cell.reward - low) / (high - low),
                *(cell.response, cell.cost_usd, cell.latency_s),
                *(row.user, row.role),
            )
            for row in matrix.rows
            for model, cell in row.models.items()
            if _require_on_scale(cell, data, scale)
        ]
        problems = matrix.problems
    else:
        ratings = read_ratings(data)
        found = [
            LoggedAnswer(row.prompt, row.model, row.y, row.response, None, None, row.user, row.role)
            for row in ratings.rows
            if row.model is not None and row.prompt.strip() and row.dimension == "overall"
        ]
        problems = ratings.problems
    if not found:
        raise ConfigError(
            f"--data: {str(data)!r} names no model; give a matrix, or ratings with `model`, `prompt` and "
            f"the dimension overall ({len(problems)} rows could not be read)"
        )
    # In a file sorted by source, models would seem to drift.
    found.sort(key=lambda answer: hashlib.sha256(answer.prompt.encode("utf-8", "replace")).digest())
    return found, problems


def _require_on_scale(cell: Cell, data: Path, scale: tuple[float, float]) -> bool:
    """Check that a reward is on the scale; returns True.

    Raises:
        ConfigError: it is not.
    """
    if not scale[0] <= cell.reward <= scale[1]:
        raise ConfigError(
            f"--data: {str(data)!r} has the reward {cell.reward!r}, and the scale is {scale[0]:g} to {scale[1]:g}; "
            "say which one it is with --scale LOW HIGH"
        )
    return True


def _played(answers: Sequence[LoggedAnswer], reading: TextEncoding) -> Iterator[Related]:
    """Iterate over the events of a file's answers."""
    h: dict[int, bytes] = {}
    texts = {i: (answer.prompt, answer.response) for i, answer in enumerate(answers) if answer.response is not None}
    if reading.h is not None and texts:
        h = dict(zip(texts, map(pack, reading.h(list(texts.values()))), strict=True))
    contexts: dict[str, bytes] = {}
    for i, answer in enumerate(answers):
        if answer.prompt not in contexts:
            contexts[answer.prompt] = pack(reading.x(answer.prompt))
        yield from _events(i, answer, contexts[answer.prompt], h.get(i), reading)


def _events(i: int, answer: LoggedAnswer, x: bytes, h: bytes | None, reading: TextEncoding) -> Iterator[Related]:
    """Iterate over the events of one answer: Execution (if tokens and latency are known), Score and Feedback."""
    name, ts = f"row{i}", _STEP_S * (i + 1)
    identity = Identity(user=answer.user, role=answer.role)
    earlier: list[Event] = []
    tokens = reading.tokens(answer)
    if tokens is not None and answer.latency_s is not None:
        earlier.append(
            Execution(
                id=f"{name}:execution",
                ts=ts,
                decision_id=name,
                identity=identity,
                chosen=answer.model,
                served_by=answer.model,
                status="ok",
                features=x,
                completion_tokens=round(tokens),
                cost_usd=answer.cost_usd or 0.0,
                latency_ms=1000.0 * answer.latency_s,
            )
        )
        yield earlier[-1], ()
    score = Score(
        id=f"{name}:score",
        ts=ts,
        decision_id=name,
        identity=identity,
        served_by=answer.model,
        features=x,
        h=h or b"",
        schema=reading.schema if h else "",
        status="ok" if h else "failed",
    )
    yield score, tuple(earlier)
    vote = Feedback(
        id=f"{name}:vote", ts=ts, decision_id=name, identity=identity, kind=FeedbackKind.RATING, value=answer.y
    )
    yield vote, (*earlier, score)


def _journalled(path: Path, encoder: str) -> Iterator[Related]:
    """The events of a journal."""
    journal = SqliteJournal(path)
    try:
        after, pairs = 0, WaitingPairs()
        while rows := read_batch(journal, after, waiting=lambda score, _: pairs.get(score.decision_id)).rows:
            for row, related in rows:
                pairs.observe(row.event, related)
                if isinstance(row.event, Decision):
                    _same(row.event.encoder, encoder, path)
                elif isinstance(row.event, Execution | Score | Feedback):
                    yield row.event, related
            after = rows[-1][0].seq
    finally:
        journal.close()


def _exported(folder: Path, encoder: str) -> Iterator[Related]:
    """Iterate over the events from which exported tables were made."""
    contexts: dict[str, Any] = {}
    """Decision → its context, which the other tables have in older exports only."""
    if (folder / "decisions.parquet").is_file():
        for row in _table(folder, "decisions"):
            _same(row.get("encoder") or "", encoder, folder)
            contexts[row["decision_id"]] = row.get("features") or ()
    rows = [(row["seq"], name, row) for name in _TABLES for row in _table(folder, name)]
    earlier: defaultdict[str, list[Event]] = defaultdict(list)
    for _, name, row in sorted(rows, key=lambda each: each[0]):
        event = _event(name, {"features": contexts.get(row["decision_id"], ())} | row)
        other = earlier[row["other"]] if row.get("other") else ()
        yield event, (*earlier[event.decision_id], *other)
        earlier[event.decision_id].append(event)


def _table(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    return (row for _, row in read_values(folder / f"{name}.parquet") if isinstance(row, dict))


def _event(table: str, row: dict[str, Any]) -> Execution | Score | Feedback:
    """Rebuild the event from which a table's row was made.

    Raises:
        ConfigError: a column is missing.
    """
    try:
        common: dict[str, Any] = {
            "ts": row["ts"],
            "decision_id": row["decision_id"],
            "identity": Identity(
                tenant=row["tenant"], user=row.get("user"), role=row.get("role"), task=row.get("task")
            ),
        }
        if table == "feedback":
            scale = (row["scale_low"], row["scale_high"])
            kind, other = FeedbackKind(row["kind"]), row.get("other") or ""
            own = {"kind": kind, "value": row["value"], "scale": scale, "dimension": row["dimension"], "other": other}
            return Feedback(id=row["feedback_id"], **common, **own)
        common["features"] = pack(np.array(row["features"]))
        if table == "scores":
            own = {name: row[name] for name in ("served_by", "schema", "encoder", "status")}
            return Score(id=row["score_id"], h=pack(np.array(row["h"])), **common, **own)
        names = ("chosen", "status", "prompt_tokens", "completion_tokens", "cost_usd", "latency_ms")
        return Execution(
            id=row["execution_id"],
            served_by=row.get("served_by"),
            **common,
            **{name: row[name] for name in names},
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(f"--data: {table}.parquet is no table of a warehouse: {error}") from None


def _same(found: str, encoder: str, data: Path) -> None:
    if found and found != encoder:
        raise ConfigError(
            f"--data: {str(data)!r} was logged with the prompt encoder {found!r}, here it is {encoder!r}; give the "
            "configuration that it was logged under with --config"
        )
