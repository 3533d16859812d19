"""Provider for servers of the OpenAI protocol, over aiohttp."""

from __future__ import annotations

import asyncio
import errno
import functools
import json
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec

from fitrouter.errors import ConfigError, ProviderRejected, ProviderTimeout, ProviderUnavailable, in_words
from fitrouter.providers import tracing
from fitrouter.providers._addresses import in_networks, is_public, names_address
from fitrouter.providers._further import OURS, further_fields
from fitrouter.providers._json import decode_json
from fitrouter.providers._secret import Secret
from fitrouter.providers._sse import sse_data
from fitrouter.providers._streams import ARRIVED, OwnedStream, together
from fitrouter.providers._uniform import UniformChoice
from fitrouter.providers.failures import excerpt, from_error_body, from_status, retry_after
from fitrouter.providers.usage import billed, read_usage
from fitrouter.types import Call, Chunk, Completion, EmbeddingCall, Embeddings, Usage

_CONTENT = ("content", "tool_calls", "function_call", "refusal", "audio", "reasoning_content", "reasoning")
_SPOKEN = frozenset({*_CONTENT, "annotations", "images", "name", "reasoning_details", "role", "thinking_blocks"})
_CONNECT_S = 10.0
_READ = 4096
"""Bytes of an error's body that say what it is."""
_WHOLE = ("json", "text/plain")
_STREAMED = ("text/event-stream", "text/plain", "json")
"""Content types of answers: servers without one of their own say text/plain, and some stream nothing."""


class _Embedded(msgspec.Struct):
    """The fields that are read of an answer with embeddings."""

    data: msgspec.Raw = msgspec.Raw()
    usage: msgspec.Raw = msgspec.Raw(b"null")


def _trusting(ca_file: Path | None) -> ssl.SSLContext | bool:
    if ca_file is None:
        return True
    try:
        context = ssl.create_default_context()
        context.load_verify_locations(ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"ca_file: {str(ca_file)!r} is no PEM file of certificates: {error}") from None
    return context


def _public_socket(found: aiohttp.AddrInfoType) -> socket.socket:
    if not is_public(str(found[4][0])):
        said = "the address is on this machine or in a private network (see the setting 'private_addresses')"
        raise OSError(errno.EACCES, said)
    return socket.socket(*found[:3])


