"""Training of the population prior (`fitrouter train prior`).

Two levels of EM. Within a source, users vary around its own w_0 (`hierarchy`). Between sources, w_0 varies around a
common mean, and a new installation is one more source:

    w_0 ~ N(μ, diag(T)),   T_j, μ_j by EM over sources, shrunk as if ν and κ plain sources had been seen

(random effects meta-analysis; DerSimonian and Laird 1986). Where sources agree the
variance is small; where they disagree it is wide, and an installation's own labels decide.

The judges saw no attacks, so guards are added: votes of small weight for judged answers against manipulated versions of
themselves (`attacks`).

Shrinkage and weight are chosen by leave-one-source-out log evidence over an uninformed prior: of the settings that cost
no source more than half a nat, those with the strongest guards, and of these the best for the source that gains least.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fitrouter.context.encoders import Encoder
from fitrouter.errors import ConfigError
from fitrouter.posterior.likelihoods import SIGNALS
from fitrouter.posterior.tastes import TasteParams, Tastes
from fitrouter.types import FeedbackKind, Floats
from fitrouter_evaluators.scoring.features import ResponseFeatures
from fitrouter_evaluators.scoring.prior import write_prior
from fitrouter_evaluators.scoring.scalar import global_scalar
from fitrouter_evaluators.training._prior_sources import PriorSource, observe, read_sets
from fitrouter_evaluators.training.attacks import guards
from fitrouter_evaluators.training.federated import Federation
from fitrouter_evaluators.training.hierarchy import Observations, Prior, Shrinkage, e_step, fit_prior

_G = 1
"""Index of the global scalar in h."""
LEVEL_VARIANCE = 0.05
"""Prior variance of the level. An installation starts with a wider one, as its scale may differ."""
SCALAR_SDS = (0.05, 0.1, 0.2)
"""Prior mean of its weight in standard deviations, positive by construction."""
PSEUDO_SOURCES = (2.0, 4.0, 8.0)
GUARDS = (0.0, 0.001, 0.003, 0.01)
"""Candidate weights of a guard."""
_COST = 0.5
"""Maximum cost of guards to a source, in nats over all of its labels."""
_GUARDED = 300
"""Answers per source that guards are made from."""
ITERATIONS = 15
"""EM steps within a source."""
_ROUNDS = 50


class _Likelihood(NamedTuple):
    """Marginal likelihood of a source's w_0, a Gaussian with precision A and A·mode = b."""

    A: Floats
    b: Floats
    labels: int


class _Population(NamedTuple):
    """Distribution N(mean, diag(variance)) of w_0 over sources."""

    mean: Floats
    variance: Floats


class _Setting(NamedTuple):
    """Hyperparameters of the pooling over sources."""

    scalar_sd: float
    pseudo_sources: float
    guard: float


def trained_features(encoder: Encoder) -> ResponseFeatures:
    """Features of a trained prior: without `HINGES`, which start alike everywhere.

    What the public judgements say of them made real people's streams worse (docs/results/people.md).
    """
    return ResponseFeatures(encoder, scalar=global_scalar(encoder), hinges=False)


def train_prior(data: Path, out: Path, encoder: Encoder) -> dict[str, Any]:
    """Train on the judgements in `data` and write the prior; returns its data sheet.

    Raises:
        ConfigError: there are no judgements.
    """
    features = trained_features(encoder)
    sources = [source for judged in read_sets(data) if (source := observe(judged, features)).users]
    if not sources:
        raise ConfigError(f"{str(data)!r} holds no judgement of a text; a rating needs a 'response', a pair its texts")
    likelihoods = [_likelihood(source, features.dim) for source in sources]
    guarded = _guards(sources, features)
    tried = [
        (setting, _left_out(likelihoods, guarded, setting))
        for setting in (_Setting(*values) for values in product(SCALAR_SDS, PSEUDO_SOURCES, GUARDS))
    ]
    setting, gains = max(tried, key=lambda found: _sort_key(found[0], found[1]))
    prior = _put_together(likelihoods, guarded, setting)
    sheet = {
        "what": "N(w_0, cov) over response features; see training.train_prior",
        "sources": [_describe(*found) for found in zip(sources, likelihoods, gains or [0.0], strict=False)],
        "schema": features.schema,
        **setting._asdict(),
        "strongest": _strongest(prior, features.names),
    }
    write_prior(out, features.names, encoder.id, {"mean": prior.mean, "cov": prior.cov}, sheet)
    return sheet


def observed(data: Path, features: ResponseFeatures) -> list[Observations]:
    """The judgements in `data`, by user: what a client of a federated fit keeps.

    Raises:
        ConfigError: there are no judgements.
    """
    users = [user for judged in read_sets(data) for user in observe(judged, features).users.values()]
    if not users:
        raise ConfigError(f"{str(data)!r} holds no judgement of a text; a rating needs a 'response', a pair its texts")
    return users


def write_federated(federation: Federation, out: Path, features: ResponseFeatures, clients: int) -> dict[str, Any]:
    """Write the prior of a federated fit, whose clients are one source; returns its data sheet.

    There are no guards: they are made from judged texts, which the clients keep.
    """
    assert federation.prior is not None
    assert federation.sums is not None
    sums, labels = federation.sums, federation.labels
    likelihood = _Likelihood(sums.A, sums.b, labels)
    setting = _Setting(SCALAR_SDS[1], PSEUDO_SOURCES[1], 0.0)
    prior = _put_together([likelihood], np.zeros((0, federation.D)), setting)
    sheet = {
        "what": "N(w_0, cov) over response features, from sums of clients who kept their votes; training.federated",
        "clients": clients,
        "users": round(sums.users, 2),
        "labels": labels,
        "refused": federation.refused,
        "schema": features.schema,
        **setting._asdict(),
        "strongest": _strongest(prior, features.names),
    }
    write_prior(out, features.names, features.encoder.id, {"mean": prior.mean, "cov": prior.cov}, sheet)
    return sheet


