"""Numbers that are not finite or out of range: refused by the journal, skipped by the fold, and found in the state."""

from __future__ import annotations

import asyncio
import functools
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.kits.learner import SCHEMA, Log, fold, learner, story
from tests.kits.tables import table_driven

from fitrouter.hooks import Hooks, Notice, Trouble
from fitrouter.plain import pack
from fitrouter.state.follower import Follower
from fitrouter.state.learner import Learner
from fitrouter.state.refit import find_poison, refit
from fitrouter.stores.journal import Entry, MemoryJournal, Row, _ranges, _record, fault_in
from fitrouter.types import (
    Attempt,
    Decision,
    Event,
    Execution,
    Feedback,
    FeedbackKind,
    Identity,
    Mode,
    ModelCard,
    ModelChange,
    PolicyVersion,
    Prices,
    ProfileChange,
    Quarantine,
    Remark,
    Score,
)

WHO = Identity(user="ann", role="analyst")
VOTE = Feedback(id="v", ts=1.0, decision_id="d1", identity=WHO, kind=FeedbackKind.RATING, value=0.5)
DECISION = Decision(
    id="d",
    ts=1.0,
    draw_id="d",
    identity=WHO,
    mode=Mode.ONLINE,
    eligible=("a", "b"),
    probs=(0.5, 0.5),
    chosen="a",
    propensity=0.5,
    policy=PolicyVersion(algorithm="squarecb"),
)
EXECUTION = Execution(id="x", ts=1.0, decision_id="d", identity=WHO, chosen="a", served_by="a", status="ok")
SCORE = Score(id="s", ts=1.0, decision_id="d", identity=WHO, served_by="a", schema=SCHEMA, h=pack(np.ones(4)))
PROFILE = ProfileChange(id="p", ts=1.0, identity=WHO, declared={"length": 1.0})
MODELS = ModelChange(id="m", ts=1.0, cards=(ModelCard(name="a", provider="s"),), registry="r")
INF, NAN = math.inf, math.nan
POISONS: list[tuple[Event, dict[str, Any]]] = [
    (VOTE, {"scale": (-1e308, 1e308), "value": 1e308}),
    (VOTE, {"scale": (0.0, 5e-324), "value": 5e-324}),
    (VOTE, {"scale": (1.0, 0.0)}),
    (VOTE, {"scale": (NAN, 1.0)}),
    (VOTE, {"value": INF}),
    (VOTE, {"value": 7.0}),
    (VOTE, {"kind": FeedbackKind.DWELL, "value": 1e9}),
    (VOTE, {"kind": FeedbackKind.EDIT, "value": -0.5}),
    (VOTE, {"ts": NAN}),
    (VOTE, {"ts": 1e300}),
    (VOTE, {"dimension": "x" * 1000}),
    (DECISION, {"cost": (NAN, 1.0)}),
    (DECISION, {"probs": (INF, 0.5)}),
    (DECISION, {"features": pack(np.array([1.0, INF]))}),
    (DECISION, {"features": b"abc"}),
    (EXECUTION, {"cost_usd": 1e300}),
    (EXECUTION, {"cost_usd": -1.0}),
    (EXECUTION, {"completion_tokens": 2**62}),
    (EXECUTION, {"latency_ms": NAN}),
    (EXECUTION, {"ttft_ms": INF}),
    (EXECUTION, {"overhead_ms": -INF}),
    (EXECUTION, {"attempts": (Attempt(model="a", probability=2.0),)}),
    (EXECUTION, {"attempts": (Attempt(model="a", probability=1.0, ms=INF),)}),
    (SCORE, {"h": pack(np.array([1.0, 3e38]))}),
    (SCORE, {"mean": NAN}),
    (SCORE, {"dimensions": {f"d{n}": (0.0, 1.0) for n in range(1000)}}),
    (SCORE, {"dimensions": {"tone": (NAN, 1.0)}}),
    (PROFILE, {"declared": {"length": NAN}}),
    (MODELS, {"cards": (ModelCard(name="a", provider="s", prices=Prices(input=INF)),)}),
]


