"""The recipes for any OpenAI client run as they stand against a gateway on loopback."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.kits.agents import agent_router
from tests.kits.gateway import serving

from fitrouter.router import Router
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import Decision, Feedback, FeedbackKind, Mode
from fitrouter_integrations.client import connect
from fitrouter_integrations.feedback import rate

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "examples" / "recipes"
NEEDS = {
    "openai_sdk": "openai",
    "openai_async": "openai",
    "langchain_openai_chat": "langchain_openai",
    "crewai_native": "crewai",
    "pydantic_ai_agent": "pydantic_ai",
}
"""Recipe → the package that it is for."""


class Kitchen(NamedTuple):
    """A gateway, and what a recipe prints when it is run against it."""

    router: Router
    url: str
    folder: Path

    def run(self, name: str) -> dict[str, str]:
        """What it printed: word before the first colon → the rest."""
        if importlib.util.find_spec(NEEDS[name]) is None:
            pytest.skip(f"{NEEDS[name]} is not installed")
        ran = subprocess.run(
            [sys.executable, str(RECIPES / f"{name}.py")],
            cwd=self.folder,
            env={**os.environ, "FITROUTER": self.url, "CREWAI_STORAGE_DIR": str(self.folder / "crew")},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return dict(re.findall(r"^(\w+): (.*)$", ran.stdout, re.MULTILINE))

    def events(self, kind: type[Any]) -> list[Any]:
        """Of the journal."""
        assert isinstance(self.router._journal, MemoryJournal)
        return [row.event for row in self.router._journal.tail(0, 1000) if isinstance(row.event, kind)]

    def asked(self) -> set[tuple[str | None, str | None]]:
        """(user, role) of all decisions; the user as an outsider would name them."""
        ann = self.router._identities.subject("default", "ann")
        found = (decision.identity for decision in self.events(Decision))
        return {("ann" if who.user == ann else who.user, who.role) for who in found}

    def votes(self) -> list[tuple[FeedbackKind, float]]:
        """Of all feedback, with its value from 0 to 1; each joins a decision."""
        decisions = {decision.id for decision in self.events(Decision)}
        found = self.events(Feedback)
        assert {vote.decision_id for vote in found} <= decisions
        return [(vote.kind, vote.y) for vote in found]


@pytest.fixture
def kitchen(tmp_path: Path) -> Iterator[Kitchen]:
    """A gateway over scripted models, which call a tool where there is one."""
    router = agent_router(tmp_path)
    with serving(router) as url:
        yield Kitchen(router, url, tmp_path)


def test_the_openai_sdk(kitchen: Kitchen) -> None:
    """Whole, streamed, with a tool, and a thumb."""
    printed = kitchen.run("openai_sdk")
    assert "heard How are dividends taxed?" in printed["whole"]
    assert "heard How are dividends taxed?" in printed["streamed"]
    assert printed["tool"].startswith("dividend_rate | ")
    assert '"percent": 26' in printed["tool"]
    assert printed["feedback"] == "fitrouter.feedback"
    assert kitchen.asked() == {("ann", "tax analyst")}
    assert [decision.mode for decision in kitchen.events(Decision)][-1] is Mode.STICKY
    assert kitchen.votes() == [(FeedbackKind.THUMB, 1.0)]


def test_the_openai_sdk_awaited(kitchen: Kitchen) -> None:
    """A streamed tool call, typed output, the decision in the headers, and stars."""
    printed = kitchen.run("openai_async")
    assert printed["tool"] == "tax_rate | 3"
    assert printed["typed"] == "country='hello' percent=3"
    assert printed["raw"].startswith(("alpha heard", "beta heard", "gamma heard"))
    assert printed["feedback"] == "fitrouter.feedback"
    assert kitchen.asked() == {("ann", "tax analyst")}
    assert kitchen.votes() == [(FeedbackKind.RATING, 0.75)]


def test_what_the_openai_sdk_can_do(kitchen: Kitchen) -> None:
    """Its usual parameters are taken, usage comes with a stream, and what is not there says so with OpenAI's errors."""
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{kitchen.url}/v1", api_key="unused", max_retries=0)
    asked = {"model": "fitrouter/auto", "messages": [{"role": "user", "content": "hi"}]}
    create = client.chat.completions.create
    usual: list[dict[str, Any]] = [
        {"n": 1, "seed": 7, "temperature": 0.5, "stop": ["x"], "logit_bias": {"1": -1}},
        {"max_completion_tokens": 50, "reasoning_effort": "low", "verbosity": "low"},
        {"store": True, "service_tier": "auto", "safety_identifier": "s", "prompt_cache_key": "k"},
        {
            "response_format": {"type": "text"},
            "parallel_tool_calls": True,
            "extra_headers": {"X-Fitrouter-User": "ann"},
        },
    ]
    for more in usual:
        assert create(**asked, **more).choices[0].message.content.endswith("heard hi")
    *_, last = create(**asked, stream=True, stream_options={"include_usage": True})
    assert (last.choices, last.usage.completion_tokens) == ([], 11)
    answer = create(**asked)
    history = [*asked["messages"], answer.choices[0].message.model_dump(), {"role": "user", "content": "and?"}]
    assert create(model=answer.model, messages=history).choices[0].message.content == f"{answer.model} heard and?"
    assert {model.id for model in client.models.list()} == {"fitrouter/auto", "alpha", "beta", "gamma"}
    assert [choice.index for choice in create(**asked, n=2).choices] == [0, 1]
    with pytest.raises(openai.BadRequestError, match="allowed"):
        create(**asked, n=0)
    with pytest.raises(openai.NotFoundError, match="unknown model 'gpt-4o'"):
        create(**{**asked, "model": "gpt-4o"})
    assert client.responses.create(model="fitrouter/auto", input="hi").output_text.endswith("heard hi")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="fitrouter/auto", input="hi")


