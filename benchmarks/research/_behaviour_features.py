"""Features of an answer that are known before its reader acts, as events in time order.

Nothing here looks ahead: an event's features come from the answer, the request and what the same person did before it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.context.encoders import Encoder
from fitrouter.types import Floats
from fitrouter_evaluators.datasets import Rating, halie, realhumaneval
from fitrouter_evaluators.scoring.features import readable
from fitrouter_evaluators.scoring.text.style import measure, standardise

_BLOCK = re.compile(r"```[^\n]*\n(.*?)(?:```|$)", re.DOTALL)
_ORDERS = re.compile(r"\b(?:write|create|implement|make|generate|code|function)\b", re.IGNORECASE)
_TROUBLE = re.compile(r"\b(?:error|wrong|fix|bug|not work|doesn|fail|incorrect|why)\b", re.IGNORECASE)
_ASKS = re.compile(r"\b(?:how|what|is|can|does)\b", re.IGNORECASE)
_OPENING = 20


class Events(NamedTuple):
    """One set's events, each person's in time order."""

    name: str
    kind: str
    user: NDArray[np.int64]
    y: Floats
    """float64[n] in [0, 1]: the observed behaviour."""
    X: Floats
    """float64[n, D]: features of the shared model."""
    vectors: tuple[Floats, ...]
    """Encoder vectors float64[n, dim], of the request and the answer where there are any."""
    own: Floats
    """float64[n, d]: features of users' heads; the last ones are their preceding behaviour."""
    texts: tuple[str, ...]
    models: Floats
    style: Floats


def copies(folder: Path, encoder: Encoder) -> Events:
    """Load RealHumanEval: whether anything of an answer was copied."""
    events = [event for event in realhumaneval.convert(folder) if event.kind == "copy"]
    user = _numbered([event.user for event in events])
    y = np.array([event.y for event in events])
    answers, requests = [event.response or "" for event in events], [event.prompt for event in events]
    asked, given = (encoder.encode([readable(text) for text in texts]) for texts in (requests, answers))
    place = np.array([_place(events, i, asked, given) for i in range(len(events))])
    code, models = np.array([_code(text) for text in answers]), _one_hot([event.model or "" for event in events])
    style = standardise(np.array([measure(text) for text in answers]))
    request = np.array([_request(text) for text in requests])
    X = np.hstack([models, _scaled(style), _scaled(code), _scaled(request), _scaled(place)])
    done = _done_before(events, y, lambda event: event.extra["task"])
    own = np.hstack([_scaled(code[:, :1]) / 2, _scaled(place[:, 1:2]) / 2, done, place[:, -1:] - place[:, -1].mean()])
    return Events("RealHumanEval copies", "copy", user, y, X, (asked, given), own, tuple(answers), models, style)


def accepts(folder: Path) -> Events:
    """Load HALIE metaphors: whether a suggestion was taken. The text of those that were not is not published."""
    events = [event for event in halie.convert_metaphor(folder) if event.kind == "accept"]
    return _suggestions("HALIE acceptances", events, np.array([float(event.rating > 0.0) for event in events]), ())


def edits(folder: Path, encoder: Encoder) -> Events:
    """Load HALIE metaphors: how much of a suggestion that was taken is kept, 0–1."""
    events = [event for event in halie.convert_metaphor(folder) if event.kind == "edit"]
    vectors = encoder.encode([readable(event.response or "") for event in events])
    return _suggestions("HALIE edits", events, np.array([event.y for event in events]), (vectors,))


def _suggestions(name: str, events: Sequence[Rating], y: Floats, vectors: tuple[Floats, ...]) -> Events:
    models, seeds = (_one_hot(values) for values in zip(*((e.model or "", e.prompt) for e in events), strict=True))
    texts = tuple(event.response or "" for event in events) if vectors else ()
    style = standardise(np.array([measure(text) for text in texts])) if vectors else np.zeros((len(events), 0))
    place = _scaled(np.array([[math.log1p(event.extra["order"])] for event in events]))
    own = np.hstack([place / 2, _done_before(events, y, lambda event: event.extra["session"])])
    user = _numbered([event.user for event in events])
    return Events(
        name, events[0].kind, user, y, np.hstack([models, seeds, place, style]), vectors, own, texts, models, style
    )


# --- columns ---


def _place(events: Sequence[Rating], i: int, asked: Floats, given: Floats) -> list[float]:
    """Return features of event i's place in its session: how many before, similarity to them, a new task."""
    event = events[i]
    before = [j for j in range(i) if events[j].user == event.user]
    same = [j for j in before if events[j].extra["task"] == event.extra["task"]]
    last = before[-1] if before else None
    return [
        math.log1p(len(before)),
        math.log1p(len(same)),
        math.log1p(event.extra["at"]),
        math.log1p(event.extra["at"] - events[last].extra["at"]) if last is not None else 0.0,
        float(asked[i] @ asked[last]) if last is not None else 0.0,
        float(given[i] @ given[last]) if last is not None else 0.0,
        max((float(asked[i] @ asked[j]) for j in same), default=0.0),
        float(asked[i] @ given[i]),
        float(last is None or events[last].extra["task"] != event.extra["task"]),
    ]


def _code(text: str) -> list[float]:
    """Return features of the code in an answer: blocks, characters, share, longest, definitions, imports, prints."""
    blocks = _BLOCK.findall(text)
    sizes = [len(block) for block in blocks]
    return [
        float(bool(blocks)),
        float(min(len(blocks), 4)),
        math.log1p(sum(sizes)),
        sum(sizes) / max(len(text), 1),
        math.log1p(max(sizes, default=0)),
        *(float(any(word in block for block in blocks)) for word in ("def ", "import", "print")),
        float(text.rstrip().endswith((".", "`", "!", "?", ":"))),
    ]


def _request(text: str) -> list[float]:
    """Return features of a request: its length, code in it, a question, an order, trouble, lines."""
    return [
        math.log1p(len(text)),
        float("def " in text or "\n" in text),
        float("?" in text),
        float(bool(_ORDERS.search(text))),
        float(bool(_TROUBLE.search(text))),
        float(bool(_ASKS.search(text[:_OPENING]))),
        float(text.count("\n") > 3),
    ]


def _done_before(events: Sequence[Rating], y: Floats, part: Callable[[Rating], str]) -> Floats:
    """Return the outcomes of the person's last answer, and of this part of the work on average, less ½; float64[n, 2].

    0 where there is none.
    """
    out = np.zeros((len(events), 2))
    for i, event in enumerate(events):
        before = [j for j in range(i) if events[j].user == event.user]
        same = [j for j in before if part(events[j]) == part(event)]
        if before:
            out[i, 0] = y[before[-1]] - 0.5
        if same:
            out[i, 1] = y[same].mean() - 0.5
    return out


def _numbered(names: Sequence[str]) -> NDArray[np.int64]:
    return np.unique(np.array(names), return_inverse=True)[1].astype(np.int64)


def _one_hot(names: Sequence[str]) -> Floats:
    kinds = sorted(set(names))
    return np.array([[float(name == kind) for kind in kinds] for name in names])


def _scaled(values: Floats | Sequence[Sequence[float]]) -> Floats:
    """Scale every column to mean 0 and variance 1, float64[n, k]; no label is looked at."""
    X = np.array(values, dtype=np.float64)
    out: Floats = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-6)
    return out
