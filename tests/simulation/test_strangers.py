"""Strangers: a short form of `benchmarks.strangers`."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.strangers import DATA, TASTES, THREE, Pool, live, read_pool
from tests.kits.datasets import folder

OTHER = dict(zip(TASTES, ("long", "short", "no bullets", "bullets", "short"), strict=True))
"""Taste → what it turns into."""


@pytest.fixture(scope="module")
def pool() -> Pool:
    """Recorded answers of three models to 80 prompts."""
    folder("alpaca_eval")
    return read_pool(DATA, 80, THREE)


@pytest.mark.parametrize(("crowd", "mean", "least"), [(False, 0.88, 0.7), (True, 0.8, 0.25)], ids=["fresh", "crowd"])
def test_strangers_with_opposite_tastes_get_their_models(pool: Pool, crowd: bool, mean: float, least: float) -> None:
    """Twenty people give 60 thumbs to recorded answers of three models: nearly all end on a model that they like.

    Default configuration, an installation each: fresh, or with a crowd most of whom like short answers.
    `benchmarks.strangers` measures it with forty people a cell.
    """
    people = [
        live(pool, range(3), taste, crowd, {}, 10 * n + seed) for n in range(4) for seed, taste in enumerate(TASTES)
    ]
    assert np.mean([person.mean for person in people]) > mean
    assert min(person.mean for person in people) > least
    assert sum(person.kept for person in people) >= 14
    assert np.median([person.run for person in people]) <= 5


def test_a_change_of_taste_is_followed(pool: Pool) -> None:
    """After 40 thumbs people want another form: most have a model that they like within 20, half of them within 15."""
    people = [
        live(pool, range(3), name, False, {}, 10 * n + seed, OTHER[name])
        for n in range(2)
        for seed, name in enumerate(TASTES)
    ]
    followed = np.array([person.followed for person in people])
    assert (followed <= 15).sum() >= 5
    assert (followed <= 20).sum() >= 7
