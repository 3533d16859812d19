"""FitrouterMiddleware: its settings, and agreement between the models of agent and router."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("langchain", reason="install the extra `langchain`")

from langchain.agents import create_agent
from langchain_core.exceptions import ContextOverflowError
from tests.kits.agents import agent_router
from tests.kits.gateway import make_router, serving
from tests.kits.langchain import FAIR, HOW, Chat, answers, close_all, router_over, run, team, written

from fitrouter.config import parse_config
from fitrouter.errors import ConfigError, NoEligibleModel, ProviderRejected
from fitrouter.router import Router
from fitrouter.types import Decision, Execution, ModelCard, Variant
from fitrouter_integrations.client import connect
from fitrouter_integrations.langchain import ChatFitrouter, FitrouterMiddleware

QUICK: dict[str, Any] = {"encoder": "hashing", "scorer": {"encoder": "none"}}
SLOW = {"providers": {"p": {"kind": "simulated"}}, "models": [{"name": "slow", "provider": "p"}]}


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


# --- a router of its own ---


def test_models_and_prices_are_all_it_needs(tmp_path: Path) -> None:
    """Without a configuration the models' own profiles say what they can do, and the folder is where it learns."""
    models = team(steps=0)
    models["deep"].profile = {"max_input_tokens": 1000, "tool_calling": False, "image_inputs": True}
    middleware = FitrouterMiddleware(
        models, data=tmp_path / "learnt", prices={"fast": (1.0, 2.0)}, policy={"floor": 1.0}, **QUICK
    )
    cards = middleware.router._cards
    assert cards["deep"].context_window == 1000
    assert set(cards["deep"].capabilities) == {"images", "json", "streaming"}
    assert "audio" in cards["fast"].capabilities
    agent = create_agent(models["fast"], middleware=[middleware])
    found = {run(agent, f"words {i}")[-1].response_metadata["model_name"] for i in range(60)}
    assert found == {"deep", "fast", "wide"}
    middleware.close()
    assert (tmp_path / "learnt" / "journal.db").exists()


def test_what_no_model_can_take_says_why(tmp_path: Path) -> None:
    """A step that is too long for every model is refused with each model's reason, as LangChain calls it, too."""
    models = {"small": Chat(steps=0, profile={"max_input_tokens": 50, "tool_calling": True})}
    middleware = FitrouterMiddleware(models, data=tmp_path / "learnt", **QUICK)
    with pytest.raises(NoEligibleModel, match="small: context") as caught:
        run(create_agent(models["small"], middleware=[middleware]), "word " * 500)
    assert isinstance(caught.value, ContextOverflowError)


def test_an_agents_models_are_asked_by_agents_alone(tmp_path: Path) -> None:
    """A request that comes another way, where no provider is configured, says so."""
    middleware = FitrouterMiddleware(team(), data=tmp_path / "learnt", **QUICK)
    with pytest.raises(ProviderRejected, match="FitrouterMiddleware"):
        ChatFitrouter(router=middleware.router).invoke("hi")


# --- a router that is shared ---


def test_a_configuration_is_shared_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chat models and agents over the same file have one router; its prices and names are the agent's."""
    monkeypatch.setenv("FITROUTER_API_KEY", "sk-of-some-gateway")
    described = {**SLOW, **QUICK, "data": str(tmp_path / "data")}
    described["models"] = [
        {"name": "slow", "target": "turtle", "provider": "p", "prices": {"input": 10.0, "output": 100.0}}
    ]
    path = tmp_path / "fitrouter.yaml"
    path.write_text(yaml.safe_dump(described))
    models = {"turtle": Chat(name_="turtle", steps=0)}
    middleware = FitrouterMiddleware(models, router=path)
    assert ChatFitrouter(router=str(path)).client is middleware.client
    (said,) = answers(run(create_agent(models["turtle"], middleware=[middleware])))
    assert said.text == "turtle heard 2+3?"
    assert said.response_metadata["model_name"] == "slow"
    assert said.response_metadata["cost_usd"] == pytest.approx((10 * 100 + 100 * 10) / 1e6)


def test_agents_share_a_router(tmp_path: Path) -> None:
    """Two agents over one router write into one log, each under its name."""
    models = team(steps=0)
    router = router_over(tmp_path, models)
    for name in ("clerk", "cook"):
        run(create_agent(models["fast"], middleware=[FitrouterMiddleware(models, router=router)], name=name))
    assert [decision.identity.role for decision in written(router, Decision)] == ["clerk", "cook"]


