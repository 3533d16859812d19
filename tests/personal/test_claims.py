"""Claims and intervals of every surface, at the least evidence there can be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.kits.tables import table_driven

from fitrouter.posterior.draws import Means, RatingDraws
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.stores.figures import interval
from fitrouter_evaluators.personal.certificate.figures import Method, figures
from fitrouter_evaluators.personal.certificate.rows import Compared, Decided, Draw, Rows
from fitrouter_evaluators.personal.exposure import exposure, price_list
from fitrouter_evaluators.personal.leaderboard import Drawn, Leaderboard, ranked, sentences
from fitrouter_evaluators.personal.report import _settled
from fitrouter_evaluators.personal.satisfaction import satisfaction_of
from fitrouter_evaluators.personal.scores import chance


def spans(value: Any) -> Iterator[tuple[float, float]]:
    """Every interval in a result."""
    if isinstance(value, dict):
        for low in [name for name in value if name.endswith("low") and value[name] is not None]:
            yield value[low], value[low.removesuffix("low") + "high"]
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from spans(each)


def board(labels: int, beats: float, people: int | None = None) -> Leaderboard:
    rng = np.random.default_rng(0)
    own = np.array([0.99, 0.7]) + rng.normal(0.0, 0.05, (4000, 2))
    rows = ranked(("a", "b"), own, own)
    who: dict[str, Any] = {"user": "ann", "role": None} if people is None else {"user": None, "role": "nurse"}
    claimed = beats >= 0.8 and labels > 0
    more: dict[str, Any] = {"near": 1.0, "why": (), "tasks": 0, "sentences": (), "people": people}
    return Leaderboard(
        **who, models=rows, first="a", population_first="b", beats=beats, claimed=claimed, labels=labels, **more
    )


@table_driven(
    ("labels", "people", "beats", "said"),
    [
        (0, None, 0.94, "may fit this person better than everybody's first, b, but that is 94% sure, from 0 votes"),
        (1, None, 0.94, "fits this person better than everybody's first, b: 94% sure, from 1 vote."),
        (12, None, 1.0, "b: over 99% sure, from 12 votes."),
        (40, 7, 0.9, "a fits this role better than everybody's first, b: 90% sure, from 40 votes of 7 people."),
    ],
)
def test_a_leaderboard_names_its_evidence(labels: int, people: int | None, beats: float, said: str) -> None:
    """Without a vote nothing personal is claimed; number of votes and people stand beside each claim."""
    found = " ".join(sentences(board(labels, beats, people)))
    assert said in found
    assert "100%" not in found
    assert (" fits " in found) is (labels > 0)


def test_nothing_is_above_the_scale() -> None:
    """What would change a ranking is never a rating above 100 %."""
    own = np.array([1.0, 0.4]) + np.random.default_rng(0).normal(0.0, 0.02, (400, 2))
    nothing = Means(Gaussian(np.zeros(1), np.eye(1)), np.zeros(2), np.zeros(1), np.zeros(2))
    drawn = RatingDraws(own, nothing, np.zeros((2, 1)), 1.0)
    rows = ranked(("a", "b"), own, own)
    [said] = _settled(Drawn(msgspec.structs.replace(board(3, 0.9), models=rows), ("a", "b"), drawn, drawn))
    assert said == "a beats b with a probability of over 99%; lower ratings of a could change that."


@table_driven(("y", "rated"), [(None, 0), (1.0, 1), (1.0, 8)])
def test_a_certificate_without_ratings_claims_nothing(y: float | None, rated: int) -> None:
    """With no rated decision among the rows nothing is claimed; intervals of equal ratings are left out."""
    decisions = tuple(
        Decided(seq=i, session=i, models=("a", "b"), probs=(1.0, 0.0), chosen="a", y=y if i < rated else None)
        for i in range(1, 9)
    )
    drawn = tuple(Draw(ratings=(0.9 + 0.001 * i, 0.5)) for i in range(50))
    found = figures(Rows(decisions, Compared(names=("a", "b"), population_first="b"), drawn), Method())
    assert found.beats == 1.0
    assert found.claimed is (found.rated > 0)
    assert all(low < high for low, high in spans(msgspec.to_builtins(found)))


@pytest.mark.parametrize("y", [0.0, 1.0])
@pytest.mark.parametrize("people", [10, 30])
def test_satisfaction_of_people_who_are_all_alike(people: int, y: float) -> None:
    """No interval has width zero or is the whole scale, of anybody, of roles and of rarity; the sentences say so."""
    rows = [(f"u{i % people}", "cook", y, float(i), "a", ["a", "b"], [0.9, 0.1], True) for i in range(10 * people)]
    rare = {f"u{i}": float(i) for i in range(people)}
    found = satisfaction_of(rows, rare, now=1e9)
    assert found.people == people
    assert found.mean is not None
    assert found.departed is not None
    assert all(0.0 < high - low < 1.0 for low, high in spans(msgspec.to_builtins(found)))
    words = " ".join(found.sentences)
    assert f"{people} people: no interval" in words
    assert "0% to 100%" not in words


def test_exposure_of_people_who_are_all_alike() -> None:
    """One model for everybody: shares have an interval with a width, and changes that change nothing have no price."""
    found = exposure([(f"u{i % 12}", "a" if i else "b", None) for i in range(240)], [])
    rated: list[tuple[Any, ...]] = [
        (f"u{i % 12}", "a", ["a", "b"], [0.9, 0.1], [0.9, 0.1], [], [0.5, 0.2], 0.5) for i in range(120)
    ]
    assert {each.name for each in price_list(rated)} & {"floor", "privacy 0.5", "privacy 1"} == set()
    assert found.in_bubble is not None
    every = [*spans(msgspec.to_builtins(found)), *spans(msgspec.to_builtins(price_list(rated)))]
    assert all(low < high for low, high in every)
    assert exposure([(f"u{i % 12}", "a", None) for i in range(240)], []).models_each is None


def test_shares_and_chances() -> None:
    """A share of few people has an interval with a width at both ends; no estimated probability is certain."""
    for n in (1, 5, 1000):
        for mean in (0.0, 0.5, 1.0):
            low, high = interval(mean, 0.0, n)
            assert 0.0 <= low < high <= 1.0
            assert low <= mean <= high
    assert [chance(p) for p in (0.0, 0.004, 0.8, 0.994, 1.0)] == ["under 1%", "under 1%", "80%", "99%", "over 99%"]
