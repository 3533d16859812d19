"""Candidates that learn while they are replayed: what they keep, what they learn from, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.kits.replay import Town

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter.policies import SquareCB, Uniform
from fitrouter.routing.decider import Rules
from fitrouter.stores.journal import Entry, Journal, MemoryJournal, SqliteJournal
from fitrouter.types import Decision, Feedback, FeedbackKind, Identity, Mode, PolicyChange
from fitrouter_evaluators.replay.candidates._settings import Settings
from fitrouter_evaluators.replay.candidates.learning import ProgressiveCandidate, RejectionCandidate
from fitrouter_evaluators.replay.candidates.load import load_candidate
from fitrouter_evaluators.replay.log.log import MODES, Log

SHARP = Settings(algorithm="squarecb", parameters={"gamma": 20.0})
ROUNDS, SEEDS = 70, 13


def opened(journal: MemoryJournal) -> Any:
    """What opens a journal that is open."""

    def once() -> AbstractContextManager[Journal]:
        return nullcontext(journal)

    return once


def logged(seed: int, n: int, **more: Any) -> Town:
    """A town that is routed uniformly and learns nothing."""
    made = Town(seed=seed, policy=Uniform(), learns=False, **more)
    made.live(n)
    return made


def rejection(town: Town, **more: Any) -> RejectionCandidate:
    """A fresh learner of the town's."""
    return RejectionCandidate(town.blank(), opened(town.journal), SHARP, **more)


def rows_of(log: Log) -> np.ndarray:
    """All."""
    return np.arange(log.decisions.n)


def truth(town: Town, log: Log, rows: Sequence[int]) -> float:
    """Mean P(satisfied) with what was drawn there."""
    assert log.decisions.x is not None
    arms = log.options.arm[log.decisions.chosen[rows]]
    return float(np.mean([town.satisfaction(log.decisions.x[i])[arm] for i, arm in zip(rows, arms, strict=True)]))


@cache
def online() -> tuple[float, float]:
    """What the learning policy is worth when it really runs, over its first rounds; and the standard error."""
    found = []
    for seed in range(1000, 1030):
        town = Town(seed=seed, policy=SquareCB(20.0))
        town.live(ROUNDS)
        log = town.log()
        found.append(truth(town, log, rows_of(log).tolist()))
    return float(np.mean(found)), float(np.std(found) / np.sqrt(len(found)))


# --- rejection -----------------------------------------------------------------------------------------------------


def test_rejection_sampling_estimates_the_online_value() -> None:
    """On uniform logs the mean over seeds is the online value of the policy that learns, and no uniform policy's.

    The interval of each run holds what the run that it lived through was worth.
    """
    found, uniform, held = [], [], []
    for seed in range(SEEDS):
        town = logged(seed, 4 * ROUNDS)
        log = town.log()
        replayed = rejection(town, rounds=ROUNDS, seed=seed).replay(log, rows_of(log), log.outcomes.free_label)
        assert replayed.matched == replayed.labels == ROUNDS
        assert not replayed.biased
        assert replayed.c == pytest.approx(1 / 3)
        found.append(replayed.value)
        uniform.append(log.outcomes.free_label.mean())
        held.append(replayed.low <= truth(town, log, replayed.kept.tolist()) <= replayed.high)
    value, se = online()
    spread = np.hypot(np.std(found) / np.sqrt(SEEDS), se)
    assert abs(np.mean(found) - value) < 3.0 * spread
    assert abs(np.mean(uniform) - value) > 3.0 * spread
    assert np.mean(held) >= 0.85


def test_rejection_on_an_adaptive_log_with_a_known_pmf() -> None:
    """The same holds where a learner logged: with c the smallest probability nothing is clipped."""
    found = []
    for seed in range(4):
        town = Town(seed=seed, policy=SquareCB(40.0), rules=Rules(floor=0.6))
        town.live(360)
        log = town.log()
        replayed = rejection(town, rounds=ROUNDS, seed=seed).replay(log, rows_of(log), log.outcomes.free_label)
        assert replayed.clipped == 0.0
        assert replayed.c == log.options.prob.min()
        found.append((replayed.value, replayed.matched))
    assert min(matched for _, matched in found) > 0.8 * ROUNDS
    value, se = online()
    spread = np.hypot(np.std([each for each, _ in found]) / np.sqrt(len(found)), se)
    assert abs(np.mean([each for each, _ in found]) - value) < 3.0 * spread


