"""Learner: deterministic folds, exact snapshots, and the five laws of learning."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.learner import D_H, D_X, Log, fold, learner, story

from fitrouter.plain import pack
from fitrouter.posterior.labels import Answered, FitParams, Label
from fitrouter.posterior.model import Fit
from fitrouter.posterior.tastes import TasteParams
from fitrouter.state.learner import Learner
from fitrouter.state.refit import refit
from fitrouter.state.waiting_pairs import VOTED, WaitingPairs
from fitrouter.stores.journal import MemoryJournal, Row, Snapshot
from fitrouter.types import Decision, Execution, Feedback, FeedbackKind, Identity, Mode, PolicyVersion


@settings(max_examples=20)
@given(seed=st.integers(0, 1000))
def test_folding_is_deterministic(seed: int) -> None:
    """The same journal gives the same state, bit for bit."""
    journal = story(seed)
    assert fold(journal).digest() == fold(journal).digest()


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), cut=st.integers(1, 120))
def test_a_restored_learner_ends_in_the_same_state(seed: int, cut: int) -> None:
    """A learner restored from a snapshot at any position ends in the same state as one that never stopped."""
    journal = story(seed)
    straight = fold(journal)
    journal.save(fold(journal, until=cut).snapshot())
    restored = learner()
    assert restored.restore(journal.snapshot())
    assert restored.seq == min(cut, journal.head())
    assert fold(journal, restored).digest() == straight.digest()


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), cut=st.integers(1, 60), more=st.integers(1, 60))
def test_later_snapshots_hold_the_changes(seed: int, cut: int, more: int) -> None:
    """Two snapshots, the second of dirty keys only, hold the state of the second."""
    journal = story(seed)
    first = fold(journal, until=cut)
    journal.save(first.snapshot())
    journal.save(fold(journal, first, until=cut + more).snapshot())
    restored = learner()
    assert restored.restore(journal.snapshot())
    assert restored.digest() == first.digest()


@given(at=st.integers(0, 10_000), junk=st.binary(min_size=1, max_size=8))
@settings(max_examples=20)
def test_damaged_snapshots_are_rejected_as_a_whole(at: int, junk: bytes) -> None:
    """A snapshot with a damaged value is not loaded, not even in part."""
    journal = story(3)
    snapshot = fold(journal).snapshot()
    key = sorted(snapshot.state)[at % len(snapshot.state)]
    damaged = dict(snapshot.state)
    damaged[key] = damaged[key][: at % max(len(damaged[key]), 1)] + junk
    fresh = learner()
    before = fresh.digest()
    if not fresh.restore(Snapshot(snapshot.seq, damaged)):
        assert fresh.digest() == before
        assert fresh.seq == 0


def test_snapshots_of_other_settings_are_ignored() -> None:
    """With other prior scales, folding starts from the beginning."""
    journal = story(1)
    other = learner(params=FitParams(tastes=TasteParams(user=0.5)))
    assert not other.restore(fold(journal).snapshot())


def test_votes_wait_for_the_score() -> None:
    """A vote before its answer's score has the same effect as one after it."""
    digests = []
    for early in (True, False):
        log = Log(MemoryJournal(), np.random.default_rng(0))
        name = log.answer("ann", "a")
        if early:
            log.vote(name, 1.0)
        log.score(name)
        if not early:
            log.vote(name, 1.0)
        state = fold(log.journal)
        digests.append((state.fit.tastes.users["ann"].dump(), state.fit.arms.dump("a")))
    assert digests[0] == digests[1]


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize("order", list(itertools.permutations(["earlier", "later", "vote"])))
def test_a_pair_waits_for_the_scores_of_both_answers(order: tuple[str, ...], size: int) -> None:
    """Whichever of a pair's scores and its vote comes last, the vote is learnt once; batches of any size agree."""
    log = Log(MemoryJournal(), np.random.default_rng(0))
    name = {"earlier": log.answer("ann", "a"), "later": log.answer("ann", "b")}
    for step in order:
        if step == "vote":
            log.vote(name["later"], 1.0, kind=FeedbackKind.PAIR, other=name["earlier"])
        else:
            log.score(name[step])
    until_then = fold(log.journal, until=log.journal.head() - 1, size=size)
    assert until_then.fit.labels == 0
    assert "ann" not in until_then.fit.tastes.users
    state = fold(log.journal, size=size)
    assert state.fit.labels == 1
    assert "ann" in state.fit.tastes.users
    assert state.digest() == fold(log.journal).digest() == refit(log.journal, learner(), log.journal.head()).digest()
    log.score(name["earlier"])  # once more
    assert fold(log.journal, size=size).fit.labels == 1


