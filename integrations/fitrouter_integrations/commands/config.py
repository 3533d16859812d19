"""`fitrouter config`: check, edit and import configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fitrouter.config import load_config
from fitrouter_integrations.commands._files import set_top_level
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, verbs

app = verbs("Check, edit and import configurations.")


@app.command()
def check(file: Annotated[Path, typer.Argument(help="Configuration file.")] = DEFAULT) -> None:
    """Report the mistakes of a configuration (exit code 2), or summarise what it sets up."""
    from fitrouter_integrations.commands.check import findings

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    found = findings(load_config(file))
    for finding in found:
        table.add_row("✓" if finding.ok else "✗", finding.topic, finding.text, style=None if finding.ok else "red")
    Console().print(table, markup=False)
    problems = sum(not finding.ok for finding in found)
    typer.echo(f"{file} is valid" + (f"; fix the {problems} ✗ above before you serve it" if problems else ""))


@app.command()
def share(
    value: Annotated[float, typer.Argument(min=0.0, max=1.0, help="0: shadow mode; 0.05: a rollout; 1: all traffic.")],
    config: ConfigFile = DEFAULT,
    default_model: Annotated[str | None, typer.Option(help="Model that takes the rest of the traffic.")] = None,
) -> None:
    """Set the share of traffic that is routed. Comments are kept; restart the gateway to apply it."""
    settings = {"share": repr(value)}
    if default_model is not None:
        settings = {"default_model": json.dumps(default_model), **settings}
    set_top_level(config, settings)
    typer.echo(f"share is {value:g} in {config}; restart the gateway")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="Configuration of litellm's proxy.")],
    out: Annotated[Path, typer.Option(help="File to write; it must not exist.")] = DEFAULT,
) -> None:
    """Convert a configuration of litellm's proxy. Comments list the settings that could not be converted."""
    from fitrouter_integrations.commands.import_litellm import import_litellm

    made = import_litellm(file, out)
    typer.echo(f"wrote {out} with {made.models} models; its first lines hold {len(made.notes)} notes to review")
    typer.echo(f"next: fitrouter config check {out}")
