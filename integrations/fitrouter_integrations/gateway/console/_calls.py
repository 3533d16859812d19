"""Requests and responses of the console's handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from fitrouter.router import Router
from fitrouter_dashboards.console.assets import assets
from fitrouter_integrations.gateway._call import AuthenticatedCall
from fitrouter_integrations.gateway.asgi._bodies import json_body
from fitrouter_integrations.gateway.asgi._limits import headers_of
from fitrouter_integrations.gateway.asgi._wire import Problem, dump, readable

_BODY_BYTES = 16_384
"""Longest body of a change."""


Handler = Callable[[Any], Awaitable[Response]]
Endpoint = Callable[[HttpRequest], Awaitable[Response]]


def tenant_of(call: AuthenticatedCall) -> str | None:
    """Return the tenant whose log a caller sees; None for all."""
    return None if call.admin else call.tenant


async def body_of(call: AuthenticatedCall) -> dict[str, Any]:
    """Read the JSON body of a change."""
    return await json_body(call.http.receive, call.headers, _BODY_BYTES, call.held)


def unread_part(router: Router, call: AuthenticatedCall, part: str, error: Exception) -> str:
    """Report that a part of a view cannot be read; returns what the page says of it to this caller."""
    router.hooks.trouble(part, error)
    return str(readable(f"not readable now: {error}", call.http.scope))


def file_response(pages: ModuleType, name: str, headers: Mapping[str, bytes]) -> Response:
    """Create the response with a file of a package's pages, or with 304 where the client has it."""
    asset = assets(pages).get(name)
    if asset is None:
        raise Problem(404, "not_found", f"this page has no file {name[:80]!r}")
    kept = {"etag": asset.etag, "cache-control": "no-cache"}
    if headers.get("if-none-match") == asset.etag.encode():
        return Response(status_code=304, headers=kept)
    return Response(asset.body, headers=kept, media_type=asset.media_type)


def is_secure(call: AuthenticatedCall) -> bool:
    """Whether the client speaks HTTPS, with this gateway or with the proxy before it."""
    return headers_of(call.http.scope).get("x-forwarded-proto", call.http.url.scheme.encode()) == b"https"


def json_response(value: object, headers: Mapping[str, str] | None = None) -> Response:
    """Create a JSON response that caches must not store."""
    return Response(
        dump(value), headers={"cache-control": "no-store", **(headers or {})}, media_type="application/json"
    )
