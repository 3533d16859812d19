"""Requests as coding agents send them, to models of other vendors: answered, and what is left out is said.

The bodies are written after public reports and references; they are no recordings.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.kits.gateway import Echo, client, make_router, serving

from fitrouter.routing.eligibility import Roster, Wants, noted
from fitrouter.routing.parameters import effort_of, takes_developer
from fitrouter.serving.attempts import prepare
from fitrouter.types import Call, Chunk, Completion, Message, ModelCard, Request

MODELS = ("gpt-4.1-mini", "gpt-5-mini", "gpt-5.2", "mistral-large-latest", "deepseek-chat", "qwen3", "smart")
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ: dict[str, Any] = {
    "type": "function",
    "function": {"name": "read_file", "description": "Read", "parameters": SCHEMA},
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}


OPENAI = {
    *(
        "extra_metadata",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "parallel_tool_calls",
        "prompt_cache_key",
        "reasoning_effort",
    ),
    *("response_format", "safety_identifier", "service_tier", "stop", "store", "temperature", "tool_choice", "tools"),
    *("top_p", "verbosity"),
}


def check(call: Call) -> None:
    """Refuse what servers refuse: OpenAI's fields that they do not know, others' templates a second system message."""
    ours, roles = "gpt" in call.target, [message["role"] for message in call.messages]
    assert ours or set(roles) <= {"system", "user", "assistant", "tool"}
    assert (
        ours or "system" not in roles[1:] or roles[0] != "system" or "assistant" in roles[: roles[1:].index("system")]
    )
    if ours:
        assert call.params.keys() <= OPENAI
        efforts = (
            {"none", "low", "medium", "high", "xhigh"} if "5.2" in call.target else {"minimal", "low", "medium", "high"}
        )
        assert call.params.get("reasoning_effort", "low") in efforts
    assert call.params.get("tools") or not call.params.keys() & {"parallel_tool_calls", "tool_choice", "tools"}
    for message in call.messages:
        assert message["role"] == "assistant" or message["content"] is not None
        assert message["content"] or message.get("tool_calls") or message["role"] != "assistant"
        assert "thinking_blocks" not in message or call.target == "smart"
        for made in message.get("tool_calls") or ():
            assert isinstance(made["function"]["arguments"], str)
            assert made["id"]
            assert made["type"] == "function"


class Strict(Echo):
    """A server that refuses what most refuse; calls a tool where `tool_call` has one."""

    def __init__(self) -> None:
        super().__init__()
        self.tool_call: Message | None = None

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        check(call)
        self.message = self.tool_call if call.params.get("tools") and self.tool_call else None
        return await super().complete(call)


@pytest.fixture(scope="module")
def upstream() -> Strict:
    return Strict()


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory, upstream: Strict) -> Iterator[httpx.Client]:
    known = ("streaming", "tools", "json", "images", "files")
    cards = [ModelCard(name=name, provider="echo", capabilities=known, context_window=200_000) for name in MODELS]
    folder: Path = tmp_path_factory.mktemp("agents")
    with serving(make_router(folder, {"echo": upstream}, models=cards)) as url, client(url) as session:
        yield session


CLAUDE_CODE: dict[str, Any] = {
    "max_tokens": 32_000,
    "temperature": 1,
    "stream": True,
    "system": [{"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral"}}],
    "messages": HI,
    "tools": [{"name": "Read", "description": "Read", "input_schema": SCHEMA}],
    "metadata": {"user_id": f"user_{'a' * 64}_account__session_11111111-2222-3333-4444-555555555555"},
}
CODEX: dict[str, Any] = {
    "instructions": "You are an agent",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "sandbox: none"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    ],
    "tools": [{"type": "function", "name": "shell", "strict": False, "parameters": SCHEMA}, PATCH],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "c",
}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Claude Code, thinking": (
        "/v1/messages?beta=true",
        {**CLAUDE_CODE, "thinking": {"type": "enabled", "budget_tokens": 31_999}},
    ),
    "Claude Code, adaptive": (
        "/v1/messages?beta=true",
        {**CLAUDE_CODE, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
    ),
    "Claude Code, edits of the context": (
        "/v1/messages",
        {**CLAUDE_CODE, "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
    ),
    "Claude Code, web search": (
        "/v1/messages",
        {**CLAUDE_CODE, "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]},
    ),
    "Claude Code, no MCP": ("/v1/messages", {**CLAUDE_CODE, "mcp_servers": [], "tools": []}),
    "Claude Code, all it can": (
        "/v1/messages",
        {
            **CLAUDE_CODE,
            "betas": ["x"],
            "speed": "fast",
            "inference_geo": "us",
            "output_config": {"effort": "max"},
            "tool_choice": {"type": "auto"},
        },
    ),
    "Claude Code, a title without tools": (
        "/v1/messages",
        {**CLAUDE_CODE, "tools": [], "tool_choice": {"type": "none"}, "output_format": None},
    ),
    "Claude Code, our own thinking": (
        "/v1/messages",
        {
            **CLAUDE_CODE,
            "messages": [
                *HI,
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}]},
                *HI,
                {
                    "role": "assistant",
                    "content": [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "a"}],
                },
                {
                    "role": "user",
                    "content": [{"type": "container_upload", "file_id": "f"}, {"type": "text", "text": "b"}],
                },
            ],
        },
    ),
    "Codex CLI": ("/v1/responses", CODEX),
    "Codex CLI, all it can": (
        "/v1/responses",
        {
            **CODEX,
            "client_metadata": {"x": "y"},
            "reasoning": {"effort": "xhigh"},
            "input": [
                *CODEX["input"],
                {"type": "ghost_snapshot", "ghost_commit": {}},
                {"type": "message", "role": "assistant", "content": []},
                {"type": "compaction_trigger"},
                *HI,
            ],
        },
    ),
    "Codex CLI, no tools": ("/v1/responses", {**CODEX, "tools": []}),
    "Codex CLI, hosted tools": (
        "/v1/responses",
        {
            **CODEX,
            "tools": [*CODEX["tools"], {"type": "web_search", "external_web_access": True}, {"type": "local_shell"}],
        },
    ),
    "Codex CLI, later tools": (
        "/v1/responses",
        {**CODEX, "input": [*CODEX["input"], {"type": "additional_tools", "role": "developer", "tools": [PATCH]}]},
    ),
    "Codex CLI, a namespace": (
        "/v1/responses",
        {**CODEX, "tools": [{"type": "namespace", "name": "mcp__x", "tools": [CODEX["tools"][0]]}]},
    ),
    "Cline": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "developer", "content": "You are Cline."}, *HI],
            "stream": True,
            "stream_options": {"include_usage": True},
            "reasoning_effort": "medium",
            "temperature": 0,
        },
    ),
    "Aider": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "system", "content": "Act as an expert"}, *HI],
            "stream": True,
            "reasoning_effort": "high",
        },
    ),
    "Cursor": (
        "/v1/chat/completions",
        {
            "messages": HI,
            "stream": True,
            "tools": [READ],
            "tool_choice": "auto",
            "user": "u1",
            "reasoning_effort": "low",
        },
    ),
    "Cursor, the input of a response": (
        "/v1/chat/completions",
        {
            "input": CODEX["input"],
            "tools": [CODEX["tools"][0]],
            "tool_choice": "auto",
            "stream": True,
            "stream_options": {"include_usage": True},
            "store": False,
            "reasoning": {"effort": "medium"},
        },
    ),
    "OpenHands": (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}]},
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            ],
            "tools": [READ],
            "extra_metadata": {"trace": "x"},
            "reasoning_effort": "high",
        },
    ),
    "Vercel's AI SDK": (
        "/v1/chat/completions",
        {"messages": [{"role": "developer", "content": "s"}, *HI], "verbosity": "low", "reasoning_effort": "minimal"},
    ),
}


HOW_TO_THINK: dict[str, dict[str, Any]] = {
    "OpenRouter's": {"reasoning": {"effort": "high"}},
    "OpenRouter's, in tokens": {"reasoning": {"max_tokens": 2_000}},
    "OpenRouter's, shown": {"include_reasoning": True, "reasoning": {"enabled": True, "exclude": False}},
    "Qwen's": {"enable_thinking": False, "thinking_budget": 100},
    "vLLM's": {"chat_template_kwargs": {"enable_thinking": False}},
    "Groq's": {"reasoning_format": "parsed"},
    "Anthropic's": {"thinking": {"type": "enabled", "budget_tokens": 2_000}},
    "more than there is": {"reasoning_effort": "max"},
    "as much as there is": {"reasoning_effort": "xhigh"},
    "none": {"reasoning_effort": "none"},
    "null": {"reasoning_effort": None, "thinking": None},
}
NOTHING: dict[str, dict[str, Any]] = {
    "no tools": {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
    "a choice of none": {"tool_choice": "none", "parallel_tool_calls": False},
    "no functions": {"functions": [], "function_call": "none"},
    "an empty answer in the history": {"messages": [*HI, {"role": "assistant", "content": ""}, *HI]},
    "an answer of null": {"messages": [*HI, {"role": "assistant", "content": None, "refusal": None}, *HI]},
    "two instructions": {"messages": [{"role": "developer", "content": "a"}, {"role": "system", "content": "b"}, *HI]},
    "instructions in parts": {
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "a"}]},
            {"role": "system", "content": "b"},
            *HI,
        ]
    },
    "arguments kept as an object": {
        "tools": [READ],
        "messages": [
            *HI,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {}}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": None},
        ],
    },
}
"""What frameworks and agents send although it says nothing."""


@pytest.mark.parametrize("model", [*MODELS, "fitrouter/auto"])
def test_what_says_nothing_or_how_to_think_is_no_refusal(http: httpx.Client, model: str) -> None:
    """Whichever vendor's word it is: translated, or left out."""
    for name, more in (HOW_TO_THINK | NOTHING).items():
        reply = http.post("/v1/chat/completions", json={"messages": HI, "max_tokens": 5_000, **more, "model": model})
        assert reply.status_code == 200, (name, reply.text)


