"""Personalized RewardBench: what a person's earlier posts add to a score, by domain, and best-of-n agreement.

One answer of a pair is written to a person's rubric and one against it. A score that separates the two without the
posts has learnt how the texts were generated, and so has one for which any posts will do: the same pairs are scored
with the person's posts, without any, and with those of another person.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from fitrouter.stores.figures import Z, interval
from fitrouter_evaluators.datasets import Pair


class Mean(msgspec.Struct, frozen=True):
    """Mean over the pairs with a 95% interval, which takes pairs as independent."""

    mean: float
    low: float
    high: float


class DomainAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Share of a domain's pairs whose chosen answer is scored higher, a tie as half; the differences are paired."""

    domain: str
    pairs: int
    without: Mean
    history: Mean
    other: Mean | None
    """With the posts of another person of the domain; None where all have the same posts."""
    gain: Mean
    """`history` − `without`."""
    personal: Mean | None
    """`history` − `other`."""
    best_without: Mean
    """Share of best-of-n in which the chosen answer is scored highest of `candidates`, equal shares for equal ones."""
    best_history: Mean
    chance: float
    """The share of best-of-n that a score without any information has."""


class Ratings(msgspec.Struct, frozen=True):
    """Ratings of a pair's candidates, the chosen answer first and its rejected one second."""

    without: Sequence[float]
    history: Sequence[float]
    other: Sequence[float]
    """Of the first two; empty where nobody else has posts."""


def candidates(pairs: Sequence[Pair], n: int, seed: int = 0) -> list[tuple[str, ...]]:
    """Choose n different answers for each pair.

    They are its chosen and its rejected one, the rejected ones of further rows with the same question, then rejected
    answers to other questions of the domain, which are drawn; fewer where the domain has no more.
    """
    rng = np.random.default_rng(seed)
    questions: dict[str, list[str]] = {}
    domains: dict[str, list[str]] = {}
    for pair in pairs:
        questions.setdefault(pair.prompt, []).append(pair.b.text)
        domains.setdefault(pair.extra["subset"], []).append(pair.b.text)
    found = []
    for pair in pairs:
        pool = domains[pair.extra["subset"]]
        drawn = [pool[place] for place in rng.integers(len(pool), size=4 * n)]
        two = (pair.a.text, pair.b.text)
        further = [text for text in dict.fromkeys([*questions[pair.prompt], *drawn]) if text not in two]
        found.append((*two, *further)[:n])
    return found


def others(pairs: Sequence[Pair]) -> list[int | None]:
    """Choose for each pair the next one of its domain that has other posts; None where none has."""
    domains: dict[str, list[int]] = {}
    for place, pair in enumerate(pairs):
        domains.setdefault(pair.extra["subset"], []).append(place)
    found: list[int | None] = [None] * len(pairs)
    for places in domains.values():
        for at, place in enumerate(places):
            following = (*places[at + 1 :], *places[:at])
            own = pairs[place].extra["profile"]
            found[place] = next((each for each in following if pairs[each].extra["profile"] != own), None)
    return found


def accuracy(pairs: Sequence[Pair], ratings: Sequence[Ratings]) -> list[DomainAccuracy]:
    """Compute the figures of each domain and, last, of all pairs."""
    domains: dict[str, list[Ratings]] = {}
    for pair, row in zip(pairs, ratings, strict=True):
        domains.setdefault(pair.extra["subset"], []).append(row)
    return [*(_accuracy(*each) for each in domains.items()), _accuracy("all", ratings)]


def _accuracy(domain: str, rows: Sequence[Ratings]) -> DomainAccuracy:
    def mean(of: Callable[[Ratings], float], low: float = 0.0, rows: Sequence[Ratings] = rows) -> Mean:
        values = np.array([of(row) for row in rows])
        half = Z * float(values.std(ddof=1)) / len(rows) ** 0.5 if len(rows) > 1 else 0.0
        found = float(values.mean())
        return Mean(found, *interval(found, half, len(rows), low=low))

    compared = [row for row in rows if row.other]
    return DomainAccuracy(
        domain=domain,
        pairs=len(rows),
        without=mean(lambda row: first(row.without[:2])),
        history=mean(lambda row: first(row.history[:2])),
        other=mean(lambda row: first(row.other), rows=compared) if compared else None,
        gain=mean(lambda row: first(row.history[:2]) - first(row.without[:2]), -1.0),
        personal=mean(lambda row: first(row.history[:2]) - first(row.other), -1.0, compared) if compared else None,
        best_without=mean(lambda row: first(row.without)),
        best_history=mean(lambda row: first(row.history)),
        chance=float(np.mean([1.0 / len(row.history) for row in rows])),
    )


def first(ratings: Sequence[float]) -> float:
    """Share of the first answer among those with the highest rating.

    >>> first([0.5, 0.5]), first([0.5, 0.4, 0.2]), first([0.5, 0.6])
    (0.5, 1.0, 0.0)
    """
    return 1.0 / sum(each == ratings[0] for each in ratings) if ratings[0] == max(ratings) else 0.0
