"""Laws of the gateway's routes, over a real socket and with the openai client."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pytest
from tests.kits.gateway import Echo, cards, chat, client, config, make_router, serving, wait_for
from tests.kits.tables import table_driven

from fitrouter.errors import ProviderRejected, ProviderUnavailable
from fitrouter.providers import Fault, Faulty
from fitrouter.router import Router
from fitrouter.serving.attempts import Timers
from fitrouter.serving.services import Service
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import Decision, Execution, ModelCard
from fitrouter_dashboards.metrics import Metrics
from fitrouter_integrations.gateway._app import Gateway

CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"properties": {"headers": {"type": "object"}, "api_key": {}}}},
}


@pytest.fixture
def router(tmp_path: Path) -> Router:
    return make_router(tmp_path, aliases={"gpt-4o": "fitrouter/auto", "fast": "beta"})


@pytest.fixture
def url(router: Router) -> Iterator[str]:
    with serving(router) as address:
        yield address


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with client(url) as session:
        yield session


@pytest.fixture
def sdk(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=300.0) as session:
        yield session


class Shared(NamedTuple):
    """A gateway that many refusals go to: they leave nothing behind."""

    router: Router
    http: httpx.Client


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    router = make_router(tmp_path_factory.mktemp("shared"))
    with serving(router) as url, client(url) as http:
        yield Shared(router, http)


def decisions(router: Router) -> list[Decision]:
    return [row.event for row in router._journal.tail(0, 100_000) if isinstance(row.event, Decision)]


def executions(router: Router) -> list[Execution]:
    return [row.event for row in router._journal.tail(0, 100_000) if isinstance(row.event, Execution)]


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("commits_have_time")
def test_a_whole_answer_is_openais_and_says_what_was_decided(sdk: openai.OpenAI, router: Router) -> None:
    """The client's own parser takes it; id, model, propensity, logged and asked stand in headers and body alike."""
    reply = sdk.chat.completions.with_raw_response.create(
        model="fitrouter/auto", messages=[{"role": "user", "content": "Hello"}], user="ann", metadata={"role": "cook"}
    )
    answer = reply.parse()
    (decision,) = decisions(router)
    assert answer.id == f"chatcmpl-{decision.id}"
    assert (answer.object, answer.model) == ("chat.completion", decision.chosen)
    assert answer.choices[0].message.content == f"{decision.chosen} heard Hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (7, 11, 18)
    about = answer.to_dict()["fitrouter"]
    token = about.pop("token")
    assert about == {
        "decision_id": decision.id,
        "model": decision.chosen,
        "chosen": decision.chosen,
        "mode": "online",
        "propensity": decision.propensity,
        "logged": True,
        "asked": False,
        "cost_usd": (7 * 1.0 + 11 * 2.0) / 1e6,
    }
    assert {name: value for name, value in reply.headers.items() if name.startswith("x-fitrouter")} == {
        "x-fitrouter-decision": decision.id,
        "x-fitrouter-model": decision.chosen,
        "x-fitrouter-propensity": repr(decision.propensity),
        "x-fitrouter-logged": "true",
        "x-fitrouter-asked": "false",
        "x-fitrouter-token": token,
    }
    assert decision.identity.role == "cook"


def test_a_stream_is_openais_and_its_first_chunk_says_what_was_decided(sdk: openai.OpenAI, router: Router) -> None:
    """Role first, deltas as they came, then the finish reason; the client's parser takes all of it."""
    chunks = list(
        sdk.chat.completions.create(
            model="fitrouter/auto", messages=[{"role": "user", "content": "Hello"}], stream=True
        )
    )
    (decision,) = decisions(router)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].to_dict()["fitrouter"]["decision_id"] == decision.id
    assert all("fitrouter" not in chunk.to_dict() for chunk in chunks[1:])
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == f"{decision.chosen} heard Hello"
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
    assert {(chunk.id, chunk.model, chunk.object) for chunk in chunks} == {
        (f"chatcmpl-{decision.id}", decision.chosen, "chat.completion.chunk")
    }


def test_usage_ends_a_stream_only_where_it_is_asked_for(http: httpx.Client) -> None:
    """With include_usage every chunk has `usage`, null but in the last; without it none has."""
    plain = events(http.post("/v1/chat/completions", json=chat(stream=True)).text)
    asked = events(
        http.post("/v1/chat/completions", json=chat(stream=True, stream_options={"include_usage": True})).text
    )
    assert plain[-1] == asked[-1] == "[DONE]"
    assert all("usage" not in event for event in plain[:-1])
    assert [event["usage"] for event in asked[:-2]] == [None] * (len(asked) - 2)
    assert asked[-2]["choices"] == []
    assert asked[-2]["usage"] == {"prompt_tokens": 7, "completion_tokens": 11, "total_tokens": 18}


