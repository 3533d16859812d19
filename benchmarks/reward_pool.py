"""What reward heads are worth on the recorded pool (docs/results/reward_pool.md). Prints JSON.

python benchmarks/reward_pool.py --pool ../shared/data/alpaca_eval/responses.parquet --out FILE
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from fitrouter.encoders import get_encoder
from fitrouter_evaluators.bench.pool import run_pool
from fitrouter_evaluators.bench.pool_heads import family, simulated_reference
from fitrouter_evaluators.pool import load_pool
from fitrouter_evaluators.reward import ResponseFeatures
from fitrouter_evaluators.worlds import draw_play, load_world

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", type=Path, default=HERE / "../../shared/data/alpaca_eval/responses.parquet")
    parser.add_argument("--world", default="lab-s1")
    parser.add_argument("--users", type=int, default=30, help="measured; the world's others train the prior")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--topics", default="minilm", help="encoder of the world's topics")
    parser.add_argument("--limit", type=int, default=0, help="use only so many prompts; 0 for all")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not options.pool.is_file():
        print(f"skipped: there is no pool {options.pool}", file=sys.stderr)
        return 0
    started = time.monotonic()
    features = ResponseFeatures(get_encoder("static"))
    pool = load_pool(options.pool, get_encoder("static"), features, get_encoder(options.topics), options.limit)
    play = draw_play(load_world(HERE / "worlds" / f"{options.world}.yaml"), pool, options.seed)
    reference = simulated_reference(pool, play, options.users, seed=options.seed)
    print(f"pool: {time.monotonic() - started:.0f} s", file=sys.stderr)
    heads = family(pool, features.names, play, reference, adversary="NullModel", seed=options.seed)
    print(f"heads: {time.monotonic() - started:.0f} s", file=sys.stderr)
    text = json.dumps({"world": options.world, "seed": options.seed, **run_pool(heads, reference)}, indent=1) + "\n"
    print(f"done: {time.monotonic() - started:.0f} s", file=sys.stderr)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
