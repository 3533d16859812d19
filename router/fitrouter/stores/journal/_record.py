"""Entries as rows of the events table: indexed columns beside the encoded event."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from fitrouter.stores.journal._base import Entry
from fitrouter.types import (
    ArtifactChange,
    Decision,
    Erasure,
    Event,
    Execution,
    Feedback,
    ModelChange,
    PolicyChange,
    Refit,
    RoleText,
    Score,
    encode_event,
)

Fault: TypeAlias = Callable[[str], None]
"""Test hook, called before each write step with its name: begin, insert, spool, unspool, snapshot or commit. An
exception from it counts as a failure of the disk."""


def no_fault(step: str) -> None:
    """Inject no fault."""


class Record(NamedTuple):
    """A row of the events table without its sequence number, and the encrypted answer for the spool."""

    id: str
    ts: float
    kind: str
    decision_id: str | None
    subject: str | None
    payload: bytes
    crc: int
    content: bytes | None


def decision_of(event: Event) -> str | None:
    """The id of the decision that an event belongs to."""
    if isinstance(event, Decision):
        return event.id
    if isinstance(event, Execution | Score | Feedback):
        return event.decision_id
    return None


def subject_of(event: Event) -> str | None:
    """The subject (pseudonymous user token) that an event is about."""
    if isinstance(event, Erasure):
        return event.subject
    if isinstance(event, ModelChange | PolicyChange | RoleText | ArtifactChange | Refit):
        return None
    return event.identity.user


def kind_of(event: Event) -> str:
    """The event's tag, such as `decision`."""
    return str(type(event).__struct_config__.tag)


def record(entry: Entry) -> Record:
    """Encode an entry.

    Raises:
        ValueError: the event has no id, or an event other than an Execution has a content.
        UnicodeEncodeError: a string of the event holds a lone surrogate.
    """
    event = entry.event
    if not event.id:
        raise ValueError(f"{event!r} has no id; give it a UUIDv7, see fitrouter.draw.uuid7")
    if entry.content is not None and not isinstance(event, Execution):
        raise ValueError(f"a {kind_of(event)} cannot have a content; only an execution carries an answer's text")
    payload = encode_event(event)
    decision_id, subject = decision_of(event), subject_of(event)
    crc = zlib.crc32(payload)
    return Record(event.id, event.ts, kind_of(event), decision_id, subject, payload, crc, entry.content)