def events(text: str) -> list[Any]:
    """The data of server-sent events, parsed."""
    assert text.endswith("\n\n")
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        if block.startswith(": "):  # a comment, after seconds of silence
            continue
        assert block.startswith("data: ")
        data = block.removeprefix("data: ")
        found.append(data if data == "[DONE]" else json.loads(data))
    return found


@pytest.mark.parametrize("streamed", [False, True])
def test_tools_and_unknown_options_pass_through(tmp_path: Path, streamed: bool) -> None:
    """Tool calls come back unmodified, what the client sent reaches the model, and identities do not."""
    provider = Echo({"role": "assistant", "content": None, "tool_calls": [CALL]})
    options = {
        "tools": [TOOL],
        "tool_choice": "auto",
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"base_url": {}}}}},
        "temperature": 0.3,
        "logit_bias": {"50256": -100},
        "reasoning_effort": "low",
        "top_k": 7,
    }
    with (
        serving(make_router(tmp_path, {"echo": provider})) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as sdk,
    ):
        body = {"model": "fitrouter/auto", "messages": [{"role": "user", "content": "Rain?"}], "user": "ann"}
        extra = {"top_k": options["top_k"]}
        named = {name: value for name, value in options.items() if name != "top_k"}
        answer: Any = sdk.chat.completions.create(
            **body, **named, extra_body=extra, metadata={"role": "cook"}, stream=streamed
        )
        if streamed:
            deltas = [chunk.choices[0].delta for chunk in answer]
            calls = [call.to_dict() for delta in deltas for call in delta.tool_calls or ()]
            assert calls == [{"index": 0, **CALL}]
        else:
            assert [call.to_dict() for call in answer.choices[0].message.tool_calls] == [CALL]
            assert answer.choices[0].finish_reason == "tool_calls"
    (call,) = provider.calls
    assert call.params == options


