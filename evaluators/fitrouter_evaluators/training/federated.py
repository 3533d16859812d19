"""Federated estimate of the population prior: clients keep their votes and send sums.

EM of `hierarchy.fit_prior` needs of a group of users only sums, which add over groups. In each round the coordinator
sends the prior, and every client answers with the sums of its users as one vector. Without noise the result is the
central fit's up to rounding.

Two bounds protect against clients and against the coordinator:

* A vector v is scaled by min(1, clip / |v|), by the client before it leaves, and again by the coordinator. A client
  that is clipped counts as if it had fewer users. The coordinator's default is twice the median norm of the
  round, which a minority cannot move (adaptive clipping; Andrew et al. 2021, arXiv:1905.03871).
* A client adds Gaussian noise with standard deviation noise · clip to every number (Abadi et al. 2016,
  arXiv:1607.00133, with a client in the place of an example).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.training.hierarchy import Observations, Prior, Shrinkage, Sums, e_step, m_step

MEDIANS = 2.0
"""Default clip of the coordinator, in median norms of a round."""

_LARGEST = 1e100
"""Of a number in a vector; squares of larger ones overflow. NaN is not smaller either."""


class Federation:
    """Coordinator of a fit. Every round: give `prior` to all clients, `take` their vectors.

    Args:
        D: number of features.
        shrinkage: hyperprior.
        iterations: EM steps.
        clip: largest norm of a client's vector; by default relative to the others'.
    """

    def __init__(self, D: int, shrinkage: Shrinkage, *, iterations: int = 15, clip: float | None = None) -> None:
        self.D, self.labels = D, 0
        self.prior: Prior | None = None
        self.rounds = iterations + 2
        """The first gives the start, the last the sums under the final prior."""
        self.sums: Sums | None = None
        self.refused = 0
        """Vectors that were no sums."""
        self._shrinkage, self._clip, self._left = shrinkage, clip, iterations

    def take(self, vectors: Sequence[Floats]) -> None:
        """Add up the vectors of a round, and update the prior.

        Raises:
            ValueError: no client sent usable sums.
        """
        size = _start_size(self.D) if self.prior is None else _sums_size(self.D)
        usable = [v for v in vectors if v.shape == (size,) and np.abs(v).max() < _LARGEST]
        self.refused += len(vectors) - len(usable)
        if not usable:
            raise ValueError("no client sent usable sums; check that all have the coordinator's version and encoder")
        clip = self._clip or MEDIANS * float(np.median([np.linalg.norm(v) for v in usable]))
        total = np.sum([clipped(v, clip) for v in usable], axis=0)
        if self.prior is None:
            self.prior, self.labels = _started(total, self.D, self._shrinkage), round(max(float(total[0]), 0.0))
            return
        self.sums = _unpacked(total, self.D)
        if self._left:
            self.prior, self._left = m_step(self.prior, self.sums, self._shrinkage), self._left - 1


def client_sums(
    prior: Prior | None,
    users: Sequence[Observations],
    *,
    clip: float = math.inf,
    noise: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Floats:
    """The vector that a client sends in a round.

    Args:
        prior: of this round; None in the first.
        users: whose labels stay here.
        clip: largest norm.
        noise: standard deviation of the noise, in clips.
        rng: source of the noise; by default the system's.

    Raises:
        ValueError: noise without a clip would hide nothing.
    """
    if noise and not math.isfinite(clip):
        raise ValueError("noise needs a clip: the noise hides sums up to that norm")
    found = clipped(_start_sums(users) if prior is None else _packed(e_step(prior, users)), clip)
    if noise:
        found = found + (rng or np.random.default_rng()).normal(0.0, noise * clip, len(found))
    return found


def clipped(vector: Floats, clip: float) -> Floats:
    """A vector scaled to a norm of at most `clip`."""
    norm = float(np.linalg.norm(vector))
    return vector if norm <= clip else vector * (clip / norm)


def _start_sums(users: Sequence[Observations]) -> Floats:
    """Sums over all labels as one vector: n, Σy, Σy², Xᵀy and XᵀX."""
    X, y = np.vstack([user.X for user in users]), np.concatenate([user.y for user in users])
    return np.concatenate([[len(y), y.sum(), y @ y], X.T @ y, (X.T @ X).ravel()])


def _started(total: Floats, D: int, shrinkage: Shrinkage) -> Prior:
    """Compute from summed labels the prior that `fit_prior` would start from."""
    n, mean = max(float(total[0]), 1.0), float(total[1]) / max(float(total[0]), 1.0)
    gram = _semidefinite(total[3 + D :].reshape(D, D))
    psi = np.broadcast_to(np.asarray(shrinkage.psi, dtype=np.float64), D)
    start = np.linalg.solve(gram + 5.0 * np.eye(D), total[3 : 3 + D]).astype(np.float64)
    return Prior(start, np.diag(psi) + 1e-9 * np.eye(D), max(float(total[2]) / n - mean**2, 1e-9))


def _start_size(D: int) -> int:
    return 3 + D + D * D


def _packed(sums: Sums) -> Floats:
    counts = np.array([sums.users, sums.residual, sums.labels])
    return np.concatenate([counts, sums.b, sums.scatter.ravel(), sums.A.ravel()])


def _unpacked(total: Floats, D: int) -> Sums:
    """Read sums from a vector; values that noise or an attack made impossible are moved to possible ones."""
    users, residual, labels = (max(float(value), 0.0) for value in total[:3])
    scatter, A = (_semidefinite(part.reshape(D, D)) for part in np.split(total[3 + D :], 2))
    return Sums(users, scatter, A, total[3 : 3 + D].copy(), residual, labels)


def _sums_size(D: int) -> int:
    return 3 + D + 2 * D * D


def _semidefinite(matrix: Floats) -> Floats:
    """A symmetric matrix; if noise or an attack gave it negative eigenvalues, small positive ones in their place."""
    matrix = (matrix + matrix.T) / 2.0
    values, vectors = np.linalg.eigh(matrix)
    if values[0] >= -1e-9 * max(float(values[-1]), 1.0):
        return matrix
    out: Floats = (vectors * np.maximum(values, 1e-6 * max(float(values[-1]), 1.0))) @ vectors.T
    return out
