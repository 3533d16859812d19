"""Regret with and without a warm start: train on half of a matrix, stream the other half. Prints JSON.

python -m benchmarks.policies.warm_start --data ../shared/data/paretobandit --seeds 12

Rows: cold; warm (the file of `fitrouter train policy` with its default trust); wrong (the same with every model under
another's name). Regret against the best model of each prompt, of each hundred of requests, with the shipped policy.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from fitrouter.config import Config, parse_config
from fitrouter.context.encoders import get_encoder
from fitrouter.context.features import context_names
from fitrouter.policies import SquareCB
from fitrouter.posterior.arm_prior import ArmPrior, load
from fitrouter.routing.decider import Rules
from fitrouter.state.learner import Learner
from fitrouter.types import FeedbackKind, Identity, ModelCard
from fitrouter_evaluators.datasets import MatrixRow, paretobandit, write_jsonl
from fitrouter_evaluators.simulation.matrix_stream import Matrix, matrix_of
from fitrouter_evaluators.simulation.runner import InProcess
from fitrouter_evaluators.training.train_policy import TRUST, train_policy

STREAM = 600
BLOCK = 100


def settings(models: Sequence[str]) -> Config:
    return parse_config(
        {
            "providers": {"m": {"kind": "simulated"}},
            "models": [{"name": name, "provider": "m"} for name in models],
            "scorer": {"encoder": "none"},
        }
    )


def trained(rows: Sequence[MatrixRow], config: Config, trust: float) -> ArmPrior:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "half.jsonl"
        write_jsonl(data, rows)
        sheet = train_policy(data, Path(folder), config, trust=trust)
        encoder = get_encoder(config.encoder).id
        return load(Path(sheet["path"]), d=len(context_names()), D=1, encoder=encoder, schema="")


def turned(rows: Sequence[MatrixRow], models: Sequence[str]) -> list[MatrixRow]:
    other = dict(zip(models, [*models[1:], models[0]], strict=True))
    return [msgspec.structs.replace(row, models={other[m]: cell for m, cell in row.models.items()}) for row in rows]


def regret(matrix: Matrix, order: Sequence[int], prior: ArmPrior | None, config: Config, seed: int) -> np.ndarray:
    """Return the regret of a stream of prompts that starts from a prior, float64[T]."""
    learner = Learner(matrix.x.shape[1], 1, arm_prior=prior, votes_per_day=1 << 40, expects_scores=False)
    policy, rules = SquareCB(gamma=config.policy.parameters["gamma"]), Rules(floor=config.policy.floor, seed=seed)
    router = InProcess(learner, policy, rules, [ModelCard(name=name, provider="m") for name in matrix.models])
    lost = np.empty(len(order))
    for t, n in enumerate(order):
        decision = router.decide(t, 60.0 * t, Identity(), matrix.x[n], prompt_tokens=int(matrix.tokens[n]))
        k = matrix.models.index(decision.chosen)
        lost[t] = matrix.reward[n].max() - matrix.reward[n, k]
        turn = router.answer(
            decision,
            prompt_tokens=int(matrix.tokens[n]),
            seconds=float(matrix.seconds[n, k]),
            cost_usd=float(matrix.cost[n, k]),
        )
        router.vote(turn, FeedbackKind.RATING, float(matrix.reward[n, k]))
    return lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="ParetoBandit's folder, as its authors published it")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--trust", type=float, default=TRUST)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = paretobandit.convert(arguments.data)
    matrix = matrix_of(rows, get_encoder("static"))
    config = settings(matrix.models)
    found: dict[str, list[np.ndarray]] = {"cold": [], "warm": [], "wrong": []}
    for seed in range(arguments.seeds):
        order = np.random.default_rng(seed).permutation(len(rows)).tolist()
        half, stream = [rows[n] for n in order[: len(rows) // 2]], order[len(rows) // 2 :][:STREAM]
        priors = {
            "cold": None,
            "warm": trained(half, config, arguments.trust),
            "wrong": trained(turned(half, matrix.models), config, arguments.trust),
        }
        for name, prior in priors.items():
            lost = regret(matrix, stream, prior, config, seed)
            found[name].append(lost.reshape(-1, BLOCK).sum(axis=1))
    table = {
        name: {
            "by_hundred": np.mean(blocks, axis=0).round(2).tolist(),
            "first_200": round(float(np.mean(blocks, axis=0)[:2].sum()), 2),
            "standard_error_of_first_200": round(
                float(np.std([b[:2].sum() for b in blocks], ddof=1) / np.sqrt(len(blocks))), 2
            ),
        }
        for name, blocks in found.items()
    }
    report = {"rows": len(rows), "seeds": arguments.seeds, "trust": arguments.trust, "regret": table}
    print(json.dumps(report, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
