"""Reward model: posterior of the rating that user u gives to an answer of model k.

    fit = (w_0 + w_role + a ⊙ δ_u)ᵀ ĥ_k(x) + c_k(x) + d_{role,k} + d_{u,k}

a is the relevance of tastes (`relevance`). ĥ is learnt from every response (`arms`); tastes from labels on the
actual answer's text, without the model's name (`text_model`); c and d from the labels' residuals (`offsets`). Scores
are features and never labels.

Each term is weighted by how well it has predicted labels so far (`Fit.stacking_weights`): Bayesian linear stacking of
the terms, times a factor for the posterior probability that a personal term is not 0. Where users do not differ,
routing is therefore that without personal terms. Two monitors read the labels' residuals: `drift`, for a model that
has changed, and `reward_bias`, for a model that the scores overrate, whose scores are then ignored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.identity import canonical_role, task_of
from fitrouter.monitors.drift import Drift
from fitrouter.monitors.reward_bias import RewardBiasMonitor
from fitrouter.posterior.arms import Arms, Found, base_arm
from fitrouter.posterior.gaussian import Gaussian, GaussianUpdate, gaussian_update
from fitrouter.posterior.inclusion import InclusionTest
from fitrouter.posterior.labels import Answered, Estimate, FitParams, Label, Prequential
from fitrouter.posterior.likelihoods import SIGNALS, Observation, observation_of
from fitrouter.posterior.offsets import OffsetEstimate, SignedAnswer, correct_offset, learn_offset, offset_of
from fitrouter.posterior.people import Person
from fitrouter.posterior.relevance import Relevance
from fitrouter.posterior.tastes import OVERALL, TastePrior, Tastes
from fitrouter.posterior.text_model import TextModel, TextPrediction, weighted_variance
from fitrouter.types import FeedbackKind, Floats, Identity, Projection

TERMS = ("slopes of c", "role", "user's taste", "user's offset")
"""Terms that are added to the population's taste and an arm's intercept, each with its stacking weight."""

NOISE_LABELS = 50.0
"""Prior weight of a Gaussian signal's fitted noise, in labels of this installation."""

FULL_WEIGHT_SD = 4.0
"""Posterior standard deviations above 0 from which on a term has weight 1."""

DRIFT_INFLATION = 25.0
"""Factor of a drifted arm's variances, up to the prior's."""


class _LabelOffsets(NamedTuple):
    """Offsets of the answers of a label, and the role and user that they belong to."""

    offsets: list[OffsetEstimate]
    role: Person | None
    user: Person | None


class _Weights(NamedTuple):
    """Stacking weights, cached for a state of `Fit.stack`."""

    state: Floats
    values: list[float]
    array: Floats
    """The same as an array."""
    taste: float
    """Weight of the user's taste before the factor for its inclusion probability."""


