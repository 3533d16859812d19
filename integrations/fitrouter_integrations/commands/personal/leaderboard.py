"""`fitrouter personal leaderboard`: models ranked for a person or a role, beside the population's ranking."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fitrouter.errors import InvalidRequest
from fitrouter_integrations.commands._files import as_json, read_file
from fitrouter_integrations.commands._gateway import Tenant, Url, connect
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, Domain, MaxPrice, MinContext, User
from fitrouter_integrations.commands._text import metric_lines, table, wrapped


def command(
    user: User = None,
    role: Annotated[str | None, typer.Option(help="Role of the user; alone, the ranking of the role.")] = None,
    domain: Domain = None,
    max_price: MaxPrice = None,
    min_context: MinContext = None,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = None,
    suite: Annotated[
        Path | None, typer.Option(help="Show the results of `fitrouter personal suite run` instead.")
    ] = None,
    out: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Rank the models for a person or a role, with 80% intervals, beside the population's ranking.

    With filters all figures are among the models and prompts that fit.
    """
    filters: dict[str, Any] = {"domain": domain, "max_price": max_price, "min_context": min_context}
    if suite is not None:
        from fitrouter_evaluators.personal.suite import results
        from fitrouter_integrations.commands.personal.suite import suite_table

        if max_price is not None or min_context is not None:
            raise InvalidRequest("--max-price and --min-context choose the models of a run: give them to `suite run`")
        ran = results.decoded(read_file(suite, "--suite"))
        if domain is not None:
            ran = results.about(ran, domain)
        typer.echo(as_json(ran) if out else "\n".join(suite_table(ran)))
        return
    with connect(config, url, tenant=tenant) as gateway:
        found = gateway.call("GET", "/v1/leaderboard", user=user, role=role, **filters)
    lines = table(found["models"]) + metric_lines(found["models"]) + wrapped(found["sentences"])
    typer.echo(as_json(found) if out else "\n".join(lines))
