"""OpenAI-compatible HTTP gateway over a router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fitrouter_integrations.gateway._serve import bind, serve

if TYPE_CHECKING:
    from fitrouter_integrations.gateway._app import create_app

__all__ = ["bind", "create_app", "serve"]


def __getattr__(name: str) -> Any:
    if name == "create_app":  # imports the ASGI framework, which the parent process of workers does not need
        from fitrouter_integrations.gateway._app import create_app

        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
