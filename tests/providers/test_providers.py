"""Providers without a network: recorded, simulated, faulty; secrets; and building them from a configuration."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitrouter.config import Config, parse_config
from fitrouter.errors import ConfigError, ProviderRejected, ProviderUnavailable
from fitrouter.providers import Fault, Faulty, LiteLLM, Persona, Recorded, Secret, Simulated, build_providers, topic_of
from fitrouter.providers import _sentences as bank
from fitrouter.providers._simulated import write
from fitrouter.types import Call, Completion

ROWS = [
    {
        "prompt_id": 1,
        "prompt": "Hi?",
        "model": "a",
        "response": "Hello 👩‍👩‍👧 from a, naïve e\u0301 " * 9,
        "source": "x",
    },
    {"prompt_id": 1, "prompt": "Hi?", "model": "b", "response": "b"},
    {"prompt_id": 2, "prompt": "你好", "model": "a", "response": ""},
]
PROMPTS = [
    f"Please {verb} the {noun}"
    for verb in ("explain", "fix", "write about", "compare")
    for noun in ("python function", "vaccine schedule", "tax contract", "probability equation", "blue elephants")
]


def ask(target: str, content: Any, stream: bool = False) -> Call:
    return Call(
        target=target,
        messages=({"role": "system", "content": "S"}, {"role": "user", "content": content}),
        stream=stream,
    )


async def answer(provider: Any, call: Call) -> str:
    """The text of an answer, whole or streamed; a stream must end with a finish reason and usage."""
    got = await provider.complete(call)
    if isinstance(got, Completion):
        assert got.message["role"] == "assistant"
        return str(got.message["content"])
    chunks = [chunk async for chunk in got]
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]
    assert len([chunk for chunk in chunks if chunk.usage]) == 1
    assert chunks[0].delta["role"] == "assistant"
    return "".join(chunk.delta.get("content", "") for chunk in chunks)


@pytest.fixture(params=["jsonl", "parquet"])
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The same rows in either format."""
    lines = tmp_path / "answers.jsonl"
    lines.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n")
    if request.param == "jsonl":
        return lines
    import duckdb

    with duckdb.connect(":memory:") as connection:
        connection.read_json(str(lines)).write_parquet(str(tmp_path / "answers.parquet"))
    return tmp_path / "answers.parquet"


# --- recorded ------------------------------------------------------------------------------------------------------


async def test_a_recorded_answer_is_served_word_for_word(recording: Path) -> None:
    """Whole or streamed, from either format, the text is the recorded one, whatever characters it has."""
    provider = Recorded(recording)
    for row in ROWS:
        for stream in (False, True):
            assert await answer(provider, ask(row["model"], row["prompt"], stream)) == row["response"]
    assert provider.models == ("a", "b")
    assert set(provider.prompts) == {"Hi?", "你好"}


async def test_streams_come_in_pieces_and_count_tokens(recording: Path) -> None:
    """A long answer comes in several pieces of several characters, and usage is a quarter of the characters."""
    got: Any = await Recorded(recording).complete(ask("a", "Hi?", stream=True))
    chunks = [chunk async for chunk in got]
    pieces = [chunk.delta["content"] for chunk in chunks if chunk.delta]
    assert len(pieces) > 3
    assert all(len(piece) > 1 for piece in pieces)
    assert chunks[-1].usage.completion_tokens == math.ceil(len(ROWS[0]["response"]) / 4)
    assert chunks[-1].usage.prompt_tokens == 1


async def test_parts_are_matched_by_their_text(recording: Path) -> None:
    """A prompt sent as a list of text parts is the same prompt; the last user turn counts."""
    assert await answer(Recorded(recording), ask("b", [{"type": "text", "text": "Hi?"}])) == "b"
    turns = (
        {"role": "user", "content": "other"},
        {"role": "user", "content": "Hi?"},
        {"role": "assistant", "content": "x"},
    )
    assert await answer(Recorded(recording), Call(target="b", messages=turns)) == "b"


async def test_what_was_not_recorded_is_explained(recording: Path) -> None:
    """An unknown prompt is the request's fault and says how many there are; an unknown model is unavailable."""
    provider = Recorded(recording)
    with pytest.raises(ProviderRejected, match=r"'Who\?'.*2 prompts"):
        await provider.complete(ask("a", "Who?"))
    with pytest.raises(ProviderUnavailable, match=r"'c'.*\['a', 'b'\]"):
        await provider.complete(ask("c", "Hi?"))


