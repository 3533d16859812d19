"""Eligibility: every cell of the parameter table, capabilities, windows, bound histories, and reasons that say why."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.tables import table_driven

from fitrouter.routing.eligibility import DROPPABLE, STATE, Eligible, Roster, Wants, noted, wants, without_state
from fitrouter.routing.parameters import FAMILIES, NEUTRAL, PARAMETERS, family, lineage, takes
from fitrouter.types import ModelCard, Request, Variant

TARGETS = {
    "openai": ("openai/gpt-4o", "openai/gpt-4.1", "openai/gpt-5-chat-latest"),
    "openai-o": ("openai/o3-mini", "openai/o4-mini", "openai/o1"),
    "openai-5": ("openai/gpt-5", "openai/gpt-5-mini"),
    "anthropic": ("anthropic/claude-sonnet-4-5", "vertex_ai/claude-sonnet-4@20250514"),
    "google": ("gemini/gemini-2.5-flash", "gemini/gemini-3-pro-preview"),
    "mistral": ("mistral/mistral-large-latest",),
    "cohere": ("cohere_chat/command-r-plus",),
    "xai": ("xai/grok-4",),
    "groq": ("groq/llama-3.3-70b-versatile",),
    "bedrock": ("bedrock/us.anthropic.claude-sonnet-4-20250514-v1:0",),
    "ollama": ("ollama_chat/llama3.1",),
}
"""Models by which litellm is asked."""

STRICTER = {
    "openai-o": {
        "temperature": "only 1 is taken (litellm raises on other values)",
        "stop": "not taken by o3 and o4-mini (OpenAI's reference)",
        "logit_bias": "not taken by reasoning models (OpenAI's guide)",
    },
    "openai-5": {"temperature": "only 1 is taken (litellm raises on other values)"},
    "groq": {
        **dict.fromkeys(("n", "logprobs", "top_logprobs", "logit_bias"), "answers 400 (console.groq.com/docs/openai)"),
        **dict.fromkeys(("modalities", "audio", "prediction"), "OpenAI's alone: litellm lets it through unread"),
        **dict.fromkeys(("store", "safety_identifier"), "OpenAI's alone: litellm lets it through unread"),
        **dict.fromkeys(("prompt_cache_key", "prompt_cache_retention"), "OpenAI's alone, as above"),
    },
}
"""Where the table refuses what litellm says is taken, and why."""

BEYOND = {
    "top_k": "no parameter of OpenAI's: litellm hands it to the provider as it is",
    "min_p": "no parameter of OpenAI's: litellm hands it to the provider as it is",
    "repetition_penalty": "no parameter of OpenAI's: litellm hands it to the provider as it is",
    **dict.fromkeys(("reasoning", "include_reasoning", "reasoning_format"), "OpenRouter's and Groq's: as above"),
}
"""Parameters of which litellm does not say who takes them."""

VALUES: dict[str, Any] = {
    "temperature": 0.3,
    "top_p": 0.9,
    "n": 2,
    "stop": ["END"],
    "logprobs": True,
    "response_format": {"type": "json_object"},
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "reasoning_effort": "high",
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "modalities": ["text", "image"],
    "service_tier": "flex",
    "store": True,
    "max_tokens": 10,
    "max_completion_tokens": 10,
}
"""A value of each parameter that asks for something; 5 for those that are not here."""

ALL = ("audio", "files", "images", "json", "streaming", "tools", "video")


def card(target: str, **known: Any) -> ModelCard:
    return ModelCard(name="m", provider="p", target=target, **{"capabilities": ALL, **known})


def eligible(cards: Sequence[ModelCard], asked: Wants, **droppable: Any) -> Eligible:
    return Roster(cards).eligible(asked, **droppable)


def ask(*messages: dict[str, Any], stream: bool = False, **params: Any) -> Wants:
    said = messages or ({"role": "user", "content": "Hi"},)
    return wants(Request(messages=said, params=params, stream=stream))


# --- the table -------------------------------------------------------------------------------------------------------


@table_driven("provider", FAMILIES)
def test_every_parameter_of_a_provider(provider: str) -> None:
    """A parameter that is taken passes; one that is not excludes the model and says so, unless it is droppable."""
    model = card(TARGETS[provider][0])
    assert family(model) == provider
    for name, columns in PARAMETERS.items():
        cell = f"{provider}, {name}"
        asked = Wants(params={name: VALUES.get(name, 5)})
        found = eligible([model], asked, droppable=())
        if columns[provider]:
            assert found == Eligible(cards=(model,)), cell
            continue
        reason = f"parameter: needs {name}, which {provider} models do not take"
        assert found == Eligible(cards=(), excluded=(("m", reason),)), cell
        dropped = Eligible(cards=(model,), dropped={"m": (name,)})
        assert eligible([model], asked, droppable=(name,)) == dropped, cell
        for neutral in (*NEUTRAL.get(name, ()), None):
            assert eligible([model], Wants(params={name: neutral}), droppable=()) == dropped, f"{cell}={neutral!r}"


@table_driven("kin", FAMILIES)
def test_the_table_agrees_with_litellm(kin: str) -> None:
    """Each column is what every model asked about takes by litellm's account, less what is named as stricter."""
    pytest.importorskip("litellm")
    litellm = importlib.import_module("litellm")
    supported = set(PARAMETERS)
    for target in TARGETS[kin]:
        provider, _, model = target.partition("/")
        supported &= set(litellm.get_supported_openai_params(model=model, custom_llm_provider=provider))
    known = {name for name, columns in PARAMETERS.items() if columns[kin]} - set(BEYOND)
    stricter = set(STRICTER.get(kin, {}))
    assert stricter <= supported
    assert known == supported - stricter


