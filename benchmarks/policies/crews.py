"""Rounds until the example crews' roles find their models (docs/results/crews.md). Writes JSON.

python -m benchmarks.policies.crews --out FILE     # a quarter of an hour on two idle cores

The examples' pool, tastes and task prompts on the in-process runner, over seeds and settings.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fitrouter import Identity, Request, Router
from fitrouter.context.encoders import get_encoder
from fitrouter.context.features import context_features, read_prompt
from fitrouter.types import FeedbackKind, Floats
from fitrouter_evaluators.scoring import Answer, ResponseFeatures, global_scalar
from fitrouter_evaluators.simulation.pool import CHARACTERS
from fitrouter_evaluators.simulation.runner import InProcess

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from _people import Readers
from _pools import RECORDED, Pool, answers, configured, recorded, truth
from crewai import Task
from support_crew import JOBS, TASTES

SETTINGS: Mapping[str, tuple[dict[str, Any], int, int]] = {
    "the examples'": ({"algorithm": "linear_thompson", "scale": 2.0, "floor": 0.05}, 400, 40),
    "default": ({}, 1000, 20),
    "default, floor .2": ({"floor": 0.2}, 1000, 20),
}
"""Name → policy, rounds, seeds."""
LATE = 50
"""Decisions of a role over which probabilities are taken together, as the examples do."""


class Text(NamedTuple):
    """The pool's answers and prompts as the router reads them, computed once."""

    texts: Mapping[str, Sequence[str]]
    """Model → answer to each case."""
    x: dict[str, Floats]
    """Role → float64[cases, d]."""
    h: dict[str, Floats]
    """Model → float64[cases, D]."""


class Play(NamedTuple):
    """A task for a worker: one seed under one setting."""

    policy: Mapping[str, Any]
    rounds: int
    seed: int


_pool: Pool
_read: Text


def read(pool: Pool) -> Text:
    """Read all of a pool as the router and the scorer would."""
    reader = get_encoder("static")
    features = ResponseFeatures(reader, scalar=global_scalar(reader), declared=True)
    texts = answers(pool)
    prompts = {role: [_prompt(role, job, case) for case in pool.cases] for role, job in JOBS.items()}
    return Text(
        texts,
        {role: np.array([_context(prompt, reader) for prompt in said]) for role, said in prompts.items()},
        {
            model: np.asarray(
                features.encode([Answer(prompt=p, text=t) for p, t in zip(pool.cases, said, strict=True)])
            )
            for model, said in texts.items()
        },
    )


def _prompt(role: str, job: str, case: str) -> str:
    task = Task(name=role, description=job, expected_output="text")
    task.interpolate_inputs_and_add_conversation_history({"case": case})
    return task.prompt()


def _context(prompt: str, reader: Any) -> Floats:
    return context_features(read_prompt(Request(messages=({"role": "user", "content": prompt},))), reader)


def start(pool: Pool, text: Text) -> None:
    """Initialise a worker process."""
    global _pool, _read
    _pool, _read = pool, text


def play(task: Play) -> tuple[Floats, Floats]:
    """Play one seed: probabilities float64[rounds, roles, models], satisfaction float64[rounds, roles]."""
    readers = Readers({role: _pool.tastes[taste] for role, taste in TASTES.items()}, task.seed)
    day = np.random.default_rng(task.seed).integers(len(_pool.cases), size=task.rounds)
    probs = np.empty((task.rounds, len(JOBS), len(_pool.models)))
    with tempfile.TemporaryDirectory() as folder:
        config = configured(_pool, folder)
        policy = config.policy.model_validate(task.policy)
        crew = _Crew(Router.from_config(config.model_copy(update={"policy": policy, "seed": task.seed})), readers)
        for t, case in enumerate(day.tolist()):
            for i, role in enumerate(JOBS):
                probs[t, i] = crew.call(role, case, t * len(JOBS) + i)
    return probs, np.array(list(readers.satisfied.values())).T


