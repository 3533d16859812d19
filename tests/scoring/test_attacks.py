"""Adversaries lose: constant replies and answers dressed up do not pass for honest ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.scoring._held_out_attacks import HELD_OUT
from benchmarks.scoring.attacks import battle, heads_of, honest_answers, population_head

from fitrouter.context.encoders import Static
from fitrouter.types import Floats
from fitrouter_evaluators.scoring import STYLE, Answer, ResponseFeatures, global_scalar
from fitrouter_evaluators.training.attacks import KINDS, TRAIN, Templates, attacks, constants, guards

DATA = Path(__file__).parents[3] / "shared/data"
LENGTH = 2 + [dimension.name for dimension in STYLE].index("length")
needs_data = pytest.mark.skipif(
    not all((DATA / name).is_dir() for name in ("mt_bench_human", "alpaca_eval")),
    reason="mt_bench_human and alpaca_eval are not in ../shared/data",
)
PROMPTS = ("Why is the sky blue?", "Name three uses of vinegar.", "How do I fix a dripping tap?")
ANSWERS = (
    "Air scatters blue light more than red light, because blue has the shorter wavelength. Away from the sun we "
    "therefore see scattered blue light from all over the sky. At sunset the light has come a longer way through the "
    "air, most of the blue is gone, and what is left looks red.",
    "Vinegar descales kettles: boil one part vinegar with two parts water, let it stand, and rinse. It pickles "
    "cucumbers and onions. And mixed with oil, salt and mustard it makes a dressing for salad.",
    "Turn off the water under the sink and open the tap to empty it. Take off the handle, unscrew the cartridge or the "
    "spindle, and replace the worn washer at its end. Clean the seat, put everything together again, and turn the "
    "water on slowly.",
)


@pytest.fixture(scope="module")
def features() -> ResponseFeatures:
    encoder = Static()
    return ResponseFeatures(encoder, scalar=global_scalar(encoder), cache=20_000)


def test_train_and_held_out_share_no_template() -> None:
    """No way of attacking, no constant reply and no stub of one set does to an answer what one of the other does."""
    sets = (TRAIN, HELD_OUT)
    dressed, replies = (
        [{way.of("ANSWER", "Which trees bear fruit early?") for way in attacks(one)} for one in sets],
        [set(constants(one)) | set(one.stubs) for one in sets],
    )
    assert not dressed[0] & dressed[1]
    assert not replies[0] & replies[1]
    sentences = [{line.strip() for text in group for line in text.split("\n") if len(line) > 30} for group in dressed]
    assert not sentences[0] & sentences[1]


@pytest.mark.parametrize("templates", [TRAIN, HELD_OUT], ids=lambda one: one.name)
def test_every_kind_is_there_and_keeps_the_answer(templates: Templates) -> None:
    """Each set has all kinds, and a dressed answer still holds the answer."""
    ways = attacks(templates)
    assert {way.kind for way in ways} == set(KINDS)
    assert all("THE ANSWER" in way.of("THE ANSWER", "The prompt, with {braces}?") for way in ways)
    assert len(templates.constants) >= 5


def test_a_head_that_counts_characters_is_found_out() -> None:
    """The test can fail: against a head that likes length, padding wins."""

    def encode(answers: list[Answer]) -> Floats:
        return np.array([[1.0, float(len(answer.text))] for answer in answers])

    honest = [[Answer(prompt=p, text=t)] for p, t in zip(PROMPTS, ANSWERS, strict=True)]
    verdicts = battle(honest, {"length": lambda h: h[:, 1]}, encode, sample=3)
    padded = {verdict.on: verdict for verdict in verdicts if verdict.kind == "filler"}
    assert not padded["stubs"].lost
    assert padded["weak"].lift is not None
    assert padded["weak"].lift > 0.0


def test_dressed_stubs_stay_below_plain_answers(features: ResponseFeatures) -> None:
    """The score of "I don't know." under any attack of either set is below g of a plain good answer to the prompt."""
    for prompt, text in zip(PROMPTS, ANSWERS, strict=True):
        good = features.encode([Answer(prompt=prompt, text=text)])[0, 1]
        for templates in (TRAIN, HELD_OUT):
            stubs = [Answer(prompt=prompt, text=way.of("I don't know.", prompt)) for way in attacks(templates)]
            assert np.median(features.encode(stubs)[:, 1]) < good - 0.5
            fixed = [Answer(prompt=prompt, text=text) for text in constants(templates)]
            assert np.median(features.encode(fixed)[:, 1]) < good - 0.5


def test_guards_are_labels_that_honest_answers_win(features: ResponseFeatures) -> None:
    """Guards point from the attacked to the honest answer, three an answer, and g sees most of them already."""
    labels = guards([Answer(prompt=p, text=t) for p, t in zip(PROMPTS, ANSWERS, strict=True)], features, 0.5)
    X = np.vstack([user.X for user in labels])
    assert X.shape == (9, features.dim)
    assert all((user.y == 1.0).all() and user.weight is not None and (user.weight == 0.5).all() for user in labels)
    assert X[:, 1].mean() > 0.0
    assert X[:, LENGTH].mean() < 0.0


@pytest.mark.reproduction
@needs_data
def test_adversaries_lose_on_unseen_prompts(features: ResponseFeatures) -> None:
    """AlpacaEval: NullModel and all attacks stay below the honest median under g, the population and judges' own heads.

    The share of weak answers that rise above the median is allowed 10% here, 15% for a judge's own head, of a sample
    of some sixty answers; the full run is in docs/results/reward_pairs.md.
    """
    honest, replies = honest_answers(
        DATA / "alpaca_eval", 40, ("gpt-4o-2024-05-13", "gemini-pro", "mistral-large-2402")
    )
    prior, users = population_head(DATA / "mt_bench_human", features)
    heads = heads_of(prior, users[::8])
    verdicts = battle(honest, heads, features.encode, replies=replies, sample=40)
    assert {"g", "population"} < {verdict.head for verdict in verdicts}
    for verdict in verdicts:
        assert verdict.margin < 0.0, verdict
        allowed = 0.15 if verdict.head.startswith("user ") else 0.1
        assert verdict.above <= (0.5 if verdict.on == "constant" else allowed), verdict
        assert verdict.lift is None or verdict.lift <= 0.0, verdict