def test_votes_that_wait_are_the_last_and_bounded() -> None:
    """Of a vote that was changed the last version is learnt; what waits is bounded, and survives a restart."""
    log = Log(MemoryJournal(), np.random.default_rng(0))
    late, other = log.answer("ann", "a"), log.answer("ann", "b")
    log.score(other)
    for value in (0.0, 1.0):
        log.vote(other, value, kind=FeedbackKind.PAIR, other=late)
    log.journal.save(fold(log.journal).snapshot())
    restored = learner()
    assert restored.restore(log.journal.snapshot())
    log.score(late)
    state = fold(log.journal)
    assert fold(log.journal, restored).digest() == state.digest()
    once = Log(MemoryJournal(), np.random.default_rng(0))
    late, other = once.answer("ann", "a"), once.answer("ann", "b")
    once.score(other)
    once.vote(other, 1.0, kind=FeedbackKind.PAIR, other=late)
    once.score(late)
    assert state.fit.tastes.users["ann"].dump() == fold(once.journal).fit.tastes.users["ann"].dump()

    pairs = WaitingPairs(limit=3)
    votes = [
        Feedback(
            id=f"{i} {j}",
            ts=0.0,
            decision_id=f"v{j}",
            identity=Identity(),
            kind=FeedbackKind.PAIR,
            value=1.0,
            other=f"o{i}",
        )
        for i in range(5)
        for j in range(VOTED + 5)
    ]
    for vote in votes:
        pairs.observe(vote, ())
    assert [len(pairs.get(f"o{i}")) for i in range(5)] == [0, 0, VOTED, VOTED, VOTED]


def test_scores_are_features_and_not_labels() -> None:
    """Without labels, scores change no taste, correction, offset or weight of a head."""
    log = Log(MemoryJournal(), np.random.default_rng(0))
    for _ in range(30):
        log.score(log.answer("ann", "a"))
    state, fresh = fold(log.journal).fit, learner().fit
    k = state.arms.row("a")
    assert state.tastes.population.mean.tobytes() == fresh.tastes.population.mean.tobytes()
    assert state.tastes.population.cov.tobytes() == fresh.tastes.population.cov.tobytes()
    assert state.mixture.dump() == fresh.mixture.dump()
    assert state.widths.dump() == fresh.widths.dump()
    assert not state.tastes.users
    assert not state.tastes.roles
    assert not state.arms.correction[k].any()
    assert state.arms.profile[k].any(), "responses teach the profile"


def test_scores_of_another_schema_are_ignored() -> None:
    """Features of another scorer are never mixed with these."""
    log = Log(MemoryJournal(), np.random.default_rng(0))
    log.score(log.answer("ann", "a"), schema="other")
    arms, prior = fold(log.journal).fit.arms, learner().fit.arms
    assert arms.profile[arms.row("a")].tobytes() == prior.profile[0].tobytes()


def test_new_arms_start_at_the_prior_level() -> None:
    """Before any response, the predicted rating is the prior level, so that new arms are tried."""
    mean = learner().fit.estimate(Identity(user="ann"), np.array([1.0, 0.3, 0, 0, 0]), ("new",), 0.0).mean
    assert mean[0] == pytest.approx(FitParams().tastes.level)


def after_votes(*values: float) -> Fit:
    """The fit after votes on one answer."""
    log = Log(MemoryJournal(), np.random.default_rng(0))
    name = log.answer("ann", "a")
    log.score(name)
    for value in values:
        log.vote(name, value)
    return fold(log.journal).fit


