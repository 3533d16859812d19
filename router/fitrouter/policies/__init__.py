"""Policies: exploration algorithms that turn utility estimates into choice probabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fitrouter.errors import ConfigError
from fitrouter.policies._base import Batched, Beliefs, Policy, proposals
from fitrouter.policies._epsilon_greedy import EpsilonGreedy
from fitrouter.policies._fixed import Fixed
from fitrouter.policies._linear_thompson import LinearThompson
from fitrouter.policies._linucb import LinUCB
from fitrouter.policies._softmax import Softmax
from fitrouter.policies._squarecb import SquareCB
from fitrouter.policies._uniform import Uniform

__all__ = [
    "Batched",
    "Beliefs",
    "EpsilonGreedy",
    "Fixed",
    "LinUCB",
    "LinearThompson",
    "Policy",
    "Softmax",
    "SquareCB",
    "Uniform",
    "build_policy",
    "proposals",
]


def build_policy(
    algorithm: str,
    *,
    gamma: float = 20.0,
    scale: float = 0.3,
    temperature: float = 0.02,
    epsilon: float = 0.05,
    alpha: float = 1.0,
    default_model: str | None = None,
    shadow: bool = False,
) -> Policy:
    """Build the policy of this name. Settings of other policies are ignored.

    Args:
        algorithm: `name` of a policy.
        gamma: for squarecb, above 0: how fast the probability falls with the gap to the best arm.
        scale: for linear_thompson, above 0: factor of the posterior standard deviations.
        temperature: for softmax, above 0: in units of utility.
        epsilon: for epsilon_greedy, 0 to 1: share of uniform traffic.
        alpha: for linucb, above 0: standard deviations above the mean.
        default_model: for fixed: the arm that takes all traffic.
        shadow: the policy's probabilities are only logged, it takes no traffic.

    Raises:
        ConfigError: there is no such policy, a setting is invalid, or the policy is allowed in shadow only.
    """
    known: Mapping[str, Callable[[], Policy]] = {
        EpsilonGreedy.name: lambda: EpsilonGreedy(epsilon),
        Fixed.name: lambda: _fixed(default_model),
        LinearThompson.name: lambda: LinearThompson(scale),
        LinUCB.name: lambda: LinUCB(alpha),
        Softmax.name: lambda: Softmax(temperature),
        SquareCB.name: lambda: SquareCB(gamma),
        Uniform.name: Uniform,
    }
    if algorithm not in known:
        names = ", ".join(repr(name) for name in sorted(known))
        raise ConfigError(f"policy: there is no algorithm {algorithm!r}; allowed are {names}")
    policy = known[algorithm]()
    if getattr(policy, "shadow_only", False) and not shadow:
        raise ConfigError(
            f"policy: {algorithm!r} is deterministic, so other policies could not be evaluated on its log; it is "
            "allowed as a shadow candidate only: use 'linear_thompson' or 'squarecb'"
        )
    return policy


def _fixed(model: str | None) -> Fixed:
    if model is None:
        raise ConfigError("policy: 'fixed' needs 'default_model', the model that takes all traffic")
    return Fixed(model)
