"""Variants: arms of their own, in whose calls nothing of the caller's is overridden."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitrouter.errors import ConfigError
from fitrouter.posterior.arms import base_arm
from fitrouter.routing.variants import LIMIT, apply, called, expand
from fitrouter.types import Message, ModelCard, Prices, Variant

TERSE = Variant(name="terse", prefix="Be brief.", params={"temperature": 0.2, "max_tokens": 200})
WARM = Variant(name="warm", prefix="Be kind.")


# --- arms ------------------------------------------------------------------------------------------------------------


def test_a_model_and_its_variants_are_arms_that_share_all_but_their_way() -> None:
    """Names are `name#variant@revision`; target, prices and window are the model's own."""
    card = ModelCard(
        name="m", provider="p", revision="2", prices=Prices(input=1.0), context_window=9, variants=(TERSE, WARM)
    )
    arms = expand([card, ModelCard(name="other", provider="p", target="x")])
    assert [arm.arm for arm in arms] == ["m@2", "m#terse@2", "m#warm@2", "other"]
    assert [called(arm) for arm in arms] == ["m", "m#terse", "m#warm", "other"]
    assert [base_arm(arm.arm) for arm in arms] == ["m@2", "m@2", "m@2", "other"]
    assert [arm.variant for arm in arms] == [None, TERSE, WARM, None]
    assert {(arm.target or arm.name, arm.prices, arm.context_window) for arm in arms[:3]} == {
        ("m", Prices(input=1.0), 9)
    }
    assert expand(arms) == arms


names_ = st.text(alphabet="abc@./-_:1", min_size=1, max_size=8)
variant_names_ = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", fullmatch=True)


@given(
    name=names_,
    revision=st.text(alphabet="ab1.-@", max_size=4),
    ways=st.lists(variant_names_, max_size=LIMIT, unique=True),
)
def test_the_base_of_every_arm_is_its_plain_model(name: str, revision: str, ways: list[str]) -> None:
    """Whatever a model, its revision and its variants are called, arms differ and lead back to the model."""
    card = ModelCard(name=name, provider="p", revision=revision, variants=tuple(Variant(name=way) for way in ways))
    arms = [arm.arm for arm in expand([card])]
    assert len(set(arms)) == 1 + len(ways)
    assert {base_arm(arm) for arm in arms} == {card.arm}


def test_what_cannot_be_a_variant_is_refused_with_the_remedy(subtests: pytest.Subtests) -> None:
    """Too many, bad or double names, the caller's own fields, and parameters that the model does not take."""
    for known, message in (
        ({"variants": tuple(Variant(name=f"v{i}") for i in range(5))}, "has 5 variants; at most 4 are allowed"),
        ({"variants": (Variant(name="two words"),)}, "variant 'two words' of 'm': use up to 40"),
        ({"variants": (Variant(name=""),)}, "use up to 40"),
        ({"variants": (Variant(name="-x"),)}, "a letter or digit first"),
        ({"variants": (Variant(name="x\n"),)}, "use up to 40"),
        ({"variants": (WARM, WARM)}, "arm 'm#warm' is defined 2 times"),
        ({"name": "m#1", "variants": (WARM,)}, "choose names without it"),
        ({"revision": "#1", "variants": (WARM,)}, "choose names without it"),
        ({"revision": "#1", "variant": Variant(name="host-x")}, "choose names without it"),
        (
            {"variants": (Variant(name="v", params={"tools": [], "stream": True}),)},
            "sets stream, tools, which only a caller",
        ),
        (
            {"target": "anthropic/claude-x", "variants": (Variant(name="v", params={"seed": 1}),)},
            "needs seed, which anthropic models do not take. Remove it",
        ),
    ):
        with subtests.test(known=known, message=message), pytest.raises(ConfigError, match=message):
            expand([ModelCard(**{"name": "m", "provider": "p", **known})])


def test_a_name_with_the_separator_is_fine_without_variants() -> None:
    """Models that are called so already keep working, and their base is themselves where no variant fits."""
    (arm,) = expand([ModelCard(name="m #1 of all", provider="p")])
    assert base_arm(arm.arm) == arm.arm == "m #1 of all"


# --- calls -----------------------------------------------------------------------------------------------------------


USER: Message = {"role": "user", "content": "Hi"}
CACHED = [{"type": "text", "text": "You are a lawyer.", "cache_control": {"type": "ephemeral"}}]


