"""What one caller sends cannot stop the gateway, take its memory, or read what is not the caller's."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import logging
import os
import resource
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kits.gateway import Echo, chat, client, config, make_router, raw, serving, wait_for

from fitrouter.config import parse_config
from fitrouter.context.features import session_key
from fitrouter.errors import InvalidRequest
from fitrouter.hooks import Happened
from fitrouter.providers import decode_json
from fitrouter.router import Router
from fitrouter.stores.identities import SqliteIdentities
from fitrouter.types import Attempt, Call, Chunk, Completion, Execution, Identity, Request
from fitrouter_dashboards.metrics import Metrics
from fitrouter_evaluators.scoring.statements._polarity import units
from fitrouter_evaluators.scoring.statements.topics import topic_units
from fitrouter_integrations.gateway._logging import FloodFilter, unblocked
from fitrouter_integrations.gateway._worker import Server, server_of
from fitrouter_integrations.gateway.asgi import _bodies, _limits
from fitrouter_integrations.gateway.asgi._bodies import Bodies
from fitrouter_integrations.gateway.asgi._json import read_json
from fitrouter_integrations.gateway.asgi._limits import Connections, connection_limit
from fitrouter_integrations.gateway.asgi._wire import Problem
from fitrouter_integrations.gateway.parsing._requests import chat_request

KEYS = {"KEY_A": "aaaa-secret-of-tenant-a", "KEY_B": "bbbb-secret-of-the-operator", "KEY_S": "ssss-secret-of-a-scraper"}
NAMED = [
    {"name": "team-a", "tenant": "a", "key_env": "KEY_A"},
    {"name": "operator", "key_env": "KEY_B", "admin": True},
    {"name": "prometheus", "tenant": "ops", "key_env": "KEY_S", "metrics": True},
]


@pytest.fixture
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


def speaking(url: str, key: str) -> httpx.Client:
    return client(url, headers={"authorization": f"Bearer {KEYS[key]}"})


# --- work per byte: these bodies took minutes to hours when the parser was quadratic --------------------------------

ENDLESS: dict[str, bytes] = {
    "escaped quotes that never close": b"[" * 65 + b'"\\' * 4_000_000,
    "quotes and backslashes": b"[" * 65 + b'\\"' * 4_000_000,
    "brackets in a string that never closes": b"[" * 65 + b'"' + b"[" * 8_000_000,
    "strings that never begin": b"[" * 65 + b'\\\\"' * 2_000_000,
    "digits": b'{"a": ' + b"9" * 8_000_000 + b"}",
    "negative digits": b'{"a": ' + b"-" * 100 + b"9-" * 4_000_000 + b"}",
    "digits of a fraction, then an exponent": b'{"a": 0.' + b"9" * 8_000_000 + b"e99999}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_parsing_is_linear(name: str) -> None:
    """Bodies of eight megabytes that are made to be read again and again are refused after one reading."""
    with pytest.raises(InvalidRequest):
        read_json(ENDLESS[name])


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([1e308, -5e-324, 1e300])))
def test_numbers_are_read_as_msgspec_reads_them(values: list[float]) -> None:
    """To the last bit; numbers that are too large are refused."""
    text = json.dumps({"a": values})
    assert decode_json(text) == msgspec.json.decode(text)
    with pytest.raises(msgspec.DecodeError, match="out of range"):
        decode_json(f'{{"a": {values}, "b": 1e999}}')


@pytest.mark.parametrize("number", ["1e308", "9E+300", "2.5e-323", "0.1e0308"])
def test_numbers_near_the_limits_of_a_double_are_read_by_python(monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    """Msgspec takes forty times as long for them: a body of eight megabytes would stop the loop for seconds."""
    monkeypatch.setattr("fitrouter.providers._json._FAST", None)
    assert read_json(f'{{"a": [{number}]}}'.encode()) == {"a": [float(number)]}


LONG: dict[str, Any] = {
    "escaped quotes": '"' * 4_000_000,
    "combining marks": "\u0301" * 1_000_000,
    "reminders": "<system-reminder>" * 400_000 + "</",
    "parts": [{"type": "text", "text": "x"}] * 30_000,
}


@pytest.mark.parametrize("name", LONG)
def test_long_texts_are_read_once(name: str) -> None:
    """Long but valid texts become requests, with the same text."""
    body = json.dumps(chat(LONG[name]), ensure_ascii=False).encode()
    request = chat_request(read_json(body), {}, "default")
    assert request.messages[0]["content"] == LONG[name]
    assert len(session_key(request)[0]) == 32


@pytest.mark.parametrize("text", [",", "ﷺ", "and not ", "less ", "; ", "a-"])
def test_statements_are_read_in_part(text: str) -> None:
    """A statement of a profile is read up to 256 tokens: finding its clauses is quadratic in their number."""
    long = (text * 2_000_000)[:2_000_000]
    assert units(long) == units(long[:2_000])
    assert sum(len(unit.text.split()) for unit in topic_units(long)) <= 256


def test_doubled_names_are_found() -> None:
    """A name that is twice in an object is refused, at any depth and length of body; twice in two objects is fine."""
    assert read_json(b'{"a": {"b": 1}, "c": [{"b": 1}, {"b": "\\"b\\": 1"}]}')
    with pytest.raises(InvalidRequest, match="the name 'b' twice"):
        read_json(b'{"a": [[{"b": 1, "\\u0062": 2}]]}')
    with pytest.raises(InvalidRequest, match="a name twice"):
        read_json(b'{"a": [[{"b": 1, "b": 2}]], "c": "' + b"x" * 20_000 + b'"}')


# --- memory of bodies ------------------------------------------------------------------------------------------------


def test_the_bodies_in_flight_are_bounded() -> None:
    """In total and for each tenant; a request that is alone is admitted, and what is released can be held again."""
    bodies = Bodies(total=100, share=50)
    big = bodies.hold("a")
    big.add(80)
    with pytest.raises(Problem) as caught:
        bodies.hold("a").add(1)
    assert (caught.value.status, caught.value.code) == (503, "overloaded")
    assert caught.value.headers["retry-after"]
    other = bodies.hold("b")
    other.add(20)
    with pytest.raises(Problem):
        other.add(1)
    big.release()
    big.release()
    other.add(30)
    with pytest.raises(Problem):
        bodies.hold("b").add(1)
    bodies.hold("c").add(50)


def _slow(url: str, announced: int, sent: bytes) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=300.0)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    connection.sendall(f"{head}content-length: {announced}\r\n\r\n".encode() + sent)
    return connection


def test_slow_bodies_cannot_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that do not end are refused at the bound and time out; afterwards there is room again."""
    monkeypatch.setattr(_bodies, "STALL_S", 0.5)
    with serving(make_router(tmp_path), config(max_inflight_bytes=300_000)) as url, ExitStack() as stack:
        slow = [stack.enter_context(_slow(url, 200_000, b'{"a": "' + b"x" * 90_000)) for _ in range(6)]
        answers = [b"".join(iter(lambda c=c: c.recv(65_536), b"")) for c in slow]  # type: ignore[misc]
        codes = sorted(answer[9:12] for answer in answers)
        assert set(codes) == {b"408", b"503"}
        assert all(b'"error"' in answer for answer in answers)
        with client(url) as http:
            assert http.post("/v1/chat/completions", json=chat("x" * 90_000)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_body_is_released_at_the_end_of_its_answer(tmp_path: Path, stream: bool) -> None:
    """Whole and streamed answers, errors, and clients that leave give back what their bodies held."""
    with serving(make_router(tmp_path), config(max_inflight_bytes=150_000)) as url, client(url) as http:
        for _ in range(4):
            assert http.post("/v1/chat/completions", json=chat("x" * 100_000, stream=stream)).status_code == 200
            assert http.post("/v1/chat/completions", json=chat("x" * 100_000, n=0)).status_code == 400
            with http.stream("POST", "/v1/chat/completions", json=chat("x" * 100_000, stream=stream)):
                pass
        huge = chat("x", metadata={f"k{i}": {} for i in range(20_000)})
        with http.stream("POST", "/v1/chat/completions", json=chat("x", stream=True)):
            pass
        assert http.post("/v1/chat/completions", json=huge).status_code == 200, "alone, it is admitted"


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize(
    ("path", "status"), [("/v1/chat/completions", 413), ("/v1/nowhere", 404), ("/v1/feedback", 413)]
)
def test_a_refused_body_gets_an_answer_and_no_reset(tmp_path: Path, version: str, path: str, status: int) -> None:
    """A client that sends all of a long body before it reads finds the error in OpenAI's format."""
    with serving(make_router(tmp_path), config(max_body_bytes=100_000)) as url:
        body = b"x" * 8_000_000
        head = f"POST {path} HTTP/{version}\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        head += f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        answer = raw(url, head.encode() + body)
        assert answer.startswith(b"HTTP/1.1 %d" % status)
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"]


def test_a_refused_body_leaves_the_connection_usable(tmp_path: Path) -> None:
    """The rest of a refused body is read, so that the next request on the connection is understood."""
    with serving(make_router(tmp_path), config(max_body_bytes=100_000)) as url:
        host, port = url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=300.0)
        for _ in range(3):
            connection.request("POST", "/v1/feedback", b"x" * 300_000, {"content-type": "application/json"})
            reply = connection.getresponse()
            assert (reply.status, json.loads(reply.read())["error"]["code"]) == (413, "too_large")
        connection.close()


