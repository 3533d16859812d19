"""The models that an OpenAI-compatible server lists at `/v1/models`, for `fitrouter init`."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from fitrouter.errors import ConfigError, FitrouterError, masked
from fitrouter.providers import Secret
from fitrouter.providers.failures import excerpt
from fitrouter_integrations.commands.setup._prices import PARTS, number, usd_per_million

if TYPE_CHECKING:
    import aiohttp

LIMIT_S = 15.0
"""Time for the whole answer."""
LIMIT_BYTES = 16 * 2**20
MOST = 20
"""Models that are taken without being named."""
_MOST_LISTED = 20_000
"""Models of a list: the largest directories have some thousands."""
_SHOWN, _COMPARED = 6, 100_000
"""Names in a message; characters of all names of a list, up to which a wrong name is compared with each."""
_LONGEST = 200
"""Characters of a model's name."""
_LARGEST_WINDOW, _DEAREST = 10**9, 1.0
"""Tokens, and USD per token: what is above is no window, and no price."""


class Listed(NamedTuple):
    """A model of the list: its id and its entry."""

    id: str
    window: int | None = None
    """Tokens."""
    usd_per_million: dict[str, float] | None = None
    """Input and output price, where the list has them (as OpenRouter's has)."""


class Listing(NamedTuple):
    """A server's models, and the URL that its API is under."""

    base_url: str
    models: tuple[Listed, ...]


class NoList(FitrouterError):
    """The server has no list of models."""


def ask(base_url: str, key: Secret | None, key_env: str | None, limit_s: float = LIMIT_S) -> Listing:
    """Ask a server for its models, at `{base_url}/models` or `{base_url}/v1/models`. Redirects are not followed.

    Args:
        base_url: URL up to and including /v1, or without it.
        key: sent as a bearer token.
        key_env: name of the variable that holds the key, for messages.
        limit_s: time for all of it.

    Raises:
        ConfigError: the URL is no URL, nothing answers there, or the key is refused.
        NoList: the server answers, but with no list of models.
    """
    parts = urlsplit(base_url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"--base-url: {base_url!r} is not a URL; give one such as http://127.0.0.1:8000/v1")
    if parts.username or parts.password:
        raise ConfigError("--base-url contains a user or password; put the key in a variable, and name it by --key-env")
    base_url = base_url.rstrip("/")
    tried = [base_url] if base_url.endswith("/v1") else [base_url, f"{base_url}/v1"]
    return asyncio.run(_first(tried, key, key_env, limit_s))


async def _first(urls: Sequence[str], key: Secret | None, key_env: str | None, limit_s: float) -> Listing:
    """Get the list of models from the first of the URLs that has one."""
    import aiohttp

    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key.reveal()}"
    reason = ""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=min(5.0, limit_s))
    try:
        async with (
            asyncio.timeout(limit_s),
            aiohttp.ClientSession(timeout=timeout, headers=headers, auto_decompress=False) as session,
        ):
            for url in urls:
                async with session.get(f"{url}/models", allow_redirects=False) as reply:
                    if reply.status in {401, 403}:
                        raise ConfigError(_refused(url, reply.status, key_env))
                    body = await _body(url, reply)
                    models = _models(body) if reply.status == 200 else None
                    if models is not None:
                        return Listing(url, models)
                    reason = reason or _no_list(url, reply, body)
    except TimeoutError:
        raise ConfigError(f"{urls[0]} did not list its models within {limit_s:g} s; try again, or {_CORRECT}") from None
    except aiohttp.ClientConnectionError as error:
        cause = getattr(error, "os_error", None)
        said = getattr(cause, "strerror", None) or str(cause or error) or type(error).__name__
        raise ConfigError(f"nothing answers at {urls[0]} ({said}); start the server, or {_CORRECT}") from None
    except (aiohttp.ClientError, ValueError) as error:
        raise ConfigError(
            f"{urls[0]} does not answer as HTTP servers do ({type(error).__name__}); {_CORRECT}"
        ) from None
    raise NoList(reason)


_CORRECT = "correct --base-url (or OPENAI_BASE_URL)"


async def _body(url: str, reply: aiohttp.ClientResponse) -> bytes:
    received = bytearray()
    async for part in reply.content.iter_chunked(2**16):
        received += part
        if len(received) > LIMIT_BYTES:
            raise NoList(f"{url}/models sent more than {LIMIT_BYTES // 2**20} MB, which is no list of models")
    return bytes(received)


