"""What people say: verdicts on answers, and what they declare of themselves. Acknowledged when durable."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import msgspec

from fitrouter.draw import uuid7
from fitrouter.errors import InvalidRequest, NotAuthorized, StoreError
from fitrouter.hooks import Hooks
from fitrouter.serving.recorder import STORE_WAIT_S, Recorder, read_in_time
from fitrouter.serving.services import ScorerPlugin
from fitrouter.stores.identities import Identities
from fitrouter.stores.journal import Entry, Journal
from fitrouter.types import Decision, Execution, Feedback, FeedbackKind, Identity, ProfileChange

_LONGEST_STAY_S = 86_400.0
_STATEMENTS = 64


class Declared(msgspec.Struct, frozen=True):
    """What a person declared, as it was understood."""

    values: dict[str, float]
    """Dimension → −1 (wants less of it) … 1 (wants more)."""
    not_understood: tuple[str, ...] = ()
    """Statements that say nothing of any dimension."""


def on_scale(kind: FeedbackKind, value: float, scale: tuple[float, float]) -> None:
    """Check the value of a verdict.

    Raises:
        InvalidRequest: with what is allowed for the kind.
    """
    low, high = scale
    if kind is FeedbackKind.RATING:
        if not (all(map(math.isfinite, (low, high, value))) and low < high and low <= value <= high):
            raise InvalidRequest(f"feedback: {value!r} is not on the scale {scale!r}; give low <= value <= high")
    elif scale != (0.0, 1.0):
        raise InvalidRequest(f"feedback: {scale!r} was given as scale; only a rating has one, leave it out")
    elif kind is FeedbackKind.DWELL:
        if not 0.0 <= value <= _LONGEST_STAY_S:
            raise InvalidRequest(f"feedback: a stay of {value!r} seconds; give 0 to {_LONGEST_STAY_S:.0f}")
    elif kind is FeedbackKind.PAIR:
        if value not in (0.0, 0.5, 1.0):
            raise InvalidRequest(f"feedback: a pair with {value!r}; give 1 (better), 0.5 (a tie) or 0 (worse)")
    elif not 0.0 <= value <= 1.0:
        raise InvalidRequest(f"feedback: {value!r} for {kind.value!r} is not on the scale (0.0, 1.0)")


def _plain(kind: Any, value: Any, scale: Any) -> tuple[FeedbackKind, float, tuple[float, float]]:
    """As the log keeps it: an event that holds a truth value for a number, or a word, could not be read again.

    Raises:
        InvalidRequest: it is something else.
    """
    try:
        numbers = [float(number) for number in (value, *scale) if isinstance(number, Real)]
        (given, low, high), found = numbers, FeedbackKind(kind)
    except (OverflowError, TypeError, ValueError):
        raise InvalidRequest(
            f"feedback: kind {kind!r} with value {value!r} on scale {scale!r}; give a kind, a number, and the lowest "
            f"and highest value of the scale; kinds are {', '.join(FeedbackKind)}"
        ) from None
    return found, given, (low, high)


class _Judged(NamedTuple):
    """What a verdict is about."""

    decision: Decision
    identity: Identity
    """Whom the verdict teaches: the decision's identity, with the user's subject in the place of an alias."""
    served_by: str | None


class FeedbackIntake:
    """Takes what people say and makes it durable; the learner hears of it from the journal."""

    def __init__(
        self,
        journal: Journal,
        identities: Identities,
        recorder: Recorder,
        hooks: Hooks,
        scorer: ScorerPlugin | None,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self.journal, self.identities, self.recorder, self.hooks = journal, identities, recorder, hooks
        self.scorer, self.clock, self.wake = scorer, clock, wake

    async def feedback(
        self,
        decision_id: str,
        kind: FeedbackKind,
        value: float,
        *,
        scale: tuple[float, float] = (0.0, 1.0),
        dimension: str = "overall",
        other: str | None = None,
        identity: Identity | None = None,
    ) -> str:
        """See `Router.feedback`."""
        kind, value, scale = _plain(kind, value, scale)
        if not isinstance(dimension, str) or not dimension.strip():
            raise InvalidRequest(f"feedback: {dimension!r} was given as dimension; give its name, such as 'overall'")
        on_scale(kind, value, scale)
        if (kind is FeedbackKind.PAIR) is not bool(other):
            raise InvalidRequest(f"feedback: {kind.value!r} with other={other!r}; a pair names one, nothing else does")
        speaker = identity or Identity()
        judged = await self._judged(decision_id, speaker)
        if other:
            against = await self._judged(other, speaker)
            same = speaker.user is not None or against.identity.user == judged.identity.user
            if other == decision_id or not same:
                raise InvalidRequest(f"feedback: {other!r} is no other answer of the same user; a pair compares two")
            if (against.decision.ts, other) > (judged.decision.ts, decision_id):  # of the later, whose score comes last
                decision_id, other, value = other, decision_id, 1.0 - value
                judged = against
        now = self.clock()
        event = Feedback(
            id=uuid7(now),
            ts=now,
            decision_id=decision_id,
            identity=judged.identity,
            kind=kind,
            value=value,
            scale=scale,
            dimension=dimension,
            other=other or "",
            asked=judged.decision.asked,
        )
        await self._keep(event)
        self.hooks.happened(event, judged.served_by)
        self.wake()
        return event.id

    async def declare(
        self, identity: Identity, values: Mapping[str, float] | None = None, words: Sequence[str] = ()
    ) -> Declared:
        """See `Router.declare`."""
        if not identity.user:
            raise InvalidRequest("profile: nobody is named; give the user whose profile it is")
        if len(words) > _STATEMENTS:
            raise InvalidRequest(f"profile: {len(words)} statements were given; allowed are {_STATEMENTS}")
        if self.scorer is None:
            raise InvalidRequest("profile: there is no scorer, so there are no dimensions; set 'scorer.encoder'")
        known = [name for name in self.scorer.names if name != "one"]
        for name, value in (values or {}).items():
            if name not in known:
                raise InvalidRequest(f"profile: there is no dimension {name!r}; there are {', '.join(known)}")
            if not -1.0 <= value <= 1.0:
                raise InvalidRequest(f"profile: {name} is {value!r}; give −1 (less of it) to 1 (more of it)")
        said = await asyncio.to_thread(self.scorer.understand, list(words)) if words else {}
        found: dict[str, list[float]] = {}
        for meant in said.values():
            for name, value in meant.items():
                found.setdefault(name, []).append(value)
        understood = {name: sum(heard) / len(heard) for name, heard in found.items()} | dict(values or {})
        subject = await read_in_time(self.identities.subject, identity.tenant, identity.user)
        now = self.clock()
        await self._keep(
            ProfileChange(
                id=uuid7(now),
                ts=now,
                identity=Identity(tenant=identity.tenant, user=subject, role=identity.role),
                declared=understood,
            )
        )
        self.wake()
        return Declared(understood, tuple(word for word in words if not said.get(word)))

    async def _judged(self, decision_id: str, speaker: Identity) -> _Judged:
        """The decision that a verdict is about, and who answered."""
        rows = await self.recorder.events(decision_id, speaker.tenant)
        decision = rows[0]
        assert isinstance(decision, Decision)
        subject = decision.identity.user
        if speaker.user is not None and not (
            subject is not None
            and await read_in_time(self.identities.stands_for, subject, speaker.tenant, speaker.user)
        ):
            raise NotAuthorized(f"feedback: decision {decision_id!r} was made for another user")
        served_by = next((row.served_by for row in rows if isinstance(row, Execution)), None)
        # A vote that takes the place of another one teaches the same person.
        earlier = (row.identity for row in rows if isinstance(row, Feedback) and row.decision_id == decision_id)
        identity = next(earlier, None) or await self._canonical(decision.identity)
        return _Judged(decision, identity, served_by)

    async def _canonical(self, identity: Identity) -> Identity:
        """The identity with the user's subject where the decision was logged under an alias of it."""
        if identity.user is None:
            return identity
        with contextlib.suppress(StoreError):  # a vote counts without it, for the alias
            subject = await read_in_time(self.identities.canonical, identity.user)
            return msgspec.structs.replace(identity, user=subject)
        return identity

    async def _keep(self, event: Feedback | ProfileChange) -> None:
        try:
            async with asyncio.timeout(STORE_WAIT_S):
                await asyncio.wrap_future(self.journal.append(Entry(event)))
        except Exception as error:
            self.hooks.trouble("journal", error)
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"the journal failed ({type(error).__name__}); try again") from error
