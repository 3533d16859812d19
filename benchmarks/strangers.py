"""How soon people with opposite tastes get the model they like, from thumbs alone. Prints JSON.

    python -m benchmarks.strangers                      # 40 seeds, default configuration; minutes on two idle cores
    python -m benchmarks.strangers --seeds 4 --policy linear_thompson --set scale=0.5
    python -m benchmarks.strangers --served 8           # four people each in eight installations, over HTTP

Recorded answers (`../shared/data/alpaca_eval`) of 3 or 11 models, and people who give 60 thumbs each: P(thumb up)
depends on the form of the answer alone (its length, its list items; with `--tastes more` whether it asks a question
back, is formal, has code), one thumb in ten is random. An installation is
fresh, or has 400 labels of a crowd of 40 people, most of whom like short answers. Everything runs through the product's
decider and learner with the default configuration, features, encoder and trained prior.

Reported per cell, over people: satisfaction with the logged probabilities as a share of each person's best model (mean
of 60 thumbs, the last 20, the worst decile of people); probability ≥ ½ for a model within .05 of the best at thumbs 15
to 20 and 55 to 60; and the 95 % quantile of the longest run of thumbs down on one model. `change`: the taste turns into
another one after 40 thumbs; thumbs until a good model has probability ≥ ½ for five thumbs in a row. `--served`: people
of strong tastes by turns, in gateways of their own; the next round begins when everything is scored and folded. Stuck
is who gets a good model in fewer than ten of the last twenty answers.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.gateway.process import Gateway, new_client, wait_for, write_config

from fitrouter.config import CandidateConfig, PolicyConfig
from fitrouter.context.encoders import get_encoder
from fitrouter.context.features import context_features, context_names, read_prompt
from fitrouter.policies import build_policy
from fitrouter.posterior.tastes import TastePrior
from fitrouter.routing.decider import Rules
from fitrouter.state.learner import Learner
from fitrouter.types import FeedbackKind, Floats, Identity, ModelCard, Request
from fitrouter_evaluators.scoring import Answer, ResponseFeatures, global_scalar
from fitrouter_evaluators.scoring.prior import shipped_prior
from fitrouter_evaluators.simulation.runner import InProcess

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "alpaca_eval" / "responses.parquet"
THREE = ("gpt-3.5-turbo-1106_concise", "Qwen2-72B-Instruct", "gpt4_1106_preview_verbose")
THUMBS, RANDOM, CROWD_LABELS, CROWD_PEOPLE, CHANGE = 60, 0.1, 400, 40, 40
MINUTE_S, DAY_S = 60.0, 86_400.0

Taste = Callable[[Floats, Floats], Floats]
"""(characters, list items) → P(thumb up)."""

TASTES: Mapping[str, Taste] = {
    "short": lambda n, b: np.where(n < 600, 0.9, 0.08) + 0.0 * b,
    "long": lambda n, b: np.where(n > 1200, 0.9, np.where(n > 800, 0.4, 0.05)) + 0.0 * b,
    "bullets": lambda n, b: np.where(b >= 3, 0.9, 0.15) + 0.0 * n,
    "no bullets": lambda n, b: np.where(b >= 3, 0.1, 0.85) + 0.0 * n,
    "middle": lambda n, b: np.where((n > 500) & (n < 1300), 0.85, 0.2) + 0.0 * b,
}
MORE: Mapping[str, Callable[[str], float]] = {
    "asks questions back": lambda text: 0.9 if "?" in text else 0.15,
    "formal": lambda text: 0.15 if re.search(r"!|\b(?:I|you|we|it|let|don|can|won|isn|doesn)['\u2019]", text) else 0.9,
    "no code": lambda text: 0.1 if "`" in text else 0.85,
}
"""Tastes that no rule was chosen on: of the text."""
CROWD: Mapping[str, float] = {"short": 0.6, "bullets": 0.2, "middle": 0.2}
"""Taste → share of the crowd."""


class Pool(NamedTuple):
    """Recorded answers of M models to P prompts."""

    models: tuple[str, ...]
    prompts: tuple[str, ...]
    n: Floats
    """float64[P, M]: characters of the answers."""
    liked: Mapping[str, Floats]
    """Taste → P(thumb up) of the answers, float64[P, M]."""
    x: Floats
    """float64[P, d]: contexts."""
    h: Floats
    """float64[P, M, D]: response features."""
    names: tuple[str, ...]
    schema: str
    prior: TastePrior | None


def read_pool(file: Path = DATA, prompts: int = 10**9, models: Sequence[str] = ()) -> Pool:
    """Read the answers to the first prompts, as the router and its scorer do with the default encoder.

    Args:
        file: Parquet, one row per prompt and model.
        prompts: how many are read.
        models: which are read; all if empty.
    """
    import duckdb

    rows = duckdb.sql(f"SELECT prompt_id, model, prompt, response FROM '{file}'").fetchall()
    rows = [row for row in rows if row[0] < prompts and (not models or row[1] in models)]
    models = tuple(sorted({model for _, model, _, _ in rows}))
    encoder = get_encoder("static")
    features = ResponseFeatures(encoder, scalar=global_scalar(encoder))
    P = 1 + max(row[0] for row in rows)
    n, b = np.zeros((2, P, len(models)))
    more = {name: np.zeros((P, len(models))) for name in MORE}
    x, h = np.zeros((P, len(context_names()))), np.zeros((P, len(models), features.dim))
    for p, model, prompt, text in rows:
        k, lines = models.index(model), [line.lstrip()[:2] for line in text.split("\n")]
        n[p, k], b[p, k] = len(text), sum(mark in {"- ", "* "} or mark.rstrip(".").isdigit() for mark in lines)
        for name, taste in MORE.items():
            more[name][p, k] = taste(text)
        x[p] = context_features(read_prompt(Request(messages=({"role": "user", "content": prompt or " "},))), encoder)
        h[p, k] = features.encode([Answer(prompt=prompt, text=text)])[0]
    liked = {name: taste(n, b) for name, taste in TASTES.items()} | more
    prompts = tuple(dict(sorted((row[0], row[2]) for row in rows)).values())
    return Pool(
        models, prompts, n, liked, x, h, features.names, features.schema, shipped_prior(features.names, encoder.id)
    )


class Person(NamedTuple):
    """Results of one person; shares of the best model's satisfaction."""

    mean: float
    last: float
    found: bool
    """Probability ≥ ½ for a good model at thumbs 15 to 20."""
    kept: bool
    """And at thumbs 55 to 60."""
    run: int
    """Longest run of thumbs down on one model."""
    followed: int
    """Thumbs until a good model had probability ≥ ½ after a change of taste."""


