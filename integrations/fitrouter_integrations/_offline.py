"""A router that is not running, for commands that read or change its journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fitrouter.config import Config, ProviderConfig
from fitrouter.errors import ConfigError
from fitrouter.router import Router
from fitrouter.state.learner import Batch, Learner, read_batch
from fitrouter.state.refit import refit
from fitrouter.stores.journal import Journal, SqliteJournal


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


@contextmanager
def resting(config: Config) -> Iterator[Router]:
    """The router of a configuration, with the state of its journal, not started. Needs no provider key.

    Raises:
        ConfigError: there is no journal yet, or a component cannot be made.
    """
    _journal(config.data)
    idle = {name: ProviderConfig(kind="simulated") for name in config.providers}
    router = Router.from_config(config.model_copy(update={"providers": idle}))
    try:
        router.learner.restore(router.journal.snapshot())
        catch_up(router.learner, router.journal, router.journal.head())
        yield router
    finally:
        router.journal.close()
        router.identities.close()


def catch_up(learner: Learner, journal: Journal, until: int) -> None:
    """Fold a journal up to a position, including a requested rebuild."""
    while learner.seq < until and (rows := read_batch(journal, learner.seq).rows):
        learner.apply_batch(Batch([(row, related) for row, related in rows if row.seq <= until]))
        if rows[-1][0].seq > until:
            break
    if learner.stale:
        learner.take(refit(journal, learner, learner.seq))
