"""Journey: three OpenAI-compatible models at a URL, from an empty folder (docs/own-models.md)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from tests.kits.fake_openai import FakeOpenAI, in_a_thread
from tests.kits.pages import blocks

from fitrouter.config import load_config, parse_config

from .conftest import PAGES, Create, Journey

KEY = "sk-journey-12345678"
MODELS = ("llama-3.1-8b", "qwen3-8b", "mistral-small")


def test_the_other_ways_of_the_page(environment: Create, tmp_path: Path) -> None:
    """A key from the environment, a choice among many models, and the file written by hand."""
    others = [f"other-{i}" for i in range(40)]
    with in_a_thread(FakeOpenAI(models=[*MODELS, *others], key=KEY)) as models:
        places = dict.fromkeys(("https://models.example.com/v1", "http://127.0.0.1:8000/v1"), models.base_url)
        places["MY_KEY=…"] = f"MY_KEY={KEY}"
        for number, more in enumerate((" --model qwen3-8b", " --key-env MY_KEY")):
            folder = tmp_path / str(number)
            folder.mkdir()
            with Journey(environment("gateway"), folder, {"MY_KEY": KEY}, places) as journey:
                journey.run(journey.block("own-models.md", "sh", number).strip() + more)
                config = load_config(folder / "fitrouter.yaml")
                assert {model.name for model in config.models} <= set(MODELS)
                assert config.share == 1.0
                journey.run("fitrouter config check")
    proxied, written = (yaml.safe_load(block.text) for block in blocks(PAGES / "own-models.md", "yaml"))
    assert [model.prices.known for model in parse_config(written).models] == [True, False]
    models = [{"name": "a", "provider": "models"}]
    assert parse_config({**proxied, "models": models}).providers["models"].headers


@pytest.mark.skipif(shutil.which("curl") is None, reason="install curl")
def test_two_commands_lead_to_a_routed_answer(environment: Create, tmp_path: Path) -> None:
    """The page's blocks, unchanged: `init`, `serve`, and an answer that was routed among the three models."""
    with (
        in_a_thread(FakeOpenAI(models=MODELS)) as models,
        Journey(environment("gateway"), tmp_path, replaced={"http://127.0.0.1:8000/v1": models.base_url}) as journey,
    ):
        wrote, answered = journey.follow("own-models.md")
        assert "3 models of" in wrote.stdout
        written = yaml.safe_load((tmp_path / "fitrouter.yaml").read_text())
        assert [model["name"] for model in written["models"]] == list(MODELS)
        answer = json.loads(answered.stdout)
        assert answer["model"] in MODELS
        assert answer["fitrouter"]["mode"] == "online"
        assert 0 < answer["fitrouter"]["propensity"] < 1
        assert "litellm" not in journey.environment.distributions