@pytest.mark.parametrize("model", [*MODELS, "fitrouter/auto"])
def test_agents_are_answered_by_any_model(http: httpx.Client, model: str) -> None:
    """No field about thinking, hosted tools or roles of one vendor is a 400 at another."""
    for name, (path, body) in REQUESTS.items():
        if body.get("temperature") == 0 and "gpt-5" in model:
            continue  # it takes no temperature, which is no matter of vendors' habits
        reply = http.post(path, json={**body, "model": model})
        assert reply.status_code == 200, (name, reply.text)
        assert "event: error" not in reply.text, (name, reply.text)
        assert '"error":{' not in reply.text, (name, reply.text)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/responses", {"input": "hi", "tools": [{"type": "web_search"}]}, ["tools[0]: web_search"]),
        ("/v1/responses", {"input": "hi", "tool_choice": {"type": "mcp"}}, ["tool_choice: mcp"]),
        ("/v1/responses", {"input": [{"type": "web_search_call"}, *HI]}, ["input[0]: web_search_call"]),
        ("/v1/responses", {"input": [{"type": "mcp_list_tools"}, *HI]}, ["input[0]: mcp_list_tools"]),
        ("/v1/responses", {"input": [{"type": "compaction"}, *HI]}, ["input[0]: compaction"]),
        ("/v1/responses", {"input": "hi", "reasoning": {"effort": "high"}}, ["reasoning_effort"]),
        (
            "/v1/messages",
            {"messages": HI, "tools": [{"type": "bash_20250124", "name": "bash"}]},
            ["tools[0]: bash_20250124"],
        ),
        ("/v1/messages", {"messages": HI, "thinking": {"type": "enabled", "budget_tokens": 9}}, ["thinking"]),
        (
            "/v1/messages",
            {
                "messages": [
                    *HI,
                    {"role": "assistant", "content": [{"type": "server_tool_use"}, {"type": "text", "text": "found"}]},
                    *HI,
                ]
            },
            ["messages[1].content[0]: server_tool_use"],
        ),
        ("/v1/chat/completions", {"messages": HI, "reasoning_effort": "low"}, ["reasoning_effort"]),
        ("/v1/chat/completions", {"input": "hi", "tools": [{"type": "web_search"}]}, ["tools[0]: web_search"]),
        ("/v1/messages", {"messages": HI, "top_k": 40}, ["top_k"]),
    ],
)
def test_what_is_left_out_is_said(http: httpx.Client, path: str, body: dict[str, Any], said: list[str]) -> None:
    """In a header and in the body's `fitrouter`, whole and streamed."""
    for stream in (False, True):
        reply = http.post(path, json={"max_tokens": 9, **body, "model": "gpt-4.1-mini", "stream": stream})
        assert reply.status_code == 200, reply.text
        assert reply.headers["x-fitrouter-dropped"] == ", ".join(said)
        if stream:
            assert f'"dropped":{json.dumps(said, separators=(",", ":"))}' in reply.text
        else:
            assert reply.json()["fitrouter"]["dropped"] == said
    plain = http.post(
        path,
        json={"max_tokens": 9, "model": "gpt-4.1-mini", **({"input": "hi"} if "input" in body else {"messages": HI})},
    )
    assert "x-fitrouter-dropped" not in plain.headers
    assert "dropped" not in plain.json()["fitrouter"]


