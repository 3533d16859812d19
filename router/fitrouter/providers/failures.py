"""Translation of upstream failures (HTTP statuses, error bodies) into provider errors."""

from __future__ import annotations

import datetime
import email.utils
import math
import re
from collections.abc import Mapping
from typing import Any

from fitrouter.errors import (
    ContextOverflow,
    KeyRefused,
    ModelRefused,
    ProviderError,
    ProviderRejected,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
    masked,
)

_OVER_BUDGET = re.compile(
    r"insufficient_quota|budget_exceeded|billing_hard_limit_reached|quota_exceeded|exceeded_current_quota|arrearage"
    r"|credit balance is too low|insufficient (?:account )?balance|balance is insufficient|余额不足"
    r"|used all available credits|organization has been disabled|Key limit exceeded",
    re.IGNORECASE,
)
"""What is said of an account that cannot pay, whatever the status: Anthropic's and DashScope's is 400, xAI's 403."""
_NO_MODEL = re.compile(
    r"model_not_found|model_decommissioned|model_not_available|\bmodel\b.{1,100} does not exist", re.IGNORECASE
)
"""What is said with a 400 of a model that is not there; another one may answer."""
_TOO_LONG = re.compile(
    "|".join(
        (
            r"context_length_exceeded|exceed_context_size|tokens_limit_reached|model_max_prompt_tokens_exceeded",
            r"context[ _-]?window(?!s)|maximum context length|model'?s context length|available context size",
            r"(?:the|of the|reached) context length|exceeds? (?:the )?(?:maximum )?context (?:length|limit|size)",
            r"(?:exceeds?|exceeded|than) (?:the )?(?:model'?s? )?(?:maximum|max) (?:model|prompt|input) length",
            r"\b(?:prompt|input|tokens?)\b[^.]{0,60} exceed(?:s|ed)? (?:the )?(?:maximum|max) length|max_model_len",
            r"(?:prompt|input)(?: tokens?)?(?: length)? (?:is |are )?too long|prompt (?:is )?too large|prompt 超长",
            r"too long to fit into the model|maximum (?:prompt|input) length is|too many input tokens",
            r"input tokens? (?:exceed(?:ed)?|\d+ cannot exceed)|(?:input|prompt) token count",
            r"range of input length|exceeded model token limit|message size \d+ exceeds|exceed max message tokens",
            r"exceeds? the (?:maximum|max) (?:number of )?(?:input )?tokens|n_keep \(\d+\) >= n_ctx",
            r"reduce the length of the (?:messages|prompt|input)|content'?: string too long",
            r"too many tokens: |loaded with context length|number of tokens in the prompt cannot exceed",
            r"`?inputs`? (?:tokens \+ `?max_new_tokens`? )?must (?:be <=|have less than)",
            r"input prompt \+ max_tokens|input length .{1,40}exceeds?|request body too large for .{1,60} tokens",
            r"\b(?<!stop )(?:prompt|input|context|conversation|sequence|query)s?(?! image)(?: [\w()+/'.-]{1,30}){0,6} "
            r"(?:exceed(?:s|ed)?|too long|too large|longer than|greater than|overflow)\b",
            r"\btokens?(?: (?:count|limit|length|\(?\d+\)?))? (?:exceed(?:s|ed)?|too large)\b|messages are too long",
            r"(?:max|maximum)[_ ](?:seq|sequence|prompt|input)[_ ](?:len|length|tokens)\b.{0,60}(?:exceed|less than)",
            r"(?:exceed\w*|greater|longer|less) .{0,40}\b(?:max|maximum)[_ ](?:seq|sequence)[_ ](?:len|length)\b",
            r"model'?s? (?:max(?:imum)? )?context\b|max_tokens must be at least 1, got -\d|max_num_tokens",
            r"(?:reduce|shorten) (?:the length of )?(?:your|the) (?:prompt|input)|too many tokens(?! per)",
            r"context overflow|tokens in prompt \+|max tokens of \d+ exceeded",
            r"can only handle \d+ tokens|requires \d+ tokens but|input_length_exceeded|expected maxLength: \d+, actual",
            r"(?:输入|上下文|tokens? ?数量|prompt).{0,12}(?:超|过长)|超.{0,6}(?:上下文|输入长度)",
            r"request_too_large|request (?:payload size )?exceeds the (?:maximum size|limit: )",
            r"(?:input|prompt|context|history)_too_(?:long|large)|history (?:is )?too long|maximum length \d{6}",
            r"configured context size|\bmax(?:imum)? (?:allowed )?context\b|max(?:imum)? model len\b",
            r"(?:number of|input|prompt|request(?:ed)?) tokens?\b.{0,60} exceeds? (?:the )?model'?s? (?:token )?limit",
            r"(?:messages|request|prompt)s? exceeds? the (?:model'?s? )?(?:token limit|context)\b",
            r"messages (?:resulted in \d|token length)|request (?:is |was )?too large(?: for model)?: \d+ tok",
            r"requested (?:about )?\d+ tokens,? but\b(?!.{0,60} (?:completion|output))",
            r"supports (?:at most|up to|only) \d+ tokens|only supports \d+ tokens",
            r"\+ (?:prompt|input) tokens|(?:prompt|input) and (?:completion|output) (?:tokens|length)",
            r"\b(?:prompt|input|messages|tokens)\b.{0,40} (?:does not|doesn.?t|do not|don.?t|cannot|can.?t) fit",
            r"(?:tokens?|length|context)\b.{0,30} over the (?:maximum|limit)|over the maximum (?:input|prompt|context)",
            r"longer than (?:the )?(?:maximum|limit) (?:of )?\d+ tokens|(?<!\w)tokens? ?超",
            r"(?:input|prompt) tokens must be no more than|tokens in request more than|maximum allowed input length",
            r"\btokens\b.{0,60} over the model'?s? limit",
        )
    ),
    re.IGNORECASE,
)
"""What vendors and servers say of a context that is too long; `tests/providers/test_failures.py` has a line of each."""
_RATE = re.compile(r"rate_limit_exceeded|tokens per min|\b(?:hourly|daily|weekly|monthly) tokens? ", re.IGNORECASE)
"""What is said of a request that is larger than an account's rate, which a longer context would not mend."""
_SURELY = re.compile(
    r'"(?:type|code)"\s*:\s*"(?:exceed_context_size_error|context_length_exceeded)"|ContextWindowExceeded'
    r"|\bcontext (?:size|length|window|limit)(?: of \d{1,8} tokens| has| is| was| been)* (?:exceed|overflow|too small)"
    r"|(?:exceed(?:s|ed|ing)?|(?:longer|larger|greater) than)(?: the| this| its| available| model.?s| max(?:imum)?"
    r"| configured| total| allowed| [\d,]{1,9}.?(?:tokens?)?)* context (?:size|length|window|limit)\b"
    r"|\bprompt (?:is )?too long|maximum context length is \d",
    re.IGNORECASE,
)
"""What says it with a 500 or 502, too: llama.cpp's, Ollama's and litellm's; `context deadline exceeded` is none."""
_BRIEF = 1000
"""Characters of an error with a 5xx that are read: a longer one may repeat a prompt."""
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")
"""A letter as some encoders of JSON write it: Go's and .NET's an apostrophe, Python's all that is not ASCII."""
_BAD_KEY = re.compile(r"invalid_api_key|API_KEY_INVALID|API key not valid|incorrect api key", re.IGNORECASE)
"""Messages of OpenAI, Google and others about a key, which do not all come with a 401."""
_TRY_ANOTHER = frozenset({401, 402, 403, 404, 405, 408, 409, 421, 425, 429, 498, 499})
"""Statuses about a key, a model or a server's state, Groq's 498 (no capacity) and proxies' 499 (gone) among them."""
_AGAIN_IN = re.compile(r'(?:try again in|"retryDelay"\s*:\s*")\s*(?:(\d{1,4})m)?(\d{1,6}(?:\.\d{1,9})?)(ms|s)')
"""When to come back, where only the message says it: OpenAI's, Groq's and Google's."""
_DURATION = re.compile(
    r"(?=.)(?:(\d{1,3})d)?(?:(\d{1,4})h)?(?:(\d{1,5})m(?!s))?(?:(\d{1,6}(?:\.\d{1,9})?)s)?(?:(\d{1,9}(?:\.\d{1,9})?)ms)?",
    re.ASCII,
)
_LIMIT_TOLD = re.compile(r'"(x-ratelimit-[a-z-]{1,30})"\s*:\s*"?([\w:.+-]{1,40})', re.IGNORECASE)
"""Headers of a limit that a gateway repeats in its error: OpenRouter's `metadata`."""
_LONGEST_WAIT_S = 86_400.0
_EXCERPT = 300
_READ = 4096
_LONGEST_KEY = 512


