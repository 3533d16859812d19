"""`fitrouter init`: write a configuration for the provider keys in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from fitrouter_integrations.commands._files import write_new


class _Model(NamedTuple):
    """A model: name, provider's name (`target`), USD per million tokens, context window, image input."""

    name: str
    target: str
    input: float
    output: float
    window: int
    images: bool = True


class _Vendor(NamedTuple):
    """A vendor, reached at its OpenAI-compatible URL, or through litellm where `base_url` is None."""

    name: str
    base_url: str | None
    models: tuple[_Model, ...]


# Prices and context windows are from litellm's table of November 2026.
KEYS: dict[str, _Vendor] = {
    "OPENAI_API_KEY": _Vendor(
        "openai",
        "https://api.openai.com/v1",
        (
            _Model("gpt-5.2", "gpt-5.2", 1.75, 14.0, 272_000),
            _Model("gpt-5-mini", "gpt-5-mini", 0.25, 2.0, 272_000),
            _Model("gpt-4.1-mini", "gpt-4.1-mini", 0.4, 1.6, 1_047_576),
        ),
    ),
    "ANTHROPIC_API_KEY": _Vendor(
        "anthropic",
        None,
        (
            _Model("claude-sonnet-4-6", "anthropic/claude-sonnet-4-6", 3.0, 15.0, 1_000_000),
            _Model("claude-haiku-4-5", "anthropic/claude-haiku-4-5", 1.0, 5.0, 200_000),
        ),
    ),
    "GEMINI_API_KEY": _Vendor(
        "gemini",
        None,
        (
            _Model("gemini-2.5-pro", "gemini/gemini-2.5-pro", 1.25, 10.0, 1_048_576),
            _Model("gemini-2.5-flash", "gemini/gemini-2.5-flash", 0.3, 2.5, 1_048_576),
        ),
    ),
    "MISTRAL_API_KEY": _Vendor(
        "mistral",
        "https://api.mistral.ai/v1",
        (
            _Model("mistral-large", "mistral-large-latest", 0.5, 1.5, 262_144),
            _Model("mistral-small", "mistral-small-latest", 0.15, 0.6, 262_144),
        ),
    ),
    "GROQ_API_KEY": _Vendor(
        "groq",
        "https://api.groq.com/openai/v1",
        (
            _Model("gpt-oss-120b", "openai/gpt-oss-120b", 0.15, 0.6, 131_072, images=False),
            _Model("gpt-oss-20b", "openai/gpt-oss-20b", 0.075, 0.3, 131_072, images=False),
        ),
    ),
}
"""Environment variable of a key → its vendor."""

_HEAD = """\
# fitrouter.yaml, written by `fitrouter init`.
#
#   fitrouter config check {name}    reports mistakes
#   fitrouter serve --config {name}  an OpenAI-compatible gateway on http://127.0.0.1:8484/v1
#
# Clients request the model "fitrouter/auto" for routing, or one model by its name.

# Folder of the journal, the identities and the warehouse.
data: fitrouter-data
"""

_TAIL = """
# Share of the traffic that is routed; the default model takes the rest. Start with 0 (shadow mode), then
# `fitrouter config share 0.05`, then 1.
default_model: {default}
share: 1.0

# Model names that agents have hard-coded can be routed too.
# aliases: {{gpt-4o: fitrouter/auto}}

# Trade-off between the predicted rating (0 to 1), cost and latency; a weight of 0 ignores that term.
objective:
  cost_weight: 0.05      # rating given up to save `cost_unit_usd`
  cost_unit_usd: 0.01
  latency_weight: 0.0    # rating given up to save `latency_unit_s`
  latency_unit_s: 10

# Share of the answers for which clients should ask for feedback.
feedback:
  ask: 0.02

server:
  host: 127.0.0.1        # any other address needs keys
  port: 8484
  # keys:
  #   - {{name: team-a, tenant: a, key_env: FITROUTER_KEY_A}}
"""

_SIMULATED = """
# No provider key was found in the environment (looked for {looked}),
# so these models are simulated: they differ in style, price and latency, and nothing leaves this machine.
providers:
  simulated:
    kind: simulated
    options:
      brief: {length: 2, formality: 0.3, latency_s: 0.2, skill: {general: 0.5, code: 0.6}}
      thorough: {length: 9, bullets: 0.6, headings: 0.5, examples: 0.5, latency_s: 1.2, skill: {general: 0.8}}
      friendly: {length: 5, warmth: 0.8, hedging: 0.3, latency_s: 0.5, skill: {general: 0.6, advice: 0.9}}

models:
  - {name: brief, provider: simulated, prices: {input: 0.1, output: 0.4}}
  - {name: thorough, provider: simulated, prices: {input: 3, output: 15}}
  - {name: friendly, provider: simulated, prices: {input: 0.5, output: 2}}
"""


def found_keys(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Names of the environment variables that hold provider keys."""
    environ = os.environ if environ is None else environ
    return tuple(name for name in KEYS if environ.get(name, "").strip())


def render(keys: tuple[str, ...], name: str = "fitrouter.yaml") -> str:
    """The configuration for these keys as text; with simulated models if there are none."""
    head = _HEAD.format(name=name)
    if not keys:
        looked = ", ".join(KEYS)
        return head + _SIMULATED.replace("{looked}", looked) + _TAIL.format(default="thorough")
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
    return head + "\n".join(lines) + "\n" + _TAIL.format(default=KEYS[keys[0]].models[0].name)


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
