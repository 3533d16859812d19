"""Open formats for human judgements, their readers and writers, and converters of published datasets.

Each dataset has its own module (`mt_bench`, `pluriharms`, …) whose functions take the folder as published by its
authors and return rows in the files' order.
"""

from __future__ import annotations

from fitrouter_evaluators.datasets import (
    halie,
    llm_rubric,
    mt_bench,
    paretobandit,
    personalized_rewardbench,
    pluriharms,
    realhumaneval,
    routellm,
    routerbench,
    ttcw,
)
from fitrouter_evaluators.datasets._formats import KINDS, Cell, Choice, Kind, MatrixRow, Pair, Rating, Row, Text
from fitrouter_evaluators.datasets._reading import Problem, Records, read_choices, read_matrix, read_pairs, read_ratings
from fitrouter_evaluators.datasets._writing import write_jsonl, write_parquet

__all__ = [
    "KINDS",
    "Cell",
    "Choice",
    "Kind",
    "MatrixRow",
    "Pair",
    "Problem",
    "Rating",
    "Records",
    "Row",
    "Text",
    "halie",
    "llm_rubric",
    "mt_bench",
    "paretobandit",
    "personalized_rewardbench",
    "pluriharms",
    "read_choices",
    "read_matrix",
    "read_pairs",
    "read_ratings",
    "realhumaneval",
    "routellm",
    "routerbench",
    "ttcw",
    "write_jsonl",
    "write_parquet",
]
