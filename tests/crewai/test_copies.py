"""Copies that CrewAI and people make of a crew's model: they share the router, and each counts its own tokens."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("crewai", reason="install the extra `crewai`")

from crewai import Crew
from crewai.agent.planning_config import PlanningConfig
from crewai.security import Fingerprint, SecurityConfig
from crewai.state.runtime import RuntimeState
from pydantic import ValidationError
from tests.kits.crewai import Place, Sum, adder, agent, crew, nobody_leaves, place, task

from fitrouter.types import FeedbackKind
from fitrouter_integrations.client import Vote
from fitrouter_integrations.crewai import FitrouterLLM, _llm

# CrewAI warns of fields of its own that it still sets on every agent.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
SAID = 11
"""Tokens of every answer."""


@pytest.fixture(scope="module", params=["near", "far"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("router"), far=request.param == "far") as made:
        yield made


@pytest.fixture
def here(shared: Place, tmp_path: Path) -> Iterator[Place]:
    """A clean router in this process, and one over a gateway."""
    shared.clean()
    with nobody_leaves(tmp_path):
        yield shared


def said(llm: FitrouterLLM) -> int:
    return llm.get_token_usage_summary().completion_tokens


# --- copies ---


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        lambda llm: llm.model_copy(),
        lambda llm: llm.model_copy(deep=True),
        lambda llm: FitrouterLLM(**llm.model_dump()),
        lambda llm: FitrouterLLM.model_validate_json(llm.model_dump_json()),
    ],
    ids=["copy", "deepcopy", "model_copy", "deep model_copy", "dump", "JSON"],
)
def test_a_copy_shares_the_router_and_counts_for_itself(here: Place, copied: Callable[[Any], FitrouterLLM]) -> None:
    """All settings are there; neither counts what the other one uses."""
    llm = here.llm(user="ann", temperature=0.3, stop=["END"], top_k=4, response_format={"type": "json_object"})
    llm.call("hello")
    made = copied(llm)
    assert made is not llm
    assert made.client is llm.client
    assert made.model_dump(exclude={"base_url"}) == llm.model_dump(exclude={"base_url"})
    assert (made.user, made.temperature, made.additional_params) == ("ann", 0.3, {"top_k": 4})
    assert said(made) == 0
    made.call("hello")
    made.call("hello")
    assert (said(llm), said(made)) == (SAID, 2 * SAID)
    assert "sk-" not in repr(made)


def test_a_deep_copy_can_be_changed(here: Place) -> None:
    """Further parameters and stop words are its own."""
    llm = here.llm(stop=["END"], metadata={"deep": [1]})
    made = copy.deepcopy(llm)
    made.additional_params["metadata"]["deep"].append(2)
    made.stop.append("FIN")
    assert (llm.stop, llm.additional_params) == (["END"], {"metadata": {"deep": [1]}})


def test_pickles_go_where_an_address_does(here: Place) -> None:
    """A gateway's URL goes to another process, with nothing of this one; a `Router` does not, and says so."""
    llm = here.llm(user="ann")
    llm.call("hello")
    if not isinstance(here.target, str):
        with pytest.raises(TypeError, match="path of a configuration or with the URL"):
            pickle.dumps(llm)
        return
    made = pickle.loads(pickle.dumps(llm))
    assert (made.router, made.user, made.last()) == (here.target, "ann", None)
    assert made.call("hello")
    assert said(made) == 2 * SAID  # it goes on counting


def test_a_config_dict_makes_another_like_it(here: Place) -> None:
    """It says where the router is and who asks, and no key; a `Router` of this process it cannot say."""
    given = here.llm(user="ann", temperature=0.3, api_key="sk-secret").to_config_dict()
    address = {"router": here.target} if isinstance(here.target, str) else {}
    assert given == {"model": "fitrouter/auto", "user": "ann", "temperature": 0.3, **address}


