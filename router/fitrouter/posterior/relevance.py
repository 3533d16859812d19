"""Where a taste belongs: how far each feature of it counts in a task.

    a_cd = clip(b_c + f_d + e_cd, 0, 1)        score = hᵀ(w_0 + w_role) + hᵀ(a_c ⊙ δ_u + δ_{u,c})

c is the task, d the feature. b_c is the task's own level, f_d a feature's in all tasks, e_cd the rest; all are Gaussian
around a taste that counts everywhere (0, and without f, for roles marked sensitive); one label moves them by the
kernel of `posterior.gaussian`. The regressor of a_cd is h_d m_ud, the user's taste before the label; it is a posterior
mean, so its coefficient is 1 where the taste is relevant (Berkson's errors: no attenuation). How far tastes can be
relied upon at all is `Fit.reliance`. Correlations between b, f and e that labels make are left out.

A taste that is applied to every prompt alike is over-personalisation by design; `benchmarks.research.context`
measures it, and its opposite.
"""

from __future__ import annotations

import msgspec
import numpy as np

from fitrouter.posterior.gaussian import gaussian_update
from fitrouter.types import Floats, Projection

TASKS = 64
"""Tasks that have a relevance of their own, in order of appearance."""
OWN, FEATURE, REST = 0.1, 0.3, 0.3
"""Prior variances of b_c, f_d and e_cd, chosen on seeds that no table uses."""


class _Stored(msgspec.Struct, array_like=True):
    tasks: list[tuple[str, float]]
    own: bytes
    f: bytes


class Relevance(Projection):
    """The relevance a of the module, learnt from everybody's labels."""

    stored_type = _Stored

    def __init__(self, D: int) -> None:
        self.D = D
        self.tasks: dict[str, tuple[int, float]] = {}
        """Task → its row, and the level that it started from."""
        self.own = np.zeros((0, 2, 1 + D))
        """float64[T, 2, 1 + D]: means and variances of b_c and e_c."""
        self._work = np.zeros((3, 1 + 2 * D))
        """Room for one label: means, variances and gains of b and e of its task, and of f."""
        self._along = np.zeros(1 + 2 * D)
        self.f = self._work[:2, 1 + D :]
        """float64[2, D]: mean and variance of f."""
        self.f[1] = FEATURE

    def at(self, task: str, level: float = 1.0) -> Floats:
        """float64[D] in [0, 1]: only what is read is cut, not what is known."""
        row = self.tasks.get(task)
        out: Floats = level * self.f[0]
        if row is None:
            out += level
        else:
            mean = self.own[row[0], 0]
            out += mean[1:]
            out += mean[0]
        np.maximum(out, 0.0, out=out)
        return np.minimum(out, 1.0, out=out)

    def see(self, task: str, z: Floats, residual: float, noise: float, level: float = 1.0) -> None:
        """Learn that residual ≈ Σ_d a_cd z_d.

        Args:
            task: of the request.
            z: float64[D], h ⊙ m_u: what each feature of the taste would add where it is relevant.
            residual: the label minus everything impersonal.
            noise: variance of the label given the relevance.
            level: where a new task starts.
        """
        row = self.tasks[task][0] if task in self.tasks else self._begin(task, level)
        if row is None:
            return
        edge, own, along, work = 1 + self.D, self.own[row], self._along, self._work
        along[0] = np.add.reduce(z)
        along[1:edge] = z
        np.multiply(z, level, out=along[edge:])
        work[:2, :edge] = own
        mean, variance, gain = work
        np.multiply(variance, along, out=gain)
        predicted, spread = np.einsum("bi,i->b", work[::2], along).tolist()
        moved = gaussian_update(predicted, spread, residual, noise=noise)
        mean += gain * moved.step
        gain *= gain
        gain *= moved.shrink
        variance -= gain
        own[:] = work[:2, :edge]

    def _begin(self, task: str, level: float) -> int | None:
        """The row of a new task; None where there are too many."""
        if len(self.tasks) >= TASKS:
            return None
        own = np.zeros((1, 2, 1 + self.D))
        own[0, 0, 0] = level
        own[0, 1] = REST
        own[0, 1, 0] = OWN
        self.own = np.concatenate([self.own, own])
        self.tasks[task] = len(self.tasks), level
        return len(self.tasks) - 1

    def _store(self) -> _Stored:
        tasks = [(name, level) for name, (_, level) in self.tasks.items()]
        return _Stored(tasks, self.own.tobytes(), self.f.tobytes())

    def _restore(self, stored: _Stored) -> bool:
        own = np.frombuffer(stored.own).reshape(len(stored.tasks), 2, 1 + self.D).copy()
        f = np.frombuffer(stored.f).reshape(2, self.D).copy()
        sound = bool(np.isfinite(own).all() and np.isfinite(f).all() and (own[:, 1] >= 0).all() and (f[1] >= 0).all())
        tasks = {name: (row, level) for row, (name, level) in enumerate(stored.tasks)}
        if not sound or len(tasks) != len(stored.tasks):
            return False
        self.tasks, self.own = tasks, own
        self.f[:] = f
        return True
