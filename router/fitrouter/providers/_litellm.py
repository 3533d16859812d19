"""Provider that calls models through litellm."""

from __future__ import annotations

import asyncio
import functools
import importlib
import math
import os
import re
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from itertools import islice
from typing import Any
from urllib.request import getproxies

import msgspec

from fitrouter.errors import (
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
    conceal,
    in_words,
    masked,
    require,
)
from fitrouter.providers import tracing
from fitrouter.providers._further import further_fields
from fitrouter.providers._secret import Secret
from fitrouter.providers._streams import OwnedStream
from fitrouter.providers._uniform import UniformChoice
from fitrouter.providers.failures import excerpt, from_status, retry_after
from fitrouter.providers.usage import billed, read_usage
from fitrouter.types import Call, Chunk, Completion, Message, Usage

_RESERVED = frozenset(
    (
        "api_base",
        "api_key",
        "api_version",
        "base_url",
        "caching",
        "callbacks",
        "client",
        "context_window_fallback_dict",
        "custom_llm_provider",
        "extra_headers",
        "failure_callback",
        "fallbacks",
        "headers",
        "max_retries",
        "mock_response",
        "num_retries",
        "organization",
        "retry_policy",
        "success_callback",
        "timeout",
    )
)
"""litellm's own parameters, which a request must not set."""

_HOLDS_A_KEY = re.compile(r"(?:key|key_id|secret|token|password|credentials)\Z", re.IGNORECASE)
"""Names of options and environment variables."""

_loaded: list[Any] = []
"""The module, once it is imported."""

_CONTENT = ("content", "tool_calls", "function_call", "audio", "reasoning_content", "refusal")


class LiteLLM:
    """Provider that calls `litellm.acompletion`, without litellm's router, retries, fallbacks, cache or callbacks.

    litellm takes seconds to import, so the first call imports it, in a thread. `options` are passed to every call
    (api_base, api_version, vertex_project …) and override a request's parameters. litellm's bundled price map is used;
    none is downloaded.

    Raises:
        MissingExtra: litellm is not installed.
    """

    def __init__(self, api_key: Secret | None = None, options: Mapping[str, Any] | None = None) -> None:
        require("litellm", "the provider kind 'litellm'")
        self._key = api_key
        self._options = dict(options or {})
        self.address = str(self._options.get("api_base") or self._options.get("base_url") or "")
        for name, value in (*self._options.items(), *os.environ.items()):  # litellm reads keys from the environment
            if isinstance(value, str) and _HOLDS_A_KEY.search(name):
                conceal(value)

    def __repr__(self) -> str:
        return f"LiteLLM({self._key!r}, options={sorted(self._options)})"

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        """Return a completion or a stream of chunks; see `Provider`."""
        if reserved := sorted(_RESERVED & set(call.params)):
            raise ProviderRejected(f"the request sets {reserved}, which can only be set in the configuration")
        litellm = _loaded[0] if _loaded else await asyncio.to_thread(load_litellm)
        arguments: dict[str, Any] = {key: value for key, value in call.params.items() if key != "metadata"}
        arguments |= self._options
        arguments |= {
            "model": call.target,
            "messages": [dict(message) for message in call.messages],
            # litellm keeps a client, with its connections, for each timeout; the router enforces the exact one.
            "timeout": 2.0 ** math.ceil(math.log2(call.timeout_s)),
            "num_retries": 0,
            "max_retries": 0,
            "caching": False,
            "no-log": True,
            "stream": call.stream,
        }
        if traced := tracing.headers():
            arguments["extra_headers"] = {**(arguments.get("extra_headers") or {}), **traced}
        if call.n > 1:
            arguments["n"] = call.n
        if self._key is not None:
            arguments["api_key"] = self._key.reveal()
        if call.stream:
            arguments["stream_options"] = {**(call.params.get("stream_options") or {}), "include_usage": True}
        try:
            response = await litellm.acompletion(**arguments)
        except Exception as error:  # noqa: BLE001 - litellm passes on errors of many SDKs
            raise self._translated(error) from _cause(error)
        if not call.stream:
            return self._whole(response, call.n)
        return OwnedStream(self._chunks(response, call.n), functools.partial(_close, response))

    async def aclose(self) -> None:
        """Do nothing: litellm's connections are shared by the whole process."""

    def _whole(self, response: Any, n: int) -> Completion:
        choices, left_out = [], set[str]()
        for choice in islice(response.choices or (), n):
            uniform, reason = UniformChoice(), _reason(choice)
            message = uniform.message(self._scrubbed(_plain(choice.message)))
            left_out |= uniform.left_out
            if reason is not None or any(message.get(key) for key in _CONTENT):
                message = {"role": "assistant", "content": None, **message}
                finish_reason = uniform.reason(reason or "stop") or "stop"
                choices.append(Completion(message=message, finish_reason=finish_reason, logprobs=_logprobs(choice)))
        if not choices:
            raise ProviderUnavailable("litellm returned an empty answer").billed(
                read_usage(getattr(response, "usage", None))
            )
        usage = read_usage(getattr(response, "usage", None)) or Usage()
        hidden = getattr(response, "_hidden_params", None) or {}
        if usage.cost_usd is None and (cost := billed(hidden.get("additional_headers") or {}, "llm_provider-")):
            usage = msgspec.structs.replace(usage, cost_usd=cost)
        further = self._scrubbed(_further(response, left_out))
        return msgspec.structs.replace(choices[0], usage=usage, others=tuple(choices[1:]), further=further)

    async def _chunks(self, response: Any, n: int) -> AsyncGenerator[Chunk]:
        said, finished = False, None
        uniform: defaultdict[int, UniformChoice] = defaultdict(UniformChoice)
        try:
            async for part in response:
                usage, further = read_usage(getattr(part, "usage", None)), self._scrubbed(_further(part))
                said = said or bool(usage and usage.completion_tokens)
                for choice in islice(part.choices or (None,), n):
                    delta = self._scrubbed(_plain(choice.delta)) if choice is not None else {}
                    reason = _reason(choice)
                    said = said or any(delta.get(key) for key in _CONTENT)
                    finished = finished or reason
                    index = (getattr(choice, "index", 0) or 0) if n > 1 else 0
                    delta = uniform[index].delta(delta, ends=reason is not None)
                    reason = uniform[index].reason(reason)
                    yield Chunk(
                        delta=delta,
                        finish_reason=reason,
                        usage=usage,
                        logprobs=_logprobs(choice),
                        index=index,
                        further=further,
                    )
                    usage, further = None, {}
        except Exception as error:  # noqa: BLE001 - as above
            raise self._translated(error) from _cause(error)
        # litellm ends every stream with `stop`, also one of which nothing came, not even tokens.
        if finished is None or (finished == "stop" and not said):
            raise ProviderUnavailable("litellm's stream ended without " + ("a finish reason" if said else "an answer"))

    def _scrubbed(self, message: Message) -> Message:
        """Mask the key in a message, in case the upstream echoes it."""
        if self._key is None:
            return message
        encoded = msgspec.json.encode(message, enc_hook=str)
        scrubbed = self._key.scrub(encoded)
        return message if scrubbed == encoded else msgspec.json.decode(scrubbed, type=Message)

    def _translated(self, error: Exception) -> ProviderError:
        """Translate an error of litellm to a provider error, by the HTTP status that it carries."""
        if isinstance(error, ProviderError):
            return error
        message = f"litellm: {excerpt(in_words(error))}"
        if any(proxy.lower().startswith("socks") for proxy in getproxies().values()):
            message += (
                "; the environment has a SOCKS proxy, which most clients cannot use: set HTTPS_PROXY to an http:// one"
            )
        status = getattr(error, "status_code", None)
        status = status if isinstance(status, int) else None
        if isinstance(error, TimeoutError) or type(error).__name__ in {"Timeout", "APITimeoutError"}:
            return ProviderTimeout(message, status)
        headers = getattr(error, "litellm_response_headers", None) or {}
        wait = retry_after(headers, time.time(), message, status)
        return ProviderUnavailable(message, None, wait) if status is None else from_status(status, message, wait)


