"""`fitrouter personal leaderboard`: models ranked for a person or a role, beside the population's ranking."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fitrouter_evaluators.personal.scores import chance
from fitrouter_evaluators.personal.suite import results
from fitrouter_integrations.commands._files import as_json, read_file
from fitrouter_integrations.commands._gateway import Tenant, Url, connect
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, User

WIDTH = 80
"""Columns of the table."""


def command(
    user: User = None,
    role: Annotated[str | None, typer.Option(help="Role of the user; alone, the ranking of the role.")] = None,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = None,
    suite: Annotated[
        Path | None, typer.Option(help="Show the results of `fitrouter personal suite run` instead.")
    ] = None,
    out: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Rank the models for a person or a role, with 80 % intervals, beside the population's ranking."""
    if suite is not None:
        ran = results.decoded(read_file(suite, "--suite"))
        typer.echo(as_json(ran) if out else "\n".join(suite_table(ran)))
        return
    with connect(config, url, tenant=tenant) as gateway:
        found = gateway.call("GET", "/v1/leaderboard", user=user, role=role)
    typer.echo(as_json(found) if out else "\n".join(table(found["models"]) + wrapped(found["sentences"])))


def table(models: Sequence[dict[str, Any]]) -> list[str]:
    """Format a leaderboard as lines of at most 80 columns."""
    lines = [f"{'':>2}  {'model':<30} {'match':>6} {'80 % interval':>14} {'P(best)':>8} {'everybody':>14}"]
    for each in models:
        name = printable(each["model"])
        name = name if len(name) <= 30 else name[:29] + "…"
        interval = f"{_percent(each['low'])} to {_percent(each['high'])} %"
        theirs = f"{_percent(each['population'])} % (rank {each['population_rank']})"
        match = f"{_percent(each['rating'])} %"
        lines.append(f"{each['rank']:>2}  {name:<30} {match:>6} {interval:>14} {chance(each['best']):>8} {theirs:>14}")
    return [line[:WIDTH].rstrip() for line in lines]


def wrapped(sentences: Sequence[str]) -> list[str]:
    """Wrap sentences into lines of at most 80 columns."""
    return [line for each in sentences for line in textwrap.wrap(printable(each), WIDTH)]


def suite_table(found: Sequence[results.ModelResult]) -> list[str]:
    """Format a suite's results as lines of at most 80 columns, and say why the first model is first."""
    heads = f"{'model':<26} {'wins':>5} {'80 % interval':>14} {'rubric':>7} {'judge':>6} {'base':>5}"
    lines = [f"{'':>2}  {heads} {'rank of all':>11}"]
    for each in found:
        interval = f"{each.low:.0%} to {each.high:.0%}"
        judge = "" if each.judge is None else f"{each.judge:+.2f}"
        lines.append(
            f"{each.rank:>2}  {printable(each.model)[:26]:<26} {each.wins:>5.0%} {interval:>14} {each.rubric:>7.0%} "
            f"{judge:>6} {each.base:>5.0%} {each.population_rank:>11}"
        )
    said = [f"{each.model} {'; it '.join(each.why)}." for each in found[:1] if each.why]
    said += [f"{each.model} left {each.failed} calls without an answer." for each in found if each.failed]
    said += [f"{each.unjudged} comparisons got no verdict." for each in found[:1] if each.unjudged]
    said += [
        f"The judge counts {each.trust:.0%} beside the reward model." for each in found[:1] if each.judge is not None
    ]
    return [line[:WIDTH].rstrip() for line in lines] + wrapped(said)


def _percent(rating: float) -> int:
    return round(100.0 * min(max(rating, 0.0), 1.0))


def printable(text: str) -> str:
    """A text without control characters, which a terminal would obey."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
