"""Prices and limits of known models, from the table inside litellm's package; litellm itself is not imported."""

from __future__ import annotations

import functools
import importlib.util
import logging
import re
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

_log = logging.getLogger("fitrouter")
_FILE = "model_prices_and_context_window_backup.json"
WAYS = ("input", "output")


@functools.cache
def table() -> Mapping[str, Any]:
    """Load litellm's table of models, name → entry; empty without litellm, or if it cannot be read."""
    spec = importlib.util.find_spec("litellm")
    if spec is None or spec.origin is None:
        return {}
    try:
        found: dict[str, Any] = msgspec.json.decode(Path(spec.origin).with_name(_FILE).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("litellm's table of prices is not readable: %s", error)
        return {}
    return found


def source() -> str:
    """Source and date of prices, for a comment beside them."""
    if not table() and importlib.util.find_spec("litellm") is not None:
        return "litellm's table of prices is not readable, so no prices were looked up"
    if not table():
        return "litellm is not installed, so no prices were looked up; `pip install 'fitrouter[litellm]'` has a table"
    return f"prices from the table of litellm {metadata.version('litellm')}, read on {time.strftime('%Y-%m-%d')}"


def facts_of(*names: object) -> Mapping[str, Any]:
    """Look up the first of some model names in litellm's table, with or without vendor; empty if none is there."""
    known = table()
    for name in names:
        if not isinstance(name, str) or not name:
            continue
        for each in (name, name.partition("/")[2], re.sub(r"^bedrock/(converse|invoke)/", "", name)):
            if isinstance(found := known.get(each), dict):
                return found
    return {}


def usd_per_million(*places: Mapping[str, Any]) -> dict[str, float] | None:
    """Return input and output price, each from the first place that has it; None if one is unknown."""
    found: dict[str, float] = {}
    for way in WAYS:
        for place in places:
            if (usd := number(place.get(f"{way}_cost_per_token"))) is not None:
                found.setdefault(way, float(f"{usd * 1e6:.6g}"))
    return found if len(found) == len(WAYS) else None


def number(value: object) -> float | None:
    """A non-negative number, also where YAML parsed 1e-6 as text; else None."""
    try:
        found = float(str(value))
    except ValueError:
        return None
    return found if 0 <= found < float("inf") else None
