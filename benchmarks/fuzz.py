"""Fuzzer of the gateway's HTTP interface: requests made from its OpenAPI schema, and damaged HTTP on raw sockets.

    python -m benchmarks.fuzz --cases 20000 --raw 10000
    python -m benchmarks.fuzz --cases 0 --raw 0 --schemathesis 20000        # needs `pip install schemathesis`
    python -m benchmarks.fuzz --cases 0 --raw 0 --tokens 1000000            # forged outcome tokens, in process

Every case is drawn from a seed, so that `--seed` repeats a run. Required are: no 5xx except 503 (a bound that is full),
answers that the schema describes, at most 50 ms of the event loop's CPU time for each 100 kB of a request, and memory
that does not grow. The loop's time is that of its thread, so that other processes do not count; it includes the
simulated model and what the loop folds meanwhile, but not what an idle loop does in the same time (it polls the
journal). Exits with 1 on any violation.
"""

from __future__ import annotations

import argparse
import functools
import http.client
import json
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import yaml
from benchmarks.gateway.process import Gateway, memory_mb

from fitrouter.errors import NotAuthorized
from fitrouter.serving.tokens import OutcomeTokens

T = TypeVar("T")
LOOP_MS = 50.0
"""Of the event loop's CPU time for each 100 kB of a request."""
GROWTH_MB = 15.0
"""Growth of the memory between the second to fourth and the last three tenths of a run that counts as flat."""
_IDLE_S = 5.0
"""Time for which the idle loop is measured."""
_TIMEOUT_S = 600.0
"""What reads the whole log, or is first of its kind, takes minutes on a busy machine; the longest waits are told."""
_RAW_TIMEOUT_S = 120.0
_KINDS: dict[str, Callable[[random.Random], object]] = {
    "null": lambda _: None,
    "boolean": lambda rng: rng.random() < 0.5,
    "integer": lambda rng: rng.choice([0, 1, -1, 2**31, 2**63, -(2**63), 10**19, rng.randrange(100)]),
    "number": lambda rng: rng.choice([0.0, -1.0, 0.5, 1e308, -1e308, 5e-324, rng.random()]),
    "string": lambda rng: _text(rng),
    "array": lambda rng: [_anything(rng) for _ in range(rng.randrange(3))],
    "object": lambda rng: {_text(rng): _anything(rng) for _ in range(rng.randrange(3))},
}
_TEXTS = (
    *(
        "",
        " ",
        "x",
        "Hello",
        "fitrouter/auto",
        "brief",
        "wordy",
        "user",
        "assistant",
        "tool",
        "text",
        "thumb",
        "rating",
    ),
    *(
        "ok",
        "failed",
        "up",
        "set",
        "promote",
        "restore",
        "\x00",
        "\u202e",
        "e\u0301" * 9,
        "😀",
        "'; DROP TABLE",
        "../..",
    ),
    *("{" * 40, "<" * 40, "%s%n", "${x}", "a" * 513, "\ufeff", "\u2028", "ﷺ" * 50, "NaN", "-1", "null", "__class__"),
)


class Answer(NamedTuple):
    """A response."""

    status: int
    content_type: str
    body: bytes


