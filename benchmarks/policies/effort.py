"""Levels of effort as arms: what economy saves where effort does not matter, and what it uses where it does.

A router of one model with three levels (low, the provider's default, high) serves requests of two kinds, in the tier
economy, and learns from 60 ratings of twenty people. The tokens and prices are those of `effort.json`, with its
sources; ratings are simulated: at one kind all levels are rated alike, at the other a level is worth `STEP`. Then new
requests of both kinds are served without ratings: their cost, and the mean rating that the levels are worth, beside the
provider's default level and beside always high.

    python -m benchmarks.policies.effort --seeds 8
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fitrouter.config import parse_config
from fitrouter.router import Router
from fitrouter.types import Call, Completion, FeedbackKind, Identity, Request, Usage

TABLE: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))["models"]
PROMPT, ANSWER, LABELS, SERVED = 500, 400, 60, 200
RATED, STEP, NOISE = 0.75, 0.2, 0.15
"""Mean rating of the default level, what a level of effort is worth where it matters, and the sd of a rating."""
LEVELS = {"low": -1, "medium": 0, "high": 1}
ROUTINE = ("Rewrite this sentence in the past tense: {}", "Translate into French: {}", "Fix the spelling of: {}")
HARD = ("Prove by induction that {}", "Find the bug in this scheduler: {}", "Derive the closed form of {}")
NOUNS = ("the train", "a river", "my invoice", "this matrix", "the queue", "some apples", "a lattice", "the deadline")


class Model:
    """Answers with the tokens that the table has for the level of the call."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row

    async def complete(self, call: Call) -> Completion:
        """Return an answer that has thought as long as its effort says."""
        level = call.params.get("reasoning_effort", self.row["default"])
        thinking = self.row["thinking"][level]
        usage = Usage(prompt_tokens=PROMPT, completion_tokens=ANSWER + thinking, reasoning_tokens=thinking)
        return Completion(message={"role": "assistant", "content": "Done."}, usage=usage)

    async def aclose(self) -> None:
        """Nothing is open."""


class Served(NamedTuple):
    """Mean cost in USD and mean rating of one kind of request, and the share of each level."""

    usd: float
    rating: float
    shares: dict[str, float]


def level_of(arm: str, row: dict[str, Any]) -> str:
    """The level of an arm; the plain model's is the provider's default."""
    return arm.partition("#effort-")[2] or str(row["default"])


def usd_of(level: str, row: dict[str, Any]) -> float:
    """Cost of a request at a level."""
    return (PROMPT * row["input"] + (ANSWER + row["thinking"][level]) * row["output"]) / 1e6


def rating_of(level: str, hard: bool) -> float:
    """What a level is worth."""
    return RATED + STEP * LEVELS[level] * hard


async def run(name: str, row: dict[str, Any], seed: int, weight: float) -> dict[bool, Served]:
    """Learn from `LABELS` ratings, then serve; kind → what was served."""
    rng = np.random.default_rng(seed)
    unit = usd_of("high", row) - usd_of("low", row)
    model = {"name": name, "provider": row["provider"], "effort": ["low", "high"]}
    with tempfile.TemporaryDirectory() as folder:
        config = parse_config(
            {
                "data": folder,
                "providers": {row["provider"]: {"kind": "simulated"}},
                "models": [model | {"prices": {"input": row["input"], "output": row["output"]}}],
                "objective": {"cost_weight": weight, "cost_unit_usd": unit},
                "seed": seed,
            }
        )
        router = Router.from_config(config, providers={row["provider"]: Model(row)})

        async def ask(i: int, hard: bool) -> Any:
            text = rng.choice(HARD if hard else ROUTINE).format(f"{rng.choice(NOUNS)} number {i}")
            said = ({"role": "user", "content": text},)
            who = Identity(user=f"u{i % 20}", session=f"{hard}{i}", task="hard" if hard else "routine")
            return await router.complete(Request(messages=said, tier="economy", identity=who))

        async with router:
            for i in range(LABELS):
                hard = bool(i % 2)
                answer = await ask(i, hard)
                mean = rating_of(level_of(answer.served_by, row), hard)
                value = float(np.clip(mean + NOISE * rng.normal(), 0.0, 1.0))
                await router.feedback(answer.decision.id, FeedbackKind.RATING, value)
                while router._learner.fit.labels <= i:  # noqa: ASYNC110 - the scorer runs in a thread
                    await asyncio.sleep(0.005)
            found = {}
            for hard in (False, True):
                answers = [await ask(10_000 + i, hard) for i in range(SERVED)]
                levels = [level_of(each.served_by, row) for each in answers]
                found[hard] = Served(
                    float(np.mean([usd_of(level, row) for level in levels])),
                    float(np.mean([rating_of(level, hard) for level in levels])),
                    {level: levels.count(level) / SERVED for level in LEVELS},
                )
    return found


def main() -> None:
    """Print the table of all models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument(
        "--weight", type=float, default=0.025, help="configured cost weight; economy's is four times it"
    )
    settings = parser.parse_args()
    print(
        "| model | kind | low, medium, high | saved against default | against high | rating lost to default | to high |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, row in TABLE.items():
        runs = [asyncio.run(run(name, row, seed, settings.weight)) for seed in range(settings.seeds)]
        for hard in (False, True):
            usd, rating = (float(np.mean([getattr(each[hard], of) for each in runs])) for of in ("usd", "rating"))
            shares = [float(np.mean([each[hard].shares[level] for each in runs])) for level in LEVELS]
            levels = row["default"], "high"
            saved = [1.0 - usd / usd_of(level, row) for level in levels]
            lost = [rating_of(level, hard) - rating for level in levels]
            cells = [", ".join(f"{share:.0%}" for share in shares), *(f"{each:.0%}" for each in saved)]
            cells += [f"{each:.3f}" for each in lost]
            print(f"| {name} | {'hard' if hard else 'routine'} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
