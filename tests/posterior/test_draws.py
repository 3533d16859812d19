"""Joint draws of a person's taste and of what they think of each model."""

from __future__ import annotations

import numpy as np
from tests.posterior.test_person_draws import ANN, ARMS, D, X, fitted

from fitrouter.posterior.draws import draw_posterior, draw_ratings, sampled
from fitrouter.posterior.gaussian import Gaussian


def test_variances_that_rounding_left_below_zero_count_as_zero() -> None:
    """Of a correction, of an answer's features and of a taste: draws stay finite, and do not vary there."""
    fit = fitted(40)
    fit.arms.corrections[fit.arms.shared[ARMS[0]], :, :-1] = -1e-17 * np.eye(len(X))
    draws = draw_posterior(fit, ANN, X[None], ARMS, 50, [1])
    assert all(np.isfinite(part).all() for part in draws)
    fit.arms.spread[:] = -1e-17
    assert np.isfinite(draw_ratings(fit, ANN, X[None], ARMS, 50, [1]).ratings).all()
    certain = Gaussian(np.arange(D, dtype=float), -1e-17 * np.eye(D))
    assert (sampled(certain, 50, np.random.default_rng(1)) == certain.mean).all()
