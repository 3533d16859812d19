"""The console's HTTP routes and sessions."""

from fitrouter_integrations.gateway.console._routes import Console

__all__ = ["Console"]
