"""The fit model: what an answer of model k is worth to user u.

    fit = (w_0 + w_role + a ⊙ δ_u)ᵀ ĥ_k(x) + c_k(x) + d_{role,k} + d_{u,k}

a is the relevance of tastes (`relevance`). ĥ is learnt from every response (`arms`); tastes from labels on the
actual answer's text, without the model's name (`texts`); c and d from labels only, on what the taste could not say
(`levels`). A score (hᵀw) is never an observation: scores are features, labels are rewards.

Each part of it counts as far as it has predicted labels so far (`Fit.reliance`: a Bayesian linear stacking of the
parts, and of each people's part the probability that it is worth nothing at all), so that a world without tastes is
routed as if their terms did not exist. Two alarms watch what labels leave over: of a model that has become another one
(`drift`), and of one whose answers the score flatters (`flattery`), whose scores then count no more.
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
from fitrouter.posterior.text_model import TextModel, TextPrediction, relied_variance
from fitrouter.types import FeedbackKind, Floats, Identity, Projection

PARTS = ("slopes of c", "role", "user's taste", "user's offset")
"""What is added to the population's taste and an arm's level as far as it can be relied upon."""

NOISE_LABELS = 50.0
"""How many labels the fitted noise of a Gaussian signal stands for, beside those of this installation."""

CERTAIN = 4.0
"""Standard deviations above 0 from which on a part counts in full."""

LOOSER = 25.0
"""Factor of the variances of an arm that has drifted, up to the prior's."""


class _Levels(NamedTuple):
    """The sides of a label, and whose offsets it is about."""

    levels: list[OffsetEstimate]
    role: Person | None
    user: Person | None


class _Relied(NamedTuple):
    """What `Fit.reliance` made of a state of the stack."""

    state: Floats
    counts: list[float]
    array: Floats
    """The same."""
    taste: float
    """How far a user's taste would count if it were sure that it is worth something."""


