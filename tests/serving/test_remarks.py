"""Remarks end to end: comments that are shown back and corrected, and what people say in passing, over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.kits.gateway import PATIENCE_S, chat, client, folded, serving, wait_for
from tests.kits.tables import table_driven
from typer.testing import CliRunner

from fitrouter.config import parse_config
from fitrouter.errors import InvalidRequest
from fitrouter.router import Router
from fitrouter.types import Execution, Feedback, Identity, Remark, Request, Score
from fitrouter_integrations import cli
from fitrouter_integrations.client import Client, connect
from fitrouter_integrations.client._remote import RemoteBackend
from fitrouter_integrations.feedback import acomment, comment, thumb


def build(folder: Path, **feedback: Any) -> Router:
    """Two simulated models with a static scorer: one short, one long with bullet points."""
    models = {"terse": {"length": 2}, "chatty": {"length": 12, "bullets": 0.9}}
    return Router.from_config(
        parse_config(
            {
                "data": str(folder),
                "providers": {"s": {"kind": "simulated", "options": {"speed": 1e6, **models}}},
                "models": [{"name": name, "provider": "s"} for name in models],
                "feedback": feedback,
            }
        )
    )


@pytest.fixture
def router(tmp_path: Path) -> Router:
    return build(tmp_path)


@pytest.fixture
def http(router: Router) -> Iterator[httpx.Client]:
    with serving(router) as url, client(url) as connection:
        yield connection


def events(router: Router, kind: type[Any] = Remark) -> list[Any]:
    return [row.event for row in router._journal.tail(0, 10_000) if isinstance(row.event, kind)]


def length(router: Router) -> float:
    """The only user's liking of length; 0 before the first vote is learnt."""
    fit, at = router._learner.fit, router._learner.names.index("length")
    return next((float(fit.taste(Identity(user=user))[at]) for user in fit.tastes.users), 0.0)


