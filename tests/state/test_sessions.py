"""Sessions: the present draw, redraws, switching costs, and no oscillation between models."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.learner import learner, story

from fitrouter.config import parse_config
from fitrouter.context.features import is_followup, session_key
from fitrouter.policies import Beliefs, SquareCB
from fitrouter.router import WATCH_S, Router
from fitrouter.serving.spending import counted
from fitrouter.state.reading import read_batch
from fitrouter.state.sessions import (
    CACHE_S,
    EVERY,
    IDLE_S,
    Cache,
    Session,
    Sessions,
    begins_turn,
    redraw_reason,
    switch_cost,
)
from fitrouter.stores.journal import Row
from fitrouter.types import (
    Attempt,
    Decision,
    Execution,
    Floats,
    Identity,
    Message,
    Mode,
    ModelCard,
    PolicyVersion,
    Prices,
    Request,
    Usage,
)

ARMS = ("a", "b", "c")
STAY = Session("d1", "a", 1000.0, turns=1)


def decision(
    number: int, chosen: str = "a", *, draw: int | None = None, key: str | None = "s", mode: Mode | None = None
) -> Decision:
    """Decision `number` at `number` seconds; sticky if it follows an earlier draw."""
    return Decision(
        id=f"d{number}",
        ts=float(number),
        draw_id=f"d{number if draw is None else draw}",
        identity=Identity(session=key),
        mode=mode or (Mode.ONLINE if draw is None else Mode.STICKY),
        eligible=ARMS,
        chosen=chosen,
        propensity=1.0,
        policy=PolicyVersion(algorithm="squarecb"),
    )


def execution(
    number: int,
    chosen: str = "a",
    *,
    served: str | None = "a",
    error: str | None = None,
    tokens: int = 0,
    key: str = "s",
) -> Execution:
    """The Execution of decision `number`: the attempt at the chosen model with its error, then the one that served."""
    attempts = [Attempt(model=chosen, probability=1.0, error=error)]
    if served not in {None, chosen}:
        attempts.append(Attempt(model=str(served), probability=0.5))
    return Execution(
        id=f"e{number}",
        ts=float(number),
        decision_id=f"d{number}",
        identity=Identity(session=key),
        chosen=chosen,
        served_by=served,
        status="failed" if served is None else "ok",
        attempts=tuple(attempts),
        prompt_tokens=tokens,
    )


def fold(*events: Decision | Execution) -> Sessions:
    sessions = Sessions()
    for event in events:
        if isinstance(event, Decision):
            sessions.observe_decision(event)
        else:
            sessions.observe_execution(event)
    return sessions


def known(sessions: Sessions, key: str = "s") -> Session:
    found = sessions.get(key)
    assert found is not None
    return found


# --- the fold ------------------------------------------------------------------------------------------------------


def test_a_session_keeps_its_draw_and_counts_user_turns() -> None:
    """Sticky turns keep draw and arm; an agent's steps inside a turn do not count."""
    sessions = fold(decision(1), decision(2, draw=1))
    sessions.observe_decision(decision(3, draw=1), user_turn=False)
    assert known(sessions) == Session("d1", "a", 3.0, turns=2, last="d3", draws=1, calls=3)


def test_a_redraw_resets_the_counts_and_keeps_the_cache() -> None:
    """After a redraw, turns and failures start anew; the model with the cached prompt stays known."""
    sessions = fold(decision(1), execution(1, error="ProviderTimeout", served="b", tokens=900), decision(2, "c"))
    assert known(sessions) == Session(
        "d2", "c", 2.0, 1, 0, (Cache("b", 900, 1.0, False),), 1.0, last="d2", draws=2, calls=2
    )


@pytest.mark.parametrize("mode", [Mode.PINNED, Mode.FORCED])
def test_pinned_and_forced_turns_change_no_session(mode: Mode) -> None:
    """Pinned and forced turns leave all but the last id unchanged, and their failures do not count."""
    sessions = fold(decision(1), decision(2, "b", mode=mode), execution(2, "b", served=None, error="ProviderTimeout"))
    assert known(sessions) == Session("d1", "a", 1.0, turns=1, last="d2", draws=1, calls=1)
    assert len(fold(decision(1, key=None), decision(2, mode=mode))) == 0


