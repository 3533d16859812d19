"""Decider: turns predicted ratings and costs into a logged decision, a whole pmf and one seeded draw from it.

A decision's pmf is a mixture, (1 − Σ rest) · policy + rest: `rest` is the probability mass that exploration rules set
(floor, uniform slice, new arms, default model), known before the policy's own pmf. Logging it lets replay evaluate any
other policy under the same rules.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from fitrouter.draw import draws, landing
from fitrouter.errors import BudgetExhausted
from fitrouter.identity import canonical_role, role_key, task_of
from fitrouter.plain import pack, unpack
from fitrouter.policies import Beliefs, Policy, build_policy, proposals
from fitrouter.posterior.arms import kind_of
from fitrouter.posterior.labels import Estimate
from fitrouter.posterior.model import Fit
from fitrouter.routing.grounds import grounds_of
from fitrouter.routing.tiers import Tiers
from fitrouter.state.budgets import over_cap
from fitrouter.state.projections import Projections
from fitrouter.types import FULL_SHARE, Decision, Floats, Identity, Mode, ModelCard, Payer, PolicyVersion, Prices

GUEST_SHARE = 0.02
"""Share of a new tenant's traffic that the model of each other tenant places where tenants share what they learn."""
MOST_GUESTS = 0.2
"""Largest share that the models of all other tenants place."""
GUEST_LABELS = 50.0
"""Labels of its own at which a tenant gives its guests half of that."""
NEAR = 0.1
"""Largest difference of user-blind utility from the best at which a model is good enough for friction."""
_MARGIN = 1.0 - 1e-9
"""The logged floor is scaled by this to stay below every probability."""
_GUEST_DRAW = 7
"""Which of a decision's uniforms picks the guest; attempts use those before it."""


class Rules(Tiers, frozen=True, kw_only=True):
    """Settings that turn a policy's pmf into the logged pmf."""

    floor: float = 0.02
    uniform_slice: float = 0.0
    share: float = 1.0
    default_arm: str | None = None
    newcomer_floor: float = 0.25
    """Exploration share of new arms: on every eligible request until `newcomer_pulls` calls, then until
    `newcomer_labels` labels on requests where an arm's utility plus one standard deviation exceeds the best utility."""
    newcomer_pulls: int = 20
    newcomer_labels: int = 60
    friction: float = 0.0
    """Share of traffic spread over the models that are good for everybody, within `NEAR` of the best."""
    ask: float = 0.0
    cost_weight: float = 0.0
    cost_unit_usd: float = 0.01
    latency_weight: float = 0.0
    latency_unit_s: float = 10.0
    guests: float = 0.0
    """Share of a tenant's traffic that the model of each other tenant places, in expectation; see `Decider._guest`."""
    base_delta: float | None = None
    """δ of the quality floor: models with P(ok) < 1 − δ are excluded, except the best one; None switches it off."""
    consistency: float = 0.02
    """Utility that switching a session to another model costs."""
    redraw_every: int = 8
    """User turns after which a session is drawn again; 0 for no limit."""
    redraw_stuck: int = 2
    """Draws within a user turn because an agent shows that it is stuck; 0 for none."""
    idle_s: float = 3600.0
    """Idle seconds that end a session."""
    force: str = ""
    """Emergency override: a model that takes every request it can take; these decisions have no pmf."""
    paused: str = ""
    """Models that are not called, separated by commas."""
    personal: bool = True
    impersonal_roles: tuple[str, ...] = ()
    """Canonical roles whose decisions leave out the personal terms."""
    seed: int = 0
    config_hash: str = ""
    registry: str = ""
    encoder: str = ""


class CurrentModel(NamedTuple):
    """The present model of a session for which a model is drawn again."""

    arm: str
    usd: Mapping[str, float]
    """arm → cost of losing the prompt cache, in USD."""


