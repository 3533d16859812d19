"""Models for the examples: recorded responses of eleven models, or three simulated models."""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from _people import Taste, plain_points, words

from fitrouter import Config, Router, parse_config
from fitrouter.providers import build_providers
from fitrouter.types import Call
from fitrouter_integrations.client import connect

RECORDED = Path(__file__).resolve().parents[2] / "shared/data/alpaca_eval/responses.parquet"
"""Responses of eleven models to 805 prompts (AlpacaEval); the column `source` says where a prompt is from."""
SOURCES = ("helpful_base", "vicuna")
"""Questions as anybody has them; the other sources have puzzles, programs and texts to be classified."""

PERSONAS = {
    "terse": {"length": 2, "warmth": 0.0},
    "warm": {"length": 9, "warmth": 1.0, "formality": 0.0, "examples": 0.5},
    "orderly": {"length": 6, "warmth": 0.0, "bullets": 1.0, "headings": 1.0, "formality": 0.9, "numbers": 0.6},
}
"""Simulated models and how they write; see `fitrouter.providers.Persona`."""


class Pool(NamedTuple):
    """Models, prompts, and the attributes that users may like in their texts."""

    provider: Mapping[str, Any]
    models: tuple[str, ...]
    cases: tuple[str, ...]
    tastes: Mapping[str, Taste]
    rounds: int
    """How many of the cases people need until the router knows them."""
    outcomes: bool = False
    """Whether people rate whole runs of an agent or crew, instead of each answer."""

    @property
    def few(self) -> int:
        """So many rounds are early, or late."""
        return self.rounds // 8


def chosen_pool(about: str | None, cases: Sequence[str], *, outcomes: bool = False) -> Pool:
    """The pool that the command line names: the recorded one where its file is there.

    Args:
        about: what the example is about.
        cases: of the simulated models; recorded ones have their own.
        outcomes: whether whole runs are rated in any case.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recorded", type=Path, default=RECORDED, metavar="PATH", help="of the recorded responses")
    parser.add_argument("--simulated", action="store_true", help="use simulated models in any case")
    if not outcomes:
        parser.add_argument("--outcomes", action="store_true", help="rate whole runs instead of each answer")
    given = parser.parse_args()
    outcomes = outcomes or given.outcomes
    if not given.simulated and given.recorded.is_file():
        pool = recorded(given.recorded)
        print(f"Recorded responses of {len(pool.models)} models to {len(pool.cases)} questions.")
    else:
        print("Simulated models." if given.simulated else f"There is no file {given.recorded}: simulated models.")
        pool = simulated(cases)
    # An outcome says less of each role than a rating of its own answer.
    return pool._replace(outcomes=outcomes, rounds=pool.rounds * (3 if outcomes else 1))


def simulated(cases: Sequence[str]) -> Pool:
    """Three models with different styles and short texts."""
    tastes = {"few words": words(150, 20), "at length": words(50, 120), "in points": plain_points}
    provider = {"kind": "simulated", "options": {"speed": 1e6, **PERSONAS}}
    return Pool(provider, tuple(PERSONAS), tuple(cases), tastes, rounds=60)


def recorded(path: Path) -> Pool:
    """Eleven models. One of them, NullModel, is an impostor: it answers everything with the same nonsense."""
    import duckdb

    with duckdb.connect() as file:
        asked = "select distinct prompt from read_parquet(?) where list_contains(?, source) order by prompt"
        cases = tuple(row[0] for row in file.execute(asked, [str(path), list(SOURCES)]).fetchall())
        named = file.execute("select distinct model from read_parquet(?) order by model", [str(path)]).fetchall()
    tastes = {"few words": words(150, 20), "at length": words(200, 600), "in points": plain_points}
    # Agents put a case into instructions of their own; the case is found inside of them.
    provider = {"kind": "recorded", "path": path, "options": {"match": "inside"}}
    return Pool(provider, tuple(row[0] for row in named), cases, tastes, rounds=400)


def configured(pool: Pool, folder: str) -> Config:
    """A pool as a configuration with a data folder."""
    return parse_config(
        {
            "data": folder,
            "providers": {"pool": pool.provider},
            "models": [{"name": name, "provider": "pool"} for name in pool.models],
            # The pool is new and the example short: it explores more than a service would. The scale begins at 3/8.
            "policy": {"algorithm": "linear_thompson", "scale": 2.0, "floor": 0.05},
            # A day's work is done here in seconds, by a handful of people: none of their votes is one too many.
            "feedback": {"votes_per_day": 100_000},
        }
    )


@contextmanager
def routed(pool: Pool) -> Iterator[Router]:
    """A router in this process over a pool, in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CREWAI_STORAGE_DIR"] = str(Path(folder) / "crewai")
        router = Router.from_config(configured(pool, folder))
        with connect(router):
            yield router


Table = Mapping[str, Mapping[str, float]]
"""Role or user → model → a number."""


def answers(pool: Pool) -> dict[str, list[str]]:
    """Model → its answer to each case."""
    provider = build_providers(configured(pool, "unused"))["pool"]

    async def of(model: str) -> list[str]:
        calls = [Call(target=model, messages=({"role": "user", "content": case},)) for case in pool.cases]
        whole: list[Any] = [await provider.complete(call) for call in calls]
        return [str(completion.message["content"]) for completion in whole]

    return {model: asyncio.run(of(model)) for model in pool.models}


def truth(pool: Pool, tastes: Mapping[str, Taste]) -> Table:
    """Mean satisfaction of each taste with each model over all cases."""
    texts = answers(pool)
    return {
        name: {model: sum(map(taste, said)) / len(said) for model, said in texts.items()}
        for name, taste in tastes.items()
    }
