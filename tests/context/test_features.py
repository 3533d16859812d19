"""Features of a request."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitrouter.context.encoders import Hashing
from fitrouter.context.features import (
    FLAGS,
    Reading,
    context_features,
    context_names,
    estimate_tokens,
    flags,
    is_followup,
    last_user_message,
    needs,
    read_prompt,
    session_key,
)
from fitrouter.types import Identity, Request

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 40_000}}


def ask(*messages: dict[str, Any], **rest: Any) -> Request:
    return Request(messages=messages, **rest)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def agent_history(steps: int, observation: str = "row 1\n" * 50) -> tuple[dict[str, Any], ...]:
    """A tool-calling agent after `steps` calls."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are an agent."},
        user("Find the total of 2024."),
    ]
    for i in range(steps):
        call = {"id": f"c{i}", "type": "function", "function": {"name": "query", "arguments": '{"q": 1}'}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{i}", "content": observation})
    return tuple(messages)


def test_the_last_user_turn_is_read_and_tool_output_is_not() -> None:
    """In a ten-step tool agent the text is the user's request, not tool output; it is the first turn."""
    reading = read_prompt(ask(*agent_history(10), params={"tools": [{"type": "function"}]}))
    assert reading.text == "Find the total of 2024."
    assert reading.tools
    assert reading.turn == 1
    assert reading.history > 10 * 50 * 6 / 4


def test_tool_results_inside_user_messages_are_not_read() -> None:
    """Anthropic-style tool results inside user messages are neither text nor a turn."""
    result = [{"type": "tool_result", "tool_use_id": "t", "content": "SECRET OUTPUT", "text": "SECRET"}]
    reading = read_prompt(ask(user("Sum it up"), {"role": "assistant", "content": "ok"}, user(result)))
    assert reading.text == "Sum it up"
    assert reading.turn == 1


@pytest.mark.parametrize("tag", ["system-reminder", "system_reminder", "environment_details", "additional_data"])
def test_reminder_blocks_of_frameworks_are_not_read(tag: str) -> None:
    """Blocks that frameworks add to the user's words are dropped wherever they stand; the words around them stay."""
    block = f"<{tag}>be nice\n</{tag}>"
    assert read_prompt(ask(user(f"{block}Write{block} a poem {block}"))).text == "Write a poem"


def test_a_turn_of_reminders_only_leads_to_the_turn_before() -> None:
    """If the last user message has no text of the user, the one before is read."""
    reading = read_prompt(ask(user("Write a poem"), user("<system-reminder>x</system-reminder>")))
    assert reading.text == "Write a poem"


@given(
    st.lists(
        st.builds(
            lambda role, content: {"role": role, "content": content},
            st.sampled_from(["system", "user", "assistant", "tool"]),
            st.sampled_from([None, "", "Hello", "<system-reminder>x</system-reminder>", [IMAGE], "Bye"]),
        ),
        max_size=6,
    )
)
def test_the_last_user_message_alone_gives_the_same_text(messages: list[dict[str, Any]]) -> None:
    """The last user message alone gives the text of the whole history; without one the text is empty."""
    message = last_user_message(messages)
    assert read_prompt(ask(*messages)).text == ("" if message is None else read_prompt(ask(message)).text)


def test_an_unclosed_reminder_is_the_users_text() -> None:
    """The text of a user who asks about the tag itself is kept in full."""
    assert read_prompt(ask(user("What is <system-reminder> for?"))).text == "What is <system-reminder> for?"


def test_long_text_is_cut_to_its_ends() -> None:
    """512 characters from either end are read, which is 128 tokens."""
    text = "a" * 512 + "b" * 100_000 + "c" * 512
    assert read_prompt(ask(user(text))).text == "a" * 512 + "\n" + "c" * 512
    assert read_prompt(ask(user("d" * 1024))).text == "d" * 1024


def test_content_without_text_reads_as_empty(subtests: pytest.Subtests) -> None:
    """Missing, empty, image-only or malformed content never raises and reads as no text."""
    for content in (
        None,
        [],
        "",
        [IMAGE],
        {"no": "list"},
        7,
        [None, 3, {"type": "text"}],
    ):
        with subtests.test(content=content):
            reading = read_prompt(ask(user(content)))
            assert reading.text == ""
            assert np.array_equal(context_features(reading, Hashing(32), 8)[1:9], np.zeros(8))


def test_parts_are_joined() -> None:
    """A list of parts reads as its texts; strings inside the list count too."""
    assert (
        read_prompt(ask(user(["Look:", IMAGE, {"type": "text", "text": "what is it?"}]))).text == "Look:\nwhat is it?"
    )


def test_language_is_the_script_of_most_letters(subtests: pytest.Subtests) -> None:
    """The guess goes by Unicode ranges alone."""
    for text, language in (
        ("Hello there", "latin"),
        ("Größe über alles, ça va", "latin"),
        ("12 + 30 = ?", "latin"),
        ("请帮我写一首诗", "cjk"),
        ("日本語で説明してください", "cjk"),
        ("한국어로 써 주세요", "cjk"),
        ("Напиши стихотворение", "other"),
        ("اكتب قصيدة", "other"),
        ("please translate 你好", "latin"),
    ):
        with subtests.test(text=text, language=language):
            assert read_prompt(ask(user(text))).language == language


def test_code_is_seen(subtests: pytest.Subtests) -> None:
    """Fences, definitions and statements are code; prose with the same words is not."""
    for text, code in (
        ("```python\nx = 1\n```", True),
        ("fix this:\ndef f(x):\n    return x", True),
        ("why does for (int i = 0; i < n; i++) {\n loop?", True),
        ("SELECT name FROM users WHERE id = 1", True),
        ("Write a poem about the sea; make it short. From here on, be kind.", False),
        ("My class is about public speaking (and more).", False),
    ):
        with subtests.test(text=text, code=code):
            assert read_prompt(ask(user(text))).code is code


def test_a_hundred_thousand_token_history_costs_no_more_reading() -> None:
    """Reading a long history neither copies nor scans its text: it makes as many calls as a short one.

    Counted and not timed, so that a busy machine cannot fail it.
    """

    def calls(request: Request) -> int:
        count = 0

        def tracer(frame: Any, event: str, arg: Any) -> None:
            nonlocal count
            count += event in {"call", "c_call"}

        gc.disable()  # its callbacks would be counted too
        sys.setprofile(tracer)
        try:
            reading = read_prompt(request)
        finally:
            sys.setprofile(None)
            gc.enable()
        assert reading.text == "Find the total of 2024."
        return count

    long = ask(*agent_history(10, "x" * 40_000))
    assert read_prompt(long).history > 100_000
    assert calls(long) == calls(ask(*agent_history(10, "x")))


def test_a_storm_of_tags_is_read() -> None:
    """A text of opening tags, the worst case of a backtracking pattern, reads like any other."""
    assert read_prompt(ask(user("<system-reminder>" * 60_000 + "</system-reminder>hello"))).text == "hello"
    assert read_prompt(ask(user("</system-reminder>" * 60_000 + "hello"))).text.endswith("hello")


@given(
    st.builds(
        Reading,
        text=st.text(max_size=50),
        tools=st.booleans(),
        turn=st.integers(0, 10**9),
        history=st.integers(0, 10**12),
        language=st.sampled_from(["latin", "cjk", "other"]),
        code=st.booleans(),
    )
)
def test_flags_stay_between_0_and_1(reading: Reading) -> None:
    """Every flag is in [0, 1] for any reading, in the documented order, and x has a length of about 1 beside the 1."""
    values = flags(reading)
    assert values.shape == (len(FLAGS),)
    assert ((values >= 0) & (values <= 1)).all()
    assert values[FLAGS.index("tools")] == reading.tools
    assert values[FLAGS.index("cjk")] == (reading.language == "cjk")
    x = context_features(reading, Hashing(64), 12)
    assert x.shape == (len(context_names(12)),) == (19,)
    assert x[0] == 1.0
    assert np.linalg.norm(x[1:]) <= 1.04
    assert np.isfinite(x).all()


def test_context_features_have_length_one() -> None:
    """A text with words gives ‖x[1:]‖ within [.86, 1.04], whatever the encoder's dimension."""
    for dim in (8, 24, 64):
        x = context_features(read_prompt(ask(user("How do vaccines work?"))), Hashing(256), dim)
        assert 0.86 <= np.linalg.norm(x[1:]) <= 1.04


def test_ordered_encoders_give_their_first_dimensions_and_others_are_projected() -> None:
    """PCA-ordered vectors are cut; others go through one fixed random projection that keeps lengths in the mean."""

    class Ordered:
        id, dim, ordered = "ordered", 4, True

        def encode(self, texts: Any) -> Any:
            return np.array([[0.6, 0.8, 0.0, 0.0]])

    x = context_features(Reading(text="a"), Ordered(), 2)
    assert x[1:3] == pytest.approx(np.array([0.6, 0.8]) * 0.75**0.5)
    twice = [context_features(Reading(text="some words"), Hashing(64), 24) for _ in range(2)]
    assert np.array_equal(*twice)
    other = context_features(Reading(text="some words"), Hashing(32), 24)
    assert not np.allclose(twice[0], other)


@settings(max_examples=20)
@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=5),
        lambda x: (
            st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "content", "a"]), x, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_any_json_is_read_without_an_error(content: Any) -> None:
    """Content of any JSON shape is read, counted and keyed."""
    request = ask(user(content), {"role": "assistant"}, {})
    read_prompt(request)
    needs(request)
    session_key(request)
    assert estimate_tokens(request.messages, {"tools": content}) >= 12