def test_where_the_router_is_may_be_called_base_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with CrewAI's own LLM; nothing said is the environment's."""
    assert FitrouterLLM(base_url="http://127.0.0.1:9/v1").router == "http://127.0.0.1:9/v1"
    assert FitrouterLLM(base_url="http://127.0.0.1:9", router="other.yaml").router == "other.yaml"
    monkeypatch.setenv("FITROUTER", "http://127.0.0.1:8")
    assert FitrouterLLM().router == FitrouterLLM(router=None).router == "http://127.0.0.1:8"
    with pytest.raises(ValidationError):
        FitrouterLLM(base_url=["http://127.0.0.1:9"])


# --- copies that CrewAI makes ---


def test_a_crew_and_all_its_models_can_be_copied(here: Place) -> None:
    """Wherever a crew takes a model, its copy has one over the same router, of the same user."""
    llm = here.llm(user="ann", timeout=5.0)
    one = agent(llm, function_calling_llm=llm, planning_config=PlanningConfig(llm=llm))
    desk = crew([one], [task(one)], planning=True, planning_llm=llm, chat_llm=llm, manager_llm=llm)
    made = desk.copy()
    (other,) = made.agents
    found = [made.planning_llm, made.chat_llm, made.manager_llm, other.llm, other.function_calling_llm]
    for each in [*found, other.planning_config.llm]:
        assert isinstance(each, FitrouterLLM)
        assert each is not llm
        assert (each.client is llm.client, each.user, each.timeout) == (True, "ann", 5.0)


def test_a_planned_crew_for_each_input(here: Place) -> None:
    """The planner's model is copied with the crew, and each run counts its own agents."""
    one = agent(here.llm())
    desk = crew([one], [task(one, "Say {word}")], planning=True, planning_llm=here.llm())
    done = desk.kickoff_for_each([{"word": "one"}, {"word": "two"}])
    assert [each.token_usage.completion_tokens for each in done] == [SAID, SAID]
    assert {d.identity.role for d in here.decisions()} == {"Task Execution Planner", "Researcher"}


@pytest.mark.parametrize("way", ["kickoff_for_each", "kickoff_for_each_async", "akickoff_for_each"])
def test_runs_for_each_input_count_only_themselves(here: Place, way: str) -> None:
    """Also where the crew had run before; the crew has the sum."""
    one = agent(here.llm())
    desk = crew([one], [task(one, "Say {word}")])
    desk.kickoff({"word": "zero"})
    found = getattr(desk, way)([{"word": "one"}, {"word": "two"}])
    done = found if isinstance(found, list) else asyncio.run(found)
    assert [each.token_usage.completion_tokens for each in done] == [SAID, SAID]
    assert desk.usage_metrics.completion_tokens == 2 * SAID


