"""What was reported about gateways and agents, and what hostile peers achieved, has tests, and these are there."""

from __future__ import annotations

import ast
import tomllib
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmarks.gateway.clients import CLIENTS, KINDS, written

ROOT = Path(__file__).parents[2]
CASES = yaml.safe_load((ROOT / "tests" / "acceptance" / "cases.yaml").read_text(encoding="utf-8"))
HOSTILE = yaml.safe_load((ROOT / "tests" / "acceptance" / "hostile.yaml").read_text(encoding="utf-8"))
LEAST = 5
FIXED = {
    "aiohttp": (3, 14, 3),
    "cryptography": (50,),
    "starlette": (1, 10),
    "jinja2": (3, 1, 6),
    "PyYAML": (5, 4),
    "torch": (2, 8),
    "transformers": (4, 53),
    "langchain-core": (1, 2, 5),
    "litellm": (1, 83),
    "ray[serve]": (2, 52),
    "scikit-learn": (1, 5),
    "pydantic": (2, 4),
    "numpy": (1, 22),
    "duckdb": (1, 4, 2),
}
"""Requirement → the first version without a known hole that matters here."""
OURS_TO_GUARD = ("uvicorn", "httptools")
"""What the HTTP server builds on though it is internal to them: their next versions are to be read first."""


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


@pytest.mark.parametrize("row", HOSTILE)
def test_every_attack_has_a_test(row: str) -> None:
    """With siblings where its kind has inputs: three beside the one that was tried, or two and two ways of each."""
    case = HOSTILE[row]
    file, _, name = case["test"].partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {getattr(node, "name", "") for node in tree.body}
    assert case.get("alone") or rows_of(case["test"], case.get("rows")) >= 2
    assert {int(each.split()[0]) for each in HOSTILE} == {*range(1, 20)} - {12}  # outages, elsewhere


def test_the_page_of_other_clients_is_what_the_bench_writes() -> None:
    """`make bench-clients` replaces its table, and nothing else; each client of the matrix is there, and passed."""
    page = (ROOT / "docs" / "results" / "clients.md").read_text(encoding="utf-8")
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    rows = {name: dict(zip(("version", *KINDS), cells, strict=True)) for name, *cells in lines[1:]}
    assert rows.keys() >= CLIENTS.keys()
    assert {cell.split(":")[0] for row in rows.values() for cell in list(row.values())[1:]} == {"passed", "none"}
    assert written(page, rows) == page
    assert written(page, {}).replace("\n\n\n", "\n\n").count("|") < page.count("|")


def test_lower_bounds_are_above_fixes() -> None:
    """What a resolver may choose has no known hole, and no internals that were not read."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    found = {each.split(">=")[0]: each.split(">=")[1] for each in wanted if ">=" in each}
    for name, fixed in FIXED.items():
        assert tuple(map(int, found[name].split(",")[0].split("."))) >= fixed, name
    for name in OURS_TO_GUARD:
        assert "<" in found[name], f"{name} has no upper bound"
