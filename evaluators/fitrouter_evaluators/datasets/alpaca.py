"""Recorded answers of many models to the same prompts (AlpacaEval results; Apache-2.0).

They have no human ratings, so they are not `Cell`s: `Responses.scored` makes a `MatrixRow` from given rewards.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fitrouter.errors import ConfigError
from fitrouter_evaluators.datasets._formats import Cell, MatrixRow
from fitrouter_evaluators.datasets._reading import read_values

ADVERSARY = "NullModel"
"""A model of the published file that answers with a constant text that fools judge models."""

_COLUMNS = ("prompt_id", "prompt", "model", "response")


class Responses(msgspec.Struct, frozen=True):
    """All models' answers to a prompt."""

    item: str
    prompt: str
    responses: dict[str, str]
    """Model → text, in the models' sorted order."""
    source: str | None = None

    def scored(self, rewards: Mapping[str, float], user: str | None = None) -> MatrixRow:
        """The matrix row with a reward for every model."""
        missing = [model for model in self.responses if model not in rewards]
        if missing:
            raise ValueError(f"there are no rewards for {missing!r}; score every model's answer")
        cells = {model: Cell(reward=rewards[model], response=text) for model, text in self.responses.items()}
        return MatrixRow(prompt=self.prompt, models=cells, source=self.source, user=user, extra={"item": self.item})


def read_responses(path: str | os.PathLike[str]) -> list[Responses]:
    """The answers by prompt, prompts in the file's order.

    Args:
        path: Parquet or JSONL with a row per answer (prompt_id, prompt, model, response, source?), or a folder that
            has `responses.parquet`.

    Raises:
        ConfigError: the file is missing, or a row lacks a column or repeats an answer.
    """
    path = Path(path)
    path = path / "responses.parquet" if path.is_dir() else path
    found: dict[str, tuple[str, str | None, dict[str, str]]] = {}
    for line, row in read_values(path):
        if not isinstance(row, dict) or any(row.get(name) is None for name in _COLUMNS):
            raise ConfigError(f"row {line} of {str(path)!r} is {row!r:.200}; it needs {', '.join(_COLUMNS)}")
        item, model = str(row["prompt_id"]), str(row["model"])
        _, _, answers = found.setdefault(item, (str(row["prompt"]), row.get("source"), {}))
        if model in answers:
            raise ConfigError(
                f"row {line} of {str(path)!r} answers prompt {item!r} by {model!r} again; keep one answer"
            )
        answers[model] = str(row["response"])
    return [
        Responses(item=item, prompt=prompt, responses=dict(sorted(answers.items())), source=source)
        for item, (prompt, source, answers) in found.items()
    ]
