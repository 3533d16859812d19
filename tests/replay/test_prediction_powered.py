"""Few labels of people who were asked, predictions of all, and what silence may hide."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kits.replay_logs import STICKY, make_log

from fitrouter.errors import InvalidLog
from fitrouter_evaluators.replay.log.log import Log
from fitrouter_evaluators.replay.study.outcomes import MetricOutcomes, observe_metric
from fitrouter_evaluators.replay.study.prediction_powered import (
    label_probabilities,
    labelled_sample,
    observed_means,
    powered_rewards,
    predict_labels,
    tune_predictions,
)
from fitrouter_evaluators.replay.study.sensitivity import silence_margins, tilted_means
from fitrouter_evaluators.replay.study.units import Units, closed_units

Z = 1.959963984540054


class Crowd(NamedTuple):
    """A log of answers that people would have liked, and the share of them that is true."""

    log: Log
    truth: float
    y: np.ndarray


def crowd(
    seed: int,
    n: int = 4000,
    *,
    ask: float = 0.1,
    response: tuple[float, float] = (1.0, 1.0),
    volunteers: tuple[float, float] = (0.09, 0.03),
    informed: bool = True,
    turns: int = 1,
) -> Crowd:
    """N answers of one model, judged by a reward model that is informative and miscalibrated.

    Args:
        seed: of everything.
        n: decisions.
        ask: probability of being asked.
        response: of answering when asked, if discontent and if content.
        volunteers: probability of a free label, likewise.
        informed: the score knows something.
        turns: decisions in a session.
    """
    rng = np.random.default_rng(seed)
    q = 1.0 / (1.0 + np.exp(-rng.normal(0.4, 1.2, n)))
    y = (rng.random(n) < q).astype(float)
    score = np.clip(0.25 + 0.5 * (q if informed else 0.5) + rng.normal(0.0, 0.1, n), 0.0, 1.0)
    asked = rng.random(n) < ask
    answers = rng.random(n) < np.where(y == 1.0, response[1], response[0])
    free = rng.random(n) < np.where(y == 1.0, volunteers[1], volunteers[0])
    first = np.arange(n) // turns * turns
    decisions = {"asked": asked, "asked_probability": np.full(n, ask)}
    if turns > 1:
        decisions |= {"session": first, "draw": first, "begins": first == np.arange(n)}
        decisions["mode"] = np.where(first == np.arange(n), 0, STICKY)
    outcomes = {
        "asked_label": np.where(asked & answers, y, np.nan),
        "free_label": np.where(free, y, np.nan),
        "score": score,
    }
    log = make_log(np.ones((n, 1)), np.zeros(n, dtype=int), decisions=decisions, outcomes=outcomes)
    return Crowd(log, float(q.mean()), y)


def of(log: Log, stream: str = "asked", **settings: Any) -> tuple[Units, MetricOutcomes, np.ndarray]:
    units, observed = closed_units(log, idle_s=-1.0), observe_metric(log, stream=stream)
    return units, observed, label_probabilities(units, observed, **settings)


def unit_rewards(log: Log, *, adaptive: bool = False) -> np.ndarray:
    units, observed, chance = of(log, adaptive=adaptive)
    f = tune_predictions(units, observed, predict_labels(units, observed, adaptive=adaptive), chance, adaptive=adaptive)
    return powered_rewards(units, observed, f, chance)


def alone(log: Log, stream: str) -> np.ndarray:
    """What labelled units alone say."""
    units, observed, chance = of(log, stream, adaptive=False)
    sample = labelled_sample(units, observed, chance)
    return np.asarray((sample.factor * sample.reward)[sample.keep])


def interval(x: np.ndarray) -> tuple[float, float]:
    half = Z * float(x.std(ddof=1)) / np.sqrt(len(x))
    return float(x.mean()) - half, float(x.mean()) + half


# --- who is heard ---


def test_requested_labels_are_unbiased_and_volunteered_ones_are_not() -> None:
    """If angry users volunteer three times as often, naive estimates are biased and requested labels are not.

    95% intervals over 60 logs cover in at least .9 for requested labels, with and without predictions, and hardly
    ever for all labels alike. Predictions trained on volunteered labels too make the interval narrower.
    """
    covers: dict[str, list[bool]] = {"powered": [], "adaptive": [], "asked": [], "naive": []}
    width: dict[str, list[float]] = {name: [] for name in covers}
    means: dict[str, list[float]] = {name: [] for name in covers}
    for seed in range(60):
        log, truth, _ = crowd(seed)
        rows = {
            "powered": unit_rewards(log),
            "adaptive": unit_rewards(log, adaptive=True),
            "asked": alone(log, "asked"),
            "naive": alone(log, "naive"),
        }
        for name, x in rows.items():
            low, high = interval(x)
            covers[name].append(low <= truth <= high)
            width[name].append(high - low)
            means[name].append(float(x.mean()) - truth)
    for name in ("powered", "adaptive", "asked"):
        assert np.mean(covers[name]) >= 0.9
        assert abs(np.mean(means[name])) < 4.0 * np.std(means[name]) / np.sqrt(60)
    assert np.mean(means["naive"]) < -0.05
    assert np.mean(covers["naive"]) < 0.2
    assert np.mean(width["powered"]) < 0.95 * np.mean(width["asked"])
    assert np.mean(width["adaptive"]) < 0.97 * np.mean(width["asked"])


def test_uninformative_scores_do_not_widen_intervals() -> None:
    """Power tuning: with an uninformative score the interval is about that of the labels alone."""
    pairs = []
    for seed in range(20):
        log = crowd(seed, informed=False, volunteers=(0.0, 0.0)).log
        pairs.append([interval(x)[1] - interval(x)[0] for x in (unit_rewards(log), alone(log, "asked"))])
    tuned, printable = np.mean(pairs, axis=0)
    assert tuned < 1.03 * printable


def test_labelled_units_are_weighted_by_inverse_label_probability() -> None:
    """The estimate is a mean over units, not over labels."""
    rng = np.random.default_rng(1)
    gaps = []
    for seed in range(100):
        n = 3000
        begins = rng.random(n) < 0.4
        begins[0] = True
        session = np.cumsum(begins) - 1
        turns = np.bincount(session)
        content = (rng.random(len(turns)) < np.where(turns > 2, 0.3, 0.8)).astype(float)
        asked = np.random.default_rng(seed).random(n) < 0.1
        first = np.flatnonzero(begins)[session]
        decisions = {
            "session": session,
            "draw": first,
            "begins": begins,
            "mode": np.where(begins, 0, STICKY),
            "asked": asked,
            "asked_probability": np.full(n, 0.1),
        }
        label = np.where(asked, content[session], np.nan)
        log = make_log(np.ones((n, 1)), np.zeros(n, dtype=int), decisions=decisions, outcomes={"asked_label": label})
        units, observed, chance = of(log)
        sample = labelled_sample(units, observed, chance)
        gaps.append([(sample.factor * sample.reward)[sample.keep].mean(), sample.reward[sample.keep].mean()])
        gaps[-1] -= content.mean()
    by_unit, by_label = np.mean(gaps, axis=0)
    assert abs(by_unit) < 0.01
    assert by_label < -0.05


# --- predictions ---


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_label_does_not_train_its_own_prediction(adaptive: bool) -> None:
    """Progressive: no label of its unit or a later one is used. Cross-fitted: none of its session."""
    made = crowd(5, 600, ask=0.5)
    units, observed, chance = of(made.log)
    f = predict_labels(units, observed, adaptive=adaptive)
    tuned = tune_predictions(units, observed, f, chance, adaptive=True)
    for at in (0, 100, 417):
        flipped = made.log.outcomes.asked_label.copy()
        later = slice(at, None) if adaptive else slice(at, at + 1)
        flipped[later] = 1.0 - flipped[later]
        log = made.log._replace(outcomes=made.log.outcomes._replace(asked_label=flipped))
        units, observed, chance = of(log)
        again = predict_labels(units, observed, adaptive=adaptive)
        if adaptive:
            np.testing.assert_array_equal(again[: at + 1], f[: at + 1])
            np.testing.assert_array_equal(
                tune_predictions(units, observed, again, chance, adaptive=True)[: at + 1], tuned[: at + 1]
            )
        else:
            np.testing.assert_allclose(again[at], f[at], atol=1e-9)


def test_predictions_learn_from_the_score() -> None:
    """After some hundred labels they explain nearly as much variance as the true probability."""
    made = crowd(6, 6000, ask=0.3)
    units, observed, _ = of(made.log)
    f = predict_labels(units, observed)[3000:]
    y, score = made.y[3000:], made.log.outcomes.score[3000:]
    best = np.polyval(np.polyfit(score, y, 1), score)
    assert np.mean((y - f) ** 2) < np.mean((y - best) ** 2) + 0.003
    assert np.mean((y - f) ** 2) < np.var(y) - 0.02


def test_fully_labelled_outcomes_need_no_prediction() -> None:
    """If every label was requested and given, outcomes are the labels."""
    made = crowd(7, 200, ask=1.0)
    units, observed, chance = of(made.log)
    assert (chance == 1.0).all()
    f = predict_labels(units, observed)
    assert not f.any()
    np.testing.assert_array_equal(powered_rewards(units, observed, f, chance), made.y)


def test_known_outcomes_need_no_label() -> None:
    """A failed answer is 0 with certainty; utility adds the known part of each decision to its label."""
    made = crowd(8, 400, turns=2)
    status = np.full(400, "ok", dtype=object)
    status[-40:] = "failed"
    weights = {"cost_weight": np.full(400, 0.5), "cost_unit_usd": np.ones(400)}
    log = made.log._replace(
        decisions=made.log.decisions._replace(**weights),
        outcomes=made.log.outcomes._replace(status=status, cost_usd=np.full(400, 0.1)),
    )
    units, observed, chance = of(log)
    assert (chance[-40:] == 1.0).all()
    silent = log._replace(outcomes=log.outcomes._replace(asked_label=np.full(400, np.nan)))
    assert (of(silent)[2][-40:] == 1.0).all()
    f = predict_labels(units, observed)
    fit = powered_rewards(units, observed, f, chance)
    assert (fit[-20:] == 0.0).all()
    utility = observe_metric(log, "utility", ceiling=1.0)
    np.testing.assert_allclose(powered_rewards(units, utility, f, chance), fit - 0.05, atol=1e-12)


def test_an_outcome_model_learns_from_what_was_seen() -> None:
    """Mean outcomes of the labelled decisions of each unit and their number; NaN and 0 where there are none."""
    made = crowd(9, 100, ask=0.4, turns=2)
    units, observed, _ = of(made.log)
    mean, count = observed_means(units, observed)
    label = made.log.outcomes.asked_label.reshape(-1, 2)
    np.testing.assert_array_equal(count, (~np.isnan(label)).sum(axis=1))
    assert (np.isnan(mean) == (count == 0)).all()
    heard = count > 0
    np.testing.assert_allclose(mean[heard], np.nanmean(label[heard], axis=1), rtol=1e-12)


def test_volunteered_labels_improve_predictions_without_bias() -> None:
    """Volunteered labels improve predictions; their offset keeps their bias out."""
    errors: list[list[float]] = []
    moods = []
    for seed in range(30):
        made = crowd(seed, 3000, ask=0.02, volunteers=(0.3, 0.1))
        alone_ = made.log._replace(outcomes=made.log.outcomes._replace(free_label=np.full(3000, np.nan)))
        found = [predict_labels(*of(log)[:2])[1000:] for log in (made.log, alone_)]
        errors.append([float(np.mean((made.y[1000:] - f) ** 2)) for f in found])
        moods.append(float(np.mean(found[0])) - made.truth)
    taught, untaught = np.mean(errors, axis=0)
    assert taught < untaught - 0.002
    assert abs(np.mean(moods)) < 0.06


def test_power_is_tuned_to_what_is_to_be_estimated() -> None:
    """What misleads where it matters is not trusted, whatever it is worth elsewhere; what is off throughout is shifted.

    It matters where the importance weight is large, and where labels are rare.
    """
    rng = np.random.default_rng(3)
    n = 20_000
    p = rng.random(n)
    y = (rng.random(n) < p).astype(float)
    rare = rng.random(n) < 0.5
    e = np.where(rare, 0.05, 0.9)
    asked = rng.random(n) < e
    decisions = {"asked": asked, "asked_probability": e}
    outcomes = {"asked_label": np.where(asked, y, np.nan)}
    log = make_log(np.ones((n, 1)), np.zeros(n, dtype=int), decisions=decisions, outcomes=outcomes)
    units, observed, chance = of(log, adaptive=False)

    def spread(f: np.ndarray, weight: np.ndarray) -> float:
        return float((weight * powered_rewards(units, observed, f, chance)).std())

    even = np.ones(n)
    constant, noise = np.full(n, y.mean()), rng.random(n)
    for adaptive in (True, False):

        def tuned(f: np.ndarray, weight: np.ndarray = even, adaptive: bool = adaptive) -> np.ndarray:
            return tune_predictions(units, observed, f, chance, weight=weight, adaptive=adaptive)

        assert spread(tuned(noise), even) < 1.02 * spread(constant, even) < 0.99 * spread(noise, even)
        assert spread(tuned(0.4 * p), even) < 0.97 * spread(0.4 * p, even)
        # Good where labels are common and misleading where they are rare is of no use; the reverse is.
        assert spread(tuned(np.where(rare, 1.0 - p, p)), even) < 1.02 * spread(constant, even)
        assert spread(tuned(np.where(rare, p, 1.0 - p)), even) < 0.95 * spread(constant, even)
        heavy = np.where(p > 0.5, 3.0, 0.0)
        split = np.where(p > 0.5, p, rng.random(n))
        assert spread(tuned(split, heavy), heavy) < spread(tuned(split), heavy)


def test_labels_are_weighted_by_inverse_request_probability() -> None:
    """If dissatisfied users are asked four times as often, the estimate is still the population mean."""
    rng = np.random.default_rng(4)
    n = 40_000
    content = rng.random(n) < 0.6
    e = np.where(content, 0.1, 0.4)
    asked = rng.random(n) < e
    label = np.where(asked, content, np.nan)
    decisions = {"asked": asked, "asked_probability": e}
    log = make_log(np.ones((n, 1)), np.zeros(n, dtype=int), decisions=decisions, outcomes={"asked_label": label})
    assert abs(alone(log, "asked").mean() - 0.6) < 0.02


# --- silence ---


def test_the_response_rate_is_that_of_earlier_units() -> None:
    """It starts at 1 and converges; if everyone responds it is exactly 1."""
    full = crowd(10)
    assert (of(full.log)[2] == 0.1).all()
    half = crowd(10, ask=0.5, response=(0.5, 0.5))
    units, _, chance = of(half.log)
    assert chance[0] == 0.5
    assert abs(chance[-1] - 0.25) < 0.02
    silent = half.log.outcomes.asked_label.copy()
    silent[2000:] = np.nan
    later = half.log._replace(outcomes=half.log.outcomes._replace(asked_label=silent))
    np.testing.assert_array_equal(of(later)[2][:2001], chance[:2001])
    share = of(half.log, adaptive=False)[2] / 0.5
    heard = ~np.isnan(half.log.outcomes.asked_label)
    np.testing.assert_allclose(share, heard.sum() / half.log.decisions.asked.sum(), rtol=1e-12)
    assert units.n == 4000


def test_sensitivity_bounds_cover_under_selective_response() -> None:
    """55 and 70% of those who are asked say nothing: the estimate alone is wrong, its bounds (Γ = 2) cover 95%.

    With Γ = 1 the bounds add nothing, and with Γ = ∞ they hold for every way of answering.
    """
    covers: dict[float, list[bool]] = {1.0: [], 2.0: [], np.inf: []}
    for seed in range(60):
        log, truth, _ = crowd(seed, 8000, response=(0.45, 0.3))
        units, observed, _ = of(log)
        low, high = interval(unit_rewards(log))
        for gamma, found in covers.items():
            less, more = silence_margins(units, observed, np.ones(units.n), gamma=gamma)
            found.append(low - less <= truth <= high + more)
    assert np.mean(covers[2.0]) >= 0.95
    assert np.mean(covers[1.0]) < 0.5
    assert np.mean(covers[np.inf]) == 1.0


def test_full_response_needs_no_margin() -> None:
    """Without non-response the margins are 0 for any Γ."""
    units, observed, _ = of(crowd(11).log)
    for gamma in (1.0, 2.0, np.inf):
        less, more = silence_margins(units, observed, np.ones(units.n), gamma=gamma)
        assert less == more == 0.0


@given(st.floats(0.01, 0.99), st.floats(1.0, 50.0))
def test_tilted_means_of_thumbs_match_the_formula(share: float, gamma: float) -> None:
    """μ / (μ + Γ (1 − μ)) and Γ μ / (Γ μ + 1 − μ)."""
    low, high = tilted_means(np.array([0.0, 1.0]), np.array([1.0 - share, share]), gamma)
    np.testing.assert_allclose(low, share / (share + gamma * (1.0 - share)), rtol=1e-9)
    np.testing.assert_allclose(high, gamma * share / (gamma * share + 1.0 - share), rtol=1e-9)


@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.01, 5.0), st.floats(0.0, 1.0)), min_size=1, max_size=12),
    st.floats(1.0, 20.0),
)
def test_tilted_means_are_sharp(rows: list[tuple[float, float, float]], gamma: float) -> None:
    """Odds ratios between 1 and Γ give means between the two limits; ratios of 1 and Γ alone attain each limit."""
    y, weight, odds = (np.array(column) for column in zip(*sorted(rows), strict=True))
    low, high = tilted_means(y, weight, gamma)
    tilt = weight * (1.0 + odds * (gamma - 1.0))
    mean = float((tilt * y).sum() / tilt.sum())
    assert low - 1e-12 <= mean <= high + 1e-12
    reached = []
    for cut in range(len(y) + 1):
        for first, last in ((gamma, 1.0), (1.0, gamma)):
            tilt = weight * np.where(np.arange(len(y)) < cut, first, last)
            reached.append(float((tilt * y).sum() / tilt.sum()))
    np.testing.assert_allclose([low, high], [min(reached), max(reached)], atol=1e-12)


def test_extreme_gammas() -> None:
    """Γ = ∞ gives worst and best case; Γ = 1 the respondents' mean; without respondents any Γ acts as ∞."""
    y, weight = np.array([0.3, 0.6]), np.array([1.0, 1.0])
    assert tilted_means(y, weight, np.inf) == (0.0, 1.0)
    np.testing.assert_allclose(tilted_means(y, weight, 1.0), (0.45, 0.45), rtol=1e-12)
    assert tilted_means(np.zeros(0), np.zeros(0), 2.0) == (0.0, 1.0)


