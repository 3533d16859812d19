"""Conversion of entries to rows of the events table: indexed columns beside the encoded event."""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from fitrouter.stores.journal._base import Entry, Row
from fitrouter.stores.journal._ranges import fault_in
from fitrouter.types import (
    ArtifactChange,
    Decision,
    Erasure,
    Event,
    Execution,
    Feedback,
    ModelChange,
    PlanRun,
    PolicyChange,
    Quarantine,
    Refit,
    Remark,
    RoleText,
    RunOutcome,
    RunStep,
    Salvage,
    Score,
    Spent,
    decode_event,
    encode_event,
)

_log = logging.getLogger(__name__)
_Stored: TypeAlias = tuple[int, Any, Any]
"""Sequence number, payload and checksum as a database has them; in a damaged row a cell may be of any type."""
Fault: TypeAlias = Callable[[str], None]
"""Test hook, called before each write step with its name: begin, insert, spool, unspool, snapshot or commit. An
exception from it counts as a failure of the disk."""


DAY_S = 86_400.0
SPENT_DAYS = 32


def no_fault(step: str) -> None:
    """Do nothing, in place of a test's fault injection."""


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


def digest_of(subject: str) -> str:
    """Return the sha256 of a subject's random token, which is all that is kept of an erased subject."""
    return hashlib.sha256(subject.encode()).hexdigest()


def decision_of(event: Event) -> str | None:
    """Return the id of the decision that an event belongs to, or the key of its run; None for other events."""
    if isinstance(event, Decision):
        return event.id
    if isinstance(event, RunStep):
        return event.identity.run
    if isinstance(event, RunOutcome):
        return outcomes_of(event.identity.run or "")
    if isinstance(event, Execution | PlanRun | Score | Feedback | Remark):
        return event.decision_id
    return None


def outcomes_of(run: str) -> str:
    """Return the key under which a journal finds the outcomes of a run; its steps are under that of the run itself."""
    return f"{run}:outcome"


def subject_of(event: Event) -> str | None:
    """Return the subject (pseudonymous user token) that an event is about; None for other events."""
    if isinstance(event, Erasure):
        return event.subject or None
    if isinstance(event, ModelChange | PolicyChange | RoleText | ArtifactChange | Refit | Quarantine | Salvage):
        return None
    return event.identity.user


def costs_of(events: Iterable[Event], now: float) -> tuple[Spent, ...]:
    """Sum what requests have cost by day and key, for budgets of periods up to a month."""
    found: dict[tuple[float, str], tuple[float, int]] = {}
    for event in events:
        if isinstance(event, Execution) and event.ts > now - SPENT_DAYS * DAY_S and event.cost_usd > 0.0:
            ends = min((event.ts // DAY_S + 1.0) * DAY_S - 1.0, max(now, event.ts))
            usd, n = found.get((ends, event.payer), (0.0, 0))
            found[ends, event.payer] = usd + event.cost_usd, n + 1
    return tuple(Spent(payer=payer, ts=ts, usd=usd, requests=n) for (ts, payer), (usd, n) in sorted(found.items()))


def kind_of(event: Event) -> str:
    """The event's tag, such as `decision`."""
    return str(type(event).__struct_config__.tag)


def record(entry: Entry) -> Record:
    """Encode an entry.

    Raises:
        ValueError: the event has no id or a number out of range, or an event other than an Execution has a content.
        UnicodeEncodeError: a string of the event holds a lone surrogate.
    """
    event = entry.event
    if not event.id:
        raise ValueError(f"{event!r} has no id; give it a UUIDv7, see fitrouter.draw.uuid7")
    if entry.content is not None and not isinstance(event, Execution):
        raise ValueError(f"a {kind_of(event)} cannot have a content; only an execution carries an answer's text")
    if fault := fault_in(event):
        raise ValueError(f"the {kind_of(event)} {event.id!r} is not logged: {fault} is not finite or out of range")
    return stored(event)._replace(content=entry.content)


def stored(event: Event) -> Record:
    """Encode an event that a journal has, whatever is wrong with its numbers."""
    payload = encode_event(event)
    columns = event.id, event.ts, kind_of(event), decision_of(event), subject_of(event)
    return Record(*columns, payload, zlib.crc32(payload), None)


def decoded(payload: object, crc: object) -> Event:
    """Decode the event of a stored row, after its checksum; in a damaged row a cell may be of any type.

    Raises:
        msgspec.DecodeError: its bytes changed.
    """
    if not isinstance(payload, bytes) or zlib.crc32(payload) != crc:
        raise msgspec.DecodeError("its checksum differs")
    return decode_event(payload)


def sound_rows(found: Iterable[_Stored], damaged: set[int], name: object) -> list[Row]:
    """Decode those of (seq, payload, checksum) that are sound; others are logged once and added to `damaged`."""
    rows: list[Row] = []
    for seq, payload, crc in found:
        try:
            rows.append(Row(seq, decoded(payload, crc)))
        except msgspec.DecodeError as error:
            if seq not in damaged:
                _log.error("row %d of %s is skipped: %s", seq, name, error)
            damaged.add(seq)
    return rows


def next_sound(
    page: Callable[[int], Sequence[_Stored]], decode: Callable[[Sequence[_Stored]], list[Row]], after: int, limit: int
) -> list[Row]:
    """Return the sound rows of the next page that has any: an empty result would look like the end.

    Args:
        page: reads the next `limit` rows after a sequence number.
        decode: leaves out damaged ones.
        after: sequence number.
        limit: most rows of a page.
    """
    while True:
        found = page(after)
        rows = decode(found)
        if rows or len(found) < max(limit, 1):
            return rows
        after = found[-1][0]


def rehearse(fault: Fault, records: Sequence[Record]) -> None:
    """Call the test hook `fault` for each step of inserting some records."""
    for item in records:
        fault("insert")
        if item.content is not None:
            fault("spool")
        if item.kind == "score":
            fault("unspool")
