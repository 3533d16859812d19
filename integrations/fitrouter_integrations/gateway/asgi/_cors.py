"""Cross-origin requests: pages of configured origins may use the routes that answer, and no others."""

from __future__ import annotations

from collections.abc import Collection

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

_SHOWN = (
    *("x-fitrouter-decision", "x-fitrouter-model", "x-fitrouter-propensity", "x-fitrouter-logged", "x-fitrouter-asked"),
    *("x-fitrouter-token", "x-fitrouter-dropped", "x-fitrouter-max-tokens", "x-request-id", "retry-after"),
)
"""Headers of answers that pages may read."""


class Cors:
    """ASGI middleware that answers preflights, and lets pages read answers, on some routes alone.

    There are no cookies on these routes, and none are allowed: a page sends its key itself.

    Args:
        app: the application.
        origins: that are allowed, such as `https://app.example.com`.
        routes: (method, path) of the routes that they may use.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str], routes: Collection[tuple[str, str]]) -> None:
        self.app, self._routes = app, frozenset(routes)
        self._allowing = CORSMiddleware(
            app,
            allow_origins=origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            allow_private_network=True,  # a listed page of the internet reaches a gateway on its user's machine
            expose_headers=_SHOWN,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        method = scope.get("method", "")
        if method == "OPTIONS":
            asked = (value for name, value in scope["headers"] if name == b"access-control-request-method")
            method = next(asked, b"").decode("latin-1")
        allowed = scope["type"] == "http" and (method, scope["path"]) in self._routes
        await (self._allowing if allowed else self.app)(scope, receive, send)
