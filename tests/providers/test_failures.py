"""What providers say of their failures: a history that is too long is known in every common wording."""

from __future__ import annotations

import pytest

from fitrouter.errors import ContextOverflow, ProviderError, ProviderRejected, ProviderUnavailable, RateLimited
from fitrouter.providers.failures import from_error_body, from_status

TOO_LONG = {
    "OpenAI": "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "OpenAI, code": '{"error": {"message": "no", "code": "context_length_exceeded"}}',
    "Azure": "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    "GitHub": "Request body too large for gpt-4o model. Max size: 8000 tokens.",
    "Anthropic": "prompt is too long: 210000 tokens > 200000 maximum",
    "Anthropic, sum": "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000",
    "Google": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "Vertex": "Unable to submit request because the input token count is 40000 but model only supports up to 32768.",
    "Bedrock": "Input is too long for requested model.",
    "Bedrock, Titan": "Too many input tokens. Max input tokens: 8192, request input token count: 9000",
    "Bedrock, Nova": "Input Tokens Exceeded: Number of input tokens exceeds maximum length.",
    "Mistral": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
    "Cohere": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292",
    "xAI": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Moonshot": "Invalid request: Your request exceeded model token limit: 8192",
    "z.ai": "Prompt exceeds max length",
    "DashScope": "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]",
    "Databricks": "Input length 9000 exceeds the maximum allowed 8192 of this endpoint",
    "Together": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193.",
    "Groq": "Please reduce the length of the messages or completion.",
    "Fireworks": "The prompt is too long: 9000, model maximum context length: 8192",
    "OpenRouter": "This endpoint's maximum context length is 32768 tokens.",
    "llama.cpp": "the request exceeds the available context size. try increasing it",
    "llama.cpp, type": '{"error": {"message": "no", "type": "exceed_context_size_error", "n_ctx": 8192}}',
    "LM Studio": "The number of tokens to keep from the initial prompt is greater than the context length.",
    "LM Studio, older": "Trying to keep the first 6153, but the model is loaded with context length of only 4096",
    "Ollama": "the input length exceeds the context length",
    "vLLM": "The decoder prompt (length 9000) is longer than the maximum model length of 4096.",
    "vLLM, sum": "'max_tokens' is too large: 5000. This model's maximum context length is 4096 tokens",
    "SGLang": "The input (9000 tokens) is longer than the model's context length (4096 tokens).",
    "SGLang, sum": "Requested token count exceeds the model's maximum context length of 4096 tokens.",
    "TGI": "Input validation error: `inputs` must have less than 1024 tokens. Given: 9000",
}
OTHERWISE = (
    "max_tokens must be <= 4096",
    "Range of max_tokens should be [1, 8192]",
    "Unknown parameter: 'context_windows'",
    "Invalid value for 'temperature': 3 is greater than the maximum of 2",
    "The image is too large: 9000 x 9000 pixels",
    "messages: too many messages, at most 2048 are allowed",
    "tools: the maximum number of tools is 128",
    "stop: array too long, at most 4",
)


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
