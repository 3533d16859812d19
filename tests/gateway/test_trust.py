"""What one tenant's key can do to others: observations, outcomes, votes, and the policy."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.kits.gateway import chat, client, config, make_router, serving, wait_for
from tests.kits.learner import Log, fold, learner

from fitrouter.config import ServerConfig
from fitrouter.router import Router
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import Feedback, FeedbackKind, Identity, Request
from fitrouter_integrations.client import RunVote, connect
from fitrouter_integrations.gateway._keys import Keys

SECRETS = {name: f"{name}-secret-of-some-length" for name in ("KEY_A", "KEY_B", "KEY_T", "KEY_O")}
NAMES = [
    {"name": "a", "tenant": "a", "key_env": "KEY_A", "admin": True},
    {"name": "b", "tenant": "b", "key_env": "KEY_B"},
    {"name": "backend", "tenant": "b", "key_env": "KEY_T", "trusted": True},
    {"name": "ops", "key_env": "KEY_O", "admin": True},
]


@pytest.fixture
def router(tmp_path: Path) -> Router:
    return make_router(tmp_path)


@pytest.fixture
def url(router: Router, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    with serving(router, config(keys=NAMES)) as address:
        yield address


def speaking(url: str, key: str) -> httpx.Client:
    return client(url, headers={"authorization": f"Bearer {SECRETS[key]}"})


def shared(router: Router) -> dict[str, bytes]:
    """What all tenants share: arms, population, and the counts that new models depend on."""
    found = dict(router._learner.state())
    return {key: found[key] for key in found if key.startswith("arm:") or key in {"part:pulls", "part:mixture"}}


def folded(router: Router, http: httpx.Client) -> None:
    """Wait until everything so far is folded: one more decision settles the journal."""
    wait_for(lambda: router._learner.seq == router._journal.head() and not router._recorder._storing)
    assert http.get("/healthz").status_code == 200


def seen(error: str | None = None) -> dict[str, Any]:
    """An observation of an answer, or of a failure."""
    body = chat("Hello", user="eve") | {"model": "alpha", "latency_ms": 80_000_000.0}
    return body | (
        {"error": error} if error else {"message": {"role": "assistant", "content": "no"}, "cost_usd": 0.001}
    )


def test_reports_of_an_untrusted_key_teach_nothing_that_is_shared(url: str, router: Router) -> None:
    """Failures and delays that tenant B reports change no bit of what tenant A's decisions read; a trusted key's do."""
    with speaking(url, "KEY_A") as a, speaking(url, "KEY_B") as b, speaking(url, "KEY_T") as trusted:
        for _ in range(3):
            assert a.post("/v1/chat/completions", json=chat(user="ann")).status_code == 200
        folded(router, a)
        before = shared(router)
        for n in range(30):
            assert b.post("/v1/observations", json=seen("TimeoutError" if n % 2 else None)).status_code == 200
            plan = b.post("/v1/plans", json=chat(user="eve")).json()
            tried = [{"model": one["model"], "ms": 1e6, "error": "TimeoutError"} for one in plan["order"]]
            body = {"messages": chat()["messages"], "tried": tried[:1], "status": "failed"}
            done = b.post(f"/v1/plans/{plan['about']['decision_id']}/outcome", json=body)
            assert done.status_code == 200, done.text
        folded(router, a)
        assert shared(router) == before
        assert trusted.post("/v1/observations", json=seen("TimeoutError")).status_code == 200
        folded(router, a)
        assert shared(router) != before


def test_votes_on_reported_answers_teach_their_user_only(url: str, router: Router) -> None:
    """An answer that a client made up is no evidence on the model that it names."""
    with speaking(url, "KEY_B") as b:
        observed = b.post("/v1/observations", json=seen()).json()["about"]["decision_id"]
        folded(router, b)
        before = shared(router)
        vote = {"decision_id": observed, "kind": "thumb", "value": "down", "user": "eve"}
        assert b.post("/v1/feedback", json=vote).status_code == 200
        folded(router, b)
        assert shared(router) == before
        assert router.status().labels == 1


def test_feedback_names_the_user_of_the_decision(url: str) -> None:
    """Without a user, an untrusted key can rate answers to anonymous requests only."""
    with speaking(url, "KEY_B") as b, speaking(url, "KEY_T") as trusted:
        ann, anonymous = (
            b.post("/v1/chat/completions", json=chat(**who)).json()["fitrouter"]["decision_id"]
            for who in ({"user": "ann"}, {})
        )
        vote = {"kind": "thumb", "value": "down"}
        refused = b.post("/v1/feedback", json=vote | {"decision_id": ann})
        assert refused.status_code == 403
        assert "give that 'user'" in refused.json()["error"]["message"]
        assert b.post("/v1/feedback", json=vote | {"decision_id": ann, "user": "bob"}).status_code == 403
        pair = {"kind": "pair", "value": 1.0, "decision_id": anonymous, "other": ann}
        assert b.post("/v1/feedback", json=pair).status_code == 403
        assert b.post("/v1/feedback", json=vote | {"decision_id": ann, "user": "ann"}).status_code == 200
        assert b.post("/v1/feedback", json=vote | {"decision_id": anonymous}).status_code == 200
        assert trusted.post("/v1/feedback", json=vote | {"decision_id": ann}).status_code == 200


def test_an_admin_of_one_tenant_steers_nobody(url: str) -> None:
    """The policy is everybody's: with several tenants, only the installation's own key changes it."""
    change = {"action": "set", "settings": {"force": "alpha"}}
    with speaking(url, "KEY_A") as a, speaking(url, "KEY_O") as ops:
        refused = a.post("/v1/policy", json=change)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_admin")
        assert ops.post("/v1/policy", json=change).status_code == 200


def test_an_admin_key_of_a_tenant_is_reported_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """With one tenant, the admin may be of that tenant."""
    Keys(ServerConfig.model_validate({"keys": NAMES}), SECRETS)
    assert "'a' is one tenant's" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        keys = Keys(ServerConfig.model_validate({"keys": [NAMES[0]]}), SECRETS)
    assert caplog.text == ""
    caller = keys.caller(f"Bearer {SECRETS['KEY_A']}".encode())
    assert caller is not None
    assert caller.admin


def test_votes_on_the_quality_floor_are_capped() -> None:
    """One user's labels of the dimension `base` exclude a model for everybody, so they count as other votes do."""
    log = Log(MemoryJournal(), np.random.default_rng(1))
    for _ in range(20):
        name = log.answer("ann", "a")
        log.score(name)
        log.vote(name, 0.0, dimension="base", kind=FeedbackKind.RATING)
    capped, uncapped = fold(log.journal), fold(log.journal, learner(votes_per_day=1000))
    few, many = (each.projections.quality_floor.dump() for each in (capped, uncapped))
    assert few != many


