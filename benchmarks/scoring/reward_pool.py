"""Routing and best-of-N quality of reward heads on the recorded pool (docs/results/reward_pool.md). Prints JSON.

python -m benchmarks.scoring.reward_pool --pool ../shared/data/alpaca_eval/responses.parquet --out FILE

About three minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks.research.context import draw_setting, run_context
from benchmarks.research.pool import run_pool, run_pools
from benchmarks.research.pool_heads import family, simulated_reference
from benchmarks.research.pool_votes import vote_family, vote_pool

from fitrouter.context.encoders import get_encoder
from fitrouter_evaluators.datasets import mt_bench
from fitrouter_evaluators.scoring import ResponseFeatures, global_scalar
from fitrouter_evaluators.simulation.pool import load_pool
from fitrouter_evaluators.simulation.worlds import draw_play, load_world

ROOT = Path(__file__).resolve().parents[2]
PRINTED = ("global", "style only", "personal, k = 2", "personal, k = 50")
"""Heads whose routing is printed seed by seed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", type=Path, default=ROOT / "../shared/data/alpaca_eval/responses.parquet")
    parser.add_argument("--votes", type=Path, default=ROOT / "../shared/data/mt_bench_human")
    parser.add_argument("--world", default="lab-s1")
    parser.add_argument("--users", type=int, default=20, help="measured in a seed; the world's others train the prior")
    parser.add_argument("--seeds", type=int, default=4, help="of the world, and of where tastes apply")
    parser.add_argument("--topics", default="minilm", help="encoder of the world's topics")
    parser.add_argument("--limit", type=int, default=0, help="use only so many prompts; 0 for all")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not options.pool.is_file():
        print(f"skipped: there is no pool {options.pool}", file=sys.stderr)
        return 0
    started = time.process_time()
    features = ResponseFeatures(get_encoder("static"), scalar=global_scalar(get_encoder("static")))
    pool = load_pool(options.pool, get_encoder("static"), features, get_encoder(options.topics), options.limit)
    world = load_world(ROOT / "benchmarks/simulation/worlds" / f"{options.world}.yaml")
    pools = []
    for seed in range(options.seeds):
        play = draw_play(world, pool, seed)
        reference = simulated_reference(pool, play, options.users, seed=seed)
        pools.append((family(pool, features.names, play, reference, adversary="NullModel", seed=seed), reference))
    print(f"{time.process_time() - started:.0f} s of CPU: pool and heads", file=sys.stderr)
    measured = run_pools(pools)
    by_seed = [run_pool({name: heads[name] for name in PRINTED}, one, resamples=2) for heads, one in pools]
    measured["routing_regret_by_seed"] = {
        name: [one["heads"][name]["routing_regret"][0] for one in by_seed] for name in PRINTED
    }
    print(f"{time.process_time() - started:.0f} s of CPU: heads measured", file=sys.stderr)
    context = run_context(lambda kind, seed: draw_setting(pool, world, kind, 60, seed), seeds=range(options.seeds))
    print(f"{time.process_time() - started:.0f} s of CPU: context measured", file=sys.stderr)
    votes = {}
    if options.votes.is_dir():
        crowd = vote_pool(mt_bench.convert(options.votes))
        votes = run_pool(vote_family(crowd, features, get_encoder("static")), crowd.reference)
    print(f"{time.process_time() - started:.0f} s of CPU: votes measured", file=sys.stderr)
    out = {"world": options.world, "seeds": options.seeds, "pool": measured, "votes": votes, "context": context}
    text = json.dumps(out, indent=1) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
