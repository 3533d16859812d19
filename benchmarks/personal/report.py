"""Fit report after ten quiz answers and twenty ratings, compared with the truth. Prints JSON.

    python -m benchmarks.personal.report                    # sixty people, a quarter of an hour on one core
    python -m benchmarks.personal.report --worlds linear --people 4

People with hidden tastes of the worlds of `benchmarks.personal.served` join installations with recorded answers of five
models, in which a crowd has given 400 thumbs; each joins a copy of the installation. Each plays the quiz to ten
questions and then gives twenty ratings of one to five stars to answers of the router: the person's probability of
liking the answer, with noise. Then `Reports.of` is read, as `GET /v1/report` and `fitrouter report` do.

Reported over people: share whose first model is the best, or within .02 of its rating, by the report and by the
population's ranking; regret of both; coverage of the 80 % intervals of leads (rating minus the mean of the models'
ratings) and of ratings; claims of a personal ranking, and share of them that is true.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.personal.oracle import Seen, oracle
from benchmarks.personal.served import (
    FIVE,
    WORLDS,
    Answers,
    Home,
    Taste,
    draw_taste,
    installed,
    learnt,
    read_answers,
)
from benchmarks.strangers import DATA

from fitrouter.types import FeedbackKind
from fitrouter_evaluators.personal import Reports

QUESTIONS, RATINGS, NOISE, NEAR = 10, 20, 0.15, 0.02


class Told(NamedTuple):
    """What the report said about one person, and whether it is true."""

    regret: float
    population_regret: float
    leads: float
    ratings: float
    """Share of the models' 80 % intervals that cover."""
    near: float
    """Stated probability that no model is better than the first by more than .02."""
    claimed: bool
    better: bool
    """Whether a ranking of their own is claimed, and whether its first model is better than the population's."""
    votes: int
    """Votes that the report says it read."""
    oracle_regret: float
    """Regret of the first model by Bayes' rule with the world's own prior and noise (`benchmarks.personal.oracle`)."""
    oracle_draws: float
    """Effective number of its draws."""


async def live(home: Home, world: str, taste: Taste, seed: int, *, spread: bool) -> Told:
    """Simulate one person's quiz and ratings, and read their report."""
    seen, rng, answers = Seen(), np.random.default_rng([seed, 17]), home.answers
    async with home.person("stranger", seed) as person:
        seen.pairs = (await person.play(taste, rng, QUESTIONS, 0.999999)).pairs
        for i, p in enumerate(rng.choice(len(answers.prompts), RATINGS, replace=False).tolist()):
            person.clock.now += 3600.0
            decision, k = await person.ask(p, i % len(home.names) if spread else None)
            await learnt(person.router)
            stars = round(float(np.clip(1.0 + 4.0 * (taste.ratings[p, k] + rng.normal(0.0, NOISE)), 1.0, 5.0)))
            await person.router.feedback(decision, FeedbackKind.RATING, stars, scale=(1.0, 5.0), identity=person.who)
            seen.stars.append((p, k, stars))
        await learnt(person.router, copied=True)
        board = (await Reports(person.router, person.config).of(person.who)).board
    best, draws = oracle(answers, home.models, world, seen, NOISE, np.random.default_rng([seed, 29]))
    worth = taste.worth
    true = dict(zip(home.names, worth.tolist(), strict=True))
    return Told(
        regret=float(worth.max() - true[board.first]),
        population_regret=float(worth.max() - true[board.population_first]),
        leads=float(np.mean([s.lead_low <= true[s.model] - worth.mean() <= s.lead_high for s in board.models])),
        ratings=float(np.mean([s.low <= true[s.model] <= s.high for s in board.models])),
        near=board.near,
        claimed=board.claimed,
        better=bool(true[board.first] > true[board.population_first]),
        votes=board.labels,
        oracle_regret=float(worth.max() - worth[best.argmax()]),
        oracle_draws=draws,
    )


def summary(told: list[Told]) -> dict[str, Any]:
    """Summarise a group of people."""
    claims = [each.better for each in told if each.claimed]
    return {
        "people": len(told),
        "votes read, least": min(each.votes for each in told),
        "first within .02": _share([each.regret <= NEAR for each in told]),
        "stated": round(float(np.mean([each.near for each in told])), 3),
        "first is the best": _share([each.regret <= 1e-9 for each in told]),
        "population's first within .02": _share([each.population_regret <= NEAR for each in told]),
        "oracle's first within .02": _share([each.oracle_regret <= NEAR for each in told]),
        "oracle's effective draws": round(float(np.median([each.oracle_draws for each in told]))),
        "regret": round(float(np.mean([each.regret for each in told])), 4),
        "population's regret": round(float(np.mean([each.population_regret for each in told])), 4),
        "oracle's regret": round(float(np.mean([each.oracle_regret for each in told])), 4),
        "80 % intervals of leads cover": round(float(np.mean([each.leads for each in told])), 3),
        "80 % intervals of ratings cover": round(float(np.mean([each.ratings for each in told])), 3),
        "claims": len(claims),
        "claims true": _share(claims),
    }


def _share(true: list[bool]) -> float | None:
    return round(float(np.mean(true)), 3) if true else None


async def _world(answers: Answers, world: str, args: argparse.Namespace) -> list[Told]:
    models, several = [answers.models.index(name) for name in FIVE], asyncio.Semaphore(args.at_once)

    async def one(home: Home, taste: Taste, seed: int) -> Told:
        async with several:
            return await live(home, world, taste, seed, spread=args.spread)

    found = []
    for seed in range(args.first, args.first + args.seeds):
        rng = np.random.default_rng([seed, 3])
        with installed(answers, models) as home:
            if not args.fresh:
                await home.populate(world, rng)
            people = [draw_taste(answers, models, world, False, rng) for _ in range(args.people // args.seeds)]
            found += await asyncio.gather(*(one(home, each, 1 + 1000 * seed + n) for n, each in enumerate(people)))
    return found


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Summarise each world, and all people together."""
    answers, out, everybody = read_answers(args.data), {}, []
    for world in args.worlds:
        told = asyncio.run(_world(answers, world, args))
        out[world] = summary(told)
        everybody += told
        print(world, json.dumps(out[world]), file=sys.stderr, flush=True)
    return {"worlds": out, "everybody": summary(everybody)}


def main() -> None:
    """Parse the command line, measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--seeds", type=int, default=3, help="installations per world")
    parser.add_argument("--people", type=int, default=12, help="per world")
    parser.add_argument("--fresh", action="store_true", help="installations without a crowd")
    parser.add_argument("--spread", action="store_true", help="rate answers of all models in turn, not the router's")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--at-once", type=int, default=4, help="people who use their copies at once")
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    args = parser.parse_args()
    if not args.data.exists():
        print(f"skipped: there is no {args.data.name} in {args.data.parent.name} beside the project", file=sys.stderr)
        return
    print(json.dumps(measure(args), indent=1))


if __name__ == "__main__":
    main()
