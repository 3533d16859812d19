"""Runtime settings of the policy: weights, traffic share, and the version in force.

`PolicyChange` events override settings of the configuration file and restore them. A new weight or a promoted policy
therefore needs no restart, is logged, and holds in every process that reads the journal. A changed configuration file
takes precedence: a start with a new one drops all overrides.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import pydantic
from pydantic.fields import FieldInfo

from fitrouter.config import Config, ObjectiveConfig, PolicyConfig
from fitrouter.errors import InvalidRequest
from fitrouter.plain import Projection
from fitrouter.policies import parameters
from fitrouter.types import PolicyChange


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that can change at run time, as the configuration declares it: a number, a text, or true or false."""

    kind: type
    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    """Whether `low` itself is not allowed."""
    text: str = ""
    """What it does, if no section describes it."""

    def checked(self, name: str, value: Any) -> Any:
        """Return a value that is allowed, numbers as float.

        Raises:
            InvalidRequest: it has the wrong type, or is out of range.
        """
        if self.kind is not float:
            if isinstance(value, self.kind):
                return value
            raise InvalidRequest(f"{name}: {value!r} is not {'a text' if self.kind is str else 'true or false'}")
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or not self.low <= value <= self.high or (self.above and value == self.low):
            lowest = f"{'above' if self.above else 'of at least'} {self.low:g}"
            highest = f"at most {self.high:g}" if math.isfinite(self.high) else "finite"
            raise InvalidRequest(f"{name}: {value!r} is not allowed; give a number {lowest} and {highest}")
        return float(value)


def described(section: type) -> dict[str, str]:
    """Field → its description, or the docstring under it, of a class and of those that it inherits from.

    Args:
        section: of the configuration, or another class with documented fields.
    """
    found: dict[str, str] = {}
    for cls in reversed(section.__mro__):
        if cls.__name__ == "CandidateConfig":  # has no source: its fields are the settings of the policies
            for name, (policy, _) in parameters().items():
                text, shadow = (
                    _documented(policy).get(name, ""),
                    " (shadow only)" * getattr(policy, "shadow_only", False),
                )
                found[name] = f"{policy.name}{shadow}: {text[:1].lower()}{text[1:]}"
        elif cls.__module__.startswith("fitrouter"):
            found |= _documented(cls)
    fields: dict[str, FieldInfo] = getattr(section, "model_fields", {})
    return found | {name: field.description for name, field in fields.items() if field.description}


def _documented(cls: type) -> dict[str, str]:
    """Field → the docstring under it, from the source of a class."""
    body = ast.parse(inspect.getsource(cls)).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: " ".join(str(below.value.value).split())
        for field, below in itertools.pairwise(body.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }


def _declared(section: type[pydantic.BaseModel], *names: str) -> dict[str, Setting]:
    found = {}
    for name in names:
        field = section.model_fields[name]
        bounds = {bound: getattr(rule, bound) for rule in field.metadata for bound in _BOUNDS if hasattr(rule, bound)}
        low = bounds.get("ge", bounds.get("gt", -math.inf))
        found[name] = Setting(
            kind=field.annotation or str, low=low, high=bounds.get("le", math.inf), above="gt" in bounds
        )
    return found


_BOUNDS = ("ge", "gt", "le")
_LIVE = [name for name, (policy, _) in parameters().items() if not getattr(policy, "shadow_only", False)]
SECTIONS = (PolicyConfig, Config, ObjectiveConfig)
"""Sections of the configuration with settings that can change at run time."""
SETTINGS: dict[str, Setting] = {
    **_declared(PolicyConfig, "algorithm", *_LIVE, "floor", "uniform_slice", "personal"),
    **_declared(Config, "share"),
    **_declared(ObjectiveConfig, "cost_weight", "latency_weight"),
    **_declared(ObjectiveConfig, "quality_factor", "economy_factor", "economy_least", "economy_most"),
    "force": Setting(kind=str, text="A model that takes all eligible traffic, in an emergency; '' ends it."),
    "paused": Setting(kind=str, text="Models that are not called, separated by commas; '' ends it."),
}
"""Settings that can change at run time."""

VERSIONS = 64
"""Number of versions kept for `restore`."""


def names_of(paused: str) -> list[str]:
    """Names in a value of the setting `paused`.

    >>> names_of("small, big#effort-high,")
    ['small', 'big#effort-high']
    """
    return [name for each in paused.split(",") if (name := each.strip())]


def check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check settings of the policy, and convert numbers to float.

    Raises:
        InvalidRequest: an unknown setting, or a value of the wrong type or out of range.

    >>> check_settings({"share": 0.05, "personal": True})
    {'share': 0.05, 'personal': True}
    """
    if not settings:
        raise InvalidRequest(f"no setting given; allowed are {sorted(SETTINGS)}")
    if unknown := sorted(settings.keys() - SETTINGS.keys()):
        raise InvalidRequest(f"unknown setting {unknown[0]!r}; allowed are {sorted(SETTINGS)}")
    return {name: SETTINGS[name].checked(name, value) for name, value in settings.items()}


class _StoredSettings(msgspec.Struct, array_like=True):
    history: list[tuple[str, dict[str, Any]]]
    config_hash: str


class PolicySettings(Projection):
    """History of the policy's versions, each a name and settings that override the configuration."""

    stored_type = _StoredSettings

    def __init__(self) -> None:
        self.history: list[tuple[str, dict[str, Any]]] = []
        """The last version is in force; if empty, the configuration is."""
        self.config_hash = ""
        """Hash of the configuration that the history belongs to."""

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that override the configuration in the version in force."""
        return self.history[-1][1] if self.history else {}

    @property
    def live(self) -> str:
        """Name of the version in force."""
        return self.history[-1][0] if self.history else "configuration"

    def observe(self, change: PolicyChange) -> None:
        """Apply a change. Unknown actions and settings are ignored: the journal can come from a later version."""
        match change.action:
            case "set" | "promote":
                known = {name: value for name, value in change.settings.items() if name in SETTINGS}
                name = change.name or f"{self.live.split(' + ')[0]} + {', '.join(sorted(known))}"
                self.history = [*self.history, (name, self.settings | known)][-VERSIONS:]
            case "restore":
                self.history = self.history[:-1]
            case "config":
                self.history = []
            case "budget":  # its limit is part of `fitrouter.state.budgets`
                pass
            case _:
                return
        self.config_hash = change.config_hash or self.config_hash

    def _store(self) -> _StoredSettings:
        return _StoredSettings(self.history, self.config_hash)

    def _restore(self, stored: _StoredSettings) -> bool:
        try:
            for _, settings in stored.history:
                if settings:
                    check_settings(settings)
        except InvalidRequest:
            return False
        self.history, self.config_hash = stored.history, stored.config_hash
        return True
