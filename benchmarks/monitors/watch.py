"""False alarms and detection delay of the monitors (docs/results/watch.md). Prints JSON.

python -m benchmarks.monitors.watch --streams 200

Streams are synthetic; docs/results/personal_pool.md has the personalisation monitor on simulated users.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable

import numpy as np

from fitrouter.monitors.personalisation import PersonalisationMonitor
from fitrouter.monitors.reward_bias import RewardBiasMonitor

K, LABELS = 8, 2000


def flattery_stream(seed: int, sd: float, flatterer: float, noise: float) -> tuple[int, int, float]:
    """Simulate one stream; return the label at which an arm's alarm rang or −1, the arm, and its true excess.

    Eight arms whose c_k has the given sd, most of the traffic on few of them, and an initial error of the common level.
    The arm with reward-model bias is arm 0.
    """
    rng = np.random.default_rng([1, seed])
    excess = rng.normal(0.0, sd, K)
    shares = 0.85 * rng.dirichlet(np.full(K, 0.5)) + 0.15 / K
    if flatterer:
        excess[0] = flatterer
        shares = 0.7 * shares + 0.3 * np.eye(K)[0]
    arms, luck = rng.choice(K, LABELS, p=shares), rng.normal(0.0, noise, LABELS)
    flattery, seen = RewardBiasMonitor(), np.zeros(K, dtype=int)
    for t in range(LABELS):
        k = int(arms[t])
        seen[k] += 1
        if flattery.observe(f"m{k}", None, None, float(excess[k] + luck[t] + 0.2 * math.exp(-t / 60))):
            if flatterer and k:
                continue
            return int(seen[k]), k, float(excess[k] - np.delete(excess, k).mean())
    return -1, -1, math.nan


def flattery(streams: int) -> dict[str, object]:
    honest, found = [], []
    for sd in (0.0, 0.05, 0.1, 0.17):
        runs = [flattery_stream(seed, sd, 0.0, 0.25) for seed in range(streams)]
        rang = [run for run in runs if run[0] >= 0]
        honest.append(
            {
                "sd of c_k": sd,
                "streams": streams,
                "alarm": round(len(rang) / streams, 3),
                "true excess of the flagged": sorted(round(run[2], 2) for run in rang),
            }
        )
    for sd, by, noise in ((0.05, 0.3, 0.25), (0.05, 0.4, 0.25), (0.1, 0.4, 0.25), (0.1, 0.5, 0.25), (0.05, 0.4, 0.45)):
        runs = [flattery_stream(10_000 + seed, sd, by, noise) for seed in range(streams // 2)]
        labels = sorted(run[0] for run in runs if run[0] >= 0)
        found.append(
            {
                "sd of c_k": sd,
                "flatters by": by,
                "sd of a residual": noise,
                "streams": len(runs),
                "found": round(len(labels) / len(runs), 3),
                "labels, quartiles": np.quantile(labels, [0.25, 0.5, 0.75]).round().tolist() if labels else [],
            }
        )
    return {"labels": LABELS, "honest": honest, "flatterer": found}


def foresight(seed: int, labels: int, real: Callable[[int], float]) -> tuple[bool, int]:
    """Simulate one stream; return whether "helps" was ever reported, and the label of the switch-off or −1."""
    rng, twin = np.random.default_rng([2, seed]), PersonalisationMonitor()
    blind = np.clip(rng.normal(0.6, 0.15, labels), 0.05, 0.95)
    terms, luck = rng.normal(0.0, 0.13, labels), rng.random(labels)
    helped, off = False, -1
    for t in range(labels):
        y, b, term = float(luck[t] < blind[t] + real(t) * terms[t]), float(blind[t]), float(terms[t])
        twin.observe_prediction("", y=y, blind=b, term=term)
        helped = helped or twin.report().verdict == "helps"  # type: ignore[union-attr]
        if off < 0 and twin.off():
            off = t
    return helped, off


WORLDS: dict[str, Callable[[int], float]] = {
    "nothing real (S = 0)": lambda _t: 0.0,
    "a quarter real": lambda _t: 0.25,
    "half real": lambda _t: 0.5,
    "all real": lambda _t: 1.0,
    "turns every 300 labels, −.6 then +.6": lambda t: -0.6 if t % 300 < 150 else 0.6,
    "real for 1,500 labels, then half against": lambda t: 1.0 if t < 1500 else -0.5,
}


def twin(streams: int, labels: int = 3000) -> list[dict[str, object]]:
    rows = []
    for name, real in WORLDS.items():
        runs = [foresight(seed, labels, real) for seed in range(streams)]
        offs = sorted(off for _, off in runs if off >= 0)
        rows.append(
            {
                "world": name,
                "streams": streams,
                "labels": labels,
                "helps ever": round(sum(helped for helped, _ in runs) / streams, 3),
                "off": round(len(offs) / streams, 3),
                "off at, quartiles": np.quantile(offs, [0.25, 0.5, 0.75]).round().tolist() if offs else [],
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--only", choices=("flattery", "twin"))
    options = parser.parse_args()
    started = time.monotonic()
    report: dict[str, object] = {}
    if options.only != "twin":
        report["flattery"] = flattery(options.streams)
    if options.only != "flattery":
        report["twin"] = twin(options.streams // 2)
    print(json.dumps({**report, "seconds": round(time.monotonic() - started)}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