USES = {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}


def thought(**fields: Any) -> tuple[str, dict[str, Any]]:
    said = {"role": "assistant", "content": "let me see", "tool_calls": [USES], **fields}
    result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "a page"}
    return "/v1/chat/completions", {"messages": [*HI, said, result]}


def details(maker: str, kind: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return thought(reasoning_details=[{"type": f"reasoning.{kind}", "format": maker, "index": 0, **fields}])


def block(**fields: Any) -> tuple[str, dict[str, Any]]:
    content = [fields, {"type": "text", "text": "let me see"}, {"type": "tool_use", "id": "c1", "name": "read_file"}]
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "a page"}
    said = [*HI, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    return "/v1/messages", {"messages": said, "max_tokens": 9}


def item(**fields: Any) -> tuple[str, dict[str, Any]]:
    call = {"type": "function_call", "call_id": "c1", "name": "read_file", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "a page"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "let me see"}]}
    return "/v1/responses", {"input": [*HI, {"type": "reasoning", "summary": [], **fields}, said, call, result]}


GOOGLES = {"extra_content": {"google": {"thought_signature": "SIGN"}}}
THOUGHT: dict[str, tuple[str, tuple[str, dict[str, Any]]]] = {
    "open, as most servers name it": ("", thought(reasoning_content="hm")),
    "open, as others do": ("", thought(reasoning="hm")),
    "details in words": ("", details("unknown", "text", text="hm")),
    "details in short": ("", details("openai-responses-v1", "summary", summary="hm")),
    "signed details": ("anthropic", details("anthropic-claude-v1", "text", text="hm", signature="SIGN")),
    "encrypted details": ("openai", details("openai-responses-v1", "encrypted", data="SIGN")),
    "Gemini's details": ("google", details("google-gemini-v1", "encrypted", data="SIGN")),
    "signed blocks": (
        "anthropic",
        thought(thinking_blocks=[{"type": "thinking", "thinking": "hm", "signature": "SIGN"}]),
    ),
    "redacted blocks": ("anthropic", thought(thinking_blocks=[{"type": "redacted_thinking", "data": "SIGN"}])),
    "Gemini's message": ("google", thought(**GOOGLES)),
    "Gemini's call": ("google", thought(tool_calls=[{**USES, **GOOGLES}])),
    "litellm's id of Gemini's call": ("google", thought(tool_calls=[{**USES, "id": "c1__thought__SIGN"}])),
    "thinking": ("anthropic", block(type="thinking", thinking="hm", signature="SIGN")),
    "our own thinking": ("", block(type="thinking", thinking="hm", signature="")),
    "redacted thinking": ("anthropic", block(type="redacted_thinking", data="SIGN")),
    "an item": ("", item(content=[{"type": "reasoning_text", "text": "hm"}])),
    "an encrypted item": ("none", item(encrypted_content="SIGN")),
}
"""What was thought in a turn of a history, as servers and we show it → who alone reads it."""


@pytest.mark.parametrize(("maker", "asked"), THOUGHT.values(), ids=THOUGHT)
def test_what_was_thought_is_accepted_as_history(
    http: httpx.Client, upstream: Strict, maker: str, asked: tuple[str, dict[str, Any]]
) -> None:
    """By the model that said it, whose maker may be unknown, by its maker's, and without it by any other."""
    path, body = asked
    for model in (*MODELS, "fitrouter/auto"):
        reply = http.post(path, json={**body, "model": model})
        assert reply.status_code == 200, (model, reply.text)
        call = upstream.calls[-1]
        theirs = call.target == "smart" or (maker == "openai" and "gpt" in call.target)
        assert ("SIGN" in json.dumps(call.messages)) <= (maker != "" and theirs)
        assert ("x-fitrouter-dropped" in reply.headers) is (maker == "none" or (maker != "" and not theirs)), model
        if model == "smart" and maker not in ("", "none"):
            assert "SIGN" in json.dumps(call.messages)
        if model == "fitrouter/auto" and maker in ("anthropic", "google", "openai"):
            assert ("gpt" in call.target) is (maker == "openai")
        _, said, result = call.messages
        assert (said["content"], said["tool_calls"][0]["function"]) == ("let me see", USES["function"])
        assert said["tool_calls"][0]["id"] == result["tool_call_id"]


