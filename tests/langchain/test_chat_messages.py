"""Conversion of conversations and answers by ChatFitrouter, whole and streamed."""

from __future__ import annotations

import functools
import logging
import operator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_core", reason="install the extra `langchain`")

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from tests.kits.agents import Agent
from tests.kits.chat import PAIRS, Says, Steps, asked, chat, sent
from tests.kits.tables import table_driven

from fitrouter.errors import InvalidRequest
from fitrouter_integrations.langchain import ChatFitrouter
from fitrouter_integrations.langchain._convert import Extras
from fitrouter_integrations.langchain._history import CALLS, messages_of

WHERE = ("near", "far")
PNG = "aGk="
OURS = {"model_provider": "fitrouter"}


def call(number: str = "c1", **args: Any) -> Any:
    return {"name": "look", "args": args, "id": number, "type": "tool_call"}


def told(number: str = "c1", arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function", "id": number, "function": {"name": "look", "arguments": arguments}}


CASES: dict[str, tuple[BaseMessage, dict[str, Any]]] = {
    "text": (HumanMessage("hi", name="ann"), {"role": "user", "content": "hi", "name": "ann"}),
    "nothing": (HumanMessage(""), {"role": "user", "content": ""}),
    "no parts": (HumanMessage([]), {"role": "user", "content": ""}),
    "texts": (SystemMessage(["a", {"type": "text", "text": "b"}]), {"role": "system", "content": "a\nb"}),
    "a role by name": (ChatMessage("x", role="developer"), {"role": "developer", "content": "x"}),
    "unicode": (HumanMessage("né 你好 🎈\u202e"), {"role": "user", "content": "né 你好 🎈\u202e"}),
    "image by address": (
        HumanMessage([{"type": "image", "url": "https://e.example/x.png"}]),
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://e.example/x.png"}}]},
    ),
    "image, Anthropic's": (
        HumanMessage([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}]),
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}]},
    ),
    "sound": (
        HumanMessage([{"type": "audio", "base64": PNG, "mime_type": "audio/wav"}]),
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": PNG, "format": "wav"}}]},
    ),
    "file": (
        HumanMessage([{"type": "file", "base64": PNG, "mime_type": "application/pdf"}]),
        {
            "role": "user",
            "content": [
                {
                    "type": "file",
                    "file": {"file_data": f"data:application/pdf;base64,{PNG}", "filename": "document.pdf"},
                }
            ],
        },
    ),
    "film": (
        HumanMessage([{"type": "video", "url": "https://e.example/v.mp4"}]),
        {"role": "user", "content": [{"type": "video_url", "video_url": {"url": "https://e.example/v.mp4"}}]},
    ),
    "plain document": (
        HumanMessage([{"type": "text-plain", "text": "doc", "mime_type": "text/plain"}]),
        {"role": "user", "content": "doc"},
    ),
    "a tool's picture": (
        ToolMessage([{"type": "image", "base64": PNG, "mime_type": "image/png"}], tool_call_id="c1", artifact={"x": 1}),
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}],
        },
    ),
    "text and a call": (
        AIMessage("Let me look.", tool_calls=[call(a=1)]),
        {"role": "assistant", "content": "Let me look.", "tool_calls": [told(arguments='{"a": 1}')]},
    ),
    "a call, Anthropic's": (
        AIMessage([{"type": "text", "text": "Hm"}, {"type": "tool_use", "id": "c1", "name": "look", "input": {}}]),
        {"role": "assistant", "content": "Hm", "tool_calls": [told()]},
    ),
    "standard blocks": (
        AIMessage([{"type": "reasoning", "reasoning": "so"}, {"type": "text", "text": "Hm"}, call()]),
        {"role": "assistant", "content": "Hm", "tool_calls": [told()]},
    ),
    "standard blocks of a tool call that is known": (
        AIMessage([{"type": "text", "text": "Hm"}, call()], tool_calls=[call()]),
        {"role": "assistant", "content": "Hm", "tool_calls": [told()]},
    ),
    "a refusal": (
        AIMessage("", additional_kwargs={"refusal": "no"}),
        {"role": "assistant", "content": "", "refusal": "no"},
    ),
}


@table_driven("name", CASES)
def test_messages_are_converted_to_the_openai_format(name: str) -> None:
    """Fields of LangChain and providers are converted, others dropped."""
    message, expected = CASES[name]
    assert messages_of([message]) == (expected,)


@pytest.mark.parametrize("where", WHERE)
def test_a_conversation_arrives_complete(tmp_path: Path, where: str) -> None:
    """All kinds of messages in one history, with a system message in the middle, arrive in order."""
    provider = Agent()
    history = [HumanMessage("start"), *(message for message, _ in CASES.values())]
    history.insert(2, SystemMessage("from now on, French"))
    with chat(tmp_path, where, provider) as (model, _):
        model.invoke(history)
    assert sent(provider)[2] == {"role": "system", "content": "from now on, French"}
    wanted_ones = [wanted for _, wanted in CASES.values()]
    expected = [{**each, "role": "system"} if each["role"] == "developer" else each for each in wanted_ones]
    assert [*sent(provider)[1:2], *sent(provider)[3:]] == expected


