"""`fitrouter exposure`: variety of the answers and models that people get, and the price of more or less of it."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from fitrouter.config import load_config
from fitrouter.router import Router
from fitrouter_evaluators.personal.exposure import Exposure, exposed
from fitrouter_evaluators.personal.satisfaction import Interval
from fitrouter_evaluators.scoring import STYLE
from fitrouter_integrations.commands._files import as_json
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile
from fitrouter_integrations.commands.personal.leaderboard import printable


def command(
    config: ConfigFile = DEFAULT,
    tenant: Annotated[str, typer.Option(help="Tenant whose people are counted.")] = "default",
    out: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report the variety of people's answers and models, and the price of friction, exploration and privacy."""
    settings = load_config(config)
    with Router.offline(settings) as router:
        names = {each.name for each in STYLE}
        style = [i for i, name in enumerate(router.people.features) if name in names]
        found = exposed(settings.data, tenant=tenant, schema=router.people.schema, style=style)
    typer.echo(as_json({"object": "fitrouter.exposure", **msgspec.to_builtins(found)}) if out else _text(found))


def _text(found: Exposure) -> str:
    lines = [f"{found.people} people"]
    lines += [f"  {printable(model)[:40]:<40} {share:>6.1%} of the answers" for model, share in found.models.items()]
    for words, value in (
        ("models of a person, in effect", found.models_each),
        ("people with one model only", found.in_bubble),
        ("answers outside the usual style", found.unusual),
    ):
        if value is not None:
            lines.append(_line(words, value))
    if found.prices:
        lines += ["", f"price in rating, estimated from {found.units} ratings (95 % interval)"]
        lines += [_line(price.words, price.cost) for price in found.prices]
    return "\n".join(lines)


def _line(words: str, value: Interval) -> str:
    return f"{words:<58} {value.estimate:>7.3f}  {value.low:>6.3f} … {value.high:.3f}  {value.people} people"
