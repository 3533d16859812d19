"""Each kind of trouble that was reported about gateways and agents has a table of inputs, and the tests are there."""

from __future__ import annotations

import ast
from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CASES = yaml.safe_load((ROOT / "tests" / "acceptance" / "cases.yaml").read_text(encoding="utf-8"))
LEAST = 5


def rows_of(test: str, table: str | None) -> int:
    """Number of inputs of a test: of its parameters, of its rows, or of the constant that it goes through."""
    file, _, name = test.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    (function,) = (each for each in tree.body if getattr(each, "name", "") == name)
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    tables: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            tables[ast.unparse(target)] = node.value
    if table is not None:
        assert any(isinstance(each, ast.Name) and each.id == table for each in ast.walk(function)) or any(
            table in ast.unparse(each) for each in function.decorator_list
        ), f"{test} does not use {table}"
        return length(tables[table])
    given = [
        each for each in function.decorator_list if "parametrize" in ast.unparse(each) or "table" in ast.unparse(each)
    ]
    assert given, f"{test} has no parameters"
    return prod(length(named(each.args[1], tables)) for each in given if isinstance(each, ast.Call))


def named(node: ast.expr, tables: dict[str, ast.expr]) -> ast.expr:
    """The constant that an expression takes its values from, or itself."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "values":
        node = node.func.value
    return tables[node.id] if isinstance(node, ast.Name) else node


def length(node: ast.expr) -> int:
    """Number of entries that are written in a list, tuple or mapping."""
    assert isinstance(node, ast.Dict | ast.List | ast.Tuple), ast.unparse(node)
    return len(node.values if isinstance(node, ast.Dict) else node.elts)


@pytest.mark.parametrize("kind", CASES)
def test_every_kind_has_a_table_of_siblings(kind: str) -> None:
    """At least five inputs, counted in the source of the test."""
    case: dict[str, Any] = CASES[kind]
    assert rows_of(case["test"], case.get("rows")) >= LEAST


def test_a_short_table_would_be_noticed() -> None:
    """The count is of what is written: this one has two."""
    assert rows_of("tests/gateway/test_cors.py::test_a_listed_page_reaches_the_models", None) == 2
    assert len(CASES) == 29
