"""The table of known models is litellm's, and what it says of a model is one place's."""

from __future__ import annotations

from importlib import metadata, resources
from typing import Any

import pytest
from benchmarks.training.prices import table

from fitrouter.config import PricesConfig
from fitrouter_integrations.commands.setup import _prices

PER_TOKEN = 1e-6


def test_the_table_is_made_anew_byte_for_byte() -> None:
    """The script gives the file that ships, from the version of litellm that it names; it names its license."""
    pytest.importorskip("litellm", reason="install the extra `litellm`")
    if metadata.version("litellm") != _prices.table().litellm:
        pytest.skip(f"the table is of litellm {_prices.table().litellm}: run `python -m benchmarks.training.prices`")
    shipped = resources.files("fitrouter_integrations.commands.setup").joinpath(_prices.FILE).read_text("utf-8")
    assert shipped == table()
    assert "MIT License" in shipped[:200]


def test_every_part_of_a_price_can_be_configured() -> None:
    """The table's parts are the configuration's, so that whatever it knows of a model reaches bills."""
    assert _prices.PARTS.keys() == PricesConfig.model_fields.keys()
    known = [_prices.usd_per_million(facts) for facts in _prices.table().models.values()]
    assert sum("cache_read" in (prices or {}) for prices in known) > 1_000
    for prices in filter(None, known):
        assert PricesConfig(**prices).known


@pytest.mark.parametrize(
    ("name", "prices"),
    [
        (
            "anthropic/claude-sonnet-4-6",
            {"input": 3.0, "output": 15.0, "cache_read": 0.3, "cache_write": 3.75, "cache_write_1h": 6.0},
        ),
        (
            "gemini/gemini-2.5-flash",
            {"input": 0.3, "output": 2.5, "cache_read": 0.03, "reasoning": 2.5, "audio_input": 1.0},
        ),
        ("deepseek/deepseek-v4-flash", {"input": 0.3, "output": 1.2, "cache_read": 0.006}),
        ("nobody/nothing", None),
    ],
)
def test_known_models(name: str, prices: dict[str, float] | None) -> None:
    """Writing that costs 0 where reading does not is not priced at all."""
    assert _prices.usd_per_million(_prices.facts_of(name)) == prices


@pytest.mark.parametrize(
    ("places", "found"),
    [
        ([{"input": 2.0}, {"input": 9.0, "output": 8.0, "cache_read": 1.0}], {"input": 2.0, "output": 8.0}),
        ([{}, {"input": 9.0, "output": 8.0, "cache_read": 1.0}], {"input": 9.0, "output": 8.0, "cache_read": 1.0}),
        ([{"cache_read": 1.0}, {"input": 9.0, "output": 8.0}], {"input": 9.0, "output": 8.0}),
        ([{"input": 2.0, "cache_read": 0.1}, {"output": 8.0}], {"input": 2.0, "cache_read": 0.1, "output": 8.0}),
        ([{"input": 0.0, "output": 0.0}, {"input": 9.0}], {"input": 0.0, "output": 0.0}),
        ([{"input": 2.0}], None),
        ([{"input": "2", "output": -1.0}, {"output": "nan"}], None),
    ],
)
def test_parts_belong_to_their_input_price(places: list[dict[str, Any]], found: dict[str, float] | None) -> None:
    """A price of one's own is not mixed with the list price of cached tokens."""
    named = [{_prices.PARTS[part]: float(usd) * PER_TOKEN for part, usd in place.items()} for place in places]
    read = _prices.usd_per_million(*named)
    assert read == (found if found is None else pytest.approx(found))