class OpenAICompatible:
    """Provider that posts to `{base_url}/chat/completions`, and relays messages and deltas unmodified.

    One session with keep-alive, no cookies, no redirects. Every call at a time has a
    connection: the router bounds their number (`fitrouter.serving.slots`), so that none waits unseen. Answers are
    limited to `max_bytes`, and compressed ones are refused (decompression bombs).

    Invalid JSON, a wrong content type, an answer without choices, or with neither content nor a finish reason is
    `ProviderUnavailable`; so is a stream that ends without a finish reason, unless it says `[DONE]` after content: some
    servers, and many proxies of Gemini, give none. An empty answer that has one is an answer:
    thinking used up its limit, it was filtered, or a turn ended after its tools.

    Args:
        base_url: up to and including /v1.
        api_key: sent as a bearer token.
        headers: of every call.
        proxy: its URL, or `none`; None for that of the environment, which this machine does not need.
        ca_file: certificate authorities to trust beside the system's.
        public: whether a connection without a proxy is made to public addresses only, whatever a name resolves to by
            then.
        max_bytes: of an answer.

    Raises:
        ConfigError: `base_url` is not an http(s) URL, or carries a password; `ca_file` cannot be read.
    """

    def __init__(
        self,
        base_url: str,
        api_key: Secret | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        proxy: str | None = None,
        ca_file: Path | None = None,
        public: bool = False,
        max_bytes: int = 32_000_000,
    ) -> None:
        parts = urlsplit(base_url := base_url.strip())
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(f"base_url is {base_url!r}; use an http or https URL up to and including /v1")
        if parts.username or parts.password:
            raise ConfigError("base_url contains a user or password; use 'api_key_env' for the key instead")
        self._base_url = self.address = base_url.rstrip("/")
        self._key = api_key
        self._headers = dict(headers or {})
        self._scheme, self._host, self._given_proxy = parts.scheme, parts.hostname, proxy
        self._tls = _trusting(ca_file)
        self._public, self._max_bytes = public, max_bytes
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"OpenAICompatible({self._base_url!r}, {self._key!r})"

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        """Return a completion or a stream of chunks; see `Provider`."""
        with self._translated():
            response = await self._post(call)
            try:
                self._check(response, _STREAMED if call.stream else _WHOLE)
                if not call.stream or response.status != 200:
                    return await self._whole(response, call.n)
                one_piece = "json" in response.content_type
                chunks = self._one_piece(response, call.n) if one_piece else self._chunks(response, call.n)
                return OwnedStream(chunks, functools.partial(_close, response))
            except BaseException:
                response.close()
                raise

    async def embed(self, call: EmbeddingCall) -> Embeddings:
        """Post to `{base_url}/embeddings`, and relay the vectors unread. Raises the same errors as `complete`."""
        with self._translated():
            response = await self._send("/embeddings", {**call.params, "model": call.target}, call.timeout_s)
            try:
                self._check(response, _WHOLE)
                return self._embeddings(await self._received(response))
            except BaseException:
                response.close()
                raise

    async def post(self, body: Mapping[str, Any], timeout_s: float) -> bytes:
        """Post to `base_url` itself, and return the body of the answer. Raises the same errors as `complete`."""
        with self._translated():
            response = await self._send("", body, timeout_s)
            try:
                self._check(response, _WHOLE)
                return await self._received(response)
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
        if call.n > 1:
            body["n"] = call.n
        if call.stream:
            body |= {"stream": True, "stream_options": {**(body.get("stream_options") or {}), "include_usage": True}}
        return await self._send("/chat/completions", body, call.timeout_s, stream=call.stream)

    async def _send(
        self, path: str, body: Mapping[str, Any], timeout_s: float, *, stream: bool = False
    ) -> aiohttp.ClientResponse:
        try:
            payload = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ProviderRejected(f"the request cannot be encoded as JSON: {error}") from None
        if self._session is None:
            checked = _public_socket if self._public and not self._proxy() else None
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=self._tls, socket_factory=checked),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                read_bufsize=2**18,
            )
        headers = {**self._headers, **tracing.headers()}
        headers |= {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key.reveal()}"
        return await self._session.post(
            f"{self._base_url}{path}",
            data=payload,
            headers=headers,
            proxy=self._proxy(),
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(  # a stream may flow for as long as it likes
                total=None if stream else timeout_s, sock_read=timeout_s, sock_connect=min(_CONNECT_S, timeout_s)
            ),
        )

    def _proxy(self) -> str | None:
        """URL of the proxy to use; None for none."""
        if self._given_proxy is not None:
            return None if self._given_proxy == "none" else self._given_proxy
        if (
            self._host == "localhost"
            or self._host.startswith("127.")
            or self._host == "::1"
            or proxy_bypass(self._host)
            or in_networks(self._host, getproxies().get("no", ""))
        ):
            return None
        proxies = getproxies()
        found = proxies.get(self._scheme, proxies.get("all"))
        scheme, given, _ = found.rpartition("://") if found else ("", "", "")
        if given and scheme.lower() not in {"http", "https"}:
            raise ProviderUnavailable(
                f"{self._base_url} is not called: the environment's proxy is {scheme[:20]}://…, and only HTTP "
                "proxies can be used; set HTTPS_PROXY to an http:// one, or the provider's `proxy` to one or to 'none'"
            )
        return found if given or not found else f"http://{found}"

    def _check(self, response: aiohttp.ClientResponse, expected: tuple[str, ...]) -> None:
        if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
            raise ProviderUnavailable(
                f"{self._base_url} sent a compressed answer ({excerpt(encoding)!r}), which is not accepted"
            )
        said = response.headers.get("Content-Type", expected[0])
        if response.status == 200 and not any(kind in said.lower() for kind in expected):
            raise ProviderUnavailable(
                f"{self._base_url} answered with content type {excerpt(said)!r}, expected {expected[0]!r}"
            )

    async def _whole(self, response: aiohttp.ClientResponse, n: int) -> Completion:
        received = await self._received(response)
        body = self._object(received)
        choices, left_out = [], set[str]()
        for _, given, reason, logprobs, more in _choices(body, "message", n, self._host):
            choice = UniformChoice()
            message = {"role": "assistant", "content": None, **choice.message(given)}
            left_out |= choice.left_out
            if reason is not None or _says(message):
                finish_reason = choice.reason(reason or "stop") or "stop"
                beside = further_fields(more, self._host)
                choices.append(
                    Completion(message=message, finish_reason=finish_reason, logprobs=logprobs, beside=beside)
                )
        if not choices:
            empty = ProviderUnavailable(f"{self._base_url} answered 200 with an empty answer: {excerpt(received)}")
            raise empty.billed(_usage(body))
        usage = _usage(body) or Usage()
        if usage.cost_usd is None and (cost := billed(response.headers)):
            usage = msgspec.structs.replace(usage, cost_usd=cost)
        further = further_fields(body, self._host, left_out)
        return msgspec.structs.replace(choices[0], usage=usage, others=tuple(choices[1:]), further=further)

    async def _one_piece(self, response: aiohttp.ClientResponse, n: int) -> AsyncGenerator[Chunk]:
        """Yield the chunks of a complete answer, which some servers send although a stream was asked for."""
        with self._translated():
            whole = await self._whole(response, n)
        for index, one in enumerate((whole, *whole.others)):
            calls = one.message.get("tool_calls") or ()
            numbered = {"tool_calls": [{"index": i, **call} for i, call in enumerate(calls)]} if calls else {}
            delta = {**one.message, **numbered}
            yield Chunk(
                delta=delta,
                finish_reason=one.finish_reason,
                logprobs=one.logprobs,
                index=index,
                further=one.further,
                beside=one.beside,
            )
        yield Chunk(usage=whole.usage)

    def _chunks(self, response: aiohttp.ClientResponse, n: int) -> AsyncGenerator[Chunk]:
        return together(self._sent(response, n), _used)

    async def _sent(self, response: aiohttp.ClientResponse, n: int) -> AsyncGenerator[Chunk]:
        """Yield a chunk for each event, with its usage as it was sent, and `ARRIVED`."""
        said, finished, pieces, idle = set[int](), dict[int, str | None](), 0, b""
        uniform: defaultdict[int, UniformChoice] = defaultdict(UniformChoice)
        further_of, beside_of = (_Same(lambda given: further_fields(given, self._host)) for _ in range(2))
        with self._translated():
            async for data in sse_data(response.content.iter_any(), self._base_url, self._max_bytes):
                if data.strip().upper() == b"[DONE]":
                    for index in sorted(said - finished.keys()):
                        rest = uniform[index].delta({}, ends=True)
                        finished[index] = uniform[index].reason("stop")
                        yield Chunk(delta=rest, finish_reason=finished[index], index=index)
                    break
                pieces += 1
                if pieces > _MOST_PIECES:
                    raise ProviderUnavailable(f"{self._base_url} streamed more than {_MOST_PIECES} events")
                if pieces % _TURN == 0:
                    await asyncio.sleep(0)  # others' turn: what has arrived is read without waiting
                    yield ARRIVED
                if not data:
                    yield ARRIVED
                    continue
                if data == idle:
                    continue
                body, idle = self._object(data), data
                others = {name: value for name, value in body.items() if name not in OURS}
                usage: Any = _usages(body) or None
                further = further_of(others)
                for index, delta, reason, logprobs, more in _choices(body, "delta", n, self._host) or _NO_CHOICE:
                    said |= {index} if _says(delta) else set()
                    if any(delta[name] for name in delta if name != "role") or any((logprobs or {}).values()):
                        idle = b""
                    delta = uniform[index].delta(delta, ends=reason is not None)
                    reason = uniform[index].reason(reason)
                    if reason == finished.get(index) and not _says(delta):
                        reason = None  # told before
                    finished |= {index: reason} if reason is not None else {}
                    yield Chunk(
                        delta=delta,
                        finish_reason=reason,
                        usage=usage,
                        logprobs=logprobs,
                        index=index,
                        further=further,
                        beside=beside_of(more),
                    )
                    usage, further = None, {}
            if not finished:
                what = "an answer without a finish reason: it may be truncated" if said else "no answer"
                raise ProviderUnavailable(f"{self._base_url} streamed {what}")
            await asyncio.sleep(0)  # lets the end of the body arrive, so that the connection can be reused

    def _embeddings(self, received: bytes) -> Embeddings:
        received = received if self._key is None else self._key.scrub(received)
        try:
            found = msgspec.json.decode(received, type=_Embedded)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            found = _Embedded()
        usage = read_usage(decode_json(bytes(found.usage)) if len(memoryview(found.usage)) <= _SMALL else None)
        if bytes(memoryview(found.data)[:1]) != b"[":
            self._object(received)  # an error with status 200
            raise ProviderUnavailable(f"{self._base_url} sent no embeddings: {excerpt(received)}").billed(usage)
        return Embeddings(data=found.data, usage=usage or Usage())

    async def _received(self, response: aiohttp.ClientResponse) -> bytes:
        """Read the body of an answer; raise the provider error of its status if that is not 200."""
        received = await self._read(response)
        if response.status != 200:
            said = received[:_READ].decode("utf-8", "replace")
            wait = retry_after(response.headers, time.time(), said, response.status)
            reason = f"{self._base_url} answered {response.status}: {excerpt(received)}"
            raise from_status(response.status, reason, wait, said)
        return received

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        received = bytearray()
        async for piece in response.content.iter_any():
            received += piece
            if len(received) > self._max_bytes:
                raise ProviderUnavailable(f"{self._base_url} answered more than {self._max_bytes} bytes")
        return bytes(received)

    def _object(self, received: bytes) -> dict[str, Any]:
        if len(received) > _SMALL and sum(map(received.count, (b",", b"[", b"{"))) > _MOST_VALUES:
            raise ProviderUnavailable(f"{self._base_url} answered with more than {_MOST_VALUES} values")
        scrubbed = received if self._key is None else self._key.scrub(received)
        try:
            body = decode_json(scrubbed)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            body = _lenient(scrubbed)
        body = body[0] if isinstance(body, list) and len(body) == 1 else body  # as Google sends errors
        if not isinstance(body, dict):
            raise ProviderUnavailable(f"{self._base_url} answered with invalid JSON: {excerpt(received)!r}")
        if body.get("error"):
            raise from_error_body(body, self._base_url).billed(_usage(body))
        return body

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors of aiohttp to provider errors."""
        try:
            yield
        except aiohttp.ConnectionTimeoutError as error:  # nothing was sent
            raise ProviderUnavailable(f"{self._base_url} cannot be reached in time") from error
        except TimeoutError as error:
            raise ProviderTimeout(f"{self._base_url} did not answer in time ({type(error).__name__})") from error
        except (aiohttp.ClientError, OSError) as error:
            # Neither its repr nor itself: some hold the headers of the request, with the key.
            cause = None if isinstance(error, aiohttp.ClientResponseError) else error
            what = "broke off" if isinstance(error, aiohttp.ClientPayloadError) else "cannot be reached"
            raise ProviderUnavailable(f"{self._base_url} {what}: {excerpt(in_words(error))}") from cause


def _lenient(received: bytes) -> object:
    """Parse JSON with a byte order mark, halves of characters, or numbers that are none, as vLLM's; None otherwise."""
    try:
        read = json.loads(received.decode("utf-8-sig", "replace"))
        whole = json.loads(json.dumps(read, ensure_ascii=False).encode("utf-8", "replace"))
        found: object = decode_json(msgspec.json.encode(whole))
    except (ValueError, OverflowError, RecursionError):
        found = None
    return found