@pytest.mark.parametrize("event", [VOTE, DECISION, EXECUTION, SCORE, PROFILE, MODELS], ids=lambda e: type(e).__name__)
def test_sound_events_have_no_fault(event: Event) -> None:
    """The events that the poisons below start from are sound."""
    assert fault_in(event) == ""


@pytest.mark.parametrize("event", [DECISION, EXECUTION, SCORE], ids=lambda e: type(e).__name__)
def test_the_quick_check_takes_no_poison(event: Event) -> None:
    """Whatever a field holds, an event that the quick check takes has no fault in the exact one; most are taken."""
    arrays = [pack(np.array([1.0, value])) for value in (2.0, 5e5, 2e9, 3e38, INF, NAN)]
    numbers = [NAN, INF, -INF, -1.0, -0.0, 0.5, 1.0 + 1e-12, 1e5, 1e8, 2e9, 1e12, 2**62]
    quick = 0
    for field in msgspec.structs.fields(event):
        match getattr(event, field.name):
            case bytes():
                values: list[Any] = [b"", b"abc", *arrays]
            case float() | int() | None if not isinstance(getattr(event, field.name), bool):
                values = [*numbers]
            case tuple() if field.name not in {"eligible", "attempts"} and "float" in str(field.type):
                values = [(), *((0.5, number) for number in numbers)]
            case _:
                continue
        for value in values:
            changed = msgspec.structs.replace(event, **{field.name: value})
            if taken := _ranges._plainly_sound(changed):
                assert all(low <= found <= high for _, found, low, high in _ranges._numbers(changed)), (
                    field.name,
                    value,
                )
            quick += taken
    assert quick >= 12


def test_a_score_may_lack_features() -> None:
    """NaN in h marks a feature that is missing."""
    assert fault_in(msgspec.structs.replace(SCORE, h=pack(np.array([1.0, NAN])))) == ""


@table_driven("poison", POISONS)
def test_no_poison_is_appended_and_none_is_folded(poison: tuple[Event, dict[str, Any]]) -> None:
    """The journal refuses it; where an old journal holds it, the fold skips and counts it and changes nothing else."""
    event = msgspec.structs.replace(poison[0], **poison[1])
    with pytest.raises(ValueError, match="not finite or out of range"):
        MemoryJournal().append(Entry(event))
    into = fold(story(3, 10))
    state = {key: payload for key, payload in into.state() if key != "scalars"}
    into.apply(Row(into.seq + 1, event))
    assert into.skipped == 1
    assert {key: payload for key, payload in into.state() if key != "scalars"} == state
    assert into.finite()


def test_three_ratings_of_one_tenant_spoil_nothing() -> None:
    """The second of three ratings has a scale on which it is NaN: the third corrects the first, not the second."""
    log = Log(MemoryJournal(), np.random.default_rng(1))
    name = log.answer("evil", "a")
    log.score(name)
    good = [
        msgspec.structs.replace(VOTE, id=f"v{n}", decision_id=name, value=v, scale=(0.0, 4.0), identity=WHO)
        for n, v in enumerate((2.0, 3.0))
    ]
    bad = msgspec.structs.replace(good[0], id="bad", value=1e308, scale=(-1e308, 1e308))
    spoilt, clean = fold(log.journal), fold(log.journal)
    related = [row.event for row in log.journal.of(name)]
    seq = spoilt.seq
    for n, (vote, before) in enumerate([(good[0], []), (bad, good[:1]), (good[1], [good[0], bad])], 1):
        spoilt.apply(Row(seq + n, vote), [*related, *before])
    clean.apply(Row(seq + 1, good[0]), related)
    clean.apply(Row(seq + 3, good[1]), [*related, good[0]])
    assert spoilt.skipped == 1
    clean.skipped = 1
    assert spoilt.digest() == clean.digest()


