"""Reward model: posterior of the rating that user u gives to an answer of model k.

    fit = w_0ᵀ ĥ_k(x) + c_k(x) + Σ_e ω_u(e) (δ_{u,e}ᵀ ĥ_k(x) + d_{u,e,k})

ĥ is learnt from every response (`arms`); the population's taste w_0 and the correction c from everybody's labels; the
deviations of a role and a user from labels of theirs, as a mixture over heads e of several prior widths, weighted by
how well each has predicted that person's labels (`mixture`, `people`). Scores are features and never labels.

Given a head, a label is one Gaussian observation of all blocks. Every block is updated along its own coordinates with
the variance of the others as noise; the shared blocks see the mixture by its mean and variance (assumed-density
filtering, Opper 1998), of users alone: a role is many people, and its terms are learnt on what everybody shares. Two
monitors read the labels' residuals: `drift`, for a model that has changed, and `reward_bias`, for a model that the
scores overrate, whose scores are then ignored.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.identity import canonical_role, role_key, task_of
from fitrouter.monitors.drift import Drift
from fitrouter.monitors.reward_bias import RewardBiasMonitor
from fitrouter.plain import Projection, on_grid
from fitrouter.posterior.arms import Arms, base_arm, context_of
from fitrouter.posterior.gaussian import Gaussian, GaussianUpdate, ordered_sum
from fitrouter.posterior.heads import Rows
from fitrouter.posterior.labels import Answered, Estimate, FitParams, Label, Prequential, Share
from fitrouter.posterior.likelihoods import (
    REMARK_STEP,
    REMARKS,
    SIGNALS,
    VERDICT,
    Observation,
    observation_of,
)
from fitrouter.posterior.mixture import TEMPERATURES, Context, MixturePrior, ModelAverage, updated
from fitrouter.posterior.people import Deviation, Observed, Person
from fitrouter.posterior.tastes import OVERALL, TastePrior, Tastes, learn
from fitrouter.types import FeedbackKind, Floats, Identity, Remark

NOISE_LABELS = 50.0
"""Prior weight of a Gaussian signal's fitted noise, in labels of this installation."""

NO_OFFSET = 0.0, 0.04
"""Prior mean and variance of the offset of a kind of outcomes: a run may fail more often than its answers are bad."""
_NO_OFFSET_AT_ALL = 0.0, 0.0

NOISE_OUTCOMES = 1.0
"""The same for outcomes of runs, whose noise nothing is known of: a check may have next to none."""

DRIFT_INFLATION = 25.0
"""Factor of a drifted arm's variances, up to the prior's."""

_RANGE = 3.0
"""Features are cut to ± this."""

CHOICE_SHARE = 0.25
"""Share of a person's variance that counts in the probability of a choice, and in a decision: blocks learn apart, so
that their errors cancel in part, and the sum of their variances is too large (docs/results/people.md)."""

_LOG_TEMPERATURES = np.log(TEMPERATURES)

_CACHED, _CACHED_BYTES = 1024, 1 << 25
"""People whose taste is kept for scores, and bytes of the deviations that are kept: 16 kB a person with five models."""


class _Side(NamedTuple):
    """Correction of the answers of one model in a label."""

    k: int
    """Row of the model."""
    x: Floats
    """Weighted sum of their contexts."""
    gains: Floats
    """S x at every width of c, float64[C, d]."""
    means: Floats
    variances: Floats
    """float64[C] each: of c."""


class _Shared(NamedTuple):
    """Prediction of a label by what all people share, before it is learnt."""

    h: Floats
    """Regressor of the label, float64[D]."""
    mean: float
    variance: float
    text: float
    """hᵀw_0."""
    gain: Floats
    """S h of w_0."""
    text_variance: float
    sides: list[_Side]
    corrections: Floats
    """Mean and variance of the corrections' sum at every width, float64[2, C]."""


class _OfRole(NamedTuple):
    """A role of a label, and the part of the label's regressor that is of its answers."""

    person: Person
    rows: Rows
    seen: Observed


class _Personal(NamedTuple):
    """Deviations of roles and user for a label, before it is learnt."""

    rows: Rows
    roles: Sequence[_OfRole] = ()
    user: Observed | None = None

    @property
    def role(self) -> Observed | None:
        """Deviation of the roles together; None without any."""
        seen = [each.seen for each in self.roles]
        if len(seen) < 2:
            return seen[0] if seen else None
        mean, variance = (ordered_sum(getattr(each, name) for each in seen) for name in ("mean", "variance"))
        return Observed([], [], [], mean, variance, [])

    @property
    def mean(self) -> float:
        """Mean of the deviations of role and user together."""
        outer = self.user or self.role
        return 0.0 if outer is None else outer.mean

    @property
    def variance(self) -> float:
        """Variance of the deviations of role and user together."""
        outer = self.user or self.role
        return 0.0 if outer is None else outer.variance

    @property
    def own(self) -> tuple[float, float]:
        """Mean and variance of what the user adds to the role; without a user, the role's."""
        if self.user is None or self.role is None:
            return self.mean, self.variance
        counted = 1.0 - self.user.weights[0]
        return (
            self.mean - counted * self.role.mean,
            max(self.variance - counted * self.role.variance, 0.0),
        )


