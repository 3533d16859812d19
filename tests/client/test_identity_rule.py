"""The identity rule that every adapter and the gateway share: precedence of channels, their names, valid values.

Adapters list their channels and leave the rest to this rule; their own tests show that each channel and each entry
point reaches the decision log.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import make_dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import create_model
from tests.kits.identity import DOCS, INVALID, NAMED, UNSET, VALID

from fitrouter.errors import InvalidRequest
from fitrouter.types import Identity
from fitrouter_integrations._identity import (
    FIELDS,
    LONGEST,
    NAMES,
    SHORT,
    canonical_settings,
    channel_of,
    name_of,
    one_line,
)
from fitrouter_integrations._identity import first_said as resolve

ABSENT = object()
STATES = (ABSENT, None, "", "name", 7)
"""What a channel can hold for a field: nothing, three kinds of it, and two kinds of name."""

SHAPES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "dict": dict,
    "namespace": lambda values: SimpleNamespace(**values),
    "dataclass": lambda values: make_dataclass("Context", values)(**values),
    "pydantic": lambda values: create_model("Context", **dict.fromkeys(values, (Any, ...)))(**values),
}
"""Kinds of object that hold the values of a channel."""


def expected(channels: list[Mapping[str, Any]]) -> dict[str, str]:
    """The rule read from its documentation: for each field the first name of the first channel that has a value."""
    found: dict[str, str] = {}
    for field, names in FIELDS.items():
        for channel, name in itertools.product(channels, names):
            if field not in found and channel.get(name) not in (None, ""):
                found[field] = str(channel[name])
    return found


def held(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not ABSENT}


def test_precedence_of_channels() -> None:
    """For each field the first channel with a value counts: every combination of four channels, every field."""
    for field, names in FIELDS.items():
        for states in itertools.product(STATES, repeat=4):
            values = [f"{state} {i}" if state == "name" else state for i, state in enumerate(states)]
            channels = [held(**{names[0]: value}) for value in values]
            assert resolve((f"{i}.", channel) for i, channel in enumerate(channels)) == expected(channels), states
            first = next((value for value in values if value not in (ABSENT, None, "")), None)
            assert expected(channels) == ({} if first is None else {field: str(first)}), states


def test_precedence_of_the_names_of_a_field() -> None:
    """Within a channel the first name of a field with a value counts, and a lower channel never overrides it."""
    for field, names in FIELDS.items():
        for states in itertools.product(STATES, repeat=len(names)):
            values = (f"{state} {i}" if state == "name" else state for i, state in enumerate(states))
            channel = held(**dict(zip(names, values, strict=True)))
            for below in ({}, {names[-1]: "below"}, {names[0]: 9}):
                assert resolve([("", channel), ("", below)]) == expected([channel, below]), (field, channel, below)


def test_fields_are_resolved_independently() -> None:
    """Each field may come from another channel: every assignment of the fields to three channels."""
    values = {field: f"the {field}" for field in FIELDS}
    for owners in itertools.product(range(3), repeat=len(FIELDS)):
        channels: list[dict[str, str]] = [{}, {}, {}]
        for (field, value), owner in zip(values.items(), owners, strict=True):
            channels[owner][FIELDS[field][-1]] = value
            for lower in channels[owner + 1 :]:
                lower[FIELDS[field][0]] = "overridden"
        assert resolve(("", channel) for channel in channels) == values, owners


def test_shapes_of_a_channel() -> None:
    """A channel is a mapping or any object with attributes; None and objects without the names have no values."""
    for (shape, make), (field, names) in itertools.product(SHAPES.items(), FIELDS.items()):
        for name in names:
            channels = [("", None), ("", object()), ("", {}), ("", make({name: "ann", "other": 1}))]
            assert resolve(channels) == {field: "ann"}, (shape, name)
    assert resolve([]) == resolve([("", None), ("", "text"), ("", 7)]) == {}


def test_valid_values() -> None:
    """Text of any script and whole numbers are names, as text; None and empty text are no value."""
    for description, (value, text) in VALID.items():
        assert name_of(value, "user") == text, description
    for description, value in UNSET.items():
        assert name_of(value, "user") is None, description
    found = name_of(type("Text", (str,), {})("ann"), "user")
    assert (found, type(found)) == ("ann", str)


def test_invalid_values() -> None:
    """Any other value is an error that names its place and what is wrong, under every name and in every channel."""
    for (description, value), name, index in itertools.product(INVALID.items(), NAMES, range(3)):
        channels: list[tuple[str, Any]] = [("first.", {}), ("second.", None), ("third.", {})]
        channels[index] = (place := channels[index][0], {name: value})
        with pytest.raises(InvalidRequest, match=rf"^{re.escape(place + name)}: {NAMED[description]}"):
            resolve(channels)
    for code in (*range(0x20), *range(0x7F, 0xA0), 0xD800, 0xDFFF):
        with pytest.raises(InvalidRequest, match="user: has the control character"):
            name_of(f"ann{chr(code)}", "user")
    assert name_of("x" * LONGEST, "user") == "x" * LONGEST
    with pytest.raises(InvalidRequest, match=f"has {LONGEST + 1} characters.*{LONGEST}"):
        name_of("x" * (LONGEST + 1), "user")


def test_overridden_values_are_not_validated() -> None:
    """A channel below one with a value for the field is not read; one above it is, whatever stands below."""
    for names, value in itertools.product(FIELDS.values(), INVALID.values()):
        bad, good = {names[-1]: value}, {names[0]: "ann"}
        assert list(resolve([("", good), ("", bad)]).values()) == ["ann"]
        with pytest.raises(InvalidRequest):
            resolve([("", bad), ("", good)])


def test_constructor_channel() -> None:
    """The identity an adapter was constructed with is a channel: its set fields count, the default tenant does not."""
    whole = {field: f"the {field}" for field in FIELDS}
    for size in range(len(FIELDS) + 1):
        for some in itertools.combinations(FIELDS, size):
            own = {field: whole[field] for field in some}
            assert channel_of(Identity(**own)) == own
            assert resolve([("", {"user": "ann"}), ("", channel_of(Identity(**own)))]) == {**own, "user": "ann"}


def test_constructor_settings() -> None:
    """Settings accept every name of a field, directly or in the further parameters; other settings are left alone."""
    for field, names in FIELDS.items():
        for name, value in itertools.product(names, VALID.values()):
            assert canonical_settings({name: value[0], "seed": 1}, "extra") == {"seed": 1, field: value[1]}
            nested = {"extra": {name: value[0], "seed": 1}}
            assert canonical_settings(nested, "extra") == {"extra": {"seed": 1}, field: value[1]}
            assert canonical_settings({names[0]: "ann", **nested}, "extra") == {"extra": {"seed": 1}, field: "ann"}
        for place, value in itertools.product(("", "extra."), INVALID.values()):
            settings = {"extra": {names[0]: value}} if place else {names[0]: value}
            with pytest.raises(ValueError, match=rf"^{re.escape(place + names[0])}: "):
                canonical_settings(settings, "extra")
    assert canonical_settings({"user": None, "extra": None}, "extra") == {"extra": None}


def test_names_from_descriptions() -> None:
    """Text that a framework provides becomes one short valid line, or no value."""
    for text in ("Senior\n  researcher\n", "a\0b\ud800c", "", " \n", "☃" * 999, 7, "x " * 500):
        name = one_line(text)
        assert len(name) <= SHORT
        assert name_of(name, "role") == (name or None)
    assert one_line("tax\nanalyst " + "x" * 600).startswith("tax analyst xxx")


def test_documented_rule() -> None:
    """LangChain's page, to which the other pages refer, lists every name of a field and the limit of its length."""
    text = (DOCS / "langchain.md").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"`{name}`" in text
    assert f"{LONGEST} characters" in text
