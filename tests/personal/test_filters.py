"""Filters of leaderboards: by domain of the prompts, by price and by context; computed among what fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.kits.quiz import text
from tests.kits.tables import table_driven
from tests.personal.test_leaderboard import copied
from tests.personal.test_quizzes import ANN, played

from fitrouter.config import Config
from fitrouter.context.encoders import get_encoder
from fitrouter.errors import InvalidRequest
from fitrouter.router import Router
from fitrouter.types import FeedbackKind, ModelCard, Prices, Request
from fitrouter_evaluators.personal import Filters, Leaderboards, Quizzes
from fitrouter_evaluators.personal.filters import Domains, domains, examples, parsed

CONFIG = """\
data: d
providers:
  r: {kind: recorded, path: answers.jsonl}
models:
  - {name: cook, provider: r, prices: {input: 1, output: 5}, context_window: 8000}
  - {name: banker, provider: r, prices: {input: 4, output: 20}, context_window: 200000}
  - {name: guest, provider: r}
encoder: static
scorer: {encoder: hashing, prior: none}
server: {port: 0}
"""
BRIEF = {"cook": "food", "banker": "money"}
"""Model → domain in which its answers are short."""


def install(folder: Path, encoder: str = "static") -> Path:
    """Recorded answers of three models to prompts about food and money; each of two is brief in one of them."""
    rows = [
        {"prompt": prompt, "model": model, "response": text("brief" if BRIEF.get(model) == about else "rambling", t)}
        for about in ("food", "money")
        for t, prompt in enumerate(examples()[about])
        for model in ("cook", "banker", "guest")
    ]
    (folder / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = folder / "fitrouter.yaml"
    file.write_text(CONFIG.replace("encoder: static", f"encoder: {encoder}"))
    return file


async def likes_short(router: Router) -> None:
    await router.declare(ANN, {"length": -1.0})
    await router.settled()


def test_a_board_is_of_the_prompts_about_a_domain(tmp_path: Path) -> None:
    """Whoever is brief there is first there; the sentence says of how many prompts, and how well domains are told."""

    async def test(router: Router, quizzes: Quizzes, config: Config) -> None:
        await likes_short(router)
        boards = Leaderboards(router, config, quizzes.pool)
        whole = await boards.of(ANN)
        assert (whole.prompts, whole.searched, whole.told) == (50, 0, None)
        for model, about in BRIEF.items():
            found = await boards.of(ANN, Filters(domain=about))
            assert found.first == model, about
            assert found.prompts < found.searched == 50
            assert found.told == domains("static").measured
            assert f"for {found.prompts} recorded prompts about {about}, of 50 that were looked at" in str(
                found.sentences
            )
        with pytest.raises(InvalidRequest, match="none of 50 requests and recorded prompts is about technology"):
            await boards.of(ANN, Filters(domain="technology"))

    played(install(tmp_path), test)


def test_requests_about_a_domain_come_before_recorded_answers(tmp_path: Path) -> None:
    """A person's own requests count where one is about it; where none is, recorded prompts do."""

    async def test(router: Router, quizzes: Quizzes, config: Config) -> None:
        await likes_short(router)
        for prompt in examples()["food"][:12]:
            asked = Request(messages=({"role": "user", "content": prompt},), identity=ANN, model="cook")
            decision = (await router.complete(asked)).decision.id
        await router.feedback(decision, FeedbackKind.THUMB, 1.0, identity=ANN)
        await copied(router)
        boards = Leaderboards(router, config, quizzes.pool)
        food, money = [await boards.of(ANN, Filters(domain=about)) for about in ("food", "money")]
        assert 0 < food.tasks <= food.searched == 12
        assert (food.prompts, money.tasks) == (0, 0)
        assert 0 < money.prompts < money.searched == 12 + 50

    played(install(tmp_path), test)


def test_figures_are_among_the_models_that_fit(tmp_path: Path) -> None:
    """Ranks and probabilities are of these alone; each of the others is named with the reason, also the unknown."""

    async def test(router: Router, quizzes: Quizzes, config: Config) -> None:
        boards = Leaderboards(router, config, quizzes.pool)
        cheap = await boards.of(ANN, Filters(max_price=2.0))
        assert [(row.model, row.rank, row.population_rank, row.best) for row in cheap.models] == [("cook", 1, 1, 1.0)]
        assert cheap.left_out == {
            "banker": "it costs USD 8 per million tokens",
            "guest": "no price is configured for it",
        }
        assert "banker is left out: it costs USD 8 per million tokens." in cheap.sentences
        wide = await boards.of(ANN, Filters(min_context=8000))
        assert {row.model for row in wide.models} == {"cook", "banker"}
        assert sum(row.best for row in wide.models) == pytest.approx(1.0)
        assert wide.left_out == {"guest": "no context window is configured for it"}
        with pytest.raises(
            InvalidRequest, match=r"cook: its context has 8,000 tokens; .*change max_price or min_context"
        ):
            await boards.of(ANN, Filters(min_context=1_000_000))

    played(install(tmp_path), test)


def test_an_encoder_without_meaning_tells_no_domain(tmp_path: Path) -> None:
    """Hashed words are refused with what to set; the shipped encoder tells domains better than one in three."""
    assert domains("static").measured.right > 0.5
    assert Domains(get_encoder("hashing")).measured.right < 1 / 3

    async def test(router: Router, quizzes: Quizzes, config: Config) -> None:
        with pytest.raises(InvalidRequest, match="are told right; set 'encoder: static'"):
            await Leaderboards(router, config, quizzes.pool).of(ANN, Filters(domain="food"))

    played(install(tmp_path, "hashing"), test)


def test_the_pools_own_prompts_are_known() -> None:
    """Of them the domain is given, whatever the encoder; of others it is told, or none is."""
    asked = [each[0] for each in examples().values()]
    assert Domains(get_encoder("hashing")).of_texts([*asked, "How long do eggs keep?"]) == [*examples(), ""]
    told = domains("static").of_texts(["How do I roast a chicken with garlic and potatoes?", ""])
    assert told == ["food", ""]
    assert domains("static").of_texts([]) == []


@table_driven(
    "given, said",
    [
        ({"domain": "law"}, "domain: got 'law'; give one of health, food"),
        ({"max_price": "cheap"}, "max_price: got 'cheap'; give a number"),
        ({"max_price": "-1"}, "max_price: got -1.0; give USD per million tokens, 0 or more"),
        ({"max_price": "nan"}, "max_price: got nan"),
        ({"max_price": "inf"}, "max_price: got inf"),
        ({"min_context": "1e5"}, "min_context: got '1e5'; give a whole number"),
        ({"min_context": "0"}, "min_context: got 0; give tokens, a whole number from 1"),
        ({"min_context": "9" * 4000}, "min_context: got"),
    ],
)
def test_a_bad_filter_is_refused_with_what_is_allowed(given: dict[str, Any], said: str) -> None:
    """Each by name."""
    with pytest.raises(InvalidRequest) as refused:
        parsed(given)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_price_is_of_three_tokens_in_and_one_out() -> None:
    """As boards of others mix them; a model that costs nothing has a price."""
    free = ModelCard(name="free", provider="p", prices=Prices())
    kept, left = Filters(max_price=0.0).models(
        {"free": free, "dear": ModelCard(name="dear", provider="p", prices=Prices(output=4.0))}
    )
    assert kept == ["free"]
    assert left == {"dear": "it costs USD 1 per million tokens"}