class Fit:
    """Posteriors of arms, tastes and offsets, and their stacking weights; a deterministic function of the labels.

    Args:
        d: length of the context x.
        D: length of the response features h.
        params: prior scales.
        names: of the response features.
        prior: trained prior of tastes.
    """

    def __init__(
        self,
        d: int,
        D: int,
        params: FitParams | None = None,
        *,
        names: Sequence[str] = (),
        prior: TastePrior | None = None,
    ) -> None:
        self.d, self.D = d, D
        self.params = params or FitParams()
        self.arms = Arms(d, D, self.params.arms)
        self.texts = TextModel(D, self.params, names, prior)
        slopes, people = self.params.slopes_reliance, self.params.people_reliance
        self.stack = Gaussian.prior(
            np.array([slopes[0], people[0], people[0], people[0]]),
            np.array([slopes[1], people[1], people[1], people[1]]),
        )
        """Regression coefficients of `TERMS` in the prediction of a label (Bayesian linear stacking)."""
        self.inclusion = InclusionTest(len(TERMS) - 1)
        """Bayes factors of the personal terms against 0."""
        self._weights: _Weights | None = None
        self.residuals: dict[str, tuple[float, float]] = {}
        """Kind of a Gaussian signal → sum of squared prediction errors, and their number."""
        self.labels = 0
        self.drift, self.reward_bias = Drift(), RewardBiasMonitor()
        self.alarms = 0
        """Number of alarms since the process started; each changes the posteriors of all users."""

    @property
    def tastes(self) -> Tastes:
        """Taste posteriors of population, roles and users."""
        return self.texts.tastes

    @property
    def relevance(self) -> Relevance:
        """Relevance of user tastes by feature."""
        return self.texts.relevance

    def named(self) -> dict[str, Projection]:
        """Name → projection other than arms and people; the names are keys of snapshots."""
        return {
            "drift": self.drift,
            "flattery": self.reward_bias,
            "worth": self.inclusion,
        }

    def stacking_weights(self) -> Floats:
        """Stacking weights of `TERMS` in decisions: float64[4] in [0, 1].

        Each term is estimated with error, so that its coefficient is attenuated (errors in variables) however certain
        its benefit is. The weight is therefore at least min(z / `FULL_WEIGHT_SD`, 1), with z the coefficient in
        posterior standard deviations, and multiplied by min(1, 2 · P(term ≠ 0)).
        """
        return self._stacking().array

    def _stacking(self) -> _Weights:
        state = self.stack.state
        if self._weights is None or self._weights.state is not state:
            weights, p_null = [], self._p_null()
            for mean, variance in zip(state[-1].tolist(), state.diagonal().tolist(), strict=True):
                ramp = min(mean / math.sqrt(variance + 1e-300), FULL_WEIGHT_SD) / FULL_WEIGHT_SD
                weights.append(min(max(mean, ramp, 0.0), 1.0))
            taste = weights[2]
            weights = [weight * min(2.0 * (1.0 - p), 1.0) for weight, p in zip(weights, p_null, strict=True)]
            self._weights = _Weights(state, weights, np.array(weights), taste)
        return self._weights

    def p_null(self) -> Floats:
        """Posterior probability that each of `TERMS` is 0: float64[4]; 0 for the slopes of c."""
        return np.array(self._p_null())

    def _p_null(self) -> list[float]:
        fixed = self.params.people_reliance[1] == 0.0
        return [0.0] * len(TERMS) if fixed else [0.0, *self.inclusion.p_null()]

    # --- reading ---

    def estimate(self, identity: Identity, x: Floats, names: tuple[str, ...], now: float) -> Estimate:
        """Posterior predictions of the eligible arms for one request, at a time in seconds since the epoch."""
        found = self.arms.find(names)
        weights = self.stacking_weights()
        arms = self.arms.read(found, x, float(weights[0]))
        profile = arms.profile
        population = self.tastes.population
        blind = profile @ population.mean + arms.correction
        mean, variance, w, cov = blind, arms.variance, population.mean, population.cov
        if self.params.personal:
            role, user = self.texts.anybody(identity)
            own, own_cov = self.texts.added(user, self.texts.relevant(identity, user), float(weights[2]))
            added = weights[1] * role.taste.mean + own
            w = w + added
            own_cov += cov
            cov = np.add(own_cov, role.taste.cov * (weights[1] * weights[1]), out=own_cov)
            offsets, variances = self._offsets(role, user, found)
            counted = weights[1::2]
            mean = mean + profile @ added + counted @ offsets
            variance = variance + (counted * counted) @ variances
        variance = variance + np.vecdot(profile @ cov, profile)
        variance += arms.spread * (self.arms.spread[found.rows] @ (w * w))
        return Estimate(
            mean=mean,
            sd=np.sqrt(variance),
            blind=blind,
            tokens=np.maximum(arms.tokens, 1.0),
            seconds=np.maximum(arms.seconds, 0.0),
            availability=self.arms.availability(found.models, now),
        )

    def profile(self, x: Floats, names: tuple[str, ...]) -> Floats:
        """Expected features of arms' answers, as decisions read them: float64[K, D]."""
        return self.arms.read(self.arms.find(names), x).profile

    def offsets(self, identity: Identity, names: tuple[str, ...]) -> tuple[Floats, Floats]:
        """Means and variances of the offsets of role and user on arms: float64[2, K] each."""
        return self._offsets(*self.texts.anybody(identity), self.arms.find(names))

    def _offsets(self, role: Person, user: Person, found: Found) -> tuple[Floats, Floats]:
        """Posterior of the offsets given the present mean of c (`fitrouter.posterior.offsets`)."""
        means, variances = np.zeros((2, 2, len(found.names)))
        c = self.arms.correction[found.models]
        for i, person in enumerate((role, user)):
            sums = person.sums(found.names, self.d)
            variances[i] = sums.v
            if person.offsets:
                mean = np.subtract(sums.s, np.vecdot(sums.b, c), out=means[i])
                if i:
                    mean -= sums.n * means[0]
                mean *= sums.v
        return means, variances

    def taste(self, identity: Identity) -> Floats:
        """float64[D]: this user's taste w, each term with its stacking weight."""
        population = self.tastes.population.mean
        if not self.params.personal:
            return population
        weights, (role, user) = self.stacking_weights(), self.texts.anybody(identity)
        own, _ = self.texts.added(user, self.texts.relevant(identity, user), float(weights[2]))
        w: Floats = population + weights[1] * role.taste.mean + own
        return w

    def heads(self, identity: Identity, dimension: str = OVERALL) -> list[Gaussian]:
        """The posteriors whose sum is this user's w in a dimension. Thread-safe."""
        return self.texts.heads(identity, dimension)

    def score(self, identity: Identity, h: Floats, dimension: str = OVERALL) -> tuple[float, float]:
        """Posterior mean and sd of hᵀw for this user, without relevance and stacking weights. Thread-safe.

        A missing feature (NaN) counts as average.
        """
        h = np.where(np.isfinite(h), h, 0.0)
        found = [block.along(h) for block in self.heads(identity, dimension)]
        variance = sum(float(np.einsum("i,i->", h, gain)) for gain, _ in found)
        return sum((mean for _, mean in found), 0.0), math.sqrt(max(variance, 0.0))

    # --- learning ---

    def learn(self, label: Label) -> Prequential | None:
        """Learn from one label: tastes from the text, then c and d from the residual.

        Returns the prequential prediction of a pooled label in [0, 1] of one answer. A label with NaN is skipped.
        """
        if not self._finite(label):
            return None
        self.tastes.meet(label.identity)
        role, user = self.texts.people(label.identity)
        seen, h, read = self._observation(label), self._h(label), self._updates_tastes(label)
        if user is not None and label.kind is FeedbackKind.RATING and label.dimension == OVERALL:
            seen = self.texts.on_common_scale(label, seen, h, user, read=read)
        text = self.texts.learn(label, h, seen, role, user, read=read)
        if label.dimension != OVERALL:
            return None
        self.labels += 1
        update, prediction = self._learn_offsets(label, h, text, seen, role, user)
        self._monitor(label, text, seen, update)
        return prediction

    @staticmethod
    def _finite(label: Label) -> bool:
        total = label.y + label.ts + float(np.add.reduce(label.answer.x))
        return math.isfinite(total if label.against is None else total + float(np.add.reduce(label.against.x)))

    def _observation(self, label: Label) -> Observation:
        """The observation of a label, with the noise that labels of its kind have in this installation."""
        seen = observation_of(label.kind, label.y, label.tokens)
        if seen.signal.link == "logistic":
            return seen
        squares, n = self.residuals.get(label.kind.value, (0.0, 0.0))
        noise = (NOISE_LABELS * seen.signal.noise + squares) / (NOISE_LABELS + n)
        return Observation(seen.y, msgspec.structs.replace(seen.signal, noise=noise))

    def _updates_tastes(self, label: Label) -> bool:
        """Whether a label updates tastes: its texts are scored, and not of an arm whose scores are ignored."""
        if not label.read or not self.arms.distrusted:
            return label.read
        return not any(answer and self.arms.distrusts(answer.arm) for answer in (label.answer, label.against))

    def _h(self, label: Label) -> Floats:
        """Regressor of a label, float64[D]: features, or a pair's difference; missing ones are average."""
        h = self._h_of(label.answer)
        return h if label.against is None else h - self._h_of(label.against)

    def _h_of(self, answer: Answered) -> Floats:
        h = answer.h
        if h is None or self.arms.distrusts(answer.arm):
            return self.arms.expected(answer.arm, answer.x)
        known = np.isfinite(h)
        return h if known.all() else np.where(known, h, 0.0)

    def _label_offsets(self, label: Label, role: Person | None, user: Person | None) -> _LabelOffsets:
        """Posteriors of c + d for the answers of a label."""
        sides = [self._side(1.0, label.answer)]
        if label.against is not None:
            other = self._side(-1.0, label.against)
            if other.k == sides[0].k:  # c of one model at two contexts; d cancels
                sides, role, user = [sides[0]._replace(x=sides[0].x - other.x)], None, None
            else:
                sides.append(other)
        return _LabelOffsets([offset_of(self.arms, side, role, user) for side in sides], role, user)

    def _side(self, sign: float, answer: Answered) -> SignedAnswer:
        return SignedAnswer(sign, base_arm(answer.arm), self.arms.model(answer.arm), answer.x)

    def _learn_offsets(
        self, label: Label, h: Floats, text: TextPrediction, seen: Observation, role: Person | None, user: Person | None
    ) -> tuple[GaussianUpdate, Prequential | None]:
        """Learn c and d from the residual of hᵀw (w before the label), and the stacking weights.

        Personal tastes are subtracted with their stacking weights: as long as these are 0, c learns as fast as without
        tastes.
        """
        offsets, role, user = self._label_offsets(label, role, user)
        _, weights, _, _ = self._stacking()
        mean, variance = text.weighted(weights[1], weights[2])
        among, prediction = 0.0, None
        for level in offsets:
            mean += level.side.sign * level.mean
            among += level.variance
        variance += among
        if label.pooled:
            prediction = self._weigh(label, h, text, offsets, seen, text.variance + among)
        update = seen.gaussian_update(mean, variance)
        learnt = update if label.kind is FeedbackKind.THUMB else _in_thumbs(seen).gaussian_update(mean, variance)
        for level in offsets:
            learn_offset(self.arms, level, learnt, role, user, pooled=label.pooled)
        return update, prediction

    def _weigh(
        self,
        label: Label,
        h: Floats,
        text: TextPrediction,
        offsets: list[OffsetEstimate],
        seen: Observation,
        variance: float,
    ) -> Prequential | None:
        """Learn relevance, noise, inclusion probabilities and stacking coefficients from a pooled label.

        The base of the regression is the population's taste and the arm's intercept. Returns the prequential
        prediction of a label of one answer.
        """
        base, slopes, d_role, d_user = text.impersonal, 0.0, 0.0, 0.0
        for level in offsets:
            sign = level.side.sign
            base += sign * level.intercept
            slopes += sign * level.slopes
            d_role += sign * level.role
            d_user += sign * level.user
        z = [slopes, text.role + d_role, text.user, d_user]
        _, weights, _, full = self._stacking()
        counted = base + weights[0] * z[0] + weights[1] * z[1] + weights[2] * z[2] + weights[3] * z[3]
        y, noise = seen.linear(counted)
        where = text.where
        if where is not None and text.within * full:
            rest = y - (counted - weights[2] * text.user)
            self.relevance.see(h * where.learnt * full, rest, noise + variance, level=where.level)
        if seen.signal.link == "gaussian":
            squares, n = self.residuals.get(label.kind.value, (0.0, 0.0))
            self.residuals[label.kind.value] = squares + (seen.y - counted) ** 2, n + 1.0
        self.inclusion.see(z[1:], weights[1:], y - counted, noise)
        parts = np.array(z)
        gain, predicted = self.stack.along(parts)
        y, noise = seen.linear(base + predicted)
        self.stack.learn(
            gain, gaussian_update(predicted, float(np.einsum("i,i->", parts, gain)), y - base, noise=noise)
        )
        if seen.signal.link != "gaussian" or label.against is not None:
            return None
        return Prequential(seen.y, base + weights[0] * slopes, z[1] + z[2] + z[3])

    def revise(self, label: Label, before: float) -> None:
        """Change the label y of an earlier observation: a vote that supersedes `before`.

        In a Gaussian block the posterior mean is linear in every label, with slope S h / (σ² + variance of the other
        blocks) for the present S; covariances do not depend on labels, so nothing else moves. For logistic signals
        it is their linearisation. `fitrouter.state.refit` reads the vote as if it had been so from the start.
        """
        if not self._updates_tastes(label) or not self._finite(label):
            return
        role, user = self.texts.people(label.identity)
        earlier = observation_of(label.kind, before, label.tokens)
        revised = self.texts.revise(label, self._h(label), self._observation(label), earlier, user)
        if label.dimension == OVERALL:
            offsets, role, user = self._label_offsets(label, role, user)
            _, weights, _, _ = self._stacking()
            text = weighted_variance(revised.everybody, revised.variance, weights[1], weights[2])
            rest = revised.noise + text + sum(level.variance for level in offsets)
            for level in offsets:
                others = rest - level.variance
                correct_offset(self.arms, level.side, revised.change, others, role, user, pooled=label.pooled)

    # --- alarms ---

    def _monitor(self, label: Label, text: TextPrediction, seen: Observation, update: GaussianUpdate) -> None:
        """Update the drift and reward-bias monitors with the label's residuals, and react to their alarms."""
        model = base_arm(label.answer.arm)
        if label.pooled and update.shrink > 0.0:
            z = update.step / math.sqrt(update.shrink)
            if self.drift.observe(model, z):
                self.drifted(model)
            if label.against is not None and base_arm(label.against.arm) != model:
                other = base_arm(label.against.arm)
                if self.drift.observe(other, -z):
                    self.drifted(other)
        if label.against is None and seen.signal.link == "gaussian" and self._updates_tastes(label):
            role = canonical_role(label.identity.role)
            cluster = None if text.where is None else task_of(label.identity, label.answer.x)
            if self.reward_bias.observe(model, role, cluster, text.mean - seen.y):
                self.distrust(model)

    def drifted(self, arm: str) -> None:
        """Inflate the variances of a drifted arm, and discount its offsets."""
        model = base_arm(arm)
        self.arms.loosen(model, DRIFT_INFLATION)
        self.alarms += 1
        for person in (*self.tastes.roles.values(), *self.tastes.users.values()):
            person.forget(model, 1.0 / DRIFT_INFLATION)

    def distrust(self, arm: str) -> None:
        """Ignore the scores of an arm that the reward model overrates.

        Its expected features become the mean of the other arms'; its level is learnt anew from labels alone.
        """
        model = base_arm(arm)
        self.arms.distrust(model)
        self.alarms += 1
        for person in (*self.tastes.roles.values(), *self.tastes.users.values()):
            person.forget(model, 0.0)


def _in_thumbs(seen: Observation) -> Observation:
    """The observation with at least the noise of a thumb, from which c and d learn.

    Their prior variances are calibrated on thumbs. Kinds of labels with less noise also vary less between models and
    prompts; with their own small noise and the wide prior, chance would be learnt as a model's strength.
    """
    noise = SIGNALS[FeedbackKind.THUMB].noise
    if seen.signal.link != "gaussian" or seen.signal.noise >= noise:
        return seen
    return Observation(seen.y, msgspec.structs.replace(seen.signal, noise=noise))
