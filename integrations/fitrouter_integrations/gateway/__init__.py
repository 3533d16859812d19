"""An OpenAI-compatible gateway over a router."""

from __future__ import annotations

from fitrouter_integrations.gateway._app import create_app
from fitrouter_integrations.gateway._serve import bind, serve

__all__ = ["bind", "create_app", "serve"]