def test_rejection_learns_from_accepted_draws_only() -> None:
    """The learner equals one trained on the accepted decisions alone; equal seeds accept equal draws."""
    town = logged(1, 120)
    log = town.log()
    walked: list[Any] = []

    class Seen(RejectionCandidate):
        def _replay(self, *args: Any) -> Any:
            walked.append(super()._replay(*args))
            return walked[-1]

    first = Seen(town.blank(), opened(town.journal), SHARP, seed=4)
    found = first.replay(log, rows_of(log), log.outcomes.free_label)
    again = first.replay(log, rows_of(log), log.outcomes.free_label)
    assert 20 < found.matched < 60
    assert found.kept.tolist() == again.kept.tolist()
    alone = town.blank()
    names = set(log.decisions.id[found.kept])
    for row in town.journal.tail(0, 10**9):
        mine = getattr(row.event, "decision_id", row.event.id) in names or row.seq == 1
        if mine:
            related = [e.event for e in town.journal.of(getattr(row.event, "decision_id", "")) if e.seq < row.seq]
            alone.apply(row, related)
        alone.seq = row.seq
    assert {learner.digest() for learner in walked} == {alone.digest()}
    assert (
        rejection(town, seed=5).replay(log, rows_of(log), log.outcomes.free_label).kept.tolist() != found.kept.tolist()
    )


def test_slice_only_uses_the_uniform_slice() -> None:
    """`slice_only` uses draws of the slice, with 1 / K as their probability."""
    town = Town(seed=2, rules=Rules(floor=0.05, uniform_slice=0.5))
    town.live(300)
    log = town.log()
    found = rejection(town, slice_only=True).replay(log, rows_of(log), log.outcomes.free_label)
    slice_ = log.decisions.mode == MODES.index(Mode.UNIFORM)
    assert found.draws == slice_.sum() > 100
    assert found.c == pytest.approx(1 / 3)
    assert slice_[found.kept].all()
    assert abs(found.matched - found.draws / 3) < 4 * np.sqrt(found.draws * 2 / 9)


def test_a_larger_acceptance_constant_is_marked_as_biased() -> None:
    """Dudík's quantile accepts more draws than the safe constant; clipping is counted and reported as bias."""
    town = Town(seed=3, rules=Rules(floor=0.1))
    town.live(300)
    log = town.log()
    safe = rejection(town).replay(log, rows_of(log), log.outcomes.free_label)
    bold = rejection(town, quantile=0.1).replay(log, rows_of(log), log.outcomes.free_label)
    fixed = rejection(town, c=0.5).replay(log, rows_of(log), log.outcomes.free_label)
    assert safe.clipped == 0.0
    assert not safe.biased
    for found in (bold, fixed):
        assert found.matched > 2 * safe.matched
        assert 0.0 < found.clipped < 1.0
        assert "under-represented" in found.biased
    assert bold.c > safe.c
    assert fixed.c == 0.5


def test_redrawn_sessions_need_all_earlier_draws() -> None:
    """A later draw of a session is met only if all earlier ones were accepted; sticky turns follow their draw."""
    town = Town(seed=5, policy=Uniform(), learns=False)
    for _ in range(60):
        first = town.request()
        town.request(first)
        again = town.request(first, again=True)
        town.request(again)
    log = town.log()
    found = rejection(town, seed=1).replay(log, rows_of(log), log.outcomes.free_label)
    begins = log.decisions.begins[found.kept]
    sessions = log.decisions.session[found.kept]
    assert set(sessions[~begins]) <= set(sessions[begins])
    assert found.draws == 60 + begins.sum()
    assert 0 < (~begins).sum() < begins.sum()
    assert found.labels == 2 * found.matched
    on = np.isin(log.decisions.draw, found.kept)
    assert found.value == pytest.approx(log.outcomes.free_label[on].mean())


