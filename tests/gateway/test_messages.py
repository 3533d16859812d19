"""Laws of Anthropic's Messages API, as a translation of chat completions, over a real socket.

The shapes are those of https://docs.anthropic.com/en/api/messages; where its SDK is installed, the SDK reads them too.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.kits.gateway import Echo, client, config, make_router, serving
from tests.kits.tables import table_driven

from fitrouter.errors import ProviderRejected, ProviderUnavailable
from fitrouter.providers import Fault, Faulty
from fitrouter.router import Router
from fitrouter.types import Call, Chunk, Completion, Decision, Message, ModelCard, Usage
from fitrouter_integrations.client import About, Reply
from fitrouter_integrations.gateway.dialects._anthropic import MessageEvents, Messages

TOOL = {"name": "weather", "description": "d", "input_schema": {"type": "object", "properties": {"headers": {}}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}


def ask(text: str = "Hello", **more: Any) -> dict[str, Any]:
    return {"model": "fitrouter/auto", "max_tokens": 64, "messages": [{"role": "user", "content": text}], **more}


def events(text: str) -> list[dict[str, Any]]:
    """The events of a stream; their names are their types."""
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def built(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The content blocks of a stream; blocks follow one another, and each is opened and closed once."""
    blocks: list[dict[str, Any]] = []
    opened = False
    for event in found:
        if event["type"] == "content_block_start":
            assert not opened
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "json": ""})
            opened = True
        elif event["type"] == "content_block_delta":
            assert opened
            assert event["index"] == len(blocks) - 1
            delta = event["delta"]
            field = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}.get(
                delta["type"], "json"
            )
            blocks[-1][field] += delta.get(field, delta.get("partial_json"))
        elif event["type"] == "content_block_stop":
            assert opened
            opened = False
    assert not opened
    for block in blocks:
        text = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(text or "{}")
    return blocks


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def router(tmp_path: Path, echo: Echo) -> Router:
    return make_router(tmp_path, {"echo": echo}, aliases={"claude-sonnet-4-5": "fitrouter/auto"})


@pytest.fixture
def http(router: Router) -> Iterator[httpx.Client]:
    with serving(router) as url, client(url) as session:
        yield session


def decisions(router: Router) -> list[Decision]:
    return [row.event for row in router._journal.tail(0, 1000) if isinstance(row.event, Decision)]


# --- answers ---------------------------------------------------------------------------------------------------------


