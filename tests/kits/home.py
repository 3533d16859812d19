"""Proof that no test connects to another machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["stays_home"]

_HERE = {"127.0.0.1", "localhost", None}


@contextmanager
def stays_home(patched: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Records connections and lookups; on exit it asserts that all were local."""
    found: list[Any] = []
    connected, looked_up = socket.socket.connect, socket.getaddrinfo

    def connecting(self: socket.socket, address: Any) -> Any:
        found.append(address)
        return connected(self, address)

    def looking_up(host: Any, *more: Any, **named: Any) -> Any:
        found.append((host, 0))
        return looked_up(host, *more, **named)

    patched.setattr(socket.socket, "connect", connecting)
    patched.setattr(socket, "getaddrinfo", looking_up)
    yield found
    away = [each for each in found if isinstance(each, tuple) and each[0] not in _HERE]
    assert away == [], f"left the machine: {away}"
