"""Personalized RewardBench (arXiv:2604.07343) in its published form.

Per question of LaMP-QA's users: an answer written to the user's rubric (chosen), one written against it (rejected), and
the user's earlier posts (profile). A model that separates the two without the profile has learnt how the texts were
generated: report accuracy with the profile, without it, and the difference.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from fitrouter.errors import ConfigError
from fitrouter_evaluators.datasets._formats import Pair
from fitrouter_evaluators.datasets._reading import read_values
from fitrouter_evaluators.datasets._sources import read_json

SUBSETS = ("Art_and_Entertainment", "Lifestyle_and_Personal_Development", "Society_and_Culture")

PUBLISHED = 0.7594
"""Pair accuracy of the best reward model there, which saw no profile."""

_SUFFIXES = (".parquet", ".jsonl", ".json")
_NEEDED = ("id", "question", "chosen", "rejected", "profile")


class BadRow(msgspec.Struct, frozen=True):
    """A row that cannot be read."""

    file: str
    line: int
    """Line of a JSONL file, or number of the row, from 1."""
    reason: str


def load(folder: str | os.PathLike[str], split: str = "test") -> list[Pair]:
    """Load pairs by subset, in the files' order; a is always the chosen answer, so swap sides before training.

    `user` is the instance's id: every question has its own profile. `extra` has subset, category and profile, a list
    of posts (id, category, text) in the published order. The narrative and the rubric's aspects are left out, since the
    published protocol withholds them from a reward model.

    Args:
        folder: files `<subset>/<split>*` or `<subset>_<split>*`, at any depth, as Parquet, JSONL or a JSON array; the
            first of these kinds that a subset has is read.
        split: name of the split.

    Raises:
        ConfigError: a subset has no file, or a row lacks a field. A benchmark is read whole or not at all.
    """
    pairs, bad = read([Path(folder)], split)
    for row in bad[:1]:
        raise ConfigError(f"row {row.line} of {row.file!r} cannot be used: {row.reason}; fetch it again")
    return pairs


def read(paths: Iterable[Path], split: str = "test", *, rubric: bool = False) -> tuple[list[Pair], list[BadRow]]:
    """Read pairs as `load` does, and the rows that cannot be read.

    Args:
        paths: folders as of `load`, and files; the subset of a file is in its path, else its name.
        split: name of the split, in folders.
        rubric: keep the aspects of the rubric as `extra["rubric"]`, which a reward model must not see.

    Raises:
        ConfigError: a file is missing or of another type, or a folder has none of a subset.
    """
    pairs: list[Pair] = []
    bad: list[BadRow] = []
    for path, subset in [each for given in paths for each in _files(given, split)]:
        try:
            for line, row in _rows(path):
                try:
                    pairs.append(_pair(row, subset, rubric=rubric))
                except (TypeError, ValueError) as error:
                    bad.append(BadRow(str(path), line, str(error)))
        except (msgspec.DecodeError, RecursionError, OSError) as error:
            raise ConfigError(f"{str(path)!r} cannot be read: {error}; fetch it again") from None
    return pairs, bad


def _files(path: Path, split: str) -> Iterator[tuple[Path, str]]:
    """Iterate over the files of a path, each with its subset."""
    if not path.is_dir():
        yield path, next((name for name in SUBSETS if name in path.as_posix()), path.stem)
        return
    for subset in SUBSETS:
        yield from ((found, subset) for found in _of_subset(path, subset, split))


def _of_subset(folder: Path, subset: str, split: str) -> list[Path]:
    """The files of a subset's split, in the order of their names."""
    for suffix in _SUFFIXES:
        found = [
            path
            for path in sorted(folder.rglob(f"*{suffix}"))
            if (path.parent.name == subset and path.stem.partition("-")[0] == split)
            or path.stem.partition("-")[0] == f"{subset}_{split}"
        ]
        if found:
            return found
    names = " or ".join(f"{subset}{between}{split}*{{{','.join(_SUFFIXES)}}}" for between in "/_")
    raise ConfigError(f"{str(folder)!r} has no {names}; give the folder of the published set")


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    if path.suffix == ".json":
        value = read_json(path)
        return iter(enumerate(value if isinstance(value, list) else [value], start=1))
    return read_values(path)


def _pair(row: Any, subset: str, *, rubric: bool) -> Pair:
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, dict):
        raise ValueError(f"it is {row!r:.200}, not an object")  # noqa: TRY004
    missing = [name for name in _NEEDED if row.get(name) is None]
    if missing:
        raise ValueError(f"it has no {', '.join(missing)}")
    about = {"subset": subset, "category": row.get("category") or subset, "profile": _objects(row["profile"], "text")}
    if rubric:
        about["rubric"] = [each["aspect"] for each in _objects(row.get("rubric_aspects") or [], "aspect")]
    fields = {
        "user": str(row["id"]),
        "prompt": row["question"],
        "a": {"text": row["chosen"]},
        "b": {"text": row["rejected"]},
        "label": 1.0,
        "extra": about,
    }
    return msgspec.convert(fields, Pair)


def _objects(value: Any, name: str) -> list[dict[str, Any]]:
    """Parse what is stored as a list of objects with this text or, as some writers do, as an object of lists."""
    if isinstance(value, dict):
        value = [dict(zip(value, each, strict=True)) for each in zip(*value.values(), strict=True)]
    found: list[dict[str, Any]] = list(value)
    wrong = [each for each in found if not (isinstance(each, dict) and isinstance(each.get(name), str))]
    if wrong:
        raise ValueError(f"it has {wrong[0]!r:.200}, which has no {name}")
    return found
