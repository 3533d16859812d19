"""The fit model: what an answer of model k is worth to user u.

    fit = (w_0 + w_role + a(x) ⊙ δ_u + δ_{u,task})ᵀ ĥ_k(x) + c_k(x) + d_{role,k} + d_{u,k}

a(x) says where a taste belongs (`relevance`). ĥ is learnt from every response; tastes from labels on the actual
answer's text, without the model's name; c and d from labels only, on what the taste could not say. A score (hᵀw) is
never an observation: scores are features, labels are rewards.

Each part of it counts as far as it has predicted labels so far (`Fit.reliance`, a Bayesian linear stacking of the
parts), so that a world without tastes is routed almost as if their terms did not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.arms import ArmParams, Arms
from fitrouter.people import Person, canonical_role
from fitrouter.relevance import Relevance, task_of
from fitrouter.signals import Observation, heard
from fitrouter.taste import Gaussian, Innovation, innovate
from fitrouter.tastes import OVERALL, TasteParams, TastePrior, Tastes, learn
from fitrouter.types import FeedbackKind, Floats, Identity

__all__ = ["PARTS", "Answered", "Estimate", "Fit", "FitParams", "Label"]

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

    parts: list[float]
    """hᵀw of the population with what the user declared, of the role, and of the user."""
    variance: float
    where: _Where | None


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
        self.residuals: dict[str, tuple[float, float]] = {}
        """Kind of a Gaussian signal → sum of the squared errors of what was predicted here, and their number."""
        self.labels = 0

    def reliance(self) -> Floats:
        """float64[4] in [0, 1]: how far each of `PARTS` counts in decisions.

        A part is itself an estimate with errors, which draws its coefficient towards 0 (errors in variables) however
        sure it is that the part helps. So a people's term counts in full once its coefficient is `CERTAIN` standard
        deviations above 0, and in proportion before, where that is more than the coefficient.
        """
        mean, sd = self.stack.mean, np.sqrt(np.diag(self.stack.cov) + 1e-300)
        sure = np.minimum(mean / sd, CERTAIN) / CERTAIN
        sure[0] = mean[0]
        return np.clip(np.maximum(mean, sure), 0.0, 1.0)

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
        arms = self.arms
        rows = arms.rows(names)
        relied = self.reliance()
        profile = np.einsum("kdh,d->kh", arms.profile[rows], x)
        spread = np.einsum("ki,i->k", np.einsum("kij,j->ki", arms.profile_cov[rows], x), x)
        correction = arms.correction[rows]
        population = self.tastes.population
        w, cov = population.mean, population.cov
        blind = np.einsum("kh,h->k", profile, w) + correction[:, 0] * x[0]
        blind = blind + relied[0] * np.einsum("kd,d->k", correction[:, 1:], x[1:])
        variance = np.einsum("ki,i->k", np.einsum("kij,j->ki", arms.correction_cov[rows], x), x)
        mean = blind
        if self.params.personal:
            nobody = self.tastes.nobody
            role, user = self.tastes.role(identity) or nobody[0], self.tastes.user(identity) or nobody[1]
            where = self._where(identity, x, user)
            a = where.relevance
            own = self._own(where, user, float(relied[2]))
            spread_of_user = a[:, None] * user.taste.cov * a + np.diag(where.own[1])
            for taste, its_cov, relied_on in (
                (relied[1] * role.taste.mean, role.taste.cov, relied[1]),
                (own, spread_of_user, relied[2]),
            ):
                w = w + taste
                cov = cov + relied_on * relied_on * its_cov
            mean = mean + np.einsum("kh,h->k", profile, w - population.mean)
            for person, relied_on in ((role, relied[1]), (user, relied[3])):
                offsets = np.array([person.offset(name) for name in names])
                mean = mean + relied_on * offsets[:, 0]
                variance = variance + relied_on * relied_on * offsets[:, 1]
        variance = variance + np.einsum("kh,kh->k", np.einsum("kh,hj->kj", profile, cov), profile)
        variance = variance + spread * np.einsum("kh,h->k", arms.spread[rows], w * w)
        operations = np.einsum("kdo,d->ko", arms.operations[rows], x)
        return Estimate(
            mean=mean,
            sd=np.sqrt(variance),
            blind=blind,
            tokens=np.maximum(operations[:, 0], 1.0),
            seconds=np.maximum(operations[:, 1], 0.0),
            availability=arms.availability(rows, now),
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

    def learn(self, label: Label) -> None:
        """Fold one label: first what it says of the text (tastes), then what it says beyond it (c and d)."""
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
        if label.dimension == OVERALL:
            self._learn_offsets(label, h, text, seen, role, user)
            self.labels += 1

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
                h = np.einsum("dh,d->h", self.arms.profile[self.arms.row(answer.arm)], answer.x)
            return np.where(np.isnan(h), 0.0, h)

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
        identity = label.identity if self.params.personal else Identity(tenant=label.identity.tenant)
        blocks = self.tastes.blocks(identity, label.dimension, label.pooled)
        if not blocks:
            return _Text([0.0, 0.0, 0.0], 0.0, None)
        where = None
        if user is not None and label.dimension == OVERALL:
            where = self._where(label.identity, label.answer.x, user)
        along = self._along(h, len(blocks), where)
        gains = [block.taste.gain(v) for block, v in zip(blocks, along, strict=True)]
        means = [float(np.einsum("i,i->", v, block.taste.mean)) for block, v in zip(blocks, along, strict=True)]
        parts = [means[0], means[1] if role else 0.0, means[-1] if user else 0.0]
        if where is not None and user is not None:
            parts[0] += float(np.einsum("i,i->", h, user.base_mean))
            parts[2] = float(np.einsum("i,i->", h, where.relevance * where.learnt + where.own[0]))
            if label.read:
                params = self.tastes.params
                excess = seen.surprise(sum(parts)) - seen.surprise(sum(parts) - parts[2])
                user.surprise(excess, limit=params.surprise_nats, row=params.surprises)
                gains[-1] = user.taste.gain(along[-1])
        variance = float(sum(np.einsum("i,i->", v, gain) for v, gain in zip(along, gains, strict=True)))
        if where is not None:
            variance += float(np.einsum("i,i->", h * h, where.own[1]))
        if label.read:
            innovation = seen.innovate(sum(parts), variance)
            learn(blocks, gains, innovation)
            if where is not None and user is not None:
                gain = where.own[1] * h
                user.tasks[where.task] = np.stack(
                    [where.own[0] + gain * innovation.step, where.own[1] - gain * gain * innovation.shrink]
                )
        return _Text(parts, variance, where)

    def _along(self, h: Floats, blocks: int, where: _Where | None) -> list[Floats]:
        """The direction that each block is observed along: a user's taste only as far as it belongs to the task."""
        along = [h] * blocks
        if where is not None:
            along[-1] = where.relevance * h
        return along

    def _sides(self, label: Label) -> list[_Side]:
        sides = [(1.0, label.answer)] + ([] if label.against is None else [(-1.0, label.against)])
        return [_Side(sign, answer.arm, self.arms.row(answer.arm), answer.x) for sign, answer in sides]

    def _learn_offsets(
        self,
        label: Label,
        h: Floats,
        text: _Text,
        seen: Observation,
        role: Person | None,
        user: Person | None,
    ) -> None:
        """Fold what the label says beyond hᵀw (w as before it) into c and d; weigh the parts, and where they belong."""
        arms, sides, parts = self.arms, self._sides(label), text.parts
        if len(sides) > 1 and sides[0].k == sides[1].k:
            sides = [sides[0]._replace(x=sides[0].x - sides[1].x)]  # c of one model at two contexts; d cancels
            role = user = None
        gains = [np.einsum("ij,j->i", arms.correction_cov[side.k], side.x) * side.sign for side in sides]
        intercept = sum(side.sign * float(arms.correction[side.k, 0] * side.x[0]) for side in sides)
        slopes = sum(side.sign * float(np.einsum("i,i->", arms.correction[side.k, 1:], side.x[1:])) for side in sides)
        variance = text.variance
        for side, gain in zip(sides, gains, strict=True):
            variance += side.sign * float(np.einsum("i,i->", gain, side.x))
        offsets = []
        for person in (role, user):
            held = [person.offset(side.arm) for side in sides] if person else []
            offsets.append(sum(side.sign * mean for side, (mean, _) in zip(sides, held, strict=False)))
            variance += sum(v for _, v in held)
        if label.pooled:
            z = np.array([slopes, parts[1] + offsets[0], parts[2], offsets[1]])
            relied, base = self.reliance(), parts[0] + intercept
            self._place(h, z, relied, base, text, seen, variance)
            if seen.signal.link == "gaussian":
                error = seen.y - base - float(np.einsum("i,i->", z, relied))
                squares, n = self.residuals.get(label.kind.value, (0.0, 0.0))
                self.residuals[label.kind.value] = squares + error * error, n + 1.0
            self._weigh(z, base, seen)
        innovation = seen.innovate(sum(parts) + intercept + slopes + sum(offsets), variance)
        for side, gain in zip(sides, gains, strict=True):
            if label.pooled:
                arms.correction[side.k] += gain * innovation.step
                arms.correction_cov[side.k] -= np.multiply.outer(gain, gain) * innovation.shrink
                if role:
                    role.offsets[side.arm] = _scalar(*role.offset(side.arm), side.sign, innovation)
            if user:
                user.offsets[side.arm] = _scalar(*user.offset(side.arm), side.sign, innovation)

    def _place(
        self, h: Floats, z: Floats, relied: Floats, base: float, text: _Text, seen: Observation, variance: float
    ) -> None:
        """Learn how far the user's taste counts in this task: what it would add, against what nothing else explains."""
        where = text.where
        if where is None or not where.learnt.any():
            return
        others = base + float(np.einsum("i,i->", z, relied)) - relied[2] * z[2]
        y, noise = seen.linear(others + relied[2] * z[2])
        own = relied[2] * float(np.einsum("i,i->", h, where.own[0]))
        self.relevance.see(
            where.task, relied[2] * h * where.learnt, y - others - own, noise + variance, level=where.level
        )

    def _weigh(self, z: Floats, base: float, seen: Observation) -> None:
        """Learn how much of each part to add to `base`, the population's and the arm's level, to predict a label."""
        gain = self.stack.gain(z)
        predicted = float(np.einsum("i,i->", z, self.stack.mean))
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
        identity = label.identity if self.params.personal else Identity(tenant=label.identity.tenant)
        blocks = self.tastes.blocks(identity, label.dimension, label.pooled)
        where = None
        if user is not None and label.dimension == OVERALL:
            where = self._where(label.identity, label.answer.x, user)
        along = self._along(h, len(blocks), where)
        gains = [block.taste.gain(v) for block, v in zip(blocks, along, strict=True)]
        own = [float(np.einsum("i,i->", v, gain)) for v, gain in zip(along, gains, strict=True)]
        predicted = sum(float(np.einsum("i,i->", v, block.taste.mean)) for block, v in zip(blocks, along, strict=True))
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
        for side in self._sides(label):
            gain = np.einsum("ij,j->i", self.arms.correction_cov[side.k], side.x)
            c_variance = float(np.einsum("i,i->", gain, side.x))
            held = [person.offset(side.arm) if person else (0.0, 0.0) for person in (role, user)]
            total = noise + c_variance + held[0][1] + held[1][1]
            moved = change * side.sign
            if label.pooled:
                self.arms.correction[side.k] += gain * (moved / (total - c_variance))
            for person, (mean, variance), learns in ((role, held[0], label.pooled), (user, held[1], True)):
                if person and learns:
                    person.offsets[side.arm] = mean + variance * moved / (total - variance), variance


def _scalar(mean: float, variance: float, sign: float, innovation: Innovation) -> tuple[float, float]:
    """A scalar Gaussian block after an innovation along ±1."""
    return mean + sign * variance * innovation.step, variance - variance * variance * innovation.shrink
