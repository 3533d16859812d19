"""Throughput and latency of encoders, heads, updates and whole answers, beside the device's limit. Prints JSON.

Needs msgspec, pydantic, cryptography, torch, numpy and sentence-transformers, so that it runs on a bare GPU machine:

    PYTHONPATH=router:evaluators python -m benchmarks.scoring.scorer --device cuda --users 1000000

Rows of MiniLM are null where its weights or the int8 file are missing.
Machines are shared: compared things are measured in turns, in wall and CPU time, of which the latter is less noisy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.scoring.batched import BatchedTastes
from benchmarks.scoring.reward_model import reward_model

from fitrouter.context.encoders import Encoder, Static, get_encoder
from fitrouter.draw import uuid7
from fitrouter.errors import FitrouterError
from fitrouter.hooks import Hooks
from fitrouter.plain import pack
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.serving.services import Service
from fitrouter.stores.content import pack_content
from fitrouter.stores.identities import SqliteIdentities
from fitrouter.stores.journal import Entry, SqliteJournal
from fitrouter.types import Execution, Floats, Identity, Score, encode_event
from fitrouter_evaluators.scoring import Answer, DeviceHeads, ResponseFeatures, global_scalar
from fitrouter_evaluators.scoring.head_store import HeadStore
from fitrouter_evaluators.scoring.scorer import BatchHeads, RewardHeads, Scorer

ROWS = ("heads", "updates", "transformer", "reward_model", "encoders")
TOKENS = 256
D = 32
SENTENCES = (
    "The court held that a company may deduct interest on such loans, but it depends on their purpose.",
    "For example, 25% of the cases in the study were settled within three weeks (2019).",
    "You could also ask your bank whether the account would be closed after a year.",
    "First, melt 50 g of butter in a pan; then add the flour and stir until it is smooth.",
    "I'm not certain, however, that this holds for every version of the library.",
    "Photosynthesis turns carbon dioxide and water into sugar and oxygen, driven by light.",
    "According to Dr. Meyer, sleep of less than six hours often harms memory.",
    "Therefore the integral converges, since the terms fall faster than 1/n squared.",
    "\n- **Budget**: set aside ten dollars a day for food and transport.",
    "\n1. Open the settings, choose Network, and restart the router.",
    "\n\n## What to do next\n",
    "Is there anything else that you would like to know about the museum?",
)


def answers(n: int, seed: int = 0) -> list[str]:
    """Make n different texts of about 256 WordPieces each."""
    draw, tokenizer = random.Random(seed), Static()._tokenizer
    lengths = [len(tokenizer.encode(sentence).ids) for sentence in SENTENCES]
    texts = []
    for i in range(n):
        parts, left = [f"Answer {i}."], TOKENS - 4
        while left > 0:
            k = draw.randrange(len(SENTENCES))
            parts.append(SENTENCES[k])
            left -= lengths[k]
        texts.append(" ".join(parts))
    return texts


def prompt(i: int) -> str:
    """Make a unique prompt of about 40 WordPieces."""
    return f"Question {i}: {SENTENCES[i % 8]} {SENTENCES[(i // 8) % 8]} How is this done where I live?"


def response_features(encoder: Encoder) -> ResponseFeatures:
    """Create the gateway's features, with empty caches and everything loaded."""
    features = ResponseFeatures(encoder, scalar=global_scalar(encoder), cache=16)
    features.encode([Answer(text="The first answer loads what is loaded late.")])
    return features


# --- timing ---


