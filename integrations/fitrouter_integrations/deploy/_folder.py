"""Whether all replicas see the same data folder: the deployment leaves a mark, and each replica looks for it."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

from fitrouter.errors import ConfigError

FILE = "deployment.id"


def marked(folder: Path) -> str:
    """Return the mark of the data folder, which the first deployment writes.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (found := read(folder)):
            found = secrets.token_hex(8)
            (folder / FILE).write_text(found, encoding="ascii")
    except OSError as error:
        raise ConfigError(f"the data folder {str(folder)!r} cannot be written: {error.strerror}") from None
    return found


def read(folder: Path) -> str:
    """Read the mark of the data folder; empty if there is none."""
    try:
        return (folder / FILE).read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(f"the data folder {str(folder)!r} cannot be read: {error.strerror}") from None


def require_same(folder: Path, mark: str) -> None:
    """Check that this machine has the deployment's folder.

    Raises:
        ConfigError: the folder is not there, or is another one.
    """
    if read(folder) != mark:
        raise ConfigError(
            f"{str(folder)!r} on the machine {socket.gethostname()!r} is not the folder of this deployment; all "
            "machines of the cluster need it under the same path: put it on a volume that they share"
        )
