"""The journal as DuckDB tables, for people, reports and replay. It can be rebuilt at any time."""

from fitrouter.stores.warehouse._feed import WarehouseFeed
from fitrouter.stores.warehouse._migrations import MIGRATIONS, migrate
from fitrouter.stores.warehouse._rows import TABLES, rows_of
from fitrouter.stores.warehouse._warehouse import OutOfStep, Warehouse

__all__ = ["MIGRATIONS", "TABLES", "OutOfStep", "Warehouse", "WarehouseFeed", "migrate", "rows_of"]
