"""Regenerate what is generated in docs/: `make docs`, or `python docs/build.py --check` to compare only.

Generated are the pictures, and the parts of pages between `<!-- NAME -->` and `<!-- end -->`:

- `settings` in configuration.md, from the pydantic models of `fitrouter.config` and their docstrings;
- `routes` in http-api.md, from the OpenAPI schema of the gateway;
- `metrics` in deployment.md, from the metrics' own help texts.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import sys
import tempfile
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pictures
import pydantic
from pydantic_core import PydanticUndefined

from fitrouter import config

DOCS = Path(__file__).resolve().parent


# --- configuration.md ----------------------------------------------------------------------------------------------


def settings() -> str:
    """Tables of all settings, a section for each model of the configuration."""
    return "\n".join(_section("", config.Config, "Top level"))


def _section(prefix: str, model: type[pydantic.BaseModel], title: str) -> Iterator[str]:
    texts = _docstrings(model)
    yield f"## {title}\n"
    if prefix:
        yield f"{inspect.getdoc(model)}\n"
    yield "| setting | type | default | |"
    yield "|---|---|---|---|"
    nested = []
    for name, field in model.model_fields.items():
        inner = _model_in(field.annotation)
        text = texts.get(name, "")
        if inner is not None:
            place = f"{prefix}{name}{_shape(field.annotation)}"
            nested.append((f"{place}.", inner, place))
            text = f"{text} See [`{place}`](#{_anchor(place)})".strip() + "."
        shown = _default(field) if inner is None or field.is_required() or field.default is None else ""
        yield f"| `{prefix}{name}` | {_type(field)} | {shown} | {text} |"
    yield ""
    for place, inner, name in nested:
        yield from _section(place, inner, f"`{name}`")


def _anchor(place: str) -> str:
    """The anchor that GitHub gives the heading `` `place` ``."""
    return re.sub(r"[^a-z0-9_ -]", "", place.lower()).replace(" ", "-")


def _docstrings(model: type[pydantic.BaseModel]) -> dict[str, str]:
    """Field → the docstring under it, of the class and of those that it inherits from."""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if cls.__module__ != config.__name__:
            continue
        body = ast.parse(inspect.getsource(cls)).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found[field.target.id] = " ".join(str(below.value.value).split()).replace("|", "\\|")
    return found


def _model_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := _model_in(part))), None)


def _shape(annotation: Any) -> str:
    origin = typing.get_origin(annotation)
    return ".NAME" if origin is dict else "[]" if origin is tuple else ""


def _type(field: Any) -> str:
    limits = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {getattr(rule, name):g}"
        for rule in field.metadata
        for name, sign in limits.items()
        if getattr(rule, name, None) is not None
    ]
    return ", ".join([_type_name(field.annotation), *bounds])


def _type_name(annotation: Any) -> str:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type_name(parts[0])
    if origin is typing.Literal:
        return " or ".join(f"`{part}`" for part in parts)
    if origin is tuple:
        return f"list of {_type_name(parts[0])}"
    if origin is dict:
        return f"map of {_type_name(parts[1])}"
    if origin is not None:  # a union with None
        return " or ".join(_type_name(part) for part in parts if part is not type(None))
    if _model_in(annotation):
        return "section"
    names = {str: "text", float: "number", int: "whole number", bool: "true or false", Path: "path", Any: "any"}
    return names.get(annotation, str(annotation))


def _default(field: Any) -> str:
    if field.default is PydanticUndefined:
        return "required"
    value = field.default
    if value is None:
        return "none"
    if isinstance(value, Path):
        value = str(value)
    return f"`{json.dumps(value)}`"


# --- http-api.md ---------------------------------------------------------------------------------------------------


def routes() -> str:
    """A section for each route of the gateway: its fields, headers and status codes."""
    from fitrouter.router import Router
    from fitrouter_integrations.gateway import create_app

    plain = {"providers": {"p": {"kind": "simulated"}}, "models": [{"name": "m", "provider": "p"}]}
    with tempfile.TemporaryDirectory() as folder:
        parsed = config.parse_config({**plain, "data": folder, "encoder": "hashing", "scorer": {"encoder": "hashing"}})
        schema = create_app(Router.from_config(parsed), parsed).openapi()
    lines = []
    for path, methods in schema["paths"].items():
        for method, shape in methods.items():
            lines += [f"## {method.upper()} {path}", "", shape["summary"], ""]
            lines += list(_fields(shape))
            codes = ", ".join(sorted(code for code in shape["responses"] if code != "422"))
            lines += [f"Status codes: {codes}.", ""]
    return "\n".join(lines)


def _fields(shape: dict[str, Any]) -> Iterator[str]:
    headers = [f"`{part['name']}`" for part in shape.get("parameters", ()) if part["in"] == "header"]
    if headers:
        yield f"Headers: {', '.join(headers)}.\n"
    if "requestBody" not in shape:
        return
    body = shape["requestBody"]["content"]["application/json"]["schema"]
    yield "| field | type | |"
    yield "|---|---|---|"
    for name, field in body["properties"].items():
        text = "; ".join(filter(None, ("required" if name in body["required"] else "", field.get("description", ""))))
        if "default" in field:
            text = "; ".join(filter(None, (text, f"default `{json.dumps(field['default'])}`")))
        yield f"| `{name}` | {_json_type(field)} | {text} |"
    if body.get("additionalProperties"):
        yield "\nOther fields are passed to the model as request parameters."
    yield ""


def _json_type(field: dict[str, Any]) -> str:
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    return str(field.get("type", "any"))


# --- deployment.md -------------------------------------------------------------------------------------------------


def metrics() -> str:
    """A table of the Prometheus metrics."""
    from prometheus_client import CollectorRegistry

    from fitrouter_dashboards.metrics import Metrics

    registry = CollectorRegistry(auto_describe=False)
    Metrics(registry)
    lines = ["| metric | kind | labels | |", "|---|---|---|---|"]
    named = {id(collector): collector for collector in registry._collector_to_names}
    for collector in named.values():
        for metric in collector.collect():
            labels = ", ".join(f"`{label}`" for label in getattr(collector, "_labelnames", ()))
            suffix = "_total" if metric.type == "counter" else ""
            lines.append(f"| `{metric.name}{suffix}` | {metric.type} | {labels} | {metric.documentation} |")
    return "\n".join(lines) + "\n"


# --- all of it -----------------------------------------------------------------------------------------------------

PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "configuration.md": ("settings", settings),
    "http-api.md": ("routes", routes),
    "deployment.md": ("metrics", metrics),
}


def built() -> dict[Path, str]:
    """File → what it should contain."""
    results = json.loads((DOCS / "results" / "demo.json").read_text(encoding="utf-8"))
    found = {
        DOCS / "pictures" / "demo.svg": pictures.demo(results),
        DOCS / "pictures" / "request-path.svg": pictures.request_path(),
        DOCS / "pictures" / "probabilities.svg": pictures.probabilities(),
        DOCS / "pictures" / "terms.svg": pictures.terms(),
        DOCS / "pictures" / "events.svg": pictures.events(),
    }
    for page, (name, make) in PARTS.items():
        text = (DOCS / page).read_text(encoding="utf-8")
        before, _, rest = text.partition(f"<!-- {name} -->\n")
        _, _, after = rest.partition("<!-- end -->")
        found[DOCS / page] = f"{before}<!-- {name} -->\n\n{make()}\n<!-- end -->{after}"
    return found


def main() -> int:
    """Write the files, or compare them; the exit code is 1 where some differ."""
    parser = argparse.ArgumentParser(description="Regenerate what is generated in docs/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is out of date")
    check = parser.parse_args().check
    stale = {
        path: text for path, text in built().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    for path, text in stale.items():
        print(f"{path.relative_to(DOCS.parent)} {'is out of date; run `make docs`' if check else 'written'}")
        if not check:
            path.write_text(text, encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
