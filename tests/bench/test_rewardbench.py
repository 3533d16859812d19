"""Personalized RewardBench: what posts add to the served score, on rows of the published shape that we made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kits.quiz import install
from typer.testing import CliRunner

from fitrouter.context.encoders import get_encoder
from fitrouter_evaluators.bench.rewardbench import Ratings, accuracy, candidates, others
from fitrouter_evaluators.datasets import Pair, personalized_rewardbench
from fitrouter_evaluators.scoring.statements.history import RELEVANT, bm25, relevant, stated
from fitrouter_integrations.cli import app

MEAT, PLANTS = "Roast the beef with bacon.", "Roast the aubergine with lentils."
DOMAIN = "Lifestyle_and_Personal_Development"


def row(name: str, chosen: str, rejected: str, *posts: Any, **changes: Any) -> dict[str, Any]:
    """A row of the published shape."""
    shaped = {"id": name, "question": "What should I cook for dinner?", "chosen": chosen, "rejected": rejected}
    profile = [{"id": str(i), "category": "cooking", "text": post} for i, post in enumerate(posts)]
    return shaped | {"profile": profile, "narrative": "", "rubric_aspects": [{"aspect": "meat"}]} | changes


ROWS = [
    row("1", PLANTS, MEAT, "How do I prune roses?", "I don't eat meat. What can I cook instead of beef?"),
    row("2", MEAT, PLANTS, "I love meat. How long do I roast beef?", "Which tyres for gravel?"),
    row("3", PLANTS, MEAT, "I never eat meat. Is there bacon without it?"),
    row("4", MEAT, PLANTS, "How do I prune roses?"),
]


def bench(folder: Path, *args: str) -> tuple[Any, dict[str, Any]]:
    """Run the command in a folder with a configuration; its outcome and the figures."""
    file = install(folder)
    file.write_text(file.read_text().replace("hashing", "static").replace("prior: none", "prior: shipped"))
    out = folder / "out.json"
    done = CliRunner().invoke(app, ["bench", "rewardbench", *args, "-c", str(file), "--json", str(out)])
    return done, json.loads(out.read_text()) if out.exists() else {}


def test_the_history_decides(tmp_path: Path) -> None:
    """Four rows with the same two answers, each chosen twice.

    Without posts the score prefers one answer, whichever it is: 2 of 4. Three people state what they eat, and those
    three pairs are right; the fourth states nothing, and is scored as without posts. Of two answers, best-of-2 is the
    same as the pair.
    """
    file = tmp_path / f"{DOMAIN}_test.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in ROWS))
    done, found = bench(tmp_path, str(file), "--n", "2")
    assert done.exit_code == 0, done.output
    [domain, everybody] = found["domains"]
    assert (domain["domain"], domain["pairs"], everybody["domain"]) == (DOMAIN, 4, "all")
    assert domain["without"]["mean"] == 0.5
    assert domain["history"]["mean"] in (0.75, 1.0)
    assert domain["gain"]["mean"] == domain["history"]["mean"] - 0.5
    assert domain["best_history"]["mean"] == domain["history"]["mean"]
    assert (domain["chance"], found["published"]) == (0.5, 0.7594)
    assert domain["other"]["mean"] < domain["history"]["mean"]
    oracle = bench(tmp_path, str(file), "--n", "2", "--rubric")[1]
    assert oracle["rubric"]
    assert oracle["domains"][0]["history"]["mean"] == 0.5  # everybody's rubric here is meat


def test_rows_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """Bad rows are named with file and line and left out; hostile posts neither crash nor count."""
    bad = [
        row("5", PLANTS, MEAT) | {"chosen": None},
        row("6", PLANTS, MEAT) | {"profile": [{"text": 5}]},
        row("7", PLANTS, MEAT) | {"profile": 7},
    ]
    odd = row("8", PLANTS, MEAT) | {"profile": {"text": ["", "\x00\x1b[2J", "🙂" * 10, *["I"] * 1_000_000]}}
    lines = [*map(json.dumps, [ROWS[0], *bad, odd, row("9", PLANTS, MEAT)]), '{"id": NaN}', "[" * 100_000]
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(lines))
    done, found = bench(tmp_path, str(file))
    assert done.exit_code == 0, done.output
    assert [each["line"] for each in found["bad_rows"]] == [2, 3, 4, 7, 8]
    assert {each["file"] for each in found["bad_rows"]} == {str(file)}
    assert f"{file}, line 2: it has no chosen" in done.output
    assert (found["domains"][0]["domain"], found["domains"][0]["pairs"]) == ("mine", 3)
    file.write_text(lines[1])
    done, _ = bench(tmp_path, str(file))
    assert done.exit_code == 1
    assert "no file has a row that can be read" in str(done.exception)


def pair(name: str, question: str, chosen: str, rejected: str, domain: str = "d", posts: Any = ()) -> Pair:
    """A pair as the loader makes it."""
    return personalized_rewardbench._pair(row(name, chosen, rejected, *posts, question=question), domain, rubric=False)


def test_candidates_and_other_people() -> None:
    """Candidates are the pair's, then those of the question, then drawn ones of the domain, all different."""
    pairs = [pair("1", "q", "c", "r1"), pair("2", "q", "c", "r2", posts=["p"]), pair("3", "z", "x", "far", "e")]
    pairs += [pair(str(i), str(i), "c", f"r{i}") for i in range(4, 40)]
    found = candidates(pairs, 5)
    assert found[0][:3] == ("c", "r1", "r2")
    assert found[2] == ("x", "far")
    assert all(len(set(each)) == len(each) == 5 for i, each in enumerate(found) if i != 2)
    assert not any("far" in each for i, each in enumerate(found) if i != 2)
    assert candidates(pairs, 5) == found != candidates(pairs, 5, seed=1)
    assert others(pairs)[:3] == [1, 3, None]


