"""Numpy scalars in events and labels: the folded state is that of the plain values, bit for bit, and can be stored."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.kits.learner import D_H, D_X, SCHEMA

from fitrouter.monitors.drift import Drift, DriftParams
from fitrouter.plain import pack, pack_rows, unpack_rows, with_packed_rows, with_rows
from fitrouter.posterior.labels import Answered, Label
from fitrouter.posterior.model import Fit
from fitrouter.state.budgets import BudgetParams
from fitrouter.state.learner import Learner
from fitrouter.state.projections import ProjectionParams
from fitrouter.stores.journal import Row, Snapshot
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
    PolicyChange,
    PolicyVersion,
    Prices,
    ProfileChange,
    RoleText,
    Score,
    decode_event,
    encode_event,
)

ARMS = ("a", "b", "c")
Told: TypeAlias = list[tuple[Event, list[Event]]]
"""Events with the earlier ones of their decision."""


def in_numpy(value: Any) -> Any:
    """The value with every number and text as a numpy scalar; float32 where that loses nothing."""
    if isinstance(value, enum.Enum | bytes) or value is None:
        return value
    if isinstance(value, msgspec.Struct):
        return type(value)(**{name: in_numpy(getattr(value, name)) for name in value.__struct_fields__})
    if isinstance(value, list | tuple):
        return type(value)(in_numpy(part) for part in value)
    if isinstance(value, dict):
        return {in_numpy(key): in_numpy(part) for key, part in value.items()}
    if isinstance(value, float):
        narrow = np.float32(value)
        return narrow if float(narrow) == value else np.float64(value)
    kinds: dict[type, Callable[[Any], Any]] = {bool: np.bool_, int: np.int64, str: np.str_}
    return kinds[type(value)](value)


def answers(seed: int, n: int) -> Iterator[list[Event]]:
    """The events of n answers: of all kinds, and with every number in use that a projection keeps."""
    rng = np.random.default_rng(seed)
    for i in range(n):
        name, ts, arm = f"d{i}", 1e6 + 900.0 * i, ARMS[rng.integers(3)]
        who = Identity(
            user=f"u{i % 3}", role=("analyst", "poet")[i % 2], session=f"s{i % 4}", task=(None, "mail")[i % 2]
        )
        x = pack(np.concatenate([[1.0], rng.normal(size=D_X - 1) * 0.4]))
        h = pack(np.concatenate([[1.0], rng.normal(size=D_H - 1)]))
        probs, twin, mean, cost = (tuple(rng.dirichlet(np.ones(3)).tolist()) for _ in range(4))
        common: dict[str, Any] = {"decision_id": name, "identity": who}
        decision = Decision(
            id=name, ts=ts, draw_id=name, identity=who, mode=Mode.ONLINE, eligible=ARMS, excluded=(("d", "full"),),
            probs=probs, chosen=arm, propensity=probs[ARMS.index(arm)], features=x, mean=mean, sd=mean, cost=cost,
            twin=twin, candidates={"greedy": twin}, steps=float(i), policy=PolicyVersion(algorithm="squarecb", seq=i),
        )  # fmt: skip
        execution = Execution(
            payer="key",
            id=f"{name} e", ts=ts + 0.5, chosen=arm, served_by=arm, status="ok", features=x, prompt_tokens=30 + i,
            attempts=(
                Attempt(model="b", probability=0.5, error="ProviderUnavailable", ms=1.5),
                Attempt(model=arm, probability=0.25),
            ),
            completion_tokens=100 + i, cost_usd=float(rng.random()), latency_ms=250.5, ttft_ms=12.5, **common,
        )  # fmt: skip
        score = Score(
            id=f"{name} s", ts=ts + 1.0, served_by=arm, features=x, h=h, schema=SCHEMA, mean=0.1, sd=0.2,
            dimensions={"tone": (0.1, 0.2)}, **common,
        )  # fmt: skip
        kind = (FeedbackKind.THUMB, FeedbackKind.RATING, FeedbackKind.DWELL, FeedbackKind.EDIT)[rng.integers(4)]
        scale = (1.0, 5.0) if kind is FeedbackKind.RATING else (0.0, 1.0)
        about: dict[str, Any] = {"kind": kind, "scale": scale, "asked": bool(i % 2), **common}
        votes = [Feedback(id=f"{name} v", ts=ts + 2.0, value=float(rng.integers(2)) * scale[1], **about)]
        if i % 3 == 0:
            votes.append(Feedback(id=f"{name} w", ts=ts + 3.0, value=float(rng.random()) * scale[1], **about))
        if i % 4 == 0:
            about = {"kind": FeedbackKind.THUMB, **common}
            votes += [
                Feedback(
                    id=f"{name} {dimension}", ts=ts + 4.0, value=float(rng.integers(2)), dimension=dimension, **about
                )
                for dimension in ("base", "tone")
            ]
        if i % 5 == 4:
            about = {"kind": FeedbackKind.PAIR, "other": f"d{i - 1}", **common}
            votes.append(Feedback(id=f"{name} p", ts=ts + 5.0, value=1.0, **about))
        if i % 7 == 6:
            about = {"kind": FeedbackKind.PAIR, "other": f"without a score {i}", **common}
            votes.append(Feedback(id=f"{name} q", ts=ts + 6.0, value=1.0, **about))
        yield [decision, execution, score, *votes]


def told(seed: int, n: int) -> Told:
    """Events in their order, of answers and of everything else."""
    who = Identity(user="u0", role="analyst")
    cards = tuple(ModelCard(name=arm, provider="p", prices=Prices(input=0.5, output=2.0)) for arm in ARMS)
    others: list[Event] = [
        ModelChange(id="m", ts=1.0, cards=cards, registry="r"),
        RoleText(id="r", ts=1.0, tenant="default", role="default\x1fpoet", vector=pack(np.ones(4))),
        ProfileChange(id="p", ts=1.0, identity=who, declared={"x": 0.3}),
        PolicyChange(id="c", ts=1.0, action="set", settings={"floor": 0.05, "personal": True, "algorithm": "greedy"}),
        PolicyChange(
            id="a", ts=1.0, action="add_model", name="d", settings={"provider": "p", "prices": {"input": 0.5}}
        ),
    ]
    found: Told = [(event, []) for event in others]
    before: list[Event] = []
    for events in answers(seed, n):
        found += [(event, [*before, *events[:i]]) for i, event in enumerate(events)]
        before = list(events)
    return found


def learner() -> Learner:
    """One that keeps a budget, and whose drift alarm fires after a few labels."""
    budget = BudgetParams(usd_per_request=0.3, usd_per_period=100.0)
    found = Learner(D_X, D_H, schema=SCHEMA, names=("one", "x", "y", "z"), projections=ProjectionParams(budget=budget))
    found.fit.drift = Drift(DriftParams(threshold=1.0, warmup=1))
    return found


def folded(events: Told) -> Learner:
    """A learner that has folded them."""
    into = learner()
    for seq, (event, related) in enumerate(events, 1):
        into.apply(Row(seq, event), related)
    return into


@given(st.integers(0, 1000))
@settings(max_examples=10)
def test_events_of_numpy_scalars_fold_to_the_same_state(seed: int) -> None:
    """Whatever scalars events were made of, every projection is stored with the bytes of the plain run."""
    events = told(seed, 40)
    scalars = [(in_numpy(event), [in_numpy(other) for other in related]) for event, related in events]
    plain, other = folded(events), folded(scalars)
    assume(plain.fit.tastes.forgotten)  # so that an alarm dumps the state in the middle of the fold
    assert dict(other.state()) == dict(plain.state())
    assert other.digest() == plain.digest()
    empty = dict(learner().state())
    kept = {key for key, payload in plain.state() if key.startswith("part:") and payload != empty[key]}
    assert kept == {key for key in empty if key.startswith("part:")}, "every projection has folded something"
    restored = learner()
    other.rewrite()
    assert restored.restore(Snapshot(other.seq, dict(other.changes())))
    assert restored.digest() == plain.digest()


@given(st.integers(0, 1000))
@settings(max_examples=10)
def test_events_of_numpy_scalars_are_written_alike(seed: int) -> None:
    """An event of numpy scalars is equal to the plain one, and is read back from the journal as it."""
    for event, _ in told(seed, 5):
        other = in_numpy(event)
        assert other == event
        assert decode_event(encode_event(other)) == event


@given(st.integers(0, 1000))
@settings(max_examples=10)
def test_labels_of_numpy_scalars_have_the_same_effect(seed: int) -> None:
    """Labels that are made by hand, of numpy scalars or of ints and truth values, leave the state of plain floats."""
    rng, (plain, scalars, ints) = np.random.default_rng(seed), (Fit(D_X, D_H) for _ in range(3))
    for i in range(60):
        x, h = np.concatenate([[1.0], rng.normal(size=D_X - 1)]), np.concatenate([[1.0], rng.normal(size=D_H - 1)])
        who, arm, y, ts = Identity(user=f"u{i % 3}", role="poet"), ARMS[i % 3], int(rng.integers(2)), 1000 + i
        answer, kind = Answered(arm, x, h), (FeedbackKind.THUMB, FeedbackKind.RATING, FeedbackKind.DWELL)[i % 3]
        plain.learn(Label(who, answer, float(y), kind, tokens=9, ts=float(ts)))
        numpy = Answered(np.str_(arm), x, h)
        scalars.learn(Label(who, numpy, np.float64(y), kind, np.bool_(True), tokens=np.int32(9), ts=np.float64(ts)))  # type: ignore[arg-type]
        ints.learn(Label(who, answer, bool(y) if i % 2 else y, kind, tokens=9, ts=ts))
    for other in (scalars, ints):
        assert {name: part.dump() for name, part in other.named().items()} == {
            name: part.dump() for name, part in plain.named().items()
        }
        assert [(key, person.dump()) for key, person in other.tastes.users.items()] == [
            (key, person.dump()) for key, person in plain.tastes.users.items()
        ]
        assert {type(arm) for arm in other.arms.names} == {str}
        assert other.residuals == plain.residuals
        assert {type(part) for sums in other.residuals.values() for part in sums} == {float}


@pytest.mark.parametrize("where", ["y", "ts"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_label_without_a_finite_number_leaves_no_trace(where: str, number: float) -> None:
    """A value or a time that is not finite teaches nothing, as a label and as a vote; a vote is counted as skipped."""
    fit, x = Fit(D_X, D_H), np.ones(D_X)
    label = Label(Identity(user="u"), Answered("a", x, np.ones(D_H)), 1.0, FeedbackKind.THUMB, ts=5.0)
    assert fit.learn(msgspec.structs.replace(label, **{where: number})) is None
    assert (fit.labels, fit.tastes.users) == (0, {})
    events = told(3, 1)
    quiet = events[:-1]
    vote = Feedback(id="v", ts=1e6, decision_id="d0", identity=Identity(user="u"), kind=FeedbackKind.THUMB, value=1.0)
    last = msgspec.structs.replace(vote, **{"value" if where == "y" else "ts": number})
    silent = folded(quiet)
    silent.skipped = 1
    assert folded([*quiet, (last, events[-1][1])]).digest() == silent.digest()


def test_what_is_no_number_is_refused() -> None:
    """A word for a number, half a token, and a number for a word are errors that name the field."""
    about: dict[str, Any] = {"id": "v", "decision_id": "d", "identity": Identity(), "kind": FeedbackKind.THUMB}
    with pytest.raises(TypeError, match=r"Feedback.value is 'high': Expected `float`, got `str`"):
        Feedback(ts=1.0, value="high", **about)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Feedback.dimension is 7: Expected `str`, got `int`"):
        Feedback(ts=1.0, value=1.0, dimension=7, **about)  # type: ignore[arg-type]
    answer = Answered("a", np.ones(D_X), None)
    with pytest.raises(TypeError, match=r"Label.tokens is .*1\.5.*: Expected `int`, got `float`"):
        Label(Identity(), answer, 1.0, FeedbackKind.THUMB, tokens=np.float64(1.5))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Label.pooled is 'no': Expected `bool`, got `str`"):
        Label(Identity(), answer, 1.0, FeedbackKind.THUMB, "no")  # type: ignore[arg-type]


def test_settings_of_any_type_are_plain() -> None:
    """Lists and dicts of numpy scalars in a policy's settings are stored as lists and dicts of numbers and texts."""
    settings_ = {"a": np.float64(0.5), "b": [np.int64(1), {np.str_("c"): np.bool_(True)}], "d": (np.float32(0.25),)}
    event = PolicyChange(id="c", ts=1.0, action="set", settings=settings_)
    assert event.settings == {"a": 0.5, "b": [1, {"c": True}], "d": [0.25]}
    assert decode_event(encode_event(event)) == event


