"""Laws of metrics of one's own: features like any other; whatever they do is said, and costs their own feature only."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.scoring.test_reward_models import World, plain, world

from fitrouter.config import RewardModelConfig, parse_config, read_addition
from fitrouter.errors import ConfigError
from fitrouter.plain import unpack
from fitrouter.stores.journal import Entry
from fitrouter.types import Identity, ProfileChange
from fitrouter_evaluators.scoring import Answer
from fitrouter_evaluators.scoring.models import Item, RewardModels
from fitrouter_evaluators.scoring.models.state import WARM_UP
from fitrouter_evaluators.scoring.plugin import ScorerService
from fitrouter_integrations.commands.setup import check

__all__ = ["world"]

NAMED = frozenset({"rm.m.score"})


def words(_prompt: str, answer: str) -> float:
    return float(len(answer.split()))


def secret(_prompt: str, _answer: str) -> float:
    raise ValueError("the diary of Ann")


def leaves(_prompt: str, _answer: str) -> float:
    sys.exit("the diary of Ann")


WAITS = threading.Event()


def sleeps(_prompt: str, _answer: str) -> float:
    WAITS.wait(5)
    return 1.0


HERE = __name__
MISBEHAVING: dict[str, tuple[Callable[[str, str], Any], str]] = {
    "nan": (lambda _p, _a: float("nan"), "not finite"),
    "inf": (lambda _p, _a: float("-inf"), "not finite"),
    "huge": (lambda _p, _a: 10**400, "not finite, or beyond"),
    "large": (lambda _p, _a: 1e200, "beyond"),
    "bool": (lambda _p, _a: True, "type bool"),
    "none": (lambda _p, _a: None, "type NoneType"),
    "string": (lambda _p, answer: answer * 100_000, "type str"),
    "list": (lambda _p, _a: [1.0], "type list"),
    "array": (lambda _p, _a: np.ones(3), "type ndarray"),
    "raises": (secret, "ValueError in secret, line"),
    "leaves": (leaves, "SystemExit in leaves, line"),
    "sleeps": (sleeps, "nothing within 0.2 s"),
}


def of(kind: str = "function", **settings: Any) -> RewardModelConfig:
    given = {"function": f"{HERE}:words"} if kind == "function" else {"send_text": True, "private_addresses": True}
    return RewardModelConfig(**({"name": "m", "kind": kind} | given | settings))


def items(n: int = 4, named: frozenset[str] = NAMED) -> list[Item]:
    return [Item(answer=Answer(text="Dear Ann, " * (i + 1), prompt="Why?"), named=named) for i in range(n)]


def test_a_function_is_a_feature_of_the_scorer(world: Callable[..., World], tmp_path: Path) -> None:
    """Its values are standardised online, logged with each score, and read for any text without moving the scale."""
    made = world([of()])
    ids = [made.answer("so " * (i + 1), i) for i in range(3 * WARM_UP)]
    scored = made.scored()
    h = np.array([unpack(scored[each].h)[-1] for each in ids])
    assert made.service.names[-1] == "rm.m.score"
    assert np.isfinite(h[WARM_UP:]).all()
    assert h[-1] > 1.0
    before = (tmp_path / "reward_models" / "m.json").read_bytes()
    short, long = made.service.read([("?", "so"), ("?", "so " * 40)], [])[:, -1]
    assert short < -1.0 < 1.0 < long
    assert (tmp_path / "reward_models" / "m.json").read_bytes() == before
    assert made.service.models()["m"].error == ""


@pytest.mark.parametrize("name", MISBEHAVING)
def test_whatever_a_function_does_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that are no numbers, exceptions, exits and sleep: missing, counted, and named without repeating a text."""
    function, said = MISBEHAVING[name]
    WAITS.clear()
    monkeypatch.setattr(sys.modules[HERE], "bad", function, raising=False)
    models = RewardModels([of(function=f"{HERE}:bad", timeout_s=0.2)])
    assert np.isnan(models.features(items())).all()
    found = models.health()["m"]
    assert said in found.error
    assert "Ann" not in found.error
    assert (found.answers, found.missing) == (4, 4)
    WAITS.set()


def test_a_late_function_is_left_alone() -> None:
    """After it was late it is not called again for a while, so that scoring waits once, not at each batch."""
    WAITS.clear()
    models = RewardModels([of(function=f"{HERE}:sleeps", timeout_s=0.2)])
    models.features(items())
    running = threading.active_count()
    models.features(items())
    assert "tried again after 60 s" in models.health()["m"].error
    assert threading.active_count() == running
    WAITS.set()


