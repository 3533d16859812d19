"""The HTTP part of the demo: simulated users send requests, and the warehouse gives the results."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from fitrouter.errors import FitrouterError, NoWarehouse
from fitrouter.stores.figures import figures, traffic
from fitrouter.stores.warehouse import Warehouse
from fitrouter.types import Floats
from fitrouter_integrations.demo._gateway import Gateway
from fitrouter_integrations.demo._play import People
from fitrouter_integrations.demo._seeds import Gammas, Strategy, learned, strategies, strategy
from fitrouter_integrations.demo._visit import Visit, visit

TABLES = ("decisions", "executions", "scores", "feedback")
_SETTLE_S = 60.0
_EVERY = 500
_UNSCORED = 50
"""Answers without a score from which users wait: a quarter of a simulated day, after one of which answers expire."""


class LiveResults(msgspec.Struct, frozen=True, kw_only=True):
    """Results of the requests over HTTP."""

    rounds: int
    seconds: float
    """Duration of the requests."""
    requests: int
    votes: int
    asked: int
    votes_of_asked: int
    satisfaction: float
    """Mean P(satisfied) with the texts that were received."""
    cost_usd: float
    """As the gateway counted it."""
    best_single: str
    rows: dict[str, Strategy]
    traffic: dict[str, dict[str, float]]
    """Role → model → share of the role's requests in the second half."""
    warehouse: dict[str, int]
    """Table → number of rows."""
    mixture: dict[str, float]


def send_requests(
    gateway: Gateway, people: People, gammas: Gammas, say: Callable[[str], None], deadline: float | None = None
) -> LiveResults:
    """Send the users of all rounds to the gateway, and summarise once everything is in the warehouse.

    Args:
        gateway: a running gateway.
        people: of one seed.
        gammas: of the baselines, which are simulated in process.
        say: takes a progress line.
        deadline: on the monotonic clock; no request starts after it.

    Raises:
        FitrouterError: the gateway failed, or no request was made before the deadline.
    """
    begun = time.monotonic()
    report, rounds_heard = _Reporter(people, say), itertools.count(1)

    def heard(seen: Visit) -> None:
        report(seen)
        if next(rounds_heard) % _UNSCORED == 0:
            _wait_for_scores(gateway)

    visits = visit(gateway.url, people, heard, deadline)
    seconds = time.monotonic() - begun
    if not visits:
        raise FitrouterError("no request was made in time; give more --seconds")
    warehouse = _settled(gateway, visits)
    gateway.clock.let_go()
    probs = _probabilities(warehouse, people, visits)
    rounds = len(visits)
    best, rows = strategies(people, rounds)
    rows["ours"] = strategy(people, probs)
    for row, name in (("label-only", "user-blind bandit"), ("scores", "user-blind + scores")):
        beside, _ = learned(people, row, gammas.blind, gammas.floor, rounds)
        rows[name] = strategy(people, beside)
    asked = [seen for seen in visits if seen.asked]
    return LiveResults(
        rounds=rounds,
        seconds=seconds,
        requests=rounds + sum(seen.verdict is not None for seen in visits),
        votes=sum(seen.verdict is not None for seen in visits),
        asked=len(asked),
        votes_of_asked=sum(seen.verdict is not None for seen in asked),
        satisfaction=float(np.mean([seen.satisfaction for seen in visits])),
        cost_usd=figures(warehouse.queries, traffic())[0].all.cost.usd,
        best_single=best,
        rows=rows,
        traffic=_traffic(people, visits),
        warehouse=_counts(warehouse),
        mixture=dict(gateway.router.status().mixture),
    )


def _wait_for_scores(gateway: Gateway) -> None:
    """Hold the users back while many answers have no score, at most as long as `_settled` waits."""
    until = time.monotonic() + _SETTLE_S
    while gateway.router.status().lag.scorer_answers > _UNSCORED and time.monotonic() < until:
        time.sleep(0.05)


class _Reporter:
    """Prints a progress line every few hundred rounds."""

    def __init__(self, people: People, say: Callable[[str], None]) -> None:
        self._world, self._say = people.world, say
        self._every = min(_EVERY, max(1, people.world.rounds // 4))
        self._visits: list[Visit] = []

    def __call__(self, seen: Visit) -> None:
        self._visits.append(seen)
        n = len(self._visits)
        if n % self._every == 0:
            recent = self._visits[-self._every :]
            models = Counter(seen.model for seen in recent).most_common(3)
            shares = ", ".join(f"{model} {count / len(recent):.0%}" for model, count in models)
            overall, latest = (float(np.mean([seen.satisfaction for seen in part])) for part in (self._visits, recent))
            day = n / self._world.rounds_per_day
            self._say(f"round {n:5d}, day {day:4.1f}: reward {overall:.3f}, last {len(recent)} {latest:.3f}; {shares}")


def _settled(gateway: Gateway, visits: Sequence[Visit]) -> Warehouse:
    """Return the warehouse once every answer is scored, or its text expired, and every event is in it.

    Raises:
        FitrouterError: that takes too long, or the log cannot be read.
    """
    warehouse = gateway.router.warehouse
    assert warehouse is not None
    votes = sum(seen.verdict is not None for seen in visits)
    wanted = dict.fromkeys(TABLES, len(visits)) | {"feedback": votes}
    until = time.monotonic() + _SETTLE_S
    while True:
        try:
            counts = _counts(warehouse)
        except NoWarehouse:
            counts = {}
        if counts == wanted:
            return warehouse
        if time.monotonic() > until:
            lag = gateway.router.status().lag  # reads the journal: one that cannot be read is the reason
            why = f"; {lag.warehouse_events} events and {lag.scorer_answers} answers wait"
            why += "".join(f"; {part}: {fault}" for part, fault in gateway.router.faults().items())
            raise FitrouterError(f"the warehouse has {counts} after {_SETTLE_S:g} s instead of {wanted}{why}")
        time.sleep(0.1)


def _counts(warehouse: Warehouse) -> dict[str, int]:
    row = warehouse.query(
        "SELECT (SELECT count(*) FROM decisions), (SELECT count(*) FROM executions), "
        "(SELECT count(*) FROM scores), (SELECT count(*) FROM feedback)"
    )[0]
    return dict(zip(TABLES, map(int, row), strict=True))


def _probabilities(warehouse: Warehouse, people: People, visits: Sequence[Visit]) -> Floats:
    """Return the logged probabilities of the visits, float64[T, K]."""
    rows = warehouse.query("SELECT decision_id, eligible, probs FROM decisions")
    logged = {decision: dict(zip(eligible, probs, strict=True)) for decision, eligible, probs in rows}
    models = people.stage.pool.models
    return np.array([[logged[seen.decision_id][model] for model in models] for seen in visits])


def _traffic(people: People, visits: Sequence[Visit]) -> dict[str, dict[str, float]]:
    late: Sequence[Visit] = visits[len(visits) // 2 :]
    table: dict[str, Any] = {}
    for i, role in enumerate(people.world.role_names):
        models = [seen.model for seen in late if people.play.role[people.play.user[seen.t]] == i]
        count = Counter(models)
        table[role] = {model: count[model] / max(1, len(models)) for model in people.stage.pool.models}
    return table