@pytest.mark.parametrize("block", ["population", "user", "correction", "offset"])
def test_a_later_vote_supersedes(block: str) -> None:
    """Up then down equals down alone, up to a tenth of the difference between up and down; of heads, four tenths."""

    def read(fit: Fit) -> np.ndarray:
        return {
            "population": fit.tastes.population.mean,
            "user": fit.tastes.users["ann"].heads[-1].tastes()[1],
            "correction": fit.arms.correction[fit.arms.row("a")],
            "offset": fit.tastes.users["ann"].heads[-1].offsets("a")[1],
        }[block]

    down, up, changed = after_votes(0.0), after_votes(1.0), after_votes(1.0, 0.0)
    assert changed.labels == down.labels == 1
    gap = np.abs(read(up) - read(down)).max()
    assert gap > 1e-3
    share = 0.1 if block in {"population", "correction"} else 0.4
    assert np.abs(read(changed) - read(down)).max() < share * gap


def test_repeated_votes_are_capped() -> None:
    """From the fourth vote on a model and day, only the user's own terms are updated."""
    log = Log(MemoryJournal(), np.random.default_rng(0))
    moved = []
    for _ in range(5):
        name = log.answer("ann", "a")
        log.score(name)
        before = fold(log.journal)
        log.vote(name, 0.0)
        after = fold(log.journal)
        moved.append(
            (
                before.fit.tastes.population.mean.tobytes() != after.fit.tastes.population.mean.tobytes(),
                before.fit.arms.correction.tobytes() != after.fit.arms.correction.tobytes(),
                (before.fit.tastes.users["ann"].dump() if "ann" in before.fit.tastes.users else b"")
                != after.fit.tastes.users["ann"].dump(),
            )
        )
    assert moved == [(True, True, True)] * 3 + [(False, False, True)] * 2


def test_anonymous_callers_count_as_one_voter() -> None:
    """Omitting the user does not circumvent the cap."""
    log = Log(MemoryJournal(), np.random.default_rng(0))
    for _ in range(3):
        name = log.answer(None, "a")
        log.score(name)
        log.vote(name, 0.0)
    three = fold(log.journal).fit.tastes.population.mean.tobytes()
    name = log.answer(None, "a")
    log.score(name)
    log.vote(name, 0.0)
    assert fold(log.journal).fit.tastes.population.mean.tobytes() == three


def test_outages_change_availability_only() -> None:
    """500 failed calls change the availability posterior and nothing else."""
    log = Log(MemoryJournal(), np.random.default_rng(0))
    for _ in range(20):
        name = log.answer("ann", "a")
        log.score(name)
        log.vote(name, 1.0)
    before = fold(log.journal)
    for _ in range(500):
        log.answer("ann", "a", ok=False)
    after = fold(log.journal)
    for part in ("profile", "profile_cov", "correction", "correction_cov", "operations"):
        assert getattr(before.fit.arms, part).tobytes() == getattr(after.fit.arms, part).tobytes()
    now = 1000.0 + 60.0 * log.count
    row = after.fit.arms.find(("a",)).rows
    assert after.fit.arms.availability(row, now)[0] < 0.5 < before.fit.arms.availability(row, now)[0]
    assert after.fit.arms.availability(row, now + 86_400)[0] > 0.9, "an outage is forgotten"


def test_reading_changes_no_state() -> None:
    """Estimates for unknown users, roles and arms change no state."""
    state = fold(story(2))
    before = state.digest()
    who = Identity(user="nobody", role="unheard of")
    estimate = state.fit.estimate(who, np.ones(D_X), ("a", "new"), 1e9)
    assert np.isfinite(estimate.mean).all()
    assert (estimate.sd > 0).all()
    state.score(who, np.ones(D_H))
    assert state.digest() == before


def test_erasure_removes_the_user() -> None:
    """After an erasure, the user's posteriors are gone from memory and from the next snapshot."""
    journal = story(5)
    state = fold(journal)
    assert "bob" not in state.fit.tastes.users
    journal.save(state.snapshot())
    restored = learner()
    assert restored.restore(journal.snapshot())
    assert "bob" not in restored.fit.tastes.users


