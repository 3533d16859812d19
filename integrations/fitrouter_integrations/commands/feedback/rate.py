"""`fitrouter rate`: rate an answer, or a whole run of an agent."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import quote

import typer

from fitrouter.errors import InvalidRequest
from fitrouter_integrations.commands._gateway import Url, connect
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile


def command(
    decision_id: Annotated[str, typer.Argument(help="Decision id, or the answer's id; with --run the run's id.")],
    value: Annotated[str, typer.Argument(help="up, down, or a number on the scale.")],
    scale: Annotated[
        str | None, typer.Option(help="Lowest and highest rating, such as 1:5; by default `feedback.scale`, else 0:1.")
    ] = None,
    dimension: Annotated[str | None, typer.Option(help="What is rated; by default the answer as a whole.")] = None,
    run: Annotated[bool, typer.Option("--run", help="Rate the run of an agent that has this id or answer.")] = False,
    user: Annotated[str | None, typer.Option(help="User who got the answer.")] = None,
    config: ConfigFile = DEFAULT,
    url: Url = None,
) -> None:
    """Rate an answer or a run: up, down, or a number on a scale. A later rating replaces it."""
    up_or_down = value in ("up", "down")
    body: dict[str, Any] = {
        "decision_id": decision_id,
        "kind": "thumb" if up_or_down else "rating",
        "value": value if up_or_down else _number(value),
        "scale": None if scale is None else [_number(part) for part in scale.split(":")],
        "dimension": dimension,
        "user": user,
    }
    path = "/v1/feedback"
    if run:
        path = f"/v1/runs/{quote(body.pop('decision_id'), safe='')}/outcome"
        body |= {"kind": "success" if up_or_down else "rating", "source": "person"}
        body["value"] = value == "up" if up_or_down else body["value"]
    try:
        with connect(config, url, running=True, started=True) as gateway:
            gateway.call("POST", path, {name: given for name, given in body.items() if given is not None})
    except InvalidRequest as error:  # in the words of this command
        raise InvalidRequest(re.sub(r'add "scale": \[(\S+), (\S+)\]', r"add --scale \1:\2", str(error))) from None
    typer.echo(f"rated {value}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidRequest(
            f"got {text!r}; give up, down, or a number, with --scale 1:5 for one from 1 to 5"
        ) from None
