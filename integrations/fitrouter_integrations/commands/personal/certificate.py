"""`fitrouter personal certificate`: a signed fit certificate of a person, and the rows that it is computed from."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer

from fitrouter.config import load_config
from fitrouter.router import Router
from fitrouter.stores.audits import KEY
from fitrouter.stores.figures import chance
from fitrouter.stores.signing import signing_key
from fitrouter.types import Identity
from fitrouter_evaluators.personal.certificate import (
    Method,
    Verified,
    anchor_scores,
    certified,
    issued,
    verify,
)
from fitrouter_integrations.commands._files import read_file, refuse_existing, write_new
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, OneUser, Role
from fitrouter_integrations.commands._text import printable


def command(
    user: OneUser,
    out: Annotated[Path, typer.Option("--out", "-o", help="Certificate to write; it must not exist.")],
    rows: Annotated[Path, typer.Option(help="File to write the rows to, as JSON lines; it must not exist.")],
    role: Role = None,
    suite: Annotated[Path | None, typer.Option(help="Results of a suite's run, for the scores on the anchors.")] = None,
    estimator: Annotated[str, typer.Option(help="As in `fitrouter replay`, such as dr, sndr, ips, snips.")] = "dr",
    parameter: Annotated[float | None, typer.Option(help="λ of the estimator, if it has one.")] = None,
    alpha: Annotated[float, typer.Option(help="Highest probability that an interval misses.")] = 0.2,
    config: ConfigFile = DEFAULT,
    tenant: Annotated[str, typer.Option(help="Tenant of the user.")] = "default",
) -> None:
    """Write a signed certificate of which model fits a person; `fitrouter personal verify` recomputes it."""
    refuse_existing(out, "--out")
    refuse_existing(rows, "--rows")
    settings, who = load_config(config), Identity(tenant=tenant, user=user, role=role)
    method = Method(estimator=estimator, parameter=parameter, alpha=alpha)
    anchors = None if suite is None else anchor_scores(read_file(suite, "--suite"))
    with Router.offline(settings) as router:
        found = asyncio.run(certified(router, settings, who, method=method, anchors=anchors))
    document, payload = issued(found, who, signing_key(settings.data / KEY), ts=time.time(), method=method)
    write_new(rows, payload.decode(), "--rows")
    write_new(out, document.decode(), "--out")
    typer.echo("\n".join(text(verify(document, payload))))
    typer.echo(f"written to {out} and {rows}", err=True)


def text(found: Verified) -> list[str]:
    """Format a certificate as lines of at most 80 columns."""
    document, level = found.certificate, 1.0 - found.certificate.method.alpha
    said = document.figures
    first = said.report[0]
    claim = "claimed" if said.claimed else "not claimed"
    lines = [
        f"user {printable(document.user)[:70]}",
        f"log  {document.log}",
        f"key  {found.key}",
        f"{said.decisions} drawn decisions, {said.rated} rated; journal {said.first_seq} to {said.last_seq}",
        f"first {printable(first.model)[:30]}, everybody's {printable(said.population_first)[:30]}",
        f"personal ranking {claim}: better with a probability of {chance(said.beats)}, {said.rated} rated",
        "",
        f"{'report':<30} {'rating':>7} {'80% interval':>16} {'P(best)':>8} {'anchors':>8}",
    ]
    for each in said.report:
        anchor = f"{said.anchors[each.model]:.2f}" if each.model in said.anchors else ""
        interval = f"{each.low:.2f} to {each.high:.2f}"
        lines.append(f"{_name(each.model)} {each.rating:>7.2f} {interval:>16} {chance(each.best):>8} {anchor:>8}")
    lines += [
        "",
        f"{f'log, {document.method.estimator}':<30} {'rating':>7} {f'{level:.0%} interval':>16} {'sequence':>16}",
    ]
    for row in said.estimates:
        value = "" if row.value is None else f"{row.value:.2f}"
        interval = "" if row.low is None or row.high is None else f"{row.low:.2f} to {row.high:.2f}"
        sequence = f"{row.sequence_low:.2f} to {row.sequence_high:.2f}"
        lines.append(f"{_name(row.model)} {value:>7} {interval:>16} {sequence:>16}")
    return [line.rstrip() for line in lines]


def _name(model: str) -> str:
    return f"{printable(model)[:30]:<30}"