def test_every_exception_to_litellm_is_one() -> None:
    """A cell is called stricter only where it says no; and neutral values are of known parameters."""
    for kin, names in STRICTER.items():
        assert not any(PARAMETERS[name][kin] for name in names)
    assert set(NEUTRAL) <= set(PARAMETERS)
    assert set(DROPPABLE) <= set(PARAMETERS)


def test_whose_api_a_card_speaks(subtests: pytest.Subtests) -> None:
    """Provider's name, litellm's route, then the makers' own names; whatever else serves a model takes everything."""
    for target, provider, kin in (
        ("gpt-4o-mini", "litellm", "openai"),
        ("gpt-5.1-chat", "litellm", "openai"),
        ("azure/gpt-5-mini", "litellm", "openai-5"),
        ("o3", "main", "openai-o"),
        ("claude-3-5-haiku-20241022", "litellm", "anthropic"),
        ("vertex_ai/gemini-2.5-pro", "litellm", "google"),
        ("bedrock/meta.llama3-1-70b-instruct-v1:0", "litellm", "bedrock"),
        ("openai/gpt-oss-120b", "groq", "groq"),
        ("any-name", "anthropic", "anthropic"),
        ("deepseek-chat", "litellm", "deepseek"),
        ("openrouter/anthropic/claude-sonnet-4", "litellm", "openai_compatible"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "vllm", "openai_compatible"),
        ("mistral-7b-instruct", "vllm", "openai_compatible"),
        ("gpt-oss-120b", "vllm", "openai_compatible"),
        ("alpha", "echo", "openai_compatible"),
        ("", "p", "openai_compatible"),
    ):
        with subtests.test(target=target, provider=provider, kin=kin):
            assert family(ModelCard(name=target, provider=provider)) == kin
            assert family(ModelCard(name="x", target=target or "x", provider=provider)) == kin


