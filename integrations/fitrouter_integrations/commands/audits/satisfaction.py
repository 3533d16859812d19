"""`fitrouter audits satisfaction`: mean, variance, worst tenth and worst role, who is worse off, and fairness."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from fitrouter.stores.figures import many
from fitrouter_evaluators.personal.satisfaction import Interval, Satisfaction
from fitrouter_integrations.commands._files import as_json
from fitrouter_integrations.commands._gateway import LONG_S, Tenant, Url, connect
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile
from fitrouter_integrations.commands._text import printable, wrapped

_ROWS = (
    ("mean", "mean of people"),
    ("variance", "variance between people"),
    ("cvar10", "worst tenth (CVaR10)"),
    ("worst_role", "worst role"),
    ("worse_off", "worse off than best single"),
    ("rare_gap", "rare minus common tastes"),
)


def command(
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = None,
    out: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Satisfaction of everybody who ever rated, with 95% intervals; the four figures stand together or not at all."""
    with connect(config, url, tenant=tenant) as gateway:
        found = gateway.call("GET", "/v1/satisfaction", timeout_s=LONG_S)
    said = [_text(msgspec.convert(found, Satisfaction)), *(f"Cost: {each}." for each in found["saved"])]
    typer.echo(as_json(found) if out else "\n".join(said))


def _text(found: Satisfaction) -> str:
    lines = [f"{many(found.people, 'person', 'people')}, {many(found.ratings, 'rating')}"]
    for name, words in _ROWS:
        value = getattr(found, name)
        if value is not None:
            more = f"  {printable(found.worst_role_name)}" if name == "worst_role" else ""
            lines.append(_line(words, value) + more)
    groups = [*found.roles, *found.rarity, *([found.departed] if found.departed else [])]
    if groups:
        lines += ["", f"{'group':<28} {'mean':>7}  95% interval"]
    lines += [_line(printable(group.name)[:28], group.mean) for group in groups]
    return "\n".join([*lines, *([""] if found.sentences else []), *wrapped(found.sentences)])


def _line(words: str, value: Interval) -> str:
    return f"{words:<28} {value.estimate:>7.3f}  {value.low:>6.3f} … {value.high:.3f}  {value.people:>6} people"