async def _close(response: aiohttp.ClientResponse) -> None:
    """Close the response; a connection whose body was read to its end is back in the pool, and stays open."""
    response.close()


_Choice: TypeAlias = tuple[int, dict[str, Any], str | None, dict[str, Any] | None, dict[str, Any]]
"""Index, message or delta, finish reason, logprobs, and what else is there."""
_OF_CHOICE = frozenset({"delta", "finish_reason", "index", "logprobs", "message", "text"})
_MOST_PIECES = 500_000
"""Events of a stream."""
_TURN = 32
"""Events of a stream that are read before other requests have their turn."""
_MOST_VALUES = 500_000
"""Commas and opening brackets of an answer, those in texts included."""
_SMALL = 65_536
"""Bytes of an answer whose values are not counted."""
_USAGES = ("usage", "usageMetadata", "usage_metadata", "meta")
"""Names of an answer's usage, at Google and Cohere too."""
_NO_CHOICE: list[_Choice] = [(0, {}, None, None, {})]


def _says(message: Mapping[str, Any]) -> bool:
    """Whether a message or delta has content."""
    return any(message.get(key) for key in _CONTENT)


def _usages(body: Mapping[str, Any]) -> list[Any]:
    """What may be the usage of an answer or chunk: Moonshot has it in a stream's last choice, Groq in an own object."""
    choices = body.get("choices")
    places = (body, choices[0] if isinstance(choices, list) and choices else None, body.get("x_groq"))
    named = (place.get(name) for place in places if isinstance(place, dict) for name in _USAGES)
    beside = body if "prompt_eval_count" in body or "eval_count" in body else None  # Ollama
    return [each for each in (*named, beside) if each and isinstance(each, dict)]


