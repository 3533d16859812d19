"""Strangers: a short form of `benchmarks.strangers`."""

from __future__ import annotations

import numpy as np
from benchmarks.strangers import DATA, TASTES, THREE, live, read_pool
from tests.kits.datasets import folder


def test_strangers_with_opposite_tastes_get_their_models() -> None:
    """Ten people give 60 thumbs to recorded answers of three models: nearly all end on a model that they like.

    Default configuration, a fresh installation each. `benchmarks.strangers` measures it with forty people a cell.
    """
    folder("alpaca_eval")
    pool = read_pool(DATA, 80, THREE)
    people = [
        live(pool, range(3), taste, False, {}, 10 * n + seed)
        for n in range(2)
        for seed, taste in enumerate(TASTES.values())
    ]
    assert np.mean([person.mean for person in people]) > 0.88
    assert min(person.mean for person in people) > 0.7
    assert sum(person.kept for person in people) >= 8
