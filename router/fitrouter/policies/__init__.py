"""Policies: exploration algorithms that turn utility estimates into choice probabilities."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from fitrouter.errors import ConfigError
from fitrouter.policies._base import (
    DECLARED,
    Batched,
    Beliefs,
    Policy,
    Positive,
    Share,
    is_batched,
    proposals,
    sound,
)
from fitrouter.policies._epsilon_greedy import EpsilonGreedy
from fitrouter.policies._fixed import Fixed
from fitrouter.policies._linear_thompson import LinearThompson
from fitrouter.policies._linucb import LinUCB
from fitrouter.policies._softmax import Softmax
from fitrouter.policies._squarecb import SquareCB
from fitrouter.policies._uniform import Uniform

__all__ = [
    "DECLARED",
    "Batched",
    "Beliefs",
    "EpsilonGreedy",
    "Fixed",
    "LinUCB",
    "LinearThompson",
    "Policy",
    "Positive",
    "Share",
    "Softmax",
    "SquareCB",
    "Uniform",
    "as_fields",
    "build_policy",
    "fields_of",
    "is_batched",
    "named",
    "parameters",
    "proposals",
    "sound",
    "unread",
    "used",
]


class _Found(NamedTuple):
    """Policies by name, and what is wrong with those that cannot be used."""

    policies: Mapping[str, type[Policy]]
    unusable: tuple[str, ...]


@functools.cache
def _found() -> _Found:
    """Policies of this package's files, and of entry points of the group `fitrouter.policies`."""
    policies: dict[str, type[Policy]] = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        for each in vars(importlib.import_module(module.name)).values():
            if isinstance(each, type) and each.__module__ == module.name and isinstance(vars(each).get("name"), str):
                policies[vars(each)["name"]] = each
    unusable = list[str]()
    for point in metadata.entry_points(group="fitrouter.policies"):
        try:
            policy = point.load()
            name, fields = policy.name, fields_of(policy)
        except Exception as error:  # noqa: BLE001 - any error of another package; `build_policy` names it
            unusable.append(f"{point.value}: {type(error).__name__}: {error}")
            continue
        taken = {each for other in policies.values() for each in fields_of(other)} & fields.keys()
        if name in policies or taken:
            unusable.append(f"{point.value}: another policy has its name {name!r} or its settings {sorted(taken)}")
        else:
            policies[name] = policy
    return _Found(policies, tuple(unusable))


def fields_of(policy: type) -> Mapping[str, FieldInfo]:
    """Settings that a policy declares: name → type, range and default."""
    return getattr(policy, "__pydantic_fields__", {})


def parameters(algorithm: str | None = None) -> dict[str, tuple[type[Policy], FieldInfo]]:
    """Settings of one policy, or of all: name → policy and declaration; none for an unknown policy."""
    chosen = _found().policies
    return {
        name: (policy, field)
        for policy in chosen.values()
        if algorithm in (None, policy.name)
        for name, field in fields_of(policy).items()
    }


def as_fields() -> dict[str, Any]:
    """Fields for `pydantic.create_model`, one for each parameter of each policy."""
    return {
        name: (Annotated[(field.annotation, *field.metadata)], Field(field.default))
        for name, (_, field) in parameters().items()
    }


def named() -> str:
    """Names of the policies, in words."""
    known = _found().policies
    shadow = {name for name, policy in known.items() if getattr(policy, "shadow_only", False)}
    return f"{', '.join(sorted(known.keys() - shadow))}; in shadow only: {', '.join(sorted(shadow)) or 'none'}"


def used(settings: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """The algorithm and its own parameters, of settings that may have those of other policies."""
    names = {"algorithm", *parameters(settings.get("algorithm", algorithm))}
    return {name: value for name, value in settings.items() if name in names}


def unread(settings: Iterable[str], algorithm: str) -> str:
    """Say which settings belong to another policy than this one; empty if none does, or for an unknown policy."""
    own, every = parameters(algorithm), parameters()
    others = sorted(every.keys() & set(settings) - own.keys())
    if algorithm not in _found().policies or not others:
        return ""
    return (
        f"{algorithm!r} does not read {others[0]!r}, it reads {sorted(own) or 'no settings'}; set algorithm to "
        f"{every[others[0]][0].name!r}, or leave {others[0]!r} out"
    )


def build_policy(
    algorithm: str, *, default_model: str | None = None, shadow: bool = False, **settings: float
) -> Policy:
    """Build the policy of this name. Settings of other policies are ignored.

    Args:
        algorithm: `name` of a policy.
        default_model: for fixed: the arm that takes all traffic.
        shadow: the policy's probabilities are only logged, it takes no traffic.
        settings: see `parameters`.

    Raises:
        ConfigError: there is no such policy, a setting is invalid, or the policy is allowed in shadow only.
    """
    known, unusable = _found()
    if algorithm not in known:
        names = ", ".join(repr(name) for name in sorted(known))
        broken = f"; not usable: {'; '.join(unusable)}" if unusable else ""
        raise ConfigError(f"policy: there is no algorithm {algorithm!r}; allowed are {names}{broken}")
    if unknown := sorted(settings.keys() - parameters().keys()):
        raise ConfigError(f"policy: unknown settings {unknown}; allowed are {sorted(parameters())}")
    policy = known[algorithm]
    if getattr(policy, "shadow_only", False) and not shadow:
        raise ConfigError(
            f"policy: {algorithm!r} is deterministic, so other policies could not be evaluated on its log; it is "
            "allowed as a shadow candidate only: use 'linear_thompson' or 'squarecb'"
        )
    if policy is Fixed:
        if default_model is None:
            raise ConfigError("policy: 'fixed' needs 'default_model', the model that takes all traffic")
        return Fixed(default_model)
    try:
        return policy(**{name: settings[name] for name in parameters(algorithm) if name in settings})
    except ValidationError as error:
        wrong = [f"{each['loc'][0]}={each['input']!r}: {each['msg']}" for each in error.errors()]
        raise ConfigError(f"policy: {algorithm!r} with {'; '.join(wrong)}") from None