class Report:
    """Counts of statuses, violations found, and the slowest cases."""

    def __init__(self, pid: int | None = None) -> None:
        self.statuses: Counter[str] = Counter()
        self.violations: list[str] = []
        self.slowest: list[tuple[float, int, str]] = []
        self.longest: list[tuple[float, str]] = []
        """Seconds until an answer was complete, with all that other processes took of them."""
        self.steps: list[tuple[float, str]] = []
        """The largest growths of the gateway's memory by a case, in MB."""
        self._pid = pid
        self.idle = 0.0
        """CPU time of the idle loop in ms per second."""
        if pid is not None:
            before = self._clock_ms()
            time.sleep(_IDLE_S)
            self.idle = (self._clock_ms() - before) / _IDLE_S

    def measured(self, send: Callable[[], T], size: int, what: str) -> T:
        """Send a case and record its time, that of the gateway's event loop if its process is known.

        A case beyond the limit is sent twice more, and the least time counts: the loop may have done something else.
        """
        times: list[float] = []
        answers: list[T] = []
        while not times or (min(times) > LOOP_MS and len(times) < 3):
            before, began = self._clock_ms(), time.monotonic()
            resident = memory_mb(self._pid) if self._pid is not None else 0.0
            answers.append(send())
            took = time.monotonic() - began
            times.append((self._clock_ms() - before - self.idle * took) / max(1.0, size / 100_000))
            self.longest = sorted([*self.longest, (took, what)], reverse=True)[:3]
            grown = memory_mb(self._pid) - resident if self._pid is not None else 0.0
            self.steps = sorted([*self.steps, (grown, what)], reverse=True)[:3]
        self.slowest = sorted([*self.slowest, (min(times), size, what)], reverse=True)[:5]
        return answers[0]

    def _clock_ms(self) -> float:
        if self._pid is None:
            return 1e3 * time.perf_counter()
        # CPU time of the main thread, which runs the loop (Documentation/scheduler/sched-stats.rst).
        return 1e-6 * int(Path(f"/proc/{self._pid}/task/{self._pid}/schedstat").read_text().split()[0])


# --- requests from the schema ----------------------------------------------------------------------------------------


def _text(rng: random.Random) -> str:
    return rng.choice(_TEXTS) if rng.random() < 0.8 else "".join(chr(rng.randrange(1, 0xD800)) for _ in range(8))


def _anything(rng: random.Random) -> Any:
    return _KINDS[rng.choice(list(_KINDS))](rng)


def value_of(schema: Mapping[str, Any], rng: random.Random, damage: float) -> Any:
    """Generate a value for a schema; with probability `damage` at each place, one that may not fit."""
    if rng.random() < damage:
        return _anything(rng)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kinds = schema.get("type", list(_KINDS))
    kind = rng.choice(kinds) if isinstance(kinds, list) else kinds
    if kind == "array":
        lowest = schema.get("minItems", 0)
        return [value_of(schema.get("items", {}), rng, damage) for _ in range(rng.randint(lowest, lowest + 2))]
    if kind == "object":
        required = schema.get("required", ())
        made = {
            name: value_of(inner, rng, damage)
            for name, inner in schema.get("properties", {}).items()
            if (rng.random() < 0.3 or name in required) and rng.random() >= damage
        }
        return made | ({_text(rng): _anything(rng)} if rng.random() < damage else {})
    return _KINDS[kind](rng)


