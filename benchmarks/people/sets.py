"""People's own judgements of answers, as the router would learn from them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fitrouter.context.encoders import get_encoder
from fitrouter.context.features import context_features, context_names, read_prompt
from fitrouter.posterior.labels import Answered, FitParams, Label
from fitrouter.posterior.model import Fit
from fitrouter.types import FeedbackKind, Floats, Identity, Request
from fitrouter_evaluators.datasets import Rating, llm_rubric, mt_bench, pluriharms, ttcw
from fitrouter_evaluators.scoring import Answer, ResponseFeatures, global_scalar
from fitrouter_evaluators.scoring.prior import shipped_prior

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
CLIP_CHARS = 20_000
SETS = (
    "human_feedback",
    "human_feedback_ratings",
    "crowd_models",
    "mt_bench",
    "llm_rubric",
    "ttcw",
    "small_team",
    "pluriharms",
)


class Judgement(NamedTuple):
    """A vote, before features are read."""

    user: str
    dimension: str
    kind: FeedbackKind
    y: float
    """In [0, 1]; of a comparison, 1 if the first answer is better."""
    sides: tuple[tuple[str, str, str], ...]
    """(model, prompt, text), one or two."""


def folder_of(name: str, data: Path) -> Path:
    """Return the folder of a set."""
    return data / {"human_feedback_ratings": "human_feedback", "mt_bench": "mt_bench_human"}.get(name, name)


def read(name: str, data: Path) -> list[Judgement]:
    """Read the judgements of a set, in its order."""
    folder = folder_of(name, data)
    if name in {"human_feedback", "human_feedback_ratings", "crowd_models", "small_team"}:
        return _table(name, folder)
    if name == "mt_bench":
        return [
            Judgement(
                each.user,
                "overall",
                FeedbackKind.PAIR,
                each.label,
                tuple((side.model or "unknown", each.prompt, side.text) for side in (each.a, each.b)),
            )
            for each in mt_bench.convert(folder)
        ]
    found = {"ttcw": ttcw, "llm_rubric": llm_rubric, "pluriharms": pluriharms}[name].convert(folder)
    return [_rating(each) for each in found if (each.response or name == "pluriharms") and each.dimension != "Q8"]


def _table(name: str, folder: Path) -> list[Judgement]:
    import duckdb

    file = next(folder.glob("*.parquet"))
    if name == "small_team":
        rows = duckdb.sql(f"SELECT \"user\", model, response, rating FROM '{file}'").fetchall()
        return [
            Judgement(user, "overall", FeedbackKind.RATING, rating / 100.0, ((model, "", text),))
            for user, model, text, rating in rows
        ]
    label = "label" if name == "crowd_models" else ".5 + .5 * sign(a_rating - b_rating), (a_rating - 1) / 4"
    columns = f'"user", a_model, prompt, a, b_model, prompt, b, {label}'
    rows = duckdb.sql(f"SELECT {columns} FROM '{file}' ORDER BY \"order\"").fetchall()
    if name == "human_feedback_ratings":
        return [Judgement(row[0], "overall", FeedbackKind.RATING, float(row[8]), (row[1:4],)) for row in rows]
    return [Judgement(row[0], "overall", FeedbackKind.PAIR, float(row[7]), (row[1:4], row[4:7])) for row in rows]


def _rating(each: Rating) -> Judgement:
    low, high = each.scale
    return Judgement(
        each.user,
        {"Q0": "overall", "harm": "overall"}.get(each.dimension, each.dimension),
        FeedbackKind.THUMB if each.kind == "thumb" else FeedbackKind.RATING,
        (each.rating - low) / (high - low),
        ((each.model or "unknown", each.prompt, (each.response or each.prompt)[:CLIP_CHARS]),),
    )


def _overall(judgements: list[Judgement]) -> list[Judgement]:
    """Return the overall judgements; of a set without any, each person's mean of all tests of an answer."""
    found = [each for each in judgements if each.dimension == "overall"]
    if found:
        return found
    values: defaultdict[tuple[str, tuple[str, str, str]], list[float]] = defaultdict(list)
    for each in judgements:
        values[each.user, each.sides[0]].append(each.y)
    return [
        Judgement(user, "overall", FeedbackKind.RATING, float(np.mean(y)), (side,))
        for (user, side), y in values.items()
    ]


class People:
    """A set's labels in its order, with contexts and features as the router reads them."""

    def __init__(self, name: str, data: Path) -> None:
        encoder = get_encoder("static")
        self.features = ResponseFeatures(encoder, scalar=global_scalar(encoder))
        self.prior = shipped_prior(self.features.names, encoder.id)
        found = _overall(read(name, data))
        sides = list(dict.fromkeys(side for each in found for side in each.sides))
        contexts = {prompt: self._context(prompt, encoder) for _, prompt, _ in sides}
        texts = list(dict.fromkeys((prompt, text) for _, prompt, text in sides))
        h: dict[tuple[str, str], Floats] = {}
        for start in range(0, len(texts), 256):
            batch = texts[start : start + 256]
            h |= dict(zip(batch, self.features.encode([Answer(prompt=p, text=t) for p, t in batch]), strict=True))
        answered = {side: Answered(side[0], contexts[side[1]], h[side[1:]]) for side in sides}
        self.labels = [
            Label(
                Identity(user=each.user),
                answered[each.sides[0]],
                each.y,
                each.kind,
                against=answered[each.sides[1]] if len(each.sides) > 1 else None,
            )
            for each in found
        ]
        self.by_user: defaultdict[str, list[Label]] = defaultdict(list)
        for label in self.labels:
            self.by_user[label.identity.user or ""].append(label)

    @staticmethod
    def _context(prompt: str, encoder: object) -> Floats:
        request = Request(messages=({"role": "user", "content": prompt or " "},))
        return context_features(read_prompt(request), encoder)  # type: ignore[arg-type]

    def experienced(self, least: int) -> list[str]:
        """Return the people with so many labels at least, in order of their names."""
        return sorted(user for user, rows in self.by_user.items() if len(rows) >= least)

    def fit(self, *, personal: bool = True) -> Fit:
        """Return the reward model of a fresh installation."""
        names = self.features.names
        return Fit(len(context_names()), self.features.dim, FitParams(personal=personal), names=names, prior=self.prior)
