"""Regenerate what is generated in docs/: `make docs`, or `python docs/build.py --check` to compare only.

Generated are the pictures, and the parts of pages between `<!-- NAME -->` and `<!-- end -->`:

- `settings` in configuration.md, from the pydantic models of `fitrouter.config` and their docstrings;
- `errors` and `routes` in http-api.md, from the codes of the gateway's errors and its OpenAPI schema;
- `metrics` in deployment.md, from the metrics' own help texts;
- `tables` in warehouse.md, from the comments in the database;
- `providers` in own-models.md, from what `fitrouter init` knows.

Measured figures that README and docs quote are generated, too: `<!--q NAME-->` and `<!--/q-->` enclose the figure NAME
of results/quoted.json, which is computed from results/demo.json, or is the text that stands on its page of results.
That file is taken from those of two demos: `python docs/build.py --demo demo.json null.json`.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import re
import sys
import tempfile
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pictures
import pydantic
from pydantic_core import PydanticUndefined

from fitrouter import config
from fitrouter.providers import Persona
from fitrouter.state.settings import described

DOCS = Path(__file__).resolve().parent


# --- configuration.md ----------------------------------------------------------------------------------------------


def settings() -> str:
    """Tables of all settings, a section for each model of the configuration, and the options of simulated models."""
    return "\n".join([*_section("", config.Config, "Top level"), *_persona()])


def _persona() -> Iterator[str]:
    texts = _texts(Persona)
    yield "## `providers.NAME.options.MODEL` of the kind `simulated`\n"
    yield "| option | default | |"
    yield "|---|---|---|"
    for field in msgspec.structs.fields(Persona):
        default = field.default if field.default is not msgspec.NODEFAULT else {}
        yield f"| `{field.name}` | `{json.dumps(default)}` | {texts[field.name]} |"
    yield ""


def _section(prefix: str, model: type[pydantic.BaseModel], title: str) -> Iterator[str]:
    texts = _texts(model)
    yield f"## {title}\n"
    if prefix:
        yield f"{inspect.getdoc(model)}\n"
    yield "| setting | type | default | |"
    yield "|---|---|---|---|"
    nested = []
    for name, field in model.model_fields.items():
        inner = config.section_in(field.annotation)
        text = texts.get(name, "")
        if inner is not None:
            place = f"{prefix}{name}{_shape(field.annotation)}"
            nested.append((f"{place}.", inner, place))
            text = f"{text} See [`{place}`](#{_anchor(place)})".strip() + "."
        shown = _default(field) if inner is None or field.is_required() or field.default is None else ""
        yield f"| `{prefix}{field.alias or name}` | {_type(field)} | {shown} | {text} |"
    yield ""
    for place, inner, name in nested:
        yield from _section(place, inner, f"`{name}`")


def _anchor(place: str) -> str:
    """The anchor that GitHub gives the heading `` `place` ``."""
    return re.sub(r"[^a-z0-9_ -]", "", place.lower()).replace(" ", "-")


def _texts(model: type) -> dict[str, str]:
    """Field → its description, for a cell of a table."""
    return {name: text.replace("|", "\\|") for name, text in described(model).items()}


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
    if config.section_in(annotation):
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


def errors() -> str:
    """A table of the error codes."""
    from fitrouter_integrations.gateway.parsing._schema import error_codes

    lines = ["| status | code | when | what to do |", "|---|---|---|---|"]
    for code, error in sorted(error_codes().items(), key=lambda item: item[1]["statuses"]):
        statuses = ", ".join(map(str, error["statuses"]))
        lines.append(f"| {statuses} | `{code}` | {error['when']} | {error['do']} |")
    return "\n".join(lines) + "\n"


def routes() -> str:
    """A section for each route of the gateway: its fields, headers and status codes."""
    from fitrouter.router import Router
    from fitrouter_dashboards.metrics import Metrics
    from fitrouter_integrations.gateway._app import Gateway

    plain = {"providers": {"p": {"kind": "simulated"}}, "models": [{"name": "m", "provider": "p"}]}
    with tempfile.TemporaryDirectory() as folder:
        parsed = config.parse_config({**plain, "data": folder, "encoder": "hashing", "scorer": {"encoder": "hashing"}})
        schema = Gateway(Router.from_config(parsed), parsed, Metrics()).document()
    lines = []
    for path, methods in schema["paths"].items():
        for method, shape in methods.items():
            lines += [f"## {method.upper()} {path}", "", shape["summary"], ""]
            lines += list(_fields(shape))
            codes = ", ".join(sorted(shape["responses"]))
            lines += [f"Status codes: {codes}.", ""]
    return "\n".join(lines)


def _fields(shape: dict[str, Any]) -> Iterator[str]:
    headers = [f"`{part['name']}`" for part in shape.get("parameters", ()) if part["in"] == "header"]
    if headers:
        yield f"Headers: {', '.join(headers)}.\n"
    query = [f"`{part['name']}`" for part in shape.get("parameters", ()) if part["in"] == "query"]
    if query:
        yield f"Query: {', '.join(query)}.\n"
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
    """The type of a field, without the null that stands for one that is left out."""
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"] if value is not None)
    types = field.get("type", "any")
    return types if isinstance(types, str) else " or ".join(each for each in types if each != "null")


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


# --- warehouse.md --------------------------------------------------------------------------------------------------


def tables() -> str:
    """A table of each table and view of the warehouse."""
    import duckdb

    from fitrouter.stores.warehouse import create, described

    connection = duckdb.connect()
    create(connection)
    lines: list[str] = []
    for table, about in described().items():
        columns = connection.execute(
            "SELECT column_name, data_type, comment FROM duckdb_columns() WHERE table_name = ? ORDER BY column_index",
            [table],
        ).fetchall()
        rows = [f"| `{name}` | {kind.lower()} | {comment} |" for name, kind, comment in columns]
        lines += [f"### {table}", "", about, "", "| column | type | |", "|---|---|---|", *rows, ""]
    connection.close()
    return "\n".join(lines)


# --- own-models.md -------------------------------------------------------------------------------------------------


def providers() -> str:
    """A table of the providers that `fitrouter init` knows."""
    from fitrouter_integrations.commands.setup.init import VENDORS

    lines = ["| provider | kind | key from | URL | models |", "|---|---|---|---|---|"]
    for name, vendor in VENDORS.items():
        keys = " or ".join(f"`{key}`" for key in vendor.key_env) or "none"
        keys = f"{keys}, if it has one" if vendor.keyless and vendor.key_env else keys
        url = f"`{vendor.base_url}`" if vendor.base_url else " or ".join(f"`{key}`" for key in vendor.base_url_env)
        models = ", ".join(f"`{model}`" for model in vendor.models)
        models = models or ("asked for" if vendor.lists else "named by `--model`")
        lines.append(f"| `{name}` | `{vendor.kind}` | {keys} | {url} | {models} |")
    return "\n".join(lines) + "\n"


# --- figures of docs/results ---------------------------------------------------------------------------------------

QUOTE = re.compile(r"(?<=<!--q )([\w.]+)-->.*?(?=<!--/q-->)", re.DOTALL)


def quoted() -> dict[str, tuple[str, str]]:
    """Name of a figure → the page of results that it is quoted from, and the figure as it is written there."""
    given = json.loads((DOCS / "results" / "quoted.json").read_text(encoding="utf-8"))
    data = json.loads((DOCS / "results" / "demo.json").read_text(encoding="utf-8"))
    found = {}
    for name, entry in given.items():
        value = functools.reduce(lambda part, key: part[key], entry.get("data", ()), data)
        found[name] = entry["page"], f"{value:.3f}".lstrip("0") if "data" in entry else entry["text"]
    return found


def kept(demo: Path, null: Path) -> str:
    """What is kept of the files of `make demo`, in its world and in the one without tastes: summaries, not rounds."""
    worlds = []
    for name, file in (("demo", demo), ("null", null)):
        found = json.loads(file.read_text(encoding="utf-8"))
        found["closed"] = {str(each["seed"]): each["closed"] for each in found["seeds"]}
        parts = (
            f'  "{part}": {json.dumps(found[part])}'
            for part in ("world", "gammas", "versions", "http", "closed", "summary")
        )
        worlds.append(f' "{name}": {{\n' + ",\n".join(parts) + "\n }")
    return "{\n" + ",\n".join(worlds) + "\n}\n"


# --- all of it -----------------------------------------------------------------------------------------------------

PARTS: tuple[tuple[str, str, Callable[[], str]], ...] = (
    ("configuration.md", "settings", settings),
    ("http-api.md", "errors", errors),
    ("http-api.md", "routes", routes),
    ("deployment.md", "metrics", metrics),
    ("warehouse.md", "tables", tables),
    ("own-models.md", "providers", providers),
)


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
    for page, name, make in PARTS:
        text = found.get(DOCS / page) or (DOCS / page).read_text(encoding="utf-8")
        before, _, rest = text.partition(f"<!-- {name} -->\n")
        _, _, after = rest.partition("<!-- end -->")
        found[DOCS / page] = f"{before}<!-- {name} -->\n\n{make()}\n<!-- end -->{after}"
    figures = quoted()
    for path in (DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))):
        text = found.get(path) or path.read_text(encoding="utf-8")
        if QUOTE.search(text):
            found[path] = QUOTE.sub(lambda match: f"{match[1]}-->{figures[match[1]][1]}", text)
    return found


def main() -> int:
    """Write the files, or compare them; the exit code is 1 where some differ."""
    parser = argparse.ArgumentParser(description="Regenerate what is generated in docs/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is out of date")
    parser.add_argument("--demo", nargs=2, metavar="FILE", help="take results/demo.json from two files of `make demo`")
    given = parser.parse_args()
    check = given.check
    if given.demo:
        (DOCS / "results" / "demo.json").write_text(kept(*map(Path, given.demo)), encoding="utf-8")
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
