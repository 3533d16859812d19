"""False alarms and power of the propensity audit (docs/results/watch.md). Prints JSON.

Per seed, 100,000 decisions by `Decider` over eight models with a fit that learns a little on the way; then the same
logs with propensities that are wrong by 5 %, in several ways.

python -m benchmarks.monitors.audit --seeds 10 --decisions 100000
"""

from __future__ import annotations

import argparse
import json
import math
import time
import uuid
from collections.abc import Callable

import msgspec
import numpy as np

from fitrouter.monitors.propensities import ALPHA, audit
from fitrouter.policies import SquareCB
from fitrouter.posterior.labels import Answered, Label
from fitrouter.routing.decider import Decider, Rules
from fitrouter.state.learner import Learner
from fitrouter.types import Decision, FeedbackKind, Floats, Identity, ModelCard

K, D_X, D_H = 8, 6, 4
LABELS = 1500
"""Labels from which the fit prefers some models for some prompts."""


def log(seed: int, decisions: int, gamma: float) -> list[Decision]:
    rng = np.random.default_rng([4, seed])
    learner = Learner(D_X, D_H)
    fit = learner.fit
    cards = [ModelCard(name=f"m{k}", provider="p") for k in range(K)]
    for card in cards:
        fit.arms.row(card.arm)
    worth = rng.normal(0.0, 0.15, (K, D_X))
    decider = Decider(SquareCB(gamma), learner, Rules(seed=seed))
    found, every = [], max(decisions // LABELS, 1)
    for t in range(decisions):
        x = np.concatenate([[1.0], rng.normal(0.0, 0.5, D_X - 1)])
        who = Identity(user=f"u{t % 20}", role=f"r{t % 3}")
        decision = decider.decide(str(uuid.UUID(int=seed << 64 | t)), 0.0, who, x, cards)
        found.append(msgspec.structs.replace(decision, features=b""))
        if t % every == 0:
            k = int(decision.chosen[1:])
            liked = rng.random() < 1.0 / (1.0 + math.exp(-float((worth[k] * x).sum())))
            h = np.concatenate([[1.0], rng.normal(size=D_H - 1)])
            fit.arms.observe_response(fit.arms.row(decision.chosen), x, h)
            fit.learn(Label(who, Answered(decision.chosen, x, h), float(liked), FeedbackKind.THUMB))
    return found


def relabel(decision: Decision, probs: Floats) -> Decision:
    probs = probs / probs.sum()
    return msgspec.structs.replace(
        decision,
        probs=tuple(probs.tolist()),
        propensity=float(probs[decision.eligible.index(decision.chosen)]),
        floor=min(decision.floor, float(probs.min()) * K),
    )


def chosen_up(decision: Decision, _seed: int) -> Decision:
    """Alter a decision: the chosen model's probability 5 % too high, the others' too low."""
    q = np.array(decision.probs)
    a = decision.eligible.index(decision.chosen)
    p = min(1.05 * q[a], 0.5 * (1.0 + q[a]))
    q *= (1.0 - p) / (1.0 - q[a])
    q[a] = p
    return relabel(decision, q)


def chosen_down(decision: Decision, _seed: int) -> Decision:
    """Alter a decision: the chosen model's probability 5 % too low, the others' too high."""
    q = np.array(decision.probs)
    a = decision.eligible.index(decision.chosen)
    p = q[a] / 1.05
    q *= (1.0 - p) / (1.0 - q[a])
    q[a] = p
    return relabel(decision, q)


def flatter(decision: Decision, _seed: int) -> Decision:
    """Alter a decision: it was drawn from a pmf 5 % sharper (its 1.05th power) than the logged one."""
    return relabel(decision, np.array(decision.probs) ** (1.0 / 1.05))


def one_arm(decision: Decision, _seed: int) -> Decision:
    """Alter a decision: one model's probability 5 % too low, the rest unchanged, so that the sum is not 1."""
    return msgspec.structs.replace(decision, probs=(0.95 * decision.probs[0], *decision.probs[1:]))


def one_arm_renormalised(decision: Decision, _seed: int) -> Decision:
    """Alter a decision: one model's probability 5 % too low, the others' slightly too high; hardest to detect."""
    q = np.array(decision.probs)
    q[0] *= 0.95
    return relabel(decision, q)


def propensity_only(decision: Decision, _seed: int) -> Decision:
    """Alter a decision: the propensity 5 % too high, the pmf unchanged."""
    return msgspec.structs.replace(decision, propensity=min(1.05 * decision.propensity, 1.0))


ALTERED: tuple[Callable[[Decision, int], Decision], ...] = (
    chosen_up,
    chosen_down,
    flatter,
    one_arm,
    one_arm_renormalised,
    propensity_only,
)


def best_nats(honest: list[Decision], altered: list[Decision]) -> float:
    """Return the expected log growth of the optimal bet, which knows the alteration; the alarm is at 6.9 nats."""
    p, q = (np.array([decision.probs for decision in log]) for log in (honest, altered))
    return float((p * np.log(p / (q / q.sum(axis=1, keepdims=True)))).sum())


def checked(decisions: list[Decision], *, nats: float = math.nan) -> dict[str, object]:
    found = audit(decisions)
    return {
        "best_nats": None if math.isnan(nats) else round(nats, 1),
        "ok": found.ok,
        "violations": found.violations,
        "chi2_p": float(f"{found.chi2_p:.3g}"),
        "mean_inverse": round(found.mean_inverse, 4),
        "peak_log10": {name: round(math.log10(value), 2) for name, value in found.peak.items()},
        "fired_at": found.fired_at,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--altered", type=int, default=3, help="seeds whose logs are altered too")
    parser.add_argument("--decisions", type=int, default=100_000)
    parser.add_argument("--gamma", type=float, default=640.0)
    options = parser.parse_args()
    started = time.monotonic()
    runs: dict[str, list[dict[str, object]]] = {}
    for seed in range(options.seeds):
        honest = log(seed, options.decisions, options.gamma)
        runs.setdefault("honest", []).append(checked(honest))
        for alter in ALTERED if seed < options.altered else ():
            altered = [alter(decision, seed) for decision in honest]
            nats = best_nats(honest, altered) if alter in {flatter, one_arm_renormalised} else math.nan
            runs.setdefault(alter.__name__, []).append(checked(altered, nats=nats))
    summary = {
        name: {
            "seeds": len(found),
            "believed": sum(bool(run["ok"]) for run in found),
            "alarm": sum(run["fired_at"] is not None for run in found),
            "chi2": sum(float(str(run["chi2_p"])) < ALPHA for run in found),
            "invariants": sum(bool(run["violations"]) for run in found),
        }
        for name, found in runs.items()
    }
    report = {"decisions": options.decisions, "gamma": options.gamma, "alpha": ALPHA, "summary": summary, "runs": runs}
    print(json.dumps({**report, "seconds": round(time.monotonic() - started)}, indent=1))


if __name__ == "__main__":
    main()
