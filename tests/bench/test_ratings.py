"""Laws of the ratings bench: tastes that are there are found, tastes that are not do no harm, bad input is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitrouter.errors import ConfigError
from fitrouter_evaluators.bench import Result
from fitrouter_evaluators.bench._censored import clipped_mean, latent
from fitrouter_evaluators.bench._scales import Scales
from fitrouter_evaluators.bench._taste import Labels, RatingHead
from fitrouter_evaluators.bench.ratings import run_ratings
from fitrouter_evaluators.datasets import Rating, write_jsonl
from fitrouter_evaluators.training.hierarchy import Observations, Prior

_DATA = Path(__file__).parents[3] / "shared" / "data"


class _Letters:
    """An encoder that reads the numbers that a text is made of."""

    id = "letters"
    dim = 4

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.array([[float(word) for word in text.split()[:4]] for text in texts])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _world(rng: np.random.Generator, taste: float, *, users: int = 40, items: int = 45, verdicts: bool = False):
    """Rows of users whose ratings follow the crowd, plus an offset and a taste of this size."""
    x = rng.normal(size=(items, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    crowd = x @ np.array([1.0, 0.5, 0.0, 0.0])
    rows = []
    for u in range(users):
        own = taste * rng.normal(size=4)
        offset = taste * 0.5 * rng.normal()
        for i in range(items):
            r = 0.5 + 0.25 * (crowd[i] + offset + x[i] @ own) + 0.07 * rng.normal()
            value = float(rng.random() < np.clip(r, 0, 1)) if verdicts else float(np.clip(r, 0.01, 0.99)) * 10
            prompt = " ".join(f"{v:.4f}" for v in x[i])
            rows.append(
                Rating(user=f"u{u}", prompt=prompt, rating=value, scale=(0.0, 1.0 if verdicts else 10.0), item=f"i{i}")
            )
    return rows


def _at(results: list[Result], metric: str, row: str, k: int) -> float:
    return next(r.mean for r in results if (r.metric, r.row, r.k) == (metric, row, k))


def test_tastes_are_found_and_help_almost_everybody() -> None:
    """Where users differ, hierarchical beats global, bias-only and user-only, more so with more labels."""
    found = run_ratings(_world(np.random.default_rng(0), 1.0), encoder=_Letters(), seeds=1)["dimensions"]["overall"]
    results = found["results"]
    ours = _at(results, "user rmse", "hierarchical", 20)
    assert ours < 0.6 * _at(results, "user rmse", "global", 0)
    assert ours < _at(results, "user rmse", "bias-only", 20)
    assert _at(results, "user rmse", "hierarchical", 5) < _at(results, "user rmse", "user-only", 5)
    assert ours < _at(results, "user rmse", "hierarchical", 5)
    assert found["no_harm"][-1].misses() == []
    assert found["paired"][-1].high < 0


def test_without_tastes_nothing_is_made_of_noise() -> None:
    """Where users are alike, hierarchical is global to within 1%, and hardly anybody's predictions differ."""
    found = run_ratings(_world(np.random.default_rng(1), 0.0), encoder=_Letters(), seeds=1)["dimensions"]["overall"]
    assert found["paired"][-1].relative < 0.01
    harm = found["no_harm"][-1]
    assert harm.misses() == []
    assert harm.differ < 0.1


def test_verdicts_get_probabilities() -> None:
    """Binary labels are measured by accuracy, AUC and NLL, and tastes raise the AUC."""
    rows = _world(np.random.default_rng(2), 1.5, verdicts=True)
    results = run_ratings(rows, encoder=_Letters(), seeds=2, ks=(0, 20))["dimensions"]["overall"]["results"]
    assert {r.metric for r in results} >= {"accuracy", "auc", "nll"}
    assert _at(results, "auc", "hierarchical", 20) > _at(results, "auc", "global", 0) + 0.03
    assert _at(results, "nll", "hierarchical", 20) < _at(results, "nll", "global", 0)


