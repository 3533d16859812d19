"""The fit model: what an answer of model k is worth to user u.

    fit = (w_0 + w_role + a(x) ⊙ δ_u + δ_{u,task})ᵀ ĥ_k(x) + c_k(x) + d_{role,k} + d_{u,k}

a(x) says where a taste belongs (`relevance`). ĥ is learnt from every response; tastes from labels on the actual
answer's text, without the model's name; c and d from labels only, on what the taste could not say. A score (hᵀw) is
never an observation: scores are features, labels are rewards.

Each part of it counts as far as it has predicted labels so far (`Fit.reliance`, a Bayesian linear stacking of the
parts), so that a world without tastes is routed almost as if their terms did not exist.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.arms import ArmParams, Arms
from fitrouter.people import Person, canonical_role
from fitrouter.relevance import Relevance, task_of
from fitrouter.signals import Observation, heard
from fitrouter.taste import Gaussian, Innovation, innovate
from fitrouter.tastes import OVERALL, Block, TasteParams, TastePrior, Tastes, learn
from fitrouter.types import FeedbackKind, Floats, Identity

__all__ = ["PARTS", "Answered", "Estimate", "Fit", "FitParams", "Foresight", "Label"]

PARTS = ("slopes of c", "role", "user's taste", "user's offset")
"""What is added to the population's taste and an arm's level as far as it can be relied upon."""

NOISE_LABELS = 50.0
"""How many labels the fitted noise of a Gaussian signal stands for, beside those of this installation."""

CERTAIN = 4.0
"""Standard deviations above 0 from which on a people's term counts in full."""


class FitParams(msgspec.Struct, frozen=True, kw_only=True):
    """Prior scales of the fit model, for labels in [0, 1] and features of about unit variance."""

    arms: ArmParams = ArmParams()
    tastes: TasteParams = TasteParams()
    slopes_reliance: tuple[float, float] = (1.0, 0.1)
    people_reliance: tuple[float, float] = (0.2, 0.1)
    """Prior mean and variance of the reliance on c's slopes, and on each term of role and user."""
    task_share: float = 0.1
    """Prior variance of what a taste has of its own in one task, in variances of the taste."""
    sensitive_roles: tuple[str, ...] = ()
    """Roles in whose service a user's taste starts as irrelevant."""
    personal: bool = True


class Answered(NamedTuple):
    """An answer that a person judges."""

    arm: str
    x: Floats
    h: Floats | None
    """Its features; None where it has no score."""


class Label(NamedTuple):
    """A person's verdict, ready to be learnt from."""

    identity: Identity
    answer: Answered
    y: float
    kind: FeedbackKind
    pooled: bool = True
    """False where this user's cap for the model and day is used up: only the user's own terms learn."""
    against: Answered | None = None
    """The other answer of a pair."""
    dimension: str = OVERALL
    tokens: int = 0
    """Length of the answer, which a stay depends on."""
    ts: float = 0.0

    @property
    def read(self) -> bool:
        """Whether the texts that it is about are known."""
        return self.answer.h is not None and (self.against is None or self.against.h is not None)


class Estimate(NamedTuple):
    """Beliefs of K arms for one request; arrays are float64[K]."""

    mean: Floats
    sd: Floats
    blind: Floats
    """The mean without the terms of role and user."""
    tokens: Floats
    seconds: Floats
    availability: Floats


class _Where(NamedTuple):
    """A user's taste in a task, as it is known before a label; arrays are float64[D]."""

    task: str
    level: float
    relevance: Floats
    learnt: Floats
    """δ_u without what was declared."""
    own: Floats
    """float64[2, D]: mean and variance of δ_{u,task}."""


class _Text(NamedTuple):
    """What a label's text was thought to be worth before it."""

    impersonal: float = 0.0
    """hᵀw of the population, with what the user declared."""
    role: float = 0.0
    user: float = 0.0
    task: float = 0.0
    """The part of `user` that is δ_{u,task}."""
    variance: float = 0.0
    where: _Where | None = None
    within: float = 0.0
    """hᵀ of what labels taught of the user's taste, wherever it belongs."""

    @property
    def mean(self) -> float:
        return self.impersonal + self.role + self.user


class Foresight(NamedTuple):
    """A pooled label, and what was predicted of it before it was learnt."""

    y: float
    blind: float
    """Without the terms of role and user."""
    term: float
    """What these add at full strength."""