def test_bad_lines_are_reported_with_number_and_reason(tmp_path: Path) -> None:
    """Every bad line is counted, and named with its number and what is wrong; blank lines are none."""
    good = json.dumps(ROWS[0])
    file = tmp_path / "a.jsonl"
    lines = [
        good,
        "{",
        "[1]",
        '{"prompt": "p", "model": "m"}',
        '{"prompt": "p", "model": 3, "response": "r"}',
        "",
        good,
    ]
    file.write_bytes("\n".join(lines).encode() + b'\n{"prompt": "\xff"}')
    with pytest.raises(ConfigError) as caught:
        Recorded(file)
    message = str(caught.value)
    assert "5 invalid lines" in message
    for expected in (
        "line 2: invalid JSON",
        "line 3: not a JSON object",
        "line 4: 'response' is missing",
        "line 5: 'model' is 3",
        "line 8: invalid JSON",
    ):
        assert expected in message


def test_a_recording_that_cannot_be_read_is_explained(tmp_path: Path) -> None:
    """Missing files, other formats, missing columns and empty files are ConfigErrors that name the file."""
    import duckdb

    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "no.parquet").write_text("hello")
    (tmp_path / "other.jsonl").write_text('{"prompt": "p"}\n')
    with duckdb.connect(":memory:") as connection:
        connection.read_json(str(tmp_path / "other.jsonl")).write_parquet(str(tmp_path / "lacks.parquet"))
    for name, reason in [
        ("none.jsonl", "cannot be read"),
        ("none.parquet", "there is no file"),
        ("a.csv", "neither"),
        ("empty.jsonl", "no recorded answer"),
        ("no.parquet", "Parquet"),
        ("lacks.parquet", "lacks the columns"),
    ]:
        with pytest.raises(ConfigError, match=reason) as caught:
            Recorded(tmp_path / name)
        assert name in str(caught.value)


# --- simulated -----------------------------------------------------------------------------------------------------


async def no_sleep(_: float) -> None:
    """Pass the time at once."""
    await asyncio.sleep(0)


async def test_a_simulated_answer_is_fixed_by_seed_model_and_prompt() -> None:
    """The same three give the same text, whole or streamed; another of any gives another text."""
    personas = {"a": Persona(), "b": Persona()}
    one, other = Simulated(personas, 1, no_sleep), Simulated(personas, 2, no_sleep)
    first = await answer(one, ask("a", PROMPTS[0]))
    assert (
        first
        == await answer(one, ask("a", PROMPTS[0], stream=True))
        == await answer(Simulated(personas, 1, no_sleep), ask("a", PROMPTS[0]))
    )
    others = [
        await answer(other, ask("a", PROMPTS[0])),
        await answer(one, ask("b", PROMPTS[0])),
        await answer(one, ask("a", PROMPTS[1])),
    ]
    assert len({first, *others}) == 4


def count(*phrases: str) -> Callable[[str], float]:
    return lambda text: sum(text.casefold().count(phrase.casefold()) for phrase in phrases)


_FORMAL = ("advisable", "should therefore", "furthermore", "consequently", "subsequently", "nevertheless")
KNOBS: dict[str, tuple[Callable[[str], float], float, float]] = {
    "length": (lambda text: len(text.split()), 3.0, 12.0),
    "bullets": (lambda text: len(re.findall(r"^- ", text, re.MULTILINE)), 0.1, 0.9),
    "headings": (lambda text: len(re.findall(r"^## ", text, re.MULTILINE)), 0.1, 0.9),
    "hedging": (count(*bank.HEDGES), 0.1, 0.9),
    "warmth": (count(*bank.WARM_OPENINGS, *bank.WARM_CLOSINGS, "You've got this!"), 0.1, 0.9),
    "formality": (count(*_FORMAL), 0.1, 0.9),
    "code": (count("```python"), 0.1, 0.9),
    "numbers": (lambda text: len(re.findall(r"\d+", text)), 0.1, 0.9),
    "examples": (count("for example", "for instance", "an example is"), 0.1, 0.9),
    "boldness": (count(*bank.BOLD), 0.1, 0.9),
    "flattery": (count(*bank.PRAISE), 0.1, 0.9),
}


def test_a_knob_moves_its_feature_of_the_text(subtests: pytest.Subtests) -> None:
    """Turning a knob up never lessens its feature in any single text, and at least doubles it over twenty."""
    for knob in KNOBS:
        with subtests.test(knob=knob):
            measure, low, high = KNOBS[knob]
            texts = [
                [
                    write(msgspec.structs.replace(Persona(length=6.0), **{knob: value}), prompt, 0, "m")
                    for prompt in PROMPTS
                ]
                for value in (low, high)
            ]
            before, after = ([measure(text) for text in column] for column in texts)
            assert all(b <= a for b, a in zip(before, after, strict=True))
            assert sum(after) >= 2 * max(sum(before), 1)