def test_who_made_a_model_wherever_it_is_hosted(subtests: pytest.Subtests) -> None:
    """Signatures of one maker are good on every platform that hosts its models."""
    for target, maker in (
        ("bedrock/us.anthropic.claude-sonnet-4-20250514-v1:0", "anthropic"),
        ("vertex_ai/claude-sonnet-4@20250514", "anthropic"),
        ("openrouter/google/gemini-2.5-pro", "google"),
        ("openrouter/openai/gpt-5", "openai"),
        ("azure/my-deployment", "openai"),
        ("openai/o4-mini", "openai"),
        ("xai/grok-4", "xai"),
        ("openai/gpt-oss-20b", "open weights"),
        ("ollama_chat/llama3.1", "open weights"),
        ("smart", "openai_compatible"),
        ("mistral/mistral-large-latest", "mistral"),
        ("alpha", "openai_compatible"),
    ):
        with subtests.test(target=target, maker=maker):
            own = ModelCard(name="x", target=target, provider="vllm" if "oss" in target else "litellm")
            assert (
                lineage(own) if "oss" not in target else lineage(ModelCard(name="gpt-oss-20b", provider="vllm"))
            ) == maker


# --- parameters ------------------------------------------------------------------------------------------------------


def test_unknown_parameters_are_the_providers_affair_unless_a_card_lists_its_own() -> None:
    """A card's list is the last word on what its model takes, but for what capabilities and limits say."""
    asked = ask(novelty=1, seed=3, user="ann", metadata={"a": 1}, max_tokens=5)
    assert eligible([card("anthropic/claude-x")], asked, droppable=("seed",)).dropped == {"m": ("seed",)}
    listed = card("anthropic/claude-x", parameters=("temperature", "seed"))
    assert eligible([listed], asked).excluded == (("m", "parameter: needs novelty, its card lists seed, temperature"),)
    assert eligible([listed], asked, droppable=("novelty",)) == Eligible(cards=(listed,), dropped={"m": ("novelty",)})
    assert takes(card("x", parameters=()), "seed", 1) == "parameter: needs seed, its card lists none"


def test_some_families_take_a_parameter_in_some_of_its_forms() -> None:
    """Bedrock cannot forbid tools, DeepSeek knows no schemas: the form decides, and the reason names both."""
    function = {"type": "function", "function": {"name": "f"}}
    bedrock, deepseek = card("bedrock/us.amazon.nova-pro"), card("deepseek/deepseek-chat")
    assert takes(bedrock, "tool_choice", function) == ""
    assert (
        takes(bedrock, "tool_choice", "none")
        == "parameter: needs tool_choice 'none', bedrock models take auto, required, function"
    )
    assert takes(deepseek, "response_format", {"type": "json_object"}) == ""
    assert "'json_schema'" in takes(deepseek, "response_format", {"type": "json_schema", "json_schema": {}})
    assert "'dict'" in takes(deepseek, "response_format", {})
    assert eligible([bedrock], ask(tool_choice="auto"), droppable=()) == Eligible(cards=(bedrock,))


def test_what_frameworks_send_unasked_costs_no_model_its_place() -> None:
    """The defaults of agent frameworks are left out where they are refused, without being droppable."""
    defaults: dict[str, Any] = {
        "temperature": 1.0,
        "top_p": 1,
        "n": 1,
        "frequency_penalty": 0.0,
        "presence_penalty": 0,
        "logprobs": False,
    }
    found = eligible([card("openai/o3"), card("anthropic/claude-x")], ask(**defaults), droppable=())
    assert len(found.cards) == 2
    assert found.excluded == ()
    assert noted(found.cards[0], {**defaults, "seed": 1, "store": None}, (*defaults, "seed", "store")) == ("seed",)


# --- capabilities, windows -------------------------------------------------------------------------------------------


def test_parts_need_their_capability(subtests: pytest.Subtests) -> None:
    """A model that lacks what a part of a message needs is excluded, and the reason says what it has."""
    for part, needed in (
        ({"type": "image_url", "image_url": {"url": "data:"}}, "images"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "audio"),
        ({"type": "file", "file": {"file_id": "f"}}, "files"),
        ({"type": "document", "source": {}}, "files"),
        ({"type": "video_url", "video_url": {"url": "x"}}, "video"),
    ):
        with subtests.test(part=part, needed=needed):
            asked = ask({"role": "user", "content": [{"type": "text", "text": "Look"}, part]})
            assert asked.capabilities == (needed,)
            plain = card("x", capabilities=("streaming", "tools"))
            assert eligible([plain], asked).excluded == (("m", f"capability: lacks {needed}, has streaming, tools"),)
            assert eligible([card("x")], asked).excluded == ()


