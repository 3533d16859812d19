"""Provider that calls models through litellm."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from fitrouter.errors import ConfigError, ProviderError, ProviderRejected, ProviderTimeout, ProviderUnavailable
from fitrouter.providers._secret import Secret
from fitrouter.providers._streams import OwnedStream
from fitrouter.providers.failures import excerpt, from_status, retry_after
from fitrouter.providers.usage import read_usage
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

_CONTENT = ("content", "tool_calls", "function_call", "audio", "reasoning_content", "refusal")


class LiteLLM:
    """Calls `litellm.acompletion`, without litellm's router, retries, fallbacks, cache or callbacks.

    litellm takes seconds to import, so the first call imports it, in a thread. `options` are passed to every call
    (api_base, api_version, vertex_project …) and override a request's parameters. litellm's bundled price map is used;
    none is downloaded.
    """

    def __init__(self, api_key: Secret | None = None, options: Mapping[str, Any] | None = None) -> None:
        self._key = api_key
        self._options = dict(options or {})

    def __repr__(self) -> str:
        return f"LiteLLM({self._key!r}, options={sorted(self._options)})"

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        """Return a completion or a stream of chunks; see `Provider`."""
        if reserved := sorted(_RESERVED & set(call.params)):
            raise ProviderRejected(f"the request sets {reserved}, which can only be set in the configuration")
        litellm = await asyncio.to_thread(_load)
        arguments: dict[str, Any] = {key: value for key, value in call.params.items() if key != "metadata"}
        arguments |= self._options
        arguments |= {
            "model": call.target,
            "messages": [dict(message) for message in call.messages],
            "timeout": call.timeout_s,
            "num_retries": 0,
            "max_retries": 0,
            "caching": False,
            "no-log": True,
            "stream": call.stream,
        }
        if self._key is not None:
            arguments["api_key"] = self._key.reveal()
        if call.stream:
            arguments["stream_options"] = {**(call.params.get("stream_options") or {}), "include_usage": True}
        try:
            response = await litellm.acompletion(**arguments)
        except Exception as error:  # litellm passes on errors of many SDKs
            raise self._translated(error) from error
        if not call.stream:
            return self._whole(response)
        return OwnedStream(self._chunks(response), functools.partial(_close, response))

    async def aclose(self) -> None:
        """Do nothing: litellm's connections are shared by the whole process."""

    def _whole(self, response: Any) -> Completion:
        choice = next(iter(response.choices or ()), None)
        message = _plain(choice.message) if choice is not None else {}
        if not any(message.get(key) for key in _CONTENT):
            raise ProviderUnavailable("litellm returned an empty answer")
        message = {"role": "assistant", "content": None, **message}
        finish_reason = getattr(choice, "finish_reason", None) or "stop"
        usage = read_usage(getattr(response, "usage", None)) or Usage()
        return Completion(message=message, finish_reason=finish_reason, usage=usage)

    async def _chunks(self, response: Any) -> AsyncGenerator[Chunk]:
        said = finished = False
        try:
            async for part in response:
                choice = next(iter(part.choices or ()), None)
                delta = _plain(choice.delta) if choice is not None else {}
                reason = getattr(choice, "finish_reason", None)
                finished = finished or reason is not None
                said = said or any(delta.get(key) for key in _CONTENT)
                yield Chunk(delta=delta, finish_reason=reason, usage=read_usage(getattr(part, "usage", None)))
        except Exception as error:
            raise self._translated(error) from error
        if not (said and finished):
            raise ProviderUnavailable("litellm's stream ended without " + ("a finish reason" if said else "an answer"))

    def _translated(self, error: Exception) -> ProviderError:
        """The provider error of a litellm error, by the HTTP status that it carries."""
        if isinstance(error, ProviderError):
            return error
        message = f"litellm: {type(error).__name__}: {excerpt(error)}"
        if self._key is not None:
            message = self._key.mask(message)
        status = getattr(error, "status_code", None)
        status = status if isinstance(status, int) else None
        if isinstance(error, TimeoutError) or type(error).__name__ in {"Timeout", "APITimeoutError"}:
            return ProviderTimeout(message, status)
        headers = getattr(error, "litellm_response_headers", None) or {}
        wait = retry_after(headers.get("retry-after"), time.time())
        return ProviderUnavailable(message, None, wait) if status is None else from_status(status, message, wait)


def _load() -> Any:
    """Import litellm, with its downloads, telemetry and debug output disabled."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # otherwise the import downloads prices
    try:
        litellm: Any = importlib.import_module("litellm")
    except ImportError as error:
        raise ConfigError(f"the provider 'litellm' needs litellm ({error}); `pip install litellm`") from None
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    return litellm


def _plain(value: Any) -> Message:
    """A message or delta as a dict, without litellm's empty fields."""
    if value is None:
        return {}
    plain: Message = value.model_dump(exclude_none=True)
    if not any(field is not None for field in plain.get("provider_specific_fields", {}).values()):
        plain.pop("provider_specific_fields", None)
    return plain


async def _close(response: Any) -> None:
    """End the upstream request, by whichever method this kind of stream has."""
    for stream in (response, getattr(response, "completion_stream", None)):
        close = getattr(stream, "aclose", None) or getattr(stream, "close", None)
        if close is not None:
            done = close()
            if asyncio.iscoroutine(done):
                await done
            return
