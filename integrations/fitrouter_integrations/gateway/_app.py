"""The gateway application: routes, authentication and handlers."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from fitrouter.assemble import one_tenants_share
from fitrouter.config import Config, ServerConfig
from fitrouter.context.features import estimate_tokens
from fitrouter.errors import InvalidRequest, StoreError, where
from fitrouter.identity import decision_id_of
from fitrouter.router import Router
from fitrouter.serving.status import Lag, behind
from fitrouter.state.settings import check_settings
from fitrouter.stores.audit_log import Act, AuditLog
from fitrouter.stores.keys import FILE
from fitrouter.types import AUTO, Identity
from fitrouter_dashboards.metrics import CONTENT_TYPES, Metrics
from fitrouter_integrations.client._local import LocalBackend
from fitrouter_integrations.gateway._call import NOBODY, AuthenticatedCall
from fitrouter_integrations.gateway._keys import ANYBODY, Caller, Keys, Rates
from fitrouter_integrations.gateway.asgi._access import REQUEST_ID, AccessLog
from fitrouter_integrations.gateway.asgi._admission import Admission, Limit
from fitrouter_integrations.gateway.asgi._bodies import Bodies, BodyMemory, Refusal, json_body
from fitrouter_integrations.gateway.asgi._cors import Cors
from fitrouter_integrations.gateway.asgi._direct import Direct, Endpoint
from fitrouter_integrations.gateway.asgi._limits import authorization, headers_of, is_own
from fitrouter_integrations.gateway.asgi._stream import ClientGone, EventStream, begun, while_client_waits
from fitrouter_integrations.gateway.asgi._wire import (
    HIDES,
    Problem,
    about_json,
    as_problem,
    decision_headers,
    dump,
    embeddings_json,
    readable,
)
from fitrouter_integrations.gateway.console import CONSOLE_ROUTES, confined
from fitrouter_integrations.gateway.dialects._base import Dialect
from fitrouter_integrations.gateway.dialects._chat import ChatCompletions
from fitrouter_integrations.gateway.me import ME_ROUTES
from fitrouter_integrations.gateway.parsing._external import observation, outcome
from fitrouter_integrations.gateway.parsing._requests import (
    chat_request,
    embeddings_request,
    feedback,
    policy_change,
    run_outcome,
)
from fitrouter_integrations.gateway.parsing._values import shown

if TYPE_CHECKING:
    from fitrouter_integrations.gateway._lists import Listings
    from fitrouter_integrations.gateway._models import ModelAdministration
    from fitrouter_integrations.gateway._personal import Personal
    from fitrouter_integrations.gateway._whole_log import WholeLog
    from fitrouter_integrations.gateway.console._routes import Console
    from fitrouter_integrations.gateway.console._sessions import Sessions
    from fitrouter_integrations.gateway.me._pages import Me

_log = logging.getLogger("fitrouter.gateway")
_PORT = re.compile(rb":\d*$")
_CHAT = "chat completions are at /v1/chat/completions: "
_INSTEAD = {
    "/completions": _CHAT + "use your client's chat interface",
    "/chat/completions": _CHAT + "let the base URL end with /v1, and POST",
}
"""Path of another API → what to use instead."""
_OF_PAGES = (
    *(
        ("POST", f"/v1/{path}")
        for path in ("chat/completions", "messages", "messages/count_tokens", "responses", "responses/input_tokens")
    ),
    *(("POST", "/v1/embeddings"), ("POST", "/v1/feedback"), ("GET", "/v1/models")),
)
"""Routes that pages of the origins in `server.cors` may use."""
_ROUTED = frozenset({"/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/embeddings", "/v1/plans"})
"""Paths of requests that a model answers, or plans them."""
_PARTS = {
    "administration": "_models",
    "console": "console._routes",
    "lists": "_lists",
    "me": "me._pages",
    "personal": "_personal",
    "whole_log": "_whole_log",
}
"""Attribute of the gateway that is made when it is first asked → its module: most workers are never asked for most."""
_LOOPBACK_NAMES = frozenset({b"127.0.0.1", b"localhost", b"[::1]"})
_EXTENSION = "chrome-extension://jdaccebcjfjpdnccleeijhhegepbigkj"
"""Origin of `integrations/browser`, of the `key` in its manifest: without keys its requests are no other site's."""