CUSTOM: dict[str, tuple[dict[str, Any], str]] = {
    "a grammar": ({}, "*** Begin\n+é"),
    "a regex": ({"format": {"type": "grammar", "syntax": "regex", "definition": "start: /.+/"}}, "x"),
    "text": ({"format": {"type": "text"}}, "plain"),
    "no format": ({"format": None}, "plain"),
    "no description": ({"description": None}, "plain"),
    "input like JSON": ({}, '{"input": "x", "more": [1]}'),
    "quotes and lines": ({}, 'say "hi"\r\n\t\\n'),
    "no input": ({}, ""),
    "a long input": ({}, "+ line\n" * 5_000),
}


@pytest.mark.parametrize(("tool", "given"), CUSTOM.values(), ids=CUSTOM)
def test_custom_tools_go_there_and_back(http: httpx.Client, upstream: Strict, tool: dict[str, Any], given: str) -> None:
    """A model sees a function of one string; its call is a `custom_tool_call`, whole, streamed and as history."""
    patch = {name: value for name, value in {**PATCH, **tool}.items() if value is not None}
    function = {"name": "apply_patch", "arguments": json.dumps({"input": given})}
    upstream.tool_call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    ask = {"model": "qwen3", "input": "hi", "tools": [patch], "tool_choice": {"type": "custom", "name": "apply_patch"}}
    found = http.post("/v1/responses", json=ask).json()
    (item,) = found["output"]
    assert (item["type"], item["call_id"], item["name"], item["input"]) == (
        *("custom_tool_call", "c1", "apply_patch"),
        given,
    )
    offered = upstream.calls[-1].params["tools"][0]["function"]
    assert (offered["name"], list(offered["parameters"]["properties"])) == ("apply_patch", ["input"])
    assert ("start: /.+/" in offered.get("description", "")) == (patch.get("format", {}).get("type") == "grammar")
    streamed = http.post("/v1/responses", json={**ask, "stream": True}).text
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: ")]
    (done,) = [event for event in events if event["type"] == "response.custom_tool_call_input.done"]
    assert done["input"] == given
    upstream.tool_call = None
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}
    again = http.post("/v1/responses", json={**ask, "input": [*HI, item, output]})
    assert again.status_code == 200, again.text
    _, called, result = upstream.calls[-1].messages
    assert called["tool_calls"][0]["function"] == function
    assert (result["role"], result["tool_call_id"], result["content"]) == ("tool", "c1", "ok")


SEARCH = {"type": "function", "name": "search", "parameters": SCHEMA}
LONG = "mcp__" + "server_" * 9
SPACES: dict[str, tuple[list[tuple[str, dict[str, Any]]], list[str] | None]] = {
    "equal names": (
        [("", SEARCH), ("mcp__a", SEARCH), ("mcp__b", SEARCH)],
        ["search", "mcp__a__search", "mcp__b__search"],
    ),
    "as Codex ends them": ([("mcp__a__", SEARCH)], ["mcp__a__search"]),
    "letters that no name has": ([("mcp a.b", SEARCH), ("é", SEARCH)], ["mcp_a_b__search", "___search"]),
    "letters that become the same": ([("a.b", SEARCH), ("a/b", SEARCH)], None),
    "the border elsewhere": ([("a", {**SEARCH, "name": "b__c"}), ("a__b", {**SEARCH, "name": "c"})], None),
    "taken by a plain name": ([("a", SEARCH), ("", {**SEARCH, "name": "a__search"})], None),
    "long names": ([(LONG, {**SEARCH, "name": "x" * 60}), (LONG, {**SEARCH, "name": "x" * 61})], None),
    "tools of text": ([("mcp__a", PATCH), ("mcp__b", PATCH), ("mcp__b", SEARCH)], None),
}


@pytest.mark.parametrize(("placed", "names"), SPACES.values(), ids=SPACES)
def test_tools_of_namespaces_stay_apart(
    http: httpx.Client, upstream: Strict, placed: list[tuple[str, dict[str, Any]]], names: list[str] | None
) -> None:
    """Each has its own name upstream that vendors take; calls name tool and namespace, whole, streamed and later."""
    tools = [{"type": "namespace", "name": space, "tools": [tool]} if space else tool for space, tool in placed]
    body = {"model": "qwen3", "input": HI, "tools": tools}
    assert http.post("/v1/responses", json=body).status_code == 200
    sent = [tool["function"]["name"] for tool in upstream.calls[-1].params["tools"]]
    assert names in (None, sent)
    assert len({*sent}) == len(placed)
    for (space, tool), name in zip(placed, sent, strict=True):
        assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", name)
        function = {"name": name, "arguments": '{"input":"x"}'}
        upstream.tool_call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": function}]}
        (made,) = http.post("/v1/responses", json=body).json()["output"]
        streamed = http.post("/v1/responses", json={**body, "stream": True}).text
        upstream.tool_call = None
        events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: ")]
        ended = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        for call in (made, *ended):
            assert (call["name"], call.get("namespace", "")) == (tool["name"], space)
            assert call["type"] == ("custom_tool_call" if tool is PATCH else "function_call")
        output = {"type": f"{made['type']}_output", "call_id": "c1", "output": "ok"}
        again = http.post("/v1/responses", json={**body, "input": [*HI, made, output]})
        assert again.status_code == 200, again.text
        assert upstream.calls[-1].messages[1]["tool_calls"][0]["function"]["name"] == name
        chosen = {"type": "function", "name": tool["name"], "namespace": space}
        for choice in (chosen, {"type": "allowed_tools", "mode": "required", "tools": [chosen]}):
            assert http.post("/v1/responses", json={**body, "tool_choice": choice}).status_code == 200
            params = upstream.calls[-1].params
            picked = params["tool_choice"] if choice is chosen else params["tools"][0]
            assert (picked["function"]["name"], len(params["tools"]) == 1) == (
                name,
                choice is not chosen or len(sent) == 1,
            )


