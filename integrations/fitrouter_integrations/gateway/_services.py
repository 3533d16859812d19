"""The services process: scores answers and feeds the warehouse beside the gateway's workers, and serves nobody."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from fitrouter.config import Config
from fitrouter.errors import FitrouterError
from fitrouter.providers import Provider, Simulated
from fitrouter.router import Router
from fitrouter.serving.services import ScorerPlugin
from fitrouter.serving.status import RouterStatus, remove_report, write_report
from fitrouter_dashboards.metrics import Metrics
from fitrouter_integrations.gateway._logging import protect_logs

CLOSING_S = 10.0
"""Time that stores have to close at the end."""
FAILED = 3
"""Exit code of a process that could not start."""
_log = logging.getLogger("fitrouter.gateway")


def run_services(config: Config, parent: Connection) -> None:
    """Entry point of the process, which runs until the other end of the connection is closed.

    Signals do not end it: Ctrl-C and process managers send them to all processes at once, and workers go on logging
    until their last request is answered.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    protect_logs()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    try:
        asyncio.run(_run(config, parent))
    except FitrouterError as error:
        _log.error("the services cannot start: %s", error)
        raise SystemExit(FAILED) from None


async def _run(config: Config, parent: Connection) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def end() -> None:
        loop.remove_reader(parent.fileno())
        ended.set()

    loop.add_reader(parent.fileno(), end)
    await run_until(ended, config)


async def run_until(
    ended: asyncio.Event,
    config: Config,
    *,
    scorer: ScorerPlugin | None = None,
    heard: Callable[[RouterStatus], object] = lambda _status: None,
) -> None:
    """Run the services until an event is set; a process whose stores do not close within `CLOSING_S` is ended.

    Args:
        ended: set by the caller.
        config: all settings.
        scorer: to use instead of the installed one.
        heard: called with the status twice a second, on another thread.
    """
    remove_report(config.data)
    never_called: dict[str, Provider] = dict.fromkeys(config.providers, Simulated.from_options({}))
    router, metrics = Router.from_config(config, providers=never_called, scorer=scorer), Metrics()
    metrics.bind(router)

    def publish(status: RouterStatus) -> None:
        write_report(config.data, status, time.time())
        heard(status)

    last_resort = threading.Timer(CLOSING_S, os._exit, [1])  # a store that hangs must not keep the process alive
    last_resort.daemon = True
    async with router:
        with metrics.watching(publish):
            await ended.wait()
            last_resort.start()
    remove_report(config.data)
    last_resort.cancel()