def test_a_ten_step_tool_agent_with_a_long_history_stays_on_its_model(http: httpx.Client, router: Router) -> None:
    """Agent traffic: tool results and a growing history of 100,000 tokens are one session with one draw."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a cook."},
        {"role": "user", "content": "Plan a dinner"},
    ]
    for i in range(10):
        reply = http.post("/v1/chat/completions", json={"model": "fitrouter/auto", "messages": messages, "user": "ann"})
        assert reply.status_code == 200, reply.text
        wait_for(lambda i=i: router._learner.seq >= 2 * i + 2)
        step = {**CALL["function"], "arguments": json.dumps({"step": i})}  # the same again would be stuck
        call = {**CALL, "id": f"call_{i}", "function": step}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "a long result " * 2900},
        ]
    made = decisions(router)
    assert [decision.mode.value for decision in made] == ["online", *["sticky"] * 9]
    assert {decision.draw_id for decision in made} == {made[0].id}


def test_naming_a_model_pins_it_and_aliases_work(http: httpx.Client) -> None:
    """A model's name has that model answer; an alias routes or pins; the reply names who answered."""
    for model, mode in (("gamma", "pinned"), ("fast", "pinned"), ("gpt-4o", "online"), ("fitrouter/auto", "online")):
        reply = http.post("/v1/chat/completions", json=chat(f"to {model}", model=model)).json()
        assert reply["fitrouter"]["mode"] == mode
        if mode == "pinned":
            assert reply["model"] == {"gamma": "gamma", "fast": "beta"}[model]
    refused = http.post("/v1/chat/completions", json=chat(model="gpt-9"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


def test_models_are_listed_and_shown(http: httpx.Client, sdk: openai.OpenAI) -> None:
    """Routing, models and aliases are all names a request may use."""
    names = [model.id for model in sdk.models.list()]
    assert names == ["fitrouter/auto", "alpha", "beta", "gamma", "gpt-4o", "fast"]
    assert sdk.models.retrieve("fitrouter/auto").owned_by == "fitrouter"
    assert http.get("/v1/models/nobody").status_code == 404


def test_a_name_beyond_latin_travels_in_headers_too(tmp_path: Path) -> None:
    """Headers hold Latin-1 only; a model's name is percent-encoded where it must be."""
    models = [ModelCard(name="模型 1", provider="echo")]
    with serving(make_router(tmp_path, models=models)) as url, client(url) as http:
        reply = http.post("/v1/chat/completions", json=chat())
    assert reply.json()["model"] == "模型 1"
    assert reply.headers["x-fitrouter-model"] == "%E6%A8%A1%E5%9E%8B 1"


# --- identity --------------------------------------------------------------------------------------------------------

PLACES: list[tuple[dict[str, str], dict[str, Any], dict[str, str | None]]] = [
    ({}, {}, {"user": None, "role": None, "task": None}),
    ({}, {"user": "body"}, {"user": "body"}),
    ({}, {"user": "body", "metadata": {"user": "meta"}}, {"user": "meta"}),
    ({}, {"user": "body", "metadata": {"user_id": "meta"}}, {"user": "meta"}),
    ({}, {"metadata": {"user": "one", "user_id": "two"}}, {"user": "one"}),
    ({}, {"metadata": {"user": "", "user_id": 42}}, {"user": "42"}),
    ({"x-fitrouter-user": "head"}, {"user": "body", "metadata": {"user": "meta"}}, {"user": "head"}),
    ({"x-fitrouter-role": "cook"}, {"metadata": {"role": "baker", "task": "bread"}}, {"role": "cook", "task": "bread"}),
    ({"x-fitrouter-task": "soup"}, {"metadata": {"task": "bread"}}, {"task": "soup"}),
    ({"x-fitrouter-user": "Zoë ☃"}, {}, {"user": "Zoë ☃"}),
]


@pytest.mark.parametrize(("headers", "body", "expected"), PLACES)
def test_identity_comes_from_headers_then_metadata_then_user(
    http: httpx.Client,
    router: Router,
    headers: dict[str, str],
    body: dict[str, Any],
    expected: dict[str, str | None],
) -> None:
    """Each field on its own takes the first place that names it; the journal holds a token in the user's stead."""
    encoded = {name.encode(): value.encode() for name, value in headers.items()}
    assert http.post("/v1/chat/completions", json=chat(**body), headers=encoded).status_code == 200
    identity = decisions(router)[0].identity
    for name, value in expected.items():
        if name == "user" and value is not None:
            assert identity.user is not None
            assert router._identities.reveal(identity.user) == ("default", value)
        else:
            assert getattr(identity, name) == value


@pytest.mark.parametrize("key", ["session", "session_id", "thread_id", "conversation_id"])
def test_a_session_is_known_by_its_usual_names(http: httpx.Client, router: Router, key: str) -> None:
    """Whatever the framework calls it, the same id is the same conversation, and the journal keeps a hash of it."""
    for i in range(3):
        http.post("/v1/chat/completions", json=chat(f"turn {i}", metadata={key: "thread-7"}))
        wait_for(lambda i=i: router._learner.seq >= 2 * i + 2)
    assert [decision.mode.value for decision in decisions(router)] == ["online", "sticky", "sticky"]
    assert decisions(router)[0].identity.session != "thread-7"


@pytest.mark.parametrize(
    "body", [{"user": ["a"]}, {"user": True}, {"metadata": {"role": {}}}, {"metadata": "x"}, {"user": "x" * 513}]
)
def test_an_identity_of_the_wrong_kind_is_refused(shared: Shared, body: dict[str, Any]) -> None:
    """An identity that cannot be understood is an error, not somebody else."""
    reply = shared.http.post("/v1/chat/completions", json=chat(**body))
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request")


def test_a_header_that_says_twice_who_speaks_is_refused(url: str) -> None:
    """Two headers of one name could be read differently before and behind a proxy."""
    with client(url) as http:
        headers = [("x-fitrouter-user", "ann"), ("x-fitrouter-user", "bob")]
        assert http.post("/v1/chat/completions", json=chat(), headers=headers).status_code == 400


# --- refusals --------------------------------------------------------------------------------------------------------

FORBIDDEN = [
    "api_base",
    "base_url",
    "api_key",
    "headers",
    "extra_headers",
    "extra_body",
    "extra_query",
    "organization",
    "custom_llm_provider",
    "api_version",
    "litellm_params",
    "aws_secret_access_key",
    "vertex_credentials",
    "default_headers",
    "proxies",
    "mock_response",
    "fallbacks",
    "timeout",
    "API-Base",
    " Api.Key ",
]


@table_driven("name", FORBIDDEN)
def test_transport_is_refused_at_the_top(shared: Shared, name: str) -> None:
    """A body that would choose whom we call, how, or with which key reaches no model."""
    before = len(decisions(shared.router))
    for value in ("http://169.254.169.254/", None):
        reply = shared.http.post("/v1/chat/completions", json=chat(**{name: value}))
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "forbidden_field")
    assert len(decisions(shared.router)) == before


def test_transport_that_is_empty_sets_nothing(tmp_path: Path) -> None:
    """Some clients always send it; it is no parameter of the call either."""
    echo = Echo()
    with serving(make_router(tmp_path, {"echo": echo})) as url, client(url) as http:
        for name in FORBIDDEN:
            assert http.post("/v1/chat/completions", json=chat(**{name: {}})).status_code == 200
            assert name not in echo.calls[-1].params


@pytest.mark.parametrize("where", ["metadata", "provider_options", "thinking", "stream_options"])
def test_transport_is_refused_inside_of_other_parameters(shared: Shared, where: str) -> None:
    """Also deep inside: no parameter smuggles transport."""
    before = len(decisions(shared.router))
    body = chat(stream=True, **{where: {"a": [{"b": {"api_base": "http://169.254.169.254/"}}]}})
    reply = shared.http.post("/v1/chat/completions", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "forbidden_field")
    assert len(decisions(shared.router)) == before


NAMES = (
    "organization",
    "headers",
    "credentials",
    "user_agent",
    "api_key",
    "timeout",
    "base_url",
    "proxies",
    "fallbacks",
)
SCHEMA = {"type": "object", "properties": {name: {"type": "string"} for name in NAMES}, "required": list(NAMES)}
SCHEMAS: dict[str, dict[str, Any]] = {
    "guided_json": {"guided_json": SCHEMA},
    "structured outputs": {"structured_outputs": {"json": SCHEMA}},
    "a response format": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}
    },
    "Ollama's format": {"format": SCHEMA},
    "Gemini's schema": {"response_schema": SCHEMA},
    "tools": {"tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]},
    "nested": {
        "guided_json": {
            "type": "object",
            "properties": {"a": {"type": "array", "items": SCHEMA}},
            "$defs": {"b": SCHEMA},
        }
    },
    "a grammar of llama.cpp": {"grammar": {"type": "json", "value": SCHEMA}},
    "NVIDIA's extension": {"nvext": {"guided_json": SCHEMA}},
    "guided decoding": {"guided_decoding": {"json": {"$defs": {"b": SCHEMA}, "definitions": {"headers": SCHEMA}}}},
    "documents": {"documents": [{"id": "1", "data": {"headers": "x", "organization": "y"}}]},
    "template arguments": {"chat_template_kwargs": {"user_agent": "x"}},
}


