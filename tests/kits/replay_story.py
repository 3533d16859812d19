"""A log in which everything occurs that may, as events, and in each of the forms that a log may lie in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tests.kits.replay import Town

from fitrouter.plain import pack
from fitrouter.routing.decider import Rules
from fitrouter.stores.journal import Entry, Row, SqliteJournal
from fitrouter.stores.warehouse import Warehouse
from fitrouter.types import Decision, Event, Feedback, FeedbackKind, Identity, Mode, ProfileChange, Score
from fitrouter_evaluators.replay.log.sources import export

RULES = Rules(floor=0.1, uniform_slice=0.1, ask=0.4, share=0.8, default_arm="b", seed=11, registry="r", encoder="e")


def story(sessions: int = 40, seed: int = 3) -> list[Event]:
    """Sessions of one to four turns by five people.

    Some are drawn again, some turns are pinned; a model joins late; votes of all kinds, some changed; scores with
    features of two schemas; profiles.
    """
    town = Town(seed=seed, rules=RULES, votes=0.6, candidates={"bold": {"gamma": 500.0}})
    rng = np.random.default_rng(seed)
    for number in range(sessions):
        if number == sessions // 2:
            town.join("d")
        user = None if number % 6 == 5 else f"person-{number % 5}"
        last = town.request(user=user)
        for turn in range(int(rng.integers(0, 4))):
            last = town.request(last, again=turn == 2, user=user)
    events = [row.event for row in town.journal.tail(0, 10**9)]
    return _more([_placed(event) for event in events], rng)


def _placed(event: Event) -> Event:
    """The event with a tenant and a task, as the gateway would know them."""
    identity = getattr(event, "identity", None)
    if identity is None:
        return event
    who = msgspec.structs.replace(identity, tenant="acme", task=f"task-{len(identity.session or '') % 2}")
    return msgspec.structs.replace(event, identity=who)  # type: ignore[call-arg]


def _more(events: Sequence[Event], rng: np.random.Generator) -> list[Event]:
    found: list[Event] = []
    made = [event for event in events if isinstance(event, Decision)]
    for event in events:
        found.append(event)
        if not isinstance(event, Decision):
            continue
        number = made.index(event)
        if number % 3:
            found.append(_score(event, number, rng))
        if number % 7 == 1:
            found.append(_vote(f"rating of {number}", FeedbackKind.RATING, 1 + number % 5, event, scale=(1.0, 5.0)))
        if number % 14 == 1:
            found.append(_vote(f"change of {number}", FeedbackKind.RATING, 5, event, scale=(1.0, 5.0)))
        if number % 11 == 2:
            found.append(_vote(f"dwell of {number}", FeedbackKind.DWELL, 17.5, event))
            found.append(_vote(f"tone of {number}", FeedbackKind.THUMB, 1.0, event, dimension="tone"))
        if number % 9 == 4:
            found.append(_pinned(event, number))
        if number % 10 == 0:
            declared = {"brevity": float(number), "warmth": -1.0}
            found.append(ProfileChange(id=f"profile {number}", ts=event.ts, identity=event.identity, declared=declared))
    return found


def _score(event: Decision, number: int, rng: np.random.Generator) -> Score:
    status = "failed" if number % 13 == 1 else "ok"
    return Score(
        id=f"score of {number}",
        ts=event.ts + 1.5,
        decision_id=event.id,
        identity=event.identity,
        served_by=event.chosen,
        features=event.features,
        h=pack(rng.normal(size=4)) if status == "ok" else b"",
        schema="style-1" if number % 20 else "style-0",
        mean=float(rng.random()) if status == "ok" else 0.0,
        status=status,
    )


def _vote(name: str, kind: FeedbackKind, value: float, event: Decision, **more: object) -> Feedback:
    return Feedback(
        id=name,
        ts=event.ts + 2.0,
        decision_id=event.id,
        identity=event.identity,
        kind=kind,
        value=value,
        asked=event.asked,
        **more,  # type: ignore[arg-type]
    )


def _pinned(event: Decision, number: int) -> Decision:
    """A turn for which the caller, or an operator, named the model."""
    return msgspec.structs.replace(
        event,
        id=f"00000000-0000-7000-8000-{number:012d}",
        draw_id=f"00000000-0000-7000-8000-{number:012d}",
        ts=event.ts + 0.25,
        mode=Mode.PINNED if number % 2 else Mode.FORCED,
        probs=(),
        propensity=1.0,
        twin=(),
        personal=(),
        candidates={},
        rest=(),
        switch=(),
        identity=msgspec.structs.replace(event.identity, session=None, role=None),
        asked=False,
        asked_probability=0.0,
    )


def write_journal(path: Path, events: Sequence[Event]) -> Path:
    """The events as a gateway's journal."""
    journal = SqliteJournal(path)
    journal.append(*map(Entry, events)).result()
    journal.close()
    return path


def write_warehouse(path: Path, events: Sequence[Event]) -> Path:
    """The events as a gateway's warehouse."""
    Warehouse(path).ingest([Row(seq, event) for seq, event in enumerate(events, start=1)])
    return path


def write_folder(path: Path, events: Sequence[Event]) -> Path:
    """The events as a gateway's folder, with the tables as Parquet in `export` below it."""
    write_journal(path / "journal.db", events)
    write_warehouse(path / "fitrouter.duckdb", events)
    export(path / "fitrouter.duckdb", path / "export")
    return path


def assert_same(one: Any, other: Any, where: str = "log") -> None:
    """Two logs are one, bit for bit, NaN equal to NaN; `source` says where each was read."""
    assert type(one) is type(other), where
    if hasattr(one, "_fields"):
        for name in one._fields:
            if name != "source":
                assert_same(getattr(one, name), getattr(other, name), f"{where}.{name}")
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name in one:
            assert_same(one[name], other[name], f"{where}.{name}")
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, where
        np.testing.assert_array_equal(one, other, err_msg=where)
    else:
        assert one == other, where


def somebody(name: str) -> Identity:
    """A person of the story."""
    return Identity(tenant="acme", user=name)
