"""Provider that replays recorded answers, for rehearsals on real text."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fitrouter.errors import ConfigError, ProviderRejected, ProviderUnavailable
from fitrouter.providers._texts import last_user_text, stream, usage_of, whole
from fitrouter.types import Call, Chunk, Completion

_COLUMNS = ("prompt", "model", "response")
_MATCHES = ("exact", "inside")
_HEAD = 32
"""Most leading characters by which prompts are indexed."""
_SHOWN = 10


class Recorded:
    """Provider that serves the responses of a Parquet or JSONL file with the columns prompt, model and response.

    The answer to a call is the first response recorded for (prompt, `call.target`), streamed in pieces of 24
    characters. The prompt is the exact text of the last user message. Agents wrap it into instructions of their own:
    with `match="inside"` it is the longest recorded prompt contained in that text, white space at its ends ignored.

    An unknown prompt is `ProviderRejected`, since other models of the file are unlikely to have it; a prompt without an
    answer of this model is `ProviderUnavailable`.

    Args:
        path: the file.
        match: `exact` or `inside`.

    Raises:
        ConfigError: `match` is neither; or the file is missing or of another kind, lacks a column, or has invalid lines
            (the first ten are listed with number and reason).
    """

    def __init__(self, path: str | os.PathLike[str], match: str = "exact") -> None:
        if match not in _MATCHES:
            raise ConfigError(f"match is {match!r}; allowed are {', '.join(_MATCHES)}")
        file = Path(path)
        if file.suffix == ".parquet":
            rows = _parquet_rows(file)
        elif file.suffix in {".jsonl", ".ndjson"}:
            rows = _json_rows(file)
        else:
            raise ConfigError(f"{str(file)!r} is neither .parquet nor .jsonl; recorded answers are in one of these")
        self._path = file
        self._answers: dict[str, dict[str, str]] = {}
        self._load(rows)
        self._inside = _Inside(self._answers) if match == "inside" else None
        self.models = tuple(sorted({model for answers in self._answers.values() for model in answers}))

    @classmethod
    def from_options(cls, path: str | os.PathLike[str], options: Mapping[str, Any]) -> Recorded:
        """Build the provider from the `options` of the configuration; the only one is `match`.

        Raises:
            ConfigError: see the class; or there is another option.
        """
        if unknown := sorted(options.keys() - {"match"}):
            raise ConfigError(f"the recorded provider has unknown options {unknown}; the only option is 'match'")
        return cls(path, **options)

    def __repr__(self) -> str:
        return f"Recorded({str(self._path)!r}: {len(self._answers)} prompts, {len(self.models)} models)"

    @property
    def prompts(self) -> tuple[str, ...]:
        """The recorded prompts, in the order of the file."""
        return tuple(self._answers)

    def answers(self, prompt: str) -> Mapping[str, str]:
        """Return the recorded answers to a prompt by model; empty for an unknown prompt."""
        return self._answers.get(prompt, {})

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        """Return a completion or a stream of chunks; see `Provider`."""
        message = last_user_text(call.messages)
        prompt = message if message in self._answers or self._inside is None else self._inside.longest(message)
        answers = None if prompt is None else self._answers.get(prompt)
        if prompt is None or answers is None:
            wanted = "equal" if self._inside is None else "contain"
            raise ProviderRejected(
                f"{self._path.name} has no answer to {message[:80]!r}: the last user message must {wanted} one of its "
                f"{len(self._answers)} prompts exactly"
            )
        text = answers.get(call.target)
        if text is None:
            raise ProviderUnavailable(
                f"{self._path.name} has no answer of {call.target!r} to {prompt[:80]!r}, only of {sorted(answers)}"
            )
        usage = usage_of(call.messages, text)
        return stream(text, usage, _yield) if call.stream else whole(text, usage)

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""

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
            raise ConfigError(
                f"{str(self._path)!r} has {len(problems)} invalid lines; correct or remove them:\n{lines}"
            )
        if not self._answers:
            raise ConfigError(f"{str(self._path)!r} has no recorded answers")


class _Inside:
    """Index that finds the longest of many texts contained in another, in time nearly independent of their number."""

    def __init__(self, texts: Iterable[str]) -> None:
        bare: dict[str, str] = {}
        for text in texts:
            bare.setdefault(text.strip(), text)
        bare.pop("", None)  # contained in every text
        self._size = min((_HEAD, *map(len, bare)))
        self._by_head: dict[str, list[tuple[str, str]]] = {}
        """First characters → (stripped text, text), the longest first."""
        for pair in sorted(bare.items(), key=lambda pair: -len(pair[0])):
            self._by_head.setdefault(pair[0][: self._size], []).append(pair)

    def longest(self, within: str) -> str | None:
        """Return the longest text contained in `within`, the first of several; None if there is none."""
        found, length = None, 0
        for start in range(len(within) - self._size + 1):
            for bare, text in self._by_head.get(within[start : start + self._size], ()):
                if len(bare) > length and within.startswith(bare, start):
                    found, length = text, len(bare)
        return found


async def _yield(_: int) -> None:
    """Let other tasks run between two pieces of a stream."""
    await asyncio.sleep(0)


def _fault_of(row: dict[str, Any]) -> str | None:
    """Describe what is wrong with a row; None if nothing is."""
    for column in _COLUMNS:
        if column not in row:
            return f"{column!r} is missing; a line needs {', '.join(_COLUMNS)}"
        if not isinstance(row[column], str):
            return f"{column!r} is {row[column]!r}; it must be a string"
    return None


def _json_rows(file: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yield (line number, row), or (line number, reason) if a line is not a JSON object; blank lines are skipped."""
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
            yield number, f"invalid JSON ({error})"
            continue
        yield number, row if isinstance(row, dict) else "not a JSON object"


def _parquet_rows(file: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yield (row number, row) of a Parquet file, with the required columns only."""
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
