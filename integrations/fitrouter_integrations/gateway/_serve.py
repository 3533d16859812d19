"""The listening socket, worker processes, and the parent process that restarts them."""

from __future__ import annotations

import ipaddress
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

from fitrouter.config import Config
from fitrouter.errors import ConfigError, FitrouterError, in_words, require
from fitrouter.stores.keys import FILE
from fitrouter_integrations._http import LISTENS, configured_url
from fitrouter_integrations.gateway._keys import Keys
from fitrouter_integrations.gateway._logging import protect_logs

_BACKLOG = 2048
_BACKOFF_S = (0.1, 5.0)
_SETTLED_S = 30.0
"""A worker that lived this long did not fail at its start."""
_GIVE_UP = 5
"""Consecutive failed starts after which the gateway gives up."""
_END_S = 50.0
"""Time that workers have to end: 30 s for requests and 20 s for stores."""
_SERVICES_END_S = 10.0
"""Time that the services process then has to end."""
_FAILED = 3
_MISCONFIGURED = 4
_PRELOADED = (
    "fitrouter_integrations.gateway._worker",
    "fitrouter_integrations.gateway._services",
    "fitrouter_evaluators.scoring.plugin",
)
"""Modules that the fork server loads once for all processes."""
_ROOM_BYTES = 2**20
"""Room that a folder for metrics must have."""
_log = logging.getLogger("fitrouter.gateway")


def require_gateway() -> None:
    """Raise `MissingExtra` if the ASGI framework or its server is not installed."""
    for module in ("starlette", "uvicorn", "httptools"):
        require(module, "the gateway")


def bind(config: Config) -> socket.socket:
    """Open the listening socket; port 0 picks a free one, see `socket.getsockname()[1]`.

    Raises:
        ConfigError: the address is taken or not local, or is not loopback while there are no keys.
        MissingExtra: the ASGI framework or its server is not installed.
    """
    require_gateway()
    host, port = config.server.host, config.server.port
    Keys(config.server, file=config.data / FILE)
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


