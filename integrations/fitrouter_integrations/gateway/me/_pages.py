"""A person's own page: quiz, fit report and profile under `/me`, for whoever has a session of that person.

A session begins with a one-time link, which `POST /v1/links` makes, with a key of that person's own, or with one that
speaks for the users of its tenant and a name. The link's token stands in the fragment of its address, which no server,
proxy or referrer sees, and is redeemed by a POST after a click, so that previews and scanners, which follow links, do
not use it up. What a session asks for goes the way of the routes of `/v1`, as the call of a trusted key that names this
person and nobody else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import get_args

import msgspec
from starlette.responses import Response

from fitrouter.errors import InvalidRequest
from fitrouter.router import Router
from fitrouter.routing.explanation_text import FEATURES
from fitrouter.serving.recorder import read_in_time
from fitrouter.stores.audit_log import Act, AuditLog
from fitrouter.types import Identity
from fitrouter_dashboards import me
from fitrouter_evaluators.personal import Filters
from fitrouter_evaluators.personal.filters import examples
from fitrouter_evaluators.personal.report import Like, PersonalGain
from fitrouter_integrations.gateway._call import AuthenticatedCall
from fitrouter_integrations.gateway._keys import ANYBODY, Caller, Keys
from fitrouter_integrations.gateway._personal import Personal
from fitrouter_integrations.gateway.asgi._limits import headers_of
from fitrouter_integrations.gateway.asgi._wire import Problem, dump
from fitrouter_integrations.gateway.console._calls import body_of, file_response, is_secure, json_response
from fitrouter_integrations.gateway.console._sessions import Place, Sessions, check_origin
from fitrouter_integrations.gateway.me._links import VALID_S, Link, Links, Withdrawn
from fitrouter_integrations.gateway.parsing._people import LinkBody, Section, ShareBody, Shown
from fitrouter_integrations.gateway.parsing._requests import identity
from fitrouter_integrations.gateway.parsing._typed import typed

_log = logging.getLogger("fitrouter.gateway")
ME = Place("fitrouter_me", "/me", int(VALID_S // 3600))
_NO_QUIZ = "There is no quiz here yet. Ask whoever runs this router to set one up: its log says how."
_ENDED = "open your page with a link that has not been used yet; whoever runs this gateway makes one"


class _Session(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a session's cookie holds."""

    tenant: str
    subject: str
    role: str = ""
    link: str = ""
    """Digest of the link that began it; empty for a key."""
    key: str = ""
    own: str = ""
    """The one user that the key speaks for."""


class _Row(msgspec.Struct, frozen=True):
    model: str
    rating: float
    low: float
    high: float
    lead_low: float | None
    lead_high: float | None
    best: float
    basis: str = ""


class _Board(msgspec.Struct, frozen=True):
    models: tuple[_Row, ...]
    labels: int
    left_out: dict[str, str] = {}
    tasks: int = 0
    prompts: int = 0
    searched: int = 0


class _Report(msgspec.Struct, frozen=True):
    """What can be shared of a report: nothing that this does not name."""

    board: _Board
    likes: tuple[Like, ...]
    worth: PersonalGain | None


def _own(name: str) -> Callable[[Me, AuthenticatedCall], Awaitable[Response]]:
    """Return a handler that calls one of `_personal.Personal`'s for the person of the session."""

    async def handler(self: Me, call: AuthenticatedCall) -> Response:
        found: Response = await getattr(self._personal, name)(await self._as_person(call))
        found.headers["cache-control"] = "no-store"
        return found

    return handler


