"""Answers of servers that deviate from OpenAI's format: uniform whole and streamed, and accepted as history."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kits.fake_openai import FakeOpenAI, Reply, event, reply, sse

from fitrouter.errors import ProviderUnavailable
from fitrouter.providers import OpenAICompatible
from fitrouter.providers._uniform import UniformChoice
from fitrouter.serving.attempts import Assembler
from fitrouter.types import Call, Chunk, Completion
from fitrouter_integrations.gateway.parsing._messages import messages_of

DONE = b"data: [DONE]\n\n"
OSLO, ROME = '{"city":"Oslo"}', '{"city":"Rome"}'


def call(index: Any, id_: str | None, arguments: Any, name: str | None = "weather") -> dict[str, Any]:
    """A call, or a piece of one; None leaves a field out."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    given = {"index": index, "id": id_, "type": "function" if name else None, "function": function}
    return {key: value for key, value in given.items() if value is not None}


async def answered(reply_: Reply, *, stream: bool) -> Completion:
    """A scripted answer, as whoever asked reads it; the first piece of a streamed call has the whole name."""
    request = Call(target="m", messages=({"role": "user", "content": "hi"},), stream=stream)
    async with FakeOpenAI([reply_]) as server, aclosing(OpenAICompatible(server.base_url)) as provider:
        found = await provider.complete(request)
        if isinstance(found, AsyncIterator):
            whole, named = Assembler(), dict[int, str]()
            async for chunk in found:
                whole.add(chunk)
                for piece in chunk.delta.get("tool_calls") or ():
                    named.setdefault(piece["index"], piece["function"].get("name"))
            assert [*named.values()] == [one["function"]["name"] for one in whole.message().get("tool_calls") or ()]
            found = Completion(message=whole.message(), finish_reason=whole.finish_reason or "")
    return found


def streamed(*deltas: dict[str, Any], reason: str = "stop") -> Reply:
    ends = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    return sse(*[event({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas], event(ends), DONE)


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter", "tool_calls", "eos_token"])
@pytest.mark.parametrize("content", ["", None], ids=["empty", "null"])
async def test_an_empty_answer_is_an_answer(reason: str, content: str | None) -> None:
    """Whatever ended it, with its reason, whole and streamed: thinking may have used up the limit."""
    message = {"role": "assistant", "content": content}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}
    for stream, said in ((False, reply(200, body)), (True, streamed(message, reason=reason))):
        found = await answered(said, stream=stream)
        assert not found.message["content"]
        assert found.finish_reason == {"eos_token": "stop"}.get(reason, reason)


REASONS = {
    "done": "stop",
    "MAX_TOKENS": "length",
    "model_context_window_exceeded": "length",
    "RECITATION": "content_filter",
    "guardrail_intervened": "content_filter",
    "STOP": "stop",
    "abort": "other",
    "end": "stop",
    "completed": "stop",
    "max_output_tokens": "length",
    "the user said: my password is hunter2": "other",
    "\x1b[31m": "other",
}


@pytest.mark.parametrize(("reason", "told"), REASONS.items())
async def test_finish_reasons_are_known_ones(reason: str, told: str) -> None:
    """A provider's own words are no finish reason: neither a caller nor the log gets them."""
    message = {"role": "assistant", "content": "hi"}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}
    for stream, said in ((False, reply(200, body)), (True, streamed(message, reason=reason))):
        found = await answered(said, stream=stream)
        assert found.finish_reason == told


CALLS = {
    "an object": ([call(0, "a", {"city": "Oslo"})], [OSLO]),
    "a list": ([call(0, "a", [1])], ["[1]"]),
    "null": ([call(0, "a", None)], [""]),
    "a number": ([call(0, "a", 7)], ["7"]),
    "a string": ([call(0, "a", OSLO)], [OSLO]),
    "no id": ([call(0, None, OSLO)], [OSLO]),
    "an empty id": ([call(0, "", OSLO)], [OSLO]),
    "no type": ([{"id": "a", "function": {"name": "weather", "arguments": OSLO}}], [OSLO]),
    "an id that is a number": ([{**call(0, None, OSLO), "id": 7}], [OSLO]),
    "encoded twice": ([call(0, "a", json.dumps(OSLO))], [OSLO]),
    "Llama's parameters": ([{"id": "a", "function": {"name": "weather", "parameters": {"city": "Oslo"}}}], [OSLO]),
    "no type, no list": ({"id": "a", "type": None, "function": {"name": "weather", "arguments": OSLO}}, [OSLO]),
    "one id for two": ([call(0, "a", OSLO), call(1, "a", ROME)], [OSLO, ROME]),
    "no index": ([call(None, "a", OSLO), call(None, "b", ROME)], [OSLO, ROME]),
}


