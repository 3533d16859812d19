"""What a candidate changes, and what it takes over from the configuration that was in force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fitrouter.config import CandidateConfig, Config
from fitrouter.errors import ConfigError
from fitrouter.policies import Policy, build_policy
from fitrouter_evaluators.replay.candidates._candidate_file import CandidateFile

_DEFAULTS: dict[str, Any] = {name: field.default for name, field in CandidateConfig.model_fields.items()}
_READS = {
    "squarecb": "gamma",
    "linear_thompson": "scale",
    "softmax": "temperature",
    "epsilon_greedy": "epsilon",
    "linucb": "alpha",
}
"""Algorithm → the parameter that it reads."""
_CHANGES = ("floor", "uniform_slice", "share", "cost_weight", "latency_weight")


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """What a configuration says of the policy that was logged, and the log does not."""

    algorithm: str
    parameters: dict[str, float]
    floor: float
    uniform_slice: float
    default_model: str | None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A policy in terms of the logged one: None is as it was logged."""

    algorithm: str | None = None
    parameters: dict[str, float] = {}
    floor: float | None = None
    uniform_slice: float | None = None
    share: float | None = None
    cost_weight: float | None = None
    latency_weight: float | None = None
    default_model: str | None = None
    personal: bool | None = None
    live: Live | None = None

    @classmethod
    def of(cls, file: CandidateFile, config: Config | None = None) -> Settings:
        """What a file says, laid over a configuration."""
        said = file.said
        return cls(
            algorithm=file.algorithm if "algorithm" in said else None,
            parameters={name: getattr(file, name) for name in _READS.values() if name in said},
            **{name: getattr(file, name) for name in _CHANGES},
            default_model=file.default_model,
            personal=file.personal,
            live=None if config is None else _live(config),
        )

    @property
    def remixed(self) -> bool:
        """Whether it is more than another pmf in the logged policy's place: floor, slice or share differ."""
        return self.floor is not None or self.uniform_slice is not None or self.share is not None

    def policy(self, logged: str) -> Policy:
        """The policy itself, where the logged one's name is this.

        Raises:
            ConfigError: there is none of that name, or its parameter cannot be used.
        """
        algorithm = self.algorithm or logged
        reads = _READS.get(algorithm, "")
        if self.parameters and reads not in self.parameters:
            raise ConfigError(
                f"{', '.join(self.parameters)}: {algorithm!r} does not read it, it reads {reads or 'none'}; name the "
                "'algorithm' that is meant"
            )
        return build_policy(algorithm, shadow=True, **self._all(algorithm))

    def inherits(self, logged: str) -> str:
        """The parameter that is taken over unsaid from the logged policy of this name; empty where there is none."""
        reads = _READS.get(logged, "")
        return reads if self.algorithm is None and reads not in self.parameters else ""

    def _all(self, algorithm: str) -> dict[str, Any]:
        laid = self.live.parameters if self.live is not None else {}
        every = {**{name: _DEFAULTS[name] for name in _READS.values()}, **laid, **self.parameters}
        return {name: value for name, value in every.items() if name == _READS.get(algorithm)}

    def words(self) -> str:
        """What it is, for a report."""
        algorithm = self.algorithm or (self.live.algorithm if self.live else None)
        parts = []
        if algorithm is not None:
            parts.append(algorithm + "".join(f" ({name} {value:g})" for name, value in self._all(algorithm).items()))
        else:
            parts += [f"{name} {value:g}" for name, value in self.parameters.items()]
        parts += [f"{name} {value:g}" for name in _CHANGES if (value := getattr(self, name)) is not None]
        if self.personal is not None:
            parts.append("with the terms of role and user" if self.personal else "without the terms of role and user")
        return ", ".join(parts) + "; the rest as logged" if parts else "the logged policy"

    def plain(self) -> Mapping[str, Any]:
        """For JSON: what differs, and what was taken over."""
        return {key: value for key, value in msgspec.to_builtins(self).items() if value not in (None, {})}


def _live(config: Config) -> Live:
    policy = config.policy
    return Live(
        algorithm=policy.algorithm,
        parameters={name: getattr(policy, name) for name in _READS.values()},
        floor=policy.floor,
        uniform_slice=policy.uniform_slice,
        default_model=config.default_model,
    )
