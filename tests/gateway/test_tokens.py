"""Outcome tokens: only who was given an answer can rate it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kits.gateway import chat, client, config, make_router, serving

from fitrouter.errors import NotAuthorized
from fitrouter.router import Router
from fitrouter.serving.tokens import OutcomeTokens
from fitrouter.types import FeedbackKind, Identity, Request
from fitrouter_integrations.client import Client, Vote
from fitrouter_integrations.client._remote import RemoteBackend
from fitrouter_integrations.feedback import compare, rate, thumb, token_of

SECRETS = {"KEY_A": "aaaa-secret-of-tenant-a", "KEY_B": "bbbb-secret-of-tenant-b", "KEY_O": "oooo-secret-of-the-owner"}
NAMES = [
    {"name": "a", "tenant": "a", "key_env": "KEY_A"},
    {"name": "b", "tenant": "b", "key_env": "KEY_B"},
    {"name": "ops", "key_env": "KEY_O", "admin": True},
]


@pytest.fixture
def router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Router:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    return make_router(tmp_path)


@pytest.fixture
def url(router: Router) -> Iterator[str]:
    with serving(router, config(keys=NAMES)) as address:
        yield address


@pytest.fixture
def strict(router: Router) -> Iterator[str]:
    settings = config(keys=NAMES)
    feedback = settings.feedback.model_copy(update={"require_token": True})
    with serving(router, settings.model_copy(update={"feedback": feedback})) as address:
        yield address


def speaking(url: str, key: str = "KEY_A") -> httpx.Client:
    return client(url, headers={"authorization": f"Bearer {SECRETS[key]}"})


def answer(http: httpx.Client, user: str | None = "ann", **more: Any) -> tuple[str, str]:
    """The decision id and the token of an answer."""
    reply = http.post("/v1/chat/completions", json=chat(user=user, **more))
    found: dict[str, Any] = reply.json()["fitrouter"]
    assert reply.headers["x-fitrouter-token"] == found["token"]
    return found["decision_id"], found["token"]


def vote(http: httpx.Client, decision: str, **more: Any) -> tuple[int, str]:
    reply = http.post("/v1/feedback", json={"decision_id": decision, "kind": "thumb", "value": "up", **more})
    return reply.status_code, reply.json().get("error", {}).get("code", "")


def test_a_token_stands_for_the_name_of_the_user(url: str) -> None:
    """With it, an untrusted key rates a user's answer; that of another answer or tenant, or a changed one, is not."""
    with speaking(url) as a, speaking(url, "KEY_B") as b:
        (decision, token), (other, foreign) = answer(a), answer(a, "bob")
        assert vote(a, decision) == (403, "not_authorized")
        assert vote(a, decision, token=token) == (200, "")
        changed = token[:-1] + ("A" if token[-1] != "A" else "B")
        later = f"{int(token.split('.')[0], 16) + 1:x}.{token.split('.')[1]}"
        for wrong in (foreign, changed, later, "", ".", "ü.é", "x" * 10_000):
            assert vote(a, decision, token=wrong) == (403, "not_authorized"), wrong
        assert vote(b, decision, token=token)[0] == 403
        assert vote(a, decision, token=token, user="bob") == (403, "not_authorized"), "a wrong name stays wrong"
        pair = {"kind": "pair", "value": 1.0, "other": other, "token": token}
        assert vote(a, decision, **pair) == (403, "not_authorized"), "a pair rates both answers"
        mine, also = answer(a)
        assert vote(a, decision, **{**pair, "other": mine, "other_token": also}) == (200, "")
        said = a.post("/v1/feedback", json={"decision_id": decision, "understood": {}, "token": token})
        assert said.status_code != 403


def test_strict_feedback_needs_a_token_from_everybody_but_admins(strict: str) -> None:
    """Also with the user's name; a pair needs both tokens."""
    with speaking(strict) as a, speaking(strict, "KEY_O") as ops:
        decision, token = answer(a)
        assert vote(a, decision, user="ann") == (403, "token_required")
        assert vote(a, decision, token=token) == (200, "")
        other, also = answer(a)
        pair = {"kind": "pair", "value": 1.0, "other": other, "token": token}
        assert vote(a, decision, **pair) == (403, "token_required")
        assert vote(a, decision, **pair, other_token=also) == (200, "")
        mine, _ = answer(ops)
        assert vote(ops, mine, user="ann") == (200, "")


def test_every_way_to_an_answer_gives_its_token(url: str) -> None:
    """Whole and streamed answers, plans and observations; all tokens are taken."""
    with speaking(url) as a:
        found = [answer(a)]
        stream = a.post("/v1/chat/completions", json=chat(user="ann", stream=True))
        found.append((stream.headers["x-fitrouter-decision"], stream.headers["x-fitrouter-token"]))
        assert stream.headers["x-fitrouter-token"] in stream.text
        seen = chat(user="ann") | {"model": "alpha", "latency_ms": 5.0, "cost_usd": 0.0}
        for path, body in (
            ("/v1/plans", chat(user="ann")),
            ("/v1/observations", seen | {"message": {"role": "assistant", "content": "Hi"}}),
        ):
            about = a.post(path, json=body).json()["about"]
            found.append((about["decision_id"], about["token"]))
        assert [vote(a, decision, token=token) for decision, token in found] == [(200, "")] * 4


def test_clients_hand_tokens_on(strict: str) -> None:
    """A client knows the tokens of its answers, and a helper finds them in an answer from anywhere."""
    mine, later = (Client(RemoteBackend(strict, SECRETS["KEY_A"])) for _ in range(2))
    with mine, later:
        request = Request(messages=({"role": "user", "content": "Hello"},), identity=Identity(user="ann"))
        reply, streamed = mine.complete(request), mine.stream(request)
        list(streamed)
        for about in (reply.about, streamed.about):
            assert mine.feedback(Vote(decision_id=about.decision_id, kind=FeedbackKind.THUMB, value=1.0))
        assert compare(mine, reply.about.decision_id, streamed.about.decision_id)
        with pytest.raises(NotAuthorized):
            thumb(later, reply.about.decision_id)
        assert rate(later, reply, 4)
        assert compare(later, better=streamed, worse=reply)
        assert token_of({"messages": [{"response_metadata": {"decision_id": "d", "token": "t"}}]}) == "t"
        with speaking(strict) as a:
            whole = a.post("/v1/chat/completions", json=chat(user="ann"))
        assert thumb(later, whole.json())
        assert thumb(later, whole)


def test_tokens_expire_and_belong_to_the_installation() -> None:
    """After their time, or under another secret, they are refused."""
    now = [1000.0]
    tokens = OutcomeTokens(b"secret", lambda: now[0], 60.0)
    token = tokens.sign("d", "t")
    tokens.check(token, "d", "t")
    with pytest.raises(NotAuthorized, match="not the token"):
        OutcomeTokens(b"other", lambda: now[0], 60.0).check(token, "d", "t")
    now[0] += 61.0
    with pytest.raises(NotAuthorized, match="expired"):
        tokens.check(token, "d", "t")


@given(st.text(max_size=80) | st.sampled_from(["\udcff", "\udcff.\udcff"]))
def test_no_text_is_a_token(text: str) -> None:
    """Anything but the token itself is refused, without another error."""
    tokens = OutcomeTokens(b"secret", lambda: 0.0, 60.0)
    if text != tokens.sign("d", "t"):
        with pytest.raises(NotAuthorized):
            tokens.check(text, "d", "t")
