"""Public human judgements as observations of hᵀw with the core's likelihoods (`fitrouter.posterior.likelihoods`).

A rating or a thumb is a label on [0, 1], a vote between two answers a logistic row along h_a − h_b, a copy, an
acceptance or an edit a logistic row at its level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.posterior.likelihoods import SIGNALS, observation_of
from fitrouter.posterior.tastes import TasteParams
from fitrouter.types import FeedbackKind, Floats
from fitrouter_evaluators.datasets import (
    Pair,
    Rating,
    halie,
    llm_rubric,
    mt_bench,
    read_pairs,
    read_ratings,
    realhumaneval,
    ttcw,
)
from fitrouter_evaluators.scoring._answer import Answer
from fitrouter_evaluators.scoring.features import ResponseFeatures
from fitrouter_evaluators.training.hierarchy import Observations

_OVERALL = {"overall", "preference", "quality", "Q0"}
"""Dimensions of the public sets that rate an answer as a whole; in TTCW every test does."""


class Judged(NamedTuple):
    """Human judgements of one source."""

    name: str
    licence: str
    rows: Sequence[Pair | Rating]


def _halie(folder: Path) -> list[Pair | Rating]:
    turns = [row for row in halie.convert_dialogue(folder) if row.dimension in _OVERALL]
    return [*turns, *halie.convert_quality(folder), *halie.convert_metaphor(folder)]


SETS: dict[str, tuple[str, Callable[[Path], Sequence[Pair | Rating]]]] = {
    "mt_bench_human": ("CC-BY-4.0 (votes), Apache-2.0 (answers)", mt_bench.convert),
    "halie": ("Apache-2.0", _halie),
    "llm_rubric": ("MIT", lambda folder: [row for row in llm_rubric.convert(folder) if row.dimension in _OVERALL]),
    "realhumaneval": ("CC0", realhumaneval.convert),
    "ttcw": ("BSD-3-Clause", ttcw.convert),
}
"""Folder of a public set → licence and reader, for sets that include the judged texts."""


def read_sets(data: Path) -> list[Judged]:
    """Read the public sets in a folder, and open-format files (pairs or ratings, JSONL or Parquet) beside them.

    Raises:
        ConfigError: there are no judgements, or a file has a bad line.
    """
    if data.is_file():
        return [Judged(data.name, "not stated", _read_file(data))]
    there = [(name, *known) for name, known in SETS.items() if (data / name).is_dir()]
    found = [Judged(name, licence, read(data / name)) for name, licence, read in there]
    files = sorted(path for path in data.glob("*") if path.suffix in {".jsonl", ".parquet"})
    found += [Judged(path.name, "not stated", _read_file(path)) for path in files]
    if not found:
        raise ConfigError(
            f"{str(data)!r} holds no judgements; give a folder with {', '.join(SETS)}, or files of the open formats"
        )
    return found


def _read_file(path: Path) -> list[Pair | Rating]:
    pairs, ratings = read_pairs(path), read_ratings(path)
    best = pairs if len(pairs.problems) < len(ratings.problems) else ratings
    if best.problems:
        first = best.problems[0]
        raise ConfigError(f"{str(path)!r}, line {first.line}: {first.reason} ({len(best.problems)} bad lines)")
    return list(best.rows)


class _Row(NamedTuple):
    """One observation of a label along x: Gaussian with noise base / weight, or logistic with an offset."""

    x: Floats
    y: float
    weight: float
    logistic: bool
    offset: float


class PriorSource(NamedTuple):
    """Judgements of a source as observations of hᵀw, by user."""

    name: str
    licence: str
    users: dict[str, Observations]
    answers: list[Answer]
    """The judged texts."""


def observe(judged: Judged, features: ResponseFeatures) -> PriorSource:
    """Convert the judgements of a source to observations, by user."""
    texts = list(dict.fromkeys(pair for row in judged.rows for pair in _texts(row)))
    answers = [Answer(text=text, prompt=prompt) for prompt, text in texts]
    h = dict(zip(texts, features.encode(answers), strict=True))
    h = {key: np.where(np.isnan(row), 0.0, row) for key, row in h.items()}
    rated = [row for row in judged.rows if isinstance(row, Rating) and _texts(row)]
    labels = [row.y for row in rated if SIGNALS[FeedbackKind(row.kind)].link == "gaussian"]
    shift = TasteParams().level - float(np.mean(labels)) if labels else 0.0
    rows: dict[str, list[_Row]] = {}
    for row in judged.rows:
        seen = _row(row, h, shift)
        if seen is not None:
            rows.setdefault(f"{judged.name}/{row.user}", []).append(seen)
    return PriorSource(judged.name, judged.licence, {user: _stack(found) for user, found in rows.items()}, answers)


def _texts(row: Pair | Rating) -> list[tuple[str, str]]:
    """(prompt, text) of each answer of a row."""
    if isinstance(row, Pair):
        return [(row.prompt, row.a.text), (row.prompt, row.b.text)]
    return [(row.prompt, row.response)] if row.response else []


def _row(row: Pair | Rating, h: Mapping[tuple[str, str], Floats], shift: float) -> _Row | None:
    texts = _texts(row)
    if not texts:
        return None
    if isinstance(row, Pair):
        seen = observation_of(FeedbackKind.PAIR, row.label)
        x = h[texts[0]] - h[texts[1]]
    else:
        kind = FeedbackKind(row.kind)
        if kind is FeedbackKind.DWELL:
            return None  # seconds need the tokens of the answer, and carry little information
        seen = observation_of(kind, 1.0 - row.y if kind is FeedbackKind.EDIT else row.y)
        x = h[texts[0]]
    signal = seen.signal
    if signal.link == "gaussian":
        # Levels of different sources are not comparable.
        return _Row(
            x,
            seen.y + shift,
            signal.weight * SIGNALS[FeedbackKind.RATING].noise / signal.noise,
            logistic=False,
            offset=0.0,
        )
    return _Row(x / signal.temperature, seen.y, signal.weight, logistic=True, offset=-signal.level / signal.temperature)


def _stack(rows: Sequence[_Row]) -> Observations:
    return Observations(
        np.array([row.x for row in rows]),
        np.array([row.y for row in rows]),
        np.array([row.weight for row in rows]),
        np.array([row.logistic for row in rows]),
        np.array([row.offset for row in rows]),
    )