def test_expecting_clients_do_not_send_a_body_that_is_too_long(tmp_path: Path) -> None:
    """With `Expect: 100-continue` the answer is 413 without 100, and the connection is closed."""
    with serving(make_router(tmp_path), config(max_body_bytes=1000)) as url:
        head = b"POST /v1/feedback HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        answer = raw(url, head + b"expect: 100-continue\r\ncontent-length: 5000\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"100 Continue" not in answer


# --- connections -----------------------------------------------------------------------------------------------------


def test_refusals_of_the_protocol_are_in_openais_format(tmp_path: Path) -> None:
    """What is not HTTP, and headers that are too long, get an error object, though their sender goes on sending."""
    with serving(make_router(tmp_path)) as url:
        for payload, status in (
            (b"\x16\x03\x01" * 30_000, 400),
            (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 1_000_000, 431),
            (b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
        ):
            answer = raw(url, payload)
            assert answer.startswith(b"HTTP/1.1 %d" % status)
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]


def test_an_error_is_not_written_into_an_answer(tmp_path: Path) -> None:
    """A pipelined request with headers that are too long ends the connection; its error is no answer to the first."""
    released, waiting = asyncio.Event(), Echo()

    async def complete(call: Call) -> Any:
        waiting.calls.append(call)
        await released.wait()

    waiting.complete = complete  # type: ignore[method-assign]
    with serving(make_router(tmp_path, {"echo": waiting})) as url, ExitStack() as stack:
        body = json.dumps(chat()).encode()
        connection = stack.enter_context(_slow(url, len(body), body))
        wait_for(lambda: waiting.calls)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 100_000)
        connection.settimeout(60.0)
        with suppress(ConnectionResetError):
            assert connection.recv(100) == b""