def test_one_bad_answer_costs_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values beside one that failed stay; after a batch without a failure nothing is said any more."""
    monkeypatch.setattr(sys.modules[HERE], "bad", lambda _p, a: "x" if a == "Dear Ann, " else len(a), raising=False)
    models = RewardModels([of(function=f"{HERE}:bad")])
    for _ in range(WARM_UP):
        found = models.features(items())
    assert np.isnan(found[0, 0])
    assert np.isfinite(found[1:, 0]).all()
    assert "failed on 1 of 4 answers" in models.health()["m"].error
    models.features(items()[1:])
    assert models.health()["m"].error == ""


@pytest.mark.parametrize("function", ["no_such_module:f", f"{HERE}:no_such", f"{HERE}:HERE"])
def test_a_function_that_cannot_be_found_is_said(function: str) -> None:
    """The scorer starts without it, its place in the features stays, and the error names what is wrong."""
    models = RewardModels([of(function=function)])
    assert models.names == ("rm.m.score",)
    assert np.isnan(models.features(items())).all()
    error = models.health()["m"].error
    assert "ModuleNotFoundError" in error or "correct 'function'" in error


# --- endpoints ---


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"function": f"{HERE}:nothere"}, "has no function 'nothere'"),
        ({"function": "no_such_module:f"}, "ModuleNotFoundError"),
        ({"kind": "http", "function": "", "url": "https://example.org/m", "api_key_env": "NO_SUCH"}, "NO_SUCH"),
    ],
)
def test_the_check_of_a_configuration_tries_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], said: str
) -> None:
    """A function that cannot be imported and a key that is missing are found before the first answer."""
    monkeypatch.delenv("NO_SUCH", raising=False)
    for more, ok in ((settings, False), ({}, True)):
        entry = {"name": "m", "kind": "function", "function": f"{HERE}:words", "send_text": True, **more}
        config = parse_config(plain() | {"data": str(tmp_path / "d"), "scorer": {"models": [entry]}})
        told = [each for each in check.findings(config, {}, start=False) if "the metric 'm'" in each.text]
        assert [each.ok for each in told] == [ok]
        assert ok or said in told[0].text


@contextmanager
def endpoint(
    answer: Callable[[BaseHTTPRequestHandler, dict[str, Any]], tuple[int, bytes]],
) -> Iterator[tuple[str, list[Any]]]:
    """A loopback server: its URL, and what was posted to it."""
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got.append((self.path, self.headers.get("Authorization"), body))
            status, payload = answer(self, body)
            self.send_response(status)
            if status == 307:
                self.send_header("Location", f"http://127.0.0.1:{server.server_port}/inside")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            try:
                self.wfile.write(payload)
            except OSError:  # the client has had enough
                return

        def log_message(self, *_: Any) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/score", got
    finally:
        server.shutdown()
        server.server_close()


def counts(_handler: Any, body: dict[str, Any]) -> tuple[int, bytes]:
    return 200, json.dumps({"scores": [len(each["answer"]) for each in body["items"]]}).encode()


def test_an_endpoint_is_asked_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets prompts and answers, bounded, with the key of the environment and without a word on whose they are."""
    monkeypatch.setenv("METRIC_KEY", "s3cret")
    with endpoint(counts) as (url, got):
        models = RewardModels([of("http", url=url, api_key_env="METRIC_KEY", max_tokens=32)])
        found = models.features(items(40))
        assert np.isfinite(found).all()
        assert [len(body["items"]) for _, _, body in got] == [32, 8]
        assert {(path, key) for path, key, _ in got} == {("/score", "Bearer s3cret")}
        assert got[0][2]["items"][0] == {"prompt": "Why?", "answer": "Dear Ann, "}
        assert max(len(each["answer"]) for _, _, body in got for each in body["items"]) == 2 * 64 + 1
        assert models.health()["m"].error == ""


def test_only_the_texts_of_who_consents_are_sent(world: Callable[..., World]) -> None:
    """An endpoint gets answers to people whose profile names the metric, until they take that back; no others."""
    with endpoint(counts) as (url, got):
        models = RewardModels([of("http", url=url)])
        models.features(items(1, frozenset()) + items(1, frozenset({"warmth"})) + items(2)[1:])
        assert [len(body["items"]) for _, _, body in got] == [1]
        got.clear()
        made = world([of("http", url=url)])
        made.answer("private", 1)
        made.scored()
        assert got == []
        who = Identity(tenant="t", user=made.identities.subject("t", "ann"))
        for number, values in enumerate(({"rm.m.score": 0.0}, {}), 2):
            made.journal.append(
                Entry(ProfileChange(id=f"p{number}", ts=made.now, identity=who, declared=values))
            ).result()
            made.answer(f"public {number}", number)
            made.scored()
        assert [each["answer"] for _, _, body in got for each in body["items"]] == ["public 2"]
        made.service.read([("?", "nobody's")], [])
        made.service.read([("?", "hers")], [], NAMED)
        assert got[-1][2]["items"] == [{"prompt": "?", "answer": "hers"}]


