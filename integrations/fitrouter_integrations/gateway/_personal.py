"""Handlers about a person: profile, quiz, scores of any text, leaderboard and fit report.

What was learnt of a person is read with a trusted key, one that speaks for the users of its tenant; a person's own key
gets scores of that person, and a key of an application the population's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from fitrouter.config import Config
from fitrouter.errors import ConfigError, InvalidRequest, NotAuthorized
from fitrouter.router import Router
from fitrouter.types import Identity
from fitrouter_dashboards.quality import saved_in
from fitrouter_evaluators.personal import (
    Filters,
    Leaderboards,
    Profiles,
    Progress,
    PromptAnswers,
    Quizzes,
    Reports,
    Scores,
    page,
    parsed_profile,
)
from fitrouter_evaluators.personal.filters import parsed as filters_of
from fitrouter_integrations.gateway._call import AuthenticatedCall
from fitrouter_integrations.gateway.asgi._wire import Problem, dump
from fitrouter_integrations.gateway.parsing._people import FILTERS, ProfileBody, QuizAnswerBody, QuizBody, ScoreBody
from fitrouter_integrations.gateway.parsing._requests import identity
from fitrouter_integrations.gateway.parsing._typed import typed
from fitrouter_integrations.gateway.parsing._values import check_fields

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
        self._scores = Scores(router)
        self._profiles = Profiles(router)
        self._reports, self._quizzes = Reports(router, config), Quizzes(router, config)
        self._boards = Leaderboards(router, config, self._quizzes.pool)
        self._config = config

    async def score(self, call: AuthenticatedCall) -> Response:
        """Score any texts with a person's reward model, or the population's: ratings, uncertainty, reasons."""
        with self._alone(call, 4):
            body = typed(await self._body(call), ScoreBody)
            who = identity(call.headers, call.tenant, body.user, {"role": body.role})
            items = [PromptAnswers(item.prompt, tuple(item.answers), item.history) for item in body.items]
            if who.role or not call.caller.user:
                _may_read(call, who)
            found = await self._scores.score(who, items, published=not call.trusted)
        return _json("scores", {"user": who.user, "items": [{"answers": msgspec.to_builtins(each)} for each in found]})

    async def leaderboard(self, call: AuthenticatedCall) -> Response:
        """Rank the models for the user or role of the headers, among what fits the query's filters."""
        query = dict(call.http.query_params)
        check_fields(query, FILTERS)
        return await self.ranking(call, filters_of(query))

    async def ranking(self, call: AuthenticatedCall, filters: Filters) -> Response:
        """Rank the models that fit filters for the user or role of the headers."""
        who = identity(call.headers, call.tenant)
        _may_read(call, who)
        with self._alone(call, 4):
            return _json("leaderboard", msgspec.to_builtins(await self._boards.of(who, filters)))

    async def report(self, call: AuthenticatedCall) -> Response:
        """The fit report of the user or role of the headers; as an HTML page where `accept` prefers it."""
        who = identity(call.headers, call.tenant)
        _may_read(call, who)
        with self._alone(call, 4):
            found = await self._reports.of(who)
            costs = await asyncio.to_thread(saved_in, self.router.warehouse, self.router.policy.default, who.tenant)
        found = msgspec.structs.replace(found, saved=tuple(costs))
        if b"text/html" in call.headers.get("accept", b""):
            return Response(page(found), media_type="text/html", headers={"x-content-type-options": "nosniff"})
        return _json("report", msgspec.to_builtins(found))

    async def profile(self, call: AuthenticatedCall) -> Response:
        """Set what a user states: preferences, goals, priorities, examples, or a whole exported profile."""
        body = typed(await self._body(call), ProfileBody)
        who = identity(call.headers, call.tenant, body.user, {"role": body.role})
        stated = (body.values, body.statements, body.goals, body.priorities, body.examples)
        if body.profile is not UNSET:
            if any(each is not None for each in stated):
                raise InvalidRequest("profile: an exported profile replaces everything; leave the other fields out")
            declared = await self._profiles.import_profile(who, parsed_profile(body.profile))
        else:
            alone = body.goals is None and body.priorities is None and body.examples is None
            declared = await self._profiles.declare(
                identity=who,
                values=body.values if body.values is not None or not alone else {},
                words=body.statements if body.statements is not None or not alone else [],
                goals=body.goals,
                priorities=body.priorities,
                examples=body.examples or [],
            )
        found = {"declared": declared.values, "topics": declared.topics, "not_understood": declared.not_understood}
        found |= {"reasons": declared.reasons, "moved": declared.moved}
        return _json("profile", found)

    async def start_quiz(self, call: AuthenticatedCall) -> Response:
        """Start a quiz that finds out which model and style fit a user, or go on with an unfinished one."""
        body = typed(await self._body(call), QuizBody)
        who = identity(call.headers, call.tenant, body.user, {"role": body.role})
        settings = self._config.quiz
        if body.questions is not None:
            settings = settings.model_copy(update={"questions": min(body.questions, settings.questions)})
        try:
            return _quiz(await self._quizzes.start(who, settings, again=bool(body.again)))
        except ConfigError as error:
            raise Problem(404, "no_quiz", str(error)) from error

    async def quiz(self, call: AuthenticatedCall) -> Response:
        """Show the question of a quiz that is due, or its result."""
        who = identity(call.headers, call.tenant)
        return _quiz(await self._quizzes.show(call.http.path_params["quiz_id"], who))

    async def answer_quiz(self, call: AuthenticatedCall) -> Response:
        """Answer a question of a quiz; shows the next one or the result. Take the last answer back, or stop."""
        body = typed(await self._body(call), QuizAnswerBody)
        who = identity(call.headers, call.tenant, body.user)
        return _quiz(await self._quizzes.answer(call.http.path_params["quiz_id"], who, body.question, body.choice))

    async def show_profile(self, call: AuthenticatedCall) -> Response:
        """The portable profile of the user of the headers."""
        who = identity(call.headers, call.tenant)
        _may_read(call, who)
        return _json("profile", msgspec.to_builtins(await self._profiles.show(who)))

    async def erase_profile(self, call: AuthenticatedCall) -> Response:
        """Erase the user of the headers and all that was logged of them; what was learnt is rebuilt without them."""
        who = identity(call.headers, call.tenant)
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


def _quiz(progress: Progress) -> Response:
    return _json("quiz", msgspec.to_builtins(progress))


def _json(kind: str, found: dict[str, Any]) -> Response:
    return Response(dump({"object": f"fitrouter.{kind}", **found}), media_type="application/json")
