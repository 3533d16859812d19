"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fitrouter.errors import InvalidRequest

DEFAULT = Path("fitrouter.yaml")
"""Configuration file, if none is given."""
ConfigFile = Annotated[Path, typer.Option("--config", "-c", help="Configuration file.")]
NewConfigFile = Annotated[Path, typer.Option("--config", "-c", help="Configuration file to write; it must not exist.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the results as JSON to this file.")]
User = Annotated[str | None, typer.Option(help="The person, by the user id in requests.")]
OneUser = Annotated[str, typer.Option("--user", help="The person, by the user id in requests.")]
Role = Annotated[str | None, typer.Option(help="Role of the user.")]
Domain = Annotated[str | None, typer.Option(help="Rank for prompts about it alone, such as health or technology.")]
MaxPrice = Annotated[
    float | None, typer.Option(help="Rank models of at most that many USD per million tokens (3 in, 1 out) alone.")
]
MinContext = Annotated[int | None, typer.Option(help="Rank models with a context of that many tokens or more alone.")]


def verbs(text: str, *, bare_help: bool = True) -> typer.Typer:
    """Create a typer app with subcommands.

    Args:
        text: its help.
        bare_help: show the help if no command is given.
    """
    return typer.Typer(help=text, no_args_is_help=bare_help, add_completion=False, pretty_exceptions_enable=False)


def pair(given: str, option: str) -> tuple[str, float]:
    """Parse `DIMENSION=VALUE` into name and value.

    Raises:
        InvalidRequest: it is not of this form.
    """
    name, _, value = given.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise InvalidRequest(f"{option}: got {given!r}; give DIMENSION=VALUE, such as length=-1") from None