class Installation:
    """A router in process with the default configuration."""

    def __init__(self, pool: Pool, models: Sequence[int], policy: Mapping[str, Any], seed: int) -> None:
        self.pool, self.models, self.seed, self.number = pool, list(models), seed, 0
        config = PolicyConfig(**policy)
        rules = {name: value for name, value in config.model_dump().items() if name in Rules.__struct_fields__}
        self.router = InProcess(
            Learner(pool.x.shape[1], pool.h.shape[2], schema=pool.schema, names=pool.names, prior=pool.prior),
            build_policy(**config.model_dump(include=set(CandidateConfig.model_fields))),
            Rules(**rules, seed=seed),
            [ModelCard(name=pool.models[k], provider="p") for k in self.models],
        )
        self.arms = {card.arm: k for card, k in zip(self.router.cards, self.models, strict=True)}

    def thumb(
        self,
        user: str,
        taste: str,
        i: int,
        ts: float,
        rng: np.random.Generator,
        cards: Sequence[ModelCard] | None = None,
    ) -> tuple[Floats, int, bool]:
        """Route prompt i and record the person's thumb; returns the probabilities, the model, and up or down."""
        pool = self.pool
        self.number += 1
        number = (self.seed << 96) | self.number << 64 | self.number
        decision = self.router.decide(number, ts, Identity(user=user), pool.x[i], cards=cards)
        k = self.arms[decision.chosen]
        turn = self.router.answer(decision, h=pool.h[i, k], completion_tokens=int(pool.n[i, k] / 4))
        liked = float(pool.liked[taste][i, k]) if rng.random() > RANDOM else 0.5
        up = bool(rng.random() < liked)
        self.router.vote(turn, FeedbackKind.THUMB, float(up))
        probs = dict(zip(decision.eligible, decision.probs, strict=True))
        return np.array([probs.get(arm, 0.0) for arm in self.arms]), k, up

    def crowd(self, rng: np.random.Generator) -> None:
        """Record labels of a crowd on models drawn at random, two a day and person."""
        names = list(CROWD)
        tastes = [names[i] for i in rng.choice(len(names), p=list(CROWD.values()), size=CROWD_PEOPLE)]
        for t in range(CROWD_LABELS):
            user = int(rng.integers(CROWD_PEOPLE))
            ts = 1e9 + t * DAY_S / CROWD_PEOPLE * 2
            self.thumb(
                f"crowd {user}",
                tastes[user],
                int(rng.integers(len(self.pool.n))),
                ts,
                rng,
                [self.router.cards[int(rng.integers(len(self.models)))]],
            )


