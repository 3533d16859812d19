"""`fitrouter serve`: run the gateway."""

from __future__ import annotations

import logging
import os
from enum import StrEnum
from typing import Annotated

import typer

from fitrouter.config import load_config
from fitrouter.stores.figures import many
from fitrouter.types import UNPRICED
from fitrouter_integrations import gateway
from fitrouter_integrations._http import configured_url
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile
from fitrouter_integrations.commands.setup._extras import missing_extras


class AccessLogForm(StrEnum):
    """Forms of the access log."""

    TEXT = "text"
    JSON = "json"


_log = logging.getLogger("fitrouter")


def command(
    config: ConfigFile = DEFAULT,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes, which share the address and journal.")] = 1,
    host: Annotated[str | None, typer.Option(help="Listen address, instead of `server.host`.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port, instead of `server.port`; 0 picks a free one.")
    ] = None,
    services_inside: Annotated[
        bool, typer.Option("--services-inside", help="Score and feed the warehouse in the workers, not beside them.")
    ] = False,
    access_log: Annotated[
        AccessLogForm | None, typer.Option(help="Write a line for each request to standard output.")
    ] = None,
) -> None:
    """Serve an OpenAI-compatible gateway until SIGTERM or Ctrl-C; requests in flight are finished."""
    settings = load_config(config)
    given = {"host": host, "port": port, "access_log": access_log and access_log.value}
    changes = {name: value for name, value in given.items() if value is not None}
    settings = settings.model_copy(update={"server": settings.server.model_copy(update=changes)})
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    if lacking := missing_extras(settings):
        raise lacking[0]
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    listener = gateway.bind(settings)
    changes = {"port": listener.getsockname()[1]}
    url = configured_url(settings.model_copy(update={"server": settings.server.model_copy(update=changes)}))
    typer.echo(
        f"fitrouter serves {many(len(settings.models), 'model')} on {url}/v1; its console: {url}/console", err=True
    )  # the first line: programs that start it read the address there
    if unpriced := settings.unpriced():
        _log.warning("no price is configured for %s. %s", ", ".join(unpriced), UNPRICED)
    gateway.serve(settings, workers, listener, services_inside=services_inside)
