"""Request ids, and the access log: one line a request, without content, names of users, or query strings."""

from __future__ import annotations

import logging
import re
import secrets
import sys
import time
from typing import Literal, TypeAlias

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fitrouter.errors import masked
from fitrouter.providers import tracing
from fitrouter_integrations.gateway._logging import unblocked

Form: TypeAlias = Literal["text", "json"]
REQUEST_ID = "fitrouter.request_id"
"""Key of the scope."""
_GIVEN = re.compile(rb"[\w.:-]{1,64}\Z", re.ASCII)
_LONGEST_PATH = 200
_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
_FAILED = 500
_log = logging.getLogger("fitrouter.access")


class AccessLog:
    """ASGI middleware that names every request, as `x-request-id`, and writes a line when its answer has ended.

    Args:
        app: the application.
        form: of the lines, which go to standard output; None for none.
    """

    def __init__(self, app: ASGIApp, form: Form | None = None) -> None:
        self.app = app
        self.form: Form | None = form
        if form is None:
            return
        _log.setLevel(logging.INFO)
        _log.propagate = False
        if not _log.handlers:
            handler = logging.StreamHandler(unblocked(sys.stdout))
            handler.setFormatter(logging.Formatter("%(message)s"))
            _log.addHandler(handler)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        named = given if _GIVEN.match(given) else b"req-" + secrets.token_hex(12).encode()
        scope[REQUEST_ID] = named.decode()
        begun, line = time.monotonic(), _Line(scope)
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        span = tracing.start(method, kind="server", carrier=scope["headers"], http__request__method=method)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"x-request-id", named)]}
                line.begin(message)
            else:
                line.sent += len(message.get("body", b""))
            await send(message)

        try:
            with span.current():
                await self.app(scope, receive, sending)
        finally:
            route = getattr(scope.get("route"), "path", None)
            span.name(f"{method} {route}" if route else method)
            span.note(http__route=route, http__response__status_code=line.status or None)
            span.note(fitrouter__request__id=line.request_id, fitrouter__decision__id=line.decision or None)
            span.end("client_gone" if not line.status else str(line.status) if line.status >= _FAILED else "")
            if self.form is not None:
                _log.info(line.written(self.form, 1000.0 * (time.monotonic() - begun)))


class _Line:
    """Fields of a request's line in the access log."""

    def __init__(self, scope: Scope) -> None:
        path = masked(scope["path"])
        self.method, self.request_id = scope["method"], scope[REQUEST_ID]
        self.path = path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}…"
        self.status, self.sent = 0, 0
        self.decision = self.model = ""

    def begin(self, message: Message) -> None:
        self.status = message["status"]
        found = dict(message["headers"])
        self.decision = found.get(b"x-fitrouter-decision", b"").decode("latin-1")
        self.model = found.get(b"x-fitrouter-model", b"").decode("latin-1")

    def written(self, form: Form, ms: float) -> str:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        found = {
            "time": now,
            "method": self.method,
            "path": self.path,
            "status": self.status,  # 0: the client was gone before the answer began
            "ms": round(ms, 1),
            "bytes": self.sent,
            "request": self.request_id,
        }
        found |= {name: value for name, value in (("decision", self.decision), ("model", self.model)) if value}
        if form == "json":
            return msgspec.json.encode(found).decode()
        path = ascii(self.path)[1:-1]  # a path may hold line breaks
        named = "".join(f" {name}={found[name]}" for name in ("request", "decision", "model") if name in found)
        return f"{now} {self.method} {path} {self.status} {found['ms']} ms {self.sent} B{named}"