def _sort_key(setting: _Setting, gains: Sequence[float]) -> tuple[bool, float, float]:
    """Sort key of settings, which puts the best last."""
    least = min(gains, default=0.0)
    useful = least > -_COST
    return useful, setting.guard if useful else 0.0, least


def _describe(source: PriorSource, likelihood: _Likelihood, gain: float) -> dict[str, Any]:
    return {
        "name": source.name,
        "licence": source.licence,
        "users": len(source.users),
        "labels": likelihood.labels,
        "left_out_gain_nats": round(gain, 2),
    }


# --- within a source ---


def _likelihood(source: PriorSource, D: int) -> _Likelihood:
    users = list(source.users.values())
    prior = fit_prior(users, shrinkage=source_shrinkage(D), iterations=ITERATIONS)
    sums = e_step(prior, users)
    return _Likelihood(sums.A, sums.b, sum(len(user.y) for user in users))


def source_shrinkage(D: int) -> Shrinkage:
    """Hyperprior for fits within a source, with D features."""
    vary = np.full(D, 0.02 / max(D - 1, 1))
    vary[0] = 0.005
    ridge = np.full(D, 100.0)
    ridge[_G] = 10.0
    return Shrinkage(nu=50.0, psi=vary, ridge=ridge)


# --- between sources ---


def _plain(D: int) -> _Population:
    """Uninformed prior of an installation, on the scale of these data sets."""
    population = Tastes(D, TasteParams(population_intercept=LEVEL_VARIANCE)).population
    return _Population(population.mean.copy(), np.diag(population.cov).copy())


def _between(likelihoods: Sequence[_Likelihood], start: _Population, pseudo: float) -> _Population:
    """Fit the population between sources by EM, shrunk towards `start` by pseudo-sources; levels are fixed."""
    mean, variance = start
    for _ in range(_ROUNDS):
        covs = [np.linalg.inv(found.A + np.diag(1.0 / variance)) for found in likelihoods]
        modes = np.array([cov @ (found.b + mean / variance) for cov, found in zip(covs, likelihoods, strict=True)])
        spread = np.sum([np.diag(cov) for cov in covs], axis=0)
        n = len(likelihoods)
        mean = (modes.sum(axis=0) + pseudo * start.mean) / (n + pseudo)
        away = ((modes - mean) ** 2).sum(axis=0) + pseudo * (mean - start.mean) ** 2
        variance = (away + spread + pseudo * start.variance) / (n + 2.0 * pseudo)
        mean[0], variance[0] = start.mean[0], start.variance[0]
    return _Population(mean, variance)


def _put_together(likelihoods: Sequence[_Likelihood], guarded: Floats, setting: _Setting) -> Prior:
    """Build the prior of w_0 for a new installation: the population between sources, updated with the guards."""
    start = _plain(len(likelihoods[0].b))
    start.variance[_G] = setting.scalar_sd**2
    population = _between(likelihoods, start, setting.pseudo_sources)
    prior = Prior(population.mean, np.diag(population.variance), link="logistic")
    if not setting.guard or not len(guarded):
        return prior
    seen = Observations(guarded, np.ones(len(guarded)), np.full(len(guarded), setting.guard))
    posterior = prior.posterior(seen)
    return prior._replace(mean=posterior.mean, cov=(posterior.cov + posterior.cov.T) / 2.0)


def _guards(sources: Sequence[PriorSource], features: ResponseFeatures) -> Floats:
    """Feature differences of the guards, in the units of a pair, float64[n, D]."""
    rng = np.random.default_rng(2026)
    picked = []
    for source in sources:
        order = rng.permutation(len(source.answers))[:_GUARDED]
        picked += [source.answers[i] for i in np.sort(order) if source.answers[i].text.strip()]
    found = guards(picked, features, 1.0)
    return np.vstack([part.X for part in found]) / SIGNALS[FeedbackKind.PAIR].temperature


def _left_out(likelihoods: Sequence[_Likelihood], guarded: Floats, setting: _Setting) -> list[float]:
    """Log evidence of each source under the prior of the others, in nats over the uninformed one."""
    gains = []
    for i, found in enumerate(likelihoods):
        others = [other for j, other in enumerate(likelihoods) if j != i]
        if others:
            plain = _plain(len(found.b))
            nothing = Prior(plain.mean, np.diag(plain.variance))
            gains.append(_evidence(found, _put_together(others, guarded, setting)) - _evidence(found, nothing))
    return gains


def _evidence(found: _Likelihood, prior: Prior) -> float:
    """Log evidence of a source under a prior, log ∫ exp(−½ wᵀA w + bᵀw) N(w) dw."""
    precision = np.linalg.inv(prior.cov)
    r = found.b + precision @ prior.mean
    value = r @ np.linalg.solve(found.A + precision, r) - prior.mean @ precision @ prior.mean
    return 0.5 * float(value - np.linalg.slogdet(np.eye(len(r)) + prior.cov @ found.A)[1])


# --- what ships ---


def _strongest(prior: Prior, names: Sequence[str]) -> dict[str, list[float]]:
    """Mean and sd of the ten features with the largest absolute means, by name."""
    sd = np.sqrt(np.diag(prior.cov))
    found: dict[str, list[float]] = {}
    for i in np.argsort(-np.abs(prior.mean[1:]))[:10] + 1:
        found[names[int(i)]] = [round(float(prior.mean[i]), 4), round(float(sd[i]), 4)]
    return found
