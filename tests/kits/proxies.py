"""A TCP proxy before a server on a Unix socket, which a test can cut or turn into a black hole."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Proxy:
    """Passes on what comes to a loopback port.

    Args:
        target: the server's Unix socket.
    """

    def __init__(self, target: Path) -> None:
        self._target, self._open = target, threading.Event()
        self._open.set()
        self._cut = False
        self._mutex, self._sockets = threading.Lock(), set[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and every new one at once."""
        self._cut = True
        self._end()

    def swallow(self) -> None:
        """Take bytes and pass none on; connections stay."""
        self._open.clear()

    def restore(self) -> None:
        """Pass on again; connections that were swallowed are ended, as their peers have given up."""
        if not self._open.is_set():
            self._end()
        self._cut = False
        self._open.set()

    def close(self) -> None:
        """End everything."""
        self._cut = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._open.set()
        self._end()

    def _end(self) -> None:
        with self._mutex:
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            if self._cut:
                return
            server.connect(str(self._target))
            with self._mutex:
                self._sockets |= {client, server}
            back = threading.Thread(target=self._pass, args=(server, client), daemon=True)
            back.start()
            self._pass(client, server)
            back.join()
        with self._mutex:
            self._sockets -= {client, server}

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxied(target: Path) -> Iterator[Proxy]:
    """A proxy that is gone at the end."""
    proxy = Proxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
