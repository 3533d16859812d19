"""Text model: the rating explained by an answer's text, through tastes of population, role and user.

    hᵀ(w_0 + w_role + a ⊙ δ_u)

Text only, no model's name: what a label says beyond it is `fitrouter.posterior.offsets`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.identity import canonical_role
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.labels import FitParams, Label
from fitrouter.posterior.likelihoods import Observation
from fitrouter.posterior.people import Person
from fitrouter.posterior.relevance import Relevance
from fitrouter.posterior.tastes import OVERALL, Block, TastePrior, Tastes, learn
from fitrouter.types import FeedbackKind, Floats, Identity


class RelevantTaste(NamedTuple):
    """A user's taste and its relevance to a request; arrays are float64[D]."""

    level: float
    """Prior level of the relevance: 1, or 0 for sensitive roles."""
    relevance: Floats
    learnt: Floats
    """δ_u without declared values."""


class TextPrediction(NamedTuple):
    """Prediction of a label from its text, before the label."""

    impersonal: float = 0.0
    """hᵀw of the population, including the user's declared values."""
    role: float = 0.0
    user: float = 0.0
    variance: float = 0.0
    """Variance of the sum; 0 if tastes are not updated: errors of the taste are then not distinguishable from c."""
    everybody: float = 0.0
    """The population's share of the variance."""
    where: RelevantTaste | None = None
    within: float = 0.0
    """hᵀ(m − prior mean) of the user's taste, without relevance."""

    @property
    def mean(self) -> float:
        """The sum."""
        return self.impersonal + self.role + self.user

    def weighted(self, role: float, user: float) -> tuple[float, float]:
        """Mean and variance with stacking weights of the role's and the user's taste."""
        mean = self.impersonal + role * self.role + user * self.user
        return mean, weighted_variance(self.everybody, self.variance, role, user)


class Revised(NamedTuple):
    """Change of a label, and its text's variance, for the correction of c and d."""

    change: float
    """Of the label, on the common scale."""
    noise: float
    """Its variance."""
    variance: float
    everybody: float
    """Of the text, and the population's share."""


def weighted_variance(everybody: float, variance: float, role: float, user: float) -> float:
    """Variance of a text's prediction with stacking weights."""
    return everybody + max(role, user) ** 2 * (variance - everybody)


def _earlier(variances: Sequence[float], noise: float) -> list[float]:
    """Variances v of blocks before a label, given v − v² / (noise + Σ v) after it; fixed-point iteration."""
    before = list(variances)
    for _ in range(8):
        total = noise + sum(before)
        before = [0.5 * (total - math.sqrt(max(total * (total - 4.0 * left), 0.0))) for left in variances]
    return before


