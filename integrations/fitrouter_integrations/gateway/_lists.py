"""Handlers that show what was logged of the caller's tenant: a decision, and lists of decisions, feedback and users.

The lists name people, so that they need a key that speaks for the users of its tenant (`trusted`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from fitrouter.errors import InvalidRequest
from fitrouter.identity import decision_id_of
from fitrouter.router import Router
from fitrouter.types import Identity
from fitrouter_integrations.gateway._call import AuthenticatedCall
from fitrouter_integrations.gateway._explain import decision_json
from fitrouter_integrations.gateway.asgi._wire import dump
from fitrouter_integrations.gateway.parsing._requests import identity
from fitrouter_integrations.gateway.parsing._values import check_fields, shown

LISTING = "list what people asked and rated"
"""The act that needs a key which sees people."""
_LAST = 20


class Listings:
    """Handlers over the log of a router."""

    def __init__(self, router: Router) -> None:
        self.router, self.lists = router, router.lists

    async def decision(self, call: AuthenticatedCall) -> Response:
        """Explain a decision: why this model, its probability, the outcome, score and feedback."""
        decision_id = decision_id_of(call.http.path_params["decision_id"])
        query = dict(call.http.query_params)
        check_fields(query, ("now",))
        if (now := query.get("now", "0")) not in {"0", "1"}:
            raise InvalidRequest(f"now: got {shown(now)}; give 1 to compare with the estimates of now")
        events = await self.router.events(decision_id, call.sees)
        return _body(decision_json(events, await self.router.explain(decision_id, call.sees, now=now == "1")))

    async def run(self, call: AuthenticatedCall) -> Response:
        """Show a run of an agent: its decisions, what they cost, and its outcome."""
        query = dict(call.http.query_params)
        check_fields(query, ("key",))
        if call.vouches and query.get("key", call.vouches) != call.vouches:
            call.require_people("read runs of another key")
        who = Identity(tenant=call.tenant, user=identity(call.headers, call.tenant).user)
        about = call.http.path_params["run_id"], who
        key = call.vouches or query.get("key", "")
        return _body(
            {"object": "fitrouter.run"}
            | msgspec.to_builtins(await self.router.runs.show(*about, key=key, trusted=call.sees_people))
        )

    async def list_decisions(self, call: AuthenticatedCall) -> Response:
        """List the last answers, the newest first, with model, probability, cost, score and votes."""
        return _json(await asyncio.to_thread(self.lists.answers, **_wanted(call, "last", "model")))

    async def list_feedback(self, call: AuthenticatedCall) -> Response:
        """List the last votes and remarks, the newest first."""
        return _json(await asyncio.to_thread(self.lists.feedback, **_wanted(call, "last", "model")))

    async def list_users(self, call: AuthenticatedCall) -> Response:
        """List the users that were met last; with the header of a user that one alone, in full."""
        wanted = _wanted(call, "last")
        if user := wanted["user"]:
            return _json([await asyncio.to_thread(self.lists.user, user, call.tenant)])
        return _json(await asyncio.to_thread(self.lists.users, wanted["last"], tenant=call.sees))


def _wanted(call: AuthenticatedCall, *allowed: str) -> dict[str, Any]:
    """Parse the filters in the query and the headers.

    Raises:
        NotAuthorized: the key does not speak for the users of its tenant.
        InvalidRequest: names the parameter and the reason.
    """
    call.require_people(LISTING)
    query = dict(call.http.query_params)
    check_fields(query, allowed)
    last = query.get("last", str(_LAST))
    if not last.isascii() or not last.isdecimal() or len(last) > 4:
        raise InvalidRequest(f"last: got {shown(last)}; give a whole number from 1 to 1000")
    who = identity(call.headers, call.tenant)
    found = {"last": int(last), "tenant": call.sees, "user": who.user, "role": who.role}
    return found | ({"model": query.get("model")} if "model" in allowed else {})


def _json(entries: Sequence[msgspec.Struct]) -> Response:
    return _body({"object": "list", "data": msgspec.to_builtins(list(entries))})


def _body(body: dict[str, Any]) -> Response:
    return Response(dump(body), media_type="application/json")
