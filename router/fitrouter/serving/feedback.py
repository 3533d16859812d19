"""Feedback on answers and declared preferences; acknowledged when durable."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import msgspec

from fitrouter.draw import uuid7
from fitrouter.errors import InvalidRequest, NotAuthorized, StoreError
from fitrouter.serving.recorder import Recorder, read_in_time
from fitrouter.serving.services import ScorerPlugin
from fitrouter.stores.identities import Identities
from fitrouter.types import Decision, Execution, Feedback, FeedbackKind, Identity, ProfileChange

_LONGEST_DWELL_S = 86_400.0
_STATEMENTS = 64


class Declared(msgspec.Struct, frozen=True):
    """Declared preferences as they were understood."""

    values: dict[str, float]
    """Dimension → −1 (wants less) … 1 (wants more)."""
    not_understood: tuple[str, ...] = ()
    """Statements without a known dimension or topic."""
    topics: tuple[str, ...] = ()
    """Statements about topics, which answers are compared with."""


def on_scale(kind: FeedbackKind, value: float, scale: tuple[float, float]) -> None:
    """Check the value of feedback.

    Raises:
        InvalidRequest: the value is not allowed for the kind.
    """
    low, high = scale
    if kind is FeedbackKind.RATING:
        if not (all(map(math.isfinite, (low, high, value))) and low < high and low <= value <= high):
            raise InvalidRequest(f"feedback: {value!r} is not on the scale {scale!r}; give low <= value <= high")
    elif scale != (0.0, 1.0):
        raise InvalidRequest(f"feedback: got scale {scale!r}; only ratings have a scale, omit it")
    elif kind is FeedbackKind.DWELL:
        if not 0.0 <= value <= _LONGEST_DWELL_S:
            raise InvalidRequest(f"feedback: got {value!r} seconds; allowed are 0 to {_LONGEST_DWELL_S:.0f}")
    elif kind is FeedbackKind.PAIR:
        if value not in (0.0, 0.5, 1.0):
            raise InvalidRequest(f"feedback: got {value!r} for a pair; give 1 (better), 0.5 (tie) or 0 (worse)")
    elif not 0.0 <= value <= 1.0:
        raise InvalidRequest(f"feedback: {value!r} for {kind.value!r} is not on the scale (0.0, 1.0)")


def _plain(kind: Any, value: Any, scale: Any) -> tuple[FeedbackKind, float, tuple[float, float]]:
    """Convert kind, value and scale to the types of the event.

    Raises:
        InvalidRequest: they have other types.
    """
    try:
        numbers = [float(number) for number in (value, *scale) if isinstance(number, Real)]
        (given, low, high), found = numbers, FeedbackKind(kind)
    except (OverflowError, TypeError, ValueError):
        raise InvalidRequest(
            f"feedback: got kind {kind!r}, value {value!r} and scale {scale!r}; give a kind, a number, and the "
            f"lowest and highest value of the scale; kinds are {', '.join(FeedbackKind)}"
        ) from None
    return found, given, (low, high)


class _Judged(NamedTuple):
    """The decision that feedback refers to."""

    decision: Decision
    identity: Identity
    """Identity that learns from it: the decision's, with an alias resolved to the user's subject."""
    served_by: str | None


class FeedbackIntake:
    """Checks feedback and declared preferences, and appends them to the journal."""

    def __init__(
        self, identities: Identities, recorder: Recorder, scorer: ScorerPlugin | None, clock: Callable[[], float]
    ) -> None:
        self.identities, self.recorder, self.scorer, self.clock = identities, recorder, scorer, clock

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
            raise InvalidRequest(f"feedback: got dimension {dimension!r}; give its name, such as 'overall'")
        on_scale(kind, value, scale)
        if (kind is FeedbackKind.PAIR) is not bool(other):
            raise InvalidRequest(
                f"feedback: got {kind.value!r} with other={other!r}; a pair needs 'other', nothing else has it"
            )
        speaker = identity or Identity()
        judged = await self._judged(decision_id, speaker)
        if other:
            against = await self._judged(other, speaker)
            same = speaker.user is not None or against.identity.user == judged.identity.user
            if other == decision_id or not same:
                raise InvalidRequest(
                    f"feedback: {other!r} is not another answer of the same user; a pair compares two of them"
                )
            if (against.decision.ts, other) > (
                judged.decision.ts,
                decision_id,
            ):  # logged with the later decision, which is scored last
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
        await self.recorder.keep(event, judged.served_by)
        return event.id

    async def declare(
        self, identity: Identity, values: Mapping[str, float] | None = None, words: Sequence[str] = ()
    ) -> Declared:
        """See `Router.declare`."""
        if not identity.user:
            raise InvalidRequest("profile: no user; give the user whose profile it is")
        if len(words) > _STATEMENTS:
            raise InvalidRequest(f"profile: got {len(words)} statements; allowed are {_STATEMENTS}")
        if self.scorer is None:
            raise InvalidRequest("profile: no dimensions without a scorer; set 'scorer.encoder'")
        known = [name for name in self.scorer.names if name != "one"]
        for name, value in (values or {}).items():
            if name not in known:
                raise InvalidRequest(f"profile: unknown dimension {name!r}; allowed are {', '.join(known)}")
            if not -1.0 <= value <= 1.0:
                raise InvalidRequest(f"profile: {name} is {value!r}; allowed are −1 (less) to 1 (more)")
        parsed = await asyncio.to_thread(self.scorer.understand, list(words)) if words else {}
        topics = tuple(self.scorer.topics([word for word in words if not parsed.get(word)]))
        found: dict[str, list[float]] = {}
        for meant in parsed.values():
            for name, value in meant.items():
                found.setdefault(name, []).append(value)
        understood = {name: sum(each) / len(each) for name, each in found.items()} | dict(values or {})
        subject = await read_in_time(self.identities.subject, identity.tenant, identity.user)
        kept = await read_in_time(self.identities.encrypt, subject, json.dumps(topics)) if topics else b""
        now = self.clock()
        await self.recorder.keep(
            ProfileChange(
                id=uuid7(now),
                ts=now,
                identity=Identity(tenant=identity.tenant, user=subject, role=identity.role),
                declared=understood,
                topics=kept,
            )
        )
        unclear = tuple(word for word in words if not parsed.get(word) and word not in topics)
        return Declared(understood, unclear, topics)

    async def _judged(self, decision_id: str, speaker: Identity) -> _Judged:
        """The decision that feedback refers to."""
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
        # A vote that supersedes another one must update the same person.
        earlier = (row.identity for row in rows if isinstance(row, Feedback) and row.decision_id == decision_id)
        identity = next(earlier, None) or await self._canonical(decision.identity)
        return _Judged(decision, identity, served_by)

    async def _canonical(self, identity: Identity) -> Identity:
        """The identity with an alias resolved to the user's subject."""
        if identity.user is None:
            return identity
        with contextlib.suppress(StoreError):  # the vote then counts for the alias
            subject = await read_in_time(self.identities.canonical, identity.user)
            return msgspec.structs.replace(identity, user=subject)
        return identity
