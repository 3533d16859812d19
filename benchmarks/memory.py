"""Memory of a worker with a million users, decisions for people who are not in memory, and snapshots. Prints JSON.

    python -m benchmarks.memory                                  # a few minutes on an idle core
    python -m benchmarks.memory --users 20000 --requests 2000    # a smaller one

Assumed: a fifth of the users have given labels, a person with labels five on average (geometric). 500 people are
folded from events by the learner of a gateway with the default configuration, three models and the default scorer; the
others with labels are copies of them under other names. A process with that snapshot then

* decides for users with labels, each seen for the first time (cold), then for the last of them again (warm), until more
  people than the bound were in memory; a computation between the decisions shows how far other processes disturb them;
* folds 2,000 votes of cold people, and saves them in a snapshot while a task measures how long the event loop stands.

Resident memory is that of the whole process: interpreter, encoder, stores, everything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

from fitrouter.config import Config, parse_config
from fitrouter.plain import pack
from fitrouter.posterior.labels import Answered, Label
from fitrouter.posterior.model import Fit
from fitrouter.router import Router
from fitrouter.state.follower import SLICE
from fitrouter.state.learner import Learner
from fitrouter.state.reading import Batch
from fitrouter.stores.journal import Entry, Row, Snapshot
from fitrouter.types import Feedback, FeedbackKind, Floats, Identity, ModelChange, Request, Score

FOLDED = 500
VOTES = 2000
LABELS = (1, 3, 8, 100)
SPIN = 40_000


def config(folder: Path) -> Config:
    """Return a configuration of three simulated models; every other setting is the default."""
    models = [{"name": name, "provider": "sim", "prices": {"input": 1.0, "output": 2.0}} for name in ("a", "b", "c")]
    return parse_config({"data": str(folder), "providers": {"sim": {"kind": "simulated"}}, "models": models})


class Events:
    """Generator of scores and votes on random answers."""

    def __init__(self, learner: Learner, seed: int = 0) -> None:
        self.learner, self.rng, self.count = learner, np.random.default_rng(seed), 0

    def _random(self, n: int) -> Floats:
        return np.concatenate([[1.0], self.rng.normal(size=n - 1)])

    def vote(self, subject: str) -> tuple[Score, Feedback]:
        """Generate an answer's score, and a user's thumb on it."""
        self.count += 1
        name, who, fit = f"{subject} {self.count}", Identity(user=subject), self.learner.fit
        x, h = pack(self._random(fit.d)), pack(self._random(fit.D))
        score = Score(
            id=f"{name}:score",
            ts=1e9,
            decision_id=name,
            identity=who,
            served_by="abc"[self.count % 3],
            features=x,
            h=h,
            schema=self.learner.schema,
            status="ok",
        )
        thumb = float(self.rng.integers(2))
        return score, Feedback(
            id=f"{name}:vote", ts=1e9, decision_id=name, identity=who, kind=FeedbackKind.THUMB, value=thumb
        )


def populate(folder: Path, users: int, requests: int, share: float) -> dict[str, Any]:
    """Write a journal with a snapshot of the population, and the identities of those who will ask."""
    router = Router.from_config(config(folder))
    journal, learner, identities = router._journal, router._learner, router._identities
    events = Events(learner)
    rng, labelled = np.random.default_rng(1), int(users * share)
    began = time.process_time()
    for k in range(FOLDED):
        for _ in range(int(rng.geometric(1 / 5))):
            score, vote = events.vote(f"folded {k}")
            learner.apply(Row(learner.seq + 1, vote), [score])
    per_vote = (time.process_time() - began) / events.count
    subjects = [met.result() for met in [identities.meet("default", f"asks {k}") for k in range(requests)]]
    learner.seq = journal.append(Entry(ModelChange(id="first", ts=1e9, cards=(), registry="first"))).result()
    snapshot = learner.snapshot()
    own = f"{learner.version}/user:"
    people = [payload for key, payload in snapshot.state.items() if key.startswith(f"{own}folded")]
    journal.save(snapshot)
    names = [*subjects, *(f"other {k}" for k in range(labelled - requests))]
    for start in range(0, len(names), 10_000):
        rows = {f"{own}{name}": people[k % FOLDED] for k, name in enumerate(names[start : start + 10_000], start)}
        journal.save(Snapshot(learner.seq, rows))
    journal.close()
    identities.close()
    return {
        "users": users,
        "with labels": labelled,
        "labels per person": round(events.count / FOLDED, 2),
        "CPU ms per vote": round(1000 * per_vote, 3),
        "stored bytes per person": round(float(np.mean([len(each) for each in people]))),
    }


def resident() -> float:
    """Return the resident memory of this process in GB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * 4096 / 1e9, 3)


