"""What an answer costs is what its provider bills: a table of usages in the providers' spellings, over HTTP."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kits.fake_openai import FakeOpenAI, Reply, event, in_a_thread, reply, sse
from tests.kits.gateway import chat, client, serving, wait_for

from fitrouter.config import PricesConfig, parse_config
from fitrouter.providers.usage import COUNTS, consistent, read_usage
from fitrouter.router import Router
from fitrouter.serving.spending import charge, parts, spent
from fitrouter.stores.figures import MODEL, figures, traffic
from fitrouter.stores.warehouse import Warehouse
from fitrouter.types import Execution, ModelCard, Prices, Usage
from fitrouter_dashboards.metrics import Metrics

PRICES: dict[str, dict[str, float]] = {
    "plain": {"input": 3.0, "output": 15.0},
    "caching": {"input": 3.0, "output": 15.0, "cache_read": 0.3, "cache_write": 3.75, "cache_write_1h": 6.0},
    "short": {"input": 3.0, "output": 15.0, "cache_read": 0.3, "cache_write": 3.75},
    "audio": {"input": 2.5, "output": 10.0, "cache_read": 1.25, "audio_input": 40.0, "audio_output": 80.0},
    "fees": {"input": 1.0, "output": 1.0, "reasoning": 3.0, "request": 0.005},
    "free": {"input": 0.0, "output": 0.0},
    "blank": {},
}
"""Model → its prices."""


class Row(NamedTuple):
    """A usage as a provider words it, and what that provider bills."""

    model: str
    usage: dict[str, Any]
    billed: dict[str, int] = {}  # noqa: RUF012 - constants
    """Price → tokens; each is billed at the price of the model's card."""
    usd: float | None = None
    """The bill, where it does not follow from tokens; None with no tokens either: it is not known."""
    estimated: bool = False
    """Whether a part is billed at the price of another part, or of tokens that are not accounted for."""
    headers: dict[str, str] = {}  # noqa: RUF012

    @property
    def bill(self) -> float | None:
        if self.usd is not None or not self.billed:
            return self.usd
        prices = PRICES[self.model]
        return prices.get("request", 0.0) + sum(prices[name] * n * 1e-6 for name, n in self.billed.items())


def openai(
    prompt: int | str, completion: int | str, *, of_prompt: Any = None, of_answer: Any = None, **more: Any
) -> dict[str, Any]:
    """OpenAI's usage."""
    details = {"prompt_tokens_details": of_prompt, "completion_tokens_details": of_answer}
    total = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": int(prompt) + int(completion)}
    return total | {name: each for name, each in details.items() if each} | more


