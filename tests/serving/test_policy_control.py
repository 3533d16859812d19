"""Changing the policy while it runs: over the router, over HTTP, and over a restart."""

from __future__ import annotations

from pathlib import Path

import httpx
import msgspec
import pytest
from tests.kits.gateway import config, make_router, serving

from fitrouter.errors import InvalidRequest, Unavailable
from fitrouter.routing.decider import Rules
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import Identity, Mode, PolicyChange, Request

CANDIDATES = {"bold": {"algorithm": "epsilon_greedy", "epsilon": 0.0}, "peer": {"algorithm": "linucb"}}
ASK = Request(messages=({"role": "user", "content": "hello"},))


async def test_settings_come_into_force_and_are_taken_back(tmp_path: Path) -> None:
    """A changed share holds from the next decision on, is logged with it, and one call restores the version before."""
    async with make_router(tmp_path, rules=Rules(default_arm="beta", registry="r")) as router:
        before = (await router.complete(ASK)).decision
        standing = await router.policy.set({"share": 0.0})
        shadowed = (await router.complete(ASK)).decision
        restored = await router.policy.restore()
        after = (await router.complete(ASK)).decision
    assert (before.share, shadowed.share, after.share) == (1.0, 0.0, 1.0)
    assert (shadowed.chosen, shadowed.mode) == ("beta", Mode.SHADOW)
    assert standing.versions == ("configuration", "configuration + share")
    assert restored.versions == ("configuration",)
    assert before.policy.config_hash == after.policy.config_hash != shadowed.policy.config_hash


async def test_a_candidate_is_logged_then_promoted_then_taken_back(tmp_path: Path) -> None:
    """Candidates in shadow log what they would have done; a promoted one decides; the version before comes back."""
    async with make_router(tmp_path, candidates=CANDIDATES) as router:
        arms = router._learner.fit.arms
        beta = arms.row("beta")
        arms.correction[beta, 0] = 0.2
        first = (await router.complete(ASK)).decision
        await router.policy.promote("bold")
        promoted = (await router.complete(ASK)).decision
        await router.policy.restore()
        last = (await router.complete(ASK)).decision
        events = [row.event for row in router._journal.tail(0)]
    assert set(first.candidates) == {"bold", "peer"}
    assert first.candidates["bold"] != first.probs
    assert all(abs(sum(pmf) - 1.0) < 1e-12 for pmf in first.candidates.values())
    assert (first.policy.algorithm, promoted.policy.algorithm) == ("squarecb", "epsilon_greedy")
    assert last.policy.algorithm == "squarecb"
    assert [event.action for event in events if isinstance(event, PolicyChange)] == ["promote", "restore"]


async def test_in_an_emergency_a_model_is_forced(tmp_path: Path) -> None:
    """A forced model takes all it can, outside of every estimate; a pinned request still goes where it names."""
    async with make_router(tmp_path) as router:
        with pytest.raises(InvalidRequest, match="alpha, beta, gamma"):
            await router.policy.set({"force": "delta"})
        await router.policy.set({"force": "beta"})
        made = [(await router.complete(ASK)).decision for _ in range(5)]
        pinned = (await router.complete(Request(messages=ASK.messages, model="gamma"))).decision
        await router.policy.set({"force": ""})
        free = (await router.complete(ASK)).decision
    assert {(decision.chosen, decision.mode, decision.probs) for decision in made} == {("beta", Mode.FORCED, ())}
    assert (pinned.chosen, pinned.mode) == ("gamma", Mode.PINNED)
    assert free.mode is Mode.ONLINE


async def test_a_paused_model_is_not_called(tmp_path: Path) -> None:
    """Not by a draw, not by its name, and no session stays on it; it is logged as excluded. One model always stays."""
    async with make_router(tmp_path) as router:
        for names in ("delta", "alpha,delta", "alpha,beta,gamma"):
            with pytest.raises(InvalidRequest, match="paused"):
                await router.policy.set({"paused": names})
        session = msgspec.structs.replace(ASK, identity=Identity(session="s"))
        first = (await router.complete(session)).decision.chosen
        await router.policy.set({"paused": f"{first}, "})
        made = [(await router.complete(ask)).decision for ask in (session, *[ASK] * 8)]
        with pytest.raises(Unavailable, match="paused"):
            await router.complete(msgspec.structs.replace(ASK, model=first))
        await router.policy.set({"paused": ""})
        pinned = (await router.complete(msgspec.structs.replace(ASK, model=first))).decision
    assert all(first not in decision.eligible for decision in made)
    assert made[0].redraw == "ineligible"
    assert (first, "paused") in made[0].excluded
    assert pinned.chosen == first


