"""DuckDB tables filled from the journal, for queries, reports and replay. They can be rebuilt at any time."""

from fitrouter.stores.warehouse._feed import WarehouseFeed
from fitrouter.stores.warehouse._schema import TABLES, rows_of, schema, tables_sql
from fitrouter.stores.warehouse._warehouse import PERSONAL, OutOfStep, Warehouse, create, is_lock_error, is_present
from fitrouter.stores.warehouse._words import described

__all__ = [
    "PERSONAL",
    "TABLES",
    "OutOfStep",
    "Warehouse",
    "WarehouseFeed",
    "create",
    "described",
    "is_lock_error",
    "is_present",
    "rows_of",
    "schema",
    "tables_sql",
]