def test_a_checkpoint_brings_the_models_back(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crew read from its checkpoint answers; in another process FITROUTER says where a `Router` is now."""
    one = agent(here.llm(user="ann"))
    written = RuntimeState(root=[crew([one], [task(one)])]).model_dump_json()
    (back,) = RuntimeState.model_validate_json(written, context={"from_checkpoint": True}).root
    assert isinstance(back, Crew)
    assert isinstance(back.agents[0].llm, FitrouterLLM)
    assert back.agents[0].llm.user == "ann"
    assert "heard" in back.agents[0].llm.call("hello")
    monkeypatch.setattr(_llm, "_made", {})  # as in another process
    monkeypatch.setenv("FITROUTER", "http://127.0.0.1:9")
    (back,) = RuntimeState.model_validate_json(written, context={"from_checkpoint": True}).root
    expected = here.target if isinstance(here.target, str) else os.environ["FITROUTER"]
    assert back.agents[0].llm.router == expected


# --- accounts ---


def test_what_was_asked_before_is_no_agents(here: Place) -> None:
    """Direct calls, agents by themselves and crews count what is theirs, in any order, over one shared object."""
    llm = here.llm()
    llm.call("hello")
    llm.call("hello")
    alone = agent(llm, "Alone")
    assert alone.kickoff("hi").token_usage.completion_tokens == SAID
    assert alone.kickoff("hi").token_usage.completion_tokens == SAID
    one, two = agent(llm), agent(llm, "Writer", tools=[adder])
    done = crew([one, two], [task(one), task(two)]).kickoff()
    assert done.token_usage.completion_tokens == 3 * SAID
    assert said(llm) == 4 * SAID


def test_a_model_taken_from_another_agent(here: Place) -> None:
    """Whoever shares a model, even one that an agent has already, is counted apart."""
    one = agent(here.llm())
    crew([one], [task(one)]).kickoff()
    two = agent(one.llm, "Writer")
    done = crew([one, two], [task(one), task(two)]).kickoff()
    assert (said(one.llm), said(two.llm)) == (2 * SAID, SAID)
    assert done.token_usage.completion_tokens == 3 * SAID


def test_planners_and_tool_callers_count_where_they_work(here: Place) -> None:
    """What an agent asks another of our models is in its own account."""
    one = agent(here.llm(), function_calling_llm=here.llm())
    one.function_calling_llm.call("hello", from_agent=one)
    assert said(one.function_calling_llm) == SAID
    crew([one], [task(one)]).kickoff()
    one.function_calling_llm.call("hello", from_agent=one)
    assert said(one.llm) == 2 * SAID


def test_threads_lose_no_token(here: Place) -> None:
    """One agent that asks in many threads at once has one account, and every call in it."""
    llm = here.llm()
    one = agent(llm)
    crew([one], [task(one)]).kickoff()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: llm.call("hello", from_agent=one), range(64)))
    assert said(one.llm) == 65 * SAID
    assert said(llm) == 0


def test_who_was_never_asked_used_nothing(here: Place) -> None:
    """A colleague who has nothing to do adds nothing, whatever was asked of the shared model before."""
    llm = here.llm()
    llm.call("hello")
    one, idle = agent(llm), agent(llm, "Idle")
    done = crew([one, idle], [task(one)]).kickoff()
    assert done.token_usage.completion_tokens == SAID
    assert said(idle.llm) == 0


def test_what_crewai_asks_in_nobodys_name_is_the_agents(here: Place) -> None:
    """Conversions and summaries are of the user and the role of whose model they use, and counted there."""
    given = SecurityConfig(fingerprint=Fingerprint(metadata={"user_id": "ann"}))
    one = agent(here.llm(), tools=[adder], security_config=given)
    done = crew([one], [task(one, output_pydantic=Sum)]).kickoff()
    assert done.pydantic == Sum(value=3, note="hello")
    assert done.token_usage.completion_tokens == len(here.models.calls) * SAID == 3 * SAID
    ann = here.router._identities.subject("default", "ann")
    assert [(d.identity.user, d.identity.role) for d in here.decisions()] == [(ann, "Researcher")] * 3


def test_decisions_of_agents_long_gone_are_forgotten(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that makes agents for ever does not grow; the latest are known."""
    monkeypatch.setattr(_llm, "_REMEMBERED", 3)
    llm = here.llm()
    people = [agent(llm, f"Nr {i}") for i in range(4)]
    for one in people:
        llm.call("hello", from_agent=one)
    assert [llm.last(one) is not None for one in people] == [False, False, True, True]
    assert llm.last() == llm.last(people[-1])
    about = llm.last()
    assert about is not None
    assert llm.feedback(Vote(decision_id=about.decision_id, kind=FeedbackKind.THUMB, value=1.0))


# --- the type of answers ---


def test_a_model_may_have_a_type_for_all_its_answers(here: Place) -> None:
    """As CrewAI's `LLM(response_format=…)`; what a call names goes before it."""

    class Other(Sum):
        """Another type."""

    llm = here.llm(response_format=Sum)
    assert llm.call("hello") == Sum(value=3, note="hello")
    assert type(llm.call("hello", response_model=Other)) is Other
    assert here.llm(response_format={"type": "json_object"}).call("hello").startswith("{")


def test_a_type_and_tools_together(here: Place) -> None:
    """A model may call a tool first; its answer is of the type."""
    schema = {"type": "function", "function": {"name": "adder", "parameters": {"type": "object", "properties": {}}}}
    (called,) = here.llm().call("hello", tools=[schema], response_model=Sum)
    assert called.function.name == "adder"
    history = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [called.model_dump()]},
        {"role": "tool", "tool_call_id": called.id, "content": "3"},
    ]
    assert here.llm().call(history, tools=[schema], response_model=Sum) == Sum(value=3, note="hello")
