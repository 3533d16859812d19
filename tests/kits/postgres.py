"""A PostgreSQL server of the test's own: Debian's binaries, an unprivileged user, a socket in a temporary folder."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_WAIT_S = 60.0
MISSING = "PostgreSQL's binaries are missing; install Debian's package `postgresql`"


def binaries() -> Path | None:
    """The folder of `initdb` and `postgres`; None without psycopg or one of them."""
    try:
        import psycopg  # noqa: F401
    except ModuleNotFoundError:
        return None
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    folders = [*found, *map(Path, os.environ.get("PATH", "").split(os.pathsep))]
    return next((each for each in folders if (each / "initdb").is_file()), None)


class Server:
    """A server, without TCP unless it gets an address; `fsync` only where a test kills it.

    Args:
        folder: for its data and its socket.
        fsync: whether commits reach the disk.
        primary: a running server that this one follows as its standby; None for a server of its own.
        listen: its address for TCP; all of that network are let in.
    """

    def __init__(self, folder: Path, *, fsync: bool = False, primary: Server | None = None, listen: str = "") -> None:
        found = binaries()
        assert found is not None, MISSING
        self.folder, self.bin, self._numbers = folder, found, itertools.count()
        self._as = ["setpriv", "--pdeathsig=QUIT"]  # it dies with the tests, however they end
        if os.getuid() == 0:  # the server refuses to run as root
            user = "postgres" if subprocess.run(["id", "postgres"], capture_output=True).returncode == 0 else "nobody"
            self._as += [f"--reuid={user}", "--regid=nogroup", "--clear-groups"]
            shutil.chown(folder, user)
        self._options = [
            "-c",
            f"listen_addresses={listen}",
            "-c",
            f"unix_socket_directories={folder}",
            *([] if fsync else ["-F"]),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        data = str(folder / "data")
        if primary is None:
            self._run("initdb", "-D", data, "-A", "trust", "-U", "admin", "--no-sync", "--no-instructions")
        else:
            source = f"host={primary.folder} user=admin"
            self._run("pg_basebackup", "-D", data, "-d", source, "-R", "-X", "stream", "-c", "fast", "--no-sync")

        if listen:
            with (folder / "data" / "pg_hba.conf").open("a") as rules:
                rules.write("host all all samenet trust\n")

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = [
            "-D",
            str(self.folder / "data"),
            "-c",
            "shared_buffers=64MB",
            "-c",
            "max_connections=60",
            *self._options,
        ]
        self._process = None
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline:
            # It ends at once while a process of a killed server has not ended and still holds the shared memory.
            if self._process is None or self._process.poll() is not None:
                with (self.folder / "log").open("ab") as log:
                    self._process = subprocess.Popen(
                        [*self._as, str(self.bin / "postgres"), *options],
                        stdout=log,
                        stderr=log,
                        cwd="/",
                        start_new_session=True,
                    )
            if subprocess.run([self.bin / "pg_isready", "-q", "-h", self.folder]).returncode == 0:
                return
            time.sleep(0.02)
        raise AssertionError((self.folder / "log").read_text())

    def kill(self) -> None:
        """Kill -9 of the server and all its processes, as a power cut would."""
        assert self._process is not None
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self._process.pid)], capture_output=True, text=True
        )
        for pid in (self._process.pid, *map(int, children.stdout.split())):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Stop at once, without caring for connections."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def url(self, name: str, user: str = "admin") -> str:
        """The URL of a database."""
        return f"postgresql://{user}@/{name}?host={self.folder}"

    def sql(self, statement: str, name: str = "postgres") -> list[tuple[object, ...]]:
        """Run a statement as the superuser."""
        import psycopg

        with psycopg.connect(self.url(name), autocommit=True) as session:
            cursor = session.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def database(self, template: str = "template1") -> str:
        """The name of a new database."""
        name = f"test{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def _run(self, *command: str) -> None:
        subprocess.run([*self._as, str(self.bin / command[0]), *command[1:]], check=True, capture_output=True, cwd="/")


@contextmanager
def serving(*, fsync: bool = False, primary: Server | None = None, listen: str = "") -> Iterator[Server]:
    """A running server, or the standby of one, which is gone at the end."""
    with tempfile.TemporaryDirectory(prefix="fitrouter-pg-") as folder:
        server = Server(Path(folder), fsync=fsync, primary=primary, listen=listen)
        try:
            server.start()
            yield server
        finally:
            server.stop()
