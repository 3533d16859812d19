"""Laws of further fields: what a provider adds to an answer reaches the caller of the same dialect, within bounds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kits.fake_openai import FakeOpenAI, event, in_a_thread, reply, sse
from tests.kits.gateway import chat, client, make_router, serving

from fitrouter.providers import LEFT_OUT, OpenAICompatible, Secret, further_fields
from fitrouter.providers._litellm import LiteLLM, _further

KNOWN: dict[str, Any] = {
    "citations": ["https://example.org/a"],
    "search_results": [{"title": "A", "url": "https://example.org/a"}],
    "system_fingerprint": "fp_1",
    "service_tier": "flex",
    "x_groq": {"id": "req_1"},
    "prompt_filter_results": [{"prompt_index": 0}],
    "provider": "Azure",
    "images": [],
}
"""As Perplexity, OpenAI, Groq, Azure and OpenRouter send them."""
OURS = {"fitrouter": {"token": "x"}, "fitrouter_model": "y", "x-fitrouter-model": "z", "kv_transfer_params": {"h": 1}}
JSON = st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(), st.lists, max_leaves=5)


@given(st.dictionaries(st.text() | st.sampled_from([*KNOWN, *OURS, "id", "choices"]), JSON, max_size=60))
def test_names_and_sizes_are_bounded(body: dict[str, Any]) -> None:
    """Whatever a server sends, few and short fields pass, none of them the gateway's own."""
    found = further_fields(body)
    assert len(found.pop(LEFT_OUT, ())) <= 32
    assert found.items() <= body.items() or all(found[name] == body[name] for name in found)
    assert len(found) <= 32
    assert not found.keys() & {*OURS, "id", "object", "created", "model", "choices", "usage", "error"}
    assert all(name.isidentifier() and len(name) <= 64 for name in found)


def test_long_fields_are_left_out_by_name() -> None:
    """64 kB of all fields together are passed on, and at most 32; those left out are named, and hide no others."""
    found = further_fields({"a": "x" * 60_000, "b": "y" * 5_000, "c": "z" * 5_000, "d": 1})
    assert (list(found), found[LEFT_OUT]) == (["a", "b", "d", LEFT_OUT], ["c"])
    assert further_fields({"a": "x" * 70_000}) == {LEFT_OUT: ["a"]}
    many = further_fields({f"n{number}": number for number in range(100)} | {LEFT_OUT: "theirs"})
    assert (len(many), len(many[LEFT_OUT])) == (33, 32)


def test_an_internal_address_is_left_out() -> None:
    """A field that names the provider's host would tell callers where it is."""
    body = {"served": {"url": "http://gpu-7.internal:8000"}, "citations": ["https://example.org"]}
    assert list(further_fields(body, "gpu-7.internal")) == ["citations"]