def test_a_message_is_anthropics_and_says_what_was_decided(http: httpx.Client, router: Router) -> None:
    """The whole shape of a message; decision headers and `fitrouter` are those of chat completions."""
    body = ask(metadata={"user_id": "ann", "role": "cook"}, model="claude-sonnet-4-5")
    reply = http.post("/v1/messages", json=body)
    (decision,) = decisions(router)
    found = reply.json()
    about = found.pop("fitrouter")
    assert found == {
        "id": f"msg_{decision.id}",
        "type": "message",
        "role": "assistant",
        "model": decision.chosen,
        "content": [{"type": "text", "text": f"{decision.chosen} heard Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 7,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 11,
        },
    }
    assert about["decision_id"] == decision.id == reply.headers["x-fitrouter-decision"]
    assert reply.headers["x-fitrouter-model"] == decision.chosen
    assert reply.headers["x-fitrouter-propensity"] == repr(decision.propensity)
    assert (decision.identity.role, decision.mode.value) == ("cook", "online")
    vote = {"decision_id": found["id"], "kind": "thumb", "value": "up", "user": "ann"}
    assert http.post("/v1/feedback", json=vote).status_code == 200


def test_a_stream_has_anthropics_events_in_their_order(http: httpx.Client, router: Router) -> None:
    """From message_start over one text block to message_stop, with the usage in message_delta."""
    reply = http.post("/v1/messages", json=ask(stream=True))
    found = events(reply.text)
    (decision,) = decisions(router)
    kinds = [event["type"] for event in found]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    message = found[0]["message"]
    assert (message["id"], message["model"], message["content"]) == (f"msg_{decision.id}", decision.chosen, [])
    assert message["fitrouter"]["decision_id"] == decision.id == reply.headers["x-fitrouter-decision"]
    assert built(found) == [{"type": "text", "text": f"{decision.chosen} heard Hello"}]
    assert found[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert (found[-2]["usage"]["input_tokens"], found[-2]["usage"]["output_tokens"]) == (7, 11)
    assert found[-2]["fitrouter"]["cost_usd"] > 0


PAGE = {"type": "url_citation", "url_citation": {"url": "https://example.org", "title": "Ulm", "start_index": 0}}
CITED: list[tuple[Any, list[tuple[str | None, str | None]]]] = [
    ([PAGE], [("https://example.org", "Ulm")]),
    (
        [PAGE, {**PAGE, "url_citation": {"url": "https://example.com"}}],
        [("https://example.org", "Ulm"), ("https://example.com", None)],
    ),
    ([{"type": "file_citation", "file_citation": {"file_id": "f"}}, PAGE], [("https://example.org", "Ulm")]),
    ([{"type": "url_citation", "url_citation": "x"}, "x", None], []),
    ([], []),
    ("x", []),
]


@pytest.mark.parametrize(("annotations", "pages"), CITED)
def test_cited_pages_are_citations_of_the_text(annotations: Any, pages: list[tuple[str | None, str | None]]) -> None:
    """As Anthropic's web search cites them, whole and streamed; other annotations have no counterpart."""
    about = About(decision_id="d", model="m", chosen="m", mode="online", propensity=1.0)
    said: Message = {"role": "assistant", "content": "sunny", "annotations": annotations}
    reply = Reply(message=said, finish_reason="stop", usage=Usage(), about=about)
    (block,) = Messages().answer(reply, {})["content"]
    form = MessageEvents(thinking=False)
    streamed = events(b"".join([form.chunk(about, Chunk(delta=said)), form.end(about, Usage())]).decode())
    told = [event["delta"]["citation"] for event in streamed if "citation" in event.get("delta", ())]
    assert told == block.get("citations", [])
    assert [(page["url"], page["title"]) for page in told] == pages
    assert {page["type"] for page in told} <= {"web_search_result_location"}


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_are_blocks(tmp_path: Path, stream: bool) -> None:
    """A call of the model is a tool_use block with its input as an object, and the message stops with tool_use."""
    calls = [CALL, {**CALL, "id": "call_2"}]
    router = make_router(tmp_path, {"echo": Echo({"role": "assistant", "content": None, "tool_calls": calls})})
    with serving(router) as url, client(url) as http:
        reply = http.post("/v1/messages", json=ask(tools=[TOOL], tool_choice={"type": "any"}, stream=stream))
    uses = [{"type": "tool_use", "id": f"call_{i}", "name": "weather", "input": {"city": "Ulm"}} for i in (1, 2)]
    if stream:
        found = events(reply.text)
        assert built(found) == uses
        assert found[-2]["delta"]["stop_reason"] == "tool_use"
    else:
        assert reply.json()["content"] == uses
        assert reply.json()["stop_reason"] == "tool_use"


def test_alternating_pieces_of_tool_calls_become_blocks_one_after_the_other() -> None:
    """Chat completions may interleave calls and text; Anthropic's blocks never overlap, and nothing is lost."""
    about = About(decision_id="d", model="m", chosen="m", mode="online", propensity=1.0)

    def piece(index: int, text: str, **start: Any) -> Chunk:
        call = {"index": index, "function": {"arguments": text, **start}}
        return Chunk(delta={"tool_calls": [{"id": f"c{index}", **call} if start else call]})

    form = MessageEvents(thinking=True)
    chunks = [
        Chunk(delta={"reasoning_content": "hm"}),
        Chunk(delta={"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "sig"}]}),
        Chunk(delta={"content": "I look "}),
        Chunk(delta={"content": "it up."}),
        piece(0, "", name="f"),
        piece(0, '{"a":'),
        piece(1, "", name="g"),
        piece(0, " 1}"),
        piece(1, '{"b":'),
        Chunk(delta={"content": "Done."}),
        piece(1, " 2}"),
        Chunk(finish_reason="tool_calls"),
    ]
    sent = b"".join([*(form.chunk(about, chunk) for chunk in chunks), form.end(about, Usage())])
    assert built(events(sent.decode())) == [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "text", "text": "I look it up."},
        {"type": "tool_use", "id": "c0", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "c1", "name": "g", "input": {"b": 2}},
        {"type": "text", "text": "Done."},
    ]


class _Thinker(Echo):
    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        answer = await super().complete(call)
        assert isinstance(answer, Completion)
        message = {**answer.message, "reasoning_content": "hm"}
        return Completion(message=message, finish_reason="length", usage=Usage(prompt_tokens=9, cached_tokens=4))


def test_thinking_is_shown_to_those_who_asked_for_it(tmp_path: Path) -> None:
    """Without `thinking` in the request, the reasoning of a model is no part of the message."""
    with serving(make_router(tmp_path, {"echo": _Thinker()})) as url, client(url) as http:
        plain = http.post("/v1/messages", json=ask()).json()
        asked = http.post("/v1/messages", json=ask(thinking={"type": "enabled", "budget_tokens": 1024})).json()
    assert [block["type"] for block in plain["content"]] == ["text"]
    assert asked["content"][0] == {"type": "thinking", "thinking": "hm", "signature": ""}
    assert plain["stop_reason"] == "max_tokens"
    assert (plain["usage"]["input_tokens"], plain["usage"]["cache_read_input_tokens"]) == (5, 4)


# --- requests --------------------------------------------------------------------------------------------------------

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


def test_a_request_becomes_the_same_chat_request(http: httpx.Client, echo: Echo) -> None:
    """What each field and block becomes; nothing that was said is lost."""
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    body = {
        **ask(),
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {
                "role": "assistant",
                "content": [
                    thought,
                    {"type": "text", "text": "I look it up."},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Ulm"}},
                    {"type": "tool_use", "id": "t2", "name": "weather", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "t2",
                        "is_error": True,
                        "content": [{"type": "text", "text": "no city"}],
                    },
                    {"type": "text", "text": "So?"},
                ],
            },
        ],
        "stop_sequences": ["END"],
        "temperature": 0.5,
        "tools": [{**TOOL, "cache_control": {"type": "ephemeral"}}],
        "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        "output_config": {"format": {"type": "json_schema", "schema": {"properties": {"api_key": {}}}}},
        "context_management": {"edits": []},
    }
    assert http.post("/v1/messages", json=body).status_code == 200
    (call,) = echo.calls
    text = '{"city":"Ulm"}'
    assert list(call.messages) == [
        {
            "role": "system",
            "content": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        },
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "I look it up.",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": text}},
                {"id": "t2", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no city"},
        {"role": "user", "content": "So?"},
    ]
    function = {"name": "weather", "description": "d", "parameters": TOOL["input_schema"]}
    assert call.params == {
        "max_tokens": 64,
        "stop": ["END"],
        "temperature": 0.5,
        "tools": [{"type": "function", "function": function, "cache_control": {"type": "ephemeral"}}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": {"properties": {"api_key": {}}}, "strict": True},
        },
    }


def test_cache_hints_reach_those_who_take_them(tmp_path: Path) -> None:
    """`cache_control` saves money at Anthropic, and is an error at OpenAI."""
    hint = {"cache_control": {"type": "ephemeral"}}
    body = ask(system=[{"type": "text", "text": "Be brief.", **hint}], tools=[{**TOOL, **hint}])
    for target, kept in (("gpt-4o", False), ("claude-sonnet-4-5", True)):
        echo = Echo()
        models = [ModelCard(name="m", provider="echo", target=target)]
        router = make_router(tmp_path / target, {"echo": echo}, models=models)
        with serving(router) as url, client(url) as http:
            assert http.post("/v1/messages", json=body).status_code == 200
        (call,) = echo.calls
        assert ("cache_control" in call.messages[0]["content"][0]) is kept
        assert ("cache_control" in call.params["tools"][0]) is kept


def test_pictures_and_files_become_parts() -> None:
    """Also those in a tool's result, which chat completions allow only in a user's message."""
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}}
    linked = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "see"}, IMAGE]}
    chat = Messages().chat_body(ask(messages=[{"role": "user", "content": [result, linked, pdf]}]))
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    file = {"filename": "document.pdf", "file_data": "data:application/pdf;base64,aGk="}
    assert chat["messages"] == [
        {"role": "tool", "tool_call_id": "t", "content": "see"},
        {
            "role": "user",
            "content": [
                picture,
                {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
                {"type": "file", "file": file},
            ],
        },
    ]


def test_a_session_inside_the_user_id_is_the_session(http: httpx.Client, router: Router) -> None:
    """Claude Code names the session in `metadata.user_id`: its user is one person over all sessions."""
    for session in ("0" * 36, "1" * 36):
        user = f"user_abc_account_def_session_{session}"
        assert http.post("/v1/messages", json=ask(metadata={"user_id": user})).status_code == 200
    first, second = (decision.identity for decision in decisions(router))
    assert first.user == second.user
    assert first.session != second.session


# --- errors ----------------------------------------------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": {"role": "user"}}, "messages"),
    ({"messages": [7]}, "messages: got [7]"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role: got 'tool'"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "'hologram' is not supported"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]}, "source.type"),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": 7}]}]},
        ".arguments",
    ),
    ({"messages": [{"role": "assistant", "content": [{"type": ["server_tool_use"]}]}]}, "not supported"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, ".tool_use_id"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 20_001}]}, "at most 20000"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}] * 2049}]}, "2049"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"system": 7}, "system"),
    ({"tools": [{"type": "custom", "name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
    ({"tool_choice": {"type": []}}, "tool_choice.type"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"metadata": 7}, "metadata"),
    ({"stop_sequences": "END"}, "stop_sequences"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    ({"n": 2}, "n: got 2; allowed is 1"),
    ({"mcp_servers": [{"url": "http://169.254.169.254/"}]}, "mcp_servers"),
    ({"container": "c"}, "container"),
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serving(make_router(tmp_path_factory.mktemp("shared"))) as url, client(url) as session:
        yield session


@table_driven(("more", "where"), BAD)
def test_a_malformed_message_is_told_where_and_why(shared: httpx.Client, more: dict[str, Any], where: str) -> None:
    """400 in Anthropic's format, with the place."""
    reply = shared.post("/v1/messages", json=ask(**more))
    assert reply.status_code == 400, reply.text
    found = reply.json()
    assert (found["type"], found["error"]["type"]) == ("error", "invalid_request_error")
    assert where in found["error"]["message"]


@pytest.mark.parametrize("name", ["api_base", "api_key", "headers", "extra_headers", "base_url", "Api-Base"])
def test_transport_is_refused(shared: httpx.Client, name: str) -> None:
    """Whom we call, how, and with which key is no field of any dialect, at the top or inside."""
    for more in ({name: "http://169.254.169.254/"}, {"thinking": {name: "x"}}, {"metadata": {"a": {name: "x"}}}):
        reply = shared.post("/v1/messages", json=ask(**more))
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "forbidden_field"), more


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (ProviderUnavailable("down", 503), 502, "api_error"),
        (ProviderRejected("bad", 400), 400, "invalid_request_error"),
    ],
)
def test_failures_of_models_are_in_anthropics_format(tmp_path: Path, error: Exception, status: int, kind: str) -> None:
    """Also those before a stream begins."""
    router = make_router(tmp_path, {"echo": Faulty(Echo(), [Fault(error=error)] * 20)})
    with serving(router) as url, client(url) as http:
        for stream in (False, True):
            reply = http.post("/v1/messages", json=ask(stream=stream))
            assert (reply.status_code, reply.json()["error"]["type"]) == (status, kind)
        unknown = http.post("/v1/messages", json=ask(model="nobody"))
        assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
        wrong = http.get("/v1/messages")
        assert (wrong.status_code, wrong.json()["type"]) == (405, "error")


def test_a_stream_that_breaks_off_ends_with_anthropics_error(tmp_path: Path) -> None:
    """An event `error` and no message_stop."""
    fault = Fault(error=ProviderUnavailable("broke off"), after=1)
    with serving(make_router(tmp_path, {"echo": Faulty(Echo(), [fault])})) as url, client(url) as http:
        found = events(http.post("/v1/messages", json=ask(stream=True)).text)
    assert found[0]["type"] == "message_start"
    assert (found[-1]["type"], found[-1]["error"]["type"]) == ("error", "api_error")
    assert "message_stop" not in [event["type"] for event in found]


def test_a_key_may_come_as_anthropics_clients_send_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, router: Router
) -> None:
    """`x-api-key` names the tenant as `Authorization` does, which goes first; a wrong or doubled one is refused."""
    monkeypatch.setenv("KEY_A", "aaaa-secret-of-tenant-a")
    settings = config(keys=[{"name": "team-a", "tenant": "a", "key_env": "KEY_A"}])
    with serving(router, settings) as url, client(url) as http:
        assert http.post("/v1/messages", json=ask(), headers={"x-api-key": "aaaa-secret-of-tenant-a"}).is_success
        for headers in ({}, {"x-api-key": "wrong"}, {"x-api-key": "aaaa-secret-of-tenant-a", "authorization": "x"}):
            reply = http.post("/v1/messages", json=ask(), headers=headers)
            assert (reply.status_code, reply.json()["error"]["type"]) == (401, "authentication_error")
        doubled = [("x-api-key", "aaaa-secret-of-tenant-a")] * 2
        assert http.post("/v1/messages", json=ask(), headers=doubled).status_code == 400
    assert [decision.identity.tenant for decision in decisions(router)] == ["a"]


# --- Anthropic's SDK -------------------------------------------------------------------------------------------------


def test_anthropics_sdk_reads_messages_streams_and_errors(tmp_path: Path) -> None:
    """Whole, streamed, with a tool, and a refusal as the exception that its users catch."""
    anthropic: Any = pytest.importorskip("anthropic")
    message: Message = {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]}
    for said, text, reason in ((None, "heard Hello", "end_turn"), (message, None, "tool_use")):
        router = make_router(tmp_path / reason, {"echo": Echo(said)})
        with serving(router) as url, anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0) as sdk:
            given = ask(tools=[TOOL])
            answer = sdk.messages.create(**given)
            with sdk.messages.stream(**given) as stream:
                streamed = stream.get_final_message()
            for found in (answer, streamed):
                assert found.stop_reason == reason
                assert (found.usage.input_tokens, found.usage.output_tokens) == (7, 11)
                if text:
                    assert text in found.content[0].text
                else:
                    assert (found.content[-1].name, found.content[-1].input) == ("weather", {"city": "Ulm"})
            with pytest.raises(anthropic.BadRequestError, match="messages") as refused:
                sdk.messages.create(**{**given, "messages": []})
            assert refused.value.body["error"]["type"] == "invalid_request_error"