class PublicRoute(NamedTuple):
    """A route of the published schema."""

    method: str
    path: str
    handler: str
    """Attribute of the gateway; with a dot, of one of its `_PARTS`."""
    scope: str | None
    """That a key needs; empty for any key, None for no key."""
    own: bool = False
    """Whether a person's own key needs no scope: what it reads is that person's."""


ROUTES = tuple(
    PublicRoute(*each)
    for each in (
        ("POST", "/v1/chat/completions", "chat", "chat"),
        ("POST", "/v1/messages", "messages", "chat"),
        ("POST", "/v1/messages/count_tokens", "count_tokens", "chat"),
        ("POST", "/v1/responses", "responses", "chat"),
        ("POST", "/v1/responses/input_tokens", "input_tokens", "chat"),
        ("POST", "/v1/embeddings", "embeddings", "chat"),
        ("GET", "/v1/models", "models", ""),
        ("POST", "/v1/models", "administration.add_model", ""),
        ("GET", "/v1/models/{model:path}", "model", ""),
        ("DELETE", "/v1/models/{model:path}", "administration.remove_model", ""),
        ("POST", "/v1/feedback", "feedback", "feedback"),
        ("POST", "/v1/runs/{run_id}/outcome", "run_outcome", "feedback"),
        ("GET", "/v1/runs/{run_id}", "lists.run", "read"),
        ("PUT", "/v1/profile", "personal.profile", "feedback"),
        ("GET", "/v1/profile", "personal.show_profile", "read"),
        ("DELETE", "/v1/profile", "personal.erase_profile", "feedback"),
        ("POST", "/v1/quiz", "personal.start_quiz", "feedback"),
        ("GET", "/v1/quiz/{quiz_id}", "personal.quiz", "feedback"),
        ("POST", "/v1/quiz/{quiz_id}", "personal.answer_quiz", "feedback"),
        ("POST", "/v1/links", "me.link", "feedback"),
        ("DELETE", "/v1/links", "me.unlink", "feedback"),
        ("POST", "/v1/score", "personal.score", "read", True),
        ("GET", "/v1/leaderboard", "personal.leaderboard", "read"),
        ("GET", "/v1/report", "personal.report", "read"),
        ("GET", "/v1/certificate", "whole_log.certificate", "read"),
        ("GET", "/v1/suite", "whole_log.suite", "read"),
        ("GET", "/v1/satisfaction", "whole_log.satisfaction", "read"),
        ("GET", "/v1/exposure", "whole_log.exposure", "read"),
        ("GET", "/v1/audit", "whole_log.audit", "read"),
        ("POST", "/v1/diagnose", "whole_log.diagnose", "read"),
        ("POST", "/v1/plans", "decide", "chat"),
        ("GET", "/v1/decisions/{decision_id}", "lists.decision", "read"),
        ("GET", "/v1/decisions", "lists.list_decisions", "read"),
        ("GET", "/v1/feedback", "lists.list_feedback", "read"),
        ("GET", "/v1/users", "lists.list_users", "read"),
        ("POST", "/v1/plans/{decision_id}/outcome", "outcome", "chat"),
        ("POST", "/v1/observations", "observe", "chat"),
        ("GET", "/v1/policy", "policy", "read"),
        ("POST", "/v1/policy", "steer", ""),
        ("GET", "/metrics", "metrics_page", ""),
        ("GET", "/openapi.json", "schema", ""),
        ("GET", "/healthz", "healthz", None),
        ("GET", "/readyz", "readyz", None),
    )
)
"""Those of the published schema, in its order."""