def test_an_invalid_tool_call_keeps_its_answer() -> None:
    """A tool's error goes back to the call that it answers; a call that nobody answered is left out."""
    bad: Any = {"name": "look", "args": "{oops", "id": "c1", "error": "no JSON", "type": "invalid_tool_call"}
    said = AIMessage("", invalid_tool_calls=[bad, {**bad, "id": "c2"}])
    found = messages_of([HumanMessage("hi"), said, ToolMessage("no JSON", tool_call_id="c1", status="error")])
    assert found[1]["tool_calls"] == [told(arguments="{oops")]


@pytest.mark.parametrize(("where", "how"), PAIRS)
def test_lone_surrogates_are_accepted(tmp_path: Path, where: str, how: str) -> None:
    """A lone surrogate, as in broken files, is sent like any text."""
    with chat(tmp_path, where, Agent()) as (model, _):
        assert "heard" in asked(model, how, "half \ud800 a character").text


@pytest.mark.parametrize("history", [[], [RemoveMessage(id="1")], [HumanMessage([{"type": "image"}])]])
def test_an_inconvertible_message_is_named(history: list[Any]) -> None:
    """The error names the message."""
    with pytest.raises(InvalidRequest, match=r"^messages"):
        messages_of(history)


@pytest.mark.parametrize("where", WHERE)
def test_a_very_long_history_is_sent_whole(tmp_path: Path, where: str) -> None:
    """100,000 tokens are one request."""
    provider = Agent()
    history = [HumanMessage("word " * 100), AIMessage("word " * 100)] * 400 + [HumanMessage("and?")]
    with chat(tmp_path, where, provider) as (model, _):
        assert model.get_num_tokens_from_messages(history) > 100_000
        assert model.invoke(history).text.endswith("heard and?")
    assert len(provider.calls[-1].messages) == 801


# --- thoughts ---

SIGNED = {"type": "thinking", "thinking": "let me see", "signature": "s1"}
HIDDEN = {"type": "redacted_thinking", "data": "xyz"}
WHOLE = {
    "content": "Hm.",
    "reasoning_content": "let me see",
    "thinking_blocks": [SIGNED, HIDDEN],
    "annotations": [{"type": "url_citation", "url_citation": {"url": "u1"}}, {"type": "url_citation", "x": 2}],
    "tool_calls": [{**told(), "extra_content": {"maker": {"note": "n1"}}}],
}
PIECES = [
    {"role": "assistant", "reasoning_content": "let me "},
    {"thinking_blocks": [{"type": "thinking", "thinking": "let me ", "signature": None}]},
    {"reasoning_content": "see"},
    {"thinking_blocks": [{"type": "thinking", "thinking": "see", "signature": ""}]},
    {"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "s1"}]},
    {"thinking_blocks": [HIDDEN]},
    {"content": "H"},
    {"content": "m.", "annotations": WHOLE["annotations"]},
    {
        "tool_calls": [
            {**told(arguments="{"), "index": 0, "extra_content": {"maker": {"note": "n1"}}},
        ]
    },
    {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]},
]


@pytest.mark.parametrize(("where", "how"), PAIRS)
def test_thinking_goes_back_within_its_turn(tmp_path: Path, where: str, how: str) -> None:
    """Signed thinking is sent back with the tools' results, whole also if it was streamed."""
    provider = Says(WHOLE, PIECES)
    with chat(tmp_path, where, provider, names=("claude-x",)) as (model, _):
        said = asked(model, how, "hi")
        assert said.content == "Hm."
        assert said.content_blocks[0] == {"type": "reasoning", "reasoning": "let me see"}
        assert said.additional_kwargs["annotations"] == WHOLE["annotations"]
        result = ToolMessage("found", tool_call_id="c1")
        provider.message = {"role": "assistant", "content": "done"}
        model.invoke([HumanMessage("hi"), said, result])
        back = sent(provider)[1]
        assert back["thinking_blocks"] == WHOLE["thinking_blocks"]
        assert back["reasoning_content"] == "let me see"
        assert back["tool_calls"] == WHOLE["tool_calls"]
        assert "annotations" not in back
        model.invoke([HumanMessage("hi"), said, result, AIMessage("done"), HumanMessage("thanks")])
        assert sent(provider)[1] == {"role": "assistant", "content": "Hm.", "tool_calls": [told()]}


def test_thinking_of_earlier_turns_is_dropped() -> None:
    """Signed blocks of other providers are sent within their turn only; unsigned ones never."""
    said = AIMessage([SIGNED, {"type": "thinking", "thinking": "unsigned"}, {"type": "text", "text": "Hm"}, HIDDEN])
    within = messages_of([HumanMessage("hi"), said])[1]["content"]
    assert [part["type"] for part in within] == ["thinking", "text", "redacted_thinking"]
    assert messages_of([HumanMessage("hi"), said, HumanMessage("so?")])[1]["content"] == "Hm"


