"""`fitrouter audits log`: show the administrative acts in a data folder, and verify that none was changed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from fitrouter.config import load_config
from fitrouter.errors import ConfigError
from fitrouter.stores.audit_log import AuditLog, is_hash
from fitrouter_integrations.commands._files import as_json
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, verbs

app = verbs("Show who changed policy and keys, and erased or exported users; verify that no entry was changed.")


@app.command()
def show(
    last: Annotated[int, typer.Option(help="Number of entries.", min=1)] = 20,
    config: ConfigFile = DEFAULT,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the last acts, the newest last. A gateway may be running."""
    acts = list(_log(config).acts())[-last:]
    if json:
        typer.echo(as_json(acts))
        return
    for act in acts:
        when = datetime.fromtimestamp(act.ts, UTC).strftime("%Y-%m-%d %H:%M:%S")
        about = ", ".join(f"{name} {value}" for name, value in act.about.items())
        typer.echo("  ".join(filter(None, (when, act.act, f"by {act.by}", about))))


@app.command()
def verify(
    head: Annotated[str | None, typer.Option(help="Hash that an earlier `verify` printed.")] = None,
    config: ConfigFile = DEFAULT,
) -> None:
    """Check that no entry was changed, inserted or removed; exit code 1 if one was. Keep the printed hash elsewhere."""
    if head is not None and not is_hash(head):
        raise ConfigError(f"--head: got {head!r}; give the 64 digits that `fitrouter audits log verify` printed")
    log = _log(config)
    found = log.verify(head)
    if found.broken is not None:
        typer.echo(f"{log.path}: broken at line {found.broken}: it does not follow the line before")
    if not found.known:
        typer.echo(f"{log.path}: no sound entry has the hash {head}: entries were removed, or the file is another one")
    typer.echo(f"{found.acts} sound entries, the last with the hash {found.head}")
    if found.broken is not None or not found.known:
        raise typer.Exit(1)


def _log(config: ConfigFile) -> AuditLog:
    return AuditLog(load_config(config).data)
