"""Agreement of the report's scores with people's own judgements that it has not seen. Prints JSON.

    python -m benchmarks.personal.judgements                  # minutes on an idle core
    python -m benchmarks.personal.judgements --sets ttcw llm_rubric

* `human_feedback`, `mt_bench`: comparisons of two models' answers (`../shared/data`);
* `ttcw`, `llm_rubric`: ratings of stories and dialogues in several dimensions, of those whose text is published.

Half of the people with ten judgements of a dimension or more are new to an installation that has learnt from everybody
else. Of each new person the first half of the judgements is known, and the other half is predicted: of two answers that
the person judged unequally (compared; or rated, in the same dimension), which one is better. Agreement is the
share that is foreseen.

Rows: `average model`, the one whose model everybody else judged better on average; `population`, the reward model
without the person; `report`, the means that the fit report reads: the person's exact posterior of overall ratings
(`posterior.person_draws`), and the heads of the other dimensions. Worse and better: share of people whose agreement is
lower or higher than that of the average model by more than a standard error of the difference. For comparisons
also the report's stated probability beside the share that is true.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fitrouter.context.encoders import get_encoder
from fitrouter.context.features import context_features, context_names, read_prompt
from fitrouter.posterior.labels import Answered, FitParams, Label
from fitrouter.posterior.likelihoods import SIGNALS
from fitrouter.posterior.model import Fit
from fitrouter.posterior.person_draws import PersonPosterior
from fitrouter.types import FeedbackKind, Floats, Identity, Request
from fitrouter_evaluators.datasets import llm_rubric, mt_bench, ttcw
from fitrouter_evaluators.scoring import Answer, ResponseFeatures, global_scalar
from fitrouter_evaluators.scoring.prior import shipped_prior

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
LEAST, ROWS, CLIP_CHARS = 10, ("average model", "population", "report"), 20_000
SETS = ("human_feedback", "mt_bench", "ttcw", "llm_rubric")
DRAWS, MADE, PAIR = 1000, 1.6e9, SIGNALS[FeedbackKind.PAIR]


class Judgement(NamedTuple):
    """A vote, before features are read."""

    user: str
    dimension: str
    kind: FeedbackKind
    y: float
    sides: tuple[tuple[str, str, str], ...]
    """(model, prompt, text), one or two."""


def read(name: str, folder: Path) -> list[Judgement]:
    """Read the judgements of a set, in its order."""
    if name == "human_feedback":
        import duckdb

        columns = '"user", prompt, a, a_model, b, b_model, a_rating, b_rating'
        file = folder / name / "comparisons.parquet"
        rows = duckdb.sql(f"SELECT {columns} FROM '{file}' ORDER BY \"order\"").fetchall()
        return [
            Judgement(u, "overall", FeedbackKind.PAIR, 0.5 + 0.5 * float(np.sign(ra - rb)), ((ma, p, a), (mb, p, b)))
            for u, p, a, ma, b, mb, ra, rb in rows
        ]
    if name == "mt_bench":
        return [
            Judgement(
                each.user,
                "overall",
                FeedbackKind.PAIR,
                each.label,
                tuple((side.model or "", each.prompt, side.text) for side in (each.a, each.b)),
            )
            for each in mt_bench.convert(folder / "mt_bench_human")
        ]
    found = {"ttcw": ttcw, "llm_rubric": llm_rubric}[name].convert(folder / name)
    return [
        Judgement(
            each.user,
            {"Q0": "overall"}.get(each.dimension, each.dimension),
            FeedbackKind.THUMB if each.kind == "thumb" else FeedbackKind.RATING,
            (each.rating - each.scale[0]) / (each.scale[1] - each.scale[0]),
            ((each.model or "", each.prompt, each.response[:CLIP_CHARS]),),
        )
        for each in found
        if each.response and each.dimension != "Q8"
    ]


class Installation:
    """A fresh installation: features of all texts, and reward models."""

    def __init__(self, judgements: Sequence[Judgement]) -> None:
        encoder = get_encoder("static")
        self.features = ResponseFeatures(encoder, scalar=global_scalar(encoder))
        self.prior = shipped_prior(self.features.names, encoder.id)
        sides = list(dict.fromkeys(side for each in judgements for side in each.sides))
        h = self.features.encode([Answer(prompt=prompt, text=text) for _, prompt, text in sides])
        contexts: dict[str, Floats] = {}
        for _, prompt, _ in sides:
            if prompt not in contexts:
                request = Request(messages=({"role": "user", "content": prompt or " "},))
                contexts[prompt] = context_features(read_prompt(request), encoder)
        self.answered = {side: Answered(side[0], contexts[side[1]], row) for side, row in zip(sides, h, strict=True)}

    def fit(self) -> Fit:
        """Return a new reward model of a fresh installation."""
        names = self.features.names
        return Fit(len(context_names()), self.features.dim, FitParams(), names=names, prior=self.prior)

    def label(self, each: Judgement, number: int) -> Label:
        """Convert a judgement to a label."""
        first, *other = (self.answered[side] for side in each.sides)
        return Label(
            Identity(user=each.user),
            first,
            each.y,
            each.kind,
            against=other[0] if other else None,
            dimension=each.dimension,
            ts=MADE + 60.0 * number,
        )


class Told(NamedTuple):
    """Held-out agreement of a person in a dimension."""

    dimension: str
    hits: Floats
    """float64[pairs, rows]."""
    stated: Floats
    """float64[pairs]: the report's probability that the first answer is preferred; empty for ratings."""
    first: Floats
    """float64[pairs]: whether it is."""


