"""Remarks in the journal: one stands for each answer, whatever the order, the worker or the snapshot."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.learner import Log, fold, learner
from tests.kits.tables import table_driven

from fitrouter.state.learner import Learner
from fitrouter.state.refit import refit
from fitrouter.state.run_outcomes import standing
from fitrouter.state.sessions import Session, previous_decision
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import Decision, Erasure, Event, Identity, Remark, decode_event, encode_event

NAMES = ("one", "length", "structure", "warmth")


def new() -> Learner:
    return learner(names=NAMES)


def remark(log: Log, decision_id: str, *, kind: str = "comment", y: float | None = None, **moved: float) -> None:
    decision = next(r.event for r in log.journal.of(decision_id) if isinstance(r.event, Decision))
    log.count += 1
    name = f"{decision_id}:implicit" if kind == "implicit" else f"r{log.count}"
    who = decision.identity
    log.put(Remark(id=name, ts=decision.ts, decision_id=decision_id, identity=who, kind=kind, moved=moved, y=y))


def people(learner: Learner) -> dict[str, bytes]:
    return {key: value for key, value in learner.state() if key.startswith("user:")}


def tale(seed: int) -> Log:
    """Answers of three people, with votes, comments, corrections and remarks in passing."""
    log = Log(MemoryJournal(), np.random.default_rng(seed))
    rng = np.random.default_rng(seed + 1)
    for i in range(14):
        name = log.answer(f"u{i % 3}", "a" if rng.random() < 0.5 else "b")
        late = rng.random() < 0.3
        if not late:
            log.score(name)
        for _ in range(int(rng.integers(0, 4))):
            kind = "implicit" if rng.random() < 0.4 else "comment"
            moved = {NAMES[int(rng.integers(1, 4))]: float(rng.uniform(-1, 1))} if rng.random() < 0.8 else {}
            remark(log, name, kind=kind, y=float(rng.random() < 0.5) if kind == "implicit" else None, **moved)
        if rng.random() < 0.5:
            log.vote(name, float(rng.random() < 0.5))
        if late:
            log.score(name)
    return log


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), cut=st.integers(1, 60))
def test_workers_snapshots_and_refits_agree(seed: int, cut: int) -> None:
    """Two folds, a fold from any snapshot, and two refits end in the same bits."""
    journal = tale(seed).journal
    straight = fold(journal, new())
    assert fold(journal, new()).digest() == straight.digest()
    journal.save(fold(journal, new(), until=cut).snapshot())
    restored = new()
    assert restored.restore(journal.snapshot())
    assert fold(journal, restored).digest() == straight.digest()
    assert refit(journal, straight, journal.head()).digest() == refit(journal, new(), journal.head()).digest()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000))
def test_a_refit_reads_what_stands(seed: int) -> None:
    """A refit of all remarks is the fold of a journal with the standing ones alone."""
    log = tale(seed)
    events = [row.event for row in log.journal.tail(0, 10_000)]
    by_decision: dict[str, list[Remark]] = {}
    for event in events:
        if isinstance(event, Remark):
            by_decision.setdefault(event.decision_id, []).append(event)
    stands = {found.id for said in by_decision.values() if (found := standing(said)) is not None}
    only = Log(MemoryJournal(), np.random.default_rng(0))
    only.put(*(event for event in events if not isinstance(event, Remark) or event.id in stands))
    assert people(refit(log.journal, new(), log.journal.head())) == people(fold(only.journal, new()))


def test_an_erased_user_leaves_nothing() -> None:
    """After an erasure and its refit, the state is as if the user's remarks had never been."""
    log, other = (Log(MemoryJournal(), np.random.default_rng(3)) for _ in range(2))
    for one, extra in ((log, True), (other, False)):
        for i in range(6):
            name = one.answer(f"u{i % 2}", "a")
            one.score(name)
            if i % 2 or extra:
                remark(one, name, length=-1.0)
    log.put(Erasure(id="e", ts=9e3, subject="u0"))
    found, wanted = (refit(one.journal, new(), one.journal.head()) for one in (log, other))
    assert people(found)["user:u1"] == people(wanted)["user:u1"]
    assert "user:u0" not in people(found)