class Case(NamedTuple):
    """A request, and the schema's operation that it was made for."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None
    operation: Mapping[str, Any]
    sent: Any


WHOLE_LOG = frozenset(f"/v1/{name}" for name in ("certificate", "diagnose", "exposure", "satisfaction", "suite"))
"""Operations in processes of their own, a second each: asked a twentieth as often as the others."""


def cases(schema: Mapping[str, Any], seed: int, ids: list[str]) -> Iterator[Case]:
    """Generate endless requests; some are valid, most are damaged somewhere. `ids` are decision ids to choose from."""
    rng = random.Random(seed)
    routes = [(path, method, found) for path, by in schema["paths"].items() for method, found in by.items()]
    weights = [0.05 if path in WHOLE_LOG else 1.0 for path, _, _ in routes]
    while True:
        path, method, operation = rng.choices(routes, weights)[0]
        headers = {"content-type": "application/json"}
        for parameter in operation.get("parameters", ()):
            name, text = parameter["name"], rng.choice(ids) if ids and rng.random() < 0.5 else _text(rng)
            if parameter["in"] == "path":
                path = path.replace(f"{{{name}}}", quote(text or "x", safe=""))
            elif rng.random() < 0.3:
                headers[name] = quote(text) if rng.random() < 0.5 else text.encode().decode("latin-1")
        headers = {name: text for name, text in headers.items() if not set(text) & set("\r\n\0")}
        body = sent = None
        if "requestBody" in operation:
            wanted = operation["requestBody"]["content"]["application/json"]["schema"]
            sent = value_of(wanted, rng, rng.choice([0.0, 0.02, 0.1, 0.3]))
            if rng.random() < 0.02:
                enlarge(sent, rng)
            if isinstance(sent, dict) and "decision_id" in sent and ids and rng.random() < 0.7:
                sent["decision_id"] = rng.choice(ids)
            body = json.dumps(sent, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
            if rng.random() < 0.1:
                body = damaged(body, rng)
        if rng.random() < 0.05:
            path += "?" + quote(_text(rng))
        yield Case(method.upper(), path, headers, body, operation, sent)


def enlarge(value: Any, rng: random.Random) -> None:
    """Repeat a text or a list somewhere in a document, up to a hundred kilobytes."""
    while isinstance(value, (dict, list)) and value:
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if isinstance(value[key], (str, list)) and rng.random() < 0.5:
            size = max(len(json.dumps(value[key])), 1)
            value[key] = value[key] * (rng.choice([1_000, 100_000]) // size + 1)
            return
        value = value[key]


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with a few of them removed, repeated, exchanged or inserted."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0:
                del changed[place : place + rng.randint(1, 20)]
            case 1:
                changed[place:place] = bytes([rng.randrange(256)])
            case 2:
                changed[place:place] = changed[place : place + 40] * rng.randint(1, 50)
            case 3:
                changed[place:place] = rng.choice(
                    [b"\xff\xfe", b"\r\n", b"\0", b'"', b"\\", b"[" * 80, b"\xed\xa0\x80"]
                )
            case _:
                del changed[place:]
    return bytes(changed)


def fault_of(case: Case, answer: Answer) -> str | None:
    """Describe how an answer violates the schema; None if it does not."""
    if answer.status >= 500 and answer.status != 503:
        return f"status {answer.status}: {answer.body[:200]!r}"
    described = case.operation["responses"].get(str(answer.status))
    if described is None:
        return f"status {answer.status} is not in the schema: {answer.body[:200]!r}"
    found = described["content"]
    if answer.content_type not in found:
        return f"content type {answer.content_type!r}, the schema has {sorted(found)}"
    if answer.content_type != "application/json":
        return None
    return mismatch(json.loads(answer.body), found["application/json"]["schema"])


_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


def mismatch(value: Any, schema: Mapping[str, Any], where: str = "answer") -> str | None:
    """Describe how a value violates a schema, in the keywords that the gateway's schema uses; None if it does not."""
    if "anyOf" in schema:
        found = [mismatch(value, option, where) for option in schema["anyOf"]]
        return None if None in found else found[0]
    if ("const" in schema and value != schema["const"]) or ("enum" in schema and value not in schema["enum"]):
        return f"{where} is {value!r:.80}, the schema has {schema.get('const', schema.get('enum'))!r}"
    kinds = schema.get("type", list(_TYPES))
    fitting = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if isinstance(value, _TYPES[kind])]
    if not fitting or (isinstance(value, bool) and "boolean" not in fitting):
        return f"{where} is {value!r:.80}, the schema has {kinds}"
    if isinstance(value, (int, float)) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return f"{where} is {value}, out of bounds"
    parts: list[tuple[Any, Any, str]] = []
    if isinstance(value, list):
        parts = [(inner, schema.get("items", {}), f"{where}[{i}]") for i, inner in enumerate(value)]
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        if missing := [name for name in schema.get("required", ()) if name not in value]:
            return f"{where} lacks {missing}"
        if others is False and (more := value.keys() - known.keys()):
            return f"{where} has {sorted(more)}, which the schema lacks"
        others = others if isinstance(others, dict) else {}
        parts = [(inner, known.get(name, others), f"{where}.{name}") for name, inner in value.items()]
    return next(filter(None, (mismatch(*part) for part in parts)), None)