def _cause(error: Exception) -> Exception | None:
    """Return the exception to chain as a provider error's cause; None if its message holds a secret."""
    return error if masked(str(error)) == str(error) else None


def load_litellm() -> Any:
    """Import litellm, with its downloads, telemetry and debug output disabled."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # otherwise the import downloads prices
    litellm: Any = importlib.import_module("litellm")
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    _loaded.append(litellm)
    return litellm


def _plain(value: Any) -> Message:
    """Convert a message or delta to a dict, without litellm's empty fields."""
    if value is None:
        return {}
    plain: Message = value.model_dump(exclude_none=True)
    if not any(field is not None for field in plain.get("provider_specific_fields", {}).values()):
        plain.pop("provider_specific_fields", None)
    return plain


def _further(response: Any, left_out: Iterable[str] = ()) -> dict[str, Any]:
    """Return the fields of an answer or chunk that are passed on."""
    named = {name: getattr(response, name, None) for name in ("system_fingerprint", "service_tier", "citations")}
    found = further_fields({**(getattr(response, "model_extra", None) or {}), **named}, left_out=left_out)
    plain: dict[str, Any] = msgspec.to_builtins(found, enc_hook=str)  # litellm keeps objects of its own in some
    return plain


def _reason(choice: Any) -> str | None:
    """The finish reason of a choice."""
    found = getattr(choice, "finish_reason", None)
    return None if found is None else masked(str(found))[:64]


def _logprobs(choice: Any) -> dict[str, Any] | None:
    """Return the log probabilities of a choice as a dict; None if it has none."""
    found: Any = getattr(choice, "logprobs", None)
    plain = found.model_dump() if hasattr(found, "model_dump") else found
    return plain if isinstance(plain, dict) else None


async def _close(response: Any) -> None:
    """Close the upstream request, by the method that this kind of stream has."""
    for stream in (response, getattr(response, "completion_stream", None)):
        close = getattr(stream, "aclose", None) or getattr(stream, "close", None)
        if close is not None:
            done = close()
            if asyncio.iscoroutine(done):
                await done
            return
