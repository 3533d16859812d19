"""A worker: a server for the application with size and time limits, which ends with its parent process."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from fitrouter.config import Config
from fitrouter.errors import ConfigError, FitrouterError
from fitrouter.providers import preload
from fitrouter.router import Router
from fitrouter_integrations.gateway._app import create_app
from fitrouter_integrations.gateway._logging import protect_logs
from fitrouter_integrations.gateway._tracing import trace_by
from fitrouter_integrations.gateway.asgi._limits import Connections, LimitedProtocol, connection_limit

GRACE_S = 30.0
"""Time that running requests have after SIGTERM."""
CLOSING_S = 20.0
"""Time that stores have to close after that."""
FAILED = 3
"""Exit code of a worker that could not start."""
MISCONFIGURED = 4
"""Exit code of one whose configuration cannot be served."""
IDLE_S = 60
"""Keep-alive timeout of a connection."""
_BACKLOG = 2048
"""Connections that may wait in the kernel."""
_ACCEPTED = 64
"""Connections that are accepted at once: asyncio counts none of them before it has accepted all that wait."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_log = logging.getLogger("fitrouter.gateway")


def work(config: Config, listener: socket.socket, *, services: bool = True) -> None:
    """Serve in this process, from its main thread; with `services` score and feed the warehouse here, too."""
    protect_logs()
    end_traces = trace_by(os.environ)
    app = create_app(Router.from_config(config, services=services), config)
    preload(config)  # before what lives long is set apart from the garbage collector's work
    server = server_of(app)
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
        end_traces()
        server.last_resort.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
    if not server.started:
        raise FitrouterError("the gateway could not start; see the log")


def server_of(app: ASGIApp, grace_s: float = GRACE_S) -> Server:
    """Create a server for the application; start it with `run(sockets=[...])`."""
    settings = uvicorn.Config(
        app,
        http=partial(LimitedProtocol, limits=Connections(connection_limit())),  # type: ignore[arg-type]
        backlog=_ACCEPTED,
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
    _report_at = 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, and watch the parent process."""
        parent = multiprocessing.parent_process()
        if parent is not None:
            asyncio.get_running_loop().add_reader(parent.sentinel, self._orphaned, parent.sentinel)
        asyncio.get_running_loop().set_exception_handler(self._failed)
        await super().startup(sockets)
        gc.freeze()  # what lives as long as the process is not searched when a large body is parsed
        gc.collect()  # nor counted: a full collection comes once a quarter of what was counted last is new
        for listener in sockets or ():  # uvicorn has set the queue of the kernel to `_ACCEPTED` too
            listener.listen(_BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down, bounded by `last_resort`."""
        if self.last_resort is not None:
            self.last_resort.start()
        if (state := getattr(self.config.app, "state", None)) is not None:
            state.closing.set()
        await super().shutdown(sockets)
        gc.unfreeze()  # DuckDB's binding complains at exit of objects that cannot be collected

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report an error that no task handles; lack of descriptors once a minute, not for every connection."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _EXHAUSTED):
            loop.default_exception_handler(context)
        elif (now := time.monotonic()) >= self._report_at:
            self._report_at = now + 60.0
            _log.error("connections cannot be accepted: %s; raise the limit of open files (ulimit -n)", error.strerror)

    def _orphaned(self, sentinel: int) -> None:
        asyncio.get_running_loop().remove_reader(sentinel)
        self.should_exit = True


def work_as_process(config: Config, listener: socket.socket, services: bool) -> None:
    """Entry point of a worker process."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    try:
        work(config, listener, services=services)
    except FitrouterError as error:
        _log.error("a worker cannot start: %s", error)
        raise SystemExit(MISCONFIGURED if isinstance(error, ConfigError) else FAILED) from None