def _refused(url: str, status: int, key_env: str | None) -> str:
    if key_env is None:
        return f"{url} wants a key ({status}): put it in an environment variable, and name that with --key-env NAME"
    return f"{url} refused the key in {key_env} ({status}); correct its value, or name another variable by --key-env"


def _no_list(url: str, reply: aiohttp.ClientResponse, body: bytes) -> str:
    if 300 <= reply.status < 400:
        target = masked(reply.headers.get("Location", "")[:_LONGEST])
        return f"{url}/models redirects to {target!r}; give the URL that it leads to with --base-url"
    if reply.status != 200:
        return f"{url}/models answered {reply.status} ({excerpt(body)[:120]}); {_CORRECT}, or name models by --model"
    return f"{url}/models is not JSON with a list of models; {_CORRECT}: the URL up to and including /v1"


def _models(body: bytes) -> tuple[Listed, ...] | None:
    """Parse the models of an answer, each once; None if it is no list. A bare list is accepted, too (Together)."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    entries = found.get("data") if isinstance(found, dict) else found
    if not isinstance(entries, list):
        return None
    if len(entries) > _MOST_LISTED:
        raise NoList(f"the list has {len(entries):,} models, more than the {_MOST_LISTED:,} that are read")
    models: dict[str, Listed] = {}
    for entry in entries:
        name = entry.get("id") if isinstance(entry, dict) else None
        if isinstance(name, str) and name.isprintable() and 0 < len(name.strip()) <= _LONGEST:
            models.setdefault(name, Listed(name, _window(entry), _prices(entry.get("pricing"))))
    return tuple(models.values())


def _window(entry: Mapping[str, Any]) -> int | None:
    """Return the context window of an entry, under vLLM's, OpenRouter's or Groq's name for it."""
    for name in ("max_model_len", "context_length", "context_window"):
        value = entry.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _LARGEST_WINDOW:
            return value
    return None


_PARTS = {
    "input": "prompt",
    "output": "completion",
    "cache_read": "input_cache_read",
    "cache_write": "input_cache_write",
    "reasoning": "internal_reasoning",
    "audio_input": "audio",
    "request": "request",
}
"""Part of our prices → OpenRouter's name for it."""


def _prices(pricing: object) -> dict[str, float] | None:
    """Convert OpenRouter's USD per token to USD per million tokens; None for prices that vary (-1 there)."""
    if not isinstance(pricing, dict):
        return None
    given = {PARTS[part]: pricing.get(name) for part, name in _PARTS.items()}
    return usd_per_million({name: each for name, each in given.items() if (number(each) or 0.0) <= _DEAREST})


def chosen(listing: Listing, names: Sequence[str], unfit: Mapping[str, str]) -> tuple[Listed, ...]:
    """Return the models of a listing to route between.

    Args:
        listing: what the server has.
        names: what the user named; empty takes all that answer chats.
        unfit: model → why it cannot be routed to.

    Raises:
        ConfigError: there are none, a named one is not there, or there are too many to take without being named.
    """
    url, known = listing.base_url, {model.id: model for model in listing.models}
    if not known:
        raise ConfigError(f"{url} lists no models; load one there, or name models by --model")
    if wrong := next((name for name in names if name not in known), None):
        near = _near(wrong[:_LONGEST], known) or sorted(known)[:_SHOWN]
        more = f" and {len(known) - len(near):,} more" if len(known) > len(near) else ""
        said = f"--model: {url} does not list {wrong[:_LONGEST]!r}"
        raise ConfigError(f"{said}; it lists {', '.join(map(repr, near))}{more}")
    if names:
        return tuple(known[name] for name in dict.fromkeys(names))
    fit = [model for name, model in known.items() if name not in unfit]
    if not fit:
        raise ConfigError(f"{url} lists no model that answers chats, only {', '.join(sorted(known)[:_SHOWN])}")
    if len(fit) > MOST:
        shown = ", ".join(model.id for model in fit[:_SHOWN])
        raise ConfigError(
            f"{url} lists {len(fit):,} models ({shown} …), too many to route between; name those to use, two or more: "
            f"--model NAME --model NAME"
        )
    return tuple(fit)


def _near(wrong: str, known: Mapping[str, Listed]) -> list[str]:
    """Return listed names like a wrong one: similar ones of a short list, those that contain it of a long one."""
    if sum(map(len, known)) > _COMPARED:
        return [name for name in sorted(known, key=len) if wrong.lower() in name.lower()][:_SHOWN]
    return difflib.get_close_matches(wrong, known, n=3, cutoff=0.4)