READ = {"input": 5_000, "cache_read": 95_000, "output": 500}
WROTE = {"input": 1_000, "cache_read": 2_000, "cache_write": 7_000, "output": 50}
LONG = {**WROTE, "cache_write": 4_000, "cache_write_1h": 3_000}
ANTHROPIC = {"input_tokens": 1_000, "cache_read_input_tokens": 2_000, "cache_creation_input_tokens": 7_000}
ROWS = [
    # The plain case, and every provider's words for the cache.
    Row("plain", openai(1_000, 200), {"input": 1_000, "output": 200}),
    Row("plain", {"prompt_tokens": 1_000, "completion_tokens": 200}, {"input": 1_000, "output": 200}),
    Row("plain", {"input_tokens": 1_000, "output_tokens": 200}, {"input": 1_000, "output": 200}),
    Row("caching", openai(100_000, 500, of_prompt={"cached_tokens": 95_000}), usd=0.051),
    Row("caching", openai(100_000, 500, prompt_cache_hit_tokens=95_000, prompt_cache_miss_tokens=5_000), READ),
    Row("caching", openai(100_000, 500, cached_tokens=95_000), READ),
    Row("caching", openai(100_000, 500, num_cached_tokens=95_000), READ),
    Row("caching", {"input_tokens": 5_000, "cache_read_input_tokens": 95_000, "output_tokens": 500}, READ),
    Row(
        "caching", {"input_tokens": 0, "cache_read_input_tokens": 9, "output_tokens": 5}, {"cache_read": 9, "output": 5}
    ),
    Row(
        "caching",
        {"input_tokens": 5_000, "cache_read_input_tokens": 1_000, "output_tokens": 500},
        {**READ, "cache_read": 1_000},
    ),
    Row(
        "caching",
        {"input_tokens": 5_000, "cache_read_input_tokens": 1_000, "output_tokens": 500, "total_tokens": 5_500},
        {**READ, "input": 4_000, "cache_read": 1_000},
    ),
    Row("caching", openai(100_000, 500, cache_read_input_tokens=95_000), READ),  # Anthropic through litellm
    Row("caching", openai(5_000, 500, cache_read_input_tokens=95_000), READ),  # the cache beside the prompt
    Row(
        "caching",
        {**openai(96_000, 500, cache_read_input_tokens=95_000), "total_tokens": 191_500},
        {**READ, "input": 96_000},
    ),
    Row(
        "caching",
        {"input_tokens": 100_000, "output_tokens": 500, "input_tokens_details": {"cached_tokens": 95_000}},
        READ,
    ),
    Row(
        "caching",
        {"inputTokens": 5_000, "outputTokens": 500, "cacheReadInputTokens": 95_000, "totalTokens": 100_500},
        READ,
    ),
    Row("caching", {"promptTokenCount": 100_000, "candidatesTokenCount": 500, "cachedContentTokenCount": 95_000}, READ),
    Row(
        "caching", {"input_tokens": 100_000, "output_tokens": 500, "input_token_details": {"cache_read": 95_000}}, READ
    ),
    Row("caching", {"billed_units": {"input_tokens": 100_000, "output_tokens": 500}, "cached_tokens": 95_000}, READ),
    Row("caching", openai("100000", "500", prompt_tokens_details={"cached_tokens": "95000"}), READ),  # numbers as texts
    Row("plain", {"tokens": {"input_tokens": 1_000, "output_tokens": 200}}, {"input": 1_000, "output": 200}),
    Row(
        "plain",
        {
            "billed_units": {"input_tokens": 1_000, "output_tokens": 200},
            "tokens": {"input_tokens": 1_500, "output_tokens": 210},
        },
        {"input": 1_000, "output": 200},
    ),
    Row("plain", {"input_token_count": 1_000, "generated_token_count": 200}, {"input": 1_000, "output": 200}),
    Row("plain", {"prompt_eval_count": 1_000, "eval_count": 200}, {"input": 1_000, "output": 200}),
    Row(
        "caching",
        {"prompt_token_count": 100_000, "candidates_token_count": 500, "cached_content_token_count": 95_000},
        READ,
    ),
    Row(
        "caching",
        {"inputTokens": 100_000, "outputTokens": 500, "totalTokens": 100_500, "cachedInputTokens": 95_000},
        READ,
    ),
    Row(
        "caching", {"inputTokens": 100_000, "outputTokens": 500, "inputTokenDetails": {"cacheReadTokens": 95_000}}, READ
    ),
    Row("caching", {"inputTokens": 5_000, "outputTokens": 500, "cacheReadInputTokenCount": 95_000}, READ),
    Row("caching", {"inputTokenCount": 5_000, "outputTokenCount": 500, "cacheReadInputTokenCount": 95_000}, READ),
    Row(
        "caching",
        {
            "total_input_tokens": 100_000,
            "total_output_tokens": 200,
            "total_thought_tokens": 300,
            "total_cached_tokens": 95_000,
            "total_tokens": 100_500,
        },
        READ,
    ),
    Row("caching", openai(10_000, 50, of_prompt={"cached_tokens": 2_000, "caching_tokens": 7_000}), WROTE),
    Row(
        "plain", {"PromptTokens": 1_000, "CompletionTokens": 200, "TotalTokens": 1_200}, {"input": 1_000, "output": 200}
    ),
    Row("plain", {"inputTextTokens": "1000", "completionTokens": "200"}, {"input": 1_000, "output": 200}),
    # What Anthropic's rounds took together: the whole is of the last one.
    Row(
        "caching",
        {
            "input_tokens": 3_000,
            "output_tokens": 100,
            "iterations": [
                {"type": "compaction", "input_tokens": 2_000, "cache_read_input_tokens": 95_000, "output_tokens": 400},
                {"type": "message", "input_tokens": 3_000, "output_tokens": 100},
            ],
        },
        READ,
    ),
    # Writing to it, for five minutes and for an hour.
    Row("caching", {**ANTHROPIC, "output_tokens": 50}, WROTE),
    Row("caching", {**ANTHROPIC, "output_tokens": 50, "cache_creation": {"ephemeral_5m_input_tokens": 7_000}}, WROTE),
    Row(
        "caching",
        {
            **ANTHROPIC,
            "output_tokens": 50,
            "cache_creation": {"ephemeral_5m_input_tokens": 4_000, "ephemeral_1h_input_tokens": 3_000},
        },
        LONG,
    ),
    Row("caching", openai(10_000, 50, of_prompt={"cached_tokens": 2_000, "cache_write_tokens": 7_000}), WROTE),
    Row(
        "caching",
        openai(
            10_000,
            50,
            of_prompt={
                "cached_tokens": 2_000,
                "cache_creation_tokens": 7_000,
                "cache_creation_token_details": {
                    "ephemeral_5m_input_tokens": 4_000,
                    "ephemeral_1h_input_tokens": 3_000,
                },
            },
        ),
        LONG,
    ),
    Row(
        "caching",
        {
            "inputTokens": 1_000,
            "outputTokens": 50,
            "cacheReadInputTokens": 2_000,
            "cacheWriteInputTokens": 7_000,
            "cacheDetails": [{"ttl": "5m", "inputTokens": 4_000}, {"ttl": "1h", "inputTokens": 3_000}],
        },
        LONG,
    ),
    # Hidden reasoning: within the answer, beside it, and in the total alone.
    Row("plain", openai(100, 900, of_answer={"reasoning_tokens": 800}), {"input": 100, "output": 900}),
    Row("fees", openai(100, 900, of_answer={"reasoning_tokens": 800}), {"input": 100, "output": 100, "reasoning": 800}),
    Row("fees", openai(100, 900, reasoning_tokens=800), {"input": 100, "output": 100, "reasoning": 800}),
    *(
        Row(
            "fees",
            {"promptTokens": 100, "completionTokens": 900, **more},
            {"input": 100, "output": 100, "reasoning": 800},
        )
        for more in (
            {"reasoningTokens": 800},
            {"completionTokensDetails": {"thinkingTokens": 800}},
            {"completionTokensDetails": {"reasoningTokens": "800"}},
            {"outputTokenDetails": {"textTokens": 100, "reasoningTokens": 800}},
        )
    ),
    Row(
        "fees",
        {**openai(100, 100, of_answer={"reasoning_tokens": 60}), "total_tokens": 260},
        {"input": 100, "output": 100, "reasoning": 60},
    ),
    Row("fees", openai(100, 100, of_answer={"reasoning_tokens": 800}), {"input": 100, "output": 100, "reasoning": 800}),
    Row(
        "fees",
        {**openai(21, 0, of_answer={"reasoning_tokens": 60}), "total_tokens": 81},
        {"input": 21, "reasoning": 60},
    ),
    Row(
        "fees",
        {"promptTokenCount": 20, "candidatesTokenCount": 198, "thoughtsTokenCount": 105, "totalTokenCount": 323},
        {"input": 20, "output": 198, "reasoning": 105},
    ),
    Row(
        "fees", {**openai(20, 198), "total_tokens": 623}, {"input": 20, "output": 198, "reasoning": 405}, estimated=True
    ),
    # Sound, in and out.
    Row(
        "audio",
        openai(1_000, 500, of_prompt={"audio_tokens": 600, "cached_tokens": 100}, of_answer={"audio_tokens": 400}),
        {"input": 300, "cache_read": 100, "audio_input": 600, "output": 100, "audio_output": 400},
    ),
    Row(
        "audio",
        {
            "promptTokenCount": 1_000,
            "candidatesTokenCount": 50,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 400}, {"modality": "AUDIO", "tokenCount": 600}],
        },
        {"input": 400, "audio_input": 600, "output": 50},
    ),
    Row(
        "audio",
        {
            "promptTokenCount": 1_000,
            "responseTokenCount": 50,
            "thoughtsTokenCount": 30,
            "cachedContentTokenCount": 150,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 400}, {"modality": "AUDIO", "tokenCount": 600}],
            "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 100}, {"modality": "TEXT", "tokenCount": 50}],
            "responseTokensDetails": [{"modality": "AUDIO", "tokenCount": 40}],
        },
        {"input": 350, "cache_read": 150, "audio_input": 500, "output": 40, "audio_output": 40},
    ),
    Row(
        "audio",
        {
            "total_input_tokens": 1_000,
            "total_output_tokens": 50,
            "total_tool_use_tokens": 20,
            "input_tokens_by_modality": [{"modality": "text", "tokens": 400}, {"modality": "audio", "tokens": 600}],
            "output_tokens_by_modality": [{"modality": "audio", "tokens": 40}],
        },
        {"input": 420, "audio_input": 600, "output": 10, "audio_output": 40},
    ),
    Row(
        "audio",
        {
            "prompt_token_count": 1_000,
            "response_token_count": 50,
            "prompt_tokens_details": [{"modality": "AUDIO", "token_count": 600}],
            "response_tokens_details": [{"modality": "AUDIO", "token_count": 40}],
        },
        {"input": 400, "audio_input": 600, "output": 10, "audio_output": 40},
    ),
    Row(
        "audio",
        {
            "input_tokens": 1_000,
            "output_tokens": 500,
            "input_token_details": {
                "audio_tokens": 600,
                "text_tokens": 400,
                "cached_tokens": 100,
                "cached_tokens_details": {"audio_tokens": 40, "text_tokens": 60},
            },
            "output_token_details": {"audio_tokens": 400, "text_tokens": 100},
        },
        {"input": 340, "cache_read": 100, "audio_input": 560, "output": 100, "audio_output": 400},
    ),
    # Fees, and models that cost nothing.
    Row("fees", openai(10, 10), {"input": 10, "output": 10}),
    Row("free", openai(100_000, 500, of_prompt={"cached_tokens": 95_000}), usd=0.0),
    # Parts without a price of their own: at that of the whole, and it is said.
    Row("plain", openai(100_000, 500, of_prompt={"cached_tokens": 95_000}), usd=0.3075, estimated=True),
    Row(
        "short",
        {**ANTHROPIC, "output_tokens": 50, "cache_creation": {"ephemeral_1h_input_tokens": 7_000}},
        WROTE,
        estimated=True,
    ),
    Row("plain", openai(1_000, 500, of_answer={"audio_tokens": 400}), {"input": 1_000, "output": 500}, estimated=True),
    # What the provider states, in all its ways.
    Row("plain", openai(1_000, 200, cost=0.0042), usd=0.0042),
    Row("plain", openai(1_000, 200, cost=0), usd=0.0),
    Row(
        "plain", openai(1_000, 200, cost=0.001, is_byok=True, cost_details={"upstream_inference_cost": 0.02}), usd=0.021
    ),
    Row(
        "plain", openai(1_000, 200, cost=0.02, is_byok=False, cost_details={"upstream_inference_cost": 0.02}), usd=0.02
    ),
    Row("plain", openai(1_000, 200, cost="0.0042"), usd=0.0042),
    Row("plain", openai(1_000, 200, total_cost=0.0062), usd=0.0062),
    Row("plain", openai(1_000, 200, cost_details={"upstream_inference_cost": "0.02"}), usd=0.02),
    Row("plain", openai(1_000, 200, cost=0, cost_details={"upstream_inference_cost": 0.02}), usd=0.02),
    Row("plain", openai(1_000, 200, cost_in_usd_ticks=37_756_000), usd=0.0037756),
    Row("plain", openai(1_000, 200, cost={"request_cost": 0.005, "total_cost": 0.0062}), usd=0.0062),
    Row("plain", openai(1_000, 200, estimated_cost=0.000321), usd=0.000321),
    Row("plain", openai(1_000, 200, cost=0.8), usd=0.8),  # with searches that are no tokens
    Row("plain", openai(1_000, 200, cost=9_000.0), {"input": 1_000, "output": 200}),  # which nobody believes
    Row("plain", openai(1_000, 200, cost=-1), {"input": 1_000, "output": 200}),
    Row("blank", openai(1_000, 200, cost=0.0042), usd=0.0042),
    Row("blank", openai(1_000, 200)),
]
HEADED = [
    Row("plain", openai(1_000, 200), usd=0.0123, headers={"x_litellm_response_cost": "0.0123"}),
    Row("blank", openai(1_000, 200), usd=0.0123, headers={"x_litellm_response_cost": "1.23e-2"}),
    *(
        Row("plain", openai(1_000, 200), {"input": 1_000, "output": 200}, headers={"x_litellm_response_cost": odd})
        for odd in ("0.0", "None", "nan", "-1", "many")
    ),
]
"""Bills in a header, which whole answers have."""


