"""A PostgreSQL server for the session, a database of it for a test, and identity stores of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kits import postgres
from tests.kits.identity_stores import PostgresStore, SqliteStore, Store


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    if postgres.binaries() is None:
        pytest.skip(postgres.MISSING)
    with postgres.serving() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: postgres.Server) -> str:
    return postgres_server.url(postgres_server.database())


@pytest.fixture
def postgres_journal() -> type:
    from fitrouter.stores.postgres import PostgresJournal

    return PostgresJournal


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A place of identities, of each kind."""
    folder = tmp_path / "identities"
    folder.mkdir()
    if request.param == "sqlite":
        return SqliteStore(folder)
    monkeypatch.setattr("fitrouter.stores.postgres._listen._LOOK_S", 0.05)  # closing waits for it
    return PostgresStore(folder, request.getfixturevalue("postgres_server"))
