"""Speaking to a running gateway from the command line."""

from __future__ import annotations

import os
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import msgspec

from fitrouter.config import Config
from fitrouter.errors import ConfigError, FitrouterError, InvalidRequest, NotAuthorized, UnknownDecision

KEY_ENV = "FITROUTER_API_KEY"
"""Environment variable of the key that the command line sends."""

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class NoGateway(FitrouterError):
    """Nobody answers there."""


def url_of(config: Config) -> str:
    """Where the gateway of a configuration listens, seen from this machine.

    >>> from fitrouter.config import parse_config
    >>> models = {"providers": {"s": {"kind": "simulated"}}, "models": [{"name": "m", "provider": "s"}]}
    >>> url_of(parse_config(models))
    'http://127.0.0.1:8484'
    """
    host = config.server.host
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - it listens everywhere, so here too
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return f"http://[{host}]:{config.server.port}" if ":" in host else f"http://{host}:{config.server.port}"


def call(method: str, url: str, path: str, body: Any = None, *, timeout_s: float = 10.0) -> Any:
    """What a gateway answers, as parsed JSON; the key comes from the environment.

    Args:
        method: of HTTP.
        url: of the gateway, such as `http://127.0.0.1:8484`; a trailing `/v1` is taken off.
        path: such as `/v1/policy`.
        body: sent as JSON; None for no body.
        timeout_s: how long to wait.

    Raises:
        ConfigError: the URL is none.
        NoGateway: nobody answers.
        InvalidRequest, NotAuthorized, UnknownDecision, FitrouterError: what the gateway says.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"--url: {url!r} is no address of a gateway; give one like http://127.0.0.1:8484")
    headers = {"accept": "application/json"}
    if body is not None:
        headers["content-type"] = "application/json"
    if key := os.environ.get(KEY_ENV, "").strip():
        headers["authorization"] = f"Bearer {key}"
    address = url.rstrip("/").removesuffix("/v1") + path
    data = None if body is None else msgspec.json.encode(body)
    request = Request(address, data=data, headers=headers, method=method)  # noqa: S310 - the scheme was checked
    opener = build_opener(*([ProxyHandler({})] if parts.hostname in _LOOPBACK else []))
    try:
        with opener.open(request, timeout=timeout_s) as reply:
            return msgspec.json.decode(reply.read())
    except HTTPError as error:
        raise _refused(error, url) from None
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise NoGateway(
            f"no gateway answers at {url} ({reason}); start one with `fitrouter serve`, or say --url"
        ) from None
    except msgspec.DecodeError:
        raise NoGateway(f"what answers at {url} is no fitrouter gateway") from None


def _refused(error: HTTPError, url: str) -> FitrouterError:
    """What a gateway says against a request, as the error that it stands for."""
    try:
        told = msgspec.json.decode(error.read())["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError, OSError):
        told = f"the gateway at {url} answers {error.code}"
    match error.code:
        case 401 | 403:
            return NotAuthorized(f"{told}; the command line sends the key in the environment variable {KEY_ENV}")
        case 404:
            return UnknownDecision(told)
        case 400 | 405 | 409 | 422:
            return InvalidRequest(told)
        case _:
            return FitrouterError(told)