def whole(row: Row) -> Reply:
    message = {"role": "assistant", "content": "Hello"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return reply(200, {"id": "1", "object": "chat.completion", "choices": choices, "usage": row.usage}, **row.headers)


def streamed(row: Row, place: int) -> Reply:
    """As a stream; the usage at the end, in the last choice (Moonshot), or in an object of its own (Groq)."""
    said = {"choices": [{"index": 0, "delta": {"content": "Hello"}}], "usage": None}
    last: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    end: list[dict[str, Any]] = [last]
    if place == 1:
        last["choices"][0]["usage"] = row.usage
    elif place == 2:
        last["x_groq"] = {"usage": row.usage}
    else:
        end.append({"choices": [], "usage": row.usage})
    return sse(*(event(each) for each in (said, *end)), event(b"[DONE]"))


def script() -> Iterator[Reply]:
    for number, row in enumerate(ROWS):
        yield whole(row)
        yield streamed(row, number % 3)
    yield from map(whole, HEADED)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with in_a_thread(FakeOpenAI(script())) as upstream:
        settings = parse_config(
            {
                "data": str(tmp_path_factory.mktemp("bills")),
                "providers": {"up": {"kind": "openai_compatible", "base_url": upstream.base_url}},
                "models": [{"name": name, "provider": "up", "prices": prices} for name, prices in PRICES.items()],
                "server": {"port": 0},
            }
        )
        router = Router.from_config(settings)
        with serving(router, settings) as url, client(url) as http:
            yield http, router


def test_costs_are_the_bill(place: Any, subtests: pytest.Subtests) -> None:
    """Whole and streamed, to 1e-9 USD; what is not known is null, and what is taken for something else is marked."""
    http, router = place
    assert len(ROWS) >= 40
    for row in ROWS:
        for stream in (False, True):
            with subtests.test(usage=row.usage, stream=stream):
                told = ask(http, row, stream)
                assert_is(told, row)
                found = wait_for(lambda told=told: ends(router, told["decision_id"]))
                assert (found[0].known_usd, found[0].estimated) == (told["cost_usd"], row.estimated)
    for row in HEADED:
        with subtests.test(headers=row.headers):
            assert_is(ask(http, row, stream=False), row)


NO_ANSWERS: dict[str, tuple[Reply, bool]] = {
    "no choices": (reply(200, {"choices": [], "usage": openai(1_000, 200)}), False),
    "a choice without a word or an end": (
        reply(200, {"choices": [{"index": 0, "message": {"role": "assistant"}}], "usage": openai(1_000, 200)}),
        False,
    ),
    "only a usage": (reply(200, {"usageMetadata": {"promptTokenCount": 1_000, "candidatesTokenCount": 200}}), False),
    "an error": (reply(200, {"error": {"message": "overloaded", "code": 503}, "usage": openai(1_000, 200)}), False),
    "a stated cost": (reply(200, {"choices": [], "usage": {"cost": 0.006}}), False),
    "a stream of a usage": (sse(event({"choices": [], "usage": openai(1_000, 200)}), event(b"[DONE]")), True),
    "a stream of an error": (
        sse(event({"choices": [], "usage": openai(1_000, 200)}), event({"error": {"message": "overloaded"}})),
        True,
    ),
}


@pytest.mark.parametrize(("answer", "stream"), NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_what_is_billed_without_an_answer_is_booked(tmp_path: Path, answer: Reply, stream: bool) -> None:
    """Each call that says what it used costs that, although its request fails."""
    with in_a_thread(FakeOpenAI(itertools.repeat(answer))) as upstream:
        settings = parse_config(
            {
                "data": str(tmp_path),
                "providers": {"up": {"kind": "openai_compatible", "base_url": upstream.base_url}},
                "models": [{"name": "plain", "provider": "up", "prices": PRICES["plain"]}],
                "server": {"port": 0},
            }
        )
        router = Router.from_config(settings)
        with serving(router, settings) as url, client(url) as http:
            failed = http.post("/v1/chat/completions", json=chat(model="plain", stream=stream))
            (found,) = wait_for(
                lambda: [e.event for e in router._journal.tail(0, 100) if isinstance(e.event, Execution)]
            )
    assert failed.status_code >= 500, failed.text
    assert found.cost_usd == pytest.approx(0.006 * len(upstream.seen), abs=1e-9)
    assert found.known_usd is not None


def ends(router: Router, decision_id: str) -> list[Execution]:
    return [row.event for row in router._journal.of(decision_id) if isinstance(row.event, Execution)]


def ask(http: Any, row: Row, stream: bool) -> Any:
    body = chat(model=row.model, stream=stream)
    if not stream:
        reply = http.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()["fitrouter"]
    body["stream_options"] = {"include_usage": True}
    text = http.post("/v1/chat/completions", json=body).text
    (last,) = [each for each in text.split("\n\n") if '"choices":[]' in each]
    return json.loads(last.removeprefix("data: "))["fitrouter"]


def assert_is(told: Any, row: Row) -> None:
    assert told["cost_usd"] == (None if row.bill is None else pytest.approx(row.bill, abs=1e-9))


TURN = openai(
    100_000, 500, of_prompt={"cached_tokens": 95_000, "cache_write_tokens": 1_000}, of_answer={"reasoning_tokens": 300}
)
TOLD = {"prompt_tokens": 200_000, "completion_tokens": 1_000}
PARTS = {"cached_tokens": 190_000, "written_tokens": 2_000, "reasoning_tokens": 600}
SAID = "200,000 in, 1,000 out (190,000 cached, 2,000 written, 600 reasoning)"


def test_parts_are_shown_wherever_tokens_are(tmp_path: Path) -> None:
    """Console, metrics, reports and the decision itself; what is taken for something else is counted as estimated."""
    turn = Row("plain", TURN)
    with in_a_thread(FakeOpenAI(map(whole, (turn, turn)))) as upstream:
        settings = parse_config(
            {
                "data": str(tmp_path),
                "providers": {"up": {"kind": "openai_compatible", "base_url": upstream.base_url}},
                "models": [{"name": "plain", "provider": "up", "prices": PRICES["plain"]}],
                "server": {"port": 0},
            }
        )
        router, metrics = Router.from_config(settings), Metrics()
        with serving(router, settings, metrics) as url, client(url) as http:
            ids = [ask(http, turn, stream=False)["decision_id"] for _ in range(2)]
            now = wait_for(lambda: shown(http))
            explained = http.get(f"/v1/decisions/{ids[0]}").json()["execution"]
            counted = http.get("/metrics").text
    assert {name: now[name] for name in (TOLD | PARTS)} == TOLD | PARTS
    assert now["estimated"] == 2
    assert {name: 2 * explained[name] for name in (TOLD | PARTS)} == TOLD | PARTS
    assert explained["estimated"] is True
    for part, n in PARTS.items():
        line = f'fitrouter_token_parts_total{{model="plain",part="{part.removesuffix("_tokens")}"}} {float(n)}'
        assert line in counted
    assert 'fitrouter_estimated_total{model="plain"} 2.0' in counted
    ((_, told),) = figures(Warehouse(tmp_path / "fitrouter.duckdb").queries, traffic(by=MODEL))[0].by.items()
    assert told.tokens == SAID


def shown(http: Any) -> Any:
    """The console's totals, once both requests are in the warehouse."""
    reply = http.get("/console/api/now?window=all")
    found = reply.json() if reply.status_code == 200 else {}
    return found.get("totals") if (found.get("totals") or {}).get("requests") == 2 else None


def named(value: Any) -> Iterator[str]:
    """The names of counts, costs and objects of them."""
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from named(each)
    yield from value if isinstance(value, dict) else ()


# --- all usages ------------------------------------------------------------------------------------------------------

TOKENS = st.integers(0, 2**31)
USAGES = st.builds(Usage, **dict.fromkeys((name for name in COUNTS if name != "calls"), TOKENS)).map(consistent)
USD = st.floats(0.0, 1_000.0)
PRICED = tuple(name for name in PricesConfig.model_fields if not name.startswith("long_"))
ALL_PRICES = st.builds(
    Prices,
    **{name: USD if name in {"input", "output", "request"} else st.none() | USD for name in PRICED},
)
NAMES = sorted(set(named([row.usage for row in ROWS])) | {"total_tokens"})
NUMBERS = st.one_of(st.integers(-5, 2**60), st.floats())


@given(USAGES, ALL_PRICES)
def test_parts_of_a_bill_add_up(usage: Usage, prices: Prices) -> None:
    """No part is negative, together they are the tokens, and the bill is what each costs by itself."""
    found = parts(usage)
    assert min(found.values()) >= 0
    assert sum(found.values()) == usage.prompt_tokens + usage.completion_tokens
    alone = [spent(prices, alone_of(part, tokens)) - prices.request for part, tokens in found.items()]
    assert spent(prices, usage) - prices.request == pytest.approx(sum(alone), rel=1e-9, abs=1e-6)


@given(USAGES, ALL_PRICES, st.integers(0, 2**31), USD, USD)
def test_a_long_prompt_is_billed_at_its_own_prices(
    usage: Usage, prices: Prices, above: int, prompt: float, answer: float
) -> None:
    """All of a call whose prompt is longer, in proportion; calls up to the length, and sums of such calls, as usual."""
    long = msgspec.structs.replace(prices, long_above=above, long_input=prompt, long_output=answer)
    shown = spent(long, usage)
    if usage.prompt_tokens <= above:
        assert shown == spent(prices, usage)
    else:
        own = {"input": (prices.input, prompt), "output": (prices.output, answer)}
        usd = prices.request
        for part, tokens in parts(usage).items():
            usual, dear = own["output" if part in {"output", "reasoning", "audio_output"} else "input"]
            price = prices.of(part)
            usd += tokens / 1e6 * (dear if price == usual else price * dear / usual if usual > 1e-9 else price)
        assert shown == pytest.approx(usd, rel=1e-9)
    twice = Usage(**{name: 2 * getattr(usage, name) for name in COUNTS})
    assert spent(long, twice) == pytest.approx(2.0 * shown, rel=1e-9)


def alone_of(part: str, tokens: int) -> Usage:
    """Usage of tokens of one part."""
    of_prompt, of_answer = {"prompt_tokens": tokens}, {"completion_tokens": tokens}
    return Usage(
        **{
            "input": of_prompt,
            "cache_read": {**of_prompt, "cached_tokens": tokens},
            "cache_write": {**of_prompt, "written_tokens": tokens},
            "cache_write_1h": {**of_prompt, "written_tokens": tokens, "written_1h_tokens": tokens},
            "audio_input": {**of_prompt, "audio_prompt_tokens": tokens},
            "output": of_answer,
            "reasoning": {**of_answer, "reasoning_tokens": tokens},
            "audio_output": {**of_answer, "audio_completion_tokens": tokens},
        }[part]  # type: ignore[arg-type]
    )


@given(USAGES, ALL_PRICES, st.sampled_from(["prompt_tokens", "completion_tokens"]), st.integers(0, 2**20))
def test_more_tokens_never_cost_less(usage: Usage, prices: Prices, name: str, more: int) -> None:
    """Nor does a dearer price lower a bill, and no bill is below nothing."""
    longer = Usage(**{each: getattr(usage, each) for each in COUNTS} | {name: getattr(usage, name) + more})
    assert 0.0 <= spent(prices, usage) <= spent(prices, longer) * (1 + 1e-12)
    dearer = Prices(**{each: 2.0 * (getattr(prices, each) or 0.0) for each in PRICED})
    known = Prices(**{each: getattr(prices, each) or 0.0 for each in PRICED})
    assert spent(dearer, usage) == pytest.approx(2.0 * spent(known, usage))


@given(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.one_of(
            *(NUMBERS, NUMBERS.map(str), st.text(max_size=3), st.dictionaries(st.sampled_from(NAMES), NUMBERS)),
            st.lists(st.dictionaries(st.sampled_from(NAMES), NUMBERS | NUMBERS.map(str))),
        ),
    ),
    ALL_PRICES,
)
def test_whatever_is_reported_has_a_sound_bill(said: dict[str, Any], prices: Prices) -> None:
    """Odd and contradictory counts, in any mixture of spellings, give parts within their whole and a finite cost."""
    usage = read_usage(said)
    assert usage is not None
    assert usage == consistent(usage)
    assert min(parts(usage).values()) >= 0
    assert 0.0 <= charge(ModelCard(name="a", provider="p", prices=prices), usage).usd < float("inf")
