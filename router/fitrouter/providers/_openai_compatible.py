"""Provider for servers of the OpenAI protocol, over aiohttp."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from fitrouter.errors import ConfigError, ProviderRejected, ProviderTimeout, ProviderUnavailable
from fitrouter.providers._secret import Secret
from fitrouter.providers._sse import sse_data
from fitrouter.providers._streams import OwnedStream
from fitrouter.providers.failures import excerpt, from_error_body, from_status, retry_after
from fitrouter.providers.usage import read_usage
from fitrouter.types import Call, Chunk, Completion, Usage

_CONTENT = ("content", "tool_calls", "function_call", "refusal", "audio", "reasoning_content", "reasoning")
_CONNECT_S = 10.0


class OpenAICompatible:
    """Posts to `{base_url}/chat/completions` and relays messages and deltas unmodified.

    One session with keep-alive, at most `connections` at a time, no cookies, no redirects, no proxy from the
    environment. Answers are limited to `max_bytes`, and compressed ones are refused (decompression bombs).

    An empty answer, invalid JSON or a wrong content type is `ProviderUnavailable`; so is a stream that ends without a
    finish reason.

    Raises:
        ConfigError: `base_url` is not an http(s) URL, or carries a password.
    """

    def __init__(
        self,
        base_url: str,
        api_key: Secret | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        connections: int = 256,
        max_bytes: int = 32_000_000,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(f"base_url is {base_url!r}; use an http or https URL up to and including /v1")
        if parts.username or parts.password:
            raise ConfigError("base_url contains a user or password; use 'api_key_env' for the key instead")
        self._base_url = base_url.rstrip("/")
        self._key = api_key
        self._headers = dict(headers or {})
        self._connections = connections
        self._max_bytes = max_bytes
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"OpenAICompatible({self._base_url!r}, {self._key!r})"

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        """Return a completion or a stream of chunks; see `Provider`."""
        with self._translated():
            response = await self._post(call)
            try:
                self._check(response, "text/event-stream" if call.stream else "json")
                if call.stream and response.status == 200:
                    return OwnedStream(self._chunks(response), functools.partial(_close, response))
                return await self._whole(response)
            except BaseException:
                response.close()
                raise

    async def aclose(self) -> None:
        """Close the connections; a later call opens new ones."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def _post(self, call: Call) -> aiohttp.ClientResponse:
        body = {**call.params, "model": call.target, "messages": call.messages}
        body.pop("stream", None)
        if call.stream:
            body |= {"stream": True, "stream_options": {**(body.get("stream_options") or {}), "include_usage": True}}
        try:
            payload = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ProviderRejected(f"the request cannot be encoded as JSON: {error}") from None
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                read_bufsize=2**18,
            )
        headers = {**self._headers, "Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key.reveal()}"
        return await self._session.post(
            f"{self._base_url}/chat/completions",
            data=payload,
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=call.timeout_s, sock_connect=min(_CONNECT_S, call.timeout_s)),
        )

    def _check(self, response: aiohttp.ClientResponse, expected: str) -> None:
        if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
            raise ProviderUnavailable(
                f"{self._base_url} sent a compressed answer ({encoding!r}), which is not accepted"
            )
        if response.status == 200 and expected not in response.content_type:
            raise ProviderUnavailable(
                f"{self._base_url} answered with content type {response.content_type!r}, expected {expected!r}"
            )

    async def _whole(self, response: aiohttp.ClientResponse) -> Completion:
        received = await self._read(response)
        if response.status != 200:
            wait = retry_after(response.headers.get("Retry-After"), time.time())
            reason = f"{self._base_url} answered {response.status}: {excerpt(received)}"
            raise from_status(response.status, self._masked(reason), wait)
        body = self._object(received)
        message, finish_reason = _first_choice(body, "message")
        if not any(message.get(key) for key in _CONTENT):
            raise ProviderUnavailable(f"{self._base_url} answered 200 with an empty answer: {excerpt(received)}")
        usage = read_usage(body.get("usage")) or Usage()
        return Completion(message=message, finish_reason=finish_reason or "stop", usage=usage)

    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncGenerator[Chunk]:
        said = finished = False
        with self._translated():
            async for data in sse_data(response.content.iter_any(), self._base_url, self._max_bytes):
                if data == b"[DONE]":
                    break
                body = self._object(data)
                delta, reason = _first_choice(body, "delta")
                finished = finished or reason is not None
                said = said or any(delta.get(key) for key in _CONTENT)
                yield Chunk(delta=delta, finish_reason=reason, usage=read_usage(body.get("usage")))
            if not (said and finished):
                what = "an answer without a finish reason: it may be truncated" if said else "no answer"
                raise ProviderUnavailable(f"{self._base_url} streamed {what}")
            await asyncio.sleep(0)  # lets the end of the body arrive, so that the connection can be reused

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        received = bytearray()
        async for piece in response.content.iter_any():
            received += piece
            if len(received) > self._max_bytes:
                raise ProviderUnavailable(f"{self._base_url} answered more than {self._max_bytes} bytes")
        return bytes(received)

    def _object(self, received: bytes) -> dict[str, Any]:
        try:
            body = msgspec.json.decode(received)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            body = None
        if not isinstance(body, dict):
            raise ProviderUnavailable(
                f"{self._base_url} answered with invalid JSON: {self._masked(excerpt(received))!r}"
            )
        if body.get("error"):
            error = from_error_body(body, self._base_url)
            raise ProviderUnavailable(self._masked(str(error)), error.status)
        return body

    def _masked(self, text: str) -> str:
        return self._key.mask(text) if self._key is not None else text

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors of aiohttp to provider errors."""
        try:
            yield
        except TimeoutError as error:
            raise ProviderTimeout(f"{self._base_url} did not answer in time ({type(error).__name__})") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ProviderUnavailable(f"{self._base_url} cannot be reached: {error!r}") from error


async def _close(response: aiohttp.ClientResponse) -> None:
    """Close the connection, unless the body was read to its end and the connection is back in the pool."""
    response.close()


def _first_choice(body: Mapping[str, Any], key: str) -> tuple[dict[str, Any], str | None]:
    """(message or delta, finish reason) of the first choice; ({}, None) if there is none."""
    choices = body.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and not choice.get("index"):
            content, reason = choice.get(key), choice.get("finish_reason")
            return (content if isinstance(content, dict) else {}), (reason if isinstance(reason, str) else None)
    return {}, None