class _Mixture(NamedTuple):
    """Mixture of a policy's pmf with exploration: `scale · pmf + rest`."""

    scale: float
    rest: Floats
    """Mass of the floor, uniform slice, new arms and default model: float64[K]."""
    uniform: float
    """Mass of the uniform slice on each arm."""
    default: float
    """Mass of the default model's share, on its own arm."""
    floor: float
    """Every probability is at least floor / K."""

    def probs(self, pmf: Floats) -> Floats:
        """The marginal pmfs, float64[..., K]."""
        probs = self.scale * pmf + self.rest
        probs /= probs.sum(axis=-1, keepdims=True)
        return probs


class LearnedState(Protocol):
    """Protocol of the state that a decision reads, implemented by `fitrouter.state.learner.Learner`."""

    @property
    def fit(self) -> Fit:
        """Posteriors of ratings, cost, latency and availability."""
        ...

    @property
    def projections(self) -> Projections:
        """Arm counts and monitors."""
        ...

    def facts(self, tenant: str | None = None) -> Projections:
        """Runtime settings, and the budget of a tenant; current even where what is learnt is not."""
        ...

    def of(self, tenant: str) -> LearnedState:
        """Return the state that a tenant's decisions read, except the runtime settings, which are everybody's."""
        ...

    def parts(self) -> Sequence[LearnedState]:
        """The states of all tenants."""
        ...