def test_the_value_is_the_weighted_mean_of_accepted_draws() -> None:
    """Outcomes observed with probability e have weight 1 / e; without any label the value is NaN."""
    town = logged(6, 90)
    log = town.log()
    y, n = log.outcomes.free_label, log.decisions.n
    seen = np.random.default_rng(0).random(n) < 0.5
    e = np.where(np.arange(n) % 2, 0.5, 0.25)
    found = rejection(town).replay(log, rows_of(log), np.where(seen, y, np.nan), seen=seen, e=e)
    weight = (seen / e)[found.kept]
    assert found.value == pytest.approx(np.average(y[found.kept], weights=weight))
    parts = weight * (y[found.kept] - found.value)
    m = found.matched
    assert found.se == pytest.approx(np.sqrt(m / (m - 1) * (parts**2).sum()) / weight.sum())
    assert found.high - found.value == pytest.approx(1.959964 * found.se, rel=1e-5)
    nothing = rejection(town).replay(log, rows_of(log), np.full(n, np.nan))
    assert np.isnan([nothing.value, nothing.se, nothing.low]).all()
    assert rejection(town).replay(log, rows_of(log)[:0], y).matched == 0


def test_pinned_requests_are_learnt_but_not_counted() -> None:
    """Pinned requests train the candidate as they trained the router; policy changes are ignored."""
    town = logged(7, 40)
    decision = next(row.event for row in town.journal.tail(0, 10) if isinstance(row.event, Decision))
    town.count += 1
    pinned = msgspec.structs.replace(
        decision, id="pinned", draw_id="pinned", mode=Mode.PINNED, probs=(), rest=(), propensity=1.0, ts=town.now
    )
    change = PolicyChange(id="p", ts=town.now, action="set", settings={"floor": 0.5})
    town.put(change, pinned, *town._answered(pinned, np.ones(3)))
    town.live(1)
    log = town.log()
    found = rejection(town).replay(log, rows_of(log), log.outcomes.free_label)
    assert found.draws == 41
    assert found.labels == found.matched + 1
    assert "pinned" not in log.decisions.id[found.kept]


def test_pairs_need_both_decisions_accepted() -> None:
    """A vote between two answers is learnt only if both decisions were accepted."""
    town = logged(8, 60)
    names = [row.event.id for row in town.journal.tail(0, 10**9) if isinstance(row.event, Decision)]
    pairs = list(zip(names[::2], names[1::2], strict=True))
    for one, other in pairs:
        vote = Feedback(
            id=f"{one}:pair",
            ts=town.now,
            decision_id=one,
            identity=Identity(),
            kind=FeedbackKind.PAIR,
            value=1.0,
            other=other,
        )
        town.put(vote)
    log = town.log()
    found = rejection(town, seed=2).replay(log, rows_of(log), log.outcomes.free_label)
    kept = set(log.decisions.id[found.kept])
    both = sum(one in kept and other in kept for one, other in pairs)
    assert 0 < both < sum(one in kept for one, _ in pairs)
    assert found.labels == len(kept) + both


# --- progressive ---------------------------------------------------------------------------------------------------


def test_progressive_with_live_settings_reproduces_the_log() -> None:
    """A learner trained on all logged events, as the live one was, has the logged pmf at every draw."""
    town = Town(seed=3, votes=0.7)
    last = None
    for i in range(150):
        if i == 80:
            town.join("d")
        last = town.request(last if i % 4 else None, again=i % 4 == 2, user="ann")
    log = town.log()
    candidate = ProgressiveCandidate(town.blank(), opened(town.journal), SHARP)
    rows = rows_of(log)
    np.testing.assert_allclose(candidate.pmf(log, rows), log.options.prob, rtol=0, atol=1e-12)
    two = rows[:2][::-1]  # a draw, and a re-draw or a sticky turn of its session
    K = int(log.decisions.start[1])
    np.testing.assert_allclose(candidate.pmf(log, two)[-K:], log.options.prob[:K], rtol=0, atol=1e-12)
    assert "including those it would not have chosen" in candidate.biased
    assert "learning from scratch from every logged decision" in candidate.description


