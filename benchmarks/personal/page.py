"""Quiz and report of a person's own page, over HTTP, as the page asks for them. Prints JSON.

    python -m benchmarks.personal.page                                  # 60 people in each of three worlds
    python -m benchmarks.personal.page --worlds form --installations 1 --people 4

People of the worlds of `benchmarks.personal.served` judge recorded answers of five models
(`../shared/data/alpaca_eval`) by turns in gateways of their own with the default configuration: each opens the page
with a link (`POST /v1/links`, `/me/api/redeem`), answers the quiz to its end (`/me/api/quiz`) and reads the report
(`/me/api/report`). Before the quiz the page asks what an answer should be like: they name those of the five properties
that go with their ratings. One comparison and one wish in ten are random. What they read is counted in words, at 240 a
minute.

Reported per world: share of people for whom the report's first model is the best or within .02, and the same of the
model that the quiz ended with, and of everybody's first; the gap between the best and the second model, median; minutes
of reading; how many of the report's 80 % intervals cover; and how many of its claims, that the first model is better
than everybody's, are true.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from benchmarks.gateway.process import Gateway, new_client, wait_for
from benchmarks.personal.served import FIVE, WORLDS, Answers, Home, Taste, draw_taste, installed, read_answers
from benchmarks.strangers import DATA, RANDOM

from fitrouter_evaluators.simulation.pool import ATTRIBUTES

ASKED = ("length", "structure", "warmth", "hedging", "examples")
"""Properties of answers that the page asks about before the quiz."""
ASKED_WORDS = 60
KNOWN = 0.25
"""Least correlation of a property with a person's ratings, within prompts, at which they say that they want it."""
NEAR, WORDS_A_MINUTE = 0.02, 240.0


class Visit(NamedTuple):
    """What one person got."""

    right: bool
    """Whether the report's first model is the best, or within .02."""
    told: bool
    """Whether the model is that the quiz ended with."""
    population: bool
    """Whether everybody's first is."""
    gap: float
    """True rating of the best model minus that of the second."""
    words: int
    questions: int
    covered: float
    claim: bool | None
    """Whether the claim that the first model is better than everybody's is true; None without a claim."""


def said_of(home: Home, taste: Taste, rng: np.random.Generator) -> dict[str, float]:
    """What a person says when they are asked: the properties that go with their ratings; one in ten at random."""
    about = home.answers.attributes[:, home.models]
    said: dict[str, float] = {}
    for name in ASKED:
        seen = about[:, :, ATTRIBUTES.index(name)]
        ours, theirs = (each - each.mean(axis=1, keepdims=True) for each in (taste.ratings, seen))
        r = float((ours * theirs).sum() / np.sqrt((ours**2).sum() * (theirs**2).sum()))
        value = float(np.sign(r)) * (abs(r) >= KNOWN) if rng.random() > RANDOM else float(rng.integers(-1, 2))
        if value:
            said[name] = value
    return said


def visit(url: str, home: Home, taste: Taste, user: str, rng: np.random.Generator, said: bool) -> Visit:
    """Take the quiz and read the report as one person."""
    words, questions = ASKED_WORDS, 0
    with new_client(url) as http:
        token = http.post("/v1/links", json={"user": user}).raise_for_status().json()["url"].partition("#")[2]
        http.post("/me/api/redeem", json={"token": token}).raise_for_status()
        http.headers["x-fitrouter-csrf"] = http.get("/me/api/session").raise_for_status().json()["csrf"]
        if said:
            http.put("/me/api/profile", json={"values": said_of(home, taste, rng)}).raise_for_status()
        step = http.post("/me/api/quiz", json={}).raise_for_status().json()
        while step.get("question"):
            asked = step["question"]
            questions += 1
            words += sum(len(asked[part].split()) for part in ("prompt", "first", "second"))
            p = home.answers.prompts.index(asked["prompt"])
            first = taste.prefers(p, home.which(p, asked["first"]), home.which(p, asked["second"]), rng)
            answer = {"question": asked["number"], "choice": "first" if first else "second"}
            step = http.post(f"/me/api/quiz/{step['id']}", json=answer).raise_for_status().json()

        def counted() -> Any:
            board = http.get("/me/api/report").raise_for_status().json()["board"]
            return board if board["labels"] == questions else None

        board = wait_for(counted, 120.0)
    worth = taste.worth
    true = dict(zip(home.names, worth.tolist(), strict=True))
    near = {name for name in home.names if true[name] >= worth.max() - NEAR}
    leads = [row["lead_low"] <= true[row["model"]] - worth.mean() <= row["lead_high"] for row in board["models"]]
    second, best = np.sort(worth)[-2:]
    return Visit(
        right=board["first"] in near,
        told=step["result"]["best"] in near,
        population=board["population_first"] in near,
        gap=float(best - second),
        words=words,
        questions=questions,
        covered=float(np.mean(leads)),
        claim=true[board["first"]] > true[board["population_first"]] if board["claimed"] else None,
    )


def installation(answers: Answers, world: str, people: int, seed: int, said: bool) -> list[Visit]:
    """Let people take their quizzes one after the other in a new gateway."""
    rng = np.random.default_rng([seed, 17])
    models = [answers.models.index(name) for name in FIVE]
    with installed(answers, models) as home:
        file = home.folder / "fitrouter.yaml"
        file.write_text(yaml.safe_dump(home.config("data", seed).model_dump(mode="json", exclude_unset=True)))
        with Gateway(file) as gateway:
            tastes = [draw_taste(answers, models, world, False, rng) for _ in range(people)]
            return [visit(gateway.url, home, taste, f"person-{n}", rng, said) for n, taste in enumerate(tastes)]


def summary(found: list[Visit]) -> dict[str, Any]:
    """Summarise the people of a world."""
    claims = [each.claim for each in found if each.claim is not None]
    minutes = np.array([each.words / WORDS_A_MINUTE for each in found])
    return {
        "people": len(found),
        "right or within .02": round(float(np.mean([each.right for each in found])), 3),
        "the quiz's own": round(float(np.mean([each.told for each in found])), 3),
        "everybody's first right": round(float(np.mean([each.population for each in found])), 3),
        "gap, median": round(float(np.median([each.gap for each in found])), 3),
        "questions": round(float(np.mean([each.questions for each in found])), 1),
        "minutes": {"mean": round(float(minutes.mean()), 2), "most": round(float(minutes.max()), 2)},
        "80 % intervals cover": round(float(np.mean([each.covered for each in found])), 3),
        "claims": {"n": len(claims), "true": round(float(np.mean(claims)), 3) if claims else None},
    }


def main() -> None:
    """Parse the command line, measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=["form", "linear", "models"])
    parser.add_argument("--installations", type=int, default=6, help="gateways per world")
    parser.add_argument("--people", type=int, default=10, help="per gateway")
    parser.add_argument("--silent", action="store_true", help="people leave the wishes before the quiz open")
    args = parser.parse_args()
    if not args.data.exists():
        print(f"skipped: there is no {args.data.name} in {args.data.parent.name} beside the project", file=sys.stderr)
        return
    answers, out = read_answers(args.data), {}
    for world in args.worlds:
        found: list[Visit] = []
        for seed in range(args.installations):
            found += installation(answers, world, args.people, seed, not args.silent)
            print(world, seed, json.dumps(summary(found)), file=sys.stderr, flush=True)
        out[world] = summary(found)
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