class _Side(NamedTuple):
    """One answer of a label in the fit's terms: +1 for the answer, −1 for the one it is compared with."""

    sign: float
    arm: str
    k: int
    x: Floats


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
        self.tastes = Tastes(D, self.params.tastes, names, prior)
        self.relevance = Relevance(D)
        self._sensitive = {canonical_role(role) for role in self.params.sensitive_roles}
        slopes, people = self.params.slopes_reliance, self.params.people_reliance
        self.stack = Gaussian.prior(
            np.array([slopes[0], people[0], people[0], people[0]]),
            np.array([slopes[1], people[1], people[1], people[1]]),
        )
        """Coefficients of the parts `PARTS` in the best prediction of a label."""
        self._relied: tuple[Floats, Floats] | None = None
        """The state of the stack, and what `reliance` made of it."""
        self.residuals: dict[str, tuple[float, float]] = {}
        """Kind of a Gaussian signal → sum of the squared errors of what was predicted here, and their number."""
        self.labels = 0

    def reliance(self) -> Floats:
        """float64[4] in [0, 1]: how far each of `PARTS` counts in decisions.

        A part is itself an estimate with errors, which draws its coefficient towards 0 (errors in variables) however
        sure it is that the part helps. So a people's term counts in full once its coefficient is `CERTAIN` standard
        deviations above 0, and in proportion before, where that is more than the coefficient.
        """
        state = self.stack.state
        if self._relied is None or self._relied[0] is not state:
            counts = []
            for part, (mean, variance) in enumerate(zip(state[-1].tolist(), state.diagonal().tolist(), strict=True)):
                sure = min(mean / math.sqrt(variance + 1e-300), CERTAIN) / CERTAIN if part else mean
                counts.append(min(max(mean, sure, 0.0), 1.0))
            self._relied = state, np.array(counts)
        return self._relied[1]

    def _people(self, identity: Identity) -> tuple[Person | None, Person | None]:
        """The role and the user that have terms of their own."""
        if not self.params.personal:
            return None, None
        return self.tastes.role(identity), self.tastes.user(identity)

    def _where(self, identity: Identity, x: Floats, user: Person) -> _Where:
        """Where the request stands for the user's taste."""
        task, level = task_of(identity, x), 1.0
        if identity.role and canonical_role(identity.role) in self._sensitive:
            task, level = f"sensitive {task}", 0.0
        relevance = self.relevance.at(task, level)
        return _Where(task, level, relevance, user.learnt(), user.task(task, self.params.task_share))

    # --- reading ---

    def estimate(self, identity: Identity, x: Floats, names: tuple[str, ...], now: float) -> Estimate:
        """Beliefs of the eligible arms for one request, at a time in seconds since the epoch."""
        rows, models = self.arms.find(names)
        relied = self.reliance()
        arms = self.arms.read(rows, models, x, float(relied[0]))
        profile = arms.profile
        population = self.tastes.population
        blind = profile @ population.mean + arms.correction
        mean, variance, w, cov = blind, arms.variance, population.mean, population.cov
        if self.params.personal:
            nobody = self.tastes.nobody
            role, user = self.tastes.role(identity) or nobody[0], self.tastes.user(identity) or nobody[1]
            where = self._where(identity, x, user)
            added = relied[1] * role.taste.mean + self._own(where, user, float(relied[2]))
            w = w + added
            cov = cov + role.taste.cov * (relied[1] * relied[1])
            cov += self._spread(where, user, float(relied[2]))
            offsets = relied[1] * role.offsets_of(names)
            spreads = relied[3] * user.offsets_of(names)
            mean = mean + profile @ added + offsets[0] + spreads[0]
            variance = variance + relied[1] * offsets[1] + relied[3] * spreads[1]
        variance = variance + np.vecdot(profile @ cov, profile)
        variance += arms.spread * (self.arms.spread[rows] @ (w * w))
        return Estimate(
            mean=mean,
            sd=np.sqrt(variance),
            blind=blind,
            tokens=np.maximum(arms.tokens, 1.0),
            seconds=np.maximum(arms.seconds, 0.0),
            availability=self.arms.availability(models, now),
        )

    def taste(self, identity: Identity, x: Floats) -> Floats:
        """float64[D]: this user's w in the task of x, each part as far as it counts in decisions."""
        population = self.tastes.population.mean
        if not self.params.personal:
            return population
        relied, nobody = self.reliance(), self.tastes.nobody
        role, user = self.tastes.role(identity) or nobody[0], self.tastes.user(identity) or nobody[1]
        own = self._own(self._where(identity, x, user), user, float(relied[2]))
        w: Floats = population + relied[1] * role.taste.mean + own
        return w

    def _own(self, where: _Where, user: Person, relied: float) -> Floats:
        """float64[D]: what a user's taste adds in a task."""
        own: Floats = user.base_mean + relied * (where.relevance * where.learnt + where.own[0])
        return own

    def _spread(self, where: _Where, user: Person, relied: float) -> Floats:
        """float64[D, D]: the covariance of what a user's taste adds in a task."""
        a = relied * where.relevance
        spread: Floats = a[:, None] * a
        spread *= user.taste.cov
        spread.reshape(-1)[:: self.D + 1] += (relied * relied) * where.own[1]
        return spread

    def heads(self, identity: Identity, dimension: str = OVERALL) -> list[Gaussian]:
        """The blocks whose sum is this user's w in a dimension. Safe from another thread."""
        blocks = self.tastes.of(identity, dimension)
        return blocks if self.params.personal else blocks[:1]

    def score(self, identity: Identity, h: Floats, dimension: str = OVERALL) -> tuple[float, float]:
        """Mean and sd of hᵀw for this user; a missing feature (NaN) counts as average. Safe from another thread.

        It is the user's reward model wherever their taste belongs; how far it belongs to a request is the router's
        affair (`estimate`).
        """
        h = np.where(np.isnan(h), 0.0, h)
        mean = variance = 0.0
        for block in self.heads(identity, dimension):
            mean += float(np.einsum("i,i->", h, block.mean))
            variance += float(np.einsum("i,i->", h, block.gain(h)))
        return mean, float(np.sqrt(max(variance, 0.0)))

    # --- learning ---

    def learn(self, label: Label) -> Foresight | None:
        """Fold one label: first what it says of the text (tastes), then what it says beyond it (c and d).

        Returns what was foreseen of it, where it is a pooled label on [0, 1] of one answer.
        """
        tastes = self.tastes
        tastes.meet(label.identity)
        role, user = self._people(label.identity)
        if user is not None and label.ts:
            user.age(label.ts, tastes.params.memory)
        seen = self._heard(label)
        h = self._h(label)
        if user is not None and label.kind is FeedbackKind.RATING and label.dimension == OVERALL:
            seen = self._on_common_scale(label, seen, h, user)
        text = self._learn_taste(label, h, seen, role, user)
        if label.dimension != OVERALL:
            return None
        self.labels += 1
        return self._learn_offsets(label, h, text, seen, role, user)

    def _heard(self, label: Label) -> Observation:
        """The observation in a label, as noisy as labels of its kind are here: people who rate at random teach less."""
        seen = heard(label.kind, label.y, label.tokens)
        if seen.signal.link == "logistic":
            return seen
        squares, n = self.residuals.get(label.kind.value, (0.0, 0.0))
        noise = (NOISE_LABELS * seen.signal.noise + squares) / (NOISE_LABELS + n)
        return Observation(seen.y, msgspec.structs.replace(seen.signal, noise=noise))

    def _h(self, label: Label) -> Floats:
        """float64[D] that the label is about: an answer's features, a pair's difference; what is missing is average."""

        def of(answer: Answered) -> Floats:
            h = answer.h
            if h is None:
                expected: Floats = np.einsum("dh,d->h", self.arms.profile[self.arms.row(answer.arm)], answer.x)
                return expected
            missing = np.isnan(h)
            return np.where(missing, 0.0, h) if missing.any() else h

        return of(label.answer) if label.against is None else of(label.answer) - of(label.against)

    def _on_common_scale(self, label: Label, seen: Observation, h: Floats, user: Person) -> Observation:
        """The rating on everybody's scale, as the user was known before it; the rating then teaches their scale."""
        level = self.tastes.params.level
        blocks = self.heads(label.identity)
        predicted = sum(float(np.einsum("i,i->", h, block.mean)) for block in blocks)
        y, noisier = user.scale.common(label.y, level)
        spread = sum(float(np.einsum("i,i->", h, block.gain(h))) for block in blocks)
        if label.read:
            user.scale.learn(label.y, predicted, level, seen.signal.noise + spread)
        return Observation(y, msgspec.structs.replace(seen.signal, noise=seen.signal.noise * noisier))

    def _learn_taste(
        self, label: Label, h: Floats, seen: Observation, role: Person | None, user: Person | None
    ) -> _Text:
        """Fold into w_0, w_role, δ and δ_{u,task}; returns what was thought before."""
        blocks = self._blocks(label)
        if not blocks:
            return _Text()
        if user is None or label.dimension != OVERALL:
            return self._learn_blocks(label, h, seen, blocks, role, user)
        where = self._where(label.identity, label.answer.x, user)
        rows = np.empty((5, self.D))
        rows[0] = where.learnt
        np.multiply(where.relevance, where.learnt, out=rows[1])
        rows[2] = user.base_mean
        rows[3:] = where.own
        rows[4] *= h
        within, taste, base, task, spread = np.einsum("bi,i->b", rows, h).tolist()
        found = [block.taste.along(h) for block in blocks[:-1]]
        gain, _ = user.taste.along(where.relevance * h)
        impersonal, of_role, personal = found[0][1] + base, found[1][1] if role else 0.0, taste + task
        predicted = impersonal + of_role + personal
        if label.read:
            params = self.tastes.params
            excess = seen.surprise(predicted) - seen.surprise(predicted - personal)
            if user.surprise(excess, limit=params.surprise_nats, row=params.surprises):
                gain = user.taste.gain(where.relevance * h)
        total = where.relevance * gain
        for other, _ in found:
            total += other
        variance = spread + float(np.einsum("i,i->", h, total))
        if label.read:
            innovation = seen.innovate(predicted, variance)
            learn(blocks, [*(other for other, _ in found), gain], innovation)
            own = rows[3:]  # their gain is the variance times h
            own[0] += own[1] * innovation.step
            own[1] = where.own[1] - own[1] * own[1] * innovation.shrink
            user.tasks[where.task] = own.copy()
        return _Text(impersonal, of_role, personal, task, variance, where, within)

    def _learn_blocks(
        self, label: Label, h: Floats, seen: Observation, blocks: list[Block], role: Person | None, user: Person | None
    ) -> _Text:
        """The same where a taste counts everywhere: in other dimensions, and for nobody in particular."""
        found = [block.taste.along(h) for block in blocks]
        means = [mean for _, mean in found]
        variance = sum(float(np.einsum("i,i->", h, gain)) for gain, _ in found)
        if label.read:
            learn(blocks, [gain for gain, _ in found], seen.innovate(sum(means), variance))
        return _Text(means[0], means[1] if role else 0.0, means[-1] if user else 0.0, 0.0, variance)

    def _blocks(self, label: Label) -> list[Block]:
        identity = label.identity if self.params.personal else Identity(tenant=label.identity.tenant)
        return self.tastes.blocks(identity, label.dimension, label.pooled)

    def _sides(self, label: Label) -> list[_Side]:
        answer, against, arms = label.answer, label.against, self.arms
        side = _Side(1.0, answer.arm, arms.model(answer.arm), answer.x)
        if against is None:
            return [side]
        other = _Side(-1.0, against.arm, arms.model(against.arm), against.x)
        if side.k == other.k:
            return [side._replace(x=side.x - other.x)]  # c of one model at two contexts; d cancels
        return [side, other]

    def _learn_offsets(
        self,
        label: Label,
        h: Floats,
        text: _Text,
        seen: Observation,
        role: Person | None,
        user: Person | None,
    ) -> Foresight | None:
        """Fold what the label says beyond hᵀw (w as before it) into c and d; weigh the parts, and where they belong."""
        arms, sides = self.arms, self._sides(label)
        if label.against is not None and len(sides) == 1:
            role = user = None
        intercept = slopes = d_role = d_user = 0.0
        variance, gains = text.variance, []
        for side in sides:
            gain, level, rest = arms.along(side.k, side.x)
            gains.append(gain)
            intercept += side.sign * level
            slopes += side.sign * rest
            variance += float(np.einsum("i,i->", gain, side.x))
            if role:
                mean, spread = role.offset(side.arm)
                d_role += side.sign * mean
                variance += spread
            if user:
                mean, spread = user.offset(side.arm)
                d_user += side.sign * mean
                variance += spread
        foresight = None
        if label.pooled:
            z = np.array([slopes, text.role + d_role, text.user, d_user])
            if seen.signal.link == "gaussian" and label.against is None:
                blind = text.impersonal + intercept + float(self.reliance()[0]) * slopes
                foresight = Foresight(seen.y, blind, text.role + d_role + text.user + d_user)
            self._weigh(label, h, z, text, seen, text.impersonal + intercept, variance)
        innovation = seen.innovate(text.mean + intercept + slopes + d_role + d_user, variance)
        for side, gain in zip(sides, gains, strict=True):
            if label.pooled:
                arms.correct(side.k, gain, innovation if side.sign > 0 else innovation.mirrored())
                if role:
                    _offer(role, side, innovation)
            if user:
                _offer(user, side, innovation)
        return foresight

    def _weigh(
        self, label: Label, h: Floats, z: Floats, text: _Text, seen: Observation, base: float, variance: float
    ) -> None:
        """Learn what a pooled label says of the parts z, beside `base`: the population's and the arm's level.

        Where the taste belongs: what it would add, against what nothing else explains. How noisy such labels are. And
        how much of each part to add to the base to predict a label.
        """
        relied = self.reliance()
        counted = base + float(np.einsum("i,i->", z, relied))
        where, r = text.where, float(relied[2])
        if where is not None and text.within * r:
            y, noise = seen.linear(counted)
            rest = y - (counted - r * text.user) - r * text.task
            self.relevance.see(where.task, h * where.learnt * r, rest, noise + variance, level=where.level)
        if seen.signal.link == "gaussian":
            squares, n = self.residuals.get(label.kind.value, (0.0, 0.0))
            self.residuals[label.kind.value] = squares + (seen.y - counted) ** 2, n + 1.0
        gain, predicted = self.stack.along(z)
        y, noise = seen.linear(base + predicted)
        self.stack.learn(gain, innovate(predicted, float(np.einsum("i,i->", z, gain)), y - base, noise=noise))

    def revise(self, label: Label, before: float) -> None:
        """Change the label y of an earlier observation: a vote that supersedes `before`.

        In a Gaussian block the posterior mean is linear in every label, with slope S h / (σ² + variance of the other
        blocks) for the present S; covariances do not depend on labels, so nothing else moves. For logistic signals
        it is their linearisation. `fitrouter.refit` reads the vote as if it had been so from the start.
        """
        if not label.read:
            return
        h = self._h(label)
        role, user = self._people(label.identity)
        blocks = self._blocks(label)
        along = [h] * len(blocks)
        if user is not None and label.dimension == OVERALL:
            along[-1] = self._where(label.identity, label.answer.x, user).relevance * h
        found = [block.taste.along(v) for block, v in zip(blocks, along, strict=True)]
        gains, predicted = [gain for gain, _ in found], sum(mean for _, mean in found)
        own = [float(np.einsum("i,i->", v, gain)) for v, gain in zip(along, gains, strict=True)]
        y, noise = self._heard(label).linear(predicted)
        change = y - heard(label.kind, before, label.tokens).linear(predicted)[0]
        if label.kind is FeedbackKind.RATING and user is not None and label.dimension == OVERALL:
            change, noise = change / user.scale.gain, noise / user.scale.gain**2
        for block, gain, variance in zip(blocks, gains, own, strict=True):
            if block.learns:
                block.taste.mean = block.taste.mean + gain * (change / (noise + sum(own) - variance))
        if label.dimension == OVERALL:
            self._revise_offsets(label, change, noise + sum(own), role, user)

    def _revise_offsets(
        self, label: Label, change: float, noise: float, role: Person | None, user: Person | None
    ) -> None:
        """The same for c and d, of each side of the label."""
        sides = self._sides(label)
        if label.against is not None and len(sides) == 1:
            role = user = None
        for side in sides:
            gain, _, _ = self.arms.along(side.k, side.x)
            c_variance = float(np.einsum("i,i->", gain, side.x))
            held = [person.offset(side.arm) if person else (0.0, 0.0) for person in (role, user)]
            total = noise + c_variance + held[0][1] + held[1][1]
            moved = change * side.sign
            if label.pooled:
                self.arms.correct(side.k, gain, Innovation(moved / (total - c_variance), 0.0))
            for person, (mean, variance), learns in ((role, held[0], label.pooled), (user, held[1], True)):
                if person and learns:
                    person.offer(side.arm, mean + variance * moved / (total - variance), variance)


def _offer(person: Person, side: _Side, innovation: Innovation) -> None:
    """Move d by an observation along ±1."""
    mean, variance = person.offset(side.arm)
    step, shrink = side.sign * variance * innovation.step, variance * variance * innovation.shrink
    person.offer(side.arm, mean + step, variance - shrink)
