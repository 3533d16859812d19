"""What is read from the whole log over HTTP: satisfaction, exposure, certificates, diagnoses and audits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.kits.gateway import chat, client, config, serving
from tests.kits.quiz import install

from fitrouter.config import Config, load_config
from fitrouter.errors import StoreError
from fitrouter.router import Router
from fitrouter_evaluators.background import in_background
from fitrouter_evaluators.personal.audit.swaps import Audit, Swap
from fitrouter_evaluators.personal.certificate import verify
from fitrouter_evaluators.personal.suite import decoded
from fitrouter_integrations.commands.audits.role import write_audit
from fitrouter_integrations.gateway import _whole_log

KEYS = {
    "APP": "key-of-an-application",
    "OWN": "key-of-the-people",
    "TWO": "key-of-another-tenant",
    "ADMIN": "key-of-an-administrator",
}
PATHS = ("/v1/satisfaction", "/v1/exposure", "/v1/certificate")
SWAP = Swap(flips=0.0, by_kind={"fact": 0.0}, worst="", p=1.0, leak=False, probes=1, people=20)
AUDIT = Audit(
    role="nurse", registry="r", ts=1.0, passed=True, reasons=(), swap=SWAP, ranges=(), drills=(), asked=1, answered=1
)
HISTORY = [
    {"role": "user", "content": "I am a vegetarian. What can I cook tonight?"},
    {"role": "assistant", "content": "A lentil curry without meat."},
]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    keys: list[Any] = [
        {"name": "APP", "tenant": "one", "key_env": "APP"},
        {"name": "OWN", "tenant": "one", "key_env": "OWN", "trusted": True},
        {"name": "TWO", "tenant": "two", "key_env": "TWO", "trusted": True},
        {"name": "ADMIN", "key_env": "ADMIN", "admin": True},
    ]
    return load_config(install(tmp_path)).model_copy(update={"server": config(keys=keys).server})


@pytest.fixture
def http(settings: Config) -> Iterator[httpx.Client]:
    with serving(Router.from_config(settings), settings) as url, client(url) as opened:
        opened.headers["authorization"] = f"Bearer {KEYS['OWN']}"
        yield opened


def test_what_the_log_says_of_a_tenant(http: httpx.Client, settings: Config) -> None:
    """Twelve people's figures are there, another tenant's are empty, and a certificate verifies."""
    for number in range(48):
        user = f"user {number % 12}"
        reply = http.post("/v1/chat/completions", json=chat(f"What about {number % 20}?", user=user))
        vote = {"decision_id": reply.headers["x-fitrouter-decision"], "user": user, "kind": "thumb"}
        assert http.post("/v1/feedback", json=vote | {"value": "up" if number % 3 else "down"}).status_code == 200
    found = http.get("/v1/satisfaction")
    assert found.status_code == 200, found.text
    figures = found.json()
    assert (figures["people"], figures["ratings"]) == (12, 48)
    assert {"mean", "variance", "cvar10"} <= {name for name, value in figures.items() if value is not None}
    exposure = http.get("/v1/exposure").json()
    assert (exposure["people"], sum(exposure["models"].values())) == (12, pytest.approx(1.0))

    issued = http.get("/v1/certificate", headers={"x-fitrouter-user": "user 1"}).json()
    assert verify(issued["certificate"].encode(), issued["rows"].encode()).certificate.user == "user 1"
    assert http.get("/v1/certificate").status_code == 400

    other = {"authorization": f"Bearer {KEYS['TWO']}"}
    assert http.get("/v1/satisfaction", headers=other).json()["people"] == 0


def test_a_suite_over_http(http: httpx.Client) -> None:
    """What a person declared becomes a suite; nobody's is refused."""
    assert http.put("/v1/profile", json={"user": "ann", "values": {"warmth": 1.0}}).status_code == 200
    made = decoded(http.get("/v1/suite", headers={"x-fitrouter-user": "ann"}).json()["suite"].encode())
    assert made.rubric == {"warmth": 1.0}
    assert {(pair.dimension, pair.made_by) for pair in made.pairs} == {("warmth", "pool")}
    assert http.get("/v1/suite").status_code == 400


def test_a_diagnosis_over_http(http: httpx.Client) -> None:
    """Histories are diagnosed; bad ones are refused by their place."""
    found = http.post("/v1/diagnose", json={"history": [{"messages": HISTORY}]}).json()
    assert (found["object"], found["conversations"], found["answers"]) == ("fitrouter.diagnosis", 1, 1)
    for body in ({}, {"history": []}, {"history": "x"}, {"history": [{"messages": 1}]}):
        refused = http.post("/v1/diagnose", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request"), refused.text


def test_an_applications_key_reads_nothing_of_the_log(http: httpx.Client) -> None:
    """A key that does not speak for people gets neither figures nor audits."""
    app = {"authorization": f"Bearer {KEYS['APP']}", "x-fitrouter-user": "ann", "x-fitrouter-role": "nurse"}
    assert {http.get(path, headers=app).status_code for path in (*PATHS, "/v1/audit")} == {403}


def test_audits_over_http(http: httpx.Client, settings: Config) -> None:
    """Administrators read the signed audit of a role, or its page; an edited one is refused."""
    admin = {"authorization": f"Bearer {KEYS['ADMIN']}", "x-fitrouter-role": "nurse"}
    assert http.get("/v1/audit", headers=admin).status_code == 404
    path, document = write_audit(settings.data, AUDIT)
    assert http.get("/v1/audit", headers=admin).json() == msgspec.json.decode(msgspec.json.encode(document))
    page = http.get("/v1/audit", headers=admin | {"accept": "text/html"})
    assert (page.headers["content-type"].startswith("text/html"), "nurse" in page.text) == (True, True)
    path.write_text(path.read_text().replace('"passed": true', '"passed": false'))
    assert http.get("/v1/audit", headers=admin).status_code == 503
    assert http.get("/v1/audit", headers=admin | {"x-fitrouter-role": ""}).status_code == 400


def test_work_that_takes_too_long_is_ended() -> None:
    """The process is killed at its limit; one that ends without an answer is an error, too."""
    with pytest.raises(StoreError, match="within 0 s"):
        asyncio.run(in_background(_whole_log.__name__, {}, limit_s=0.0))
    with pytest.raises(StoreError, match="`fitrouter personal certificate`"):
        asyncio.run(in_background(_whole_log.__name__, {}, limit_s=0.0, command="fitrouter personal certificate"))
    with pytest.raises(StoreError, match="without an answer, with exit status 1"):
        asyncio.run(in_background("fitrouter_evaluators.no_such_module", {}, limit_s=60.0))
