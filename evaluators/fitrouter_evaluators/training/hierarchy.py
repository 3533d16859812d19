"""Hierarchical taste model: population prior by EM over many users, and a user's posterior under it.

    w_u ~ N(w_0 + Γ v_u, Σ),   y = xᵀw_u + ε, ε ~ N(0, σ²)   or   P(y = 1) = σ(xᵀw_u)

v_u are the user's declared values. The likelihood of a user's labels in w_u is, at its mode, a Gaussian with precision
G and G·mode = r (exact for the Gaussian link, Laplace for the logistic one), so both links share one EM. Its sufficient
statistics are sums over users (`Sums`), so that clients can compute and send only their own sums (federated EM).
`fitrouter.posterior.gaussian` has the sequential form of the same posterior; this is the batch form.

Source: EM for Gaussian mixed models (Laird and Ware 1982), with an inverse Wishart prior of ν pseudo-users and scale ψ
on Σ; for the logistic link, Laplace's approximation in the E step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.posterior.gaussian import Gaussian
from fitrouter.types import Floats

Link = Literal["gaussian", "logistic"]

_STEPS = 50
_FLOOR = 1e-9


class Observations(NamedTuple):
    """One user's labels: y float64[n] along the rows of X float64[n, D], each counted `weight` times (once if None).

    `logistic` marks rows with a logistic link, log odds xᵀw + offset: with it a Gaussian prior takes ratings and
    choices of one user together.
    """

    X: Floats
    y: Floats
    weight: Floats | None = None
    logistic: NDArray[np.bool_] | None = None
    offset: Floats | None = None


class Shrinkage(NamedTuple):
    """Hyperprior: strength of the shrinkage of the prior.

    Σ is estimated as if ν more users had been seen whose tastes vary by ψ in each direction (float64[D] or one number
    for all); w_0 and Γ have Gaussian priors around 0 with precisions `ridge` and `ridge_declared`, but for the first
    feature, the intercept, which is free.
    """

    nu: float = 10.0
    psi: float | Floats = 0.02
    ridge: float | Floats = 5.0
    ridge_declared: float = 20.0


class Prior(NamedTuple):
    """Prior of tastes, N(mean + Γ v, cov) over float64[D], with the link and, if Gaussian, the noise variance."""

    mean: Floats
    cov: Floats
    noise: float = 1.0
    link: Link = "gaussian"
    gamma: Floats | None = None
    """Γ, float64[D, P]: effect of declared values on the mean."""

    def centre(self, declared: Floats | None = None) -> Floats:
        """Mean taste of a user, float64[D], given declared values float64[P]."""
        return self.mean if declared is None or self.gamma is None else self.mean + self.gamma @ declared

    def at(self, declared: Floats | None = None) -> Gaussian:
        """Posterior of a user without labels."""
        return Gaussian(self.centre(declared), self.cov)

    def posterior(self, labels: Observations, declared: Floats | None = None) -> Gaussian:
        """Posterior of a user after all of their labels."""
        if not len(labels.y):
            return self.at(declared)
        fitted = _fit_user(self, _inverse(self.cov), _labels(self, labels), self.centre(declared))
        return Gaussian(fitted.mean, fitted.cov)


class _User(NamedTuple):
    """Posterior N(mean, cov) of a user, and their likelihood at its mode as precision G and r = G·mode."""

    mean: Floats
    cov: Floats
    G: Floats
    r: Floats


class Sums(NamedTuple):
    """Sufficient statistics of the M step; they add over groups of users."""

    users: float
    scatter: Floats
    """Σ S_u + (m_u − μ_u)(m_u − μ_u)ᵀ, float64[D, D]."""
    A: Floats
    b: Floats
    """Normal equations of (w_0, Γ), float64[D(1 + P), D(1 + P)] and float64[D(1 + P)]."""
    residual: float
    """Σ E[(y − xᵀw)²], weighted."""
    labels: float

    def plus(self, other: Sums) -> Sums:
        """The sums of both groups."""
        pairs: Iterable[tuple[Any, Any]] = zip(self, other, strict=True)
        return Sums._make(mine + theirs for mine, theirs in pairs)


def e_step(prior: Prior, users: Sequence[Observations], declared: Floats | None = None) -> Sums:
    """Sufficient statistics of users under a prior; declared is float64[U, P]."""
    D = len(prior.mean)
    P = 0 if declared is None else declared.shape[1]
    precision = _inverse(prior.cov)
    scatter, A, b = np.zeros((D, D)), np.zeros((D * (1 + P), D * (1 + P))), np.zeros(D * (1 + P))
    residual = labels = 0.0
    for i, user in enumerate(users):
        own, v = _labels(prior, user), None if declared is None else declared[i]
        centre = prior.centre(v)
        fitted = _fit_user(prior, precision, own, centre)
        away = fitted.mean - centre
        scatter += fitted.cov + np.outer(away, away)
        # Marginal likelihood of the centre, w_u integrated out: G − G S G = Σ⁻¹ S G, without the cancellation.
        seen = precision @ fitted.cov @ fitted.G
        seen = (seen + seen.T) / 2.0
        pull = precision @ (fitted.cov @ fitted.r)
        z = None if v is None else np.concatenate([[1.0], v])
        A += seen if z is None else np.kron(np.outer(z, z), seen)
        b += pull if z is None else np.kron(z, pull)
        weight = own.weight * ~own.logistic
        if weight.any():
            errors = (own.y - own.X @ fitted.mean) ** 2 + np.einsum("ni,ij,nj->n", own.X, fitted.cov, own.X)
            residual += float(weight @ errors)
            labels += float(weight.sum())
    return Sums(float(len(users)), scatter, A, b, residual, labels)


def m_step(prior: Prior, sums: Sums, shrinkage: Shrinkage) -> Prior:
    """Update the prior from sufficient statistics, with shrinkage."""
    D = len(prior.mean)
    P = len(sums.b) // D - 1
    ridge = np.broadcast_to(np.asarray(shrinkage.ridge, dtype=np.float64), D).copy()
    ridge[0] = 1e-6
    penalty = np.concatenate([ridge, np.full(D * P, shrinkage.ridge_declared)])
    found = np.linalg.solve(sums.A + np.diag(penalty), sums.b).reshape(1 + P, D).astype(np.float64)
    gamma = found[1:].T if P else None
    psi = np.broadcast_to(np.asarray(shrinkage.psi, dtype=np.float64), D)
    cov = (sums.scatter + shrinkage.nu * np.diag(psi)) / (sums.users + shrinkage.nu)
    noise = sums.residual / sums.labels if prior.link == "gaussian" and sums.labels else prior.noise
    return Prior(found[0], _definite(cov), max(noise, _FLOOR), prior.link, gamma)


def fit_prior(
    users: Sequence[Observations],
    *,
    link: Link = "gaussian",
    shrinkage: Shrinkage | None = None,
    declared: Floats | None = None,
    iterations: int = 20,
) -> Prior:
    """Fit the prior to users by EM.

    Args:
        users: at least one user with labels; features of about unit variance, the first is the constant 1.
        link: gaussian for ratings, logistic for labels in [0, 1] that are probabilities.
        shrinkage: hyperprior.
        declared: float64[U, P], declared values of each user; None to learn no Γ.
        iterations: EM steps.

    Raises:
        ValueError: there are no labels, or shapes or numbers that cannot be.
    """
    _check(users, declared, link)
    shrinkage = shrinkage or Shrinkage()
    X, y = np.vstack([user.X for user in users]), np.concatenate([user.y for user in users])
    D = X.shape[1]
    psi = np.broadcast_to(np.asarray(shrinkage.psi, dtype=np.float64), D)
    gamma = None if declared is None else np.zeros((D, declared.shape[1]))
    prior = Prior(np.zeros(D), np.diag(psi) + _FLOOR * np.eye(D), max(float(np.var(y)), _FLOOR), link, gamma)
    if link == "gaussian":
        prior = prior._replace(mean=np.linalg.solve(X.T @ X + 5.0 * np.eye(D), X.T @ y))
    for _ in range(iterations):
        prior = m_step(prior, e_step(prior, users, declared), shrinkage)
    return prior


def evidence(prior: Prior, users: Sequence[Observations], declared: Floats | None = None) -> float:
    """Log evidence of users under a prior, Σ log p(labels of u); Laplace for the logistic link."""
    precision = _inverse(prior.cov)
    total = 0.0
    for i, user in enumerate(users):
        centre = prior.centre(None if declared is None else declared[i])
        labels = _labels(prior, user)
        fitted = _fit_user(prior, precision, labels, centre)
        away = fitted.mean - centre
        _, logdet = np.linalg.slogdet(np.eye(len(centre)) + prior.cov @ fitted.G)
        total += labels.log_likelihood(fitted.mean)
        total -= 0.5 * float(away @ precision @ away + logdet)
    return total


# --- one user ---


class _Labels(NamedTuple):
    """A user's labels as `Observations`, with the defaults filled in."""

    X: Floats
    y: Floats
    weight: Floats
    logistic: NDArray[np.bool_]
    offset: Floats | float
    noise: float

    def log_likelihood(self, m: Floats) -> float:
        """Weighted log likelihood of the labels, Σ log p(y | xᵀm)."""
        a = self.X @ m
        b = a + self.offset
        out = self.y * b - np.logaddexp(0.0, b)
        if not self.logistic.all():
            gaussian = -0.5 * ((self.y - a) ** 2 / self.noise + np.log(2.0 * np.pi * self.noise))
            out = np.where(self.logistic, out, gaussian)
        return float(self.weight @ out)

    def slopes(self, m: Floats) -> tuple[Floats, Floats]:
        """First and minus second derivative of the log likelihood in m: float64[D], float64[D, D]."""
        a = self.X @ m
        p = sigmoid(a + self.offset)
        score, curvature = self.y - p, p * (1.0 - p)
        if not self.logistic.all():
            score = np.where(self.logistic, score, (self.y - a) / self.noise)
            curvature = np.where(self.logistic, curvature, 1.0 / self.noise)
        return self.X.T @ (self.weight * score), (self.X * (self.weight * curvature)[:, None]).T @ self.X