@pytest.mark.parametrize(
    "reason", ["stop", "eos", "function_call", "tool_use", "tool_calls", "toolUse", "FINISH_REASON_STOP"]
)
@pytest.mark.parametrize(("calls", "arguments"), CALLS.values(), ids=CALLS)
async def test_calls_arrive(calls: Any, arguments: list[str], reason: str) -> None:
    """As strings with ids, ended by `tool_calls`; whole, in one chunk and as JSON for a stream; accepted as history."""
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}
    for stream, said in (
        (False, reply(200, body)),
        (True, streamed(message, reason=reason)),
        (True, reply(200, body)),
    ):
        found = await answered(said, stream=stream)
        assert [one["function"]["arguments"] for one in found.message["tool_calls"]] == arguments
        assert len({one["id"] for one in found.message["tool_calls"]}) == len(arguments)
        assert all(one["type"] == "function" for one in found.message["tool_calls"])
        assert found.finish_reason == "tool_calls"
        results = [{"role": "tool", "tool_call_id": one["id"], "content": "sun"} for one in found.message["tool_calls"]]
        assert messages_of([{"role": "user", "content": "hi"}, found.message, *results])


PIECES: dict[str, list[list[dict[str, Any]]]] = {
    "equal indexes with ids": [[call(0, "a", OSLO)], [call(0, "b", ROME)]],
    "equal indexes in one chunk": [[call(0, "a", OSLO), call(0, "b", ROME)]],
    "equal indexes without ids": [[call(0, None, OSLO)], [call(0, None, ROME)]],
    "no indexes": [[call(None, "a", OSLO)], [call(None, "b", ROME)]],
    "no indexes, no ids": [[call(None, None, OSLO)], [call(None, None, ROME)]],
    "odd indexes": [[call("x", "a", OSLO)], [call(-3, "b", ROME)]],
    "from one": [[call(1, "a", OSLO)], [call(2, "b", ROME)]],
    "split, equal indexes": [
        [call(0, "a", OSLO[:5])],
        [call(0, None, OSLO[5:], None)],
        [call(0, "b", "")],
        [call(0, None, ROME, None)],
    ],
    "split, the id in each piece": [
        [call(0, "a", OSLO[:5])],
        [call(0, "a", OSLO[5:], None)],
        [call(0, "b", ROME[:3])],
        [call(0, "b", ROME[3:], None)],
    ],
    "split, no indexes": [
        [call(None, "a", OSLO[:4])],
        [call(None, None, OSLO[4:], None)],
        [call(None, "b", ROME)],
    ],
    "alternating": [
        [call(0, "a", OSLO[:4])],
        [call(1, "b", ROME[:4])],
        [call(0, None, OSLO[4:], None)],
        [call(1, None, ROME[4:], None)],
    ],
    "the name in each piece": [
        [call(0, "a", OSLO[:4])],
        [call(0, "a", OSLO[4:])],
        [call(1, "b", ROME[:4])],
        [call(1, "b", ROME[4:])],
    ],
    "the name in pieces": [
        [call(0, "a", "", "wea")],
        [call(0, None, "", "ther")],
        [call(0, None, OSLO, None), call(1, "b", "", "w")],
        [call(1, "b", None, "eather")],
        [call(1, None, ROME, "")],
    ],
    "the name later": [
        [call(0, "a", "", None)],
        [call(0, "a", OSLO)],
        [call(1, "b", "", "weather"), call(1, "b", ROME)],
    ],
    "one id, two indexes": [[call(0, "a", OSLO)], [call(1, "a", ROME)]],
    "one id, one index": [[call(0, "a", OSLO)], [call(0, "a", ROME)]],
    "one id, split": [
        [call(0, "a", OSLO[:5])],
        [call(0, None, OSLO[5:], None)],
        [call(1, "a", ROME[:5])],
        [call(1, None, ROME[5:], None)],
    ],
    "an empty piece at the end": [[call(0, "a", OSLO)], [call(1, "b", ROME)], [call(1, "", "", "")]],
    "indexes of words": [[call("0", "a", OSLO)], [call("1", "b", ROME)]],
    "encoded twice": [[call(0, "a", json.dumps(OSLO))], [call(1, "b", json.dumps(ROME))]],
    "objects": [[call(0, "a", {"city": "Oslo"})], [call(0, "b", {"city": "Rome"})]],
}


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
async def test_parallel_calls_stay_apart(pieces: list[list[dict[str, Any]]]) -> None:
    """With equal, missing or odd indexes, in one piece or several, each call has its own arguments, name and index."""
    found = await answered(streamed(*[{"tool_calls": calls} for calls in pieces]), stream=True)
    calls = found.message["tool_calls"]
    assert [json.loads(one["function"]["arguments"])["city"] for one in calls] == ["Oslo", "Rome"]
    assert [one["function"]["name"] for one in calls] == ["weather", "weather"]
    assert len({one["id"] for one in calls}) == 2


