"""Runs until an agent's roles find their models, from outcomes of whole runs alone (docs/results/runs.md). Writes JSON.

    python -m benchmarks.simulation.agent_runs --seeds 100 --jobs 2 --json docs/results/runs.json

An agent of three roles makes twelve calls a run, four for each role, on one of three models: a role's first call is a
draw of the router, its others stay. Two worlds, whose gaps between models are stated by their priors:

* rating: a model's quality in a role is N(.7, .1²); a run is rated by the mean of its steps' qualities, with noise .05;
* success: a step succeeds with probability .90, .96 or .995, each equally likely for each model and role; a run
  succeeds only if all twelve steps do.

The reader knows the prior and the likelihood exactly, and reads the same outcomes of the same runs: by conjugate
Gaussians, and by enumeration of all 3⁹ worlds. Beside it is the best linear reader, which for ratings is the same:
what a learner whose expectation is linear in a run's answers can reach at best. Compared is what each would pick for
each role after so many runs.
With `turns`, a third of the calls get a thumb of their own, instead of the outcomes; with `both`, beside them.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fitrouter.identity import run_key
from fitrouter.policies import LinearThompson
from fitrouter.posterior.people import DAY_S
from fitrouter.routing.decider import Rules
from fitrouter.state.learner import Learner
from fitrouter.types import Event, FeedbackKind, Floats, Identity, Mode, ModelCard, RunOutcome
from fitrouter_evaluators.simulation.runner import InProcess, Turn, answer_events

ROLES, MODELS, CALLS = 3, 3, 4
LEVELS = np.array([0.90, 0.96, 0.995])
MEAN, SPREAD, NOISE = 0.7, 0.1, 0.05
TURNS = 1 / 3
CLOSED = (0.5, 0.35, 0.25)
"""Shares of the regret of picking at random, down to which runs are counted."""
X = np.array([1.0, 0.0])


class GaussianReader:
    """The exact posterior of the qualities, from mean ratings."""

    def __init__(self) -> None:
        n = ROLES * MODELS
        self.mean, self.cov = np.full(n, MEAN), np.eye(n) * SPREAD**2

    def learn(self, counts: Floats, y: float) -> None:
        """Learn the outcome of a run, given its calls by role and model."""
        a = counts.ravel() / counts.sum()
        gain = self.cov @ a
        total = a @ gain + NOISE**2
        self.mean = self.mean + gain * (y - a @ self.mean) / total
        self.cov = self.cov - np.outer(gain, gain) / total

    def quality(self) -> Floats:
        """Posterior mean of each model in each role."""
        return self.mean.reshape(ROLES, MODELS)


_WORLDS = np.array(list(itertools.product(range(len(LEVELS)), repeat=ROLES * MODELS)))


class EnumeratingReader:
    """The exact posterior of the steps' probabilities, from successes of whole runs."""

    def __init__(self) -> None:
        self.log_p = np.log(LEVELS)[_WORLDS]
        self.nats = np.zeros(len(_WORLDS))

    def learn(self, counts: Floats, y: float) -> None:
        """Learn the outcome of a run, given its calls by role and model."""
        log = self.log_p @ counts.ravel()
        self.nats = self.nats + (log if y else np.log1p(-np.exp(log)))

    def quality(self) -> Floats:
        """Posterior mean of each model in each role."""
        weight = np.exp(self.nats - self.nats.max())
        found: Floats = ((weight / weight.sum()) @ LEVELS[_WORLDS]).reshape(ROLES, MODELS)
        return found


class LinearReader:
    """The best linear estimate of the steps' probabilities from successes, by the prior's exact first two moments.

    What a learner whose expected outcome is linear in its answers can reach at best: it knows the prior, all products
    of the steps' probabilities included, and only reads outcomes one by one instead of enumerating the worlds.
    """

    def __init__(self) -> None:
        self.runs: list[Floats] = []
        self.ys: list[float] = []

    def learn(self, counts: Floats, y: float) -> None:
        """Learn the outcome of a run, given its calls by role and model."""
        self.runs.append(counts.ravel())
        self.ys.append(y)

    def quality(self) -> Floats:
        """Estimate of each model in each role."""
        runs, moments = np.array(self.runs), _moments()
        expected = moments[runs.astype(int)].prod(axis=1)
        both = moments[(runs[:, None] + runs[None]).astype(int)].prod(axis=2)  # E[success of i and of j, if apart]
        cov = both - np.outer(expected, expected)
        cov[np.diag_indices_from(cov)] = expected * (1.0 - expected)
        counts = runs.astype(int)
        # E[p_a Π p^c] for each a: one power more of the model and role itself.
        cross = expected[:, None] * moments[counts + 1] / moments[counts] - expected[:, None] * LEVELS.mean()
        gain = np.linalg.solve(cov + 1e-12 * np.eye(len(runs)), np.array(self.ys) - expected)
        found: Floats = (LEVELS.mean() + cross.T @ gain).reshape(ROLES, MODELS)
        return found


