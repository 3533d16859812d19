"""Tokens pass from a provider to whoever asked, with what was cached and what was only thought."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kits.gateway import Echo, make_router, serving

from fitrouter.providers.usage import COUNTS as COUNTED
from fitrouter.providers.usage import consistent, read_usage, usage_body
from fitrouter.types import Call, Chunk, Usage

FULL = Usage(prompt_tokens=900, completion_tokens=80, cached_tokens=512, reasoning_tokens=64)
COUNTS = st.integers(0, 2**40)


class Thinker(Echo):
    """Has half of the prompt in its cache, and thinks."""

    async def complete(self, call: Call) -> Any:
        answer = await super().complete(call)
        return self._told(answer) if call.stream else msgspec.structs.replace(answer, usage=FULL)

    async def _told(self, chunks: Any) -> Any:
        async for chunk in chunks:
            yield chunk if chunk.usage is None else Chunk(delta=chunk.delta, usage=FULL)


@given(
    st.builds(Usage, **{name: COUNTS for name in COUNTED if name != "calls"}, estimated=st.booleans()).map(consistent)
)
def test_what_is_told_reads_back(usage: Usage) -> None:
    """Nothing is lost on the way over a gateway; as an object of a client library, or of texts, it reads the same."""
    assert read_usage(usage_body(usage)) == usage
    assert read_usage(in_texts(usage_body(usage))) == usage
    assert read_usage(msgspec.json.decode(msgspec.json.encode(usage_body(usage)))) == usage


def in_texts(body: Any) -> Any:
    if isinstance(body, dict):
        return {name: in_texts(each) for name, each in body.items()}
    return body if isinstance(body, bool) else str(body)


def test_no_usage_is_none() -> None:
    """What is not an object of counts is not taken for one of zeros: the tokens are estimated then."""
    assert [read_usage(odd) for odd in (None, "7", 7, 7.5, [7])] == [None] * 5


def test_what_is_no_number_counts_as_nothing(subtests: pytest.Subtests) -> None:
    """A provider that says nonsense costs no answer."""
    for odd in (
        None,
        "many",
        math.inf,
        math.nan,
        -3,
        -1e300,
        1e300,
        2**53 + 1,
        10**400,
        True,
        *("nan", "inf", "-1", "1_0", "0x10", " 1", "1e99", "\u0661\u0662", "9" * 17, "1" * 10**6),
        [1],
        {"a": "x"},
        {"x" * 65: 1},
    ):
        with subtests.test(odd=odd):
            said = {"prompt_tokens": odd, "completion_tokens": 2, "prompt_tokens_details": odd}
            assert read_usage(said) == Usage(completion_tokens=2)
            assert read_usage(odd) in (None, Usage())


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(prompt_tokens=9, cached_tokens=4)),
        ({"prompt_tokens_details": {"cached_tokens": 4}}, Usage(prompt_tokens=4, cached_tokens=4)),
        ({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}}, Usage(prompt_tokens=9, cached_tokens=4)),
        (
            {"output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 2}},
            Usage(completion_tokens=3, reasoning_tokens=2),
        ),
        ({"completion_tokens": 3, "reasoning_tokens": 2}, Usage(completion_tokens=3, reasoning_tokens=2)),
        *(
            ({"prompt_tokens": 9, name: 4}, Usage(prompt_tokens=9, cached_tokens=4))
            for name in (
                *("cached_tokens", "prompt_cache_hit_tokens", "cached_prompt_text_tokens", "cached_prompt_tokens"),
                *("prompt_cached_tokens", "cache_hit_tokens", "num_cached_tokens"),
            )
        ),
        ({"prompt_tokens": 9, "prompt_token_details": {"cached_tokens": 4}}, Usage(prompt_tokens=9, cached_tokens=4)),
        ({"cost": 0.0123}, Usage(cost_usd=0.0123)),
        ({"cost": 0}, Usage(cost_usd=0.0)),
        ({"cost": -1}, Usage()),
        ({"cost": math.nan}, Usage()),
        ({"cost": math.inf}, Usage()),
        ({"cost": 1e9}, Usage()),
        ({"cost": "0.0123"}, Usage(cost_usd=0.0123)),
        ({"cost": "1.23e-2"}, Usage(cost_usd=0.0123)),
        ({"cost": "nan"}, Usage()),
        ({"cost": "1e9"}, Usage()),
        ({"cost": {"total_cost": "0.0123"}}, Usage(cost_usd=0.0123)),
        ({"estimated_cost": "0.0123"}, Usage(cost_usd=0.0123)),
        ({"cost_details": {"upstream_inference_cost": math.inf}}, Usage()),
        ({"prompt_tokens": "9", "completion_tokens": "3.0"}, Usage(prompt_tokens=9, completion_tokens=3)),
        *(
            ({prompt: 9, answer: 3}, Usage(prompt_tokens=9, completion_tokens=3))
            for prompt, answer in (
                ("prompt_eval_count", "eval_count"),
                ("input_token_count", "generated_token_count"),
                ("inputTokenCount", "outputTokenCount"),
                ("promptTokens", "completionTokens"),
                ("prompt_token_count", "response_token_count"),
            )
        ),
        (
            {"iterations": [{"input_tokens": 9, "output_tokens": 3}, 7, None]},
            Usage(prompt_tokens=9, completion_tokens=3),
        ),
        ({"inputTokens": 9, "input_tokens": 0}, Usage(prompt_tokens=9)),
        ({"inputTokens": 0, "input_tokens": 9}, Usage(prompt_tokens=9)),
        ({"iterations": {"input_tokens": 9}}, Usage()),
        ({"iterations": [{"iterations": [{"input_tokens": 9}]}]}, Usage()),
        ({"cost": True}, Usage()),
        (
            {"completion_tokens_details": {"image_tokens": 7, "accepted_prediction_tokens": 3, "text_tokens": 0}},
            Usage(details={"completion_tokens_details": {"image_tokens": 7, "accepted_prediction_tokens": 3}}),
        ),
    ],
)
def test_every_providers_spelling_is_read(said: dict[str, Any], read: Usage) -> None:
    """Cached and thought tokens, further counts and a stated cost, which is a number of USD or nothing."""
    assert read_usage(said) == read


@pytest.mark.filterwarnings("ignore")  # the frameworks' own
@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
def test_adapters_tell_of_all_tokens(tmp_path: Path, far: bool, streamed: bool) -> None:
    """LangChain's details, CrewAI's account and litellm's usage are the provider's."""
    router = make_router(tmp_path, {"echo": Thinker()})
    if far:
        with serving(router) as url:
            _tells(url, streamed)
    else:
        _tells(router, streamed)


def _tells(target: Any, streamed: bool) -> None:
    litellm = pytest.importorskip("litellm")
    pytest.importorskip("crewai", reason="install the extra `crewai`")
    pytest.importorskip("langchain_core", reason="install the extra `langchain`")
    from fitrouter_integrations.client import connect
    from fitrouter_integrations.crewai import FitrouterLLM
    from fitrouter_integrations.langchain import ChatFitrouter
    from fitrouter_integrations.litellm import register

    hello = [{"role": "user", "content": "Hello"}]
    with connect(target):
        model = ChatFitrouter(router=target)
        if streamed:
            pieces = list(model.stream("Hello"))
            answer = sum(pieces[1:], pieces[0])
        else:
            answer = model.invoke("Hello")
        assert answer.usage_metadata == {
            "input_tokens": 900,
            "output_tokens": 80,
            "total_tokens": 980,
            "input_token_details": {"cache_read": 512},
            "output_token_details": {"reasoning": 64},
        }
        llm = FitrouterLLM(router=target, stream=streamed)
        llm.call("Hello")
        spent = llm.get_token_usage_summary()
        assert (spent.prompt_tokens, spent.cached_prompt_tokens, spent.reasoning_tokens) == (900, 512, 64)
        register(target)
        options = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
        found = litellm.completion(model="fitrouter/auto", messages=hello, **options)
        usage = [piece.usage for piece in found if getattr(piece, "usage", None)][-1] if streamed else found.usage
        assert usage.prompt_tokens_details.cached_tokens == 512
        assert usage.completion_tokens_details.reasoning_tokens == 64
