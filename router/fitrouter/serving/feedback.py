"""Feedback on answers and declared preferences: checked, and acknowledged when durable."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import msgspec

from fitrouter.draw import uuid7
from fitrouter.errors import InvalidRequest, NotAuthorized, StoreError
from fitrouter.identity import decision_id_of
from fitrouter.routing.pipeline import Proposal
from fitrouter.serving.recorder import Recorder, read_in_time
from fitrouter.serving.services import ParsedRemark, ScorerPlugin
from fitrouter.stores.identities import Identities
from fitrouter.stores.journal import LONGEST_MS, LONGEST_NAME
from fitrouter.types import CHOSEN, Decision, Execution, Feedback, FeedbackKind, Identity, ProfileChange, Remark

_LONGEST_DWELL_S = LONGEST_MS / 1000.0
LARGEST_RATING, NARROWEST_SCALE = 1e6, 1e-6
"""How far from 0 a scale may reach, and how wide it is at least."""
_STATEMENTS = 64
MOST_EVENTS = 256
"""Events of a decision, beyond which it takes no further vote: each vote reads all of them."""
UNIT = (0.0, 1.0)
"""Scale of ratings, where neither they nor the configuration name one."""
LONGEST_COMMENT = 1000
"""Characters of a comment."""


class Declared(msgspec.Struct, frozen=True):
    """Declared preferences as they were understood."""

    values: dict[str, float]
    """Dimension → −1 (wants less) … 1 (wants more)."""
    not_understood: tuple[str, ...] = ()
    """Statements without a known dimension or topic."""
    topics: tuple[str, ...] = ()
    """Statements about topics, which answers are compared with."""
    reasons: Mapping[str, str] = {}
    """Statement → why it was not understood, such as its language."""
    moved: Mapping[str, Mapping[str, float]] = {}
    """Statement → the values that it moved, by dimension; none for one that moved nothing."""


class Understood(msgspec.Struct, frozen=True):
    """A comment on an answer as it was understood."""

    moved: dict[str, float]
    """Dimension → −1 (less of it is wanted) … 1 (more); empty if nothing was understood, which changes nothing."""
    not_understood: tuple[str, ...] = ()
    """Clauses without a known dimension."""
    id: str | None = None
    """Of the logged remark; None if nothing was understood."""
    reasons: Mapping[str, str] = {}
    """Clause → why it was not understood, where more is known than that."""


def on_scale(kind: FeedbackKind, value: float, scale: tuple[float, float]) -> None:
    """Check that a feedback value is allowed for its kind and scale.

    Raises:
        InvalidRequest: the value is not allowed for the kind.
    """
    low, high = scale
    if kind is FeedbackKind.RATING:
        if not (all(map(math.isfinite, (low, high, value))) and low < high and low <= value <= high):
            raise InvalidRequest(
                f"feedback: {value!r} is not on the scale [{low:g}, {high:g}]; {_advice(value, scale)}"
            )
        if max(-low, high) > LARGEST_RATING or high - low < NARROWEST_SCALE:
            raise InvalidRequest(
                f"feedback: got scale {scale!r}; it may reach from {-LARGEST_RATING:g} to {LARGEST_RATING:g}, and "
                f"must be at least {NARROWEST_SCALE:g} wide"
            )
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


def _advice(value: float, scale: tuple[float, float]) -> str:
    """Advise how to correct a rating that is off its scale."""
    if scale == UNIT:
        for low, high in ((1, 5), (1, 10), (0, 100)):
            if low <= value <= high:
                return f'add "scale": [{low}, {high}], or set feedback.scale for all ratings without one'
    return "give the lowest value of the scale, a higher highest one, and a rating between them"


def _plain(kind: Any, value: Any, scale: Any) -> tuple[FeedbackKind, float, tuple[float, float]]:
    """Convert kind, value and scale to the types of the event. A rating "up" or "down" is a thumb.

    Raises:
        InvalidRequest: they have other types.
    """
    if value in ("up", "down") and kind in (FeedbackKind.THUMB, FeedbackKind.RATING):
        return FeedbackKind.THUMB, float(value == "up"), UNIT
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
    """The decision that a feedback judges."""

    decision: Decision
    identity: Identity
    """Identity that learns from it: the decision's, with an alias resolved to the user's subject."""
    served_by: str | None


class FeedbackIntake:
    """Checks feedback and declared preferences, and appends them to the journal."""

    def __init__(
        self,
        identities: Identities,
        recorder: Recorder,
        scorer: ScorerPlugin | None,
        clock: Callable[[], float],
        scale: tuple[float, float] | None = None,
    ) -> None:
        self.identities, self.recorder, self.scorer, self.clock = identities, recorder, scorer, clock
        self._scale = scale

    async def feedback(
        self,
        decision_id: str,
        kind: FeedbackKind,
        value: float | str,
        *,
        scale: tuple[float, float] | None = None,
        default_scale: tuple[float, float] = UNIT,
        dimension: str = "overall",
        other: str | None = None,
        identity: Identity | None = None,
        trusted: bool = True,
        vouched: str = "",
        first: str = "",
    ) -> str:
        """Log feedback on an answer; see `Router.feedback`."""
        decision_id, other = decision_id_of(decision_id), other and decision_id_of(other)
        first = first and decision_id_of(first)
        if scale is None:
            scale = (self._scale or default_scale) if kind == FeedbackKind.RATING else UNIT
        kind, value, scale = _plain(kind, value, scale)
        if not isinstance(dimension, str) or not dimension.strip() or len(dimension) > LONGEST_NAME:
            raise InvalidRequest(f"feedback: got dimension {str(dimension)[:40]!r}; give its name, such as 'overall'")
        on_scale(kind, value, scale)
        if (kind is FeedbackKind.PAIR) is not bool(other):
            raise InvalidRequest(
                f"feedback: got {kind.value!r} with other={other!r}; a pair needs 'other', nothing else has it"
            )
        speaker = identity or Identity()
        judged = await self._judged(decision_id, speaker, trusted=trusted)
        decision_id = judged.decision.id  # which may have been cut short
        if other:
            against = await self._judged(other, speaker, trusted=trusted)
            other = against.decision.id
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
        if first and (not other or first not in (decision_id, other)):
            raise InvalidRequest(f"feedback: got first={first!r}; give that answer of a pair which was shown first")
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
            asked=judged.decision.asked and not first,
            source=CHOSEN if first else "user",
            first=first,
            vouched=vouched,
        )
        await self.recorder.keep(event, judged.served_by)
        return event.id

    async def comment(
        self,
        decision_id: str,
        text: str | None = None,
        *,
        understood: Mapping[str, float] | None = None,
        identity: Identity | None = None,
        trusted: bool = True,
    ) -> Understood:
        """Log what a comment on an answer asks for; see `Router.comment`."""
        decision_id = decision_id_of(decision_id)
        if (text is None) is (understood is None):
            raise InvalidRequest("comment: give either its text, or what is to be understood of it")
        if text is not None and (not isinstance(text, str) or not text.strip() or len(text) > LONGEST_COMMENT):
            given = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
            raise InvalidRequest(f"comment: got {given}; give a text of 1 to {LONGEST_COMMENT} characters")
        names = () if self.scorer is None else self.scorer.names
        moved = self._checked("understood", understood or {}, names)
        judged = await self._judged(decision_id, identity or Identity(), trusted=trusted)
        decision_id = judged.decision.id
        unclear: tuple[str, ...] = ()
        reasons: Mapping[str, str] = {}
        await self.recorder.keep_comment(judged.decision, text, withdrawn=understood == {})
        if text is not None:
            said = ParsedRemark({}, None, (text,))
            if self.scorer is not None:
                readable = text.encode("utf-8", "replace").decode()
                said = await asyncio.to_thread(self.scorer.comment, readable)
            if not said.moved:
                return Understood({}, said.not_understood, reasons=dict(said.reasons))
            moved, unclear, reasons = said.moved, said.not_understood, said.reasons
        now = self.clock()
        event = Remark(id=uuid7(now), ts=now, decision_id=decision_id, identity=judged.identity, moved=moved)
        await self.recorder.keep(event, judged.served_by)
        return Understood(moved, unclear, event.id, dict(reasons))

    @staticmethod
    def _checked(field: str, values: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
        """Check that values are of known dimensions and in [−1, 1], and return them."""
        known = [name for name in names if name != "one"]
        for name, value in values.items():
            if name not in known:
                raise InvalidRequest(f"{field}: unknown dimension {name!r}; allowed are {', '.join(known)}")
            if not -1.0 <= value <= 1.0:
                raise InvalidRequest(f"{field}: {name} is {value!r}; allowed are −1 (less) to 1 (more)")
        return dict(values)

    async def understand(self, values: Mapping[str, float] | None = None, words: Sequence[str] = ()) -> Declared:
        """Preview what `declare` would take; see `Router.understand`."""
        if len(words) > _STATEMENTS:
            raise InvalidRequest(f"profile: got {len(words)} statements; allowed are {_STATEMENTS}")
        if self.scorer is None:
            raise InvalidRequest("profile: no dimensions without a scorer; set 'scorer.encoder'")
        given = self._checked("profile", values or {}, self.scorer.names)
        parsed = await asyncio.to_thread(self.scorer.understand, list(words)) if words else {}
        unread = [word for word in words if not parsed.get(word)]
        topics = tuple(await asyncio.to_thread(self.scorer.topics, unread)) if unread else ()
        found: dict[str, list[float]] = {}
        for meant in parsed.values():
            for name, value in meant.items():
                found.setdefault(name, []).append(value)
        understood = {name: sum(each) / len(each) for name, each in found.items()} | given
        unclear = tuple(word for word in words if not parsed.get(word) and word not in topics)
        moved = {word: meant for word, meant in parsed.items() if meant}
        reasons = await asyncio.to_thread(self.scorer.reasons, unclear) if unclear else {}
        return Declared(understood, unclear, topics, reasons, moved)

    async def declare(
        self,
        identity: Identity,
        values: Mapping[str, float] | None = None,
        words: Sequence[str] = (),
        stated: str = "",
    ) -> Declared:
        """Declare a user's preferences; see `Router.declare`."""
        if not identity.user:
            raise InvalidRequest("profile: no user; give the user whose profile it is")
        found = await self.understand(values, words)
        subject = await read_in_time(self.identities.subject, identity.tenant, identity.user)
        kept = [
            await read_in_time(self.identities.encrypt, subject, text) if text else b""
            for text in (json.dumps(found.topics) if found.topics else "", stated)
        ]
        now = self.clock()
        await self.recorder.keep(
            ProfileChange(
                id=uuid7(now),
                ts=now,
                identity=Identity(tenant=identity.tenant, user=subject, role=identity.role),
                declared=found.values,
                topics=kept[0],
                stated=kept[1],
            )
        )
        return found

    async def _judged(self, decision_id: str, speaker: Identity, *, trusted: bool) -> _Judged:
        """Find the decision that a feedback judges, and check that the speaker may judge it."""
        rows = await self.recorder.events(decision_id, speaker.tenant)
        decision = rows[0]
        assert isinstance(decision, Decision)
        if len(rows) > MOST_EVENTS:
            raise InvalidRequest(
                f"decision_id: {decision_id!r} has {MOST_EVENTS} votes and remarks, the most that count"
            )
        subject = decision.identity.user
        if speaker.user is None and subject is not None and not trusted:
            raise NotAuthorized(
                f"feedback: decision {decision_id!r} was made for a user; give that 'user', or set 'trusted: true' for "
                "the key of a backend that speaks for all users of its tenant"
            )
        if speaker.user is not None and not (
            subject is not None
            and await read_in_time(self.identities.stands_for, subject, speaker.tenant, speaker.user)
        ):
            raise NotAuthorized(f"feedback: decision {decision_id!r} was made for another user")
        served_by = next((row.served_by for row in rows if isinstance(row, Execution)), None)
        # A vote that supersedes another one must update the same person.
        earlier = (row.identity for row in rows if isinstance(row, Feedback) and row.decision_id == decision.id)
        identity = next(earlier, None) or await self._canonical(decision.identity)
        return _Judged(decision, identity, served_by)

    async def _canonical(self, identity: Identity) -> Identity:
        """Resolve an alias in an identity to the user's subject."""
        if identity.user is None:
            return identity
        try:
            subject = await read_in_time(self.identities.canonical, identity.user)
        except StoreError as error:  # the vote then counts for the alias
            self.recorder.hooks.trouble("identities", error)
            return identity
        return msgspec.structs.replace(identity, user=subject)


class RemarkListener:
    """Appends an implicit `Remark` where a request's last message is about the session's previous answer.

    Args:
        recorder: appends it.
        scorer: reads it; None for no remarks.
        enabled: the setting `feedback.implicit`.
    """

    def __init__(self, recorder: Recorder, scorer: ScorerPlugin | None, *, enabled: bool) -> None:
        self._recorder, self._scorer = recorder, scorer if enabled else None

    def listen(self, proposal: Proposal) -> None:
        """Log a remark if the message of a request makes one; failures are reported to the hooks."""
        decision = proposal.decision
        if self._scorer is None or not proposal.previous or decision.identity.user is None:
            return
        try:
            said = self._scorer.overhear(proposal.prompt)
        except Exception as error:  # noqa: BLE001 - routing never fails because learning did
            self._recorder.hooks.trouble("scorer", error)
            return
        if said is not None:
            self._recorder.append_event(
                Remark(
                    id=f"{proposal.previous}:implicit",  # one for each answer, however often the history is sent
                    ts=decision.ts,
                    decision_id=proposal.previous,
                    identity=decision.identity,
                    kind="implicit",
                    moved=said.moved,
                    y=said.y,
                )
            )
