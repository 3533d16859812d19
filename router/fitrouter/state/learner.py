"""Learner: folds journal events into the reward model and the projections, and dumps and restores their state.

`Learner.apply` is deterministic: no clock, no random numbers, no I/O, events in sequence order. It receives the earlier
events of the same decision (`related`) from its caller, so that the state need not hold them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeGuard

import msgspec
import numpy as np

from fitrouter.identity import role_key, task_of
from fitrouter.posterior.arm_prior import ArmPrior
from fitrouter.posterior.arms import base_arm
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.labels import Answered, FitParams, Label, Prequential
from fitrouter.posterior.likelihoods import SIGNALS
from fitrouter.posterior.model import Fit
from fitrouter.posterior.people import DAY_S, Person
from fitrouter.posterior.tastes import OVERALL, TastePrior
from fitrouter.state.projections import ProjectionParams, Projections
from fitrouter.state.quality_floor import BASE
from fitrouter.stores.journal import Journal, Row, Snapshot
from fitrouter.types import (
    Decision,
    Erasure,
    Event,
    Execution,
    Feedback,
    FeedbackKind,
    Floats,
    Identity,
    ModelChange,
    PolicyChange,
    ProfileChange,
    Projection,
    Refit,
    Score,
    unpack,
)


class Batch(NamedTuple):
    """Rows of the journal, each with the earlier events of its decision."""

    rows: Sequence[tuple[Row, Sequence[Event]]]


def read_batch(journal: Journal, after: int, limit: int = 256) -> Batch:
    """Read the next rows and the events they refer to, a pair's other answer included. Blocks on disk I/O."""
    rows = []
    for row in journal.tail(after, limit):
        related: list[Event] = []
        if isinstance(row.event, (Score, Feedback)):
            related = [other.event for other in journal.of(row.event.decision_id) if other.seq < row.seq]
            votes = [vote for vote in (row.event, *related) if isinstance(vote, Feedback)]
            for other_id in dict.fromkeys(vote.other for vote in votes if vote.other):
                related += [other.event for other in journal.of(other_id) if other.seq < row.seq]
        rows.append((row, related))
    return Batch(rows)


class _Scalars(msgspec.Struct, array_like=True):
    """Small values that are stored together in every snapshot."""

    population: tuple[bytes, bytes]
    others: list[tuple[str, bytes, bytes]]
    labels: int
    residuals: list[tuple[str, float, float]]
    stale: int
    arms: list[str]
    open: list[tuple[str, float]]