async def work(folder: Path, requests: int) -> dict[str, Any]:
    """Measure a worker that starts with the population and decides for its people."""
    found: dict[str, Any] = {"imports GB": resident()}
    router = Router.from_config(config(folder))
    began = time.monotonic()
    async with router:
        found["start s"] = round(time.monotonic() - began, 2)
        found["after start GB"] = resident()
        order = [*range(requests), *range(requests - 1, max(requests - 2000, -1), -1)]
        took, idle = [], []
        for k in order:
            who = Identity(user=f"asks {k}")
            question = Request(messages=({"role": "user", "content": f"Question {k}"},), identity=who)
            began = time.perf_counter()
            await router._pipeline.decide(question)
            took.append(1000 * (time.perf_counter() - began))
            began = time.perf_counter()
            sum(range(SPIN))
            idle.append(1000 * (time.perf_counter() - began))
        learner = router._learner
        found["cold ms"], found["warm ms"] = _quantiles(took[:requests]), _quantiles(took[requests:])
        found["a computation of similar length, beside them, ms"] = _quantiles(idle)
        await asyncio.sleep(0.5)
        found["after requests GB"] = resident()
        events = Events(learner, seed=1)
        rows = [events.vote(f"other {k}") for k in range(VOTES)]
        follower = router._follower
        async with _LoopStalls() as stalls:
            for at in range(0, VOTES, SLICE):
                part = enumerate(rows[at : at + SLICE], learner.seq + 1)
                batch = Batch([(Row(seq, vote), [score]) for seq, (score, vote) in part])
                await asyncio.to_thread(learner.load, batch)
                learner.apply_batch(batch)
                await asyncio.sleep(0)
        found["longest stop while 2,000 votes are folded ms"] = stalls.longest
        async with _LoopStalls() as stalls:
            began = time.perf_counter()
            await follower._save(every=1)
        found["snapshot ms"] = round(1000 * (time.perf_counter() - began), 1)
        found["longest stop during the snapshot ms"] = stalls.longest
        await asyncio.to_thread(learner.users.shrink)
        found["at the end GB"] = resident()
    return found


class _LoopStalls:
    """Measures the longest time in which the event loop runs no other task, in ms."""

    async def __aenter__(self) -> _LoopStalls:
        self.longest = 0.0
        self._task = asyncio.create_task(self._watch())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0)
            self.longest = round(max(self.longest, 1000 * (time.perf_counter() - began)), 1)


def _quantiles(took: list[float]) -> dict[str, float]:
    return {f"p{q}": round(float(np.percentile(took, q)), 2) for q in (50, 99)}


def sizes() -> dict[str, int]:
    """Measure the bytes that a person costs in memory, by number of labels: 38 features, three models."""
    found, rng = {}, np.random.default_rng(0)
    for labels in LABELS:
        fit, name = Fit(40, 38), f"a subject as long as those in the journal, {labels}"
        who = Identity(user=name)
        for i in range(labels):
            arm, x, h = "abc"[i % 3], rng.normal(size=40), rng.normal(size=38)
            fit.tastes.voter(who).count_vote(arm, i // 9, 3, str(i))
            fit.learn(Label(who, Answered(arm, x, h), float(rng.integers(2)), FeedbackKind.THUMB))
        payload, users = fit.tastes.users[name].dump(), fit.tastes.users
        tracemalloc.start()
        for k in range(100):
            person = fit.tastes.new_person()
            person.load(payload)
            users[f"{name}, {k}"] = person
        found[str(labels)] = round(tracemalloc.get_traced_memory()[0] / 100)
        tracemalloc.stop()
    return found


def main() -> None:
    """Parse the command line, measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--share", type=float, default=0.2, help="of the users have given labels")
    parser.add_argument("--requests", type=int, default=25_000, help="decisions for cold people")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(asyncio.run(work(args.worker, args.requests))))
        return
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {"bytes in memory by labels": sizes()}
        found |= populate(Path(folder), args.users, args.requests, args.share)
        command = [sys.executable, "-m", "benchmarks.memory", "--worker", folder, "--requests", str(args.requests)]
        found |= json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
