"""Reasons of simulated people, read over HTTP: whoever votes for one thing alone reads that thing first."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.kits.gateway import client, folded, serving, wait_for

from fitrouter.config import load_config
from fitrouter.router import Router

SAYS = ("rather", "a", "lot", "more", "that", "one", "could", "say", "here", "today", "again", "about", "it")
STYLES: dict[str, Callable[[str, Any], str]] = {
    "brief": lambda t, rng: f"{t}: {' '.join(rng.choice(SAYS, 6))}.",
    "listing": lambda t, rng: f"{t}:\n\n" + "\n".join(f"- {' '.join(rng.choice(SAYS, 12))}" for _ in range(9)),
    "long": lambda t, rng: f"{t}: " + " ".join(f"{' '.join(rng.choice(SAYS, 12)).capitalize()}." for _ in range(9)),
    "twin": lambda t, rng: f"{t}: " + " ".join(f"{' '.join(rng.choice(SAYS, 12)).capitalize()}." for _ in range(9)),
}
PEOPLE = {
    "short": (lambda model: model == "brief", "brief", ("style", "length")),
    "lists": (lambda model: model == "listing", "listing", ("style", "structure")),
    "fan": (lambda model: model == "twin", "twin", ("offset", "")),
}
"""Person → what they like, their first model, and the reason that they must read first."""
TOPICS = 16


def install(folder: Path, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    rows = [
        {"prompt": f"What about {t}?", "model": model, "response": say(f"Topic {t}", rng)}
        for t in range(TOPICS)
        for model, say in STYLES.items()
    ]
    (folder / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = "".join(f"  - {{name: {model}, provider: r}}\n" for model in STYLES)
    file = folder / "fitrouter.yaml"
    file.write_text(
        f"data: d\nproviders:\n  r: {{kind: recorded, path: answers.jsonl}}\nmodels:\n{models}"
        "encoder: hashing\nscorer: {encoder: hashing, prior: none}\nserver: {port: 0}\n"
    )
    return file


def vote(http: httpx.Client, user: str, model: str, topic: int, *, up: bool) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": f"What about {topic}?"}], "user": user}
    decision = http.post("/v1/chat/completions", json=body).headers["x-fitrouter-decision"]
    said = {"decision_id": decision, "kind": "thumb", "value": "up" if up else "down", "user": user}
    assert http.post("/v1/feedback", json=said).status_code == 200


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_people_read_their_own_reason_first(tmp_path: Path, seed: int) -> None:
    """Whoever votes for length, lists or a model alone has their model first, claimed, for that reason.

    The parts add up to the lead, and the report, from the same posterior, names the style.
    """
    settings, rng = load_config(install(tmp_path, seed)), np.random.default_rng([9, seed])
    router = Router.from_config(settings)
    with serving(router, settings) as url, client(url) as http:
        for each in range(8):  # a crowd that likes the long model
            for topic in rng.permutation(TOPICS)[:3].tolist():
                for model in STYLES:
                    vote(http, f"crowd{each}", model, topic, up=rng.random() < (0.85 if model == "long" else 0.4))
        for user, (likes, _, _) in PEOPLE.items():
            for topic in rng.permutation(TOPICS)[:8].tolist():
                for model in STYLES:
                    vote(http, user, model, topic, up=likes(model))
        folded(router)
        wait_for(lambda: not ((lag := router.status().lag).scorer_answers or lag.warehouse_events))
        folded(router)
        for user, (_, first, (group, feature)) in PEOPLE.items():
            who = {"x-fitrouter-user": user}
            board = http.get("/v1/leaderboard", headers=who).json()
            assert (board["first"], board["population_first"], board["claimed"]) == (first, "long", True)
            why = board["why"]
            assert (why[0]["group"], why[0]["feature"]) == (group, feature), why
            assert why[0]["effect"] > 1.5 * max(each["effect"] for each in why[1:])
            assert any(f"What separates the two: {first} {why[0]['words']} (" in each for each in board["sentences"])
            rating = {each["model"]: each["rating"] for each in board["models"]}
            assert sum(each["effect"] for each in why) == pytest.approx(rating[first] - rating["long"], abs=1e-9)
            report = http.get("/v1/report", headers=who).json()
            assert {"object": "fitrouter.leaderboard", **report["board"]} == board
            likes_told = [(each["feature"], each["likes"]) for each in report["likes"]]
            assert likes_told[:1] == ([(feature, feature != "length")] if feature else [])