OLD: dict[str, list[dict[str, Any]]] = {
    "at once": [{"name": "weather", "arguments": OSLO}],
    "an object": [{"name": "weather", "arguments": {"city": "Oslo"}}],
    "split": [{"name": "weather", "arguments": ""}, {"arguments": OSLO[:4]}, {"arguments": OSLO[4:]}],
    "the name in pieces": [{"name": "wea"}, {"name": "ther", "arguments": ""}, {"arguments": OSLO}],
    "the name in pieces, the last with arguments": [{"name": "wea"}, {"name": "ther", "arguments": OSLO}],
    "the name in each piece": [{"name": "weather", "arguments": OSLO[:4]}, {"name": "weather", "arguments": OSLO[4:]}],
}


@pytest.mark.parametrize("pieces", OLD.values(), ids=OLD)
def test_old_calls_are_told_like_others(pieces: list[dict[str, Any]]) -> None:
    """A `function_call` in pieces: its name as a whole and once, before its arguments; ended by its own reason."""
    choice = UniformChoice()
    told = [choice.delta({"function_call": piece}).get("function_call") for piece in pieces]
    told.append(choice.delta({}, ends=True).get("function_call"))
    names = [each.get("name") for each in told if each]
    assert names == ["weather", *[None] * (len(names) - 1)]
    assert json.loads("".join(each["arguments"] for each in told if each)) == {"city": "Oslo"}
    assert choice.reason("stop") == "function_call"


@pytest.mark.parametrize("given", [7, "f", ["f"], True])
def test_an_old_call_that_is_no_object_is_passed_on(given: Any) -> None:
    """It ends no stream, and is not the call that the reason tells of."""
    choice = UniformChoice()
    assert choice.delta({"content": "a", "function_call": given}) == {"content": "a", "function_call": given}
    assert choice.reason("stop") == "stop"


@pytest.mark.parametrize("name", [7, ["f"], {"f": 1}, "f" * 300], ids=["number", "list", "object", "long"])
def test_names_are_texts(name: Any) -> None:
    """Whatever a server sends as one; a name without an end is not kept."""
    for made in (UniformChoice().message, UniformChoice().delta):
        (found,) = made({"tool_calls": [call(0, "a", "" if len(str(name)) > 256 else OSLO, name)]})["tool_calls"]
        assert found["function"]["name"] == str(name)


@given(st.integers(1, 9), st.sampled_from([OSLO, '{"a":"}{\\"","b":{"c":1}}', "{}"]))
def test_arguments_may_be_split_anywhere(size: int, arguments: str) -> None:
    """Two calls of one index come out whole, wherever the pieces end."""
    choice, whole = UniformChoice(), Assembler()
    for id_ in ("a", "b"):
        pieces = [arguments[i : i + size] for i in range(0, len(arguments), size)]
        for i, piece in enumerate(pieces):
            sent = call(0, None if i else id_, piece, None if i else "f")
            whole.add(Chunk(delta=choice.delta({"tool_calls": [sent]})))
    assert [one["function"]["arguments"] for one in whole.message()["tool_calls"]] == [arguments, arguments]


LATE = {
    "without arguments": [{"tool_calls": [call(0, "a", "")]}, {"finish_reason": "stop"}],
    "without arguments, after the end": [{"finish_reason": "stop"}, {"tool_calls": [call(0, "a", "")]}],
    "without arguments or an end": [{"tool_calls": [call(0, "a", "")]}],
    "a name in pieces": [
        {"tool_calls": [call(0, "a", "", "wea")]},
        {"tool_calls": [call(0, "a", "", "ther")]},
        {"tool_calls": [call(0, "a", OSLO, "")], "finish_reason": "stop"},
    ],
    "a call of no argument yet": [
        {"finish_reason": "stop"},
        {"tool_calls": [call(0, "a", "")]},
        {"tool_calls": [call(0, "a", OSLO)]},
    ],
    "after the end": [{"finish_reason": "stop"}, {"tool_calls": [call(0, "a", OSLO)]}],
    "beside the end": [{"tool_calls": [call(0, "a", OSLO)], "finish_reason": "stop"}],
    "after empty ends": [
        {"finish_reason": ""},
        {"tool_calls": [call(0, "a", OSLO)], "finish_reason": ""},
        {"finish_reason": "stop"},
    ],
    "before an end of text": [{"tool_calls": [call(0, "a", OSLO)]}, {"finish_reason": "end"}],
    "between two ends": [{"finish_reason": "stop"}, {"tool_calls": [call(0, "a", OSLO)]}, {"finish_reason": "stop"}],
}


