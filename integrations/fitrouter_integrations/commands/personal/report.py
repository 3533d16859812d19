"""`fitrouter report`: the fit report of a person or a role, in the terminal, as JSON, or as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from fitrouter.stores.figures import chance
from fitrouter_evaluators.personal import FitReport, cost_words, page, seconds, worth_words
from fitrouter_evaluators.personal.base import describe_base
from fitrouter_evaluators.personal.scores import votes_said
from fitrouter_integrations.commands._files import write_json, write_private
from fitrouter_integrations.commands._gateway import Tenant, Url, connect
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, JsonFile, User
from fitrouter_integrations.commands._text import table, wrapped


def command(
    user: User = None,
    role: Annotated[str | None, typer.Option(help="Role of the user; alone, the report of the role.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report as one HTML page to this file.")] = None,
    out: JsonFile = None,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Report which model fits a person or role, on what, how sure that is, why, and what it is worth."""
    with connect(config, url, tenant=tenant) as gateway:
        report = msgspec.convert(gateway.call("GET", "/v1/report", user=user, role=role), FitReport)
    typer.echo("\n".join(text(report)))
    write_json(report, out)
    if html is not None:
        write_private(html, page(report).encode(), "--html")
        typer.echo(f"written to {html}", err=True)


def text(report: FitReport) -> list[str]:
    """The lines of a report, at most 80 columns wide."""
    lines = table(msgspec.to_builtins(report.board.models)) + wrapped(report.board.sentences)
    if report.likes:
        basis = votes_said(report.board.labels, report.board.people)
        likes = "; ".join(f"{each.words} ({chance(each.sure)} sure)" for each in report.likes)
        lines += ["", *wrapped([f"They like a model that {likes}, from {basis}."])]
    lines += ["", *wrapped([f"Worth: {worth_words(report)}", *report.change])]
    lines += wrapped([f"Cost of everybody's answers: {each}." for each in report.saved])
    for model in report.models:
        said = [f"it {each.words}".replace(" which you", " which they") for each in model.style]
        if model.usage is not None:
            said += [cost_words(model.usage), model.usage.tokens]
            said.append(seconds(model.usage.latency_s))
        if model.base is not None:
            said.append(describe_base(model.base))
        for name, each in model.dimensions.items():
            if name != "overall":
                said.append(f"{name} {each.mean:.2f} ({each.low:.2f} to {each.high:.2f})")
        if said:
            lines += ["", *wrapped([f"{model.model}: {'; '.join(said)}."])]
        for quote in model.quotes:
            kind = "best" if quote.best else "worst"
            lines += wrapped([f"  {kind} fit ({quote.rating:.2f}): “{quote.text}”"])
    return lines
