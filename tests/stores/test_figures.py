"""Figures of the log equal a ledger kept in plain Python; unknown money is counted apart."""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from fitrouter.stores.figures import (
    MODEL,
    Money,
    Votes,
    figures,
    raters,
    ratings,
    tallies,
    traffic,
    usd,
    votes,
)
from fitrouter.stores.journal import Row
from fitrouter.stores.warehouse import Warehouse
from fitrouter.types import Execution, Feedback, FeedbackKind, Identity

PRICED, FREE, UNPRICED = "priced@1", "free@1", "unpriced@1"


def written(folder: Path, seed: int = 0) -> tuple[Warehouse, list[Execution], list[Feedback]]:
    """A log of two tenants, seven people, three models and a failure now and then; votes are changed and repeated."""
    rng, ends, given = random.Random(seed), list[Execution](), list[Feedback]()
    for i in range(400):
        chosen = rng.choice((PRICED, FREE, UNPRICED))
        served = None if rng.random() < 0.1 else PRICED if rng.random() < 0.1 else chosen
        who = Identity(tenant=rng.choice("ab"), user=f"u{rng.randrange(7)}", role=rng.choice(("cook", None)))
        ends.append(
            Execution(
                id=f"e{i}",
                decision_id=f"d{i}",
                ts=float(i),
                identity=who,
                chosen=chosen,
                served_by=served,
                status=rng.choice(("failed", "refused", "rejected", "cancelled", "lost")) if served is None else "ok",
                prompt_tokens=rng.randrange(90),
                completion_tokens=rng.randrange(90),
                cost_usd={PRICED: 0.25, UNPRICED: 7.0}.get(served or "", 0.0),
                cost_assumed=served == UNPRICED,
                latency_ms=float(rng.randrange(1, 900)),
            )
        )
        for k in range(rng.choice((0, 0, 1, 2, 3))):
            kind = rng.choice((FeedbackKind.THUMB, FeedbackKind.RATING, FeedbackKind.EDIT))
            value = float(rng.random() < 0.6) if kind is FeedbackKind.THUMB else rng.random()
            given.append(
                Feedback(
                    id=f"f{i}.{k}",
                    decision_id=f"d{i}",
                    ts=float(i),
                    identity=who,
                    kind=kind,
                    value=value,
                    dimension="overall" if rng.random() < 0.9 else "warmth",
                )
            )
    warehouse = Warehouse(folder / "warehouse.duckdb")
    events: list[Execution | Feedback] = [*ends, *given]
    warehouse.ingest([Row(i + 1, event) for i, event in enumerate(events)])
    return warehouse, ends, given


@pytest.mark.parametrize("who", [None, Identity(tenant="a"), Identity(tenant="b", user="u3"), Identity(role="cook")])
def test_traffic_is_the_ledgers(tmp_path: Path, who: Identity | None) -> None:
    """Requests, answers, fallbacks, tokens and money, in all and by model, since a time; assumed costs are no money."""
    warehouse, ends, _ = written(tmp_path)
    if who is not None and who.tenant == "default":
        who = Identity(tenant="a", role=who.role)
    (found,) = figures(warehouse.queries, traffic(who, since=100.0, by=MODEL))
    mine = [each for each in ends if each.ts >= 100.0 and _of(each.identity, who)]
    groups = defaultdict(list)
    for each in mine:
        groups[each.served_by or each.chosen].append(each)
    assert set(found.by) == set(groups)
    for figure, ledger in [(found.all, mine), *((found.by[name], group) for name, group in groups.items())]:
        answered = [each for each in ledger if each.served_by is not None]
        assert (figure.requests, figure.answered) == (len(ledger), len(answered))
        lost = [figure.failed, figure.refused, figure.rejected, figure.cancelled, figure.unknown]
        statuses = ("failed", "refused", "rejected", "cancelled", "lost")
        assert lost == [sum(each.status == status for each in ledger) for status in statuses]
        assert figure.fallbacks == sum(each.served_by != each.chosen for each in answered)
        assert figure.prompt_tokens == sum(each.prompt_tokens for each in ledger)
        assert figure.completion_tokens == sum(each.completion_tokens for each in ledger)
        known = [each.cost_usd for each in ledger if each.served_by != UNPRICED]
        assert figure.cost.unpriced == len(ledger) - len(known)
        if figure.cost.unpriced and not sum(known):
            assert (figure.cost.usd, figure.cost.each) == (None, None)
        else:
            assert figure.cost.usd == pytest.approx(sum(known))
            assert figure.cost.each == pytest.approx(mean(known))
        times = sorted(each.latency_ms for each in answered)
        assert times[0] <= figure.p50_ms <= figure.p95_ms <= times[-1]


