"""What the console's handlers need of a request, and their answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from fitrouter_integrations.gateway._keys import Caller
from fitrouter_integrations.gateway.asgi._bodies import Held, json_body
from fitrouter_integrations.gateway.asgi._wire import dump

_BODY_BYTES = 16_384
"""Longest body of a change."""


class Call(Protocol):
    """What the handlers need of an authenticated request."""

    http: HttpRequest
    headers: Mapping[str, bytes]
    tenant: str
    admin: bool
    metrics: bool
    trusted: bool
    held: Held
    known: bool
    caller: Caller


Handler = Callable[[Any], Awaitable[Response]]
Endpoint = Callable[[HttpRequest], Awaitable[Response]]


def tenant_of(call: Call) -> str | None:
    """The tenant whose log a caller sees; None for all."""
    return None if call.admin else call.tenant


async def body_of(call: Call) -> dict[str, Any]:
    """The JSON body of a change."""
    return await json_body(call.http.receive, call.headers, _BODY_BYTES, call.held)


def json_response(value: object, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that is kept nowhere."""
    return Response(
        dump(value), headers={"cache-control": "no-store", **(headers or {})}, media_type="application/json"
    )