FLAT = {"name": "read", "description": "d"}
NESTED = [{"type": "function", "function": {**FLAT, "parameters": SCHEMA}}]
CHOSEN = {"type": "function", "function": {"name": "read"}}
RESULTS: list[Any] = [
    *HI,
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "read", "input": {"path": "a"}}]},
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "b"}]}],
    },
]
CALLED = {"id": "t", "type": "function", "function": {"name": "read", "arguments": '{"path":"a"}'}}
MIXED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Anthropic's tools": ({"tools": [{**FLAT, "input_schema": SCHEMA}]}, {"tools": NESTED}),
    "tools of a response": ({"tools": [{"type": "function", **FLAT, "parameters": SCHEMA}]}, {"tools": NESTED}),
    "a tool of one": (
        {"tools": NESTED, "tool_choice": {"type": "tool", "name": "read"}},
        {"tools": NESTED, "tool_choice": CHOSEN},
    ),
    "a choice of a response": (
        {"tools": NESTED, "tool_choice": {"type": "function", "name": "read"}},
        {"tools": NESTED, "tool_choice": CHOSEN},
    ),
    "any": ({"tools": NESTED, "tool_choice": {"type": "any"}}, {"tools": NESTED, "tool_choice": "required"}),
    "auto": ({"tools": NESTED, "tool_choice": {"type": "auto"}}, {"tools": NESTED, "tool_choice": "auto"}),
    "blocks of calls": (
        {"tools": NESTED, "messages": RESULTS},
        {
            "tools": NESTED,
            "messages": [
                *HI,
                {"role": "assistant", "content": None, "tool_calls": [CALLED]},
                {"role": "tool", "tool_call_id": "t", "content": "b"},
            ],
        },
    ),
}


@pytest.mark.parametrize(("given", "told"), MIXED.values(), ids=MIXED)
def test_words_of_another_api_are_translated(
    http: httpx.Client, upstream: Strict, given: dict[str, Any], told: dict[str, Any]
) -> None:
    """Editors send tools, choices and results of one API to another's path; those of chat completions stay."""
    for form in (given, told):
        reply = http.post("/v1/chat/completions", json={"messages": HI, **form, "model": "qwen3"})
        assert reply.status_code == 200, reply.text
        call = upstream.calls[-1]
        sent = {"messages": [*call.messages], **call.params}
        assert {name: sent.get(name) for name in told} == told


SEARCHES = {"type": "web_search_20250305", "name": "web_search"}
CHOICES: dict[str, tuple[str, dict[str, Any]]] = {
    "Anthropic's": (
        "/v1/messages",
        {
            "messages": HI,
            "max_tokens": 9,
            "tools": [{"name": "f", "input_schema": SCHEMA}, SEARCHES],
            "tool_choice": {"type": "tool", "name": "web_search"},
        },
    ),
    "OpenAI's": (
        "/v1/responses",
        {"input": HI, "tools": [SEARCH, {"type": "web_search"}], "tool_choice": {"type": "web_search"}},
    ),
    "some of OpenAI's": (
        "/v1/responses",
        {
            "input": HI,
            "tools": [SEARCH, {"type": "web_search"}],
            "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
        },
    ),
}


@pytest.mark.parametrize(("path", "body"), CHOICES.values(), ids=CHOICES)
def test_a_choice_of_what_is_left_out_is_left_out(
    http: httpx.Client, upstream: Strict, path: str, body: dict[str, Any]
) -> None:
    """A server refuses the choice of a tool that it was not offered; the header names both."""
    reply = http.post(path, json={**body, "model": "qwen3"})
    assert reply.status_code == 200, reply.text
    assert "tool_choice" not in upstream.calls[-1].params
    assert reply.headers["x-fitrouter-dropped"].count("tool_choice: ") == 1


CHOSEN = {"max_tokens": 9, "tool_choice": {"type": "tool", "name": "f"}}
NUMBERED: dict[str, Any] = {"name": "f", "description": 7}
MALFORMED: dict[str, tuple[str, dict[str, Any]]] = {
    "a choice of no tools": ("/v1/messages", CHOSEN),
    "a choice of null": ("/v1/messages", {**CHOSEN, "tools": None}),
    "a number for a description": ("/v1/responses", {"tools": [{"type": "custom", **NUMBERED}]}),
    "one in chat completions": ("/v1/chat/completions", {"tools": [{"type": "custom", "custom": NUMBERED}]}),
    "one in a namespace": (
        "/v1/responses",
        {"tools": [{"type": "namespace", "name": "n", "description": ".", "tools": [{**SEARCH, **NUMBERED}]}]},
    ),
}


@pytest.mark.parametrize(("path", "body"), MALFORMED.values(), ids=MALFORMED)
def test_tools_that_are_none_are_the_callers_error(
    http: httpx.Client, upstream: Strict, path: str, body: dict[str, Any]
) -> None:
    """They are refused with what is wrong, in each dialect, before any model is called."""
    said, before = {"input": HI} if path == "/v1/responses" else {"messages": HI}, len(upstream.calls)
    assert http.post(path, json={**said, **body, "model": "qwen3"}).status_code == 400
    assert len(upstream.calls) == before


