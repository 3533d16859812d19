"""The gateway that a command asks: a running one, or the same application in this process on the configured data.

In this process nobody is asked for a key: whoever may read the data folder is its operator, who sees all tenants. The
stores are made for several processes, so that a gateway may be running beside it, and follows what is changed. Nothing
is scored or learnt, and nothing is written that was not asked for, unless the router is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlencode

import msgspec
import typer

from fitrouter.config import Config, load_config
from fitrouter.errors import InvalidRequest, UnknownDecision
from fitrouter.providers import Simulated
from fitrouter.router import Router
from fitrouter.stores.audit_log import by_command
from fitrouter.stores.journal import SqliteJournal, in_use
from fitrouter.types import Identity
from fitrouter_integrations._http import NoGateway, answered, call, headers_for, url_of

T = TypeVar("T")

Url = Annotated[str | None, typer.Option(help="Ask this running gateway, such as http://127.0.0.1:8484.")]
Tenant = Annotated[str | None, typer.Option(help="Tenant, of the configured data; with --url it is the key's.")]
LONG_S = 600.0
"""Time limit of what reads the whole log."""
_PATIENCE_S = 60.0
_SCORED_S = 5.0
"""How long a command waits at its end until the answers are scored."""


class _Here(NamedTuple):
    router: Router
    app: Any
    runner: asyncio.Runner


class Gateway:
    """A client of the HTTP interface.

    Args:
        address: of a running gateway; in this process, of the journal.
        here: the application, in this process instead.
    """

    def __init__(self, address: str, here: _Here | None = None) -> None:
        self.address, self._here = address, here

    @property
    def running(self) -> bool:
        """Whether it is a gateway of its own, not this process."""
        return self._here is None

    def configure(self) -> None:
        """Log that the configuration has changed, if it has: in this process, what is set then counts from there."""
        if self._here is not None:
            self._here.runner.run(self._here.router.policy.apply_configuration())

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        user: str | None = None,
        role: str | None = None,
        timeout_s: float = _PATIENCE_S,
        **query: object,
    ) -> Any:
        """Send a request and return its JSON answer; arguments and errors as of `_http.call`, with the query's."""
        given = urlencode({name: value for name, value in query.items() if value is not None})
        who = {"user": user, "role": role}
        if self._here is None:
            whole = f"{path}?{given}" if given else path
            return call(method, self.address, whole, body, identity=who, timeout_s=timeout_s)
        sent = b"" if body is None else msgspec.json.encode(body)
        request = _scope(method, path, given, headers_for(who, body))
        status, content = self._here.runner.run(_ask(self._here.app, request, sent))
        return answered(status, content, self.address)

    def entries(self, path: str, kind: type[T], **about: Any) -> list[T]:
        """Get the entries of a list."""
        found: list[T] = msgspec.convert(self.call("GET", path, **about)["data"], list[kind])  # type: ignore[valid-type]
        return found


@contextmanager
def connect(
    config: Path,
    url: str | None = None,
    *,
    tenant: str | None = None,
    running: bool = False,
    started: bool = False,
    fresh: bool = False,
    **settings: Any,
) -> Iterator[Gateway]:
    """Connect to the gateway at a URL; without one, open the configured data in this process.

    Args:
        config: the configuration file.
        url: of a running gateway.
        tenant: whose data; None for all tenants' lists, and for `default` in what concerns one tenant.
        running: prefer the gateway that runs at the configured address, for changes that have effect at once.
        started: start the router in this process: votes are scored and learnt from, as a gateway would do.
        fresh: show what a first start would have, where there is no journal yet.
        settings: sections of the configuration that replace those of the file.

    Raises:
        ConfigError: the configuration is invalid, or there is no journal yet.
        InvalidRequest: a tenant beside a URL.
        StoreError: a store cannot be read now, for example since another process holds it.
    """
    if url is not None:
        if tenant is not None:
            raise InvalidRequest("--tenant: over HTTP it is that of the key; leave out --tenant, or --url")
        yield Gateway(url)
        return
    found = load_config(config)
    if running and is_served(found):
        yield Gateway(url_of(found))
        return
    with contextlib.ExitStack() as stack:
        if fresh and not found.database and not found.journal_file().is_file():
            found = found.model_copy(update={"data": Path(stack.enter_context(tempfile.TemporaryDirectory()))})
            SqliteJournal(found.journal_file()).close()
        yield stack.enter_context(_in_process(found.model_copy(update=settings), tenant, started=started))


def is_open(config: Config) -> bool:
    """Whether a process may have the configured journal open; of one in a database that is not known."""
    return bool(config.database) or ((journal := config.journal_file()).is_file() and in_use(journal))


def is_served(config: Config) -> bool:
    """Whether a gateway answers at the configured address, while the journal is open in some process."""
    try:
        return is_open(config) and call("GET", url_of(config), "/healthz", timeout_s=5.0) == {"status": "ok"}
    except (NoGateway, UnknownDecision):  # nothing, or another server
        return False


@contextmanager
def _in_process(config: Config, tenant: str | None, *, started: bool) -> Iterator[Gateway]:
    from fitrouter_integrations.gateway._serve import require_gateway

    require_gateway()
    from fitrouter_integrations.gateway import create_app
    from fitrouter_integrations.gateway._keys import Caller

    whose = tenant or Identity().tenant
    operator = Caller(whose, True, True, True, name=by_command(), operator=True, everybody=tenant is None)
    with asyncio.Runner() as runner, _started(config, runner) if started else Router.offline(config) as router:
        where = "the database" if config.database else str(config.journal_file())
        yield Gateway(where, _Here(router, create_app(router, config, operator=operator), runner))


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


# --- requests to an ASGI application ---


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


def path_of(*parts: str) -> str:
    """Join the parts of a path, which may have any characters."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)
