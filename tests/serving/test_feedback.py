"""What people say, end to end: every kind of feedback and declared values, over real HTTP, down to the taste."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.kits.gateway import chat, client, serving, wait_for

from fitrouter.config import parse_config
from fitrouter.errors import InvalidRequest
from fitrouter.router import Router
from fitrouter.serving.feedback import on_scale
from fitrouter.types import FeedbackKind, Identity


@pytest.fixture
def router(tmp_path: Path) -> Router:
    """Two simulated models with a static scorer, assembled as `fitrouter serve` does it."""
    return Router.from_config(
        parse_config(
            {
                "data": str(tmp_path),
                "providers": {
                    "s": {
                        "kind": "simulated",
                        "options": {"speed": 1e6, "terse": {"length": 2}, "chatty": {"length": 12, "bullets": 0.9}},
                    }
                },
                "models": [{"name": "terse", "provider": "s"}, {"name": "chatty", "provider": "s"}],
            }
        )
    )


@pytest.fixture
def http(router: Router) -> Iterator[httpx.Client]:
    with serving(router) as url, client(url) as connection:
        yield connection


def asked(http: httpx.Client, model: str = "fitrouter/auto", user: str = "ann") -> str:
    """The decision id of an answer."""
    reply = http.post("/v1/chat/completions", json=chat("How do vaccines work?", user=user) | {"model": model})
    assert reply.status_code == 200, reply.text
    return str(reply.headers["x-fitrouter-decision"])


def taste(router: Router) -> np.ndarray[Any, Any]:
    """The only user's deviation from the population's taste."""
    fit = router._learner.fit
    (user,) = (name for name in fit.tastes.users if not name.startswith("anonymous"))
    return fit.taste(Identity(user=user)) - fit.tastes.population.mean


VALUES = {"dwell": 12.5, "pair": 1.0, "edit": 0.2, "regenerate": 0.0}


@pytest.mark.parametrize("kind", [kind.value for kind in FeedbackKind])
def test_every_kind_reaches_the_taste(http: httpx.Client, router: Router, kind: str) -> None:
    """A verdict of each kind, given over HTTP, is durable, is shown, and moves the user's taste."""
    first, second = asked(http, "terse"), asked(http, "chatty")
    body = {"decision_id": second, "kind": kind, "value": VALUES.get(kind, 1)}
    if kind == "pair":
        body["other"] = first
    reply = http.post("/v1/feedback", json=body)
    assert reply.status_code == 200, reply.text
    assert http.get(f"/v1/decisions/{second}").json()["feedback"][0]["kind"] == kind
    wait_for(lambda: router._learner.fit.tastes.users and np.abs(taste(router)).max() > 0)


def test_a_pair_can_be_told_from_either_side(http: httpx.Client, router: Router) -> None:
    """'First better than second' and 'second worse than first' are one vote: the later supersedes the earlier."""
    first, second = asked(http, "terse"), asked(http, "chatty")
    for decision, other, value in ((first, second, 1), (second, first, 0)):
        vote = {"decision_id": decision, "other": other, "kind": "pair", "value": value}
        assert http.post("/v1/feedback", json=vote).status_code == 200
    wait_for(lambda: router._learner.fit.labels == 1 and router._follower.lag == 0)
    votes = http.get(f"/v1/decisions/{second}").json()["feedback"]
    assert [(vote["value"], vote["other"]) for vote in votes] == [(0.0, first)] * 2


