"""Crossed random effects (judges, items, tests, features) as one Gaussian process.

    y = constant + Σ_j f_j + ε,   f_j ~ N(0, v_j K_j)

K_j says which labels share an effect: a block of ones where they share a judge, a story, a judge and a test, or a
kernel of features. Variances v_j maximise the marginal likelihood of training labels times a wide log-normal prior.
Test-then-learn predictions of a whole sequence come from one Cholesky factor: with C = L Lᵀ and L z = y, row i given
all rows before it has mean y_i − L_ii z_i and standard deviation L_ii.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fitrouter.types import Floats

_FLOOR = -9.0
_WIDE = 4.0


class Variances(NamedTuple):
    """Variances of the kernels, float64[kernels], and of the noise; the constant has variance 4."""

    kernels: Floats
    noise: float


def same(names: ArrayLike) -> Floats:
    """Return the kernel that is 1 where two labels share a name, float64[n, n]."""
    code = np.unique(np.asarray(names), return_inverse=True)[1]
    out: Floats = (code[:, None] == code[None]).astype(np.float64)
    return out


def covariance(kernels: Sequence[Floats], variances: Variances) -> Floats:
    """Return the covariance of the labels, float64[n, n]."""
    out: Floats = np.eye(len(kernels[0])) * variances.noise + _WIDE
    for kernel, variance in zip(kernels, variances.kernels, strict=True):
        out = out + variance * kernel
    return out


def fit_variances(kernels: Sequence[Floats], y: Floats, iterations: int = 25) -> Variances:
    """Fit the variances that explain y float64[n] best."""
    from scipy.linalg import cho_solve, cholesky
    from scipy.optimize import minimize

    n, spread = len(y), float(np.var(y))
    eye = np.eye(n)

    def worth(t: Floats) -> tuple[float, Floats]:
        C = covariance(kernels, Variances(np.exp(t[:-1]), float(np.exp(t[-1]))))
        L = cholesky(C, lower=True, check_finite=False)
        a = cho_solve((L, True), y, check_finite=False)
        pull = cho_solve((L, True), eye, check_finite=False) - np.outer(a, a)
        slopes = [0.5 * np.exp(v) * float((pull * kernel).sum()) for v, kernel in zip(t[:-1], kernels, strict=True)]
        slopes.append(0.5 * float(np.exp(t[-1]) * np.trace(pull)))
        away = t + 3.0
        value = float(np.log(np.diag(L)).sum() + 0.5 * y @ a + 0.05 * (away**2).sum())
        return value, np.array(slopes) + 0.1 * away

    start = np.log(np.array([0.1 * spread / max(len(kernels), 1)] * len(kernels) + [0.6 * spread]))
    bounds = [(_FLOOR, 2.0)] * len(start)
    found = minimize(worth, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": iterations}).x
    return Variances(np.exp(found[:-1]), float(np.exp(found[-1])))


def test_then_learn(C: Floats, y: Floats) -> Floats:
    """Predict the mean of each label given those before it, float64[n]."""
    from scipy.linalg import cholesky, solve_triangular

    L = cholesky(C, lower=True, check_finite=False)
    out: Floats = y - np.diag(L) * solve_triangular(L, y, lower=True, check_finite=False)
    return out


test_then_learn.__test__ = False  # type: ignore[attr-defined]  # its name is not a test's


def given(C: Floats, y: Floats, known: int) -> Floats:
    """Predict the labels after the first `known` from those alone, float64[n − known]."""
    out: Floats = C[known:, :known] @ np.linalg.solve(C[:known, :known], y[:known])
    return out
