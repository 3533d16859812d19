"""What a router has learned, compared with the simulated truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from _people import Readers
from _pools import Pool, Table, truth

from fitrouter import Decision, Feedback, Router
from fitrouter.types import RunOutcome


def shares(router: Router, who: Callable[[Decision], str | None], pool: Pool) -> tuple[Table, Table]:
    """What the router would have answered with, early and late: mean probabilities out of its log.

    Args:
        router: whose journal is read.
        who: groups decisions.
        pool: says how many decisions of each are early and late.
    """
    made: dict[str, list[Decision]] = {}
    for row in router._journal.tail(0, 1_000_000):
        if isinstance(row.event, Decision) and row.event.probs and (name := who(row.event)) is not None:
            made.setdefault(name, []).append(row.event)
    early = {name: _mean(decisions[: pool.few]) for name, decisions in made.items()}
    late = {name: _mean(decisions[-pool.few :]) for name, decisions in made.items()}
    return early, late


def _mean(decisions: Sequence[Decision]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for decision in decisions:
        for model, probability in zip(decision.eligible, decision.probs, strict=True):
            total[model] += probability / len(decisions)
    return dict(total)


def best(of: Mapping[str, float]) -> str:
    """The model with the largest value."""
    return max(of, key=of.__getitem__)


def tell(router: Router, who: Callable[[Decision], str | None], pool: Pool, readers: Readers) -> None:
    """Print what was learnt, and hold it against the truth: the best model of each, and another one for each.

    Args:
        router: that learnt.
        who: groups decisions as `readers` are named.
        pool: its models.
        readers: who judged.
    """
    early, late = shares(router, who, pool)
    true = truth(pool, readers.tastes)
    said = [row.event for row in router._journal.tail(0, 1_000_000) if isinstance(row.event, Feedback | RunOutcome)]
    runs = sum(isinstance(each, RunOutcome) for each in said)
    learnt = f"{runs} outcomes of runs" if runs else f"{len(said)} votes"
    print(f"What was learnt of {learnt}: satisfaction with each model in truth, its mean probability early and late")
    for name, worth in true.items():
        print(f"{name}: {best(worth)} is the best → {best(late[name])}")
        for model in sorted(worth, key=worth.__getitem__, reverse=True)[:3]:
            print(f"    {model:28}{worth[model]:.2f}   {early[name][model]:5.0%}{late[name][model]:5.0%}")
    rounds = list(zip(*readers.satisfied.values(), strict=True))
    print(f"Satisfaction: {_total(rounds[: pool.few]):.2f} early, {_total(rounds[-pool.few :]):.2f} late.", end=" ")
    alone = {model: sum(worth[model] for worth in true.values()) / len(true) for model in pool.models}
    chance, each = sum(alone.values()) / len(alone), sum(max(worth.values()) for worth in true.values()) / len(true)
    print(f"Any model for anybody: {chance:.2f}; {best(alone)} for all: {max(alone.values()):.2f};", end=" ")
    print(f"for each the best: {each:.2f}.")
    assert {name: best(late[name]) for name in true} == {name: best(worth) for name, worth in true.items()}
    assert len({best(late[name]) for name in true}) == len(true), "each was to find a model of their own"


def _total(rounds: Sequence[Sequence[float]]) -> float:
    return sum(map(sum, rounds)) / sum(map(len, rounds))
