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
Named = Annotated[str | None, typer.Argument(metavar="[USER]", help="The same as --user.")]


def whose(named: str | None, user: str | None, *, required: bool = False) -> str | None:
    """The user that a command was given as an argument or as an option; InvalidRequest if they differ."""
    if (named is not None and user not in (None, named)) or (required and named is user is None):
        raise InvalidRequest(f"got USER {named!r} and --user {user!r}; give one of them; `fitrouter users` lists names")
    return user if named is None else named


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