def create_app(
    router: Router, config: Config, metrics: Metrics | None = None, operator: Caller | None = None
) -> Starlette:
    """Create the ASGI application over a router, which it starts and closes with its own lifespan.

    Args:
        router: answers.
        config: settings.
        metrics: to report to.
        operator: who sends every request, for use in this process; keys are then neither read nor asked for.

    Raises:
        ConfigError: `config.server` has an address or keys that cannot be used.
    """
    gateway = Gateway(router, config, metrics or Metrics(), operator)
    endpoints = {
        (each.method, each.path): gateway.guarded(gateway.handler(each.handler), each.scope, own=each.own)
        for each in ROUTES
    }
    direct = {key: endpoint for key, endpoint in endpoints.items() if "{" not in key[1]}
    limit = Limit(config.server.max_requests, one_tenants_share(config))
    app = Starlette(
        routes=[_only(method, path, endpoint) for (method, path), endpoint in endpoints.items()],
        middleware=[
            Middleware(AccessLog, form=config.server.access_log),
            *([Middleware(Cors, origins=config.server.cors, routes=_OF_PAGES)] if config.server.cors else []),
            Middleware(Admission, limit=limit, tenant=gateway.tenant, refused=gateway.turned_away),
            Middleware(Direct, endpoints=direct),
        ],
        exception_handlers={HTTPException: gateway.no_route},
        lifespan=gateway.lifespan,
    )
    app.state.closing = gateway.closing
    others = gateway.guarded(gateway.decisions_of_openai, "chat")
    app.router.routes.append(Route("/v1/decisions", others, methods=["POST"]))
    for method, path, name, scope in CONSOLE_ROUTES:
        endpoint = gateway.guarded(gateway.handler(f"console.{name}"), scope, gateway.session_headers)
        app.router.routes.append(Route(path, confined(endpoint), methods=[method]))
    for method, path, name in ME_ROUTES:
        endpoint = gateway.guarded(gateway.handler(f"me.{name}"), None)
        app.router.routes.append(Route(path, confined(endpoint), methods=[method]))
    return app


def _only(method: str, path: str, endpoint: Endpoint) -> Route:
    """Create a route that answers one method alone: a GET without the HEAD that Starlette adds."""
    route = Route(path, endpoint)
    route.methods = {method}
    return route


Handler = Callable[[AuthenticatedCall], Awaitable[Response]]


