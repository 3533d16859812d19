"""Outcomes of runs, folded: one observation of the mean of a run's answers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tests.kits.learner import D_H, D_X, Log, fold, learner

from fitrouter.posterior import model
from fitrouter.posterior.labels import Answered, Label, Share
from fitrouter.posterior.model import Fit
from fitrouter.state import reading, waiting_pairs
from fitrouter.state.learner import Learner
from fitrouter.state.refit import refit
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import FeedbackKind, Identity

ANN = Identity(user="ann", role="cook")


def log() -> Log:
    return Log(MemoryJournal(), np.random.default_rng(0))


def answered(rng: np.random.Generator, arm: str) -> Answered:
    x = np.concatenate([[1.0], rng.normal(size=D_X - 1) * 0.4])
    return Answered(arm, x, np.concatenate([[1.0], rng.normal(size=D_H - 1)]))


def state_of(fit: Fit) -> list[Any]:
    """All that a label changes."""
    people = [person.dump() for person in (*fit.tastes.users.values(), *fit.tastes.roles.values())]
    arms = [fit.arms.dump(name) for name in fit.arms.names]
    return [fit.tastes.population.dump(), *people, *arms, *(each.dump() for each in fit.named().values())]


@pytest.mark.parametrize("kind", [FeedbackKind.RATING, FeedbackKind.THUMB])
def test_a_run_of_one_call_equals_a_rating(kind: FeedbackKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an offset of its kind, an outcome is a rating of the answer, bit for bit."""
    monkeypatch.setattr(model, "NO_OFFSET", (0.0, 0.0))
    monkeypatch.setattr(model, "NOISE_OUTCOMES", model.NOISE_LABELS)
    rated, ran = Fit(D_X, D_H), Fit(D_X, D_H)
    rng = np.random.default_rng(1)
    for n in range(20):
        answer, y = answered(rng, "ab"[n % 2]), float(rng.random())
        plain = Label(ANN, answer, y, kind)
        assert rated.learn(plain) == ran.learn(
            Label(ANN, answer, y, kind, run=(Share(1.0, answer, "cook"),), stream="outcome")
        )
    assert state_of(rated) == state_of(ran)
    assert answer.h is not None
    before = rated.score(ANN, answer.h)
    ended = Label(ANN, answer, y, kind, run=(Share(1.0, answer, "cook"),), stream="outcome")
    for fit, label in ((rated, plain), (ran, ended)):
        fit.revise(label, 1.0 - y)
    assert state_of(rated) == state_of(ran)
    assert rated.score(ANN, answer.h) != before


def test_each_call_counts_by_its_share_and_repeated_ones_add_up() -> None:
    """The steps of the corrections are in proportion to a model's calls in the run, and no other model moves."""
    fit = Fit(D_X, D_H)
    for arm in "abc":
        fit.arms.join(arm)
    x = np.eye(D_X)[0]
    calls = [Answered(arm, x, None) for arm in ("a", "a", "a", "b")]
    shares = tuple(Share(0.25, answer, None) for answer in calls)
    fit.learn(Label(Identity(), calls[0], 0.0, FeedbackKind.THUMB, run=shares, stream="outcome"))
    moved = [float(fit.arms.read(fit.arms.find((arm,)), x, fit.widths.weights).correction[0]) for arm in "abc"]
    assert moved[0] < moved[1] < moved[2] == 0.0
    assert moved[0] == pytest.approx(3.0 * moved[1])


def test_the_offset_of_a_kind_is_learnt_beside_the_ratings() -> None:
    """Runs that fail twice as often as their answers are bad lower the offset of outcomes, and little else."""
    fit, rng = Fit(D_X, D_H), np.random.default_rng(2)
    for _ in range(300):
        answer = answered(rng, "ab"[rng.integers(2)])
        fit.learn(Label(Identity(), answer, float(rng.random() < 0.8), FeedbackKind.THUMB))
        share = (Share(1.0, answer, None),)
        fit.learn(Label(Identity(), answer, float(rng.random() < 0.4), FeedbackKind.THUMB, run=share, stream="outcome"))
    assert fit.offsets["outcome"][0] == pytest.approx(-0.4, abs=0.1)
    means = fit.estimate(Identity(), np.eye(D_X)[0], ("a", "b"), 0.0).mean
    assert abs(means - 0.8).max() < 0.12


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize("order", list(itertools.permutations(["one", "two", "outcome"])))
def test_an_outcome_waits_for_the_scores_of_its_answers(order: tuple[str, ...], size: int) -> None:
    """Whichever comes last, the outcome is learnt once; batches of any size and a refit agree."""
    made = log()
    name = {"one": made.answer("ann", "a"), "two": made.answer("ann", "b", role="poet")}
    for step in order:
        if step == "outcome":
            made.outcome(*name.values(), value=1.0, source="person")
        else:
            made.score(name[step])
    assert fold(made.journal, until=made.journal.head() - 1, size=size).fit.labels == 0
    state = fold(made.journal, size=size)
    assert state.fit.labels == 1
    assert set(state.fit.tastes.roles) == {"default\x1fanalyst", "default\x1fpoet"}
    assert state.digest() == fold(made.journal).digest() == refit(made.journal, learner(), made.journal.head()).digest()
    made.score(name["one"])  # once more
    assert fold(made.journal, size=size).fit.labels == 1