class Decider:
    """Makes decisions with one policy from the learned state, without changing it.

    Args:
        policy: maps predicted utilities to probabilities.
        learner: the learned state. Its attributes are read anew for each decision, since a refit replaces them.
        rules: settings of the configuration.
        parameters: of the configured policy, for runtime changes that name only some of them.
        candidates: name → settings of shadow policies, whose pmfs are logged with each decision.
    """

    def __init__(
        self,
        policy: Policy,
        learner: LearnedState,
        rules: Rules,
        *,
        parameters: Mapping[str, Any] | None = None,
        candidates: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.policy, self.learner, self.rules = policy, learner, rules
        self.parameters = {"algorithm": policy.name, **(parameters or {})}
        self.candidates = {name: dict(settings) for name, settings in (candidates or {}).items()}
        self._shadows = {name: self.build(settings, shadow=True) for name, settings in self.candidates.items()}
        self._prices: tuple[list[Prices], Floats] = [], np.zeros((2, 0))
        self._live: tuple[dict[str, Any], Policy, Rules] | None = None

    def live(self) -> tuple[Policy, Rules]:
        """Return the policy and the rules in force: the configuration overridden by the runtime settings."""
        settings = self.learner.facts().policy_settings.settings
        if not settings:
            return self.policy, self.rules
        if self._live is None or settings != self._live[0]:
            known = {name: value for name, value in settings.items() if name in Rules.__struct_fields__}
            policy = self.build(settings) if settings.keys() - known.keys() else self.policy
            version = hashlib.sha256(json.dumps([self.rules.config_hash, settings], sort_keys=True).encode())
            known["config_hash"] = version.hexdigest()[:16]
            self._live = dict(settings), policy, msgspec.structs.replace(self.rules, **known)
        return self._live[1:]

    def renew(self, **changed: Any) -> None:
        """Replace fields of `rules` for later decisions."""
        self.rules, self._live = msgspec.structs.replace(self.rules, **changed), None

    def build(self, settings: Mapping[str, Any], *, shadow: bool = False) -> Policy:
        """Build the policy of settings that override the configuration.

        Raises:
            ConfigError: the settings are invalid.
        """
        wanted = self.parameters | {k: v for k, v in settings.items() if k not in Rules.__struct_fields__}
        return build_policy(**wanted, default_model=self.rules.default_arm, shadow=shadow)

    def decide(
        self,
        decision_id: str,
        ts: float,
        identity: Identity,
        features: Floats,
        cards: Sequence[ModelCard],
        *,
        excluded: tuple[tuple[str, str], ...] = (),
        prompt_tokens: int = 0,
        seq: int = 0,
        current: CurrentModel | None = None,
        capped: bool = True,
        tier: str = "",
        stuck: bool = False,
    ) -> Decision:
        """Compute the pmf over the eligible models and draw one.

        Args:
            decision_id: UUIDv7; keys the draw.
            ts: seconds since the epoch.
            identity: of the request.
            features: the context, float64[d].
            cards: the eligible models in canonical order, at least one.
            excluded: (arm, reason) of the other models.
            prompt_tokens: estimated length of the prompt.
            seq: last sequence number folded into the learned state.
            current: the session's present model, if a session is drawn again.
            capped: whether models can be excluded by the tenant's budget.
            tier: of the request, as `checked_tier` returns it.
            stuck: whether the draw is one because an agent was stuck.
        """
        policy, rules = self.live()
        if tier:
            rules = msgspec.structs.replace(rules, cost_weight=rules.weight(tier, rules.cost_weight))
        state = self.learner.of(identity.tenant)
        payload = pack(features)
        context = self._context(rules, ts, identity, unpack(payload), cards, prompt_tokens, current, capped, stuck)
        if rules.guests:
            context = self._guest(context, policy, rules, decision_id, ts, identity, unpack(payload))
        beliefs = context.beliefs
        differs = beliefs.mean is not beliefs.blind
        blind, personal = context.pmfs((beliefs.blind, beliefs.mean)[: 1 + differs], policy)[[0, -1]]
        personalised = self._personalised(rules, identity)
        probs = personal if personalised else blind
        u = draws(rules.seed, decision_id, 2)
        chosen, mode = _draw(probs, context.mixture, context.names, rules.default_arm, float(u[0]))
        whole = context._replace(mixture=context.full)
        shadows = {
            name: tuple((context if rules.share else whole).pmf(context.beliefs.mean, by).tolist())
            for name, by in self._shadows.items()
        }
        if rules.share < 1.0:
            mean = context.beliefs.mean if personalised else context.beliefs.blind
            shadows[FULL_SHARE] = tuple(whole.pmf(mean, policy).tolist())
        return Decision(
            id=decision_id,
            ts=ts,
            draw_id=decision_id,
            identity=identity,
            mode=mode,
            excluded=(*excluded, *context.excluded),
            probs=tuple(probs.tolist()),
            chosen=context.names[chosen],
            propensity=float(probs[chosen]),
            features=payload,
            twin=tuple(blind.tolist()),
            personal=() if personalised else tuple(personal.tolist()),
            candidates=shadows,
            asked=bool(u[1] < rules.ask),
            tier=tier,
            policy=PolicyVersion(algorithm=policy.name, config_hash=rules.config_hash, seq=seq),
            grounds=grounds_of(
                state.fit,
                context.beliefs,
                identity,
                context.names,
                personal=personalised,
                counts=state.projections.arm_counts,
            ),
            **_unusual(context.logged() | _logged(rules)),
        )

    def _guest(
        self,
        context: _Context,
        policy: Policy,
        rules: Rules,
        decision_id: str,
        ts: float,
        identity: Identity,
        x: Floats,
    ) -> _Context:
        """Let the model of another tenant, drawn among those with labels, place a share of the traffic.

        Whatever one tenant teaches its model, it moves another's probabilities by `guests` at most, in the mean over
        the draw. The pmf is logged given the guest, as part of `rest`.
        """
        guests = [
            part for part in self.learner.parts() if part.fit.labels and part is not self.learner.of(identity.tenant)
        ]
        if not guests:
            return context
        u = float(draws(rules.seed, decision_id, _GUEST_DRAW + 1)[_GUEST_DRAW])
        guest = guests[min(int(u * len(guests)), len(guests) - 1)]
        share = min(rules.guests * len(guests), MOST_GUESTS) * GUEST_LABELS / (GUEST_LABELS + context.steps)
        beliefs = guest.fit.estimate(Identity(tenant=identity.tenant, task=identity.task), x, context.names, ts)
        utility = beliefs.availability * (beliefs.mean - context.penalty)
        if context.switch is not None:
            utility = utility - context.switch
        sd = beliefs.availability * beliefs.sd
        placed = policy.propose(Beliefs(arms=context.names, utility=utility, sd=sd, steps=float(guest.fit.labels)))
        # As the share of new arms: policy and floor give way alike, so that replay can change the floor.
        mixture, K = context.mixture, len(context.names)
        floor = mixture.floor / _MARGIN - mixture.uniform * K
        rest = mixture.rest + share * ((mixture.scale + floor) * placed - floor / K)
        logged = (floor * (1.0 - share) + mixture.uniform * K) * _MARGIN
        return context._replace(mixture=mixture._replace(scale=mixture.scale * (1.0 - share), rest=rest, floor=logged))

    def over_budget(
        self, ts: float, identity: Identity, features: Floats, cards: Sequence[ModelCard], prompt_tokens: int
    ) -> list[tuple[str, str]]:
        """Return (arm, reason) for the models that are too dear for one request by the tenant's budget."""
        state, names = self.learner.of(identity.tenant), tuple(card.arm for card in cards)
        if (cap := self.learner.facts(identity.tenant).budgets.cap(identity.tenant, ts)) == math.inf:
            return []
        beliefs = state.fit.estimate(identity, unpack(pack(features)), names, ts)
        return over_cap(names, self._cost(cards, beliefs, prompt_tokens), cap)

    def wait_s(self, tenant: str, ts: float, payer: Payer | None) -> float:
        """Seconds until a tenant or a key whose money is spent gets more."""
        return self.learner.facts(tenant).wait_s(tenant, payer, ts)

    def _cost(self, cards: Sequence[ModelCard], beliefs: Estimate, prompt_tokens: int) -> Floats:
        """Expected cost of the request by model in USD, float64[K]."""
        prices = self._price_table(cards)
        cost: Floats = prices[0] * (prompt_tokens / 1e6) + prices[1] * (beliefs.tokens / 1e6)
        return unpack(pack(cost))

    def _price_table(self, cards: Sequence[ModelCard]) -> Floats:
        """Return input and output prices in USD per million tokens, float64[2, K], cached for repeated models."""
        known = [card.prices for card in cards]
        if self._prices[0] != known:
            self._prices = known, np.array([[p.input for p in known], [p.output for p in known]])
        return self._prices[1]

    def _personalised(self, rules: Rules, identity: Identity) -> bool:
        """Whether the terms of role and user count: by the rules, and by the personalisation monitor."""
        if not rules.personal or canonical_role(identity.role) in rules.impersonal_roles:
            return False
        return not self.learner.of(identity.tenant).projections.personalisation.off(role_key(identity))

    @staticmethod
    def _new_arms(
        state: LearnedState, rules: Rules, names: tuple[str, ...], beliefs: Estimate, penalty: Floats
    ) -> tuple[str, ...]:
        """Return the new arms that get an exploration share in this request, independently of the personal terms.

        Efforts and hosts get none: most of what is known of their model is known of them.
        """
        if not rules.newcomer_floor:
            return ()
        new = state.projections.arm_counts.new_arms(names, rules.newcomer_pulls, rules.newcomer_labels)
        utility = beliefs.availability * (beliefs.blind - penalty)
        promising = utility + beliefs.availability * beliefs.sd >= utility.max()
        return tuple(arm for arm, tried in new if not kind_of(arm)[0] and (not tried or promising[names.index(arm)]))

    def _context(
        self,
        rules: Rules,
        ts: float,
        identity: Identity,
        x: Floats,
        cards: Sequence[ModelCard],
        prompt_tokens: int,
        current: CurrentModel | None,
        capped: bool,
        stuck: bool,
    ) -> _Context:
        """Predictions, costs and exclusions of a request, the same for every policy."""
        tenant, state = identity.tenant, self.learner.of(identity.tenant)
        budgets = self.learner.facts(tenant).budgets
        excluded: tuple[tuple[str, str], ...] = ()
        while True:
            names = tuple(card.arm for card in cards)
            beliefs = state.fit.estimate(identity, x, names, ts, stuck=stuck)
            cost = self._cost(cards, beliefs, prompt_tokens)
            barred = over_cap(names, cost, budgets.cap(tenant, ts)) if capped else []
            if rules.base_delta is not None and not barred:
                barred = state.projections.quality_floor.excluded(names, task_of(identity, x), rules.base_delta, ts)
            if not barred:
                break
            excluded = (*excluded, *barred)
            out = {arm for arm, _ in barred}
            cards = [card for card in cards if card.arm not in out]
        weight, unit = budgets.weight(tenant, ts), budgets.unit(tenant, ts)
        usd = rules.cost_weight / rules.cost_unit_usd + weight / unit
        penalty = usd * cost + (rules.latency_weight / rules.latency_unit_s) * beliefs.seconds
        new = self._new_arms(state, rules, names, beliefs, penalty)
        share = 0.0
        if new:
            share = budgets.floor(tenant, cost[[names.index(arm) for arm in new]], rules.newcomer_floor, ts)
        floor = budgets.floor(tenant, cost, rules.floor, ts)
        good: Floats | None = None
        if rules.friction:  # independent of the personal terms, as all of `rest`
            blind = beliefs.availability * (beliefs.blind - penalty)
            good = (blind >= blind.max() - NEAR).astype(np.float64)
        mixture = full = _mix(rules, names, floor=floor, new=new, new_share=share, good=good)
        if rules.share < 1.0:
            whole = msgspec.structs.replace(rules, share=1.0)
            full = _mix(whole, names, floor=floor, new=new, new_share=share, good=good)
        return _Context(
            names=names,
            excluded=excluded,
            unpriced=tuple(card.arm for card in cards if not card.prices.known),
            beliefs=beliefs,
            cost=cost,
            penalty=penalty,
            sd=beliefs.availability * beliefs.sd,
            budget=(weight, unit) if weight else (0.0, 0.0),
            switch=None if current is None else _switch(current, names, rules.consistency, usd),
            mixture=mixture,
            full=full,
            new=new,
            steps=float(state.fit.labels),
        )


def exhausted(barred: Sequence[tuple[str, str]], retry_after_s: float) -> BudgetExhausted:
    """Make the error of a request that the budget does not cover."""
    reasons = "; ".join(f"{arm}: {reason}" for arm, reason in barred)
    return BudgetExhausted(f"the budget does not cover this request: {reasons}", retry_after_s)


class _Context(NamedTuple):
    """Inputs of every policy for one request; arrays are float64[K]."""

    names: tuple[str, ...]
    excluded: tuple[tuple[str, str], ...]
    """Arms excluded by budget or quality floor, with reasons."""
    unpriced: tuple[str, ...]
    beliefs: Estimate
    cost: Floats
    penalty: Floats
    """Utility that expected cost and latency take away."""
    sd: Floats
    """Standard deviation of the utility."""
    budget: tuple[float, float]
    """The tenant's λ, and the USD of a unit."""
    switch: Floats | None
    mixture: _Mixture
    full: _Mixture
    """The same where the policy has all of the traffic."""
    new: tuple[str, ...]
    steps: float

    def pmf(self, mean: Floats, policy: Policy) -> Floats:
        """The marginal pmf of a policy for predicted ratings `mean`, float64[K]."""
        pmf: Floats = self.pmfs((mean,), policy)[0]
        return pmf

    def pmfs(self, means: Sequence[Floats], policy: Policy) -> Floats:
        """The marginal pmfs of a policy for several predicted ratings, float64[n, K]."""
        utility = self.beliefs.availability * (np.array(means) - self.penalty)
        if self.switch is not None:
            utility = utility - self.switch
        n = len(means)
        sd, steps = np.array((self.sd,) * n), np.array((self.steps,) * n)
        return self.mixture.probs(proposals(policy, (self.names,) * n, utility, sd, steps))

    def logged(self) -> dict[str, Any]:
        """Return the fields of a `Decision` that this context determines."""
        beliefs = self.beliefs
        return {
            "eligible": self.names,
            "mean": tuple(beliefs.mean.tolist()),
            "sd": tuple(beliefs.sd.tolist()),
            "cost": tuple(self.cost.tolist()),
            "unpriced": self.unpriced,
            "latency": tuple(beliefs.seconds.tolist()),
            "availability": tuple(beliefs.availability.tolist()),
            "budget_weight": self.budget[0],
            "budget_unit_usd": self.budget[1],
            "switch": () if self.switch is None else tuple(self.switch.tolist()),
            "floor": self.mixture.floor,
            "new": self.new,
            "rest": tuple(self.mixture.rest.tolist()),
            "steps": self.steps,
        }


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Decision)}


