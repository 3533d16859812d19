"""Options and text that lists share."""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fitrouter.errors import require
from fitrouter_integrations.commands._files import as_json
from fitrouter_integrations.commands._text import WIDTH, printable

if TYPE_CHECKING:
    from fitrouter.stores.identities import Identities, IdentityRows
    from fitrouter.stores.journal import Journal

User = Annotated[str | None, typer.Option(help="Only of this user, by the user id in requests.")]
Role = Annotated[str | None, typer.Option(help="Only of this role.")]
Model = Annotated[str | None, typer.Option(help="Of this model only, with or without its revision.")]
Last = Annotated[int, typer.Option(help="Number of entries, the newest first.", min=1, max=1000)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def opened(config: Path) -> Iterator[tuple[Path, Journal, Identities]]:
    """Open the configured data folder, its journal and identities, for what no route gives out: texts and events."""
    from fitrouter.assemble import open_identities, open_journal
    from fitrouter.config import load_config

    settings = load_config(config)
    with closing(open_journal(settings)) as journal, closing(open_identities(settings, journal)) as identities:
        yield settings.data, journal, identities


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
            from fitrouter.stores.identities import SqliteRows

            yield stack.enter_context(closing(SqliteRows(Path(where))))


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