@pytest.mark.parametrize(
    ("served", "error", "failures"),
    [
        ("a", None, 0),
        ("b", "ProviderUnavailable", 2),
        (None, "ProviderTimeout", 2),
        (None, "ProviderRejected", 1),
    ],
)
def test_failures_are_those_of_the_drawn_model(served: str | None, error: str | None, failures: int) -> None:
    """A fallback's answer does not reset the failures, the model's own does; a rejected request is no failure."""
    first = execution(1, error="ProviderTimeout", served=None)
    sessions = fold(decision(1), first, decision(2, draw=1), execution(2, served=served, error=error))
    assert known(sessions).failures == failures


def test_late_executions_do_not_count_for_the_new_draw() -> None:
    """A failure of the last draw that is logged after the next one does not count for the new model."""
    sessions = fold(decision(1), decision(2, "b"), execution(1, served=None, error="ProviderTimeout"))
    assert known(sessions).failures == 0
    assert fold(execution(1)).get("s") is None


def test_the_number_of_sessions_is_bounded() -> None:
    """The least recently used session is dropped first; a decision counts as use, an answer does not."""
    sessions = Sessions(limit=2)
    for number, key in ((1, "x"), (2, "y")):
        sessions.observe_decision(decision(number, key=key))
    sessions.observe_decision(decision(3, draw=1, key="x"))
    sessions.observe_execution(execution(2, key="y"))
    assert sessions.evicted_after_s == math.inf
    sessions.observe_decision(last := decision(4, key="z"))
    assert list(sessions) == ["x", "z"]
    assert sessions.evicted_after_s == last.ts - decision(2).ts == 2.0
    sessions.observe_decision(msgspec.structs.replace(decision(5, key="late"), ts=-100.0))
    assert sessions.evicted_after_s == 0.0, "times may be out of order"


event_ = st.one_of(
    st.builds(
        decision,
        st.integers(1, 50),
        st.sampled_from(ARMS),
        draw=st.none() | st.integers(1, 50),
        key=st.sampled_from(["s", "t", "u", None]),
        mode=st.sampled_from([None, None, Mode.PINNED]),
    ),
    st.builds(
        execution,
        st.integers(1, 50),
        st.sampled_from(ARMS),
        served=st.sampled_from([*ARMS, None]),
        error=st.sampled_from([None, "ProviderTimeout", "ProviderRejected"]),
        tokens=st.integers(0, 10_000),
        key=st.sampled_from(["s", "t", "u"]),
    ),
)


@settings(max_examples=40)
@given(events=st.lists(event_, max_size=30), more=st.lists(event_, max_size=10))
def test_the_state_round_trips_exactly(events: list[Decision | Execution], more: list[Decision | Execution]) -> None:
    """A restored state continues as the original, order of use included."""
    sessions, restored = fold(*events), Sessions()
    assert restored.load(sessions.dump())
    for event in more:
        for one in (sessions, restored):
            one.observe_decision(event) if isinstance(event, Decision) else one.observe_execution(event)
    assert list(restored) == list(sessions)
    assert restored.dump() == sessions.dump()


def test_state_that_cannot_be_is_refused(subtests: pytest.Subtests) -> None:
    """Unsound bytes change nothing."""
    for payload in (
        b"",
        b"\xff",
        msgspec.msgpack.encode({"s": 1}),
        msgspec.msgpack.encode([("s", ("d", "a", float("nan")))]),
        msgspec.msgpack.encode([("s", ("d", "a", 1.0, -1))]),
        msgspec.msgpack.encode([("s", ("d", "", 1.0))]),
        msgspec.msgpack.encode([("s", STAY), ("s", STAY)]),
        msgspec.msgpack.encode([(str(i), STAY) for i in range(4097)]),
    ):
        with subtests.test(payload=payload):
            sessions = fold(decision(1))
            before = sessions.dump()
            assert not sessions.load(payload)
            assert sessions.dump() == before


@given(cut=st.integers(0, 60), flip=st.integers(0, 255))
def test_corrupted_state_never_gives_an_invalid_session(cut: int, flip: int) -> None:
    """With any damaged byte, loaded sessions have finite times and non-negative counts."""
    payload = bytearray(fold(decision(1), execution(1, tokens=5)).dump())
    payload[cut % len(payload)] ^= flip
    sessions = Sessions()
    if sessions.load(bytes(payload)):
        for key in sessions:
            found = known(sessions, key)
            assert np.isfinite([found.ts, found.answered_ts]).all()
            assert min(found.turns, found.failures, *(cache.tokens for cache in found.caches)) >= 0


# --- when ----------------------------------------------------------------------------------------------------------