def turn(http: httpx.Client, said: list[str], model: str = "fitrouter/auto") -> tuple[str, str]:
    """Ask with a history of messages, the user's first; returns the decision id and the answer."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
    reply = http.post("/v1/chat/completions", json={"model": model, "messages": messages, "user": "ann"})
    assert reply.status_code == 200, reply.text
    return str(reply.headers["x-fitrouter-decision"]), str(reply.json()["choices"][0]["message"]["content"])


def scored(router: Router, decision_id: str) -> None:
    wait_for(lambda: any(event.decision_id == decision_id for event in events(router, Score)))
    folded(router)


def post(http: httpx.Client, decision_id: str, **body: Any) -> dict[str, Any]:
    reply = http.post("/v1/feedback", json={"decision_id": decision_id, **body})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def test_a_comment_is_shown_back_and_can_be_corrected(http: httpx.Client, router: Router) -> None:
    """The reply lists what was understood and what was not; a correction replaces it, and an empty one withdraws it."""
    decision, _ = turn(http, ["How do vaccines work?"], "chatty")
    scored(router, decision)
    said = post(
        http, decision, kind="thumb", value="up", comment="Too long, and stop the bullet points. My cat is grey."
    )
    assert said["understood"] == {"length": -1.0, "structure": -1.0}
    assert said["not_understood"] == ["my cat is grey"]
    assert said["id"]
    wait_for(lambda: length(router) < -0.02)
    less = length(router)

    assert post(http, decision, understood={"length": 0.5})["understood"] == {"length": 0.5}
    wait_for(lambda: length(router) > 0)
    assert post(http, decision, understood={})["understood"] == {}
    folded(router)
    assert abs(length(router)) < 0.5 * abs(less)

    foreign = post(http, decision, comment="Das ist mir zu blumig geschrieben.")
    assert foreign["understood"] == {}
    assert "it is in German" in foreign["reasons"]["das ist mir zu blumig geschrieben"]
    nothing = post(http, decision, comment="The capital of Australia is Canberra.")
    assert nothing["understood"] == {}
    assert nothing["remark_id"] is None
    assert len(nothing["not_understood"]) == 1
    assert [remark["moved"] for remark in http.get(f"/v1/decisions/{decision}").json()["remarks"]] == [
        {"length": -1.0, "structure": -1.0},
        {"length": 0.5},
        {},
    ]


def test_the_words_are_not_kept(http: httpx.Client, router: Router, tmp_path: Path) -> None:
    """No file of the installation has the text of a comment."""
    decision, _ = turn(http, ["How do vaccines work?"], "chatty")
    post(http, decision, comment="Too long, dear Zanzibarian.")
    folded(router)
    for path in tmp_path.iterdir():
        assert b"anzibarian" not in path.read_bytes().lower()


@table_driven(
    ("body", "status", "words"),
    [
        ({"comment": "x" * 1001}, 400, "1 to 1000"),
        ({"comment": "x" * 1_000_000}, 400, "1 to 1000"),
        ({"comment": " "}, 400, "comment"),
        ({"comment": ["too long"]}, 400, "comment"),
        ({"comment": "too long", "understood": {}}, 400, "not both"),
        ({"understood": {"humour": 1}}, 400, "unknown dimension"),
        ({"understood": {"length": 2}}, 400, "allowed are"),
        ({"understood": {"length": "much"}}, 400, "number"),
        ({"understood": [1]}, 400, "object"),
        ({"understood": {str(i): 1 for i in range(10_000)}}, 400, "unknown dimension"),
        ({"comment": "too long", "value": 1}, 400, "kind"),
        ({"comment": "too long", "user": "bob"}, 403, "another user"),
        ({}, 400, "kind"),
    ],
)
def test_what_is_no_comment_is_refused(http: httpx.Client, router: Router, body: Any, status: int, words: str) -> None:
    """A clear message, and nothing is kept."""
    decision, _ = turn(http, ["How do vaccines work?"])
    reply = http.post("/v1/feedback", json={"decision_id": decision, **body})
    assert reply.status_code == status, reply.text
    assert words in reply.json()["error"]["message"]
    assert len(reply.text) < 2000
    assert not events(router)


@pytest.mark.parametrize("text", ["\x00\x1b[31m too long", "😡" * 900, "ﷺ" * 1000, "zu lang", "a,b" * 300])
def test_strange_comments_are_answered(http: httpx.Client, text: str) -> None:
    """Control characters, emoji and other languages are read or not understood, never an error of the server."""
    decision, _ = turn(http, ["How do vaccines work?"])
    assert "understood" in post(http, decision, comment=text)


def test_the_client_and_its_helpers(router: Router) -> None:
    """In process and over HTTP, blocking and awaited, the helpers return what was understood."""
    with serving(router) as url, client(url) as http:
        decision, _ = turn(http, ["How do vaccines work?"])
        found = comment(url, decision, "too wordy", user="ann")
        assert found.moved == {"length": -1.0}
        assert found.id
        again = asyncio.run(acomment(connect(url), decision, understood={}))
        assert again.moved == {}
        assert thumb(url, decision)
        connect(url).close()


def test_the_command_shows_and_corrects(router: Router) -> None:
    """`fitrouter feedback comment` prints what was understood and what was not, and corrects and withdraws it."""

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(cli.app, ["feedback", "comment", decision, "--url", url, *arguments])
        assert result.exit_code == 0, result.output or result.exception
        return result.output

    with serving(router) as url, client(url) as http:
        decision, _ = turn(http, ["How do vaccines work?"])
        shown = run("too wordy. My cat is grey.")
        reason = "it is about something else than the style of answers"
        assert shown == f"understood: less length (-1.00)\nnot understood: my cat is grey ({reason})\n"
        assert run("--set", "length=0.5") == "understood: more length (+0.50)\n"
        assert run("--withdraw") == "withdrawn\n"
        for wrong in (("--set", "length"), (), ("too long", "--withdraw")):
            result = CliRunner().invoke(cli.app, ["feedback", "comment", decision, "--url", url, *wrong])
            assert isinstance(result.exception, InvalidRequest)
        assert http.get("/metrics").text.count('fitrouter_remarks_total{kind="comment"} 3.0') == 1


def test_a_remark_in_passing_makes_short_answers_likelier(http: httpx.Client, router: Router) -> None:
    """A person who asks for shorter answers gets the terse model more often; others are served as strangers are.

    Compared at the same moment: the scores of the first person's answers move what everybody is offered.
    """

    def chance(user: str) -> float:
        body = chat("How do magnets work?", user=user) | {"metadata": {"session": f"{user}{len(events(router))}"}}
        decision = http.post("/v1/chat/completions", json=body).headers["x-fitrouter-decision"]
        rows = http.get(f"/v1/decisions/{decision}").json()["eligible"]
        return float(next(row["probability"] for row in rows if row["model"] == "terse"))

    for question in ("How do vaccines work?", "Why is the sky blue?", "What is a quark?"):
        for model in ("terse", "chatty"):  # so that the answers of both are known
            scored(router, turn(http, [question], model)[0])
    before = chance("ann")
    chance("bob")  # somebody who asked, and said nothing
    for i in range(8):
        question = f"Why is the sky blue, part {i}?"
        decision, answer = turn(http, [question])
        scored(router, decision)
        turn(http, [question, answer, "Shorter, please."])
    wait_for(lambda: len(events(router)) == 8)
    folded(router)
    assert {(remark.kind, remark.y) for remark in events(router)} == {("implicit", None)}
    assert not events(router, Feedback)
    assert router._learner.fit.labels == 0
    assert length(router) < -0.05
    ann, bob, stranger = chance("ann"), chance("bob"), chance("stranger")
    assert ann > max(before, bob) + 0.1
    assert abs(bob - stranger) < 0.1 * (ann - stranger)


def test_each_answer_is_judged_once(http: httpx.Client, router: Router) -> None:
    """Repeats of the same history, later turns and new tasks add nothing; an edited message meets no wrong answer."""
    first, answer = turn(http, ["Why is the sky blue?"])
    history = ["Why is the sky blue?", answer, "That's too long."]
    for _ in range(3):
        _, second = turn(http, history)
    turn(http, [*history[:2], "That's not what I asked."])
    turn(http, [*history, second, "Write a shorter poem about dogs."])
    wait_for(lambda: len(events(router, Execution)) == 6 and events(router))
    assert [(remark.decision_id, remark.moved) for remark in events(router)] == [(first, {"length": -1.0})]


def test_a_decision_made_elsewhere_is_heard_too(router: Router) -> None:
    """Plans whose calls the client makes follow the same rule."""

    async def talk() -> None:
        async with router:
            first = {"role": "user", "content": "Why is the sky blue?"}
            identity = Identity(user="ann")
            plan = await router.decide(Request(messages=(first,), identity=identity))
            await router.settled()
            answer = {"role": "assistant", "content": "Rayleigh."}
            more = {"role": "user", "content": "More detail, please."}
            await router.decide(Request(messages=(first, answer, more), identity=identity))
            await router.settled()
            (remark,) = events(router)
            assert (remark.decision_id, remark.moved) == (plan.decision.id, {"length": 1.0})

    asyncio.run(asyncio.wait_for(talk(), PATIENCE_S))


@pytest.mark.parametrize("way", ["off", "anonymous", "request", "string", "client"])
def test_nobody_is_listened_to_against_the_settings(tmp_path: Path, way: str) -> None:
    """With the setting or the request's flag off, and of a caller without a user, nothing is logged."""
    router = build(tmp_path, implicit=way != "off")
    with serving(router) as url, client(url) as http:
        user: dict[str, Any] = {} if way == "anonymous" else {"user": "ann"}
        if way in {"request", "string"}:
            user["metadata"] = {"implicit": False if way == "request" else "false"}
        messages = [{"role": "user", "content": "Why is the sky blue?"}]
        for said in ("", "Shorter, please."):
            if said:
                messages += [{"role": "assistant", "content": "Rayleigh."}, {"role": "user", "content": said}]
            if way == "client":
                with Client(RemoteBackend(url)) as remote:
                    remote.complete(Request(messages=tuple(messages), identity=Identity(user="ann"), implicit=False))
                continue
            reply = http.post("/v1/chat/completions", json={"model": "fitrouter/auto", "messages": messages, **user})
            assert reply.status_code == 200
        wait_for(lambda: len(events(router, Execution)) == 2)
        assert not events(router)


def test_a_failing_reader_fails_no_request(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the reader raises goes to the hooks, and the request is answered."""
    seen: list[object] = []
    router.hooks.add(seen.append)

    def fail(_message: str) -> None:
        raise ValueError("broken")

    assert router._scorer is not None
    monkeypatch.setattr(router._scorer, "overhear", fail)
    with serving(router) as url, client(url) as http:
        _, answer = turn(http, ["Why is the sky blue?"])
        turn(http, ["Why is the sky blue?", answer, "Shorter, please."])
        assert any(getattr(notice, "part", "") == "scorer" for notice in seen)
        assert not events(router)
