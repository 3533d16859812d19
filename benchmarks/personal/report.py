"""Fit report after ten quiz answers and twenty ratings, compared with the truth. Prints JSON.

    python -m benchmarks.personal.report                    # sixty people, minutes on one core
    python -m benchmarks.personal.report --worlds linear --people 4

People with hidden tastes of the worlds of `benchmarks.quiz` join installations with recorded answers
(`../shared/data/alpaca_eval`) of five models, in which a crowd has given 400 thumbs. Each answers ten questions of the
quiz and then gives twenty ratings of one to five stars to answers that the router chose: the person's probability of
liking the answer, with noise. Everything goes through the product's features, learner, quiz and leaderboard with
default settings.

Reported over people: share whose first model is the best, or within .02 of its rating, by the report and by the
population's ranking; regret of both; coverage of the 80 % intervals of leads (rating minus the mean of the models'
ratings) and of ratings; claims of a personal ranking, and share of them that is true.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from benchmarks.personal.oracle import Seen, oracle
from benchmarks.quiz import DATA, FIVE, RANDOM, WORLDS, Answers, Home, Taste, draw_taste, read_answers

from fitrouter.posterior.draws import draw_ratings
from fitrouter.posterior.labels import Answered, Label
from fitrouter.posterior.person_draws import draw_person_ratings
from fitrouter.types import FeedbackKind, Identity
from fitrouter_evaluators.personal import Quiz, QuizReply, advance, beliefs_of
from fitrouter_evaluators.personal.beliefs import PAIR
from fitrouter_evaluators.personal.leaderboard import CLAIM, CONTEXTS, DRAWS, NEAR, ranked
from fitrouter_evaluators.personal.quiz import DRAWS as QUIZ_DRAWS

QUESTIONS, RATINGS, PROMPTS, NOISE = 10, 20, 60, 0.15
WHO = Identity(user="stranger")


class Told(NamedTuple):
    """What the report said about one person, and whether it is true."""

    regret: float
    population_regret: float
    leads: float
    ratings: float
    """Share of the models' 80 % intervals that cover."""
    near: float
    """Stated probability that no model is better than the first by more than .02."""
    beats: float
    better: bool
    """Probability that the first model beats the population's, and whether it does; (0, False) if they are the same."""
    oracle_regret: float
    """Regret of the first model by Bayes' rule with the world's own prior and noise (`benchmarks.personal.oracle`)."""
    oracle_draws: float
    """Effective number of its draws."""


def live(home: Home, answers: Answers, world: str, taste: Taste, seed: int, *, spread: bool) -> Told:
    """Simulate one person's quiz and ratings, and read their leaderboard."""
    seen = Seen()
    pool, rng = home.pool, np.random.default_rng([seed, 17])
    prompts = rng.choice(len(pool.n), PROMPTS, replace=False).tolist()
    names, h = [pool.models[m] for m in home.models], pool.h[prompts][:, home.models]
    votes: list[Label] = []
    start = home.draws("stranger", prompts, QUIZ_DRAWS, seed)
    quiz = Quiz(id=str(uuid.UUID(int=seed)), identity=Identity(), pool="", ts=0.0, questions=QUESTIONS, sure=0.999999)
    for number in range(QUESTIONS):
        quiz = advance(quiz, beliefs_of(quiz, start, h))
        if (question := quiz.pending) is None:
            break
        p = int(prompts[question.prompt])
        gap = (taste.ratings[p, question.first] - taste.ratings[p, question.second]) / PAIR.temperature
        y = bool(rng.random() < (1.0 / (1.0 + np.exp(-gap)) if rng.random() > RANDOM else 0.5))
        home.compare("stranger", p, question.first, question.second, float(y), 2e9 + 30.0 * number)
        sides = [Answered(names[k], pool.x[p], pool.h[p, home.models[k]]) for k in (question.first, question.second)]
        votes.append(Label(WHO, sides[0], float(y), FeedbackKind.PAIR, against=sides[1]))
        seen.pairs.append((p, question.first, question.second, y))
        quiz = msgspec.structs.replace(quiz, replies=(*quiz.replies, QuizReply(question, "first" if y else "second")))
    asked = rng.choice(len(pool.n), CONTEXTS, replace=False).tolist()
    for i, p in enumerate(asked[:RATINGS]):
        home.number += 1
        number = (home.seed << 96) | home.number << 64 | home.number
        cards = [home.router.cards[i % len(names)]] if spread else None
        decision = home.router.decide(number, 2.001e9 + 3600.0 * i, WHO, pool.x[p], cards=cards)
        k = home.models.index(home.arms[decision.chosen])
        m = home.models[k]
        turn = home.router.answer(decision, h=pool.h[p, m], completion_tokens=int(pool.n[p, m] / 4))
        stars = round(float(np.clip(1.0 + 4.0 * (taste.ratings[p, k] + rng.normal(0.0, NOISE)), 1.0, 5.0)))
        home.router.vote(turn, FeedbackKind.RATING, stars, scale=(1.0, 5.0))
        seen.stars.append((p, k, stars))
        votes.append(Label(WHO, Answered(names[k], pool.x[p], pool.h[p, m]), (stars - 1) / 4, FeedbackKind.RATING))
    fit = home.router.learner.fit
    own = draw_person_ratings(fit, WHO, votes, pool.x[asked], names, DRAWS, [0]).ratings
    common = draw_ratings(fit, Identity(), pool.x[asked], names, DRAWS, [0]).ratings
    found = ranked(names, own, common)
    worth = taste.ratings.mean(axis=0)
    true = dict(zip(names, worth.tolist(), strict=True))
    first, theirs = found[0].model, min(found, key=lambda each: each.population_rank).model
    best, draws = oracle(answers, home.models, world, seen, NOISE, np.random.default_rng([seed, 29]))
    beats = (own[:, names.index(first)] > own[:, names.index(theirs)]).mean() if first != theirs else 0.0
    return Told(
        regret=float(worth.max() - true[first]),
        population_regret=float(worth.max() - true[theirs]),
        leads=float(np.mean([s.lead_low <= true[s.model] - worth.mean() <= s.lead_high for s in found])),
        ratings=float(np.mean([s.low <= true[s.model] <= s.high for s in found])),
        near=float((own[:, names.index(first)] >= own.max(axis=1) - NEAR).mean()),
        beats=float(beats),
        better=bool(true[first] > true[theirs]),
        oracle_regret=float(worth.max() - worth[best.argmax()]),
        oracle_draws=draws,
    )


def summary(told: list[Told]) -> dict[str, Any]:
    """Summarise a group of people."""
    claims = [each.better for each in told if each.beats >= CLAIM]
    return {
        "people": len(told),
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


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Summarise each world, and all people together."""
    answers, out, everybody = read_answers(args.data), {}, []
    models = [answers.pool.models.index(name) for name in FIVE]
    for world in args.worlds:
        told = []
        for seed in range(args.first, args.first + args.seeds):
            rng = np.random.default_rng([seed, 3])
            home = Home(answers.pool, models, {}, seed)
            if not args.fresh:
                home.populate(answers, world, rng)
            for person in range(args.people // args.seeds):
                taste = draw_taste(answers, models, world, False, rng)
                told.append(
                    live(copy.deepcopy(home), answers, world, taste, 1 + 1000 * seed + person, spread=args.spread)
                )
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
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    args = parser.parse_args()
    if not args.data.exists():
        print(f"skipped: there is no {args.data.name} in {args.data.parent.name} beside the project", file=sys.stderr)
        return
    print(json.dumps(measure(args), indent=1))


if __name__ == "__main__":
    main()