_numbers = st.floats() | st.floats(width=32) | st.sampled_from([0.0, -0.0, 0.1, 0.95, 1e-300]) | st.integers(0, 99999)
_grids = st.builds(lambda low, steps, digits: low + steps / 2**digits, st.just(0.5), st.integers(0, 300), st.just(7))


@given(
    st.integers(1, 40).flatmap(lambda K: st.lists(st.lists(_numbers | _grids, min_size=K, max_size=K))),
    st.lists(st.sampled_from(["d", "f", "l", 7, 12]), min_size=1),
)
def test_packed_rows_keep_every_bit(rows: list[list[float]], forms: list[Any]) -> None:
    """Whatever is in them, NaN and −0 too, also of rows that are equal, of one level or of whole steps, or empty."""
    rows = [
        *rows,
        [],
        *rows[-1:],
        *([1.25] * len(row) for row in rows[:1]),
        *([k / 128 for k, _ in enumerate(row)] for row in rows),
    ]
    found = unpack_rows(pack_rows([(form, row) for form, row in zip(itertools.cycle(forms), rows, strict=False)]))
    assert [np.array(row, "<f8").tobytes() for row in found] == [np.array(row, "<f8").tobytes() for row in rows]


@given(
    st.lists(st.text(), max_size=5).map(tuple),
    st.integers(0, 1000),
    st.sampled_from([(), ("b",), ("x",), ("c", "a")]),
)
def test_a_decision_is_read_back_as_it_was(names: tuple[str, ...], seed: int, new: tuple[str, ...]) -> None:
    """Whatever its models are called, in whatever order, and whether its rows match their number or not."""
    rng, made = np.random.default_rng(seed), next(answers(seed, 1))[0]
    assert isinstance(made, Decision)
    row = tuple(rng.normal(size=len(names)).tolist())
    for decision in (
        msgspec.structs.replace(made, new=new, unpriced=new, switch=made.cost, rest=(0.01,) * 3),
        msgspec.structs.replace(made, mean=(0.5,)),
        msgspec.structs.replace(
            made, eligible=names, probs=row, twin=row, mean=row, sd=(), cost=(), candidates={"c": row}
        ),
    ):
        encoded, packed = encode_event(decision), with_packed_rows(decision, 0)
        assert decode_event(encoded) == (with_rows(packed) if packed.packed else packed) == decision
        assert encode_event(decode_event(encoded)) == encoded


def test_damaged_rows_are_an_error() -> None:
    """Cut or changed rows raise what any damaged event raises."""
    made = next(answers(1, 1))[0]
    assert isinstance(made, Decision)
    stored = with_packed_rows(made, 0)
    for packed in (stored.packed[:-5], stored.packed[:3], b"x" * 9, stored.packed[:2] + b"l"):
        with pytest.raises(msgspec.DecodeError):
            decode_event(msgspec.msgpack.encode(msgspec.structs.replace(stored, packed=packed)))
