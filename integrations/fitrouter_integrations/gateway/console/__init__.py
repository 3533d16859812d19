"""The console's HTTP routes and sessions."""

from fitrouter_integrations.gateway.console._routes import Console
from fitrouter_integrations.gateway.console._sessions import is_own

__all__ = ["Console", "is_own"]
