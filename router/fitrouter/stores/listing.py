"""Lists of what was logged, the newest first: answers with their scores and votes, feedback, and users."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from fitrouter.errors import InvalidRequest, UnknownDecision
from fitrouter.identity import canonical_role, decision_id_of
from fitrouter.stores.figures import tallies
from fitrouter.types import (
    RECORDED,
    Decision,
    Event,
    Execution,
    Feedback,
    FeedbackKind,
    Identity,
    ProfileChange,
    Remark,
    Score,
)

if TYPE_CHECKING:
    from fitrouter.stores.identities import Identities
    from fitrouter.stores.journal import Journal, Row

MOST = 1000
"""Most entries of a list."""
_OVERALL = "overall"
_SHORT = re.compile(r"[0-9a-f-]{4,35}")
_SEVERAL = 20
"""Decisions from which the beginning of an id is not looked into."""


def story(journal: Journal, decision_id: str, tenant: str | None = None) -> list[Event]:
    """All events of a decision, which comes first; its id may be cut short to four characters or more. Blocks.

    Raises:
        UnknownDecision: the tenant (None: any) has no such logged decision.
        InvalidRequest: several decisions begin with these characters.
        StoreError: the journal cannot be read now.
    """
    decision_id = decision_id_of(decision_id)
    found = _story(journal, decision_id, tenant)
    if not found and _SHORT.fullmatch(decision_id):
        begun = journal.ids(decision_id, _SEVERAL)
        stories = [each for each in (_story(journal, one, tenant) for one in begun) if each]
        if len(stories) > 1 or len(begun) == _SEVERAL:
            some = ", ".join(each[0].id for each in stories[:3])
            raise InvalidRequest(f"several decisions begin with {decision_id!r}: {some} …; give more of the id")
        found = stories[0] if stories else []
    if not found:
        raise UnknownDecision(
            f"there is no logged decision {decision_id!r}; the answer's 'x-fitrouter-decision' header holds its id, "
            "and `fitrouter decisions` lists them"
        )
    return found


def _story(journal: Journal, decision_id: str, tenant: str | None) -> list[Event]:
    events = [row.event for row in journal.of(decision_id)]
    for event in events:
        if isinstance(event, Decision) and event.id == decision_id and tenant in {None, event.identity.tenant}:
            return [event, *(other for other in events if other is not event)]
    return []


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    decision_id: str
    ts: float
    """Seconds since the epoch."""
    tenant: str
    user: str | None
    """Name of the user; None for nobody in particular, and for erased users."""
    subject: str | None
    """Token of the user in the journal and the warehouse."""
    role: str | None
    task: str | None
    model: str
    """The model that answered; if none did, the one that was chosen."""


class ListedAnswer(_Entry, frozen=True, kw_only=True):
    """A decision, its answer, score and feedback."""

    mode: str
    probability: float
    """With which the chosen model was drawn."""
    status: str | None = None
    """ok, partial, cancelled, failed, lost, recorded or declined; None while the answer is not complete."""
    cost_usd: float | None = None
    """None while the answer is not complete, and if the price is not known: then it is `unpriced`."""
    unpriced: bool = False
    latency_ms: float | None = None
    score: float | None = None
    """Rating that the reward model expects, from 0 to 1."""
    votes: dict[str, float] = {}
    """Kind of feedback → its value from 0 to 1 (of dwell, seconds), each as it stands now."""


class ListedFeedback(_Entry, frozen=True, kw_only=True):
    """A vote or remark of a user on an answer."""

    id: str
    kind: str
    """Of a vote; of a remark: comment or implicit."""
    value: float | None = None
    """As given; None for a remark."""
    scale: tuple[float, float] | None = None
    """Of a rating."""
    dimension: str = _OVERALL
    understood: dict[str, float] = {}
    """Of a remark: dimension → −1 (less of it is wanted) … 1 (more)."""
    asked: bool = False
    replaced: bool = False
    """Whether a later vote on the same answer replaced it."""


class ListedUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user, and how much was logged about them."""

    tenant: str
    user: str
    subject: str
    """Token of the user in the journal and the warehouse."""
    aliases: tuple[str, ...] = ()
    """Further tokens of the same user."""
    requests: int = 0
    """Answered or not, with the plans that were looked at and not run."""
    votes: int = 0
    """Of all kinds, replaced ones included."""
    remarks: int = 0
    first: float | None = None
    """Time of the first event, in seconds since the epoch."""
    last: float | None = None


