"""Reading of token counts in every provider's spelling, and writing in OpenAI's `usage` format.

The prompt's tokens include those of the cache, and an answer's include hidden reasoning, whatever a provider includes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from fitrouter.types import Usage

COUNTS = tuple(name for name in Usage.__struct_fields__ if name.endswith("_tokens") or name == "calls")
"""Fields of `Usage` that are counts; the usage of several calls has their sums."""
_MOST = 2**53
"""Above it, JSON's numbers are not whole in other languages."""
_MOST_USD = 10_000.0
_TICKS = 1e10
"""xAI's units in a USD."""
_NUMBER = re.compile(r"[0-9]{1,16}(?:\.[0-9]{0,24})?(?:[eE][+-]?[0-9]{1,2})?")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MOST_COUNTS, _LONGEST_NAME = 16, 64
"""Limits of what is passed on of a provider's usage."""
_MOST_ROUNDS = 256
_OF_ROUND = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
"""Rounds of one call, at Anthropic, that are added up, and their counts."""
_OF_PROMPT = ("prompt_tokens_details", "input_tokens_details", "input_token_details", "prompt_token_details")
_OF_ANSWER = ("completion_tokens_details", "output_tokens_details", "output_token_details")
"""Objects of counts in OpenAI's chat completions, in its responses, and in LangChain."""
_OF_PROMPT_LISTED = ("prompt_tokens_details", "input_tokens_by_modality")
_OF_ANSWER_LISTED = ("candidates_tokens_details", "response_tokens_details", "output_tokens_by_modality")
"""Google's lists of counts by modality."""
_PROMPT = (
    *("prompt_tokens", "input_tokens", "prompt_token_count", "prompt_eval_count", "input_token_count"),
    *("total_input_tokens", "input_text_tokens"),
)
_ANSWER = (
    *("completion_tokens", "output_tokens", "candidates_token_count", "response_token_count", "eval_count"),
    *("generated_token_count", "generated_tokens", "output_token_count", "total_output_tokens"),
)
_TOTAL = ("total_tokens", "total_token_count")
"""Counts at OpenAI and most others, Anthropic, Bedrock, Google (four interfaces), Ollama, watsonx, TGI, Yandex."""
_THOUGHT = ("reasoning_tokens", "thinking_tokens", "reasoning")
_THOUGHT_BESIDE = ("thoughts_token_count", "total_thought_tokens")
"""Hidden reasoning, within the answer's tokens; beside them, at Google."""
_TOOLS_BESIDE = ("tool_use_prompt_token_count", "total_tool_use_tokens")
_READ = (
    *("cached_tokens", "prompt_cache_hit_tokens", "cached_input_tokens", "num_cached_tokens", "cache_read"),
    *("cached_content_token_count", "cached_prompt_text_tokens", "cached_prompt_tokens", "prompt_cached_tokens"),
    *("cache_hit_tokens", "cache_read_tokens", "total_cached_tokens"),
)
_READ_BESIDE = ("cache_read_input_tokens", "cache_read_input_token_count")
_WRITTEN = ("cache_write_tokens", "cache_creation_tokens", "cache_creation", "caching_tokens")
_WRITTEN_BESIDE = ("cache_creation_input_tokens", "cache_write_input_tokens", "cache_write_input_token_count")
"""Tokens of the cache, within those of the prompt (OpenAI, DeepSeek, Mistral, LangChain, Google, AI SDK, Requesty);
beside `input_tokens` at Anthropic and Bedrock."""
_LIFETIMES = _SHORT, _LONG = ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")


def read_usage(usage: object) -> Usage | None:
    """Parse the token counts of a `usage` object, in any provider's spelling; None if there is none.

    Impossible counts are 0, and parts are cut to their whole. Whether the context window can hold them is checked by
    `fitrouter.serving.spending.checked_usage`.

    Args:
        usage: a mapping, or an object of a client library.

    >>> usage = read_usage({"input_tokens": 5, "cache_read_input_tokens": 90, "output_tokens": 3})
    >>> usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
    (95, 90, 3)
    """
    if usage is None or isinstance(usage, str | int | float | list):
        return None
    if isinstance(usage, Mapping) and not "".join(map(str, usage)).islower():
        usage = _in_snake_case(usage)
    found = _read(usage)
    if not (rounds := [each for each in _listed(usage, ("iterations",), _MOST_ROUNDS) if _get(each, "output_tokens")]):
        return found
    # At Anthropic the whole is only of the last rounds: what compaction or an adviser took is in theirs.
    writes = [_get(each, "cache_creation") for each in rounds]
    summed: dict[str, Any] = {name: sum(_count(each, name) for each in rounds) for name in _OF_ROUND}
    summed["cache_creation"] = {name: sum(_count(each, name) for each in writes) for name in _LIFETIMES}
    added = _read(summed)
    most = {name: max(getattr(found, name), getattr(added, name)) for name in COUNTS}
    return consistent(msgspec.structs.replace(found, **most))