def averages(judgements: Sequence[Judgement]) -> dict[tuple[str, str], float]:
    """Compute the mean judgement of each model's answers, by (dimension, model)."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for each in judgements:
        for side, y in zip(each.sides, (each.y, 1.0 - each.y), strict=False):
            found[each.dimension, side[0]].append(y)
    return {key: float(np.mean(values)) for key, values in found.items()}


class Reader:
    """Predictions of an installation for one person in one dimension.

    Args:
        fit: it has learnt from everybody else, and, in dimensions other than overall, from the known judgements.
        known: judgements of the person.
        arms: all models that the person judged.
        mean: of each model.
    """

    def __init__(
        self, fit: Fit, known: Sequence[Label], arms: Sequence[str], mean: dict[tuple[str, str], float]
    ) -> None:
        who, self.dimension = known[0].identity, known[0].dimension
        self.arms, self.mean = list(arms), mean
        if self.dimension == "overall":
            sides = [side for vote in known for side in (vote.answer, vote.against) if side is not None]
            posterior = PersonPosterior(fit, who, known, arms, np.mean([side.x for side in sides], axis=0))
            self.correction: Callable[[str, Floats], float] | None = posterior.correction
            self.taste, self.level = posterior.draw(DRAWS, [0])
            self.common = fit.tastes.population.mean
        else:
            blocks = fit.tastes.others_of(who, self.dimension)
            self.correction, self.level = None, np.zeros((1, len(arms)))
            self.taste = np.sum([block.mean for block in blocks], axis=0)[None]
            self.common = blocks[0].mean

    def draws(self, side: Answered) -> Floats:
        """Return posterior draws of an answer's rating; the mean in dimensions other than overall."""
        found: Floats = (
            self.taste @ np.nan_to_num(side.h) + self.level[:, self.arms.index(side.arm)] + self._fixed(side)
        )
        return found

    def of(self, side: Answered) -> tuple[float, ...]:
        """Return the predicted value of an answer by each row's method."""
        assert side.h is not None
        blind = float(self.common @ np.nan_to_num(side.h)) + self._fixed(side)
        return self.mean.get((self.dimension, side.arm), 0.5), blind, float(self.draws(side).mean())

    def _fixed(self, side: Answered) -> float:
        return 0.0 if self.correction is None else self.correction(side.arm, side.x)