def from_status(status: int, message: str, retry_after_s: float | None = None, body: str = "") -> ProviderError:
    """Make the provider error of an HTTP status; it is told by `body`, or by the message where that is all there is.

    408, 5xx, redirects, and problems with the model's name (403, 404) are `ProviderUnavailable`: another model may
    answer. Of its subclasses are those with the name, and those with the account (401, 402, 429, and other 4xx whose
    message says so). Any other 4xx is `ProviderRejected`, or `ContextOverflow` if it is a 413 or says that the
    conversation is too long for the model; so is a 500 or 502 that says so clearly.

    >>> from_status(400, "This model's maximum context length is 8192 tokens.")
    ContextOverflow("This model's maximum context length is 8192 tokens.")
    >>> from_status(429, "insufficient_quota"), from_status(401, "no such key")
    (QuotaExhausted('insufficient_quota'), KeyRefused('no such key'))
    """
    said = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), body or message)
    kind = _unavailable(status, said)
    if _fails_at_size(status, said):
        return ContextOverflow(message, status)
    if 400 <= status < 500 and status not in _TRY_ANOTHER and kind is ProviderUnavailable:
        return (ContextOverflow if status == 413 or _TOO_LONG.search(said) else ProviderRejected)(message, status)
    return kind(message, status, retry_after_s)