def live(
    pool: Pool,
    models: Sequence[int],
    taste: str,
    crowd: bool,
    policy: Mapping[str, Any],
    seed: int,
    then: str | None = None,
) -> Person:
    """Simulate one person's sixty thumbs."""
    rng = np.random.default_rng([seed, 7])
    home = Installation(pool, models, policy, seed)
    if crowd:
        home.crowd(rng)
    worth = {name: pool.liked[name][:, list(models)].mean(axis=0) for name in (taste, then) if name}
    good, shares, run, longest, last = [], [], 0, 0, -1
    total = THUMBS + (CHANGE // 2 if then else 0)
    for t, i in enumerate(rng.permutation(len(pool.n))[:total].tolist()):
        now = then if then is not None and t >= CHANGE else taste
        probs, k, up = home.thumb("stranger", now, i, 2e9 + t * MINUTE_S * 60, rng)
        best = worth[now].max()
        good.append(float(probs[worth[now] >= best - 0.05].sum()))
        shares.append(float(probs @ worth[now] / best))
        run = 0 if up else (run + 1 if k == last else 1)
        longest, last = max(longest, run), k
    after = np.array(good[CHANGE:]) >= 0.5
    followed = next((t for t in range(len(after) - 4) if after[t : t + 5].all()), len(after))
    return Person(
        float(np.mean(shares[:THUMBS])),
        float(np.mean(shares[40:THUMBS])),
        float(np.mean(good[15:20])) >= 0.5,
        float(np.mean(good[55:60])) >= 0.5,
        longest,
        followed,
    )


STRONG = ("short", "long", "bullets", "no bullets", "formal")
ROUND = 4


def served(installation: int, pool: Pool) -> dict[str, dict[str, float]]:
    """Let four people give sixty thumbs over HTTP to a gateway of three models; returns each person's results."""
    tastes = [STRONG[(ROUND * installation + i) % len(STRONG)] for i in range(ROUND)]
    places = [pool.models.index(name) for name in THREE]
    rngs = [np.random.default_rng([installation, i]) for i in range(ROUND)]
    orders = [rng.permutation(len(pool.n))[:THUMBS].tolist() for rng in rngs]
    chosen = np.zeros((ROUND, THUMBS), dtype=int)
    down = np.zeros((ROUND, THUMBS), dtype=bool)
    with tempfile.TemporaryDirectory() as folder:
        config = write_config(
            Path(folder), models=[{"name": name, "provider": "recorded"} for name in THREE], seed=installation
        )
        with Gateway(config) as gateway, new_client(gateway.url) as http:
            for t in range(THUMBS):
                for i, taste in enumerate(tastes):
                    p = orders[i][t]
                    said = {"role": "user", "content": pool.prompts[p]}
                    body = {"model": "fitrouter/auto", "messages": [said], "user": f"stranger {i}"}
                    answer = http.post("/v1/chat/completions", json=body).raise_for_status().json()
                    k = chosen[i, t] = pool.models.index(answer["model"])
                    liked = pool.liked[taste][p, k] if rngs[i].random() > RANDOM else 0.5
                    up = bool(rngs[i].random() < liked)
                    down[i, t] = not up
                    vote = {"decision_id": answer["id"], "kind": "thumb", "value": float(up), "user": f"stranger {i}"}
                    http.post("/v1/feedback", json=vote).raise_for_status()
                wait_for(lambda: not any(http.get("/readyz").json()["lag"].values()), 60.0)
    found = {}
    for i, taste in enumerate(tastes):
        worth = pool.liked[taste].mean(axis=0)
        best = worth[places].max()
        run = longest = 0
        for t in range(THUMBS):
            run = (run + 1 if t and chosen[i, t] == chosen[i, t - 1] else 1) if down[i, t] else 0
            longest = max(longest, run)
        found[f"{installation} {i} {taste}"] = {
            "share_of_best": float((worth[chosen[i]] / best).mean()),
            "good_of_last_20": int((worth[chosen[i, -20:]] >= best - 0.05).sum()),
            "run": longest,
        }
    return found


class Cell(NamedTuple):
    """A setting to run."""

    models: int
    crowd: bool
    change: bool = False


CELLS = (Cell(3, False), Cell(3, True), Cell(11, False), Cell(11, True), Cell(3, False, True))
_pool: Pool


def _start(file: Path) -> None:
    global _pool
    _pool = read_pool(file)


def _play(task: tuple[Cell, int, Mapping[str, Any], Sequence[str]]) -> dict[str, Person]:
    """Simulate a person of each taste under one seed, by name."""
    cell, seed, policy, names = task
    models = [_pool.models.index(name) for name in THREE] if cell.models == 3 else range(len(_pool.models))
    others = (*list(TASTES)[1::-1], *list(TASTES)[3:1:-1], *["short"] * len(MORE), "short")
    after = dict(zip((*TASTES, *MORE), others, strict=True))
    return {
        f"{seed} {name}": live(
            _pool, models, name, cell.crowd, policy, seed * 100 + t, after[name] if cell.change else None
        )
        for t, name in enumerate(after)
        if name in names
    }


def summary(people: Sequence[Person], change: bool) -> dict[str, float]:
    """Summarise a cell."""
    column = {name: np.array([getattr(person, name) for person in people], dtype=float) for name in Person._fields}
    n = len(people)
    if change:
        return {
            "people": n,
            "followed_median": float(np.median(column["followed"])),
            "followed_within_15": float((column["followed"] <= 15).mean()),
        }
    return {
        "people": n,
        "share_of_best": float(column["mean"].mean()),
        "se": float(column["mean"].std(ddof=1) / np.sqrt(n)),
        "worst_decile": float(np.quantile(column["mean"], 0.1)),
        "run_95": float(np.quantile(column["run"], 0.95)),
        "last_20": float(column["last"].mean()),
        "found_at_15": float(column["found"].mean()),
        "found_at_60": float(column["kept"].mean()),
    }


def measure(
    policy: Mapping[str, Any],
    seeds: int,
    jobs: int,
    file: Path = DATA,
    cells: Sequence[Cell] = CELLS,
    tastes: Sequence[str] = tuple(TASTES),
) -> dict[str, dict[str, Person]]:
    """Play every cell: cell → person → results."""
    out: dict[str, dict[str, Person]] = {}
    with ProcessPoolExecutor(jobs, get_context("forkserver"), _start, (file,)) as workers:
        for cell in cells:
            played = workers.map(_play, [(cell, seed, policy, tastes) for seed in range(seeds)])
            name = f"{cell.models} models, {'crowd' if cell.crowd else 'fresh'}{', change' if cell.change else ''}"
            out[name] = {who: person for people in played for who, person in people.items()}
            print(name, summary(list(out[name].values()), cell.change), file=sys.stderr, flush=True)
    return out


def main() -> None:
    """Parse the command line, measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--policy", default=None, help="algorithm; the configuration's default if not given")
    parser.add_argument("--served", type=int, default=0, help="installations of four people, over HTTP")
    parser.add_argument("--tastes", choices=("usual", "more", "all"), default="usual")
    parser.add_argument("--set", nargs="*", default=[], help="settings of the policy, name=number")
    args = parser.parse_args()
    if not args.data.exists():
        print(f"skipped: there is no {args.data.name} in {args.data.parent.name} beside the project", file=sys.stderr)
        return
    policy: dict[str, Any] = {} if args.policy is None else {"algorithm": args.policy}
    policy |= {name: float(value) for name, value in (each.split("=") for each in args.set)}
    if args.served:
        people: dict[str, dict[str, float]] = {}
        pool = read_pool(args.data)
        for installation in range(args.served):
            people |= served(installation, pool)
            print(list(people.items())[-ROUND:], file=sys.stderr, flush=True)
        share, last, run = np.array([list(each.values()) for each in people.values()]).T
        stuck = [name for name, good in zip(people, last.tolist(), strict=True) if good < 10]
        summed = {
            "share_of_best": share.mean(),
            "worst_decile": np.quantile(share, 0.1),
            "run_95": np.quantile(run, 0.95),
        }
        print(json.dumps({"people": people, "stuck": stuck} | {name: float(each) for name, each in summed.items()}))
        return
    tastes = {"usual": tuple(TASTES), "more": tuple(MORE), "all": (*TASTES, *MORE)}[args.tastes]
    found = measure(policy, args.seeds, args.jobs, args.data, tastes=tastes)
    cells = {name: summary(list(people.values()), "change" in name) for name, people in found.items()}
    print(json.dumps({"policy": policy, "seeds": args.seeds, "cells": cells}))


if __name__ == "__main__":
    main()
