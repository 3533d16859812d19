"""ParetoBandit's response matrices (arXiv:2604.00136; Apache-2.0, the prompts keep their own licences).

One JSON object a prompt: `prompt`, `source`, and under `arms` each model's reward in [0, 1] by a judge model and its
real cost in USD. `val_k4.jsonl` has four models; `cross_judge_*_val.jsonl` have three, under other judges.
"""

from __future__ import annotations

import os

from fitrouter_evaluators.datasets._formats import Cell, MatrixRow
from fitrouter_evaluators.datasets._sources import read_json, read_jsonl, source


def convert(folder: str | os.PathLike[str], name: str = "val_k4.jsonl") -> list[MatrixRow]:
    """Convert the rows of a file, in its order; `extra` holds the authors' `difficulty`."""
    return [
        MatrixRow(
            prompt=row["prompt"],
            source=row["source"],
            models={arm: Cell(reward=cell["reward"], cost_usd=cell["cost"]) for arm, cell in row["arms"].items()},
            extra={"difficulty": row["difficulty"]},
        )
        for row in read_jsonl(source(folder, name))
    ]


def prices(folder: str | os.PathLike[str], name: str = "models_k4.json") -> dict[str, tuple[float, float]]:
    """Model → USD per million tokens of prompt and answer, from the authors' list."""
    return {
        model["model_id"]: (model["input_cost_per_m"], model["output_cost_per_m"])
        for model in read_json(source(folder, name))["models"]
    }
