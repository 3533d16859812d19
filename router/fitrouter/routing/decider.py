"""From beliefs to a decision: the whole pmf first, one seeded draw from it, all of it logged."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from fitrouter.draw import draws, landing
from fitrouter.identity import canonical_role, role_key, task_of
from fitrouter.policies import Beliefs, Policy, build_policy
from fitrouter.posterior.labels import Estimate
from fitrouter.posterior.model import Fit
from fitrouter.state.budgets import over_cap
from fitrouter.state.projections import Projections
from fitrouter.types import Decision, Floats, Identity, Mode, ModelCard, PolicyVersion, Prices, pack, unpack


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that turn a policy's pmf into the logged one."""

    floor: float = 0.05
    uniform_slice: float = 0.0
    share: float = 1.0
    default_arm: str | None = None
    newcomer_floor: float = 0.25
    """Share of the traffic of models that joined late: for `newcomer_pulls` calls wherever they are eligible, then for
    `newcomer_labels` labels wherever they may be the best, one standard deviation above what is believed of them."""
    newcomer_pulls: int = 20
    newcomer_labels: int = 60
    ask: float = 0.0
    cost_weight: float = 0.0
    cost_unit_usd: float = 0.01
    latency_weight: float = 0.0
    latency_unit_s: float = 10.0
    base_delta: float | None = None
    """Models whose answer breaks the base layer with a higher probability are excluded; the safest stays."""
    consistency: float = 0.02
    """Fit that it costs a session to hear another model."""
    redraw_every: int = 8
    """User turns after which a session is drawn again; 0: never for that."""
    idle_s: float = 3600.0
    """A session that was silent for longer begins anew."""
    force: str = ""
    """A model that takes every request that it can take, in an emergency; those decisions have no pmf."""
    personal: bool = True
    impersonal_roles: tuple[str, ...] = ()
    """Canonical roles in whose service nobody's taste counts."""
    seed: int = 0
    config_hash: str = ""
    registry: str = ""
    encoder: str = ""


class Stay(NamedTuple):
    """The model that a session lives on, where it is drawn again."""

    arm: str
    usd: Mapping[str, float]
    """arm → what the prompt costs more there, because another has it in its cache."""


class _Mix(NamedTuple):
    """How a policy's pmf becomes the marginal one: `scale · pmf + rest`, the rest being known before it."""

    scale: float
    rest: Floats
    """float64[K]: floor, uniform slice, newcomers and the default's share."""
    uniform: float
    """The uniform slice's part of every probability."""
    default: float
    """The default model's share, on its own arm."""
    floor: float
    """Every probability is at least floor / K."""

    def probs(self, pmf: Floats) -> Floats:
        """float64[K], the marginal pmf."""
        probs = self.scale * pmf + self.rest
        probs /= probs.sum()
        return probs


class LearnedState(Protocol):
    """The state that a decision reads; `fitrouter.state.learner.Learner` in a router."""

    @property
    def fit(self) -> Fit:
        """Posteriors of ratings, cost, latency and availability."""
        ...

    @property
    def projections(self) -> Projections:
        """Runtime settings, budgets, arm counts and monitors."""
        ...


