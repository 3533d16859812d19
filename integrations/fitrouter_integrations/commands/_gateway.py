"""The gateway that a command asks: a running one, or the same application in this process on the configured data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec
import typer

from fitrouter.errors import InvalidRequest, UnknownDecision
from fitrouter_integrations._http import URL_ENV, NoGateway, answered, call, headers_for, url_of

if TYPE_CHECKING:
    from fitrouter.config import Config
    from fitrouter_integrations.commands._application import Application

T = TypeVar("T")

_HERE = ("config", "tenant", "content", "ask", "answers")
"""Options that only the configured data has."""


def _given(context: typer.Context, option: typer.CallbackParam, value: str | None) -> str | None:
    """Leave out what the environment names if that is a file, as of adapters, or if another option is of the data."""
    sources = {name: getattr(context.get_parameter_source(name), "name", "") for name in (str(option.name), *_HERE)}
    if sources.pop(str(option.name)) != "ENVIRONMENT" or value is None:
        return value
    own = "COMMANDLINE" in sources.values()
    return None if own or "://" not in value else value


Url = Annotated[
    str | None,
    typer.Option(
        help="Ask this running gateway, such as http://127.0.0.1:8484.",
        envvar=URL_ENV,
        callback=_given,
        show_envvar=True,
    ),
]
Tenant = Annotated[str | None, typer.Option(help="Tenant, of the configured data; with --url it is the key's.")]
LONG_S = 600.0
"""Time limit of what reads the whole log."""
_PATIENCE_S = 60.0


class Gateway:
    """A client of the HTTP interface.

    Args:
        address: of a running gateway; in this process, of the journal.
        here: the application, in this process instead.
    """

    def __init__(self, address: str, here: Application | None = None) -> None:
        self.address, self._here = address, here

    @property
    def running(self) -> bool:
        """Whether it is a gateway of its own, not this process."""
        return self._here is None

    def configure(self) -> None:
        """Log that the configuration has changed, if it has: in this process, what is set then counts from there."""
        if self._here is not None:
            self._here.apply_configuration()

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
        status, content = self._here.answer(method, path, given, headers_for(who, body), sent)
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
    from fitrouter.config import load_config

    found = load_config(config)
    if running and is_served(found):
        yield Gateway(url_of(found))
        return
    from fitrouter_integrations.gateway._serve import require_gateway

    require_gateway()
    from fitrouter_integrations.commands._application import open_application

    where = "the database" if found.database else str(found.journal_file())
    with open_application(found.model_copy(update=settings), tenant, started=started, fresh=fresh) as application:
        yield Gateway(where, application)


def is_open(config: Config) -> bool:
    """Whether a process may have the configured journal open; of one in a database that is not known."""
    from fitrouter.stores.journal import in_use

    return bool(config.database) or ((journal := config.journal_file()).is_file() and in_use(journal))


def is_served(config: Config) -> bool:
    """Whether a gateway of this installation answers at the configured address, while the journal is open somewhere.

    That another's answers there is said on the standard error.
    """
    try:
        found = call("GET", url_of(config), "/healthz", timeout_s=5.0) if is_open(config) else None
    except (NoGateway, UnknownDecision):  # nothing, or another server
        return False
    if not isinstance(found, dict) or found.get("status") != "ok":
        return False
    if found.get("installation") == installation_of(config):
        return True
    place = f"the gateway at {url_of(config)} is of another installation than {str(config.data)!r}"
    typer.echo(f"{place}, which is changed without it; give --url for the gateway that is meant", err=True)
    return False


def installation_of(config: Config) -> str:
    """What the gateways of an installation call it at `/healthz`."""
    from fitrouter.assemble import open_identities, open_journal
    from fitrouter.serving.tokens import OutcomeTokens

    with closing(open_journal(config)) as journal, closing(open_identities(config, journal)) as own:
        return OutcomeTokens(own.salt, time.time, 0.0).installation


def path_of(*parts: str) -> str:
    """Join the parts of a path, which may have any characters."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)