def _in_snake_case(value: Any, levels: int = 4) -> Any:
    """An object with its names, and those in it, in one spelling: `cachedInputTokens` is `cached_input_tokens`."""
    if isinstance(value, list):
        return [_in_snake_case(each, levels - 1) for each in value[:_MOST_ROUNDS]] if levels else value
    if not (levels and isinstance(value, Mapping)):
        return value
    found: dict[Any, Any] = {}
    for name, each in value.items():
        spelled = name if not isinstance(name, str) or name.islower() else _HUMP.sub("_", name[:_LONGEST_NAME]).lower()
        found[spelled] = _in_snake_case(each, levels - 1) or found.get(spelled, each)
    return found


def _read(usage: object) -> Usage:
    of_prompt, of_answer = (next(_there(usage, names), None) for names in (_OF_PROMPT, _OF_ANSWER))
    places = (usage, _get(usage, "billed_units"), _get(usage, "tokens"))  # Cohere
    prompt, answer, total = _first(places, _PROMPT), _first(places, _ANSWER), _first((usage,), _TOTAL)
    read = _first((of_prompt, usage), _READ + _READ_BESIDE)
    short, long = _lifetimes(usage, of_prompt)
    written = max(_first((of_prompt, usage), _WRITTEN + _WRITTEN_BESIDE), short + long)
    cache = read + written
    # Whoever counts the cache beside the prompt: Anthropic by name, others by sums that come out only so.
    by_name = _count(usage, "prompt_tokens") == 0 and _first((usage,), _READ_BESIDE + _WRITTEN_BESIDE) > 0
    if cache > prompt or (cache and total == prompt + answer + cache) or (by_name and total != prompt + answer):
        prompt += cache
    prompt += _first((usage,), _TOOLS_BESIDE)
    thought = _first((of_answer, usage), _THOUGHT)
    beside = _first((usage,), _THOUGHT_BESIDE) or (thought if thought > answer else 0)
    # xAI tells of reasoning beside the answer; Google's OpenAI-compatible interface has it in the total alone.
    unexplained = max(total - prompt - answer - beside, 0) if prompt else 0
    guessed = 0 < unexplained != thought
    thought, answer = max(thought, beside + unexplained), answer + beside + unexplained
    return consistent(
        Usage(
            prompt_tokens=prompt,
            completion_tokens=answer,
            cached_tokens=read,
            written_tokens=written,
            written_1h_tokens=long,
            reasoning_tokens=thought,
            audio_prompt_tokens=_audio(usage, of_prompt, _OF_PROMPT_LISTED),
            audio_completion_tokens=_audio(usage, of_answer, _OF_ANSWER_LISTED),
            estimated=guessed or _get(usage, "estimated") is True,
            cost_usd=_stated(usage),
            details={
                name: more
                for name, place in ((_OF_PROMPT[0], of_prompt), (_OF_ANSWER[0], of_answer))
                if (more := _more(place))
            },
        )
    )


def consistent(usage: Usage) -> Usage:
    """Cut parts to the tokens that they are part of, so that all are apart from each other."""
    prompt, answer = usage.prompt_tokens, usage.completion_tokens
    read = min(max(usage.cached_tokens, 0), prompt)
    written = min(max(usage.written_tokens, 0), prompt - read)
    thought = min(max(usage.reasoning_tokens, 0), answer)
    return msgspec.structs.replace(
        usage,
        cached_tokens=read,
        written_tokens=written,
        written_1h_tokens=min(max(usage.written_1h_tokens, 0), written),
        audio_prompt_tokens=min(max(usage.audio_prompt_tokens, 0), prompt - read - written),
        reasoning_tokens=thought,
        audio_completion_tokens=min(max(usage.audio_completion_tokens, 0), answer - thought),
    )


def usage_body(usage: Usage) -> dict[str, Any]:
    """Format token counts as OpenAI's `usage` object; details if they are not 0, and `estimated` if true.

    >>> usage_body(Usage(prompt_tokens=9, completion_tokens=3))
    {'prompt_tokens': 9, 'completion_tokens': 3, 'total_tokens': 12}
    """
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    body: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    body |= {name: dict(counts) for name, counts in usage.details.items()}
    long = usage.written_1h_tokens
    lifetimes = {_SHORT: usage.written_tokens - long, _LONG: long}
    for place, name, count in (
        (_OF_PROMPT[0], "cached_tokens", usage.cached_tokens),
        (_OF_PROMPT[0], "cache_write_tokens", usage.written_tokens),
        (_OF_PROMPT[0], "cache_creation_token_details", long and lifetimes),
        (_OF_PROMPT[0], "audio_tokens", usage.audio_prompt_tokens),
        (_OF_ANSWER[0], "reasoning_tokens", usage.reasoning_tokens),
        (_OF_ANSWER[0], "audio_tokens", usage.audio_completion_tokens),
    ):
        if count:
            body.setdefault(place, {})[name] = count
    if usage.estimated:
        body["estimated"] = True
    return body


