"""Laws of declared topics: what a statement about a topic does to the feature of an answer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fitrouter.config import ScorerConfig
from fitrouter.context.encoders import Static
from fitrouter_evaluators.scoring import Answer, ResponseFeatures
from fitrouter_evaluators.scoring.plugin import make_scorer
from fitrouter_evaluators.scoring.statements.topics import declared_fit, topic_units

ENCODER = Static()
ROOT = Path(__file__).parents[2]
PROMPT = "Which film should we watch tonight?"
HORROR, COMEDY = "A horror film full of zombies and terror.", "A cheerful romantic comedy."


@pytest.mark.parametrize(
    "statement", ["I avoid horror films.", "I refuse to watch horror.", "I'm scared of horror movies."]
)
def test_what_is_not_wanted_fits_less(statement: str) -> None:
    """However a refusal is worded, the answer that names its object fits less; a wish for it turns the order."""
    assert declared_fit(ENCODER, PROMPT, HORROR, [statement]) < declared_fit(ENCODER, PROMPT, COMEDY, [statement])
    wish = ["I love horror films."]
    assert declared_fit(ENCODER, PROMPT, HORROR, wish) > declared_fit(ENCODER, PROMPT, COMEDY, wish)


def test_it_is_silent_where_nothing_is_said() -> None:
    """No attitude, or no text: missing, not zero; another request: missing or next to nothing."""
    assert topic_units("I live in a small town.") == ()
    for prompt, answer, statement in (
        (PROMPT, COMEDY, "I live in a small town."),
        (PROMPT, "", "I avoid horror films."),
    ):
        assert np.isnan(declared_fit(ENCODER, prompt, answer, [statement]))
    other = declared_fit(ENCODER, "How do I sort a list in Python?", "Call sorted(values).", ["I avoid horror films."])
    assert np.isnan(other) or abs(other) < 0.05


def test_it_is_the_last_feature_and_needs_a_declaration() -> None:
    """It is the last entry of h where it is switched on; nobody else's features change."""
    plain, features = ResponseFeatures(ENCODER), ResponseFeatures(ENCODER, declared=True)
    said, silent = (Answer(text=HORROR, prompt=PROMPT, declared=words) for words in (("I avoid horror films.",), ()))
    h = features.encode([said, silent])
    assert features.names == (*plain.names, "declared_fit")
    assert features.schema == f"{plain.schema}/declared-1"
    assert -3.0 <= h[0, -1] < 0.0
    assert np.isnan(h[1, -1])
    assert h[1, :-1].tobytes() == plain.encode([silent])[0].tobytes()


def test_what_was_declared_counts_from_the_start() -> None:
    """The shipped prior gives it the weight of a declared style."""
    scorer = make_scorer(ScorerConfig())
    assert scorer.prior is not None
    assert 0.01 < scorer.prior.mean[-1] < 0.2
    assert scorer.topics(["I avoid horror films.", "Ich mag keine Filme.", "I live in Ulm."]) == (
        "I avoid horror films.",
    )


def test_a_form_that_nothing_measures_is_no_topic() -> None:
    """An answer in HTML is not about HTML: such a wish is not understood, and says why; what is measured stays so."""
    scorer = make_scorer(ScorerConfig())
    wishes = ["I prefer answers in HTML", "Please answer in French.", "I would love replies as raw JSON"]
    assert scorer.topics([*wishes, "I love films in French."]) == ("I love films in French.",)
    assert set(scorer.reasons(wishes).values()) == {"nothing measures the form or language of answers"}
    assert scorer.understand(["I prefer answers in bullet points"])["I prefer answers in bullet points"]


def test_fresh_phrases_about_style() -> None:
    """Phrases that training has not seen: 85 of 100, and of their negations, move their dimension to the right side."""
    rows = [json.loads(line) for line in (ROOT / "benchmarks/scoring/style_phrases.jsonl").read_text().splitlines()]
    understand = make_scorer(ScorerConfig()).understand
    for name, turn in (("phrase", 1), ("negated", -1)):
        said = understand([row[name] for row in rows])
        sides = np.array([turn * row["sign"] * said[row[name]].get(row["dimension"], 0.0) for row in rows])
        assert np.mean(sides > 0.0) >= 0.85
        assert np.mean(sides < 0.0) <= 0.05


def test_no_statement_moves_the_wrong_side() -> None:
    """Values, weak phrases and four other languages: what is read has the right side, and facts move nothing."""
    rows = [json.loads(line) for line in (ROOT / "benchmarks/scoring/statements.jsonl").read_text("utf-8").splitlines()]
    said = make_scorer(ScorerConfig()).understand([row["text"] for row in rows])
    right = 0
    for row in rows:
        found = {name: 1 if value > 0 else -1 for name, value in said[row["text"]].items()}
        assert not any(found.get(name) == -side for name, side in row["moves"].items()), row["text"]
        assert row["moves"] or not found, row["text"]
        right += bool(found) and any(found.get(name) == side for name, side in row["moves"].items())
    assert right >= 0.8 * sum(bool(row["moves"]) for row in rows)


@pytest.mark.parametrize(
    ("statement", "better", "worse"),
    [
        ("I am a vegetarian.", "A lentil curry and a salad.", "Grilled beef with bacon."),
        ("We're vegan.", "Oatmeal with berries.", "Scrambled eggs with cheese and ham."),
        ("I eat halal.", "Halal lamb and rice.", "Pork ribs with beer."),
        ("I'm coeliac.", "Rice with beans.", "Bread and wheat noodles."),
        ("My father is a teetotaller.", "Juice and iced tea for dinner.", "Wine and whisky for dinner."),
    ],
)
def test_a_diet_is_an_attitude(statement: str, better: str, worse: str) -> None:
    """A diet needs no word of attitude: the dinner that respects it fits more."""
    fits = [declared_fit(ENCODER, "What should I cook for dinner?", text, [statement]) for text in (better, worse)]
    assert fits[0] > fits[1]


def test_statements_about_topics_move_no_style() -> None:
    """At most 2% of other people's statements about topics, and half of their choices are right (chance .25)."""
    path = ROOT.parent / "shared/data/declared_topics/choices.jsonl"
    if not path.is_file():
        pytest.skip("declared_topics is not in ../shared/data")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    said = make_scorer(ScorerConfig()).understand([row["declared"][0] for row in rows])
    assert np.mean([bool(values) for values in said.values()]) <= 0.02
    fits = [[declared_fit(ENCODER, r["prompt"], option, r["declared"]) for option in r["options"]] for r in rows]
    best = [int(np.nan_to_num(row).argmax()) == r["best"] for row, r in zip(fits, rows, strict=True)]
    assert np.mean(best) >= 0.55