def test_a_knob_leaves_the_other_features_alone(subtests: pytest.Subtests) -> None:
    """Turning one knob changes no other's feature (figures and hedges are counted outside list marks and code)."""
    for knob in sorted(set(KNOBS) - {"length", "formality", "code"}):
        with subtests.test(knob=knob):
            _, low, high = KNOBS[knob]
            texts = [
                [
                    write(msgspec.structs.replace(Persona(length=6.0), **{knob: value}), prompt, 0, "m")
                    for prompt in PROMPTS
                ]
                for value in (low, high)
            ]
            for other in set(KNOBS) - {knob, "length"}:
                measure = KNOBS[other][0]
                before, after = ([measure(text) for text in column] for column in texts)
                assert before == after, other


def test_every_knob_is_measured() -> None:
    """A style knob without a measure would be an undocumented one."""
    assert set(Persona.__struct_fields__) - {"skill", "latency_s", "failure"} == set(KNOBS)


def test_skill_speaks_of_the_subject() -> None:
    """A strong model's answers name the prompt's own subject more than a weak one's, in that topic only."""
    prompt = "Fix the bug in this python function about elephants"
    assert topic_of(prompt) == "code"
    strong, weak = (write(Persona(length=9.0, skill={"code": s, "general": 0.5}), prompt, 0, "m") for s in (0.95, 0.05))
    named = count("python", "function", "elephants")
    assert named(strong) > named(weak) + 3
    general = [write(Persona(skill={"code": s, "general": 0.5}), "Hello there", 0, "m") for s in (0.95, 0.05)]
    assert general[0] == general[1]
    assert Persona(skill={"math": 0.9}).strength("code") == 0.5


@given(st.text(max_size=60), st.integers(0, 5))
def test_any_prompt_is_answered(prompt: str, seed: int) -> None:
    """Any Unicode gets a text that is not empty and repeats no placeholder."""
    text = write(Persona(), prompt, seed, "m")
    assert text.strip()
    assert "{t}" not in text


async def test_latency_is_slept_and_scaled() -> None:
    """Answers sleep about latency_s in all, divided by the speed; streams two fifths of it before the first piece."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    models = {"a": Persona(latency_s=2.0)}
    await answer(Simulated(models, 0, sleep), ask("a", "hello"))
    assert 1.5 <= sum(slept) <= 2.5
    slept.clear()
    await answer(Simulated(models, 0, sleep, speed=10.0), ask("a", "hello", stream=True))
    assert 0.15 <= sum(slept) <= 0.25
    assert len(slept) > 5
    assert slept[0] == pytest.approx(0.4 * sum(slept))
    slept.clear()
    await answer(Simulated(models, 0, sleep, speed=math.inf), ask("a", "hello", stream=True))
    assert sum(slept) == 0


async def test_failures_come_at_their_rate() -> None:
    """A model fails as unavailable in its share of the calls, and replays alike from the same seed."""

    async def failures() -> list[int]:
        provider = Simulated({"a": Persona(failure=0.3)}, 5, no_sleep)
        failed = []
        for i in range(400):
            try:
                await provider.complete(ask("a", "hello"))
            except ProviderUnavailable:
                failed.append(i)
        return failed

    first = await failures()
    assert 80 <= len(first) <= 160  # four and a half standard deviations around 120
    assert first == await failures()


async def test_an_unknown_persona_is_unavailable() -> None:
    """The message lists the models that exist."""
    with pytest.raises(ProviderUnavailable, match=r"'z'.*\['a'\]"):
        await Simulated({"a": Persona()}, 0, no_sleep).complete(ask("z", "hello"))


def test_a_persona_that_cannot_be_is_explained(subtests: pytest.Subtests) -> None:
    """Unknown knobs, values out of range and wrong types are ConfigErrors that name the model."""
    for options in (
        {"a": {"style": {"bulets": 1}}},
        {"a": {"style": {"bullets": 2}}},
        {"a": {"failure": -1}},
        {"a": 3},
        {"a": {"style": 3}},
        {"seed": "x"},
        {"speed": 0},
    ):
        with subtests.test(options=options), pytest.raises(ConfigError, match=r"'a'|seed|speed"):
            Simulated.from_options(options)


# --- faulty --------------------------------------------------------------------------------------------------------


async def test_a_script_of_faults_is_played_in_order() -> None:
    """Each call takes the next fault; None and the end of the script leave calls alone."""
    boom = ProviderUnavailable("boom", 503)
    provider = Faulty(Simulated({"a": Persona()}, 0, no_sleep), [Fault(error=boom), None, Fault(error=boom, after=2)])
    with pytest.raises(ProviderUnavailable, match="boom"):
        await provider.complete(ask("a", "hello"))
    expected = await answer(provider, ask("a", "hello"))
    got: Any = await provider.complete(ask("a", "hello", stream=True))
    for _ in range(2):
        await anext(got)
    with pytest.raises(ProviderUnavailable, match="boom"):
        await anext(got)
    assert await answer(provider, ask("a", "hello", stream=True)) == expected
    assert len(provider.calls) == 4


@pytest.mark.parametrize("after", [0, 2])
async def test_a_hanging_call_can_be_cancelled(after: int) -> None:
    """A hang lasts until it is cancelled, whole or after chunks, and is counted as cancelled."""
    provider = Faulty(Simulated({"a": Persona()}, 0, no_sleep), itertools.repeat(Fault(hang=True, after=after)))

    async def consume() -> None:
        await answer(provider, ask("a", "hello", stream=True))

    task = asyncio.create_task(consume())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert provider.cancelled == 1


async def test_closing_a_stream_reaches_the_wrapped_provider() -> None:
    """Closing the outer stream closes the inner one, also before the first chunk."""
    for read in (0, 1):
        inner = Faulty(Simulated({"a": Persona()}, 0, no_sleep))
        got: Any = await Faulty(inner).complete(ask("a", "hello", stream=True))
        for _ in range(read):
            await anext(got)
        await got.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(got)
        assert inner.cancelled == read


async def test_a_delay_is_slept_then_the_call_continue_session() -> None:
    """A fault of delay alone only slows."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    provider = Faulty(Simulated({"a": Persona()}, 0, no_sleep), [Fault(delay_s=3.0)], sleep)
    assert await answer(provider, ask("a", "hello"))
    assert slept == [3.0]


