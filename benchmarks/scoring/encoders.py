"""Reward-head quality and encoding cost by encoder of answers. Prints JSON.

python -m benchmarks.scoring.encoders --data ../shared/data --encoders static minilm-int8 minilm

Each set's own protocol and head (docs/results/encoders.md); costs are in docs/results/scorer.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fitrouter.context.encoders import get_encoder
from fitrouter_evaluators.bench import choices, pairs
from fitrouter_evaluators.datasets import mt_bench

ROOT = Path(__file__).resolve().parents[2]


def mt_bench_votes(data: Path, encoder: str, seeds: int) -> dict[str, float]:
    """Measure MT-bench's votes from the texts alone, without models' names."""
    found = pairs.run_pairs(
        mt_bench.convert(data / "mt_bench_human"),
        encoder,
        seeds=range(seeds),
        ks=(0, 20),
        identity=False,
        shipped=False,
        item=lambda pair: pair.extra["question_id"],
    )
    row = [r for r in found["results"] if (r["row"], r["k"]) == ("hierarchical", 20)]
    return {f"D1 votes, text only, {r['metric']}": r["mean"] for r in row if r["metric"] in {"accuracy", "nll"}}


def choices_in_words(data: Path, encoder: str, seeds: int) -> dict[str, float]:  # noqa: ARG001 - nothing is random here
    """Measure choices by a preference stated in words."""
    found = choices.run_choices(data / "choices" / "declared.jsonl", get_encoder(encoder))
    return {"choices, accuracy": found["accuracy"]["declared"]["mean"]}


SETS: tuple[Callable[[Path, str, int], dict[str, float]], ...] = (
    mt_bench_votes,
    choices_in_words,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=ROOT / "../shared/data")
    parser.add_argument("--encoders", nargs="+", default=["static", "minilm"])
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    if not options.data.is_dir():
        print(f"skipped: there is no folder {options.data}", file=sys.stderr)
        return 0
    out: dict[str, dict[str, float]] = {}
    for encoder in options.encoders:
        for measure in SETS:
            started = time.process_time()
            for name, value in measure(options.data, encoder, options.seeds).items():
                out.setdefault(name, {})[encoder] = round(float(value), 4)
            print(f"{encoder}, {measure.__name__}: {time.process_time() - started:.0f} s of CPU", file=sys.stderr)
    print(json.dumps(out, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
