"""Text of commands: printable, at most 80 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from fitrouter.stores.figures import chance, percent

WIDTH = 80
"""Columns of a terminal."""


def printable(text: str) -> str:
    """A text without control characters, which a terminal would obey."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def wrapped(sentences: Sequence[str]) -> list[str]:
    """Wrap sentences into lines of at most 80 columns."""
    return [line for each in sentences for line in textwrap.wrap(printable(each), WIDTH)]


def table(models: Sequence[dict[str, Any]]) -> list[str]:
    """Format a leaderboard as lines of at most 80 columns."""
    lines = [f"{'':>2}  {'model':<30} {'match':>6} {'80% interval':>14} {'P(best)':>8} {'everybody':>14}"]
    for each in models:
        name = printable(each["model"])
        name = name if len(name) <= 30 else name[:29] + "…"
        interval = f"{percent(each['low'])} to {percent(each['high'])}%"
        theirs = f"{percent(each['population'])}% (rank {each['population_rank']})"
        match = f"{percent(each['rating'])}%"
        lines.append(f"{each['rank']:>2}  {name:<30} {match:>6} {interval:>14} {chance(each['best']):>8} {theirs:>14}")
    return [line[:WIDTH].rstrip() for line in lines]
