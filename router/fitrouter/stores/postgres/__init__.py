"""The journal in a PostgreSQL database, shared by gateways on any number of machines."""

from fitrouter.stores.postgres._connect import Database
from fitrouter.stores.postgres._copy import DatabasePlace
from fitrouter.stores.postgres._journal import PostgresJournal

__all__ = ["Database", "DatabasePlace", "PostgresJournal"]
