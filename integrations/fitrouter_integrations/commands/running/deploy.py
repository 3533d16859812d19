"""`fitrouter deploy`: run gateways and scorers on a cluster."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from fitrouter.config import load_config
from fitrouter_integrations import deploy
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, verbs
from fitrouter_integrations.commands.setup._extras import missing_extras

app = verbs("Deploy to a cluster.")


@app.callback()
def _verbs() -> None:
    """Deploy to a cluster."""


@app.command("ray")
def ray_(
    named: Annotated[Path | None, typer.Argument(metavar="CONFIG", hidden=True, help="Configuration file.")] = None,
    config: ConfigFile = DEFAULT,
    stop: Annotated[bool, typer.Option("--stop", help="Stop what is deployed on the running cluster.")] = False,
) -> None:
    """Deploy the configuration, with its section `ray`, to Ray Serve.

    Given again, it replaces the replicas one after the other without losing a request.

    With a running cluster it returns once the replicas run. Without one it starts one on this machine, and serves until
    SIGTERM or Ctrl-C.
    """
    settings = load_config(named or config)
    deploy.check(settings)
    if lacking := missing_extras(settings):
        raise lacking[0]
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if stop:
        deploy.stop(settings)
        return
    deploy.deploy(settings, lambda line: typer.echo(line, err=True))
