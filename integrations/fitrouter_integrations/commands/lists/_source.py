"""Source of lists: the data folder of a configuration, another folder, or a running gateway."""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

import msgspec
import typer

from fitrouter.assemble import open_identities, open_journal
from fitrouter.config import load_config
from fitrouter.errors import ConfigError, require
from fitrouter.stores.identities import FILE, Identities, IdentityRows, SqliteIdentities, SqliteRows
from fitrouter.stores.journal import Journal, SqliteJournal
from fitrouter.stores.listing import Lists
from fitrouter_integrations._http import call
from fitrouter_integrations.commands._files import as_json
from fitrouter_integrations.commands.personal.leaderboard import WIDTH, printable

T = TypeVar("T")

Data = Annotated[Path | None, typer.Option(help="Data folder, without a configuration.")]
Url = Annotated[str | None, typer.Option(help="Ask a running gateway, such as http://127.0.0.1:8484.")]
Tenant = Annotated[str | None, typer.Option(help="Of this tenant only; with --url that of the key.")]
User = Annotated[str | None, typer.Option(help="Only of this user, by the user id in requests.")]
Role = Annotated[str | None, typer.Option(help="Only of this role.")]
Model = Annotated[str | None, typer.Option(help="Of this model only, with or without its revision.")]
Last = Annotated[int, typer.Option(help="Number of entries, the newest first.", min=1, max=1000)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def open_lists(config: Path, data: Path | None) -> Iterator[Lists]:
    """Open lists over the files of a data folder. A gateway may be running.

    Raises:
        ConfigError: there is no journal.
    """
    with stores(config, data) as (_, journal, identities):
        yield Lists(journal, identities)


@contextmanager
def stores(config: Path, data: Path | None) -> Iterator[tuple[Path, Journal, Identities]]:
    """Open a data folder's journal (which may be in a database) and identities. A gateway may be running.

    Raises:
        ConfigError: there is no journal.
    """
    settings = None
    if data is None:
        settings = load_config(config)
        folder = settings.data
    else:
        folder = data if data.is_dir() else data.parent
    if settings is None or not settings.database:
        for name in ("journal.db", "identities.db"):
            if not (folder / name).is_file():
                option = "--data: " if data is not None else ""
                raise ConfigError(f"{option}there is no {str(folder / name)!r}; a gateway writes it at its first start")
    with closing(SqliteJournal(folder / "journal.db") if settings is None else open_journal(settings)) as journal:
        identities = SqliteIdentities(folder / FILE) if settings is None else open_identities(settings, journal)
        with closing(identities) as who:
            yield folder, journal, who


@contextmanager
def open_rows(where: str) -> Iterator[IdentityRows]:
    """Open the identities in a file, which is created if missing, or in a database.

    Raises:
        ConfigError: the database's role lacks a right.
        StoreError: it cannot be opened.
    """
    with ExitStack() as stack:
        if "://" in where:
            require("psycopg", "identities on PostgreSQL")
            from fitrouter.stores.postgres import Database, PostgresRows

            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            yield stack.enter_context(closing(PostgresRows(Database(where), folder)))
        else:
            yield stack.enter_context(closing(SqliteRows(Path(where))))


def fetch(
    url: str, path: str, kind: type[T], identity: Mapping[str, str | None] | None = None, **query: object
) -> list[T]:
    """Get the entries of a list from a running gateway."""
    given = urlencode({name: value for name, value in query.items() if value is not None})
    found = call("GET", url, f"{path}?{given}" if given else path, identity=identity, timeout_s=60.0)
    entries: list[T] = msgspec.convert(found["data"], list[kind])  # type: ignore[valid-type]
    return entries


def show(entries: Sequence[Any], as_text: Callable[[], list[str]], out: bool, empty: str) -> None:
    """Print entries as JSON or as text."""
    if out:
        typer.echo(as_json(list(entries)))
    else:
        typer.echo("\n".join(as_text()) if entries else empty)


def record(*parts: str) -> list[str]:
    """Format an entry of several parts, each on lines of at most 80 columns; all but the first are indented."""
    lines: list[str] = []
    for i, part in enumerate(parts):
        indent = "  " if i else ""
        lines += textwrap.wrap(
            printable(part), WIDTH, initial_indent=indent, subsequent_indent="    ", break_on_hyphens=False
        )
    return lines


def when(seconds: float | None) -> str:
    """Format a time in UTC, to the second."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def who(user: str | None, subject: str | None, role: str | None, tenant: str) -> str:
    """Describe a user with role and tenant, for messages."""
    name = user or (f"an erased user ({subject})" if subject else "nobody in particular")
    return name + (f", {role}" if role else "") + (f" (tenant {tenant})" if tenant != "default" else "")