class Clock:
    """Stopwatch of CPU or GPU seconds, after synchronisation."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._now = time.perf_counter if device == "cuda" else time.process_time

    def once(self, call: Callable[[], object]) -> float:
        """Measure the seconds of one call."""
        self._wait()
        started = self._now()
        call()
        self._wait()
        return self._now() - started

    def in_turns(self, *calls: Callable[[], object], runs: int = 15) -> list[float]:
        """Measure the median seconds of each call, taking turns."""
        for call in calls:
            self.once(call)
        rows = [[self.once(call) for call in calls] for _ in range(runs)]
        return [statistics.median(column) for column in zip(*rows, strict=True)]

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def quantile_ms(seconds: Sequence[float], q: float) -> float:
    return round(1e3 * float(np.quantile(seconds, q)), 2)


# --- the device ---


def limits(clock: Clock) -> dict[str, Any]:
    """Measure the device's copy bandwidth (bytes read and written) and matrix rate."""
    big = clock.device == "cuda"
    source = torch.empty(2**30 if big else 2**26, dtype=torch.float32, device=clock.device).normal_()
    target, side = torch.empty_like(source), 8192 if big else 1024
    (copy,) = clock.in_turns(lambda: target.copy_(source), runs=9)
    rates = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        a = torch.randn(side, side, device=clock.device).to(dtype)
        (seconds,) = clock.in_turns(lambda a=a: a @ a, runs=9)  # type: ignore[misc]
        rates[name] = round(2 * side**3 / seconds / 1e12, 3)
    return {"copy_gb_s": round(2 * source.nbytes / copy / 1e9, 2), "matrix_tflop_s": rates}


# --- heads and updates ---


def heads(clock: Clock, users: int, d: int, candidates: int, copy_gb_s: float) -> dict[str, Any]:
    """Measure mean and variance of every user's candidates, users in random order."""
    store = HeadStore(d, clock.device, users)
    store.reserve(users)
    store._means.normal_()
    store._covs.normal_().mul_(0.01)
    slots = torch.randperm(users, device=clock.device)
    h = torch.randn((users, candidates, d), device=clock.device)
    state = [store._means, store._covs]
    copies = [torch.empty_like(part) for part in state]

    def copy() -> None:
        for target, source in zip(copies, state, strict=True):
            target.copy_(source)

    scored, copied = clock.in_turns(lambda: store.score(slots, h), copy)
    held = sum(part.nbytes for part in state)
    return {
        "users": users,
        "d": d,
        "candidates": candidates,
        "fused": store.fused is not None,
        "heads_s": round(users * candidates / scored),
        "ms": round(1e3 * scored, 3),
        "copy_of_the_state_ms": round(1e3 * copied, 3),
        "times_copy": round(scored / copied, 2),
        "share_of_copy_bandwidth": round(held / scored / 1e9 / copy_gb_s, 3),
    }


def updates(clock: Clock, users: int, d: int, noise: float | None) -> dict[str, Any]:
    """Measure one observation of every user, users in random order; float64."""
    rng = np.random.default_rng(0)
    tastes = BatchedTastes.prior(Gaussian(np.zeros(d), np.eye(d)), users, clock.device)
    people, h, y = rng.permutation(users), rng.normal(size=(users, d)), rng.integers(0, 2, users).astype(float)
    state = [tastes.mean, tastes.cov]
    copies = [torch.empty_like(part) for part in state]

    def copy() -> None:
        for target, source in zip(copies, state, strict=True):
            target.copy_(source)

    learnt, copied = clock.in_turns(lambda: tastes.learn(people, h, y, noise=noise), copy)
    return {
        "users": users,
        "d": d,
        "link": "logistic" if noise is None else "gaussian",
        "updates_s": round(users / learnt),
        "ms": round(1e3 * learnt, 3),
        "copy_of_the_state_ms": round(1e3 * copied, 3),
        "times_copy": round(learnt / copied, 2),
    }


# --- encoders ---


def known_encoder(name: str, device: str) -> Encoder | None:
    try:
        return get_encoder(name, device)
    except FitrouterError as error:
        sys.stderr.write(f"{name}: {error}\n")
        return None


def encoder_rate(encoder: Encoder, texts: list[str]) -> dict[str, Any]:
    """Measure texts a second, tokenising included."""
    encoder.encode(texts[:8])
    wall, cpu = time.perf_counter(), time.process_time()
    encoder.encode(texts)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"texts_s": round(len(texts) / wall, 1), "texts_per_cpu_s": round(len(texts) / cpu, 1)}


