"""The console's HTTP routes and sessions."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from fitrouter_integrations.gateway.asgi._direct import Endpoint

CONSOLE_ROUTES = (
    ("GET", "/", "root", None),
    ("GET", "/console", "page", None),
    ("GET", "/console/", "page", None),
    ("GET", "/console/static/{name}", "asset", None),
    ("GET", "/console/api/session", "session", None),
    ("POST", "/console/api/login", "enter", None),
    ("POST", "/console/api/logout", "leave", None),
    ("GET", "/console/api/now", "now", "read"),
    ("GET", "/console/api/gains", "gains", "read"),
    ("GET", "/console/api/decisions", "log.page", "read"),
    ("GET", "/console/api/feed", "log.feed", "read"),
    ("GET", "/console/api/decisions/{decision_id}", "decision", "read"),
    ("POST", "/console/api/feedback", "feedback", "feedback"),
    ("POST", "/console/api/try", "tries.send", "chat"),
    ("GET", "/console/api/pairs", "tries.pairs", "read"),
    ("POST", "/console/api/choice", "tries.choose", "feedback"),
    ("GET", "/console/api/money", "money", "read"),
    ("GET", "/console/api/policy", "policy", "read"),
    ("POST", "/console/api/estimate", "estimate", "read"),
    ("GET", "/console/api/people", "people.show", "read"),
    ("GET", "/console/api/runs", "runs", "read"),
    ("GET", "/console/api/models", "models", "read"),
    ("GET", "/console/api/learning", "learning", "read"),
    ("POST", "/console/api/policy", "change", ""),
    ("POST", "/console/api/models", "add", ""),
    ("DELETE", "/console/api/models/{model:path}", "remove", ""),
)
"""Method, path, handler of `_routes.Console`, and the scope that a key needs."""
_SAFE = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-robots-tag": "noindex, nofollow",
}


def confined(endpoint: Endpoint) -> Endpoint:
    """Wrap an endpoint so that every response has headers that confine the page."""

    async def answer(request: HttpRequest) -> Response:
        response = await endpoint(request)
        response.headers.update(_SAFE)
        return response

    return answer
