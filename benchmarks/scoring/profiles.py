"""Accuracy on Personalized RewardBench with, without and with another user's profile (docs/results/reward_pool.md).

python -m benchmarks.scoring.profiles FOLDER --retriever bm25 minilm facebook/contriever-msmarco

FOLDER is the published set (QiyaoMa/Personalized-RewardBench, Apache-2.0), fetched by hand. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from benchmarks.research.profiles import profile_pairs
from benchmarks.research.retrieval import get_retriever

from fitrouter.context.encoders import get_encoder
from fitrouter.types import Floats
from fitrouter_evaluators.datasets import personalized_rewardbench
from fitrouter_evaluators.scoring import Answer


def nothing(answers: Sequence[Answer]) -> Floats:
    return np.zeros(len(answers))


def length(answers: Sequence[Answer]) -> Floats:
    return np.log1p([len(answer.text) for answer in answers])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--retriever", nargs="+", default=["bm25", "minilm"])
    parser.add_argument("--encoder", default="minilm", help="measures nearness of an answer to the retrieved posts")
    parser.add_argument("--limit", type=int, default=0, help="use only so many pairs; 0 for all")
    options = parser.parse_args()
    if not options.folder.is_dir():
        print(f"skipped: there is no folder {options.folder}", file=sys.stderr)
        return 0
    rows = personalized_rewardbench.load(options.folder)
    rows = rows[: options.limit] if options.limit else rows
    encoder = get_encoder(options.encoder)
    out = [
        {"head": head.__name__, **profile_pairs(rows, head, get_retriever(name), encoder=encoder)}
        for name in options.retriever
        for head in (nothing, length)
    ]
    print(json.dumps(out, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