def test_params_and_stream_need_capabilities() -> None:
    """Tools, JSON, streaming and spoken answers are read off the parameters."""
    asked = ask(stream=True, tools=[{}], response_format={"type": "json_schema"}, modalities=["text", "audio"])
    assert asked.capabilities == ("audio", "json", "streaming", "tools")
    assert eligible([card("x", capabilities=())], ask(stream=True)).excluded == (
        ("m", "capability: lacks streaming, has none"),
    )


def test_the_answer_counts_against_the_window_and_its_own_limit() -> None:
    """Prompt and answer together fit the window; the answer alone fits what the model can write."""
    asked = ask({"role": "user", "content": "x" * 392}, max_completion_tokens=50)
    assert (asked.prompt_tokens, asked.answer_tokens, asked.tokens) == (103, 50, 153)
    models = [
        ModelCard(name="even", provider="p", context_window=153, max_output_tokens=50),
        ModelCard(name="short", provider="p", max_output_tokens=49),
        ModelCard(name="tight", provider="p", context_window=152),
    ]
    found = eligible(models, asked)
    assert [model.name for model in found.cards] == ["even"]
    assert dict(found.excluded) == {
        "short": "answer: needs up to 50 tokens, writes at most 49",
        "tight": "context: needs about 153 tokens, has 152",
    }


def test_a_limit_that_is_none_counts_nothing(subtests: pytest.Subtests) -> None:
    """What is no number of tokens is not counted, and does no harm."""
    for limit in (
        None,
        "many",
        True,
        float("nan"),
        float("inf"),
        -5,
        [],
        {},
    ):
        with subtests.test(limit=limit):
            assert ask(max_tokens=limit).answer_tokens == 0


# --- histories that only their maker can read ------------------------------------------------------------------------


def said(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "ok", **fields}


SIGNED = [
    (said(content=[{"type": "thinking", "thinking": "…", "signature": "Eq"}]), "anthropic"),
    (said(content=[{"type": "redacted_thinking", "data": "Em"}]), "anthropic"),
    (said(thinking_blocks=[{"type": "thinking", "thinking": "…", "signature": "Eq"}]), "anthropic"),
    (said(content=[{"type": "web_search_tool_result", "content": []}]), "anthropic"),
    (said(reasoning_items=[{"type": "reasoning", "encrypted_content": "gA"}]), "openai"),
    (said(content=[{"type": "reasoning", "encrypted_content": "gA"}]), "openai"),
    ({"type": "reasoning", "encrypted_content": "gA"}, "openai"),
    (said(audio={"id": "audio_1"}), "openai"),
    (said(reasoning_details=[{"type": "reasoning.encrypted", "data": "x", "format": "openai-responses-v1"}]), "openai"),
    (
        said(reasoning_details=[{"type": "reasoning.text", "signature": "x", "format": "anthropic-claude-v1"}]),
        "anthropic",
    ),
    (said(reasoning_details=[{"type": "reasoning.encrypted", "data": "x", "format": "google-gemini-v1"}]), "google"),
    (said(reasoning_details=[{"type": "reasoning.encrypted", "data": "x", "format": "xai-responses-v1"}]), "xai"),
    (said(tool_calls=[{"id": "c", "extra_content": {"google": {"thought_signature": "C"}}}]), "google"),
    (said(tool_calls=[{"id": "c", "provider_specific_fields": {"thought_signature": "C"}}]), "google"),
    (
        said(tool_calls=[{"id": "c", "function": {"provider_specific_fields": {"thought_signature": "C"}}}]),
        "google",
    ),
    (said(tool_calls=[{"id": "call_1__thought__Cs"}]), "google"),
    (said(content=[{"type": "text", "text": "ok", "extra_content": {"google": {"thought_signature": "C"}}}]), "google"),
    (said(provider_specific_fields={"thought_signatures": ["C"]}), "google"),
]