def test_a_session_is_drawn_again_by_rules_that_all_candidates_share(subtests: pytest.Subtests) -> None:
    """Silence, what can take the request, failures, turns: in this order; never inside an agent's run by count."""
    for changes, known_of_the_request, reason in (
        ({}, {}, ""),
        ({"turns": EVERY - 1}, {}, ""),
        ({"turns": EVERY}, {}, "turns"),
        ({"turns": EVERY}, {"user_turn": False}, ""),
        ({"turns": 99}, {"every": 0}, ""),
        ({"turns": 2}, {"every": 2}, "turns"),
        ({"task": "code"}, {"task": "Code"}, ""),
        ({"task": "code"}, {"task": None}, ""),
        ({"task": "code"}, {"task": "poems"}, "task"),
        ({"task": "code"}, {"task": "poems", "user_turn": False}, ""),
        ({"failures": 1}, {}, "failed"),
        ({"failures": 1}, {"user_turn": False}, "failed"),
        ({}, {"eligible": ("b",)}, "ineligible"),
        ({}, {"eligible": ("b",), "excluded": (("a", "capability: lacks images, has none"),)}, "ineligible"),
        ({}, {"eligible": ("b",), "excluded": (("a", "context: needs about 9 tokens, has 8"),)}, "context"),
        ({}, {"now": 1000.0 + IDLE_S}, ""),
        ({}, {"now": 1001.0 + IDLE_S}, "idle"),
        ({"answered_ts": 1500.0}, {"now": 1001.0 + IDLE_S}, ""),
        ({"failures": 1, "turns": 9}, {"now": 9e9, "eligible": ()}, "idle"),
        ({"failures": 1, "turns": 9}, {"eligible": ()}, "ineligible"),
        ({}, {"now": 1020.0, "idle_s": 10.0}, "idle"),
    ):
        with subtests.test(changes=changes, known_of_the_request=known_of_the_request, reason=reason):
            session = msgspec.structs.replace(STAY, **changes)
            assert redraw_reason(session, **{"eligible": ARMS, "now": 1010.0, **known_of_the_request}) == reason


