"""What the house rules say of the tree itself."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("fitrouter", "fitrouter_evaluators", "fitrouter_dashboards", "fitrouter_integrations")
HEAVY = (
    "torch",
    "litellm",
    "langchain",
    "crewai",
    "sentence_transformers",
    "sklearn",
    "duckdb",
    "aiohttp",
    "pydantic",
    "starlette",
    "fastapi",
    "uvicorn",
)


def sources() -> list[Path]:
    return sorted(
        path
        for folder in ("router", "evaluators", "dashboards", "integrations")
        for path in (ROOT / folder).rglob("*.py")
    )


def modules() -> list[str]:
    found = []
    for package in PACKAGES:
        root = importlib.import_module(package)
        found += [package, *(m.name for m in pkgutil.walk_packages(root.__path__, f"{package}."))]
    return found


def test_import_is_light() -> None:
    """`import fitrouter` imports none of the heavy packages."""
    code = f"import sys, json, fitrouter; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == []


def test_layers_hold() -> None:
    """Layers: integrations → dashboards → evaluators → fitrouter: imports run one way."""
    lint = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([lint], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("name", PACKAGES)
def test_packages_are_typed(name: str) -> None:
    """Each package tells type checkers that it has types."""
    assert Path(str(importlib.import_module(name).__file__)).with_name("py.typed").exists()


@pytest.mark.parametrize("name", [name for name in modules() if not name.endswith("__main__")])
def test_all_is_what_is_there(name: str) -> None:
    """`__all__` is sorted without regard to underscore rules, and every name in it exists."""
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", None)
    if exported is None:
        return
    assert len(set(exported)) == len(exported)
    for item in exported:
        assert hasattr(module, item), f"{name}.__all__ lists {item!r}"


def test_no_pickle_no_exec() -> None:
    """Model files are data: no pickle, joblib, torch.load, eval or exec anywhere."""
    forbidden = {"pickle", "joblib", "dill", "cloudpickle", "marshal", "shelve"}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not forbidden & {alias.name.split(".")[0] for alias in node.names}, path
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in forbidden, path
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec"}, f"{path}:{node.lineno}"
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) != ("torch", "load"), path


def test_sql_is_constant() -> None:
    """No statement is built out of values: what reaches `execute` has no f-string with a value in it."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr in {"execute", "executemany", "sql"} and node.args:
                built = [part for part in ast.walk(node.args[0]) if isinstance(part, ast.FormattedValue)]
                names = {part.value.id for part in built if isinstance(part.value, ast.Name)}
                names -= {name for name in names if name.lstrip("_").isupper()}  # constants of a module
                # Names of tables, columns and readers are constants of our own.
                assert all(isinstance(part.value, ast.Name) for part in built), f"{path}:{node.lineno}"
                assert names <= {"table", "columns", "reader", "name", "marks"}, f"{path}:{node.lineno} {names}"


def test_nothing_prints() -> None:
    """Packages speak through logging, hooks and the command line's console."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{path}:{node.lineno}"


def imports_of(path: Path, known: frozenset[str]) -> set[str]:
    """The product's modules that a file imports anywhere: lazily and for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found.update(name if name in known else node.module for name in names)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found & known


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_import_cycle() -> None:
    """The import graph has no cycle, lazy and TYPE_CHECKING imports included."""
    files = {module_of(path): path for path in sources()}
    known = frozenset(files)
    graph = {name: imports_of(path, known) - {name} for name, path in files.items()}
    # A module's own packages are initialised first whatever it imports.
    sorter = TopologicalSorter({n: {o for o in others if not n.startswith(f"{o}.")} for n, others in graph.items()})
    sorter.prepare()  # raises CycleError with the cycle


def test_folders_are_small() -> None:
    """A folder of the product has at most twenty modules and folders."""
    for top in ("router", "evaluators", "dashboards", "integrations"):
        for folder in filter(Path.is_dir, (ROOT / top).rglob("*")):
            inside = [p for p in folder.iterdir() if p.suffix == ".py" or (p.is_dir() and p.name != "__pycache__")]
            assert len(inside) <= 20, folder
