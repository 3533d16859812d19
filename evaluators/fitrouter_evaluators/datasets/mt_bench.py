"""MT-bench human judgements (Zheng et al. 2023, arXiv:2306.05685; votes CC-BY-4.0, answers Apache-2.0).

Judges compared two models' answers to two-turn questions after each turn. For the second turn the prompt has both
questions and the texts are the second answers; each model's earlier answer is in its `extra["earlier"]`.
"""

from __future__ import annotations

import os
from pathlib import Path

from fitrouter_evaluators.datasets._formats import Pair, Text
from fitrouter_evaluators.datasets._sources import read_jsonl, source

_LABELS = {"model_a": 1.0, "model_b": 0.0, "tie": 0.5, "tie (inconsistent)": 0.5}


def convert(folder: str | os.PathLike[str], votes: str = "human.jsonl") -> list[Pair]:
    """Convert the votes to pairs, in the file's order.

    `votes` may name the judge model's file, `gpt4_pair.jsonl`; there a vote that changed with the order of the answers
    counts as a tie. `extra` has question_id, turn (1 or 2) and category.
    """
    rows = read_jsonl(source(folder, votes))
    questions = {row["question_id"]: row for row in read_jsonl(source(folder, "question.jsonl"))}
    answers = _answers(Path(folder), {row[side] for row in rows for side in ("model_a", "model_b")})
    pairs = []
    for row in rows:
        number, turn = row["question_id"], row["turn"]
        question = questions[number]
        a, b = (_text(row[side], answers[row[side], number], turn) for side in ("model_a", "model_b"))
        extra = {"question_id": number, "turn": turn, "category": question["category"]}
        prompt = "\n\n".join(question["turns"][:turn])
        pairs.append(Pair(user=row["judge"], prompt=prompt, a=a, b=b, label=_LABELS[row["winner"]], extra=extra))
    return pairs


def _answers(folder: Path, models: set[str]) -> dict[tuple[str, int], list[str]]:
    """Read the models' answers of both turns, keyed by (model, question)."""
    return {
        (model, row["question_id"]): row["choices"][0]["turns"]
        for model in sorted(models)
        for row in read_jsonl(source(folder, f"model_answer/{model}.jsonl"))
    }


def _text(model: str, turns: list[str], turn: int) -> Text:
    return Text(text=turns[turn - 1], model=model, extra={"earlier": turns[: turn - 1]} if turn > 1 else {})