class Me:
    """The handlers of a person's own page.

    Args:
        router: knows the people.
        personal: handlers that the page's requests go to.
        keys: of the gateway.
        audit: gets a line when a link is made or withdrawn.
        data: folder of the links and of the secret of sessions.
    """

    def __init__(self, router: Router, personal: Personal, keys: Keys, audit: AuditLog, data: Path) -> None:
        self._router, self._personal, self._keys = router, personal, keys
        self._audit, self._links, self._sessions = audit, Links(data), Sessions(data, ME)
        self._sharing = asyncio.Lock()
        """Of shared reports one is made at a time: whoever has a link keeps no tenant's people from theirs."""

    # --- the page ---

    async def page(self, _call: AuthenticatedCall) -> Response:
        """Serve the page."""
        return file_response(me, "me.html", {})

    async def asset(self, call: AuthenticatedCall) -> Response:
        """Serve a file of the page."""
        return file_response(me, call.http.path_params["name"], headers_of(call.http.scope))

    async def to_quiz(self, _call: AuthenticatedCall) -> Response:
        """Lead to the page's quiz; relative, for prefixes of proxies."""
        return Response(status_code=307, headers={"location": "me#/quiz"})

    # --- links ---

    async def link(self, call: AuthenticatedCall) -> Response:
        """Make a one-time link to a person's own page, or one that shows sections of a person's or role's report."""
        call.require_people("make a link to somebody's page")
        body = typed(await body_of(call), LinkBody)
        who = identity(call.headers, call.tenant, body.user, {"role": body.role})
        if body.sections is not None:
            return await self._share(call, who, body.sections, body)
        if not who.user:
            raise InvalidRequest("user: missing; give the user whose page the link opens")
        known = await self._router.people.identify(who)
        now = self._router.clock()
        await self._note(call, "link create")
        token = await asyncio.to_thread(self._links.make, who.tenant, known.user or "", who.role or "", now)
        return _json("link", Link(url=_url(call, "me", token), expires=now + VALID_S))

    async def unlink(self, call: AuthenticatedCall) -> Response:
        """Withdraw all links and shares of the user or role of the headers, and end the sessions that links began."""
        call.require_people("withdraw links to somebody's page")
        who = identity(call.headers, call.tenant)
        if not who.user and not who.role:
            raise InvalidRequest("user: missing; name the user in the header x-fitrouter-user, or a role in its own")
        known = await self._router.people.recall(who)
        await self._note(call, "link withdraw")
        ended = await asyncio.to_thread(self._links.withdraw, who.tenant, known.user or _of_role(who))
        return _json("link", Withdrawn(links=ended))

    async def _note(self, call: AuthenticatedCall, act: str) -> None:
        entry = Act(ts=self._router.clock(), act=act, by=call.caller.shown, about={"tenant": call.tenant})
        await asyncio.to_thread(self._audit.note, entry)

    # --- shares ---

    async def share(self, call: AuthenticatedCall) -> Response:
        """Make a link to chosen sections of the session's person's report."""
        person = await self._as_person(call)
        body = typed(await body_of(call), ShareBody)
        return await self._share(person, identity(person.headers, person.tenant), body.sections, body)

    async def _share(self, call: AuthenticatedCall, who: Identity, chosen: Sequence[str], body: Shown) -> Response:
        """Make a link to sections of a report; a ranking with filters, and a role's report, must be there already."""
        filters = body.filters()
        if filters != Filters() and "ranking" not in chosen:
            raise InvalidRequest("sections: filters are of the ranking; choose it, or leave them out")
        if not who.user and not who.role:
            raise InvalidRequest("user: missing; give the user or role whose report the link shows")
        known = await self._router.people.identify(who)
        if filters != Filters() or not who.user:  # a role of five people, and models and prompts that fit
            await self._personal.ranking(self._acting(call, who.tenant, who.user or "", who.role or ""), filters)
        now, sections = self._router.clock(), [each for each in get_args(Section) if each in chosen]
        await self._note(call, "share create")
        about = who.tenant, known.user or _of_role(who), who.role or "", sections, now + body.days * 86_400.0, now
        token, made = await asyncio.to_thread(self._links.share, *about, filters)
        return _json("share", Link(url=_url(call, "shared", token), expires=made.expires))

    async def shares(self, call: AuthenticatedCall) -> Response:
        """List what the session's person shares."""
        seen, _ = await self._person(call)
        found = await asyncio.to_thread(self._links.shares, seen.tenant, seen.subject, self._router.clock())
        return json_response({"shares": msgspec.to_builtins(found)})

    async def unshare(self, call: AuthenticatedCall) -> Response:
        """End a share of the session's person."""
        person = await self._as_person(call)
        seen, _ = await self._person(call)
        await self._note(person, "share withdraw")
        named = call.http.path_params["share_id"]
        if not await asyncio.to_thread(self._links.withdraw, seen.tenant, seen.subject, named):
            raise Problem(404, "not_found", "you share nothing under this id any more")
        return json_response({})

    async def shared(self, call: AuthenticatedCall) -> Response:
        """Show what is shared to whoever has the link's token: the sections that were chosen, and never a prompt."""
        check_origin(headers_of(call.http.scope))
        token = (await body_of(call)).get("token")
        given = token if isinstance(token, str) else ""
        found = await asyncio.to_thread(self._links.shared, given, self._router.clock())
        gone = Problem(401, "no_session", "nothing is shared under this link, or no longer")
        if found is None:
            raise gone
        who, shown = found
        of_role = who.subject == _of_role(Identity(role=who.role))
        names = {} if of_role else await read_in_time(self._router.lists.names, [who.subject])
        if not of_role and who.subject not in names:
            raise gone
        acting = self._acting(call, who.tenant, names.get(who.subject, ""), who.role)
        parts: dict[str, object] = {"name": names.get(who.subject, who.role)}
        async with self._sharing:
            try:
                if {"tastes", "worth"}.intersection(shown.sections):
                    report = msgspec.json.decode((await self._personal.report(acting)).body, type=_Report)
                    parts |= {"ranking": report.board, "tastes": report.likes, "worth": report.worth}
                if "ranking" in shown.sections and ("ranking" not in parts or shown.filters != Filters()):
                    ranking = (await self._personal.ranking(acting, shown.filters)).body
                    parts["ranking"] = msgspec.json.decode(ranking, type=_Board)
                elif of_role:  # is still one of five people
                    await self._personal.ranking(acting, shown.filters)
            except InvalidRequest:  # a role of too few people by now, or nothing that fits
                raise gone from None
        chosen = {name: parts[name] for name in shown.sections}
        about: dict[str, object] = {"expires": shown.expires}
        about |= {"filters": said} if (said := shown.filters.said()) else {}
        about |= {"role": True} if of_role else {}
        return json_response({**about, **msgspec.to_builtins(chosen)})

    # --- sessions ---

    async def session(self, call: AuthenticatedCall) -> Response:
        """Return whose page it is, and the CSRF token; without a session, how one can begin."""
        try:
            _, who = await self._person(call)
        except Problem as problem:
            if problem.status != 401:
                raise
            return json_response({"user": None, "keys": bool(self._keys)})
        shown: dict[str, object] = {"user": who.user, "role": who.role, "keys": bool(self._keys), "features": FEATURES}
        shown["domains"] = list(examples())
        return json_response({**shown, "csrf": self._sessions.token(headers_of(call.http.scope))})

    async def redeem(self, call: AuthenticatedCall) -> Response:
        """Begin a session with a link's token, which is used up."""
        check_origin(headers_of(call.http.scope))
        token = (await body_of(call)).get("token")
        if not isinstance(token, str) or not token:
            raise Problem(400, "invalid_request", "token: give the part of the link after '#'")
        found = await asyncio.to_thread(self._links.redeem, token, self._router.clock())
        if found is None:
            raise Problem(401, "no_session", f"this link is unknown, used or expired; {_ENDED}")
        opened = _Session(tenant=found.tenant, subject=found.subject, role=found.role, link=found.digest)
        return self._begun(call, opened)

    async def enter(self, call: AuthenticatedCall) -> Response:
        """Begin a session with a user's own key, or with a name and one that speaks for all; without keys by name."""
        check_origin(headers_of(call.http.scope))
        body = await body_of(call)
        key, user = (body.get(name) or "" for name in ("key", "user"))
        if not isinstance(key, str) or not isinstance(user, str):
            raise Problem(400, "invalid_request", "give 'user', and a 'key' where this gateway has keys, both text")
        caller, user = self._speaker(key.strip()), user.strip()
        if caller is None:
            raise Problem(401, "invalid_api_key", "this key is unknown here, or does not speak for users; use a link")
        if not (user or caller.user):
            raise Problem(400, "invalid_request", "user: missing; this key speaks for several users, so name one")
        if user and caller.user and user != caller.user:
            raise Problem(403, "not_authorized", "this key opens the page of its own user only; leave the name empty")
        who = identity({}, caller.tenant, caller.user or user)
        known = await self._router.people.identify(who)
        return self._begun(
            call, _Session(tenant=caller.tenant, subject=known.user or "", key=key.strip(), own=caller.user)
        )

    async def leave(self, call: AuthenticatedCall) -> Response:
        """End the session; a link's cannot be taken up again."""
        check_origin(headers_of(call.http.scope))
        seen = self._seen(call)
        if seen is not None and seen.link:
            await asyncio.to_thread(self._links.end, seen.link)
        return json_response({}, {"set-cookie": self._sessions.cookie("", secure=False)})

    def _begun(self, call: AuthenticatedCall, opened: _Session) -> Response:
        sealed = msgspec.json.encode(opened).decode()
        return json_response({}, {"set-cookie": self._sessions.cookie(sealed, is_secure(call))})

    def _speaker(self, key: str) -> Caller | None:
        """The caller of a key that speaks for one user, or for all of its tenant; None for another key."""
        caller = self._keys.caller(b"Bearer " + key.encode()) if self._keys else ANYBODY
        return caller if caller is not None and (caller.trusted or caller.admin or caller.user) else None

    def _seen(self, call: AuthenticatedCall) -> _Session | None:
        try:
            return msgspec.json.decode(self._sessions.key(headers_of(call.http.scope)), type=_Session)
        except msgspec.DecodeError:
            return None

    async def _person(self, call: AuthenticatedCall) -> tuple[_Session, Identity]:
        """Return the session of a request, and the person whom it names.

        Raises:
            Problem: there is no session, or it is over: its link or key was withdrawn, or the person was erased.
        """
        seen = self._seen(call)
        if seen is None:
            raise Problem(401, "no_session", _ENDED)
        if seen.link:
            lasts = await asyncio.to_thread(self._links.lasts, seen.link, self._router.clock())
        else:
            speaker = self._speaker(seen.key)
            lasts = speaker is not None and speaker.tenant == seen.tenant and speaker.user == seen.own
        names = await read_in_time(self._router.lists.names, [seen.subject])
        if not lasts or seen.subject not in names:
            raise Problem(401, "no_session", f"this session is over; {_ENDED}")
        return seen, Identity(tenant=seen.tenant, user=names[seen.subject], role=seen.role or None)

    async def _as_person(self, call: AuthenticatedCall) -> AuthenticatedCall:
        """Return the call of a trusted key that names the session's person, in headers that win over any body."""
        seen, who = await self._person(call)
        headers = headers_of(call.http.scope)
        if call.http.method != "GET":
            self._sessions.check({name: value for name, value in headers.items() if name != "authorization"})
        return self._acting(call, seen.tenant, who.user or "", who.role or "")

    def _acting(self, call: AuthenticatedCall, tenant: str, user: str, role: str) -> AuthenticatedCall:
        headers = headers_of(call.http.scope)
        named = {
            name: value for name, value in headers.items() if name != "accept" and not name.startswith("x-fitrouter-")
        }
        if user:
            named["x-fitrouter-user"] = user.encode()
        if role:
            named["x-fitrouter-role"] = role.encode()
        return call.acting(named, Caller(tenant, admin=False, metrics=False, trusted=True, name="own page"))

    async def start_quiz(self, call: AuthenticatedCall) -> Response:
        """Start a quiz, or go on with an unfinished one; why none can begin is told to the operator, in the log."""
        try:
            return await _own("start_quiz")(self, call)
        except Problem as problem:
            if problem.code != "no_quiz":
                raise
            _log.warning("no quiz can begin at /me: %s", problem.message)
            raise Problem(404, "no_quiz", _NO_QUIZ) from problem

    quiz, answer_quiz = _own("quiz"), _own("answer_quiz")
    report, show_profile, profile = _own("report"), _own("show_profile"), _own("profile")
    erase_profile = _own("erase_profile")


def _of_role(who: Identity) -> str:
    """What the links of a role stand under; subjects of people have no colon."""
    return f"role:{who.role}"


def _url(call: AuthenticatedCall, page: str, token: str) -> str:
    base = call.http.base_url.replace(scheme="https" if is_secure(call) else "http")
    return f"{str(base).rstrip('/')}/{page}#{token}"


def _json(kind: str, found: msgspec.Struct) -> Response:
    body = {"object": f"fitrouter.{kind}", **msgspec.to_builtins(found)}
    return Response(dump(body), media_type="application/json", headers={"cache-control": "no-store"})
