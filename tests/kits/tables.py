"""Table-driven tests: one case runs every row, each as a subtest that a failure names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import pytest

SHOWN = 120


Test: TypeAlias = Callable[..., None]


def table_driven(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """`pytest.mark.parametrize` in one case: for laws with many cheap rows. All rows run, whichever fail.

    Fixtures are made once for all rows, but `tmp_path` is a new folder for each, and what `monkeypatch` changes is
    undone after each.

    Args:
        names: of the arguments, as in `pytest.mark.parametrize`.
        rows: their values.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    alone = isinstance(names, str) and len(keys) == 1
    filled = [dict(zip(keys, (row,) if alone else row, strict=True)) for row in rows]
    assert filled, "a table without rows tests nothing"

    def decorate(test: Test) -> Test:
        assert not inspect.iscoroutinefunction(test)
        assert not hasattr(test, "hypothesis"), "a property test already tries many rows in one case: draw the row too"
        wanted = inspect.signature(test)
        kept = {name: each for name, each in wanted.parameters.items() if name not in keys}
        nested, within, patched = ("subtests" in kept, "tmp_path" in kept, "monkeypatch" in kept)
        kept["subtests"] = inspect.Parameter("subtests", inspect.Parameter.POSITIONAL_OR_KEYWORD)

        @functools.wraps(test)
        def every(subtests: pytest.Subtests, **fixtures: Any) -> None:
            own = {"subtests": subtests} if nested else {}
            for number, row in enumerate(filled):
                named = {name: repr(value)[:SHOWN] for name, value in row.items()}
                with ExitStack() as stack:
                    if patched:
                        own["monkeypatch"] = stack.enter_context(fixtures["monkeypatch"].context())
                    if within:
                        own["tmp_path"] = fixtures["tmp_path"] / f"row-{number}"
                        own["tmp_path"].mkdir()
                    with subtests.test(row=number, **named):
                        test(**{**fixtures, **own}, **row)

        every.__signature__ = wanted.replace(parameters=list(kept.values()))  # type: ignore[attr-defined]
        return every

    return decorate