class Fit:
    """Arms, people, and how far people matter; every method is a pure function of what was folded before.

    Args:
        d: length of the context x.
        D: length of the response features h.
        params: prior scales.
        names: of the response features.
        prior: what tastes are like elsewhere.
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
        """Coefficients of the parts `PARTS` in the best prediction of a label."""
        self.inclusion = InclusionTest(len(PARTS) - 1)
        """Whether the terms of people are worth anything."""
        self._relied: _Relied | None = None
        self.residuals: dict[str, tuple[float, float]] = {}
        """Kind of a Gaussian signal → sum of the squared errors of what was predicted here, and their number."""
        self.labels = 0
        self.drift, self.reward_bias = Drift(), RewardBiasMonitor()
        self.alarms = 0
        """How often something was learnt that concerns everybody, since this process began."""

    @property
    def tastes(self) -> Tastes:
        """Of everybody, roles and users."""
        return self.texts.tastes

    @property
    def relevance(self) -> Relevance:
        """Where tastes belong."""
        return self.texts.relevance

    def named(self) -> dict[str, Projection]:
        """Name → projection other than arms and people; the names are keys of snapshots."""
        return {
            "drift": self.drift,
            "flattery": self.reward_bias,
            "worth": self.inclusion,
        }

    def reliance(self) -> Floats:
        """float64[4] in [0, 1]: how far each of `PARTS` counts in decisions.

        A part is itself an estimate with errors, which draws its coefficient towards 0 (errors in variables) however
        sure it is that the part helps. So a part counts in full once its coefficient is `CERTAIN` standard
        deviations above 0, and in proportion before, where that is more than the coefficient; less where it is more
        likely than not that it is worth nothing, and not at all where that is sure.
        """
        return self._counts().array

    def _counts(self) -> _Relied:
        state = self.stack.state
        if self._relied is None or self._relied.state is not state:
            counts, zero = [], self._zero()
            for mean, variance in zip(state[-1].tolist(), state.diagonal().tolist(), strict=True):
                sure = min(mean / math.sqrt(variance + 1e-300), CERTAIN) / CERTAIN
                counts.append(min(max(mean, sure, 0.0), 1.0))
            full = counts[2]
            counts = [count * min(2.0 * (1.0 - nothing), 1.0) for count, nothing in zip(counts, zero, strict=True)]
            self._relied = _Relied(state, counts, np.array(counts), full)
        return self._relied

    def zero(self) -> Floats:
        """float64[4]: the probability that each of `PARTS` is worth nothing (0 for c's slopes)."""
        return np.array(self._zero())

    def _zero(self) -> list[float]:
        certain = self.params.people_reliance[1] == 0.0
        return [0.0] * len(PARTS) if certain else [0.0, *self.inclusion.nothing()]

    # --- reading ---

    def estimate(self, identity: Identity, x: Floats, names: tuple[str, ...], now: float) -> Estimate:
        """Beliefs of the eligible arms for one request, at a time in seconds since the epoch."""
        found = self.arms.find(names)
        relied = self.reliance()
        arms = self.arms.read(found, x, float(relied[0]))
        profile = arms.profile
        population = self.tastes.population
        blind = profile @ population.mean + arms.correction
        mean, variance, w, cov = blind, arms.variance, population.mean, population.cov
        if self.params.personal:
            role, user = self.texts.anybody(identity)
            own, own_cov = self.texts.added(user, self.texts.relevant(identity, user), float(relied[2]))
            added = relied[1] * role.taste.mean + own
            w = w + added
            own_cov += cov
            cov = np.add(own_cov, role.taste.cov * (relied[1] * relied[1]), out=own_cov)
            offsets, variances = self._offsets(role, user, found)
            counted = relied[1::2]
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
        """float64[K, D]: the features that are expected of arms' answers, as decisions read them."""
        return self.arms.read(self.arms.find(names), x).profile

    def offsets(self, identity: Identity, names: tuple[str, ...]) -> tuple[Floats, Floats]:
        """float64[2, K] each: means and variances of what a role and a user think of arms beyond their texts."""
        return self._offsets(*self.texts.anybody(identity), self.arms.find(names))

    def _offsets(self, role: Person, user: Person, found: Found) -> tuple[Floats, Floats]:
        """Given c as it is now, see `levels`."""
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
        relied, (role, user) = self.reliance(), self.texts.anybody(identity)
        own, _ = self.texts.added(user, self.texts.relevant(identity, user), float(relied[2]))
        w: Floats = population + relied[1] * role.taste.mean + own
        return w

    def heads(self, identity: Identity, dimension: str = OVERALL) -> list[Gaussian]:
        """The blocks whose sum is this user's w in a dimension. Safe from another thread."""
        return self.texts.heads(identity, dimension)

    def score(self, identity: Identity, h: Floats, dimension: str = OVERALL) -> tuple[float, float]:
        """Mean and sd of hᵀw for this user; a missing feature (NaN) counts as average. Safe from another thread.

        It is the user's reward model wherever their taste belongs; how far it belongs to a request is the router's
        affair (`estimate`).
        """
        h = np.where(np.isfinite(h), h, 0.0)
        found = [block.along(h) for block in self.heads(identity, dimension)]
        variance = sum(float(np.einsum("i,i->", h, gain)) for gain, _ in found)
        return sum((mean for _, mean in found), 0.0), math.sqrt(max(variance, 0.0))

    # --- learning ---

    def learn(self, label: Label) -> Prequential | None:
        """Fold one label: first what it says of the text (tastes), then what it says beyond it (c and d).

        Returns what was foreseen of it, where it is a pooled label on [0, 1] of one answer. A label with a number that
        is none teaches nothing.
        """
        if not self._sound(label):
            return None
        self.tastes.meet(label.identity)
        role, user = self.texts.people(label.identity)
        seen, h, read = self._heard(label), self._h(label), self._reads(label)
        if user is not None and label.kind is FeedbackKind.RATING and label.dimension == OVERALL:
            seen = self.texts.on_common_scale(label, seen, h, user, read=read)
        text = self.texts.learn(label, h, seen, role, user, read=read)
        if label.dimension != OVERALL:
            return None
        self.labels += 1
        innovation, foresight = self._learn_levels(label, h, text, seen, role, user)
        self._watch(label, text, seen, innovation)
        return foresight

    @staticmethod
    def _sound(label: Label) -> bool:
        total = label.y + label.ts + float(np.add.reduce(label.answer.x))
        return math.isfinite(total if label.against is None else total + float(np.add.reduce(label.against.x)))

    def _heard(self, label: Label) -> Observation:
        """The observation in a label, as noisy as labels of its kind are here: people who rate at random teach less."""
        seen = observation_of(label.kind, label.y, label.tokens)
        if seen.signal.link == "logistic":
            return seen
        squares, n = self.residuals.get(label.kind.value, (0.0, 0.0))
        noise = (NOISE_LABELS * seen.signal.noise + squares) / (NOISE_LABELS + n)
        return Observation(seen.y, msgspec.structs.replace(seen.signal, noise=noise))

    def _reads(self, label: Label) -> bool:
        """Whether a label teaches of texts: they are known, and not those of an arm whose texts mean nothing."""
        if not label.read or not self.arms.distrusted:
            return label.read
        return not any(answer and self.arms.distrusts(answer.arm) for answer in (label.answer, label.against))

    def _h(self, label: Label) -> Floats:
        """float64[D] that the label is about: an answer's features, a pair's difference; what is missing is average."""
        h = self._h_of(label.answer)
        return h if label.against is None else h - self._h_of(label.against)

    def _h_of(self, answer: Answered) -> Floats:
        h = answer.h
        if h is None or self.arms.distrusts(answer.arm):
            return self.arms.expected(answer.arm, answer.x)
        known = np.isfinite(h)
        return h if known.all() else np.where(known, h, 0.0)

    def _levels(self, label: Label, role: Person | None, user: Person | None) -> _Levels:
        """What is believed beyond the text of the answers of a label."""
        sides = [self._side(1.0, label.answer)]
        if label.against is not None:
            other = self._side(-1.0, label.against)
            if other.k == sides[0].k:  # c of one model at two contexts; d cancels
                sides, role, user = [sides[0]._replace(x=sides[0].x - other.x)], None, None
            else:
                sides.append(other)
        return _Levels([offset_of(self.arms, side, role, user) for side in sides], role, user)

    def _side(self, sign: float, answer: Answered) -> SignedAnswer:
        return SignedAnswer(sign, base_arm(answer.arm), self.arms.model(answer.arm), answer.x)

    def _learn_levels(
        self, label: Label, h: Floats, text: TextPrediction, seen: Observation, role: Person | None, user: Person | None
    ) -> tuple[GaussianUpdate, Prequential | None]:
        """Fold what the label says beyond hᵀw (w as before it) into c and d; weigh the parts, and where they belong.

        People's tastes are taken out of the label as far as decisions rely on them: until they are known to be real,
        c learns as fast as if there were none.
        """
        levels, role, user = self._levels(label, role, user)
        _, relied, _, _ = self._counts()
        mean, variance = text.relied(relied[1], relied[2])
        among, foresight = 0.0, None
        for level in levels:
            mean += level.side.sign * level.mean
            among += level.variance
        variance += among
        if label.pooled:
            foresight = self._weigh(label, h, text, levels, seen, text.variance + among)
        innovation = seen.gaussian_update(mean, variance)
        learnt = innovation if label.kind is FeedbackKind.THUMB else _in_thumbs(seen).gaussian_update(mean, variance)
        for level in levels:
            learn_offset(self.arms, level, learnt, role, user, pooled=label.pooled)
        return innovation, foresight

    def _weigh(
        self,
        label: Label,
        h: Floats,
        text: TextPrediction,
        levels: list[OffsetEstimate],
        seen: Observation,
        variance: float,
    ) -> Prequential | None:
        """Learn what a pooled label says of the parts, beside the base: the population's taste and the arm's level.

        Where the taste belongs: what it would add, against what nothing else explains. How noisy such labels are.
        Whether people's terms are worth anything, and how much of each part to add to the base to predict a label.
        Returns what was foreseen of a label of one answer.
        """
        base, slopes, d_role, d_user = text.impersonal, 0.0, 0.0, 0.0
        for level in levels:
            sign = level.side.sign
            base += sign * level.intercept
            slopes += sign * level.slopes
            d_role += sign * level.role
            d_user += sign * level.user
        z = [slopes, text.role + d_role, text.user, d_user]
        _, relied, _, full = self._counts()
        counted = base + relied[0] * z[0] + relied[1] * z[1] + relied[2] * z[2] + relied[3] * z[3]
        y, noise = seen.linear(counted)
        where = text.where
        if where is not None and text.within * full:
            rest = y - (counted - relied[2] * text.user)
            self.relevance.see(h * where.learnt * full, rest, noise + variance, level=where.level)
        if seen.signal.link == "gaussian":
            squares, n = self.residuals.get(label.kind.value, (0.0, 0.0))
            self.residuals[label.kind.value] = squares + (seen.y - counted) ** 2, n + 1.0
        self.inclusion.see(z[1:], relied[1:], y - counted, noise)
        parts = np.array(z)
        gain, predicted = self.stack.along(parts)
        y, noise = seen.linear(base + predicted)
        self.stack.learn(
            gain, gaussian_update(predicted, float(np.einsum("i,i->", parts, gain)), y - base, noise=noise)
        )
        if seen.signal.link != "gaussian" or label.against is not None:
            return None
        return Prequential(seen.y, base + relied[0] * slopes, z[1] + z[2] + z[3])

    def revise(self, label: Label, before: float) -> None:
        """Change the label y of an earlier observation: a vote that supersedes `before`.

        In a Gaussian block the posterior mean is linear in every label, with slope S h / (σ² + variance of the other
        blocks) for the present S; covariances do not depend on labels, so nothing else moves. For logistic signals
        it is their linearisation. `fitrouter.state.refit` reads the vote as if it had been so from the start.
        """
        if not self._reads(label) or not self._sound(label):
            return
        role, user = self.texts.people(label.identity)
        earlier = observation_of(label.kind, before, label.tokens)
        revised = self.texts.revise(label, self._h(label), self._heard(label), earlier, user)
        if label.dimension == OVERALL:
            levels, role, user = self._levels(label, role, user)
            _, relied, _, _ = self._counts()
            text = relied_variance(revised.everybody, revised.variance, relied[1], relied[2])
            rest = revised.noise + text + sum(level.variance for level in levels)
            for level in levels:
                others = rest - level.variance
                correct_offset(self.arms, level.side, revised.change, others, role, user, pooled=label.pooled)

    # --- alarms ---

    def _watch(self, label: Label, text: TextPrediction, seen: Observation, innovation: GaussianUpdate) -> None:
        """Hand what a label left over to the alarms, as it was before it was learnt, and heed them."""
        model = base_arm(label.answer.arm)
        if label.pooled and innovation.shrink > 0.0:
            z = innovation.step / math.sqrt(innovation.shrink)
            if self.drift.observe(model, z):
                self.drifted(model)
            if label.against is not None and base_arm(label.against.arm) != model:
                other = base_arm(label.against.arm)
                if self.drift.observe(other, -z):
                    self.drifted(other)
        if label.against is None and seen.signal.link == "gaussian" and self._reads(label):
            role = canonical_role(label.identity.role)
            cluster = None if text.where is None else task_of(label.identity, label.answer.x)
            if self.reward_bias.observe(model, role, cluster, text.mean - seen.y):
                self.distrust(model)

    def drifted(self, arm: str) -> None:
        """Hold what is known of an arm less firmly: it has changed."""
        model = base_arm(arm)
        self.arms.loosen(model, LOOSER)
        self.alarms += 1
        for person in (*self.tastes.roles.values(), *self.tastes.users.values()):
            person.forget(model, 1.0 / LOOSER)

    def distrust(self, arm: str) -> None:
        """Read the mean text of the other arms in place of an arm's own, from now on: the score flatters it.

        Its scores enter its utility no more; labels alone say how good it is, against the mean text.
        """
        model = base_arm(arm)
        self.arms.distrust(model)
        self.alarms += 1
        for person in (*self.tastes.roles.values(), *self.tastes.users.values()):
            person.forget(model, 0.0)


def _in_thumbs(seen: Observation) -> Observation:
    """The observation as c and d learn from it: at least as noisy as a thumb.

    Their prior variances are those of thumbs. Labels that vary less differ less from model to model and prompt to
    prompt too; with the prior of thumbs and their own small noise, chance would pass for what a model is good at.
    """
    noise = SIGNALS[FeedbackKind.THUMB].noise
    if seen.signal.link != "gaussian" or seen.signal.noise >= noise:
        return seen
    return Observation(seen.y, msgspec.structs.replace(seen.signal, noise=noise))
