"""What a decision and a label cost: medians in microseconds, by number of models. Prints JSON."""

from __future__ import annotations

import json
import statistics
import time
import uuid

import numpy as np

from fitrouter.decide import Decider, Rules
from fitrouter.encoders import Static
from fitrouter.features import context_features, context_names, read_prompt
from fitrouter.fit import Answered, Fit, Label
from fitrouter.policies import SquareCB
from fitrouter.types import FeedbackKind, Identity, ModelCard, Request

D_H = 38
PROMPT = "How are dividends of a foreign company taxed for a person who moved during the year? " * 12


def median_us(call: object, runs: int = 400) -> float:
    assert callable(call)
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return round(1e6 * statistics.median(times), 1)


def main() -> None:
    encoder = Static()
    request = Request(messages=({"role": "user", "content": PROMPT},))
    found: dict[str, object] = {
        "read_and_encode_us": median_us(lambda: context_features(read_prompt(request), encoder))
    }
    rng = np.random.default_rng(0)
    d = len(context_names())
    for K in (2, 8, 32):
        fit = Fit(d, D_H)
        cards = [ModelCard(name=f"m{k:02d}", provider="p") for k in range(K)]
        for card in cards:
            fit.arms.row(card.arm)
        decider = Decider(SquareCB(640.0), fit, Rules())
        who, x, h = Identity(user="u", role="r"), rng.normal(size=d), rng.normal(size=D_H)
        label = Label(who, Answered("m00", x, h), 1.0, FeedbackKind.THUMB)
        name = str(uuid.UUID(int=7))
        found[f"K={K}"] = {
            "decide_us": median_us(lambda: decider.decide(name, 0.0, who, x, cards)),  # noqa: B023 - called at once
            "response_us": median_us(lambda: fit.arms.observe_response(1, x, h)),  # noqa: B023
            "label_us": median_us(lambda: fit.learn(label)),  # noqa: B023
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
