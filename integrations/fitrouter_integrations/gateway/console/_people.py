"""The view *People and roles*: fit, history, and what would be chosen now."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response

from fitrouter.config import Config
from fitrouter.errors import InvalidRequest
from fitrouter.router import Router
from fitrouter.serving.people import STRANGER
from fitrouter.types import Identity
from fitrouter_dashboards.console import Reads
from fitrouter_dashboards.console.overview import WINDOWS
from fitrouter_dashboards.console.people import history, known, lowest, roles
from fitrouter_evaluators.personal import Reports
from fitrouter_integrations.gateway._call import AuthenticatedCall
from fitrouter_integrations.gateway.asgi._wire import Problem
from fitrouter_integrations.gateway.console._calls import json_response, tenant_of

_PERSONS = 20
"""Persons to choose from, those first that were met last."""
_LONGEST = 512
"""Characters of a name."""


class People:
    """Shows roles, and people to keys that may see them.

    Args:
        router: whose people.
        config: locates recorded answers.
        reads: the warehouse.
    """

    def __init__(self, router: Router, config: Config, reads: Reads) -> None:
        self._router, self._reads = router, reads
        self._reports = Reports(router, config)

    async def show(self, call: AuthenticatedCall) -> Response:
        """Return the roles to choose from, and the view of the chosen role or person."""
        query, scope = call.http.query_params, tenant_of(call)
        week = self._router.clock() - WINDOWS["7d"]
        found: dict[str, Any] = {
            "roles": await self._reads.get(("choice", scope), partial(roles, self._reads, scope, week)),
            "people": call.sees_people,
            "persons": [],
            "lowest": [],
        }
        if found["people"]:
            listed = await self._reads.get(
                ("persons", scope), partial(self._router.lists.users, _PERSONS, tenant=scope)
            )
            found["persons"] = msgspec.to_builtins(listed)
            found["lowest"] = await self._reads.get(("lowest", scope), partial(lowest, self._reads, scope, week))
        user, role = query.get("user") or None, query.get("role") or None
        tenant = query.get("tenant", call.tenant) if scope is None else scope
        if any(len(name) > _LONGEST for name in (user or "", role or "", tenant)):
            raise Problem(400, "invalid_request", f"names have at most {_LONGEST} characters")
        if user or role:
            who = await self._who(call, Identity(tenant=tenant, user=user, role=role))
            found["shown"] = {"tenant": tenant, "user": user, "subject": who.user, "role": role}
            found |= await self._of(who, week)
        return json_response(found)

    async def _who(self, call: AuthenticatedCall, identity: Identity) -> Identity:
        """Return the identity as events hold it. A user is known by the application's name, or by that of the log."""
        if not identity.user:
            return identity
        call.require_people("see people")
        who = await self._router.people.recall(identity)
        if who.user == STRANGER:
            begun = await self._reads.get(("known", identity), partial(known, self._reads, identity))
            if len(begun) != 1:
                text = f"several begin with it: {', '.join(begun)} …" if begun else "nobody of that name has asked here"
                raise Problem(404, "unknown_user", text)
            who = msgspec.structs.replace(identity, user=begun[0])
        return who

    async def _of(self, who: Identity, since: float) -> dict[str, Any]:
        past = await self._reads.get(("history", who), partial(history, self._reads, who, since))
        declared = await self._reads.get(("declared", who), partial(self._router.people.declared, who))
        found: dict[str, Any] = {**past, "declared": {"values": declared[0], "topics": declared[1]}, "report": None}
        try:
            report = await self._reads.get(("report", who), partial(self._reports.read, who, who))
            found["report"] = msgspec.to_builtins(report)
        except InvalidRequest as error:
            found["missing"] = str(error)
        chosen: dict[str, str] = found.pop("decisions")
        leaders = await self._router.leaders(tuple(chosen), who.tenant)
        pairs: dict[tuple[str, str], int] = {}
        for decision_id, now in leaders.items():
            pair = chosen[decision_id], now
            pairs[pair] = pairs.get(pair, 0) + 1
        found["again"] = [{"chosen": then, "now": now, "requests": n} for (then, now), n in pairs.items()]
        return found