def test_idle_connections_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit of connections the one that is idle longest is closed, and a client that asks is answered."""
    monkeypatch.setattr(_limits, "MAX_CONNECTIONS", 8)
    with serving(make_router(tmp_path)) as url, ExitStack() as stack:
        host, port = url.removeprefix("http://").split(":")
        idle = [stack.enter_context(socket.create_connection((host, int(port)), timeout=300.0)) for _ in range(30)]
        with client(url) as http:
            assert http.get("/healthz").status_code == 200
        assert idle[0].recv(10) == b""


def test_connections_that_are_all_busy_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If every connection waits for its answer, a new one gets 503 in OpenAI's format."""
    released = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    class Waiting(Echo):
        async def complete(self, call: Call) -> Any:
            self.calls.append(call)
            loops[:] = [asyncio.get_running_loop()]
            await released.wait()
            return Completion(message={"role": "assistant", "content": "x"})

    monkeypatch.setattr(_limits, "MAX_CONNECTIONS", 8)
    waiting = Waiting()
    with serving(make_router(tmp_path, {"echo": waiting})) as url, ExitStack() as stack:
        body = json.dumps(chat()).encode()
        busy = [stack.enter_context(_slow(url, len(body), body)) for _ in range(8)]
        wait_for(lambda: len(waiting.calls) == 8)
        answer = raw(url, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "overloaded"
        loops[0].call_soon_threadsafe(released.set)
        assert all(connection.recv(12) == b"HTTP/1.1 200" for connection in busy)


def test_connections_stay_below_the_limit_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the descriptors beyond those of the stores are for clients, the other half for upstreams."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert connection_limit() == (1024 - 128) // 2
    assert asked == [(1024, 1024)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 10**6))
    assert connection_limit() == _limits.MAX_CONNECTIONS
    assert asked[1:] == [(65_536, 10**6)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    assert connection_limit() == 8
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert connection_limit() == _limits.MAX_CONNECTIONS
    assert Connections(3).most == 3


async def test_a_lack_of_descriptors_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of every connection that it cannot accept asyncio makes a report; the log says it once, and what to do."""
    server: Any = server_of(Server)  # type: ignore[arg-type]
    loop = asyncio.get_running_loop()
    for _ in range(500):
        error = OSError(24, "Too many open files")
        server._failed(loop, {"message": "socket.accept() out of system resource", "exception": error})
    assert [record.getMessage() for record in caplog.records] == [
        "connections cannot be accepted: Too many open files; raise the limit of open files (ulimit -n)"
    ]
    server._failed(loop, {"message": "something else", "exception": ValueError("x")})
    assert len(caplog.records) == 2


def test_repeated_messages_do_not_flood_the_log() -> None:
    """Twenty of a kind pass per minute; the next minute says how many did not. Other kinds are not affected."""
    now = [0.0]
    flood = FloodFilter(lambda: now[0])

    def record(message: str, *args: object) -> logging.LogRecord:
        return logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, message, args, None)

    assert sum(flood.filter(record("Invalid HTTP request from %s.", i)) for i in range(1000)) == 20
    assert flood.filter(record("another"))
    now[0] = 61.0
    late = record("Invalid HTTP request from %s.", 7)
    assert flood.filter(late)
    assert late.getMessage() == "Invalid HTTP request from 7. [980 more like this were not logged]"
    for i in range(5000):
        flood.filter(record(f"kind {i}"))
    assert len(flood._seen) <= 256


def test_a_log_that_nobody_reads_stops_nobody() -> None:
    """A full pipe blocks whoever writes to it; lines that cannot wait are counted, and told once it is read."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)  # so that a direct write fails instead of waiting for ever
    with os.fdopen(reading) as pipe, os.fdopen(writing, "w") as file:
        stream = unblocked(file)
        for number in range(5_000):
            stream.write(f"{number} {'x' * 100}\n")  # half a megabyte; a pipe holds 64 kB
            stream.flush()
        written, lost = list[int](), 0
        while len(written) + lost < 5_000:
            number, rest = pipe.readline().split(" ", 1)
            if "lines were not logged: nobody read" in rest:
                lost += int(number)
            else:
                written.append(int(number))
    assert written == sorted(written)
    assert len(written) < 3_000


def test_the_last_lines_of_a_process_are_written() -> None:
    """Its end waits for them, a second at most; a stream without a file is written as it is."""
    code = (
        "import sys; from fitrouter_integrations.gateway._logging import unblocked as u; u(sys.stderr).write('x' * 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, check=True).stderr == b"x" * 9
    assert isinstance(stream := unblocked(io.StringIO()), io.StringIO)
    assert stream.write("line") == 4


# --- what needs a key ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_environment")
def test_metrics_and_details_need_a_scope(tmp_path: Path) -> None:
    """Tenants' keys read no metrics; the schema and the details of /readyz need any key, its status none."""
    with serving(make_router(tmp_path), config(keys=NAMED)) as url:
        for key, status in (("KEY_A", 403), ("KEY_B", 200), ("KEY_S", 200)):
            with speaking(url, key) as http:
                reply = http.get("/metrics")
                assert reply.status_code == status
                assert status == 200 or reply.json()["error"]["code"] == "not_admin"
                assert http.get("/openapi.json").json()["openapi"].startswith("3.1")
                assert {"pid", "seq", "digest", "leases", "lag"} <= http.get("/readyz").json().keys()
        with speaking(url, "KEY_S") as http:
            assert http.post("/v1/policy", json={"action": "restore"}).status_code == 403
        with client(url) as http:
            assert http.get("/readyz").json() == {"ready": True, "status": "ok"}
            assert http.get("/openapi.json").status_code == 401
            assert http.get("/metrics").status_code == 401


def test_labels_of_metrics_are_bounded() -> None:
    """Names of errors and roles that clients make up become "other"."""
    metrics = Metrics()
    for i in range(500):
        attempts = (
            Attempt(model="m", probability=1.0, error=f"Error{i}", ms=1.0),
            Attempt(model="m", probability=1.0, error="ProviderTimeout", ms=1.0),
        )
        event = Execution(
            id=f"{i}:execution",
            ts=0.0,
            decision_id=str(i),
            identity=Identity(role=f"role {i}"),
            chosen="m",
            served_by=None,
            status="failed",
            attempts=attempts,
            features=b"",
        )
        metrics(Happened(event))
    lines = [line for line in metrics.render().decode().splitlines() if line.startswith("fitrouter_attempts_failed")]
    assert sorted(lines) == [
        'fitrouter_attempts_failed_total{error="ProviderTimeout",model="m"} 500.0',
        'fitrouter_attempts_failed_total{error="other",model="m"} 500.0',
    ]
    assert len(metrics.render().splitlines()) < 500


def test_users_and_sessions_add_no_series() -> None:
    """However many users, sessions and keys there are: each series of ten users is one of ten thousand."""
    rendered = []
    for users in (10, 10_000):
        metrics = Metrics()
        for i in range(users):
            who = Identity(tenant="t", user=f"user {i}", session=f"session {i}")
            attempts = (Attempt(model="m", probability=1.0, ms=1.0),)
            answered = {"chosen": "m", "served_by": "m", "status": "ok", "attempts": attempts, "payer": f"key {i}"}
            metrics(Happened(Execution(id=f"{i}:execution", ts=0.0, decision_id=str(i), identity=who, **answered)))
        lines = metrics.render().decode().splitlines()
        rendered.append({line.rpartition(" ")[0] for line in lines if line.startswith("fitrouter")})
    few, many = rendered
    assert few == many
    assert len(few) < 2_000


# --- files -----------------------------------------------------------------------------------------------------------


def test_data_files_are_private(tmp_path: Path) -> None:
    """Everything that a router keeps can be read by its owner only, whatever the umask."""
    before = os.umask(0o022)
    try:
        data = tmp_path / "data"
        settings = parse_config(
            {
                "data": str(data),
                "providers": {"s": {"kind": "simulated", "options": {"m": {}}}},
                "models": [{"name": "m", "provider": "s"}],
                "scorer": {"encoder": "none"},
            }
        )

        async def run() -> None:
            async with Router.from_config(settings) as router:
                asked = Request(messages=({"role": "user", "content": "Hi"},), identity=Identity(user="u"))
                await router.complete(asked)
                await router.settled()
                found = router.warehouse
                assert found is not None
                wait_for(lambda: found.path.exists())

        asyncio.run(run())
        for path in (data, *data.rglob("*")):
            allowed = 0o700 if path.is_dir() else 0o600
            assert stat.S_IMODE(path.stat().st_mode) == allowed, path
        assert {"journal.db", "identities.db", "fitrouter.duckdb"} <= {path.name for path in data.iterdir()}
    finally:
        os.umask(before)


# --- hashes ----------------------------------------------------------------------------------------------------------


def test_the_log_confirms_no_guess(tmp_path: Path) -> None:
    """The hash of a session needs the installation's secret, which its processes share and others do not have."""
    asked = Request(messages=({"role": "user", "content": "Am I ill?"},), identity=Identity(user="ann"))
    one, again = SqliteIdentities(tmp_path / "a" / "identities.db"), SqliteIdentities(tmp_path / "a" / "identities.db")
    other = SqliteIdentities(tmp_path / "b" / "identities.db")
    assert len(one.salt) == 32
    assert one.salt == again.salt != other.salt
    keys = {session_key(asked, salt)[0] for salt in (one.salt, again.salt, other.salt, b"")}
    assert len(keys) == 3
    for identities in (one, again, other):
        identities.close()
    reopened = SqliteIdentities(tmp_path / "a" / "identities.db")
    assert reopened.salt == one.salt
    reopened.close()


async def test_decisions_hold_salted_sessions(tmp_path: Path) -> None:
    """A router's decisions have the salted key, so that a conversation is still recognised after a restart."""
    asked = Request(messages=({"role": "user", "content": "Am I ill?"},), identity=Identity(user="ann", session="s"))
    found = []
    for _ in range(2):
        async with make_router(tmp_path) as router:
            found.append((await router.complete(asked)).decision.identity.session)
    assert found[0] == found[1] != session_key(asked)[0]


# --- logprobs --------------------------------------------------------------------------------------------------------

LOGPROBS = {"content": [{"token": "Hi", "logprob": -0.1, "bytes": None, "top_logprobs": []}], "refusal": None}


def test_log_probabilities_pass_through(tmp_path: Path) -> None:
    """Whole and streamed answers carry the log probabilities that were paid for; without them the field is null."""

    class Sure(Echo):
        async def complete(self, call: Call) -> Any:
            answer = await super().complete(call)
            if not isinstance(answer, Completion):
                return self._with(answer, call)
            wanted = LOGPROBS if call.params.get("logprobs") else None
            return Completion(message=answer.message, usage=answer.usage, logprobs=wanted)

        async def _with(self, chunks: Any, call: Call) -> Any:
            async for chunk in chunks:
                wanted = LOGPROBS if call.params.get("logprobs") and chunk.delta else None
                yield Chunk(delta=chunk.delta, finish_reason=chunk.finish_reason, usage=chunk.usage, logprobs=wanted)

    with serving(make_router(tmp_path, {"echo": Sure()})) as url, client(url) as http:
        for wanted, expected in ((True, LOGPROBS), (False, None)):
            whole = http.post("/v1/chat/completions", json=chat(logprobs=wanted)).json()
            assert whole["choices"][0]["logprobs"] == expected
            text = http.post("/v1/chat/completions", json=chat(logprobs=wanted, stream=True)).text
            events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
            given = [event["choices"][0]["logprobs"] for event in events if event["choices"][0]["delta"].get("content")]
            assert given
            assert all(each == expected for each in given)
