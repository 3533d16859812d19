"""What ten chosen questions tell about a person, beside ten random ones and no quiz. Prints JSON.

    python -m benchmarks.quiz                      # about half an hour on two idle cores
    python -m benchmarks.quiz --people 8 --worlds form

People of several structures of taste judge recorded answers (`../shared/data/alpaca_eval`) of 3, 5 or 11 models:

* `form`: one of the five tastes of `benchmarks.strangers`, thresholds on length and list items;
* `linear`: normal weights of eight text attributes (`simulation.pool.attributes`), independent of the scorer;
* `models`: a normal liking of each model, which no text explains, and luck of each answer;
* `mixed`: weights and likings;
* `shared`: the weights of `linear` common to all people, with small differences; here a quiz has little to gain.

A person prefers one of two answers by the difference of their ratings, P(thumb up), with the noise of people's
comparisons; one answer in ten is random. An installation is fresh, or has 400 thumbs of a crowd of 40 people (in `form`
most of the crowd like short answers, and the new people's tastes are uniform). Everything goes through the product's
features, learner and quiz with default settings.

Reported per cell over people: share for whom the best model before the quiz is right; regret of that model; share of it
removed by 10 chosen and 10 random questions, at any time and with the quiz's own end, and by the router's own favourite
after the votes; stated probability against truth of "M is the best", of M being within .02, of 80 % intervals, and of
signs of tastes in `linear`; questions until the end. `overall` pools all cells in which the population's ranking is
right for half of the people or fewer.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import uuid
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from benchmarks.strangers import CROWD, DATA, THREE, Installation, Pool, read_pool
from benchmarks.strangers import TASTES as FORMS

from fitrouter.posterior.draws import Draws, draw_posterior
from fitrouter.posterior.person_draws import draw_person
from fitrouter.types import Feedback, FeedbackKind, Floats, Identity
from fitrouter_evaluators.personal import Quiz, QuizReply, advance, beliefs_of, result
from fitrouter_evaluators.personal.beliefs import PAIR
from fitrouter_evaluators.personal.quiz import DRAWS, LEAST, Question
from fitrouter_evaluators.simulation.pool import ATTRIBUTES, attributes

WORLDS = ("form", "linear", "models", "mixed", "shared")
FIVE = ("Meta-Llama-3-8B-Instruct", "Qwen2-72B-Instruct", "gpt-3.5-turbo-1106_concise", "gpt4_0613_concise",
        "gpt4_1106_preview_verbose")  # fmt: skip
PROMPTS, CROWD_PEOPLE, CROWD_LABELS, RANDOM, QUESTIONS, NEAR = 60, 40, 400, 0.1, 10, 0.02
SURE, NEVER = 0.9, 1.0 - 1e-12


class Taste(NamedTuple):
    """One person's ratings of every answer of M models to P prompts."""

    ratings: Floats
    """float64[P, M]: P(thumb up)."""
    weights: Floats
    """float64[8]: logits per standardised attribute; zeros where tastes are no weights."""


class Answers(NamedTuple):
    """The recorded answers, with the attributes that simulated people care about."""

    pool: Pool
    attributes: Floats
    """float64[P, M, 8], standardised."""


def read_answers(file: Path) -> Answers:
    """Read the recorded answers and their attributes."""
    import duckdb

    pool = read_pool(file)
    rows = duckdb.sql(f"SELECT prompt_id, model, response FROM '{file}'").fetchall()
    found = np.zeros((*pool.n.shape, len(ATTRIBUTES)))
    for p, model, text in rows:
        found[p, pool.models.index(model)] = attributes(text)
    flat = found.reshape(-1, len(ATTRIBUTES))
    return Answers(pool, np.clip((found - flat.mean(axis=0)) / (flat.std(axis=0) + 1e-9), -3.0, 3.0))


