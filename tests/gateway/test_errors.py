"""The table of errors in docs/http-api.md: it is complete, and each of its codes is produced here with its message."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
from tests.kits.gateway import Echo, chat, client, config, make_router, raw, serving, wait_for
from typer.testing import CliRunner

from fitrouter.errors import (
    ContextOverflow,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
    RateLimited,
    StoreError,
)
from fitrouter.providers import Fault, Faulty
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import Call, Chunk, Completion, EmbeddingCall, Embeddings, ModelCard
from fitrouter_integrations._errors import CODES
from fitrouter_integrations.commands.running.keys import app
from fitrouter_integrations.gateway import _keys, _whole_log
from fitrouter_integrations.gateway.asgi import _bodies
from fitrouter_integrations.gateway.asgi._admission import Limit
from fitrouter_integrations.gateway.asgi._wire import as_problem
from fitrouter_integrations.gateway.parsing._schema import error_codes

ROOT = Path(__file__).parents[2]
GATEWAY = ROOT / "integrations" / "fitrouter_integrations" / "gateway"
Error: TypeAlias = tuple[int, str, str]
"""Status, code and message."""


class Moody(Echo):
    """Answers, or fails as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.error: ProviderError | None = None

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        if self.error is not None:
            raise self.error
        return await super().complete(call)

    async def embed(self, call: EmbeddingCall) -> Embeddings:
        if self.error is not None:
            raise self.error
        return await super().embed(call)


class Place:
    """A gateway whose provider, journal and router fail on demand."""

    def __init__(self, folder: Path, patched: pytest.MonkeyPatch) -> None:
        self.folder, self.patched = folder, patched
        patched.setattr(_keys, "WATCH_S", 0.0)
        self.provider, self.full = Moody(), False
        self.router = make_router(
            folder,
            {"echo": self.provider},
            journal=MemoryJournal(fault=self._fault),
            embeddings=[ModelCard(name="small", provider="echo", target="small")],
        )
        self.settings = config(max_body_bytes=2_000_000).model_copy(update={"data": folder / "data"})
        self.url = ""

    def _fault(self, step: str) -> None:
        if self.full and step == "insert":
            raise StoreError("the disk is full")

    def post(self, path: str, body: Any = None, key: str = "", **more: Any) -> Error:
        return self.ask("POST", path, key, json=chat() if body is None else body, **more)

    def ask(self, method: str, path: str, key: str = "", **more: Any) -> Error:
        with client(self.url) as http:
            if key:
                http.headers["authorization"] = f"Bearer {key}"
            return said(http.request(method, path, **more))

    def key(self, name: str, *options: str) -> str:
        """A new key, after which requests without one are refused."""
        file = self.folder / "fitrouter.yaml"
        file.write_text("data: data\nproviders: {s: {kind: simulated}}\nmodels: [{name: m, provider: s}]\n")
        done = CliRunner().invoke(app, ["create", name, *options, "--config", str(file)], catch_exceptions=False)
        return done.stdout.strip()

    def failing(self, error: ProviderError) -> Error:
        self.provider.error = error
        return self.post("/v1/chat/completions")

    def embedding(self, error: ProviderError) -> Error:
        self.provider.error = error
        return self.post("/v1/embeddings", {"model": "small", "input": "x"})

    def until(self, code: str, ask: Callable[[], Error]) -> Error:
        """The error of the first of many requests that is answered with a code."""
        for _ in range(200):
            if (found := ask())[1] == code:
                return found
        raise AssertionError(f"no {code}")


def said(reply: httpx.Response) -> Error:
    found = reply.json().get("error", {})
    return reply.status_code, found.get("code", ""), found.get("message", "")


def of(act: Callable[[], object]) -> Error:
    """The error response for an exception."""
    with pytest.raises(Exception) as raised:
        act()
    problem = as_problem(raised.value)
    return problem.status, problem.code, problem.message


def raw_error(payload: bytes, url: str) -> Error:
    head, _, body = raw(url, payload).partition(b"\r\n\r\n")
    found = json.loads(body)["error"]
    return int(head.split()[1]), found["code"], found["message"]


def crowded(limit: Limit, *tenants: str) -> Error:
    return of(lambda: [limit.enter(tenant) for tenant in tenants])


def late(place: Place) -> Error:
    place.patched.setattr(_bodies, "STALL_S", 0.05)
    head = (
        b"POST /v1/feedback HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"
    )
    return raw_error(head, place.url)


def gone(_: Place) -> Error:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def read() -> object:
        held = _bodies.Bodies(1000, 1000).hold("default")
        return await _bodies.json_body(receive, {"content-type": b"application/json"}, 1000, held)

    return of(lambda: asyncio.run(read()))


