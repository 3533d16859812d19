"""The quiz over HTTP: a whole one, tenants and users, and hostile bodies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.kits.gateway import client, config, make_router, serving
from tests.kits.quiz import install, shorter

from fitrouter.config import load_config
from fitrouter.router import Router

KEYS = {"ONE": "key-of-the-first-tenant", "TWO": "key-of-the-second-tenant"}


def test_a_quiz_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start, answer, undo, GET and result; another tenant's key and another user see nothing; bad bodies are 400."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    settings = load_config(install(tmp_path))
    keys = [{"name": name, "tenant": name.lower(), "key_env": name} for name in KEYS]
    settings = settings.model_copy(update={"server": config(keys=keys).server})
    with serving(Router.from_config(settings), settings) as url, client(url) as http:
        http.headers["authorization"] = f"Bearer {KEYS['ONE']}"

        def post(path: str, **body: Any) -> Any:
            return http.post(f"/v1/quiz{path}", json=body)

        start = post("", user="ann", role="nurse", questions=4)
        assert start.status_code == 200, start.text
        progress = start.json()
        assert (progress["object"], progress["result"], progress["question"]["of"]) == ("fitrouter.quiz", None, 4)
        assert "brief" not in {*progress["question"]}
        path = f"/{progress['id']}"
        assert post("", user="ann").json() == progress  # goes on
        for body, said in (
            ({"user": "ann", "question": 1}, "choice"),
            ({"user": "ann", "question": 1, "choice": ["first"]}, "choice"),
            ({"user": "ann", "question": "1", "choice": "first"}, "question"),
            ({"user": "ann", "question": True, "choice": "first"}, "question"),
            ({"user": "ann", "question": 2, "choice": "first"}, "question"),
            ({"user": "ann", "choice": "first"}, "question"),
            ({"question": 1, "choice": "first"}, "user"),
            ({"user": "ann", "question": 1, "choice": "first", "x": 1}, "x"),
        ):
            refused = post(path, **body)
            assert refused.status_code == 400, refused.text
            assert said in refused.json()["error"]["message"]
        for body in ({}, {"user": ["ann"]}, {"user": "ann", "questions": 0}, {"user": "ann", "questions": 51}):
            assert post("", **body).status_code == 400
        assert post(path, user="bob", question=1, choice="first").status_code == 403
        assert http.get(f"/v1/quiz{path}", headers={"x-fitrouter-user": "bob"}).status_code == 403
        assert post("/no-such-quiz", user="ann", question=1, choice="first").status_code == 404
        other = {"authorization": f"Bearer {KEYS['TWO']}"}
        assert http.get(f"/v1/quiz{path}", headers=other).status_code == 404
        assert http.post(f"/v1/quiz{path}", headers=other, json={"user": "ann", "question": 1, "choice": "first"}).status_code == 404  # fmt: skip  # noqa: E501
        assert http.get(f"/v1/quiz{path}", headers={"authorization": ""}).status_code == 401

        post(path, user="ann", question=1, choice="skip")
        assert post(path, user="ann", question=2, choice="undo").json() == progress
        while progress["question"] is not None:
            number = progress["question"]["number"]
            reply = post(path, user="ann", question=number, choice=shorter(progress["question"]))
            assert reply.status_code == 200, reply.text
            progress = reply.json()
        assert progress["result"]["best"] == "brief"
        assert progress["result"]["ended"] in {"limit", "sure"}
        assert progress["sentences"][0].startswith("We are ")
        assert http.get(f"/v1/quiz{path}").json() == progress


def test_without_recorded_answers(tmp_path: Path) -> None:
    """A gateway without recorded answers says what to do."""
    with serving(make_router(tmp_path), config()) as url, client(url) as http:
        refused = http.post("/v1/quiz", json={"user": "ann"})
        assert refused.status_code == 404
        assert refused.json()["error"]["code"] == "no_quiz"
        assert "--ask" in refused.json()["error"]["message"]
