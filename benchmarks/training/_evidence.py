"""Public data of each kind of feedback, as tracks of labels in time order.

Features here are few and plain (the model, the length and five other style dimensions, the place in the session): the
signals' numbers are about the kinds, and must not move whenever a feature is added.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from benchmarks.training.public import answer_probabilities, harm_annotations

from fitrouter.types import Floats
from fitrouter_evaluators.datasets import Rating, halie, llm_rubric, mt_bench, pluriharms, realhumaneval, ttcw
from fitrouter_evaluators.datasets._sources import read_table, source
from fitrouter_evaluators.scoring.text.style import STYLE, measure, standardise

_TEXT = [
    [d.name for d in STYLE].index(name) for name in ("length", "structure", "hedging", "warmth", "code", "questions")
]
_COMPONENTS = 6


class Track(NamedTuple):
    """One person's events in time order; NaN where an event has no label of that sort."""

    X: Floats
    """float64[n, D], features of what was judged; the first is 1 (0 in pairs)."""
    y: Floats
    """float64[n], labels of the kind itself on [0, 1]; of dwell, seconds."""
    primary: Floats
    """float64[n], labels of the kind that it should help to predict, on [0, 1]."""
    tokens: Floats
    """float64[n], length of the text that was judged, at four characters a token."""


class Evidence(NamedTuple):
    """One set's tracks of one kind; `primary` names the kind that it should help to predict, if there is one."""

    kind: str
    source: str
    tracks: Sequence[Track]
    primary: str | None = None


def read_evidence(data: Path) -> list[Evidence]:
    """Read all sets of the folder.

    Raises:
        ConfigError: a file of a set is missing.
    """
    return [
        _pluriharms(data / "pluriharms"),
        _llm_rubric(data / "llm_rubric"),
        *_mt_bench(data / "mt_bench_human"),
        _halie_dialogue(data / "halie" / "dialogue"),
        _ttcw(data / "ttcw"),
        *_halie_metaphor(data / "halie" / "metaphor"),
        *_realhumaneval(data / "realhumaneval"),
    ]


class _Rows:
    """Collects events of all people, to be cut into one track a person."""

    def __init__(self) -> None:
        self.people: list[str] = []
        self.columns: tuple[list[float], list[float], list[float]] = ([], [], [])

    def add(self, person: str, y: float, primary: float = math.nan, characters: int = 0) -> None:
        self.people.append(person)
        for column, value in zip(self.columns, (y, primary, characters / 4.0), strict=True):
            column.append(value)

    def tracks(self, X: Floats) -> list[Track]:
        index: dict[str, list[int]] = defaultdict(list)
        for i, person in enumerate(self.people):
            index[person].append(i)
        y, primary, tokens = (np.array(column, dtype=np.float64) for column in self.columns)
        return [Track(X[rows], y[rows], primary[rows], tokens[rows]) for rows in index.values()]


def _style(texts: Iterable[str]) -> Floats:
    """Compute standardised style features of texts, float64[n, 6]."""
    return np.array([standardise(measure(text))[_TEXT] for text in texts]).reshape(-1, len(_TEXT))


def _one_hot(names: Sequence[str]) -> Floats:
    """Encode names as one column each, in alphabetical order; float64[n, k]."""
    kinds = sorted(set(names))
    return np.array([[float(name == kind) for kind in kinds] for name in names])


def _scaled(columns: Floats | Sequence[Sequence[float]]) -> Floats:
    """Scale columns to mean 0 and variance 1, float64[n, k]."""
    X = np.array(columns, dtype=np.float64)
    scaled: Floats = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-9)
    return scaled


def _one(*blocks: Floats) -> Floats:
    return np.hstack([np.ones((len(blocks[0]), 1)), *blocks])


# --- ratings ---


def _pluriharms(folder: Path) -> Evidence:
    """Load PluriHarms' ratings; a prompt's features are its annotated harm and leading directions of annotations."""
    items = harm_annotations(folder)
    table = np.array([list(item.values()) for item in items.values()])
    U, _, _ = np.linalg.svd(table - table.mean(axis=0), full_matrices=False)
    lead = U[:, :_COMPONENTS]
    lead = lead * np.sign(lead[np.abs(lead).argmax(axis=0), range(_COMPONENTS)])  # an SVD's signs are arbitrary
    known = dict(zip(items, _scaled(np.hstack([lead, [[i["Harm_Level"]] for i in items.values()]])), strict=True))
    rows, features = _Rows(), []
    for rating in pluriharms.convert(folder):
        rows.add(rating.user, rating.y)
        features.append(known[rating.item or ""])
    return Evidence("rating", "PluriHarms", rows.tracks(_one(np.array(features))))


def _llm_rubric(folder: Path) -> Evidence:
    """Load LLM-Rubric's satisfaction, 1–4; a dialogue's features are an LLM's expected answers to nine questions."""
    expected = {
        item: [sum((i + 1) * p for i, p in enumerate(answers[name])) for name in llm_rubric.QUESTIONS]
        for item, answers in answer_probabilities(folder).items()
    }
    rows, features = _Rows(), []
    for rating in llm_rubric.convert(folder):
        if rating.dimension == "Q0" and rating.item in expected:
            rows.add(rating.user, rating.y)
            features.append(expected[rating.item])
    return Evidence("rating", "LLM-Rubric", rows.tracks(_one(_scaled(features))))


