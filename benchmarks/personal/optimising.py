"""Traffic that a provider gains by optimising its answers against served scores (docs/results/manipulation.md).

    python -m benchmarks.personal.optimising --seeds 4 --json results/optimising.json

The personal pool's world lab-s1 with the shipped learner and policy. When one model is drawn, its provider may send
the text of any recorded answer to the prompt instead of its own, and sends the one with the highest served score: of
the population, or of the very person. People rate what the model is worth, not how it is worded. Every seed runs
without and with the optimisation; the gain is the difference of the model's mean probability, in points of traffic.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from fitrouter.policies import SquareCB
from fitrouter.posterior.labels import FitParams
from fitrouter.routing.decider import Rules
from fitrouter.state.learner import Learner
from fitrouter.types import FeedbackKind, Identity, ModelCard
from fitrouter_evaluators.simulation.personal_pool import open_pool
from fitrouter_evaluators.simulation.pool import Pool
from fitrouter_evaluators.simulation.runner import InProcess
from fitrouter_evaluators.simulation.worlds import Play, World, draw_play, load_world

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("NullModel", "gemini-pro", "mistral-large-2402", "gpt-4o-mini-2024-07-18")
"""Whose providers optimise, in turn: from the worst model to the fourth best of eleven."""
FEEDBACK, DAY_S = 0.3, 86_400.0
Scores: TypeAlias = Literal["none", "population", "person"]


def traffic(world: World, pool: Pool, play: Play, model: str, scores: Scores) -> np.ndarray[Any, Any]:
    """Return the mean probability by quarter of a model whose provider optimises against these scores, float64[4]."""
    rounds, fake = play.rounds(FEEDBACK), pool.models.index(model)
    learner = Learner(pool.x.shape[1], play.h.shape[2], schema=pool.schema, params=FitParams(), names=pool.names)
    cards = [ModelCard(name=name, provider="pool") for name in pool.models]
    router = InProcess(learner, SquareCB(2560.0), Rules(floor=0.05, encoder="pool"), cards)
    shares = np.zeros(world.rounds)
    for t in range(world.rounds):
        user, n = int(play.user[t]), int(play.prompt[t])
        who = Identity(user=f"u{user}", role=f"r{play.role[user]}")
        decision = router.decide(t, 1e9 + t * DAY_S / world.rounds_per_day, who, pool.x[n])
        shares[t] = decision.probs[decision.eligible.index(model)]
        k = shown = pool.models.index(decision.chosen)
        if k == fake and scores != "none":
            asker = who if scores == "person" else Identity()
            shown = int(np.argmax([learner.score(asker, h)[0] for h in play.h[:, n]]))
        tokens = int(pool.completion_tokens[shown, n])
        turn = router.answer(decision, h=play.h[shown, n], completion_tokens=tokens)
        if play.rated[t] < FEEDBACK:
            router.vote(turn, FeedbackKind.THUMB, float(play.label[t] < rounds.reward[t, k]))
    quarters: np.ndarray[Any, Any] = shares.reshape(4, -1).mean(axis=1)
    return quarters


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=Path, default=ROOT / "../shared/data/alpaca_eval/responses.parquet")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not options.pool.is_file():
        print(f"skipped: there is no pool {options.pool}", file=sys.stderr)
        return 0
    pool = open_pool(options.pool, encoder="minilm")
    world = load_world(ROOT / "benchmarks/simulation/worlds/lab-s1.yaml")
    found: dict[str, Any] = {"seeds": options.seeds, "unit": "points of traffic", "models": {}}
    for model in options.models:
        each: dict[Scores, list[Any]] = {"none": [], "population": [], "person": []}
        for seed in range(options.seeds):
            play = draw_play(world, pool, seed)
            for scores, runs in each.items():
                runs.append(100.0 * traffic(world, pool, play, model, scores))
        honest = np.array(each["none"])
        found["models"][model] = {"honest": honest.mean(axis=0).round(2).tolist()}
        for scores in ("population", "person"):
            gain = np.array(each[scores]) - honest
            over = gain.mean(axis=1)
            error = float(over.std(ddof=1) / len(over) ** 0.5) if len(over) > 1 else float("nan")
            found["models"][model][scores] = {
                "gain_by_quarter": gain.mean(axis=0).round(2).tolist(),
                "gain": round(float(over.mean()), 2),
                "standard_error": round(error, 2),
            }
        print(model, json.dumps(found["models"][model]), file=sys.stderr, flush=True)
    text = json.dumps(found, indent=1)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
