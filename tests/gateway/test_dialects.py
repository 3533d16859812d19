"""Laws of all dialects: damaged requests are refused, never a failure of the gateway, and cost linear time."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from fitrouter.errors import InvalidRequest
from fitrouter.types import Chunk, Usage
from fitrouter_integrations.client import About
from fitrouter_integrations.gateway.asgi._stream import Events
from fitrouter_integrations.gateway.dialects._anthropic import Messages
from fitrouter_integrations.gateway.dialects._base import Dialect
from fitrouter_integrations.gateway.dialects._chat import ChatCompletions
from fitrouter_integrations.gateway.dialects._responses import Responses
from fitrouter_integrations.gateway.parsing._requests import chat_request

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
BODIES: list[tuple[Dialect, dict[str, Any]]] = [
    (
        Messages(),
        {
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Hi"},
                        IMAGE,
                        {"type": "document", "source": {"type": "text", "data": "x"}},
                        {"type": "search_result", "title": "t", "source": "s", "content": []},
                    ],
                },
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": ""},
                        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}]},
            ],
            "tools": [{"name": "f", "input_schema": {}}],
            "tool_choice": {"type": "tool", "name": "f"},
            "metadata": {"user_id": "ann"},
            "stop_sequences": ["END"],
            "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
            "thinking": {"type": "enabled"},
        },
    ),
    (
        Responses(),
        {
            "instructions": "Be brief.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                {"role": "user", "content": [{"type": "input_image", "image_url": "https://example.com/a.png"}]},
                {"type": "reasoning", "summary": []},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {
                    "type": "function_call_output",
                    "call_id": "c",
                    "output": [{"type": "input_file", "filename": "a", "file_data": "x"}],
                },
            ],
            "tools": [{"type": "function", "name": "f", "parameters": {}}],
            "tool_choice": {"type": "function", "name": "f"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
            "reasoning": {"effort": "low"},
            "include": ["x"],
            "max_output_tokens": 9,
        },
    ),
]
ROLES = {"system", "user", "assistant", "tool", "developer"}
JUNK: list[Any] = [None, True, 0, -1, 2**63, 1.5, "", "x", "auto", [], {}, [None], [[]], [{}], {"type": []}, ["x"], [7]]


def places(value: object) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value inside."""
    if isinstance(value, (dict, list)):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("dialect", "body"), BODIES, ids=["messages", "responses"])
def test_damaged_bodies_are_refused_or_understood(dialect: Dialect, body: dict[str, Any], seed: int) -> None:
    """Whatever stands in any place: a request, or the error that says where it is wrong; and nothing of transport."""
    rng = random.Random(seed)
    accepted = 0
    for _ in range(1000):
        given = copy.deepcopy(body)
        for _ in range(rng.choice([1, 1, 2, 5])):
            container, key = rng.choice(list(places(given)) or [(given, "x")])
            if isinstance(container, dict) and rng.random() < 0.3:
                del container[key]
            else:
                container[key] = copy.deepcopy(rng.choice(JUNK))
        try:
            request = chat_request(dialect.chat_body(given), {}, "default", dialect.choices)
        except InvalidRequest:
            continue
        accepted += 1
        assert all(
            message["role"] in {"system", "user", "assistant", "tool", "developer"} for message in request.messages
        )
        dialect.events(given)
    assert accepted > 50


ABOUT = About(decision_id="0198c0de-0000-7000-8000-000000000000", model="m", chosen="m", mode="online", propensity=1.0)
DELTAS: list[Any] = [
    {},
    {"content": None},
    {"content": "x"},
    {"content": 7},
    {"content": [{"type": "text", "text": "x"}]},
    {"refusal": "no"},
    {"reasoning": "hm"},
    {"reasoning_content": 7},
    {"thinking_blocks": [7, {"type": "thinking", "signature": "s"}, {"type": "redacted_thinking", "data": "x"}]},
    {"tool_calls": None},
    {"tool_calls": [7, {}, {"function": 7}, {"function": {}}]},
    {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}]},
    {"tool_calls": [{"index": "x", "id": 7, "function": {"name": 7, "arguments": 7}}]},
    {"tool_calls": [{"index": -1, "function": {"arguments": "}"}}, {"index": 2**63, "function": {"name": "g"}}]},
    {"role": "assistant", "unknown": 1},
]


@pytest.mark.parametrize("dialect", [ChatCompletions(), Messages(), Responses()], ids=["chat", "messages", "responses"])
def test_whatever_a_provider_streams_can_be_formatted(dialect: Dialect) -> None:
    """Deltas of any shape, in any order of two: events, never an exception."""
    for pair in itertools.product(DELTAS, repeat=2):
        events: Events = dialect.events({"thinking": {"type": "enabled"}})
        logprobs: Any = {"content": 7}
        sent = [events.chunk(ABOUT, Chunk(delta=delta, logprobs=logprobs)) for delta in pair]
        sent += [events.chunk(ABOUT, Chunk(finish_reason="strange")), events.end(ABOUT, Usage())]
        assert b"".join(sent).endswith(b"\n\n")


@pytest.mark.parametrize("dialect", [Messages(), Responses()], ids=["messages", "responses"])
def test_the_end_of_a_stream_is_as_long_as_its_answer(dialect: Dialect) -> None:
    """Bytes are linear in the answer, however many pieces and tool calls it comes in."""

    def size(n: int) -> int:
        events = dialect.events({})
        pieces = [
            {"content": "x"},
            {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "x"}}]},
        ]
        calls = [{"tool_calls": [{"index": i % 7, "function": {"arguments": "x"}}]} for i in range(n)]
        sent = [events.chunk(ABOUT, Chunk(delta=delta)) for delta in (*pieces, *calls)]
        return len(b"".join([*sent, events.end(ABOUT, Usage())]))

    assert size(2000) < 2.2 * size(1000)
