"""Median microseconds of a decision and its parts, beside those of other libraries.

Imported inside the environment that `policies.py` makes.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.policies._ours import Raw
from benchmarks.policies._peers import PEERS, world

from fitrouter.context.encoders import Cached, get_encoder
from fitrouter.context.features import Reading, context_features, context_names
from fitrouter.hooks import Hooks
from fitrouter.policies import Beliefs, LinearThompson, SquareCB
from fitrouter.posterior.labels import Answered, Label
from fitrouter.routing.breakers import TenantBreakers
from fitrouter.routing.decider import Decider, Rules
from fitrouter.routing.eligibility import Models
from fitrouter.routing.pipeline import Pipeline
from fitrouter.state.learner import Learner
from fitrouter.stores.identities import SqliteIdentities
from fitrouter.types import FeedbackKind, Identity, ModelCard, Request

WORDS = "how are dividends of a foreign company taxed for somebody who moved during the year".split()  # noqa: SIM905


def median_us(call: Callable[[], object], runs: int = 400) -> float:
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return round(1e6 * statistics.median(times), 1)


def speed(args: argparse.Namespace) -> dict[str, Any]:
    """Measure medians on 32 models and 384 dimensions: ours by part, the libraries on the same stream, and ratios."""
    ours = _ours_us()
    peers: dict[str, Any] = {}
    stream = world(384, 32, 400, 0)
    for name, make in {} if args.peers == "none" else PEERS.items():
        peers[name] = _peer_us(make(384, 32, 0), stream)
        print(f"{name}: {peers[name]}", file=sys.stderr, flush=True)
    ratios = {
        name: {
            "decide": round(row["decide_us"] / ours["propose_squarecb_us"], 1),
            "update": round(row["update_us"] / ours["label_us"], 1),
        }
        for name, row in peers.items()
    }
    return {"ours": ours, "peers": peers, "times_ours": ratios, "targets_us": TARGETS}


TARGETS = {
    "pmf_squarecb_us": 25,
    "propose_squarecb_us": 100,
    "propose_linear_thompson_us": 250,
    "label_us": 50,
    "whole_short_us": 1000,
    "whole_long_us": 1000,
}


def _peer_us(peer: Any, stream: Any, limit_s: float = 20.0) -> dict[str, Any]:
    """Measure the medians of a library on a stream, after a warm-up, within a time limit."""
    decide, update, started = [], [], time.perf_counter()
    for t in range(len(stream.x)):
        a = time.perf_counter()
        arm = peer.decide(stream.x[t])
        b = time.perf_counter()
        peer.update(stream.x[t], arm, float(stream.r[t, arm]))
        c = time.perf_counter()
        decide.append(b - a)
        update.append(c - b)
        if c - started > limit_s:
            break
    late = slice(min(100, len(decide) // 4), None)
    return {
        "decide_us": round(1e6 * statistics.median(decide[late]), 1),
        "update_us": round(1e6 * statistics.median(update[late]), 1),
        "rounds": len(decide),
    }


def _ours_us() -> dict[str, Any]:

    K, D = 32, 38
    cards = [ModelCard(name=f"m{k:02d}", provider="p") for k in range(K)]
    learner, xs = _taught(cards, D)
    fit = learner.fit
    rng = np.random.default_rng(1)
    who, name, h = (
        Identity(user="u1", role="r1"),
        str(uuid.UUID(int=7)),
        np.concatenate([[1.0], rng.normal(size=D - 1)]),
    )
    beliefs = fit.estimate(who, xs[0], tuple(card.arm for card in cards), 1e9)
    state = Beliefs(arms=tuple(fit.arms.names), utility=beliefs.mean, sd=beliefs.sd, steps=float(fit.labels))
    wide = Beliefs(arms=state.arms, utility=state.utility * 0.1, sd=np.full(K, 0.5), steps=100.0)
    turn: Iterator[Any] = iter(xs[np.arange(100_000) % len(xs)])
    found: dict[str, Any] = {}
    for policy in (SquareCB(2560.0), LinearThompson(0.3)):
        found[f"pmf_{policy.name}_us"] = median_us(lambda: policy.propose(state))  # noqa: B023 - called at once
        found[f"pmf_{policy.name}_all_alike_us"] = median_us(lambda: policy.propose(wide))  # noqa: B023
        decider = Decider(policy, learner, Rules())
        found[f"propose_{policy.name}_us"] = median_us(lambda: decider.decide(name, 1e9, who, next(turn), cards))  # noqa: B023
    found["estimate_us"] = median_us(lambda: fit.estimate(who, next(turn), state.arms, 1e9))
    raw = Raw(384)
    raw.vector = rng.normal(size=384)
    found["project_384_us"] = median_us(lambda: context_features(Reading(text=""), raw))
    found["label_us"] = median_us(
        lambda: fit.learn(Label(who, Answered("m03", next(turn), h), 1.0, FeedbackKind.THUMB, ts=1e9))
    )
    found["response_us"] = median_us(lambda: fit.arms.observe_response(3, next(turn), h))
    return found | _whole_us(Decider(SquareCB(640.0), learner, Rules()), cards)


def _taught(cards: Any, D: int) -> tuple[Any, Any]:
    """Train a learner on 3,000 answers and as many labels of 50 users; also return contexts, float64[200, d]."""
    rng = np.random.default_rng(0)
    d = len(context_names())
    learner = Learner(d, D)
    fit = learner.fit
    text = rng.normal(size=(200, d - 1))
    xs = np.concatenate([np.ones((200, 1)), text / np.linalg.norm(text, axis=1, keepdims=True)], axis=1)
    for card in cards:
        fit.arms.row(card.arm)
    for n in range(3000):
        k, u = int(rng.integers(len(cards))), int(rng.integers(50))
        h = np.concatenate([[1.0], rng.normal(size=D - 1)])
        x = xs[n % 200]
        fit.arms.observe_response(k, x, h)
        who = Identity(user=f"u{u}", role=f"r{u % 5}")
        liked = float(rng.random() < 0.5 + 0.01 * k)
        fit.learn(Label(who, Answered(cards[k].arm, x, h), liked, FeedbackKind.THUMB, ts=1e9 + n))
    return learner, xs


def _whole_us(decider: Any, cards: Any) -> dict[str, Any]:
    """Measure the time from a request to its decision, with the shipped encoder and a cold cache."""
    learner = decider.learner
    words = WORDS

    def request(n: int, history: int, size: int) -> Request:
        """Make the n-th request, with `history` messages of 2,000 characters and a last turn of `size` words."""
        text = " ".join(words[(n * 7 + i * i) % len(words)] for i in range(size))
        turns = [{"role": ("user", "assistant")[i % 2], "content": f"{i} " + "lorem " * 333} for i in range(history)]
        identity = Identity(user=f"u{n % 50}", role="r1", session=f"s{n}")
        return Request(messages=(*turns, {"role": "user", "content": f"{n} {text}"}), identity=identity)

    async def medians(proposer: Pipeline, requests: list[Request]) -> tuple[float, float]:
        """Return median wall and CPU time; they differ as thread hand-overs wait on a busy machine."""
        walls, processors = [], []
        for one in requests:
            wall, processor = time.perf_counter(), time.process_time()
            await proposer.decide(one)
            walls.append(time.perf_counter() - wall)
            processors.append(time.process_time() - processor)
        # By then all users are known; meeting one writes a file.
        wall, processor = (round(1e6 * statistics.median(times[100:]), 1) for times in (walls, processors))
        return wall, processor

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        identities = SqliteIdentities(Path(folder) / "identities.db")
        encoder = Cached(get_encoder("static"))
        models = Models(cards)
        proposer = Pipeline(
            models=lambda: models,
            aliases={},
            decider=decider,
            learner=learner,
            identities=identities,
            encoder=encoder,
            hooks=Hooks(),
            clock=time.time,
            breakers=TenantBreakers(models.cards, 1.0),
        )
        for name, history, size in (("short", 0, 12), ("page", 0, 600), ("long", 200, 600)):
            requests = [request(n, history, size) for n in range(350)]
            wall, processor = asyncio.run(medians(proposer, requests))
            found |= {f"whole_{name}_us": wall, f"whole_{name}_processor_us": processor}
    return found