def stated_usd(cost: object) -> float | None:
    """Read an amount of USD that a provider states; None for what is none, or out of range."""
    number = _number(cost)
    return float(number) if number is not None and 0.0 <= number <= _MOST_USD else None


def billed(headers: Mapping[str, Any], prefix: str = "") -> float | None:
    """Cost in USD that a proxy of litellm states in a header; None without one. It says 0 of what it cannot price."""
    return stated_usd(headers.get(f"{prefix}x-litellm-response-cost")) or None


def _stated(usage: object) -> float | None:
    """Cost that a usage states: a number, or Perplexity's object; DeepInfra's, or xAI's in units of its own."""
    cost, own = _get(usage, "cost"), _get(usage, "is_byok")
    usd = stated_usd(_get(cost, "total_cost") if _number(cost) is None else cost)
    usd = stated_usd(_get(usage, "total_cost")) if usd is None else usd
    upstream = stated_usd(_get(_get(usage, "cost_details"), "upstream_inference_cost"))
    if upstream is not None and (usd is None or own is not False):
        # OpenRouter's fee; the key's owner pays the rest, too.
        usd = (usd or 0.0) + upstream if own is True else max(usd or 0.0, upstream)
    ticks = _number(_get(usage, "cost_in_usd_ticks"))
    others = (_get(usage, "estimated_cost"), ticks / _TICKS if ticks is not None and 0 <= ticks <= _MOST else None)
    return next((each for each in (usd, *map(stated_usd, others)) if each is not None), None)


def _lifetimes(usage: object, of_prompt: object) -> tuple[int, int]:
    """Tokens written to the cache for five minutes, and for an hour: Anthropic's, litellm's and Bedrock's."""
    places = (_get(of_prompt, "cache_creation_token_details"), _get(usage, "cache_creation"), of_prompt)
    found = {_SHORT: _first(places, (_SHORT,)), _LONG: _first(places, (_LONG,))}
    for each in _listed(usage, ("cache_details",)):
        name = _LONG if _get(each, "ttl") == "1h" else _SHORT
        found[name] += _count(each, "input_tokens")
    return found[_SHORT], found[_LONG]


def _audio(usage: object, details: object, listed: Sequence[str]) -> int:
    """Audio tokens of a side, but for those of its cache."""
    found = _first((details,), ("audio_tokens", "audio")) or _listed_audio(usage, listed)
    cached = _count(_get(details, "cached_tokens_details"), "audio_tokens")
    if listed is _OF_PROMPT_LISTED:
        cached = cached or _listed_audio(usage, ("cache_tokens_details", "cached_tokens_by_modality"))
    return max(found - cached, 0)


def _listed_audio(usage: object, names: Sequence[str]) -> int:
    audio = (each for each in _listed(usage, names) if _get(each, "modality") in {"AUDIO", "audio"})
    return sum(_first((each,), ("token_count", "tokens")) for each in audio)


def _listed(place: object, names: Sequence[str], most: int = _MOST_COUNTS) -> list[Any]:
    lists = (found for name in names if isinstance(found := _get(place, name), list))
    return next(lists, [])[:most]


def _more(place: object) -> dict[str, int]:
    """The counts of a details object that we do not read ourselves; a few, with short names."""
    if not isinstance(place, Mapping):
        return {}
    found = ((name, _count(place, name)) for name in place if isinstance(name, str) and len(name) <= _LONGEST_NAME)
    read = {*_READ, *_READ_BESIDE, *_WRITTEN, *_WRITTEN_BESIDE, *_THOUGHT, *_LIFETIMES, "audio_tokens", "audio"}
    return dict(islice(((name, count) for name, count in found if count and name not in read), _MOST_COUNTS))


def _there(place: object, names: Sequence[str]) -> Iterator[Any]:
    return (found for name in names if (found := _get(place, name)))


def _first(places: Sequence[object], names: Sequence[str]) -> int:
    """The first count that is not 0 in several places, under several names."""
    for place in places:
        if place is None:
            continue
        mapping = isinstance(place, dict | Mapping)
        for name in names:  # most are absent, and a call for each took a tenth of a request's
            if (name in place if mapping else hasattr(place, name)) and (count := _count(place, name)):  # type: ignore[operator]
                return count
    return 0


def _number(value: object) -> float | None:
    """Return a number, or what a text says is one; None for anything else."""
    if isinstance(value, str):
        return float(value) if _NUMBER.fullmatch(value) else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _count(place: object, name: str) -> int:
    number = _number(_get(place, name))
    return int(number) if number is not None and 0 <= number <= _MOST else 0


def _get(place: object, name: str) -> Any:
    return place.get(name) if isinstance(place, dict | Mapping) else getattr(place, name, None)
