"""The demo: simulated users send requests to a real gateway over simulated models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fitrouter_integrations.demo._command import command

__all__ = ["command"]


def __getattr__(name: str) -> Any:
    if name == "command":  # imports the gateway, the evaluators and rich
        from fitrouter_integrations.demo._command import command

        return command
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