# --- secrets and configuration ---------------------------------------------------------------------------------------


def test_a_secret_is_seen_nowhere() -> None:
    """repr, str, formatting and containers show dots; pickling is refused; reveal gives it out."""
    secret = Secret("sk-1")
    assert "sk-1" not in f"{secret} {secret!r} {[secret]} {secret!s:>20}"
    with pytest.raises(TypeError, match="environment variable"):
        pickle.dumps(secret)
    assert secret.reveal() == "sk-1"
    assert secret == Secret("sk-1") != Secret("sk-2")
    assert len({secret, Secret("sk-1")}) == 1
    assert Secret("").scrub(b"abc") == b"abc"


def config(**providers: dict[str, Any]) -> Config:
    first = next(iter(providers))
    return parse_config({"providers": providers, "models": [{"name": "m", "provider": first}]})


async def test_providers_are_built_by_kind(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of the configuration gives its provider; keys come from the environment and stay masked."""
    monkeypatch.setenv("KEY", " sk-1 ")
    built = build_providers(config(
        local={"kind": "openai_compatible", "base_url": "http://127.0.0.1:1/v1", "api_key_env": "KEY"},
        any={"kind": "litellm", "api_key_env": "KEY", "options": {"api_version": "1"}},
        tape={"kind": "recorded", "path": str(recording)},
        toy={"kind": "simulated", "options": {"m": {"style": {"bullets": 1.0}, "latency_s": 0}, "seed": 3}},
    ))  # fmt: skip
    assert [type(provider).__name__ for provider in built.values()] == [
        "OpenAICompatible",
        "LiteLLM",
        "Recorded",
        "Simulated",
    ]
    assert "sk-1" not in repr(built)
    assert "- " in await answer(built["toy"], ask("m", "hello"))
    for provider in built.values():
        await provider.aclose()


def test_a_provider_that_cannot_be_built_is_explained(subtests: pytest.Subtests) -> None:
    """The message names what is missing; for a key, the variable and the provider."""
    for settings, expected in (
        ({"kind": "litellm", "api_key_env": "NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE"),
        ({"kind": "openai_compatible"}, "base_url"),
        ({"kind": "openai_compatible", "base_url": "localhost"}, "base_url"),
        ({"kind": "recorded"}, "path"),
        ({"kind": "simulated", "options": {"m": {"x": 1}}}, "'m'"),
    ):
        with subtests.test(settings=settings, expected=expected):
            with pytest.raises(ConfigError, match=expected) as caught:
                build_providers(config(mine=settings))
            if "api_key_env" in settings:
                assert "'mine'" in str(caught.value)


async def test_litellm_refuses_transport_in_a_request() -> None:
    """What only the configuration may set is rejected before litellm is even imported."""
    for name in ("api_base", "api_key", "fallbacks", "num_retries", "mock_response", "extra_headers"):
        with pytest.raises(ProviderRejected, match=name):
            await LiteLLM().complete(Call(target="openai/m", messages=(), params={name: "x"}))


def test_importing_providers_and_encoders_is_light() -> None:
    """Neither package imports litellm, aiohttp, duckdb, torch, pydantic or sentence_transformers."""
    heavy = ("litellm", "aiohttp", "duckdb", "torch", "pydantic", "sentence_transformers", "sklearn")
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]; import fitrouter.providers; "
        "import fitrouter.context.encoders, fitrouter.context.features; "
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, *sys.path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