def test_ratings_without_a_user_are_nobodys(tmp_path: Path) -> None:
    """They are in the mean and counted apart, never as a person; in the interval each stands for itself."""
    warehouse, users = Warehouse(tmp_path / "warehouse.duckdb"), [f"u{n % 4}" for n in range(8)] + [None] * 3
    given = [
        Feedback(
            id=f"f{n}",
            ts=1.0,
            decision_id=f"d{n}",
            identity=Identity(user=user),
            kind=FeedbackKind.THUMB,
            value=float(n % 3 > 0),
        )
        for n, user in enumerate(users)
    ]
    warehouse.ingest([Row(n, vote) for n, vote in enumerate(given, 1)])
    rated, known = figures(warehouse.queries, ratings(), raters(since=0.0))
    assert (rated.all.ratings, rated.all.people, rated.all.anonymous) == (11, known.people, 3) == (11, 4, 3)
    average = mean(vote.y for vote in given)
    apart = [sum(vote.y - average for vote in given if vote.identity.user == user) for user in set(users) - {None}]
    apart += [vote.y - average for vote in given if vote.identity.user is None]
    half = 1.959964 * math.sqrt(sum(each**2 for each in apart) * 7 / 6) / 11
    assert rated.all.low == pytest.approx(average - half)


@pytest.mark.parametrize("seed", range(6))
def test_people_of_most_money_are_as_grouped_by_name(tmp_path: Path, seed: int) -> None:
    """Groups of numbers for people are told by name, those of most money, with the figures of the names' groups."""
    warehouse, ends, _ = written(tmp_path, seed)
    nobody = [
        Execution(
            id=f"n{i}",
            decision_id=f"n{i}",
            ts=500.0 + i,
            identity=Identity(tenant="a"),
            chosen=PRICED,
            served_by=PRICED,
            cost_usd=2.0,
            status="ok",
        )
        for i in range(9)
    ]
    warehouse.ingest([Row(5000 + i, event) for i, event in enumerate(nobody)])
    name = """coalesce("user", '')"""
    for who, since in ((Identity(tenant="a"), 0.0), (Identity(tenant="b"), 250.0), (Identity(tenant="c"), 0.0)):
        (grouped,) = figures(warehouse.queries, traffic(who, since=since, by=name, timed=False))
        for most in (1, 3, 99):
            by = traffic(who, since=since, by="coalesce(person_hash, 0)", named=name, most=most, timed=False)
            (found,) = figures(warehouse.queries, by)
            assert found.all == grouped.all
            assert len(found.by) == min(most, len(grouped.by))
            assert all(each == grouped.by[key] for key, each in found.by.items())
            least = min((each.cost.usd or 0.0 for each in found.by.values()), default=0.0)
            assert all((each.cost.usd or 0.0) <= least for key, each in grouped.by.items() if key not in found.by)
    hashes = warehouse.query("SELECT count(DISTINCT person_hash), count(DISTINCT decision_hash) FROM executions")
    assert hashes == [(len({(each.identity.tenant, each.identity.user) for each in ends}), len(ends) + len(nobody))]


def test_ratings_are_the_ledgers(tmp_path: Path) -> None:
    """The latest thumb or rating of an answer counts, once; the interval is the stated formula over people."""
    warehouse, ends, given = written(tmp_path)
    (found,) = figures(warehouse.queries, ratings(Identity(tenant="a"), by="served_by"))
    (everything,) = figures(warehouse.queries, ratings(Identity(tenant="a")))
    served = {each.decision_id: each.served_by for each in ends}
    latest = {
        vote.decision_id: vote
        for vote in given
        if vote.identity.tenant == "a" and vote.dimension == "overall" and vote.kind is not FeedbackKind.EDIT
    }
    groups: dict[str, list[Feedback]] = defaultdict(list)
    for vote in latest.values():
        if (model := served[vote.decision_id]) is not None:
            groups[model].append(vote)
    assert set(found.by) == set(groups)
    for figure, ledger in [
        (everything.all, list(latest.values())),
        *((found.by[name], group) for name, group in groups.items()),
    ]:
        average, people = mean(vote.y for vote in ledger), {vote.identity.user for vote in ledger}
        apart = [sum(vote.y - average for vote in ledger if vote.identity.user == user) for user in people]
        m, n = len(people), len(ledger)
        half = 1.959964 * math.sqrt(sum(each**2 for each in apart) * m / (m - 1)) / n
        assert (figure.ratings, figure.people) == (n, m)
        assert figure.mean == pytest.approx(average)
        assert (figure.low, figure.high) == pytest.approx((max(0.0, average - half), min(1.0, average + half)))