@pytest.mark.parametrize("said", ["Pages of our wiki.", "", None, 7])
def test_what_is_said_of_a_namespace_reaches_the_model(http: httpx.Client, upstream: Strict, said: Any) -> None:
    """Once, before what is said of its first tool that is offered: also of those that a choice allows."""
    tools = [{**SEARCH, "name": name, "description": f"To {name}."} for name in ("find", "read")]
    spaces = [{"type": "namespace", "name": name, "description": said, "tools": tools} for name in ("wiki", "other")]
    spaces[1]["description"] = "Others."
    allowed = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "read", "namespace": "wiki"}],
    }
    for choice, names in (
        ("auto", ["To find.", "To read.", "Others.\n\nTo find.", "To read."]),
        (allowed, ["To read."]),
    ):
        body = {"model": "qwen3", "input": HI, "tools": spaces, "tool_choice": choice}
        assert http.post("/v1/responses", json=body).status_code == 200
        found = [tool["function"]["description"] for tool in upstream.calls[-1].params["tools"]]
        assert found == [f"{said}\n\n{names[0]}" if said and isinstance(said, str) else names[0], *names[1:]]


RAN: dict[str, tuple[list[dict[str, Any]], str, Any, str]] = {
    "a shell": (
        [
            {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
            {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a", "stderr": ""}]},
        ],
        *("shell", {"commands": ["ls"]}, '[{"stdout": "a", "stderr": ""}]'),
    ),
    "Codex' shell": (
        [
            {"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}},
            {"type": "local_shell_call_output", "id": "c", "output": "a"},
        ],
        *("local_shell", {"command": ["ls"]}, "a"),
    ),
    "a patch": (
        [
            {"type": "apply_patch_call", "call_id": "c", "operation": {"path": "a"}},
            {"type": "apply_patch_call_output", "call_id": "c", "status": "failed"},
        ],
        *("apply_patch", {"path": "a"}, "failed"),
    ),
    "arguments kept as an object": (
        [
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": {"a": "é"}},
            {"type": "function_call_output", "call_id": "c", "output": {"b": "é"}},
        ],
        *("f", {"a": "é"}, '{"b": "é"}'),
    ),
    "no arguments": (
        [
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": None},
            {"type": "function_call_output", "call_id": "c", "output": None},
        ],
        *("f", {}, ""),
    ),
    "parts of text": (
        [
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "text", "text": "a"}]},
        ],
        *("f", {}, "a"),
    ),
}