MAKERS = {
    "anthropic": card("anthropic/claude-sonnet-4-5"),
    "google": card("gemini/gemini-2.5-pro"),
    "openai": card("openai/gpt-5"),
    "xai": card("xai/grok-4"),
    "mistral": card("mistral/mistral-large-latest"),
    "open weights": card("local/llama"),
    "openai_compatible": card("smart"),
}
HARD = ("custom tools", "encrypted search results", "earlier spoken answer")


@pytest.mark.parametrize("other", MAKERS)
def test_signed_and_encrypted_blocks_go_back_to_their_maker(other: str) -> None:
    """What others can do without is left out, and said, where its maker has no model; one of unknown maker may read."""
    own = msgspec.structs.replace(MAKERS[other], name="own")
    for message, maker in SIGNED:
        asked = ask({"role": "user", "content": "Hi"}, message, {"role": "user", "content": "And?"})
        assert asked.bound.keys() == {maker}, message
        what = asked.bound[maker]
        reason = f"history: has {what} that only {maker} models can read, is {other}"
        both = eligible([MAKERS[maker], own], asked)
        assert both.excluded == (() if other == maker else (("own", reason),)), message
        alone = eligible([own], asked)
        if what in HARD:
            assert alone.excluded == both.excluded
            continue
        assert alone.cards == (own,)
        assert alone.dropped == ({} if other in (maker, "openai_compatible") else {"own": (f"history: {what}",)})
        kept = without_state(message, own)
        assert (ask(kept).bound == asked.bound) is (not alone.dropped), message
        assert ("'ok'" in str(kept)) is ("'ok'" in str(message))
        assert [call["id"] for call in kept.get("tool_calls", ())] in ([], ["c"], ["call_1"], ["call_1__thought__Cs"])


def test_open_reasoning_binds_nobody(subtests: pytest.Subtests) -> None:
    """Thoughts without a signature, and words about signatures, can be read by all."""
    for message in (
        said(content=[{"type": "thinking", "thinking": "…", "signature": ""}]),
        said(content=[{"type": "thinking", "thinking": "…"}]),
        said(reasoning_content="Let me see"),
        said(reasoning_details=[{"type": "reasoning.text", "text": "Let me see", "format": "unknown"}]),
        said(reasoning_items=[{"type": "reasoning", "encrypted_content": None}]),
        said(tool_calls=[{"id": "call_1", "function": {"name": "f", "arguments": "{}"}}], audio=None),
        {"role": "user", "content": "type: redacted_thinking, signature: Eq"},
    ):
        with subtests.test(message=message):
            assert ask(message).bound == {}


def test_two_makers_blocks_leave_each_its_own() -> None:
    """A history that no model can read as a whole goes to any of them, without what it cannot read."""
    asked = ask(SIGNED[0][0], SIGNED[-1][0])
    found = eligible([msgspec.structs.replace(MAKERS[name], name=name) for name in ("anthropic", "google")], asked)
    assert found.dropped == {"anthropic": ("history: thought signatures",), "google": ("history: signed thinking",)}
    small = eligible([msgspec.structs.replace(MAKERS["anthropic"], context_window=1), MAKERS["mistral"]], asked)
    assert [each.target for each in small.cards] == ["mistral/mistral-large-latest"]
    hard = eligible([MAKERS["anthropic"], MAKERS["openai"]], ask(SIGNED[3][0], SIGNED[7][0]))
    assert [reason.count("history: has") for _, reason in hard.excluded] == [1, 1]
    for both in ((SIGNED[0][0], SIGNED[3][0]), (SIGNED[3][0], SIGNED[0][0])):
        assert eligible([MAKERS["mistral"]], ask(*both)).cards == (), (
            "what cannot be left out is not hidden by what can"
        )


# --- what holds always -----------------------------------------------------------------------------------------------