def _unusual(logged: dict[str, Any]) -> dict[str, Any]:
    """Keep the fields that differ from their defaults; the others are not encoded."""
    return {name: value for name, value in logged.items() if value != _DEFAULTS[name]}


def _logged(rules: Rules) -> dict[str, Any]:
    """Return the fields of a `Decision` that the rules determine."""
    return {
        "cost_weight": rules.cost_weight,
        "cost_unit_usd": rules.cost_unit_usd,
        "latency_weight": rules.latency_weight,
        "latency_unit_s": rules.latency_unit_s,
        "share": rules.share,
        "asked_probability": rules.ask,
        "registry": rules.registry,
        "encoder": rules.encoder,
        "seed": rules.seed,
    }


def _mix(
    rules: Rules, names: tuple[str, ...], *, floor: float, new: Sequence[str], new_share: float, good: Floats | None
) -> _Mixture:
    """Compute how a policy's pmf is mixed with the default model, the uniform slice, new arms, floor and friction."""
    K = len(names)
    # If the default model is not eligible, the policy routes the whole request.
    share = rules.share if rules.default_arm in names else 1.0
    rest_share = share * (1.0 - rules.uniform_slice) * (1.0 - new_share)
    policy = rest_share if good is None else rest_share * (1.0 - rules.friction)
    uniform = share * rules.uniform_slice / K
    rest = np.full(K, policy * floor / K + uniform)
    for arm in new:
        rest[names.index(arm)] += share * (1.0 - rules.uniform_slice) * new_share / len(new)
    if good is not None:
        rest += rest_share * rules.friction * good / good.sum()
    if share < 1.0 and rules.default_arm is not None:
        rest[names.index(rules.default_arm)] += 1.0 - share
    # Slightly lower, so that rounding in the mixture cannot put a probability below the logged floor.
    logged = (policy * floor + uniform * K) * _MARGIN
    return _Mixture(policy * (1.0 - floor), rest, uniform, 1.0 - share, logged)


def _switch(current: CurrentModel, names: tuple[str, ...], consistency: float, usd: float) -> Floats:
    """Utility lost by leaving the session's present model, for inconsistency and the prompt cache, float64[K]."""
    return np.array([(0.0 if arm == current.arm else consistency) + usd * current.usd.get(arm, 0.0) for arm in names])


def _draw(probs: Floats, mixture: _Mixture, names: tuple[str, ...], default: str | None, u: float) -> tuple[int, Mode]:
    """Return the arm that u draws, and which part of its probability u falls in: policy, slice or default."""
    chosen, left = landing(probs, u)
    shadow = mixture.default if names[chosen] == default else 0.0
    if left <= shadow:
        return chosen, Mode.SHADOW if shadow else Mode.ONLINE
    return chosen, Mode.UNIFORM if left <= shadow + mixture.uniform else Mode.ONLINE
