"""Prices and limits of known models, from a table made from litellm's by `benchmarks.training.prices`."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

import msgspec

FILE = "models.json"
PARTS = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cache_read": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
    "cache_write_1h": "cache_creation_input_token_cost_above_1hr",
    "reasoning": "output_cost_per_reasoning_token",
    "audio_input": "input_cost_per_audio_token",
    "audio_output": "output_cost_per_audio_token",
    "request": "input_cost_per_request",
    "long_above": "long_above",
    "long_input": "input_cost_per_token_above",
    "long_output": "output_cost_per_token_above",
}
"""Part of our prices → litellm's name for it, in USD per token or request; without the number for long prompts."""
_AS_IS = frozenset({"request", "long_above"})
_WHOLE = frozenset({"input", "output"})
_CAN = ("supports_function_calling", "supports_vision", "supports_audio_input", "supports_pdf_input")
COLUMNS = ("mode", "max_input_tokens", "max_output_tokens", *_CAN, *PARTS.values())


class Table(msgspec.Struct, frozen=True, dict=True):
    """The models of litellm's table; the last value of a row is their names."""

    litellm: str
    columns: tuple[str, ...]
    rows: list[list[Any]]

    @functools.cached_property
    def models(self) -> Mapping[str, Mapping[str, Any]]:
        """Name → what is known of it, under litellm's names."""
        known = [
            ({k: v for k, v in zip(self.columns, row, strict=False) if v is not None}, row[-1]) for row in self.rows
        ]
        return {name: facts for facts, names in known for name in names}


@functools.cache
def table() -> Table:
    """Load the table."""
    return msgspec.json.decode(resources.files(__package__ or __name__).joinpath(FILE).read_bytes(), type=Table)


def source() -> str:
    """Source of prices, for a comment beside them."""
    return f"the table of litellm {table().litellm}"


def facts_of(*names: object) -> Mapping[str, Any]:
    """Look up the first of some model names in the table, with or without vendor; empty if none is there."""
    known = table().models
    for name in names:
        if not isinstance(name, str) or not name:
            continue
        for each in (name, name.partition("/")[2], re.sub(r"^bedrock/(converse|invoke)/", "", name)):
            if each in known:
                return known[each]
    return {}


def usd_per_million(*places: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the prices of the first place that has one of input or output; None if one of both is unknown.

    What that place leaves out of both is taken from the next. Other parts are not: they belong to their input price.
    """
    found: dict[str, float] = {}
    for place in places:
        own = {part: usd for part, name in PARTS.items() if (usd := number(place.get(name))) is not None}
        known = _WHOLE if found or own.keys().isdisjoint(_WHOLE) else own.keys()
        # A price of 0 for a part of what is not free says that the part is not priced apart.
        priced = {part: usd for part, usd in own.items() if part in known and (usd or part in _WHOLE)}
        found = {part: float(f"{usd if part in _AS_IS else usd * 1e6:.6g}") for part, usd in priced.items()} | found
    return found if found.keys() >= _WHOLE else None


def number(value: object) -> float | None:
    """A non-negative number, also where YAML parsed 1e-6 as text; else None."""
    try:
        found = float(str(value))
    except ValueError:
        return None
    return found if 0 <= found < float("inf") else None
