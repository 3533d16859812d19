"""An authenticated HTTP request, as all handlers of the gateway and the console get it."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import msgspec
from starlette.requests import Request as HttpRequest

from fitrouter.errors import NotAuthorized
from fitrouter.identity import owned_run
from fitrouter.routing.tiers import TIERS
from fitrouter.types import Payer, Request
from fitrouter_integrations.gateway._keys import Caller
from fitrouter_integrations.gateway.asgi._bodies import Bodies
from fitrouter_integrations.gateway.asgi._wire import Problem

NOBODY = Caller("", False, False)
"""A caller without a key, on a public route."""


class AuthenticatedCall:
    """An HTTP request with the caller that its key authenticates."""

    def __init__(self, http: HttpRequest, headers: Mapping[str, bytes], caller: Caller, bodies: Bodies) -> None:
        self.http = http
        self.held = bodies.hold(caller.tenant)
        self._take(headers, caller)

    def acting(self, headers: Mapping[str, bytes], caller: Caller) -> AuthenticatedCall:
        """Return the same request as another caller's, with other headers."""
        call = copy.copy(self)
        call._take(headers, caller)
        return call

    def _take(self, headers: Mapping[str, bytes], caller: Caller) -> None:
        if caller.user:  # headers win over bodies
            headers = {**headers, "x-fitrouter-user": caller.user.encode()}
        self.headers, self.caller = headers, caller
        self.tenant, self.admin, self.metrics, self.trusted = caller[:4]
        self.known = caller is not NOBODY
        self.sees_people = self.trusted or self.admin
        """Whether it may see what people asked, and what was learnt of them."""
        self.vouches = "" if self.sees_people else caller.name
        """Name of the key, if votes of the users that it names count for others up to a limit only."""

    @property
    def sees(self) -> str | None:
        """The tenant whose log it sees; None for all, which only an operator in this process does."""
        return None if self.caller.everybody else self.tenant

    def require_people(self, act: str) -> None:
        """Raise NotAuthorized, which names an act, unless the caller may see people."""
        if not self.sees_people:
            raise NotAuthorized(
                f"this key may not {act}; use one with 'trusted: true', which speaks for the users of its tenant"
            )

    def require_admin(self, act: str) -> None:
        """Raise the problem that only an administrator may do something."""
        if not self.admin:
            raise Problem(403, "not_admin", f"this key may not {act}; an admin key without a tenant may")

    def owning(self, request: Request) -> Request:
        """Return the request with its run as one of this key, unless the key speaks for all users of its tenant."""
        who = request.identity
        if not who.run:
            return request
        return msgspec.structs.replace(
            request, identity=msgspec.structs.replace(who, run=owned_run(who.run, self.vouches))
        )

    def paying(self, request: Request) -> Request:
        """Return the request with the name of the key, which owns its run, and pays if it has a spending limit.

        Raises:
            NotAuthorized: the key may not use the request's cost tier.
        """
        if request.tier in TIERS and request.tier not in self.caller.tiers:
            raise NotAuthorized(f"this key may not use the tier {request.tier!r}; its tiers are {self.caller.tiers}")
        limit = self.caller.usd_per_day
        payer = None if limit is None else Payer(name=self.caller.name, usd_per_day=limit)
        person, request = request.person and self.sees_people, self.owning(request)
        return msgspec.structs.replace(request, payer=payer, key=self.caller.name, person=person)
