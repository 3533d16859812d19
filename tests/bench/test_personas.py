"""The scorecard on personas: diverse people, pairs of one domain, nothing learnt of prompts that are asked about."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fitrouter_evaluators.bench.personas import HEADS, PAIRS, Harms, choices, diverse, run_personas
from fitrouter_integrations import cli

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "pluriharms"


def test_personas_are_spread_out() -> None:
    """Chosen people are distinct, and nobody is farther from them than they are from one another."""
    values = np.random.default_rng(0).normal(size=(60, 3))
    found = diverse(values, 20)
    assert len(set(found)) == 20
    z = (values - values.mean(axis=0)) / values.std(axis=0)
    away = np.linalg.norm(z[:, None] - z[found][None], axis=2)
    between = away[found] + np.diag(np.full(20, np.inf))
    assert away.min(axis=1).max() <= between.min() + 1e-9


def test_pairs_are_of_one_domain_and_have_a_preference() -> None:
    """Only allowed prompts, two of one domain, unequal ratings, no pair twice; the label is the less harmful one."""
    rng = np.random.default_rng(1)
    ratings = rng.integers(0, 5, 40) / 4
    ratings[::7] = np.nan
    harms = Harms(ratings[None], np.zeros((1, 3)), np.zeros((40, 2)), tuple("abcd"[i % 4] for i in range(40)))
    allowed = np.arange(40) % 3 > 0
    found = choices(harms, ratings, allowed, 50, rng)
    assert 40 <= len(found) <= 50
    assert len({frozenset(each[:2]) for each in found}) == len(found)
    for each in found:
        assert allowed[[each.a, each.b]].all()
        assert harms.domains[each.a] == harms.domains[each.b] == each.domain
        assert each.first is bool(ratings[each.a] < ratings[each.b])
        assert ratings[each.a] != ratings[each.b]
    assert {each.domain for each in found} == set("abcd")


@pytest.mark.skipif(not DATA.is_dir(), reason="shared/data/pluriharms is not there")
def test_the_scorecard_has_every_head() -> None:
    """Without labels of their own the mixture is the population; shares are shares, and the run repeats itself."""
    found = run_personas(DATA, "hashing", personas=2)
    rows = {(row["head"], row["k"]): row for row in found["rows"]}
    assert {head for head, _ in rows} == set(HEADS)
    assert rows["mixture", 0]["personal"] == rows["population", 0]["personal"]
    assert (found["personas"], found["crowd"], found["pairs"]) == (2, 98, PAIRS)
    for row in rows.values():
        assert all(0.0 <= row[name] <= 1.0 for name in ("generic", "personal", "worst_tenth", "coverage"))
        assert set(row["domains"]) == {"creative", "everyday", "legal", "medical"}
    assert run_personas(DATA, "hashing", personas=2)["rows"] == found["rows"]


def test_without_the_data_it_is_skipped(tmp_path: Path) -> None:
    """A message, and no failure."""
    ran = CliRunner().invoke(cli.app, ["bench", "personas", "--data", str(tmp_path / "none")])
    assert ran.exit_code == 0
    assert ran.output.startswith("skipped: there is no folder")
