"""A worker: a server for the application with size and time limits, which ends with its parent process."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import threading
from types import FrameType

import uvicorn
from fastapi import FastAPI

from fitrouter.config import Config
from fitrouter.errors import FitrouterError
from fitrouter.router import Router
from fitrouter_integrations.gateway._app import create_app
from fitrouter_integrations.gateway._limits import LimitedProtocol

GRACE_S = 30.0
"""Time that running requests have after SIGTERM."""
CLOSING_S = 20.0
"""Time that stores have to close after that."""
FAILED = 3
"""Exit code of a worker that could not start."""
IDLE_S = 60
"""Keep-alive timeout of a connection."""
_log = logging.getLogger("fitrouter.gateway")


def work(config: Config, listener: socket.socket) -> None:
    """Serve in this process, from its main thread."""
    server = server_of(create_app(Router.from_config(config), config))
    # A store that hangs must not keep the process alive.
    server.last_resort = threading.Timer(GRACE_S + CLOSING_S, os._exit, [1])
    server.last_resort.daemon = True

    def stop(_number: int, _frame: FrameType | None) -> None:
        server.should_exit = True

    # uvicorn handles signals while it runs, and raises them again at its end, when they have been handled.
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[listener])
    finally:
        server.last_resort.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
    if not server.started:
        raise FitrouterError("the gateway could not start; see the log")


def server_of(app: FastAPI, grace_s: float = GRACE_S) -> Server:
    """A server for the application; start it with `run(sockets=[...])`."""
    settings = uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=max(1, round(grace_s)),
    )
    return Server(settings)


class Server(uvicorn.Server):
    """A uvicorn server that ends with its parent process, if it has one."""

    last_resort: threading.Timer | None = None
    """Kills the process if closing hangs; started at shutdown."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, and watch the parent process."""
        parent = multiprocessing.parent_process()
        if parent is not None:
            asyncio.get_running_loop().add_reader(parent.sentinel, self._orphaned, parent.sentinel)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down, bounded by `last_resort`."""
        if self.last_resort is not None:
            self.last_resort.start()
        await super().shutdown(sockets)

    def _orphaned(self, sentinel: int) -> None:
        asyncio.get_running_loop().remove_reader(sentinel)
        self.should_exit = True


def work_as_process(config: Config, listener: socket.socket) -> None:
    """Entry point of a worker process."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    try:
        work(config, listener)
    except FitrouterError as error:
        _log.error("a worker cannot start: %s", error)
        raise SystemExit(FAILED) from None