async def test_what_was_said_outlives_a_restart_and_yields_to_a_new_file(tmp_path: Path) -> None:
    """The same configuration starts with what was laid over it; a changed one goes before, and says so in the log."""
    journal = MemoryJournal()
    journal.close = lambda: None  # type: ignore[method-assign]
    async with make_router(tmp_path, journal=journal, rules=Rules(config_hash="one")) as router:
        await router.policy.set({"cost_weight": 0.5})
    async with make_router(tmp_path, journal=journal, rules=Rules(config_hash="one")) as router:
        assert router._decider.live()[1].cost_weight == 0.5
    async with make_router(tmp_path, journal=journal, rules=Rules(config_hash="two")) as router:
        assert router._decider.live()[1].cost_weight == 0.0
        changes = [row.event for row in journal.tail(0) if isinstance(row.event, PolicyChange)]
    assert [change.action for change in changes] == ["set", "config"]


async def test_what_cannot_be_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """Unknown candidates, a shadow-only algorithm, a share without a default: each is named, and nothing is logged."""
    async with make_router(tmp_path, candidates=CANDIDATES) as router:
        with pytest.raises(InvalidRequest, match="'bold', 'peer'"):
            await router.policy.promote("cold")
        with pytest.raises(InvalidRequest, match="shadow"):
            await router.policy.promote("peer")
        with pytest.raises(InvalidRequest, match="default_model"):
            await router.policy.set({"share": 0.5})
        with pytest.raises(InvalidRequest, match="no algorithm"):
            await router.policy.set({"algorithm": "oracle"})
        with pytest.raises(InvalidRequest, match="no previous version"):
            await router.policy.restore()
        assert not [row for row in router._journal.tail(0) if isinstance(row.event, PolicyChange)]


def test_over_http_only_an_admin_steers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GET shows it to every key; POST takes the admin's changes and nobody else's."""
    for name in ("BOSS", "USER"):
        monkeypatch.setenv(f"{name}_KEY", name * 8)
    keys = [{"name": "boss", "key_env": "BOSS_KEY", "admin": True}, {"name": "user", "key_env": "USER_KEY"}]
    boss, user = ({"authorization": f"Bearer {name * 8}"} for name in ("BOSS", "USER"))
    with serving(make_router(tmp_path, candidates=CANDIDATES), config(keys=keys)) as url:
        shown = httpx.get(f"{url}/v1/policy", headers=user).json()
        assert (shown["live"], sorted(shown["candidates"])) == ("configuration", ["bold", "peer"])
        body = {"action": "set", "settings": {"cost_weight": 0.25}}
        assert httpx.post(f"{url}/v1/policy", headers=user, json=body).status_code == 403
        assert httpx.post(f"{url}/v1/policy", headers=boss, json=body).json()["settings"] == {"cost_weight": 0.25}
        promoted = httpx.post(f"{url}/v1/policy", headers=boss, json={"action": "promote", "name": "bold"}).json()
        assert (promoted["live"], promoted["algorithm"]) == ("bold", "epsilon_greedy")
        assert httpx.post(f"{url}/v1/policy", headers=boss, json={"action": "restore"}).json()["live"] != "bold"
        for wrong in ({"action": "fly"}, {"action": "restore", "name": "x"}, {"action": "set", "settings": {"a": 1}}):
            refused = httpx.post(f"{url}/v1/policy", headers=boss, json=wrong)
            assert refused.status_code == 400
            assert refused.json()["error"]["message"]


async def test_the_outlook_is_json_and_names_no_other_tenants_roles(tmp_path: Path) -> None:
    """What the watchers say has finite numbers before any label, and a tenant sees its own roles only."""
    async with make_router(tmp_path) as router:
        twin = router._learner.projections.personalisation
        for key in ("default\x1fanalyst", "other\x1fspy"):
            twin.observe_prediction(key, y=1.0, blind=0.5, term=0.1)
        outlook = router.policy.outlook()
    assert set(outlook.personalisation) == {"", "analyst"}
    assert outlook.flattered == {}
    assert outlook.evidence_against_propensities == 1.0
    read_back = msgspec.json.decode(msgspec.json.encode(outlook), type=type(outlook), strict=True)
    assert read_back == outlook
