"""The view *Try*: requests from the page, and comparisons of a person's own answers that do not show their models."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import chain
from typing import Any

from starlette.responses import Response

from fitrouter.errors import InvalidRequest, StoreError
from fitrouter.identity import decision_id_of
from fitrouter.router import Router
from fitrouter.stores.audit_log import Act, AuditLog
from fitrouter.types import Execution, FeedbackKind, Identity
from fitrouter_dashboards.console import Reads
from fitrouter_dashboards.console.pairs import alike, answers, telling
from fitrouter_integrations.gateway._call import AuthenticatedCall
from fitrouter_integrations.gateway._explain import content_json
from fitrouter_integrations.gateway.asgi._limits import headers_of
from fitrouter_integrations.gateway.console._calls import Handler, body_of, json_response, unread_part
from fitrouter_integrations.gateway.console._sessions import Sessions

_VALUES = {1: 1.0, 2: 0.0, 0: 0.5}
"""Choice → value of the pair of the answers that were shown first and second."""


class Tries:
    """Sends requests, and asks which of two answers is better.

    Args:
        router: which answers.
        reads: the warehouse.
        audit: gets a line when kept texts are shown.
        sessions: protect what is sent.
        chat: handler of `POST /v1/chat/completions`.
    """

    def __init__(self, router: Router, reads: Reads, audit: AuditLog, sessions: Sessions, chat: Handler) -> None:
        self._router, self._reads, self._audit, self._sessions, self._chat = router, reads, audit, sessions, chat

    async def send(self, call: AuthenticatedCall) -> Response:
        """Answer a chat completion, like any other request of the key."""
        self._sessions.check(headers_of(call.http.scope))
        return await self._chat(call)

    async def pairs(self, call: AuthenticatedCall) -> Response:
        """Return pairs of a person's own answers of which a choice tells most, with their kept texts."""
        call.require_people("compare what was answered")
        shown: dict[str, Any] = {"kept": self._router.people.keeps_contents, "pairs": [], "unread": {}}
        user = call.http.query_params.get("user")
        if user and shown["kept"]:
            try:
                shown["pairs"] = await self._pairs(call, Identity(tenant=call.tenant, user=user))
            except StoreError as error:  # requests can be sent all the same
                shown["unread"]["content"] = unread_part(self._router, call, "content", error)
        return json_response(shown)

    async def _pairs(self, call: AuthenticatedCall, identity: Identity) -> list[dict[str, Any]]:
        who = await self._router.people.recall(identity)
        found, compared = await self._reads.get(("pairs", who), partial(answers, self._reads, who))
        prompts = await self._router.prompts([each.decision for each in found])
        told = list[dict[str, Any]]()
        pairs = alike(found, prompts, compared)
        events = {one: await self._router.events(one, call.tenant) for one in dict.fromkeys(chain(*pairs))}
        predict = self._router.people.apart
        apart = await asyncio.to_thread(
            lambda: {(one, other): predict((one, other), events[one] + events[other]) for one, other in pairs}
        )
        for pair in telling(apart):
            kept = [await self._router.content(each, call.tenant) for each in pair]
            texts = [content_json(each) for each in kept if each is not None]
            if len(texts) == len(pair) and all(each["answer"] for each in texts):
                shown = [
                    {"decision_id": each, "answer": text["answer"]} for each, text in zip(pair, texts, strict=True)
                ]
                told.append({"prompt": texts[0]["prompt"], "answers": shown})
        if told:
            about = {
                "pairs": str(len(told)),
                "first": told[0]["answers"][0]["decision_id"],
                "user": str(who.user),
                "part": "compared",
            }
            act = Act(ts=self._router.clock(), act="content read", by=call.caller.shown, about=about)
            await asyncio.to_thread(self._audit.note, act)
        return told

    async def choose(self, call: AuthenticatedCall) -> Response:
        """Log which of two answers is better, with that which was shown first; says which models they are of."""
        self._sessions.check(headers_of(call.http.scope))
        call.require_people("compare what was answered")
        body = await body_of(call)
        choice = body.get("choice")
        if isinstance(choice, bool) or choice not in _VALUES:
            raise InvalidRequest("choice: give 1 or 2 for the answer that is better, 0 for neither")
        first, second = (decision_id_of(str(body.get(name))) for name in ("first", "second"))
        given = await self._router.feedback(
            first, FeedbackKind.PAIR, _VALUES[choice], other=second, identity=Identity(tenant=call.tenant), first=first
        )
        self._reads.forget()
        models = [await self._model(each, call.tenant) for each in (first, second)]
        return json_response({"id": given, "models": models})

    async def _model(self, decision: str, tenant: str) -> str:
        events = await self._router.events(decision, tenant)
        return next((each.served_by for each in events if isinstance(each, Execution) and each.served_by), "")
