"""Laws of OpenAI's Responses API, as a translation of chat completions, with the openai client over a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel
from tests.kits.gateway import Echo, client, make_router, serving
from tests.kits.tables import table_driven

from fitrouter.errors import ProviderUnavailable
from fitrouter.providers import Fault, Faulty
from fitrouter.router import Router
from fitrouter.types import Chunk, Decision, Message, ModelCard, Usage
from fitrouter_integrations.client import About
from fitrouter_integrations.gateway.dialects._responses import ResponseEvents, Responses

TOOL: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "d",
    "strict": False,
    "parameters": {"type": "object", "properties": {"headers": {"type": "object"}}},
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
CALLS: Message = {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, {**CALL, "id": "call_2"}]}


def sdk(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=300.0)


def events(text: str) -> list[dict[str, Any]]:
    """The events of a stream: named by their types, and numbered without gaps."""
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def router(tmp_path: Path, echo: Echo) -> Router:
    return make_router(tmp_path, {"echo": echo})


@pytest.fixture
def url(router: Router) -> Iterator[str]:
    with serving(router) as address:
        yield address


def decisions(router: Router) -> list[Decision]:
    return [row.event for row in router._journal.tail(0, 1000) if isinstance(row.event, Decision)]


def test_input_tokens_are_counted_without_a_model(url: str, router: Router) -> None:
    """The count grows with each part of the request; nothing is decided, and what is malformed is refused."""
    counts = []
    parts: list[dict[str, Any]] = [{}, {"instructions": "Be brief."}, {"instructions": "Be brief.", "tools": [TOOL]}]
    with sdk(url) as session:
        for more in parts:
            found = session.responses.input_tokens.count(model="fitrouter/auto", input="Hello", **more)
            assert found.object == "response.input_tokens"
            counts.append(found.input_tokens)
        with pytest.raises(openai.BadRequestError):
            session.responses.input_tokens.count(model="fitrouter/auto")
    assert 0 < counts[0] < counts[1] < counts[2]
    assert not decisions(router)


# --- answers ---------------------------------------------------------------------------------------------------------


def test_a_response_is_openais_and_says_what_was_decided(url: str, router: Router) -> None:
    """The client's own parser takes it; the decision stands in headers and body, and its id takes feedback."""
    with sdk(url) as session:
        raw = session.responses.with_raw_response.create(
            model="fitrouter/auto", input="Hello", instructions="Be brief.", user="ann", metadata={"role": "cook"}
        )
    found = raw.parse()
    (decision,) = decisions(router)
    assert (found.id, found.model, found.status) == (f"resp_{decision.id}", decision.chosen, "completed")
    assert found.output_text == f"{decision.chosen} heard Hello"
    assert found.instructions == "Be brief."
    assert found.usage is not None
    assert (found.usage.input_tokens, found.usage.output_tokens, found.usage.total_tokens) == (7, 11, 18)
    assert found.to_dict()["fitrouter"]["decision_id"] == decision.id == raw.headers["x-fitrouter-decision"]  # type: ignore[index]
    assert raw.headers["x-fitrouter-propensity"] == repr(decision.propensity)
    assert decision.identity.role == "cook"
    with client(url) as http:
        vote = {"decision_id": found.id, "kind": "thumb", "value": "up", "user": "ann"}
        assert http.post("/v1/feedback", json=vote).status_code == 200


def test_a_stream_has_openais_events_in_their_order(url: str, router: Router) -> None:
    """From response.created over one message to response.completed, which holds the whole response."""
    with sdk(url) as session:
        found = list(session.responses.create(model="fitrouter/auto", input="Hello", stream=True))
    (decision,) = decisions(router)
    kinds = [event.type for event in found]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    last: Any = found[-1]
    said = "".join(event.delta for event in found if event.type == "response.output_text.delta")
    assert said == last.response.output_text == f"{decision.chosen} heard Hello"
    assert last.response.usage.total_tokens == 18
    assert last.response.to_dict()["fitrouter"]["cost_usd"] > 0
    first: Any = found[0]
    assert first.response.id == last.response.id == f"resp_{decision.id}"
    assert first.response.to_dict()["fitrouter"]["decision_id"] == decision.id


