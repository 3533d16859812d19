"""Ratings: their scale, `up` and `down`, and ids of answers, in Python, over HTTP and on the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kits.gateway import client, make_router, serving
from typer.testing import CliRunner, Result

from fitrouter.config import parse_config
from fitrouter.errors import ConfigError, InvalidRequest, UnknownDecision
from fitrouter.router import Router
from fitrouter.types import Feedback, FeedbackKind, Identity, Request, RunOutcome
from fitrouter_integrations import cli
from fitrouter_integrations import feedback as say
from fitrouter_integrations.client import Client, connect
from fitrouter_integrations.client._local import LocalBackend


@pytest.fixture(params=["near", "far"])
def asked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Client, Router, str]]:
    """A client, the router that it reaches, whose ratings are from 1 to 10, and a gateway's URL or nothing."""
    router = make_router(tmp_path, rating_scale=(1.0, 10.0))
    if request.param == "near":
        with Client(LocalBackend(router)) as made:
            yield made, router, ""
    else:
        with serving(router) as url, connect(url) as made:
            yield made, router, url


def answered(client: Client) -> str:
    request = Request(messages=({"role": "user", "content": "hello"},), identity=Identity(user="ann"))
    return client.complete(request).about.decision_id


def last(router: Router) -> Feedback:
    event = router._journal.latest(("feedback",), 1)[0].event
    assert isinstance(event, Feedback)
    return event


def test_python_rates_on_the_configured_scale(asked: tuple[Client, Router, str]) -> None:
    """`rate` without a scale takes `feedback.scale`; with one, that; "up" and "down" are thumbs."""
    client, router, _ = asked
    id_ = answered(client)
    for arguments, expected in (
        ((7,), (FeedbackKind.RATING, 7.0, (1.0, 10.0))),
        ((4, (1.0, 5.0)), (FeedbackKind.RATING, 4.0, (1.0, 5.0))),
        (("up",), (FeedbackKind.THUMB, 1.0, (0.0, 1.0))),
        (("down",), (FeedbackKind.THUMB, 0.0, (0.0, 1.0))),
    ):
        given: Any = arguments
        say.rate(client, id_, *given)
        event = last(router)
        assert (event.kind, event.value, event.scale) == expected
    with pytest.raises(InvalidRequest):
        say.rate(client, id_, "sideways")
    with pytest.raises(InvalidRequest, match=r"11(\.0)? is not on the scale \[1, 10\]"):
        say.rate(client, id_, 11)


@pytest.mark.parametrize("prefix", ["chatcmpl-", "msg_", "resp_", " "])
def test_python_takes_ids_of_answers(asked: tuple[Client, Router, str], prefix: str) -> None:
    """Votes, pairs and comments name the decision by the id of its answer as well."""
    client, router, _ = asked
    first, second = answered(client), answered(client)
    say.rate(client, prefix + first, "up")
    assert last(router).decision_id == first
    say.compare(client, better=prefix + second, worse=prefix + first)
    event = last(router)
    assert {event.decision_id, event.other} == {first, second}


async def test_a_router_takes_ids_of_answers_and_words(tmp_path: Path) -> None:
    """`feedback`, `events` and `explain` of a router itself; a rating without any scale is from 0 to 1."""
    async with make_router(tmp_path) as router:
        id_ = (await router.complete(Request(messages=({"role": "user", "content": "hello"},)))).decision.id
        for kind in (FeedbackKind.THUMB, FeedbackKind.RATING):
            await router.feedback(f"chatcmpl-{id_}", kind, "up")
            assert (last(router).kind, last(router).y) == (FeedbackKind.THUMB, 1.0)
        await router.feedback(id_, FeedbackKind.RATING, 0.25)
        assert last(router).scale == (0.0, 1.0)
        assert (await router.events(f"chatcmpl-{id_}"))[0].id == id_
        assert (await router.explain(f"chatcmpl-{id_}")).decision_id == id_
        for value, advice in ((4, 'add "scale": [1, 5]'), (8, "[1, 10]"), (70, "[0, 100]"), (-3, "give the lowest")):
            with pytest.raises(InvalidRequest) as refused:
                await router.feedback(id_, FeedbackKind.RATING, value)
            assert advice in str(refused.value)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["rate", *(str(argument) for argument in arguments)])


