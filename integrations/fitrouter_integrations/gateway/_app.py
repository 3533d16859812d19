"""The gateway application: routes, authentication and handlers."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from fitrouter.config import Config
from fitrouter.errors import StoreError
from fitrouter.router import Router
from fitrouter.serving.services import Service
from fitrouter.serving.status import Lag
from fitrouter.types import AUTO
from fitrouter_dashboards.metrics import Metrics
from fitrouter_integrations.client._local import LocalBackend
from fitrouter_integrations.gateway._explain import decision_json
from fitrouter_integrations.gateway._external import observation, outcome
from fitrouter_integrations.gateway._json import read_json
from fitrouter_integrations.gateway._keys import Caller, Keys
from fitrouter_integrations.gateway._limits import headers_of, read_body
from fitrouter_integrations.gateway._requests import chat_request, policy_change, profile, vote, wants_usage
from fitrouter_integrations.gateway._schema import operations
from fitrouter_integrations.gateway._stream import ClientGone, EventStream, while_client_waits
from fitrouter_integrations.gateway._wire import (
    Problem,
    about_json,
    as_problem,
    completion_json,
    decision_headers,
    dump,
)

_log = logging.getLogger("fitrouter.gateway")
_PORT = re.compile(rb":\d*$")
_CHAT = "chat completions are at /v1/chat/completions: "
_INSTEAD = {
    "/responses": _CHAT + "set your client to chat completions, for example use_responses_api=False",
    "/completions": _CHAT + "use your client's chat interface",
    "/chat/completions": _CHAT + "let the base URL end with /v1, and POST",
    "/embeddings": "this gateway serves no embeddings; call their provider directly",
    "/messages": _CHAT + "use a client for OpenAI's API",
}
"""Path of another API → what to use instead."""
_LOOPBACK_NAMES = frozenset({b"127.0.0.1", b"localhost", b"[::1]"})


def create_app(router: Router, config: Config, metrics: Metrics | None = None) -> FastAPI:
    """The ASGI application over a router, which it starts and closes with its own lifespan.

    Raises:
        ConfigError: `config.server` has an address or keys that cannot be used.
    """
    gateway = Gateway(router, config, metrics or Metrics())
    app = FastAPI(
        title="fitrouter",
        summary="An OpenAI-compatible gateway that routes each request to the model that suits its user and task.",
        version=metadata.version("fitrouter"),
        docs_url=None,  # its pages load scripts from other hosts
        redoc_url=None,
        lifespan=gateway.lifespan,
        exception_handlers={HTTPException: gateway.no_route},
    )
    shapes = operations()
    for method, path, handler, public in (
        ("POST", "/v1/chat/completions", gateway.chat, False),
        ("GET", "/v1/models", gateway.models, False),
        ("GET", "/v1/models/{model:path}", gateway.model, False),
        ("POST", "/v1/feedback", gateway.feedback, False),
        ("PUT", "/v1/profile", gateway.profile, False),
        ("POST", "/v1/decisions", gateway.decide, False),
        ("GET", "/v1/decisions/{decision_id}", gateway.decision, False),
        ("POST", "/v1/decisions/{decision_id}/outcome", gateway.outcome, False),
        ("POST", "/v1/observations", gateway.observe, False),
        ("GET", "/v1/policy", gateway.policy, False),
        ("POST", "/v1/policy", gateway.steer, False),
        ("GET", "/metrics", gateway.metrics_page, False),
        ("GET", "/healthz", gateway.healthz, True),
        ("GET", "/readyz", gateway.readyz, True),
    ):
        app.add_api_route(
            path,
            gateway.guarded(handler, public=public),
            methods=[method],
            openapi_extra=shapes[handler.__name__],
            response_class=Response,
            response_model=None,
            name=handler.__name__,
            summary=(handler.__doc__ or "").splitlines()[0],
            description="",
        )
    return app


class Call:
    """An authenticated HTTP request."""

    def __init__(self, http: HttpRequest, headers: Mapping[str, bytes], caller: Caller) -> None:
        self.http, self.headers = http, headers
        self.tenant, self.admin = caller


Handler = Callable[[Call], Awaitable[Response]]


class Gateway:
    """The request handlers and their shared state."""

    def __init__(self, router: Router, config: Config, metrics: Metrics) -> None:
        self.router, self.metrics = router, metrics
        self._limit = config.server.max_body_bytes
        self._keys = Keys(config.server)
        self._started = False
        self._backend = LocalBackend(router)
        self._born = int(time.time())
        metrics.bind(router)

    @asynccontextmanager
    async def lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        """Run the router, and a thread that refreshes its metrics."""
        async with self.router:
            watch = Service("metrics", self._refresh, self.router.hooks, idle_s=0.5)
            watch.start()
            self._started = True
            yield
            self._started = False
            watch.stop(timeout_s=1.0)

    def _refresh(self) -> int:
        self.metrics.refresh()
        return 0

    # --- authentication and errors ---

    def guarded(self, handler: Handler, *, public: bool) -> Callable[[HttpRequest], Awaitable[Response]]:
        """An endpoint that authenticates the caller and answers every exception in OpenAI's error format."""

        async def endpoint(request: HttpRequest) -> Response:
            try:
                headers = headers_of(request.scope)
                return await handler(Call(request, headers, self._admit(headers, public)))
            except asyncio.CancelledError:  # only the server cancels, at the end of its grace period
                return self._refuse(
                    Problem(503, "shutting_down", "the gateway is shutting down", headers={"retry-after": "1"})
                )
            except Exception as error:  # noqa: BLE001 - the client must get an answer
                return self._refuse(error)

        return endpoint

    def _admit(self, headers: Mapping[str, bytes], public: bool) -> Caller:
        """The caller of a request."""
        if not self._keys:
            # DNS rebinding: a page in a browser can point a host name of its own at this machine.
            if _PORT.sub(b"", headers.get("host", b"")).lower() not in _LOOPBACK_NAMES:
                raise Problem(403, "wrong_host", "without keys, the host header must be 127.0.0.1, localhost or [::1]")
            return Caller("default", True)
        caller = self._keys.caller(headers.get("authorization"))
        if caller is None:
            if public:
                return Caller("", False)
            raise Problem(
                401,
                "invalid_api_key",
                "the API key is missing or unknown; send 'Authorization: Bearer KEY' with a key of this gateway",
                headers={"www-authenticate": "Bearer"},
            )
        return caller

    def _refuse(self, error: Exception) -> Response:
        if isinstance(error, ClientGone):
            self.metrics.refused("client_gone")
            return Response(status_code=499)
        problem = as_problem(error)
        if problem.status == 500:
            _log.error("a request failed", exc_info=error)
        self.metrics.refused(problem.code)
        # The rest of a refused body is not read, so the connection cannot be reused.
        closing = {"connection": "close"} if problem.status in {408, 413, 415} else {}
        return _json(problem.body(), problem.status, {**problem.headers, **closing})

    async def no_route(self, request: HttpRequest, error: Exception) -> Response:
        """Answer a request to an unknown path or with a wrong method."""
        status = error.status_code if isinstance(error, HTTPException) else 404
        code, text = ("method_not_allowed", "method") if status == 405 else ("not_found", "path")
        hint = _INSTEAD.get(request.url.path.rstrip("/").removeprefix("/v1"), "see /openapi.json")
        return self._refuse(Problem(status, code, f"there is no such route (wrong {text}); {hint}"))

    async def _body(self, call: Call) -> dict[str, Any]:
        return read_json(await read_body(call.http.receive, call.headers, self._limit))

    # --- handlers ---

    async def chat(self, call: Call) -> Response:
        """Answer a chat completion, whole or streamed, by a routed or pinned model."""
        body = await self._body(call)
        request = chat_request(body, call.headers, call.tenant)
        self._check_model(request.model)
        if request.stream:
            stream = await while_client_waits(self._backend.stream(request), call.http.receive)
            return EventStream(stream, wants_usage(body), self.metrics.refused)
        reply = await while_client_waits(self._backend.complete(request), call.http.receive)
        return _json(completion_json(reply), headers=decision_headers(reply.about))

    async def decide(self, call: Call) -> Response:
        """Plan which models to call, without calling any; the client calls them and reports the outcome."""
        request = chat_request(await self._body(call), call.headers, call.tenant)
        self._check_model(request.model)
        plan = await self._backend.decide(request)
        body = {"object": "fitrouter.plan", **msgspec.to_builtins(plan), "about": about_json(plan.about)}
        return _json(body, headers=decision_headers(plan.about))

    async def outcome(self, call: Call) -> Response:
        """Record the outcome of a plan. It is durable when this answers 200; later reports change nothing."""
        request, ended = outcome(await self._body(call), call.tenant)
        execution = await self.router.report(call.http.path_params["decision_id"], request, ended)
        fields = ("decision_id", "status", "served_by", "cost_usd")
        return _json({"object": "fitrouter.outcome", **{name: getattr(execution, name) for name in fields}})

    async def observe(self, call: Call) -> Response:
        """Record a completion or failure of a model that the client called by its own choice."""
        observed = observation(await self._body(call), call.headers, call.tenant)
        self._check_model(observed.model)
        about = await self._backend.observe(observed)
        return _json({"object": "fitrouter.observation", "about": about_json(about)}, headers=decision_headers(about))

    async def models(self, _call: Call) -> Response:
        """List the names that a request may give as its model: `fitrouter/auto`, models and aliases."""
        return _json({"object": "list", "data": list((await self._models()).values())})

    async def model(self, call: Call) -> Response:
        """Show one model of the list."""
        name = call.http.path_params["model"]
        found = (await self._models()).get(name)
        if found is None:
            raise Problem(404, "model_not_found", f"unknown model {name!r}; GET /v1/models lists them")
        return _json(found)

    async def feedback(self, call: Call) -> Response:
        """Record feedback on an answer. It is durable when this answers 200."""
        given = vote(await self._body(call), call.headers, call.tenant)
        feedback_id = await self._backend.feedback(given)
        return _json({"id": feedback_id, "object": "fitrouter.feedback", "decision_id": given.decision_id})

    async def profile(self, call: Call) -> Response:
        """Set the preferences that a user states, as numbers or in words; replaces earlier ones."""
        values, statements, whose = profile(await self._body(call), call.headers, call.tenant)
        declared = await self.router.declare(whose, values, statements)
        found = {"declared": declared.values, "topics": declared.topics, "not_understood": declared.not_understood}
        return _json({"object": "fitrouter.profile", **found})

    async def decision(self, call: Call) -> Response:
        """Explain a decision: why this model, its probability, the outcome, score and feedback."""
        decision_id = call.http.path_params["decision_id"]
        events = await self.router.events(decision_id, call.tenant)
        return _json(decision_json(events, await self.router.explain(decision_id, call.tenant)))

    async def policy(self, call: Call) -> Response:
        """Show the active policy, its versions and candidates, and the monitors' reports."""
        steering = self.router.policy
        shown = {"object": "fitrouter.policy", **msgspec.to_builtins(steering.standing())}
        return _json({**shown, "outlook": msgspec.to_builtins(steering.outlook(call.tenant))})

    async def steer(self, call: Call) -> Response:
        """Change the policy: set settings, promote a candidate, or restore the previous version."""
        if not call.admin:
            raise Problem(403, "not_admin", "this key may not change the policy; set 'admin: true' for it")
        action, settings, name = policy_change(await self._body(call))
        steering = self.router.policy
        if action == "set":
            await steering.set(settings)
        elif action == "promote":
            await steering.promote(name)
        else:
            await steering.restore()
        return await self.policy(call)

    async def metrics_page(self, _call: Call) -> Response:
        """Prometheus metrics, summed over all workers."""
        try:
            async with asyncio.timeout(5.0):
                text = await asyncio.to_thread(self.metrics.render)
        except (OSError, TimeoutError) as error:
            raise StoreError(f"the metrics cannot be read at the moment ({type(error).__name__})") from error
        return Response(text, headers={"content-type": self.metrics.content_type})

    async def healthz(self, _call: Call) -> Response:
        """Liveness: the process answers."""
        return _json({"status": "ok"})

    async def readyz(self, _call: Call) -> Response:
        """Readiness: whether this worker takes requests, and how far its learner is."""
        seq, digest = await self.router.state_digest()  # no digest while events keep coming in
        status = self.metrics.status
        leases = sorted(name for name, held in status.leases.items() if held) if status else []
        lag = msgspec.to_builtins(status.lag if status else Lag())
        report = {"pid": os.getpid(), "seq": seq, "digest": digest, "leases": leases, "lag": lag}
        return _json({"ready": self._started, **report}, 200 if self._started else 503)

    # --- names ---

    def _check_model(self, name: str) -> None:
        if name != AUTO and name not in self.router.models and name not in self.router.aliases:
            raise Problem(404, "model_not_found", f"unknown model {name!r}; GET /v1/models lists them")

    async def _models(self) -> dict[str, dict[str, Any]]:
        owners = {AUTO: "fitrouter"}
        owners |= {card.name: card.provider for card in self.router.models.values()}
        owners |= dict.fromkeys(self.router.aliases, "fitrouter")
        can = {model.pop("name"): model for model in msgspec.to_builtins(await self._backend.models())}
        return {
            name: {"id": name, "object": "model", "created": self._born, "owned_by": owner}
            | ({"fitrouter": can[name]} if name in can else {})
            for name, owner in owners.items()
        }


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(dump(value), status, headers, media_type="application/json")
