"""Cost tiers of requests: the price weight that a decision logs, and what it draws by."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kits.gateway import Echo, config, make_router, serving
from tests.routing.test_decider import X, cards, learner

from fitrouter.errors import InvalidRequest
from fitrouter.policies import SquareCB
from fitrouter.router import Router
from fitrouter.routing.decider import Decider, Rules
from fitrouter.routing.tiers import TIERS, Tiers
from fitrouter.state.budgets import BudgetParams
from fitrouter.state.projections import ProjectionParams
from fitrouter.types import Decision, Identity, Request

USER = {"role": "user", "content": "Hello"}
weights = st.floats(0, 10)
tiers = st.builds(
    Tiers,
    quality_factor=st.floats(0, 1),
    economy_factor=st.floats(1, 100),
    economy_least=weights,
    economy_most=weights,
)


def ask(tier: str = "", session: str | None = None, **more: Any) -> Request:
    return Request(messages=(USER,), identity=Identity(session=session), tier=tier, **more)


def logged(router: Router) -> list[Decision]:
    return [row.event for row in router._journal.tail(0, 100_000) if isinstance(row.event, Decision)]


@given(tiers, weights)
def test_tiers_are_ordered(rules: Tiers, weight: float) -> None:
    """Quality weighs price at most as configured, balanced exactly so, and economy at least so, within its bounds."""
    quality, balanced, economy = (rules.weight(tier, weight) for tier in TIERS)
    assert 0.0 <= quality <= balanced == weight <= economy <= max(rules.economy_most, weight)
    assert economy >= min(rules.economy_least, rules.economy_most)


@given(tiers, st.floats(0, 2), st.sampled_from(["quality", "economy"]), st.uuids(), st.integers(1, 6))
def test_a_tier_decides_as_its_weight(moved: Tiers, weight: float, tier: str, number: uuid.UUID, K: int) -> None:
    """A decision of a tier is, bit for bit, that of a router with the moved weight; without one no factor counts."""
    fields = {name: getattr(moved, name) for name in Tiers.__struct_fields__}
    rules = Rules(cost_weight=weight, **fields)
    made = learner(3, K)

    def decide(rules: Rules, tier: str = "") -> Decision:
        return Decider(SquareCB(20.0), made, rules).decide(str(number), 1.0, Identity(), X, cards(K), tier=tier)

    other = decide(msgspec.structs.replace(rules, cost_weight=moved.weight(tier, weight)))
    assert decide(rules, tier) == msgspec.structs.replace(other, tier=tier)
    assert decide(rules) == decide(Rules(cost_weight=weight))


async def test_a_session_is_drawn_again_when_the_tier_changes(tmp_path: Path) -> None:
    """The tier is logged with its weight, an unknown one is refused, and another one than the draw's draws again."""
    rules = Rules(cost_weight=0.1, floor=1.0)
    async with make_router(tmp_path, {"echo": Echo()}, rules=rules) as router:
        for tier in ("", "balanced", "economy", "economy", "quality"):
            await router.complete(ask(tier, "s"))
        with pytest.raises(InvalidRequest, match="tier: got 'cheap'; allowed are quality, balanced, economy"):
            await router.complete(ask("cheap", "s"))
        made = logged(router)
        said = (await router.explain(made[2].id)).sentences
    assert [(each.tier, each.cost_weight) for each in made] == [
        ("", 0.1),
        ("", 0.1),
        ("economy", 0.4),
        ("economy", 0.4),
        ("quality", 0.025),
    ]
    assert [each.mode.drawn for each in made] == [True, False, True, False, True]
    assert [each.redraw for each in made] == ["", "", "tier", "", "tier"]
    assert any("the tier economy, in which price counts more: each cent costs 0.40" in each for each in said)


async def test_a_tier_lifts_no_budget(tmp_path: Path) -> None:
    """A model that a budget excludes stays excluded in every tier."""
    from fitrouter.context.features import context_names
    from fitrouter.state.learner import Learner

    budget = ProjectionParams(budget=BudgetParams(usd_per_request_max=1e-9))
    state = Learner(len(context_names()), 1, expects_scores=False, projections=budget)
    models = [msgspec.structs.replace(card, provider="echo") for card in cards(3)]
    async with make_router(tmp_path, {"echo": Echo()}, models=models, learner=state) as router:
        for tier in TIERS:
            await router.complete(ask(tier))
    assert {each.eligible for each in logged(router)} == {("m00",)}


def test_the_gateway_reads_tiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header or `metadata` names the tier, the header first; an unknown one is a 400, one that a key lacks a 403."""
    monkeypatch.setenv("KEY_ALL", "k" * 20)
    monkeypatch.setenv("KEY_SOME", "s" * 20)
    keys = [{"name": "all", "key_env": "KEY_ALL"}, {"name": "some", "key_env": "KEY_SOME", "tiers": ["economy"]}]
    router = make_router(tmp_path, {"echo": Echo()}, rules=Rules(cost_weight=0.1))
    with serving(router, config(keys=keys)) as address:

        def post(path: str, header: str = "", metadata: str = "", key: str = "k", **more: Any) -> httpx.Response:
            headers = {"authorization": f"Bearer {key * 20}"} | ({"x-fitrouter-tier": header} if header else {})
            body = {"messages": [USER], **more} | ({"metadata": {"tier": metadata}} if metadata else {})
            return httpx.post(address + path, json=body, headers=headers)

        for path, more in (
            ("/v1/chat/completions", {}),
            ("/v1/plans", {}),
            ("/v1/messages", {"model": "fitrouter/auto", "max_tokens": 9}),
        ):
            assert post(path, "economy", "quality", **more).status_code == 200
            assert post(path, "", "quality", **({} if "messages" in path else more)).status_code == 200 or more
            assert post(path, "gold", **more).status_code == 400
            assert post(path, "balanced", key="s", **more).status_code == 200
            refused = post(path, "quality", key="s", **more)
            assert refused.status_code == 403
            assert "may not use the tier 'quality'" in refused.text
        found = httpx.get(
            f"{address}/v1/decisions/{logged(router)[0].id}", headers={"authorization": "Bearer " + "k" * 20}
        ).json()
    assert found["tier"] == "economy"
    assert [each.tier for each in logged(router)][:3] == ["economy", "quality", ""]