def test_margins_of_a_difference_add_up() -> None:
    """Non-response under positive and negative weights is bounded separately; worked example."""
    n = 8
    label = np.array([1.0, 0.0, np.nan, np.nan, 1.0, 0.0, 0.0, np.nan])
    log = make_log(np.ones((n, 1)), np.zeros(n, dtype=int), outcomes={"asked_label": label})
    units, observed, _ = of(log)
    u = np.array([1.0, 1.0, 2.0, 1.0, -1.0, -1.0, -1.0, -2.0])
    less, more = silence_margins(units, observed, u, gamma=2.0)
    # Positive: μ = 1/2, from 1/3 to 2/3, on a mass of 3. Negative: μ = 1/3, from 1/5 to 1/2, on a mass of 2.
    np.testing.assert_allclose(less, (3.0 * (1 / 2 - 1 / 3) + 2.0 * (1 / 2 - 1 / 3)) / n, rtol=1e-12)
    np.testing.assert_allclose(more, (3.0 * (2 / 3 - 1 / 2) + 2.0 * (1 / 3 - 1 / 5)) / n, rtol=1e-12)
    swapped = silence_margins(units, observed, -u, gamma=2.0)
    np.testing.assert_allclose(swapped, [more, less], rtol=1e-12)


def test_margins_of_a_slice_use_its_own_units() -> None:
    """Each slice's margins equal those of a log without the other units."""
    made = crowd(12, 1000, ask=0.5, response=(0.7, 0.4))
    units, observed, _ = of(made.log)
    rng = np.random.default_rng(1)
    u, part = rng.normal(size=units.n), rng.integers(-1, 3, units.n)
    for s in range(3):
        found = silence_margins(units, observed, u, rows=np.flatnonzero(part == s))
        alone = silence_margins(units.select(part == s), observed, u[part == s])
        np.testing.assert_allclose(found, alone, rtol=1e-12)


def test_without_respondents_margins_are_maximal() -> None:
    """All unanswered mass may have any label, on both sides and for any Γ."""
    log = make_log(np.ones((4, 1)), np.zeros(4, dtype=int))
    units, observed, _ = of(log)
    less, more = silence_margins(units, observed, np.array([1.0, 2.0, -1.0, 0.0]), gamma=1.5)
    assert less == more == 1.0


def test_gamma_below_one_is_refused() -> None:
    """Γ is the ratio of larger to smaller odds."""
    units, observed, _ = of(crowd(13, 50).log)
    with pytest.raises(InvalidLog, match="at least 1"):
        silence_margins(units, observed, np.ones(50), gamma=0.5)