@pytest.mark.parametrize("more", SCHEMAS.values(), ids=SCHEMAS)
def test_a_schema_may_have_any_names(shared: Shared, more: dict[str, Any]) -> None:
    """Inside of a schema they are properties of the caller's answer, and choose no transport."""
    reply = shared.http.post("/v1/chat/completions", json=chat(**more))
    assert reply.status_code == 200, reply.text


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "Hello"}, "messages"),
    ({"messages": [{"role": "user", "content": "x"}] * 2049}, "messages: 2049 were given, at most 2048 are allowed"),
    ({"messages": [{"role": "user", "content": "x"}, "Hello"]}, "messages[1]"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": [], "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "assistant", "tool_calls": [7]}]}, "messages[0].tool_calls[0]"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}]}, "tool_calls[0].function"),
    ({"model": 7}, "model"),
    ({"model": ""}, "model"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"n": 0}, "n: got 0; allowed is 1 to 128"),
    ({"n": 129}, "n: got 129; allowed is 1 to 128"),
    ({"n": True}, "n: got True; give a whole number"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"tools": {}}, "tools"),
    ({"tools": ["hammer"]}, "tools"),
    ({"response_format": "json"}, "response_format"),
]


@table_driven(("body", "where"), MALFORMED)
def test_a_malformed_request_is_told_where_and_why(shared: Shared, body: dict[str, Any], where: str) -> None:
    """400 in OpenAI's format, with the place; never a 500, and no model is asked."""
    reply = shared.http.post("/v1/chat/completions", json=chat(**body))
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error.keys() == {"message", "type", "code", "param"}
    assert error["type"] == "invalid_request_error"
    assert where in error["message"]


def test_unknown_routes_and_methods_answer_in_openais_format(http: httpx.Client) -> None:
    """Also where nothing is there, a client's error parser finds its words."""
    assert http.get("/v1/nothing").json()["error"]["code"] == "not_found"
    for path, hint in (
        ("/v1/completions", "chat interface"),
        ("/chat/completions", "end with /v1"),
    ):
        assert hint in http.post(path, json={}).json()["error"]["message"]
    wrong = http.get("/v1/chat/completions")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