@pytest.fixture
def answered(tmp_path: Path) -> Any:
    """A gateway over a scripted server; returns the body of a complete answer and the events of a streamed one."""

    async def ask(more: dict[str, Any], beside: Any = None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        ends = [({"role": "assistant", "content": "so [1]"}, None), ({}, "stop")]
        beside = beside or {}
        parts = [
            {"choices": [{**beside, "index": 0, "delta": delta, "finish_reason": end}], **more} for delta, end in ends
        ]
        message = {"role": "assistant", "content": "so [1]"}
        whole = {"choices": [{"index": 0, "message": message, "finish_reason": "stop", **beside}], **more}
        async with FakeOpenAI([reply(200, whole), sse(*map(event, parts), event(b"[DONE]"))]) as server:
            provider = OpenAICompatible(server.base_url, Secret("sk-0123456789"))
            with serving(make_router(tmp_path, {"echo": provider})) as url:
                return await asyncio.to_thread(both, url)

    return ask


def both(url: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The body of a complete answer, and the events of a streamed one."""
    with client(url) as http:
        whole = http.post("/v1/chat/completions", json=chat()).json()
        lines = http.post("/v1/chat/completions", json=chat(stream=True)).text.splitlines()
    return whole, [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize("name", KNOWN)
async def test_known_fields_reach_the_caller(answered: Any, name: str) -> None:
    """Complete and streamed, beside the gateway's own fields."""
    whole, events = await answered({name: KNOWN[name]})
    assert whole[name] == KNOWN[name]
    assert [each[name] for each in events if name in each][:1] == [KNOWN[name]]
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"]["content"] == "so [1]"


BESIDE: dict[str, Any] = {
    "content_filter_results": {"hate": {"filtered": False}},
    "native_finish_reason": "completed",
    "stop_reason": 32_007,
    "matched_stop": "END",
    "token_ids": [1, 2],
}
"""As Azure, OpenRouter, vLLM and SGLang send them."""


@pytest.mark.parametrize("name", BESIDE)
async def test_fields_of_a_choice_reach_the_caller(answered: Any, name: str) -> None:
    """Complete and streamed, in the choice; none that names the server, and none of the gateway's own."""
    told = {name: BESIDE[name], "fitrouter": {"token": "x"}, "served_at": "http://127.0.0.1:8000", "usage": {}}
    whole, events = await answered({}, told)
    for choice in (whole["choices"][0], next(one for each in events for one in each["choices"] if name in one)):
        assert choice[name] == BESIDE[name]
        assert not choice.keys() & {"fitrouter", "served_at", "usage"}


@pytest.mark.parametrize("stream", [False, True])
def test_cited_pages_reach_a_response(tmp_path: Path, stream: bool) -> None:
    """As annotations of its text, whose form differs from that in chat completions."""
    cited = {"url": "https://example.org/a", "title": "A", "start_index": 0, "end_index": 6}
    message = {
        "role": "assistant",
        "content": "so [1]",
        "annotations": [{"type": "url_citation", "url_citation": cited}, 7],
    }
    choice = {"index": 0, "delta" if stream else "message": message, "finish_reason": "stop"}
    script = [sse(event({"choices": [choice]}), event(b"[DONE]")) if stream else reply(200, {"choices": [choice]})]
    with in_a_thread(FakeOpenAI(script)) as server:
        router = make_router(tmp_path, {"echo": OpenAICompatible(server.base_url)})
        with serving(router) as url, client(url) as http:
            answer = http.post("/v1/responses", json={"input": "hi", "stream": stream})
    told = json.loads(answer.text.splitlines()[-2][6:])["response"] if stream else answer.json()
    (part,) = told["output"][0]["content"]
    assert (part["text"], part["annotations"]) == ("so [1]", [{"type": "url_citation", **cited}])


async def test_what_is_left_out_of_an_answer_is_said(answered: Any) -> None:
    """Where parameters that were left out are said; in a stream, whose headers are gone, by a field of the chunk."""
    whole, events = await answered({"citations": ["https://example.org"], "search_results": ["x" * 70_000]})
    assert whole["fitrouter"]["dropped"] == ["search_results"]
    assert LEFT_OUT not in whole
    assert events[0 if LEFT_OUT in events[0] else 1][LEFT_OUT] == ["search_results"]
    assert all("search_results" not in each for each in (whole, *events))
    assert whole["citations"] == ["https://example.org"]


async def test_the_gateways_fields_stay(answered: Any) -> None:
    """A server cannot pretend to be the router, nor send the key that it was given back."""
    whole, events = await answered({**OURS, "id": "theirs", "model": "theirs", "note": "your key is sk-0123456789"})
    for body in (whole, events[0]):
        assert body["id"].startswith("chatcmpl-")
        assert body["model"] != "theirs"
        assert "token" not in body["fitrouter"] or body["fitrouter"]["token"] != "x"
        assert not body.keys() & {"fitrouter_model", "x-fitrouter-model", "kv_transfer_params"}
        assert body["note"] == "your key is ••••"


def test_fields_of_litellm() -> None:
    """Litellm keeps fields that it does not know apart from its own."""
    given = SimpleNamespace(model_extra={"search_results": [1], "id": "x"}, citations=["u"], system_fingerprint=None)
    assert _further(given) == {"search_results": [1], "citations": ["u"]}
    own = SimpleNamespace(model_extra={"grounding": [Path("x")]})
    assert _further(own) == {"grounding": ["x"]}  # what is sent must be JSON
    scrubbed = LiteLLM(Secret("sk-0123456789"))._scrubbed({"citations": ["sk-0123456789"]})
    assert msgspec.json.encode(scrubbed) == '{"citations":["••••"]}'.encode()