def ask(connection: http.client.HTTPConnection, case: Case) -> Answer:
    """Send a case; reconnects when the server has closed the connection."""
    for attempt in (0, 1):
        try:
            connection.request(case.method, case.path, case.body, case.headers)
            reply = connection.getresponse()
            return Answer(reply.status, (reply.headers["content-type"] or "").split(";")[0], reply.read())
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            if attempt or isinstance(error, TimeoutError):
                raise
    raise AssertionError("unreachable")


def fuzz_schema(host: str, port: int, count: int, seed: int, report: Report) -> None:
    """Send requests made from the schema, and check the answers against it."""
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    connection.request("GET", "/openapi.json")
    schema = json.loads(connection.getresponse().read())
    ids: list[str] = []
    for _, case in zip(range(count), cases(schema, seed, ids), strict=False):
        size, what = len(case.body or b""), f"{case.method} {case.path[:60]}"
        try:
            answer = report.measured(functools.partial(ask, connection, case), size, what)
        except TimeoutError:
            report.violations.append(f"{what}: no answer within {_TIMEOUT_S:.0f} s")
            continue
        report.statuses[f"{answer.status}"] += 1
        if fault := fault_of(case, answer):
            report.violations.append(f"{case.method} {case.path[:80]} {case.body and case.body[:300]!r}: {fault}")
        if answer.status == 200 and case.path.startswith(("/v1/chat", "/v1/plans")) and len(ids) < 200:
            found = answer.body.partition(b'"decision_id":"')[2][:36].decode("ascii", "replace")
            if found:
                ids.append(found)
    connection.close()


# --- damaged HTTP ----------------------------------------------------------------------------------------------------

_BODY = b'{"model":"brief","messages":[{"role":"user","content":"Hi"}]}'
_JSON = b"host: localhost\r\ncontent-type: application/json\r\n"
_CHUNKED = b"transfer-encoding: chunked\r\n"
_HEADS = (
    b"POST /v1/chat/completions HTTP/1.1\r\n" + _JSON + b"content-length: %d\r\n\r\n" % len(_BODY),
    b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"POST /v1/feedback HTTP/1.1\r\n" + _JSON + _CHUNKED + b"\r\n",
    b"GET /v1/models HTTP/1.0\r\nhost: 127.0.0.1\r\nconnection: keep-alive\r\n\r\n",
)
_INSERTS = (
    *(b"content-length: 5\r\n", b"content-length: -1\r\n", b"content-length: 99999999999999999999\r\n"),
    *(_CHUNKED, b"transfer-encoding: identity, chunked\r\n", b"transfer-encoding: xchunked\r\n"),
    *(b"host: evil\r\n", b"host:\r\n", b" folded: yes\r\n", b"x: " + b"y" * 20_000 + b"\r\n", b"a: b\r\n" * 150),
    *(b"expect: 100-continue\r\n", b"connection: close\r\n", b"connection: upgrade\r\nupgrade: websocket\r\n"),
    *(b"authorization: Bearer \xff\xfe\r\n", b"x-fitrouter-user: \xc3\x28\r\n", b"x-fitrouter-user: a\r\n" * 2),
    *(b"content-encoding: gzip\r\n", b"content-type: text/html\r\n", b"cookie: " + b"a=b; " * 900 + b"\r\n"),
    *(b": empty\r\n", b"no colon\r\n", b"tab\t: x\r\n", b"nul\0: x\r\n", b"bare: lf\n", b"cr: x\rsplit: y\r\n"),
)
_CHUNKS = (
    *(b"5\r\nhello\r\n0\r\n\r\n", b"zz\r\n", b"-1\r\n\r\n", b"ffffffffffffffffff\r\n", b"0\r\nTrailer: x\r\n\r\n"),
    *(b"5;ext=" + b"x" * 9000 + b"\r\nhello\r\n", b"1\r\n{\r\n" * 500 + b"0\r\n\r\n", b"5\nhello\n0\n\n"),
    *(b"0x5\r\nhello\r\n0\r\n\r\n", b"2\r\n{}\r\n0\r\n\r\n"),
)


