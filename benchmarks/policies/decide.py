"""CPU microseconds of a decision and a label on one core, by number of models. Prints JSON.

Processor time, the best of some rounds, so that what else the machine does counts little; labels go round all models,
as in life, and `same_label_us` is one label again and again. The whole of `decide` is what is logged: fit, cost,
latency, personal terms, sd, floor, eligibility by cards, the twin, and the draw.
"""

from __future__ import annotations

import gc
import itertools
import json
import sys
import time
import uuid
from collections.abc import Callable

import numpy as np

from fitrouter.config import PolicyConfig
from fitrouter.context.encoders import Static
from fitrouter.context.features import context_features, context_names, read_prompt
from fitrouter.policies import build_policy
from fitrouter.posterior.labels import Answered, Label
from fitrouter.routing.decider import Decider, Rules
from fitrouter.state.learner import Learner
from fitrouter.types import FeedbackKind, Identity, ModelCard, Request

D_H = 38
PROMPT = "How are dividends of a foreign company taxed for a person who moved during the year? " * 12


def cpu_us(call: Callable[[], object], runs: int = 300, rounds: int = 7) -> float:
    best = float("inf")
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(runs):
            call()
        best = min(best, (time.process_time() - started) / runs)
    return round(1e6 * best, 1)


def lived(d: int, K: int, rng: np.random.Generator) -> tuple[Learner, list[Label]]:
    """Return a learner after some hundred labels, and labels to go on with."""
    learner, who = Learner(d, D_H), Identity(user="u", role="r")
    fit = learner.fit
    labels = []
    for i in range(10 * K):
        x, h = rng.normal(size=d) * 0.3, rng.normal(size=D_H)
        x[0] = h[0] = 1.0
        answer = Answered(f"m{i % K:02d}", x, h)
        fit.arms.observe_response(fit.arms.row(answer.arm), x, h)
        labels.append(Label(who, answer, float(rng.integers(2)), FeedbackKind.THUMB))
    for label in labels:
        fit.learn(label)
    return learner, labels


def main() -> None:
    encoder = Static()
    request = Request(messages=({"role": "user", "content": PROMPT},))
    found: dict[str, object] = {"read_and_encode_us": cpu_us(lambda: context_features(read_prompt(request), encoder))}
    rng, d, name = np.random.default_rng(0), len(context_names()), str(uuid.UUID(int=7))
    for K in [int(argument) for argument in sys.argv[1:]] or [3, 32, 512]:
        learner, labels = lived(d, K, rng)
        fit = learner.fit
        cards = [ModelCard(name=f"m{k:02d}", provider="p") for k in range(K)]
        names = tuple(card.arm for card in cards)
        decider, rounds = Decider(build_policy(PolicyConfig().algorithm), learner, Rules()), itertools.cycle(labels)
        who, answer = labels[0].identity, labels[0].answer
        x, h = answer.x, answer.h
        assert h is not None
        calls: dict[str, Callable[[], object]] = {
            "decide_us": lambda: decider.decide(name, 0.0, who, x, cards),  # noqa: B023 - called at once
            "estimate_us": lambda: fit.estimate(who, x, names, 0.0),  # noqa: B023
            "response_us": lambda: fit.arms.observe_response(1, x, h),  # noqa: B023
            "label_us": lambda: fit.learn(next(rounds)),  # noqa: B023
            "same_label_us": lambda: fit.learn(labels[0]),  # noqa: B023
        }
        gc.collect()
        gc.freeze()  # as a gateway does
        found[f"K={K}"] = {what: cpu_us(call) for what, call in calls.items()}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