def test_no_tenant_takes_the_roles_of_others() -> None:
    """However many roles one tenant names, another's first role has terms of its own."""
    tastes = learner().fit.tastes
    for n in range(100):
        tastes.meet(Identity(tenant="b", user="eve", role=f"role {n}"))
    tastes.meet(Identity(tenant="a", user="ann", role="analyst"))
    assert tastes.role(Identity(tenant="a", role="analyst")) is not None
    assert len(tastes.roles) == tastes.params.roles + 1


def test_votes_name_the_untrusted_key_that_vouches(url: str, router: Router) -> None:
    """A vote holds the key that says who voted, whatever token it has; those of trusted and admin keys hold none."""
    found: dict[str, list[str]] = {}
    for key in ("KEY_B", "KEY_T", "KEY_A", "KEY_O"):
        with speaking(url, key) as http:
            answer = http.post("/v1/chat/completions", json=chat(user="ann")).json()["fitrouter"]
            vote = {"decision_id": answer["decision_id"], "kind": "thumb", "value": "up", "user": "ann"}
            for token in ({}, {"token": answer["token"]}):
                assert http.post("/v1/feedback", json=vote | token).status_code == 200
        events = [row.event for row in router._journal.of(answer["decision_id"])]
        found[key] = [event.vouched for event in events if isinstance(event, Feedback)]
    assert found == {"KEY_B": ["b", "b"], "KEY_T": ["", ""], "KEY_A": ["a", "a"], "KEY_O": ["", ""]}


def test_a_client_reports_on_runs_of_its_users(url: str) -> None:
    """A client of an untrusted key that knows an answer of a run, as adapters do, needs not name its user."""
    who = Identity(user="ann", run="r")
    with connect(url, SECRETS["KEY_B"]) as one, speaking(url, "KEY_B") as other:
        made = one.complete(Request(messages=({"role": "user", "content": "Hi"},), identity=who)).about.decision_id
        assert one.outcome(RunVote(run=made, value=False, source="adapter")).counts
        assert other.post(f"/v1/runs/{made}/outcome", json={"value": False}).status_code == 403


def test_a_plan_to_be_looked_at_is_its_keys(url: str, router: Router) -> None:
    """It has reason, cost and alternatives; only its key runs it, once; who chose an alternative a trusted key says."""
    with speaking(url, "KEY_A") as a, speaking(url, "KEY_B") as b, speaking(url, "KEY_T") as backend:
        assert b.post("/v1/plans", json=chat() | {"kind": "see"}).status_code == 400
        plan = b.post("/v1/plans", json=chat() | {"kind": "look"}).json()
        pick, other, _ = plan["alternatives"]
        assert plan["reason"]
        assert plan["expires"] > router.clock()
        assert pick["model"] == plan["about"]["chosen"]
        assert pick["cost_usd"] > 0
        headers = {"x-fitrouter-plan": plan["about"]["decision_id"]}
        for http, status in ((a, 404), (backend, 404), (b, 200), (b, 400)):
            answer = http.post("/v1/chat/completions", json=chat(), headers=headers)
            assert answer.status_code == status, answer.text
        outcome = f"/v1/plans/{plan['about']['decision_id']}/outcome"
        body = {"messages": chat()["messages"], "tried": [{"model": pick["model"], "ms": 1}], "status": "ok"}
        assert b.post(outcome, json=body | {"message": {"role": "assistant", "content": "x"}}).status_code == 400
        for http in (b, backend):
            plan = http.post("/v1/plans", json=chat("else") | {"kind": "look"}).json()
            other = plan["alternatives"][1]["model"]
            headers = {"x-fitrouter-plan": plan["about"]["decision_id"], "x-fitrouter-chosen-by": "person"}
            answer = http.post("/v1/chat/completions", json=chat("else", model=other), headers=headers).json()
            assert answer["fitrouter"]["mode"] == "pinned"
        folded(router, b)
    votes = [row.event for row in router._journal.tail(0, 10_000) if isinstance(row.event, Feedback)]
    assert [(vote.identity.tenant, vote.source) for vote in votes] == [("b", "preferred")]