def raw_requests(seed: int) -> Iterator[bytes]:
    """Generate endless bytes for a socket: requests that are damaged, chunked oddly, or pipelined."""
    rng = random.Random(seed)
    while True:
        head = rng.choice(_HEADS)
        payload = rng.choice(_CHUNKS) if b"chunked" in head else _BODY if b"POST" in head else b""
        for _ in range(rng.choice([0, 1, 1, 2])):
            line = head.find(b"\r\n") + 2
            head = head[:line] + rng.choice(_INSERTS) + head[line:]
        if rng.random() < 0.2:
            payload = rng.choice(_CHUNKS)
        whole = head + payload
        if rng.random() < 0.5:
            whole = damaged(whole, rng)
        if rng.random() < 0.2:
            whole *= rng.randint(2, 20)
        if rng.random() < 0.02:
            whole = rng.randbytes(rng.randint(1, 5000))
        yield whole


def exchange(host: str, port: int, payload: bytes) -> bytes:
    """Send bytes to a server and then nothing more; return all that it answers."""
    received = b""
    try:
        with socket.create_connection((host, port), timeout=_RAW_TIMEOUT_S) as connection:
            connection.sendall(payload)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65_536):
                received += part
    except TimeoutError:
        raise
    except OSError:  # the server may close before it has everything
        pass
    return received


def statuses_of(received: bytes) -> list[int]:
    """Extract the statuses of the HTTP responses in a stream of bytes."""
    lines = (part.split(b" ", 2) for part in received.split(b"HTTP/1.")[1:])
    return [int(line[1][:3]) for line in lines if len(line) > 1 and line[1][:3].isdigit()]


def fuzz_raw(host: str, port: int, count: int, seed: int, report: Report) -> None:
    """Send damaged HTTP, and check that no answer is a 5xx other than 503, and that the server answers afterwards.

    An answer that does not end in time is a violation of its own; the others are sent nevertheless.
    """
    for number, payload in zip(range(count), raw_requests(seed), strict=False):
        send = functools.partial(exchange, host, port, payload)
        try:
            found = statuses_of(report.measured(send, len(payload), f"raw {number}"))
        except TimeoutError:
            report.violations.append(f"raw {number}: no end within {_RAW_TIMEOUT_S:.0f} s: {payload[:300]!r}")
            continue
        report.statuses.update(f"raw {status}" for status in found or [0])
        if any(status >= 500 and status != 503 for status in found):
            report.violations.append(f"raw {number}: {found}: {payload[:300]!r}")
        if number % 500 == 0:
            assert 200 in statuses_of(exchange(host, port, _HEADS[1])), "the gateway does not answer any more"


# --- schemathesis -----------------------------------------------------------------------------------------------------


@functools.cache
def _strategies(url: str) -> list[tuple[str, Any]]:
    """List each operation's path with a strategy of valid requests, and of invalid ones; making them takes minutes."""
    schemathesis: Any = import_module("schemathesis")  # installed for this benchmark only
    modes = import_module("schemathesis.generation").GenerationMode
    operations = [
        each.ok() for each in schemathesis.openapi.from_url(f"{url}/openapi.json").get_all_operations() if each
    ]
    both = (modes.POSITIVE, modes.NEGATIVE)
    return [(each.path, each.as_strategy(generation_mode=mode)) for each in operations for mode in both]


