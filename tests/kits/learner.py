"""Journals with the events of router, scorer and gateway, and learners that fold them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from fitrouter.plain import pack
from fitrouter.posterior.people import DAY_S
from fitrouter.state.learner import Learner
from fitrouter.state.reading import read_batch
from fitrouter.stores.journal import Entry, MemoryJournal, Row
from fitrouter.types import (
    Attempt,
    Decision,
    Erasure,
    Event,
    Execution,
    Feedback,
    FeedbackKind,
    Identity,
    Mode,
    PolicyVersion,
    RunOutcome,
    Score,
)

D_X, D_H, SCHEMA = 5, 4, "test-1"


@dataclasses.dataclass
class Log:
    """Writes events into a journal as router, scorer and gateway do."""

    journal: MemoryJournal
    rng: np.random.Generator
    count: int = 0
    day: int = 0

    def put(self, *events: Event) -> None:
        for event in events:
            self.journal.append(Entry(event)).result()

    def answer(self, user: str | None, arm: str, *, role: str = "analyst", ok: bool = True, status: str = "") -> str:
        """A decision and its execution; returns the decision id."""
        self.count += 1
        name = f"d{self.count}"
        x = pack(np.concatenate([[1.0], self.rng.normal(size=D_X - 1) * 0.4]))
        who = Identity(user=user, role=role, session=f"s{self.count % 7}")
        ts = 1000.0 + 60.0 * self.count + DAY_S * self.day
        self.put(
            Decision(
                id=name,
                ts=ts,
                draw_id=name,
                identity=who,
                mode=Mode.ONLINE,
                eligible=("a", "b"),
                probs=(0.5, 0.5),
                chosen=arm,
                propensity=0.5,
                features=x,
                policy=PolicyVersion(algorithm="squarecb"),
            ),
            Execution(
                id=f"{name}:execution",
                ts=ts,
                decision_id=name,
                identity=who,
                chosen=arm,
                served_by=arm if ok else None,
                status=status or ("ok" if ok else "failed"),
                attempts=(Attempt(model=arm, probability=1.0, error=None if ok else "ProviderUnavailable"),),
                features=x,
                completion_tokens=100,
                latency_ms=500.0,
            ),
        )
        return name

    def score(self, decision_id: str, *, schema: str = SCHEMA, status: str = "ok", bias: float = 0.0) -> None:
        """The answer's features."""
        execution = next(r.event for r in self.journal.of(decision_id) if isinstance(r.event, Execution))
        h = np.concatenate([[1.0], self.rng.normal(size=D_H - 1) + bias])
        self.put(
            Score(
                id=f"{decision_id}:score",
                ts=execution.ts,
                decision_id=decision_id,
                identity=execution.identity,
                served_by=execution.served_by or "",
                features=execution.features,
                h=pack(h) if status == "ok" else b"",
                schema=schema,
                status=status,
            )
        )

    def vote(
        self,
        decision_id: str,
        value: float,
        *,
        kind: FeedbackKind = FeedbackKind.THUMB,
        other: str = "",
        dimension: str = "overall",
        vouched: str = "",
    ) -> None:
        """A verdict."""
        decision = next(r.event for r in self.journal.of(decision_id) if isinstance(r.event, Decision))
        self.count += 1
        self.put(
            Feedback(
                id=f"f{self.count}",
                ts=decision.ts,
                decision_id=decision_id,
                identity=decision.identity,
                kind=kind,
                value=value,
                other=other,
                dimension=dimension,
                vouched=vouched,
            )
        )

    def outcome(self, *decisions: str, value: float, run: str = "run-1", **more: Any) -> None:
        """How a run ended."""
        decision = next(r.event for r in self.journal.of(decisions[-1]) if isinstance(r.event, Decision))
        self.count += 1
        who = Identity(user=decision.identity.user, run=run)
        about: Any = {"ts": decision.ts, "identity": who, "value": value, "decisions": decisions}
        self.put(RunOutcome(id=f"o{self.count}", **about, **more))


def learner(**settings_: object) -> Learner:
    return Learner(D_X, D_H, schema=SCHEMA, **settings_)  # type: ignore[arg-type]


def fold(journal: MemoryJournal, into: Learner | None = None, until: int | None = None, size: int = 7) -> Learner:
    """Fold a journal from the learner's position."""
    into = into or learner()
    while batch := read_batch(journal, into.seq, size, into.waiting):
        rows: Sequence[tuple[Row, Sequence[Event]]] = batch.rows
        if not rows or (until is not None and rows[0][0].seq > until):
            return into
        for row, related in rows:
            if until is None or row.seq <= until:
                into.apply(row, related)
    return into


def story(seed: int, n: int = 40) -> MemoryJournal:
    """A journal with decisions, scores, votes of several kinds and an erasure in random order."""
    rng = np.random.default_rng(seed)
    log = Log(MemoryJournal(), rng)
    open_: list[str] = []
    late: list[str] = []
    for _ in range(n):
        user, role = ("ann", "bob", None)[rng.integers(3)], ("Analyst", "poet")[rng.integers(2)]
        arm = "ab"[rng.integers(2)]
        name = log.answer(user, arm, role=role, ok=bool(rng.random() < 0.9))
        answered = any(isinstance(r.event, Execution) and r.event.served_by for r in log.journal.of(name))
        if answered and rng.random() < 0.3:
            log.vote(name, float(rng.integers(2)))  # before its score
        if answered and rng.random() < 0.8:
            log.score(name, status="ok" if rng.random() < 0.9 else "failed")
            open_.append(name)
        elif answered:
            late.append(name)
        if late and rng.random() < 0.3:
            log.score(late.pop(0))
        if open_ and late and rng.random() < 0.2:  # perhaps before an answer's score
            steps = dict.fromkeys(str(rng.choice([*open_, *late])) for _ in range(3))
            source, run = ("adapter", "check", "person")[rng.integers(3)], f"run-{rng.integers(4)}"
            log.outcome(*steps, value=float(rng.integers(2)), run=run, source=source)
        if open_ and rng.random() < 0.5:
            kind = FeedbackKind.RATING if rng.random() < 0.3 else FeedbackKind.THUMB
            log.vote(str(rng.choice(open_)), float(rng.random()) if kind is FeedbackKind.RATING else 1.0, kind=kind)
        if open_ and answered and rng.random() < 0.3:  # perhaps before the other answer's score
            log.vote(str(rng.choice(open_)), float(rng.integers(2)), kind=FeedbackKind.PAIR, other=name)
    log.put(Erasure(id="e", ts=1.0, subject="bob"))
    return log.journal
