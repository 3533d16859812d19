"""Journey: a LangChain developer whose answers are routed by user (docs/langchain.md)."""

from __future__ import annotations

from pathlib import Path

import httpx
from tests.kits.fake_openai import FakeOpenAI, in_a_thread

from .conftest import Create, Journey

MODELS = ("llama-3.1-8b", "qwen3-8b", "mistral-small")


def test_an_answer_is_routed_by_user(environment: Create, tmp_path: Path) -> None:
    """Over a gateway of three models: after ann's ratings, her probabilities are others than those without her."""
    with (
        in_a_thread(FakeOpenAI(models=MODELS)) as models,
        Journey(environment("gateway", "langchain"), tmp_path) as journey,
    ):
        journey.run(f"fitrouter init --base-url {models.base_url}")
        journey.serve()
        script = journey.block("langchain.md", "py")
        said = [journey.python(script.replace("]:", "] * 4:")).stdout.split() for _ in range(2)][-1]
        decision_id, served, propensity = said[-3:]
        assert served in MODELS
        assert 0 < float(propensity) < 1
        found = httpx.get(f"{journey.url}/v1/decisions/{decision_id}", timeout=60).json()
        explained = {each["arm"]: each for each in found["explanation"]["models"]}
        assert set(explained) == set(MODELS)
        assert all(each["probability"] != each["blind_probability"] for each in explained.values())
        assert explained[MODELS[0]]["probability"] > explained[MODELS[0]]["blind_probability"]
        assert MODELS[0] in journey.run(f"fitrouter explain {decision_id}").stdout
        assert {"litellm", "crewai"}.isdisjoint(journey.environment.distributions)