@pytest.mark.parametrize("pieces", LATE.values(), ids=LATE)
async def test_a_stream_with_calls_ends_with_calls(pieces: list[dict[str, Any]]) -> None:
    """Wherever its end is told, and if an empty end is told with each piece: the last finish reason is of the calls."""
    sent = [
        event({"choices": [{"index": 0, "delta": {key: piece[key] for key in piece if key != "finish_reason"},
                            "finish_reason": piece.get("finish_reason")}]})
        for piece in pieces
    ]  # fmt: skip
    found = await answered(sse(*sent, DONE), stream=True)
    assert found.finish_reason == "tool_calls"
    given = [one["function"]["arguments"] for piece in pieces for one in piece.get("tool_calls", ())]
    assert [one["function"]["arguments"] for one in found.message["tool_calls"]] == ["".join(given)]


TEXTS: dict[str, tuple[Any, str, str | None]] = {
    "one part, no list": ({"type": "text", "text": "a"}, "a", None),
    "strings": (["a", "b"], "ab", None),
    "no type": ([{"text": "a"}], "a", None),
    "a type that is none": ([{"type": ["text"], "text": "a"}], "a", None),
    "a text that is an object": ([{"type": "text", "text": {"value": "a"}}], "a", None),
    "nothing between": ([{"type": "text", "text": "a"}, None, 7], "a", None),
    "no thought": ([{"type": "thinking", "thinking": None}, {"type": "text", "text": "a"}], "a", None),
    "texts": ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab", None),
    "thinking in parts": (
        [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "a"}],
        "a",
        "hm",
    ),
    "thinking as text": ([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}], "a", "hm"),
    "reasoning": ([{"type": "reasoning", "text": "hm"}, {"type": "output_text", "text": "a"}], "a", "hm"),
    "a text in three": ([{"type": "text", "text": part} for part in ("a", "", "b")], "ab", None),
    "thinking between": (
        [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "b"}],
        "ab",
        "hm",
    ),
    "thinking alone": ([{"type": "thinking", "thinking": "hm"}], "", "hm"),
}


