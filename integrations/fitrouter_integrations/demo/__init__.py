"""The demo: simulated people send real requests to a gateway over simulated models, and what routing was worth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fitrouter_integrations.demo._command import command

__all__ = ["command"]


def __getattr__(name: str) -> Any:
    if name == "command":  # brings the gateway, the evaluators and rich
        from fitrouter_integrations.demo._command import command

        return command
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
