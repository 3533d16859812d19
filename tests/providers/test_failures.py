"""What providers say of their failures: a history that is too long is known in every common wording."""

from __future__ import annotations

import pytest
from tests.kits.wordings import OTHERWISE, OVER_RATE, TOO_LONG

from fitrouter.errors import (
    ContextOverflow,
    ModelRefused,
    ProviderError,
    ProviderRejected,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
)
from fitrouter.providers.failures import from_error_body, from_status


@pytest.mark.parametrize("status", [400, 413, 422])
@pytest.mark.parametrize("message", TOO_LONG.values(), ids=TOO_LONG)
def test_a_history_that_is_too_long_is_known(message: str, status: int) -> None:
    """In the words of each vendor and server, so that a model with a larger window is tried."""
    assert isinstance(from_status(status, message), ContextOverflow)
    assert isinstance(from_status(status, "cut…", body=message), ContextOverflow)


@pytest.mark.parametrize("message", OTHERWISE)
def test_other_refusals_are_no_overflow(message: str) -> None:
    """A shorter history would not help there."""
    assert type(from_status(400, message)) is ProviderRejected


@pytest.mark.parametrize("status", [400, 413])
@pytest.mark.parametrize("message", OVER_RATE)
def test_a_rate_in_tokens_is_no_overflow(message: str, status: int) -> None:
    """It is the account's and the minute's: another provider may answer, a larger window of this one would not."""
    assert type(from_status(status, message)) is RateLimited


@pytest.mark.parametrize("status", [None, 400])
@pytest.mark.parametrize("message", TOO_LONG.values(), ids=TOO_LONG)
def test_it_is_known_with_a_200_too(message: str, status: int | None) -> None:
    """LM Studio, and streams that had begun, say it in a body with status 200; other errors there are outages."""
    error = {"message": message} if status is None else {"message": message, "code": status}
    assert type(from_error_body({"error": error}, "s")) is ContextOverflow
    assert type(from_error_body({"error": {"message": "overloaded"}}, "s")) is ProviderUnavailable


FAILED = {
    "llama.cpp, no room left": '{"error": {"message": "Context size has been exceeded.", "type": "server_error"}}',
    "llama.cpp, older": "the request exceeds the available context size. try increasing the context size",
    "llama.cpp, by type": '{"error": {"code": 500, "message": "try again", "type": "exceed_context_size_error"}}',
    "Ollama": '{"error":"the input length exceeds the context length"}',
    "litellm": "litellm.ContextWindowExceededError: AnthropicException - prompt is too long: 210000 tokens > 200000",
    "SGLang": "The input (9001 tokens) is longer than the model's context length (8192 tokens).",
    "vLLM": "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens",
    "a gateway": "Your input exceeds the 8,192-token context window",
    "LM Studio": "The model has crashed: context length of 4096 tokens has overflowed",
}
"""What servers say with a 500 of a conversation that is too long."""
BROKEN = {
    *("context deadline exceeded", "input stream exceeded the time limit", "upstream request too large for buffer"),
    *("failed to load the context window plugin: quota exceeded", "queue over capacity for this context length tier"),
    *("rate limit exceeded for this context window", "maximum number of tokens per minute exceeded"),
    *("CUDA out of memory", "too many tokens", "request too large"),
    *("x " * 500 + "Context size has been exceeded.", "prompt processing failed", "model context could not be created"),
}


@pytest.mark.parametrize("status", [500, 502])
@pytest.mark.parametrize("said", FAILED.values(), ids=FAILED)
def test_a_size_is_known_with_a_500_where_words_are_clear(status: int, said: str) -> None:
    """A server that fails at it says so; what may as well be an outage, or repeats a prompt, is an outage."""
    assert type(from_status(413, "")) is ContextOverflow
    assert type(from_status(status, "cut", body=said)) is ContextOverflow
    assert type(from_error_body({"error": {"message": said, "code": status}}, "s")) is ContextOverflow
    for words in BROKEN:
        assert type(from_status(status, words)) is ProviderUnavailable, words


@pytest.mark.parametrize("message", TOO_LONG.values(), ids=TOO_LONG)
def test_rates_come_before_lengths(message: str) -> None:
    """A 429 says when to try again, whatever its words."""
    found: ProviderError = from_status(429, message, 7.0)
    assert isinstance(found, RateLimited)
    assert found.retry_after_s == 7.0


def test_the_words_of_a_broken_server_say_nothing_of_the_account() -> None:
    """A 5xx may repeat a prompt: it is that model's failure, whatever it says of keys and quotas."""
    for words in ("invalid_api_key", "insufficient_quota"):
        assert type(from_status(500, words)) is ProviderUnavailable
        assert type(from_error_body({"error": {"message": words}}, "s")) is ProviderUnavailable
        assert type(from_status(400, words)) is not ProviderUnavailable


ACCOUNTS = {
    "Anthropic": (400, "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing"),
    "a disabled organization": (400, "This organization has been disabled."),
    "DashScope": (400, '{"error": {"code": "Arrearage", "message": "Access denied, please make sure your account …"}}'),
    "litellm": (400, '{"error": {"message": "Budget has been exceeded!", "type": "budget_exceeded"}}'),
    "OpenAI": (429, '{"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}'),
    "OpenAI, hard limit": (400, '{"error": {"code": "billing_hard_limit_reached"}}'),
    "DeepSeek": (402, "Insufficient Balance"),
    "Moonshot": (429, '{"error": {"type": "exceeded_current_quota_error"}}'),
    "z.ai": (429, '{"error": {"code": "1113", "message": "余额不足或无可用资源包,请充值。"}}'),
    "SiliconFlow": (403, "Sorry, your account balance is insufficient"),
    "xAI": (403, "Your team has either used all available credits or reached its monthly spending limit."),
    "OpenRouter": (403, "Key limit exceeded (total limit)."),
}


@pytest.mark.parametrize(("status", "message"), ACCOUNTS.values(), ids=ACCOUNTS)
def test_an_account_that_cannot_pay_is_known(status: int, message: str) -> None:
    """Whatever the status: the request is fine, and another provider may answer it."""
    assert type(from_status(status, "cut…", body=message)) is QuotaExhausted


ELSEWHERE = {
    "no model": (400, '{"error": {"code": "model_not_found", "message": "no"}}', ModelRefused),
    "no model, in words": (400, "The requested model 'x' does not exist", ModelRefused),
    "a model of the past": (400, '{"error": {"code": "model_decommissioned"}}', ModelRefused),
    "no deployment": (404, '{"error": {"code": "DeploymentNotFound"}}', ModelRefused),
    "a path of another API": (405, "method not allowed", ProviderUnavailable),
    "loading": (409, "conflict: the model is loading", ProviderUnavailable),
    "too early": (425, "", ProviderUnavailable),
    "misdirected": (421, "", ProviderUnavailable),
    "no capacity": (498, '{"error": {"type": "capacity_exceeded"}}', ProviderUnavailable),
    "a proxy's client": (499, "", ProviderUnavailable),
    "overloaded": (529, "Overloaded", ProviderUnavailable),
}


@pytest.mark.parametrize(("status", "message", "kind"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_another_model_may_mend_is_tried_there(status: int, message: str, kind: type[ProviderError]) -> None:
    """The state of a server or the name of a model, and no fault of the request."""
    assert type(from_status(status, message)) is kind
    assert type(from_status(400, "messages: the field does not exist")) is ProviderRejected