@pytest.mark.parametrize(("parts", "text", "thought"), TEXTS.values(), ids=TEXTS)
def test_a_list_of_texts_is_a_text(parts: Any, text: str, thought: str | None) -> None:
    """Thinking becomes `reasoning_content`; other kinds of parts stay in whole answers, and the text beside is read."""
    found = UniformChoice().message({"role": "assistant", "content": parts})
    assert (found["content"], found.get("reasoning_content")) == (text, thought)
    for kind in ({"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "reference", "reference_ids": [1]}):
        other = {"content": [*(parts if isinstance(parts, list) else [parts]), kind]}
        assert UniformChoice().message(other) == other
        assert UniformChoice().delta(other)["content"] == text


def whole_of(body: dict[str, Any]) -> dict[str, Any]:
    """The body of a chunk as that of an answer."""
    (choice,) = body["choices"]
    return {"choices": [{**{name: choice[name] for name in choice if name != "delta"}, "message": choice["delta"]}]}


ODD = {
    "a byte order mark": lambda body: sse(b"\xef\xbb\xbf" + event(body), DONE),
    "a byte order mark in pieces": lambda body: sse(b"\xef", b"\xbb\xbf", event(body), DONE),
    "text/plain": lambda body: sse(event(body), DONE, content_type="text/plain; charset=utf-8"),
    "JSON": lambda body: reply(200, whole_of(body)),
    "characters cut in half": lambda body: sse(*[bytes([byte]) for byte in event(body)], DONE),
    "JSON with a byte order mark": lambda body: reply(200, b"\xef\xbb\xbf" + json.dumps(whole_of(body)).encode()),
    "JSON after blank lines": lambda body: reply(200, b"\n\n  \n" + json.dumps(whole_of(body)).encode()),
    "numbers that are none": lambda body: sse(
        event(body).replace(b'"index"', b'"logprobs": {"content": [{"logprob": -Infinity}]}, "index"'), DONE
    ),
    "messages for deltas": lambda body: sse(event(whole_of(body)), DONE),
    "an end in small letters": lambda body: sse(event(body), b"data: [done] \n\n"),
    "no blank after the colon": lambda body: sse(event(body).replace(b"data: ", b"data:"), DONE),
    "no type": lambda body: Reply(b"HTTP/1.1 200 OK\r\n\r\n" + event(body) + DONE),
    "no empty lines": lambda body: sse(event({"id": "x"})[:-1] + event(body)[:-1] + b"data: [DONE]\n"),
    "no empty line at the end": lambda body: sse(event({"id": "x"}), event(body)[:-1]),
    "no line break at the end": lambda body: sse(event({"id": "x"}), event(body)[:-2]),
    "an index of text": lambda body: sse(event(body).replace(b'"index": 0', b'"index": "0"'), DONE),
    "an index that is none": lambda body: sse(event(body).replace(b'"index": 0', b'"index": 0.0'), DONE),
    "text": lambda body: sse(
        event({"choices": [{"index": 0, "text": body["choices"][0]["delta"]["content"], "finish_reason": "stop"}]}),
        DONE,
    ),
    "a message beside the deltas": lambda body: sse(
        event(body),
        event({"choices": [{"index": 0, "delta": {}, "message": body["choices"][0]["delta"]}]}),
        DONE,
    ),
    "a list of one": lambda body: sse(event([body]), DONE),
}


@pytest.mark.parametrize("form", ODD.values(), ids=ODD)
async def test_odd_streams_are_read(form: Any) -> None:
    """Whatever a stream looks like, its text and its end arrive."""
    body = {"choices": [{"index": 0, "delta": {"content": "né 你😀"}, "finish_reason": "stop"}]}
    found = await answered(form(body), stream=True)
    assert (found.message["content"], found.finish_reason) == ("né 你😀", "stop")


async def test_a_piece_that_is_said_again_is_said_again() -> None:
    """Only events that say nothing are read once, however often they come: texts and calls repeat themselves."""
    empty, piece = ({"choices": [{"index": 0, "delta": {"content": text}}]} for text in ("", "ha"))
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    sent = [event(each) for each in (empty, empty, piece, piece, empty, piece, end, end)]
    assert (await answered(sse(*sent, DONE), stream=True)).message["content"] == "hahaha"


HALVES = {
    "half a character": b"a\xc3",
    "half a pair": b"a\\ud83d",
    "the other half": b"\\ude00b",
    "half an escape's pair, in capitals": b"\\uD83D\\n",
}


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_halves_of_characters_end_no_answer(half: bytes, stream: bool) -> None:
    """Servers cut tokens, and tokens cut characters: what cannot be read is replaced, the rest arrives."""
    body = {"choices": [{"index": 0, "delta": {"content": "xHALFy"}, "finish_reason": "stop"}]}
    said = event(body) if stream else json.dumps(whole_of(body)).encode()
    said = said.replace(b"HALF", half)
    found = await answered(sse(said, DONE) if stream else reply(200, said), stream=stream)
    told = found.message["content"]
    assert (told[0], told[-1]) == ("x", "y")
    assert told.encode()


LAID_OUT: dict[str, dict[str, Any]] = {
    "an index of text": {"index": "0", "message": {"content": "hi"}},
    "an index from one": {"index": 1, "message": {"content": "hi"}},
    "a delta": {"index": 0, "delta": {"content": "hi"}},
    "an empty message and a delta": {"message": {}, "delta": {"content": "hi"}},
    "text": {"text": "hi"},
}


@pytest.mark.parametrize("choices", [[None], ["hi"], [["hi"]], [7]])
async def test_choices_that_are_no_objects_are_none(choices: list[Any]) -> None:
    """An answer of such is an empty one, whose usage is still read, and no error of ours."""
    with pytest.raises(ProviderUnavailable, match="empty answer") as raised:
        await answered(reply(200, {"choices": choices, "usage": {"prompt_tokens": 3}}), stream=False)
    assert raised.value.usage is not None


@pytest.mark.parametrize("choice", LAID_OUT.values(), ids=LAID_OUT)
async def test_the_text_of_one_choice_arrives(choice: dict[str, Any]) -> None:
    """Wherever a server puts it: the answer is paid for, and an empty one would be a lie."""
    for body in (
        {"choices": [{**choice, "finish_reason": "stop"}]},
        [{"choices": [{**choice, "finish_reason": "stop"}]}],
    ):
        found = await answered(reply(200, body), stream=False)
        assert (found.message["content"], found.finish_reason) == ("hi", "stop")