@pytest.mark.parametrize(("items", "name", "arguments", "output"), RAN.values(), ids=RAN)
def test_what_the_client_ran_is_history(
    http: httpx.Client, upstream: Strict, items: list[dict[str, Any]], name: str, arguments: Any, output: str
) -> None:
    """A call of OpenAI's own tools is one of a function; what a client kept as an object is a string."""
    reply = http.post("/v1/responses", json={"model": "qwen3", "input": [*HI, *items]})
    assert reply.status_code == 200, reply.text
    _, called, result = upstream.calls[-1].messages
    function = called["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == (name, arguments)
    assert (result["tool_call_id"], result["content"]) == ("c", output)


USED: dict[str, tuple[Any, Any]] = {
    "an object": ({"city": "Oslo"}, {"city": "Oslo"}),
    "as streamed": ('{"city":"Oslo"}', {"city": "Oslo"}),
    "an empty text": ("", {}),
    "null": (None, {}),
    "broken off": ('{"city":', {"arguments": '{"city":'}),
}


@pytest.mark.parametrize(("given", "arguments"), USED.values(), ids=USED)
def test_a_tool_that_was_used_is_history(http: httpx.Client, upstream: Strict, given: Any, arguments: Any) -> None:
    """However a client kept the input; a reference to a tool and a summary of what came before are texts."""
    used = {"type": "tool_use", "id": "t", "name": "Read", "input": given}
    found = [{"type": "tool_reference", "tool_name": "Read"}, {"type": "text", "text": "a"}]
    messages = [
        {"role": "assistant", "content": [{"type": "compaction", "content": "before"}, used]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": found}]},
    ]
    reply = http.post("/v1/messages", json={"model": "qwen3", "max_tokens": 9, "messages": [*HI, *messages]})
    assert reply.status_code == 200, reply.text
    _, called, result = upstream.calls[-1].messages
    assert called["content"] == "before"
    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == arguments
    assert result["content"] == "tool: Read\na"


GRAMMAR = {"syntax": "lark", "definition": "start: /.+/"}
TEXTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a grammar": ({"format": {"type": "grammar", "grammar": GRAMMAR}}, '{"input": "*** Begin\\n+é"}', "*** Begin\n+é"),
    "any text": ({"format": {"type": "text"}, "description": "Edit files"}, '{"input":"x"}', "x"),
    "nothing more": ({}, '{"input":""}', ""),
    "no such argument": ({}, '{"patch": "x"}', '{"patch": "x"}'),
    "no JSON": ({}, "*** Begin", "*** Begin"),
    "nothing": ({}, "", ""),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("more", "arguments", "text"), TEXTS.values(), ids=TEXTS)
def test_custom_tools_of_chat_completions_are_functions(
    http: httpx.Client, upstream: Strict, model: str, more: dict[str, Any], arguments: str, text: str
) -> None:
    """Of one string, by any model and next to others; their calls are those of custom tools, and are history."""
    body = {
        "model": model,
        "messages": HI,
        "tools": [READ, {"type": "custom", "custom": {"name": "patch", **more}}],
        "tool_choice": {"type": "custom", "custom": {"name": "patch"}},
    }
    patch = {"id": "c1", "type": "function", "function": {"name": "patch", "arguments": arguments}}
    upstream.tool_call = {"role": "assistant", "content": None, "tool_calls": [patch, {**USES, "id": "c2"}]}
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    offered = upstream.calls[-1].params
    assert [tool["type"] for tool in offered["tools"]] == ["function", "function"]
    assert offered["tool_choice"] == {"type": "function", "function": {"name": "patch"}}
    assert ("start: /.+/" in str(offered["tools"][1])) is ("grammar" in str(more))
    message = reply.json()["choices"][0]["message"]
    told = {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": text}}
    assert [call for call in message["tool_calls"] if "custom" in call] == [told]
    assert [call for call in message["tool_calls"] if "function" in call] == [{**USES, "id": "c2"}]
    flat = {"tools": [{"type": "function", **READ["function"]}, {"type": "custom", "name": "patch", **more}]}
    for form in (body, {"model": model, "input": HI, **flat}):
        streamed = http.post("/v1/chat/completions", json={**form, "stream": True}).text
        events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
        pieces = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", ())]
        assert sorted(pieces, key=lambda call: call["index"]) == [
            {"index": 0, **told},
            {"index": 1, **USES, "id": "c2"},
        ]
    upstream.tool_call = None
    allowed = {"mode": "auto", "tools": [body["tool_choice"], {"type": "function", "function": {"name": "read_file"}}]}
    body = {**body, "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}}
    if http.post("/v1/chat/completions", json=body).status_code == 200:  # others do not take such a choice
        assert upstream.calls[-1].params["tool_choice"]["allowed_tools"]["tools"][0] == offered["tool_choice"]
    results = [{"role": "tool", "tool_call_id": each, "content": "ok"} for each in ("c1", "c2")]
    hi = {**HI[0], "custom": {"name": "x"}}
    again = http.post("/v1/chat/completions", json={**body, "messages": [hi, message, *results]})
    assert again.status_code == 200, again.text
    assert "function" not in upstream.calls[-1].messages[0]
    kept = {call["id"]: call for call in upstream.calls[-1].messages[1]["tool_calls"]}
    assert json.loads(kept["c1"]["function"]["arguments"]) == {"input": text}
    assert kept["c2"] == {**USES, "id": "c2"}


def test_a_custom_tool_without_a_name_is_a_clear_refusal(http: httpx.Client) -> None:
    """It names the field, and says nothing of a history."""
    tools = [{"type": "custom", "custom": {"description": "x"}}]
    refused = http.post("/v1/chat/completions", json={"messages": HI, "tools": tools})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("tools.custom.name: ")


COUNTED: dict[str, dict[str, Any]] = {
    "a word": {"messages": HI},
    "a system prompt": {"messages": HI, "system": "Be brief."},
    "a system prompt of blocks": {"messages": HI, "system": CLAUDE_CODE["system"]},
    "tools": {"messages": HI, "tools": CLAUDE_CODE["tools"]},
    "a tool's result": {
        "messages": [
            *HI,
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "a"}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a page"}]},
        ],
        "tools": CLAUDE_CODE["tools"],
    },
    "thinking": {"messages": HI, "thinking": {"type": "enabled", "budget_tokens": 4000}},
    "other letters": {"messages": [{"role": "user", "content": "你好，世界 😀"}]},
    "a page": {"messages": [{"role": "user", "content": "word " * 2_000}]},
}


@pytest.mark.parametrize("body", COUNTED.values(), ids=COUNTED)
def test_message_start_has_the_count_of_count_tokens(
    http: httpx.Client, upstream: Strict, body: dict[str, Any]
) -> None:
    """Claude Code reads the input tokens there; the count calls no model, and one more message counts more."""
    calls = len(upstream.calls)
    counted = http.post("/v1/messages/count_tokens", json={"model": "qwen3", **body}).json()["input_tokens"]
    longer = {**body, "messages": [*body["messages"], {"role": "assistant", "content": "so it is"}, *HI]}
    more = http.post("/v1/messages/count_tokens", json={"model": "qwen3", **longer}).json()["input_tokens"]
    assert 0 < counted < more
    assert len(upstream.calls) == calls
    limit = 5000 if "thinking" in body else 9
    streamed = http.post("/v1/messages", json={"model": "qwen3", "max_tokens": limit, "stream": True, **body}).text
    start = next(json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: "))
    assert start["message"]["usage"]["input_tokens"] == counted


def test_tokens_are_counted_without_a_model(http: httpx.Client, upstream: Strict) -> None:
    """`count_tokens` and `message_start` give the same estimate, which grows with each part of the request."""
    calls = len(upstream.calls)
    grows: list[dict[str, Any]] = [
        {"messages": HI},
        {"messages": HI, "system": "Be brief."},
        {"messages": HI, "system": "Be brief.", "tools": CLAUDE_CODE["tools"]},
        {"messages": [*HI, {"role": "assistant", "content": "hello " * 50}, *HI], "system": "Be brief."},
    ]
    counts = []
    for body in grows:
        reply = http.post("/v1/messages/count_tokens?beta=true", json={"model": "qwen3", **body})
        assert reply.status_code == 200, reply.text
        counts.append(reply.json()["input_tokens"])
    assert 0 < counts[0] < counts[1] < counts[2]
    assert counts[3] > counts[1]
    assert len(upstream.calls) == calls
    assert http.post("/v1/messages/count_tokens", json={"messages": 7}).status_code == 400
    streamed = http.post("/v1/messages", json={"model": "qwen3", "max_tokens": 9, "stream": True, **grows[1]}).text
    start = next(json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: "))
    assert start["message"]["usage"]["input_tokens"] == counts[1]


@pytest.mark.parametrize(
    ("model", "budget", "effort"),
    [
        ("gpt-5-mini", 1024, "low"),
        ("gpt-5-mini", 8000, "medium"),
        ("gpt-5-mini", 32_000, "high"),
        ("gpt-5-mini", None, "medium"),
        ("gpt-4.1-mini", 8000, None),
        ("mistral-large-latest", 8000, None),
        ("claude-sonnet-4", 8000, None),
        *(("qwen3", 8000, "medium"), ("smart", 1024, "low"), ("meta-llama/Llama-3.3-70B", 32_000, "high")),
        *(("deepseek-chat", 8000, None), ("moonshotai/kimi-k2.5", 8000, None), ("bedrock-claude", 8000, None)),
        ("gpt-5.2", 1024, "low"),
        ("o3", 32_000, "high"),
    ],
)
def test_thinking_becomes_effort_where_there_is_one(model: str, budget: int | None, effort: str | None) -> None:
    """By its budget; a model that takes `thinking`, or no effort, gets none, and the caller's own effort stays."""
    thinking = {"type": "adaptive"} if budget is None else {"type": "enabled", "budget_tokens": budget}
    card = ModelCard(name=model, provider="p")
    assert effort_of(card, {"thinking": thinking}) == effort
    assert effort_of(card, {"thinking": thinking, "reasoning_effort": "low"}) is None
    assert effort_of(card, {"thinking": {"type": "disabled"}}) is None


OWN = {"prompt_cache_key": "c", "prompt_cache_retention": "24h", "safety_identifier": "s", "store": True}


@pytest.mark.parametrize(
    ("provider", "model", "switched", "keyed"),
    [
        *(("p", "deepseek-chat", True, False), ("openrouter", "deepseek/deepseek-v3.2", True, False)),
        *(("p", "kimi-k2.5", True, False), ("moonshot", "k2", True, False), ("p", "zai-org/GLM-4.6", True, False)),
        *(("zai", "plan", True, False), ("p", "smart", False, False), ("vllm", "Qwen/Qwen3-32B", False, False)),
        *(("litellm", "my-gpt-5", False, True), ("p", "us.anthropic.claude-sonnet-4", False, False)),
    ],
)
def test_servers_of_unknown_kind_get_no_vendors_own_words(
    provider: str, model: str, switched: bool, keyed: bool
) -> None:
    """Agents send them to any model: `thinking` is on or off, an effort, or Claude's; OpenAI's go to OpenAI's."""
    card = ModelCard(name=model, provider=provider)
    for kind in ("enabled", "adaptive", "auto", "disabled"):
        budget = {"budget_tokens": 5_000} if kind == "enabled" else {}
        params = {"thinking": {"type": kind, **budget}, "verbosity": "low", **OWN}
        found = Roster([card]).eligible(Wants(params=params))
        sent = prepare(Request(messages=(*HI,), params=params), card, found.dropped.get(model, ())).params
        switch = {"type": "disabled" if kind == "disabled" else "enabled"}
        assert sent.get("thinking") == (switch if switched else params["thinking"] if "claude" in model else None)
        assert ("reasoning_effort" in sent) is not (switched or "claude" in model or kind == "disabled")
        assert {*OWN, "verbosity"} & sent.keys() == ({*OWN, "verbosity"} if keyed else set())
        assert {*noted(card, params, found.dropped.get(model, ()))} == (set() if keyed else {*OWN, "verbosity"})


@pytest.mark.parametrize(
    ("model", "asked", "effort"),
    [
        *(("gpt-5-mini", "max", "high"), ("gpt-5-mini", "xhigh", "high"), ("gpt-5-mini", "none", "minimal")),
        *(
            ("gpt-5.2", "max", "xhigh"),
            ("gpt-5.2", "xhigh", None),
            ("gpt-5.2", "none", None),
            ("gpt-5.2", "minimal", "low"),
        ),
        *(("o3", "minimal", "low"), ("o3", "max", "high"), ("gemini-2.5-pro", "xhigh", "high")),
        *(("claude-opus-4-6", "max", None), ("qwen3", "max", None), ("gpt-5-mini", "medium", None)),
        *(("gpt-5-mini", "some", None), ("gpt-5-mini", 3, None)),
    ],
)
def test_an_effort_is_one_that_the_model_has(model: str, asked: object, effort: str | None) -> None:
    """The nearest one, from any dialect; a word that is none stays, for the provider to refuse."""
    card = ModelCard(name=model, provider="p")
    assert effort_of(card, {"reasoning_effort": asked}) == effort
    if effort is not None:
        assert effort_of(card, {"reasoning": {"effort": asked}}) == effort


@pytest.mark.parametrize(
    ("model", "known"),
    [("gpt-5-mini", True), ("o3", True), ("deepseek-chat", False), ("mistral-large-latest", False), ("qwen3", False)],
)
def test_developer_is_system_where_it_is_not_known(model: str, known: bool) -> None:
    """OpenAI's models know the role; other servers refuse it."""
    assert takes_developer(ModelCard(name=model, provider="p")) is known


DOCUMENTS: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "content", "content": "a page"}, "text", "a page"),
    ({"type": "content", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "text", "a\nb"),
    ({"type": "text", "media_type": "text/plain", "data": "a page"}, "text", "a page"),
    (
        {
            "type": "content",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
                {"type": "text", "text": "b"},
            ],
        },
        *("text", "a\nb"),
    ),
    ({"type": "url", "url": "https://example.org/a.pdf"}, "file_url", "https://example.org/a.pdf"),
    (
        {"type": "base64", "media_type": "application/pdf", "data": "QQ=="},
        "file_data",
        "data:application/pdf;base64,QQ==",
    ),
]


@pytest.mark.parametrize(("source", "field", "value"), DOCUMENTS)
def test_documents_arrive(http: httpx.Client, upstream: Strict, source: dict[str, Any], field: str, value: str) -> None:
    """Text as text, files as a part with their data or their URL."""
    content = [{"type": "document", "source": source}, {"type": "text", "text": "sum up"}]
    body = {"model": "qwen3", "max_tokens": 9, "messages": [{"role": "user", "content": content}]}
    reply = http.post("/v1/messages", json=body)
    assert reply.status_code == 200, reply.text
    part = upstream.calls[-1].messages[-1]["content"][0]
    assert (part["text"] if field == "text" else part["file"][field]) == value
