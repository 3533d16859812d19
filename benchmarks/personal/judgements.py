"""Agreement of served scores and reports with people's own judgements that they have not seen. Prints JSON.

    python -m benchmarks.personal.judgements                  # a quarter of an hour of an idle core
    python -m benchmarks.personal.judgements --sets ttcw llm_rubric

* `human_feedback`, `mt_bench`: comparisons of two models' answers (`../shared/data`);
* `ttcw`, `llm_rubric`: ratings of stories and dialogues in several dimensions, of those whose text is published.

Half of the people with ten judgements of a dimension or more are new. An installation with the default settings is
given the judgements of everybody else and the first half of each new person's, by `Router.observe` and
`Router.feedback` (`POST /v1/feedback`). The other half is predicted: of two answers that the person judged unequally
(compared; or rated, in the same dimension), which one is better. Agreement is the share that is foreseen.

Rows: `average model`, the answer whose model everybody else judged better on average; `population` and `score`, the
answer with the higher rating by everybody and by the person as `Scores` serves it (`POST /v1/score`); `report`, the
one whose model has the higher figure in the person's report (`Reports`, `GET /v1/report`). Worse and better: share of
people whose agreement by `score` is lower or higher than that of the average model by more than a standard error of
the difference. For comparisons also `best` of `POST /v1/score`, the stated probability, beside the share that is true.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.people.sets import SHARED, Judgement, read
from benchmarks.personal.served import CROWD_FROM, MEMORY, Clock, learnt

from fitrouter.config import Config, parse_config
from fitrouter.router import Router
from fitrouter.types import Completion, FeedbackKind, Floats, Identity, Request
from fitrouter_evaluators.personal import MOST_TEXTS, PromptAnswers, Reports, Scores

LEAST, ROWS = 10, ("average model", "population", "score", "report")
BATCH = 200
SETS = ("human_feedback", "mt_bench", "ttcw", "llm_rubric")


class Pair(NamedTuple):
    """Two answers that a person judged unequally: model, prompt and text of each, and whether the first is better."""

    first: tuple[str, str, str]
    second: tuple[str, str, str]
    better: bool


class Told(NamedTuple):
    """Held-out agreement of a person in a dimension."""

    dimension: str
    hits: Floats
    """float64[pairs, rows]."""
    stated: Floats
    """float64[pairs]: the stated probability that the first answer is preferred; empty for ratings."""
    first: Floats
    """float64[pairs]: whether it is."""


def averages(judgements: Sequence[Judgement]) -> dict[tuple[str, str], float]:
    """Compute the mean judgement of each model's answers, by (dimension, model)."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for each in judgements:
        for side, y in zip(each.sides, (each.y, 1.0 - each.y), strict=False):
            found[each.dimension, side[0]].append(y)
    return {key: float(np.mean(values)) for key, values in found.items()}


async def tell(router: Router, clock: Clock, known: Sequence[Judgement]) -> None:
    """Log the known judgements: each person's answers once, and a vote for each judgement."""
    decisions: dict[tuple[str, tuple[str, str, str]], str] = {}
    for start in range(0, len(known), BATCH):
        clock.now = CROWD_FROM + 60.0 * start
        batch = known[start : start + BATCH]
        new = dict.fromkeys(
            (each.user, side) for each in batch for side in each.sides if (each.user, side) not in decisions
        )
        plans = await asyncio.gather(*(_observed(router, user, side) for user, side in new))
        decisions |= dict(zip(new, plans, strict=True))
        await learnt(router)
        for each in batch:
            first, *other = (decisions[each.user, side] for side in each.sides)
            await router.feedback(
                first,
                each.kind,
                each.y,
                scale=(0.0, 1.0) if each.kind is FeedbackKind.RATING else None,
                dimension=each.dimension,
                other=other[0] if other else None,
                identity=Identity(user=each.user),
            )
    await learnt(router, copied=True)


async def _observed(router: Router, user: str, side: tuple[str, str, str]) -> str:
    model, prompt, text = side
    request = Request(messages=({"role": "user", "content": prompt or " "},), identity=Identity(user=user))
    said = Completion(message={"role": "assistant", "content": text})
    return (await router.observe(request, said, model, cost_usd=0.0, latency_ms=None)).decision.id


