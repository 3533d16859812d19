"""The gateway's application in the process of a command, on the configured data.

Nobody is asked for a key: whoever may read the data folder is its operator, who sees all tenants. The stores are made
for several processes, so that a gateway may be running beside it, and follows what is changed. Nothing is scored or
learnt, and nothing is written that was not asked for, unless the router is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp

from fitrouter.config import Config
from fitrouter.providers import Simulated
from fitrouter.router import Router
from fitrouter.stores.audit_log import by_command
from fitrouter.stores.journal import SqliteJournal
from fitrouter.types import Identity
from fitrouter_integrations.gateway import create_app
from fitrouter_integrations.gateway._keys import Caller

_SCORED_S = 5.0
"""How long a command waits at its end until the answers are scored."""


class Application:
    """The application of a router, which answers the requests of a command."""

    def __init__(self, router: Router, app: ASGIApp, runner: asyncio.Runner) -> None:
        self._router, self._app, self._runner = router, app, runner

    def apply_configuration(self) -> None:
        """Log that the configuration has changed, if it has: what is set then counts from there."""
        self._runner.run(self._router.policy.apply_configuration())

    def answer(self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Answer a request with status and body."""
        return self._runner.run(_ask(self._app, _scope(method, path, query, headers), body))


@contextmanager
def open_application(config: Config, tenant: str | None, *, started: bool, fresh: bool) -> Iterator[Application]:
    """Open the application; arguments as of `commands._gateway.connect`."""
    whose = tenant or Identity().tenant
    operator = Caller(whose, True, True, True, name=by_command(), operator=True, everybody=tenant is None)
    with contextlib.ExitStack() as stack:
        if fresh and not config.database and not config.journal_file().is_file():
            config = config.model_copy(update={"data": Path(stack.enter_context(tempfile.TemporaryDirectory()))})
            SqliteJournal(config.journal_file()).close()
        runner = stack.enter_context(asyncio.Runner())
        router = stack.enter_context(_started(config, runner) if started else Router.offline(config))
        yield Application(router, create_app(router, config, operator=operator), runner)


@contextmanager
def _started(config: Config, runner: asyncio.Runner) -> Iterator[Router]:
    """A router that runs, and calls no model."""
    router = Router.from_config(config, providers={name: Simulated({}) for name in config.providers})
    try:
        runner.run(router.start())
        yield router
        runner.run(_until_scored(router))
    finally:
        runner.run(router.aclose())


async def _until_scored(router: Router) -> None:
    """Wait for a limited time until answers are scored and votes folded; a gateway does what is left."""
    for _ in range(int(_SCORED_S / 0.05)):
        if not (await asyncio.to_thread(router.status)).lag.scorer_answers:
            break
        await asyncio.sleep(0.05)
    await router.settled()


def _scope(method: str, path: str, query: str, headers: Mapping[str, str]) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
        "state": {},
    }


async def _ask(app: Any, scope: dict[str, Any], body: bytes) -> tuple[int, bytes]:
    """Send a request to an application; returns status and body of its answer."""
    parts, found = [{"type": "http.request", "body": body, "more_body": False}], dict[str, Any](content=b"")

    async def receive() -> dict[str, Any]:
        return parts.pop() if parts else await asyncio.Future()  # the client stays connected

    async def send(message: dict[str, Any]) -> None:
        found["status"] = message.get("status", found.get("status"))
        found["content"] += message.get("body", b"")

    await app(scope, receive, send)
    return found["status"], found["content"]