class _Crew:
    """A router in process, and the readers of its answers."""

    def __init__(self, router: Router, readers: Readers) -> None:
        self.readers = readers
        self.router = InProcess(
            router._learner, router._decider.policy, router._decider.rules, list(router._cards.values())
        )

    def call(self, role: str, case: int, number: int) -> list[float]:
        """Make one call of a role and rate it by its readers; returns the probabilities, in the order of the pool."""
        who = Identity(role=role, task=role, session=f"{role} {number}")
        decision = self.router.decide(number, 1e9 + 10.0 * number, who, _read.x[role][case])
        text = _read.texts[decision.chosen][case]
        turn = self.router.answer(decision, h=_read.h[decision.chosen][case], completion_tokens=len(text) // CHARACTERS)
        self.router.vote(turn, FeedbackKind.RATING, self.readers.stars(role, text), scale=(1.0, 5.0))
        found = dict(zip(decision.eligible, decision.probs, strict=True))
        return [found[name] for name in _pool.models]


def summary(days: Sequence[tuple[Floats, Floats]], best: Sequence[int]) -> dict[str, Any]:
    """Summarise in how many seeds every role's best model leads, by rounds; from which round on; and its worth."""
    probs, satisfied = np.array([day[0] for day in days]), np.array([day[1] for day in days])
    rounds = probs.shape[1]
    sums = np.concatenate([np.zeros_like(probs[:, :1]), probs.cumsum(axis=1)], axis=1)
    lately = sums[:, 1:] - sums[:, np.maximum(np.arange(1, rounds + 1) - LATE, 0)]
    leads = lately.argmax(axis=3) == np.asarray(best)  # [seeds, rounds, roles]
    # The round from which on the best model leads for good; one more than there are where it does not at the end.
    since = np.where(leads.all(axis=1), 1, rounds + 1 - leads[:, ::-1].argmin(axis=1))
    marks = [mark for mark in (100, 150, 200, 300, 400, 600, 1000) if mark <= rounds]
    return {
        "seeds": len(days),
        "all_roles_lead": {mark: round(float(leads[:, mark - 1].all(axis=1).mean()), 3) for mark in marks},
        "role_leads": {
            mark: dict(zip(JOBS, leads[:, mark - 1].mean(axis=0).round(3).tolist(), strict=True)) for mark in marks
        },
        "leads_for_good_since": {
            role: {f"{q}%": int(np.quantile(since[:, i], q / 100, method="higher")) for q in (50, 90, 95)}
            for i, role in enumerate(JOBS)
        },
        "share_of_best": {
            mark: (lately[:, mark - 1][:, range(len(JOBS)), best].mean(axis=0) / LATE).round(3).tolist()
            for mark in marks
        },
        "satisfaction": {mark: round(float(satisfied[:, max(mark - 100, 0) : mark].mean()), 3) for mark in marks},
    }


def at_round(mark: int, names: Sequence[str], seeds: int, jobs: int) -> dict[str, list[tuple[bool, float]]]:
    """Play each setting up to a round; of each seed, whether all roles' best models lead, and the late worth."""
    pool = recorded(RECORDED)
    worth = truth(pool, {role: pool.tastes[taste] for role, taste in TASTES.items()})
    best = [max(pool.models, key=of.__getitem__) for of in worth.values()]
    places = [pool.models.index(model) for model in best]
    found: dict[str, list[tuple[bool, float]]] = {}
    with ProcessPoolExecutor(jobs, initializer=start, initargs=(pool, read(pool))) as workers:
        for name in names:
            days = workers.map(play, [Play(SETTINGS[name][0], mark, seed) for seed in range(seeds)])
            found[name] = [
                (bool((probs[-LATE:].mean(axis=0).argmax(axis=1) == places).all()), float(satisfied[-100:].mean()))
                for probs, satisfied in days
            ]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=Path, default=RECORDED)
    parser.add_argument("--seeds", type=int, help="instead of each setting's own number")
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not options.pool.is_file():
        print(f"skipped: there is no pool {options.pool}", file=sys.stderr)
        return 0
    pool = recorded(options.pool)
    worth = truth(pool, {role: pool.tastes[taste] for role, taste in TASTES.items()})
    table = np.array([[of[model] for model in pool.models] for of in worth.values()])
    found: dict[str, Any] = {
        "truth": {role: dict(sorted(of.items(), key=lambda item: -item[1])) for role, of in worth.items()},
        "any": round(float(table.mean()), 3),
        "best_single": round(float(table.mean(axis=0).max()), 3),
        "best_of_each": round(float(table.max(axis=1).mean()), 3),
    }
    with ProcessPoolExecutor(options.processes, initializer=start, initargs=(pool, read(pool))) as workers:
        for name in options.settings:
            policy, rounds, seeds = SETTINGS[name]
            plays = [Play(policy, rounds, seed) for seed in range(options.seeds or seeds)]
            days: list[tuple[Floats, Floats]] = []
            for day in workers.map(play, plays):
                days.append(day)
                if len(days) % 10 and len(days) < len(plays):
                    continue
                found[name] = {"policy": policy, "rounds": rounds}
                found[name] |= summary(days, table.argmax(axis=1).tolist())
                print(name, len(days), json.dumps(found[name]["all_roles_lead"]), file=sys.stderr, flush=True)
                if options.out:
                    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if not options.out:
        print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
