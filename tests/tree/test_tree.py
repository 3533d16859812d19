"""Rules about the source tree: imports, layers, faces, private names, forbidden calls, sizes."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType

from benchmarks.mutants.known import KNOWN

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
    "uvicorn",
)


FOLDERS = ("router", "evaluators", "dashboards", "integrations")


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders or FOLDERS for path in (ROOT / folder).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file, which most of the tests here walk."""
    return ast.parse(path.read_text(encoding="utf-8"))


def faces() -> list[ModuleType]:
    """The packages of the product, whose `__init__` lists what they offer."""
    found = []
    for name in PACKAGES:
        root = importlib.import_module(name)
        inner = (m.name for m in pkgutil.walk_packages(root.__path__, f"{name}.") if m.ispkg)
        found += [root, *map(importlib.import_module, inner)]
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


def test_packages_are_typed() -> None:
    """Each package tells type checkers that it has types."""
    for name in PACKAGES:
        assert Path(str(importlib.import_module(name).__file__)).with_name("py.typed").exists(), name


def test_faces_list_what_they_offer() -> None:
    """Names in `__all__` exist, once each, sorted: constants, classes, functions."""
    for face in faces():
        exported: list[str] = getattr(face, "__all__", [])
        assert len(set(exported)) == len(exported), face.__name__
        assert exported == sorted(exported, key=lambda name: (not name.isupper(), not name[0].isupper(), name)), face
        for item in exported:
            assert hasattr(face, item), f"{face.__name__}.__all__ lists {item!r}"


def test_only_faces_have_all() -> None:
    """Modules inside a package need no `__all__`: their public names are those without an underscore."""
    for path in sources():
        if path.name != "__init__.py":
            assert "\n__all__" not in path.read_text(encoding="utf-8"), path


PRIVATE = re.compile(r"_(?!_)\w*")
NAMED_TUPLE = frozenset({"_asdict", "_fields", "_make", "_replace"})
"""Public names of named tuples, which begin with an underscore so that no field hides them."""
THIRD_PARTY = {
    "crewai/_identity.py": "CrewAI keeps the events that a call is in on a stack without a public name",
    "crewai/_llm.py": "CrewAI counts tokens and registers kinds of model under private names only",
    "crewai/_turn.py": "CrewAI's own models emit events and run hooks through these methods, for subclasses to call",
    "gateway/_services.py": "as gateway/_worker.py",
    "gateway/_worker.py": "os._exit is Python's only way to end a process whose threads hang",
    "litellm/_observer.py": "litellm's worker flushes at exit through a private method only",
    "litellm/_provider.py": "litellm's cost accounting reads `_hidden_params` of a response",
}
"""Files of the integrations that use private names of other projects, and why; none of these names is the core's."""


def defined_in(tree: ast.AST) -> set[str]:
    """Private names that a module defines: functions, classes, variables, fields, attributes of `self`."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                found.add(name)
    return {name for name in found if PRIVATE.fullmatch(name)}


def private_accesses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Private attributes of anything but the object itself, and private names and modules that are imported."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super"))):
                continue
            case ast.Attribute(attr=name) if PRIVATE.fullmatch(name):
                yield node.lineno, name
            case ast.ImportFrom(module=str(module), names=names):
                for name in [*module.split("."), *(alias.name for alias in names)]:
                    if PRIVATE.fullmatch(name):
                        yield node.lineno, f"{module}.{name}"
            case ast.Import(names=names):
                for alias in names:
                    if any(PRIVATE.fullmatch(name) for name in alias.name.split(".")):
                        yield node.lineno, alias.name


def test_nothing_private_is_used_outside_its_package() -> None:
    """Evaluators, dashboards and integrations use public names of the core, of each other and of other projects.

    A private attribute of another object is allowed where the module itself defines the name: it belongs to one of its
    own classes. The core's own private names are never among the exceptions.
    """
    core = set().union(*(defined_in(parsed(path)) for path in sources("router")))
    used = set()
    for path in sources("evaluators", "dashboards", "integrations"):
        tree = parsed(path)
        package, file = module_of(path).split(".")[0], path.relative_to(ROOT).as_posix()
        own = defined_in(tree)
        exempt = next((name for name in THIRD_PARTY if file == f"integrations/fitrouter_integrations/{name}"), None)
        for line, name in private_accesses(tree):
            if name in own | NAMED_TUPLE or name.startswith(f"{package}."):
                continue
            assert exempt is not None, f"{file}:{line} uses {name}"
            assert name not in core, f"{file}:{line} uses {name} of the core"
            assert not name.startswith(PACKAGES), f"{file}:{line} imports {name}"
            used.add(exempt)
    assert used == set(THIRD_PARTY), "an exception that nothing needs any more"


def test_no_pickle_no_exec() -> None:
    """Model files are data: no pickle, joblib, torch.load, eval or exec anywhere."""
    forbidden = {"pickle", "joblib", "dill", "cloudpickle", "marshal", "shelve"}
    for path in sources():
        for node in ast.walk(parsed(path)):
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
        for node in ast.walk(parsed(path)):
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
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{path}:{node.lineno}"


def imports_of(path: Path, known: frozenset[str]) -> set[str]:
    """The product's modules that a file imports anywhere: lazily and for type checkers too."""
    found = set()
    for node in ast.walk(parsed(path)):
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
    for top in FOLDERS:
        for folder in filter(Path.is_dir, (ROOT / top).rglob("*")):
            inside = [p for p in folder.iterdir() if p.suffix == ".py" or (p.is_dir() and p.name != "__pycache__")]
            assert len(inside) <= 20, folder


def test_known_mutants_are_current() -> None:
    """Each guard of `benchmarks.mutants.known` is in its file once, and the tests that have to notice exist."""
    for known in KNOWN:
        assert (ROOT / known.file).read_text().count(known.text) == 1, known.name
        for file, test in (each.split("::") for each in known.tests):
            assert f"def {test}(" in (ROOT / file).read_text(), known.name
