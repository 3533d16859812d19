"""`fitrouter audits exposure`: variety of what people get, and the price of more or less of it."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from fitrouter.stores.figures import many
from fitrouter_evaluators.personal.exposure import Exposure
from fitrouter_evaluators.personal.satisfaction import Interval
from fitrouter_integrations.commands._files import as_json
from fitrouter_integrations.commands._gateway import LONG_S, Tenant, Url, connect
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile
from fitrouter_integrations.commands._text import printable


def command(
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = None,
    out: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report the variety of people's answers and models, and the price of friction, exploration and privacy."""
    with connect(config, url, tenant=tenant) as gateway:
        found = gateway.call("GET", "/v1/exposure", timeout_s=LONG_S)
    typer.echo(as_json(found) if out else _text(msgspec.convert(found, Exposure)))


def _text(found: Exposure) -> str:
    lines = [many(found.people, "person", "people")]
    lines += [f"  {printable(model)[:40]:<40} {share:>6.1%} of the answers" for model, share in found.models.items()]
    for words, value in (
        ("models of a person, in effect", found.models_each),
        ("people with one model only", found.in_bubble),
        ("answers outside the usual style", found.unusual),
    ):
        if value is not None:
            lines.append(_line(words, value))
    if found.prices:
        left = f", {many(found.left_out, 'vote')} of untrusted keys left out" if found.left_out else ""
        lines += ["", f"price in rating, estimated from {many(found.units, 'rating')} (95% interval){left}"]
        lines += [_line(price.words, price.cost) for price in found.prices]
    return "\n".join(lines)


def _line(words: str, value: Interval) -> str:
    people = many(value.people, "person", "people")
    return f"{words:<58} {value.estimate:>7.3f}  {value.low:>6.3f} … {value.high:.3f}  {people}"