def _fails_at_size(status: int | None, said: str) -> bool:
    return status in {500, 502} and len(said) <= _BRIEF and bool(_SURELY.search(said))


def kind_of(error: BaseException) -> type[BaseException]:
    """Return the class of a failure; a plain `ProviderUnavailable` is refined by its status and message."""
    return _unavailable(error.status, str(error)) if type(error) is ProviderUnavailable else type(error)


def _unavailable(status: int | None, message: str) -> type[ProviderUnavailable]:
    if status is None or not 400 <= status < 500:
        return ProviderUnavailable
    if status == 401 or _BAD_KEY.search(message):
        return KeyRefused
    if status == 402 or _OVER_BUDGET.search(message):
        return QuotaExhausted
    if status == 429 or (status in {400, 413} and _RATE.search(message)):
        return RateLimited
    refused = status in {403, 404} or (status == 400 and _NO_MODEL.search(message))
    return ModelRefused if refused else ProviderUnavailable


def from_error_body(body: Mapping[str, Any], where: str) -> ProviderError:
    """Make the provider error of a 200 that holds {"error": {"message", "code"}} or {"error": "…"}."""
    error = body.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and 100 <= code < 600 else None
    message = f"{where} answered 200 with an error: {excerpt(error)}"
    kind = _unavailable(status, message)
    said = str(error)[:_READ]
    refused = kind is ProviderUnavailable and (status or 400) < 500 and _TOO_LONG.search(said)
    return (ContextOverflow if refused or _fails_at_size(status, said) else kind)(message, status)


def excerpt(content: object) -> str:
    """Shorten a response to its beginning, on one line and without secrets, for an error message."""
    whole = content if isinstance(content, bytes) else str(content)
    head = whole[:_READ]
    text = masked(head.decode("utf-8", "replace") if isinstance(head, bytes) else head)
    if len(whole) > _READ:  # a key that was cut is not recognised
        text = text[:-_LONGEST_KEY]
    text = " ".join(text.split())
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}…"


def retry_after(headers: Mapping[str, str], now: float, said: str = "", status: int | None = 429) -> float | None:
    """Seconds until a provider may be asked again, by its headers or its message; None if neither says it.

    Retry-After is a number or an HTTP date. Without it, of a 429 or 503, the message is read, and then the times at
    which limits are reset: of those that are used up, else the first, with a 503 of those that may be used up.

    >>> retry_after({"retry-after": "7"}, 0.0), retry_after({"retry-after": "Thu, 01 Jan 1970 00:01:00 GMT"}, 10.0)
    (7.0, 50.0)
    >>> retry_after({"retry-after-ms": "1500"}, 0.0), retry_after({}, 0.0, "Please try again in 1m2.5s.")
    (1.5, 62.5)
    >>> retry_after({"x-ratelimit-reset-tokens": "6m0s"}, 0.0)
    360.0
    """
    value, ms = headers.get("retry-after"), headers.get("retry-after-ms")
    seconds = math.nan
    try:
        seconds = float(value) if value is not None else float(ms or math.nan) / 1000.0
    except ValueError:
        try:
            date = email.utils.parsedate_to_datetime(value or "")
        except ValueError:
            pass
        else:
            seconds = (date if date.tzinfo is not None else date.replace(tzinfo=datetime.UTC)).timestamp() - now
    if math.isfinite(seconds):
        return max(0.0, seconds)
    if status not in {429, 503}:
        return None
    if found := _AGAIN_IN.search(said):
        return 60.0 * int(found[1] or 0) + float(found[2]) * (0.001 if found[3] == "ms" else 1.0)
    limits = {name.lower(): str(text) for name, text in headers.items()}
    limits |= {name.lower(): text for name, text in _LIMIT_TOLD.findall(said)}
    resets = {name: _reset(text, now) for name, text in limits.items() if "ratelimit" in name and "reset" in name}
    waits = {name: wait for name, wait in resets.items() if 0.0 <= wait <= _LONGEST_WAIT_S}
    left = {name: limits.get(name.replace("reset", "remaining")) for name in waits}
    used = [wait for name, wait in waits.items() if left[name] == "0"]
    others = [wait for name, wait in waits.items() if left[name] is None or status == 429]
    return max(used, default=min(others, default=None))


def _reset(text: str, now: float) -> float:
    """Seconds until a limit is reset, told as such, as a duration or as a time; not a number if as none of these."""
    if found := _DURATION.fullmatch(text):
        return sum(
            float(part or 0) * unit for part, unit in zip(found.groups(), (86400, 3600, 60, 1, 0.001), strict=True)
        )
    try:
        if "T" in text:
            date = datetime.datetime.fromisoformat(text)
            return (date if date.tzinfo is not None else date.replace(tzinfo=datetime.UTC)).timestamp() - now
        seconds = float(text)
    except (ValueError, OverflowError):
        return math.nan
    return seconds / 1000.0 - now if seconds > 1e11 else seconds - now if seconds > 1e8 else seconds
