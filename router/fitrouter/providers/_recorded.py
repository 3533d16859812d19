"""Answers that were recorded: dress rehearsals on real text."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from fitrouter.errors import ConfigError, ProviderRejected, ProviderUnavailable
from fitrouter.providers._texts import last_user_text, stream, usage_of, whole
from fitrouter.types import Call, Chunk, Completion

__all__ = ["Recorded"]

_COLUMNS = ("prompt", "model", "response")
_SHOWN = 10


class Recorded:
    """Serves the responses of a Parquet or JSONL file with the columns prompt, model, response; others are ignored.

    The answer to a call is the response recorded for (text of its last user message, `call.target`), streamed in pieces
    of 24 characters. Of several for one pair the first counts. An unknown prompt is `ProviderRejected`, since no other
    model of the file has one for it more likely; a prompt that was not put to this model is `ProviderUnavailable`.

    Raises:
        ConfigError: the file is missing or of another kind, lacks a column, or holds bad lines: all of them are
        counted,
            and the first ten are listed with number and reason.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        file = Path(path)
        if file.suffix == ".parquet":
            rows = _parquet_rows(file)
        elif file.suffix in {".jsonl", ".ndjson"}:
            rows = _json_rows(file)
        else:
            raise ConfigError(f"{str(file)!r} is neither .parquet nor .jsonl; recorded answers are read from these")
        self._path = file
        self._answers: dict[str, dict[str, str]] = {}
        self._load(rows)
        self.models = tuple(sorted({model for answers in self._answers.values() for model in answers}))

    def __repr__(self) -> str:
        return f"Recorded({str(self._path)!r}: {len(self._answers)} prompts, {len(self.models)} models)"

    @property
    def prompts(self) -> tuple[str, ...]:
        """The recorded prompts, in the order of the file."""
        return tuple(self._answers)

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        """Answer whole, or with an iterator of chunks where `call.stream` is set; see `Provider`."""
        prompt = last_user_text(call.messages)
        answers = self._answers.get(prompt)
        if answers is None:
            raise ProviderRejected(
                f"{self._path.name} holds no answer to {prompt[:80]!r}: "
                f"it has {len(self._answers)} prompts, and the last user message must be one of them word for word"
            )
        text = answers.get(call.target)
        if text is None:
            raise ProviderUnavailable(
                f"{self._path.name} holds no answer of {call.target!r} to {prompt[:80]!r}; "
                f"answers to it are of {sorted(answers)}"
            )
        usage = usage_of(call.messages, text)
        return stream(text, usage, _yield) if call.stream else whole(text, usage)

    async def aclose(self) -> None:
        """Nothing is open."""

    def _load(self, rows: Iterable[tuple[int, dict[str, Any] | str]]) -> None:
        problems: list[str] = []
        for number, row in rows:
            reason = row if isinstance(row, str) else _fault_of(row)
            if reason is not None:
                problems.append(f"  line {number}: {reason}")
            elif isinstance(row, dict):
                self._answers.setdefault(row["prompt"], {}).setdefault(row["model"], row["response"])
        if problems:
            more = [f"  … and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
            lines = "\n".join([*problems[:_SHOWN], *more])
            raise ConfigError(f"{str(self._path)!r} has {len(problems)} bad lines; correct or remove them:\n{lines}")
        if not self._answers:
            raise ConfigError(f"{str(self._path)!r} holds no recorded answer")


async def _yield(_: int) -> None:
    """Let others run between pieces."""
    await asyncio.sleep(0)


def _fault_of(row: dict[str, Any]) -> str | None:
    """What is wrong with a row; None if nothing is."""
    for column in _COLUMNS:
        if column not in row:
            return f"{column!r} is missing; a line needs {', '.join(_COLUMNS)}"
        if not isinstance(row[column], str):
            return f"{column!r} is {row[column]!r}; it must be text"
    return None


def _json_rows(file: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """(line number, row), or (line number, reason) where a line is no JSON object; blank lines are skipped."""
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"recorded answers cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            yield number, f"no JSON ({error})"
            continue
        yield number, row if isinstance(row, dict) else "no JSON object"


def _parquet_rows(file: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """(row number, row) of the columns that are needed."""
    import duckdb

    if not file.is_file():
        raise ConfigError(f"recorded answers cannot be read: there is no file {str(file)!r}")
    with duckdb.connect(":memory:") as connection:
        try:
            relation = connection.read_parquet(str(file))
            if missing := [column for column in _COLUMNS if column not in relation.columns]:
                raise ConfigError(f"{str(file)!r} lacks the columns {missing}; it has {relation.columns}")
            rows = relation.select(*_COLUMNS).fetchall()
        except duckdb.Error as error:
            raise ConfigError(f"{str(file)!r} cannot be read as Parquet: {error}") from None
    for number, values in enumerate(rows, 1):
        yield number, dict(zip(_COLUMNS, values, strict=True))