def cosines(a: Encoder, b: Encoder, texts: list[str]) -> dict[str, float]:
    """Compute the similarity of two encoders' vectors."""
    found = np.einsum("ij,ij->i", a.encode(texts), b.encode(texts))
    return {"texts": len(texts), "mean": round(float(found.mean()), 4), "min": round(float(found.min()), 4)}


def transformer(clock: Clock, matrix: dict[str, float]) -> dict[str, Any]:
    """Measure a random network of MiniLM's shape on token ids, relative to the matrix rate."""
    from transformers import BertConfig, BertModel

    layers, hidden, inner = 6, 384, 1536
    shape: dict[str, Any] = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": inner}
    model = BertModel(BertConfig(num_attention_heads=12, **shape), add_pooling_layer=False).eval().to(clock.device)
    half = clock.device == "cuda"
    model = model.half() if half else model
    flop = layers * TOKENS * (8 * hidden**2 + 4 * hidden * inner + 4 * TOKENS * hidden)
    out: dict[str, Any] = {"dtype": "float16" if half else "float32", "gflop_a_text": round(flop / 1e9, 2)}
    limit = matrix["bfloat16" if half else "float32"]
    with torch.inference_mode():
        for n in (256, 1024, 4096) if half else (1, 16):
            ids = torch.randint(1000, 30000, (n, TOKENS), device=clock.device)
            mask = torch.ones_like(ids)
            (seconds,) = clock.in_turns(lambda: model(ids, attention_mask=mask), runs=5)  # noqa: B023
            share = flop * n / seconds / 1e12 / limit
            out[f"batch_{n}"] = {"texts_s": round(n / seconds, 1), "share_of_matrix_rate": round(share, 3)}
    return out


# --- whole answers ---


class Population:
    """Tastes in three blocks as in the learner: population, one of eight roles, the user."""

    def __init__(self, d: int, number: dict[str, int] | None = None, users: int = 200) -> None:
        self.number = number
        rng = np.random.default_rng(0)
        made = [Gaussian.prior(rng.normal(size=d) * 0.1, rng.uniform(0.01, 0.1, d)) for _ in range(9 + users)]
        self.population, self.roles, self.users = made[0], made[1:9], made[9:]

    def tastes(self, identity: Identity) -> list[Gaussian]:
        """Return the blocks of one user."""
        k = self.number.get(identity.user or "", 0) if self.number else int(identity.user or 0)
        return [self.population, self.roles[k % 8], self.users[k % len(self.users)]]

    def score(self, identity: Identity, h: Floats) -> tuple[float, float]:
        """Return mean and standard deviation of a score, computed as in the learner."""
        h = np.where(np.isnan(h), 0.0, h)
        mean = variance = 0.0
        for block in self.tastes(identity):
            mean += float(np.einsum("i,i->", h, block.mean))
            variance += float(np.einsum("i,i->", h, block.gain(h)))
        return mean, float(np.sqrt(max(variance, 0.0)))

    def heads(self, device: str) -> RewardHeads:
        """Return the gateway's heads: this object itself on a CPU."""
        d = len(self.population.mean)
        return self if device == "cpu" else DeviceHeads(self.tastes, d, device)


