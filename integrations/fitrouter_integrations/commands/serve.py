"""`fitrouter serve`: run the gateway."""

from __future__ import annotations

import importlib
import logging
import os
from typing import Annotated

import typer

from fitrouter.config import load_config
from fitrouter.errors import ConfigError
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile


def command(
    config: ConfigFile = DEFAULT,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes, which share the address and journal.")] = 1,
    host: Annotated[str | None, typer.Option(help="Listen address, instead of `server.host`.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port, instead of `server.port`; 0 picks a free one.")
    ] = None,
) -> None:
    """Serve an OpenAI-compatible gateway until SIGTERM or Ctrl-C; requests in flight are finished."""
    settings = load_config(config)
    changes = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = settings.model_copy(update={"server": settings.server.model_copy(update=changes)})
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        gateway = importlib.import_module("fitrouter_integrations.gateway")
    except ModuleNotFoundError as error:
        raise ConfigError(f"the gateway needs {error.name!r}; install 'fitrouter[gateway]'") from error
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    listener = gateway.bind(settings)
    address = f"http://{settings.server.host}:{listener.getsockname()[1]}/v1"
    typer.echo(f"fitrouter serves {len(settings.models)} models on {address}", err=True)
    gateway.serve(settings, workers, listener)
