"""`fitrouter init`: write a configuration for the provider keys in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from fitrouter_integrations.commands._files import write_new


class _Model(msgspec.Struct, frozen=True):
    """A model: name, provider's name (`target`), USD per million tokens, context window, image input."""

    name: str
    target: str
    input: float
    output: float
    window: int
    images: bool = True


class _Vendor(msgspec.Struct, frozen=True):
    """A vendor, reached at its OpenAI-compatible URL, or through litellm where `base_url` is None."""

    name: str
    models: tuple[_Model, ...]
    base_url: str | None = None


class _Texts(msgspec.Struct, frozen=True):
    """The content of `init.yaml`."""

    vendors: dict[str, _Vendor]
    head: str
    simulated: str
    tail: str


_TEXTS = msgspec.yaml.decode(resources.files(__package__ or __name__).joinpath("init.yaml").read_bytes(), type=_Texts)
KEYS = _TEXTS.vendors
"""Environment variable of a key → its vendor."""


def found_keys(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Names of the environment variables that hold provider keys."""
    environ = os.environ if environ is None else environ
    return tuple(name for name in KEYS if environ.get(name, "").strip())


def render(keys: tuple[str, ...], name: str = "fitrouter.yaml") -> str:
    """The configuration for these keys as text; with simulated models if there are none."""
    head = _TEXTS.head.format(name=name)
    if not keys:
        looked = ", ".join(KEYS)
        return head + _TEXTS.simulated.replace("{looked}", looked) + _TEXTS.tail.format(default="thorough")
    lines = ["", "# Keys stay in the environment; these are the names of their variables.", "providers:"]
    for key in keys:
        vendor = KEYS[key]
        lines.append(f"  {vendor.name}:")
        lines.append(f"    kind: {'openai_compatible' if vendor.base_url else 'litellm'}")
        if vendor.base_url:
            lines.append(f"    base_url: {vendor.base_url}")
        lines.append(f"    api_key_env: {key}")
    lines += ["", "# Prices are USD per million tokens: check them against your contract.", "models:"]
    lines += [_line(vendor.name, model) for vendor in (KEYS[key] for key in keys) for model in vendor.models]
    return head + "\n".join(lines) + "\n" + _TEXTS.tail.format(default=KEYS[keys[0]].models[0].name)


def _line(provider: str, model: _Model) -> str:
    target = f", target: {model.target}" if model.target != model.name else ""
    capabilities = "[streaming, tools, json, images]" if model.images else "[streaming, tools, json]"
    return (
        f"  - {{name: {model.name}, provider: {provider}{target}, context_window: {model.window},\n"
        f"     prices: {{input: {model.input:g}, output: {model.output:g}}}, capabilities: {capabilities}}}"
    )


def command(
    path: Annotated[Path, typer.Option(help="File to write; it must not exist.")] = Path("fitrouter.yaml"),
) -> None:
    """Write a configuration for the provider keys in the environment, or with simulated models if there are none."""
    keys = found_keys()
    write_new(path, render(keys, path.name), "--path")
    using = f"the keys {', '.join(keys)}" if keys else "simulated models, since no provider key is set"
    typer.echo(f"wrote {path} with {using}")
    typer.echo(f"next: fitrouter serve --config {path}")
