"""Personalized RewardBench (arXiv:2604.07343) in its published form.

Per question of LaMP-QA's users: an answer written to the user's rubric (chosen), one written against it (rejected), and
the user's earlier posts (profile). A model that separates the two without the profile has learnt how the texts were
generated: report accuracy with the profile, without it, and the difference.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from fitrouter.errors import ConfigError
from fitrouter_evaluators.datasets._formats import Pair
from fitrouter_evaluators.datasets._reading import read_values
from fitrouter_evaluators.datasets._sources import read_json

SUBSETS = ("Art_and_Entertainment", "Lifestyle_and_Personal_Development", "Society_and_Culture")

_SUFFIXES = (".parquet", ".jsonl", ".json")
_NEEDED = ("id", "question", "chosen", "rejected", "profile")


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
    pairs = []
    for subset in SUBSETS:
        for path in _files(Path(folder), subset, split):
            for line, row in _rows(path):
                try:
                    pairs.append(_pair(row, subset))
                except (TypeError, ValueError) as error:
                    raise ConfigError(f"row {line} of {str(path)!r} cannot be used: {error}; fetch it again") from None
    return pairs


def _files(folder: Path, subset: str, split: str) -> list[Path]:
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


def _pair(row: Any, subset: str) -> Pair:
    if not isinstance(row, dict):
        raise ValueError(f"it is {row!r:.200}, not an object")  # noqa: TRY004
    missing = [name for name in _NEEDED if row.get(name) is None]
    if missing:
        raise ValueError(f"it has no {', '.join(missing)}")
    fields = {
        "user": str(row["id"]),
        "prompt": row["question"],
        "a": {"text": row["chosen"]},
        "b": {"text": row["rejected"]},
        "label": 1.0,
        "extra": {"subset": subset, "category": row.get("category") or subset, "profile": _posts(row["profile"])},
    }
    return msgspec.convert(fields, Pair)


def _posts(profile: Any) -> list[dict[str, Any]]:
    """Parse posts that are stored as a list of objects or, as some writers do, as an object of lists."""
    if isinstance(profile, dict):
        profile = [dict(zip(profile, post, strict=True)) for post in zip(*profile.values(), strict=True)]
    posts: list[dict[str, Any]] = list(profile)
    wrong = [post for post in posts if not (isinstance(post, dict) and isinstance(post.get("text"), str))]
    if wrong:
        raise ValueError(f"a post of its profile is {wrong[0]!r:.200}, which has no text")
    return posts
