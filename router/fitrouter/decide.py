"""From beliefs to a decision: the whole pmf first, one seeded draw from it, all of it logged."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from fitrouter.fit import Estimate, Fit
from fitrouter.ids import draws
from fitrouter.policies import Beliefs, Policy
from fitrouter.types import Decision, Floats, Identity, Mode, ModelCard, PolicyVersion, pack, unpack

__all__ = ["Decider", "Rules", "renormalise", "replay"]


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that turn a policy's pmf into the logged one."""

    floor: float = 0.05
    uniform_slice: float = 0.0
    share: float = 1.0
    default_arm: str | None = None
    ask: float = 0.0
    cost_weight: float = 0.0
    cost_unit_usd: float = 0.01
    latency_weight: float = 0.0
    latency_unit_s: float = 10.0
    seed: int = 0
    config_hash: str = ""
    registry: str = ""
    encoder: str = ""


class Decider:
    """Makes decisions out of one policy and one fit model. Pure but for the fit it reads."""

    def __init__(self, policy: Policy, fit: Fit, rules: Rules) -> None:
        self.policy, self.fit, self.rules = policy, fit, rules

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
    ) -> Decision:
        """A drawn decision over the eligible cards (canonical order, at least one)."""
        rules = self.rules
        payload = pack(features)
        x = unpack(payload)
        names = tuple(card.arm for card in cards)
        beliefs = self.fit.estimate(identity, x, names, ts)
        cost = _expected_cost(cards, prompt_tokens, beliefs.tokens)
        probs, parts = self._pmf(names, beliefs.mean, beliefs, cost)
        twin, _ = self._pmf(names, beliefs.blind, beliefs, cost)
        u = draws(rules.seed, decision_id, 2)
        chosen, mode = _draw(probs, parts, float(u[0]))
        return Decision(
            id=decision_id,
            ts=ts,
            draw_id=decision_id,
            identity=identity,
            mode=mode,
            eligible=names,
            excluded=excluded,
            probs=tuple(probs.tolist()),
            chosen=names[chosen],
            propensity=float(probs[chosen]),
            features=payload,
            mean=tuple(beliefs.mean.tolist()),
            sd=tuple(beliefs.sd.tolist()),
            cost=tuple(cost.tolist()),
            latency=tuple(beliefs.seconds.tolist()),
            availability=tuple(beliefs.availability.tolist()),
            cost_weight=rules.cost_weight,
            latency_weight=rules.latency_weight,
            floor=self._floor(names),
            share=rules.share,
            twin=tuple(twin.tolist()),
            asked=bool(u[1] < rules.ask),
            asked_probability=rules.ask,
            policy=PolicyVersion(algorithm=self.policy.name, config_hash=rules.config_hash, seq=seq),
            registry=rules.registry,
            encoder=rules.encoder,
            seed=rules.seed,
        )

    def _pmf(self, names: tuple[str, ...], mean: Floats, beliefs: Estimate, cost: Floats) -> tuple[Floats, Floats]:
        """The marginal pmf float64[K], and its parts float64[3, K]: policy, uniform slice, default model."""
        rules, K = self.rules, len(names)
        price = rules.cost_weight * cost / rules.cost_unit_usd
        wait = rules.latency_weight * beliefs.seconds / rules.latency_unit_s
        utility = beliefs.availability * (mean - price - wait)
        pmf = self.policy.propose(
            Beliefs(arms=names, utility=utility, sd=beliefs.availability * beliefs.sd, steps=float(self.fit.labels))
        )
        share = self._share(names)
        parts = np.zeros((3, K))
        parts[0] = share * (1.0 - rules.uniform_slice) * ((1.0 - rules.floor) * pmf + rules.floor / K)
        parts[1] = share * rules.uniform_slice / K
        if share < 1.0 and rules.default_arm is not None:
            parts[2, names.index(rules.default_arm)] = 1.0 - share
        probs = parts.sum(axis=0)
        return probs / probs.sum(), parts

    def _share(self, names: tuple[str, ...]) -> float:
        """The policy's share of this request: all of it where the default model is not eligible."""
        return self.rules.share if self.rules.default_arm in names else 1.0

    def _floor(self, names: tuple[str, ...]) -> float:
        rules = self.rules
        slice_ = rules.uniform_slice
        # A hair below, so that rounding in the mixture cannot put a probability under its logged floor.
        return self._share(names) * ((1.0 - slice_) * rules.floor + slice_) * (1.0 - 1e-9)


def _expected_cost(cards: Sequence[ModelCard], prompt_tokens: int, tokens: Floats) -> Floats:
    """USD of each card's answer."""
    prices = np.array([(card.prices.input, card.prices.output) for card in cards])
    result: Floats = (prices[:, 0] * prompt_tokens + prices[:, 1] * tokens) / 1e6
    return result


def _draw(probs: Floats, parts: Floats, u: float) -> tuple[int, Mode]:
    """The arm that u falls on, and the part of its probability that u falls in."""
    chosen = _arm(probs, u)
    edges = np.cumsum(probs)
    inside = u * edges[-1] - (edges[chosen - 1] if chosen else 0.0)
    mine = np.cumsum(parts[:, chosen]) / parts[:, chosen].sum() * probs[chosen]
    if inside < mine[0]:
        return chosen, Mode.ONLINE
    return chosen, Mode.UNIFORM if inside < mine[1] else Mode.SHADOW


def _arm(probs: Floats, u: float) -> int:
    edges = np.cumsum(probs)
    return min(int(np.searchsorted(edges, u * edges[-1], side="right")), len(probs) - 1)


def replay(decision: Decision) -> str:
    """The arm that the logged draw leads to; equals `decision.chosen` for every drawn decision."""
    u = draws(decision.seed, decision.id, 1)
    return decision.eligible[_arm(np.array(decision.probs), float(u[0]))]


def renormalise(decision: Decision, failed: Sequence[str], attempt: int) -> tuple[str, float] | None:
    """The next arm after failures: drawn from the same pmf without them. Returns (arm, conditional probability).

    `attempt` is 1 for the first fallback; every attempt has a uniform of its own. None where no arm is left.
    """
    left = [(arm, p) for arm, p in zip(decision.eligible, decision.probs, strict=True) if arm not in failed and p > 0]
    if not left:
        return None
    probs = np.array([p for _, p in left])
    probs = probs / probs.sum()
    chosen = _arm(probs, float(draws(decision.seed, decision.id, 2 + attempt)[1 + attempt]))
    return left[chosen][0], float(probs[chosen])