def draw_taste(answers: Answers, models: Sequence[int], world: str, crowd: bool, rng: np.random.Generator) -> Taste:
    """Draw the taste of a person of a world, or of its crowd."""
    pool, about = answers.pool, answers.attributes[:, models]
    nothing = np.zeros(len(ATTRIBUTES))
    if world == "form":
        name = rng.choice(list(CROWD), p=list(CROWD.values())) if crowd else rng.choice(list(FORMS))
        return Taste(FORMS[name](pool.n[:, models], pool.b[:, models]), nothing)
    common = np.random.default_rng(5).normal(0.0, 1.0, len(ATTRIBUTES))
    sd = {"linear": (1.0, 0.0), "models": (0.0, 1.0), "mixed": (0.7, 0.7), "shared": (0.1, 0.0)}[world]
    weights = rng.normal(0.0, sd[0], len(ATTRIBUTES)) + (common if world == "shared" else 0.0)
    logits = about @ weights + rng.normal(0.0, 1.0, len(models)) * sd[1]
    if world == "models":
        logits = logits + rng.normal(0.0, 0.5, logits.shape)
    return Taste(1.0 / (1.0 + np.exp(-logits)), weights)


class Home(Installation):
    """Installation of a simulated world, in which people judge by their ratings."""

    def turn(self, user: str, p: int, k: int, ts: float) -> Any:
        """Record an answer of the installation's k-th model to a prompt."""
        self.number += 1
        number, m = (self.seed << 96) | self.number << 64 | self.number, self.models[k]
        card = next(card for card in self.router.cards if self.arms[card.arm] == m)
        decision = self.router.decide(number, ts, Identity(user=user), self.pool.x[p], cards=[card])
        return self.router.answer(decision, h=self.pool.h[p, m], completion_tokens=int(self.pool.n[p, m] / 4))

    def populate(self, answers: Answers, world: str, rng: np.random.Generator) -> None:
        """Record thumbs of a crowd on models drawn at random."""
        people = [draw_taste(answers, self.models, world, True, rng) for _ in range(CROWD_PEOPLE)]
        for t in range(CROWD_LABELS):
            user, p, k = (int(rng.integers(n)) for n in (CROWD_PEOPLE, len(self.pool.n), len(self.models)))
            turn = self.turn(f"crowd {user}", p, k, 1e9 + t * 86_400.0 / CROWD_PEOPLE * 2)
            liked = people[user].ratings[p, k] if rng.random() > RANDOM else 0.5
            self.router.vote(turn, FeedbackKind.THUMB, float(rng.random() < liked))

    def compare(self, user: str, p: int, first: int, second: int, y: float, ts: float) -> None:
        """Record a comparison as the router logs it."""
        a, b = self.turn(user, p, first, ts), self.turn(user, p, second, ts)
        vote = Feedback(
            id=f"{b.decision.id}:pair",
            ts=ts,
            decision_id=b.decision.id,
            identity=b.decision.identity,
            kind=FeedbackKind.PAIR,
            value=1.0 - y,
            other=a.decision.id,
        )
        self.router.fold(vote, [*b.events, *a.events])

    def draws(self, user: str, prompts: Sequence[int], n: int, seed: int) -> Draws:
        """Return posterior draws for a person before any vote."""
        names = [self.pool.models[m] for m in self.models]
        return draw_person(self.router.learner.fit, Identity(user=user), (), self.pool.x[prompts], names, n, [seed])

    def running(self, user: str, prompts: Sequence[int], n: int, seed: int) -> Draws:
        """Return draws of the posterior that decisions read."""
        names = [self.pool.models[m] for m in self.models]
        return draw_posterior(self.router.learner.fit, Identity(user=user), self.pool.x[prompts], names, n, [seed])


class Played(NamedTuple):
    """Results of one person's quiz; lists have an entry for 0, 1, … questions."""

    regret: list[float]
    sure: list[float]
    right: list[bool]
    near: list[float]
    nearly: list[bool]
    covered: list[float]
    """Share of the 80 % intervals that cover."""
    ended: int
    """Questions until the quiz ended."""
    routed: float
    """Regret of the router's own favourite after all questions."""
    likes: list[tuple[float, bool]]
    """Stated probability of signs of tastes, and whether they are right."""