def test_users_with_opposite_tastes_get_opposite_rankings() -> None:
    """Two users who prefer opposite features get opposite rankings of two models that differ in them."""
    log = Log(MemoryJournal(), np.random.default_rng(0))
    for i in range(400):
        user, arm = ("ann", "bob")[i % 2], ("a", "b")[(i // 2) % 2]
        name = log.answer(user, arm)
        log.score(name, bias=2.0 if arm == "a" else -2.0)
        likes = (user == "ann") == (arm == "a")
        log.vote(name, float(likes))
    fit = fold(log.journal, learner(votes_per_day=1000)).fit
    x = np.array([1.0, 0, 0, 0, 0])
    for user, better in (("ann", 0), ("bob", 1)):
        mean = fit.estimate(Identity(user=user, role="analyst"), x, ("a", "b"), 1e9).mean
        assert mean.argmax() == better
        assert abs(mean[0] - mean[1]) > 0.3
    blind = fit.estimate(Identity(user="ann", role="analyst"), x, ("a", "b"), 1e9).blind
    assert abs(blind[0] - blind[1]) < 0.3, "the user-blind twin sees little: ann came first"


@pytest.mark.parametrize("text", ["", "   ", "{{name}}", None])
def test_empty_roles_are_no_roles(text: str | None) -> None:
    """A role whose canonical form is empty gets no terms."""
    log = Log(MemoryJournal(), np.random.default_rng(0))
    name = log.answer("ann", "a", role=text)  # type: ignore[arg-type]
    log.score(name)
    log.vote(name, 1.0)
    assert not fold(log.journal).fit.tastes.roles


def test_heads_on_a_device_equal_the_posteriors() -> None:
    """Means and sds of a batch on a torch device equal the posterior's to 1e-5, also after later updates."""
    from fitrouter_evaluators.scoring import DeviceHeads

    journal = story(4)
    state = fold(journal, until=30)
    heads = DeviceHeads(state.heads, D_H, "cpu")
    people = [Identity(user=user, role=role) for user in ("ann", "bob", None, "new") for role in ("poet", None)]
    h = np.random.default_rng(1).normal(size=(len(people), D_H))
    h[0, 2] = np.nan
    for _ in range(2):
        means, sds = heads.score_many(people, h)
        expected = np.array([state.score(who, row) for who, row in zip(people, h, strict=True)])
        np.testing.assert_allclose(means, expected[:, 0], atol=1e-5)
        np.testing.assert_allclose(sds, expected[:, 1], atol=1e-5)
        fold(journal, state)


def test_alarms_mark_all_users_as_changed() -> None:
    """Changes that an alarm makes to other users are part of the next snapshot."""
    known = Learner(3, 2, expects_scores=False)
    fit = known.fit
    x = np.array([1.0, 0.2, 0.1])
    for user in ("ann", "bob"):
        for _ in range(3):
            fit.learn(Label(Identity(user=user), Answered("a", x, None), 1.0, FeedbackKind.THUMB))
    known.take_over(known)  # marks everything as to be saved
    first = known.snapshot()
    decision = Decision(
        id="d",
        ts=1.0,
        draw_id="d",
        identity=Identity(user="ann"),
        mode=Mode.ONLINE,
        eligible=("a",),
        chosen="a",
        propensity=1.0,
        features=pack(x),
        policy=PolicyVersion(algorithm="x"),
    )
    execution = Execution(
        id="e",
        ts=1.0,
        decision_id="d",
        identity=decision.identity,
        chosen="a",
        served_by="a",
        status="ok",
        features=pack(x),
    )
    vote = Feedback(id="v", ts=2.0, decision_id="d", identity=decision.identity, kind=FeedbackKind.THUMB, value=0.0)
    fit.drift.observe = lambda arm, z: True  # type: ignore[method-assign]
    known.apply(Row(1, decision))
    known.apply(Row(2, execution), [decision])
    known.apply(Row(3, vote), [decision, execution])
    second = known.snapshot()
    fresh = known.blank()
    assert fresh.restore(Snapshot(second.seq, first.state | second.state))
    assert fresh.digest() == known.digest()