class Decider:
    """Makes decisions with one policy from the learned state, which it never changes.

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
        """The policy and the rules in force: the configuration with what was said at run time over it."""
        settings = self.learner.projections.policy_settings.settings
        if not settings:
            return self.policy, self.rules
        if self._live is None or settings != self._live[0]:
            known = {name: value for name, value in settings.items() if name in Rules.__struct_fields__}
            policy = self.build(settings) if settings.keys() - known.keys() else self.policy
            version = hashlib.sha256(json.dumps([self.rules.config_hash, settings], sort_keys=True).encode())
            known["config_hash"] = version.hexdigest()[:16]
            self._live = dict(settings), policy, msgspec.structs.replace(self.rules, **known)
        return self._live[1:]

    def build(self, settings: Mapping[str, Any], *, shadow: bool = False) -> Policy:
        """The policy that these settings, laid over the configuration, make.

        Raises:
            ConfigError: they make none.
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
        stay: Stay | None = None,
    ) -> Decision:
        """A drawn decision over the eligible cards (canonical order, at least one).

        Args:
            decision_id: UUIDv7; keys the draw.
            ts: seconds since the epoch.
            identity: who asks.
            features: float64[d], the context.
            cards: the eligible models.
            excluded: the others, with reasons.
            prompt_tokens: estimated.
            seq: the last sequence number that the fit has folded.
            stay: where a session is drawn again, what it lives on.
        """
        policy, rules = self.live()
        payload = pack(features)
        stage = self._stage(rules, ts, identity, unpack(payload), cards, prompt_tokens, stay)
        blind, personal = stage.pmf(stage.beliefs.blind, policy), stage.pmf(stage.beliefs.mean, policy)
        counts = self._personal(rules, identity)
        probs = personal if counts else blind
        u = draws(rules.seed, decision_id, 2)
        chosen, mode = _draw(probs, stage.mix, stage.names, rules.default_arm, float(u[0]))
        shadows = {name: tuple(stage.pmf(stage.beliefs.mean, by).tolist()) for name, by in self._shadows.items()}
        return Decision(
            id=decision_id,
            ts=ts,
            draw_id=decision_id,
            identity=identity,
            mode=mode,
            excluded=(*excluded, *stage.excluded),
            probs=tuple(probs.tolist()),
            chosen=stage.names[chosen],
            propensity=float(probs[chosen]),
            features=payload,
            twin=tuple(blind.tolist()),
            personal=() if counts else tuple(personal.tolist()),
            candidates=shadows,
            asked=bool(u[1] < rules.ask),
            policy=PolicyVersion(algorithm=policy.name, config_hash=rules.config_hash, seq=seq),
            **stage.logged(),
            **_logged(rules),
        )

    def _priced(self, cards: Sequence[ModelCard]) -> Floats:
        """float64[2, K]: input and output prices in USD per million tokens; most requests have those of the last."""
        known = [card.prices for card in cards]
        if self._prices[0] != known:
            self._prices = known, np.array([[p.input for p in known], [p.output for p in known]])
        return self._prices[1]

    def _personal(self, rules: Rules, identity: Identity) -> bool:
        """Whether the terms of role and user count: allowed, and not known to harm (`monitors.personalisation`)."""
        if not rules.personal or canonical_role(identity.role) in rules.impersonal_roles:
            return False
        return not self.learner.projections.personalisation.off(role_key(identity))

    def _newcomers(self, rules: Rules, names: tuple[str, ...], beliefs: Estimate, burden: Floats) -> tuple[str, ...]:
        """Who has the raised floor in this request; the same with and without the terms of people."""
        if not rules.newcomer_floor:
            return ()
        young = self.learner.projections.arm_counts.newcomers(names, rules.newcomer_pulls, rules.newcomer_labels)
        if not any(tried for _, tried in young):
            return tuple(arm for arm, _ in young)
        utility = beliefs.availability * (beliefs.blind - burden)
        hopeful = utility + beliefs.availability * beliefs.sd >= utility.max()
        return tuple(arm for arm, tried in young if not tried or hopeful[names.index(arm)])

    def _stage(
        self,
        rules: Rules,
        ts: float,
        identity: Identity,
        x: Floats,
        cards: Sequence[ModelCard],
        prompt_tokens: int,
        stay: Stay | None,
    ) -> _Stage:
        """What is believed and what it costs, before any policy looks at it."""
        tenant, budgets = identity.tenant, self.learner.projections.budgets
        excluded: tuple[tuple[str, str], ...] = ()
        while True:
            names = tuple(card.arm for card in cards)
            beliefs = self.learner.fit.estimate(identity, x, names, ts)
            prices = self._priced(cards)
            cost = prices[0] * (prompt_tokens / 1e6) + prices[1] * (beliefs.tokens / 1e6)
            cap = budgets.cap(tenant, ts)
            barred = [] if cap == math.inf else over_cap(names, cost, cap)
            if rules.base_delta is not None and not barred:
                barred = self.learner.projections.quality_floor.excluded(
                    names, task_of(identity, x), rules.base_delta, ts
                )
            if not barred:
                break
            excluded = (*excluded, *barred)
            out = {arm for arm, _ in barred}
            cards = [card for card in cards if card.arm not in out]
        weight, unit = budgets.weight(tenant, ts), budgets.unit(tenant, ts)
        usd = rules.cost_weight / rules.cost_unit_usd + weight / unit
        burden = usd * cost + (rules.latency_weight / rules.latency_unit_s) * beliefs.seconds
        new = self._newcomers(rules, names, beliefs, burden)
        raised = 0.0
        if new:
            raised = budgets.floor(tenant, cost[[names.index(arm) for arm in new]], rules.newcomer_floor, ts)
        return _Stage(
            names=names,
            excluded=excluded,
            beliefs=beliefs,
            cost=cost,
            burden=burden,
            sd=beliefs.availability * beliefs.sd,
            budget=(weight, unit) if weight else (0.0, 0.0),
            switch=None if stay is None else _switch(stay, names, rules.consistency, usd),
            mix=_mix(rules, names, new, budgets.floor(tenant, cost, rules.floor, ts), raised),
            new=new,
            steps=float(self.learner.fit.labels),
        )


