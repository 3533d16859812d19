"""What an adapter's import brings along: its framework, and nothing that is heavy."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    "aiohttp",
    "crewai",
    "cryptography",
    "duckdb",
    "jinja2",
    "langchain",
    "langgraph",
    "litellm",
    "matplotlib",
    "onnxruntime",
    "openai",
    "pandas",
    "prometheus_client",
    "pyarrow",
    "rich",
    "safetensors",
    "scipy",
    "sentence_transformers",
    "sklearn",
    "starlette",
    "tokenizers",
    "torch",
    "transformers",
    "typer",
    "uvicorn",
)
BEFORE = "import sys, json; before = {m.split('.')[0] for m in sys.modules}"
AFTER = f"heavy = {{m.split('.')[0] for m in sys.modules}} & set({HEAVY!r})"
SAID = "print(json.dumps([sorted(heavy - before), sorted(heavy)]))"
HOOK = """
import os, sys
class Asked:
    def find_spec(self, name, path=None, target=None):
        if name == "litellm":
            raise SystemExit(os.environ.get("LITELLM_LOCAL_MODEL_COST_MAP") != "True" and "asks the network")
sys.meta_path.insert(0, Asked())
"""
"""Ends a process at the import of litellm, which takes seconds: well if litellm would take the prices it brings."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty one."""
    return Path(tmp_path_factory.mktemp("light"))


def ran(code: str, folder: Path) -> str:
    """What a piece of code prints in a process of its own, without the variable that keeps litellm from the network."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "LITELLM_LOCAL_MODEL_COST_MAP"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def brought(code: str, folder: Path, *, base: str = "", after: str = "") -> tuple[set[str], set[str]]:
    """The heavy packages that a piece of code adds to those of `base`, and all that are there; then `after` runs."""
    said = ran("\n".join([base, BEFORE, code, AFTER, SAID, after]), folder)
    added, every = json.loads(said.strip().splitlines()[0])
    return set(added), set(every)


def needs(*names: str) -> None:
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"install {name}")


def test_adapters_of_light_frameworks_are_light(folder: Path) -> None:
    """LangChain's chat model and callbacks, the client and the helper of feedback bring no heavy package at all."""
    needs("langchain_core")
    code = """
from fitrouter_integrations.langchain import ChatFitrouter, FitrouterCallbackHandler
import fitrouter_integrations.client
from fitrouter_integrations.feedback import rate
"""
    assert brought(code, folder) == (set(), set())


def test_crewais_adapter_brings_crewai_alone(folder: Path) -> None:
    """Nothing heavy but what CrewAI itself brings, which is no other framework; litellm then asks no network."""
    needs("crewai", "litellm")
    code = "from fitrouter_integrations.crewai import FitrouterLLM"
    added, every = brought(code, folder, base="import crewai", after=f"{HOOK}\nimport litellm")
    assert added == set()
    assert not every & {"langchain", "langgraph", "torch", "litellm"}


@pytest.mark.parametrize(
    "code",
    [
        "import fitrouter_integrations.litellm",
        f"{HOOK}\nfrom fitrouter.providers import _litellm; _litellm.load_litellm()",
    ],
    ids=["adapter", "provider"],
)
def test_importing_litellm_waits_for_no_network(code: str, folder: Path) -> None:
    """Litellm takes the prices that it brings, unless its own variable says otherwise; it would download them."""
    needs("litellm")
    ran("import socket\ndef no(*_): raise SystemExit('asked the network')\nsocket.getaddrinfo = no\n" + code, folder)


ROUTED = """
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from fitrouter_integrations.langchain import FitrouterMiddleware

models = {name: FakeListChatModel(responses=[f"{name} speaks"]) for name in ("fast", "deep")}
routed = FitrouterMiddleware(models, encoder="hashing", scorer={"encoder": "hashing"})
agent = create_agent(models["fast"], middleware=[routed])
said = agent.invoke({"messages": [("user", "hi")]})["messages"][-1]
assert said.text == said.response_metadata["model_name"] + " speaks"
routed.close()
assert not {m.split(".")[0] for m in sys.modules} & {"litellm", "aiohttp", "torch", "crewai", "openai"}
"""


def test_the_middleware_brings_agents_and_no_other_framework(folder: Path) -> None:
    """Its import adds no heavy package to LangChain's agents; asking existing chat models, no provider's client."""
    needs("langchain")
    code = "from fitrouter_integrations.langchain import FitrouterMiddleware"
    added, _ = brought(code, folder, base="import langchain.agents", after=ROUTED)
    assert added == set()
