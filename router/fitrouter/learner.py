"""The learner: one fold over the journal, and the driver that reads ahead for it.

`Learner.apply` is the fold. It is deterministic: no clock, no random numbers, no I/O, events in sequence order. What it
needs of earlier events of the same decision is handed to it (`related`), so that its state stays small.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.fit import Fit, FitParams, Label
from fitrouter.journal import Journal, Row, Snapshot
from fitrouter.people import Person
from fitrouter.taste import Gaussian
from fitrouter.types import (
    Decision,
    Erasure,
    Event,
    Execution,
    Feedback,
    Floats,
    Identity,
    Mode,
    ModelChange,
    Score,
    unpack,
)

__all__ = ["Batch", "Learner", "Session", "read_batch"]

SESSIONS = 4096
"""Sessions that are remembered, the last ones first."""
DAY_S = 86_400.0


class Session(NamedTuple):
    """The draw that a session lives on."""

    draw_id: str
    arm: str
    ts: float


class Batch(NamedTuple):
    """Rows to fold, each with the earlier events of its decision that the fold needs."""

    rows: Sequence[tuple[Row, Sequence[Event]]]


def read_batch(journal: Journal, after: int, limit: int = 256) -> Batch:
    """The next rows and what they refer to. Blocks on the disk: call it off the event loop."""
    rows = []
    for row in journal.tail(after, limit):
        related: list[Event] = []
        if isinstance(row.event, (Score, Feedback)):
            related = [other.event for other in journal.of(row.event.decision_id) if other.seq < row.seq]
        rows.append((row, related))
    return Batch(rows)


class _Scalars(msgspec.Struct, array_like=True):
    """The small state, stored as one value."""

    population_mean: bytes
    population_cov: bytes
    stack_mean: bytes
    stack_cov: bytes
    labels: int
    arms: list[str]
    open: list[tuple[str, float]]
    sessions: list[tuple[str, str, str, float]]


class Learner:
    """Everything the router knows: the fit model, open decisions and sessions, at one position of the journal.

    Args:
        d: length of the context x.
        D: length of the response features h.
        schema: name of the response features; scores with another name teach nothing.
        params: prior scales of the fit.
        votes_per_day: a user's votes on one model and day that count for others.
        expects_scores: labels wait for the answer's score; False where no scorer runs.
    """

    def __init__(
        self,
        d: int,
        D: int,
        *,
        schema: str = "",
        params: FitParams | None = None,
        votes_per_day: int = 3,
        expects_scores: bool = True,
    ) -> None:
        self.fit = Fit(d, D, params)
        self.schema = schema
        self.votes_per_day = votes_per_day
        self.expects_scores = expects_scores
        self.seq = 0
        self.open: dict[str, float] = {}
        """Decisions without an Execution, with their time."""
        self.sessions: OrderedDict[str, Session] = OrderedDict()
        self._dirty: set[str] = set()

    @property
    def version(self) -> str:
        """Sixteen hex digits: states of different versions never mix."""
        fit = self.fit
        text = repr((1, fit.d, fit.D, self.schema, fit.params, self.votes_per_day, self.expects_scores))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def score(self, identity: Identity, h: Floats) -> tuple[float, float]:
        """Mean and sd of this user's reward for an answer with features h."""
        return self.fit.score(identity, h)

    def tastes(self, identity: Identity) -> list[Gaussian]:
        """The blocks whose sum is this user's reward weights."""
        return self.fit.tastes(identity)

    # --- the fold ---

    def apply(self, row: Row, related: Sequence[Event] = ()) -> None:
        """Fold one event. Rows come in sequence order; one that was folded already is skipped."""
        if row.seq <= self.seq:
            return
        self.seq = row.seq
        match row.event:
            case Decision() as event:
                self._decision(event)
            case Execution() as event:
                self._execution(event)
            case Score() as event:
                self._score(event, related)
            case Feedback() as event:
                self._feedback(event, related)
            case ModelChange() as event:
                # Arms that are decided between together stand side by side.
                for arm in sorted(card.arm for card in event.cards):
                    self.fit.arms.row(arm)
                    self._dirty.add(f"arm:{arm}")
            case Erasure() as event:
                self.fit.users.pop(event.subject, None)
                self._dirty.add(f"user:{event.subject}")
            case _:
                pass

    def apply_batch(self, batch: Batch) -> int:
        """Fold a batch; returns its length."""
        for row, related in batch.rows:
            self.apply(row, related)
        return len(batch.rows)

    def _decision(self, event: Decision) -> None:
        self.open[event.id] = event.ts
        session = event.identity.session
        if session is None or event.mode in {Mode.PINNED, Mode.FORCED}:
            return
        self.sessions[session] = Session(event.draw_id, event.chosen, event.ts)
        self.sessions.move_to_end(session)
        if len(self.sessions) > SESSIONS:
            self.sessions.popitem(last=False)

    def _execution(self, event: Execution) -> None:
        self.open.pop(event.decision_id, None)
        arms = self.fit.arms
        for attempt in event.attempts:
            # A refused request says nothing about whether the model answers.
            if attempt.error != "ProviderRejected":
                arms.observe_answer(arms.row(attempt.model), attempt.error is None, event.ts)
                self._dirty.add(f"arm:{attempt.model}")
        x = unpack(event.features)
        if event.served_by is not None and len(x) == self.fit.d and event.status in {"ok", "partial", "cancelled"}:
            k = arms.row(event.served_by)
            arms.observe_operations(k, x, float(event.completion_tokens), event.latency_ms / 1000.0)
            self._dirty.add(f"arm:{event.served_by}")

    def _score(self, event: Score, related: Sequence[Event]) -> None:
        x = unpack(event.features)
        if len(x) != self.fit.d or any(isinstance(other, Score) for other in related):
            return
        h = self._h(event)
        if h is not None:
            self.fit.arms.observe_response(self.fit.arms.row(event.served_by), x, h)
            self._dirty.add(f"arm:{event.served_by}")
        votes = {(vote.kind, vote.dimension): vote for vote in related if isinstance(vote, Feedback)}
        for vote in votes.values():
            self._vote(vote, event.served_by, x, h)

    def _feedback(self, event: Feedback, related: Sequence[Event]) -> None:
        answer = next((other for other in related if isinstance(other, Score)), None)
        if answer is None:
            execution = next((other for other in related if isinstance(other, Execution)), None)
            if self.expects_scores or execution is None or execution.served_by is None:
                return
            x, arm, h = unpack(execution.features), execution.served_by, None
        else:
            x, arm, h = unpack(answer.features), answer.served_by, self._h(answer)
        if len(x) != self.fit.d:
            return
        earlier = [
            vote
            for vote in related
            if isinstance(vote, Feedback) and (vote.kind, vote.dimension) == (event.kind, event.dimension)
        ]
        self._vote(event, arm, x, h, earlier[-1] if earlier else None)

    def _h(self, score: Score) -> Floats | None:
        h = unpack(score.h)
        return h if score.status == "ok" and score.schema == self.schema and len(h) == self.fit.D else None

    def _vote(self, vote: Feedback, arm: str, x: Floats, h: Floats | None, earlier: Feedback | None = None) -> None:
        """Learn from a vote, or change what an earlier one taught."""
        if vote.dimension != "overall" or not np.isfinite(vote.y):
            return
        voter = self.fit.voter(vote.identity)
        name = f"{vote.decision_id} {vote.kind.value} {vote.dimension}"
        if earlier is not None:
            pooled = name in voter.pooled
        else:
            pooled = voter.counts(arm, int(vote.ts // DAY_S), self.votes_per_day, name)
        label = Label(vote.identity, arm, x, h, vote.y, vote.kind, pooled)
        if earlier is not None:
            self.fit.revise(label, earlier.y)
        else:
            self.fit.learn(label)
        self._dirty.add(f"arm:{arm}")
        self._dirty.update(f"user:{key}" for key in (vote.identity.user, f"anonymous {vote.identity.tenant}") if key)
        self._dirty.update(f"role:{key}" for key in self.fit.roles)

    # --- state ---

    def dirty(self) -> Iterator[tuple[str, bytes]]:
        """Keys that changed since `clean`, with their bytes; an erased key has none."""
        for key in sorted(self._dirty):
            yield key, self._dump(key)
        yield "scalars", self._scalars()

    def state(self) -> Iterator[tuple[str, bytes]]:
        """All keys in order, with their bytes."""
        keys = [f"arm:{name}" for name in self.fit.arms.names]
        keys += [f"role:{key}" for key in self.fit.roles] + [f"user:{key}" for key in self.fit.users]
        for key in sorted(keys):
            yield key, self._dump(key)
        yield "scalars", self._scalars()

    def digest(self) -> str:
        """sha256 over the whole state."""
        digest = hashlib.sha256(self.version.encode())
        for key, payload in self.state():
            digest.update(key.encode())
            digest.update(payload)
        return digest.hexdigest()

    def snapshot(self) -> Snapshot:
        """What changed since the last one, to be saved at this position."""
        state = dict(self.dirty())
        self._dirty.clear()
        return Snapshot(self.seq, {f"{self.version}/{key}": payload for key, payload in state.items()})

    def restore(self, snapshot: Snapshot) -> bool:
        """Start from a snapshot. False, and unchanged, where it is of another version or a part of it is not sound."""
        prefix = f"{self.version}/"
        state = {key[len(prefix) :]: payload for key, payload in snapshot.state.items() if key.startswith(prefix)}
        if "scalars" not in state:
            return False
        fresh = Learner(
            self.fit.d,
            self.fit.D,
            schema=self.schema,
            params=self.fit.params,
            votes_per_day=self.votes_per_day,
            expects_scores=self.expects_scores,
        )
        if not fresh._load(state.items()):
            return False
        self.fit.__dict__.update(fresh.fit.__dict__)  # in place: deciders hold this fit
        self.open, self.sessions = fresh.open, fresh.sessions
        self.seq = snapshot.seq
        return True

    def _load(self, state: Iterable[tuple[str, bytes]]) -> bool:
        items = dict(state)
        if not self._load_scalars(items.pop("scalars")):
            return False
        for key, payload in items.items():
            kind, _, name = key.partition(":")
            if kind == "arm":
                if not self.fit.arms.load(name, payload):
                    return False
            elif payload:
                person = self.fit.new_user() if kind == "user" else self.fit.new_role()
                if not person.load(payload):
                    return False
                (self.fit.users if kind == "user" else self.fit.roles)[name] = person
        return True

    def _dump(self, key: str) -> bytes:
        kind, _, name = key.partition(":")
        if kind == "arm":
            return self.fit.arms.dump(name)
        people: dict[str, Person] = self.fit.users if kind == "user" else self.fit.roles
        return people[name].dump() if name in people else b""

    def _scalars(self) -> bytes:
        fit = self.fit
        return msgspec.msgpack.encode(
            _Scalars(
                fit.population.mean.tobytes(),
                fit.population.cov.tobytes(),
                fit.stack.mean.tobytes(),
                fit.stack.cov.tobytes(),
                fit.labels,
                list(fit.arms.names),
                list(self.open.items()),
                [(key, draw, arm, ts) for key, (draw, arm, ts) in self.sessions.items()],
            )
        )

    def _load_scalars(self, payload: bytes) -> bool:
        try:
            stored = msgspec.msgpack.decode(payload, type=_Scalars)
            D = self.fit.D
            population = Gaussian(
                np.frombuffer(stored.population_mean).copy(), np.frombuffer(stored.population_cov).reshape(D, D).copy()
            )
            stack = Gaussian(
                np.frombuffer(stored.stack_mean).copy(), np.frombuffer(stored.stack_cov).reshape(4, 4).copy()
            )
        except (msgspec.DecodeError, ValueError):
            return False
        if not population.valid() or len(population.mean) != D or not stack.valid():
            return False
        self.fit.population = population
        self.fit.stack = stack
        self.fit.labels = stored.labels
        for name in stored.arms:  # rows keep their order
            self.fit.arms.row(name)
        self.open = dict(stored.open)
        self.sessions = OrderedDict((key, Session(draw, arm, ts)) for key, draw, arm, ts in stored.sessions)
        return True
