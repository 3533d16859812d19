"""Two people with opposite votes read opposite things, wherever they look."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.kits import postgres
from tests.kits.gateway import client, config, folded, serving, wait_for
from tests.kits.quiz import CONFIG, install
from typer.testing import CliRunner

from fitrouter.config import Config, load_config
from fitrouter.router import Router
from fitrouter.types import Identity
from fitrouter_evaluators.personal import Leaderboards, Profiles, Reports
from fitrouter_evaluators.personal.certificate import certified
from fitrouter_integrations import cli

TASTES = {"short": ("brief", "long"), "long": ("long", "brief")}
"""Taste → the model that such people like, and the one that they dislike."""
TOPICS = 4
KEY = "key-of-the-people-themselves"


def taste(user: str) -> tuple[str, str]:
    return TASTES[user.split()[0]]


def by_quiz(http: httpx.Client, user: str) -> int:
    """Answer a quiz by length; returns the number of votes."""
    step = http.post("/v1/quiz", json={"user": user}).json()
    asked = 0
    while (question := step["question"]) is not None:
        shorter = len(question["first"]) < len(question["second"])
        choice = "first" if shorter is (taste(user)[0] == "brief") else "second"
        said = {"user": user, "question": question["number"], "choice": choice}
        step = http.post(f"/v1/quiz/{step['id']}", json=said).json()
        asked += 1
    return asked


def by_thumbs(http: httpx.Client, user: str) -> int:
    """Give thumbs to answers of both models."""
    return _rated(http, user, {"kind": "thumb", "value": "up"}, {"kind": "thumb", "value": "down"})


def by_ratings(http: httpx.Client, user: str) -> int:
    """Give stars to answers of both models."""
    return _rated(http, user, *({"kind": "rating", "value": stars, "scale": [1, 5]} for stars in (5, 1)))


def _rated(http: httpx.Client, user: str, up: Mapping[str, Any], down: Mapping[str, Any]) -> int:
    for topic in range(TOPICS):
        for model, vote in zip(taste(user), (up, down), strict=True):
            decision = asked(http, user, topic, model)
            reply = http.post("/v1/feedback", json={"decision_id": decision, "user": user, **vote})
            assert reply.status_code == 200, reply.text
    return 2 * TOPICS


def asked(http: httpx.Client, user: str, topic: int, model: str = "fitrouter/auto") -> str:
    """Ask a question; returns the decision once it is logged."""
    body = {"model": model, "messages": [{"role": "user", "content": f"What about {topic}?"}], "user": user}
    reply = http.post("/v1/chat/completions", json=body)
    while reply.headers.get("x-fitrouter-logged") == "false":  # a busy machine's disk: nobody can vote on it
        reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    decision = reply.headers["x-fitrouter-decision"]
    wait_for(lambda: http.get(f"/v1/decisions/{decision}").status_code == 200)
    return decision


@contextmanager
def gateway(settings: Config) -> Iterator[tuple[httpx.Client, Router]]:
    """The official gateway over an installation, on a socket, once its warehouse has everything."""
    settings = settings.model_copy(
        update={"server": config(keys=[{"name": "own", "key_env": "OWN", "trusted": True}]).server}
    )
    router = Router.from_config(settings)
    with serving(router, settings) as url, client(url) as http:
        http.headers["authorization"] = f"Bearer {KEY}"
        copied(router)
        yield http, router


def copied(router: Router) -> None:
    """Wait until every answer is scored, and every event is folded and in the warehouse."""
    folded(router)
    wait_for(lambda: not ((lag := router.status().lag).scorer_answers or lag.warehouse_events))
    folded(router)  # the scores


def order(models: Any) -> list[str]:
    return [each["model"] for each in models]


def over_http(http: httpx.Client, user: str, decision: str) -> dict[str, Any]:
    """What every route says of a person."""
    headers = {"x-fitrouter-user": user}

    def get(path: str, **params: str) -> Any:
        reply = wait_for(lambda: (got := http.get(path, headers=headers, params=params)).status_code != 503 and got)
        assert reply.status_code == 200, reply.text
        return reply.json()

    report, seen = get("/v1/report"), get("/console/api/people", user=user)
    return {
        "leaderboard": order(get("/v1/leaderboard")["models"]),
        "report": order(report["board"]["models"]),
        "likes": {each["feature"]: each["likes"] for each in report["likes"]},
        "console": order(seen["report"]["board"]["models"]),
        "votes in the console": sum(each["votes"] for each in seen["said"]),
        "votes in the report": report["board"]["labels"],
        **profiled(get("/v1/profile")),
        **explained(get(f"/v1/decisions/{decision}")["eligible"]),
    }


def by_command(file: Path, user: str, decision: str, folder: Path) -> dict[str, Any]:
    """What every command says of a person."""

    def run(*arguments: object) -> str:
        found = CliRunner().invoke(cli.app, [*map(str, arguments), "--config", str(file)])
        assert found.exit_code == 0, (arguments, found.output, found.exception)
        return found.stdout

    folder.mkdir()
    report, exported = folder / "report.json", folder / "profile.json"
    signed, rows = folder / "certificate.json", folder / "rows.jsonl"
    printed = run("report", "--user", user, "--json", report)
    run("personal", "profile", "export", exported, "--user", user)
    run("personal", "certificate", "--user", user, "-o", signed, "--rows", rows)
    found = json.loads(report.read_text())
    first = next(line for line in printed.splitlines() if line.startswith(" 1 "))
    assert taste(user)[0] in first
    explanation = json.loads(run("explain", decision, "--json", "-"))
    return {
        "leaderboard": order(json.loads(run("personal", "leaderboard", "--user", user, "--json"))["models"]),
        "report": order(found["board"]["models"]),
        "likes": {each["feature"]: each["likes"] for each in found["likes"]},
        "certificate": order(json.loads(signed.read_text())["figures"]["report"]),
        "votes in the report": found["board"]["labels"],
        **profiled(json.loads(exported.read_text())),
        "explanation": explanation["sentences"],
    }


def in_python(router: Router, settings: Config, user: str) -> dict[str, Any]:
    """What the classes say of a person."""
    who = Identity(user=user)
    board = asyncio.run(Leaderboards(router, settings).of(who))
    report = asyncio.run(Reports(router, settings).of(who))
    profile = asyncio.run(Profiles(router).show(who))
    rows = asyncio.run(certified(router, settings, who))
    drawn = {name: sum(draw.ratings[k] for draw in rows.draws) for k, name in enumerate(rows.compared.names)}
    return {
        "leaderboard": [each.model for each in board.models],
        "report": [each.model for each in report.board.models],
        "likes": {each.feature: each.likes for each in report.likes},
        "certificate": sorted(drawn, key=lambda name: -drawn[name]),
        "votes in the report": board.labels,
        **profiled(msgspec.to_builtins(profile)),
    }


def profiled(profile: Any) -> dict[str, Any]:
    said = sum(each["number"] for each in profile["said"].values())
    return {"learnt": profile["learnt"]["length"]["mean"], "votes in the profile": said}


def explained(eligible: Any) -> dict[str, Any]:
    """Models by the rating that the decision expected."""
    return {"explanation": [each["model"] for each in sorted(eligible, key=lambda each: -each["fit_mean"])]}


def check(found: dict[str, Any], user: str, votes: int) -> None:
    """A person reads their own taste everywhere, made from as many votes as they gave."""
    liked, disliked = taste(user)
    for surface, said in found.items():
        where = f"{surface} of {user}: {said}"
        if surface.startswith("votes"):
            assert said == votes, where
        elif surface == "learnt":
            assert (said < 0) is (liked == "brief"), where
        elif surface == "likes":
            if said or "quiz" not in user:  # a quiz may end before this is sure
                assert said["length"] is (liked == "long"), where
        elif surface == "explanation" and " " in said[0]:
            assert any(liked in sentence for sentence in said), where
        else:
            assert said.index(liked) < said.index(disliked), where
            assert surface == "explanation" or said[0] == liked, where


@pytest.mark.parametrize("stored", ["sqlite", "postgres"])
def test_opposite_votes(stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On every route, command and class; after a restart too, and from a warehouse that was rebuilt."""
    if stored == "postgres" and postgres.binaries() is None:
        pytest.skip(postgres.MISSING)
    monkeypatch.setenv("OWN", KEY)
    file = install(tmp_path)
    votings = (by_quiz, by_ratings) if stored == "sqlite" else (by_quiz, by_thumbs)
    people = {f"{taste} by {vote.__name__}": vote for vote in votings for taste in TASTES}
    with postgres.serving() if stored == "postgres" else nullcontext() as server:
        if server is not None:
            file.write_text(CONFIG.replace("data: d", f"data: {server.url(server.database())}"))
        settings = load_config(file)
        with gateway(settings) as (http, router):
            votes = {user: vote(http, user) for user, vote in people.items()}
            copied(router)
            decisions = {user: asked(http, user, TOPICS) for user in people}
            copied(router)
            for user in people:
                check(over_http(http, user, decisions[user]), user, votes[user])
            for user in [*people][:2]:  # a process each
                signed = http.get("/v1/certificate", headers={"x-fitrouter-user": user})
                assert signed.status_code == 200, signed.text
                figures = json.loads(signed.json()["certificate"])["figures"]
                check({"certificate": order(figures["report"])}, user, votes[user])
        for user in [*people][:2] if server is None else [*people][-2:]:
            check(by_command(file, user, decisions[user], tmp_path / user), user, votes[user])
        with Router.offline(settings) as router:
            for user in people:
                check(in_python(router, settings, user), user, votes[user])
        for rebuilt in (False, True):
            if rebuilt:
                (settings.data / "fitrouter.duckdb").unlink()
            with gateway(settings) as (http, _):
                for user in people if rebuilt else [*people][:2]:
                    check(over_http(http, user, decisions[user]), user, votes[user])
