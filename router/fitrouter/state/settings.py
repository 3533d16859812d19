"""What the policy is told to do at run time: weights, share, and which version is live.

The configuration file gives the base; a `PolicyChange` event lays settings over it, and another takes them away again,
so that a new weight or a promotion needs no restart, is logged, and is the same in every process that reads the
journal. A file that was changed since goes before: a start under a new configuration drops what was laid over the old.
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
}
"""Name → its range, or its type. `force` is a model that takes all it can, empty for none."""

VERSIONS = 64
"""Versions that can be restored, the last ones."""


def check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, each of its type and in its range.

    Raises:
        InvalidRequest: there is no such setting, or its value cannot be.

    >>> check_settings({"share": 0.05, "personal": True})
    {'share': 0.05, 'personal': True}
    """
    if not settings:
        raise InvalidRequest(f"no setting was given; allowed are {sorted(SETTINGS)}")
    checked: dict[str, Any] = {}
    for name, value in settings.items():
        allowed = SETTINGS.get(name)
        if allowed is None:
            raise InvalidRequest(f"there is no setting {name!r}; allowed are {sorted(SETTINGS)}")
        if isinstance(allowed, type):
            if not isinstance(value, allowed):
                raise InvalidRequest(f"{name}: {value!r} is no {'text' if allowed is str else 'true or false'}")
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
    """The versions of the policy so far: each a name and what it lays over the configuration."""

    stored_type = _Stored

    def __init__(self) -> None:
        self.history: list[tuple[str, dict[str, Any]]] = []
        """The last one is in force; none: the configuration is."""
        self.config_hash = ""
        """The configuration that the history was made under."""

    @property
    def settings(self) -> dict[str, Any]:
        """What is laid over the configuration now."""
        return self.history[-1][1] if self.history else {}

    @property
    def live(self) -> str:
        """Name of the version in force."""
        return self.history[-1][0] if self.history else "configuration"

    def observe(self, change: PolicyChange) -> None:
        """Fold one change. What is not understood changes nothing: a log may come from a later version."""
        match change.action:
            case "set" | "promote":
                known = {name: value for name, value in change.settings.items() if name in SETTINGS}
                name = change.name or f"{self.live.split(' + ')[0]} + {', '.join(sorted(known))}"
                self.history = [*self.history, (name, self.settings | known)][-VERSIONS:]
            case "restore":
                self.history = self.history[:-1]
            case "config":
                self.history = []
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