@pytest.mark.parametrize("size", [1, 3, 100])
def test_an_answer_without_a_score_does_not_hold_its_run(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that broke off counts at once, and one whose score never comes after `PATIENCE` others, once, in any batches.

    A refit agrees, a snapshot keeps what waits, and a later report corrects what was learnt, and is no other label.
    """
    for module in (reading, waiting_pairs):
        monkeypatch.setattr(module, "PATIENCE", 5)
    made = log()
    whole, broken, lost = made.answer("ann", "a"), made.answer("ann", "b", status="partial"), made.answer("ann", "b")
    made.score(whole)
    made.outcome(whole, broken, value=1.0, run="broke off")
    made.outcome(whole, lost, value=1.0, run="lost")
    found = []
    for n in range(6):
        made.score(made.answer("bob", "a"))
        state = fold(made.journal, size=size)
        found.append(state.fit.labels)
        assert state.digest() == fold(made.journal, size=1000).digest()
        assert state.digest() == refit(made.journal, learner(), made.journal.head()).digest()
        if n == 2:
            made.journal.save(state.snapshot())
    assert found == [1, 1, 1, 1, 2, 2]
    restored = learner()
    assert restored.restore(made.journal.snapshot())
    assert fold(made.journal, restored, size=size).digest() == fold(made.journal).digest()
    made.outcome(whole, lost, value=0.0, source="person", run="lost")
    made.score(lost)
    assert fold(made.journal, size=size).fit.labels == 2


def moved(state: Learner) -> bool:
    """Whether the taste of the only user differs from that of everybody in the role."""
    user = state.users.hot("ann")
    return user is not None and any(heads.labelled for heads in user.heads)


@pytest.mark.parametrize("source", ["adapter", "check", "person"])
def test_a_persons_own_terms_learn_from_what_that_person_said(source: str) -> None:
    """A program's outcome teaches what all share, and nothing about the person whose run it was."""
    made = log()
    name = made.answer("ann", "a")
    made.score(name)
    made.outcome(name, value=0.0, source=source)
    state = fold(made.journal)
    assert moved(state) is (source == "person")
    assert (state.fit.tastes.population.mean != learner().fit.tastes.population.mean).any()


def test_a_report_that_counts_more_corrects_what_was_learnt() -> None:
    """A person's report after a check's moves what the run taught; an adapter's changes nothing. A refit reads one."""
    made = log()
    names = [made.answer("ann", arm) for arm in "ab"]
    for each in names:
        made.score(each)
    made.outcome(*names, value=1.0)
    before = fold(made.journal)
    made.outcome(*names, value=0.0, source="adapter")
    same = fold(made.journal)
    assert state_of(same.fit) == state_of(before.fit)
    made.outcome(*names, value=0.0, source="person")
    after = fold(made.journal)
    assert after.fit.labels == 1
    x = np.eye(D_X)[0]
    levels = [state.fit.estimate(Identity(), x, ("a", "b"), 0.0).blind.mean() for state in (before, after)]
    assert levels[1] < levels[0]
    alone = log()
    names = [alone.answer("ann", arm) for arm in "ab"]
    for each in names:
        alone.score(each)
    alone.outcome(*names, value=0.0, source="person")
    found = refit(made.journal, learner(), made.journal.head())
    assert state_of(found.fit) == state_of(fold(alone.journal).fit)


def test_a_longer_report_and_late_scores_do_not_count_a_run_twice() -> None:
    """A later report may cover further answers, of which some are not scored yet; the run stays one label."""
    made = log()
    first, second = made.answer("ann", "a"), made.answer("ann", "b")
    made.score(first)
    made.outcome(first, value=0.0, source="adapter")
    made.outcome(first, second, value=1.0, source="person")
    made.score(second)
    assert fold(made.journal, size=1).fit.labels == 1
    assert fold(made.journal, size=100).digest() == fold(made.journal, size=1).digest()


def test_outcomes_count_against_the_caps_on_votes() -> None:
    """Beyond `votes_per_day` on a model, a user's outcomes teach others nothing; votes and runs share the limit."""
    states = []
    for n in (3, 9):
        made = log()
        for i in range(n):
            name = made.answer("ann", "a")
            made.score(name)
            if i == 0:
                made.vote(name, 0.0)
            else:
                made.outcome(name, value=0.0, run=f"run-{i}")
        states.append(fold(made.journal))
    few, many = states
    assert few.fit.tastes.population.mean.tobytes() == many.fit.tastes.population.mean.tobytes()
    assert many.fit.labels == few.fit.labels + 6


def test_snapshots_keep_outcomes_that_wait() -> None:
    """A restored learner goes on as one that never stopped: offsets, noise, and what waits included."""
    made = log()
    names = [made.answer("ann", arm) for arm in "ab"]
    made.score(names[0])
    made.outcome(names[0], value=0.0, run="run-0")
    made.outcome(*names, value=1.0)
    made.journal.save(fold(made.journal).snapshot())
    restored = learner()
    assert restored.restore(made.journal.snapshot())
    assert restored.fit.offsets
    made.score(names[1])
    assert fold(made.journal, restored).digest() == fold(made.journal).digest()
    assert restored.fit.labels == 2
