"""Sections and fenced blocks of the documentation's pages."""

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


def section(page: Path, heading: str) -> str:
    """The text under a heading of the second level, to the next one."""
    text = page.read_text(encoding="utf-8")
    fenced = [match.span() for match in BLOCK.finditer(text)]
    headings = [
        match
        for match in re.finditer(r"^## (.*)\n", text, re.MULTILINE)
        if not any(begin <= match.start() < end for begin, end in fenced)
    ]
    ends = [*(match.start() for match in headings[1:]), len(text)]
    [found] = [text[match.end() : end] for match, end in zip(headings, ends, strict=True) if match[1] == heading]
    return found


def blocks(page: Path, *languages: str, under: str | None = None) -> list[Block]:
    """The blocks of a page in these languages, or in any; only those under a heading of the second level if given."""
    text = page.read_text(encoding="utf-8") if under is None else section(page, under)
    found = [Block(language, body) for language, body in BLOCK.findall(text)]
    return [block for block in found if block.language in languages or not languages]
