"""DuckDB tables filled from the journal, for queries, reports and replay. They can be rebuilt at any time."""

from fitrouter.stores.warehouse._feed import WarehouseFeed
from fitrouter.stores.warehouse._migrations import MIGRATIONS, migrate, tables_sql
from fitrouter.stores.warehouse._rows import TABLES, rows_of
from fitrouter.stores.warehouse._warehouse import OutOfStep, Warehouse
from fitrouter.stores.warehouse._words import described

__all__ = [
    "MIGRATIONS",
    "TABLES",
    "OutOfStep",
    "Warehouse",
    "WarehouseFeed",
    "described",
    "migrate",
    "rows_of",
    "tables_sql",
]
