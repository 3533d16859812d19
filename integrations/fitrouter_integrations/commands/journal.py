"""`fitrouter journal`: check a journal, salvage a damaged one, copy one, and exclude an event from what is learnt."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fitrouter.assemble import open_journal
from fitrouter.config import load_config
from fitrouter.errors import ConfigError, StoreError, require
from fitrouter.stores import cold
from fitrouter.stores import journal as journals
from fitrouter.stores.audit_log import AuditLog, command_act
from fitrouter.stores.figures import many
from fitrouter.stores.identities import FILE, merge
from fitrouter.stores.journal import Entry, SqliteJournal
from fitrouter.stores.listing import story
from fitrouter.types import Erasure, Quarantine
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, verbs
from fitrouter_integrations.commands.lists._source import open_rows

if TYPE_CHECKING:
    from fitrouter.stores.postgres import DatabasePlace

app = verbs("Check a journal, salvage a damaged one, copy one, and exclude events from what is learnt.")

File = Annotated[Path | None, typer.Option(help="Journal, instead of the configured one.")]
_SHOWN = 20
_TOLD = 100_000
"""Events between lines of progress."""


def _path(config: Path, file: Path | None) -> Path:
    path = load_config(config).journal_file() if file is None else file
    if not path.is_file():
        raise ConfigError(f"there is no journal {str(path)!r}")
    return path


@app.command()
def check(config: ConfigFile = DEFAULT, file: File = None) -> None:
    """Read every page and event, and report damage; exit code 1 if there is any. A gateway may be running."""
    path = _path(config, file)
    found = journals.check(path)
    typer.echo(f"{path}: {found.events} sound events")
    for event, fault in found.unsound[:_SHOWN]:
        typer.echo(f"not learnt from: event {event}: {fault} is not finite or out of range")
    for seq in found.damaged[:_SHOWN]:
        typer.echo(f"damaged: event {seq}: its checksum differs")
    for text in filter(None, (found.file, found.log)):
        typer.echo(f"damaged: {text}")
    if not found.sound:
        typer.echo("next: stop the gateway and start it again, which salvages the file; or `fitrouter journal salvage`")
        raise typer.Exit(1)


@app.command()
def salvage(
    out: Annotated[Path, typer.Argument(help="File to write; it must not exist.")],
    config: ConfigFile = DEFAULT,
    file: File = None,
) -> None:
    """Copy every sound event to a new journal, and list what is lost. Stop the gateway first."""
    path = _path(config, file)
    if out.exists():
        raise ConfigError(f"{str(out)!r} exists; name a new file")
    if journals.in_use(path):
        raise StoreError(f"{str(path)!r} is open in a gateway; stop it first, or salvage a copy")
    typer.echo(f"{out}: {journals.in_words(journals.salvage(path, out, time.time()))}")
    for place in cold.noted_places(path.parent) if out.parent.absolute() != path.parent.absolute() else ():
        cold.note_place(out.parent, cold.storage_at(place, path.parent))


@app.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="Journal file, or postgresql://USER@HOST/NAME.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="Empty place: a new file, or a database's URL.")],
    identities: Annotated[
        str | None, typer.Option(help="URL for the identities, if it is another than the journal's.")
    ] = None,
) -> None:
    """Copy a journal and its identities between SQLite and PostgreSQL, and compare them. Stop the gateways first.

    Interrupted, it goes on where it was when it is called again. Beside a file, identities are in `identities.db`.
    """
    if identities is not None and "://" not in identities:
        raise ConfigError(f"--identities: got {identities!r}; give a URL, postgresql://USER@HOST/NAME")
    with closing(_place(source, new=False)) as first, closing(_place(target, new=True)) as second:
        done = journals.copy(first, second, _tell)
        typer.echo(f"{second.name}: {many(done.events, 'event')}, {done.moved} copied now; digest {done.digest}")
    whose, to = (_identities_of(where, identities) for where in (source, target))
    if "://" not in whose and not Path(whose).is_file():
        typer.echo(f"no identities were copied: there is no {whose}; `fitrouter users copy FROM TO` copies others")
        return
    if "://" in whose and not _has_identities(whose):
        typer.echo("no identities were copied: the database has none; `fitrouter users copy FROM TO` copies others")
        return
    with open_rows(whose) as those, open_rows(to) as there:
        moved = merge(those, there)
        typer.echo(f"{there.name}: {moved.subjects} subjects, {moved.added} of them copied now")


def _identities_of(where: str, given: str | None) -> str:
    """Return the place of a journal's identities: a database, or a file next to the journal."""
    return (given or where) if "://" in where else str(Path(where).with_name(FILE))


def _has_identities(url: str) -> bool:
    from fitrouter.stores.postgres import Database, has_identities

    return has_identities(Database(url))


def _place(where: str, *, new: bool) -> journals.FilePlace | DatabasePlace:
    if "://" not in where:
        return journals.FilePlace(Path(where), new=new)
    require("psycopg", "a journal on PostgreSQL")
    from fitrouter.stores.postgres import Database, DatabasePlace

    return DatabasePlace(Database(where))


def _tell(seq: int, head: int) -> None:
    if seq % _TOLD < journals.BATCH:
        typer.echo(f"{seq} of {head}", err=True)


@app.command()
def quarantine(
    event: Annotated[str, typer.Argument(help="Id of an event, as in the warehouse; a decision's may be cut short.")],
    reason: Annotated[str, typer.Option(help="Reason, for the log.")] = "",
    config: ConfigFile = DEFAULT,
    file: File = None,
) -> None:
    """Exclude an event from all that is learnt. It stays in the journal; running gateways rebuild in the background."""
    settings = load_config(config) if file is None else None
    if settings is not None and settings.database:
        journal, folder = open_journal(settings), settings.data
    else:
        path = _path(config, file)
        journal, folder = SqliteJournal(path), path.parent
    try:
        found = journal.event(event) or story(journal, event)[0]
        event = found.id
        if isinstance(found, Erasure | Quarantine):
            raise ConfigError(f"{event!r} is an {type(found).__name__.lower()}, which always counts")
        AuditLog(folder).note(command_act("journal quarantine", event=event))
        entry = Quarantine(id=f"quarantine:{event}", ts=time.time(), event_id=event, reason=reason)
        journal.append(Entry(entry)).result(30.0)
    finally:
        journal.close()
    typer.echo(f"excluded {event}; what was learnt is rebuilt without it")