class Learner:
    """All learned state at one position of the journal: reward model, projections and open decisions.

    Args:
        d: length of the context x.
        D: length of the response features h.
        schema: name of the response features; scores of another schema are ignored.
        params: prior scales of the reward model.
        names: of the response features.
        prior: trained prior of tastes.
        votes_per_day: votes of a user on one model and day that update terms shared with other users.
        expects_scores: whether labels wait for the answer's score; False if no scorer runs.
        projections: settings of the other projections.
        arm_prior: trained priors of models.
    """

    def __init__(
        self,
        d: int,
        D: int,
        *,
        schema: str = "",
        params: FitParams | None = None,
        names: Sequence[str] = (),
        prior: TastePrior | None = None,
        votes_per_day: int = 3,
        expects_scores: bool = True,
        projections: ProjectionParams | None = None,
        arm_prior: ArmPrior | None = None,
    ) -> None:
        self.fit = Fit(d, D, params, names=names, prior=prior)
        self.projections = Projections(projections)
        self.names, self.prior, self.arm_prior = tuple(names), prior, arm_prior
        self.schema = schema
        self.votes_per_day = votes_per_day
        self.expects_scores = expects_scores
        self.seq = 0
        self.stale = 0
        """Position up to which a refit is pending (`fitrouter.state.refit`); 0 for none."""
        self.open: dict[str, float] = {}
        """Time of each decision without an Execution."""
        self._dirty: set[str] = set()
        """Keys that changed since the last snapshot."""

    @property
    def version(self) -> str:
        """Sixteen hex digits of a hash of all settings that the state depends on; only equal versions are restored."""
        fit = self.fit
        priors = [prior.id for prior in (self.prior, self.arm_prior) if prior]
        own = (self.schema, priors, self.votes_per_day, self.expects_scores)
        text = repr((8, fit.d, fit.D, *own, fit.params, SIGNALS, self.projections.params))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def blank(self) -> Learner:
        """A new learner with the same settings."""
        return Learner(
            self.fit.d,
            self.fit.D,
            schema=self.schema,
            params=self.fit.params,
            names=self.names,
            prior=self.prior,
            votes_per_day=self.votes_per_day,
            expects_scores=self.expects_scores,
            projections=self.projections.params,
            arm_prior=self.arm_prior,
        )

    def take(self, other: Learner) -> None:
        """Replace this learner's state by another's; everything is then part of the next snapshot."""
        self.fit, self.projections = other.fit, other.projections
        self.open, self.seq, self.stale = other.open, other.seq, other.stale
        self._dirty = {key for key, _ in self.state() if key != "scalars" and not key.startswith("part:")}

    def score(self, identity: Identity, h: Floats, dimension: str = OVERALL) -> tuple[float, float]:
        """Posterior mean and sd of this user's rating of an answer with features h."""
        return self.fit.score(identity, h, dimension)

    def dimensions(self) -> tuple[str, ...]:
        """Labelled dimensions other than `overall`."""
        return tuple(self.fit.tastes.others)

    def heads(self, identity: Identity, dimension: str = OVERALL) -> list[Gaussian]:
        """The posteriors whose sum is this user's taste in a dimension."""
        return self.fit.heads(identity, dimension)

    # --- folding ---

    def apply(self, row: Row, related: Sequence[Event] = ()) -> None:
        """Fold one event. Rows come in sequence order; an earlier one is skipped."""
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
                # Sorted, so that the rows of arms are contiguous in the order in which decisions read them.
                arms = sorted(card.arm for card in event.cards)
                if self.arm_prior is not None:
                    self.arm_prior.apply(self.fit.arms, arms)
                for arm in arms:
                    self.fit.arms.join(arm)
                    self.projections.arm_counts.join(arm)
                    self._touch(arm)
            case ProfileChange() as event:
                self.fit.tastes.declare(event.identity, event.declared)
                self._dirty.add(f"user:{event.identity.user}")
            case PolicyChange() as event:
                self.projections.policy_settings.observe(event)
            case Erasure() as event:
                self.fit.tastes.users.pop(event.subject, None)
                self._dirty.add(f"user:{event.subject}")
                self.stale = row.seq
            case Refit():
                self.stale = row.seq
            case _:
                pass

    def _touch(self, *arms: str) -> None:
        """Mark arms as changed, and the base arms that variants share posteriors with."""
        self._dirty.update(f"arm:{name}" for arm in arms for name in (arm, base_arm(arm)))

    def apply_batch(self, batch: Batch) -> int:
        """Fold a batch. Returns its length."""
        for row, related in batch.rows:
            self.apply(row, related)
        return len(batch.rows)

    def _decision(self, event: Decision) -> None:
        self.open[event.id] = event.ts
        if event.cost:
            cost = event.cost[event.eligible.index(event.chosen)]
            self.projections.budgets.observe_decision(event.identity.tenant, event.ts, cost, event.id)
        self.projections.sessions.observe_decision(event, user_turn=event.user_turn)
        self.projections.propensities.observe(event)

    def _execution(self, event: Execution) -> None:
        self.open.pop(event.decision_id, None)
        arms = self.fit.arms
        self.projections.arm_counts.observe(event.attempts)
        self.projections.sessions.observe_execution(event)
        self.projections.budgets.observe(event.identity.tenant, event.ts, event.cost_usd, event.decision_id)
        for attempt in event.attempts:
            # Rejected requests are no evidence on availability.
            if attempt.error not in {"ProviderRejected", "ContextOverflow"}:
                arms.observe_answer(arms.model(attempt.model), attempt.error is None, event.ts)
                self._touch(attempt.model)
        x = unpack(event.features)
        if event.served_by is not None and len(x) == self.fit.d and event.status in {"ok", "partial", "cancelled"}:
            k = arms.model(event.served_by)
            arms.observe_operations(k, x, float(event.completion_tokens), event.latency_ms / 1000.0)
            self._touch(event.served_by)

    def _score(self, event: Score, related: Sequence[Event]) -> None:
        x = unpack(event.features)
        if len(x) != self.fit.d or _scored(event.decision_id, related):
            return
        h = self._h(event)
        if h is not None:
            self.fit.arms.observe_response(self.fit.arms.row(event.served_by), x, h)
            self._touch(event.served_by)
        votes = {_key(vote): vote for vote in related if _votes_on(vote, event.decision_id)}
        for vote in votes.values():
            self._vote(vote, [*related, event])

    def _feedback(self, event: Feedback, related: Sequence[Event]) -> None:
        earlier = [vote for vote in related if _votes_on(vote, event.decision_id) and _key(vote) == _key(event)]
        self._vote(event, related, earlier[-1] if earlier else None)

    def _h(self, score: Score) -> Floats | None:
        h = unpack(score.h)
        if score.status == "ok" and self.schema.startswith(f"{score.schema}/") and len(h) < self.fit.D:
            h = np.append(h, np.full(self.fit.D - len(h), np.nan))  # features that came later are missing in it
        elif score.status != "ok" or score.schema != self.schema:
            return None
        return h if len(h) == self.fit.D else None

    def _answered(self, decision_id: str, events: Sequence[Event]) -> Answered | None:
        """The answer of a decision; None if it is missing or waits for its score, or belongs to another encoder."""
        for event in events:
            if isinstance(event, Score) and event.decision_id == decision_id:
                x = unpack(event.features)
                return Answered(event.served_by, x, self._h(event)) if len(x) == self.fit.d else None
        if self.expects_scores:
            return None
        for event in events:
            if isinstance(event, Execution) and event.decision_id == decision_id and event.served_by is not None:
                x = unpack(event.features)
                return Answered(event.served_by, x, None) if len(x) == self.fit.d else None
        return None

    def _vote(self, vote: Feedback, events: Sequence[Event], earlier: Feedback | None = None) -> None:
        """Learn from a vote, or correct an earlier version of it."""
        answer = self._answered(vote.decision_id, events)
        against = self._answered(vote.other, events) if vote.other else None
        pair = vote.kind is FeedbackKind.PAIR
        if answer is None or (pair and against is None) or not math.isfinite(vote.y + vote.ts):
            return
        if vote.dimension == BASE:
            self.projections.quality_floor.observe(answer.arm, task_of(vote.identity, answer.x), vote.y, vote.ts)
            return
        voter = self.fit.tastes.voter(vote.identity)
        name = f"{vote.decision_id} {vote.kind.value} {vote.dimension} {vote.other}".rstrip()
        if earlier is not None:
            pooled = name in voter.pooled
        elif vote.dimension == OVERALL:
            pooled = voter.counts(answer.arm, int(vote.ts // DAY_S), self.votes_per_day, name)
        else:
            pooled = voter.counts(f"{answer.arm} {vote.dimension}", int(vote.ts // DAY_S), self.votes_per_day, name)
        tokens = next((e.completion_tokens for e in events if _ends(e, vote.decision_id)), 0)
        label = Label(
            vote.identity, answer, vote.y, vote.kind, pooled, against if pair else None, vote.dimension, tokens, vote.ts
        )
        if earlier is not None:
            self.fit.revise(label, earlier.y)
        else:
            alarms = self.fit.alarms
            self._monitor(label, self.fit.learn(label), events)
            if self.fit.alarms != alarms:
                self._dirty.update(key for key, _ in self.state() if key.partition(":")[0] in {"arm", "user"})
            for arm in (answer, against):
                if arm is not None and pooled and vote.dimension == OVERALL:
                    self.projections.arm_counts.observe_label(arm.arm)
        self._touch(*(arm.arm for arm in (answer, against) if arm))
        self._dirty.update(f"user:{key}" for key in (vote.identity.user, f"anonymous {vote.identity.tenant}") if key)
        self._dirty.update(f"role:{key}" for key in self.fit.tastes.roles)

    def _monitor(self, label: Label, predicted: Prequential | None, events: Sequence[Event]) -> None:
        """Update the personalisation monitor with a label and its prequential prediction."""
        if predicted is None:
            return
        monitor = self.projections.personalisation
        y, blind, term = predicted
        monitor.observe_prediction(role_key(label.identity), y=y, blind=blind, term=term)
        decision = next((event for event in events if isinstance(event, Decision)), None)
        if decision is not None and 0.0 <= label.y <= 1.0:
            monitor.observe(decision, label.y)

    # --- state ---

    def dirty(self) -> Iterator[tuple[str, bytes]]:
        """Keys that changed since the last snapshot, with their bytes; none for an erased key."""
        for key in sorted(self._dirty):
            yield key, self._dump(key)
        yield from self._small_state()

    def state(self) -> Iterator[tuple[str, bytes]]:
        """All keys in order, with their bytes."""
        keys = [f"arm:{name}" for name in self.fit.arms.names]
        keys += [f"role:{key}" for key in self.fit.tastes.roles] + [f"user:{key}" for key in self.fit.tastes.users]
        for key in sorted(keys):
            yield key, self._dump(key)
        yield from self._small_state()

    def _small_state(self) -> Iterator[tuple[str, bytes]]:
        """State that is part of every snapshot."""
        for name, projection in self._projections().items():
            yield f"part:{name}", projection.dump()
        yield "scalars", self._scalars()

    def _projections(self) -> dict[str, Projection]:
        return {**self.fit.named(), **self.projections.named()}

    def digest(self) -> str:
        """sha256 of the whole state."""
        digest = hashlib.sha256(self.version.encode())
        for key, payload in self.state():
            digest.update(key.encode())
            digest.update(payload)
        return digest.hexdigest()

    def snapshot(self) -> Snapshot:
        """The changes since the last snapshot, at this position."""
        state = dict(self.dirty())
        self._dirty.clear()
        return Snapshot(self.seq, {f"{self.version}/{key}": payload for key, payload in state.items()})

    def restore(self, snapshot: Snapshot) -> bool:
        """Restore a snapshot. False, and unchanged, if it has another version or is damaged."""
        prefix = f"{self.version}/"
        state = {key[len(prefix) :]: payload for key, payload in snapshot.state.items() if key.startswith(prefix)}
        if "scalars" not in state:
            return False
        fresh = self.blank()
        if not fresh._load(state.items()):
            return False
        fresh.seq = snapshot.seq
        self.take(fresh)
        self._dirty.clear()
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
            elif kind == "part":
                projection = self._projections().get(name)
                if projection is None or not projection.load(payload):
                    return False
            elif payload:
                tastes = self.fit.tastes
                person = tastes.new_person()
                if not person.load(payload):
                    return False
                (tastes.users if kind == "user" else tastes.roles)[name] = person
        return True

    def _dump(self, key: str) -> bytes:
        kind, _, name = key.partition(":")
        if kind == "arm":
            return self.fit.arms.dump(name)
        people: dict[str, Person] = self.fit.tastes.users if kind == "user" else self.fit.tastes.roles
        return people[name].dump() if name in people else b""

    def _scalars(self) -> bytes:
        fit = self.fit
        return msgspec.msgpack.encode(
            _Scalars(
                fit.tastes.population.dump(),
                [(name, *block.dump()) for name, block in fit.tastes.others.items()],
                fit.labels,
                [(kind, squares, n) for kind, (squares, n) in sorted(fit.residuals.items())],
                self.stale,
                list(fit.arms.names),
                list(self.open.items()),
            )
        )

    def _load_scalars(self, payload: bytes) -> bool:
        try:
            stored = msgspec.msgpack.decode(payload, type=_Scalars)
            D = self.fit.D
            population = Gaussian.load(*stored.population, D)
            others = {name: Gaussian.load(mean, cov, D) for name, mean, cov in stored.others}
        except (msgspec.DecodeError, ValueError):
            return False
        self.fit.tastes.population, self.fit.tastes.others = population, others
        self.fit.labels, self.stale = stored.labels, stored.stale
        self.fit.residuals = {kind: (squares, n) for kind, squares, n in stored.residuals}
        for name in stored.arms:  # in their order, which fixes their rows
            self.fit.arms.row(name)
        self.open = dict(stored.open)
        return True


def _scored(decision_id: str, events: Sequence[Event]) -> bool:
    return any(isinstance(event, Score) and event.decision_id == decision_id for event in events)


def _ends(event: Event, decision_id: str) -> TypeGuard[Execution]:
    return isinstance(event, Execution) and event.decision_id == decision_id


def _votes_on(event: Event, decision_id: str) -> TypeGuard[Feedback]:
    return isinstance(event, Feedback) and event.decision_id == decision_id


def _key(vote: Feedback) -> tuple[str, str, str]:
    """Key of a vote: a later vote on the same answer with the same key supersedes an earlier one."""
    return vote.kind.value, vote.dimension, vote.other
