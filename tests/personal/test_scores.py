"""Scores of any text: the served reward model, bounds, reasons, and nothing logged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from tests.kits.quiz import install, text
from tests.personal.test_quizzes import ANN, finish, logged, played

from fitrouter.config import Config
from fitrouter.errors import InvalidRequest
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.heads import HINGES
from fitrouter.router import Router
from fitrouter.types import Identity
from fitrouter_evaluators.personal import (
    LONGEST_HISTORY,
    LONGEST_TEXT,
    MOST_HISTORY,
    MOST_TEXTS,
    PromptAnswers,
    Quizzes,
    Scores,
)
from fitrouter_evaluators.personal.scores import FAULTY, on_scale, predicted, reasons_of

BRIEF, LONG = text("brief", 3), text("rambling", 3)
PAIR = [PromptAnswers("What about 3?", (BRIEF, LONG))]


def test_scores_are_the_served_ones(tmp_path: Path) -> None:
    """The numbers are those of the fold's heads, and a person who likes short answers gets them with that reason."""

    async def test(router: Router, quizzes: Quizzes, _config: Config) -> None:
        scores = Scores(router)
        [(before, _)] = await scores.score(ANN, PAIR)
        await finish(quizzes, await quizzes.start(ANN))
        for _ in range(100):
            if not (await asyncio.to_thread(router.status)).lag.scorer_answers:
                break
            await asyncio.sleep(0.05)
        await router.settled()
        events = logged(router)
        [(brief, long)] = await scores.score(ANN, PAIR)
        assert [event.id for event in logged(router)] == [event.id for event in events]
        who = await router.people.identify(ANN)
        h = router.people.read(who, [("What about 3?", BRIEF), ("What about 3?", LONG)])
        for row, scored in zip(h, (brief, long), strict=True):
            mean, sd = router._learner.score(who, row)
            factor = FAULTY if scored.faults else 1.0
            assert scored.dimensions["overall"].mean == pytest.approx(factor * min(max(mean, 0.0), 1.0), abs=1e-12)
            assert scored.dimensions["overall"].sd == pytest.approx(factor * sd, abs=1e-12)
            assert all(name in router.people.features for name in scored.missing)
        assert (brief.faults, long.faults) == ((), ("repeated",))
        assert brief.dimensions["overall"].mean > long.dimensions["overall"].mean
        assert brief.best > 0.6
        assert brief.best + long.best == pytest.approx(1.0)
        assert brief.dimensions["overall"].sd < before.dimensions["overall"].sd
        assert brief.words.startswith("Predicted rating ")
        [(nobody, _)] = await scores.score(Identity(), PAIR)
        assert nobody.dimensions["overall"].mean == pytest.approx(nobody.dimensions["overall"].population)
        [(stranger, _)] = await scores.score(Identity(user="never seen"), PAIR)
        assert np.isfinite(stranger.dimensions["overall"].sd)
        assert router._identities.known("default", "never seen") is None

    played(install(tmp_path), test)


def test_bounds(tmp_path: Path) -> None:
    """Too many or too long texts, none at all, and hostile ones."""

    async def test(router: Router, _quizzes: Quizzes, _config: Config) -> None:
        scores = Scores(router)
        many = [PromptAnswers("?", ("a",) * MOST_TEXTS)]
        assert len((await scores.score(ANN, many))[0]) == MOST_TEXTS
        for bad in (
            [],
            [PromptAnswers("?", ())],
            [*many, PromptAnswers("?", ("a",))],
            [PromptAnswers("?", ("a" * (LONGEST_TEXT + 1),))],
            [PromptAnswers("?", ("a",), ("b",) * MOST_HISTORY), PromptAnswers("?", ("a",), ("b",))],
            [PromptAnswers("?", ("a",), ("b" * (LONGEST_HISTORY + 1),))],
        ):
            with pytest.raises(InvalidRequest, match="items"):
                await scores.score(ANN, bad)
        odd = ("", " ", "\ud800", "\x00\x1b[2J", "<script>", "9" * 400, "\n" * 1000, "🙂" * 50)
        for scored in (await scores.score(ANN, [PromptAnswers("\ud800", odd)]))[0]:
            assert np.isfinite([scored.dimensions["overall"].mean, scored.dimensions["overall"].sd, scored.best]).all()

    played(install(tmp_path), test)


