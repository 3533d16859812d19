"""Policies: one algorithm a file, all behind `Policy`."""

from __future__ import annotations

from fitrouter.errors import ConfigError
from fitrouter.policies._base import Beliefs, Policy
from fitrouter.policies._fixed import Fixed
from fitrouter.policies._squarecb import SquareCB
from fitrouter.policies._uniform import Uniform

__all__ = ["Beliefs", "Fixed", "Policy", "SquareCB", "Uniform", "build_policy"]


def build_policy(algorithm: str, *, gamma: float = 20.0, default_model: str | None = None) -> Policy:
    """The policy of that name.

    Raises:
        ConfigError: there is none, or `fixed` lacks the model to choose.
    """
    if algorithm == SquareCB.name:
        return SquareCB(gamma)
    if algorithm == Uniform.name:
        return Uniform()
    if algorithm == Fixed.name:
        if default_model is None:
            raise ConfigError("policy: 'fixed' needs 'default_model', the model that takes everything")
        return Fixed(default_model)
    raise ConfigError(f"policy: there is no algorithm {algorithm!r}; allowed are 'squarecb', 'uniform' and 'fixed'")