def play(home: Home, taste: Taste, prompts: Sequence[int], chosen: bool, seed: int) -> Played:
    """Ask one person ten questions, also beyond the quiz's own end."""
    pool, rng = home.pool, np.random.default_rng([seed, 11])
    names, h = [pool.models[m] for m in home.models], pool.h[prompts][:, home.models]
    worth = taste.ratings.mean(axis=0)
    apart = dict(zip(names, (worth - worth.mean()).tolist(), strict=True))
    start = home.draws("stranger", prompts, DRAWS, seed)
    quiz = Quiz(id=str(uuid.UUID(int=seed)), identity=Identity(), pool="", ts=0.0, questions=99, sure=NEVER)
    found = Played([], [], [], [], [], [], QUESTIONS, 0.0, [])
    for number in range(QUESTIONS + 1):
        beliefs = beliefs_of(quiz, start, h)
        told = result(quiz, beliefs, names, pool.names, ATTRIBUTES)
        best = worth[names.index(told.best)]
        found.regret.append(float(worth.max() - best))
        found.sure.append(told.sure)
        found.right.append(bool(best >= worth.max() - 1e-9))
        found.near.append(told.near)
        found.nearly.append(bool(best >= worth.max() - NEAR))
        found.covered.append(float(np.mean([m.low <= apart[m.model] <= m.high for m in told.models])))
        quiz = advance(quiz, beliefs)
        question = quiz.pending
        if question is None or number == QUESTIONS:
            continue
        if not chosen:
            left = sorted(set(range(len(prompts))) - {reply.question.prompt for reply in quiz.replies})
            first, other = int(rng.integers(len(names))), int(rng.integers(1, len(names)))
            question = Question(int(rng.choice(left)), first, (first + other) % len(names))
        p = int(prompts[question.prompt])
        gap = (taste.ratings[p, question.first] - taste.ratings[p, question.second]) / PAIR.temperature
        y = bool(rng.random() < (1.0 / (1.0 + np.exp(-gap)) if rng.random() > RANDOM else 0.5))
        home.compare("stranger", p, question.first, question.second, float(y), 2e9 + 30.0 * number)
        quiz = msgspec.structs.replace(quiz, replies=(*quiz.replies, QuizReply(question, "first" if y else "second")))
    stops = (n for n, sure in enumerate(found.sure) if n >= LEAST and sure >= SURE)
    after_votes = home.running("stranger", prompts, 1000, seed)
    routed = beliefs_of(msgspec.structs.replace(quiz, replies=()), after_votes, h).favourite
    likes = [
        (each.sure, bool(taste.weights[ATTRIBUTES.index(each.feature)] > 0.0) == each.likes)
        for each in told.likes
        if taste.weights.any()
    ]
    return found._replace(ended=next(stops, QUESTIONS), routed=float(worth.max() - worth[routed]), likes=likes)


class Cell(NamedTuple):
    """A setting to run."""

    world: str
    models: int
    crowd: bool

    @property
    def name(self) -> str:
        """Key of the cell in the results."""
        return f"{self.world}, {self.models} models, {'crowd' if self.crowd else 'fresh'}"


_answers: Answers


def _start(file: Path) -> None:
    global _answers
    _answers = read_answers(file)


def _people(cell: Cell, people: int, seed: int) -> list[tuple[Played, Played]]:
    """Run the people of one installation, each as its first new person: by chosen and by random questions."""
    pool, rng = _answers.pool, np.random.default_rng([seed, 3])
    names = {3: THREE, 5: FIVE, 11: pool.models}[cell.models]
    models = [pool.models.index(name) for name in names]
    home = Home(pool, models, {}, seed)
    if cell.crowd:
        home.populate(_answers, cell.world, rng)
    prompts = rng.choice(len(pool.n), PROMPTS, replace=False).tolist()
    played = []
    for person in range(people):
        taste = draw_taste(_answers, models, cell.world, False, rng)
        number = 1 + seed * people + person
        chosen = play(copy.deepcopy(home), taste, prompts, True, number)
        played.append((chosen, play(copy.deepcopy(home), taste, prompts, False, number)))
    return played