class ModelTally(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a user's whole answers by a model, and of their ratings (`stores.figures.tallies`)."""

    model: str
    answers: int
    up: int
    down: int


class ShownUser(ListedUser, frozen=True, kw_only=True):
    """Counts of a user's logged events, votes and models."""

    roles: tuple[str, ...] = ()
    models: tuple[ModelTally, ...] = ()
    declared: dict[str, float] = {}
    """Dimension → −1 (wants less) … 1 (wants more), as the user said last."""


class Lists:
    """Lists over a journal and its identities. All methods block on the disk.

    Args:
        journal: the log.
        identities: name the users.
    """

    def __init__(self, journal: Journal, identities: Identities) -> None:
        self._journal, self._identities = journal, identities

    def answers(
        self,
        last: int = 20,
        *,
        tenant: str | None = None,
        user: str | None = None,
        role: str | None = None,
        model: str | None = None,
    ) -> list[ListedAnswer]:
        """List the last answers.

        Args:
            last: most entries.
            tenant: of the decisions; None for all.
            user: who got them; None for all.
            role: of the user, in any spelling.
            model: that answered, with or without variant and revision.

        Raises:
            InvalidRequest: `last` is out of range, or the user is unknown.
            StoreError: a store cannot be read now.
        """
        found = (self._answer(row.event) for row in self._rows(("decision",), tenant, user))
        return list(islice((one for one in found if _fits(one, role, model)), _checked(last)))

    def feedback(
        self,
        last: int = 20,
        *,
        tenant: str | None = None,
        user: str | None = None,
        role: str | None = None,
        model: str | None = None,
    ) -> list[ListedFeedback]:
        """List the last votes and remarks; arguments and errors as of `answers`."""
        found = (self._listed_feedback(row.event) for row in self._rows(("feedback", "remark"), tenant, user))
        return list(islice((one for one in found if _fits(one, role, model)), _checked(last)))

    def users(self, last: int = 20, *, tenant: str | None = None) -> list[ListedUser]:
        """List the users that were met last.

        Raises:
            InvalidRequest: `last` is out of range.
            StoreError: a store cannot be read now.
        """
        people = self._identities.people(_checked(last), tenant)
        return [self._counted(of, user) for of, user in people]

    def user(self, user: str, tenant: str = Identity().tenant) -> ShownUser:
        """Logged data of a user.

        Raises:
            InvalidRequest: there is no such user.
            StoreError: a store cannot be read now.
        """
        who = self._counted(tenant, user)
        events = [row.event for subject in (who.subject, *who.aliases) for row in self._journal.of(subject)]
        served = {
            event.decision_id: event.served_by
            for event in events
            if isinstance(event, Execution) and event.served_by and event.status in {"ok", RECORDED}
        }
        rated = tallies(events)
        names = list(served.values())
        profiles = [event for event in events if isinstance(event, ProfileChange)]
        roles = dict.fromkeys(e.identity.role for e in events if isinstance(e, Decision) and e.identity.role)
        return ShownUser(
            **msgspec.structs.asdict(who),
            roles=tuple(roles),
            models=tuple(
                ModelTally(model=name, answers=names.count(name), up=up, down=down)
                for name in sorted(set(names), key=lambda name: (-names.count(name), name))
                for up, down, _ in [rated.get(name, (0, 0, 0))]
            ),
            declared=dict(profiles[-1].declared) if profiles else {},
        )

    def names(self, subjects: Sequence[str]) -> dict[str, str]:
        """Names of users by their tokens; without those that are erased, or unknown."""
        known = ((subject, self._identities.reveal(subject)) for subject in subjects)
        return {subject: person[1] for subject, person in known if person and person[1]}

    # --- rows ---

    def _rows(self, kinds: Sequence[str], tenant: str | None, user: str | None) -> Iterator[Row]:
        """Yield the rows of some kinds of events, the newest first."""
        subjects: Sequence[str | None] = (None,)
        if user is not None:
            found = [self._identities.subjects(of, user) for of in ([tenant] if tenant else self._tenants_of(user))]
            subjects = [subject for each in found for subject in each]
            if not subjects:
                raise InvalidRequest(f"user: there is no user {user!r}; `fitrouter users` lists them")
        for row in merge(*(self._pages(kinds, each) for each in subjects), key=lambda row: row.seq, reverse=True):
            identity = row.event.identity  # type: ignore[union-attr]  # the kinds that are listed have one
            if tenant in (None, identity.tenant):
                yield row

    def _pages(self, kinds: Sequence[str], subject: str | None) -> Iterator[Row]:
        before: int | None = None
        while rows := self._journal.latest(kinds, before=before, subject=subject):
            yield from rows
            before = rows[-1].seq

    def _tenants_of(self, user: str) -> list[str]:
        """The tenants that have a user of this name."""
        return [tenant for tenant, name in self._identities.people(-1) if name == user]

    # --- entries ---

    def _answer(self, decision: Event) -> ListedAnswer:
        assert isinstance(decision, Decision)
        events = [row.event for row in self._journal.of(decision.id)]
        execution = next((event for event in events if isinstance(event, Execution)), None)
        score = next((event for event in events if isinstance(event, Score) and event.status == "ok"), None)
        return ListedAnswer(
            **self._entry(decision.id, decision.ts, decision.identity, execution, decision.chosen),
            mode=decision.mode.value,
            probability=decision.propensity,
            status=execution.status if execution else None,
            cost_usd=execution.known_usd if execution else None,
            unpriced=execution is not None and execution.cost_assumed,
            latency_ms=execution.latency_ms if execution else None,
            score=score.mean if score else None,
            votes={
                vote.kind.value if vote.dimension == _OVERALL else f"{vote.kind.value} ({vote.dimension})": vote.y
                for vote in _standing(events).values()
                if vote.decision_id == decision.id
            },
        )

    def _listed_feedback(self, event: Event) -> ListedFeedback:
        assert isinstance(event, Feedback | Remark)
        events = [row.event for row in self._journal.of(event.decision_id)]
        execution = next((one for one in events if isinstance(one, Execution)), None)
        chosen = next((one.chosen for one in events if isinstance(one, Decision)), "")
        entry = self._entry(event.decision_id, event.ts, event.identity, execution, chosen)
        if isinstance(event, Remark):
            return ListedFeedback(**entry, id=event.id, kind=event.kind, understood=event.moved)
        return ListedFeedback(
            **entry,
            id=event.id,
            kind=event.kind.value,
            value=event.value,
            scale=event.scale if event.kind is FeedbackKind.RATING else None,
            dimension=event.dimension,
            asked=event.asked,
            replaced=_standing(events).get(_key(event)) not in (None, event),
        )

    def _entry(
        self, decision_id: str, ts: float, identity: Identity, execution: Execution | None, chosen: str
    ) -> dict[str, Any]:
        person = self._identities.reveal(identity.user) if identity.user else None
        return {
            "decision_id": decision_id,
            "ts": ts,
            "tenant": identity.tenant,
            "user": person and person[1],
            "subject": identity.user,
            "role": identity.role,
            "task": identity.task,
            "model": (execution and execution.served_by) or chosen,
        }

    def _counted(self, tenant: str, user: str) -> ListedUser:
        subjects = self._identities.subjects(tenant, user)
        if not subjects:
            raise InvalidRequest(
                f"user: there is no user {user!r} of the tenant {tenant!r}; `fitrouter users` lists them"
            )
        counts = [self._journal.counts(subject) for subject in subjects]
        times = [each for one in counts for each in one.values()]
        number = {
            kind: sum(one[kind][0] for one in counts if kind in one) for kind in ("decision", "feedback", "remark")
        }
        return ListedUser(
            tenant=tenant,
            user=user,
            subject=subjects[0],
            aliases=subjects[1:],
            requests=number["decision"],
            votes=number["feedback"],
            remarks=number["remark"],
            first=min((first for _, first, _ in times), default=None),
            last=max((last for _, _, last in times), default=None),
        )


def _key(vote: Feedback) -> tuple[str, str, str]:
    return vote.decision_id, vote.kind.value, vote.dimension


def _standing(events: Sequence[Event]) -> dict[tuple[str, str, str], Feedback]:
    """The votes that count: the last of each decision, kind and dimension."""
    return {_key(event): event for event in events if isinstance(event, Feedback)}


def _fits(entry: _Entry, role: str | None, model: str | None) -> bool:
    return (role is None or canonical_role(entry.role) == canonical_role(role)) and (
        model is None
        or model in (entry.model, entry.model.partition("@")[0], entry.model.partition("@")[0].partition("#")[0])
    )


def _checked(last: int) -> int:
    if not 1 <= last <= MOST:
        raise InvalidRequest(f"last: got {last}; allowed are 1 to {MOST}")
    return last
