"""Laws of cross-origin requests: pages of listed origins reach the models, and nothing else; others reach nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.kits.gateway import chat, client, config, make_router, serving

from fitrouter.errors import ConfigError

PAGE, OTHER = "http://localhost:3000", "http://localhost:3001"


@pytest.fixture(scope="module", params=[False, True], ids=["no keys", "keys"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """URL of a gateway that pages of `PAGE` may use, and a key of it."""
    key = "k" * 40
    patch = pytest.MonkeyPatch()
    patch.setenv("APP_KEY", key)
    keys = [{"name": "app", "key_env": "APP_KEY", "admin": True}] if request.param else []
    settings = config(cors=[PAGE, "app://obsidian.md"], keys=keys)
    with serving(make_router(tmp_path_factory.mktemp("cors")), settings) as url:
        yield url, key
    patch.undo()


def preflight(http: httpx.Client, path: str, origin: str = PAGE, method: str = "POST") -> httpx.Response:
    asked = "authorization,content-type,x-stainless-lang,anthropic-version,anthropic-dangerous-direct-browser-access"
    headers = {"access-control-request-method": method, "access-control-request-headers": asked}
    headers["access-control-request-private-network"] = "true"  # as Chrome asks on behalf of a page of the internet
    return http.options(path, headers={"origin": origin, **headers})


@pytest.mark.parametrize("origin", [PAGE, "app://obsidian.md"])
def test_a_listed_page_reaches_the_models(place: tuple[str, str], origin: str) -> None:
    """Its preflight and its request succeed, streamed ones too; it may read the headers, and sends no cookie."""
    url, key = place
    with client(url, headers={"authorization": f"Bearer {key}"}) as http:
        asked = preflight(http, "/v1/chat/completions", origin)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == origin
        assert asked.headers["access-control-allow-private-network"] == "true"
        assert "authorization" in asked.headers["access-control-allow-headers"]
        for body in (chat(), chat(stream=True), {}):
            answer = http.post("/v1/chat/completions", json=body, headers={"origin": origin})
            assert answer.status_code == (200 if body else 400)
            assert answer.headers["access-control-allow-origin"] == origin
            assert "x-fitrouter-decision" in answer.headers["access-control-expose-headers"]
            assert "access-control-allow-credentials" not in answer.headers
            assert "origin" in answer.headers["vary"].lower()
        assert http.get("/v1/models", headers={"origin": origin}).headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/v1/policy", "POST"),
        ("/v1/models", "POST"),
        ("/v1/users", "GET"),
        ("/v1/decisions", "GET"),
        ("/metrics", "GET"),
        ("/console", "GET"),
        ("/console/api/login", "POST"),
        ("/console/api/policy", "GET"),
    ],
)
def test_administration_is_for_no_page(place: tuple[str, str], path: str, method: str) -> None:
    """Neither a preflight nor an answer allows a listed page to steer, or to read what administrators read."""
    url, key = place
    with client(url, headers={"authorization": f"Bearer {key}"}) as http:
        answers = [preflight(http, path, method=method), http.request(method, path, headers={"origin": PAGE})]
    for answer in answers:
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("origin", [OTHER, "https://localhost:3000", "http://localhost:3000.evil.example", "null", "*"])
def test_other_pages_read_nothing(place: tuple[str, str], origin: str) -> None:
    """No answer to them allows them to read it; without keys, which a page could not have, they are refused."""
    url, key = place
    with client(url, headers={"authorization": f"Bearer {key}"}) as http:
        assert "access-control-allow-origin" not in preflight(http, "/v1/chat/completions", origin).headers
        answer = http.post("/v1/chat/completions", json=chat(), headers={"origin": origin})
        assert "access-control-allow-origin" not in answer.headers
        if not url_has_keys(http):
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_origin")
            assert answer.headers["content-type"] == "application/json"


def url_has_keys(http: httpx.Client) -> bool:
    return httpx.get(f"{http.base_url}/v1/models").status_code == 401


def test_of_extensions_only_fitrouters_own_is_served(tmp_path: Path) -> None:
    """Without keys a browser's requests for it are no page's; those of other extensions are refused as pages are."""
    manifest = json.loads((Path(__file__).parents[2] / "integrations" / "browser" / "manifest.json").read_text())
    digest = hashlib.sha256(base64.b64decode(manifest["key"])).hexdigest()[:32]
    own = "".join(chr(ord("a") + int(each, 16)) for each in digest)
    with serving(make_router(tmp_path)) as url, client(url) as http:
        for origin, status in ((own, 200), (own[::-1], 403), (f"{own}.example", 403)):
            headers = {"origin": f"chrome-extension://{origin}"}
            answer = http.post("/v1/chat/completions", json=chat(), headers=headers)
            assert answer.status_code == status
            assert "access-control-allow-origin" not in answer.headers
        web = http.post("/v1/chat/completions", json=chat(), headers={"origin": f"https://{own}"})
        assert web.json()["error"]["code"] == "foreign_origin"


def test_without_the_setting_there_are_no_preflights(tmp_path: Path) -> None:
    """It is off by default; a page of the gateway's own host is served, as the console is."""
    with serving(make_router(tmp_path)) as url, client(url) as http:
        assert preflight(http, "/v1/chat/completions").status_code == 405
        for origin, status in ((PAGE, 403), (url, 200), (f"http://{http.base_url.host}:{http.base_url.port}", 200)):
            assert http.post("/v1/chat/completions", json=chat(), headers={"origin": origin}).status_code == status


@pytest.mark.parametrize(
    "origin",
    [
        *("*", "http://*.example.com", "localhost:3000", "http://localhost:3000/", "https://App.example", "null", ""),
        *("https://app.example:443", "http://[::1]:80"),  # browsers leave these ports out
    ],
)
def test_an_origin_is_exact(origin: str) -> None:
    """Patterns, paths and names without a scheme are errors, not ignored."""
    with pytest.raises(ConfigError, match=r"server\.cors.*is no origin; give scheme://host"):
        config(cors=[origin])


def test_the_host_is_checked_first(tmp_path: Path) -> None:
    """A rebound name is no way around: its page's origin is the host that it sends."""
    with serving(make_router(tmp_path), config(cors=[PAGE])) as url, client(url) as http:
        headers = {"host": "evil.example", "origin": "http://evil.example"}
        answer = http.post("/v1/chat/completions", json=chat(), headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "wrong_host")