def calibration(stated: Sequence[float], true: Sequence[bool]) -> dict[str, Any]:
    """Return the mean stated probability and the share that is true, overall and where .7 to .9 was stated."""
    p, y = np.array(stated), np.array(true, dtype=float)
    band = (p >= 0.7) & (p < 0.9)
    found: dict[str, Any] = {"n": len(p), "stated": round(float(p.mean()), 3), "true": round(float(y.mean()), 3)}
    if band.sum() >= 20:
        found[".7 to .9"] = {
            "n": int(band.sum()),
            "stated": round(float(p[band].mean()), 3),
            "true": round(float(y[band].mean()), 3),
        }
    return found


def summary(pairs: Sequence[tuple[Played, Played]]) -> dict[str, Any]:
    """Summarise a cell."""
    chosen, random = ([pair[i] for pair in pairs] for i in (0, 1))
    before = np.array([each.regret[0] for each in chosen])

    def removed(regret: Sequence[float]) -> list[float]:
        """Return the share of the regret before the quiz that is removed, and its standard error over people."""
        share = 1.0 - float(np.mean(regret)) / max(float(before.mean()), 1e-12)
        left = (np.array(regret) - (1.0 - share) * before) / max(float(before.mean()), 1e-12)
        return [round(share, 3), round(float(left.std(ddof=1) / np.sqrt(len(left))), 3)]

    ends = [(each.sure[each.ended], each.right[each.ended]) for each in chosen]
    return {
        "people": len(pairs),
        "right before": round(float(np.mean([each.right[0] for each in chosen])), 3),
        "regret before": round(float(before.mean()), 4),
        "removed by chosen": {n: removed([each.regret[n] for each in chosen]) for n in (3, 5, QUESTIONS)},
        "removed by random": {n: removed([each.regret[n] for each in random]) for n in (3, 5, QUESTIONS)},
        "removed at its own end": removed([each.regret[each.ended] for each in chosen]),
        "removed in the router, chosen": removed([each.routed for each in chosen]),
        "removed in the router, random": removed([each.routed for each in random]),
        "questions": round(float(np.mean([each.ended for each in chosen])), 2),
        "best": calibration([p for p, _ in ends], [y for _, y in ends]),
        "within .02": calibration([each.near[-1] for each in chosen], [each.nearly[-1] for each in chosen]),
        "80 % intervals cover": round(float(np.mean([each.covered[-1] for each in chosen])), 3),
        "signs of tastes": calibration(*zip(*signs, strict=True))
        if (signs := [sign for each in chosen for sign in each.likes])
        else {},
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Summarise every cell, and together those in which the population's ranking is often wrong."""
    out: dict[str, Any] = {}
    pooled: list[tuple[Played, Played]] = []
    cells = [Cell(world, k, crowd) for world in args.worlds for k in args.models for crowd in (False, True)]
    with ProcessPoolExecutor(args.jobs, initializer=_start, initargs=(args.data,)) as workers:
        for cell in cells:
            found = [p for batch in workers.map(partial(_people, cell, args.people), range(args.seeds)) for p in batch]
            out[cell.name] = summary(found)
            if out[cell.name]["right before"] <= 0.5:
                pooled += found
            print(cell.name, json.dumps(out[cell.name]), file=sys.stderr, flush=True)
    return {"cells": out, "overall": summary(pooled) if pooled else {}}


def main() -> None:
    """Parse the command line, measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--seeds", type=int, default=4, help="installations per cell")
    parser.add_argument("--people", type=int, default=20, help="per installation")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--models", nargs="+", type=int, choices=(3, 5, 11), default=[3, 5, 11])
    args = parser.parse_args()
    if not args.data.exists():
        print(f"skipped: there is no {args.data.name} in {args.data.parent.name} beside the project", file=sys.stderr)
        return
    print(json.dumps(measure(args), indent=1))


if __name__ == "__main__":
    main()
