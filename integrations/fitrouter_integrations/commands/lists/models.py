"""`fitrouter models`: the models that requests are routed among."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from fitrouter.config import load_config
from fitrouter.errors import ConfigError
from fitrouter.stores.journal import SqliteJournal
from fitrouter.types import ModelCard, ModelChange
from fitrouter_integrations._http import call
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile
from fitrouter_integrations.commands.lists import _source
from fitrouter_integrations.commands.lists._source import AsJson, Data, Url


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model, with what a gateway or a configuration says of it."""

    name: str
    provider: str
    context_window: int
    capabilities: tuple[str, ...]
    input_usd: float | None = None
    """Per million tokens; None if no price is known, or a gateway was asked."""
    output_usd: float | None = None
    target: str = ""


def command(config: ConfigFile = DEFAULT, data: Data = None, url: Url = None, as_json: AsJson = False) -> None:
    """List the models: provider, prices per million tokens, context window and capabilities."""
    if url is not None:
        found = [_of_gateway(each) for each in call("GET", url, "/v1/models")["data"] if "fitrouter" in each]
    else:
        found = [_of_card(card) for card in (load_config(config).cards() if data is None else _logged(data))]
    _source.show(found, lambda: [line for one in found for line in _lines(one)], as_json, "no models")


def _lines(one: ListedModel) -> list[str]:
    price = "price not known"
    if one.input_usd is not None and one.output_usd is not None:
        price = f"{one.input_usd:g} USD in and {one.output_usd:g} USD out per million tokens"
    facts = [one.provider, price, f"{one.context_window:,} tokens", *one.capabilities]
    return _source.record(one.name, ", ".join(facts))


def _logged(data: Path) -> tuple[ModelCard, ...]:
    """The cards that a journal has last."""
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
    )
