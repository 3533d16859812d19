"""Learner: folds journal events into the reward model and the projections, and dumps and restores their state.

`Learner.apply` is deterministic: no clock, no random numbers, no I/O, events in sequence order. It receives the earlier
events of the same decision (`related`) from its caller, so that the state need not hold them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Self, TypeGuard, TypeVar

import msgspec
import numpy as np

from fitrouter.identity import role_key, task_of
from fitrouter.plain import Projection, unpack
from fitrouter.posterior.arm_prior import ArmPrior
from fitrouter.posterior.arms import base_arm, impasse_of
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.labels import Answered, FitParams, Label, Prequential
from fitrouter.posterior.likelihoods import REMARK_STEP, REMARKS, SIGNALS, VERDICT
from fitrouter.posterior.model import NO_OFFSET, NOISE_OUTCOMES, Fit
from fitrouter.posterior.people import DAY_S, Person
from fitrouter.posterior.tastes import OVERALL, TastePrior, voter_key
from fitrouter.posterior.users import Users
from fitrouter.state.projections import FACTS, ProjectionParams, Projections
from fitrouter.state.quality_floor import BASE
from fitrouter.state.reading import Batch
from fitrouter.state.run_outcomes import by_decision, effective, reports_on, run_label, standing
from fitrouter.stores.journal import Journal, Row, Snapshot, decision_of, fault_in
from fitrouter.types import (
    CHOSEN,
    DECLINED,
    NO_EVIDENCE,
    PREFERRED,
    RECORDED,
    Decision,
    Erasure,
    Event,
    Execution,
    Feedback,
    FeedbackKind,
    Floats,
    Identity,
    ModelChange,
    ProfileChange,
    Quarantine,
    Refit,
    Remark,
    RunOutcome,
    Score,
)

_POSITION = "position"
"""Key of a snapshot: its position. Another version may have moved the journal's since then."""
_FACTS = frozenset({"tenants", *(f"part:{name}" for name in FACTS)})
"""Keys of a snapshot that are stored under `facts_version`."""

_CHECKED = 4096
"""Ids of sound events that are kept."""
_ASIDE = 4096
"""Users that go to the spill at a time."""


class _Scalars(msgspec.Struct, array_like=True):
    """Small values of the state that are stored together in every snapshot."""

    population: tuple[bytes, bytes]
    others: list[tuple[str, bytes, bytes]]
    labels: int
    residuals: list[tuple[str, float, float]]
    stale: int
    forgotten: list[str]
    arms: list[str]
    open: list[tuple[str, float]]
    skipped: int = 0
    quarantined: list[str] = []
    offsets: list[tuple[str, float, float]] = []


