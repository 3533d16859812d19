"""What the day must notice: a column that is gone, a read that returns nothing. `mutants.yaml` lists both."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

__all__ = [
    "BLANK",
    "COLUMNS",
    "READS",
    "TOGETHER",
    "UNREAD_COLUMNS",
    "UNREAD_READS",
    "blanked",
    "create",
    "drop",
    "reads",
]

BLANK = "FITROUTER_DAY_BLANK"
"""Variable with names of reads that return nothing in a process; see `blank/sitecustomize.py`."""
STORES = "fitrouter.stores"
_LISTED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
_ROWS = re.compile(r"(Sequence|list|dict|set|frozenset|Iterator|tuple)\[|.* \| None$")


def _names(listed: Mapping[str, str]) -> frozenset[str]:
    return frozenset(f"{owner}.{name}" for owner, names in listed.items() for name in names.split())


COLUMNS = _names(_LISTED["columns that surfaces read"])
"""Columns of the warehouse, as table.column."""
UNREAD_COLUMNS = frozenset[str]().union(*map(_names, _LISTED["columns that none reads during the day"].values()))
TOGETHER = [tuple(each.split()) for each in _LISTED["reads of which one stands in for the other"]]
READS = _names(_LISTED["reads that surfaces need"])
"""Methods of the stores, as `reads` names them; besides them, those of `TOGETHER`."""
UNREAD_READS = frozenset[str]().union(*map(_names, _LISTED["reads that none needs during the day"].values()))


def reads() -> dict[str, Callable[..., Any]]:
    """Every public method of a class of the stores that returns rows, or one row or None: `module:Class.method`."""
    found = {}
    for each in pkgutil.walk_packages(importlib.import_module(STORES).__path__, f"{STORES}."):
        module = importlib.import_module(each.name)
        for owner in vars(module).values():
            if not inspect.isclass(owner) or owner.__module__ != each.name or getattr(owner, "_is_protocol", False):
                continue
            for name, method in vars(owner).items():
                if name.startswith("_") or owner.__name__.startswith("_") or not inspect.isfunction(method):
                    continue
                if not hasattr(method, "__wrapped__") and _ROWS.match(str(method.__annotations__.get("return"))):
                    found[f"{each.name.removeprefix(f'{STORES}.')}:{owner.__name__}.{name}"] = method
    return found


def blanks(targets: Iterable[str]) -> list[tuple[type, str, Any]]:
    """Let reads return nothing from now on; returns what puts them back."""
    before = []
    for target in targets:
        module, _, path = target.partition(":")
        name, _, method = path.partition(".")
        owner = getattr(importlib.import_module(f"{STORES}.{module}"), name)
        read = vars(owner)[method]
        before.append((owner, method, read))
        setattr(owner, method, functools.partialmethod(_nothing, str(read.__annotations__["return"])))
    return before


def _nothing(_: object, annotation: str, *arguments: Any, **__: Any) -> Any:
    """Nothing, of the type of an annotation; of several statements, nothing for each."""
    if annotation.endswith("| None"):
        return None
    if annotation.startswith("list[list["):
        return [[] for _ in arguments[0]]
    kinds = {"dict": dict, "set": set, "frozenset": frozenset, "tuple": tuple, "Iterator": lambda: iter(())}
    return kinds.get(annotation.partition("[")[0], list)()


@contextlib.contextmanager
def blanked(targets: Iterable[str]) -> Iterator[None]:
    """Let reads of this process return nothing while the context lasts."""
    before = blanks(targets)
    try:
        yield
    finally:
        for owner, method, read in before:
            setattr(owner, method, read)


def drop(file: Path, columns: Iterable[str]) -> None:
    """Take columns (`table.column`) out of a warehouse, as a migration that forgot its readers would.

    Views that need them are gone, too, and a table without its last column.
    """
    import duckdb

    with duckdb.connect(str(file)) as connection:
        views = connection.execute("SELECT view_name, sql FROM duckdb_views() WHERE NOT internal").fetchall()
        for name, _ in views:
            connection.execute(f'DROP VIEW "{name}"')
        for table, column in (each.split(".") for each in columns):
            last = connection.execute("SELECT count(*) FROM duckdb_columns() WHERE table_name = ?", [table]).fetchone()
            gone = f'DROP TABLE "{table}"' if last == (1,) else f'ALTER TABLE "{table}" DROP COLUMN "{column}"'
            connection.execute(gone)
        create(connection, [statement for _, statement in views])


def create(connection: Any, views: list[str]) -> None:
    """Create views, in whatever order they need each other; those that lack a column are left out."""
    import duckdb

    for _ in views:
        for statement in views:
            with contextlib.suppress(duckdb.BinderException, duckdb.CatalogException):
                connection.execute(statement.replace("CREATE VIEW", "CREATE OR REPLACE VIEW", 1))


def from_environment() -> None:
    """Let the reads that a process's environment names return nothing."""
    if names := os.environ.get(BLANK):
        blanks(names.split())