@pytest.mark.parametrize("kind", [Feedback, Remark])
def test_a_refit_counts_the_last_sound_version(monkeypatch: pytest.MonkeyPatch, kind: type[Event]) -> None:
    """Poison that an old journal holds replaces no vote and no remark."""
    spoilt, clean = (Log(MemoryJournal(), np.random.default_rng(1)) for _ in range(2))
    said: Event
    for log in (spoilt, clean):
        name = log.answer("ann", "a")
        log.score(name)
        said = msgspec.structs.replace(VOTE, decision_id=name, identity=WHO)
        if kind is Remark:
            said = Remark(id="r", ts=1.0, decision_id=name, identity=WHO, moved={"length": 1.0}, y=1.0)
        log.put(said)
    monkeypatch.setattr(_record, "fault_in", lambda _: "")
    more = {"value": NAN} if kind is Feedback else {"y": NAN}
    spoilt.put(msgspec.structs.replace(said, id="bad", **more))
    found, expected = (
        {key: payload for key, payload in refit(log.journal, learner(), log.journal.head()).state() if key != "scalars"}
        for log in (spoilt, clean)
    )
    log = Log(MemoryJournal(), np.random.default_rng(1))
    log.score(log.answer("ann", "a"))
    assert found == expected
    assert expected != dict(refit(log.journal, learner(), log.journal.head()).state())


def test_the_count_and_the_quarantine_survive_a_restart() -> None:
    """A snapshot holds how many events were skipped, and which are excluded."""
    into = fold(story(3, 10))
    into.apply(Row(into.seq + 1, msgspec.structs.replace(VOTE, value=NAN)))
    into.apply(Row(into.seq + 1, Quarantine(id="q", ts=1.0, event_id="v")))
    again = learner()
    assert again.restore(into.snapshot())
    assert (again.skipped, again.quarantined) == (1, {"v"})


def test_a_quarantined_event_leaves_no_trace() -> None:
    """After a refit the state is that of a journal in which the event never was; the journal still holds it."""
    journal, without = story(5, 30), MemoryJournal()
    last: dict[str, str] = {}
    for row in journal.tail(0, 1000):
        if isinstance(row.event, Feedback):
            last[row.event.decision_id + row.event.kind] = row.event.id
    victim = next(iter(last.values()))
    for row in journal.tail(0, 1000):
        if row.event.id != victim:
            without.append(Entry(row.event)).result()
    journal.append(Entry(Quarantine(id="q", ts=1.0, event_id=victim))).result()
    kept, clean = refit(journal, learner(), journal.head()), refit(without, learner(), without.head())
    assert kept.fit.labels == clean.fit.labels
    state, expected = ({k: v for k, v in each.state() if k != "scalars"} for each in (kept, clean))
    assert state == expected
    assert any(row.event.id == victim for row in journal.tail(0, 1000))


@functools.cache
def of_ann() -> str:
    """An execution of a user whom the story does not erase."""
    rows = story(4, 40).tail(20, 1000)
    return next(r.event.id for r in rows if isinstance(r.event, Execution) and r.event.identity.user == "ann")


class Fragile(Learner):
    """A learner in which one execution overflows."""

    def blank(self) -> Learner:
        return Fragile(self.fit.d, self.fit.D, schema=self.schema)

    def _execution(self, event: Execution) -> None:
        super()._execution(event)
        if event.id == of_ann():
            self.fit.arms.profile[:] = NAN


def test_the_poison_is_found() -> None:
    """The event after which the state is not finite, however long the journal is."""
    journal = story(4, 40)
    row = find_poison(journal, Fragile(5, 4, schema=SCHEMA), journal.head())
    assert row is not None
    assert row.event.id == of_ann()
    assert find_poison(journal, learner(), journal.head()) is None


async def test_a_spoilt_state_is_reported_and_rebuilt() -> None:
    """The follower reports it, quarantines the event in the journal, and ends in a finite state without it."""
    journal, seen = story(4, 40), list[Notice]()
    follower = Follower(journal, Fragile(5, 4, schema=SCHEMA), Hooks(seen.append))
    await follower.start()
    try:
        async with asyncio.timeout(60.0):
            while not (seen and not follower.fault and follower.learner.quarantined):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        await follower.aclose()
    assert follower.learner.finite()
    assert follower.learner.quarantined == {of_ann()}
    assert Trouble("learner", "ValueError") in seen
    assert [row.event.event_id for row in journal.tail(0, 1000) if isinstance(row.event, Quarantine)] == [of_ann()]