def in_memory(texts: list[str], encoder: Encoder, device: str, batch: int) -> dict[str, Any]:
    """Measure scoring of texts in batches: features, heads, and making and encoding the Score event."""
    features = response_features(encoder)
    scoring = Population(features.dim).heads(device)
    who = [Identity(tenant="t", user=str(i), role="cook") for i in range(len(texts))]
    size, spent = 0, {"features": 0.0, "heads": 0.0, "event": 0.0}
    started, cpu = time.perf_counter(), time.process_time()
    for begin in range(0, len(texts), batch):
        part = slice(begin, begin + batch)
        a = time.perf_counter()
        h = features.encode([Answer(text=text, prompt=prompt(begin + i)) for i, text in enumerate(texts[part])])
        b = time.perf_counter()
        if isinstance(scoring, BatchHeads):
            means, sds = scoring.score_many(who[part], h)
        else:
            means, sds = np.array([scoring.score(*one) for one in zip(who[part], h, strict=True)]).T
        c = time.perf_counter()
        for identity, row, mean, sd in zip(who[part], h, means, sds, strict=True):
            size += len(encode_event(event(identity, row, float(mean), float(sd), features)))
        for name, seconds in zip(spent, (b - a, c - b, time.perf_counter() - c), strict=True):
            spent[name] += seconds
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    return {
        "answers_s": round(len(texts) / wall, 1),
        "answers_per_cpu_s": round(len(texts) / cpu, 1),
        "us_an_answer": {name: round(1e6 * seconds / len(texts), 1) for name, seconds in spent.items()},
        "bytes_an_event": round(size / len(texts)),
    }


def event(identity: Identity, row: Floats, mean: float, sd: float, features: ResponseFeatures) -> Score:
    return Score(
        id=uuid7(time.time()),
        ts=time.time(),
        decision_id=uuid7(time.time()),
        identity=identity,
        served_by="m@1",
        features=pack(np.zeros(60)),
        h=pack(row),
        schema=features.schema,
        encoder=features.encoder.id,
        mean=mean,
        sd=sd,
    )


class Spool:
    """A journal on disk with encrypted answers, and a scorer over it."""

    def __init__(self, folder: Path, encoder: Encoder, device: str, batch: int) -> None:
        self.journal = SqliteJournal(folder / "journal.db")
        self.identities = SqliteIdentities(folder / "identities.db")
        self.subjects = [self.identities.subject("t", str(i)) for i in range(50)]
        self.done: dict[str, float] = {}
        features = response_features(encoder)
        number = {subject: i for i, subject in enumerate(self.subjects)}
        heads = Population(features.dim, number).heads(device)
        self.scorer = Scorer(
            self.journal,
            self.identities,
            features,
            heads,
            batch=batch,
            happened=lambda score: self.done.update({score.decision_id: time.perf_counter()}),
        )

    def entry(self, i: int, text: str) -> Entry:
        """Make the entry of an answer of user i, with its encrypted text."""
        subject = self.subjects[i % len(self.subjects)]
        content = pack_content(prompt(i), {"role": "assistant", "content": text})
        execution = Execution(
            id=uuid7(time.time()),
            ts=time.time(),
            decision_id=uuid7(time.time()),
            identity=Identity(tenant="t", user=subject, role="cook"),
            chosen="m@1",
            served_by="m@1",
            status="ok",
            features=pack(np.zeros(60)),
        )
        return Entry(execution, self.identities.encrypt(subject, content))

    def close(self) -> None:
        """Close the stores."""
        self.journal.close()
        self.identities.close()


def from_spool(texts: list[str], encoder: Encoder, device: str, batch: int) -> dict[str, Any]:
    """Measure scoring from the content spool: read, decrypt, score, append durably; SQLite on disk."""
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder), encoder, device, batch)
        for i, text in enumerate(texts):
            appended = spool.journal.append(spool.entry(i, text))
        appended.result()
        sizes, wall, cpu = [], time.perf_counter(), time.process_time()
        while took := spool.scorer.step():
            sizes.append(took)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        spool.close()
    n = sum(sizes)
    return {
        "answers_s": round(n / wall, 1),
        "answers_per_cpu_s": round(n / cpu, 1),
        "steps": len(sizes),
        "largest_step": max(sizes),
    }