def broken(place: Place) -> Error:
    place.patched.setattr(place.router.lists, "answers", lambda *_, **__: 1 / 0)
    return place.ask("GET", "/v1/decisions")


def full(place: Place) -> Error:
    place.full = True
    with client(place.url) as http:
        place.full = False
        decision = http.post("/v1/chat/completions", json=chat()).headers["x-fitrouter-decision"]
    place.full = True
    return place.post("/v1/feedback", {"decision_id": decision, "value": "up"})


def stopped(folder: Path, *, streamed: bool) -> Error:
    """What a request gets whose gateway stops before its answer ends."""
    provider = Faulty(Echo(), [Fault(hang=True, after=2 if streamed else 0)])
    texts: list[str] = []
    with serving(make_router(folder, {"echo": provider}), grace_s=0.1) as url:

        def read() -> None:
            with client(url) as http:
                texts.append(http.post("/v1/chat/completions", json=chat(stream=streamed)).text)

        reader = threading.Thread(target=read)
        reader.start()
        wait_for(lambda: provider.calls)
    reader.join(300.0)
    last = [line.removeprefix("data: ") for line in texts[0].splitlines() if "error" in line][-1]
    found = json.loads(last)["error"]
    return (500 if streamed else 503), found["code"], found["message"]


def often(place: Place) -> Error:
    key = place.key("slow", "--requests-per-minute", "1")
    return place.until("rate_limited", lambda: place.ask("GET", "/v1/models", key))


def busy(place: Place) -> Error:
    """A second request for the whole log, while the first one is answered."""
    begun, go_on = threading.Event(), threading.Event()

    async def slow(*_: object, **__: object) -> dict[str, Any]:
        begun.set()
        await asyncio.to_thread(go_on.wait, 300.0)
        return {}

    place.patched.setattr(_whole_log, "in_background", slow)
    first = threading.Thread(target=lambda: place.ask("GET", "/v1/satisfaction"))
    first.start()
    assert begun.wait(300.0)
    found = place.ask("GET", "/v1/exposure")
    go_on.set()
    first.join(300.0)
    return found


def unknown_key(place: Place) -> Error:
    place.key("app")
    return place.post("/v1/chat/completions", key="x" * 20)


def tokens_wanted(place: Place) -> Error:
    feedback = place.settings.feedback.model_copy(update={"require_token": True})
    key = place.key("app")
    with serving(make_router(place.folder / "other"), place.settings.model_copy(update={"feedback": feedback})) as url:
        place.url = url
        return place.post("/v1/feedback", {"decision_id": "x", "value": "up"}, key)


