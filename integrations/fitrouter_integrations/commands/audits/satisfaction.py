"""`fitrouter satisfaction`: mean, variance, worst tenth and worst role, who is worse off, and fairness."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
import typer

from fitrouter.config import load_config
from fitrouter.errors import NoWarehouse
from fitrouter.router import Router
from fitrouter.stores.warehouse import Warehouse
from fitrouter_dashboards.quality import saved
from fitrouter_evaluators.personal.satisfaction import Interval, Satisfaction, measure_satisfaction
from fitrouter_integrations.commands._files import as_json
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile
from fitrouter_integrations.commands.personal.leaderboard import printable, wrapped

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
    tenant: Annotated[str, typer.Option(help="Tenant whose people are counted.")] = "default",
    out: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Satisfaction of everybody who ever rated, with 95 % intervals; the four figures stand together or not at all."""
    settings = load_config(config)
    with Router.offline(settings) as router:
        found = measure_satisfaction(settings.data, router, tenant=tenant, now=time.time())
        read = Warehouse(settings.data / "fitrouter.duckdb").queries
        try:
            default = router.policy.default
            costs = saved(lambda *queries: read(queries, whole=True), default, tenant) if found.people else []
        except NoWarehouse as error:
            costs = [f"what was saved is not known yet: {error}"]
    whole = {"object": "fitrouter.satisfaction", **msgspec.to_builtins(found), "saved": costs}
    typer.echo(as_json(whole) if out else "\n".join([_text(found), *(f"Cost: {each}." for each in costs)]))


def _text(found: Satisfaction) -> str:
    lines = [f"{found.people} people, {found.ratings} ratings"]
    for name, words in _ROWS:
        value = getattr(found, name)
        if value is not None:
            more = f"  {printable(found.worst_role_name)}" if name == "worst_role" else ""
            lines.append(_line(words, value) + more)
    groups = [*found.roles, *found.rarity, *([found.departed] if found.departed else [])]
    if groups:
        lines += ["", f"{'group':<28} {'mean':>7}  95 % interval"]
    lines += [_line(printable(group.name)[:28], group.mean) for group in groups]
    return "\n".join([*lines, *([""] if found.sentences else []), *wrapped(found.sentences)])


def _line(words: str, value: Interval) -> str:
    return f"{words:<28} {value.estimate:>7.3f}  {value.low:>6.3f} … {value.high:.3f}  {value.people:>6} people"