def _usage(body: Mapping[str, Any]) -> Usage | None:
    return _used(_usages(body))


def _used(usages: list[Any]) -> Usage | None:
    """Read the first usage that says something."""
    found = (usage for each in usages if (usage := read_usage(each)) is not None)
    return next((usage for usage in found if usage != Usage()), None)


class _Same:
    """A function that is called anew when its argument is another one: most events of a stream have much in common."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._last: tuple[Any, Any] = (), None

    def __call__(self, given: Any) -> Any:
        if self._last[0] != given:
            self._last = given, self._function(given)
        return self._last[1]


def _without_places(message: dict[str, Any], host: str) -> dict[str, Any]:
    """Leave fields out of a message or delta that are not of its format and say where it was made."""
    if message.keys() <= _SPOKEN:
        return message
    return {name: each for name, each in message.items() if name in _SPOKEN or not names_address(each, host)}


def _choices(body: Mapping[str, Any], key: str, n: int, host: str = "") -> list[_Choice]:
    """Return the first n choices of a body, by index; one without an index, or whose text is no message, is read."""
    found: dict[int, _Choice] = {}
    given = body.get("choices")
    choices = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    for choice in choices:
        index = choice.get("index")
        if not isinstance(index, int) or (n == 1 and key == "message" and len(choices) == 1):
            index = int(index) if isinstance(index, str) and index.isdecimal() and len(index) < 5 else 0
        if isinstance(index, int) and 0 <= index < n and index not in found:
            content, reason, logprobs = choice.get(key), choice.get("finish_reason"), choice.get("logprobs")
            if not content and (content is None or key == "message"):  # of streams that are none, and of old servers
                content = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
            found[index] = (
                index,
                _without_places(content, host) if isinstance(content, dict) else {},
                reason[:64] if isinstance(reason, str) and reason else None,  # some send an empty one with each piece
                logprobs if isinstance(logprobs, dict) else None,
                {name: choice[name] for name in choice.keys() - _OF_CHOICE},
            )
    return [found[index] for index in sorted(found)]