def test_what_cannot_be_meant_is_refused(http: httpx.Client, subtests: pytest.Subtests) -> None:
    """400, with what is allowed, and nothing is kept."""
    for change, words in (
        ({"kind": "pair", "value": 1}, "other"),
        ({"kind": "pair", "value": 0.3, "other": "first"}, "tie"),
        ({"kind": "pair", "value": 1, "other": "second"}, "compares two"),
        ({"kind": "pair", "value": 1, "other": "bob's"}, "same user"),
        ({"kind": "thumb", "value": 1, "other": "first"}, "nothing else"),
        ({"kind": "dwell", "value": -1}, "seconds"),
        ({"kind": "dwell", "value": 1e9}, "seconds"),
        ({"kind": "edit", "value": 1.5}, "scale"),
        ({"kind": "copy", "value": 1, "scale": [0, 1]}, "leave it out"),
        ({"kind": "clap", "value": 1}, "allowed are"),
    ):
        with subtests.test(change=change, words=words):
            ids = {"first": asked(http, "terse"), "second": asked(http, "chatty"), "bob's": asked(http, "terse", "bob")}
            body = {"decision_id": ids["second"], **change}
            if "other" in body:
                body["other"] = ids[body["other"]]
            reply = http.post("/v1/feedback", json=body)
            assert reply.status_code == 400, reply.text
            assert words in reply.json()["error"]["message"]
            assert http.get(f"/v1/decisions/{ids['second']}").json()["feedback"] == []


def test_no_number_beyond_its_scale_enters(subtests: pytest.Subtests) -> None:
    """Also in process, where nothing parsed it before; only a stay may be longer than 1."""
    for kind, value in itertools.product(FeedbackKind, (float("nan"), float("inf"), -1.0, 2.0)):
        with subtests.test(value=value, kind=kind):
            if kind is FeedbackKind.DWELL and value == 2.0:
                on_scale(kind, value, (0.0, 1.0))
            else:
                with pytest.raises(InvalidRequest):
                    on_scale(kind, value, (0.0, 1.0))


def test_a_profile_in_numbers_and_words(http: httpx.Client, router: Router) -> None:
    """What a user declares moves their taste before any vote, replaces what was there, and says what it understood."""
    body = {"user": "ann", "values": {"warmth": 0.5}, "statements": ["I dislike bullet points.", "My cat is grey."]}
    body["statements"] += ["I avoid horror films.", "Ich esse kein Fleisch.", "Bitte antworte kurz."]
    reply = http.put("/v1/profile", json=body)
    assert reply.status_code == 200, reply.text
    said = reply.json()
    assert said["declared"]["warmth"] == 0.5
    assert said["declared"]["structure"] < 0
    assert said["not_understood"] == ["My cat is grey.", "Ich esse kein Fleisch."]
    assert "it is in German, and was not understood" in said["reasons"].pop("Ich esse kein Fleisch.")
    assert said["reasons"] == {"My cat is grey.": "it is about something else than the style of answers"}
    moved = {word: {name: value > 0 for name, value in meant.items()} for word, meant in said["moved"].items()}
    assert moved == {"I dislike bullet points.": {"structure": False}, "Bitte antworte kurz.": {"length": False}}
    assert said["topics"] == ["I avoid horror films."]
    names = router._learner.names
    wait_for(lambda: router._learner.fit.tastes.users)
    assert taste(router)[names.index("warmth")] > 0 > taste(router)[names.index("structure")]
    assert http.put("/v1/profile", json={"user": "ann", "values": {"warmth": -1}}).status_code == 200
    wait_for(lambda: taste(router)[names.index("warmth")] < 0)
    assert taste(router)[names.index("structure")] == pytest.approx(0.0, abs=1e-12)


def test_a_profile_that_cannot_be_meant_is_refused(http: httpx.Client, subtests: pytest.Subtests) -> None:
    """400, with what is allowed."""
    for body, words in (
        ({"values": {"warmth": 1}}, "user"),
        ({"user": "ann", "values": {"wrmth": 1}}, "allowed are"),
        ({"user": "ann", "values": {"warmth": 2}}, "−1"),
        ({"user": "ann", "statements": [7]}, "string"),
        ({"user": "ann", "statements": ["x"] * 65}, "64"),
        ({"user": "ann", "mood": 1}, "unknown field"),
    ):
        with subtests.test(body=body, words=words):
            reply = http.put("/v1/profile", json=body)
            assert reply.status_code == 400, reply.text
            assert words in reply.json()["error"]["message"]