def test_ratings_over_http_and_on_the_command_line(tmp_path: Path) -> None:
    """Without a kind "up" is a thumb; the scale is the rating's, else the configured one; a mistake is explained."""
    router = make_router(tmp_path, rating_scale=(1.0, 5.0))
    with serving(router) as url, connect(url) as python, client(url) as http:
        id_ = answered(python)
        for body, expected in (
            ({"value": "up"}, (FeedbackKind.THUMB, 1.0)),
            ({"kind": "rating", "value": "down"}, (FeedbackKind.THUMB, 0.0)),
            ({"kind": "rating", "value": 4}, (FeedbackKind.RATING, 0.75)),
            ({"kind": "rating", "value": 4, "default_scale": [0, 8]}, (FeedbackKind.RATING, 0.75)),
            ({"kind": "rating", "value": 4, "scale": [0, 8]}, (FeedbackKind.RATING, 0.5)),
        ):
            for name in (id_, f"chatcmpl-{id_}"):
                assert http.post("/v1/feedback", json={"decision_id": name, **body}).status_code == 200
                assert (last(router).kind, last(router).y) == expected
        for body, words in (
            ({"value": 4}, "kind: missing; allowed are thumb, rating"),
            ({"kind": "thumb", "value": 1, "default_scale": [0, 1]}, "only a rating has a scale"),
            ({"kind": "rating", "value": 1, "default_scale": 5}, "such as [1, 5]"),
        ):
            refused = http.post("/v1/feedback", json={"decision_id": id_, **body})
            assert (refused.status_code, words in refused.json()["error"]["message"]) == (400, True), refused.text
        for arguments, expected in (
            (("up",), (FeedbackKind.THUMB, 1.0)),
            (("2",), (FeedbackKind.RATING, 0.25)),
            (("2", "--scale", "0:4", "--user", "ann"), (FeedbackKind.RATING, 0.5)),
        ):
            result = run(f"chatcmpl-{id_}", *arguments, "--url", url)
            assert result.exit_code == 0, result.exception
            assert (last(router).kind, last(router).y) == expected
        refused_here = run(id_, "great", "--url", url)
        assert isinstance(refused_here.exception, InvalidRequest)
        assert "give up, down, or a number" in str(refused_here.exception)


def test_a_run_is_rated_on_the_command_line(tmp_path: Path) -> None:
    """`--run` with an answer or an id: up and down are success and failure, a number is on the configured scale."""
    router = make_router(tmp_path, rating_scale=(1.0, 5.0))
    with serving(router) as url, connect(url) as python, router.run() as begun:
        id_ = answered(python)
        for name, arguments, expected in (
            (id_, ("up",), ("success", 1.0)),
            (begun.id, ("2",), ("rating", 0.25)),
            (begun.id, ("2", "--scale", "0:4"), ("rating", 0.5)),
        ):
            result = run(name, *arguments, "--run", "--user", "ann", "--url", url)
            assert result.exit_code == 0, result.exception
            event = router._journal.latest(("outcome",), 1)[0].event
            assert isinstance(event, RunOutcome)
            assert (event.kind, event.y, event.source) == (*expected, "person")
        assert isinstance(run("nothing", "up", "--run", "--url", url).exception, UnknownDecision)


def test_a_scale_in_the_configuration_is_checked(tmp_path: Path) -> None:
    """`feedback.scale` reaches the router; one that does not rise is refused with what to give."""
    settings = {"data": str(tmp_path), "encoder": "hashing", "scorer": {"encoder": "none"}}
    settings |= {
        "providers": {"s": {"kind": "simulated", "options": {"m": {}}}},
        "models": [{"name": "m", "provider": "s"}],
    }

    async def rated() -> Feedback:
        async with Router.from_config(parse_config({**settings, "feedback": {"scale": [1, 5]}})) as router:
            id_ = (await router.complete(Request(messages=({"role": "user", "content": "hello"},)))).decision.id
            await router.feedback(id_, FeedbackKind.RATING, 4)
            return last(router)

    assert asyncio.run(rated()).y == 0.75
    with pytest.raises(ConfigError, match="such as"):
        parse_config({**settings, "feedback": {"scale": [5, 1]}})
