"""Text of commands: printable, at most 80 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import msgspec

from fitrouter.stores.figures import chance, percent

WIDTH = 80
"""Columns of a terminal."""


def printable(text: str) -> str:
    """A text without control characters, which a terminal would obey."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def wrapped(sentences: Sequence[str]) -> list[str]:
    """Wrap sentences into lines of at most 80 columns."""
    return [line for each in sentences for line in textwrap.wrap(printable(each), WIDTH)]


def metric_lines(models: Sequence[Any]) -> list[str]:
    """Format the metrics of models as lines of at most 80 columns; none where there are none."""
    found = [
        f"    {printable(each['model'])[:26]:<26} {name[:22]:<22} {of['mean']:>+6.2f}"
        f" {of['low']:>+6.2f} to {of['high']:+.2f}"
        for each in map(msgspec.to_builtins, models)
        for name, of in each.get("metrics", {}).items()
    ]
    return found and [f"    {'':<26} {'metric':<22} {'mean':>6} {'80% interval':>15}", *found]


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