def fuzz_schemathesis(host: str, port: int, count: int, seed: int, report: Report) -> None:
    """Send requests that schemathesis makes from the schema, valid and invalid ones, and run its checks of answers."""
    hypothesis: Any = import_module("hypothesis")
    strategies = _strategies(url := f"http://{host}:{port}")  # which loads the checks, too
    CHECKS = import_module("schemathesis.checks").CHECKS
    FailureGroup = import_module("schemathesis.core.failures").FailureGroup
    wanted = ("content_type_conformance", "response_headers_conformance", "response_schema_conformance")
    checks = [check for check in CHECKS.get_all() if check.__name__ in (*wanted, "status_code_conformance")]
    assert len(checks) == 4, "schemathesis has renamed its checks"

    def send(case: Any) -> None:
        what = f"{case.method} {case.formatted_path[:60]}"
        size = len(str(case.body)) if case.body else 0
        answer = report.measured(lambda: case.call(base_url=url, timeout=_TIMEOUT_S), size, what)
        report.statuses[f"{answer.status_code}"] += 1
        if answer.status_code >= 500 and answer.status_code != 503:
            report.violations.append(f"{what} {answer.request.body!r:.300}: {answer.status_code} {answer.text[:200]}")
        try:
            case.validate_response(answer, checks=checks)
        except FailureGroup as failures:
            said = "; ".join(f"{failure.title}: {failure.message[:200]}" for failure in failures.exceptions)
            report.violations.append(f"{what} {answer.request.body!r:.300}: {said}")

    rng = random.Random(seed)
    for path, strategy in tuple(strategies):
        share = count / len(strategies) / (20 if path in WHOLE_LOG else 1)
        if examples := int(share + rng.random()):
            run = hypothesis.given(strategy)(lambda case: send(case))
            run = hypothesis.settings(
                max_examples=examples,
                deadline=None,
                database=None,
                phases=[hypothesis.Phase.generate],
                suppress_health_check=list(hypothesis.HealthCheck),
            )(run)
            try:
                hypothesis.seed(seed)(run)()
            except hypothesis.errors.Unsatisfiable:  # an operation without input has no invalid one
                strategies.remove((path, strategy))


# --- forged tokens ----------------------------------------------------------------------------------------------------


def forge_tokens(count: int, seed: int) -> int:
    """Try forged outcome tokens on one decision; returns how many were accepted.

    Others' tokens, later ends, changed, cut and repeated characters, and guesses of the whole MAC.
    """
    rng = random.Random(seed)
    tokens, other = (OutcomeTokens(rng.randbytes(32), lambda: 1e9, 3600.0) for _ in range(2))
    decision, tenant = "01a206fb-fa63-7f9b-ba57-ff7976fa8955", "t"
    true = tokens.sign(decision, tenant)
    end, _, mac = true.partition(".")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    accepted = 0
    for number in range(count):
        place = rng.randrange(len(mac))
        match number % 6:
            case 0:
                forged = f"{end}.{''.join(rng.choices(alphabet, k=len(mac)))}"
            case 1:
                forged = f"{end}.{mac[:place]}{rng.choice(alphabet)}{mac[place + 1 :]}"
            case 2:
                forged = f"{int(end, 16) + rng.randint(1, 10**9):x}.{mac}"
            case 3:
                forged = f"{end}.{mac[:place]}" + rng.choice(["", "=", mac, "\0", "é"])
            case 4:
                forged = other.sign(decision, tenant)
            case _:
                forged = tokens.sign(f"{decision[:-3]}{rng.randrange(16**3):03x}", rng.choice([tenant, "u"]))
                if forged == true:
                    continue
        try:
            tokens.check(forged, decision, tenant)
        except NotAuthorized:
            continue
        accepted += forged != true
    return accepted


# --- the command -----------------------------------------------------------------------------------------------------


