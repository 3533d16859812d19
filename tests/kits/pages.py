"""Fenced blocks of the documentation's pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A block's language and text."""

    language: str
    text: str


def blocks(page: Path, *languages: str) -> list[Block]:
    """The blocks of a page in these languages, or in any."""
    found = [Block(language, text) for language, text in BLOCK.findall(page.read_text(encoding="utf-8"))]
    return [block for block in found if block.language in languages or not languages]
