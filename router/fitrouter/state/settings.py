"""Runtime settings of the policy: weights, traffic share, and the version in force.

`PolicyChange` events override settings of the configuration file and restore them. A new weight or a promoted policy
therefore needs no restart, is logged, and holds in every process that reads the journal. A changed configuration file
takes precedence: a start with a new one drops all overrides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from fitrouter.errors import InvalidRequest
from fitrouter.types import PolicyChange, Projection

_POSITIVE, _FRACTION, _WEIGHT = (1e-9, math.inf), (0.0, 1.0), (0.0, math.inf)
SETTINGS: dict[str, tuple[float, float] | type] = {
    "algorithm": str,
    "gamma": _POSITIVE,
    "scale": _POSITIVE,
    "temperature": _POSITIVE,
    "epsilon": _FRACTION,
    "floor": _FRACTION,
    "uniform_slice": _FRACTION,
    "share": _FRACTION,
    "cost_weight": _WEIGHT,
    "latency_weight": _WEIGHT,
    "personal": bool,
    "force": str,
    "paused": str,
}
"""Setting → allowed range, or type. `force` is a model that takes every request it can take; empty for none. `paused`
names models that are not called, separated by commas."""

VERSIONS = 64
"""Number of versions kept for `restore`."""


def check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check settings of the policy, and convert numbers to float.

    Raises:
        InvalidRequest: an unknown setting, or a value of the wrong type or out of range.

    >>> check_settings({"share": 0.05, "personal": True})
    {'share': 0.05, 'personal': True}
    """
    if not settings:
        raise InvalidRequest(f"no setting given; allowed are {sorted(SETTINGS)}")
    checked: dict[str, Any] = {}
    for name, value in settings.items():
        allowed = SETTINGS.get(name)
        if allowed is None:
            raise InvalidRequest(f"unknown setting {name!r}; allowed are {sorted(SETTINGS)}")
        if isinstance(allowed, type):
            if not isinstance(value, allowed):
                raise InvalidRequest(f"{name}: {value!r} is not {'a text' if allowed is str else 'true or false'}")
            checked[name] = value
            continue
        low, high = allowed
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not low <= value <= high:
            top = f"at most {high:g}" if math.isfinite(high) else "finite"
            raise InvalidRequest(f"{name}: {value!r} is not allowed; give a number of at least {low:g} and {top}")
        checked[name] = float(value)
    return checked


class _Stored(msgspec.Struct, array_like=True):
    history: list[tuple[str, dict[str, Any]]]
    config_hash: str


class PolicySettings(Projection):
    """History of the policy's versions, each a name and settings that override the configuration."""

    stored_type = _Stored

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

    def _store(self) -> _Stored:
        return _Stored(self.history, self.config_hash)

    def _restore(self, stored: _Stored) -> bool:
        try:
            for _, settings in stored.history:
                if settings:
                    check_settings(settings)
        except InvalidRequest:
            return False
        self.history, self.config_hash = stored.history, stored.config_hash
        return True
