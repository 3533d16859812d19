"""Handlers of the personal benchmark: scores of any text, leaderboard and fit report.

What was learnt of a person is read with a trusted key only, one that speaks for the users of its tenant; a key of an
application gets the population's scores.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from starlette.responses import Response

from fitrouter.config import Config
from fitrouter.errors import InvalidRequest, NotAuthorized
from fitrouter.router import Router
from fitrouter.serving.feedback import Declared
from fitrouter.types import Identity
from fitrouter_evaluators.personal import Leaderboards, Profile, Profiles, Reports, Scores, page
from fitrouter_integrations.gateway._call import AuthenticatedCall
from fitrouter_integrations.gateway.asgi._wire import dump
from fitrouter_integrations.gateway.parsing._requests import DeclaredProfile, quiz_owner, score_items

PATIENCE_S = 20.0
"""How long the answer to an erasure waits for other processes."""


class Personal:
    """Handlers over a router.

    Args:
        router: of the gateway.
        config: locates recorded answers.
        body: reads the JSON body of a call.
        alone: refuses a call beside too many of its tenant.
    """

    def __init__(
        self,
        router: Router,
        config: Config,
        body: Callable[[Any], Awaitable[dict[str, Any]]],
        alone: Callable[[AuthenticatedCall, int], AbstractContextManager[None]],
    ) -> None:
        self.router, self._body, self._alone = router, body, alone
        self._scores, self._boards = Scores(router), Leaderboards(router)
        self._profiles = Profiles(router)
        self._reports = Reports(router, config)

    async def score(self, call: AuthenticatedCall) -> Response:
        """Score any texts with a person's reward model, or the population's: ratings, uncertainty, reasons."""
        with self._alone(call, 4):
            items, who = score_items(await self._body(call), call.headers, call.tenant)
            _may_read(call, who)
            found = await self._scores.score(who, items, published=not call.trusted)
        return _json("scores", {"items": [{"answers": msgspec.to_builtins(answers)} for answers in found]})

    async def leaderboard(self, call: AuthenticatedCall) -> Response:
        """Rank the models for the user or role of the headers, beside the population's ranking."""
        who = quiz_owner(call.headers, call.tenant)
        _may_read(call, who)
        return _json("leaderboard", msgspec.to_builtins(await self._boards.of(who)))

    async def report(self, call: AuthenticatedCall) -> Response:
        """The fit report of the user or role of the headers; as an HTML page where `accept` prefers it."""
        who = quiz_owner(call.headers, call.tenant)
        _may_read(call, who)
        found = await self._reports.of(who)
        if b"text/html" in call.headers.get("accept", b""):
            return Response(page(found), media_type="text/html", headers={"x-content-type-options": "nosniff"})
        return _json("report", msgspec.to_builtins(found))

    async def take_profile(self, who: Identity, profile: Profile) -> Declared:
        """Import a profile."""
        return await self._profiles.import_profile(who, profile)

    async def declare(self, said: DeclaredProfile) -> Declared:
        """Declare what a user states."""
        return await self._profiles.declare(**said._asdict())

    async def show_profile(self, call: AuthenticatedCall) -> Response:
        """The portable profile of the user of the headers."""
        who = quiz_owner(call.headers, call.tenant)
        _may_read(call, who)
        return _json("profile", msgspec.to_builtins(await self._profiles.show(who)))

    async def erase_profile(self, call: AuthenticatedCall) -> Response:
        """Erase the user of the headers and all that was logged of them; what was learnt is rebuilt without them."""
        who = quiz_owner(call.headers, call.tenant)
        if not who.user:
            raise InvalidRequest("user: missing; name the user to erase in the header x-fitrouter-user")
        if not call.trusted:
            raise NotAuthorized(
                "this key may not erase people; use one with 'trusted: true', which speaks for the users of its tenant"
            )
        found = await self.router.erase(call.tenant, who.user, PATIENCE_S, by=call.caller.shown)
        return _json("erasure", msgspec.to_builtins(found))


def _may_read(call: AuthenticatedCall, who: Identity) -> None:
    """Check that the caller may read what was learnt of a person.

    Raises:
        NotAuthorized: the key does not speak for the users of its tenant.
    """
    if who.user or who.role:
        call.require_people("read what was learnt of people (without user and role it gets the population's scores)")


def _json(kind: str, found: dict[str, Any]) -> Response:
    return Response(dump({"object": f"fitrouter.{kind}", **found}), media_type="application/json")
