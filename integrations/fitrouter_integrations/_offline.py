"""The journal of a folder, for commands that run beside a gateway or without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fitrouter.errors import ConfigError
from fitrouter.stores.journal import SqliteJournal


@contextmanager
def journal_at(data: Path) -> Iterator[SqliteJournal]:
    """The journal in a folder; other processes may use it at the same time.

    Raises:
        ConfigError: there is none.
    """
    journal = SqliteJournal(_journal(data))
    try:
        yield journal
    finally:
        journal.close()


def _journal(data: Path) -> Path:
    path = data if data.is_file() else data / "journal.db"
    if not path.is_file():
        raise ConfigError(f"there is no journal {str(path)!r}; a gateway writes one, and --config or --data locates it")
    return path