def test_a_correction_replaces_and_an_empty_one_withdraws() -> None:
    """The last comment counts; an empty one takes everything back, what was said in passing too."""

    def taste(*said: tuple[str, dict[str, float]]) -> float:
        log = Log(MemoryJournal(), np.random.default_rng(5))
        name = log.answer("ann", "a")
        log.score(name)
        for kind, moved in said:
            remark(log, name, kind=kind, **moved)
        return float(fold(log.journal, new()).fit.taste(Identity(user="ann"))[1])

    less, more = ("comment", {"length": -1.0}), ("comment", {"length": 1.0})
    passing = "implicit", {"length": -1.0}
    assert taste(less) < taste(passing) < 0.0 < taste(less, more)
    assert taste(less, passing) == taste(less)
    assert taste(passing, passing) == taste(passing)
    for said in (less, passing):
        assert abs(taste(said, ("comment", {}))) < 0.35 * abs(taste(said))


def test_a_remark_waits_for_the_score() -> None:
    """Before or after the answer's score, a remark has the same effect; without a score it has none."""
    states = []
    for order in ("before", "after", "never"):
        log = Log(MemoryJournal(), np.random.default_rng(0))
        name = log.answer("ann", "a")
        if order == "after":
            log.score(name)
        remark(log, name, length=-1.0)
        if order == "before":
            log.score(name)
        states.append(people(fold(log.journal, new())))
    assert states[0] == states[1] != states[2] == {}


def test_votes_know_nothing_of_remarks() -> None:
    """A remark is neither a label nor asked: label counts and monitors are those of a journal without it."""

    def counted(said: bool) -> tuple[object, ...]:
        log = Log(MemoryJournal(), np.random.default_rng(7))
        for i in range(8):
            name = log.answer("ann", "a")
            log.score(name)
            if said:
                remark(log, name, kind="implicit", y=0.0, length=-1.0)
            log.vote(name, float(i % 2))
        found = fold(log.journal, new())
        parts = found.projections.named()
        return found.fit.labels, *(parts[name].dump() for name in ("pulls", "base layer", "propensities"))

    assert counted(True) == counted(False)


@pytest.mark.parametrize("moved", [{}, {"length": -0.5}])
def test_the_event_reads_back(moved: dict[str, float]) -> None:
    """A remark survives its encoding."""
    event: Event = Remark(id="r", ts=1.0, decision_id="d", identity=Identity(user="u"), moved=moved, y=0.0)
    assert decode_event(encode_event(event)) == event


U, A = {"role": "user", "content": "hm"}, {"role": "assistant", "content": "well"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
TOOL = {"role": "tool", "content": "42"}


@table_driven(
    ("messages", "turn", "found"),
    [
        ([U, A, U], 2, "d9"),
        ([U, A, U, A, U], 3, "d9"),
        ([U], 1, ""),
        ([U, A, U, U], 3, ""),
        ([U, A, U], 1, ""),
        ([U, CALL, TOOL], 2, ""),
        ([U, CALL, U], 2, ""),
        ([U, A, {"role": "user", "content": [{"type": "tool_result"}]}], 2, ""),
        ([U, A, {"role": "user", "content": "<system-reminder>x</system-reminder>"}], 2, ""),
        ([], 2, ""),
    ],
)
def test_which_answer_a_message_follows(messages: list[dict[str, object]], turn: int, found: str) -> None:
    """Only a user's text directly behind an answer, in a history that has grown: no retry, no tool, no cut history."""
    session = Session("d1", "a", 1.0, last="d9", turn=1)
    assert previous_decision(session, messages, turn) == found
    assert previous_decision(msgspec.structs.replace(session, turn=0), messages, turn) == ""