class Prediction(NamedTuple):
    """Predicted mean and variance of a label's rating, with and without the personal terms."""

    population: tuple[float, float]
    """By the population's taste for the text."""
    blind: tuple[float, float]
    """And by the model: what all people share."""
    score: tuple[float, float]
    """By the person's taste for the text: the served score."""
    full: tuple[float, float]
    """By everything: what decisions add up."""


class Fit:
    """Posteriors of arms, tastes and people's deviations; a deterministic function of the labels.

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
        self.tastes = Tastes(D, self.params.tastes, names, prior)
        self.mixture = MixturePrior()
        self.widths = ModelAverage([prior.weight for prior in self.params.arms.corrections])
        """Weights of the posteriors of c."""
        self._sensitive = {canonical_role(role) for role in self.params.sensitive_roles}
        self.residuals: dict[str, tuple[float, float]] = {}
        """Kind of a Gaussian signal → sum of squared prediction errors, and their number."""
        self.offsets: dict[str, tuple[float, float]] = {}
        """Kind of outcomes of runs → mean and variance of their offset (`NO_OFFSET` before the first)."""
        self.labels = 0
        self.drift, self.reward_bias = Drift(), RewardBiasMonitor()
        self._bases: tuple[tuple[str, ...], tuple[str, ...]] = (), ()
        """Arms of the last decision, and their base arms."""
        self._known: dict[tuple[Context, str], tuple[tuple[object, ...], Deviation]] = {}
        self._combined: dict[tuple[str, str], tuple[Deviation | None, Deviation | None, Gaussian]] = {}

    def named(self) -> dict[str, Projection]:
        """Return the projections other than arms and people by name; the names are keys of snapshots."""
        return {"drift": self.drift, "flattery": self.reward_bias, "mixture": self.mixture, "widths": self.widths}

    # --- reading ---

    def people(self, identity: Identity) -> tuple[Person | None, Person | None]:
        """Return the role and the user of a request; a prior stands in for one without labels."""
        if not self.params.personal:
            return None, None
        nobody = self.tastes.nobody
        role = (self.tastes.role(identity) or self.tastes.unmet(identity)) if role_key(identity) else None
        return role, (self.tastes.user(identity) or nobody) if identity.user and self.params.users else None

    def context(self, identity: Identity) -> Context:
        """Return the context whose prior weights apply to a user's heads: "sensitive" or "user"."""
        return "sensitive" if identity.role and canonical_role(identity.role) in self._sensitive else "user"

    def weights(self, identity: Identity) -> Floats:
        """Weights of `EXPERTS` for the user of a request, or for its role if it has no user, float64[E]."""
        role, user = self.people(identity)
        if user is not None:
            return user.weights_in(self.context(identity), self.mixture)
        return self.mixture.weights("role") if role is None else role.weights_in("role", self.mixture)

    def _deviations(self, identity: Identity) -> tuple[Deviation | None, Deviation | None]:
        """Return what is known of the role and of the user of a request."""
        role, user = self.people(identity)
        of_role = None if role is None else self._deviation(role, "role", role_key(identity))
        return of_role, None if user is None else self._deviation(user, self.context(identity), identity.user or "")

    def _deviation(self, person: Person, context: Context, name: str) -> Deviation:
        """Return a person's deviation, kept until a label, a refit or a declaration changes it. Thread-safe."""
        weights = person.weights_in(context, self.mixture)
        state = (weights, person.declared, *(heads.mean for heads in person.heads))
        key = context, "" if person is self.tastes.nobody else name
        kept = self._known.get(key)
        if kept is not None and all(map(operator.is_, kept[0], state)):
            return kept[1]
        found = person.deviation(weights)
        if len(self._known) * found.cov.nbytes >= _CACHED_BYTES:
            self._known.clear()
        self._known[key] = state, found
        return found

    def _observe(
        self, context: Context, roles: Sequence[tuple[Person, Rows]], user: Person | None, rows: Rows
    ) -> _Personal:
        """Predict how roles, each for its part, and a user deviate from everybody for the one row of a label."""
        of_roles = [
            _OfRole(role, part, role.observe(part, role.weights_in("role", self.mixture))) for role, part in roles
        ]
        found = _Personal(rows, of_roles)
        if user is None:
            return found
        return found._replace(user=user.observe(rows, user.weights_in(context, self.mixture), found.role))

    def estimate(
        self, identity: Identity, x: Floats, names: tuple[str, ...], now: float, *, stuck: bool = False
    ) -> Estimate:
        """Predict the eligible arms for one request, at a time in seconds since the epoch.

        `stuck` says that a session's model was drawn anew because its agent was stuck.
        """
        found = self.arms.find(names)
        task = "" if found.efforts is None else task_of(identity, x)
        at = _where(identity, x) if stuck else ""
        arms, K = self.arms.read(found, x, self.widths.weights, task, at), len(names)
        profile, population = arms.profile, self.tastes.population
        mean = blind = profile @ population.mean + arms.correction
        centred = profile - np.add.reduce(profile) / K if K > 1 else profile
        of_role, of_user = self._deviations(identity)
        role_taste, taste = self._tastes_of(of_role, of_user)
        w = population.mean + taste
        own = arms.variance + arms.spread * (self.arms.spread[found.rows] @ (w * w))
        if K > 1:
            own = own * (1.0 - 2.0 / K) + own.sum() / (K * K)
        variance = own + np.vecdot(centred @ population.cov, centred)
        with_role = blind
        if of_role is not None or of_user is not None:
            role_mean, personal_mean, personal = _along(profile, self._bases_of(names), of_role, of_user)
            with_role, mean = blind + role_mean, blind + personal_mean
            variance = variance + CHOICE_SHARE * personal
        return Estimate(
            mean=mean,
            # Independent arms of variance v would lead their mean with v (K − 1) / K.
            sd=np.sqrt(np.maximum(variance, 0.0) * (K / (K - 1) if K > 1 else 1.0)),
            blind=blind,
            tokens=np.maximum(arms.tokens, 1.0),
            # Rounded as decisions log them: a pmf is computed from what the log has.
            seconds=on_grid(np.maximum(arms.seconds, 0.0), 7),
            availability=on_grid(self.arms.availability(found.answering, now), 12),
            profile=profile,
            with_role=with_role,
            tastes=(population.mean, role_taste, taste - role_taste),
        )

    def _tastes_of(self, of_role: Deviation | None, of_user: Deviation | None) -> tuple[Floats | float, Floats | float]:
        """Mean tastes of a role, and of a user in that role, minus the population's, float64[D] each; 0 for nobody."""
        role = 0.0 if of_role is None else of_role.mean[: self.D]
        return role, role if of_user is None else (1.0 - of_user.population) * role + of_user.mean[: self.D]

    def _bases_of(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the base arms of a decision's arms; variants share the offset of their model."""
        kept = self._bases
        if kept[0] != names:
            kept = self._bases = names, tuple(map(base_arm, names))
        return kept[1]

    def profile(self, x: Floats, names: tuple[str, ...]) -> Floats:
        """Expected features of arms' answers, as decisions use them, float64[K, D]."""
        return self.arms.read(self.arms.find(names), x, self.widths.weights).profile

    def taste(self, identity: Identity) -> Floats:
        """Posterior mean of a user's taste w, float64[D]."""
        w: Floats = self.tastes.population.mean + self._tastes_of(*self._deviations(identity))[1]
        return w

    def heads(self, identity: Identity, dimension: str = OVERALL) -> list[Gaussian]:
        """Return Gaussians whose sum is the user's taste w in a dimension. Thread-safe."""
        if dimension != OVERALL:
            blocks = self.tastes.others_of(identity, dimension)
            return blocks if self.params.personal else blocks[:1]
        of_role, of_user = self._deviations(identity)
        population, known = self.tastes.population, of_user or of_role
        if known is None:
            return [population]
        key = role_key(identity) if of_role else "", f"{self.context(identity)} {identity.user}" if of_user else ""
        kept = self._combined.get(key)
        if kept is None or kept[0] is not of_role or kept[1] is not of_user:
            mean, cov = known.mean[: self.D], known.cov[: self.D, : self.D]
            if of_role is not None and of_user is not None:
                alone, both, added = of_user.population, 1.0 - of_user.population, of_role.mean[: self.D]
                across = np.multiply.outer(added, 0.5 * both * added + mean)
                cov = cov + both * of_role.cov[: self.D, : self.D] + alone * (across + across.T)
                mean = mean + both * added
            if len(self._combined) >= _CACHED:
                self._combined.clear()
            kept = self._combined[key] = of_role, of_user, Gaussian(mean, cov)
        return [population, kept[2]]

    def score(self, identity: Identity, h: Floats, dimension: str = OVERALL) -> tuple[float, float]:
        """Posterior mean and sd of hᵀw for this user. Thread-safe. A missing feature (NaN) counts as average."""
        h = np.where(np.isfinite(h), h, 0.0)
        found = [block.along(h) for block in self.heads(identity, dimension)]
        variance = ordered_sum(float(np.einsum("i,i->", h, gain)) for gain, _ in found)
        return ordered_sum(mean for _, mean in found), math.sqrt(max(variance, 0.0))

    # --- learning ---

    def learn(self, label: Label) -> Prequential | None:
        """Learn from one label. Returns the prequential prediction of a pooled label in [0, 1] of one answer.

        A label with NaN is skipped.
        """
        if not self._finite(label):
            return None
        for role_name in dict.fromkeys(share.role for share in label.shares):
            self.tastes.meet(msgspec.structs.replace(label.identity, role=role_name) if label.run else label.identity)
        if label.dimension != OVERALL:
            self._learn_dimension(label)
            return None
        self.labels += 1
        shared = self._shared(label)
        roles, user, rows = self._labelled(label, shared.h)
        for person in (*(role for role, _ in roles), user):
            if person is not None:
                person.labels += 1
        context = self._context(label)
        personal = self._observe(context, roles, user, rows)
        mean, variance = shared.mean + personal.mean, shared.variance + personal.variance
        seen = self._fitted(label)
        if user is not None and label.kind is FeedbackKind.RATING:
            seen = self._on_common_scale(label.y, seen, user, mean, variance)
        if seen.signal.link == "gaussian" and label.pooled:
            squares, n = self.residuals.get(label.stream or label.kind.value, (0.0, 0.0))
            # What is still to be learnt is no noise (the update of a normal-inverse-gamma posterior).
            corrections = _scale(seen, label.part) * (shared.variance - shared.text_variance)
            offset = self.offsets.get(label.stream, NO_OFFSET) if label.stream else _NO_OFFSET_AT_ALL
            share = seen.signal.noise / (seen.signal.noise + shared.text_variance + corrections + offset[1])
            self.residuals[label.stream or label.kind.value] = (
                squares + share * (seen.y - offset[0] - mean) ** 2,
                n + 1.0,
            )
        if label.stream:
            seen = self._without_offset(label, seen, mean, variance)
        novel = self._novel(context, seen, personal, user) if label.pooled else (seen, 1.0)
        judged = seen.at(self.temperature(label.identity))
        of_choice = shared.variance + CHOICE_SHARE * personal.variance
        self._learn_temperature(seen, user, mean, of_choice, pooled=label.pooled)
        self._learn_people(label, seen, judged, shared, personal, user)
        update = seen.gaussian_update(mean, variance)
        if label.pooled:
            if user is None and len(personal.roles) > 1:
                own = ordered_sum(each.seen.mean * each.person.known for each in personal.roles)
            else:
                known = (user or next((each.person for each in personal.roles), None) or self.tastes.nobody).known
                own = personal.own[0] * known
            if self._updates_tastes(label):
                of_all = seen.gaussian_update(shared.mean + own, shared.variance)
                self.tastes.population.learn(shared.gain, of_all)
            self._learn_corrections(shared, *novel, own, label.part)
        self._monitor(label, shared.text + personal.mean, seen, update)
        if not label.pooled or seen.signal.link != "gaussian" or label.against is not None:
            return None
        return Prequential(seen.y, shared.mean, personal.mean)

    def predict(self, label: Label) -> Prediction:
        """Predict a label's rating, or the difference of a pair's ratings, before it is learnt."""
        shared = self._shared(label)
        personal, h = self._observe(self._context(label), *self._labelled(label, shared.h)), shared.h
        along = [block.along(h) for block in self.heads(label.identity)]
        score = (
            ordered_sum(mean for _, mean in along),
            ordered_sum(float(np.einsum("i,i->", h, gain)) for gain, _ in along),
        )
        full = shared.mean + personal.mean, shared.variance + personal.variance
        return Prediction((shared.text, shared.text_variance), (shared.mean, shared.variance), score, full)

    def _labelled(self, label: Label, h: Floats) -> tuple[list[tuple[Person, Rows]], Person | None, Rows]:
        """Return the roles of a label, each with its part of the regressor, the user, and the row of the label.

        A role or user without terms of its own is left out, or None.
        """
        shares = label.shares
        rows, parts = _rows(shares, h), dict[str | None, list[Share]]()
        if not self.params.personal:
            return [], None, rows
        for share in shares:
            parts.setdefault(share.role, []).append(share)
        roles = []
        for name, some in parts.items():
            role = self.tastes.role(msgspec.structs.replace(label.identity, role=name) if label.run else label.identity)
            if role is not None:
                roles.append((role, rows if len(parts) == 1 else _rows(some, self._h(some))))
        return roles, self.tastes.user(label.identity) if self.params.users else None, rows

    def _context(self, label: Label) -> Context:
        """Return the context of a label's user: "sensitive" if any of its answers served a role that is."""
        if not label.run:
            return self.context(label.identity)
        sensitive = any(share.role and canonical_role(share.role) in self._sensitive for share in label.run)
        return "sensitive" if sensitive else "user"

    def _without_offset(self, label: Label, seen: Observation, mean: float, variance: float) -> Observation:
        """Return an outcome less the expected offset of its kind, and learn the offset: one more block of the sum."""
        level, spread = self.offsets.get(label.stream, NO_OFFSET)
        found = Observation(seen.y - level, msgspec.structs.replace(seen.signal, noise=seen.signal.noise + spread))
        if label.pooled:
            update = found.gaussian_update(mean, variance)
            self.offsets[label.stream] = level + spread * update.step, spread - spread * spread * update.shrink
        return found

    def _shared(self, label: Label) -> _Shared:
        """Predict a label by the population's taste and the corrections."""
        h = self._h(label.shares)
        gain, text = self.tastes.population.along(h)
        # Without its text, an error of the taste is not distinguishable from one of the correction.
        text_variance = float(np.einsum("i,i->", h, gain)) if self._updates_tastes(label) else 0.0
        sides, widths = self._sides(label), self.widths.weights
        corrections = np.zeros((2, len(widths)))
        for side in sides:
            corrections[0] += side.means
            corrections[1] += side.variances
        mean, of_widths = np.einsum("bc,c->b", corrections, widths).tolist()
        of_widths += float(np.einsum("c,c->", widths, (corrections[0] - mean) ** 2))
        return _Shared(h, text + mean, text_variance + of_widths, text, gain, text_variance, sides, corrections)

    def _sides(self, label: Label) -> list[_Side]:
        """Corrections of the models of a label; one for a pair of a model's answers at two contexts."""
        contexts: dict[int, Floats] = {}
        for weight, answer, role, task in label.shares:
            who = msgspec.structs.replace(label.identity, role=role, task=task) if label.run else label.identity
            rows = self.arms.corrected(answer.arm, stuck=answer.stuck)
            for i, k in enumerate(rows):
                where = _where if answer.stuck and k == rows[-1] else task_of
                x = weight * (context_of(where(who, answer.x), self.d) if i else answer.x)
                contexts[k] = contexts[k] + x if k in contexts else x
        return [_Side(k, x, *self.arms.along(k, x)) for k, x in contexts.items()]

    def _learn_people(
        self,
        label: Label,
        seen: Observation,
        judged: Observation,
        shared: _Shared,
        personal: _Personal,
        user: Person | None,
    ) -> None:
        """Update heads of the user, and of roles if the label is pooled; their weights by the label as `judged`."""
        if user is not None and personal.user is not None:
            _learn_person(user, personal.user, personal.rows, seen, shared.mean, shared.variance)
            user.watch(judged, shared.mean + personal.mean, shared.variance + personal.variance)
            nats = _log_likelihoods(personal.user, judged, shared.mean, shared.variance)
            user.reweigh(self._context(label), nats, self.mixture, pooled=label.pooled)
        for role, rows, of_role in personal.roles if label.pooled else ():
            own, own_variance = personal.own if user is not None else (0.0, 0.0)
            mean, variance = shared.mean + own, shared.variance + own_variance
            for other in personal.roles:
                if other.person is not role:
                    mean, variance = mean + other.seen.mean, variance + other.seen.variance
            _learn_person(role, of_role, rows, seen, mean, variance)
            nats = _log_likelihoods(of_role, judged, mean, variance)
            role.reweigh("role", nats, self.mixture, pooled=True)

    def _novel(
        self, context: Context, seen: Observation, personal: _Personal, user: Person | None
    ) -> tuple[Observation, float]:
        """The observation that corrections learn from, and what it says of their level (`Person.novelty`).

        A user's offset is the same for every prompt, so that more labels of theirs say less about a model's level, and
        as much as anybody's about its slopes. A role's offset is also a slope, of the role's column in x.
        """
        if user is not None:
            return seen, user.novelty(personal.rows, user.weights_in(context, self.mixture))
        if not personal.roles:
            return seen, 1.0
        found = [role.novelty(rows, role.weights_in("role", self.mixture)) for role, rows, _ in personal.roles]
        weight = seen.signal.weight * min(found)
        return Observation(seen.y, msgspec.structs.replace(seen.signal, weight=weight)), 1.0

    def _learn_corrections(self, shared: _Shared, seen: Observation, novelty: float, own: float, part: float) -> None:
        """Update c at every width, and the weights of the widths.

        What is known of the person is subtracted (`Person.known`), so that nobody dominates c. What is not known of
        them is ignored: c is learnt as soon as without personal terms.

        Args:
            shared: prediction of the label by what all people share.
            seen: the label.
            novelty: what it says of a model's level, as a share of what a new person's label says.
            own: what is subtracted.
            part: `Label.part`.
        """
        noisy, mean, rest = _in_thumbs(seen, part), shared.text + own, shared.text_variance
        means, variances = shared.corrections.tolist()
        means, scale = [mean + m for m in means], _scale(seen, part)
        self.widths.learn(np.array(seen.log_likelihoods(means, [rest + scale * v for v in variances])))
        gains = [side.gains for side in shared.sides]
        if novelty < 1.0:
            found = [self.arms.along(side.k, _with_level(side.x, math.sqrt(novelty))) for side in shared.sides]
            gains, variances = [gain for gain, _, _ in found], np.sum([v for _, _, v in found], axis=0).tolist()
        step, shrink = map(np.array, noisy.gaussian_updates(means, [rest + v for v in variances]))
        for side, gain in zip(shared.sides, gains, strict=True):
            self.arms.correct(side.k, gain, step, shrink)

    def _learn_dimension(self, label: Label) -> None:
        """Learn a label of a dimension other than overall into that dimension's tastes, if its answers are scored."""
        if not self._updates_tastes(label):
            return
        identity = label.identity if self.params.personal else Identity(tenant=label.identity.tenant)
        blocks, h = self.tastes.blocks(identity, label.dimension, label.pooled), self._h(label.shares)
        found = [block.taste.along(h) for block in blocks]
        variance = ordered_sum(float(np.einsum("i,i->", h, gain)) for gain, _ in found)
        if blocks:
            update = self._fitted(label).gaussian_update(ordered_sum(mean for _, mean in found), variance)
            learn(blocks, [gain for gain, _ in found], update)

    @staticmethod
    def _finite(label: Label) -> bool:
        total = label.y + label.ts
        return math.isfinite(total + ordered_sum(float(np.add.reduce(share.answer.x)) for share in label.shares))

    def observation(self, label: Label) -> Observation:
        """Build the observation of a label as it is expected of its person, for the probability of their choice."""
        return self._fitted(label).at(self.temperature(label.identity))

    def temperature(self, identity: Identity) -> float:
        """Factor of the temperature of a person's choices: geometric mean of `TEMPERATURES`, by their weights.

        Weights of heads are computed with it. Posteriors are not: at a low temperature they follow a person's first
        choices too far (docs/results/people.md). A rating has none: rating scales and the noise of ratings are learnt.
        """
        user = self.people(identity)[1] or self.tastes.nobody
        weights = user.weights_in("temperature", self.mixture)
        return math.exp(ordered_sum((weights * _LOG_TEMPERATURES).tolist()))

    def _learn_temperature(
        self, seen: Observation, user: Person | None, mean: float, variance: float, *, pooled: bool
    ) -> None:
        """Update the weights of temperatures by a choice that was predicted by N(mean, variance)."""
        if seen.signal.link == "gaussian":
            return
        nats = np.array([seen.at(factor).log_likelihood(mean, variance) for factor in TEMPERATURES.tolist()])
        if user is not None:
            user.reweigh("temperature", nats, self.mixture, pooled=pooled)
        elif pooled:
            before = self.mixture.weights("temperature")
            self.mixture.learn("temperature", updated(before, nats, before)[0] - before)

    def _fitted(self, label: Label) -> Observation:
        """Build the observation of a label, with the noise learnt for its kind in this installation."""
        seen = observation_of(label.kind, label.y, label.tokens)
        if seen.signal.link == "logistic":
            return seen
        squares, n = self.residuals.get(label.stream or label.kind.value, (0.0, 0.0))
        prior = NOISE_OUTCOMES if label.stream else NOISE_LABELS
        noise = (prior * seen.signal.noise + squares) / (prior + n)
        return Observation(seen.y, msgspec.structs.replace(seen.signal, noise=noise))

    def _on_common_scale(self, y: float, seen: Observation, user: Person, mean: float, variance: float) -> Observation:
        """Convert a rating to everybody's scale by the user's known scale, then learn the user's scale from it."""
        level = self.tastes.params.level
        common, noisier = user.scale.common(y, level)
        user.scale.learn(y, mean, level, seen.signal.noise + variance)
        return Observation(common, msgspec.structs.replace(seen.signal, noise=seen.signal.noise * noisier))

    def _updates_tastes(self, label: Label) -> bool:
        """Whether a label updates tastes: its answers are scored, by scores that are not ignored."""
        if not label.has_features or not self.arms.distrusted:
            return label.has_features
        return not any(self.arms.distrusts(share.answer.arm) for share in label.shares)

    def _h(self, shares: Sequence[Share]) -> Floats:
        """Regressor of answers, float64[D]: the weighted sum of their features; missing ones are average."""
        h = shares[0].weight * self._h_of(shares[0].answer)
        for share in shares[1:]:
            h = h + share.weight * self._h_of(share.answer)
        return h

    def _h_of(self, answer: Answered) -> Floats:
        h = answer.h
        if h is None or self.arms.distrusts(answer.arm):
            return self.arms.expected(answer.arm, answer.x)
        known = np.isfinite(h)
        return h if known.all() else np.where(known, h, 0.0)

    def revise(self, label: Label, before: float) -> None:
        """Change a learnt label from the value `before` to `label.y`: a newer vote has superseded it.

        In a Gaussian block the posterior mean is linear in every label, with slope S h / (σ² + variance of the other
        blocks) for the present S; covariances do not depend on labels, so nothing else moves. For logistic signals
        it is their linearisation; weights of heads stay. `fitrouter.state.refit` reads the vote as if it had been so
        from the start.
        """
        if not self._finite(label):
            return
        self._combined.clear()
        earlier, seen = observation_of(label.kind, before, label.tokens), self._fitted(label)
        if label.dimension != OVERALL:
            self._revise_dimension(label, seen, earlier)
            return
        shared = self._shared(label)
        roles, user, rows = self._labelled(label, shared.h)
        personal = self._observe(self._context(label), roles, user, rows)
        mean = shared.mean + personal.mean
        y, noise = seen.linear(mean)
        if label.stream:
            noise += self.offsets.get(label.stream, NO_OFFSET)[1]
        change = y - earlier.linear(mean)[0]
        if label.kind is FeedbackKind.RATING and user is not None:
            change, noise = change / user.scale.gain, noise / user.scale.gain**2
        corrections = shared.variance - shared.text_variance
        text, model = _earlier((shared.text_variance, corrections), noise)
        people = [(role, part) for role, part, _ in personal.roles] if label.pooled else []
        for person, part in people if user is None else [*people, (user, rows)]:
            for heads in person.heads:
                heads.shift(part, change / (noise + text + model))
        if label.pooled:
            if self._updates_tastes(label):
                self.tastes.population.learn(shared.gain, GaussianUpdate(change / (noise + model), 0.0))
            least = max(noise, _in_thumbs(seen, label.part).signal.noise) if seen.signal.link == "gaussian" else noise
            for side in shared.sides:
                step = np.full(len(side.gains), change / (least + text))
                self.arms.correct(side.k, side.gains, step, np.zeros(len(step)))

    def _revise_dimension(self, label: Label, seen: Observation, earlier: Observation) -> None:
        """Replace a superseded vote in a dimension other than overall; see `revise`."""
        if not self._updates_tastes(label):
            return
        identity = label.identity if self.params.personal else Identity(tenant=label.identity.tenant)
        blocks, h = self.tastes.blocks(identity, label.dimension, label.pooled), self._h(label.shares)
        found = [block.taste.along(h) for block in blocks]
        variances = [float(np.einsum("i,i->", h, gain)) for gain, _ in found]
        y, noise = seen.linear(ordered_sum(mean for _, mean in found))
        change = y - earlier.linear(ordered_sum(mean for _, mean in found))[0]
        earlier_variances = _earlier(variances, noise)
        total = noise + ordered_sum(earlier_variances)
        for block, (gain, _), variance in zip(blocks, found, earlier_variances, strict=True):
            if block.learns:
                block.taste.learn(gain, GaussianUpdate(change / (total - variance), 0.0))

    # --- remarks ---

    def remark(self, remark: Remark, answer: Answered, *, withdraw: bool = False) -> None:
        """Learn what a user said about an answer, or withdraw it; only the user's own terms change.

        "Shorter" is a comparison of the answer with itself, one step shorter within the range of the feature: it says
        less of a short answer than of a long one. A withdrawal leaves weights and covariances of the heads, as `revise`
        does.
        """
        users = self.params.personal and self.params.users and remark.identity.user is not None
        if not users or answer.h is None or not np.isfinite(answer.x).all():
            return
        self._combined.clear()
        self.tastes.voter(remark.identity)
        label = Label(remark.identity, answer, remark.y or 0.0, FeedbackKind.ACCEPT, pooled=False)
        (roles, user, _), context = self._labelled(label, answer.h), self.context(remark.identity)
        assert user is not None
        said = self._observations(remark, label, answer.h)
        for rows, seen, mean, variance in reversed(said) if withdraw else said:
            deviation = self._observe(context, [(role, rows) for role, _ in roles], user, rows).user
            assert deviation is not None
            if withdraw:
                _unlearn_person(user, deviation, rows, seen, mean, variance)
                continue
            nats = _log_likelihoods(deviation, seen, mean, variance)
            _learn_person(user, deviation, rows, seen, mean, variance)
            user.reweigh(context, nats, self.mixture, pooled=False)

    def _observations(self, remark: Remark, label: Label, h: Floats) -> list[tuple[Rows, Observation, float, float]]:
        """Return the observations that a remark makes, each with its mean and variance by what all people share."""
        found, signal = [], REMARKS.get(remark.kind, REMARKS["implicit"])
        for name, wanted in sorted(remark.moved.items()):
            j = self.tastes.names.get(name, 0)
            if not j or not math.isfinite(wanted + h[j]):
                continue
            row = np.zeros(self.D)
            row[j] = np.clip(h[j] + REMARK_STEP * min(max(wanted, -1.0), 1.0), -_RANGE, _RANGE) - h[j]
            gain, mean = self.tastes.population.along(row)
            seen = Observation(1.0, signal)
            if row[j]:
                rows = Rows(row[None], (), np.zeros((1, 0)))
                found.append((rows, seen, mean, float(np.einsum("i,i->", row, gain))))
        if remark.y is not None:
            shared = self._shared(label)
            rows = _rows(label.shares, shared.h)
            found.append((rows, Observation(remark.y, VERDICT), shared.mean, shared.variance))
        return found

    # --- alarms ---

    def _monitor(self, label: Label, text: float, seen: Observation, update: GaussianUpdate) -> None:
        """Update the drift and reward-bias monitors with the label's residuals, and react to their alarms."""
        model = base_arm(label.answer.arm)
        if not label.pooled or label.limited or len(label.run) > 1:  # of several answers none is accused
            return
        if update.shrink > 0.0:
            z = update.step / math.sqrt(update.shrink)
            if self.drift.observe(model, z):
                self.drifted(model)
            if label.against is not None and base_arm(label.against.arm) != model:
                other = base_arm(label.against.arm)
                if self.drift.observe(other, -z):
                    self.drifted(other)
        if label.against is None and seen.signal.link == "gaussian" and self._updates_tastes(label):
            role = canonical_role(label.identity.role)
            cluster = task_of(label.identity, label.answer.x) if label.identity.user else None
            if self.reward_bias.observe(model, role, cluster, text - seen.y):
                self.distrust(model)

    def drifted(self, arm: str) -> None:
        """Inflate the variances of a drifted arm, and forget people's offsets on it."""
        self._combined.clear()
        model = base_arm(arm)
        self.arms.loosen(model, DRIFT_INFLATION)
        self.tastes.forget(model)

    def distrust(self, arm: str) -> None:
        """Ignore the scores of an arm that the reward model overrates.

        Its expected features become the mean of the other arms'; its level is learnt anew from labels alone.
        """
        self._combined.clear()
        model = base_arm(arm)
        self.arms.distrust(model)
        self.tastes.forget(model)


def _rows(shares: Sequence[Share], h: Floats) -> Rows:
    """Build the row that answers with the regressor h have in people's heads."""
    counted: dict[str, float] = {}
    for share in shares:
        base = base_arm(share.answer.arm)
        counted[base] = counted.get(base, 0.0) + share.weight
    return Rows(h[None], tuple(counted), np.array([list(counted.values())]))


def _along(
    profile: Floats, bases: tuple[str, ...], of_role: Deviation | None, of_user: Deviation | None
) -> tuple[Floats | float, Floats, Floats]:
    """Mean deviation of a role for K answers, and mean and variance of a user's in it: see `Deviation.along`."""
    if of_role is None or of_user is None:
        known = of_user or of_role
        assert known is not None
        mean, variance = known.along(profile, bases)
        return (mean if of_user is None else 0.0), mean, variance
    (role, role_variance), (user, variance) = of_role.along(profile, bases), of_user.along(profile, bases)
    alone, both = of_user.population, 1.0 - of_user.population
    # One expert has neither the role's deviation nor the user's: their sum varies over experts by both.
    apart, own = (each - np.add.reduce(each) / len(each) if len(each) > 1 else each for each in (role, user))
    return role, both * role + user, both * role_variance + variance + alone * apart * (both * apart + 2.0 * own)


def _learn_person(
    person: Person, observed: Observed, rows: Rows, seen: Observation, mean: float, variance: float
) -> None:
    """Update each head of a person with a label that everything else predicts by N(mean, variance)."""
    means, variances = [mean + m for m in observed.means], [variance + v for v in observed.variances]
    for (at, heads), own in zip(person.experts(), observed.seen, strict=True):
        step, shrink = seen.gaussian_updates(means[at], variances[at])
        heads.learn(rows, np.array(step), np.array(shrink), own.gains)


def _unlearn_person(
    person: Person, observed: Observed, rows: Rows, seen: Observation, mean: float, variance: float
) -> None:
    """Undo what `_learn_person` taught the means of the heads."""
    for (at, heads), own in zip(person.experts(), observed.seen, strict=True):
        rests = [max(variance + v - part, 0.0) for v, part in zip(observed.variances[at], own.variance, strict=True)]
        step, shrink = seen.gaussian_updates([mean + m for m in observed.means[at]], rests)
        heads.unlearn(rows, np.array(step), np.array(shrink))


def _earlier(variances: Sequence[float], noise: float) -> list[float]:
    """Solve for the variances v of blocks before a label, from those after it, v − v² / (noise + Σ v)."""
    before = list(variances)
    for _ in range(8):
        total = noise + ordered_sum(before)
        before = [0.5 * (total - math.sqrt(max(total * (total - 4.0 * left), 0.0))) for left in variances]
    return before


def _log_likelihoods(observed: Observed, seen: Observation, mean: float, variance: float) -> Floats:
    """Log likelihoods of a label under each head, where the rest predicts it by N(mean, variance), float64[E]."""
    return np.array(
        seen.log_likelihoods([mean + m for m in observed.means], [variance + v for v in observed.variances])
    )


def _where(identity: Identity, x: Floats) -> str:
    """The role, or without one the task, by which it is learnt which model gets an agent unstuck."""
    return role_key(identity) or task_of(identity, x)


def _with_level(x: Floats, factor: float) -> Floats:
    """A context with its level, the first coordinate, times a factor."""
    out = x.copy()
    out[0] *= factor
    return out


def _in_thumbs(seen: Observation, part: float) -> Observation:
    """Raise an observation's noise to at least that of a thumb; c and d learn from the result.

    Their prior variances are calibrated on thumbs. Kinds of labels with less noise also vary less between models and
    prompts; with their own small noise and the wide prior, chance would be learnt as a model's strength. The mean of
    several answers has as much less of that chance as `Label.part` says.
    """
    noise = SIGNALS[FeedbackKind.THUMB].noise * part
    if seen.signal.link != "gaussian" or seen.signal.noise >= noise:
        return seen
    return Observation(seen.y, msgspec.structs.replace(seen.signal, noise=noise))


def _scale(seen: Observation, part: float) -> float:
    """Factor from the noise of `_in_thumbs`, for which the variances of c are calibrated, to a label's own noise."""
    return seen.signal.noise / _in_thumbs(seen, part).signal.noise