# --- pairs ---


def _mt_bench(folder: Path) -> list[Evidence]:
    """Load MT-bench's votes between two answers, and apart from them the ties, which should predict the votes."""
    pairs = mt_bench.convert(folder)
    texts = dict(_unique(text.text for pair in pairs for text in (pair.a, pair.b)))
    models = sorted({text.model or "" for pair in pairs for text in (pair.a, pair.b)})
    votes, ties, features = _Rows(), _Rows(), []
    for pair in pairs:
        vote, tie = (math.nan, 0.5) if pair.label == 0.5 else (pair.label, math.nan)
        votes.add(pair.user, vote)
        ties.add(pair.user, tie, vote)
        one_hot = [float(pair.a.model == name) - float(pair.b.model == name) for name in models]
        features.append(np.concatenate([[0.0], one_hot, texts[pair.a.text] - texts[pair.b.text]]))
    X = np.array(features)
    return [Evidence("pair", "MT-bench", votes.tracks(X)), Evidence("tie", "MT-bench", ties.tracks(X), "pair")]


def _unique(texts: Iterable[str]) -> list[tuple[str, Floats]]:
    distinct = list(dict.fromkeys(texts))
    return list(zip(distinct, _style(distinct), strict=True))


# --- verdicts ---


def _halie_dialogue(folder: Path) -> Evidence:
    """Load HALIE's verdict on each turn, which should predict the session's quality, rated 1–5 at its end."""
    rows, models, texts = _Rows(), [], []
    quality = {rating.extra["session"]: rating for rating in halie.convert_quality(folder)}
    sessions: dict[str, list[Rating]] = defaultdict(list)
    for verdict in halie.convert_dialogue(folder):
        if verdict.dimension == "preference":
            sessions[verdict.extra["session"]].append(verdict)
    for session, verdicts in sessions.items():
        for verdict in sorted(verdicts, key=lambda verdict: int(verdict.extra["turn"])):
            rows.add(verdict.user, verdict.y)
            models.append(verdict.model or "")
            texts.append(verdict.response or "")
        if session in quality:
            rows.add(verdicts[0].user, math.nan, quality[session].y)
            models.append(verdicts[0].model or "")
            texts.append(quality[session].response or "")
    return Evidence("thumb", "HALIE dialogue", rows.tracks(_one(_one_hot(models), _style(texts))), "rating")


def _ttcw(folder: Path) -> Evidence:
    """Load TTCW's yes or no to fourteen criteria; a story's features are who wrote it."""
    verdicts = ttcw.convert(folder)
    rows = _Rows()
    for verdict in verdicts:
        rows.add(verdict.user, verdict.y)
    writers = _one_hot([verdict.model or "" for verdict in verdicts])
    return Evidence("thumb", "TTCW", rows.tracks(_one(writers, _one_hot([v.dimension for v in verdicts]))))


# --- behaviour ---


def _halie_metaphor(folder: Path) -> list[Evidence]:
    """Load HALIE's suggestions taken or not, edits of those taken, and the helpfulness rated at the end.

    What was suggested and not taken was not published, so the text says nothing here. An edit's distance is relative
    to the longer of the two texts.
    """
    helpful = {
        row["session_id"]: (float(row["helpfulness"]) - 1.0) / 4.0
        for row in read_table(source(folder, "survey_responses.csv"))
    }
    events = halie.convert_metaphor(folder)
    last = {event.extra["session"]: i for i, event in enumerate(events)}
    accept, edit = _Rows(), _Rows()
    for i, event in enumerate(events):
        session = event.extra["session"]
        rated = helpful[session] if last[session] == i else math.nan
        taken = event.kind == "accept"
        accept.add(event.user, event.y if taken else math.nan, rated)
        edit.add(event.user, math.nan if taken else 1.0 - event.y, rated, len(event.response or ""))
    places = _scaled([[math.log1p(event.extra["order"])] for event in events])
    X = _one(_one_hot([event.model or "" for event in events]), places)
    return [
        Evidence("accept", "HALIE metaphor", accept.tracks(X), "rating"),
        Evidence("edit", "HALIE metaphor", edit.tracks(X), "rating"),
    ]


def _realhumaneval(folder: Path) -> list[Evidence]:
    """Load RealHumanEval's copies from answers, and the seconds until the same task's next request."""
    copy, dwell = _Rows(), _Rows()
    events = realhumaneval.convert(folder)
    seconds = {(e.user, e.extra["order"]): e.rating for e in events if e.kind == "dwell" and e.extra["same_task"]}
    events = [event for event in events if event.kind == "copy"]
    for event in events:
        copy.add(event.user, event.y)
        spent = seconds.get((event.user, event.extra["order"]), math.nan)
        dwell.add(event.user, spent, event.y, len(event.response or ""))
    places = _scaled([[math.log1p(event.extra["turn"]), math.log1p(event.extra["at"])] for event in events])
    X = _one(_one_hot([e.model or "" for e in events]), places, _style(e.response or "" for e in events))
    return [
        Evidence("copy", "RealHumanEval", copy.tracks(X)),
        Evidence("dwell", "RealHumanEval", dwell.tracks(X), "copy"),
    ]