def test_the_least_satisfied_are_the_ledgers(tmp_path: Path) -> None:
    """All who rated, by the upper end of a share's interval, the lowest first; in pages, of a tenant, some, or all."""
    warehouse, ends, given = written(tmp_path)
    nobody = [  # votes without a user are of no person
        Feedback(
            id=f"n{i}",
            decision_id=f"n{i}",
            ts=390.0,
            identity=Identity(tenant="a"),
            kind=FeedbackKind.THUMB,
            value=0.0,
        )
        for i in range(5)
    ]
    warehouse.ingest([Row(len(ends) + len(given) + 1 + i, vote) for i, vote in enumerate(nobody)])
    for tenant, since, users in ((None, 0.0, None), ("a", 0.0, ["u1", "u2"]), ("b", 300.0, None), (None, 380.0, None)):
        who = None if tenant is None else Identity(tenant=tenant)
        people: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        for vote in given:
            if vote.ts >= since and vote.dimension == "overall" and vote.kind is not FeedbackKind.EDIT:
                people[vote.identity.tenant, str(vote.identity.user)][vote.decision_id] = vote.y
        ledger = {
            key: list(ys.values())
            for key, ys in people.items()
            if tenant in {None, key[0]} and (users is None or key[1] in users)
        }

        def ends_of(ys: list[float]) -> tuple[float, float]:
            n, p, z2 = len(ys), mean(ys), 1.959964**2
            half = math.sqrt(z2 * p * (1 - p) / n + z2 * z2 / 4 / n / n)
            return (p + z2 / 2 / n - half) / (1 + z2 / n), (p + z2 / 2 / n + half) / (1 + z2 / n)

        found = [
            page
            for skip in range(0, len(ledger), 3)
            for page in figures(warehouse.queries, raters(who, since=since, users=users, most=3, skip=skip))
        ]
        listed = [each for page in found for each in page.listed]
        assert {(t, user): each.ratings for t, user, each in listed} == {who: len(ys) for who, ys in ledger.items()}
        for t, user, each in listed:
            assert each.mean == pytest.approx(mean(ledger[t, user]))
            assert (each.low, each.high) == pytest.approx(ends_of(ledger[t, user]))
        highs = [each.high for *_, each in listed]
        assert all(a <= b + 1e-12 for a, b in itertools.pairwise(highs))
        unhappy = sum(ends_of(ys)[1] < 0.5 for ys in ledger.values())
        assert {(page.people, page.unhappy) for page in found} == {(len(ledger), unhappy)}
    assert figures(warehouse.queries, raters(Identity(tenant="nobody"), since=0.0)) == [(0, 0, [])]


def test_up_and_down_are_of_ratings_alone(tmp_path: Path) -> None:
    """The latest thumb or rating of an answer counts, up above the middle; edits and dimensions never: as in SQL."""
    warehouse, ends, given = written(tmp_path)
    found = tallies([*ends, *given])
    latest = {v.decision_id: v.value for v in given if v.kind is not FeedbackKind.EDIT and v.dimension == "overall"}
    served = {each.decision_id: each.served_by for each in ends if each.served_by}
    for model in set(served.values()):
        values = [value for decision, value in latest.items() if served.get(decision) == model]
        assert found[model] == (sum(v > 0.5 for v in values), sum(v < 0.5 for v in values), len(values))
    (by_model,) = figures(warehouse.queries, ratings(None, by="served_by"))
    assert {model: each.ratings for model, each in by_model.by.items()} == {m: n for m, (_, _, n) in found.items()}


def test_votes_are_the_ledgers(tmp_path: Path) -> None:
    """Of every kind and dimension, each as it stands now."""
    warehouse, _, given = written(tmp_path)
    who = Identity(tenant="a", user="u1")
    (found,) = figures(warehouse.queries, votes(who))
    latest = {(vote.decision_id, vote.kind, vote.dimension): vote.y for vote in given if _of(vote.identity, who)}
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (_, kind, dimension), y in latest.items():
        groups[kind.value, dimension].append(y)
    assert {(each.kind, each.dimension): each.votes for each in found} == {key: len(ys) for key, ys in groups.items()}
    assert all(
        isinstance(each, Votes) and each.mean == pytest.approx(mean(groups[each.kind, each.dimension]))
        for each in found
    )


def test_nobody_of_that_name(tmp_path: Path) -> None:
    """Who has asked nothing has made no requests, at no cost, and has no rating."""
    warehouse, _, _ = written(tmp_path)
    nobody = Identity(tenant="nobody")
    moving, rated = figures(warehouse.queries, traffic(nobody, by=MODEL), ratings(nobody, by="served_by"))
    assert (moving.all.requests, moving.all.answered, moving.all.cost, moving.by) == (0, 0, Money(0.0), {})
    assert rated == (None, {})


def test_few_people_and_nothing() -> None:
    """Without rows there is no rating, and no request costs nothing known or unknown."""
    assert ratings().read([]).all is None
    assert Money.of(0.0, 0, 0) == Money(0.0)
    assert Money.of(0.0, 3, 2) == Money(None, 2)


@pytest.mark.parametrize(
    ("money", "words"),
    [
        (Money(0.0), "$0.00"),
        (Money(0.0000000001), "under $0.000001"),
        (Money(1234.5), "$1,234.50"),
        (Money(None, 1), "not known, 1 answer without a price"),
        (Money(0.5, 1500), "at least $0.50, 1,500 answers without a price"),
    ],
)
def test_sums_in_words(money: Money, words: str) -> None:
    """A sum with an unknown part says so; nothing unknown reads as zero."""
    assert str(money) == words
    assert money.usd is not None or usd(money.usd) == "not known"


def _of(identity: Identity, who: Identity | None) -> bool:
    fields: tuple[Any, ...] = ("user", "role")
    return who is None or (
        identity.tenant == who.tenant and all(getattr(who, f) in (None, getattr(identity, f)) for f in fields)
    )