def test_a_history_counts_as_what_it_states(tmp_path: Path) -> None:
    """Own statements of relevant texts count, and only they; what a person declared outweighs them; nothing is kept."""
    diet, short = "I don't eat meat.", "I prefer short answers."
    more = "Cut the onions first, and brown the meat in oil before the wine goes in. Then let it simmer for hours."
    answers = ("Beef with bacon.", f"Beef with bacon. {more} Serve it with potatoes, bread, or whatever else is there.")

    async def test(router: Router, _quizzes: Quizzes, _config: Config) -> None:
        scores = Scores(router)
        items = [
            PromptAnswers("What should I cook?", answers, history)
            for history in ((), (f"{diet} Is fish fine?",), (short,), ("My cat eats meat.", "Do I eat meat?"))
        ]
        none, vegetarian, brief, nothing = await scores.score(ANN, items)
        assert [each[0].heard for each in (none, vegetarian, brief, nothing)] == [(), (diet,), (short,), ()]
        means = [[each.dimensions["overall"].mean for each in item] for item in (none, vegetarian, brief, nothing)]
        assert means[1][0] < means[0][0]
        assert means[3] == means[0]
        assert means[2][0] - means[2][1] > means[0][0] - means[0][1]
        assert brief[0].dimensions["overall"].population == none[0].dimensions["overall"].population
        await router.declare(ANN, {"length": 1.0})
        await router.settled()
        plain, said = await scores.score(ANN, [items[0], items[2]])
        length = [each[0].dimensions["overall"].mean - each[1].dimensions["overall"].mean for each in (plain, said)]
        assert length[1] == pytest.approx(length[0], abs=0.01)

    file = install(tmp_path)
    file.write_text(file.read_text().replace("encoder: hashing", "encoder: static").replace("none", "shipped"))
    played(file, test)


def test_reasons_are_sure_and_say_whose_they_are() -> None:
    """Only features whose sign is sure are told, the largest first, as the person's where most is theirs."""
    names, h = ("one", "g", "length", "structure", "hedging"), np.array([1.0, 1.0, -2.0, 1.0, 1.0])
    own = Gaussian(np.array([0.7, 0.10, -0.10, 0.05, 0.2]), np.diag([0.1, 0.01, 0.01, 0.01, 0.4]) ** 2)
    common = Gaussian(np.array([0.7, 0.09, 0.0, 0.2, 0.0]), np.eye(5))
    found = reasons_of(names, h, own, common)
    assert [each.words for each in found] == [
        "writes shorter than most answers, which you like",
        "has higher general quality than most answers, which people like",
        "uses more lists than most answers, which people like",
    ]
    assert found[0].effect == pytest.approx(0.2)
    assert found[2].own == pytest.approx(-0.15)


def test_reasons_of_length_are_of_its_whole_curve() -> None:
    """The effects of length and its hinges are one reason, and one uncertainty."""
    names, h = ("one", "length", *HINGES), np.array([1.0, 2.0, 1.9, 1.6, 0.9])
    mean = np.array([0.7, 0.10, 0.0, -0.2, 0.0])
    (found,) = reasons_of(names, h, Gaussian(mean, np.diag([0.0, 0.0, 0.0, 0.0025, 0.0])), Gaussian(mean, np.eye(5)))
    assert (found.feature, found.effect) == ("length", pytest.approx(2.0 * 0.1 - 1.6 * 0.2))
    assert found.words == "writes longer than most answers, which people dislike"
    assert reasons_of(names, h, Gaussian(mean, np.diag([0.0, 0.0, 0.0, 0.25, 0.0])), Gaussian(mean, np.eye(5))) == ()


def test_a_fault_cannot_score_high(tmp_path: Path) -> None:
    """Whoever likes short answers above all gives a quarter at most to an empty, refused or broken one.

    Numbers stay in [0, 1], intervals have a width, and the sound answer is the best one.
    """
    bad = ("", " \n", "I'm sorry, but I can't help with that.", "It is so and it is so. " * 20)

    async def test(router: Router, quizzes: Quizzes, _config: Config) -> None:
        for user in ("ann", "bob"):
            await finish(quizzes, await quizzes.start(Identity(user=user)), Identity(user=user))
        await router.declare(ANN, {"length": -1.0})
        for identity in (ANN, Identity(user="stranger"), Identity()):
            [scored] = await Scores(router).score(identity, [PromptAnswers("Where is Paris?", ("In France.", *bad))])
            sound, *faulty = scored
            assert sound.faults == ()
            assert sound.best == max(each.best for each in scored)
            for each in faulty:
                assert each.faults
                assert each.faults[0] in each.words
                for name, of in each.dimensions.items():
                    assert 0.0 <= of.low <= of.mean <= of.high <= FAULTY, name
                    assert of.low < of.high
                    assert 0.0 <= of.population <= FAULTY

    played(install(tmp_path), test)


def test_ratings_end_with_the_scale() -> None:
    """Predictions beyond an end count as the end, with an interval that has a width; faults count a quarter of that."""
    names = [(-3.0, 0.0), (-0.1, 0.0), (0.4, 0.4), (1.13, 1.0), (9.0, 1.0)]
    for raw, shown in names:
        own = Gaussian(np.array([raw]), np.array([[0.01]]))
        for wrong, factor in (((), 1.0), (("empty",), FAULTY)):
            found = predicted(own, own, np.ones(1), wrong)
            assert (found.mean, found.population) == pytest.approx((factor * shown, factor * shown))
            assert 0.0 <= found.low < found.high <= factor
            assert on_scale(np.array([raw]), np.array([bool(wrong)]))[0] == pytest.approx(found.mean)
