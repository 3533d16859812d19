"""The listening socket, worker processes, and the parent process that restarts them."""

from __future__ import annotations

import ipaddress
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import threading
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

from fitrouter.config import Config
from fitrouter.errors import ConfigError, FitrouterError
from fitrouter_integrations.gateway._keys import Keys

_BACKLOG = 2048
_BACKOFF_S = (0.1, 5.0)
_SETTLED_S = 30.0
"""A worker that lived this long did not fail at its start."""
_GIVE_UP = 5
"""Consecutive failed starts after which the gateway gives up."""
_END_S = 50.0
"""Time that workers have to end: 30 s for requests and 20 s for stores."""
_FAILED = 3
_log = logging.getLogger("fitrouter.gateway")


def bind(config: Config) -> socket.socket:
    """The listening socket; port 0 picks a free one, see `socket.getsockname()[1]`.

    Raises:
        ConfigError: the address is taken or not local, or is not loopback while there are no keys.
    """
    host, port = config.server.host, config.server.port
    Keys(config.server)
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        family = socket.AF_INET
    # asyncio sets TCP_NODELAY on accepted connections only if the protocol is given; without it answers wait 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"server: cannot listen on {host}:{port}: {error.strerror}; choose another port") from None
    listener.setblocking(False)
    return listener


def serve(config: Config, workers: int = 1, listener: socket.socket | None = None) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight then have 30 seconds to finish.

    With several workers, each is a process with its own router over the same journal. The parent restarts workers that
    end; workers end when the parent does.

    Args:
        config: settings.
        workers: number of processes.
        listener: a socket from `bind`, if the caller needs the port in advance.

    Raises:
        ConfigError: the configuration cannot be served.
        FitrouterError: the workers cannot start; see the log.
    """
    if workers < 1:
        raise ConfigError(f"workers: got {workers}; give 1 or more")
    with listener or bind(config) as bound:
        if workers == 1:
            from fitrouter_integrations.gateway._worker import work

            work(config, bound)
        else:
            _Crew(config, workers, bound).run()


def _metrics_folder(data: Path) -> Path:
    """An empty folder for the workers' metrics; folders of dead parents are removed."""
    folders = data / "metrics"
    folders.mkdir(parents=True, exist_ok=True)
    for folder in folders.iterdir():
        if not folder.name.isdecimal() or not _alive(int(folder.name)):
            shutil.rmtree(folder, ignore_errors=True)
    mine = folders / str(os.getpid())
    shutil.rmtree(mine, ignore_errors=True)
    mine.mkdir()
    return mine


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _work(config: Config, listener: socket.socket) -> None:
    """Entry point of a worker; imports the application only there, so that the parent stays small."""
    from fitrouter_integrations.gateway._worker import work_as_process

    work_as_process(config, listener)


class _Crew:
    """Keeps a number of worker processes alive."""

    def __init__(self, config: Config, workers: int, listener: socket.socket) -> None:
        self._config, self._workers, self._listener = config, workers, listener
        # Spawn, because a fork would copy locks, threads and open databases.
        self._context = multiprocessing.get_context("spawn")
        self._crew: dict[BaseProcess, float] = {}
        self._stopping = threading.Event()
        self._wakeup = socket.socketpair()

    def run(self) -> None:
        """Supervise until SIGTERM or SIGINT."""
        folder = _metrics_folder(self._config.data)
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            for _ in range(self._workers):
                self._start()
            self._supervise()
        finally:
            self._end()
            for number, handler in before.items():
                signal.signal(number, handler)
            del os.environ["PROMETHEUS_MULTIPROC_DIR"]
            shutil.rmtree(folder, ignore_errors=True)
            for end in self._wakeup:
                end.close()

    def _start(self) -> None:
        process = self._context.Process(target=_work, args=(self._config, self._listener), name="fitrouter-worker")
        process.start()
        self._crew[process] = time.monotonic()

    def _supervise(self) -> None:
        """Restart workers that end, with exponential backoff while they fail at their start."""
        failures = 0
        while not self._stopping.is_set():
            ready: list[Any] = wait([self._wakeup[0], *(process.sentinel for process in self._crew)])
            for process in [process for process in self._crew if process.sentinel in ready]:
                lived = time.monotonic() - self._remove(process)
                if self._stopping.is_set():
                    return
                failures = 0 if lived > _SETTLED_S else failures + 1
                if process.exitcode == _FAILED and failures >= _GIVE_UP:
                    raise FitrouterError(f"the workers failed to start {failures} times in a row; see the log")
                _log.warning("worker %s ended with %s; starting another", process.pid, process.exitcode)
                first, longest = _BACKOFF_S
                self._stopping.wait(min(longest, first * 2.0 ** max(0, failures - self._workers)))
                self._start()

    def _remove(self, process: BaseProcess) -> float:
        """Remove a dead worker; returns its start time."""
        from fitrouter_dashboards.metrics import worker_ended

        process.join()
        if process.pid is not None:
            worker_ended(process.pid)
        return self._crew.pop(process)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping.set()
        self._wakeup[1].send(b"x")

    def _end(self) -> None:
        """Terminate all workers, and kill those that do not end in time."""
        for process in self._crew:
            process.terminate()
        deadline = time.monotonic() + _END_S
        for process in self._crew:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