def test_estimate_tokens_counts_text_calls_tools_and_images() -> None:
    """Four bytes are a token, an image is 800 whatever its payload, tools and arguments count, Chinese counts more."""
    assert estimate_tokens([user("a" * 400)], {}) in range(100, 110)
    assert estimate_tokens([user([IMAGE])], {}) in range(800, 820)
    assert estimate_tokens([user("字" * 400)], {}) > 2.5 * estimate_tokens([user("a" * 400)], {})
    with_tools = {"tools": [{"function": {"name": "f", "description": "d" * 400}}]}
    assert estimate_tokens([user("a")], with_tools) > 100
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": "x" * 400}}]}
    assert estimate_tokens([call], {}) > 100


def test_needs(subtests: pytest.Subtests) -> None:
    """Required capabilities come from the parameters and the whole history."""
    for request_, expected in (
        (ask(user("a")), set()),
        (ask(user("a"), stream=True), {"streaming"}),
        (ask(user("a"), params={"tools": [{"type": "function"}]}), {"tools"}),
        (ask(user("a"), params={"tools": []}), set()),
        (ask(*agent_history(1)), {"tools"}),
        (ask(user("a"), params={"response_format": {"type": "json_schema"}}), {"json"}),
        (ask(user("a"), params={"response_format": {"type": "text"}}), set()),
        (ask(user([IMAGE])), {"images"}),
    ):
        with subtests.test(request_=request_, expected=expected):
            assert needs(request_) == expected


