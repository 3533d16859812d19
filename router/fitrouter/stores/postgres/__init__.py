"""The journal and the identities in a PostgreSQL database, shared by gateways on any number of machines."""

from fitrouter.stores.postgres._connect import Database
from fitrouter.stores.postgres._copy import DatabasePlace
from fitrouter.stores.postgres._identities import PostgresIdentities, PostgresRows, has_identities
from fitrouter.stores.postgres._journal import PostgresJournal

__all__ = ["Database", "DatabasePlace", "PostgresIdentities", "PostgresJournal", "PostgresRows", "has_identities"]