@functools.cache
def _moments() -> Floats:
    """E[pⁿ] of a step's probability, for n up to twice a run's calls and one more."""
    powers = np.arange(2 * ROLES * CALLS + 2)
    found: Floats = (LEVELS[:, None] ** powers).mean(axis=0)
    return found


def regret(quality: Floats, beliefs: Floats) -> float:
    """What is lost on average over roles by the models that look best; ties are drawn."""
    best = beliefs >= beliefs.max(axis=1, keepdims=True) - 1e-9
    return float((quality.max(axis=1) - (quality * best).sum(axis=1) / best.sum(axis=1)).mean())


def play(world: str, labels: str, runs: int, seed: int) -> dict[str, list[float]]:
    """Play one agent: after each run, the regret of the router's and of the reader's picks."""
    rng = np.random.default_rng([seed, world == "success"])
    shape = ROLES, MODELS
    quality = LEVELS[rng.integers(len(LEVELS), size=shape)] if world == "success" else rng.normal(MEAN, SPREAD, shape)
    reader = EnumeratingReader() if world == "success" else GaussianReader()
    linear = LinearReader() if world == "success" else GaussianReader()
    cards = [ModelCard(name=f"m{k}", provider="sim") for k in range(MODELS)]
    names = tuple(card.name for card in cards)
    learner = Learner(len(X), 1, votes_per_day=1 << 30, expects_scores=False)
    router = InProcess(learner, LinearThompson(), Rules(seed=seed), cards)
    found: dict[str, list[float]] = {"router": [], "reader": [], "linear": [], "random": []}
    number = 0
    for run in range(runs):
        ts, key = 1e9 + run * DAY_S / 50, run_key("default", None, str(run))
        counts, events, succeeded = np.zeros(shape), list[Event](), True
        turns: list[tuple[Turn, float]] = []
        for role in range(ROLES):
            who = Identity(role=f"role {role}", run=key)
            drawn = router.decide(number, ts, who, X)
            k = names.index(drawn.chosen)
            for call in range(CALLS):
                number += 1
                decision = drawn
                if call:
                    kept = f"{drawn.id}-{call}"
                    decision = msgspec.structs.replace(drawn, id=kept, mode=Mode.STICKY, probs=(), twin=(), rest=())
                made = answer_events(decision, seconds=1.0)
                for place, event in enumerate(made):
                    router.fold(event, made[:place])
                counts[role, k] += 1
                events += made
                good = rng.random() < quality[role, k]
                succeeded &= good
                if rng.random() < TURNS:
                    turns.append((Turn(decision, made), float(good)))
        y = float(succeeded)
        if world == "rating":
            y = float(np.clip((counts * quality).sum() / counts.sum() + rng.normal(0.0, NOISE), 0.0, 1.0))
        if labels != "outcomes":
            for turn, liked in turns:
                router.vote(turn, FeedbackKind.THUMB, liked)
        if labels != "turns":
            decisions = tuple(event.id for event in events if event.__class__.__name__ == "Decision")
            ended = RunOutcome(
                id=f"outcome {run}",
                ts=ts,
                identity=Identity(run=key),
                kind=world,
                value=y,
                decisions=decisions,
            )
            router.fold(ended, events)
        reader.learn(counts, y)
        linear.learn(counts, y)
        roles = [Identity(role=f"role {role}") for role in range(ROLES)]
        beliefs = np.array([learner.fit.estimate(who, X, names, ts).mean for who in roles])
        found["router"].append(regret(quality, beliefs))
        found["reader"].append(regret(quality, reader.quality()))
        found["linear"].append(regret(quality, linear.quality()))
        found["random"].append(float((quality.max(axis=1) - quality.mean(axis=1)).mean()))
    return found


def needed(curve: Floats, level: float) -> int | None:
    """Number of runs after which a mean regret stays at a level or below."""
    above = np.flatnonzero(curve > level)
    last = 0 if not len(above) else int(above[-1]) + 1
    return None if last >= len(curve) else last + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--labels", nargs="*", default=["outcomes", "turns", "both"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    tables: dict[str, Any] = {"seeds": args.seeds, "runs": args.runs}
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        for world, labels in itertools.product(("rating", "success"), args.labels):
            rows = pool.map(partial(play, world, labels, args.runs), range(args.seeds), chunksize=1)
            curves = {name: np.array([row[name] for row in rows]).mean(axis=0) for name in rows[0]}
            random = float(curves["random"][0])
            table: dict[str, Any] = {"random": random}
            for who in ("router", "reader", "linear"):
                at = {str(n): float(curves[who][n - 1]) for n in (10, 25, 50, 100, 200, 400) if n <= args.runs}
                runs = {str(share): needed(curves[who], share * random) for share in CLOSED}
                table[who] = {"regret": at, "runs": runs}
            tables[f"{world}, {labels}"] = table
            print(world, labels, json.dumps(table), flush=True)
    if args.json:
        args.json.write_text(json.dumps(tables, indent=1) + "\n")


if __name__ == "__main__":
    main()