def test_declared_values_help_before_any_label() -> None:
    """A user's declared value that says what they like lowers the error at k = 0."""
    rng = np.random.default_rng(3)
    rows = []
    x = rng.normal(size=(40, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    for u in range(60):
        value = rng.normal()
        for i in range(40):
            y = float(np.clip(0.5 + 0.2 * value * x[i, 0] + 0.05 * rng.normal(), 0.01, 0.99))
            prompt = " ".join(f"{v:.4f}" for v in x[i])
            rows.append(
                Rating(user=f"u{u}", prompt=prompt, rating=y, scale=(0.0, 1.0), item=f"i{i}", declared={"d": value})
            )
    results = run_ratings(rows, encoder=_Letters(), seeds=1, ks=(0, 5))["dimensions"]["overall"]["results"]
    assert _at(results, "user rmse", "declared", 0) < 0.85 * _at(results, "user rmse", "hierarchical", 0)


def test_a_file_is_read_and_what_cannot_be_is_named(tmp_path: Path) -> None:
    """Bad lines come back with their number; a file without ratings, and too few users, are errors."""
    path = tmp_path / "ratings.jsonl"
    write_jsonl(path, _world(np.random.default_rng(4), 0.5, users=20))
    with path.open("a") as file:
        file.write('{"user": "u", "prompt": "p", "rating": 11, "scale": [0, 10]}\n')
    found = run_ratings(path, encoder=_Letters(), seeds=1, ks=(0, 5))
    assert [problem["line"] for problem in found["problems"]] == [20 * 45 + 1]
    path.write_text("not json\n")
    with pytest.raises(ConfigError, match="no usable row"):
        run_ratings(path, encoder=_Letters())
    with pytest.raises(ValueError, match="no dimension is large enough"):
        run_ratings(_world(np.random.default_rng(4), 0.5, users=1), encoder=_Letters())
    with pytest.raises(ValueError, match="seeds is 0"):
        run_ratings(_world(np.random.default_rng(4), 0.5, users=8), encoder=_Letters(), seeds=0)


@given(st.floats(-2, 3), st.floats(0.05, 1.0))
@settings(max_examples=15)
def test_ratings_at_the_ends_are_read_as_at_least_that(a: float, sd: float) -> None:
    """The mean after cutting off equals sampling; what a label at an end means lies beyond the end."""
    t = a + sd * np.random.default_rng(0).standard_normal(200_000)
    assert clipped_mean(np.array([a]), np.array([sd**2]))[0] == pytest.approx(np.clip(t, 0, 1).mean(), abs=0.01)
    low, high, between = latent(np.array([0.0, 1.0, 0.4]), np.full(3, a), sd)
    assert low <= 0.0
    assert high >= 1.0
    assert between == 0.4
    if (t < 0).sum() > 5000:
        assert low == pytest.approx(t[t < 0].mean(), abs=0.02)


def test_scales_hold_back_who_is_like_everybody() -> None:
    """With half of the users alike and half far apart, the first are moved less than under one Gaussian for all."""
    rng = np.random.default_rng(0)
    D = 3
    people, tastes = [], []
    for u in range(200):
        X = rng.normal(size=(12, D))
        w = (2.0 if u % 2 else 0.0) * rng.normal(size=D)
        people.append(Observations(X, X @ w + rng.normal(size=12)))
        tastes.append(w)
    prior = Prior(np.zeros(D), 2.0 * np.eye(D), 1.0)
    scales = Scales.fit(prior, people, None)
    assert scales.weight.sum() == pytest.approx(1.0)
    ours = [scales.posterior(prior, person)[0] for person in people]
    plain = [prior.posterior(person) for person in people]
    like = np.arange(0, 200, 2)
    assert np.mean([ours[u].mean @ ours[u].mean for u in like]) < 0.5 * np.mean(
        [plain[u].mean @ plain[u].mean for u in like]
    )
    error = [sum(float(((g.mean - w) ** 2).sum()) for g, w in zip(some, tastes, strict=True)) for some in (ours, plain)]
    assert error[0] < error[1]
    assert all(gaussian.valid() for gaussian in ours)


def test_one_scale_is_the_exact_posterior() -> None:
    """With all weight on s = r = 1 the mixture is the posterior of `Prior`, to 1e-10."""
    rng = np.random.default_rng(1)
    root = rng.normal(size=(5, 5))
    prior = Prior(rng.normal(size=5), root @ root.T, 0.4)
    labels = Observations(rng.normal(size=(7, 5)), rng.normal(size=7))
    weight = np.full(30, 1e-300)
    weight[3 * 5 + 2] = 1.0
    found, noise = Scales(weight).posterior(prior, labels)
    exact = prior.posterior(labels)
    np.testing.assert_allclose(found.mean, exact.mean, atol=1e-9)
    np.testing.assert_allclose(found.cov, exact.cov, atol=1e-9)
    assert noise == pytest.approx(0.4)


def test_the_crowd_says_nothing_of_unseen_users_labels() -> None:
    """What a head predicts for the crowd does not change with the labels of people it was not trained on."""
    rng = np.random.default_rng(2)
    user, item = np.repeat(np.arange(20), 15), np.tile(np.arange(15), 20)
    labels = Labels(user, item, np.clip(0.2 * rng.normal(size=20)[user] + rng.uniform(0.4, 0.6, 300), 0.01, 0.99))
    head = RatingHead(rng.normal(size=(15, 3)), labels)
    before = head.predict(np.arange(15)).mean
    head.posterior(np.arange(5), np.ones(5))
    np.testing.assert_array_equal(head.predict(np.arange(15)).mean, before)
    assert head.predict(np.arange(15), head.posterior(np.arange(5), np.full(5, 0.99))).mean.mean() > before.mean()


@pytest.mark.reproduction
@pytest.mark.skipif(not (_DATA / "pluriharms").is_dir(), reason="shared/data/pluriharms is not there")
def test_real_raters_are_served_better() -> None:
    """On PluriHarms, known prompts and no encoder at all, 20 labels lower the error by 8% or more."""
    from fitrouter_evaluators.datasets import pluriharms

    rows = pluriharms.convert(_DATA / "pluriharms")
    found = run_ratings(rows, encoder="hashing", seeds=1, ks=(0, 20), known_items=True)["dimensions"]["harm"]
    assert found["paired"][-1].relative < -0.08
    assert found["agreement"]["items"] == 150