# --- names ---


@pytest.mark.parametrize("how", HOW)
def test_a_gateways_models_are_known_by_name_or_target(tmp_path: Path, how: str) -> None:
    """An agent's model may have the gateway's name or the provider's; a variant is served by its base model."""
    brief = Variant(name="brief", prefix="Be brief.")
    cards = [
        ModelCard(name="smart", target="vendor/big", provider="p"),
        ModelCard(name="quick", target="vendor/small", provider="p", variants=(brief,)),
    ]
    models = {"vendor/big": Chat(name_="big", steps=0), "quick": Chat(name_="small", steps=0)}
    with serving(make_router(tmp_path, models=cards, rules=FAIR)) as url:
        agent = create_agent(models["quick"], middleware=[FitrouterMiddleware(models, router=url)])
        found = [answers(run(agent, f"words {i}", how=how))[0] for i in range(60)]
        close_all()
    assert {(said.response_metadata["model_name"], said.text.split()[0]) for said in found} == {
        ("smart", "big"),
        ("quick", "small"),
        ("quick#brief", "small"),
    }
    assert {len(messages) for _, _, messages in models["quick"].heard} == {1, 2}


@pytest.mark.parametrize("how", HOW)
def test_a_model_that_only_the_gateway_has_is_an_error(tmp_path: Path, how: str) -> None:
    """The first step names the missing model and the given ones; no model is called."""
    models = team(steps=0)
    with serving(router_over(tmp_path, ["fast", "deep", "huge"])) as url:
        agent = create_agent(models["fast"], middleware=[FitrouterMiddleware(models, router=url)])
        with pytest.raises(ConfigError, match=r"the router has \['deep', 'fast', 'huge'\]; give 'huge' too"):
            run(agent, how=how)
        close_all()
    assert not any(model.heard for model in models.values())


@pytest.mark.parametrize("how", HOW)
def test_models_added_to_a_gateway_do_not_stop_an_agent(tmp_path: Path, how: str) -> None:
    """The agent lacks them: the next model of the plan is called, and the log has both attempts."""
    models = team(steps=0)
    router = router_over(tmp_path, [*models, "new"], rules=FAIR)
    with serving(router) as url:
        middleware = FitrouterMiddleware(models, router=url)
        middleware._compared = True
        agent = create_agent(models["fast"], middleware=[middleware])
        found = [answers(run(agent, f"words {i}", how=how))[0] for i in range(60)]
        executions = written(router, Execution)
        close_all()
    assert {said.response_metadata["model_name"] for said in found} <= set(models)
    without = [each.attempts for each in executions if each.attempts[0].model == "new"]
    assert without
    assert {attempts[0].error for attempts in without} == {"ProviderUnavailable"}
    assert all(0 < attempts[1].probability < 1 for attempts in without)


def test_models_and_routers_must_agree(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A router with other models is an error; with fewer models, the others are never called."""
    config = parse_config({**SLOW, "data": str(tmp_path / "data")})
    for router in (config, agent_router(tmp_path)):
        with pytest.raises(ConfigError, match=r"got \['deep', 'fast', 'wide'\]"):
            FitrouterMiddleware(team(), router=router)
    with caplog.at_level(logging.WARNING):
        FitrouterMiddleware(team(), router=router_over(tmp_path, ["deep", "fast"]))
    assert "wide will never be called" in caplog.text
    with pytest.raises(ConfigError, match="other"):
        Router.from_config(config, providers={"other": connect})  # type: ignore[dict-item]


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "a price of nobody": ({"prices": {"slow": (1.0, 2.0)}}, "unknown model 'slow'"),
    "half a price": ({"prices": {"fast": (1.0,)}}, "input, output"),
    "a setting that is none": ({"polcy": {}}, "did you mean 'policy'"),
    "settings beside a router": ({"router": "x.yaml", "policy": {}, "data": "d"}, "router and data, policy"),
    "prices beside a gateway": ({"router": "http://127.0.0.1:9", "prices": {"fast": (1.0, 2.0)}}, "router and prices"),
    "a file that is not there": ({"router": "nowhere.yaml"}, "there is no file"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_invalid_settings_are_errors(mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the value and what is allowed."""
    monkeypatch.chdir(tmp_path)
    settings, told = MISTAKES[mistake]
    with pytest.raises(ConfigError, match=told):
        FitrouterMiddleware(team(), **settings)
