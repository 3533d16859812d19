"""The view *People*: who is least satisfied; of a person or role fit, history, and what would be chosen now."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response

from fitrouter.config import Config
from fitrouter.errors import InvalidRequest
from fitrouter.router import Router
from fitrouter.serving.people import STRANGER
from fitrouter.serving.recorder import read_in_time
from fitrouter.types import Identity
from fitrouter_dashboards.console import Reads
from fitrouter_dashboards.console.overview import WINDOWS
from fitrouter_dashboards.console.people import history, known, listed, roles
from fitrouter_evaluators.personal import Reports
from fitrouter_evaluators.personal.leaderboard import Leaderboard
from fitrouter_integrations.gateway._call import AuthenticatedCall
from fitrouter_integrations.gateway.asgi._wire import Problem
from fitrouter_integrations.gateway.console._calls import json_response, tenant_of

_DEEPEST = 100_000
"""People that a page may skip."""
_BOARDS = 512
"""Leaderboards that are kept,"""
_AGE_S = 600.0
"""and for how long at most."""
_LONGEST = 512
"""Characters of a name."""


class Boards:
    """Leaderboards of the people of a list, computed one after another in a thread of their own.

    Args:
        reports: computes them.
    """

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fitrouter-boards")
        self._kept: OrderedDict[tuple[Any, ...], Future[Leaderboard]] = OrderedDict()

    def get(self, who: Identity, ratings: int) -> tuple[Leaderboard | None, bool]:
        """Return a person's leaderboard, if it is known, and whether it is being computed: anew with a new rating."""
        key = who, ratings, time.monotonic() // _AGE_S
        if key not in self._kept:
            self._kept[key] = self._thread.submit(self._reports.boards.read, who, who)
            while len(self._kept) > _BOARDS:
                self._kept.popitem(last=False)[1].cancel()
        self._kept.move_to_end(key)
        made = self._kept[key]
        if not made.done():
            return None, True
        return (None if made.cancelled() or made.exception() else made.result()), False

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)


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
        self._boards = Boards(self._reports)

    def close(self) -> None:
        """Stop the thread of the leaderboards."""
        self._boards.close()

    async def show(self, call: AuthenticatedCall) -> Response:
        """Return the roles to choose from, and the view of the chosen role or person."""
        scope, week = tenant_of(call), self._router.clock() - WINDOWS["7d"]
        known_roles = self._reads.get(("choice", scope), partial(roles, self._reads, scope, week))
        choice, found = await asyncio.gather(known_roles, self._chosen(call, scope, week))
        return json_response({"roles": choice, "people": call.sees_people, **found})

    async def _chosen(self, call: AuthenticatedCall, scope: str | None, week: float) -> dict[str, Any]:
        """Return the view of the chosen role or person; the list of people, for callers who may see it, without one."""
        query = call.http.query_params
        user, role = query.get("user") or None, query.get("role") or None
        tenant = query.get("tenant", call.tenant) if scope is None else scope
        if any(len(name) > _LONGEST for name in (user or "", role or "", tenant)):
            raise Problem(400, "invalid_request", f"names have at most {_LONGEST} characters")
        if user or role:
            who = await self._who(call, Identity(tenant=tenant, user=user, role=role))
            if who.user:  # a link may give the log's name
                user = (await read_in_time(self._router.lists.names, [who.user])).get(who.user, user)
            shown = {"tenant": tenant, "user": user, "subject": who.user, "role": role}
            return {"shown": shown, **await self._of(who, week)}
        if not call.sees_people:
            return {}
        return await self._listed(scope, query.get("order") != "requests", query.get("skip", "0"))

    async def _listed(self, scope: str | None, satisfied: bool, skip: str) -> dict[str, Any]:
        """Return a page of people, with what the leaderboard expects of their model and of the default for them."""
        if not (skip.isascii() and skip.isdigit() and int(skip) <= _DEEPEST):
            raise Problem(400, "invalid_request", "skip: give the 'next' of the page before")
        since = self._router.clock() - WINDOWS["30d"]
        read = partial(listed, self._reads, scope, since, satisfied=satisfied, skip=int(skip))
        found: dict[str, Any] = await self._reads.get(("listed", scope, satisfied, skip), read)
        default, rows = self._router.policy.default, []
        names = await read_in_time(self._router.lists.names, [one["subject"] for one in found["listed"]])
        for one in found["listed"]:
            who, rating = Identity(tenant=one["tenant"], user=one["subject"]), one["rating"]
            board, waits = self._boards.get(who, rating["ratings"] if rating else 0)
            expected = {} if board is None else {each.model: each for each in board.models}
            with_ = {"with_model": expected.get(self._name(one["model"])), "with_default": expected.get(default or "")}
            rows.append(
                {**one, "user": names.get(one["subject"]), "waits": waits}
                | {
                    key: each and {"mean": each.rating, "low": each.low, "high": each.high}
                    for key, each in with_.items()
                }
            )
        return {**found, "listed": rows, "default": default}

    def _name(self, arm: str) -> str:
        """Name of a model in requests, of that with variant and revision; itself if it is not in use."""
        try:
            return self._router.name_of(arm)
        except KeyError:
            return arm

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

    async def _reported(self, who: Identity) -> dict[str, Any]:
        """Return the fit report, or why there is none."""
        try:
            report = await self._reads.get(("report", who), partial(self._reports.read, who, who))
        except InvalidRequest as error:
            return {"report": None, "missing": str(error)}
        return {"report": msgspec.to_builtins(report)}

    async def _of(self, who: Identity, since: float) -> dict[str, Any]:
        month = self._router.clock() - WINDOWS["30d"]
        past, declared, reported = await asyncio.gather(
            self._reads.get(("history", who), partial(history, self._reads, who, since, month)),
            self._reads.get(("declared", who), partial(self._router.people.declared, who)),
            self._reported(who),
        )
        found: dict[str, Any] = {**past, "declared": {"values": declared[0], "topics": declared[1]}, **reported}
        answered: dict[str, tuple[str, bool]] = found.pop("decisions")
        leaders = await self._router.leaders(tuple(answered), who.tenant)
        pairs = Counter((*answered[decision_id], now) for decision_id, now in leaders.items())
        found["again"] = [
            {"served": then, "fallback": fallback, "now": now, "requests": n}
            for (then, fallback, now), n in pairs.items()
        ]
        return found
