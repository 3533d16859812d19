"""Handlers that add and remove models at run time.

An administrator's key may add a model of a configured provider, or one with a server of its own. That server is one
that the gateway will send prompts to, and a key of its environment: so it must have a public address, now and whenever
it is called, and the key's variable must be named in the configuration (`server.additions`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.responses import Response

from fitrouter.config import AddedProviderConfig, AdditionsConfig, parse_addition
from fitrouter.errors import ConfigError, InvalidRequest, UnknownModel
from fitrouter.providers import is_public
from fitrouter.router import Router
from fitrouter.stores.audit_log import Act, AuditLog
from fitrouter_integrations.gateway._call import AuthenticatedCall
from fitrouter_integrations.gateway.asgi._wire import dump
from fitrouter_integrations.gateway.parsing._values import shown

_RESOLVE_S = 5.0


class ModelAdministration:
    """Handlers over the registry of a router.

    Args:
        router: whose models change.
        limits: of servers that added models bring.
        audit: gets a line before each change.
        body: reads the JSON body of a request.
    """

    def __init__(
        self, router: Router, limits: AdditionsConfig, audit: AuditLog, body: Callable[[Any], Awaitable[dict[str, Any]]]
    ) -> None:
        self._router, self._limits, self._audit, self._body = router, limits, audit, body

    async def add_model(self, call: AuthenticatedCall) -> Response:
        """Add a model to route among, for all workers and after restarts, until it is removed."""
        call.require_admin("change the models")
        given = await self._body(call)
        try:
            addition = parse_addition(given)
        except ConfigError as error:
            raise InvalidRequest(str(error)) from None
        about = {"model": addition.model.name, "provider": addition.model.provider}
        if addition.provider is not None:
            if not call.caller.operator:
                await self._check(addition.provider)
            about["host"] = urlsplit(addition.provider.base_url).netloc
        await self._note(call, "model add", about)
        added = await self._router.registry.add(given)
        return _json({"object": "fitrouter.model", **msgspec.to_builtins(added)})

    async def remove_model(self, call: AuthenticatedCall) -> Response:
        """Remove a model that was added; calls under way end normally."""
        call.require_admin("change the models")
        name, registry = call.http.path_params["model"], self._router.registry
        registry.current()
        if name not in {each.name for each in registry.added} | registry.models.names.keys():
            raise UnknownModel(f"unknown model {shown(name)}; GET /v1/models lists them")
        await self._note(call, "model remove", {"model": name})
        await registry.remove(name)
        return _json({"object": "fitrouter.model", "name": name, "removed": True})

    async def _note(self, call: AuthenticatedCall, act: str, about: dict[str, str]) -> None:
        entry = Act(ts=self._router.clock(), act=act, by=call.caller.shown, about=about)
        await asyncio.to_thread(self._audit.note, entry)

    async def _check(self, server: AddedProviderConfig) -> None:
        """Check that a server may be reached, and get the key that is named.

        Raises:
            InvalidRequest: names the setting that would allow it.
        """
        if server.api_key_env is not None and server.api_key_env not in self._limits.key_envs:
            known = ", ".join(self._limits.key_envs) or "none"
            raise InvalidRequest(
                f"api_key_env: {shown(server.api_key_env)} is not allowed; those under 'server.additions.key_envs' of "
                f"the configuration are: {known}"
            )
        if self._limits.private_addresses:
            return
        parts = urlsplit(server.base_url)
        host = parts.hostname or ""
        try:
            async with asyncio.timeout(_RESOLVE_S):
                loop = asyncio.get_running_loop()
                found = await loop.getaddrinfo(host, parts.port or 443, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):  # a timeout is an OSError
            raise InvalidRequest(f"base_url: the host {shown(host)} has no address; correct it, or try again") from None
        if not all(is_public(str(address[0])) for *_, address in found):
            raise InvalidRequest(
                f"base_url: the host {shown(host)} is on this machine or in a private network; allow that with "
                "'server.additions.private_addresses: true', or configure the server under 'providers'"
            )


def _json(body: dict[str, Any]) -> Response:
    return Response(dump(body), media_type="application/json")
