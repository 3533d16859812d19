"""The declared prior on choices, and what the benchmark says of it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from fitrouter.context.encoders import Hashing, Static
from fitrouter.errors import ConfigError
from fitrouter_evaluators.bench import choices as module
from fitrouter_evaluators.bench.choices import run_choices
from fitrouter_evaluators.scoring.statements.declared import DeclaredTaste, preferences

FILE = Path(__file__).parents[3] / "shared/data/choices/declared.jsonl"
needs_data = pytest.mark.skipif(not FILE.is_file(), reason="choices/declared.jsonl is not in ../shared/data")

FILLER = [
    "The river is wide here.",
    "The old mill stands by the road.",
    "A boat passes the lock.",
    "Rain fell at dawn.",
]


def written(path: Path, seed: int = 0, users: tuple[str, str] = ("num-more", "num-less")) -> Path:
    """A file of 40 choices by how many digits an answer has; its other words are at random."""
    rng = random.Random(seed)
    statements = {
        users[0]: ["I like to see figures.", "Numbers help me."],
        users[1]: ["No numbers.", "Figures bore me."],
    }
    rows = []
    for i in range(40):
        user = users[i % 2]
        counts = rng.sample([0, 2, 5, 9], 4)
        options = [" ".join(rng.choices(FILLER, k=6)) + " 7" * count for count in counts]
        best = counts.index(9 if user == users[0] else 0)
        rows.append(
            {"user": user, "declared": [statements[user][i // 2 % 2]], "prompt": "?", "options": options, "best": best}
        )
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@needs_data
def test_the_declared_prior_meets_the_targets() -> None:
    """At least 15 points above the better of longest and shortest, by its interval too; 90% of twins reverse."""
    found = run_choices(FILE, Static())
    assert found["n"] == 400
    assert found["problems"] == []
    assert found["gain"]["mean"] >= 0.15
    assert found["gain"]["low"] >= 0.15
    assert found["twins"]["mean"] >= 0.9
    assert min(found["by_user"].values()) > 0.5
    assert found["strength"]["nll"] < found["strength"]["nll_unfitted"] < found["strength"]["nll_uniform"]


@needs_data
def test_no_phrase_of_the_data_was_trained_on() -> None:
    """The split by phrase: what is tested is not in the corpus."""
    trained = {text.strip(" .!").lower() for group in preferences() for text in group.statements}
    phrases = {text for line in FILE.read_text(encoding="utf-8").splitlines() for text in json.loads(line)["declared"]}
    assert len(phrases) == 24
    assert not {phrase.strip(" .!").lower() for phrase in phrases} & trained


def test_any_file_of_the_format_runs(tmp_path: Path) -> None:
    """On choices that are made by one attribute the prior is right and its twins reverse; the result is JSON."""
    found = run_choices(written(tmp_path / "made.jsonl"), Hashing(64))
    assert found["accuracy"]["declared"]["mean"] == 1.0
    assert found["accuracy"]["random"]["mean"] == 0.25
    assert found["twins"]["mean"] == 1.0
    assert found["twins"]["pairs"] == {"num-less / num-more": {"attribute": "digits", "reversed": 1.0}}
    assert set(found["by_user"]) == {"num-more", "num-less"}
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_users_without_a_twin_have_none(tmp_path: Path) -> None:
    """Names that do not pair give no twins, and no number in their place."""
    found = run_choices(written(tmp_path / "made.jsonl", users=("ann", "bob")), Hashing(64))
    assert found["twins"] == {"mean": None, "low": None, "high": None, "n": 0, "pairs": {}}
    assert json.dumps(found, allow_nan=False)


def test_bad_lines_are_reported_and_an_empty_file_is_refused(tmp_path: Path) -> None:
    """A bad line is named by its number; with no usable line there is nothing to measure."""
    path = written(tmp_path / "made.jsonl")
    path.write_text(path.read_text(encoding="utf-8") + '\n{"user": "x"}\n', encoding="utf-8")
    assert [problem["line"] for problem in run_choices(path, Hashing(64))["problems"]] == [41]
    path.write_text('{"user": "x"}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="no usable row"):
        run_choices(path, Hashing(64))


def test_without_any_understanding_it_is_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that understands nothing gets the accuracy of a lot, and no twin reverses."""

    class Deaf:
        def __init__(self, encoder: object) -> None:
            pass

        def read_all(self, statements: object) -> DeclaredTaste:
            return DeclaredTaste({}, understood=False, reason="deaf")

    monkeypatch.setattr(module, "DeclaredValues", Deaf)
    found = run_choices(written(tmp_path / "made.jsonl"), Hashing(64))
    assert found["understood"] == 0.0
    assert found["accuracy"]["declared"]["mean"] == found["accuracy"]["random"]["mean"] == 0.25
    assert found["twins"]["mean"] == 0.0


def test_phrases_are_never_on_both_sides(tmp_path: Path) -> None:
    """The halves share no phrase and together hold all."""
    rows = module.read_choices(written(tmp_path / "made.jsonl")).rows
    one, other = module._halves(rows)
    assert not set(one) & set(other)
    assert set(one) | set(other) == {row.declared for row in rows}
    assert len(one) == len(other) == 2


def test_strength_and_variance_are_found_again() -> None:
    """Choices drawn from known weights give their mean and variance back."""
    rng = np.random.default_rng(1)
    groups = []
    for weight in rng.normal(3.0, 1.0, size=120):
        rows = []
        for utility in rng.normal(size=(40, 4)):
            p = np.exp(weight * utility)
            rows.append((utility, int(rng.choice(4, p=p / p.sum()))))
        groups.append(rows)
    strength, variance = module._fit_strength(groups)
    assert strength == pytest.approx(3.0, abs=0.3)
    assert variance == pytest.approx(1.0, abs=0.4)


def test_the_nll_is_the_integral() -> None:
    """Quadrature equals a fine sum over the weight; at variance 0 it is softmax."""
    row = (np.array([1.0, -0.5, 0.2]), 0)
    grid = np.linspace(-8, 12, 20_001)
    density = np.exp(-0.5 * (grid - 2.0) ** 2 / 1.5)
    p = np.exp(module._log_likelihood(row, grid))
    assert module._nll(row, 2.0, 1.5) == pytest.approx(-np.log((p * density).sum() / density.sum()), abs=1e-5)
    logits = 2.0 * row[0]
    assert module._nll(row, 2.0, 0.0) == pytest.approx(-logits[0] + np.log(np.exp(logits).sum()))
