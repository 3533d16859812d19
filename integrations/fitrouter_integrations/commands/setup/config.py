"""`fitrouter config`: check, edit and import configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fitrouter.config import Config, load_config
from fitrouter.errors import FitrouterError
from fitrouter.stores.figures import many
from fitrouter_integrations._http import call, url_of
from fitrouter_integrations.commands._files import set_top_level
from fitrouter_integrations.commands._gateway import is_open
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, NewConfigFile, verbs

app = verbs("Check, edit and import configurations.")


@app.command()
def check(config: ConfigFile = DEFAULT, file: Annotated[Path | None, typer.Argument(hidden=True)] = None) -> None:
    """Report the mistakes of a configuration and what it lacks (exit code 2), or summarise what it sets up."""
    from fitrouter_integrations.commands.setup.check import findings

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    config = file or config
    found = findings(load_config(config))
    for finding in found:
        table.add_row("✓" if finding.ok else "✗", finding.topic, finding.text, style=None if finding.ok else "red")
    Console().print(table, markup=False)
    problems = sum(not finding.ok for finding in found)
    typer.echo(f"{config}: fix the {problems} ✗ above before you serve it" if problems else f"{config} is valid")
    if problems:
        raise typer.Exit(2)


@app.command()
def share(
    value: Annotated[float, typer.Argument(min=0.0, max=1.0, help="0: shadow mode; 0.05: a rollout; 1: all traffic.")],
    config: ConfigFile = DEFAULT,
    default_model: Annotated[str | None, typer.Option(help="Model that takes the rest of the traffic.")] = None,
) -> None:
    """Set the share of traffic that is routed, in the file and in a running gateway. Comments are kept."""
    settings = {"share": repr(value)}
    if default_model is not None:
        settings = {"default_model": json.dumps(default_model), **settings}
    set_top_level(config, settings)
    typer.echo(f"share is {value:g} in {config}; {_applied(load_config(config), value)}")


def _applied(config: Config, value: float) -> str:
    """Send a new share to the gateway that has the journal open, if one does, and say when it takes effect."""
    if not is_open(config):
        return "it takes effect at the next start"
    try:
        call("POST", url_of(config), "/v1/policy", {"action": "set", "settings": {"share": value}})
    except FitrouterError as error:
        return f"restart the gateway to apply it ({error})"
    return "the running gateway has it"


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="Configuration of litellm's proxy.")],
    config: NewConfigFile = DEFAULT,
    out: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Convert a configuration of litellm's proxy. Comments list the settings that could not be converted."""
    from fitrouter_integrations.commands.setup.import_litellm import import_litellm

    config = out or config
    made = import_litellm(file, config)
    option = "" if config == DEFAULT else f" --config {config}"
    models, notes = many(made.models, "model"), many(len(made.notes), "note")
    typer.echo(f"wrote {config} with {models}; its first lines hold {notes} to review")
    typer.echo(f"share is 0: the default model answers everything; raise it with `fitrouter config share 0.05{option}`")
    typer.echo(f"next: fitrouter config check{option}")
