"""No failure is silent: keys, quotas, unlogged answers, refused votes, the warehouse at the end; and the access log."""

from __future__ import annotations

import json
import logging
import math
import re
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest
import yaml
from benchmarks.gateway.process import Gateway
from tests.kits.fake_openai import FakeOpenAI, in_a_thread
from tests.kits.gateway import Echo, cards, chat, client, config, make_router, serving, wait_for

from fitrouter import hooks
from fitrouter.errors import KeyRefused, ProviderTimeout, QuotaExhausted, in_words
from fitrouter.providers import Fault, Faulty, from_status
from fitrouter.routing import breakers
from fitrouter_dashboards import Metrics


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (401, "no such key", "KeyRefused"),
        (400, "API key not valid. Please pass a valid API key.", "KeyRefused"),
        (402, "pay", "QuotaExhausted"),
        (429, "insufficient_quota", "QuotaExhausted"),
        (429, "slow down", "RateLimited"),
        (403, "flagged", "ModelRefused"),
        (503, "insufficient_quota", "ProviderUnavailable"),
        (400, "bad request", "ProviderRejected"),
    ],
)
def test_statuses_tell_the_account_from_the_outage(status: int, message: str, kind: str) -> None:
    """A wrong key, an exhausted quota, a rate limit and an outage are different classes."""
    assert type(from_status(status, message)).__name__ == kind


def test_every_model_is_quoted_and_a_refused_key_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the error of all models, in the metrics, in the log, and in /readyz, each by its class."""
    monkeypatch.setattr(breakers, "TRIP", 2.4)
    wrong = Faulty(Echo(), [Fault(error=KeyRefused("no such key", 401))] * 20)
    spent = Faulty(Echo(), [Fault(error=QuotaExhausted("insufficient_quota", 429))] * 20)
    late = Faulty(Echo(), [Fault(error=ProviderTimeout("no answer"))] * 20)
    metrics = Metrics()
    router = make_router(
        tmp_path,
        {"wrong": wrong, "spent": spent, "late": late},
        models=cards(("alpha", "beta", "gamma"), lambda name: {"alpha": "wrong", "beta": "spent"}.get(name, "late")),
    )
    with serving(router, metrics=metrics) as url, client(url) as http:
        refused = http.post("/v1/chat/completions", json=chat())
        assert refused.status_code in {502, 504}
        text = refused.json()["error"]["message"]
        for words in ("KeyRefused: no such key", "QuotaExhausted: insufficient_quota", "ProviderTimeout: no answer"):
            assert words in text, text

        def open_now() -> dict[str, str]:
            return dict(http.get("/readyz").json()["breakers"])

        found = wait_for(open_now)
        assert found["provider wrong"] == "its key is refused"
        assert found["provider spent"] == "its quota is exhausted"
        page = http.get("/metrics").text
        for error in ("KeyRefused", "QuotaExhausted", "ProviderTimeout"):
            assert re.search(rf'attempts_failed_total{{error="{error}",model="\w+"}} 1', page), error
    assert "provider wrong is not called for 60 s: its key is refused (KeyRefused)" in caplog.text
    assert "no such key" not in caplog.text


def test_unlogged_answers_and_refused_votes_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning each, of unlogged answers one a minute with their number, without the words or the name of a user."""
    router = make_router(tmp_path)
    with serving(router) as url, client(url) as http:
        vote = {"decision_id": "00000000", "kind": "thumb", "value": "up", "user": "ann of green gables"}
        assert http.post("/v1/feedback", json=vote).status_code == 404
        for _ in range(10):
            router.hooks.unlogged("d1")
        monkeypatch.setattr(hooks, "time", SimpleNamespace(monotonic=lambda: math.inf))  # a minute later
        router.hooks.unlogged("d1")
    assert re.search(r"feedback was refused: 404 \w+ \(req-\w+\)", caplog.text)
    assert re.findall(r"sent before its decision was durable \((\d+) so far\)", caplog.text) == ["1", "11"]
    assert "green gables" not in caplog.text


def test_errors_without_a_message_are_named() -> None:
    """No text ends with an empty error."""
    assert in_words(TimeoutError()) == "TimeoutError: it took too long"
    assert in_words(ConnectionResetError()) == "ConnectionResetError"


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_access_log_has_a_line_for_each_request(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Ids of request and decision, status, time and size, whole or streamed; no content, user, key or line break."""
    access = logging.getLogger("fitrouter.access")
    access.addHandler(caplog.handler)
    try:
        with serving(make_router(tmp_path), config(access_log=form)) as url, client(url) as http:
            for stream in (False, True):
                reply = http.post("/v1/chat/completions", json=chat("secret words", user="ann", stream=stream))
                assert reply.headers["x-request-id"].startswith("req-")
            mine = http.get("/v1/models?user=ann", headers={"x-request-id": "mine-1"})
            assert mine.headers["x-request-id"] == "mine-1"
            http.get("/nothing%0Ahere/" + "x" * 500)
    finally:
        access.removeHandler(caplog.handler)
    lines = [record.getMessage() for record in caplog.records if record.name == "fitrouter.access"]
    assert len(lines) == 4
    assert not any(word in line for line in lines for word in ("secret", "ann", "\n"))
    assert all(len(line) < 500 for line in lines)
    if form == "json":
        found = [json.loads(line) for line in lines]
        assert [one["status"] for one in found] == [200, 200, 200, 404]
        assert {"decision", "model"} <= found[1].keys()
        assert (found[2]["request"], found[2]["path"]) == ("mine-1", "/v1/models")
    else:
        expected = r"Z POST /v1/chat/completions 200 [\d.]+ ms \d+ B request=req-\w+ decision=[\w-]+ model=\w+$"
        assert re.search(expected, lines[0])


@pytest.mark.parametrize("workers", [1, 2])
def test_the_warehouse_is_complete_after_sigterm(tmp_path: Path, workers: int) -> None:
    """A real process that is told to stop at once after its last answers leaves every decision in DuckDB."""
    asked = 0
    with in_a_thread(FakeOpenAI(models=("a", "b"))) as models:
        settings = {
            "data": str(tmp_path / "data"),
            "providers": {"fake": {"kind": "openai_compatible", "base_url": models.base_url}},
            "models": [{"name": name, "provider": "fake", "prices": {"input": 1, "output": 1}} for name in ("a", "b")],
        }
        (tmp_path / "fitrouter.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        with Gateway(tmp_path / "fitrouter.yaml", workers) as gateway, client(gateway.url) as http:
            for number in range(30):
                asked += http.post("/v1/chat/completions", json=chat(f"Question {number}")).status_code == 200
            assert gateway.stop() == 0
    with duckdb.connect(str(tmp_path / "data" / "fitrouter.duckdb"), read_only=True) as warehouse:
        found = warehouse.execute("SELECT count(*) FROM decisions JOIN executions USING (decision_id)").fetchone()
    assert asked == 30
    assert found == (asked,)