def _slow(_handler: Any, _body: Any) -> tuple[int, bytes]:
    time.sleep(0.6)
    return 200, b"{}"


ENDPOINTS: dict[str, tuple[Callable[[Any, dict[str, Any]], tuple[int, bytes]], str]] = {
    "nan": (lambda _h, _b: (200, b'{"scores": [NaN, 1, 2, 3]}'), "not JSON of the form"),
    "null": (lambda _h, b: (200, json.dumps({"scores": [None] * len(b["items"])}).encode()), "type NoneType"),
    "string": (lambda _h, b: (200, json.dumps({"scores": ["Ann"] * len(b["items"])}).encode()), "type str"),
    "huge": (lambda _h, _b: (200, b'{"scores": [1e300, 1e300, 1e300, 1e300]}'), "beyond"),
    "shape": (lambda _h, _b: (200, b'{"scores": [1]}'), "1 scores for 4 answers"),
    "list": (lambda _h, _b: (200, b"[1, 2, 3, 4]"), "not JSON of the form"),
    "html": (lambda _h, _b: (200, b"<html>"), "not JSON of the form"),
    "fails": (lambda _h, _b: (500, b'{"error": "down"}'), "500"),
    "redirects": (lambda _h, _b: (307, b""), "307"),
    "slow": (_slow, "nothing within 0.3 s"),
    "oversized": (lambda _h, _b: (200, b" " * 10_000_000), "more than 65536 bytes"),
}


@pytest.mark.parametrize("name", ENDPOINTS)
def test_whatever_an_endpoint_does_is_said(name: str) -> None:
    """Wrong, late, oversized and failing answers are missing and said; a redirect is not followed."""
    answer, said = ENDPOINTS[name]
    with endpoint(answer) as (url, got):
        models = RewardModels([of("http", url=url, timeout_s=0.3 if name == "slow" else 20.0)])
        assert np.isnan(models.features(items())).all()
        error = models.health()["m"].error
        assert said in error
        assert "Ann" not in error
        assert [path for path, _, _ in got] == ["/score"]


def test_addresses_of_the_network_are_refused() -> None:
    """Without `private_addresses` nothing on this machine or in a private network is called, by name or by number."""
    with endpoint(counts) as (url, got):
        for address in (url, url.replace("127.0.0.1", "localhost"), url.replace("127.0.0.1", "[::ffff:127.0.0.1]")):
            models = RewardModels([of("http", url=address, private_addresses=False, timeout_s=5)])
            assert np.isnan(models.features(items())).all()
            assert "private network" in models.health()["m"].error, address
        assert got == []


def test_a_closed_port_and_a_missing_key_are_said() -> None:
    """An endpoint that is not there, and a key that is not set, are errors of the metric alone."""
    with endpoint(counts) as (url, _got):
        pass
    for settings, said in (({}, "cannot be reached"), ({"api_key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY")):
        models = RewardModels([of("http", url=url, **settings)])
        assert np.isnan(models.features(items())).all()
        assert said in models.health()["m"].error


# --- settings ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "function"}, "give it 'function'"),
        ({"kind": "function", "function": "os.system"}, "write MODULE:FUNCTION"),
        ({"kind": "http", "send_text": True}, "give it 'url'"),
        ({"kind": "http", "url": "https://a.example/x"}, "send_text: true"),
        ({"kind": "http", "url": "https://u:p@a.example/x", "send_text": True}, "without a password"),
        ({"kind": "http", "url": "file:///etc/passwd", "send_text": True}, "http or https URL"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    """A metric says where it comes from, and texts leave only where the configuration allows it."""
    with pytest.raises(ConfigError, match=message):
        parse_config(plain(**({"model": ""} | settings)))


def test_no_key_adds_a_metric() -> None:
    """What a key can add at run time is a model and its provider; scorers, and so metrics, are the configuration's."""
    added = {"model": {"name": "n", "provider": "p"}, "scorer": {"models": [{"kind": "function"}]}}
    with pytest.raises(ConfigError, match="scorer"):
        read_addition(added)


def test_metrics_stay_in_the_process_of_the_scorer() -> None:
    """Remote scorers compute models with weights; functions are called, and endpoints asked, by the scorer itself."""
    settings = parse_config(plain(kind="function", model="", function=f"{HERE}:words")).scorer
    service = ScorerService(settings, remote=lambda _name, items: np.ones((len(items), 1)))
    assert service._models is not None
    assert service._models._given == {}