def told(home: Installation, fit: Fit, mean: dict[tuple[str, str], float], mine: Sequence[Judgement]) -> list[Told]:
    """Measure agreement with one new person, per dimension, of an installation that has learnt from everybody else."""
    by: defaultdict[str, list[Judgement]] = defaultdict(list)
    for each in mine:
        by[each.dimension].append(each)
    by = defaultdict(list, {name: rows for name, rows in by.items() if len(rows) >= LEAST})
    labels = {name: [home.label(each, i) for i, each in enumerate(rows)] for name, rows in by.items()}
    if by.keys() - {"overall"}:
        fit = copy.deepcopy(fit)
        for name in by.keys() - {"overall"}:
            for label in labels[name][: len(labels[name]) // 2]:
                fit.learn(label)
    found = []
    for name, rows in by.items():
        half = len(rows) // 2
        arms = tuple(dict.fromkeys(side[0] for each in rows for side in each.sides))
        pairs = unequal(labels[name][half:])
        if pairs:
            reader = Reader(fit, labels[name][:half], arms, mean)
            gaps = np.array([np.subtract(reader.of(a), reader.of(b)) for a, b, _ in pairs])
            first = np.array([float(better) for *_, better in pairs])
            hits = np.where(gaps == 0.0, 0.5, ((gaps > 0.0) == (first[:, None] > 0.5)).astype(float))
            compared = rows[0].kind is FeedbackKind.PAIR
            stated = [_preferred(reader.draws(a) - reader.draws(b)) for a, b, _ in pairs] if compared else []
            found.append(Told(name, hits, np.array(stated), first))
    return found


def _preferred(gap: Floats) -> float:
    return float((1.0 / (1.0 + np.exp(-np.clip(gap / PAIR.temperature, -30.0, 30.0)))).mean())


def unequal(labels: Sequence[Label]) -> list[tuple[Answered, Answered, bool]]:
    """List the pairs of answers that were judged unequally, and whether the first is better."""
    compared = [
        (each.answer, each.against, each.y > 0.5) for each in labels if each.against is not None and each.y != 0.5
    ]
    if any(each.against is not None for each in labels):
        return [(a, b, better) for a, b, better in compared if b is not None]
    return [
        (one.answer, other.answer, one.y > other.y)
        for i, one in enumerate(labels)
        for other in labels[:i]
        if one.y != other.y and one.answer is not other.answer
    ]


def summary(told: Sequence[Told]) -> dict[str, Any]:
    """Summarise agreement by row over people, and who is worse or better off than with the average model."""
    shares = np.array([each.hits.mean(axis=0) for each in told])
    apart = [each.hits[:, 2] - each.hits[:, 0] for each in told]
    error = np.array([each.std(ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.inf for each in apart])
    gain = np.array([each.mean() for each in apart])
    found: dict[str, Any] = {"people": len(told), "pairs": sum(len(each.hits) for each in told)}
    found |= {row: round(float(value), 3) for row, value in zip(ROWS, shares.mean(axis=0), strict=True)}
    found["report minus average model"] = [
        round(float(gain.mean()), 3),
        round(float(gain.std(ddof=1) / np.sqrt(len(gain))), 3) if len(gain) > 1 else None,
    ]
    found["worse"] = round(float((gain < -np.maximum(error, 1e-9)).mean()), 3)
    found["better"] = round(float((gain > np.maximum(error, 1e-9)).mean()), 3)
    if len(stated := np.concatenate([each.stated for each in told])):
        first = np.concatenate([each.first for each in told])
        sure = np.maximum(stated, 1.0 - stated)
        right = np.where(stated > 0.5, first, 1.0 - first)
        found["stated"], found["true"] = round(float(sure.mean()), 3), round(float(right.mean()), 3)
        clipped = np.clip(np.where(first > 0.5, stated, 1.0 - stated), 1e-9, 1.0)
        found["nats"] = round(float(-np.log(clipped).mean()), 4)
        for low in (0.5, 0.6, 0.7, 0.8, 0.9):
            band = (sure >= low) & (sure < low + 0.1)
            if band.sum() >= 20:
                found[f"stated {low:g} to {low + 0.1:g}"] = [
                    int(band.sum()),
                    round(float(sure[band].mean()), 3),
                    round(float(right[band].mean()), 3),
                ]
    return found


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Summarise every set by dimension."""
    out: dict[str, Any] = {}
    for name in args.sets:
        judgements = read(name, args.data)
        home, found = Installation(judgements), []
        mine: defaultdict[str, list[Judgement]] = defaultdict(list)
        for each in judgements:
            mine[each.user].append(each)
        able = sorted(
            user
            for user, rows in mine.items()
            if max(np.unique([each.dimension for each in rows], return_counts=True)[1]) >= LEAST
        )
        for draw in range(args.draws):
            order = np.random.default_rng([0, draw]).permutation(len(able))
            new = {able[i] for i in order[: (len(able) + 1) // 2]}
            crowd, fit = [each for each in judgements if each.user not in new], home.fit()
            for number, each in enumerate(crowd):
                fit.learn(home.label(each, number))
            mean = averages(crowd)
            found += [one for user in sorted(new) for one in told(home, fit, mean, mine[user])]
        names = sorted({each.dimension for each in found}, key=lambda each: (each != "overall", each))
        out[name] = {each: summary([one for one in found if one.dimension == each]) for each in names}
        if len(names) > 1:
            out[name]["all dimensions"] = summary(found)
        print(name, json.dumps(out[name]), file=sys.stderr, flush=True)
    return out


def main() -> None:
    """Parse the command line, measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--draws", type=int, default=2, help="splits of the people")
    args = parser.parse_args()
    if not args.data.exists():
        print(f"skipped: there is no {args.data.name} in {args.data.parent.name} beside the project", file=sys.stderr)
        return
    print(json.dumps(measure(args), indent=1))


if __name__ == "__main__":
    main()