class Gateway:
    """The request handlers and their shared state."""

    def __init__(self, router: Router, config: Config, metrics: Metrics, operator: Caller | None = None) -> None:
        self.router, self.metrics, self._config, self._operator = router, metrics, config, operator
        self._limit = config.server.max_body_bytes
        self._origins = frozenset(origin.encode() for origin in (*config.server.cors, _EXTENSION))
        keyed = (config.server, config.data / FILE) if operator is None else (ServerConfig(), None)
        self._keys, self._rates = Keys(keyed[0], file=keyed[1], report=router.hooks.trouble), Rates()
        total = config.server.max_inflight_bytes
        self._audit = AuditLog(config.data)
        self.closing = asyncio.Event()
        """Set when the server ends, before it waits for requests: what lasts as long as a client wants ends then."""
        self._bodies = Bodies(total, total // 2 if self._keys else total)
        self._started, self._schema = False, b""
        self._making_schema: asyncio.Task[None] | None = None
        self._backend = LocalBackend(router, signed=True)
        self._born = int(time.time())
        metrics.bind(router)

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        """Run the router, and a thread that refreshes its metrics."""
        async with self.router:
            with self.metrics.watching():
                self._started = True
                yield
                self._started = False
                if "console" in vars(self):
                    self.console.close()

    # --- parts, each made when it is first asked ---

    @cached_property
    def whole_log(self) -> WholeLog:
        """The handlers that read the whole log."""
        from fitrouter_integrations.gateway._whole_log import WholeLog

        return WholeLog(self._config, self._body)

    @cached_property
    def personal(self) -> Personal:
        """The handlers of profiles, quizzes, scores and reports of people."""
        from fitrouter_integrations.gateway._personal import Personal

        return Personal(self.router, self._config, self._body, self.whole_log.alone)

    @cached_property
    def lists(self) -> Listings:
        """The handlers that list what was logged."""
        from fitrouter_integrations.gateway._lists import Listings

        return Listings(self.router)

    @cached_property
    def administration(self) -> ModelAdministration:
        """The handlers that add and remove models."""
        from fitrouter_integrations.gateway._models import ModelAdministration

        return ModelAdministration(self.router, self._config.server.additions, self._audit, self._body)

    @cached_property
    def console(self) -> Console:
        """The handlers of the console."""
        from fitrouter_integrations.gateway.console._routes import Console

        shared = (self.chat, self.steer, self.administration, self._keys, self.sessions, self._audit, self.closing)
        return Console(self.router, self._config, self.metrics, *shared)

    @cached_property
    def me(self) -> Me:
        """The handlers of a person's own page."""
        from fitrouter_integrations.gateway.me._pages import Me

        return Me(self.router, self.personal, self._keys, self._audit, self._config.data)

    @cached_property
    def sessions(self) -> Sessions:
        """The sessions of the console."""
        from fitrouter_integrations.gateway.console._sessions import Sessions

        return Sessions(self._config.data)

    def session_headers(self, request: HttpRequest) -> Mapping[str, bytes]:
        """Return the headers of a request, with the session's key in place of a missing `Authorization`."""
        headers = headers_of(request.scope)
        if "authorization" not in headers and (key := self.sessions.key(headers)):
            return {**headers, "authorization": b"Bearer " + key.encode()}
        return headers

    def handler(self, name: str) -> Handler:
        """Return the handler of a route; that of a part makes the part when it is first called."""
        part, dot, _ = name.partition(".")
        read = attrgetter(name)
        if not dot:
            found: Handler = read(self)
            return found

        async def handler(call: AuthenticatedCall) -> Response:
            await self._make(part)
            found: Handler = read(self)
            return await found(call)

        return handler

    async def _make(self, part: str) -> None:
        """Make a part on the event loop, once; another thread imports it, so that other requests go on."""
        if part not in vars(self):
            await asyncio.to_thread(import_module, f"fitrouter_integrations.gateway.{_PARTS[part]}")
            getattr(self, part)

    # --- authentication and errors ---

    def guarded(
        self,
        handler: Handler,
        scope: str | None,
        headers: Callable[[HttpRequest], Mapping[str, bytes]] = lambda request: headers_of(request.scope),
        own: bool = False,
    ) -> Endpoint:
        """Wrap a handler: authenticate the caller, and answer every exception in the error format of its API.

        Args:
            handler: of the route.
            scope: that a key needs; empty for any key, None for no key.
            headers: reads the headers of a request, for another way to authenticate than by its own.
            own: whether a person's own key needs no scope.
        """

        async def endpoint(request: HttpRequest) -> Response:
            held: BodyMemory | None = None
            try:
                found = headers(request)
                call = AuthenticatedCall(request, found, self._admit(found, scope, own=own), self._bodies)
                if not call.admin:
                    request.scope[HIDES] = self._addresses
                held = call.held
                response = await handler(call)
            except asyncio.CancelledError:  # only the server cancels, at the end of its grace period
                return self._refuse(
                    Problem(
                        503,
                        "shutting_down",
                        "the gateway is shutting down; send it again",
                        headers={"retry-after": "1"},
                    ),
                    request.scope,
                )
            except Exception as error:  # noqa: BLE001 - the client must get an answer
                return self._refuse(error, request.scope)
            else:
                if isinstance(response, EventStream):
                    held = None  # the stream releases it at its end
                return response
            finally:
                if held is not None:
                    held.release()

        return endpoint

    def _addresses(self) -> dict[str, str]:
        """Addresses that callers need not know → what to say instead: the providers', and the database's."""
        urls = (self._config.database, self._config.identities_database)
        return self.router.addresses() | {host: "the database" for url in urls if (host := urlsplit(url).hostname)}

    def tenant(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Return the tenant of a request; None if its key is unknown."""
        caller = self._keys.caller(authorization(headers.get(b"authorization"), headers.get(b"x-api-key")))
        return None if caller is None else caller.tenant

    def turned_away(self, code: str, tenant: str, path: str) -> None:
        """Count a request that the admission refused."""
        self.metrics.refused(code)
        if code == "overloaded" and path in _ROUTED:
            self.router.refuse(Identity(tenant=tenant), code)

    def _admit(self, headers: Mapping[str, bytes], scope: str | None, *, own: bool = False) -> Caller:
        """Authenticate the caller of a request to a route that needs a scope."""
        if self._operator is not None:
            return self._operator
        if not self._keys:
            # DNS rebinding: a page in a browser can point a host name of its own at this machine.
            if _PORT.sub(b"", headers.get("host", b"")).lower() not in _LOOPBACK_NAMES:
                given = shown(headers.get("host", b"").decode("latin-1"))
                text = (
                    f"host: got {given}; without keys it must be 127.0.0.1, localhost or [::1]; `fitrouter keys create`"
                )
                raise Problem(403, "wrong_host", f"{text} makes keys")
            origin = headers.get("origin")
            if origin is not None and not is_own(origin, headers) and origin not in self._origins:
                given = shown(origin.decode("latin-1"))
                text = f"origin: got {given}, the page of another site; allow it by `server.cors`"
                raise Problem(403, "foreign_origin", f"{text}, or `fitrouter keys create` makes keys")
            return ANYBODY
        caller = self._keys.caller(headers.get("authorization"))
        if caller is None:
            if scope is None:
                return NOBODY
            raise Problem(
                401,
                "invalid_api_key",
                "the API key is missing or unknown; send 'Authorization: Bearer KEY' or 'x-api-key: KEY' with a "
                "key of this gateway",
                headers={"www-authenticate": "Bearer"},
            )
        if scope and scope not in caller.scopes and not (own and caller.user):
            has = ", ".join(sorted(caller.scopes)) or "none"
            raise Problem(
                403, "missing_scope", f"this needs a key with the scope {scope!r}; the key's scopes are {has}"
            )
        if scope is not None and (wait_s := self._rates.take(caller)):
            used = f"the key {caller.name!r} has used its requests, {caller.requests_per_minute:g} a minute"
            text = f"{used}; wait {math.ceil(wait_s)} s"
            raise Problem(429, "rate_limited", text, headers={"retry-after": str(math.ceil(wait_s))})
        return caller

    def _refuse(self, error: Exception, scope: Scope) -> Response:
        if isinstance(error, ClientGone):
            self.metrics.refused("client_gone")
            return Response(status_code=499)
        problem = as_problem(error, scope)
        if problem.status == 500:
            _log.error("a request failed: %s\n%s", scope.get(REQUEST_ID, ""), where(error))
        elif scope["path"] == "/v1/feedback" and self._operator is None:
            _log.warning("feedback was refused: %s %s (%s)", problem.status, problem.code, scope.get(REQUEST_ID, ""))
        self.metrics.refused(problem.code)
        closing = {"connection": "close"} if problem.status == 408 else {}
        headers = {**problem.headers, **closing}
        return Refusal(dump(problem.body(scope["path"])), problem.status, headers, media_type="application/json")

    async def no_route(self, request: HttpRequest, error: Exception) -> Response:
        """Answer a request to an unknown path or with a wrong method."""
        status = error.status_code if isinstance(error, HTTPException) else 404
        code, text = ("method_not_allowed", "method") if status == 405 else ("not_found", "path")
        given = f"{request.method} {shown(request.url.path)}"
        hint = _INSTEAD.get(request.url.path.rstrip("/").removeprefix("/v1"), "see /openapi.json")
        return self._refuse(Problem(status, code, f"there is no {given} (wrong {text}); {hint}"), request.scope)

    async def _body(self, call: AuthenticatedCall) -> dict[str, Any]:
        return await json_body(call.http.receive, call.headers, self._limit, call.held)

    # --- handlers ---

    async def chat(self, call: AuthenticatedCall) -> Response:
        """Answer a chat completion, whole or streamed, by a routed or pinned model."""
        return await self._answer(call, ChatCompletions())

    async def messages(self, call: AuthenticatedCall) -> Response:
        """Answer a request in Anthropic's format, whole or streamed."""
        from fitrouter_integrations.gateway.dialects._anthropic import Messages

        return await self._answer(call, Messages())

    async def responses(self, call: AuthenticatedCall) -> Response:
        """Answer a request in the format of OpenAI's Responses API, whole or streamed. Nothing is stored."""
        from fitrouter_integrations.gateway.dialects._responses import Responses

        return await self._answer(call, Responses())

    async def embeddings(self, call: AuthenticatedCall) -> Response:
        """Embed texts with a model that is configured for it. Nothing is routed or learnt."""
        request = call.paying(embeddings_request(await self._body(call), call.headers, call.tenant))
        if request.model not in self.router.embeddings:
            known = ", ".join(self.router.embeddings) or "none: list some under 'embeddings' in the configuration"
            raise Problem(404, "model_not_found", f"unknown model {request.model!r}; for embeddings there are {known}")
        embedded, about = await while_client_waits(self._backend.embed(request), call.http.receive)
        return Response(
            embeddings_json(embedded, about), headers=decision_headers(about), media_type="application/json"
        )

    async def _answer(self, call: AuthenticatedCall, dialect: Dialect) -> Response:
        body = await self._body(call)
        request = call.paying(chat_request(dialect.chat_body(body), call.headers, call.tenant, dialect.choices))
        self._check_model(request.model)
        self._rates.charge(call.caller, request.n - 1)
        dropped = tuple(dialect.dropped)
        if request.stream:
            stream = await begun(self._backend.stream(request), call.http.receive)
            return EventStream(stream, dialect.events(body), self.metrics.refused, call.held.release, dropped)
        reply = await while_client_waits(self._backend.complete(request), call.http.receive)
        if dropped:
            about = msgspec.structs.replace(reply.about, dropped=(*dropped, *reply.about.dropped))
            reply = msgspec.structs.replace(reply, about=about)
        return _json(dialect.answer(reply, body), headers=decision_headers(reply.about))

    async def count_tokens(self, call: AuthenticatedCall) -> Response:
        """Estimate the input tokens of a request in Anthropic's format, without calling a model."""
        from fitrouter_integrations.gateway.dialects._anthropic import Messages, input_tokens

        body = await self._body(call)
        chat_request(Messages().chat_body(body), call.headers, call.tenant)
        return _json({"input_tokens": input_tokens(body)})

    async def input_tokens(self, call: AuthenticatedCall) -> Response:
        """Estimate the input tokens of a request in the format of OpenAI's Responses API, without calling a model."""
        from fitrouter_integrations.gateway.dialects._responses import Responses

        request = chat_request(Responses().chat_body(await self._body(call)), call.headers, call.tenant)
        n = estimate_tokens(request.messages, request.params)
        return _json({"object": "response.input_tokens", "input_tokens": n})

    async def decide(self, call: AuthenticatedCall) -> Response:
        """Plan which models to call, without calling any; the client calls them and reports the outcome.

        With `kind: look` the plan is to be looked at: a request with the header `x-fitrouter-plan` runs it.
        """
        body = await self._body(call)
        if (kind := body.pop("kind", "call")) not in ("call", "look"):
            raise InvalidRequest(f"kind: got {shown(kind)}; allowed are 'call' and 'look'")
        request = call.paying(chat_request(body, call.headers, call.tenant, look=kind == "look"))
        self._check_model(request.model)
        plan = await (self._backend.look if kind == "look" else self._backend.decide)(request)
        found = {"object": "fitrouter.plan", **msgspec.to_builtins(plan), "about": about_json(plan.about)}
        return _json(found, headers=decision_headers(plan.about))

    async def decisions_of_openai(self, call: AuthenticatedCall) -> Response:
        """Refuse a request of OpenAI's Decisions API, which is at the same path as the list of decisions."""
        if "questions" in await self._body(call):
            text = "OpenAI's Decisions API (typed questions with probabilities) is not implemented here"
            raise Problem(501, "not_implemented", f"{text}; ask in a chat completion with a response_format")
        text = "there is no POST '/v1/decisions' without questions (wrong method); plans are made by POST /v1/plans"
        raise Problem(405, "method_not_allowed", text)

    async def outcome(self, call: AuthenticatedCall) -> Response:
        """Record the outcome of a plan. It is durable when this answers 200; later reports change nothing."""
        request, ended = outcome(await self._body(call), call.tenant)
        decision_id = decision_id_of(call.http.path_params["decision_id"])
        execution = await self.router.report(decision_id, request, ended, trusted=call.trusted)
        found = {name: getattr(execution, name) for name in ("decision_id", "status", "served_by")}
        money = {"cost_usd": execution.known_usd, "unpriced": execution.cost_assumed}
        return _json({"object": "fitrouter.outcome", **found, **money})

    async def observe(self, call: AuthenticatedCall) -> Response:
        """Record a completion or failure of a model that the client called by its own choice."""
        observed = observation(await self._body(call), call.headers, call.tenant)
        observed = msgspec.structs.replace(observed, request=call.owning(observed.request))
        self._check_model(observed.model)
        about = await self._backend.observe(observed, trusted=call.trusted)
        return _json({"object": "fitrouter.observation", "about": about_json(about)}, headers=decision_headers(about))

    async def models(self, _call: AuthenticatedCall) -> Response:
        """List the names that a request may give as its model: `fitrouter/auto`, models, variants, efforts, aliases."""
        return _json({"object": "list", "data": list((await self._models()).values())})

    async def model(self, call: AuthenticatedCall) -> Response:
        """Show one model of the list."""
        name = call.http.path_params["model"]
        found = (await self._models()).get(name)
        if found is None:
            raise Problem(404, "model_not_found", f"unknown model {name!r}; GET /v1/models lists them")
        return _json(found)

    async def feedback(self, call: AuthenticatedCall) -> Response:
        """Record a vote or a comment on an answer, or both. It is durable when this answers 200."""
        given, said = feedback(await self._body(call), call.headers, call.tenant)
        about = given or said
        assert about is not None
        found: dict[str, Any] = {"object": "fitrouter.feedback", "decision_id": about.decision_id}
        trusted = self._proved(call, about.token, about.decision_id)
        if given is not None and given.other:
            trusted = self._proved(call, given.other_token, given.other, "other_token") and trusted
        if given is not None:
            found["id"] = await self._backend.feedback(given, trusted=trusted, vouched=call.vouches)
        if said is not None:
            heard = await self._backend.comment(said, trusted=trusted)
            found |= {"understood": heard.moved, "not_understood": heard.not_understood, "remark_id": heard.id}
            found["reasons"] = heard.reasons
        return _json(found)

    async def run_outcome(self, call: AuthenticatedCall) -> Response:
        """Record how a run of an agent ended. It is durable when this answers 200; a later report supersedes it."""
        body = await self._body(call)
        given = run_outcome(body, call.headers, call.tenant, call.http.path_params["run_id"])
        if self._config.feedback.require_token and not call.sees_people:
            text = "an answer's token proves nothing of a run; report its outcome with a key that has 'trusted: true'"
            raise Problem(403, "token_required", text)
        if call.vouches and given.key not in ("", call.vouches):
            call.require_people("report on runs of another key")
        found = await self._backend.outcome(given, trusted=call.sees_people, vouched=call.vouches)
        return _json({"object": "fitrouter.run_outcome", **msgspec.to_builtins(found)})

    def _proved(self, call: AuthenticatedCall, token: str | None, decision_id: str, field: str = "token") -> bool:
        """Whether the caller may rate an answer without naming its user: it has its token, or a trusted key."""
        if token is not None:
            self.router.tokens.check(token, decision_id, call.tenant)
            return True
        if self._config.feedback.require_token and not call.admin:
            text = f"{field}: missing; give the token of the answer: its 'fitrouter.token', or header x-fitrouter-token"
            raise Problem(403, "token_required", text, param=field)
        return call.trusted

    async def policy(self, call: AuthenticatedCall) -> Response:
        """Show the active policy, its versions and candidates, and the monitors' reports."""
        steering = self.router.policy
        standing = steering.standing(None if call.admin else call.tenant)
        shown = {"object": "fitrouter.policy", **msgspec.to_builtins(standing)}
        return _json({**shown, "outlook": msgspec.to_builtins(steering.outlook(call.tenant))})

    async def steer(self, call: AuthenticatedCall) -> Response:
        """Change the policy: set settings, promote a candidate, restore the previous version, or change a budget."""
        call.require_admin("change the policy")
        action, settings, name = policy_change(await self._body(call))
        if action == "set":
            settings = check_settings(settings)
        about = {key: str(value) for key, value in settings.items()} | (
            {"tenant" if action == "budget" else "candidate": name} if name else {}
        )
        entry = Act(ts=self.router.clock(), act=f"policy {action}", by=call.caller.shown, about=about)
        await asyncio.to_thread(self._audit.note, entry)
        steering = self.router.policy
        if action == "set":
            await steering.set(settings)
        elif action == "promote":
            await steering.promote(name)
        elif action == "budget":
            await steering.set_budget(name, settings["usd_per_period"])
        else:
            await steering.restore()
        return await self.policy(call)

    async def metrics_page(self, call: AuthenticatedCall) -> Response:
        """Prometheus metrics of all tenants, summed over all workers."""
        if not call.metrics:
            raise Problem(403, "not_admin", "this key may not read the metrics; set 'metrics: true' for it")
        exemplars = b"application/openmetrics-text" in call.headers.get("accept", b"")
        try:
            async with asyncio.timeout(5.0):
                text = await asyncio.to_thread(self.metrics.render, exemplars=exemplars)
        except (OSError, TimeoutError) as error:
            raise StoreError(f"the metrics cannot be read at the moment ({type(error).__name__})") from error
        return Response(text, headers={"content-type": CONTENT_TYPES[exemplars]})

    async def schema(self, _call: AuthenticatedCall) -> Response:
        """The OpenAPI schema of this gateway."""
        if not self._schema:  # made once, also if a caller hangs up: Python's own parser fails in several threads
            if self._making_schema is None or self._making_schema.done():
                self._making_schema = asyncio.create_task(self._make_schema())
            await asyncio.shield(self._making_schema)
        return Response(self._schema, media_type="application/json")

    async def _make_schema(self) -> None:
        for part in _PARTS:
            await self._make(part)
        self._schema = dump(await asyncio.to_thread(self.document))

    def document(self) -> dict[str, Any]:
        """Return the OpenAPI schema of the routes."""
        from fitrouter_integrations.gateway.parsing._schema import document

        return document((each.method, each.path, attrgetter(each.handler)(self)) for each in ROUTES)

    async def healthz(self, _call: AuthenticatedCall) -> Response:
        """Liveness: the process answers, and of which installation it is; `behind` names parts that fail."""
        return _json(
            {"status": "ok", "installation": self.router.tokens.installation, "behind": sorted(self._behind())}
        )

    def _behind(self) -> dict[str, str]:
        return behind(status, time.time()) if (status := self.metrics.status) else {}

    async def readyz(self, call: AuthenticatedCall) -> Response:
        """Readiness: whether this worker takes requests (200), and whether users are served (`status`, `?strict`).

        Callers with a key also get the reasons, how far the learner is, and which parts are `behind`: users are served
        without these, so that they change the status from ok to degraded, but no code.
        """
        service, incidents = self.router.service(None if call.admin else call.tenant), self.router.incidents()
        ready, strict = self._started, call.http.query_params.get("strict", "0") not in {"0", "false"}
        code = 200 if ready and not (strict and service.status != "ok") else 503
        late = self._behind()
        told = {"ready": ready, "status": "degraded" if late and service.status == "ok" else service.status}
        if not call.known:
            return _json(told, code)
        seq, digest = await self.router.state_digest()  # no digest if an event comes in meanwhile
        status = self.metrics.status
        leases = sorted(name for name, held in status.leases.items() if held) if status else []
        lag = msgspec.to_builtins(status.lag if status else Lag())
        breakers = dict(status.breakers) if status else {}
        pids = {"pid": os.getpid(), "services": status.services if status else None}
        report = {**pids, "seq": seq, "digest": digest, "leases": leases, "lag": lag, "breakers": breakers}
        incidents |= {"keys": self._keys.fault} if self._keys.fault else {}
        report |= {"reasons": dict(service.reasons), "behind": late, "incidents": incidents}
        return _json({**told, **readable(report, call.http.scope)}, code)

    # --- names ---

    def _check_model(self, name: str) -> None:
        self.router.registry.current()
        if name != AUTO and name not in self.router.models and name not in self.router.aliases:
            raise Problem(404, "model_not_found", f"unknown model {name!r}; GET /v1/models lists them")

    async def _models(self) -> dict[str, dict[str, Any]]:
        self.router.registry.current()
        owners = {AUTO: "fitrouter"}
        owners |= {name: card.provider for name, card in self.router.models.items()}
        owners |= {card.name: card.provider for card in self.router.embeddings.values()}
        owners |= dict.fromkeys(self.router.aliases, "fitrouter")
        can = {model.pop("name"): model for model in msgspec.to_builtins(await self._backend.models())}
        return {
            name: {"id": name, "object": "model", "created": self._born, "owned_by": owner}
            | ({"fitrouter": can[name]} if name in can else {})
            for name, owner in owners.items()
        }


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(dump(value), status, headers, media_type="application/json")
