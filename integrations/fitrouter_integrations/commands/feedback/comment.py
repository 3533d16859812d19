"""`fitrouter feedback comment`: comment on an answer, and see or correct how it was parsed."""

from __future__ import annotations

from typing import Annotated

import typer

from fitrouter.errors import InvalidRequest
from fitrouter_integrations.commands._gateway import Url, connect
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, pair


def command(
    decision_id: Annotated[str, typer.Argument(help="Decision id, or the answer's id.")],
    text: Annotated[str | None, typer.Argument(help="The comment, such as 'too long, and stop the lists'.")] = None,
    understood: Annotated[
        list[str] | None, typer.Option("--set", help="Instead of a comment: DIMENSION=VALUE, −1 (less) … 1 (more).")
    ] = None,
    withdraw: Annotated[bool, typer.Option(help="Withdraw what was understood.")] = False,
    user: Annotated[str | None, typer.Option(help="User who got the answer.")] = None,
    config: ConfigFile = DEFAULT,
    url: Url = None,
) -> None:
    """Comment on an answer; prints what was understood. A later comment replaces it."""
    corrected = dict(pair(each, "--set") for each in understood or []) if understood or withdraw else None
    if (text is None) is (corrected is None):
        raise InvalidRequest("comment: give either a comment, or --set or --withdraw")
    given = {"decision_id": decision_id, "comment": text, "understood": corrected, "user": user}
    body = {name: value for name, value in given.items() if value is not None}
    with connect(config, url, running=True, started=True) as gateway:
        found = gateway.call("POST", "/v1/feedback", body)
    for name, value in sorted(found["understood"].items()):
        typer.echo(f"understood: {'more' if value > 0 else 'less'} {name} ({value:+.2f})")
    for clause in found["not_understood"]:
        reason = found["reasons"].get(clause)
        typer.echo(f"not understood: {clause}" + (f" ({reason})" if reason else ""))
    if found["remark_id"] is not None and not found["understood"]:
        typer.echo("withdrawn")