def alone(texts: list[str], encoder: Encoder, device: str, batch: int) -> dict[str, Any]:
    """Measure one answer at a time, from its Execution's durability to its Score's; the service looks every 20 ms."""
    draw, waits = random.Random(0), []
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder), encoder, device, batch)
        service = Service("scorer", spool.scorer.step, Hooks(), idle_s=0.02)
        service.start()
        for i, text in enumerate(texts):
            entry = spool.entry(i, text)
            spool.journal.append(entry).result()
            started = time.perf_counter()
            while entry.event.decision_id not in spool.done:
                time.sleep(0.0005)
            waits.append(spool.done[entry.event.decision_id] - started)
            time.sleep(draw.uniform(0.0, 0.03))
        service.stop()
        spool.close()
    return {"answers": len(waits), "p50_ms": quantile_ms(waits, 0.5), "p99_ms": quantile_ms(waits, 0.99)}


def whole(name: str, device: str, n: int, batch: int) -> dict[str, Any] | None:
    encoder = known_encoder(name, device)
    if encoder is None:
        return None
    texts = answers(n)
    return {
        "encoder": encoder_rate(encoder, texts),
        "in_memory": in_memory(texts, encoder, device, batch),
        "from_spool": from_spool(texts, encoder, device, batch),
        "alone": alone(answers(min(n, 300), 1), encoder, device, batch),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--users", type=int, help="users of the heads; 10,000 on a CPU, a million on a GPU")
    parser.add_argument("--threads", type=int, default=1, help="cores that torch may take on a CPU")
    parser.add_argument(
        "--answers", type=int, default=2000, help="answers of the end-to-end rows; a 20th for MiniLM on a CPU"
    )
    parser.add_argument("--encoders", nargs="*", default=["static", "minilm-int8", "minilm"])
    parser.add_argument("--rows", nargs="*", default=ROWS, choices=ROWS, help="parts to measure")
    parser.add_argument("--usd-per-hour", type=float, default=3.0, help="price of the machine, for reward_model")
    parser.add_argument("--json", type=Path, help="also write it here")
    given = parser.parse_args()
    cuda = torch.cuda.is_available() if given.device == "auto" else given.device == "cuda"
    device, torch_device = ("cuda" if cuda else "cpu"), torch.device("cuda" if cuda else "cpu")
    users = given.users or (1_000_000 if cuda else 10_000)
    batch = 1024 if cuda else 64
    torch.set_num_threads(given.threads)
    clock = Clock(device)
    dim = ResponseFeatures(Static()).dim
    limit = limits(clock)
    found: dict[str, Any] = {
        "machine": {
            "device": torch.cuda.get_device_name()
            if torch_device.type == "cuda"
            else platform.processor() or platform.machine(),
            "kind": device,
            "threads": torch.get_num_threads(),
            "cores": os.cpu_count(),
            "load_before": round(os.getloadavg()[0], 2),
            "torch": torch.__version__,
        },
        "limits": limit,
    }
    measured: dict[str, Callable[[], Any]] = {
        "heads": lambda: [
            heads(clock, users, d, candidates, limit["copy_gb_s"]) for d in (D, dim) for candidates in (1, 8)
        ],
        "updates": lambda: [updates(clock, min(users, 100_000), D, noise) for noise in (None, 0.25)],
        "transformer": lambda: transformer(clock, limit["matrix_tflop_s"]),
        "reward_model": lambda: reward_model(device, limit["matrix_tflop_s"], given.usd_per_hour),
        "encoders": lambda: {
            name: whole(name, device, given.answers if name == "static" or cuda else given.answers // 20, batch)
            for name in given.encoders
        },
    }
    for row in given.rows:
        try:
            found[row] = measured[row]()
        except Exception as error:  # noqa: BLE001 - the other rows of a machine that is lent for minutes are kept
            traceback.print_exc()
            found[row] = {"failed": f"{type(error).__name__}: {error}"}
    read = found.get("encoders", {})
    if read.get("minilm-int8") and read.get("minilm"):
        texts = [*(sentence.strip() for sentence in SENTENCES), *answers(20, 2)]
        found["cosine_of_int8_to_minilm"] = cosines(get_encoder("minilm-int8"), get_encoder("minilm", device), texts)
    found["machine"]["load_after"] = round(os.getloadavg()[0], 2)
    text = json.dumps(found, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