def _labels(prior: Prior, user: Observations) -> _Labels:
    return _Labels(
        user.X,
        user.y,
        np.ones(len(user.y)) if user.weight is None else user.weight,
        np.full(len(user.y), prior.link == "logistic") if user.logistic is None else user.logistic,
        0.0 if user.offset is None else user.offset,
        prior.noise,
    )


def _fit_user(prior: Prior, precision: Floats, labels: _Labels, centre: Floats) -> _User:
    """Posterior of one user: closed form where all rows are Gaussian, else damped Newton to the mode."""
    if not labels.logistic.any():
        G = (labels.X * (labels.weight / prior.noise)[:, None]).T @ labels.X
        r = labels.X.T @ (labels.weight * labels.y) / prior.noise
        cov = _inverse(precision + G)
        return _User(cov @ (precision @ centre + r), cov, G, r)

    def objective(m: Floats) -> float:
        away = m - centre
        return labels.log_likelihood(m) - 0.5 * float(away @ precision @ away)

    m = centre.copy()
    value = objective(m)
    for _ in range(_STEPS):
        score, G = labels.slopes(m)
        step = np.linalg.solve(precision + G, score - precision @ (m - centre))
        scale, reached = 1.0, objective(m + step)
        while reached < value - 1e-12 * abs(value) and scale > 1e-6:
            scale /= 2.0
            reached = objective(m + scale * step)
        m, value = m + scale * step, reached
        if np.abs(step).max() < 1e-12 * max(1.0, float(np.abs(m).max())):
            break
    score, G = labels.slopes(m)
    return _User(m, _inverse(precision + G), G, G @ m + score)