PICTURE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}]}]
PRODUCED: dict[str, tuple[Callable[[Place], Error], tuple[str, ...]]] = {
    "invalid_request": (
        lambda p: p.post("/v1/feedback", {"decision_id": "x", "kind": "clap"}),
        ("kind", "'clap'", "allowed are thumb"),
    ),
    "forbidden_field": (lambda p: p.post("/v1/chat/completions", chat(base_url="http://x")), ("base_url",)),
    "no_eligible_model": (
        lambda p: p.post("/v1/chat/completions", chat() | {"messages": PICTURE}),
        ("alpha", "images"),
    ),
    "context_length_exceeded": (
        lambda p: p.failing(ContextOverflow("alpha takes 10 tokens", 400)),
        ("alpha takes 10",),
    ),
    "provider_rejected": (lambda p: p.failing(ProviderRejected("seed: not a number", 400)), ("seed: not a number",)),
    "client_gone": (gone, ("disconnected before",)),
    "invalid_http": (lambda p: raw_error(b"\x16\x03\x01\x02\x00\x01\r\n\r\n", p.url), ("Send HTTP/1.1",)),
    "invalid_api_key": (unknown_key, ("Bearer KEY", "unknown")),
    "missing_scope": (lambda p: p.ask("GET", "/v1/policy", p.key("app", "--scopes", "chat")), ("'read'", "are chat")),
    "not_authorized": (lambda p: p.ask("GET", "/v1/users", p.key("app")), ("trusted: true",)),
    "token_required": (tokens_wanted, ("token: missing", "fitrouter.token")),
    "not_admin": (lambda p: p.post("/v1/policy", {"action": "restore"}, p.key("app")), ("admin key",)),
    "wrong_host": (
        lambda p: p.ask("GET", "/v1/models", headers={"host": "evil.example"}),
        ("'evil.example'", "127.0.0.1", "keys create"),
    ),
    "foreign_origin": (
        lambda p: p.ask("GET", "/v1/models", headers={"origin": "https://evil.example"}),
        ("'https://evil.example'", "server.cors"),
    ),
    "not_found": (lambda p: p.ask("GET", "/v1/nothing"), ("GET '/v1/nothing'", "/openapi.json")),
    "model_not_found": (lambda p: p.post("/v1/chat/completions", chat(model="x9")), ("'x9'", "GET /v1/models")),
    "unknown_decision": (lambda p: p.ask("GET", "/v1/decisions/d9"), ("'d9'", "fitrouter decisions")),
    "no_quiz": (lambda p: p.post("/v1/quiz", {"user": "ann"}), ("recorded",)),
    "method_not_allowed": (lambda p: p.ask("DELETE", "/v1/models"), ("DELETE '/v1/models'", "wrong method")),
    "request_timeout": (late, ("0.05 s", "send the request again")),
    "too_large": (
        lambda p: p.post("/v1/feedback", {"comment": "x" * 2_000_000}),
        ("2000000 bytes", "max_body_bytes", "shorten"),
    ),
    "unsupported_media_type": (
        lambda p: p.ask("POST", "/v1/feedback", content=b"{}", headers={"content-type": "text/plain"}),
        ("'text/plain'", "allowed is 'application/json'"),
    ),
    "budget_exhausted": (
        lambda p: p.post("/v1/chat/completions", key=p.key("poor", "--usd-per-day", "0.000001")),
        ("USD at most", "of the key's limit of the day (1e-06 USD)", "are left"),
    ),
    "rate_limited": (often, ("'slow'", "its requests, 1 a minute", "wait")),
    "busy": (busy, ("of this tenant", "wait for their answers")),
    "too_many_requests": (lambda p: crowded(Limit(100, 0.01), "a", "a"), ("1 request of yours", "wait for one")),
    "overloaded": (lambda p: crowded(Limit(1), "a", "b"), ("1 request is in progress", "try again")),
    "headers_too_large": (
        lambda p: p.ask("GET", "/v1/models", headers={"x": "y" * 20_000}),
        ("16384 bytes", "send fewer"),
    ),
    "internal_error": (broken, ("see the gateway's log",)),
    "not_implemented": (
        lambda p: p.post("/v1/decisions", {"model": "m", "questions": []}),
        ("OpenAI's Decisions API", "response_format"),
    ),
    "cancelled": (lambda p: stopped(p.folder / "other", streamed=True), ("send the request again",)),
    "all_models_failed": (lambda p: p.failing(ProviderUnavailable("out of order", 500)), ("tried", "out of order")),
    "models_rate_limited": (lambda p: p.failing(RateLimited("slow down", 429, 17.0)), ("tried", "slow down")),
    "provider_error": (lambda p: p.embedding(ProviderUnavailable("out of order", 500)), ("out of order",)),
    "provider_timeout": (lambda p: p.embedding(ProviderTimeout("no answer within 3 s")), ("within 3 s",)),
    "unavailable": (
        lambda p: p.until("unavailable", lambda: p.failing(ProviderUnavailable("quota", 402, 60.0))),
        ("no model can be called now", "alpha"),
    ),
    "store_unavailable": (full, ("disk is full",)),
    "shutting_down": (lambda p: stopped(p.folder / "other", streamed=False), ("send it again",)),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Place(tmp_path, monkeypatch)
    (tmp_path / "other").mkdir()
    with serving(made.router, made.settings) as url:
        made.url = url
        yield made


@pytest.mark.parametrize("code", PRODUCED)
def test_each_error_says_what_was_given_what_is_allowed_and_what_to_do(place: Place, code: str) -> None:
    """The status is one of the table's, and the message has the parts of this code."""
    produce, parts = PRODUCED[code]
    status, found, message = produce(place)
    assert (found, status in error_codes()[code]["statuses"]) == (code, True), (status, message)
    for part in parts:
        assert part in message, message


def codes_in_the_source() -> set[str]:
    """Codes that the modules of the API name."""
    found: set[object] = {code for _, _, code in CODES}
    for path in GATEWAY.rglob("*.py"):
        if path.parent.name in {"console", "me"}:
            continue  # its errors are shown to its users, who are people
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or len(node.args) < 3:
                continue
            if getattr(node.func, "id", getattr(node.func, "attr", "")) in {"Problem", "_refuse", "call_later"}:
                found |= {leaf.value for arg in node.args for leaf in ast.walk(arg) if isinstance(leaf, ast.Constant)}
    return {code for code in found if isinstance(code, str) and re.fullmatch(r"[a-z]+(_[a-z]+)+", code)}


def test_the_table_of_errors_is_complete() -> None:
    """It has every code that the gateway can answer with, each is produced above, and the page shows the table."""
    elsewhere = {
        "busy",
        "cancelled",
        "overloaded",
        "unavailable",
        "not_found",
        "method_not_allowed",
    }  # one word, or not in the call
    assert codes_in_the_source() | elsewhere == set(error_codes()) == set(PRODUCED)
    page = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8")
    for code, error in error_codes().items():
        assert f"| `{code}` | {error['when']} | {error['do']} |" in page, code
