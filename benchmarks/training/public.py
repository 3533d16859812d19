"""Parts of public data sets that only research reads; `fitrouter_evaluators.datasets` has the judgements."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, TypeAlias

from fitrouter.errors import ConfigError
from fitrouter_evaluators.datasets._reading import read_values
from fitrouter_evaluators.datasets._sources import number, read_table, source

Probabilities: TypeAlias = dict[str, tuple[float, float, float, float]]
"""Question → probabilities of the answers 1 to 4."""

ADVERSARY = "NullModel"
"""A model of AlpacaEval that answers with a constant text that fools judge models."""

_ANSWER = ("prompt_id", "prompt", "model", "response")


class Responses(NamedTuple):
    """Many models' answers to a prompt of AlpacaEval (Apache-2.0); they have no human ratings."""

    item: str
    prompt: str
    responses: dict[str, str]
    """Model → text, in the models' sorted order."""


def alpaca_responses(path: str | os.PathLike[str]) -> list[Responses]:
    """Load AlpacaEval's answers by prompt, prompts in the file's order.

    Args:
        path: Parquet or JSONL with a row per answer (prompt_id, prompt, model, response), or a folder that has
            `responses.parquet`.

    Raises:
        ConfigError: the file is missing, or a row lacks a column or repeats an answer.
    """
    path = Path(path)
    path = path / "responses.parquet" if path.is_dir() else path
    found: dict[str, tuple[str, dict[str, str]]] = {}
    for line, row in read_values(path):
        if not isinstance(row, dict) or any(row.get(name) is None for name in _ANSWER):
            raise ConfigError(f"row {line} of {str(path)!r} is {row!r:.200}; it needs {', '.join(_ANSWER)}")
        item, model = str(row["prompt_id"]), str(row["model"])
        _, answers = found.setdefault(item, (str(row["prompt"]), {}))
        if model in answers:
            raise ConfigError(
                f"row {line} of {str(path)!r} answers prompt {item!r} by {model!r} again; keep one answer"
            )
        answers[model] = str(row["response"])
    return [Responses(item, prompt, dict(sorted(answers.items()))) for item, (prompt, answers) in found.items()]


def answer_probabilities(folder: str | os.PathLike[str]) -> dict[str, Probabilities]:
    """Load how an LLM (gpt-3.5-turbo-16k) would answer LLM-Rubric's questions, by dialogue, synthetic and real.

    The authors evaluated 225 of the 250 synthetic dialogues and every real one.
    """
    found: dict[str, Probabilities] = {}
    for split in ("synth", "real"):
        for row in read_table(source(folder, f"{split}_data/gpt-3.5-turbo-16k_{split}_evaluations_FIXED.tsv"), "\t"):
            one, two, three, four = (float(row[f"answer{answer}_prob"]) for answer in (1, 2, 3, 4))
            found.setdefault(row["text_id"], {})[row["criterion"]] = (one, two, three, four)
    return found


def harm_annotations(folder: str | os.PathLike[str]) -> dict[str, dict[str, float]]:
    """Load the authors' annotations of PluriHarms' prompts: harm level, kinds of action, effects, value topics."""
    texts = ("Question_Index", "Question_Content")
    return {
        row["Question_Index"]: {name: number(cell) or 0.0 for name, cell in row.items() if name not in texts}
        for row in read_table(source(folder, "prompts.csv"))
    }