class _Stage(NamedTuple):
    """One request as every policy sees it; arrays are float64[K]."""

    names: tuple[str, ...]
    excluded: tuple[tuple[str, str], ...]
    """Arms that money or safety forbids, with reasons."""
    beliefs: Estimate
    cost: Floats
    burden: Floats
    """Fit that cost and latency take away."""
    sd: Floats
    """Of the utility."""
    budget: tuple[float, float]
    """The tenant's λ, and the USD of a unit."""
    switch: Floats | None
    mix: _Mix
    new: tuple[str, ...]
    steps: float

    def pmf(self, mean: Floats, policy: Policy) -> Floats:
        """float64[K]: the marginal pmf of a policy that believes in `mean`."""
        utility = self.beliefs.availability * (mean - self.burden)
        if self.switch is not None:
            utility = utility - self.switch
        beliefs = Beliefs(arms=self.names, utility=utility, sd=self.sd, steps=self.steps)
        return self.mix.probs(policy.propose(beliefs))

    def logged(self) -> dict[str, Any]:
        """Its fields of a `Decision`."""
        beliefs = self.beliefs
        return {
            "eligible": self.names,
            "mean": tuple(beliefs.mean.tolist()),
            "sd": tuple(beliefs.sd.tolist()),
            "cost": tuple(self.cost.tolist()),
            "latency": tuple(beliefs.seconds.tolist()),
            "availability": tuple(beliefs.availability.tolist()),
            "budget_weight": self.budget[0],
            "budget_unit_usd": self.budget[1],
            "switch": () if self.switch is None else tuple(self.switch.tolist()),
            "floor": self.mix.floor,
            "new": self.new,
            "rest": tuple(self.mix.rest.tolist()),
            "steps": self.steps,
        }


def _logged(rules: Rules) -> dict[str, Any]:
    """The rules' fields of a `Decision`."""
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


def _mix(rules: Rules, names: tuple[str, ...], new: Sequence[str], spread: float, raised: float) -> _Mix:
    """Floor (`spread`) and newcomers (`raised`) in the policy's share, beside the slice and the default."""
    K = len(names)
    # Where the default model is not eligible, the policy has all of the request.
    share = rules.share if rules.default_arm in names else 1.0
    policy = share * (1.0 - rules.uniform_slice) * (1.0 - raised)
    uniform = share * rules.uniform_slice / K
    rest = np.full(K, policy * spread / K + uniform)
    for arm in new:
        rest[names.index(arm)] += share * (1.0 - rules.uniform_slice) * raised / len(new)
    if share < 1.0 and rules.default_arm is not None:
        rest[names.index(rules.default_arm)] += 1.0 - share
    # A hair below, so that rounding in the mixture cannot put a probability under its logged floor.
    floor = (policy * spread + uniform * K) * (1.0 - 1e-9)
    return _Mix(policy * (1.0 - spread), rest, uniform, 1.0 - share, floor)


def _switch(stay: Stay, names: tuple[str, ...], consistency: float, usd: float) -> Floats:
    """float64[K]: the fit that it costs to leave the stay, for consistency and for the lost prompt cache."""
    return np.array([(0.0 if arm == stay.arm else consistency) + usd * stay.usd.get(arm, 0.0) for arm in names])


def _draw(probs: Floats, mix: _Mix, names: tuple[str, ...], default: str | None, u: float) -> tuple[int, Mode]:
    """The arm that u falls on, and the part of its probability that u falls in: policy, uniform slice, default."""
    chosen, left = landing(probs, u)
    shadow = mix.default if names[chosen] == default else 0.0
    if left <= shadow:
        return chosen, Mode.SHADOW if shadow else Mode.ONLINE
    return chosen, Mode.UNIFORM if left <= shadow + mix.uniform else Mode.ONLINE