def test_progressive_uses_no_later_events() -> None:
    """Its pmf at a draw is independent of that draw's outcome and of later events."""
    town, other = Town(seed=4), Town(seed=4)
    town.live(40)
    other.live(20)
    other.theta = -other.theta
    other.live(20)
    pmfs = []
    for each in (town, other):
        log = each.log()
        pmfs.append(ProgressiveCandidate(each.blank(), opened(each.journal), SHARP).pmf(log, rows_of(log)))
    early = 3 * 21
    assert pmfs[0][:early].tolist() == pmfs[1][:early].tolist()
    assert pmfs[0].tolist() != pmfs[1].tolist()


# --- refusals, and the file ----------------------------------------------------------------------------------------


def test_a_learner_trained_on_the_log_is_refused() -> None:
    """A learner trained on a draw before meeting it is refused with the position and the row."""
    town = Town(seed=5)
    town.live(20)
    log = town.log()
    message = rf"trained up to position {town.learner.seq}, which is not before row 2 \("
    with pytest.raises(ConfigError, match=message):
        ProgressiveCandidate(town.learner, opened(town.journal), SHARP).pmf(log, rows_of(log))
    with pytest.raises(ConfigError, match=message):
        RejectionCandidate(town.learner, opened(town.journal), SHARP).replay(log, rows_of(log), log.outcomes.free_label)


def test_another_journal_is_refused() -> None:
    """A log made from another journal is refused with the first missing decision."""
    town, other = Town(seed=5), Town(seed=6)
    town.live(4)
    other.live(4)
    log = town.log()
    with pytest.raises(ConfigError, match=rf"does not hold row 2 \(decision '{log.decisions.id[0]}'\)"):
        ProgressiveCandidate(town.blank(), opened(other.journal), SHARP).pmf(log, rows_of(log))


def test_rejection_needs_probabilities() -> None:
    """Without the whole pmf there is no acceptance; and it has no pmf itself."""
    town = logged(0, 5)
    log = town.log()
    bare = log._replace(options=log.options._replace(prob=np.full(15, np.nan)))
    with pytest.raises(InvalidLog, match="the full pmf"):
        rejection(town).replay(bare, rows_of(log), log.outcomes.free_label)
    with pytest.raises(ConfigError, match="set 'progressive'"):
        rejection(town).pmf(log, rows_of(log))
    for wrong in ({"c": 0.0}, {"c": 1.5}, {"quantile": 1.0}):
        with pytest.raises(ConfigError, match="is not allowed"):
            rejection(town, **wrong)


def test_learning_is_set_in_the_candidate_file(tmp_path: Path) -> None:
    """`learning` beside a journal snapshot starts blank unless `until` is given."""
    (tmp_path / "fitrouter.yaml").write_text(
        "providers: {p: {kind: simulated}}\nmodels: [{name: a, provider: p}]\nscorer: {encoder: none}\n"
    )
    journal = SqliteJournal(tmp_path / "journal.db")
    town = Town()
    town.live(3)
    for row in town.journal.tail(0, 100):
        journal.append(Entry(row.event)).result()
    journal.close()
    said: dict[str, Any] = {"over": str(tmp_path / "fitrouter.yaml"), "snapshot": {"journal": str(tmp_path)}}
    fresh = load_candidate(said | {"learning": "progressive", "algorithm": "softmax"})
    assert isinstance(fresh, ProgressiveCandidate)
    assert fresh.trained_until is None
    later = load_candidate(said | {"learning": "rejection", "snapshot": {"journal": str(tmp_path), "until": 2}})
    assert isinstance(later, RejectionCandidate)
    assert later.trained_until is not None
    assert "from position 2 of the journal" in later.description
    log = town.log()
    with pytest.raises(ConfigError, match=r"context has \d+ features, and that of decision .* has 3"):
        fresh.pmf(log, rows_of(log))