def _inverse(matrix: Floats) -> Floats:
    return np.linalg.inv(matrix).astype(np.float64)


def sigmoid(a: Floats) -> Floats:
    """σ(a) = 1 / (1 + exp(−a)), without overflow."""
    out: Floats = 0.5 * (1.0 + np.tanh(0.5 * a))
    return out


def _definite(cov: Floats) -> Floats:
    """Nearest symmetric positive definite matrix."""
    values, vectors = np.linalg.eigh((cov + cov.T) / 2.0)
    out: Floats = (vectors * np.maximum(values, max(_FLOOR, 1e-6 * float(values[-1])))) @ vectors.T
    return out


def _check(users: Sequence[Observations], declared: Floats | None, link: str) -> None:
    if link not in ("gaussian", "logistic"):
        raise ValueError(f"link is {link!r}; allowed are 'gaussian' and 'logistic'")
    if not users or not sum(len(user.y) for user in users):
        raise ValueError("no labels at all; a prior is learnt from at least one user with labels")
    if declared is not None and len(declared) != len(users):
        raise ValueError(f"declared has {len(declared)} rows for {len(users)} users; give one row a user")
    for i, user in enumerate(users):
        if user.X.ndim != 2 or len(user.X) != len(user.y):
            raise ValueError(f"user {i} has X {user.X.shape} for {len(user.y)} labels; X is [labels, features]")
        if not (np.isfinite(user.X).all() and np.isfinite(user.y).all()):
            raise ValueError(f"user {i} has features or labels that are no finite numbers; fill what is missing first")
        if link == "logistic" and not ((user.y >= 0) & (user.y <= 1)).all():
            raise ValueError(f"user {i} has labels outside [0, 1]; the logistic link needs probabilities")
