"""People's judgements as data: open formats, readers and writers, and converters of published sets.

Each public set has a module of its own (`mt_bench`, `pluriharms`, …) whose functions take the folder of the set as its
authors published it and give rows in the files' order.
"""

from __future__ import annotations

from fitrouter_evaluators.datasets import (
    alpaca,
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
from fitrouter_evaluators.datasets._reading import (
    Problem,
    Records,
    read_choices,
    read_matrix,
    read_pairs,
    read_ratings,
)
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
    "alpaca",
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