def test_a_prefix_stands_in_front_of_the_callers_system_text(subtests: pytest.Subtests) -> None:
    """Strings, lists of parts, developers, several system messages, none: the caller's text stays and comes after."""
    for messages, led in (
        ((USER,), ({"role": "system", "content": "Be kind."}, USER)),
        ((), ({"role": "system", "content": "Be kind."},)),
        (
            ({"role": "system", "content": "You are a lawyer.", "name": "x"}, USER),
            ({"role": "system", "content": "Be kind.\n\nYou are a lawyer.", "name": "x"}, USER),
        ),
        (
            ({"role": "developer", "content": "You are a lawyer."}, USER),
            ({"role": "developer", "content": "Be kind.\n\nYou are a lawyer."}, USER),
        ),
        (
            ({"role": "system", "content": CACHED}, USER),
            ({"role": "system", "content": [{"type": "text", "text": "Be kind."}, *CACHED]}, USER),
        ),
        (
            (USER, {"role": "system", "content": "A"}, {"role": "developer", "content": "B"}),
            (USER, {"role": "system", "content": "Be kind.\n\nA"}, {"role": "developer", "content": "B"}),
        ),
        (({"role": "system", "content": ""}, USER), ({"role": "system", "content": "Be kind."}, USER)),
        (({"role": "system", "content": None}, USER), ({"role": "system", "content": "Be kind."}, USER)),
        (({"role": "system"}, USER), ({"role": "system", "content": "Be kind."}, USER)),
        (({"role": "system", "content": []}, USER), ({"role": "system", "content": "Be kind."}, USER)),
        (
            ({"role": "system", "content": 7}, USER),
            ({"role": "system", "content": "Be kind."}, {"role": "system", "content": 7}, USER),
        ),
    ):
        with subtests.test(messages=messages, led=led):
            assert apply(WARM, messages, {}) == (led, {})


def test_the_callers_parameters_win_under_either_name() -> None:
    """A variant fills in what the caller left open; two names for one thing are never both sent."""
    assert apply(TERSE, (USER,), {})[1] == {"temperature": 0.2, "max_tokens": 200}
    assert apply(TERSE, (USER,), {"temperature": 1.0, "seed": 3})[1] == {
        "temperature": 1.0,
        "max_tokens": 200,
        "seed": 3,
    }
    assert apply(TERSE, (USER,), {"max_completion_tokens": 9})[1] == {"temperature": 0.2, "max_completion_tokens": 9}
    thinking = Variant(name="t", params={"reasoning_effort": "high"})
    assert apply(thinking, (USER,), {"thinking": {"type": "disabled"}})[1] == {"thinking": {"type": "disabled"}}


def test_the_plain_model_is_asked_as_the_caller_does() -> None:
    """Without a variant, or with an empty one, messages and parameters are the caller's."""
    messages = (USER,)
    for variant in (None, Variant(name="v")):
        out, params = apply(variant, messages, {"seed": 1})
        assert out is messages
        assert params == {"seed": 1}


json_ = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
part_ = st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=8)}) | json_
message_ = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]) | json_,
        "content": st.text(max_size=12) | st.lists(part_, max_size=3) | json_,
        "name": st.text(max_size=4),
    },
)
params_ = st.dictionaries(
    st.sampled_from(["temperature", "max_tokens", "thinking", "tools", "tool_choice", "x"]), json_
)
variant_ = st.builds(
    Variant,
    name=st.just("v"),
    prefix=st.text(max_size=8),
    params=st.dictionaries(st.sampled_from(["temperature", "max_completion_tokens", "reasoning_effort", "y"]), json_),
)


def texts(content: object) -> list[object]:
    return list(content) if isinstance(content, list) else [content]


@settings(max_examples=100)
@given(variant=variant_, messages=st.lists(message_, max_size=5).map(tuple), params=params_)
def test_nothing_of_the_callers_is_changed_or_lost(
    variant: Variant, messages: tuple[Message, ...], params: dict[str, Any]
) -> None:
    """Every message but one is the caller's own; that one gains the prefix in front; tools and parameters stay."""
    before = copy.deepcopy((messages, params))
    out, asked = apply(variant, messages, params)
    assert (messages, params) == before
    assert {name: asked[name] for name in params} == params
    assert set(asked) - set(params) <= set(variant.params)
    added = set(asked) - set(params)
    assert not ("max_tokens" in params and "max_completion_tokens" in added)
    assert not ("thinking" in params and "reasoning_effort" in added)
    if not variant.prefix:
        assert out is messages
        return
    if len(out) > len(messages):
        assert out == ({"role": "system", "content": variant.prefix}, *messages)
        return
    (at,) = [i for i, (new, old) in enumerate(zip(out, messages, strict=True)) if new is not old]
    old, new = messages[at], out[at]
    assert old["role"] in ("system", "developer")
    assert {**new, "content": None} == {**old, "content": None}
    assert not any(message.get("role") in ("system", "developer") for message in messages[:at])
    content = old.get("content")
    if isinstance(content, str) and content:
        assert new["content"] == f"{variant.prefix}\n\n{content}"
    else:
        assert texts(new["content"])[1:] == [*(content or [])]
        assert texts(new["content"])[0] in (variant.prefix, {"type": "text", "text": variant.prefix})