def main() -> None:
    """Run the fuzzers against a gateway that is started for them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--raw", type=int, default=10_000)
    parser.add_argument("--schemathesis", type=int, default=0, help="cases of schemathesis")
    parser.add_argument("--tokens", type=int, default=0, help="forged outcome tokens")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.tokens:
        accepted = forge_tokens(chosen.tokens, chosen.seed)
        print(f"tokens: {accepted} of {chosen.tokens} forged ones were accepted")
        if accepted or not (chosen.cases or chosen.raw or chosen.schemathesis):
            sys.exit(1 if accepted else 0)
    personas = {name: {"length": length, "latency_s": 0.0} for name, length in (("brief", 1), ("wordy", 9))}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # so that what failed is told
        config = Path(folder) / "fitrouter.yaml"
        settings = {
            "data": str(Path(folder) / "data"),
            "providers": {"demo": {"kind": "simulated", "options": personas}},
            "models": [{"name": name, "provider": "demo", "context_window": 9_000_000} for name in personas],
        }
        config.write_text(yaml.safe_dump(settings))
        with Gateway(config) as gateway:
            host, port = gateway.url.removeprefix("http://").split(":")
            (worker,) = gateway.reports()
            fuzz_schema(host, int(port), 200, -1, Report())  # what is loaded at the first request of its kind
            stated = json.dumps({"user": "u", "statements": ["I dislike bullet points"]}).encode()
            case = Case("PUT", "/v1/profile", {"content-type": "application/json"}, stated, {}, None)
            answer = ask(http.client.HTTPConnection(host, int(port), timeout=_TIMEOUT_S), case)
            assert answer.status == 200, answer  # the first statement loads tables: seconds, and 14 MB
            kinds = {
                "schema": (fuzz_schema, chosen.cases),
                "schemathesis": (fuzz_schemathesis, chosen.schemathesis),
                "raw": (fuzz_raw, chosen.raw),
            }
            faults = sum(
                run(name, fuzz, count, host, int(port), worker, chosen.seed)
                for name, (fuzz, count) in kinds.items()
                if count
            )
            if code := gateway.stop():
                print(f"VIOLATION the gateway ended with {code}")
    sys.exit(1 if faults or code else 0)


def run(
    name: str,
    fuzz: Callable[[str, int, int, int, Report], None],
    count: int,
    host: str,
    port: int,
    worker: int,
    seed: int,
) -> int:
    """Run a fuzzer in ten parts; prints what it found. Returns the number of violations."""
    report = Report(worker)
    memory: list[float] = []
    began = time.monotonic()
    for part in range(10):
        fuzz(host, port, count // 10, seed * 1000 + part, report)
        memory.append(memory_mb(worker))
        told = f"{sum(report.statuses.values())} cases, {len(report.violations)} violations"
        print(f"{name}: {told}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    sent = sum(report.statuses.values())
    print(f"{name}: {sent} cases in {time.monotonic() - began:.0f} s")
    print(f"{name}: MB after each tenth: {' '.join(f'{mb:.0f}' for mb in memory)}")
    print(f"{name}: {dict(sorted(report.statuses.items()))}")
    print(f"{name}: the idle loop takes {report.idle:.1f} ms a second")
    for ms, size, what in report.slowest:
        print(f"{name}: {ms:.1f} ms of the loop for each 100 kB, {size} bytes: {what}")
        if ms > LOOP_MS:
            report.violations.append(f"{what}: {ms:.1f} ms of the loop for each 100 kB")
    for seconds, what in report.longest:
        print(f"{name}: answered after {seconds:.2f} s: {what}")
    print(f"{name}: largest growths: {', '.join(f'{mb:.1f} MB at {what}' for mb, what in report.steps)}")
    if sum(memory[-3:]) > sum(memory[1:4]) + 3 * GROWTH_MB:
        report.violations.append(f"memory grew: {memory}")
    for violation in report.violations[:20]:
        print("VIOLATION", violation)
    print(f"{name}: {len(report.violations)} violations", flush=True)
    return len(report.violations)


if __name__ == "__main__":
    main()