_AnyLearner = TypeVar("_AnyLearner", bound="Learner")


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
        people_per_key: as how many people together the users of an untrusted key count for others.
        expects_scores: whether labels wait for the answer's score; False if no scorer runs.
        projections: settings of the other projections.
        arm_prior: trained priors of models.
        people: most users kept in memory after `shrink`; None for no limit. The state does not depend on it.
        folder: for the others.
    """

    kind: ClassVar[str] = ""
    """Part of `version`."""

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
        people_per_key: int = 3,
        expects_scores: bool = True,
        projections: ProjectionParams | None = None,
        arm_prior: ArmPrior | None = None,
        people: int | None = None,
        folder: Path | None = None,
    ) -> None:
        self.fit = Fit(d, D, params, names=names, prior=prior)
        self.limit, self.folder = people, folder
        self.users.limit, self.users.folder = people, folder
        self.projections = Projections(projections)
        self.names, self.prior, self.arm_prior = tuple(names), prior, arm_prior
        self.schema = schema
        self.votes_per_day, self.people_per_key = votes_per_day, people_per_key
        self.expects_scores = expects_scores
        self.seq = 0
        self.stale = 0
        """Position up to which a refit is pending (`fitrouter.state.refit`); 0 for none."""
        self.open: dict[str, float] = {}
        """Time of each decision without an Execution."""
        self.skipped = 0
        """Events that were not folded: a number in them is not finite or out of range, or they are quarantined."""
        self.quarantined: set[str] = set()
        """Ids of excluded events."""
        self.learns = True
        """Whether more is folded than the facts."""
        self.ahead: Learner | None = None
        """A learner of the facts alone, which is current while this one is still far behind."""
        self.tenant: str | None = None
        """Whose events are folded; None for all."""
        self.skip_to = 0
        """Last of the events that are not folded again, after the refit of another tenant's learner."""
        self.revision = 0
        """Number of times that the state was replaced."""
        self.moved = False
        """Whether anything was folded since the last snapshot."""
        self._checked: set[str] = set()
        """Ids of some events that were folded, to which later ones refer: their numbers are in range."""
        self._dirty: set[str] = set()
        """Keys that changed since the last snapshot."""

    @property
    def users(self) -> Users:
        """Terms of users, in memory and in the spill."""
        return self.fit.tastes.users

    @property
    def version(self) -> str:
        """Hash of all settings that the state depends on, as 16 hex digits; only equal versions are restored."""
        fit = self.fit
        priors = [prior.id for prior in (self.prior, self.arm_prior) if prior]
        own = (self.schema, priors, self.votes_per_day, self.people_per_key, self.expects_scores)
        likelihoods = SIGNALS, REMARKS, REMARK_STEP, VERDICT, NO_OFFSET, NOISE_OUTCOMES
        text = repr((22, self.kind, fit.d, fit.D, *own, fit.params, likelihoods, self.projections.params))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def facts_version(self) -> str:
        """The same of the facts, which are stored apart: they are there when another version of learning starts."""
        return hashlib.sha256(repr(("facts", 1, self.kind, self.projections.params)).encode()).hexdigest()[:16]

    @property
    def _versions(self) -> Sequence[str]:
        return (self.version, self.facts_version) if self.learns else (self.facts_version,)

    def blank(self) -> Self:
        """Make a new learner with the same settings."""
        return self._made(type(self))

    def part(self, tenant: str | None) -> Learner:
        """Make a new learner with the same settings for one tenant, or for all tenants together if None."""
        made = self._one()
        made.tenant = tenant
        return made

    def facts_only(self) -> Self:
        """Make a new learner with the same settings that folds the facts alone."""
        made = self.blank()
        made.learns, made.limit, made.users.limit = False, None, None
        return made

    def facts(self, tenant: str | None = None) -> Projections:
        """The projections whose `FACTS` are current: of a tenant, or those that are everybody's."""
        front = self.ahead or self
        return (front if tenant is None else front.of(tenant)).projections

    def _one(self) -> Learner:
        """Make a new learner that keeps no tenants apart."""
        return self.blank()

    def _made(self, kind: type[_AnyLearner]) -> _AnyLearner:
        made = kind(
            self.fit.d,
            self.fit.D,
            schema=self.schema,
            params=self.fit.params,
            names=self.names,
            prior=self.prior,
            votes_per_day=self.votes_per_day,
            people_per_key=self.people_per_key,
            expects_scores=self.expects_scores,
            projections=self.projections.params,
            arm_prior=self.arm_prior,
            people=self.limit,
            folder=self.folder,
        )
        made.learns = self.learns
        return made

    def take_over(self, other: Learner) -> None:
        """Take over another learner's state; everything is then part of the next snapshot."""
        before = set(self._keys())
        self.fit, self.projections = other.fit, other.projections
        self.open, self.seq, self.stale = other.open, other.seq, other.stale
        self.skipped, self.quarantined = other.skipped, other.quarantined
        self._dirty = before.union(self._keys())  # what is there no more is removed from the stored snapshot
        self.moved, self.revision = True, self.revision + 1

    # --- tenants: `fitrouter.state.tenants` keeps them apart ---

    def of(self, tenant: str) -> Learner:  # noqa: ARG002 - all tenants share this one
        """The learner of a tenant."""
        return self

    def parts(self) -> Sequence[Learner]:
        """The learners of all tenants."""
        return (self,)

    def refitted(self, part: Learner, fresh: Learner) -> None:
        """Replace the state of one of the `parts` by a refitted one; later events must be folded again."""
        part.take_over(fresh)

    @property
    def parts_ahead(self) -> bool:
        """Whether some of the `parts` are ahead of `seq`, after the refit of another one."""
        return False

    def shrink(self) -> None:
        """Move the users that were not used for longest out of memory (`Users.shrink`). Blocks on the disk."""
        for part in self.parts():
            part.users.shrink()

    def score(self, identity: Identity, h: Floats, dimension: str = OVERALL) -> tuple[float, float]:
        """Posterior mean and sd of this user's rating of an answer with features h. May block on the disk."""
        self.users.load(identity.user or "")
        return self.fit.score(identity, h, dimension)

    def dimensions(self) -> tuple[str, ...]:
        """Labelled dimensions other than `overall`."""
        return tuple(self.fit.tastes.others)

    def heads(self, identity: Identity, dimension: str = OVERALL) -> list[Gaussian]:
        """Return Gaussians whose sum is the user's taste in a dimension. May block on the disk."""
        self.users.load(identity.user or "")
        return self.fit.heads(identity, dimension)

    def published(self, tenant: str, dimension: str = OVERALL) -> Gaussian:
        """The population's taste in a dimension, as shown to callers who may not read what was learnt of people."""
        part = self.of(tenant)
        found = part.projections.publication.tastes.get(dimension)
        return part.fit.tastes.prior_of(dimension) if found is None else found

    # --- folding ---

    def apply(self, row: Row, related: Sequence[Event] = ()) -> None:
        """Fold the next event; one that was folded before is skipped, and so is an unsound one."""
        if row.seq <= self.seq:
            return
        self.seq = row.seq
        if not self._sound(row.event):
            self.skipped += row.seq > self.skip_to
            return
        self.fold(row, [event for event in related if self._sound(event)])
        if len(self._checked) >= _CHECKED:
            self._checked.clear()
        self._checked.add(row.event.id)

    def fold(self, row: Row, related: Sequence[Event]) -> None:
        """Fold one sound event, whatever its position."""
        self.moved = True
        self.projections.observe(row.event, related)
        match row.event:
            case Erasure() as event:
                if event.subject:
                    self.users.pop(event.subject)
                    self._dirty.add(f"user:{event.subject}")
                self.stale = row.seq
                self.rewrite()  # the stored snapshot was dropped (`Journal.erase`)
            case Quarantine() as event:
                self.quarantined.add(event.event_id)
                self.stale = row.seq
            case Refit():
                self.stale = row.seq
            case event:
                if self.learns:
                    self._observe(event, related)
        if self.users.damaged:
            self.stale, self.users.damaged = row.seq, False

    def _observe(self, event: Event, related: Sequence[Event]) -> None:
        """Fold what is learnt of an event."""
        match event:
            case Decision():
                self.open[event.id] = event.ts
                self.projections.propensities.observe(event)
            case Execution():
                self._execution(event)
            case Score():
                self._score(event, related)
            case Feedback():
                self._feedback(event, related)
            case Remark():
                self._remark(event, related)
            case RunOutcome():
                self._outcome(event, related)
            case ModelChange():
                self.join(card.arm for card in event.cards)
            case ProfileChange():
                self.fit.tastes.declare(event.identity, event.declared)
                self._dirty.add(f"user:{event.identity.user}")
            case _:
                pass

    def rewrite(self) -> None:
        """Mark all state as changed, so that the next snapshot holds everything."""
        self._dirty.update(self._keys())
        self.moved = True

    def join(self, arms: Iterable[str]) -> None:
        """Register the arms of a model registry."""
        if not self.learns:
            return
        # Sorted, so that the rows of arms are contiguous in the order in which decisions read them.
        names = sorted(arms)
        if self.arm_prior is not None:
            self.arm_prior.apply(self.fit.arms, names)
        for arm in names:
            self.fit.arms.join(arm)
            self.projections.arm_counts.join(arm)
            self._touch(arm)

    def waiting(self, score: Score, ahead: int) -> Sequence[str]:
        """Votes on pairs, and runs, that wait for a score, or are overdue after so many before it; see `read_batch`."""
        pairs = self.of(score.identity.tenant).projections.waiting_pairs
        return [*pairs.get(score.decision_id), *pairs.overdue(ahead + 1)]

    def load(self, batch: Batch) -> None:
        """Bring the people that a batch changes into memory, so that folding it needs no I/O. Blocks on the disk."""
        for row, related in batch.rows:
            for event in (row.event, *related):
                if isinstance(event, (Feedback, ProfileChange, RunOutcome)):
                    self.of(event.identity.tenant).users.load(voter_key(event.identity))

    def _sound(self, event: Event) -> bool:
        return event.id not in self.quarantined and (event.id in self._checked or not fault_in(event))

    def finite(self) -> bool:
        """Whether all numbers of the shared state, and of people changed since the last snapshot, are finite."""
        tastes = self.fit.tastes
        keys = [key.partition(":")[2] for key in self._dirty if key.startswith("user:")]
        people = [*tastes.roles.values(), *(person for key in keys if (person := self.users.hot(key)))]
        blocks = [tastes.population, *tastes.others.values()]
        return (
            self.fit.arms.finite()
            and all(np.isfinite(block.state).all() for block in blocks)
            and all(person.finite() for person in people)
            and bool(np.isfinite([*self.fit.widths.weights, *self.fit.mixture.weights("user")]).all())
            and all(math.isfinite(squares) for squares, _ in self.fit.residuals.values())
        )

    def _touch(self, *arms: str) -> None:
        """Mark arms as changed, together with the base arms that share posteriors with them."""
        self._dirty.update(f"arm:{name}" for arm in arms for name in (arm, base_arm(arm)))

    def apply_batch(self, batch: Batch) -> int:
        """Fold a batch, and return its number of rows."""
        for row, related in batch.rows:
            self.apply(row, related)
        return len(batch.rows)

    def _execution(self, event: Execution) -> None:
        self.open.pop(event.decision_id, None)
        if event.status in {RECORDED, DECLINED} or not event.believed:
            return
        arms = self.fit.arms
        self.projections.arm_counts.observe(event.attempts, event.ts)
        for attempt in event.attempts:
            if attempt.error not in NO_EVIDENCE:
                arms.observe_answer(arms.answering(attempt.model), attempt.error is None, event.ts)
                self._touch(attempt.model)
        x = unpack(event.features)
        if event.served_by is not None and len(x) == self.fit.d and event.status in {"ok", "partial", "cancelled"}:
            k = arms.operating(event.served_by)
            arms.observe_operations(k, x, float(event.completion_tokens), event.latency_ms / 1000.0)
            self._touch(event.served_by)

    def _score(self, event: Score, related: Sequence[Event]) -> None:
        voted = {event.decision_id, *self.projections.waiting_pairs.get(event.decision_id)}
        self.projections.waiting_pairs.observe(event, related)
        x = unpack(event.features)
        if len(x) != self.fit.d or _scored(event.decision_id, related):
            return
        h = self._h(event)
        if h is not None and _believed(event.decision_id, related):
            self.fit.arms.observe_response(self.fit.arms.row(event.served_by), x, h)
            self._touch(event.served_by)
        pair = (event.decision_id, FeedbackKind.PAIR)
        votes = {
            (vote.decision_id, *_key(vote)): vote
            for vote in related
            if isinstance(vote, Feedback)
            and vote.decision_id in voted
            and (vote.decision_id == event.decision_id or (vote.other, vote.kind) == pair)
            and vote.source != PREFERRED  # learnt when it came
        }
        for vote in votes.values():
            self._vote(vote, [*related, event])
        self._say(standing(_remarks_on(event.decision_id, related)), [*related, event])
        voted.update(self.projections.waiting_pairs.give_up())
        ended = [one for one in related if isinstance(one, RunOutcome) and decision_of(one) in voted]
        for who in {one.identity.run: one.identity for one in ended}.values():
            if who.tenant == event.identity.tenant:
                self._ended(reports_on(who, related), [*related, event])

    def _feedback(self, event: Feedback, related: Sequence[Event]) -> None:
        earlier = [vote for vote in related if _votes_on(vote, event.decision_id) and _key(vote) == _key(event)]
        self._vote(event, related, earlier[-1] if earlier else None)
        if self.expects_scores and event.source != PREFERRED:
            self.projections.waiting_pairs.observe(event, related)

    def _outcome(self, event: RunOutcome, related: Sequence[Event]) -> None:
        earlier = reports_on(event.identity, related)
        if self.expects_scores and not earlier:
            self.projections.waiting_pairs.observe(event, related)
        self._ended([*earlier, event], related, earlier)

    def _ended(
        self, reports: Sequence[RunOutcome], events: Sequence[Event], earlier: Sequence[RunOutcome] = ()
    ) -> None:
        """Learn how a run ended, or correct it after a further report, once all its answers are known."""
        standing, before = effective(reports), effective(earlier)
        if standing is None or standing is before:
            return
        of_answer = by_decision(reports[0].decisions, events)
        waits = self.projections.waiting_pairs.waits
        answers = {name: self._answered(name, own, scored=waits(name)) for name, own in of_answer.items()}
        if (label := run_label(standing, reports[0], before, answers, of_answer)) is None:
            return
        who, name = standing.identity, f"{standing.identity.run} outcome"
        voter, arms = self.fit.tastes.voter(who), list(dict.fromkeys(share.answer.arm for share in label.run))
        self._dirty.add(f"user:{voter_key(who)}")
        left = math.inf
        if before is not None:
            pooled = voter.has_counted(name)
        elif pooled := all(_believed(each, own) for each, own in of_answer.items()):
            pooled, left = self._counted(voter, standing, name, [(arm, arm) for arm in arms])
        label = msgspec.structs.replace(label, pooled=pooled, limited=left < math.inf)
        if before is not None:
            self.fit.revise(label, before.y)
        else:
            only = next(iter(of_answer.values())) if len(of_answer) == 1 else ()
            self._learn(label, next((one for one in only if isinstance(one, Decision)), None))
            if len(of_answer) == 1 and pooled:
                self.projections.arm_counts.observe_label(arms[0])
        if pooled:
            self.projections.publication.observe(who.user, self.fit.tastes)
        self._touch(*arms, *(impasse_of(share.answer.arm) for share in label.run if share.answer.stuck))
        keys = (role_key(Identity(tenant=who.tenant, role=share.role)) for share in label.run)
        self._dirty.update(f"role:{key}" for key in keys if key in self.fit.tastes.roles)

    def _learn(self, label: Label, decision: Decision | None) -> None:
        alarms = len(self.fit.tastes.forgotten)
        self._monitor(label, self.fit.learn(label), decision)
        if len(self.fit.tastes.forgotten) != alarms:
            self._touch(*self.fit.arms.names)

    def _counted(
        self, voter: Person, vote: Feedback | RunOutcome, name: str, ons: Sequence[tuple[str, str]]
    ) -> tuple[bool, float]:
        """Count a vote, and return whether it counts for others, and how many more of its key do.

        Args:
            voter: whose it is.
            vote: on one arm, or on several.
            name: of the vote.
            ons: what the votes of a day, and those of a key, are counted on.
        """
        vouching, day = self.projections.vouching, int(vote.ts // DAY_S)
        left = min(
            vouching.left(vote.vouched, on, people=self.people_per_key, votes_per_day=self.votes_per_day)
            for _, on in ons
        )
        before, arms = voter.days, [arm for arm, _ in ons]
        if not voter.count_vote(arms[0], day, self.votes_per_day, name if left > 0 else "", *arms[1:]):
            return False, left
        for _, on in ons:
            vouching.observe(vote.vouched, on, days=voter.days, before=before, left=left)
            before = voter.days
        return left > 0, left

    def _remark(self, event: Remark, related: Sequence[Event]) -> None:
        earlier = _remarks_on(event.decision_id, related)
        before, after = standing(earlier), standing([*earlier, event])
        if after is not before:
            self._say(before, related, withdraw=True)
            self._say(after, related)

    def _say(self, remark: Remark | None, events: Sequence[Event], *, withdraw: bool = False) -> None:
        """Learn what a remark says, or withdraw it, if its answer is scored."""
        answer = None if remark is None else self._answered(remark.decision_id, events)
        if remark is not None and answer is not None:
            self.fit.remark(remark, answer, withdraw=withdraw)
            self._dirty.add(f"user:{remark.identity.user}")

    def _h(self, score: Score) -> Floats | None:
        h = unpack(score.h)
        if score.status == "ok" and self.schema.startswith(f"{score.schema}/") and len(h) < self.fit.D:
            h = np.append(h, np.full(self.fit.D - len(h), np.nan))  # features that came later are missing in it
        elif score.status != "ok" or score.schema != self.schema:
            return None
        return h if len(h) == self.fit.D else None

    def _answered(self, decision_id: str, events: Sequence[Event], *, scored: bool | None = None) -> Answered | None:
        """Return the answer of a decision; None if it is missing, not scored yet, or of another encoder.

        Args:
            decision_id: the decision.
            events: of it, among others.
            scored: whether it counts only once it has a score; by default if answers are scored.
        """
        stuck = any(isinstance(one, Decision) and one.id == decision_id and bool(one.stuck) for one in events)
        for event in events:
            if isinstance(event, Score) and event.decision_id == decision_id:
                x = unpack(event.features)
                return Answered(event.served_by, x, self._h(event), stuck) if len(x) == self.fit.d else None
        if self.expects_scores if scored is None else scored:
            return None
        for event in events:
            if isinstance(event, Execution) and event.decision_id == decision_id and event.served_by is not None:
                x = unpack(event.features)
                return Answered(event.served_by, x, None, stuck) if len(x) == self.fit.d else None
        return None

    def _expected(self, decision_id: str, events: Sequence[Event]) -> Answered | None:
        """Return the model that a decision chose, for a comparison before any answer: as its answers are expected."""
        made = next((one for one in events if isinstance(one, Decision) and one.id == decision_id), None)
        x = np.zeros(0) if made is None else unpack(made.features)
        return Answered(made.chosen, x, None) if made is not None and len(x) == self.fit.d else None

    def apart(self, who: Identity, one: str, other: str, events: Sequence[Event]) -> tuple[float, float] | None:
        """Predict the difference of a person's ratings of two answers, with its standard deviation; see `_answered`."""
        answer, against = self._answered(one, events), self._answered(other, events)
        if answer is None or against is None:
            return None
        self.users.load(who.user or "")
        mean, variance = self.fit.predict(Label(who, answer, 1.0, FeedbackKind.PAIR, against=against)).full
        return mean, math.sqrt(max(variance, 0.0))

    def _vote(self, vote: Feedback, events: Sequence[Event], earlier: Feedback | None = None) -> None:
        """Learn from a vote, or correct an earlier version of it."""
        found = self._expected if vote.source == PREFERRED else self._answered
        answer = found(vote.decision_id, events)
        against = found(vote.other, events) if vote.other else None
        pair = vote.kind is FeedbackKind.PAIR
        if answer is None or (pair and against is None):
            return
        voter = self.fit.tastes.voter(vote.identity)
        self._dirty.add(f"user:{voter_key(vote.identity)}")
        name = f"{vote.decision_id} {vote.kind.value} {vote.dimension} {vote.other}".rstrip()
        # What was chosen to be asked uses up none of the votes that set levels.
        on = f"{answer.arm} {CHOSEN}" if vote.source == CHOSEN else answer.arm
        counted = on if vote.dimension == OVERALL else f"{on} {vote.dimension}"
        left = math.inf
        if earlier is not None:
            pooled = voter.has_counted(name)
        elif pooled := all(_believed(one, events) for one in (vote.decision_id, vote.other)):
            on = on if vote.dimension == OVERALL else f"{on} *"
            pooled, left = self._counted(voter, vote, name, [(counted, on)])
        if vote.dimension == BASE:
            if pooled:
                self.projections.quality_floor.observe(answer.arm, task_of(vote.identity, answer.x), vote.y, vote.ts)
            return
        tokens = next((e.completion_tokens for e in events if _ends(e, vote.decision_id)), 0)
        against = against if pair else None
        verdict = vote.identity, answer, vote.y, vote.kind, pooled, against, vote.dimension, tokens, vote.ts
        label = Label(*verdict, limited=left < math.inf)
        if earlier is not None:
            self.fit.revise(label, earlier.y)
        else:
            decision = next((one for one in events if isinstance(one, Decision) and one.id == vote.decision_id), None)
            self._learn(label, decision)
            for arm in (answer, against):
                if arm is not None and pooled and vote.dimension == OVERALL:
                    self.projections.arm_counts.observe_label(arm.arm)
        if pooled:
            self.projections.publication.observe(vote.identity.user, self.fit.tastes)
        self._touch(*(arm.arm for arm in (answer, against) if arm))
        self._touch(*(impasse_of(arm.arm) for arm in (answer, against) if arm and arm.stuck))
        if role_key(vote.identity) in self.fit.tastes.roles:
            self._dirty.add(f"role:{role_key(vote.identity)}")

    def _monitor(self, label: Label, predicted: Prequential | None, decision: Decision | None) -> None:
        """Update the personalisation monitor with a label and its prequential prediction."""
        if predicted is None:
            return
        monitor = self.projections.personalisation
        y, blind, term = predicted
        monitor.observe_prediction(role_key(label.identity), y=y, blind=blind, term=term)
        if decision is not None and 0.0 <= label.y <= 1.0:
            monitor.observe(decision, label.y)

    # --- state ---

    def dirty(self) -> Iterator[tuple[str, bytes]]:
        """Yield the keys that changed since the last snapshot, with their bytes; empty bytes for an erased key."""
        for key in sorted(self._dirty):
            yield key, self._dump(key)
        yield from self._small_state()

    def state(self) -> Iterator[tuple[str, bytes]]:
        """All keys in order, with their bytes."""
        for key in sorted(self._keys()):
            yield key, self._dump(key)
        yield from self._small_state()

    def _keys(self) -> Iterator[str]:
        """Keys of arms and people."""
        yield from (f"arm:{name}" for name in self.fit.arms.names)
        yield from (f"role:{key}" for key in self.fit.tastes.roles)
        yield from (f"user:{key}" for key in self.users)

    def _small_state(self) -> Iterator[tuple[str, bytes]]:
        """State that is part of every snapshot."""
        for name, projection in self._projections().items():
            yield f"part:{name}", projection.dump()
        if self.learns:
            yield "scalars", self._scalars()

    def _projections(self) -> dict[str, Projection]:
        named = self.projections.named()
        return {**self.fit.named(), **named} if self.learns else {name: named[name] for name in FACTS}

    def digest(self) -> str:
        """Compute the sha256 of the whole state."""
        digest = hashlib.sha256(self.version.encode())
        for key, payload in self.state():
            digest.update(key.encode())
            digest.update(payload)
        return digest.hexdigest()

    def snapshot(self) -> Snapshot:
        """The changes since the last snapshot, at this position."""
        return Snapshot(self.seq, dict(self.changes()))

    def changes(self) -> Iterator[tuple[str, bytes]]:
        """Yield the entries of `snapshot` one by one; the caller must not fold anything before the end."""
        version, facts = self.version, self.facts_version
        for key, payload in self.dirty():
            yield f"{facts if self._place(key)[1] in _FACTS else version}/{key}", payload
        for each in self._versions:
            yield f"{each}/{_POSITION}", str(self.seq).encode()
        for part in self.parts():
            part._dirty.clear()
            part.moved = False

    def unsaved(self, snapshot: Snapshot) -> None:
        """Mark what a snapshot holds as changed again, because it could not be saved."""
        for key in (key.partition("/")[2] for key in snapshot.state):
            part, own = self._place(key)
            part.moved = True
            if own.startswith(("arm:", "role:", "user:")):
                part._dirty.add(own)

    def _place(self, key: str) -> tuple[Learner, str]:
        """Return the part of the learner that a key of the snapshot belongs to, and the key within it."""
        return self, key

    def put_aside(self, journal: Journal) -> Snapshot:
        """Read the stored snapshot, but write its users to the spill instead of memory. Blocks on the disk.

        What other versions have stored is left out.
        """
        versions, prefix = self._versions, f"{self.version}/"
        waiting = dict[Learner, list[tuple[str, bytes]]]()

        def write(part: Learner) -> None:
            if rows := waiting.pop(part, None):
                part.users.put_aside(rows)

        def aside(key: str, payload: bytes) -> bool:
            if key.partition("/")[0] not in versions:
                return True
            if self.users.limit is None or not key.startswith(prefix):
                return False
            part, own = self._place(key[len(prefix) :])
            if not own.startswith("user:"):
                return False
            if payload:
                waiting.setdefault(part, []).append((own.removeprefix("user:"), payload))
            if sum(map(len, waiting.values())) >= _ASIDE:
                for each in list(waiting):
                    write(each)
            return True

        snapshot = journal.snapshot(aside)
        for part in list(waiting):
            write(part)
        return snapshot

    def restore(self, snapshot: Snapshot, fresh: Learner | None = None) -> bool:
        """Restore a snapshot. False, and unchanged, if it has another version or is damaged.

        Args:
            snapshot: of this learner or one with the same settings.
            fresh: a blank learner to restore into, which may have put users aside.
        """
        state, positions = dict[str, bytes](), set[bytes]()
        for prefix in (f"{version}/" for version in self._versions):
            own = {key[len(prefix) :]: payload for key, payload in snapshot.state.items() if key.startswith(prefix)}
            positions.add(own.pop(_POSITION, b""))
            state |= own
        # Others may have saved since: what they saved of the facts does not fit what this one has learnt.
        if len(positions) > 1 or not (position := positions.pop()).isdigit():
            return False
        fresh = fresh or self.blank()
        if not fresh._load(state):
            return False
        fresh.seq = int(position)
        self.take_over(fresh)
        for part in self.parts():
            part._dirty.clear()
            part.moved = False
        return True

    def _load(self, state: dict[str, bytes]) -> bool:
        if self.learns and not self._load_scalars(state.pop("scalars", b"")):
            return False
        for key, payload in state.items():
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
                people: Users | dict[str, Person] = tastes.users if kind == "user" else tastes.roles
                person = tastes.new_person() if kind == "user" else tastes.new_role()
                if not person.load(payload):
                    return False
                people[name] = person
        return True

    def _dump(self, key: str) -> bytes:
        kind, _, name = key.partition(":")
        if kind == "arm":
            return self.fit.arms.dump(name)
        person = self.fit.tastes.named(kind, name)
        return b"" if person is None else person.dump()

    def _scalars(self) -> bytes:
        fit = self.fit
        return msgspec.msgpack.encode(
            _Scalars(
                fit.tastes.population.dump(),
                [(name, *block.dump()) for name, block in fit.tastes.others.items()],
                fit.labels,
                [(kind, squares, n) for kind, (squares, n) in sorted(fit.residuals.items())],
                self.stale,
                fit.tastes.forgotten,
                list(fit.arms.names),
                list(self.open.items()),
                self.skipped,
                sorted(self.quarantined),
                [(stream, *offset) for stream, offset in sorted(fit.offsets.items())],
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
        self.fit.labels, self.stale, self.fit.tastes.forgotten = stored.labels, stored.stale, stored.forgotten
        self.fit.residuals = {kind: (squares, n) for kind, squares, n in stored.residuals}
        self.fit.offsets = {stream: (mean, variance) for stream, mean, variance in stored.offsets}
        for name in stored.arms:  # in their order, which fixes their rows
            self.fit.arms.row(name)
        self.open = dict(stored.open)
        self.skipped, self.quarantined = stored.skipped, set(stored.quarantined)
        return True


def _scored(decision_id: str, events: Sequence[Event]) -> bool:
    return any(isinstance(event, Score) and event.decision_id == decision_id for event in events)


def _ends(event: Event, decision_id: str) -> TypeGuard[Execution]:
    return isinstance(event, Execution) and event.decision_id == decision_id


def _believed(decision_id: str, events: Sequence[Event]) -> bool:
    """Whether an answer's execution may teach what all users share."""
    return all(event.believed for event in events if _ends(event, decision_id))


def _votes_on(event: Event, decision_id: str) -> TypeGuard[Feedback]:
    return isinstance(event, Feedback) and event.decision_id == decision_id


def _remarks_on(decision_id: str, events: Sequence[Event]) -> list[Remark]:
    return [event for event in events if isinstance(event, Remark) and event.decision_id == decision_id]


def _key(vote: Feedback) -> tuple[str, str, str]:
    """Key of a vote: a later vote on the same answer with the same key supersedes an earlier one."""
    return vote.kind.value, vote.dimension, vote.other
