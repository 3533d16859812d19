"""HTTP requests from the command line to a running gateway."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import msgspec

from fitrouter.errors import ConfigError, FitrouterError, InvalidRequest, NotAuthorized, StoreError, UnknownDecision

if TYPE_CHECKING:
    from fitrouter.config import Config

KEY_ENV = "FITROUTER_API_KEY"
"""Environment variable of the API key that clients send."""

URL_ENV = "FITROUTER"
"""Environment variable that may hold the URL of the gateway that commands ask."""
LISTENS = "gateway.url"
"""File in the data folder with the process id and the URL of the gateway that was started there last."""

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class NoGateway(FitrouterError):
    """No fitrouter gateway answers at an address."""


def url_of(config: Config) -> str:
    """Where a configuration's gateway is asked: where the one that runs listens, else at the configured address."""
    try:
        process, url = (config.data / LISTENS).read_text(encoding="utf-8").split()
        os.kill(int(process), 0)
    except (FileNotFoundError, PermissionError, ProcessLookupError, ValueError):  # none runs, or it is another user's
        return configured_url(config)
    return url


def configured_url(config: Config) -> str:
    """The local address of a configuration's gateway.

    >>> from fitrouter.config import parse_config
    >>> models = {"providers": {"s": {"kind": "simulated"}}, "models": [{"name": "m", "provider": "s"}]}
    >>> configured_url(parse_config(models))
    'http://127.0.0.1:8484'
    """
    host = config.server.host
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - it listens on every interface, this one included
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return f"http://[{host}]:{config.server.port}" if ":" in host else f"http://{host}:{config.server.port}"


def call(
    method: str,
    url: str,
    path: str,
    body: Any = None,
    *,
    identity: Mapping[str, str | None] | None = None,
    timeout_s: float = 10.0,
    answers: Collection[int] = (),
) -> Any:
    """Send a request to a gateway and return its JSON answer; the API key comes from the environment.

    Args:
        method: HTTP method.
        url: of the gateway, such as `http://127.0.0.1:8484`, with or without `/v1`.
        path: such as `/v1/policy`.
        body: sent as JSON; None for no body.
        identity: user and role, sent as headers.
        timeout_s: time limit.
        answers: statuses of errors whose JSON is returned, too.

    Raises:
        ConfigError: the URL is invalid.
        NoGateway: nothing answers there.
        InvalidRequest, NotAuthorized, UnknownDecision, FitrouterError: the gateway refuses the request.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"--url: {url!r} is not the URL of a gateway; give one like http://127.0.0.1:8484")
    headers = headers_for(identity or {}, body)
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
        return answered(error.code, error.read(), url, answers)
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise NoGateway(
            f"no gateway answers at {url} ({reason}); start one with `fitrouter serve`, or give --url"
        ) from None
    except msgspec.DecodeError:
        raise NoGateway(f"the server at {url} is not a fitrouter gateway") from None


def headers_for(identity: Mapping[str, str | None], body: Any) -> dict[str, str]:
    """Headers of a request: whom it is about, and the type of its body."""
    headers = {"accept": "application/json"}
    for name, value in identity.items():
        if value is not None:
            headers[f"x-fitrouter-{name}"] = value.encode("utf-8").decode("latin-1")
    return headers if body is None else headers | {"content-type": "application/json"}


def answered(status: int, content: bytes, url: str, answers: Collection[int] = ()) -> Any:
    """Decode a gateway's answer; a status of 400 or more that is not in `answers` raises what it stands for."""
    if status < 400 or status in answers:
        return msgspec.json.decode(content)
    try:
        error = msgspec.json.decode(content)["error"]
        message, code = error["message"], error.get("code")
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        message, code = f"the gateway at {url} answered {status}", ""
    match status, code:
        case _, "no_quiz":
            raise ConfigError(message)
        case 401 | 403, _:
            raise NotAuthorized(f"{message}; the command line sends the key in the environment variable {KEY_ENV}")
        case 404, _:
            raise UnknownDecision(message)
        case 400 | 405 | 409 | 422, _:
            raise InvalidRequest(message)
        case _, "store_unavailable":
            raise StoreError(message)
        case _:
            raise FitrouterError(message)
