"""Policies: one algorithm a file, all behind `Policy`."""

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
    """The policy of that name. Each reads its own settings and leaves the others alone.

    Args:
        algorithm: `name` of a policy.
        gamma: of squarecb, over 0: how fast probability falls with a gap.
        scale: of linear_thompson, over 0: of every sd.
        temperature: of softmax, over 0: in units of utility.
        epsilon: of epsilon_greedy, 0 to 1: share of the traffic that is spread evenly.
        alpha: of linucb, over 0: sds above the mean.
        default_model: of fixed: the arm that takes everything.
        shadow: it proposes beside the policy that decides, and takes no traffic.

    Raises:
        ConfigError: there is no such policy, a setting of it cannot be used, or it cannot take traffic.
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
        raise ConfigError(f"policy: there is no algorithm {algorithm!r}; allowed are {names}: correct the name")
    policy = known[algorithm]()
    if getattr(policy, "shadow_only", False) and not shadow:
        raise ConfigError(
            f"policy: {algorithm!r} chooses with certainty, so that its log could tell nothing of other policies; it "
            "is allowed as a candidate in shadow only: let 'linear_thompson' or 'squarecb' decide"
        )
    return policy


def _fixed(model: str | None) -> Fixed:
    if model is None:
        raise ConfigError("policy: 'fixed' needs 'default_model', the model that takes everything: name one")
    return Fixed(model)