async def test_the_schema_is_made_once_also_if_its_first_caller_hangs_up(tmp_path: Path) -> None:
    """A caller who comes after another one was cut off gets what is being made: its parser takes one thread only."""
    gateway = Gateway(make_router(tmp_path), config(), Metrics(), None)
    begun, made, calls = threading.Event(), threading.Event(), list[int]()

    def document() -> dict[str, Any]:
        calls.append(1)
        begun.set()
        made.wait(30.0)
        return {}

    gateway.document = document  # type: ignore[method-assign]
    callers = [asyncio.create_task(gateway.schema(None)) for _ in range(2)]  # type: ignore[arg-type]
    assert await asyncio.to_thread(begun.wait, 30.0)
    callers[0].cancel()
    await asyncio.sleep(0.2)
    made.set()
    assert (await callers[1]).body == b"{}"
    assert len(calls) == 1


def test_the_schema_is_published_and_lists_every_route(http: httpx.Client) -> None:
    """/openapi.json names all routes with their bodies and errors."""
    schema = http.get("/openapi.json").json()
    assert schema["openapi"].startswith("3.1")
    assert {(path, *methods) for path, methods in schema["paths"].items()} == {
        ("/v1/chat/completions", "post"),
        ("/v1/messages", "post"),
        ("/v1/messages/count_tokens", "post"),
        ("/v1/embeddings", "post"),
        ("/v1/responses", "post"),
        ("/v1/responses/input_tokens", "post"),
        ("/v1/models", "get", "post"),
        ("/v1/models/{model}", "get", "delete"),
        ("/v1/feedback", "post", "get"),
        ("/v1/profile", "put", "get", "delete"),
        ("/v1/decisions", "get"),
        ("/v1/users", "get"),
        ("/v1/decisions/{decision_id}", "get"),
        ("/v1/plans/{decision_id}/outcome", "post"),
        ("/v1/plans", "post"),
        ("/v1/observations", "post"),
        ("/v1/links", "post", "delete"),
        ("/v1/runs/{run_id}", "get"),
        ("/v1/runs/{run_id}/outcome", "post"),
        ("/v1/score", "post"),
        ("/v1/leaderboard", "get"),
        ("/v1/report", "get"),
        ("/v1/certificate", "get"),
        ("/v1/suite", "get"),
        ("/v1/satisfaction", "get"),
        ("/v1/exposure", "get"),
        ("/v1/audit", "get"),
        ("/v1/diagnose", "post"),
        ("/v1/quiz", "post"),
        ("/v1/quiz/{quiz_id}", "get", "post"),
        ("/v1/policy", "get", "post"),
        ("/metrics", "get"),
        ("/openapi.json", "get"),
        ("/healthz", "get"),
        ("/readyz", "get"),
    }
    operation = schema["paths"]["/v1/chat/completions"]["post"]
    assert operation["requestBody"]["content"]["application/json"]["schema"]["required"] == ["messages"]
    assert {"200", "400", "404", "413", "502", "504"} <= operation["responses"].keys()


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ProviderUnavailable("down", 503), 502, "all_models_failed"),
        (RuntimeError("a bug"), 502, "all_models_failed"),
        (ProviderRejected("too many images", 400), 400, "provider_rejected"),
        (ProviderRejected("no such model", 404), 404, "provider_rejected"),
        (ProviderRejected("bad key sk-secret", 401), 502, "provider_rejected"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_failures_have_their_status(tmp_path: Path, error: Exception, status: int, code: str, streamed: bool) -> None:
    """Each exception has one status and code, whole and streamed, before the first byte."""
    provider = Faulty(Echo(), itertools.repeat(Fault(error=error)))
    with serving(make_router(tmp_path, {"echo": provider})) as url, client(url) as http:
        reply = http.post("/v1/chat/completions", json=chat(stream=streamed))
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    if code == "all_models_failed":
        assert reply.headers["x-should-retry"] == "false"
        assert reply.headers["x-fitrouter-decision"]


def test_a_deadline_is_504_and_an_impossible_request_400(tmp_path: Path) -> None:
    """Time that ran out is a gateway timeout; a history that fits nowhere has the code that agents shorten on."""
    provider = Faulty(Echo(), itertools.repeat(Fault(hang=True)))
    timers = Timers(deadline_s=0.3, first_token_s=0.2, chunk_gap_s=0.2)
    with serving(make_router(tmp_path, {"echo": provider}, timers=timers)) as url, client(url) as http:
        assert http.post("/v1/chat/completions", json=chat()).status_code == 504
        long = http.post("/v1/chat/completions", json=chat("x" * 800_000))
        assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_fallback_comes_before_the_first_byte(tmp_path: Path) -> None:
    """A model that is down costs nobody an answer, whole or streamed."""
    broken = Faulty(Echo(), itertools.repeat(Fault(error=ProviderUnavailable("down", 503))))
    models = cards(provider=lambda name: "broken" if name == "alpha" else "echo")
    router = make_router(tmp_path, {"broken": broken, "echo": Echo()}, models=models)
    with serving(router) as url, client(url) as http:
        for i in range(20):
            reply = http.post("/v1/chat/completions", json=chat(f"q{i}", stream=i % 2 == 0))
            assert reply.status_code == 200
            assert reply.headers["x-fitrouter-model"] != "alpha"
    assert broken.calls


def test_after_the_first_byte_a_failure_is_an_error_event_without_done(tmp_path: Path) -> None:
    """No silent switch and no false end: the stream says that it broke, and the openai client raises."""
    provider = Faulty(Echo(), itertools.repeat(Fault(error=ConnectionResetError("gone"), after=2)))
    metrics = Metrics()
    router = make_router(tmp_path, {"echo": provider})
    with serving(router, metrics=metrics) as url, client(url) as http:
        reply = http.post("/v1/chat/completions", json=chat(stream=True))
        found = events(reply.text)
        with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as sdk:
            stream = sdk.chat.completions.create(
                model="fitrouter/auto", messages=[{"role": "user", "content": "x"}], stream=True
            )
            with pytest.raises(openai.APIError, match="gone"):
                list(stream)
        assert 'fitrouter_errors_total{kind="provider_error"} 2.0' in http.get("/metrics").text
    assert "[DONE]" not in found
    assert found[-1]["error"]["code"] == "provider_error"
    assert {execution.status for execution in executions(router)} == {"partial"}


def test_a_client_that_leaves_ends_the_models_work(tmp_path: Path) -> None:
    """Whole or streamed, an abandoned request is cancelled upstream and logged."""
    provider = Faulty(Echo(), itertools.cycle([Fault(hang=True), Fault(hang=True, after=2)]))
    router = make_router(tmp_path, {"echo": provider})
    with serving(router) as url:
        body = json.dumps(chat()).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            wait_for(lambda: len(provider.calls) == 1)
        wait_for(lambda: provider.cancelled == 1)
        with client(url) as http, http.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as reply:
            next(reply.iter_lines())
        wait_for(lambda: provider.cancelled == 2)
    assert [execution.status for execution in executions(router)] == ["cancelled", "cancelled"]


def test_a_shutdown_lets_streams_end_and_tells_those_that_cannot(tmp_path: Path) -> None:
    """Inside the grace period a stream finishes; else it ends with an error event, a whole answer with 503."""
    provider = Faulty(Echo(), [Fault(delay_s=0.5, after=2), Fault(hang=True, after=2), Fault(hang=True)])
    texts: list[str] = []

    def read(url: str, streamed: bool) -> None:
        with client(url) as http:
            texts.append(http.post("/v1/chat/completions", json=chat(stream=streamed)).text)

    with serving(make_router(tmp_path, {"echo": provider}), grace_s=5.0) as url:
        readers = []
        for n, streamed in enumerate((True, True, False), 1):
            readers.append(threading.Thread(target=read, args=(url, streamed)))
            readers[-1].start()
            wait_for(lambda n=n: len(provider.calls) == n)
    for reader in readers:
        reader.join(300.0)
    (finished,) = [text for text in texts if "[DONE]" in text]
    (refused,) = [text for text in texts if text.startswith("{")]
    (told,) = [text for text in texts if text not in (finished, refused)]
    assert finished.endswith("data: [DONE]\n\n")
    assert events(told)[-1]["error"]["code"] == "cancelled"
    assert json.loads(refused)["error"]["code"] == "shutting_down"


# --- feedback and decisions ------------------------------------------------------------------------------------------


def asked(http: httpx.Client, **body: Any) -> str:
    """The decision id of an answer."""
    reply = http.post("/v1/chat/completions", json=chat(**body))
    assert reply.status_code == 200, reply.text
    return str(reply.headers["x-fitrouter-decision"])


@pytest.mark.parametrize(
    ("body", "y"),
    [
        ({"kind": "thumb", "value": "up"}, 1.0),
        ({"kind": "thumb", "value": "down"}, 0.0),
        ({"kind": "thumb", "value": True}, 1.0),
        ({"kind": "thumb", "value": 0}, 0.0),
        ({"kind": "rating", "value": 4, "scale": [1, 5]}, 0.75),
        ({"kind": "rating", "value": 0.25}, 0.25),
        ({"kind": "rating", "value": 2, "scale": [-2, 2], "dimension": "tone", "user": "ann"}, 1.0),
    ],
)
def test_feedback_is_taken_and_durable(http: httpx.Client, router: Router, body: dict[str, Any], y: float) -> None:
    """What is acknowledged is in the journal, on [0, 1]."""
    id_ = asked(http, user="ann")
    reply = http.post("/v1/feedback", json={"decision_id": id_, **body})
    assert reply.status_code == 200, reply.text
    story = http.get(f"/v1/decisions/{id_}").json()
    (vote,) = story["feedback"]
    low, high = vote["scale"]
    assert vote["id"] == reply.json()["id"]
    assert (vote["value"] - low) / (high - low) == y


@table_driven(
    "body",
    [
        {},
        {"kind": "thumb"},
        {"kind": "clap", "value": 1},
        {"kind": [], "value": 1},
        {"kind": "thumb", "value": "sideways"},
        {"kind": "thumb", "value": 0.5},
        {"kind": "thumb", "value": 1, "scale": [0, 1]},
        {"kind": "rating", "value": "five"},
        {"kind": "rating", "value": True},
        {"kind": "rating", "value": 6, "scale": [1, 5]},
        {"kind": "rating", "value": 1, "scale": [1, 1]},
        {"kind": "rating", "value": 1, "scale": [5, 1]},
        {"kind": "rating", "value": 1, "scale": 5},
        {"kind": "rating", "value": 1, "dimension": 3},
        {"kind": "thumb", "value": 1, "weight": 100},
        {"kind": "thumb", "value": 1, "decision_id": 7},
    ],
)
def test_feedback_that_says_nothing_is_refused(shared: Shared, body: dict[str, Any]) -> None:
    """400 with the reason, and nothing is kept."""
    id_ = asked(shared.http)
    reply = shared.http.post("/v1/feedback", json={"decision_id": id_, **body})
    assert reply.status_code == 400, reply.text
    assert shared.http.get(f"/v1/decisions/{id_}").json()["feedback"] == []


def test_feedback_needs_a_logged_decision_and_its_user(http: httpx.Client) -> None:
    """404 for a decision that nobody made, 403 for another user's."""
    id_ = asked(http, user="ann")
    for unknown in ("01a1f81f-95a7-7579-a0cd-cfed71c9669f", "nonsense", "'; DROP TABLE events; --"):
        reply = http.post("/v1/feedback", json={"decision_id": unknown, "kind": "thumb", "value": 1})
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_decision")
    reply = http.post("/v1/feedback", json={"decision_id": id_, "kind": "thumb", "value": 1, "user": "bob"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "not_authorized")
    headers = {"x-fitrouter-user": "ann"}
    assert http.post("/v1/feedback", json={"decision_id": id_, "kind": "thumb", "value": 1}, headers=headers).is_success


def test_a_decision_explains_itself(http: httpx.Client) -> None:
    """All that was weighed, in numbers and in a sentence, and what came of it."""
    id_ = asked(http, text="Explain yourself", metadata={"role": "cook", "task": "soup"})
    http.post("/v1/feedback", json={"decision_id": id_, "kind": "thumb", "value": "up"})
    story = http.get(f"/v1/decisions/{id_}").json()
    assert story["decision_id"] == story["draw_id"] == id_
    assert (story["mode"], story["role"], story["task"]) == ("online", "cook", "soup")
    assert [row["model"] for row in story["eligible"]] == ["alpha", "beta", "gamma"]
    assert sum(row["probability"] for row in story["eligible"]) == pytest.approx(1.0, abs=1e-12)
    assert all(row["twin_probability"] is not None and row["fit_sd"] > 0 for row in story["eligible"])
    assert story["execution"]["served_by"] == story["chosen"]
    assert story["execution"]["attempts"][0]["probability"] == 1.0
    assert story["chosen"] in story["why"]
    assert story["why"] == " ".join(story["explanation"]["sentences"])
    assert [vote["value"] for vote in story["feedback"]] == [1.0]
    pinned = http.get(f"/v1/decisions/{asked(http, model='alpha')}").json()
    assert pinned["eligible"][0]["probability"] is None
    assert "alpha" in pinned["why"]
    assert http.get("/v1/decisions/nonsense").status_code == 404


def test_an_excluded_model_is_explained(tmp_path: Path) -> None:
    """Why not that one: the reason stands beside its name."""
    models = [*cards(("alpha", "beta")), ModelCard(name="tiny", provider="echo", context_window=10)]
    with serving(make_router(tmp_path, models=models)) as url, client(url) as http:
        story = http.get(f"/v1/decisions/{asked(http, text='x' * 100)}").json()
    assert [(row["model"], row["reason"].split(":")[0]) for row in story["excluded"]] == [("tiny", "context")]


def test_a_store_that_fails_costs_the_log_and_feedback_but_no_answer(tmp_path: Path) -> None:
    """`x-fitrouter-logged: false`, 503 with Retry-After for feedback, 404 for an unlogged decision, and metrics."""
    broken = False

    def fault(_step: str) -> None:
        if broken:
            raise OSError("no space left on device")

    with serving(make_router(tmp_path, journal=MemoryJournal(fault=fault))) as url, client(url) as http:
        logged = asked(http)
        broken = True
        for streamed in (False, True):
            reply = http.post("/v1/chat/completions", json=chat(stream=streamed))
            assert (reply.status_code, reply.headers["x-fitrouter-logged"]) == (200, "false")
        unlogged = reply.headers["x-fitrouter-decision"]
        vote = {"decision_id": logged, "kind": "thumb", "value": "up"}
        refused = http.post("/v1/feedback", json=vote)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert http.post("/v1/feedback", json={**vote, "decision_id": unlogged}).status_code == 404
        text = http.get("/metrics").text
        assert "fitrouter_unlogged_total 2.0" in text
        assert 'fitrouter_trouble_total{part="journal"}' in text
        broken = False
        assert http.post("/v1/feedback", json=vote).status_code == 200


class _Scorer:
    """A scorer that does what the test says instead of scoring."""

    dim, schema, leading = 1, "none", True

    def __init__(self, step: Any) -> None:
        self.step = step

    def attach(self, *_: Any) -> None:
        """Nothing is needed."""

    def judge(self, *_: Any) -> float:
        return float("nan")

    def lag(self) -> tuple[int, float]:
        return 7, 3.5

    def models(self) -> dict[str, Any]:
        return {}


def _raises() -> int:
    raise RuntimeError("NaN in the heads")


@pytest.mark.usefixtures("commits_have_time")
@pytest.mark.parametrize("kind", ["raises", "hangs"])
def test_a_scorer_that_raises_or_hangs_is_seen_and_not_felt(tmp_path: Path, kind: str) -> None:
    """Criterion 6: requests are answered as ever, and a metric shows it."""
    freed = threading.Event()
    scorer = _Scorer(_raises if kind == "raises" else lambda: int(freed.wait(300.0)))
    router = make_router(tmp_path, scorer=scorer)
    router._services.append(Service("scorer", scorer.step, router.hooks))
    with serving(router) as url, client(url) as http:
        for i in range(20):
            assert http.post("/v1/chat/completions", json=chat(f"q{i}")).headers["x-fitrouter-logged"] == "true"
        wait_for(lambda: "fitrouter_scorer_lag_answers 7.0" in http.get("/metrics").text)
        assert "fitrouter_scorer_lag_seconds 3.5" in http.get("/metrics").text
        if kind == "raises":
            assert 'fitrouter_trouble_total{part="scorer"}' in http.get("/metrics").text
        freed.set()


def test_health_and_readiness(http: httpx.Client, router: Router) -> None:
    """/readyz names the process, the position and the digest of what it knows, which is the learner's own."""
    assert http.get("/healthz").json() == {
        "status": "ok",
        "installation": router.tokens.installation,
        "behind": [],
    }
    assert router.tokens.installation not in router._identities.salt.hex()
    asked(http)
    wait_for(lambda: router._learner.seq == 3)
    report = http.get("/readyz").json()
    assert report["ready"]
    assert (report["seq"], report["digest"]) == (3, router._learner.digest())
    assert report["leases"] == []
    assert http.get("/readyz").json()["digest"] == report["digest"]


def test_identity_of_the_request_is_not_shown_to_models(tmp_path: Path) -> None:
    """Providers get neither user nor metadata."""
    provider = Echo()
    with serving(make_router(tmp_path, {"echo": provider})) as url, client(url) as http:
        asked(http, user="ann", metadata={"role": "cook"})
    assert provider.calls[0].params == {}


def test_the_id_of_a_completion_names_its_decision(http: httpx.Client) -> None:
    """`chatcmpl-ID`, which OpenAI's clients show, is taken for a decision id in paths and bodies."""
    reply = http.post("/v1/chat/completions", json=chat("Which id?")).json()
    assert reply["id"] == f"chatcmpl-{reply['fitrouter']['decision_id']}"
    vote = {"decision_id": reply["id"], "kind": "thumb", "value": "up"}
    assert http.post("/v1/feedback", json=vote).json()["decision_id"] == reply["fitrouter"]["decision_id"]
    assert http.get(f"/v1/decisions/{reply['id']}").json()["decision_id"] == reply["fitrouter"]["decision_id"]