async def told(
    router: Router, config: Config, mean: dict[tuple[str, str], float], held: Sequence[Judgement]
) -> list[Told]:
    """Measure agreement with the held-out judgements of one new person, per dimension."""
    who, by = Identity(user=held[0].user), defaultdict(list)
    for each in held:
        by[each.dimension].append(each)
    report = await Reports(router, config).of(who)
    fits = {each.model: {name: value.mean for name, value in each.dimensions.items()} for each in report.models}
    found = []
    for name, rows in by.items():
        if not (pairs := unequal(rows)):
            continue
        compared = rows[0].kind is FeedbackKind.PAIR
        if compared:  # one prompt, both answers, as a caller would ask
            items = [PromptAnswers(a[1], (a[2], b[2])) for a, b, _ in pairs]
        else:
            items = [PromptAnswers(side[1], (side[2],)) for pair in pairs for side in pair[:2]]
        batch = MOST_TEXTS // 2 if compared else MOST_TEXTS
        scored = []
        for start in range(0, len(items), batch):
            scored += await Scores(router).score(who, items[start : start + batch])
        flat = [each.dimensions[name] for item in scored for each in item]
        values = np.array(
            [
                (mean.get((name, side[0]), 0.5), value.population, value.mean, fits[side[0]][name])
                for side, value in zip((side for pair in pairs for side in pair[:2]), flat, strict=True)
            ]
        )
        gaps = values[::2] - values[1::2]
        first = np.array([float(pair.better) for pair in pairs])
        hits = np.where(gaps == 0.0, 0.5, ((gaps > 0.0) == (first[:, None] > 0.5)).astype(float))
        found.append(Told(name, hits, np.array([item[0].best for item in scored] if compared else []), first))
    return found


def unequal(rows: Sequence[Judgement]) -> list[Pair]:
    """List the pairs of answers that were judged unequally."""
    if rows[0].kind is FeedbackKind.PAIR:
        return [Pair(each.sides[0], each.sides[1], each.y > 0.5) for each in rows if each.y != 0.5]
    return [
        Pair(one.sides[0], other.sides[0], one.y > other.y)
        for i, one in enumerate(rows)
        for other in rows[:i]
        if one.y != other.y and one.sides != other.sides
    ]


def summary(told: Sequence[Told]) -> dict[str, Any]:
    """Summarise agreement by row over people, and who is worse or better off than with the average model."""
    shares = np.array([each.hits.mean(axis=0) for each in told])
    apart = [each.hits[:, 2] - each.hits[:, 0] for each in told]
    error = np.array([each.std(ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.inf for each in apart])
    gain = np.array([each.mean() for each in apart])
    found: dict[str, Any] = {"people": len(told), "pairs": sum(len(each.hits) for each in told)}
    found |= {row: round(float(value), 3) for row, value in zip(ROWS, shares.mean(axis=0), strict=True)}
    found["score minus average model"] = [
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


async def split(judgements: Sequence[Judgement], new: set[str]) -> list[Told]:
    """Measure agreement with the new people of one installation."""
    known, held = [], defaultdict(list)
    halves: defaultdict[tuple[str, str], list[Judgement]] = defaultdict(list)
    for each in judgements:
        if each.user in new:
            halves[each.user, each.dimension].append(each)
        else:
            known.append(each)
    mean = averages(known)
    for (user, _), rows in halves.items():
        if len(rows) >= LEAST:
            known += rows[: len(rows) // 2]
            held[user] += rows[len(rows) // 2 :]
    names = sorted({side[0] for each in judgements for side in each.sides})
    clock = Clock(CROWD_FROM)
    with tempfile.TemporaryDirectory(prefix="fitrouter-", dir=MEMORY) as folder:
        config = parse_config(
            {
                "data": folder,
                "providers": {"unused": {"kind": "simulated"}},
                "models": [{"name": name, "provider": "unused"} for name in names],
            }
        )
        async with Router.from_config(config, clock=clock) as router:
            await tell(router, clock, known)
            return [one for user in sorted(held) for one in await told(router, config, mean, held[user])]


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Summarise every set by dimension."""
    out: dict[str, Any] = {}
    for name in args.sets:
        judgements = read(name, args.data)
        found: list[Told] = []
        numbers: defaultdict[tuple[str, str], int] = defaultdict(int)
        for each in judgements:
            numbers[each.user, each.dimension] += 1
        able = sorted({user for (user, _), n in numbers.items() if n >= LEAST})
        for draw in range(args.draws):
            order = np.random.default_rng([0, draw]).permutation(len(able))
            found += asyncio.run(split(judgements, {able[i] for i in order[: (len(able) + 1) // 2]}))
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
