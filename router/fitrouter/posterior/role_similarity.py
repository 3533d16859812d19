"""Where an unseen role starts: near roles whose text is like its own.

The mean of a role's taste before any label is a kernel regression over the roles that are known (Nadaraya 1964, Watson
1964), shrunk to 0 where nothing is near:

    prior(r) = Σ_j k_j m_j / (λ + Σ_j k_j c_j),    k_j = max(0, (cos(v_r, v_j) − near) / (1 − near))²

m_j is what role j's labels have taught and c_j the share of its prior variance that they removed; as a posterior mean
is about c_j of the truth, the ratio is a weighted mean of truths. Kin belong to one tenant. Vectors of role texts
arrive inside events: the fold encodes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.types import Floats, Projection

ROLES = 256
"""Role texts that are remembered; the first ones stay."""


class RoleSimilarityParams(msgspec.Struct, frozen=True, kw_only=True):
    """What counts as near."""

    near: float = 0.5
    """Cosine up to which roles are strangers: texts of a few words are never quite unlike."""
    shrink: float = 0.3
    """λ: how many perfectly known twins the absence of kin weighs."""


class KnownRoles(NamedTuple):
    """What is known of a role's taste."""

    mean: Floats
    """float64[D], as its own labels have taught it."""
    certainty: float
    """Share of the prior variance that the labels removed, in [0, 1]."""


class RoleSimilarity(Projection):
    """The fold over the vectors of role texts, and the regression over them. Roles are keys of `posterior.tastes`."""

    stored_type = list[tuple[str, bytes]]

    def __init__(self, params: RoleSimilarityParams | None = None) -> None:
        self.params = params or RoleSimilarityParams()
        self.vectors: dict[str, Floats] = {}
        """Role → float64[m] of unit length."""

    def meet(self, role: str, vector: Floats) -> bool:
        """Remember a role's text; False where the vector is none, or there is no room.

        A vector of another length comes from another encoder, whose space has nothing to do with the old one: the
        others are forgotten.
        """
        vector = np.array(vector, dtype=np.float64)
        if vector.ndim != 1 or not vector.size or not np.isfinite(vector).all():
            return False
        length = float(np.sqrt((vector * vector).sum()))
        if not 1e-6 < length < 1e6:
            return False
        if any(len(other) != len(vector) for other in self.vectors.values()):
            self.vectors = {}
        if role not in self.vectors and len(self.vectors) >= ROLES:
            return False
        self.vectors[role] = vector / length
        return True

    def likeness(self, role: str, other: str) -> float:
        """How near two roles are, in [0, 1]: 0 for strangers, for other tenants' roles, and without a text."""
        one, two = self.vectors.get(role), self.vectors.get(other)
        if one is None or two is None or _tenant(role) != _tenant(other):
            return 0.0
        above = (float(np.einsum("i,i->", one, two)) - self.params.near) / (1.0 - self.params.near)
        return min(max(above, 0.0), 1.0) ** 2

    def prior(self, role: str, tastes: Mapping[str, KnownRoles], D: int) -> Floats:
        """float64[D]: the mean that the role's taste starts from; 0 where nothing near is known.

        Args:
            role: that has no labels yet.
            tastes: of the roles that have; the role itself is left out.
            D: length of a taste.
        """
        total, weight = np.zeros(D), self.params.shrink
        for other in sorted(tastes):
            known = tastes[other]
            near = self.likeness(role, other) if other != role else 0.0
            if near > 0.0 and len(known.mean) == D and bool(np.isfinite(known.mean).all()):
                total += near * known.mean
                weight += near * min(max(known.certainty, 0.0), 1.0)
        return total / weight

    def _store(self) -> list[tuple[str, bytes]]:
        return [(role, vector.tobytes()) for role, vector in self.vectors.items()]

    def _restore(self, stored: list[tuple[str, bytes]]) -> bool:
        vectors = {role: np.frombuffer(vector, dtype=np.float64).copy() for role, vector in stored}
        unit = all(abs(float((vector * vector).sum()) - 1.0) < 1e-9 for vector in vectors.values())
        if not unit or len(vectors) != len(stored) or len(vectors) > ROLES:
            return False
        if len({len(vector) for vector in vectors.values()}) > 1:
            return False
        self.vectors = vectors
        return True


def _tenant(role: str) -> str:
    return role.partition("\x1f")[0]
