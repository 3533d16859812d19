"""`fitrouter personal verify`: whether a fit certificate is unchanged, and follows from its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fitrouter_evaluators.personal.certificate import verify
from fitrouter_integrations.commands._files import read_file
from fitrouter_integrations.commands.personal.certificate import text


def command(
    file: Annotated[Path, typer.Argument(help="Certificate that `fitrouter personal certificate` wrote.")],
    rows: Annotated[Path, typer.Option(help="File of the rows that were written with the certificate.")],
    key: Annotated[str, typer.Option(help="Fingerprint that the signing key must have.")] = "",
) -> None:
    """Check signature and hash of a certificate, and recompute every figure from its rows.

    It needs no configuration and no log; the exit code is 1 if anything differs.
    """
    found = verify(read_file(file, "FILE"), read_file(rows, "--rows"), key)
    typer.echo("\n".join(["verified", *text(found)]))