def test_a_session_is_one_conversation_of_one_user_of_one_tenant() -> None:
    """Later turns share the key of the first; another tenant, user, session or opening does not."""
    who = Identity(tenant="t", user="u")
    opening = ({"role": "system", "content": "S"}, user("first"))
    key, implicit = session_key(ask(*opening, identity=who))
    assert implicit
    later = ask(*opening, {"role": "assistant", "content": "x"}, user("second"), identity=who)
    assert session_key(later) == (key, True)
    assert is_followup(later)
    assert not is_followup(ask(*opening))
    others = [
        ask(*opening, identity=Identity(tenant="t2", user="u")),
        ask(*opening, identity=Identity(tenant="t", user="v")),
        ask({"role": "system", "content": "S2"}, user("first"), identity=who),
        ask({"role": "system", "content": "S"}, user("other"), identity=who),
        ask(*opening, identity=Identity(tenant="t", user="u", session="s")),
        ask(*opening, identity=Identity(tenant="t2", user="u", session="s")),
        ask(*opening, identity=Identity(tenant="t", user="v", session="s")),
    ]
    keys = [session_key(other) for other in others]
    assert len({key, *(k for k, _ in keys)}) == len(others) + 1
    assert [implicit for _, implicit in keys] == [True] * 4 + [False] * 3


def test_an_explicit_session_does_not_depend_on_the_messages() -> None:
    """A client that names its session may send any history."""
    who = Identity(user="u", session="s")
    assert session_key(ask(user("a"), identity=who)) == session_key(ask(user("b"), identity=who))


def test_reminders_do_not_split_a_session() -> None:
    """A framework's reminder that changes from turn to turn leaves the implicit key alone."""
    a = ask(user("<system-reminder>10:00</system-reminder>hello"))
    b = ask(user("hello<system-reminder>10:05</system-reminder>"))
    assert session_key(a) == session_key(b)
