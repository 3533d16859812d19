"""What an adapter's import brings along: its framework, and nothing that is heavy."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    "aiohttp",
    "bm25s",
    "crewai",
    "cryptography",
    "duckdb",
    "fastapi",
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
FROM = "from fitrouter_integrations.{} import {}"
BEFORE = "import sys, json; before = {m.split('.')[0] for m in sys.modules}"
ADDED = "print(json.dumps(sorted(({{m.split('.')[0] for m in sys.modules}} - before) & set({!r}))))"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty one."""
    return Path(tmp_path_factory.mktemp("light"))


@functools.cache
def brought(code: str, folder: Path, *, base: str = "") -> frozenset[str]:
    """The heavy packages that a piece of code adds to those of `base`, in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-c", f"{base}\n{BEFORE}\n{code}\n{ADDED.format(HEAVY)}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    return frozenset(json.loads(ran.stdout.strip().splitlines()[-1]))


def needs(*names: str) -> None:
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"install {name}")


@pytest.mark.parametrize(
    ("framework", "base", "code"),
    [
        ("langchain", "langchain_core.language_models.chat_models", FROM.format("langchain", "ChatFitrouter")),
        ("langchain", "langchain_core.callbacks", FROM.format("langchain", "FitrouterCallbackHandler")),
        ("crewai", "crewai", FROM.format("crewai", "FitrouterLLM")),
        ("msgspec", "pydantic", "import fitrouter_integrations.client"),
        ("msgspec", "pydantic", "from fitrouter_integrations.feedback import rate"),
    ],
)
def test_an_adapter_brings_its_framework_alone(framework: str, base: str, code: str, folder: Path) -> None:
    """The import adds no heavy package to those that the framework's own import brings."""
    needs(framework, base.split(".")[0])
    assert brought(code, folder, base=f"import {base}") == frozenset()


def test_the_chat_model_brings_no_more_than_langchain_core(folder: Path) -> None:
    """Of all heavy packages there is none: neither LangChain's agents, nor LangGraph, nor a client of a provider."""
    needs("langchain_core")
    assert brought(FROM.format("langchain", "ChatFitrouter"), folder) == frozenset()


def test_crewais_adapter_brings_no_langchain(folder: Path) -> None:
    """One framework does not bring the other."""
    needs("crewai")
    assert not brought(FROM.format("crewai", "FitrouterLLM"), folder) & {"langchain", "langgraph", "torch", "litellm"}


def test_the_middleware_brings_agents_and_no_other_framework(folder: Path) -> None:
    """`create_agent` needs LangChain and LangGraph; what else they bring is theirs."""
    needs("langchain")
    assert not brought(FROM.format("langchain", "FitrouterMiddleware"), folder, base="import langchain.agents")


@pytest.mark.parametrize(
    "code",
    [
        "import fitrouter_integrations.litellm",
        "import fitrouter_integrations.crewai, litellm",
        "from fitrouter.providers import _litellm; _litellm.load_litellm()",
    ],
)
def test_importing_litellm_waits_for_no_network(code: str, folder: Path) -> None:
    """Litellm takes the prices that it brings, unless its own variable says otherwise; it would download them."""
    needs("litellm", "crewai")
    banned = "import socket\ndef no(*_): raise SystemExit('asked the network')\nsocket.getaddrinfo = no\n"
    hidden = {name: value for name, value in os.environ.items() if name != "LITELLM_LOCAL_MODEL_COST_MAP"}
    ran = subprocess.run(
        [sys.executable, "-c", banned + code],
        cwd=folder,
        env=hidden,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr


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
"""


def test_the_middleware_routes_without_litellm(folder: Path) -> None:
    """Asking existing chat models imports no provider's client."""
    needs("langchain")
    assert not brought(ROUTED, folder) & {"litellm", "aiohttp", "torch", "crewai", "openai"}
