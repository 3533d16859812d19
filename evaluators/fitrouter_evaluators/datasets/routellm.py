"""RouteLLM's evaluation data (Ong et al. 2024, arXiv:2406.18665; Apache-2.0): two models' answers, judged.

MMLU (`mmlu/*.csv`: prompt and whether each model was right), GSM8K (`gsm8k_responses.csv`: the same with the answers)
and MT-bench (`mt_bench_judgements.jsonl`: a judge's score of 1 to 10 per question, turn and model). The files hold no
costs; these are estimated from the texts, four characters a token, at the paper's mean prices.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fitrouter.errors import ConfigError
from fitrouter_evaluators.datasets._formats import Cell, MatrixRow
from fitrouter_evaluators.datasets._sources import read_jsonl, read_table, source

PRICES = {"gpt-4-1106-preview": 24.7, "mistralai/Mixtral-8x7B-Instruct-v0.1": 0.24}
"""Model → USD per million tokens."""
_CHARACTERS = 4.0
_SUFFIX = "_response"


def convert(folder: str | os.PathLike[str], prices: Mapping[str, float] = PRICES) -> list[MatrixRow]:
    """Convert all three sets; `source` names the set."""
    return [*convert_mmlu(folder, prices), *convert_gsm8k(folder, prices), *convert_mt_bench(folder, prices)]


def convert_mmlu(folder: str | os.PathLike[str], prices: Mapping[str, float] = PRICES) -> list[MatrixRow]:
    """Convert MMLU by subject, in each file's order; `source` is `mmlu/<subject>`, an answer is one letter."""
    files = sorted((Path(folder) / "mmlu").glob("mmlu_*.csv"))
    if not files:
        raise ConfigError(
            f"{str(folder)!r} has no 'mmlu/mmlu_*.csv'; give the folder of the set as its authors published it"
        )
    return [
        _judged(row, f"mmlu/{file.stem.removeprefix('mmlu_')}", prices) for file in files for row in read_table(file)
    ]


def convert_gsm8k(folder: str | os.PathLike[str], prices: Mapping[str, float] = PRICES) -> list[MatrixRow]:
    """Convert GSM8K with the models' answers, in the file's order; `source` is `gsm8k`."""
    return [_judged(row, "gsm8k", prices) for row in read_table(source(folder, "gsm8k_responses.csv"))]


def convert_mt_bench(folder: str | os.PathLike[str], prices: Mapping[str, float] = PRICES) -> list[MatrixRow]:
    """Convert MT-bench by question and turn; the reward is the judge's score / 10, `source` is `mt_bench`.

    Of the second turn both questions are the prompt. `extra` has question_id and turn.
    """
    prompts: dict[tuple[int, int], str] = {}
    cells: dict[tuple[int, int], dict[str, Cell]] = {}
    for row in read_jsonl(source(folder, "mt_bench_judgements.jsonl")):
        key = int(row["question_id"]), int(row["turn"])
        prompt, answer = _conversation(row["user_prompt"], key[1])
        prompts.setdefault(key, prompt)
        cost = _cost(prices.get(row["model"]), prompt, answer)
        cells.setdefault(key, {})[row["model"]] = Cell(
            reward=float(row["score"]) / 10.0, cost_usd=cost, response=answer
        )
    return [
        MatrixRow(
            prompt=prompts[key],
            models=found,
            source="mt_bench",
            extra={"question_id": key[0], "turn": key[1]},
        )
        for key, found in sorted(cells.items())
    ]


def _judged(row: Mapping[str, str], name: str, prices: Mapping[str, float]) -> MatrixRow:
    """Convert a line whose columns are the prompt, each model's True or False, and perhaps their answers."""
    models = [column for column in row if column != "prompt" and not column.endswith(_SUFFIX)]
    cells = {}
    for model in models:
        answer = row.get(model + _SUFFIX)
        cost = _cost(prices.get(model), row["prompt"], answer or "A")
        cells[model] = Cell(reward=float(row[model].strip().lower() in {"true", "1"}), cost_usd=cost, response=answer)
    return MatrixRow(prompt=row["prompt"], models=cells, source=name)


def _cost(price: float | None, prompt: str, answer: str) -> float | None:
    return None if price is None else price * (len(prompt) + len(answer)) / _CHARACTERS / 1e6


def _conversation(text: str, turn: int) -> tuple[str, str]:
    """Extract (the user's questions, the answer of the turn) from the prompt that the judge was shown."""
    if turn == 1:
        question = text.partition("[Question]\n")[2].partition("\n\n[The Start of")[0]
        answer = text.partition("[The Start of Assistant's Answer]\n")[2].rpartition("\n[The End of Assistant's")[0]
        return question, answer
    told = text[text.rindex("<|The Start of Assistant A's Conversation with User|>") :]
    turns = told.split("### User:\n")[1:]
    asked = [part.split("\n\n### Assistant A:\n")[0] for part in turns]
    answer = turns[-1].split("\n\n### Assistant A:\n")[-1].split("\n\n<|The End of Assistant A")[0]
    return "\n\n".join(asked), answer