def test_helpers_take_what_the_openai_sdk_gives(kitchen: Kitchen) -> None:
    """An answer, any piece of a stream and a raw response each lead to their decision, by the gateway's URL alone."""
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{kitchen.url}/v1", api_key="unused")
    asked = {"model": "fitrouter/auto", "messages": [{"role": "user", "content": "hi"}]}
    create = client.chat.completions.create
    pieces = list(create(**asked, stream=True))
    held = [create(**asked), pieces[0], pieces[-1], pieces, client.chat.completions.with_raw_response.create(**asked)]
    for stars, each in enumerate(held, 1):
        rate(kitchen.url, each, stars)
    decisions = [decision.id for decision in kitchen.events(Decision)]
    wanted = [decisions[1], *[decisions[0]] * 3, decisions[2]]
    assert [vote.decision_id for vote in kitchen.events(Feedback)] == wanted
    connect(kitchen.url).close()


def test_langchains_own_model(kitchen: Kitchen) -> None:
    """Whole, streamed, with a tool, and stars, by the headers of the reply."""
    printed = kitchen.run("langchain_openai_chat")
    assert "heard How are dividends taxed?" in printed["whole"]
    assert "heard How are dividends taxed?" in printed["streamed"]
    assert printed["tool"] == "dividend_rate | 26 percent in hello"
    assert printed["feedback"] == "fitrouter.feedback"
    assert kitchen.asked() == {("ann", "tax analyst")}
    assert kitchen.votes() == [(FeedbackKind.RATING, 0.75)]


def test_crewais_own_model(kitchen: Kitchen) -> None:
    """A crew whose roles come by headers."""
    printed = kitchen.run("crewai_native")
    assert set(printed) == {"researcher", "writer"}
    assert kitchen.asked() == {("ann", "researcher"), ("ann", "writer")}


def test_pydantic_ai(kitchen: Kitchen) -> None:
    """Whole, with a tool, with typed output, and a thumb by the reply's id."""
    printed = kitchen.run("pydantic_ai_agent")
    assert "heard How are dividends taxed?" in printed["whole"]
    assert "heard 26 percent in hello" in printed["tool"]
    assert printed["typed"] == "value=3 note='hello'"
    assert printed["feedback"] == "fitrouter.feedback"
    assert kitchen.asked() == {("ann", "tax analyst")}
    assert kitchen.votes() == [(FeedbackKind.THUMB, 1.0)]


def test_each_recipe_is_run_and_shown() -> None:
    """No recipe is left out, here or in the docs, and what the docs show of one stands in it word for word."""
    assert {path.stem for path in RECIPES.glob("*.py")} == set(NEEDS)
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"`examples/recipes/(\w+)\.py`(.*?)(?=\n## |\Z)", page, re.DOTALL))
    assert set(sections) == set(NEEDS)
    for name, section in sections.items():
        recipe = (RECIPES / f"{name}.py").read_text(encoding="utf-8")
        shown = re.findall(r"```py\n(.*?)```", section, re.DOTALL)
        assert shown
        assert all(block in recipe for block in shown)
