"""The view *Decisions*: pages of the log, and a feed of what is new or has changed, as server-sent events.

A feed holds two numbers, its position in the log and the oldest decision that it tells about. Feeds at one position
share their reads, and what was read is as old as it took long several times, so that they never load the store.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from fitrouter.errors import StoreError
from fitrouter.router import Router
from fitrouter.serving.recorder import read_in_time
from fitrouter.stores.audit_log import Act, AuditLog
from fitrouter_dashboards.console import Reads, decisions
from fitrouter_dashboards.console.decisions import FILTERS, role_names
from fitrouter_integrations.gateway._call import AuthenticatedCall
from fitrouter_integrations.gateway._lists import LISTING
from fitrouter_integrations.gateway.asgi._limits import headers_of
from fitrouter_integrations.gateway.asgi._wire import Problem, dump, readable
from fitrouter_integrations.gateway.console._calls import json_response, tenant_of, unread_part

PER_KEY, ALL = 8, 64
"""Open feeds of a key, and of a worker."""
LIFE_S = 300.0
"""How long a feed lasts; the page opens the next one, which authenticates anew."""
BEAT_S = 15.0
"""Silence after which a comment is sent."""
STEP_S = 1.0
"""Time between two looks at the log."""
WORDS = 120
"""Characters of a prompt that are shown."""
_MOST = 2**63


class _Feed(StreamingResponse):
    """A stream that calls `ended` at its end, also if the client is gone before it begins."""

    def __init__(self, ended: Callable[[], None], *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


class Decisions:
    """Shows the log, and follows it.

    Args:
        router: whose log.
        reads: the warehouse.
        audit: gets a line when kept texts are shown.
        closing: set when the gateway ends, and feeds with it.
    """

    def __init__(self, router: Router, reads: Reads, audit: AuditLog, closing: asyncio.Event) -> None:
        self._router, self._reads, self._audit, self._closing = router, reads, audit, closing
        self._open: Counter[tuple[str, str]] = Counter()

    async def page(self, call: AuthenticatedCall) -> Response:
        """Return a page of decisions."""
        call.require_people(LISTING)
        query, tenant = call.http.query_params, tenant_of(call)
        filters, worst, before = _filters(call), query.get("first") == "regressions", query.get("before")
        until = None if before is None else _number("before", before)
        default = self._router.policy.default
        read = partial(decisions, self._reads, tenant, filters, until, default=default, worst=worst)
        page, roles = await asyncio.gather(
            self._reads.get(("decisions", tenant, tuple(sorted(filters.items())), until, worst), read),
            self._reads.get(("roles", tenant), partial(role_names, self._reads, tenant)),
        )
        names = sorted({card.arm for card in self._router.models.values()})
        rows, unread = page["decisions"], dict[str, str]()
        for part, add in (("identities", self._with_names), ("content", partial(self._with_prompts, call))):
            try:
                rows = await add(rows)
            except StoreError as error:  # the rest is from the warehouse
                unread[part] = unread_part(self._router, call, part, error)
        kept = self._router.people.keeps_contents
        more = {"decisions": rows, "roles": roles, "models": names, "kept": kept, "default": default, "unread": unread}
        return json_response({**page, **more})

    async def feed(self, call: AuthenticatedCall) -> Response:
        """Stream decisions that are new, or have changed, after a position of the log."""
        call.require_people(LISTING)
        query, key = call.http.query_params, (call.caller.name, call.tenant)
        last = headers_of(call.http.scope).get("last-event-id", b"").decode("latin-1")
        after, floor = _number("after", last or query.get("after", "")), _number("floor", query.get("floor", ""))
        if self._open[key] >= PER_KEY or self._open.total() >= ALL:
            text = f"{self._open[key]} feeds are open with this key; close a page of the console"
            raise Problem(429, "too_many_requests", text, headers={"retry-after": "30"})
        self._open[key] += 1  # with the check, before anything is awaited
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        events = self._events(call, _filters(call), after, floor)
        return _Feed(partial(self._ended, key), events, headers=headers, media_type="text/event-stream")

    def _ended(self, key: tuple[str, str]) -> None:
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]

    async def _events(
        self, call: AuthenticatedCall, filters: dict[str, str], after: int, floor: int
    ) -> AsyncIterator[bytes]:
        tenant, default, named = tenant_of(call), self._router.policy.default, tuple(sorted(filters.items()))
        ends, beat = time.monotonic() + LIFE_S, time.monotonic() + BEAT_S
        yield b"retry: 3000\n\n"
        while time.monotonic() < ends and not self._closing.is_set():
            read = partial(decisions, self._reads, tenant, filters, None, default=default, changed=(after, floor))
            key = ("feed", tenant, named, after, floor)
            try:
                found = await self._reads.get(key, partial(self._news, read), old=False)
                rows = await self._with_prompts(call, found["decisions"])
            except StoreError as error:
                yield b"event: unread\ndata: " + dump(readable(str(error), call.http.scope)) + b"\n\n"
                return
            if rows:
                after, beat = found["position"], time.monotonic() + BEAT_S
                yield b"id: %d\ndata: %b\n\n" % (after, found["text"] if rows is found["decisions"] else dump(rows))
            elif time.monotonic() >= beat:
                beat = time.monotonic() + BEAT_S
                yield b": waiting\n\n"
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), STEP_S)

    def _news(self, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Read what all feeds at one position send, and its text. Blocks."""
        found = read()
        rows = self._named(found["decisions"])
        return {**found, "decisions": rows, "text": dump(rows)}

    async def _with_names(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return await read_in_time(self._named, rows)

    def _named(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add the names of the people; None for those that are erased. Blocks."""
        names = self._router.lists.names(sorted({row["user"] for row in rows if row["user"]}))
        return [{**row, "name": names.get(row["user"])} for row in rows]

    async def _with_prompts(self, call: AuthenticatedCall, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add the first words of kept prompts, for callers who ask for them; that has a line in the audit log."""
        if not rows or call.http.query_params.get("prompts") != "1" or not self._router.people.keeps_contents:
            return rows
        kept = await self._router.prompts([row["decision_id"] for row in rows])
        if kept:
            about = {"decisions": str(len(kept)), "first": min(kept), "last": max(kept), "part": "first words"}
            act = Act(ts=self._router.clock(), act="content read", by=call.caller.shown, about=about)
            await asyncio.to_thread(self._audit.note, act)
        shown = {decision: " ".join(text[: 2 * WORDS].split())[:WORDS] for decision, text in kept.items()}
        return [{**row, "prompt": shown.get(row["decision_id"])} for row in rows]


def _filters(call: AuthenticatedCall) -> dict[str, str]:
    query = call.http.query_params
    return {name: value for name in FILTERS if (value := query.get(name)) is not None}


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < _MOST):
        raise Problem(400, "invalid_request", f"{name}: give the number from the page before")
    return int(text)
