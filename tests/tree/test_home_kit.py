"""The proof that nothing leaves the machine can fail."""

from __future__ import annotations

import socket

import pytest
from tests.kits.home import stays_home


@pytest.mark.parametrize(("host", "is_here"), [("127.0.0.1", True), ("192.0.2.1", False)])
def test_an_address_away_from_here_is_noticed(monkeypatch: pytest.MonkeyPatch, host: str, is_here: bool) -> None:
    """Even where whoever looked it up swallowed every error."""

    def look() -> None:
        with stays_home(monkeypatch):
            socket.getaddrinfo(host, 80)

    if is_here:
        look()
    else:
        with pytest.raises(AssertionError, match=r"192\.0\.2\.1"):
            look()
