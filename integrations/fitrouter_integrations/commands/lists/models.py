"""`fitrouter models`: the models that requests are routed among; adds and removes some at run time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fitrouter.errors import InvalidRequest
from fitrouter.types import UNPRICED
from fitrouter_integrations.commands._gateway import Url, connect, path_of
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, verbs
from fitrouter_integrations.commands.lists import _source
from fitrouter_integrations.commands.lists._source import AsJson


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model with its entry in a gateway or a configuration."""

    name: str
    provider: str
    context_window: int
    capabilities: tuple[str, ...]
    input_usd: float | None = None
    """Per million tokens; None if no price is known."""
    output_usd: float | None = None
    target: str = ""


app = verbs("List the models; add and remove some while the gateway runs.", bare_help=False)


@app.callback(invoke_without_command=True)
def command(
    context: typer.Context,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the models: provider, prices per million tokens, context window and capabilities."""
    if context.invoked_subcommand is not None:
        return
    with connect(config, url, fresh=True) as gateway:
        found = [_listed(each) for each in gateway.call("GET", "/v1/models")["data"] if "fitrouter" in each]
    rule = _source.record(UNPRICED) if any(one.input_usd is None for one in found) else []
    _source.show(found, lambda: [line for one in found for line in _lines(one)] + rule, as_json, "no models")


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name in requests.")],
    provider: Annotated[str | None, typer.Option(help="A provider of the configuration.")] = None,
    base_url: Annotated[str | None, typer.Option(help="Or a server of its own: the URL with /v1.")] = None,
    key_env: Annotated[str | None, typer.Option(help="Environment variable of the gateway with its key.")] = None,
    target: Annotated[str | None, typer.Option(help="The provider's name of the model, if another.")] = None,
    revision: Annotated[str | None, typer.Option(help="Revision.")] = None,
    input_usd: Annotated[float | None, typer.Option("--input", help="USD per million prompt tokens.")] = None,
    output_usd: Annotated[float | None, typer.Option("--output", help="USD per million completion tokens.")] = None,
    context_window: Annotated[int | None, typer.Option(help="Tokens of prompt and answer together.")] = None,
    config: ConfigFile = DEFAULT,
    url: Url = None,
) -> None:
    """Add a model; without a running gateway it is written to the journal, and in use from the next start."""
    if (provider is None) is (base_url is None):
        raise InvalidRequest("give either --provider, a provider of the configuration, or --base-url")
    prices = {way: usd for way, usd in (("input", input_usd), ("output", output_usd)) if usd is not None}
    own = {"kind": "openai_compatible", "base_url": base_url, "api_key_env": key_env}
    given = {"name": name, "target": target, "revision": revision, "context_window": context_window, "prices": prices}
    body = {field: value for field, value in given.items() if value not in (None, {})} | {"provider": provider or own}
    typer.echo(f"{name} was added; {_change(config, url, 'POST', '/v1/models', body)}")


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="Name of a model that was added.")],
    config: ConfigFile = DEFAULT,
    url: Url = None,
) -> None:
    """Remove a model that was added; one of the configuration file is removed there."""
    typer.echo(f"{name} was removed; {_change(config, url, 'DELETE', path_of('v1', 'models', name))}")


def _change(config: Path, url: str | None, method: str, path: str, body: dict[str, Any] | None = None) -> str:
    """Send a change to a running gateway, else write it to the journal; returns where it was made."""
    with connect(config, url, running=True) as gateway:
        found = gateway.call(method, path, body)
    if not gateway.running:
        return "no gateway answers, so it takes effect at the next start"
    return f"{found['fault']} ({gateway.address})" if found.get("fault") else gateway.address


def _lines(one: ListedModel) -> list[str]:
    price = "price not known"
    if one.input_usd is not None and one.output_usd is not None:
        price = f"{one.input_usd:g} USD in and {one.output_usd:g} USD out per million tokens"
    facts = [one.provider, price, f"{one.context_window:,} tokens", *one.capabilities]
    return _source.record(one.name, ", ".join(facts))


def _listed(found: dict[str, Any]) -> ListedModel:
    own = found["fitrouter"]
    return ListedModel(
        name=found["id"] + (f"@{own['revision']}" if own["revision"] else ""),
        provider=found["owned_by"],
        context_window=own["context_window"],
        capabilities=tuple(own["capabilities"]),
        target=own["target"],
        input_usd=own["input_usd"],
        output_usd=own["output_usd"],
    )