@pytest.mark.parametrize("stream", [False, True])
def test_function_calls_are_items(tmp_path: Path, stream: bool) -> None:
    """A message and two calls are three items, whole and through the client's accumulating stream."""
    with serving(make_router(tmp_path, {"echo": Echo(CALLS)})) as url, sdk(url) as session:
        given: Any = {"model": "fitrouter/auto", "input": "Hello", "tools": [TOOL], "tool_choice": "required"}
        if stream:
            with session.responses.stream(**given) as streaming:
                found: Any = streaming.get_final_response()
        else:
            found = session.responses.create(**given)
    calls = [item for item in found.output if item.type == "function_call"]
    assert [(call.call_id, call.name, call.arguments) for call in calls] == [
        (f"call_{i}", "weather", '{"city": "Ulm"}') for i in (1, 2)
    ]
    assert len({item.id for item in found.output}) == len(found.output)
    if not stream:
        assert found.output_text == "Let me see."


def test_overlapping_pieces_are_told_apart_by_their_item() -> None:
    """Pieces of calls may alternate; each item is opened and closed once, and the response is what its pieces say."""
    about = About(
        decision_id="0198c0de-0000-7000-8000-000000000000", model="m", chosen="m", mode="online", propensity=1
    )

    def piece(index: int, text: str, **start: Any) -> Chunk:
        call = {"index": index, "function": {"arguments": text, **start}}
        return Chunk(delta={"tool_calls": [{"id": f"c{index}", **call} if start else call]})

    form = ResponseEvents({})
    chunks = [
        Chunk(delta={"reasoning": "hm"}),
        Chunk(delta={"content": "I look "}),
        Chunk(delta={"content": "it up."}, logprobs={"content": [{"token": "it", "logprob": -0.5}]}),
        piece(0, "", name="f"),
        piece(1, '{"b":', name="g"),
        piece(0, '{"a": 1}'),
        piece(1, " 2}"),
        Chunk(delta={"content": "Done."}),
        Chunk(finish_reason="length"),
    ]
    sent = b"".join([*(form.chunk(about, chunk) for chunk in chunks), form.end(about, Usage(completion_tokens=9))])
    found = events(sent.decode())
    for name in ("added", "done"):
        indices = [event["output_index"] for event in found if event["type"] == f"response.output_item.{name}"]
        assert sorted(indices) == [0, 1, 2, 3, 4]
    texts = dict.fromkeys(range(5), "")
    for event in found:
        if event["type"].endswith(".delta"):
            texts[event["output_index"]] += event["delta"]
    assert list(texts.values()) == ["hm", "I look it up.", '{"a": 1}', '{"b": 2}', "Done."]
    whole = found[-1]["response"]
    assert (found[-1]["type"], whole["status"]) == ("response.incomplete", "incomplete")
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["type"] for item in whole["output"]] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
        "message",
    ]
    assert whole["output"][1]["content"][0]["logprobs"] == [{"token": "it", "logprob": -0.5}]
    assert whole["output"][-1]["status"] == "incomplete"


class Weather(BaseModel):
    city: str


def test_a_typed_answer_is_parsed(tmp_path: Path) -> None:
    """`responses.parse` asks for a schema, which reaches the model as chat completions' response_format."""
    echo = Echo({"role": "assistant", "content": '{"city": "Ulm"}'})
    with serving(make_router(tmp_path, {"echo": echo})) as url, sdk(url) as session:
        found = session.responses.parse(model="fitrouter/auto", input="Where?", text_format=Weather)
    assert found.output_parsed == Weather(city="Ulm")
    asked = echo.calls[0].params["response_format"]
    assert (asked["type"], asked["json_schema"]["name"], asked["json_schema"]["strict"]) == (
        "json_schema",
        "Weather",
        True,
    )
    assert asked["json_schema"]["schema"]["required"] == ["city"]


# --- requests --------------------------------------------------------------------------------------------------------


def test_an_agents_history_becomes_the_same_chat(tmp_path: Path) -> None:
    """The output of a response, sent back with the outputs of tools, as agents do."""
    picture = {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "low"}
    output = [{"type": "input_text", "text": "see"}, picture]
    body = {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}],
            },
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}", "id": "fc_1"},
            {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": output},
            {"type": "function_call_output", "call_id": "c2", "output": "sunny"},
            {"type": "message", "role": "developer", "content": "Go on."},
        ],
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "weather"},
        "max_output_tokens": 64,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "include": ["reasoning.encrypted_content"],
        "store": True,
        "temperature": 0.5,
        "truncation": "auto",
    }
    echo, models = Echo(), [ModelCard(name="m", provider="echo", capabilities=("images", "tools"))]
    with serving(make_router(tmp_path, {"echo": echo}, models=models)) as url, client(url) as http:
        reply = http.post("/v1/responses", json=body)
        assert reply.status_code == 200, reply.text
    (call,) = echo.calls
    asked = [{"id": i, "type": "function", "function": {"name": "weather", "arguments": "{}"}} for i in ("c1", "c2")]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk=", "detail": "low"}}
    assert list(call.messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "I look.", "tool_calls": asked},
        {"role": "tool", "tool_call_id": "c1", "content": "see"},
        {"role": "tool", "tool_call_id": "c2", "content": "sunny"},
        {"role": "user", "content": [image]},
        {"role": "system", "content": "Go on."},
    ]
    function = {name: TOOL[name] for name in ("name", "description", "parameters", "strict")}
    assert call.params == {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "max_tokens": 64,
        "reasoning_effort": "low",
        "temperature": 0.5,
    }


