"""The in-process runner: it writes the events of a gateway, and folds them as a gateway's learner does."""

from __future__ import annotations

import numpy as np
import pytest

from fitrouter.policies import SquareCB
from fitrouter.routing.decider import Rules
from fitrouter.state.learner import Learner
from fitrouter.state.reading import read_batch
from fitrouter.stores.journal import Entry, MemoryJournal
from fitrouter.types import Event, FeedbackKind, Identity, Mode, ModelCard, Prices
from fitrouter_evaluators.simulation.runner import InProcess, Turn

CARDS = tuple(ModelCard(name=name, provider="p", prices=Prices(input=1.0, output=2.0)) for name in ("a", "b", "c"))


def router(*, scores: bool = True, seed: int = 0) -> InProcess:
    learner = Learner(3, 2, schema="s", expects_scores=scores, votes_per_day=1000)
    return InProcess(learner, SquareCB(160.0), Rules(seed=seed), CARDS)


def run(one: InProcess, rounds: int = 40, *, scores: bool = True) -> list[Turn]:
    """Users who like b, with a vote on two answers of three."""
    rng, turns = np.random.default_rng(1), []
    for t in range(rounds):
        x, h = np.append(1.0, rng.normal(size=2)), np.append(1.0, rng.normal())
        decision = one.decide(t, 60.0 * t, Identity(user=f"u{t % 5}", role="r"), x, prompt_tokens=20)
        turn = one.answer(
            decision, h=h if scores else None, prompt_tokens=20, completion_tokens=100, seconds=2.0, cost_usd=2e-4
        )
        turns.append(turn)
        if t % 3:
            one.vote(turn, FeedbackKind.RATING, 5.0 if decision.chosen == "b" else 1.0, scale=(1.0, 5.0))
    return turns


@pytest.mark.parametrize("scores", [True, False])
def test_the_journal_of_a_run_folds_to_the_same_state(monkeypatch: pytest.MonkeyPatch, scores: bool) -> None:
    """A gateway's learner that reads the same events from a journal ends in the same state, bit for bit."""
    journal, fold = MemoryJournal(), InProcess.fold

    def kept(self: InProcess, event: Event, related: tuple[Event, ...] = ()) -> None:
        journal.append(Entry(event)).result()
        fold(self, event, related)

    monkeypatch.setattr(InProcess, "fold", kept)
    one = router(scores=scores)
    run(one, scores=scores)
    again = one.learner.blank()
    while rows := read_batch(journal, again.seq, waiting=again.waiting).rows:
        for row, related in rows:
            again.apply(row, related)
    assert again.seq == one.learner.seq
    assert again.digest() == one.learner.digest()


def test_sessions_budgets_arm_counts_and_availability_are_folded() -> None:
    """What a gateway counts of its requests, a run counts too."""
    one = router()
    turns = run(one)
    projections, arms = one.learner.projections, one.learner.fit.arms
    chosen = [turn.decision.chosen for turn in turns]
    assert projections.arm_counts.counts == {name: chosen.count(name) for name in set(chosen)}
    assert sum(projections.arm_counts.labels.values()) == sum(1 for t in range(len(turns)) if t % 3)
    assert len(projections.sessions) == len(turns)
    assert not one.learner.open, "every decision has its execution"
    assert arms.beta[arms.model("b")][0] > arms.beta[arms.model("a")][0], "calls of b were answered more often"
    estimate = one.learner.fit.estimate(Identity(), np.array([1.0, 0.0, 0.0]), ("b",), 60.0 * len(turns))
    assert estimate.tokens[0] == pytest.approx(100.0, rel=0.2)


def test_a_run_is_a_pure_function_of_its_seed() -> None:
    """Equal seeds give equal draws; another seed gives others; labels teach."""
    first, again, other = run(router()), run(router()), run(router(seed=1))
    assert [turn.events for turn in first] == [turn.events for turn in again]
    assert [turn.decision.chosen for turn in first] != [turn.decision.chosen for turn in other]
    assert sum(turn.decision.chosen == "b" for turn in first[20:]) > 10
    assert all(turn.decision.mode is Mode.ONLINE for turn in first)


def test_new_prices_count_in_the_next_decision() -> None:
    """An offer replaces the cards: expected costs follow it, and a model that left is not drawn."""
    one = router()
    before = one.decide(0, 0.0, Identity(), np.ones(3), prompt_tokens=1000)
    one.offer([ModelCard(name="b", provider="p", prices=Prices(input=10.0))], 1.0)
    after = one.decide(1, 2.0, Identity(), np.ones(3), prompt_tokens=1000)
    assert after.eligible == ("b",)
    assert after.cost[0] == pytest.approx(0.01)
    assert before.cost[1] < after.cost[0]
