"""`fitrouter models`: the models that requests are routed among; adds and removes some at run time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from fitrouter.config import load_config
from fitrouter.errors import ConfigError, InvalidRequest
from fitrouter.router import Router
from fitrouter.stores.audit_log import AuditLog, command_act
from fitrouter.stores.journal import SqliteJournal
from fitrouter.types import UNPRICED, ModelCard, ModelChange
from fitrouter_integrations._http import NoGateway, call, url_of
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, verbs
from fitrouter_integrations.commands.lists import _source
from fitrouter_integrations.commands.lists._source import AsJson, Data, Url


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
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the models: provider, prices per million tokens, context window and capabilities."""
    if context.invoked_subcommand is not None:
        return
    if url is not None:
        found = [_of_gateway(each) for each in call("GET", url, "/v1/models")["data"] if "fitrouter" in each]
    else:
        found = [_of_card(card) for card in (_configured(config) if data is None else _logged(data))]
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
    where = _change(config, url, ("POST", "/v1/models"), body, lambda router: router.registry.add(body), "add", name)
    typer.echo(f"{name} was added; {where}")


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="Name of a model that was added.")],
    config: ConfigFile = DEFAULT,
    url: Url = None,
) -> None:
    """Remove a model that was added; one of the configuration file is removed there."""
    path = f"/v1/models/{quote(name, safe='')}"
    where = _change(config, url, ("DELETE", path), None, lambda router: router.registry.remove(name), "remove", name)
    typer.echo(f"{name} was removed; {where}")


def _change(
    config: Path,
    url: str | None,
    route: tuple[str, str],
    body: dict[str, Any] | None,
    act: Callable[[Router], Coroutine[Any, Any, object]],
    verb: str,
    name: str,
) -> str:
    """Send a change to a running gateway, else write it to the journal; returns where it was made."""
    settings = None if url is not None else load_config(config)
    address = url if settings is None else url_of(settings)
    assert address is not None
    try:
        found = call(route[0], address, route[1], body)
        return f"{found['fault']} ({address})" if found.get("fault") else address
    except NoGateway:
        if settings is None:
            raise
    with Router.offline(settings) as router:
        AuditLog(settings.data).note(command_act(f"model {verb}", model=name))
        asyncio.run(act(router))
    return "no gateway answers, so it takes effect at the next start"


def _lines(one: ListedModel) -> list[str]:
    price = "price not known"
    if one.input_usd is not None and one.output_usd is not None:
        price = f"{one.input_usd:g} USD in and {one.output_usd:g} USD out per million tokens"
    facts = [one.provider, price, f"{one.context_window:,} tokens", *one.capabilities]
    return _source.record(one.name, ", ".join(facts))


def _configured(config: Path) -> list[ModelCard]:
    """Return the cards of a configuration file and of the models that were added to its journal."""
    settings = load_config(config)
    if not settings.database and not settings.journal_file().is_file():
        return list(settings.cards())
    with Router.offline(settings) as router:
        return list(router.registry.cards.values())


def _logged(data: Path) -> tuple[ModelCard, ...]:
    """Return the model cards that were last written to a journal."""
    path = data if data.is_file() else data / "journal.db"
    if not path.is_file():
        raise ConfigError(f"--data: there is no journal {str(path)!r}; give the folder of a gateway's data")
    journal = SqliteJournal(path)
    try:
        rows = journal.latest(("model",), 1)
    finally:
        journal.close()
    assert not rows or isinstance(rows[0].event, ModelChange)
    return rows[0].event.cards if rows and isinstance(rows[0].event, ModelChange) else ()


def _of_card(card: ModelCard) -> ListedModel:
    prices = card.prices
    return ListedModel(
        name=card.arm,
        provider=card.provider,
        context_window=card.context_window,
        capabilities=card.capabilities,
        input_usd=prices.input if prices.known else None,
        output_usd=prices.output if prices.known else None,
        target=card.target or card.name,
    )


def _of_gateway(found: dict[str, Any]) -> ListedModel:
    own = found["fitrouter"]
    return ListedModel(
        name=found["id"],
        provider=found["owned_by"],
        context_window=own["context_window"],
        capabilities=tuple(own["capabilities"]),
        target=own["target"],
        input_usd=own["input_usd"],
        output_usd=own["output_usd"],
    )
