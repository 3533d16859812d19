"""Where a taste belongs: how far each feature of it counts in a task.

    a_cd = clip(b_c + f_d + e_cd, 0, 1)        score = hᵀ(w_0 + w_role) + hᵀ(a_c ⊙ δ_u + δ_{u,c})

c is the task, d the feature. b_c is the task's own level, f_d a feature's in all tasks, e_cd the rest; all are Gaussian
around a taste that counts everywhere (0, and without f, for roles marked sensitive); one label moves them by the
kernel of `fitrouter.taste`. The regressor of a_cd is h_d m_ud, the user's taste before the label; it is a posterior
mean, so its coefficient is 1 where the taste is relevant (Berkson's errors: no attenuation). How far tastes can be
relied upon at all is `Fit.reliance`. Correlations between b, f and e that labels make are left out.

A taste that is applied to every prompt alike is over-personalisation by design; `fitrouter_evaluators.bench.context`
measures it, and its opposite.
"""

from __future__ import annotations

import msgspec
import numpy as np

from fitrouter.people import canonical_role
from fitrouter.taste import innovate
from fitrouter.types import Floats, Identity

__all__ = ["FEATURE", "OWN", "REST", "Relevance", "task_of"]

TASKS = 64
"""Tasks that have a relevance of their own, in order of appearance."""
_BITS = 4
OWN, FEATURE, REST = 0.1, 0.3, 0.3
"""Prior variances of b_c, f_d and e_cd, chosen on seeds that no table uses."""


def task_of(identity: Identity, x: Floats) -> str:
    """The task of a request: the client's label, else one of 16 clusters of prompts.

    The clusters are the orthants of the four leading text directions of x, which are ordered by variance: they need no
    data and never change.
    """
    if identity.task:
        return f"task {canonical_role(identity.task)}"
    signs = x[1 : 1 + _BITS] > 0.0
    return f"cluster {sum(int(sign) << i for i, sign in enumerate(signs))}"


class _Stored(msgspec.Struct, array_like=True):
    tasks: list[tuple[str, float]]
    b: bytes
    f: bytes
    e: bytes


class Relevance:
    """The relevance a of the module, learnt from everybody's labels."""

    def __init__(self, D: int) -> None:
        self.D = D
        self.tasks: dict[str, tuple[int, float]] = {}
        """Task → its row, and the level that it started from."""
        self.b = np.zeros((0, 2))
        self.f = np.stack([np.zeros(D), np.full(D, FEATURE)])
        self.e = np.zeros((0, 2, D))
        """Means and variances: float64[T, 2], [2, D] and [T, 2, D]."""

    def at(self, task: str, level: float = 1.0) -> Floats:
        """float64[D] in [0, 1]: only what is read is cut, not what is known."""
        row = self.tasks.get(task)
        own = level if row is None else self.b[row[0], 0] + self.e[row[0], 0]
        out: Floats = np.clip(own + level * self.f[0], 0.0, 1.0)
        return out

    def see(self, task: str, z: Floats, residual: float, noise: float, level: float = 1.0) -> None:
        """Learn that residual ≈ Σ_d a_cd z_d.

        Args:
            task: of the request.
            z: float64[D], h ⊙ m_u: what each feature of the taste would add where it is relevant.
            residual: the label minus everything impersonal.
            noise: variance of the label given the relevance.
            level: where a new task starts.
        """
        if task not in self.tasks:
            if len(self.tasks) >= TASKS:
                return
            self.tasks[task] = len(self.tasks), level
            self.b = np.concatenate([self.b, [[level, OWN]]])
            self.e = np.concatenate([self.e, [[np.zeros(self.D), np.full(self.D, REST)]]])
        row = self.tasks[task][0]
        b, f, e = self.b[row], self.f, self.e[row]
        total = float(np.einsum("i->", z))
        b_gain, f_gain, e_gain = b[1] * total, level * f[1] * z, e[1] * z
        spread = float(b_gain * total + np.einsum("i,i->", level * f_gain + e_gain, z))
        predicted = float(b[0] * total + np.einsum("i,i->", level * f[0] + e[0], z))
        moved = innovate(predicted, spread, residual, noise=noise)
        self.b = self.b.copy()
        self.b[row] = b[0] + b_gain * moved.step, b[1] - b_gain * b_gain * moved.shrink
        self.f = np.stack([f[0] + f_gain * moved.step, f[1] - f_gain * f_gain * moved.shrink])
        self.e = self.e.copy()
        self.e[row] = e[0] + e_gain * moved.step, e[1] - e_gain * e_gain * moved.shrink

    def dump(self) -> bytes:
        """The state, exactly."""
        tasks = [(name, level) for name, (_, level) in self.tasks.items()]
        return msgspec.msgpack.encode(_Stored(tasks, self.b.tobytes(), self.f.tobytes(), self.e.tobytes()))

    def load(self, payload: bytes) -> bool:
        """Restore the state; False, and unchanged, where the bytes cannot be what `dump` made."""
        try:
            stored = msgspec.msgpack.decode(payload, type=_Stored)
            T = len(stored.tasks)
            b = np.frombuffer(stored.b).reshape(T, 2).copy()
            f = np.frombuffer(stored.f).reshape(2, self.D).copy()
            e = np.frombuffer(stored.e).reshape(T, 2, self.D).copy()
        except (msgspec.DecodeError, ValueError):
            return False
        if not all(np.isfinite(part).all() for part in (b, f, e)) or min([*b[:, 1], f[1].min(), *e[:, 1].ravel()]) < 0:
            return False
        self.tasks = {name: (row, level) for row, (name, level) in enumerate(stored.tasks)}
        self.b, self.f, self.e = b, f, e
        return True
