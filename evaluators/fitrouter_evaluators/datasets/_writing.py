"""Writing the open formats."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from fitrouter_evaluators.datasets._formats import Row, plain

__all__ = ["write_jsonl"]


def write_jsonl(path: str | os.PathLike[str], rows: Iterable[Row]) -> None:
    """One JSON object a line.

    Raises:
        ValueError: a text holds half a character (a lone surrogate), which UTF-8 cannot say.
    """
    encoder, line = msgspec.json.Encoder(), bytearray()
    with Path(path).open("wb") as file:
        for number, row in enumerate(rows, start=1):
            try:
                encoder.encode_into(plain(row), line)
            except UnicodeEncodeError as error:
                raise ValueError(f"row {number} holds half a character ({error}); replace it before writing") from None
            file.write(line + b"\n")