def test_an_agents_steps_begin_no_user_turn(subtests: pytest.Subtests) -> None:
    """Only a person's words do: not tools' output, in either protocol, and no message of the model."""
    for messages, begins in (
        ([], False),
        ([{"role": "user", "content": "Hi"}], True),
        ([{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url"}]}], True),
        ([{"role": "user", "content": [{"type": "tool_result", "content": "42"}]}], False),
        ([{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [{}]}, {"role": "tool"}], False),
        ([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hm"}], False),
        ([{"role": "user"}], True),
        ([{}], False),
    ):
        with subtests.test(messages=messages, begins=begins):
            assert begins_turn(messages) is begins


# --- what it costs ---------------------------------------------------------------------------------------------------


CARDS = [
    ModelCard(name="a", provider="p", prices=Prices(input=2.0, cache_read=0.2)),
    ModelCard(name="b", provider="p", prices=Prices(input=10.0)),
    ModelCard(name="c", provider="p", prices=Prices(input=0.1)),
]
WARM = Cache("a", 50_000, 1000.0, writes=False)
CACHED = msgspec.structs.replace(STAY, caches=(WARM,))


def test_switching_forgoes_the_cache_discount() -> None:
    """Expected costs plus the switching cost differ as the bills do: the cached prefix costs (1 − discount)."""
    prompt = 60_000
    full = np.array([card.prices.input * prompt / 1e6 for card in CARDS])
    bill = full.copy()
    bill[0] = 2.0 * (50_000 * (1 - 0.9) + 10_000) / 1e6
    cost = full + switch_cost(CARDS, CACHED, prompt, 1100.0)
    assert cost - cost[0] == pytest.approx(bill - bill[0], abs=1e-15)
    assert switch_cost(CARDS, CACHED, prompt, 1100.0).tolist() == pytest.approx([0.0, 0.09, 0.09])


def test_every_warm_cache_counts() -> None:
    """Switching back to a model that was called within its provider's lifetime costs what the bills differ by."""
    cards = [
        ModelCard(name="a", provider="p", prices=Prices(input=2.0, cache_read=0.2)),
        ModelCard(name="b", provider="p", prices=Prices(input=3.0, cache_read=0.3, cache_write=3.75)),
        ModelCard(name="c", provider="p", prices=Prices(input=1.0)),
    ]
    warm = msgspec.structs.replace(STAY, caches=(Cache("b", 40_000, 900.0, writes=False), WARM))
    prompt = 60_000
    full = np.array([card.prices.input * prompt for card in cards]) / 1e6
    bill = np.array([0.2 * 50_000 + 2.0 * 10_000, 0.3 * 40_000 + 3.0 * 20_000, 1.0 * prompt]) / 1e6
    cost = full + switch_cost(cards, warm, prompt, 1100.0)
    assert cost - cost[0] == pytest.approx(bill - bill[0], abs=1e-15)
    later = switch_cost(cards, warm, prompt, 900.0 + CACHE_S + 1.0)
    assert later.tolist() == pytest.approx([0.0, 0.09, 0.09])  # that of b is cold
    writes = msgspec.structs.replace(STAY, caches=(Cache("b", 40_000, 900.0, writes=True), WARM))
    bill[1] += 0.75 * 20_000 / 1e6
    cost = full + switch_cost(cards, writes, prompt, 1100.0)
    assert cost - cost[0] == pytest.approx(bill - bill[0], abs=1e-15)
    cold = full + switch_cost(
        cards, msgspec.structs.replace(STAY, caches=(WARM._replace(writes=True),)), prompt, 1100.0
    )
    assert cold[1] - cold[0] == pytest.approx(3.75 * prompt / 1e6 - bill[0])  # all of it would be written


def test_a_lost_cache_is_spread_over_the_calls_of_a_draw() -> None:
    """A switch costs what the bills until the next draw differ by, of as many calls and reads as the draws so far had.

    The first call finds what is cached now; each read after it finds the whole prompt at the model that was drawn.
    """
    prompt, session = 60_000, msgspec.structs.replace(CACHED, draws=2, calls=24, reads=20)
    first = np.array([2.0 * (50_000 * 0.1 + 10_000), 10.0 * prompt, 0.1 * prompt])
    full, read = np.array([2.0, 10.0, 0.1]) * prompt, np.array([0.2, 5.0, 0.05]) * prompt
    bill = (first + 10 * read + full) / 12 / 1e6
    cost = full / 1e6 + switch_cost(CARDS, session, prompt, 1100.0)
    assert cost - cost[0] == pytest.approx(bill - bill[0], abs=1e-15)
    unread = switch_cost(CARDS, msgspec.structs.replace(session, reads=0), prompt, 1100.0)
    assert unread == pytest.approx(switch_cost(CARDS, CACHED, prompt, 1100.0) / 12, abs=1e-15)


def answered(ts: float, *, read: int = 0, written: int = 0, hour: int = 0) -> Execution:
    """An answer of "a" to a prompt of 50,000 tokens after four seconds."""
    usage = Usage(prompt_tokens=50_000, cached_tokens=read, written_tokens=written, written_1h_tokens=hour)
    return msgspec.structs.replace(execution(1), ts=ts, latency_ms=4000.0, **counted(usage))


def test_caches_last_as_long_as_they_were_seen_to(subtests: pytest.Subtests) -> None:
    """An hour, if they were written for one or read after five minutes, until such a read fails; else 300 s."""
    for answers, cached, last, lasting in (
        ([answered(10.0)], 50_000, 310.0, False),
        ([answered(10.0, written=50_000, hour=50_000)], 50_000, 3610.0, True),
        ([answered(10.0), answered(400.0, read=50_000)], 50_000, 4000.0, True),
        ([answered(10.0), answered(313.0, read=50_000)], 50_000, 613.0, False),
        ([answered(10.0), answered(400.0, read=50_000), answered(500.0, read=50_000)], 50_000, 4100.0, True),
        ([answered(10.0), answered(400.0, read=50_000), answered(900.0)], 0, 0.0, False),
        ([answered(10.0), answered(400.0)], 50_000, 700.0, False),
        ([answered(10.0), answered(20.0)], 0, 0.0, False),
        ([answered(10.0), answered(20.0), answered(30.0, read=50_000)], 50_000, 330.0, False),
    ):
        with subtests.test(answers=answers):
            session = known(fold(decision(1), *answers))
            assert [(c.tokens, c.lasting) for c in session.caches] == [(cached, lasting)]
            assert session.reads == sum(answer.cached_tokens > 0 for answer in answers)
            assert bool(switch_cost(CARDS, session, 50_000, last).any()) == bool(cached)
            assert not switch_cost(CARDS, msgspec.structs.replace(session, reads=0), 50_000, last + 0.1).any()
            if cached:
                away = execution(1, "b", served="b", tokens=9)
                for later, arms in ((last, "ab"), (last + 0.1, "b")):
                    caches = known(fold(decision(1), *answers, msgspec.structs.replace(away, ts=later))).caches
                    assert "".join(cache.arm for cache in caches) == arms


def test_writes_for_an_hour_are_expected_at_their_price() -> None:
    """Where the session's prompts are written for an hour, a model without them is expected to write them so."""
    cards = [ModelCard(name=n, provider="p", prices=Prices(input=2.0, cache_read=0.2, cache_write=2.5)) for n in "ab"]
    cards[1] = msgspec.structs.replace(cards[1], prices=Prices(input=2.0, cache_write=2.5, cache_write_1h=4.0))
    for lasting, price in ((False, 2.5), (True, 4.0)):
        warm = msgspec.structs.replace(STAY, caches=(WARM._replace(writes=True, lasting=lasting),))
        assert switch_cost(cards, warm, 50_000, 1100.0)[1] == pytest.approx((price - 0.2) * 0.05)


def test_all_models_of_a_session_are_remembered() -> None:
    """Also the pinned ones and those of earlier draws: the last eight within the lifetime; always the last one."""
    sessions = fold(decision(1))
    arm = known(sessions).arm
    before = known(sessions)
    for i in range(12):
        sessions.observe_execution(execution(2_000 + 20 * i, f"m{i}", served=f"m{i}", tokens=5_000))
    found = known(sessions)
    assert [cache.arm for cache in found.caches] == [f"m{i}" for i in range(4, 12)]
    assert (found.answered_ts, found.failures, found.arm) == (before.answered_ts, before.failures, arm)
    sessions.observe_execution(execution(9_000, "m11", served="m11", tokens=9_000))
    assert [(cache.arm, cache.tokens) for cache in known(sessions).caches] == [("m11", 9_000)]


def test_a_shortened_prompt_limits_the_cached_tokens() -> None:
    """At most the length of the prompt counts as cached."""
    assert switch_cost(CARDS, CACHED, 2000, 1100.0)[1] == pytest.approx(2.0 * 0.9 * 2000 / 1e6)


def test_nothing_is_lost_where_nothing_is_cached(subtests: pytest.Subtests) -> None:
    """No cache, a holder that cannot take the request, a short prompt, or a silence that emptied the cache."""
    for changes, prompt, now in (
        ({"caches": (WARM._replace(tokens=0),)}, 60_000, 1100.0),
        ({"caches": ()}, 60_000, 1100.0),
        ({"caches": (WARM._replace(arm="gone"),)}, 60_000, 1100.0),
        ({}, 1000, 1100.0),
        ({}, 60_000, 1301.0),
    ):
        with subtests.test(changes=changes, prompt=prompt, now=now):
            assert not switch_cost(CARDS, msgspec.structs.replace(CACHED, **changes), prompt, now).any()


# --- no flip-flop ----------------------------------------------------------------------------------------------------


def pmf(mean: Floats, stay: int, cost: float) -> Floats:
    """The logged pmf of a redraw: SquareCB's with the switching cost, and a floor."""
    utility = mean - cost
    utility[stay] += cost
    beliefs = Beliefs(arms=ARMS, utility=utility, sd=np.full(3, 0.1), steps=2000.0)
    return 0.95 * SquareCB(20.0).propose(beliefs) + 0.05 / 3


def switches(means: Floats, draws: list[int], cost: float) -> float:
    """Expected number of switches of an agent's session: Σ over draws of P(another than the present model)."""
    total, held = 0.0, np.full(3, 1 / 3)
    for t in draws:
        moves = np.stack([pmf(means[t], stay, cost) for stay in range(3)])
        total += float(held @ (1.0 - np.diag(moves)))
        held = held @ moves
    return total


def drawn_at(every: int, fails_at: tuple[int, ...] = ()) -> list[int]:
    """Calls at which an agent's session of 30 calls is drawn again; a person speaks at every fifth."""
    sessions, again = Sessions(), []
    draw = 0
    for t in range(30):
        spoken = t % 5 == 0
        session = sessions.get("s")
        if session is not None and redraw_reason(session, eligible=ARMS, now=float(t), user_turn=spoken, every=every):
            again.append(t)
            draw = t
        sessions.observe_decision(decision(t, draw=None if t == draw else draw), user_turn=spoken)
        sessions.observe_execution(execution(t, error="ProviderTimeout" if t in fails_at else None, served="a"))
    return again


def test_redraws_of_an_agents_session() -> None:
    """Thirty calls in six user turns: redraws happen at every nth user turn and after failures only."""
    assert drawn_at(0) == []
    assert drawn_at(1) == [5, 10, 15, 20, 25]
    assert drawn_at(2) == [10, 20]
    assert drawn_at(8) == []
    assert drawn_at(0, fails_at=(12,)) == [13]
    assert drawn_at(2, fails_at=(12, 13)) == [10, 13, 14, 25]


def test_few_switches_in_an_agents_session(subtests: pytest.Subtests) -> None:
    """With noisy posteriors there are fewer switches than draws in 30 calls, and even fewer with the switching cost."""
    for seed in range(10):
        with subtests.test(seed=seed):
            rng = np.random.default_rng(seed)
            means = 0.6 + 0.04 * rng.normal(size=(30, 3))
            every_call, by_rule = list(range(1, 30)), drawn_at(2)
            free = switches(means, by_rule, 0.0)
            costly = [switches(means, by_rule, cost) for cost in (0.02, 0.1, 1.0)]
            assert free < len(by_rule) < switches(means, every_call, 0.0)
            assert free > costly[0] > costly[1] > costly[2]
            assert costly[2] < len(by_rule) * (0.05 * 2 / 3 + 0.02)


def test_gains_above_the_switching_cost_prevail() -> None:
    """A much better model is still chosen, and every model keeps its floor."""
    better = pmf(np.array([0.4, 0.4, 0.9]), stay=0, cost=0.1)
    assert better[2] > 0.9
    assert pmf(np.array([0.9, 0.1, 0.1]), stay=0, cost=9.0).min() >= 0.05 / 3


# --- without session ids ---------------------------------------------------------------------------------------------


text_ = st.text(min_size=1, max_size=20).filter(str.strip)


@settings(max_examples=20)
@given(system=st.none() | text_, opening=text_, turns=st.lists(st.tuples(text_, text_), min_size=1, max_size=4))
def test_sessions_without_client_ids(system: str | None, opening: str, turns: list[tuple[str, str]]) -> None:
    """Each later turn of a plain client's conversation finds the session of its first."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": opening})
    sessions = Sessions()
    for number, (answer, more) in enumerate(turns, 1):
        key, implicit = session_key(Request(messages=tuple(messages), identity=Identity(user="ann")))
        assert implicit
        assert (sessions.get(key) is not None) == is_followup(Request(messages=tuple(messages)))
        sessions.observe_decision(decision(number, draw=1, key=key))
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": more}]
    assert known(sessions, key).turns == len(turns)
    assert len(sessions) == 1


def test_missing_session_ids_do_not_disable_learning() -> None:
    """Answers and votes without sessions lead to the same state, bit for bit."""
    journal = story(3, 60)
    states = []
    for known_ in (True, False):
        taught = learner()
        for row, related in read_batch(journal, 0, 1000).rows:
            event = row.event
            if not known_ and isinstance(event, Decision | Execution):
                event = msgspec.structs.replace(event, identity=msgspec.structs.replace(event.identity, session=None))
            taught.apply(Row(row.seq, event), related)
        assert taught.fit.labels > 10
        states.append({key: payload for key, payload in taught.state() if key.startswith(("arm:", "user:", "role:"))})
    assert states[0] == states[1]


async def test_sessions_that_are_forgotten_early_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`session.kept` bounds the sessions; a session that makes room before its time is told in status and log, once."""
    config = parse_config(
        {
            "data": str(tmp_path),
            "scorer": {"encoder": "none"},
            "session": {"kept": 2},
            "providers": {"s": {"kind": "simulated", "options": {"a": {"latency_s": 0.0}}}},
            "models": [{"name": "a", "provider": "s"}],
        }
    )
    now = 1e9
    async with Router.from_config(config, clock=lambda: now) as router:
        for name in ("x", "y", "z"):
            now += 60.0
            messages: tuple[Message, ...] = ({"role": "user", "content": "Hello"},)
            await router.complete(Request(messages=messages, identity=Identity(session=name)))
            await router.settled()
            told = (await asyncio.to_thread(router.status)).session_memory_s
            assert told == (120.0 if name == "z" else math.inf)
        await asyncio.sleep(2.5 * WATCH_S)
    assert [record.message for record in caplog.records if "session.kept" in record.message] == [
        "a session was forgotten after 120 s of silence, before session.idle_s (3600 s), to make room for another; "
        "raise session.kept"
    ]
