"""Settings that a candidate changes, and those it inherits from the configuration in force."""

from __future__ import annotations

from typing import Any

import msgspec

from fitrouter.config import Config
from fitrouter.errors import ConfigError
from fitrouter.policies import Policy, build_policy, parameters, unread
from fitrouter.routing.tiers import Tiers
from fitrouter.state.settings import names_of
from fitrouter_evaluators.replay.candidates._candidate_file import CandidateFile

_OVERRIDES = ("floor", "uniform_slice", "share", "cost_weight", "latency_weight")
_TIERS = tuple(Tiers.__struct_fields__)


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the running configuration, which the log does not record."""

    algorithm: str
    parameters: dict[str, float]
    floor: float
    uniform_slice: float
    default_model: str | None
    tiers: Tiers = Tiers()


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that a candidate changes in the logged policy; None means unchanged."""

    algorithm: str | None = None
    parameters: dict[str, float] = {}
    floor: float | None = None
    uniform_slice: float | None = None
    share: float | None = None
    cost_weight: float | None = None
    latency_weight: float | None = None
    default_model: str | None = None
    personal: bool | None = None
    paused: tuple[str, ...] = ()
    live: Live | None = None

    @property
    def tiers(self) -> Tiers:
        """How cost tiers move a cost weight: as configured, else by default."""
        return Tiers() if self.live is None else self.live.tiers

    @classmethod
    def of(cls, file: CandidateFile, config: Config | None = None) -> Settings:
        said, live = file.said, None
        if config is not None:
            live = Live(
                algorithm=config.policy.algorithm,
                parameters=config.policy.parameters,
                floor=config.policy.floor,
                uniform_slice=config.policy.uniform_slice,
                default_model=config.default_model,
                tiers=Tiers(**config.objective.model_dump(include={*_TIERS})),
            )
        return cls(
            algorithm=file.algorithm if "algorithm" in said else None,
            parameters={name: getattr(file, name) for name in parameters() if name in said},
            **{name: getattr(file, name) for name in _OVERRIDES},
            default_model=file.default_model,
            personal=file.personal,
            paused=tuple(names_of(file.paused or "")),
            live=live,
        )

    def policy(self, logged: str) -> Policy:
        """Build the policy, given the logged algorithm's name."""
        algorithm = self.algorithm or logged
        if wrong := unread(self.parameters, algorithm):
            raise ConfigError(wrong)
        return build_policy(algorithm, shadow=True, **self._all(algorithm))

    def inherits(self, logged: str) -> str:
        """The parameters inherited from the logged policy; empty if there are none."""
        own = parameters(logged) if self.algorithm is None else {}
        return ", ".join(name for name in own if name not in self.parameters)

    def _all(self, algorithm: str) -> dict[str, Any]:
        live = self.live.parameters if self.live is not None else {}
        defaults = {name: field.default for name, (_, field) in parameters(algorithm).items()}
        return {name: self.parameters.get(name, live.get(name, default)) for name, default in defaults.items()}

    def description(self) -> str:
        """The settings in words, for reports."""
        algorithm = self.algorithm or (self.live.algorithm if self.live else None)
        parts = []
        if algorithm is not None:
            parts.append(algorithm + "".join(f" ({name} {value:g})" for name, value in self._all(algorithm).items()))
        else:
            parts += [f"{name} {value:g}" for name, value in self.parameters.items()]
        parts += [f"{name} {value:g}" for name in _OVERRIDES if (value := getattr(self, name)) is not None]
        if self.paused:
            parts.append(f"without {', '.join(self.paused)}")
        if self.personal is not None:
            parts.append("with the user and role terms" if self.personal else "without the user and role terms")
        return ", ".join(parts) + "; otherwise as logged" if parts else "the logged policy"
