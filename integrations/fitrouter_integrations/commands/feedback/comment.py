"""`fitrouter comment`: comment on an answer, and see or correct how it was parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fitrouter.config import load_config
from fitrouter.errors import InvalidRequest
from fitrouter_integrations._http import call, url_of
from fitrouter_integrations.commands._options import DEFAULT, pair

ConfigPath = Annotated[
    Path, typer.Option("--config", "-c", help="Configuration file, which gives the address of the gateway.")
]
Url = Annotated[str | None, typer.Option(help="URL of the gateway, instead of the configured address.")]


def command(
    decision_id: Annotated[str, typer.Argument(help="Decision id, or the answer's id.")],
    text: Annotated[str | None, typer.Argument(help="The comment, such as 'too long, and stop the lists'.")] = None,
    understood: Annotated[
        list[str] | None, typer.Option("--set", help="Instead of a comment: DIMENSION=VALUE, −1 (less) … 1 (more).")
    ] = None,
    withdraw: Annotated[bool, typer.Option(help="Withdraw what was understood.")] = False,
    user: Annotated[str | None, typer.Option(help="User who got the answer.")] = None,
    config: ConfigPath = DEFAULT,
    url: Url = None,
) -> None:
    """Comment on an answer of a running gateway; prints what was understood. A later comment replaces it."""
    corrected = dict(pair(each, "--set") for each in understood or []) if understood or withdraw else None
    target = url or url_of(load_config(config))
    if (text is None) is (corrected is None):
        raise InvalidRequest("comment: give either a comment, or --set or --withdraw")
    given = {"decision_id": decision_id, "comment": text, "understood": corrected, "user": user}
    body = {name: value for name, value in given.items() if value is not None}
    found = call("POST", target, "/v1/feedback", body)
    for name, value in sorted(found["understood"].items()):
        typer.echo(f"understood: {'more' if value > 0 else 'less'} {name} ({value:+.2f})")
    for clause in found["not_understood"]:
        reason = found["reasons"].get(clause)
        typer.echo(f"not understood: {clause}" + (f" ({reason})" if reason else ""))
    if found["remark_id"] is not None and not found["understood"]:
        typer.echo("withdrawn")