def test_accuracy_is_that_of_the_ratings() -> None:
    """By hand, of three pairs: without posts a hit, a tie and a miss are ½; with them two hits and a miss are ⅔.

    Differences are 0, +½ and 0: 1/6. In best-of-3 the chosen answer is first, one of two, and not first.
    """
    rows = [
        Ratings([0.9, 0.1, 0.2], [0.9, 0.1, 0.3], [0.1, 0.9]),
        Ratings([0.5, 0.5, 0.1], [0.6, 0.5, 0.6], [0.5, 0.5]),
        Ratings([0.1, 0.2, 0.1], [0.1, 0.2, 0.1], [0.2, 0.1]),
    ]
    [domain, everybody] = accuracy([pair(str(i), "q", "c", "r") for i in range(3)], rows)
    assert domain.without.mean == pytest.approx(0.5)
    assert domain.history.mean == pytest.approx(2 / 3)
    assert domain.gain.mean == pytest.approx(1 / 6)
    half = 1.959964 * np.std([0.0, 0.5, 0.0], ddof=1) / 3**0.5
    assert (domain.gain.low, domain.gain.high) == pytest.approx((1 / 6 - half, 1 / 6 + half))
    assert domain.personal.mean == pytest.approx((1.0 + 0.5 - 1.0) / 3)
    assert (domain.best_without.mean, domain.best_history.mean) == pytest.approx((0.5, 0.5))
    [alone, _] = accuracy([pair("1", "q", "c", "r")], [Ratings([0.9, 0.1], [0.9, 0.1], [])])
    assert (alone.other, alone.personal) == (None, None), "nobody else has posts"
    assert (everybody.pairs, everybody.gain) == (3, domain.gain)


def test_ten_relevant_texts_are_read() -> None:
    """Ten texts are retrieved, whichever the encoder, and of them only own statements count, not questions."""
    posts = [f"How do I repair bicycle {i}?" for i in range(30)] + [
        "I love cooking with beef.",
        "My brother hates beef.",
    ]
    for name in ("static", "hashing"):
        found = relevant(get_encoder(name), "How long do I cook beef?", posts)
        assert len(found) == RELEVANT
        assert "I love cooking with beef." in found[:2]
        said = stated(get_encoder(name), "How long do I cook beef?", [*posts, "I prefer short answers on beef."])
        assert (said.topics, said.style) == (("I love cooking with beef.",), ("I prefer short answers on beef.",))
        assert stated(get_encoder(name), "", ["", " ", "\ud800", "I" * 100_000]) == ((), ())


def test_bm25_by_hand() -> None:
    """Of two texts of two words one has "beef": ln(1 + 1.5 / 1.5) · 1 / (1 + 1.5) = .277; what shares no word has 0."""
    assert bm25("Beef?", ["red beef", "red rose"]).tolist() == pytest.approx([np.log(2.0) / 2.5, 0.0])
    assert bm25("", ["a"]).tolist() == bm25("beef", [""]).tolist() == [0.0]
