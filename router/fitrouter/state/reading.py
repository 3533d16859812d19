"""Reading a journal for learners: rows with the earlier events that they refer to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeGuard

from fitrouter.state.waiting_pairs import PATIENCE
from fitrouter.stores.journal import Journal, Row, decision_of
from fitrouter.types import Decision, Erasure, Event, Feedback, PlanRun, Remark, RunOutcome, Score

_TOGETHER = 500
"""Decisions that one query reads."""


class Batch(NamedTuple):
    """Rows of the journal, each with the earlier events of its decision that learning needs."""

    rows: Sequence[tuple[Row, Sequence[Event]]]


def read_batch(
    journal: Journal, after: int, limit: int = 256, waiting: Callable[[Score, int], Sequence[str]] = lambda *_: ()
) -> Batch:
    """Read the next rows and the events they refer to, a pair's other answer included. Blocks on disk I/O.

    Args:
        journal: the event log.
        after: the last sequence number that was read.
        limit: most rows.
        waiting: decisions before these rows whose votes wait for a score, or have waited for too many, given those of
            these rows before it (`Learner.waiting`, of who folds the rows).
    """
    found = journal.tail(after, limit)
    by_decision: dict[str, list[Row]] = {row.event.id: [] for row in found if isinstance(row.event, Decision)}
    for row in found:  # a decision comes before all that follows from it
        if (decision_id := decision_of(row.event)) in by_decision:
            by_decision[decision_id].append(row)
    _read_decisions(journal, (decision_of(row.event) for row in found if _refers(row.event)), by_decision)
    votes = [row.event for rows in ([*found], *by_decision.values()) for row in rows if isinstance(row.event, Feedback)]
    _read_decisions(journal, (vote.other for vote in votes), by_decision)
    voted: dict[str, dict[str, None]] = {}  # answer → decisions whose votes compare it with theirs, and runs' outcomes
    for vote in votes:
        if vote.other:
            voted.setdefault(vote.other, {})[vote.decision_id] = None
    scores, noted = 0, list[tuple[int, str]]()
    for row in found:
        if isinstance(row.event, RunOutcome):
            noted.append((scores, decision_of(row.event) or ""))
        elif isinstance(row.event, Score):
            late = [key for n, key in noted if scores + 1 - n >= PATIENCE]
            voted.setdefault(row.event.decision_id, {}).update(dict.fromkeys([*waiting(row.event, scores), *late]))
            scores += 1
    scored = (row.event.decision_id for row in found if isinstance(row.event, Score))
    _read_decisions(journal, (name for answer in scored for name in voted[answer]), by_decision)
    ended = [row.event for row in found if isinstance(row.event, RunOutcome)]
    _read_decisions(journal, map(decision_of, ended), by_decision)
    ended += [row.event for rows in by_decision.values() for row in rows if isinstance(row.event, RunOutcome)]
    _read_decisions(journal, (answer for each in ended for answer in each.decisions), by_decision)
    for each in ended:  # which wait for a score of this batch
        for answer in each.decisions:
            voted.setdefault(answer, {})[decision_of(each) or ""] = None
    batch = []
    for row in found:
        related: list[Event] = []
        if isinstance(row.event, Erasure) and row.event.subject:  # whose tenant is found so
            related = [other.event for other in journal.of(row.event.subject) if other.seq < row.seq][:1]
        if _refers(row.event):
            own = row.event.decision_id
            related = _earlier(by_decision, own, row.seq)
            votes = [vote for vote in (row.event, *related) if isinstance(vote, Feedback)]
            others = [vote.other for vote in votes if vote.other]
            others += voted[own] if isinstance(row.event, Score) else ()
            for other_id in dict.fromkeys(others):
                related += _earlier(by_decision, other_id, row.seq) if other_id != own else ()
        if isinstance(row.event, RunOutcome):
            related = _earlier(by_decision, decision_of(row.event) or "", row.seq)
        if isinstance(row.event, Score | RunOutcome):
            reports = [one for one in (*related, row.event) if isinstance(one, RunOutcome)]
            answers = dict.fromkeys(answer for one in reports for answer in one.decisions)
            for answer in answers:
                if answer != getattr(row.event, "decision_id", ""):
                    related += _earlier(by_decision, answer, row.seq)
        batch.append((row, related))
    return Batch(batch)


def read_facts(journal: Journal, after: int, limit: int = 512) -> Batch:
    """Read the next rows for a learner of the facts alone: only a plan that is run needs earlier events."""
    found, by_decision = journal.tail(after, limit), dict[str, list[Row]]()
    _read_decisions(journal, (row.event.decision_id for row in found if isinstance(row.event, PlanRun)), by_decision)
    return Batch([(row, _earlier(by_decision, decision_of(row.event) or "", row.seq)) for row in found])


def _refers(event: Event) -> TypeGuard[PlanRun | Score | Feedback | Remark]:
    """Whether learning from an event needs the earlier events of its decision."""
    return isinstance(event, (PlanRun, Score, Feedback, Remark))


def _read_decisions(journal: Journal, ids: Iterable[str | None], into: dict[str, list[Row]]) -> None:
    """Read all rows of the decisions that are missing, with one query for each `_TOGETHER` of them."""
    missing = sorted({name for name in ids if name and name not in into})
    into.update({name: [] for name in missing})
    for start in range(0, len(missing), _TOGETHER):
        for row in journal.of(*missing[start : start + _TOGETHER]):
            if (decision_id := decision_of(row.event)) in into:
                into[decision_id].append(row)


def _earlier(by_decision: Mapping[str, Sequence[Row]], decision_id: str, seq: int) -> list[Event]:
    """The events of a decision before a sequence number, in order."""
    return [row.event for row in by_decision.get(decision_id, ()) if row.seq < seq]


def tenant_of(event: Event, related: Sequence[Event] = ()) -> str | None:
    """The tenant that an event is about; None for all."""
    identity = getattr(event, "identity", None)
    if isinstance(event, Erasure) and event.tenant:
        return event.tenant
    if identity is None and isinstance(event, Erasure) and related:
        identity = getattr(related[0], "identity", None)
    return None if identity is None else str(identity.tenant)