def test_all_reasons_are_given_at_once_and_order_is_canonical() -> None:
    """Who reads an exclusion need not guess what comes next; eligible and excluded are sorted by arm."""
    models = [
        ModelCard(name="z", provider="p", context_window=5, capabilities=()),
        ModelCard(name="b", provider="p", revision="2"),
        ModelCard(name="b", provider="p", variant=Variant(name="terse")),
        ModelCard(name="a", provider="p", target="anthropic/claude-x"),
    ]
    found = eligible(models, ask(stream=True, seed=1))
    assert [model.arm for model in found.cards] == ["b#terse", "b@2"]
    assert found.excluded == (
        ("a", "parameter: needs seed, which anthropic models do not take"),
        ("z", "capability: lacks streaming, has none; context: needs about 6 tokens, has 5"),
    )


json_ = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
KEYS = """
    role content tool_calls thinking_blocks reasoning_details type signature audio id format data function extra_content
    provider_specific_fields encrypted_content google thought_signature
"""
keys_ = st.sampled_from(KEYS.split())
words_ = st.sampled_from(["assistant", "user", "thinking", "reasoning.text", "input_audio", "file", "text", "x"])
block_ = st.dictionaries(keys_, json_ | words_ | st.dictionaries(keys_, json_ | words_, max_size=3), max_size=5)
message_ = st.dictionaries(keys_, json_ | words_ | st.lists(block_ | json_, max_size=3) | block_, max_size=5)
params_ = st.dictionaries(st.sampled_from(list(PARAMETERS)) | st.text(max_size=6), json_, max_size=6)
cards_ = st.lists(
    st.builds(
        ModelCard,
        name=st.sampled_from(["claude-x", "gpt-5", "gemini-2.5-pro", "llama", "o3", "command-r"]),
        provider=st.just("p"),
        revision=st.sampled_from(["", "1", "2"]),
        context_window=st.integers(1, 200),
        max_output_tokens=st.none() | st.integers(1, 100),
        capabilities=st.lists(st.sampled_from(ALL), unique=True).map(tuple),
        parameters=st.none() | st.lists(st.sampled_from(list(PARAMETERS)), max_size=4).map(tuple),
    ),
    max_size=6,
    unique_by=lambda card: card.arm,
)


@settings(max_examples=100)
@given(
    messages=st.lists(message_, max_size=4),
    params=params_,
    stream=st.booleans(),
    models=cards_,
    droppable=st.lists(st.sampled_from(list(PARAMETERS)), max_size=5),
)
def test_any_request_is_sorted_and_every_exclusion_says_what_was_needed_and_what_there_is(
    messages: list[dict[str, Any]],
    params: dict[str, Any],
    stream: bool,
    models: list[ModelCard],
    droppable: list[str],
) -> None:
    """Nothing crashes; every arm is eligible or excluded, once; reasons name need and card; only what can go goes."""
    asked = wants(Request(messages=tuple(messages), params=params, stream=stream))
    found = eligible(models, asked, droppable=droppable)
    kept, gone = [model.arm for model in found.cards], dict(found.excluded)
    assert sorted([*kept, *gone]) == sorted(model.arm for model in models)
    assert kept == sorted(kept)
    assert list(gone) == sorted(gone)
    for model in models:
        reason = gone.get(model.arm, "")
        missing = set(asked.capabilities) - set(model.capabilities)
        for name in missing:
            assert name in reason
        assert (asked.tokens > model.context_window) == (
            f"about {asked.tokens} tokens, has {model.context_window}" in reason
        )
        for maker, what in asked.bound.items():
            assert what not in HARD or (maker != lineage(model)) == (
                f"that only {maker} models" in reason and f"is {lineage(model)}" in reason
            )
        refused = {name for name, value in params.items() if takes(model, name, value)}
        if model.arm in gone:
            assert reason
            continue
        left_out = {name for name in found.dropped.get(model.arm, ()) if not name.startswith(STATE)}
        assert left_out == refused
        for name in refused:
            value = params[name]
            assert value is None or name in droppable or value in NEUTRAL.get(name, ())