def test_extras_of_other_classes_are_not_sent() -> None:
    """Only fields that the router's own answers stored are sent back."""
    said = AIMessage("Hm", additional_kwargs={"reasoning_content": "so", CALLS: {}})
    assert messages_of([HumanMessage("hi"), said])[1] == {"role": "assistant", "content": "Hm"}
    ours = said.model_copy(update={"response_metadata": OURS})
    assert messages_of([HumanMessage("hi"), ours])[1]["reasoning_content"] == "so"


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=6), st.lists(st.booleans(), max_size=6))
def test_thinking_in_any_chunks_is_the_same(words: list[str], signed: list[bool]) -> None:
    """However blocks are cut, they are joined to the same result; chunks up to a signature are one block."""
    extras, whole = Extras(), list[dict[str, Any]]()
    for i, end in enumerate([*signed, True]):
        for word in words:
            extras.add({"reasoning_details": [{"type": "reasoning.text", "text": word, "index": 0}]})
        if end:
            extras.add({"reasoning_details": [{"type": "reasoning.text", "index": 0, "signature": f"s{i}"}]})
            times = i + 1 - sum(block["times"] for block in whole)
            whole.append({"text": "".join(words) * times, "signature": f"s{i}", "times": times})
    expected = [{"type": "reasoning.text", "index": 0, **block} for block in whole]
    for block in expected:
        del block["times"]
    assert extras.found() == {"reasoning_details": expected}


# --- answers ---


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize(("where", "how"), PAIRS)
def test_chunks_add_up_to_the_whole(tmp_path: Path, where: str, how: str, tools: bool) -> None:
    """Whole or in pieces an answer has the same text, calls, usage, cost and kind of metadata, and one id."""

    def look(value: int) -> str:
        """Look it up."""
        return str(value)

    with chat(tmp_path, where, Steps(1), model="alpha") as (model, _):
        bound = model.bind_tools([look]) if tools else model
        whole, again = bound.invoke("hi"), asked(bound, how, "hi")
        assert (again.content, again.usage_metadata) == (whole.content, whole.usage_metadata)
        assert [each["args"] for each in again.tool_calls] == [each["args"] for each in whole.tool_calls]
        assert len(again.tool_calls) == tools
        assert not again.invalid_tool_calls
        for message in (whole, again):
            meta = message.response_metadata
            assert message.id == meta["decision_id"]
            assert (meta["model_name"], meta["mode"], meta["propensity"], meta["logged"]) == (
                "alpha",
                "pinned",
                1,
                True,
            )
            assert meta["finish_reason"] == ("tool_calls" if tools else "stop")
            tokens = message.usage_metadata
            assert meta["cost_usd"] == pytest.approx((tokens["input_tokens"] + 2 * tokens["output_tokens"]) / 1e6)
            assert meta.keys() == whole.response_metadata.keys()


def test_an_unknown_cost_is_none(tmp_path: Path) -> None:
    """Of a model without a price; the field is there, whole and in pieces."""
    file = tmp_path / "fitrouter.yaml"
    simulated = "{kind: simulated, options: {m: {length: 1}}}"
    file.write_text(f"data: {tmp_path}\nproviders: {{s: {simulated}}}\nmodels: [{{name: m, provider: s}}]\n")
    model = ChatFitrouter(router=str(file))
    whole = model.invoke("hi").response_metadata
    pieces = functools.reduce(operator.add, model.stream("hi")).response_metadata
    assert (whole["cost_usd"], pieces["cost_usd"], whole.keys()) == (None, None, pieces.keys())


class Tokens(BaseCallbackHandler):
    """Notes what is told of tokens."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def on_llm_new_token(self, token: str, *, chunk: Any = None, **_: Any) -> None:
        self.heard.append((token, chunk.message))


@pytest.mark.parametrize(("where", "how"), PAIRS)
def test_each_chunk_is_reported_once(tmp_path: Path, where: str, how: str) -> None:
    """Callbacks get each token with its chunk; usage in one of them, the decision in the first, the cost last."""
    tokens = Tokens()
    with chat(tmp_path, where, Agent(), streaming=True) as (model, _):
        answer = asked(model, how, "hi", {"callbacks": [tokens]})
    assert "".join(token for token, _ in tokens.heard) == answer.text
    pieces = [piece for _, piece in tokens.heard if isinstance(piece, AIMessageChunk)]
    assert [piece.usage_metadata is not None for piece in pieces].count(True) == 1
    assert "decision_id" in pieces[0].response_metadata
    assert ["cost_usd" in piece.response_metadata for piece in pieces].count(True) == 1
    assert {piece.id for piece in pieces if piece.text or piece.response_metadata} == {answer.id}


@pytest.mark.usefixtures("commits_have_time")
def test_no_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture, recwarn: Any) -> None:
    """Normal use emits no warnings."""
    caplog.set_level(logging.WARNING)
    with chat(tmp_path, "near", Agent()) as (model, _):
        model.invoke([HumanMessage([{"type": "file", "base64": PNG, "mime_type": "application/pdf"}])])
        list(model.stream("hi"))
        model.get_num_tokens("hi")
    assert not caplog.records
    assert not recwarn.list