class TextModel:
    """Taste model: predicts and learns labels from texts alone.

    Args:
        D: length of h.
        params: prior scales.
        names: of the features.
        prior: trained prior of tastes.
    """

    def __init__(self, D: int, params: FitParams, names: Sequence[str], prior: TastePrior | None) -> None:
        self.D = D
        self.tastes = Tastes(D, params.tastes, names, prior)
        self.relevance = Relevance(D)
        self.personal = params.personal
        self._sensitive = {canonical_role(role) for role in params.sensitive_roles}

    # --- reading ---

    def people(self, identity: Identity) -> tuple[Person | None, Person | None]:
        """The role and the user that have terms of their own."""
        if not self.personal:
            return None, None
        return self.tastes.role(identity), self.tastes.user(identity)

    def anybody(self, identity: Identity) -> tuple[Person, Person]:
        """Role and user terms, or their priors if they have none."""
        role, user = self.people(identity)
        return role or self.tastes.nobody[0], user or self.tastes.nobody[1]

    def relevant(self, identity: Identity, user: Person) -> RelevantTaste:
        """The user's taste with its relevance to a request of this identity."""
        sensitive = bool(identity.role) and canonical_role(identity.role) in self._sensitive
        level = 0.0 if sensitive else 1.0
        return RelevantTaste(level, self.relevance.at(level), user.learnt())

    def added(self, user: Person, where: RelevantTaste, relied: float) -> tuple[Floats, Floats]:
        """Mean float64[D] and covariance float64[D, D] of the user's taste, weighted by relevance and stacking."""
        mean = user.base_mean + relied * (where.relevance * where.learnt)
        counted = relied * where.relevance
        cov = counted[:, None] * counted
        cov *= user.taste.cov
        return mean, cov

    def heads(self, identity: Identity, dimension: str = OVERALL) -> list[Gaussian]:
        """The blocks whose sum is this user's w in a dimension. Safe from another thread."""
        blocks = self.tastes.of(identity, dimension)
        return blocks if self.personal else blocks[:1]

    # --- learning ---

    def on_common_scale(self, label: Label, seen: Observation, h: Floats, user: Person, *, read: bool) -> Observation:
        """The rating on everybody's scale, as the user was known before it; the rating then teaches their scale."""
        level = self.tastes.params.level
        found = [block.along(h) for block in self.heads(label.identity)]
        y, noisier = user.scale.common(label.y, level)
        if read:
            spread = sum(float(np.einsum("i,i->", h, gain)) for gain, _ in found)
            user.scale.learn(label.y, sum(mean for _, mean in found), level, seen.signal.noise + spread)
        return Observation(y, msgspec.structs.replace(seen.signal, noise=seen.signal.noise * noisier))

    def learn(
        self, label: Label, h: Floats, seen: Observation, role: Person | None, user: Person | None, *, read: bool
    ) -> TextPrediction:
        """Fold into w_0, w_role and δ_u if the text was read; returns the prediction before it."""
        blocks = self._blocks(label)
        if not blocks:
            return TextPrediction()
        if user is not None and label.dimension == OVERALL:
            return self._learn_user(label, h, seen, blocks, role, user, read)
        found = [block.taste.along(h) for block in blocks]
        means = [mean for _, mean in found]
        variance = sum(float(np.einsum("i,i->", h, gain)) for gain, _ in found)
        if read:
            learn(blocks, [gain for gain, _ in found], seen.gaussian_update(sum(means), variance))
        else:
            variance = 0.0
        everybody = min(float(np.einsum("i,i->", h, found[0][0])), variance)
        return TextPrediction(means[0], means[1] if role else 0.0, means[-1] if user else 0.0, variance, everybody)

    def _learn_user(
        self,
        label: Label,
        h: Floats,
        seen: Observation,
        blocks: list[Block],
        role: Person | None,
        user: Person,
        read: bool,
    ) -> TextPrediction:
        """Fold a label of a user, whose taste counts by its relevance."""
        where = self.relevant(label.identity, user)
        rows = np.empty((3, self.D))
        rows[0] = where.learnt
        np.multiply(where.relevance, where.learnt, out=rows[1])
        rows[2] = user.base_mean
        within, personal, base = np.einsum("bi,i->b", rows, h).tolist()
        found = [block.taste.along(h) for block in blocks[:-1]]
        gain, _ = user.taste.along(where.relevance * h)
        impersonal, of_role = found[0][1] + base, found[1][1] if role else 0.0
        predicted = impersonal + of_role + personal
        total = where.relevance * gain
        for other, _ in found:
            total += other
        variance = float(np.einsum("i,i->", h, total))
        if read:
            update = seen.gaussian_update(predicted, variance)
            learn(blocks, [*(other for other, _ in found), gain], update)
        else:
            variance = 0.0
        everybody = min(float(np.einsum("i,i->", h, found[0][0])), variance)
        return TextPrediction(impersonal, of_role, personal, variance, everybody, where, within)

    def revise(self, label: Label, h: Floats, seen: Observation, before: Observation, user: Person | None) -> Revised:
        """Move the means as if the label had been another one, to first order; see `Fit.revise`."""
        blocks = self._blocks(label)
        along = [h] * len(blocks)
        if user is not None and label.dimension == OVERALL:
            along[-1] = self.relevant(label.identity, user).relevance * h
        found = [block.taste.along(v) for block, v in zip(blocks, along, strict=True)]
        own = [float(np.einsum("i,i->", v, gain)) for v, (gain, _) in zip(along, found, strict=True)]
        predicted = sum(mean for _, mean in found)
        y, noise = seen.linear(predicted)
        change = y - before.linear(predicted)[0]
        if label.kind is FeedbackKind.RATING and user is not None and label.dimension == OVERALL:
            change, noise = change / user.scale.gain, noise / user.scale.gain**2
        earlier = _earlier(own, noise)
        total = noise + sum(earlier)
        for block, (gain, _), variance in zip(blocks, found, earlier, strict=True):
            if block.learns:
                block.taste.mean = block.taste.mean + gain * (change / (total - variance))
        return Revised(change, noise, sum(earlier), earlier[0])

    def _blocks(self, label: Label) -> list[Block]:
        identity = label.identity if self.personal else Identity(tenant=label.identity.tenant)
        return self.tastes.blocks(identity, label.dimension, label.pooled)
