"""Bodies as structs: every fault names the field, what was given, and what is allowed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from msgspec import UNSET, Meta, UnsetType

from fitrouter.errors import InvalidRequest
from fitrouter.types import FeedbackKind
from fitrouter_integrations.gateway.parsing._typed import Body, Name, Statement, typed


class Part(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An inner object."""

    size: Annotated[int, Meta(ge=1, le=9)]


class Whole(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body with a field of each kind."""

    name: Name
    part: Part | None = None
    parts: Annotated[list[Part], Meta(min_length=1, max_length=2)] | None = None
    values: dict[str, float] | None = None
    pair: Annotated[tuple[float, float], Meta(title="[lowest, highest]")] | None = None
    kind: FeedbackKind | None = None
    choice: Literal["a", "b"] = "a"
    said: Statement | None = None
    flag: bool | None = None
    either: str | int | None = None
    above: Annotated[float, Meta(gt=0)] | None = None
    later: dict[str, Any] | UnsetType = UNSET


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"name": UNSET}, "name: missing; give one line of 1 to 512 characters"),
    ({"name": None}, "name: got None; give one line of 1 to 512 characters"),
    ({"name": ""}, "name: got ''; give one line of 1 to 512 characters"),
    ({"name": "a\nb"}, "name: got 'a\\nb'; give one line of 1 to 512 characters"),
    ({"nmae": 1}, "'nmae': unknown field; allowed are name, part, parts"),
    ({"part": 7}, "part: got 7; give an object with size"),
    ({"part": {}}, "part.size: missing; give a whole number from 1 to 9"),
    ({"part": {"size": 10}}, "part.size: got 10; give a whole number from 1 to 9"),
    ({"part": {"size": True}}, "part.size: got True; give a whole number from 1 to 9"),
    ({"part": {"size": 1, "x": 2}}, "part: 'x': unknown field; allowed are size"),
    ({"parts": "x"}, "parts: got 'x'; give an array of objects with size"),
    ({"parts": []}, "parts: 0 were given; give an array of objects with size"),
    ({"parts": [{"size": 1}] * 3}, "parts: 3 were given, at most 2 are allowed"),
    ({"parts": [{"size": 1}, {"size": 0.5}]}, "parts[1].size: got 0.5; give a whole number from 1 to 9"),
    ({"values": [1]}, "values: got [1]; give an object"),
    ({"values": {"warmth": "high"}}, "values.warmth: got 'high'; give a number"),
    ({"pair": [1]}, "pair: 1 were given; give [lowest, highest]"),
    ({"pair": [1, "x"]}, "pair[1]: got 'x'; give a number"),
    ({"kind": "clap"}, "kind: got 'clap'; allowed are thumb, rating"),
    ({"choice": None}, "choice: got None; allowed are a, b"),
    ({"said": " "}, "said: got ' '; give a string of 1 to 1000 characters"),
    ({"flag": "yes"}, "flag: got 'yes'; give true or false"),
    ({"either": [1]}, "either: got [1]; give a string or a whole number"),
    ({"above": 0}, "above: got 0; give a number above 0"),
    ({"later": None}, "later: got None; give an object"),
]


@pytest.mark.parametrize(("change", "words"), FAULTS, ids=[words.partition(";")[0] for _, words in FAULTS])
def test_a_fault_says_where_what_and_what_is_allowed(change: dict[str, Any], words: str) -> None:
    """The first fault of a body, in the field's own words; nothing of the library that decodes."""
    body = {name: value for name, value in ({"name": "n"} | change).items() if value is not UNSET}
    with pytest.raises(InvalidRequest) as refused:
        typed(body, Whole)
    assert words in str(refused.value)


def test_null_stands_for_what_is_left_out() -> None:
    """Where a field may be left out, except where null means something or there is another default."""
    empty = dict.fromkeys(("part", "parts", "values", "pair", "kind", "said", "flag", "either", "above"))
    assert typed({"name": "n", **empty}, Whole) == typed({"name": "n"}, Whole)
    assert typed({"name": "n", "pair": [1, 2], "either": 7}, Whole) == Whole(name="n", pair=(1.0, 2.0), either=7)
