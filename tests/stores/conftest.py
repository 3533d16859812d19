"""A PostgreSQL server for the session, and a database of it for a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.kits import postgres


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