def serve(
    config: Config, workers: int = 1, listener: socket.socket | None = None, *, services_inside: bool = False
) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight then have 30 seconds to finish.

    Each worker is a process with its own router over the same journal, and one more process scores answers, feeds the
    warehouse and saves snapshots. The parent restarts those that end; they end when the parent does.

    Args:
        config: settings.
        workers: number of processes that serve.
        listener: a socket from `bind`, if the caller needs the port in advance.
        services_inside: run the services in threads of the workers instead; a single worker is then this process.

    Raises:
        ConfigError: the configuration cannot be served.
        FitrouterError: the workers cannot start; see the log.
    """
    protect_logs()
    if workers < 1:
        raise ConfigError(f"workers: got {workers}; give 1 or more")
    os.umask(0o077)  # logs of decisions are nobody else's
    with listener or bind(config) as bound, _noted(config, bound):
        if workers == 1 and services_inside:
            from fitrouter_integrations.gateway._worker import work

            work(config, bound)
        else:
            _Parent(config, workers, bound, services_inside=services_inside).run()


@contextmanager
def _noted(config: Config, bound: socket.socket) -> Iterator[None]:
    """Note the address for commands of the same configuration, which may name another one, as `--port` overrides it."""
    file, server = config.data / LISTENS, config.server.model_copy(update={"port": bound.getsockname()[1]})
    note = f"{os.getpid()} {configured_url(config.model_copy(update={'server': server}))}\n"
    try:
        config.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write_text(note, encoding="utf-8")
    except OSError as error:
        _log.warning("commands ask at the configured address unless --url is given: %s", in_words(error))
    try:
        yield
    finally:
        with suppress(OSError):  # another gateway of the folder may have noted its own, or taken it away
            if file.read_text(encoding="utf-8") == note:
                file.unlink()


def _metrics_folder(data: Path) -> Path | None:
    """Create an empty folder for the workers' metrics; folders of dead parents are removed.

    None if neither the data folder nor one for temporary files can be written: each worker then counts for itself.
    """
    temporary = f"fitrouter-metrics-{os.getuid()}"
    for folders in (data / "metrics", Path("/dev/shm") / temporary, Path(tempfile.gettempdir()) / temporary):  # noqa: S108
        try:
            folders.mkdir(parents=True, exist_ok=True, mode=0o700)
            for folder in folders.iterdir():
                if not folder.name.isdecimal() or not _alive(int(folder.name)):
                    shutil.rmtree(folder, ignore_errors=True)
            mine = folders / str(os.getpid())
            shutil.rmtree(mine, ignore_errors=True)
            mine.mkdir()
            (mine / "room").write_bytes(bytes(_ROOM_BYTES))
            (mine / "room").unlink()
        except OSError as error:
            _log.warning("the workers' metrics cannot be in %s: %s", folders, error)
        else:
            return mine
    return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _work(config: Config, listener: socket.socket, services: bool) -> None:
    """Entry point of a worker; imports the application only there, so that the parent stays small."""
    from fitrouter_integrations.gateway._worker import work_as_process

    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # see `_Parent._begun`
    work_as_process(config, listener, services)


def _run_services(config: Config, parent: Connection) -> None:
    """Entry point of the services process; imports it only there."""
    from fitrouter_integrations.gateway._services import run_services

    run_services(config, parent)


class _Crew:
    """Keeps a number of processes of one kind alive, with exponential backoff while they fail at their start."""

    def __init__(self, name: str, count: int, start: Callable[[], BaseProcess]) -> None:
        self._name, self._count, self._start = name, count, start
        self.living: dict[BaseProcess, float] = {}
        """Process → when it was started."""
        self.failures = 0
        """Consecutive processes that did not settle."""
        self._due = 0.0

    def fill(self) -> float | None:
        """Start missing processes, if it is time; returns the seconds until then, None if none is missing."""
        if len(self.living) == self._count:
            return None
        if (pause := self._due - time.monotonic()) > 0.0:
            return pause
        while len(self.living) < self._count:
            self.living[self._start()] = time.monotonic()
        return None

    def bury(self, ready: Collection[Any]) -> list[int | None]:
        """Remove dead processes; returns their exit codes."""
        from fitrouter_dashboards.samples import worker_ended

        dead = [process for process in self.living if process.sentinel in ready]
        for process in dead:
            process.join()
            if process.pid is not None and "PROMETHEUS_MULTIPROC_DIR" in os.environ:
                worker_ended(process.pid)
            now = time.monotonic()
            self.failures = 0 if now - self.living.pop(process) > _SETTLED_S else self.failures + 1
            first, longest = _BACKOFF_S
            self._due = now + min(longest, first * 2.0 ** max(0, self.failures - self._count))
            _log.warning("%s %s ended with exit code %s", self._name, process.pid, process.exitcode)
        return [process.exitcode for process in dead]

    def join(self, timeout_s: float) -> None:
        """Wait until all have ended, and kill those that do not in time."""
        deadline = time.monotonic() + timeout_s
        for process in self.living:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


class _Parent:
    """Keeps workers and the services process alive."""

    def __init__(self, config: Config, workers: int, listener: socket.socket, *, services_inside: bool) -> None:
        self._config, self._listener, self._inside = config, listener, services_inside
        # No fork of this process, which would copy its files and handlers, but of a server that only loads modules.
        self._context: BaseContext = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        self._context.set_forkserver_preload(["__main__", *_PRELOADED])
        self._workers = _Crew("worker", workers, self._start_worker)
        self._services = _Crew("services process", 0 if services_inside else 1, self._start_services)
        self._line: Connection | None = None
        """The services end when it is closed."""
        self._stopping = False
        self._wakeup = socket.socketpair()

    def run(self) -> None:
        """Supervise until SIGTERM or SIGINT."""
        folder = _metrics_folder(self._config.data)
        if folder is not None:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._supervise()
        finally:
            self._end()
            for number, handler in before.items():
                signal.signal(number, handler)
            if folder is not None:
                del os.environ["PROMETHEUS_MULTIPROC_DIR"]
                shutil.rmtree(folder, ignore_errors=True)
            for end in self._wakeup:
                end.close()

    def _start_worker(self) -> BaseProcess:
        return self._begun(_work, (self._config, self._listener, self._inside), "fitrouter-worker")

    def _start_services(self) -> BaseProcess:
        if self._line is not None:
            self._line.close()
        theirs, self._line = self._context.Pipe(duplex=False)
        process = self._begun(_run_services, (self._config, theirs), "fitrouter-services")
        theirs.close()
        return process

    def _begun(self, target: Callable[..., None], arguments: tuple[object, ...], name: str) -> BaseProcess:
        """Start a process, and first the fork server with SIGTERM blocked.

        Process managers send it to all processes at once, but the server must outlive the workers, since it knows how
        they ended. Where no fork server can be, as its socket has no place in the temporary folder (a full disk, a path
        of more than a hundred characters), processes are spawned from then on.
        """
        resource_tracker.ensure_running()  # it unblocks the signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            process: BaseProcess = self._context.Process(target=target, args=arguments, name=name)  # type: ignore[attr-defined]
            process.start()
        except OSError as error:
            if self._context.get_start_method() == "spawn":
                raise
            _log.warning("no fork server (%s): processes are spawned, which takes longer", in_words(error))
            self._context = multiprocessing.get_context("spawn")
            return self._begun(target, arguments, name)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return process

    def _supervise(self) -> None:
        began, crews = time.monotonic(), (self._workers, self._services)
        while not self._stopping:
            pauses = [pause for crew in crews if (pause := crew.fill()) is not None]
            sentinels = [process.sentinel for crew in crews for process in crew.living]
            ready: list[Any] = wait([self._wakeup[0], *sentinels], min(pauses, default=None))
            if self._stopping:
                return
            self._services.bury(ready)
            codes = self._workers.bury(ready)
            if _MISCONFIGURED in codes and time.monotonic() - began < _SETTLED_S:
                raise FitrouterError("the gateway cannot start; the log says why")
            if _FAILED in codes and (failed := self._workers.failures) >= _GIVE_UP:
                raise FitrouterError(f"the workers failed to start {failed} times in a row; see the log")

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        self._wakeup[1].send(b"x")

    def _end(self) -> None:
        """End the workers, then the services, which log and score what the workers leave."""
        for process in self._workers.living:
            process.terminate()
        self._workers.join(_END_S)
        if self._line is not None:
            self._line.close()
        self._services.join(_SERVICES_END_S)
