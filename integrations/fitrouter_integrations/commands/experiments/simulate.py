"""`fitrouter bench simulate`: simulated users rate logged responses, with and without parts of the router."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fitrouter_integrations.commands._files import write_json
from fitrouter_integrations.commands._options import JsonFile


class Reward(enum.StrEnum):
    """Source of the rewards that the router learns from."""

    LABEL = "label"
    SCORE = "score"


def command(
    world: Annotated[Path, typer.Option(help="World file, such as benchmarks/simulation/worlds/env.yaml.")],
    pool: Annotated[Path, typer.Option(help="Parquet or JSONL file with prompt_id, prompt, model, response.")],
    feedback: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of answers that are rated.")] = 0.3,
    seeds: Annotated[
        int, typer.Option(min=1, help="Simulated worlds, which differ in users, qualities and order.")
    ] = 3,
    rounds: Annotated[int | None, typer.Option(min=4, help="Number of rounds, instead of the world's.")] = None,
    gamma: Annotated[float, typer.Option(min=0.1, help="γ of SquareCB, for every variant.")] = 2560.0,
    floor: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of traffic spread over all models.")] = 0.05,
    encoder: Annotated[str, typer.Option(help="Encoder of prompts: static, hashing, minilm.")] = "static",
    topics: Annotated[str, typer.Option(help="Encoder for drawing topics, in worlds that have them.")] = "minilm",
    reward: Annotated[Reward, typer.Option(help="Training target; score is an ablation.")] = Reward.LABEL,
    prompts: Annotated[int, typer.Option(min=0, help="Number of prompts to use; 0 for all.")] = 0,
    out: JsonFile = None,
) -> None:
    """Simulate users who rate logged responses, and compare variants of the router."""
    import msgspec

    from fitrouter_evaluators.simulation.personal_pool import compare, open_pool
    from fitrouter_evaluators.simulation.worlds import load_world

    described = load_world(world)
    if rounds is not None:
        described = msgspec.structs.replace(described, rounds=rounds)
    rows = ["label-only", "scores", "role", "ours"] + (["reward-score"] if reward is Reward.SCORE else [])
    found = compare(
        open_pool(pool, encoder=encoder, topics=topics, limit=prompts),
        described,
        dict.fromkeys(rows, gamma),
        feedback,
        range(seeds),
        floor=floor,
    )
    Console().print(_table(found), markup=False)
    write_json(found, out)


def _table(found: dict[str, Any]) -> Table:
    table = Table(title=f"world {found['world']}, {found['feedback']:.0%} rated, {found['seeds']} seeds", box=None)
    for column in ("variant", "regret", "vs label-only", "last quarter − best single", "share of worst model"):
        table.add_column(column, justify="left" if column == "variant" else "right")
    table.add_row("best single model", f"{found['best_single']['regret']:.0f}", "", "", "")
    for row, numbers in found["rows"].items():
        change = numbers.get("change_vs_label-only")
        reward = numbers["last_quarter_reward_minus_best_single"]["mean"]
        table.add_row(
            row,
            f"{numbers['regret']:.0f}",
            f"{change['mean']:+.1%} ({change['low']:+.1%} … {change['high']:+.1%})" if change else "",
            f"{reward:+.4f}",
            f"{numbers['last_quarter_share_of_worst']:.2%}",
        )
    return table