def test_files_and_sound_become_parts() -> None:
    """As chat completions name them."""
    file = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="}
    sound = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}
    chat = Responses().chat_body({"input": [{"role": "user", "content": [file, sound]}]})
    assert chat["messages"][0]["content"] == [
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="}},
        sound,
    ]


@pytest.mark.parametrize(("target", "name"), [("gpt-5", "max_completion_tokens"), ("alpha", "max_tokens")])
def test_a_limit_has_the_name_that_the_model_takes(tmp_path: Path, target: str, name: str) -> None:
    """OpenAI's reasoning models refuse `max_tokens`, and many servers do not know the other."""
    echo = Echo()
    router = make_router(tmp_path, {"echo": echo}, models=[ModelCard(name="m", provider="echo", target=target)])
    with serving(router) as url, client(url) as http:
        body = {"input": "Hi", "max_output_tokens": 9}
        assert http.post("/v1/responses", json=body).status_code == 200
    assert echo.calls[0].params == {name: 9}


# --- errors ----------------------------------------------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": "resp_1"}, "send the whole conversation in 'input'"),
    ({"conversation": "conv_1"}, "send the whole conversation in 'input'"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "send the whole conversation in 'input'"),
    ({"prompt": {"id": "p"}}, "'instructions'"),
    ({"background": True}, "background"),
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": [7]}, "input: got [7]"),
    ({"input": [{"type": "hologram_call"}]}, "input[0].type: 'hologram_call' is not supported"),
    ({"input": [{"type": []}]}, "input[0].role"),
    ({"input": [{"type": ["x"]}]}, "input[0].type"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "file_id"),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_url": 7}]}]}, "file_url"),
    ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f", "input": {}}]}, "input[0].input"),
    ({"tools": [{"type": "custom", "name": 7}]}, "tools[0].name"),
    ({"tools": 7}, "tools"),
    ({"tool_choice": {"type": "allowed_tools", "tools": 7}}, "tool_choice.tools"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": 7}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    ({"input": [{"role": "user", "content": "x"}] * 2049}, "2049"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tool_choice": "some"}, "tool_choice"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"instructions": 7}, "instructions"),
    ({"max_output_tokens": 0}, "max_tokens: got 0"),
    ({"max_output_tokens": "many"}, "max_output_tokens"),
    ({"n": 2}, "n: got 2; allowed is 1"),
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serving(make_router(tmp_path_factory.mktemp("shared"))) as url, client(url) as session:
        yield session


@table_driven(("more", "where"), BAD)
def test_what_cannot_be_answered_is_refused_with_the_remedy(
    shared: httpx.Client, more: dict[str, Any], where: str
) -> None:
    """400 in OpenAI's format, with the place."""
    reply = shared.post("/v1/responses", json={"input": "Hello", **more})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert where in reply.json()["error"]["message"]


@pytest.mark.parametrize("name", ["api_base", "api_key", "headers", "extra_headers", "base_url", "Api-Base"])
def test_transport_is_refused(shared: httpx.Client, name: str) -> None:
    """Whom we call, how, and with which key is no field of any dialect, at the top or inside."""
    for more in ({name: "http://169.254.169.254/"}, {"metadata": {"a": {name: "x"}}}):
        reply = shared.post("/v1/responses", json={"input": "Hello", **more})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "forbidden_field"), more


def test_a_stream_that_breaks_off_raises_in_the_client(tmp_path: Path) -> None:
    """An error event and no response.completed."""
    fault = Fault(error=ProviderUnavailable("broke off"), after=1)
    with serving(make_router(tmp_path, {"echo": Faulty(Echo(), [fault])})) as url, sdk(url) as session:
        seen = []
        with pytest.raises(openai.APIError, match="broke off"):
            seen.extend(session.responses.create(model="fitrouter/auto", input="Hello", stream=True))
        with pytest.raises(openai.NotFoundError):
            session.responses.create(model="nobody", input="Hello")
    assert "response.completed" not in [event.type for event in seen]
